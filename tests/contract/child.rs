#![forbid(unsafe_code)]
//! The child's side: this program, started again by a test, hosting one node and doing as it is
//! told over a Unix socket.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use homing::ids::NodeRid;
use homing::store::lmdb::LmdbStore;
use homing::{Error, Node, block_on};
use serde_json::{Value, json};

use super::command::{Command, Configured, Fence, Made, OnPeers, Said, Setup, Sight, Vain};
use super::eventually::eventually;
use super::probe::{Note, Show, open_gate, payload_of, waiting_at};
use super::watched::Watched;

/// Where a child listens for commands.
pub(crate) const SOCKET: &str = "HOMING_CONTRACT_CHILD";

#[derive(Default)]
struct Hosted {
    node: OnceLock<Node>,
    store: OnceLock<Watched>,
    last: Mutex<()>,
}

/// The entry of a child. In the test run itself there is no socket, and nothing to do.
#[test]
fn process() {
    let Some(socket) = std::env::var_os(SOCKET) else { return };
    let listener = UnixListener::bind(socket).expect("the test gave a free path");
    let hosted = Arc::new(Hosted::default());
    for stream in listener.incoming().flatten() {
        let hosted = hosted.clone();
        std::thread::spawn(move || serve(&hosted, stream));
    }
}

fn serve(hosted: &Hosted, stream: UnixStream) {
    let mut answers = stream.try_clone().expect("a descriptor");
    let mut is_attached = false;
    for line in BufReader::new(stream).lines() {
        let Ok(line) = line else { break };
        let command: Command = serde_json::from_str(&line).expect("the test speaks well");
        is_attached |= matches!(command, Command::Attach);
        let answer: std::result::Result<Value, Said> =
            carry_out(hosted, command).map_err(Said::from);
        let mut text = serde_json::to_string(&answer).expect("an answer is JSON");
        text.push('\n');
        // A test that does not listen any more has ended.
        let _ = answers.write_all(text.as_bytes());
    }
    if is_attached {
        std::process::exit(0);
    }
}

impl Hosted {
    fn node(&self) -> &Node {
        self.node.get().expect("the test started the node")
    }
}

fn open(setup: &Setup) -> homing::Result<Watched> {
    let store = Watched::new(LmdbStore::open(&setup.dir)?);
    if let Some(commits) = setup.fail_after_commits {
        store.fail_after_commits(commits);
    }
    Ok(store)
}

fn carry_out(hosted: &Hosted, command: Command) -> homing::Result<Value> {
    let ms = Duration::from_millis;
    Ok(match command {
        Command::Attach => Value::Null,
        Command::Start(setup) => {
            let store = open(&setup)?;
            let node = setup.builder().store(store.clone()).start()?;
            let endpoint = node.endpoint().to_string();
            let is_first = hosted.node.set(node).is_ok() && hosted.store.set(store).is_ok();
            assert!(is_first, "a child hosts one node");
            json!(endpoint)
        }
        Command::StartInVain(setup) => json!(start_in_vain(hosted, &setup)?),
        Command::Create { id, make, type_name, on, timeout_ms } => {
            let node = hosted.node();
            let mut creating =
                node.actors().create_type(&type_name, &id, payload_of(make.as_ref()));
            if let Some(rid) = on {
                creating = creating.on(&NodeRid::parse(&rid)?);
            }
            if let Some(timeout) = timeout_ms {
                creating = creating.timeout(ms(timeout));
            }
            json!(Made::of(creating.wait()?))
        }
        Command::CreateAtOnce { id, make, times } => {
            let node = hosted.node();
            let made: Vec<std::result::Result<Made, Said>> = std::thread::scope(|s| {
                let one = || {
                    let creating = node.actors().create_type("probe", &id, make.clone());
                    creating.wait().map(Made::of).map_err(Said::from)
                };
                let threads: Vec<_> = (0..times).map(|_| s.spawn(one)).collect();
                threads.into_iter().map(|t| t.join().expect("no panic")).collect()
            });
            json!(made)
        }
        Command::Note { id, number, is_request: true } => {
            json!(hosted.node().actor(id).request(Note { number }).wait()?)
        }
        Command::Note { id, number, is_request: false } => {
            hosted.node().actor(id).send(Note { number }).wait()?;
            Value::Null
        }
        Command::Burst { id, count } => {
            let actor = hosted.node().actor(id);
            for number in 0..count {
                actor.request(Note { number }).wait()?;
            }
            json!(count)
        }
        Command::Fence { id } => {
            let route = super::world::route_of(hosted.node(), &id);
            json!(Fence {
                rid: route.rid.to_string(),
                object: route.object_generation.get(),
                node: route.node_generation.get(),
                tenure: route.authority_owner_generation.get(),
                lease: route.owner_lease_generation.get(),
            })
        }
        Command::OnPeers(wish) => {
            let peers = hosted.node().peers();
            block_on(async {
                match &wish {
                    OnPeers::Add(endpoint) => peers.add(endpoint).await,
                    OnPeers::Replace(old, new) => peers.replace(old, new).await,
                    OnPeers::Remove(endpoint) => peers.remove(endpoint).await,
                }
            })?;
            Value::Null
        }
        Command::Peers => {
            let peers = block_on(hosted.node().peers().list())?;
            json!(peers.into_iter().map(Configured::from).collect::<Vec<_>>())
        }
        Command::Show { id } => json!(hosted.node().actor(id).request(Show {}).wait()?),
        Command::Hold(id, hold) => json!(hosted.node().actor(id).request(hold).wait()?),
        Command::Ask(id, ask) => json!(hosted.node().actor(id).request(ask).wait()?),
        Command::Find { id } => {
            let found = block_on(hosted.node().actors().find(id))?;
            json!(found.map(super::command::Ref::from))
        }
        Command::Resolve { id } => {
            json!(Sight::of(&block_on(hosted.node().resolver().actor(id))))
        }
        Command::Destroy(r) => {
            block_on(hosted.node().actors().destroy(&r.actor_ref()))?;
            Value::Null
        }
        Command::Counter { label } => {
            let counters = hosted.node().counters();
            let found = counters.iter().find(|(l, _)| *l == label).map(|(_, value)| value);
            json!(found.expect("the test names a counter"))
        }
        Command::Closes => json!(hosted.node().close_reasons()),
        Command::RowReads => json!(hosted.store.get().expect("started").all_row_reads()),
        Command::OpenGate { name } => {
            open_gate(&name);
            Value::Null
        }
        Command::WaitingAt { name } => json!(waiting_at(&name)),
        #[cfg(feature = "failpoints")]
        Command::Arm(text) => {
            homing::failpoints::arm(&text)?;
            Value::Null
        }
        #[cfg(feature = "failpoints")]
        Command::LetGo(name) => {
            homing::failpoints::release(failpoint(&name));
            Value::Null
        }
        #[cfg(feature = "failpoints")]
        Command::WaitsAt(name) => json!(homing::failpoints::is_waiting(failpoint(&name))),
        #[cfg(feature = "failpoints")]
        Command::Hits(name) => json!(homing::failpoints::hits(failpoint(&name))),
        Command::FailStore(is_failing) => {
            hosted.store.get().expect("started").fail(is_failing);
            Value::Null
        }
        Command::WallClock => {
            let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            json!(since.expect("after the epoch").as_secs())
        }
        Command::Shutdown { deadline_ms } => {
            block_on(hosted.node().shutdown(ms(deadline_ms)));
            Value::Null
        }
    })
}

#[cfg(feature = "failpoints")]
fn failpoint(name: &str) -> homing::env::Failpoint {
    homing::env::Failpoint::from_name(name).expect("the test names a failpoint")
}

fn start_in_vain(hosted: &Hosted, setup: &Setup) -> homing::Result<Vain> {
    // One at a time, and the store (shared by all in this process) opened before.
    let _alone = hosted.last.lock().unwrap_or_else(PoisonError::into_inner);
    let store = open(setup)?;
    let before = footprint();
    let error: Said = match setup.builder().store(store.clone()).start() {
        Ok(_) => return Err(Error::internal("the node started")),
        Err(e) => e.into(),
    };
    // Threads that were told to end are given the time to do it; what stays is told.
    let mut looks = 0;
    let left = eventually("what was begun to end", || {
        looks += 1;
        let left: Vec<String> = footprint().into_iter().filter(|f| !before.contains(f)).collect();
        Some(left).filter(|left| left.is_empty() || looks == 1_000)
    });
    Ok(Vain { error, left })
}

/// The descriptors and our threads of this process, each under a name that is its own.
fn footprint() -> Vec<String> {
    let names = |dir: &str, name: fn(&std::path::Path) -> Option<String>| {
        let entries = std::fs::read_dir(dir).expect("the proc file system").flatten();
        entries.filter_map(|e| name(&e.path())).collect::<Vec<String>>()
    };
    let descriptors = names("/proc/self/fd", |path| {
        let target = std::fs::read_link(path).ok()?.display().to_string();
        // The directory that is being read is itself open; and a file of another test, inherited by
        // chance, may be deleted meanwhile.
        (!target.contains("/fd")).then(|| target.trim_end_matches(" (deleted)").to_owned())
    });
    let threads = names("/proc/self/task", |path| {
        let name = std::fs::read_to_string(path.join("comm")).ok()?;
        let id = path.file_name()?.to_str()?;
        name.starts_with("homing").then(|| format!("thread {} {id}", name.trim()))
    });
    [descriptors, threads].concat()
}
