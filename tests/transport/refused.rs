#![forbid(unsafe_code)]
//! Where io_uring is refused, a node says so in one line and uses epoll, or does not start when
//! io_uring was asked for by name.

use std::collections::BTreeMap;
use std::fmt::{Debug, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use homing::prelude::*;
use homing::store::memory::MemoryStore;
use homing::{DriverKind, ErrorKind, NodeBuilder};
use rustix::process::{Resource, Rlimit, getuid, setrlimit};
use rustix::thread::{Uid, set_thread_res_uid};
use seccompiler::{SeccompAction, SeccompFilter, TargetArch, apply_filter};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Level, Metadata as LogMetadata, Subscriber};

use crate::process::alone;

// From the kernel's table of system calls, which is the same on every architecture here.
const IO_URING_SETUP: i64 = 425;
const IO_URING_ENTER: i64 = 426;
const IO_URING_REGISTER: i64 = 427;
const EPERM: u32 = 1;
const ENOSYS: u32 = 38;

/// Keeps warnings and errors of this process.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, " {field}={value:?}").unwrap();
    }
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &LogMetadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut line = Line(event.metadata().level().to_string());
        event.record(&mut line);
        self.0.lock().unwrap().push(line.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Add(i64);

impl Message for Add {
    const NAME: &'static str = "counter.add";
    type Reply = i64;
}

#[derive(Default)]
struct Counter {
    total: i64,
}

impl Actor for Counter {
    const TYPE: &'static str = "counter";

    async fn create(_: &CreateContext, _: Payload) -> Result<Self> {
        Ok(Self::default())
    }
}

impl Handler<Add> for Counter {
    async fn handle(&mut self, add: Add, _: &mut Context<'_, Self>) -> Result<i64> {
        self.total += add.0;
        Ok(self.total)
    }
}

fn builder(rid: &str, driver: DriverKind) -> NodeBuilder {
    Node::builder("refused").rid(rid).cores(2).driver(driver)
}

/// Two nodes over TCP: one makes an Actor, the other asks it.
fn serves(driver: DriverKind) -> [DriverKind; 2] {
    let store = MemoryStore::new();
    let host = |b: NodeBuilder| b.actor::<Counter>(|a| a.handles::<Add>());
    let owner = host(builder("owner", driver).store(store.clone())).start().unwrap();
    let asker = builder("asker", driver).store(store).start().unwrap();
    homing::block_on(async {
        owner.actors().create::<Counter>("counter-1", ()).await.unwrap();
        assert_eq!(asker.actor("counter-1").request(Add(2)).await, Ok(2));
        let used = [owner.driver(), asker.driver()];
        asker.shutdown(Duration::from_secs(5)).await;
        owner.shutdown(Duration::from_secs(5)).await;
        used
    })
}

fn forbid(call: i64, errno: u32) {
    let arch = TargetArch::try_from(std::env::consts::ARCH).unwrap();
    let rules = BTreeMap::from([(call, Vec::new())]);
    let refuse = SeccompAction::Errno(errno);
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, arch).unwrap();
    let program: seccompiler::BpfProgram = filter.try_into().unwrap();
    apply_filter(&program).unwrap();
}

/// In a process where a system call is refused: the fall-back with its line, and the refusal.
fn falls_back(call: i64, errno: u32, reason: &str) {
    alone(|| {
        let lines = Lines::default();
        tracing::subscriber::set_global_default(lines.clone()).unwrap();
        forbid(call, errno);
        assert_eq!(serves(DriverKind::Auto), [DriverKind::Epoll; 2]);
        let said = std::mem::take(&mut *lines.0.lock().unwrap());
        // One line per node, and nothing else went wrong.
        assert_eq!(said.len(), 2, "{said:?}");
        for line in &said {
            assert!(line.contains("io_uring is refused; the node uses epoll"), "{line}");
            assert!(line.contains(reason) && !line.contains('\n'), "{line}");
        }

        let store = MemoryStore::new();
        let refused = builder("by-name", DriverKind::Uring).store(store.clone()).start();
        let e = refused.err().expect("it is refused");
        assert_eq!(e.kind(), ErrorKind::NotConfigured);
        for words in ["driver is uring", reason, "set driver to auto or epoll"] {
            assert!(e.text().contains(words), "{e} does not say {words}");
        }
        // Nothing was begun in the Store: the rid is free at once.
        let node = builder("by-name", DriverKind::Epoll).store(store).start().unwrap();
        assert_eq!(node.driver(), DriverKind::Epoll);
        assert!(lines.0.lock().unwrap().is_empty(), "who asks for epoll is told nothing");
    });
}

#[test]
fn a_seccomp_filter_that_refuses_io_uring_setup() {
    falls_back(IO_URING_SETUP, EPERM, "io_uring_setup: Operation not permitted");
}

#[test]
fn a_kernel_without_io_uring() {
    falls_back(IO_URING_SETUP, ENOSYS, "io_uring_setup: Function not implemented");
}

#[test]
fn a_seccomp_filter_that_refuses_io_uring_enter() {
    falls_back(IO_URING_ENTER, EPERM, "io_uring_enter: Operation not permitted");
}

#[test]
fn a_seccomp_filter_that_refuses_io_uring_register() {
    falls_back(IO_URING_REGISTER, EPERM, "Operation not permitted");
}

/// `ulimit -l 0` for a user without privileges: io_uring is refused where the kernel counts rings
/// as locked memory (then there is the one line), and works where it does not. The node runs.
#[test]
fn no_locked_memory() {
    alone(|| {
        let lines = Lines::default();
        tracing::subscriber::set_global_default(lines.clone()).unwrap();
        setrlimit(Resource::Memlock, Rlimit { current: Some(0), maximum: Some(0) }).unwrap();
        if getuid().is_root() {
            // Root may lock what it likes. The threads of the node inherit this one's user.
            let nobody = Uid::from_raw(65_534);
            set_thread_res_uid(nobody, nobody, nobody).unwrap();
        }
        let used = serves(DriverKind::Auto);
        let said = std::mem::take(&mut *lines.0.lock().unwrap());
        println!("used {used:?}, said {said:?}");
        let refused = used.iter().filter(|driver| **driver == DriverKind::Epoll).count();
        assert_eq!(said.len(), refused, "{used:?} {said:?}");
        for line in &said {
            assert!(line.contains("io_uring is refused; the node uses epoll"), "{line}");
            assert!(line.contains("ulimit -l"), "{line}");
        }
    });
}

/// Where it is allowed, auto takes io_uring, and both can be had by name.
#[test]
fn each_kind_serves_and_says_which_it_is() {
    let auto = if homing::transport::uring::Uring::probe().is_ok() {
        assert_eq!(serves(DriverKind::Uring), [DriverKind::Uring; 2]);
        DriverKind::Uring
    } else {
        DriverKind::Epoll
    };
    assert_eq!(serves(DriverKind::Auto), [auto; 2]);
    assert_eq!(serves(DriverKind::Epoll), [DriverKind::Epoll; 2]);
}
