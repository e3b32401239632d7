#![forbid(unsafe_code)]
//! The world: it advances virtual time, runs cores and tasks one after another, starts and ends
//! nodes, and carries out faults.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Context;
use std::time::Duration;

use super::core_env::{SimCore, SimEnv};
use super::fault::{Death, Fault, FaultPlan, NodeIx};
use super::history::{Concerns, Life, Recorder, TroubleKind};
use super::keepers::Reports;
use super::state::{CommitWatch, CoreState, Due, NodeState, Phase, SimPost, State, Tap};
use super::stores::StoreThread;
use super::task::{SimTime, Task, Tasks};
use super::trace::{NONE, TraceKind};
use crate::env::{Endpoint, LeaseView, Planted, Post};
use crate::error::Error;
use crate::ids::NodeRid;
use crate::location::LocationStore;
use crate::node::store_threads::LeaseControl;
use crate::store::leases::{KeeperConfig, Started};
use crate::time::Nanos;

/// What a node of a world is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSpec {
    /// Its name in messages, and its rid.
    pub name: String,
    /// How many cores.
    pub cores: u16,
    /// Where it listens; every lifecycle at the same place.
    pub endpoint: Endpoint,
    /// How long its lease lasts and how often it is renewed; `None`: a lease that never ends,
    /// for which no Store is asked.
    pub lease: Option<(Duration, Duration)>,
}

impl NodeSpec {
    /// A node of this name and core count that listens on a loopback address of its own.
    ///
    /// # Panics
    /// When `cores` is 0.
    #[must_use]
    pub fn new(name: &str, cores: u16) -> Self {
        assert!(cores > 0, "a node has at least one core");
        let sum = super::trace::digest_bytes(name.as_bytes());
        let octet = |shift: u32| (sum >> shift) as u8;
        let ip = std::net::Ipv4Addr::new(127, octet(0), octet(8), octet(16));
        let port = 1024 + ((sum >> 24) % 60_000) as u16;
        Self {
            name: name.to_owned(),
            cores,
            endpoint: Endpoint::Tcp(std::net::SocketAddr::from((ip, port))),
            lease: None,
        }
    }

    /// The same node with a lease that its lease thread takes in the Store, before the node's
    /// cores are built, and renews.
    #[must_use]
    pub const fn with_lease(mut self, duration: Duration, renew_every: Duration) -> Self {
        self.lease = Some((duration, renew_every));
        self
    }
}

/// What the builder of a node's cores is given when a lifecycle of the node begins.
pub struct NodeStart<M: Send + 'static> {
    /// Which node.
    pub node: NodeIx,
    /// Which lifecycle, from 1.
    pub life: u32,
    /// What it is.
    pub spec: NodeSpec,
    /// The door for handles and wakers.
    pub poster: Arc<dyn Post<M>>,
    /// The clock.
    pub time: SimTime,
    /// The recorder of the world's history.
    pub history: Recorder,
    /// The lease as first published.
    pub lease: LeaseView,
    /// What the lease thread learned when it took the lease; `None` for a node without one.
    pub started: Option<Box<Started>>,
    /// What the node tells its lease thread.
    pub(crate) lease_control: Option<flume::Sender<LeaseControl>>,
    /// A random number for what a real node draws at its start (keys, a generated rid).
    pub seed: u64,
}

/// A node lifecycle as its factory built it.
pub struct Built<M: Send + 'static> {
    cores: Vec<Box<dyn SimCore<M>>>,
    reports: Option<Reports>,
}

impl<M: Send + 'static> Built<M> {
    /// A node of these cores.
    #[must_use]
    pub fn new(cores: Vec<Box<dyn SimCore<M>>>) -> Self {
        Self { cores, reports: None }
    }

    /// Takes what the lease thread reports from now on. `reports` may post mail; it must not call
    /// the world.
    #[must_use]
    pub(crate) fn with_reports(mut self, reports: Reports) -> Self {
        self.reports = Some(reports);
        self
    }
}

type Factory<M> = Box<dyn FnMut(NodeStart<M>) -> Result<Built<M>, Error>>;

struct Running<M: Send + 'static> {
    env: SimEnv<M>,
    core: Box<dyn SimCore<M>>,
}

struct Host<M: Send + 'static> {
    spec: NodeSpec,
    factory: Factory<M>,
    cores: Vec<Running<M>>,
}

/// A simulated world of nodes. See [`crate::sim`] for how to write a simulation.
pub struct SimWorld<M: Send + 'static> {
    seed: u64,
    state: Rc<RefCell<State<M>>>,
    tasks: Rc<RefCell<Tasks>>,
    hosts: Vec<Host<M>>,
    time: SimTime,
    history: Recorder,
}

/// How far [`SimWorld::block_on`] lets virtual time go before it calls the future stuck.
const BLOCK_ON_LIMIT: Duration = Duration::from_secs(3600);
/// Trace lines printed when a test fails.
const LINES_ON_FAILURE: usize = 60;

impl<M: Send + 'static> SimWorld<M> {
    /// An empty world. Everything that happens in it follows from the seed and from what the
    /// test does.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let state = State::new(seed);
        let (time, history) = (state.time.clone(), state.history.clone());
        let state = Rc::new(RefCell::new(state));
        Self { seed, state, tasks: Rc::default(), hosts: Vec::new(), time, history }
    }

    /// The seed.
    #[must_use]
    pub const fn seed(&self) -> u64 {
        self.seed
    }

    /// The virtual time now.
    #[must_use]
    pub fn now(&self) -> Nanos {
        self.time.now()
    }

    /// The clock, for tasks, actors and Store providers.
    #[must_use]
    pub fn time(&self) -> SimTime {
        self.time.clone()
    }

    /// A future that ends when `by` has passed in virtual time.
    #[must_use]
    pub fn sleep(&self, by: Duration) -> super::Sleep {
        self.time.sleep(by)
    }

    /// The recorder of this world's history.
    #[must_use]
    pub fn history(&self) -> Recorder {
        self.history.clone()
    }

    /// What tasks may do to the world.
    #[must_use]
    pub fn handle(&self) -> SimHandle<M> {
        SimHandle { state: self.state.clone(), tasks: self.tasks.clone(), time: self.time.clone() }
    }

    // ---- setting up ------------------------------------------------------------------------

    /// Gives the nodes their Store. Without one every Store call fails.
    pub fn set_store(&mut self, store: Arc<dyn LocationStore>) {
        self.state.borrow_mut().provider = Some(store);
    }

    /// Sets the rates of a plan and schedules its faults. Faults scheduled earlier stay.
    pub fn set_plan(&mut self, plan: FaultPlan) {
        self.state.borrow_mut().rates = plan.rates;
        for (at, fault) in plan.schedule {
            self.schedule(at, fault);
        }
    }

    /// Schedules one fault; one in the past happens at once.
    pub fn schedule(&mut self, at: Nanos, fault: Fault) {
        self.handle().schedule(at, fault);
    }

    /// Plants a fault in the nodes' own code. See [`Planted`].
    pub fn plant(&mut self, fault: Planted) {
        self.state.borrow_mut().planted.insert(fault);
    }

    /// How many trace records are kept for a failure; 0 keeps none and is fastest.
    pub fn keep_trace(&mut self, records: usize) {
        self.state.borrow_mut().trace.keep(records);
    }

    /// Looks at every chunk of bytes that arrives anywhere. `tap` must not call the world.
    pub fn on_bytes(&mut self, tap: Tap) {
        self.state.borrow_mut().tap = Some(tap);
    }

    /// Looks at every batch a node's call brought to the Store. `watch` must not call the world.
    pub fn on_commit(&mut self, watch: CommitWatch) {
        self.state.borrow_mut().commit_watch = Some(watch);
    }

    /// Adds a node and starts it. `factory` builds the cores of each of its lifecycles; when it
    /// fails, the node stays down.
    ///
    /// # Panics
    /// When the endpoint is another node's, or the lease breaks a rule of a node's builder.
    pub fn add_node(
        &mut self,
        spec: NodeSpec,
        factory: impl FnMut(NodeStart<M>) -> Result<Built<M>, Error> + 'static,
    ) -> NodeIx {
        let ix = NodeIx(u16::try_from(self.hosts.len()).expect("fewer than 65536 nodes"));
        let keeper_config = spec.lease.map(|(lease_duration, renew_interval)| {
            let rid = NodeRid::new(&spec.name).expect("a node's name is its rid: 1 to 255 bytes");
            let config = KeeperConfig::new(rid, 0, 0);
            let config = KeeperConfig { lease_duration, renew_interval, ..config };
            config.check().expect("the lease of a node follows the rules of a builder");
            config
        });
        let mut state = self.state.borrow_mut();
        assert!(
            state.nodes.iter().all(|n| n.endpoint != spec.endpoint),
            "endpoint {} is taken by another node of this world",
            spec.endpoint
        );
        state.nodes.push(NodeState {
            endpoint: spec.endpoint.clone(),
            core_count: spec.cores,
            life: 0,
            phase: Phase::Down,
            paused_until: None,
            host_down: false,
            listening: false,
            cores: Vec::new(),
            lease: LeaseView { admission_deadline: Nanos::ZERO, fenced: true },
            store: StoreThread::default(),
            keeper_config,
            keeper: None,
        });
        drop(state);
        self.hosts.push(Host { spec, factory: Box::new(factory), cores: Vec::new() });
        self.schedule(self.now(), Fault::Start(ix));
        ix
    }

    // ---- looking ---------------------------------------------------------------------------

    /// Whether the node's cores run (paused or not).
    #[must_use]
    pub fn is_up(&self, node: NodeIx) -> bool {
        self.state.borrow().nodes[usize::from(node.0)].phase == Phase::Up
    }

    /// The node's current or last lifecycle; 0 before its first.
    #[must_use]
    pub fn life(&self, node: NodeIx) -> Life {
        Life { node, life: self.state.borrow().nodes[usize::from(node.0)].life }
    }

    /// The node's lease as its lease thread published it last.
    #[must_use]
    pub fn lease(&self, node: NodeIx) -> LeaseView {
        self.state.borrow().nodes[usize::from(node.0)].lease
    }

    /// Where the node listens.
    #[must_use]
    pub fn endpoint(&self, node: NodeIx) -> Endpoint {
        self.hosts[usize::from(node.0)].spec.endpoint.clone()
    }

    /// Streams that exist, dials under way included.
    #[must_use]
    pub fn stream_count(&self) -> usize {
        self.state.borrow().streams.len()
    }

    /// A hash of everything that happened so far. The same seed and the same test give the same
    /// hash.
    #[must_use]
    pub fn trace_hash(&self) -> u128 {
        self.state.borrow().trace.hash()
    }

    /// Steps so far.
    #[must_use]
    pub fn step_count(&self) -> u64 {
        self.state.borrow().trace.count()
    }

    /// The last trace lines.
    #[must_use]
    pub fn trace_lines(&self, last: usize) -> Vec<String> {
        self.state.borrow().trace.lines(last)
    }

    /// Writes a line into the trace.
    pub fn note(&mut self, text: impl Into<String>) {
        self.handle().note(text);
    }

    // ---- running ---------------------------------------------------------------------------

    /// Spawns a task. With a node it lives inside that node's current lifecycle: it stands still
    /// while the node is paused and is dropped when the node ends.
    pub fn spawn<F>(&mut self, node: Option<NodeIx>, future: F) -> Task<F::Output>
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        self.handle().spawn(node, future)
    }

    /// Runs everything until `future` ends.
    ///
    /// # Panics
    /// When nothing is left to do and the future has not ended, or after an hour of virtual time.
    pub fn block_on<F>(&mut self, future: F) -> F::Output
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        let task = self.spawn(None, future);
        let limit = self.now() + BLOCK_ON_LIMIT;
        let done = self.run_until(limit, |_| task.is_done());
        match task.take() {
            Some(value) if done => value,
            _ => panic!(
                "seed {}: the future did not end by {}; nothing more was due",
                self.seed,
                self.now()
            ),
        }
    }

    /// Runs until `condition` holds or `deadline` is reached, and says whether it holds. It is
    /// looked at after every step.
    pub fn run_until(&mut self, deadline: Nanos, mut condition: impl FnMut(&Self) -> bool) -> bool {
        loop {
            if condition(self) {
                return true;
            }
            if !self.step(deadline) {
                return false;
            }
        }
    }

    /// Lets virtual time pass.
    pub fn run_for(&mut self, by: Duration) {
        let deadline = self.now() + by;
        while self.step(deadline) {}
    }

    /// One step of what is due by `deadline`. When nothing is, moves the clock there and says
    /// `false`.
    pub fn step(&mut self, deadline: Nanos) -> bool {
        self.state.borrow_mut().drain_outside(); // what the test and the step before posted
        let ready = self.tasks.borrow_mut().pop_ready();
        if let Some((task, node)) = ready {
            self.poll_task(task, node);
            return true;
        }
        let queued = self.state.borrow().next_at();
        let slept = self.time.next_due();
        let next = match (queued, slept) {
            (Some(a), Some(b)) => a.min(b),
            (Some(a), None) | (None, Some(a)) => a,
            (None, None) => Nanos::MAX,
        };
        if next > deadline || next == Nanos::MAX {
            if deadline != Nanos::MAX && deadline > self.now() {
                self.state.borrow_mut().set_now(deadline);
            }
            return false;
        }
        let now = next.max(self.now());
        self.state.borrow_mut().set_now(now);
        if slept.is_some_and(|at| at <= now) {
            if let Some(number) = self.time.wake_one(now) {
                self.state.borrow_mut().note_step(TraceKind::Timer, NONE, NONE, number, 0);
            }
        } else if let Some((at, due)) = { self.state.borrow_mut().pop() } {
            self.happen(at, due);
        }
        true
    }

    fn poll_task(&mut self, task: u64, node: Option<(u16, u32)>) {
        if let Some((node, _)) = node {
            let mut state = self.state.borrow_mut();
            if let Some(until) = state.paused_until(node) {
                state.schedule(until, Due::WakeTask { task });
                return;
            }
        }
        let Some((mut future, waker)) = ({ self.tasks.borrow_mut().take(task) }) else { return };
        let ended = future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready();
        let back = if ended { None } else { Some(future) };
        let orphan = self.tasks.borrow_mut().put_back(task, back);
        drop(orphan);
        let mut state = self.state.borrow_mut();
        state.note_step(TraceKind::Task, node.map_or(NONE, |n| n.0), NONE, task, u64::from(ended));
    }

    fn happen(&mut self, at: Nanos, due: Due) {
        let mut state = self.state.borrow_mut();
        match due {
            Due::Run { node, life, core } => {
                drop(state);
                self.run_core(at, node, life, core);
            }
            Due::Mail { node, life, core, from } => state.mail_arrives(node, life, core, from),
            Due::Adopt { stream, side } => state.adopt(stream, side),
            Due::Deliver { stream, dir } => state.deliver(stream, dir),
            Due::DialArrives { stream } => state.dial_arrives(stream),
            Due::DialAnswered { stream } => state.dial_answered(stream),
            Due::StoreCall { seq } => state.store_call_due(seq),
            Due::StoreAnswer { seq } => state.store_answer_due(seq),
            Due::Resume { node } => state.resume(node),
            Due::Unblock { from, to } => state.unblock(from, to),
            Due::Keeper { node, life } => state.keeper_due(node, life),
            Due::StartAgain { node, life } => {
                let again = state.nodes[usize::from(node)].life == life;
                drop(state);
                if again {
                    self.start_node(node);
                }
            }
            Due::End { node, life, failed } => {
                let current = state.nodes[usize::from(node)].life == life;
                drop(state);
                if current {
                    let kind = if failed { TraceKind::NodeStartFailed } else { TraceKind::NodeEnd };
                    self.end_node(node, kind, Death::Eof);
                }
            }
            Due::BringUp { node, life } => {
                drop(state);
                self.bring_up(node, life);
            }
            Due::Fault { index } => {
                let fault = state.faults[index as usize].clone();
                drop(state);
                self.carry_out(&fault);
            }
            Due::WakeTask { task } => {
                drop(state);
                self.tasks.borrow().requeue(task);
            }
        }
    }

    fn run_core(&mut self, at: Nanos, node: u16, life: u32, core: u16) {
        let park = {
            let mut state = self.state.borrow_mut();
            let paused = state.is_paused(node);
            let now = state.now;
            let Some(c) = state.live_core(node, life, core) else { return };
            if c.run_at != Some(at) {
                return;
            }
            c.run_at = None;
            if paused {
                return; // the end of the pause wakes all cores
            }
            if c.busy_until > now {
                state.wake_core(node, core, now); // stalled meanwhile
                return;
            }
            c.park_until
        };
        let Some(r) = self.hosts[usize::from(node)].cores.get_mut(usize::from(core)) else {
            return;
        };
        let park = r.core.run_once(&mut r.env, park);
        let ended = r.core.has_ended();
        self.after_run(node, core, park, ended);
        if ended {
            self.state.borrow_mut().end_when_idle(node);
        }
    }

    fn after_run(&mut self, node: u16, core: u16, park: Nanos, ended: bool) {
        let mut state = self.state.borrow_mut();
        let (local, range) = (state.local, state.rates.iteration);
        state.drain_outside(); // by the core's own time
        if local > state.now {
            // What this core woke in its own later time happens then.
            let mut tasks = self.tasks.borrow_mut();
            while let Some((task, _)) = tasks.pop_ready() {
                state.schedule(local, Due::WakeTask { task });
            }
        }
        let c = &mut state.nodes[usize::from(node)].cores[usize::from(core)];
        c.busy_until = local + c.rng.duration(range).max(Duration::from_nanos(1));
        c.park_until = park;
        c.ended = ended;
        let busy_until = c.busy_until;
        if !c.inbox.is_empty() || park <= busy_until {
            state.wake_core(node, core, busy_until);
        } else if park != Nanos::MAX {
            state.wake_core(node, core, park);
        }
        state.note_run(node, core, park);
        let now = state.now;
        state.set_now(now);
    }

    // ---- nodes -----------------------------------------------------------------------------

    fn start_node(&mut self, node: u16) {
        let mut state = self.state.borrow_mut();
        let n = &mut state.nodes[usize::from(node)];
        if n.phase != Phase::Down {
            return;
        }
        n.life += 1;
        n.phase = Phase::Starting;
        n.host_down = false;
        n.paused_until = None;
        n.store = StoreThread::default();
        let life = n.life;
        state.note_step(TraceKind::NodeStart, node, NONE, u64::from(life), 0);
        state.host_is_back(node);
        state.keeper_start(node);
    }

    /// The lease is held: the cores are built and run.
    fn bring_up(&mut self, node: u16, life: u32) {
        let start = {
            let mut state = self.state.borrow_mut();
            let cores = self.hosts[usize::from(node)].spec.cores;
            let made: Vec<CoreState<M>> =
                (0..cores).map(|core| new_core(&mut state, cores, core)).collect();
            let seed = state.rng.next_u64();
            let outside = state.outside.clone();
            let Some(n) = state.alive(node, life) else { return };
            if n.phase != Phase::Starting {
                return;
            }
            n.cores = made;
            NodeStart {
                node: NodeIx(node),
                life,
                spec: self.hosts[usize::from(node)].spec.clone(),
                poster: Arc::new(SimPost { outside, node, life }),
                time: self.time.clone(),
                history: self.history.clone(),
                lease: n.lease,
                started: n.keeper.as_mut().and_then(|k| k.started.take()),
                lease_control: n.keeper.as_mut().and_then(|k| k.sender.take()),
                seed,
            }
        };
        let built = (self.hosts[usize::from(node)].factory)(start);
        match built {
            Ok(built) => self.install(node, life, built),
            Err(error) => {
                self.note(format!("n{node} did not start: {error}"));
                self.end_node(node, TraceKind::NodeStartFailed, Death::Eof);
            }
        }
    }

    fn install(&mut self, node: u16, life: u32, built: Built<M>) {
        let Built { cores, reports } = built;
        let host = &mut self.hosts[usize::from(node)];
        assert_eq!(
            cores.len(),
            usize::from(host.spec.cores),
            "the factory of {} must build as many cores as its spec says",
            host.spec.name
        );
        host.cores = cores
            .into_iter()
            .zip(0u16..)
            .map(|(built, core)| Running {
                env: SimEnv { state: self.state.clone(), node, life, core },
                core: built,
            })
            .collect();
        let count = host.cores.len();
        let mut state = self.state.borrow_mut();
        let n = &mut state.nodes[usize::from(node)];
        n.phase = Phase::Up;
        n.listening = true;
        if let Some(keeper) = &mut n.keeper {
            keeper.reports = reports;
        }
        state.note_step(TraceKind::NodeUp, node, NONE, u64::from(life), count as u64);
        self.history.came_up(NodeIx(node));
        let now = state.now;
        for core in 0..count {
            state.wake_core(node, core as u16, now);
        }
    }

    /// The process of a node ends: everything in it vanishes.
    fn end_node(&mut self, node: u16, kind: TraceKind, death: Death) {
        let (life, tasks) = {
            let mut state = self.state.borrow_mut();
            let n = &mut state.nodes[usize::from(node)];
            if n.phase == Phase::Down {
                return;
            }
            n.phase = Phase::Down;
            n.listening = false;
            n.host_down = death == Death::Silent;
            n.paused_until = None;
            n.lease = LeaseView { admission_deadline: Nanos::ZERO, fenced: true };
            let life = n.life;
            state.note_step(kind, node, NONE, u64::from(life), death as u64);
            self.history.died(Life { node: NodeIx(node), life });
            state.drop_node_streams(node, life, death);
            let keeper = state.nodes[usize::from(node)].keeper.take();
            let tasks = self.tasks.borrow_mut().of_node((node, life));
            (life, (tasks, keeper))
        };
        // Clients in the process go first; they are not told anything. None of this may find the
        // world borrowed, since it drops what users wrote.
        drop(tasks);
        let cores = std::mem::take(&mut self.hosts[usize::from(node)].cores);
        drop(cores);
        let dead = std::mem::take(&mut self.state.borrow_mut().nodes[usize::from(node)].cores);
        drop(dead);
        debug_assert_eq!(self.state.borrow().nodes[usize::from(node)].life, life);
    }

    // ---- faults ----------------------------------------------------------------------------

    fn carry_out(&mut self, fault: &Fault) {
        match fault {
            Fault::Start(node) => self.start_node(node.0),
            Fault::Kill(node, death) => self.end_node(node.0, TraceKind::Kill, *death),
            other => self.state.borrow_mut().strike(other),
        }
    }
}

fn new_core<M>(state: &mut State<M>, cores: u16, core: u16) -> CoreState<M> {
    let senders = usize::from(cores) + 1;
    CoreState {
        inbox: VecDeque::new(),
        run_at: None,
        park_until: Nanos::ZERO,
        busy_until: Nanos::ZERO,
        polls: 0,
        polled: 0,
        rng: state.rng.fork(u64::from(core)),
        ended: false,
        mail: (0..senders).map(|_| VecDeque::new()).collect(),
        mail_last: vec![Nanos::ZERO; senders],
    }
}

impl<M> State<M> {
    pub(crate) fn paused_until(&self, node: u16) -> Option<Nanos> {
        self.nodes[usize::from(node)].paused_until.filter(|&t| t > self.now)
    }

    pub(crate) fn resume(&mut self, node: u16) {
        let now = self.now;
        let n = &mut self.nodes[usize::from(node)];
        if n.paused_until.is_none_or(|t| t > now) {
            return;
        }
        n.paused_until = None;
        let cores = n.cores.len() as u16;
        self.note_step(TraceKind::Resume, node, NONE, 0, 0);
        for core in 0..cores {
            self.wake_core(node, core, now);
        }
    }

    pub(crate) fn unblock(&mut self, from: u16, to: u16) {
        if let Some(count) = self.blocked.get_mut(&(from, to)) {
            *count -= 1;
            if *count > 0 {
                return;
            }
            self.blocked.remove(&(from, to));
        }
        self.note_step(TraceKind::Unblock, NONE, NONE, u64::from(from), u64::from(to));
        self.release_held(from, to);
    }

    fn block(&mut self, from: NodeIx, to: NodeIx, lasts: Duration) {
        *self.blocked.entry((from.0, to.0)).or_insert(0) += 1;
        self.note_step(TraceKind::Block, NONE, NONE, u64::from(from.0), u64::from(to.0));
        self.history.trouble(TroubleKind::LinkSlow, Concerns::Link(from, to), lasts);
        self.schedule(self.now + lasts, Due::Unblock { from: from.0, to: to.0 });
    }

    /// The faults that touch no core's value.
    fn strike(&mut self, fault: &Fault) {
        let now = self.now;
        match fault {
            Fault::Start(_) | Fault::Kill(..) => {}
            Fault::ResetOne(a, b) => {
                let all = self.streams_between(a.0, b.0);
                if !all.is_empty() {
                    let which = self.rng.below(all.len() as u64) as usize;
                    self.reset_stream(all[which]);
                }
            }
            Fault::ResetAll(a, b) => {
                for id in self.streams_between(a.0, b.0) {
                    self.reset_stream(id);
                }
            }
            Fault::Partition { from, to, both, lasts } => {
                for &a in from {
                    for &b in to {
                        self.block(a, b, *lasts);
                        if *both {
                            self.block(b, a, *lasts);
                        }
                    }
                }
            }
            Fault::Delay { a, b, by, lasts } => {
                let pair = (a.0.min(b.0), a.0.max(b.0));
                self.delays.push((pair, *by, now + *lasts));
                self.history.trouble(TroubleKind::LinkSlow, Concerns::Link(*a, *b), *lasts);
            }
            Fault::Pause(node, lasts) => {
                let until = now + *lasts;
                let n = &mut self.nodes[usize::from(node.0)];
                if n.phase == Phase::Down {
                    return;
                }
                n.paused_until = Some(n.paused_until.map_or(until, |t| t.max(until)));
                self.note_step(TraceKind::Pause, node.0, NONE, until.0, 0);
                self.history.trouble(TroubleKind::Paused, Concerns::Node(*node), *lasts);
                self.schedule(until, Due::Resume { node: node.0 });
            }
            Fault::Stall(node, core, lasts) => {
                let until = now + *lasts;
                let n = &mut self.nodes[usize::from(node.0)];
                let Some(c) = n.cores.get_mut(usize::from(*core)) else { return };
                c.busy_until = c.busy_until.max(until);
                self.note_step(TraceKind::Stall, node.0, *core, until.0, 0);
                self.history.trouble(TroubleKind::Paused, Concerns::Node(*node), *lasts);
            }
            Fault::Store { node, mode, lasts } => self.store_mode(*node, *mode, *lasts),
        }
    }
}

impl<M: Send + 'static> Drop for SimWorld<M> {
    /// When a test fails, says how to see it again.
    fn drop(&mut self) {
        if std::thread::panicking()
            && let Ok(state) = self.state.try_borrow()
        {
            for line in state.trace.lines(LINES_ON_FAILURE) {
                eprintln!("  {line}");
            }
            eprintln!(
                "simulated world: seed {} failed at {} after {} steps, trace hash {:032x}",
                self.seed,
                state.now,
                state.trace.count(),
                state.trace.hash()
            );
        }
        // What users wrote is dropped while nothing is borrowed.
        self.hosts.clear();
    }
}

impl<M: Send + 'static> std::fmt::Debug for SimWorld<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SimWorld")
            .field("seed", &self.seed)
            .field("now", &self.now())
            .field("tasks", &self.tasks.borrow().len())
            .finish_non_exhaustive()
    }
}

/// What a task may do to its world. Clones are of the same world.
pub struct SimHandle<M: Send + 'static> {
    state: Rc<RefCell<State<M>>>,
    tasks: Rc<RefCell<Tasks>>,
    time: SimTime,
}

impl<M: Send + 'static> SimHandle<M> {
    /// The clock.
    #[must_use]
    pub const fn time(&self) -> &SimTime {
        &self.time
    }

    /// Spawns a task; see [`SimWorld::spawn`].
    pub fn spawn<F>(&self, node: Option<NodeIx>, future: F) -> Task<F::Output>
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        let life = node.map(|n| (n.0, self.state.borrow().nodes[usize::from(n.0)].life));
        self.tasks.borrow_mut().spawn(life, future)
    }

    /// Schedules one fault; one in the past happens next.
    pub fn schedule(&self, at: Nanos, fault: Fault) {
        let mut state = self.state.borrow_mut();
        let index = state.faults.len() as u32;
        state.faults.push(fault);
        state.schedule(at, Due::Fault { index });
    }

    /// Lets a fault happen next.
    pub fn inject(&self, fault: Fault) {
        self.schedule(Nanos::ZERO, fault);
    }

    /// Writes a line into the trace.
    pub fn note(&self, text: impl Into<String>) {
        let mut state = self.state.borrow_mut();
        let at = state.local;
        state.trace.note(at, text.into());
    }
}

impl<M: Send + 'static> Clone for SimHandle<M> {
    fn clone(&self) -> Self {
        Self { state: self.state.clone(), tasks: self.tasks.clone(), time: self.time.clone() }
    }
}

impl<M: Send + 'static> std::fmt::Debug for SimHandle<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SimHandle").field("now", &self.time.now()).finish_non_exhaustive()
    }
}
