#![forbid(unsafe_code)]
//! Worlds of toy nodes: what the simulated door promises, and that a seed decides everything.

mod nodes;
mod service;
mod streams;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::*;

use crate::env::{CloseReason, ConnId, Endpoint, Env, Event, Post, StoreAnswer, StoreOp};
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
