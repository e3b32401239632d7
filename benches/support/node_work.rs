#![forbid(unsafe_code)]
//! Segments of the subject: nodes of this library.

use std::path::PathBuf;
use std::time::Duration;

use homing::exec::idle::Idle;
use homing::prelude::*;
use homing::store::lmdb::LmdbStore;
use homing::store::memory::MemoryStore;
use homing::{DriverKind, Node};
use serde::{Deserialize, Serialize};

use super::actors::{
    Call, Caller, Op, Ping, SEGMENT_TIMEOUT, Take, Target, WhereAreYou, run, spin_on,
};
use super::bare::Link;
use super::samples::{Outcome, hash_of_answers};

/// Ids of a node with two cores that are looked at to find one on either.
const IDS: u32 = 64;

/// What a waiting thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Wait {
    Park,
    Spin,
}

impl Wait {
    pub(crate) const BOTH: [Self; 2] = [Self::Park, Self::Spin];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Park => "park",
            Self::Spin => "spin",
        }
    }

    fn idle(self) -> Idle {
        match self {
            Self::Park => Idle::Park,
            Self::Spin => Idle::Spin,
        }
    }

    /// Waits for a future in this way.
    pub(crate) fn on<F: Future>(self, future: F) -> F::Output {
        match self {
            Self::Park => homing::block_on(future),
            Self::Spin => spin_on(future),
        }
    }
}

/// The driver of both nodes; see [`homing::DriverKind`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Driver {
    Auto,
    Uring,
    Epoll,
}

impl Driver {
    /// Reads a word of the command line.
    pub(crate) fn named(word: &str) -> Option<Self> {
        match word {
            "auto" => Some(Self::Auto),
            "uring" => Some(Self::Uring),
            "epoll" => Some(Self::Epoll),
            _ => None,
        }
    }

    fn kind(self) -> DriverKind {
        match self {
            Self::Auto => DriverKind::Auto,
            Self::Uring => DriverKind::Uring,
            Self::Epoll => DriverKind::Epoll,
        }
    }
}

/// Who calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum From {
    /// A turn of an Actor.
    Turn,
    /// A thread of the application, which waits as the cores do.
    Thread,
}

/// A segment whose caller and target are on one node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct LocalWork {
    pub(crate) from: From,
    /// Caller and target on different cores of two.
    pub(crate) other_core: bool,
    pub(crate) op: Op,
    pub(crate) wait: Wait,
    pub(crate) warm_up: u64,
    pub(crate) ops: u64,
}

/// A segment whose target is on another node: the calling process' part.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct RemoteWork {
    pub(crate) dir: PathBuf,
    pub(crate) link: Link,
    pub(crate) driver: Driver,
    pub(crate) from: From,
    /// Callers at the same time, each with a target of its own.
    pub(crate) callers: u64,
    pub(crate) op: Op,
    pub(crate) wait: Wait,
    pub(crate) warm_up: u64,
    pub(crate) ops: u64,
}

fn start(builder: homing::NodeBuilder, cores: u16, wait: Wait) -> Node {
    builder
        .cores(cores)
        .idle(wait.idle())
        .actor::<Target>(|a| {
            a.handles::<Ping>()
                .handles::<Take>()
                .handles::<WhereAreYou>()
                .handles_packet("bench.raw")
        })
        .actor::<Caller>(|a| a.handles::<Call>().handles::<WhereAreYou>())
        .start()
        .expect("the node starts")
}

fn create<A: Actor>(node: &Node, id: &str) {
    node.actors().create::<A>(id, ()).wait().expect("an Actor is created");
}

fn core_of(node: &Node, id: &str) -> String {
    node.actor(id).request(WhereAreYou).wait().expect("an answer")
}

/// Makes an Actor whose core `is_right` says so of, and returns its id.
fn create_where<A: Actor>(node: &Node, name: &str, is_right: impl Fn(&str) -> bool) -> String {
    for number in 0..IDS {
        let id = format!("{name}-{number}");
        create::<A>(node, &id);
        if is_right(&core_of(node, &id)) {
            return id;
        }
    }
    panic!("none of {IDS} ids is on the wanted core");
}

fn call_from(node: &Node, from: From, wait: Wait, caller: &str, call: &Call) -> Outcome {
    let outcome = match from {
        From::Thread => wait.on(run(call, &node.actor(&call.target))).expect("the calls go well"),
        From::Turn => {
            let asked = node.actor(caller).request(call.clone()).timeout(SEGMENT_TIMEOUT);
            let text = asked.wait().expect("the calls go well");
            serde_json::from_str(&text).expect("an outcome")
        }
    };
    assert_eq!(outcome.hash, hash_of_answers(call.ops), "what was answered is wrong");
    outcome
}

/// Runs a segment on one node, with a Store in memory.
pub(crate) fn local(work: &LocalWork) -> Outcome {
    let cores = if work.other_core { 2 } else { 1 };
    let node = start(Node::builder("bench").store(MemoryStore::new()), cores, work.wait);
    create::<Caller>(&node, "caller");
    let here = core_of(&node, "caller");
    let target = create_where::<Target>(&node, "target", |core| (core == here) != work.other_core);
    let call = Call { target, op: work.op, warm_up: work.warm_up, ops: work.ops };
    let outcome = call_from(&node, work.from, work.wait, "caller", &call);
    homing::block_on(node.shutdown(Duration::from_secs(5)));
    outcome
}

fn remote_node(work: &RemoteWork, rid: &str) -> Node {
    let RemoteWork { dir, link, driver, wait, .. } = work;
    let store = LmdbStore::open(dir).expect("the store opens");
    let listen = match link {
        Link::Tcp => "tcp://127.0.0.1:0".to_owned(),
        Link::Unix => format!("unix://{}", dir.join(format!("{rid}.sock")).display()),
    };
    let builder = Node::builder("bench").rid(rid).listen(&listen).driver(driver.kind());
    start(builder.store(store), 1, *wait)
}

/// The rid of the node with the targets; as long as a generated one.
pub(crate) const TARGET_RID: &str = "node-0123456789abcdef";

/// The process with the targets: makes them, says `ready`, ends when `until` does.
pub(crate) fn serve(work: &RemoteWork, ready: impl FnOnce(), until: impl FnOnce()) {
    let node = remote_node(work, TARGET_RID);
    for number in 0..work.callers {
        create::<Target>(&node, &format!("target-{number}"));
    }
    ready();
    until();
    homing::block_on(node.shutdown(Duration::from_secs(5)));
}

/// The process with the callers.
pub(crate) fn call(work: &RemoteWork) -> Outcome {
    let node = remote_node(work, "caller-node");
    let call = |number| Call {
        target: format!("target-{number}"),
        op: work.op,
        warm_up: work.warm_up,
        ops: work.ops / work.callers,
    };
    for number in 0..work.callers {
        create::<Caller>(&node, &format!("caller-{number}"));
    }
    let outcome = if work.callers == 1 {
        call_from(&node, work.from, work.wait, "caller-0", &call(0))
    } else {
        let calls: Vec<_> = (0..work.callers).map(|n| (format!("caller-{n}"), call(n))).collect();
        call_together(&node, &calls)
    };
    homing::block_on(node.shutdown(Duration::from_secs(5)));
    outcome
}

/// Many callers at once. Percentiles are the medians of theirs, the time is the longest's.
fn call_together(node: &Node, calls: &[(String, Call)]) -> Outcome {
    let asked: Vec<_> = calls
        .iter()
        .map(|(caller, call)| {
            node.actor(caller).request(call.clone()).timeout(SEGMENT_TIMEOUT).into_future()
        })
        .collect();
    let outcomes: Vec<Outcome> = asked
        .into_iter()
        .zip(calls)
        .map(|(asked, (_, call))| {
            let text = homing::block_on(asked).expect("the calls go well");
            let outcome: Outcome = serde_json::from_str(&text).expect("an outcome");
            assert_eq!(outcome.hash, hash_of_answers(call.ops), "what was answered is wrong");
            outcome
        })
        .collect();
    let of = |f: fn(&Outcome) -> f64| super::samples::median(outcomes.iter().map(f).collect());
    Outcome {
        ops: outcomes.iter().map(|o| o.ops).sum(),
        elapsed_ns: outcomes.iter().map(|o| o.elapsed_ns).max().unwrap_or(0),
        p50_ns: of(|o| o.p50_ns),
        p99_ns: of(|o| o.p99_ns),
        p999_ns: of(|o| o.p999_ns),
        max_ns: outcomes.iter().map(|o| o.max_ns).fold(0.0, f64::max),
        hash: outcomes.iter().fold(0, |hash, o| super::samples::fold(hash, o.hash)),
        allocations: 0,
        target_allocations: 0,
    }
}
