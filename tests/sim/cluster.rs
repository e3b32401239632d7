#![forbid(unsafe_code)]
//! The load: three nodes of unequal core counts, Actors that are created by several nodes at once,
//! destroyed and made again, senders on every node, turns that ask other Actors.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::IntoFuture;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use homing::env::Planted;
use homing::prelude::*;
use homing::sim::{
    CheckConfig, Ending, FaultClasses, FaultPlan, FaultScope, Life, NodeIx, NodeWorld, ObjectIx,
    OpKey, OpKind, Recorder, SimNode, SimRng, SimTime, Violation, check_all,
};
use homing::store::memory::MemoryStore;
use homing::time::Nanos;

const LEASE: Duration = Duration::from_secs(4);
const RENEW: Duration = Duration::from_secs(1);
const TIMEOUT: Duration = Duration::from_secs(4);
/// What a turn waits for another Actor: so short that who waits behind it is not late because of
/// a node that neither of them lives on.
const ASK_TIMEOUT: Duration = Duration::from_millis(700);
const CALM_AT: Nanos = Nanos(24_000_000_000);
const QUIET_AT: Nanos = Nanos(40_000_000_000);
const END_AT: Nanos = Nanos(62_000_000_000);
const CORES: [u16; 3] = [1, 2, 3];
const SENDERS_PER_NODE: u32 = 2;

/// What differs between two runs beside the seed.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) classes: FaultClasses,
    pub(crate) objects: usize,
    pub(crate) payload: u64,
    pub(crate) window: u32,
    pub(crate) cache_max_age: Duration,
    pub(crate) planted: Option<Planted>,
}

impl Shape {
    /// The shape of a seed: most are ordinary, some have one hot id, a tiny window or no cache.
    pub(crate) fn of(seed: u64) -> Self {
        let mut rng = SimRng::new(seed ^ 0x5AA5);
        Self {
            classes: FaultClasses::all(),
            objects: [1, 4, 8][rng.below(3) as usize],
            payload: [40, 40, 3_000, 40_000][rng.below(4) as usize],
            window: [65_536, 1 << 20][rng.below(2) as usize],
            cache_max_age: Duration::from_secs([0, 15, 15][rng.below(3) as usize]),
            planted: None,
        }
    }
}

/// What a run came to.
pub(crate) struct Outcome {
    pub(crate) violations: Vec<Violation>,
    pub(crate) hash: u128,
    pub(crate) executions: usize,
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Note {
    sender: u32,
    object: u32,
    seq: u64,
    /// Ask this Actor, too, before answering.
    ask: Option<String>,
    padding: String,
}
impl Message for Note {
    const NAME: &'static str = "sim.note";
    type Reply = (u32, u32, u64);
}

/// What the Actors of a run need and cannot be given: a world lives on one thread.
#[derive(Clone)]
struct Stage {
    history: Recorder,
    time: SimTime,
    lives: Rc<RefCell<BTreeMap<String, Life>>>,
    seqs: Rc<RefCell<BTreeMap<(u32, ObjectIx), u64>>>,
}

thread_local! {
    static STAGE: RefCell<Option<Stage>> = const { RefCell::new(None) };
}

fn stage() -> Stage {
    STAGE.with(|s| s.borrow().clone()).expect("a run is on its way on this thread")
}

impl Stage {
    fn next_key(&self, sender: u32, object: &str) -> OpKey {
        let object = self.history.object(object);
        let mut seqs = self.seqs.borrow_mut();
        let seq = seqs.entry((sender, object)).or_default();
        *seq += 1;
        OpKey { sender, object, seq: *seq }
    }

    fn ended(&self, key: OpKey, end: Result<Option<(u32, u32, u64)>>) {
        let ending = match end {
            Ok(None) => Ending::Admitted,
            Ok(Some((sender, object, seq))) => {
                Ending::Replied(OpKey { sender, object: ObjectIx(object), seq })
            }
            Err(e) => Ending::Failed(e.kind()),
        };
        self.history.ended(key, ending);
    }
}

/// An Actor that records what it handles.
struct Ledger {
    life: Life,
    generation: u64,
    rng: SimRng,
}

impl Actor for Ledger {
    const TYPE: &'static str = "ledger";

    async fn create(cx: &CreateContext, _request: Payload) -> Result<Self> {
        let stage = stage();
        let life = stage.lives.borrow()[&cx.rid().to_string()];
        let generation = cx.generation().get();
        stage.history.factory(stage.history.object(cx.id().as_str()), generation, life);
        let mut rng = SimRng::new(generation ^ 0xAC7);
        // A factory that takes its time meets the other creators.
        stage.time.sleep(Duration::from_micros(rng.below(4_000))).await;
        Ok(Self { life, generation, rng })
    }
}

impl Handler<Note> for Ledger {
    async fn handle(&mut self, note: Note, cx: &mut Context<'_, Self>) -> Result<(u32, u32, u64)> {
        let stage = stage();
        let key = OpKey { sender: note.sender, object: ObjectIx(note.object), seq: note.seq };
        let execution = stage.history.begin(key, self.generation, 1, self.life);
        if self.rng.below(4) == 0 {
            stage.time.sleep(Duration::from_micros(self.rng.below(3_000))).await;
        }
        if let Some(target) = note.ask {
            // An incarnation is a sender of its own.
            let sender = 0x8000_0000 | self.generation as u32;
            let asked = stage.next_key(sender, &target);
            stage.history.submitted(asked, OpKind::Request, self.life, ASK_TIMEOUT);
            stage.history.in_turn(asked);
            let message = Note {
                sender,
                object: asked.object.0,
                seq: asked.seq,
                ask: None,
                padding: String::new(),
            };
            let end = cx.actor(&target)?.request(message).timeout(ASK_TIMEOUT).await;
            stage.ended(asked, end.map(Some));
        }
        stage.history.finish(execution);
        Ok((note.sender, note.object, note.seq))
    }
}

fn builder(rid: &str, cores: u16, shape: &Shape) -> homing::NodeBuilder {
    Node::builder("sim")
        .rid(rid)
        .cores(cores)
        .lease_duration(LEASE)
        .lease_renew_interval(RENEW)
        .request_timeout(TIMEOUT)
        .send_timeout(TIMEOUT)
        .create_timeout(Duration::from_secs(4))
        .store_timeout(Duration::from_secs(1))
        .liveness_interval(Duration::from_secs(1))
        .liveness_timeout(Duration::from_secs(4))
        .lane_window_bytes(shape.window)
        .route_cache_max_age(shape.cache_max_age)
        .actor::<Ledger>(|a| a.handles::<Note>())
}

/// The cluster of one run.
struct Cluster {
    world: NodeWorld,
    nodes: Vec<SimNode>,
    ids: Rc<Vec<String>>,
    shape: Shape,
    served: BTreeMap<NodeIx, u32>,
    seed: u64,
}

impl Cluster {
    fn new(seed: u64, shape: &Shape) -> Self {
        let mut world = NodeWorld::new(seed);
        shape.planted.into_iter().for_each(|fault| world.plant(fault));
        let time = world.time();
        world.set_store(Arc::new(MemoryStore::with_clock(Arc::new(move || time.now()))));
        let stage = Stage {
            history: world.history(),
            time: world.time(),
            lives: Rc::default(),
            seqs: Rc::default(),
        };
        let lives = stage.lives.clone();
        STAGE.with(|s| *s.borrow_mut() = Some(stage));
        let mut nodes = Vec::new();
        for (at, cores) in CORES.into_iter().enumerate() {
            let (rid, shape, lives) = (format!("n{at}"), shape.clone(), lives.clone());
            nodes.push(world.node(move |life| {
                let life = Life { node: NodeIx(at as u16), life };
                lives.borrow_mut().insert(rid.clone(), life);
                builder(&rid, cores, &shape)
            }));
        }
        let scope = FaultScope {
            cores: CORES.to_vec(),
            from: Nanos(3_000_000_000),
            to: CALM_AT,
            lease: LEASE,
            every: Duration::from_secs(5),
        };
        world.set_plan(FaultPlan::seeded(seed, shape.classes, &scope));
        let ids = Rc::new((0..shape.objects).map(|n| format!("o{n}")).collect());
        Self { world, nodes, ids, shape: shape.clone(), served: BTreeMap::new(), seed }
    }

    /// Starts the clients of every lifecycle that has none yet.
    fn serve(&mut self) {
        for node in self.nodes.clone() {
            let life = self.world.life(node.ix());
            let is_new = self.served.get(&node.ix()) != Some(&life.life);
            let Some(handle) = node.node().filter(|_| is_new && self.world.is_up(node.ix())) else {
                continue;
            };
            self.served.insert(node.ix(), life.life);
            let base = u32::from(life.node.0) << 16 | life.life << 8;
            let seed = self.seed ^ u64::from(base) << 20;
            for sender in 0..SENDERS_PER_NODE {
                let client = Client {
                    node: handle.clone(),
                    stage: stage(),
                    ids: self.ids.clone(),
                    sender: base | sender,
                    life,
                    rng: SimRng::new(seed ^ u64::from(sender)),
                    payload: self.shape.payload,
                };
                self.world.spawn(Some(node.ix()), client.run());
            }
            let rng = SimRng::new(seed ^ 0x11FE);
            let keeper = Keeper { node: handle, stage: stage(), ids: self.ids.clone(), rng };
            self.world.spawn(Some(node.ix()), keeper.run());
        }
    }

    fn run(mut self) -> Outcome {
        while self.world.now() < END_AT {
            self.serve();
            self.world.run_for(Duration::from_millis(250));
        }
        let mut violations = self.probe();
        let history = self.world.history().snapshot();
        let config = CheckConfig {
            grace: Duration::from_secs(12),
            flight: Duration::from_secs(10),
            ..CheckConfig::default()
        };
        violations.extend(check_all(&history, &config));
        let hash = self.world.trace_hash();
        Outcome { violations, hash, executions: history.executions.len() }
    }

    /// After the faults everything works again: every node reaches every Actor that is not on a
    /// lifecycle that died.
    fn probe(&mut self) -> Vec<Violation> {
        let stage = stage();
        for node in self.nodes.clone() {
            let Some(handle) = node.node() else { continue };
            for (at, id) in self.ids.clone().iter().enumerate() {
                let life = self.world.life(node.ix());
                let sender = 0x4000_0000 | u32::from(node.ix().0) << 8 | at as u32;
                let key = stage.next_key(sender, id);
                stage.history.submitted(key, OpKind::Request, life, TIMEOUT);
                let message = Note {
                    sender,
                    object: key.object.0,
                    seq: key.seq,
                    ask: None,
                    padding: String::new(),
                };
                let request = handle.actor(id).request(message).timeout(TIMEOUT).into_future();
                let end = self.world.block_on(request);
                stage.ended(key, end.map(Some));
            }
        }
        Vec::new()
    }
}

/// One sender: numbers what it sends to each Actor, in bursts that it does not wait between.
struct Client {
    node: Node,
    stage: Stage,
    ids: Rc<Vec<String>>,
    sender: u32,
    life: Life,
    rng: SimRng,
    payload: u64,
}

enum Going {
    Send(homing::Sending),
    Request(homing::Requesting<Note>),
}

impl Client {
    async fn run(mut self) {
        while self.stage.time.now() < QUIET_AT {
            let pause = Duration::from_micros(20_000 + self.rng.below(300_000));
            self.stage.time.sleep(pause).await;
            let id = self.ids[self.rng.below(self.ids.len() as u64) as usize].clone();
            let burst = 1 + self.rng.below(6);
            let going: Vec<_> = (0..burst).map(|_| self.submit(&id)).collect();
            for (key, going) in going {
                let end = match going {
                    Going::Send(send) => send.await.map(|()| None),
                    Going::Request(request) => request.await.map(Some),
                };
                self.stage.ended(key, end);
            }
        }
    }

    fn submit(&mut self, id: &str) -> (OpKey, Going) {
        let key = self.stage.next_key(self.sender, id);
        let kind = if self.rng.below(2) == 0 { OpKind::Send } else { OpKind::Request };
        self.stage.history.submitted(key, kind, self.life, TIMEOUT);
        // Only forwards: two turns that ask each other would wait for their deadlines.
        let others: Vec<_> = self.ids.iter().filter(|other| other.as_str() > id).collect();
        let ask = (!others.is_empty() && self.rng.below(48) == 0)
            .then(|| others[self.rng.below(others.len() as u64) as usize].clone());
        let padding = "7".repeat(self.rng.below(self.payload) as usize);
        let message =
            Note { sender: self.sender, object: key.object.0, seq: key.seq, ask, padding };
        let actor = self.node.actor(id);
        let going = match kind {
            OpKind::Send => Going::Send(actor.send(message)),
            OpKind::Request => {
                Going::Request(actor.request(message).timeout(TIMEOUT).into_future())
            }
        };
        (key, going)
    }
}

/// Makes the Actors, all nodes at once, and now and then ends one and makes it again.
struct Keeper {
    node: Node,
    stage: Stage,
    ids: Rc<Vec<String>>,
    rng: SimRng,
}

impl Keeper {
    async fn run(mut self) {
        for id in self.ids.iter() {
            // Whatever comes of it: the checkers look at what was made.
            let _ = self.node.actors().create::<Ledger>(id, ()).await;
        }
        while self.stage.time.now() < CALM_AT {
            let pause = Duration::from_millis(1_000 + self.rng.below(5_000));
            self.stage.time.sleep(pause).await;
            let id = self.ids[self.rng.below(self.ids.len() as u64) as usize].clone();
            if self.rng.below(3) == 0
                && let Ok(Some(found)) = self.node.actors().find(&id).await
            {
                self.stage.history.removed(self.stage.history.object(&id));
                let _ = self.node.actors().destroy(&found).await;
                self.stage.history.removed(self.stage.history.object(&id));
            }
            let _ = self.node.actors().create::<Ledger>(&id, ()).await;
        }
    }
}

/// Runs one seed.
pub(crate) fn run(seed: u64, shape: &Shape) -> Outcome {
    Cluster::new(seed, shape).run()
}
