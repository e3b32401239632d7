#![forbid(unsafe_code)]
//! Worlds of toy nodes: what the simulated door promises, and that a seed decides everything.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::*;
use crate::env::{CloseReason, ConnId, Endpoint, Env, Event, Planted, Post, StoreAnswer, StoreOp};
use crate::location::{Batch, BatchOutcome, Condition, StoreError, Write};
use crate::node::store_threads::{LeaseControl, LeaseReport};
use crate::store::memory::MemoryStore;
use crate::time::Nanos;

#[derive(Debug)]
enum Mail {
    /// A number to log at the core that gets it.
    Note(u64),
    /// Dial this and write these chunks, then maybe close.
    Dial {
        to: Endpoint,
        chunks: Vec<Vec<u8>>,
        close: Option<bool>,
    },
    Ask(StoreOp),
    Relay {
        to: u16,
        count: u64,
    },
    EndNow,
    StopListening,
}

/// What toy cores saw, by node.
#[derive(Clone, Debug, Default)]
struct Log(Arc<Mutex<Seen>>);

#[derive(Debug, Default, PartialEq, Eq)]
struct Seen {
    lines: Vec<(Nanos, NodeIx, u16, String)>,
    /// Bytes by receiving node and order of acceptance, with the core that has the stream.
    bytes: BTreeMap<(NodeIx, u64), Vec<u8>>,
    closed: Vec<(NodeIx, u64, CloseReason)>,
    notes: Vec<(u16, u64)>,
    answers: Vec<(u64, StoreAnswer)>,
    most_unsent: usize,
}

impl Log {
    fn with<T>(&self, f: impl FnOnce(&mut Seen) -> T) -> T {
        f(&mut self.0.lock().unwrap())
    }
}

/// A core that logs. It reads streams, hands those it accepted to the core their first byte
/// names, and does what its mail says.
struct Toy {
    log: Log,
    ended: bool,
    /// Streams, with a number that is the same before and after a hand-over.
    streams: BTreeMap<ConnId, u64>,
    dialled: BTreeMap<ConnId, (Vec<Vec<u8>>, Option<bool>)>,
    next: u64,
    hand_over: bool,
    events: Vec<Event<Mail>>,
}

impl Toy {
    fn new(log: Log, hand_over: bool) -> Self {
        Self {
            log,
            ended: false,
            streams: BTreeMap::new(),
            dialled: BTreeMap::new(),
            next: 0,
            hand_over,
            events: Vec::new(),
        }
    }

    fn on(&mut self, env: &mut SimEnv<Mail>, event: Event<Mail>) {
        let (node, core) = (env.node(), env.core());
        match event {
            Event::Mail(mail) => self.on_mail(env, mail),
            Event::Store { token, answer } => self.log.with(|l| l.answers.push((token, answer))),
            Event::Accepted { conn } => {
                assert_eq!(core, 0, "streams are accepted on core 0");
                self.streams.insert(conn, self.next);
                self.next += 1;
            }
            Event::Connected { conn } => {
                let Some((chunks, close)) = self.dialled.get_mut(&conn) else { panic!("{conn:?}") };
                for mut chunk in chunks.drain(..) {
                    env.write(conn, &mut chunk);
                    assert!(chunk.is_empty(), "write leaves the buffer empty");
                }
                self.log.with(|l| l.most_unsent = l.most_unsent.max(env.unsent_bytes(conn)));
                if let Some(flush) = *close {
                    env.close(conn, flush);
                }
            }
            Event::Adopted { conn, tag, unread } => {
                self.streams.insert(conn, tag);
                self.got(node, tag, &unread);
            }
            Event::Received { conn, bytes } => self.on_bytes(env, conn, bytes),
            Event::Closed { conn, reason } => {
                let number = self.streams.remove(&conn).unwrap_or(u64::MAX);
                self.dialled.remove(&conn);
                self.log.with(|l| l.closed.push((node, number, reason)));
            }
        }
    }

    fn got(&self, node: NodeIx, number: u64, bytes: &[u8]) {
        self.log.with(|l| l.bytes.entry((node, number)).or_default().extend_from_slice(bytes));
    }

    fn on_bytes(&mut self, env: &mut SimEnv<Mail>, conn: ConnId, bytes: Vec<u8>) {
        assert!(!bytes.is_empty());
        let Some(&number) = self.streams.get(&conn) else {
            panic!("bytes for a stream this core does not have: {conn:?}")
        };
        if self.hand_over && env.core() == 0 {
            self.streams.remove(&conn);
            let to = u16::from(bytes[0]);
            env.hand_over(conn, to, number, bytes);
        } else {
            self.got(env.node(), number, &bytes);
        }
    }

    fn on_mail(&mut self, env: &mut SimEnv<Mail>, mail: Mail) {
        let core = env.core();
        match mail {
            Mail::Note(n) => self.log.with(|l| l.notes.push((core, n))),
            Mail::Dial { to, chunks, close } => {
                let conn = env.dial(&to);
                self.dialled.insert(conn, (chunks, close));
            }
            Mail::Ask(op) => {
                self.next += 1;
                env.store(self.next, op, Duration::from_secs(1));
            }
            Mail::Relay { to, count } => (0..count).for_each(|n| env.mail(to, Mail::Note(n))),
            Mail::EndNow => self.ended = true,
            Mail::StopListening => env.stop_listening(),
        }
    }
}

impl SimCore<Mail> for Toy {
    fn run_once(&mut self, env: &mut SimEnv<Mail>, park_until: Nanos) -> Nanos {
        let mut events = std::mem::take(&mut self.events);
        env.poll(&mut events, park_until);
        let now = env.now();
        for event in events.drain(..) {
            let (node, core) = (env.node(), env.core());
            self.log.with(|l| l.lines.push((now, node, core, format!("{event:?}"))));
            self.on(env, event);
        }
        self.events = events;
        now + Duration::from_millis(100)
    }

    fn has_ended(&self) -> bool {
        self.ended
    }
}

type Door = Arc<Mutex<Vec<Arc<dyn Post<Mail>>>>>;

struct ToyWorld {
    world: SimWorld<Mail>,
    log: Log,
    doors: Vec<Door>,
}

impl ToyWorld {
    fn new(seed: u64, cores: &[u16], hand_over: bool) -> Self {
        let mut world = SimWorld::new(seed);
        let time = world.time();
        world.set_store(Arc::new(MemoryStore::with_clock(Arc::new(move || time.now()))));
        let mut this = Self { world, log: Log::default(), doors: Vec::new() };
        for (i, &cores) in cores.iter().enumerate() {
            this.add(NodeSpec::new(&format!("n{i}"), cores), hand_over);
        }
        this.world.run_for(Duration::from_millis(10));
        this
    }

    fn add(&mut self, spec: NodeSpec, hand_over: bool) -> NodeIx {
        let door = Door::default();
        self.doors.push(door.clone());
        let log = self.log.clone();
        self.world.add_node(spec, move |start| {
            door.lock().unwrap().push(start.poster.clone());
            let cores = (0..start.spec.cores)
                .map(|_| Box::new(Toy::new(log.clone(), hand_over)) as Box<dyn SimCore<Mail>>)
                .collect();
            Ok(Built::new(cores))
        })
    }

    fn post(&self, node: u16, core: u16, mail: Mail) {
        let door = self.doors[usize::from(node)].lock().unwrap();
        door.last().expect("the node started").post(core, mail);
    }

    fn dial(&self, from: u16, to: u16, chunks: Vec<Vec<u8>>, close: Option<bool>) {
        let to = self.world.endpoint(NodeIx(to));
        self.post(from, 0, Mail::Dial { to, chunks, close });
    }

    fn secs(&mut self, n: u64) {
        self.world.run_for(Duration::from_secs(n));
    }
}

fn numbered(count: u32) -> Vec<Vec<u8>> {
    (0..count).map(|n| n.to_be_bytes().repeat(1 + n as usize % 50)).collect()
}

#[test]
fn bytes_arrive_in_order_cut_and_joined_at_random() {
    for seed in 0..20 {
        let mut w = ToyWorld::new(seed, &[1, 1], false);
        let chunks = numbered(400);
        let whole = chunks.concat();
        w.dial(0, 1, chunks.clone(), Some(true));
        w.secs(5);
        let got = w.log.with(|l| l.bytes.remove(&(NodeIx(1), 0)).unwrap());
        // A closing writer may leave bytes that the window did not take; what came is a prefix.
        assert!(whole.starts_with(&got), "seed {seed}: bytes out of order");
        assert!(!got.is_empty());
        let closed = w.log.with(|l| std::mem::take(&mut l.closed));
        assert_eq!(closed, [(NodeIx(1), 0, CloseReason::Eof)], "seed {seed}");
        assert_eq!(w.world.stream_count(), 0, "the stream is forgotten");
        let pieces = w.log.with(|l| {
            l.lines.iter().filter(|(_, n, _, e)| *n == NodeIx(1) && e.contains("Received")).count()
        });
        assert_ne!(pieces, chunks.len(), "seed {seed}: chunk bounds were kept");
    }
}

#[test]
fn nothing_is_lost_while_a_stream_stays_open() {
    for seed in 0..10 {
        let mut w = ToyWorld::new(seed, &[1, 3], true);
        let mut plan = FaultPlan::none();
        plan.rates.window_bytes = (2 << 10, 16 << 10);
        w.world.set_plan(plan);
        // The first byte names the core that adopts the stream: 0, so core 0 keeps handing over
        // to itself; 2 for the second.
        for core in [1u8, 2] {
            let mut chunks = vec![vec![core; 3]];
            chunks.extend(numbered(600));
            w.dial(0, 1, chunks, None);
        }
        w.secs(20);
        let streams = w.log.with(|l| std::mem::take(&mut l.bytes));
        let mut seen: Vec<u8> = Vec::new();
        for bytes in streams.values() {
            let rest = numbered(600).concat();
            assert_eq!(bytes[3..], rest, "seed {seed}: hand-over kept the order");
            seen.push(bytes[0]);
        }
        seen.sort_unstable();
        assert_eq!(seen, [1, 2]);
        assert!(w.log.with(|l| l.most_unsent) > 0, "the window pushes back");
    }
}

#[test]
fn dials_are_refused_where_nobody_listens() {
    let mut w = ToyWorld::new(5, &[1, 1], false);
    let nowhere: Endpoint = "tcp://127.9.9.9:9".parse().unwrap();
    w.post(0, 0, Mail::Dial { to: nowhere, chunks: vec![], close: None });
    w.post(1, 0, Mail::StopListening);
    w.secs(1);
    w.dial(0, 1, vec![], None);
    w.secs(1);
    w.world.handle().inject(Fault::Kill(NodeIx(1), Death::Reset));
    w.dial(0, 1, vec![], None);
    w.secs(1);
    let closed = w.log.with(|l| std::mem::take(&mut l.closed));
    assert_eq!(closed.len(), 3, "{closed:?}");
    for (node, _, reason) in closed {
        assert_eq!(node, NodeIx(0));
        assert_eq!(reason, CloseReason::DialFailed("connection refused".into()));
    }
    assert_eq!(w.world.stream_count(), 0);
}

#[test]
fn a_reset_loses_a_tail_and_ends_both_sides() {
    let mut cut_short = 0;
    for seed in 0..40 {
        let mut w = ToyWorld::new(seed, &[1, 1], false);
        w.dial(0, 1, numbered(300), None);
        let at = w.world.now() + Duration::from_micros(200 + 20 * seed);
        w.world.schedule(at, Fault::ResetAll(NodeIx(0), NodeIx(1)));
        w.secs(5);
        let (got, closed) = w.log.with(|l| {
            (l.bytes.remove(&(NodeIx(1), 0)).unwrap_or_default(), std::mem::take(&mut l.closed))
        });
        let whole = numbered(300).concat();
        assert!(whole.starts_with(&got), "seed {seed}");
        if !closed.is_empty() {
            assert_eq!(closed.len(), 2, "seed {seed}: {closed:?}");
            assert!(closed.iter().all(|(.., r)| matches!(r, CloseReason::Failed(_))));
            assert_eq!(w.world.stream_count(), 0);
            assert!(
                w.world
                    .history()
                    .with(|h| { h.troubles.iter().any(|t| t.kind == TroubleKind::LinkLost) })
            );
            cut_short += u32::from(got.len() < whole.len());
        }
    }
    assert!(cut_short > 5, "resets lose bytes in flight: {cut_short}");
}

#[test]
fn a_partition_holds_bytes_and_loses_none() {
    for both in [true, false] {
        let mut w = ToyWorld::new(8, &[1, 1], false);
        w.world.handle().inject(Fault::Partition {
            from: vec![NodeIx(0)],
            to: vec![NodeIx(1)],
            both,
            lasts: Duration::from_secs(10),
        });
        w.secs(1);
        w.dial(0, 1, numbered(50), None);
        w.secs(8);
        assert!(w.log.with(|l| l.bytes.is_empty()), "nothing passes a partition");
        w.secs(5);
        let got = w.log.with(|l| l.bytes.remove(&(NodeIx(1), 0)).unwrap());
        assert_eq!(got, numbered(50).concat());
    }
}

#[test]
fn an_open_stream_outlives_a_partition() {
    let mut w = ToyWorld::new(9, &[1, 1], false);
    let at = w.world.now() + Duration::from_micros(600);
    w.world.schedule(
        at,
        Fault::Partition {
            from: vec![NodeIx(0)],
            to: vec![NodeIx(1)],
            both: true,
            lasts: Duration::from_secs(10),
        },
    );
    w.dial(0, 1, numbered(2000), None);
    w.secs(5);
    let before = w.log.with(|l| l.bytes.get(&(NodeIx(1), 0)).map_or(0, Vec::len));
    w.secs(20);
    let got = w.log.with(|l| l.bytes.remove(&(NodeIx(1), 0)).unwrap());
    assert!(before < got.len());
    assert_eq!(got, numbered(2000).concat());
}

#[test]
fn a_killed_node_vanishes_as_it_was_told_to() {
    for (death, expected) in [
        (Death::Eof, vec![CloseReason::Eof]),
        (Death::Reset, vec![CloseReason::Failed("connection reset by peer".into())]),
        (Death::Silent, vec![]),
    ] {
        let mut w = ToyWorld::new(3, &[1, 2], false);
        w.dial(0, 1, vec![vec![1; 10]], None);
        w.secs(1);
        w.world.handle().inject(Fault::Kill(NodeIx(1), death));
        let task = w.world.spawn(Some(NodeIx(1)), std::future::pending::<()>());
        w.secs(1);
        assert!(task.is_done() && task.take().is_none(), "its tasks die with it");
        assert!(!w.world.is_up(NodeIx(1)));
        let reasons =
            |w: &ToyWorld| w.log.with(|l| l.closed.drain(..).map(|(.., r)| r).collect::<Vec<_>>());
        assert_eq!(reasons(&w), expected, "{death:?}");
        w.world.handle().inject(Fault::Start(NodeIx(1)));
        w.secs(1);
        assert_eq!(w.world.life(NodeIx(1)).life, 2);
        assert_eq!(reasons(&w).len(), usize::from(death == Death::Silent));
        // Mail to the old lifecycle is dropped.
        let old = w.doors[1].lock().unwrap()[0].clone();
        old.post(0, Mail::Note(1));
        w.secs(1);
        assert!(w.log.with(|l| l.notes.is_empty()));
    }
}

#[test]
fn a_dial_to_a_silent_host_times_out() {
    let mut w = ToyWorld::new(3, &[1, 1], false);
    w.world.handle().inject(Fault::Kill(NodeIx(1), Death::Silent));
    w.secs(1);
    w.dial(0, 1, vec![], None);
    w.secs(10);
    assert!(w.log.with(|l| l.closed.is_empty()));
    w.secs(30);
    let closed = w.log.with(|l| std::mem::take(&mut l.closed));
    assert!(matches!(&closed[..], [(.., CloseReason::DialFailed(t))] if t.contains("timed out")));
}

#[test]
fn mail_keeps_its_order_per_pair() {
    for seed in 0..10 {
        let mut w = ToyWorld::new(seed, &[3], false);
        for core in 0..2 {
            w.post(0, core, Mail::Relay { to: 2, count: 200 });
        }
        for n in 1000..1200 {
            w.post(0, 2, Mail::Note(n));
        }
        w.secs(1);
        let notes = w.log.with(|l| std::mem::take(&mut l.notes));
        assert_eq!(notes.len(), 600);
        let outside: Vec<u64> = notes.iter().map(|n| n.1).filter(|n| *n >= 1000).collect();
        assert!(outside.is_sorted(), "an application thread's mail keeps its order");
        let mut next = [0, 0];
        for n in notes.iter().map(|n| n.1).filter(|n| *n < 1000) {
            // Two senders with the same numbers: each number is the next of one of them.
            let of = next.iter().position(|x| *x == n).unwrap_or_else(|| panic!("{n} {next:?}"));
            next[of] += 1;
        }
    }
}

#[test]
fn a_paused_node_does_nothing_while_time_goes_on() {
    let mut w = ToyWorld::new(4, &[2, 1], false);
    w.world.handle().inject(Fault::Pause(NodeIx(0), Duration::from_secs(10)));
    w.secs(1);
    w.post(0, 1, Mail::Note(7));
    let time = w.world.time();
    let task = w.world.spawn(Some(NodeIx(0)), async move { time.now() });
    w.dial(1, 0, vec![vec![5; 5]], None);
    w.secs(8);
    assert!(w.log.with(|l| l.notes.is_empty() && l.bytes.is_empty()));
    assert!(!task.is_done());
    w.secs(2);
    assert_eq!(w.log.with(|l| l.notes.len()), 1);
    assert_eq!(w.log.with(|l| l.bytes[&(NodeIx(0), 0)].len()), 5);
    assert!(task.take().unwrap() >= Nanos(10_000_000_000));
}

#[test]
fn a_stalled_core_lets_the_others_run() {
    let mut w = ToyWorld::new(4, &[2], false);
    w.world.handle().inject(Fault::Stall(NodeIx(0), 0, Duration::from_secs(5)));
    w.secs(1);
    w.post(0, 0, Mail::Note(0));
    w.post(0, 1, Mail::Note(1));
    w.secs(1);
    assert_eq!(w.log.with(|l| l.notes.clone()), [(1, 1)]);
    w.secs(5);
    assert_eq!(w.log.with(|l| l.notes.clone()), [(1, 1), (0, 0)]);
}

fn put(key: &str, condition: Option<Condition>) -> StoreOp {
    StoreOp::Commit(Batch {
        conditions: condition.into_iter().collect(),
        writes: vec![Write::Put { key: key.into(), value: vec![1], ttl: None }],
    })
}

#[test]
fn store_calls_answer_and_fail_as_told() {
    let mut w = ToyWorld::new(4, &[2], false);
    let ask = |w: &mut ToyWorld, op: StoreOp| {
        w.post(0, 0, Mail::Ask(op));
        w.secs(4);
        w.log.with(|l| l.answers.drain(..).map(|(_, a)| a).collect::<Vec<_>>())
    };
    let absent = |key: &str| Some(Condition::Absent(key.into()));
    let committed =
        |a: &[StoreAnswer]| matches!(a, [StoreAnswer::Commit(BatchOutcome::Committed(_))]);
    let exists = |a: &[StoreAnswer]| match a {
        [StoreAnswer::Read(r)] => r.records[0].is_some(),
        other => panic!("{other:?}"),
    };
    assert!(committed(&ask(&mut w, put("a", absent("a")))));
    let again = ask(&mut w, put("a", absent("a")));
    assert!(matches!(again[..], [StoreAnswer::Commit(BatchOutcome::Conflict { condition: 0 })]));
    for (mode, key) in [
        (StoreMode::Failing, "failing"),
        (StoreMode::AnswerLost, "lost"),
        (StoreMode::Slow(Duration::from_millis(700)), "slow"),
    ] {
        let lasts = Duration::from_secs(3);
        w.world.handle().inject(Fault::Store { node: Some(NodeIx(0)), mode, lasts });
        let answers = ask(&mut w, put(key, absent(key)));
        let written = exists(&ask(&mut w, StoreOp::Read(vec![key.into()])));
        match mode {
            StoreMode::Failing => {
                assert!(matches!(answers[..], [StoreAnswer::Failed(StoreError::Failed(_))]));
                assert!(!written);
            }
            StoreMode::AnswerLost => {
                assert!(matches!(answers[..], [StoreAnswer::Failed(StoreError::Unknown(_))]));
                assert!(written);
            }
            _ => assert!(committed(&answers) && written),
        }
    }
}

#[test]
fn silent_store_calls_end_with_their_budget_or_not_at_all() {
    let (mut written, mut answered) = (0, 0);
    for seed in 0..40 {
        let mut w = ToyWorld::new(seed, &[1], false);
        let lasts = Duration::from_secs(2);
        w.world.handle().inject(Fault::Store { node: None, mode: StoreMode::Silent, lasts });
        w.world.run_for(Duration::from_millis(1));
        let asked = w.world.now();
        w.post(0, 0, Mail::Ask(put("k", None)));
        w.secs(5);
        for (_, answer) in w.log.with(|l| std::mem::take(&mut l.answers)) {
            assert!(matches!(answer, StoreAnswer::Failed(StoreError::Unknown(_))), "{answer:?}");
            answered += 1;
        }
        let when = w.log.with(|l| {
            l.lines.iter().find(|(.., e)| e.starts_with("Store")).map(|(at, ..)| at.since(asked))
        });
        assert!(when.is_none_or(|d| d >= Duration::from_secs(1)), "{when:?}");
        w.post(0, 0, Mail::Ask(StoreOp::Read(vec![b"k".to_vec()])));
        w.secs(2);
        let answers = w.log.with(|l| std::mem::take(&mut l.answers));
        let [(_, StoreAnswer::Read(read))] = &answers[..] else { panic!("{answers:?}") };
        written += u32::from(read.records[0].is_some());
    }
    assert!((5..35).contains(&written), "{written}");
    assert!((5..35).contains(&answered), "{answered}");
}

const LEASE: Duration = Duration::from_secs(10);
const RENEW: Duration = Duration::from_secs(3);

#[test]
fn a_lease_is_renewed_lapses_in_a_pause_and_comes_back() {
    let mut w = ToyWorld::new(6, &[], false);
    let node = w.add(NodeSpec::new("kept", 1).with_lease(LEASE, RENEW), false);
    w.secs(60);
    let alive = |w: &ToyWorld| w.world.lease(node).is_alive(w.world.now());
    assert!(w.world.is_up(node) && alive(&w));
    w.world.handle().inject(Fault::Pause(node, Duration::from_secs(15)));
    w.secs(14);
    assert!(!alive(&w), "no renewal while paused");
    w.secs(3);
    assert!(alive(&w), "nobody released it meanwhile (R5-16)");
    let outage =
        Fault::Store { node: None, mode: StoreMode::Failing, lasts: Duration::from_secs(20) };
    w.world.handle().inject(outage);
    w.secs(15);
    assert!(!alive(&w));
    w.secs(10);
    assert!(alive(&w));
    let views = w.world.history().with(|h| h.leases.len());
    assert!(views > 20, "{views}");
}

#[test]
fn a_killed_node_comes_back_after_its_old_lease() {
    let mut w = ToyWorld::new(6, &[], false);
    let node = w.add(NodeSpec::new("kept", 1).with_lease(LEASE, RENEW), false);
    w.secs(5);
    w.world.handle().inject(Fault::Kill(node, Death::Eof));
    w.secs(1);
    w.world.handle().inject(Fault::Start(node));
    w.secs(3);
    assert!(!w.world.is_up(node), "the old lease stands");
    w.secs(15);
    assert!(w.world.is_up(node));
    assert_eq!(w.world.life(node).life, 2);
}

#[test]
fn a_node_that_ends_gives_its_lease_back() {
    for tell in [true, false] {
        let mut w = ToyWorld::new(6, &[], false);
        let reports = Arc::new(Mutex::new(Vec::new()));
        let control = Arc::new(Mutex::new(None));
        let (log, seen, sender) = (w.log.clone(), reports.clone(), control.clone());
        let door = Door::default();
        w.doors.push(door.clone());
        let node =
            w.world.add_node(NodeSpec::new("kept", 1).with_lease(LEASE, RENEW), move |start| {
                assert!(start.started.is_some() && start.lease.is_alive(start.time.now()));
                door.lock().unwrap().push(start.poster.clone());
                *sender.lock().unwrap() = start.lease_control;
                let seen = seen.clone();
                let cores = vec![Box::new(Toy::new(log.clone(), false)) as Box<dyn SimCore<Mail>>];
                Ok(Built::new(cores).with_reports(Box::new(move |r| seen.lock().unwrap().push(r))))
            });
        w.secs(1);
        if tell {
            let deadline = w.world.now() + Duration::from_secs(1);
            let sender = control.lock().unwrap();
            sender.as_ref().unwrap().send(LeaseControl::Release { deadline }).unwrap();
        }
        w.post(0, 0, Mail::EndNow);
        w.secs(1);
        assert!(!w.world.is_up(node));
        let reports = std::mem::take(&mut *reports.lock().unwrap());
        assert!(
            reports.iter().any(|r| matches!(r, LeaseReport::Released { clean: true })),
            "{reports:?}"
        );
        // The lease is gone, so the next lifecycle need not wait for its end.
        w.world.handle().inject(Fault::Start(node));
        w.secs(1);
        assert!(w.world.is_up(node));
    }
}

#[test]
fn tasks_run_in_virtual_time_in_the_order_of_their_wakes() {
    let mut world = SimWorld::<()>::new(1);
    let order = Arc::new(Mutex::new(Vec::new()));
    for n in [3u64, 1, 2] {
        let (time, order) = (world.time(), order.clone());
        world.spawn(None, async move {
            time.sleep(Duration::from_secs(n)).await;
            order.lock().unwrap().push(n);
        });
    }
    let handle = world.handle();
    let inner = world.block_on(async move {
        let time = handle.time().clone();
        let task = handle.spawn(None, async move {
            time.sleep(Duration::from_secs(10)).await;
            time.now()
        });
        handle.note("half way");
        task.await
    });
    assert_eq!(inner, Some(Nanos(10_000_000_000)));
    assert_eq!(*order.lock().unwrap(), [1, 2, 3]);
    assert!(world.trace_lines(100).iter().any(|l| l.contains("half way")));
    assert!(!world.run_until(Nanos(20_000_000_000), |_| false));
    assert_eq!(world.now(), Nanos(20_000_000_000));
}

#[test]
#[should_panic(expected = "seed 77: the future did not end")]
fn a_future_that_never_ends_is_reported_with_the_seed() {
    SimWorld::<()>::new(77).block_on(std::future::pending::<()>());
}

#[test]
fn planted_faults_are_seen_by_the_cores() {
    let mut w = ToyWorld::new(1, &[1], false);
    let planted = Arc::new(Mutex::new(Vec::new()));
    struct Looks(Arc<Mutex<Vec<bool>>>);
    impl SimCore<Mail> for Looks {
        fn run_once(&mut self, env: &mut SimEnv<Mail>, _: Nanos) -> Nanos {
            let seen = [Planted::DoubleReply, Planted::SettleTwice].map(|p| env.planted(p));
            self.0.lock().unwrap().extend(seen);
            Nanos::MAX
        }
    }
    let seen = planted.clone();
    w.world.plant(Planted::SettleTwice);
    w.world.add_node(NodeSpec::new("looks", 1), move |_| {
        Ok(Built::new(vec![Box::new(Looks(seen.clone()))]))
    });
    w.secs(1);
    assert_eq!(*planted.lock().unwrap(), [false, true]);
}

/// A run with everything in it.
fn busy_run(seed: u64, plan_seed: u64) -> (u128, u64) {
    let mut w = ToyWorld::new(seed, &[1, 2], false);
    let node = w.add(NodeSpec::new("kept", 3).with_lease(LEASE, RENEW), true);
    let scope = FaultScope {
        cores: vec![1, 2, 3],
        from: Nanos(1_000_000_000),
        to: Nanos(50_000_000_000),
        lease: LEASE,
        every: Duration::from_secs(5),
    };
    let classes = FaultClasses { swarm: false, ..FaultClasses::all() };
    let mut plan = FaultPlan::seeded(plan_seed, classes, &scope);
    plan.rates.jump_per_million = 100;
    w.world.set_plan(plan);
    for round in 0..60u64 {
        for (from, to) in [(0u16, 1u16), (1, 2), (2, 0)] {
            if w.world.is_up(NodeIx(from)) {
                w.dial(from, to, vec![vec![(round % 2) as u8; 900]; 40], Some(round % 3 == 0));
                w.post(from, 0, Mail::Ask(put(&format!("k{round}"), None)));
            }
        }
        w.secs(1);
    }
    assert!(w.world.is_up(node), "calm at the end");
    (w.world.trace_hash(), w.world.step_count())
}

#[test]
fn a_seed_reproduces_its_run() {
    let first = busy_run(11, 5);
    assert_eq!(first, busy_run(11, 5));
    assert_ne!(first.0, busy_run(12, 5).0);
    assert_ne!(first.0, busy_run(11, 6).0);
    assert!(first.1 > 5_000, "{first:?}");
}
