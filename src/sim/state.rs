#![forbid(unsafe_code)]
//! What a world consists of, without the cores and tasks that act in it: virtual time, the event
//! queue, the nodes' mailboxes, the faults in force.
//!
//! One [`State`] is shared by the world and by every [`super::SimEnv`]; it is borrowed for the
//! length of one `Env` call and never while a core or a task runs.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::fault::{Fault, FaultRates, NodeIx, StoreMode};
use super::history::{Life, Recorder};
use super::keepers::KeeperSlot;
use super::net::Stream;
use super::rng::SimRng;
use super::stores::{StoreThread, UnderWay};
use super::task::SimTime;
use super::trace::{NONE, Trace, TraceKind, TraceRecord};
use crate::env::{ConnId, Endpoint, Event, LeaseView, Planted, Post};
use crate::location::{Batch, BatchOutcome, LocationStore};
use crate::store::leases::KeeperConfig;
use crate::time::Nanos;

/// What the event queue holds. Small and `Copy`; what it is about lies where it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Due {
    Run { node: u16, life: u32, core: u16 },
    Mail { node: u16, life: u32, core: u16, from: u16 },
    Adopt { stream: u64, side: usize },
    Deliver { stream: u64, dir: usize },
    DialArrives { stream: u64 },
    DialAnswered { stream: u64 },
    StoreCall { seq: u64 },
    StoreAnswer { seq: u64 },
    Keeper { node: u16, life: u32 },
    BringUp { node: u16, life: u32 },
    StartAgain { node: u16, life: u32 },
    End { node: u16, life: u32, failed: bool },
    Fault { index: u32 },
    Resume { node: u16 },
    Unblock { from: u16, to: u16 },
    WakeTask { task: u64 },
}

/// One core of a node.
pub(crate) struct CoreState<M> {
    pub(crate) inbox: VecDeque<Event<M>>,
    /// The earliest run in the queue; runs of another time are stale.
    pub(crate) run_at: Option<Nanos>,
    /// What the last iteration returned.
    pub(crate) park_until: Nanos,
    /// The core is at work until here.
    pub(crate) busy_until: Nanos,
    /// Polls so far; marks the streams a poll has reported.
    pub(crate) polls: u64,
    /// Events given out since the last run was noted.
    pub(crate) polled: u64,
    pub(crate) rng: SimRng,
    pub(crate) ended: bool,
    /// Mail under way, by sender; the last place is that of other threads.
    pub(crate) mail: Vec<VecDeque<M>>,
    pub(crate) mail_last: Vec<Nanos>,
}

/// Whether a node's process exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Down,
    Starting,
    Up,
}

/// One node.
pub(crate) struct NodeState<M> {
    pub(crate) endpoint: Endpoint,
    pub(crate) core_count: u16,
    pub(crate) life: u32,
    pub(crate) phase: Phase,
    pub(crate) paused_until: Option<Nanos>,
    /// Died silently: dials time out.
    pub(crate) host_down: bool,
    pub(crate) listening: bool,
    pub(crate) cores: Vec<CoreState<M>>,
    pub(crate) lease: LeaseView,
    pub(crate) store: StoreThread,
    /// How its leases are kept; without, its lease never ends.
    pub(crate) keeper_config: Option<KeeperConfig>,
    pub(crate) keeper: Option<Box<KeeperSlot>>,
}

/// Mail of application threads and wakers, put here by [`Post::post`] at any time.
pub(crate) struct Outside<M> {
    posts: Mutex<VecDeque<(u16, u32, u16, M)>>,
}

impl<M> Outside<M> {
    pub(crate) fn pop(&self) -> Option<(u16, u32, u16, M)> {
        self.posts.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }
}

/// The door of one node lifecycle for other threads.
pub(crate) struct SimPost<M> {
    pub(crate) outside: Arc<Outside<M>>,
    pub(crate) node: u16,
    pub(crate) life: u32,
}

impl<M: Send> Post<M> for SimPost<M> {
    fn post(&self, to: u16, mail: M) {
        let mut posts = self.outside.posts.lock().unwrap_or_else(PoisonError::into_inner);
        posts.push_back((self.node, self.life, to, mail));
    }
}

/// A look at every chunk of bytes that arrives: time, from, to, stream, bytes. It may change them:
/// that stands for a peer that sent something else.
pub type Tap = Box<dyn FnMut(Nanos, NodeIx, NodeIx, u64, &mut [u8])>;
/// A look at every batch that was applied in the Store: time, node, batch, outcome.
pub type CommitWatch = Box<dyn FnMut(Nanos, NodeIx, &Batch, &BatchOutcome)>;

/// See the module's head.
pub(crate) struct State<M> {
    pub(crate) now: Nanos,
    /// `now`, or later while a core runs that lost time inside its iteration.
    pub(crate) local: Nanos,
    seq: u64,
    queue: BinaryHeap<Reverse<(Nanos, u64, Due)>>,
    pub(crate) rng: SimRng,
    pub(crate) net_rng: SimRng,
    pub(crate) rates: FaultRates,
    pub(crate) faults: Vec<Fault>,
    pub(crate) trace: Trace,
    pub(crate) time: SimTime,
    pub(crate) nodes: Vec<NodeState<M>>,
    pub(crate) streams: BTreeMap<u64, Stream>,
    pub(crate) next_stream: u64,
    /// How many partitions stand between two nodes, by direction.
    pub(crate) blocked: BTreeMap<(u16, u16), u32>,
    /// Added delays between two nodes (smaller index first), and until when.
    pub(crate) delays: Vec<((u16, u16), Duration, Nanos)>,
    pub(crate) planted: BTreeSet<Planted>,
    pub(crate) outside: Arc<Outside<M>>,
    pub(crate) history: Recorder,
    pub(crate) provider: Option<Arc<dyn LocationStore>>,
    /// Calls of the provider under way.
    pub(crate) calls: BTreeMap<u64, UnderWay>,
    pub(crate) next_call: u64,
    /// Which lifecycle a node generation is.
    pub(crate) lives: BTreeMap<u64, Life>,
    /// How the Store misbehaves, for whom and until when.
    pub(crate) store_modes: Vec<(Option<u16>, StoreMode, Nanos)>,
    pub(crate) tap: Option<Tap>,
    pub(crate) commit_watch: Option<CommitWatch>,
}

impl<M> State<M> {
    pub(crate) fn new(seed: u64) -> Self {
        let mut rng = SimRng::new(seed);
        let net_rng = rng.fork(1);
        let time = SimTime::default();
        Self {
            now: Nanos::ZERO,
            local: Nanos::ZERO,
            seq: 0,
            queue: BinaryHeap::new(),
            rng,
            net_rng,
            rates: FaultRates::default(),
            faults: Vec::new(),
            trace: Trace::new(seed),
            history: Recorder::new(time.clone()),
            time,
            nodes: Vec::new(),
            streams: BTreeMap::new(),
            next_stream: 0,
            blocked: BTreeMap::new(),
            delays: Vec::new(),
            planted: BTreeSet::new(),
            outside: Arc::new(Outside { posts: Mutex::new(VecDeque::new()) }),
            provider: None,
            calls: BTreeMap::new(),
            next_call: 0,
            lives: BTreeMap::new(),
            store_modes: Vec::new(),
            tap: None,
            commit_watch: None,
        }
    }

    /// Puts something into the queue. What is due at one time happens in the order of its
    /// scheduling.
    pub(crate) fn schedule(&mut self, at: Nanos, due: Due) {
        self.seq += 1;
        self.queue.push(Reverse((at.max(self.now), self.seq, due)));
    }

    pub(crate) fn next_at(&self) -> Option<Nanos> {
        self.queue.peek().map(|Reverse((at, _, _))| *at)
    }

    pub(crate) fn pop(&mut self) -> Option<(Nanos, Due)> {
        self.queue.pop().map(|Reverse((at, _, due))| (at, due))
    }

    pub(crate) fn set_now(&mut self, now: Nanos) {
        self.now = now;
        self.local = now;
        self.time.set(now);
    }

    /// Time passes for the running core alone.
    pub(crate) fn lose_time(&mut self, node: u16, core: u16, by: Duration) {
        self.local += by;
        self.time.set(self.local);
        self.note_step(TraceKind::Jump, node, core, crate::time::duration_ns(by), 0);
    }

    pub(crate) fn note_step(&mut self, kind: TraceKind, node: u16, core: u16, a: u64, b: u64) {
        self.trace.push(TraceRecord { at: self.local, kind, node, core, a, b });
    }

    /// Notes an iteration; one that found nothing to do is not kept for reading.
    pub(crate) fn note_run(&mut self, node: u16, core: u16, park: Nanos) {
        let c = &mut self.nodes[usize::from(node)].cores[usize::from(core)];
        let events = std::mem::take(&mut c.polled);
        let record =
            TraceRecord { at: self.local, kind: TraceKind::Run, node, core, a: events, b: park.0 };
        if events > 0 { self.trace.push(record) } else { self.trace.push_quietly(record) }
    }

    /// The node when this is its current lifecycle and its process exists.
    pub(crate) fn alive(&mut self, node: u16, life: u32) -> Option<&mut NodeState<M>> {
        let n = self.nodes.get_mut(usize::from(node))?;
        (n.life == life && n.phase != Phase::Down).then_some(n)
    }

    /// The core when its lifecycle is current and it has not ended.
    pub(crate) fn live_core(
        &mut self,
        node: u16,
        life: u32,
        core: u16,
    ) -> Option<&mut CoreState<M>> {
        let c = self.alive(node, life)?.cores.get_mut(usize::from(core))?;
        (!c.ended).then_some(c)
    }

    pub(crate) fn is_paused(&self, node: u16) -> bool {
        self.nodes[usize::from(node)].paused_until.is_some_and(|t| t > self.now)
    }

    /// Makes sure that the core runs at `at`, or as soon after it as it is free.
    pub(crate) fn wake_core(&mut self, node: u16, core: u16, at: Nanos) {
        let n = &mut self.nodes[usize::from(node)];
        let life = n.life;
        let Some(c) = n.cores.get_mut(usize::from(core)) else { return };
        if c.ended {
            return;
        }
        let at = at.max(c.busy_until);
        if c.run_at.is_none_or(|r| at < r) {
            c.run_at = Some(at);
            self.schedule(at, Due::Run { node, life, core });
        }
    }

    /// Puts an event before a core.
    pub(crate) fn push_event(&mut self, node: u16, core: u16, event: Event<M>) {
        if let Some(c) = self.nodes[usize::from(node)].cores.get_mut(usize::from(core)) {
            c.inbox.push_back(event);
            self.wake_core(node, core, self.local);
        }
    }

    /// Sends mail; `from` is the sending core or the core count for another thread.
    pub(crate) fn send_mail(&mut self, node: u16, life: u32, to: u16, from: u16, mail: M) {
        let range = self.rates.mail;
        let local = self.local;
        let Some(c) = self.live_core(node, life, to) else { return };
        let from_ix = usize::from(from).min(c.mail.len() - 1);
        let at = (local + c.rng.duration(range)).max(c.mail_last[from_ix]);
        c.mail_last[from_ix] = at;
        c.mail[from_ix].push_back(mail);
        self.schedule(at, Due::Mail { node, life, core: to, from: from_ix as u16 });
    }

    pub(crate) fn mail_arrives(&mut self, node: u16, life: u32, core: u16, from: u16) {
        let Some(c) = self.live_core(node, life, core) else { return };
        let outside = usize::from(from) + 1 == c.mail.len();
        let Some(mail) = c.mail[usize::from(from)].pop_front() else { return };
        self.note_step(
            TraceKind::Mail,
            node,
            core,
            u64::from(if outside { NONE } else { from }),
            0,
        );
        self.push_event(node, core, Event::Mail(mail));
    }

    /// Takes in what other threads posted.
    pub(crate) fn drain_outside(&mut self) {
        while let Some((node, life, to, mail)) = self.outside.pop() {
            let from = self.nodes[usize::from(node)].core_count;
            self.send_mail(node, life, to, from, mail);
        }
        self.drain_lease_controls();
    }

    /// Gives a core what happened: at most one event of a stream per call, so that a core may
    /// hand a stream over or close it while it handles the batch.
    pub(crate) fn poll(&mut self, node: u16, core: u16, events: &mut Vec<Event<M>>) {
        const BATCH: usize = 64;
        let c = &mut self.nodes[usize::from(node)].cores[usize::from(core)];
        c.polls += 1;
        let mark = c.polls;
        for _ in 0..BATCH {
            let c = &mut self.nodes[usize::from(node)].cores[usize::from(core)];
            let Some(event) = c.inbox.pop_front() else { break };
            match conn_of(&event) {
                None => events.push(event),
                Some(conn) => {
                    if let Some(event) = self.poll_stream(conn, mark, event, events) {
                        let c = &mut self.nodes[usize::from(node)].cores[usize::from(core)];
                        c.inbox.push_front(event);
                        break;
                    }
                }
            }
        }
        let (stall, rate) = (self.rates.stall, self.rates.stall_per_million);
        let c = &mut self.nodes[usize::from(node)].cores[usize::from(core)];
        c.polled += events.len() as u64;
        if c.rng.chance(rate) {
            let by = c.rng.duration(stall);
            self.lose_time(node, core, by);
        }
    }
}

/// The stream an event is about.
pub(crate) fn conn_of<M>(event: &Event<M>) -> Option<ConnId> {
    match event {
        Event::Mail(_) | Event::Store { .. } => None,
        Event::Accepted { conn }
        | Event::Connected { conn }
        | Event::Adopted { conn, .. }
        | Event::Received { conn, .. }
        | Event::Closed { conn, .. } => Some(*conn),
    }
}
