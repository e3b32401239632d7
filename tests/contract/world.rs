#![forbid(unsafe_code)]
//! A world of nodes: a store directory, child processes, and nodes in the test's own process.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command as Program, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use homing::ids::NodeRid;
use homing::store::lmdb::LmdbStore;
use homing::{Counter, Error, ErrorKind, Node, Resolution, Result, block_on};
use rustix::process::{Pid, Signal, kill_process};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tempfile::TempDir;

use super::child::SOCKET;
use super::command::{Command, Made, Ref, Said, Setup, Sight};
use super::eventually::eventually;
use super::probe::{Ask, Asked, Hold, Make, Note, Show, Shown};
use super::watched::Watched;

/// Longest time an answer of a child may take: only what never comes fails.
const PATIENCE: Duration = Duration::from_secs(90);

static SERIAL: AtomicU64 = AtomicU64::new(0);

/// A store directory with the nodes that use it.
pub(crate) struct World {
    dir: TempDir,
    serial: u64,
}

impl World {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        Self { dir, serial: SERIAL.fetch_add(1, Ordering::Relaxed) }
    }

    /// A path in the world's directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A path as text.
    pub(crate) fn file(&self, name: &str) -> String {
        self.path(name).to_str().expect("a temporary path is text").to_owned()
    }

    /// The world's directory as text.
    pub(crate) fn dir(&self) -> String {
        self.file("").trim_end_matches('/').to_owned()
    }

    /// A loopback endpoint nobody listens on.
    pub(crate) fn free_tcp(&self) -> String {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        format!("tcp://{}", listener.local_addr().expect("an address"))
    }

    /// A gate's name that no other test of this process has.
    pub(crate) fn gate(&self, name: &str) -> String {
        format!("{}-{name}", self.serial)
    }

    /// The settings of a node with this rid; one to three cores, so that links have ends of unequal
    /// counts, and all others their defaults.
    pub(crate) fn setup(&self, rid: &str) -> Setup {
        Setup {
            mesh: "contract".into(),
            rid: rid.into(),
            dir: self.file("store"),
            cores: Some(1 + (rid.len() % 3) as u16),
            ..Setup::default()
        }
    }

    /// As [`World::setup`], for tests that wait for a lease to lapse or a dead peer to be missed.
    pub(crate) fn brief(&self, rid: &str) -> Setup {
        Setup { lease_ms: Some((3_000, 600)), liveness_ms: Some((400, 1_500)), ..self.setup(rid) }
    }

    /// A child process without a node.
    pub(crate) fn bare_child(&self, name: &str) -> Child {
        Child::new(self.path(&format!("{name}.sock")), name)
    }

    /// A child process with a started node.
    pub(crate) fn child(&self, setup: &Setup) -> Child {
        self.child_named(setup, &setup.rid)
    }

    /// As [`World::child`], under a name that is not its rid: a second process with that rid, or one
    /// whose rid is no file name.
    pub(crate) fn child_named(&self, setup: &Setup, name: &str) -> Child {
        let mut child = self.bare_child(name);
        child.rid.clone_from(&setup.rid);
        child.endpoint = child.ask(Command::Start(setup.clone()));
        child
    }

    /// A node in this process, and the provider it uses.
    pub(crate) fn node(&self, setup: &Setup) -> (Node, Watched) {
        let store = self.store();
        let node = setup.builder().store(store.clone()).start().expect("the node starts");
        (node, store)
    }

    /// The world's store, as nodes of this process use it.
    pub(crate) fn store(&self) -> Watched {
        Watched::new(LmdbStore::open(self.path("store")).expect("the store opens"))
    }

    /// A file that counts the runs of a factory, and a request that names it.
    pub(crate) fn counted(&self, name: &str) -> Make {
        Make { runs: self.file(name), ..Make::default() }
    }

    /// The runs of the factory: `rid generation` each.
    pub(crate) fn runs(&self, make: &Make) -> Vec<String> {
        let text = std::fs::read_to_string(&make.runs).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}

/// A child process. It dies with its test.
pub(crate) struct Child {
    process: std::process::Child,
    socket: PathBuf,
    /// The child ends when this closes.
    _attached: UnixStream,
    pub(crate) rid: String,
    pub(crate) endpoint: String,
}

impl Child {
    fn new(socket: PathBuf, rid: &str) -> Self {
        let program = std::env::current_exe().expect("this program has a path");
        let mut process = Program::new(program)
            .args(["child::process", "--exact", "--nocapture", "--test-threads=1"])
            .env(SOCKET, &socket)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("a child starts");
        let attached = eventually("a child to listen", || {
            let ended = process.try_wait().expect("a child can be asked");
            assert!(ended.is_none(), "the child {rid} ended: {ended:?}");
            UnixStream::connect(&socket).ok()
        });
        let asked = tell(&attached, &Command::Attach).expect("the child listens");
        hear(asked).expect("the child is attached");
        Self { process, socket, _attached: attached, rid: rid.to_owned(), endpoint: String::new() }
    }

    /// Gives a command; its answer is taken later.
    #[track_caller]
    pub(crate) fn begin(&self, command: Command) -> Pending {
        let stream = UnixStream::connect(&self.socket).expect("the child listens");
        Pending(tell(&stream, &command).expect("the child takes a command"))
    }

    #[track_caller]
    pub(crate) fn try_ask<T: DeserializeOwned>(&self, command: Command) -> Result<T> {
        self.begin(command).end()
    }

    #[track_caller]
    pub(crate) fn ask<T: DeserializeOwned>(&self, command: Command) -> T {
        let what = format!("{command:?}");
        match self.try_ask(command) {
            Ok(value) => value,
            Err(e) => panic!("{} at {what}: {e}", self.rid),
        }
    }

    pub(crate) fn node_rid(&self) -> NodeRid {
        NodeRid::parse(&self.rid).expect("a good rid")
    }

    #[track_caller]
    pub(crate) fn create(&self, id: &str) -> Ref {
        self.make(id, None).expect("the creation is answered").standing()
    }

    pub(crate) fn creation(id: &str, make: Option<&Make>) -> Command {
        Command::Create {
            id: id.into(),
            make: make.cloned(),
            type_name: "probe".into(),
            on: None,
            timeout_ms: None,
        }
    }

    #[track_caller]
    pub(crate) fn make(&self, id: &str, make: Option<&Make>) -> Result<Made> {
        self.try_ask(Self::creation(id, make))
    }

    #[track_caller]
    pub(crate) fn destroy(&self, r: &Ref) -> Result<()> {
        self.try_ask(Command::Destroy(r.clone()))
    }

    #[track_caller]
    pub(crate) fn show(&self, id: &str) -> Shown {
        self.ask(Command::Show { id: id.into() })
    }

    #[track_caller]
    pub(crate) fn notes(&self, id: &str) -> Vec<u64> {
        self.show(id).notes
    }

    #[track_caller]
    pub(crate) fn counter(&self, counter: Counter) -> u64 {
        self.ask(Command::Counter { label: counter.label().into() })
    }

    #[track_caller]
    pub(crate) fn sight(&self, id: &str) -> Sight {
        self.ask(Command::Resolve { id: id.into() })
    }

    pub(crate) fn open_gate(&self, name: &str) {
        self.ask::<Value>(Command::OpenGate { name: name.into() });
    }

    /// Waits until so many stand at a gate of the child.
    #[track_caller]
    pub(crate) fn await_waiting(&self, name: &str, count: usize) {
        eventually("a turn to reach its gate", || {
            let waiting: usize = self.ask(Command::WaitingAt { name: name.into() });
            (waiting == count).then_some(())
        });
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).expect("the child can be signalled");
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Stops the process: it does nothing until it is told to go on.
    pub(crate) fn pause(&self) {
        self.signal(Signal::STOP);
        let tasks = format!("/proc/{}/task", self.process.id());
        eventually("every thread of the child to stop", || {
            let mut tasks = std::fs::read_dir(&tasks).ok()?.flatten();
            let is_stopped = |task: std::fs::DirEntry| {
                let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
                stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'))
            };
            tasks.all(is_stopped).then_some(())
        });
    }

    pub(crate) fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Kills the process and waits for its end.
    pub(crate) fn kill(&mut self) {
        // One that has ended already is as good.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A command whose answer has not been taken.
pub(crate) struct Pending(UnixStream);

impl Pending {
    #[track_caller]
    pub(crate) fn end<T: DeserializeOwned>(self) -> Result<T> {
        hear(self.0).map(|value| serde_json::from_value(value).expect("an answer of this type"))
    }
}

fn tell(stream: &UnixStream, command: &Command) -> std::io::Result<UnixStream> {
    let mut stream = stream.try_clone()?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut line = serde_json::to_string(command).expect("a command is JSON");
    line.push('\n');
    stream.write_all(line.as_bytes())?;
    Ok(stream)
}

#[track_caller]
fn hear(stream: UnixStream) -> Result<Value> {
    let mut line = String::new();
    match BufReader::new(stream).read_line(&mut line) {
        Ok(0) | Err(_) => panic!("the child gave no answer"),
        Ok(_) => {}
    }
    let answer: std::result::Result<Value, Said> =
        serde_json::from_str(&line).expect("an answer is JSON");
    answer.map_err(Error::from)
}

/// What tests ask a node of their own process, in one word each.
pub(crate) trait Asks {
    fn note(&self, id: &str, number: u64) -> Result<u64>;
    fn show(&self, id: &str) -> Result<Shown>;
    fn hold(&self, id: &str, number: u64, gate: &str) -> Result<u64>;
    fn ask(&self, id: &str, ask: Ask) -> Result<Asked>;
    fn sight(&self, id: &str) -> Sight;
    fn count(&self, counter: Counter) -> u64;
    fn make(&self, id: &str, make: Option<&Make>) -> Result<Made>;
}

impl Asks for Node {
    fn note(&self, id: &str, number: u64) -> Result<u64> {
        self.actor(id).request(Note { number }).wait()
    }

    fn show(&self, id: &str) -> Result<Shown> {
        self.actor(id).request(Show {}).wait()
    }

    fn hold(&self, id: &str, number: u64, gate: &str) -> Result<u64> {
        self.actor(id).request(Hold { number, gate: gate.to_owned() }).wait()
    }

    fn ask(&self, id: &str, ask: Ask) -> Result<Asked> {
        self.actor(id).request(ask).wait()
    }

    fn sight(&self, id: &str) -> Sight {
        Sight::of(&block_on(self.resolver().actor(id)))
    }

    fn count(&self, counter: Counter) -> u64 {
        self.counters().get(counter)
    }

    fn make(&self, id: &str, make: Option<&Make>) -> Result<Made> {
        self.actors().create_type("probe", id, super::probe::payload_of(make)).wait().map(Made::of)
    }
}

/// The route of an Actor that is there.
#[track_caller]
pub(crate) fn route_of(node: &Node, id: &str) -> homing::RouteInfo {
    match block_on(node.resolver().actor(id)) {
        Resolution::ReadyRoute(route) => route,
        other => panic!("{id} resolves to {other:?}"),
    }
}

/// Fails unless the result is an error of this kind; gives its sentence.
#[track_caller]
pub(crate) fn refused<T: std::fmt::Debug>(result: Result<T>, kind: ErrorKind) -> String {
    match result {
        Err(e) if e.kind() == kind => e.text().to_owned(),
        other => panic!("expected {kind}, got {other:?}"),
    }
}
