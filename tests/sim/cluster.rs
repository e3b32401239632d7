#![forbid(unsafe_code)]
//! One run: three nodes of unequal core counts, faults for a while, calm for a while, then a look
//! at whether everything works again.

use std::collections::BTreeMap;
use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;

use homing::Counter;
use homing::location::Write;
use homing::prelude::*;
use homing::sim::{
    Concerns, Fault, FaultPlan, FaultScope, History, Life, NodeWorld, OpKind, SimNode, SimRng,
    TroubleKind, Violation,
};
use homing::store::memory::MemoryStore;
use homing::time::Nanos;

use super::clients::{Client, sender_number};
use super::judge;
use super::ledger::{Birth, Extra, Ledger, Note, Wish};
use super::shape::{CORES, Shape, TIMEOUT};
use super::stage::Stage;
use super::wire_tap;

/// No fault before this.
pub(crate) const FAULTS_FROM: Nanos = Nanos(2_000_000_000);
/// No fault from here on.
pub(crate) const CALM_AT: Nanos = Nanos(16_000_000_000);
/// The after-effects of faults are over: nothing is excused any more. Until here clients take it
/// easy.
pub(crate) const STRICT_AT: Nanos = Nanos(27_000_000_000);
/// No client submits from here on.
const QUIET_AT: Nanos = Nanos(32_000_000_000);
/// All that was submitted has ended.
const END_AT: Nanos = Nanos(40_000_000_000);
/// Senders of a node.
const SENDERS: u32 = 2;

/// What a run came to.
pub(crate) struct Outcome {
    pub(crate) violations: Vec<Violation>,
    pub(crate) hash: u128,
    pub(crate) steps: u64,
    pub(crate) history: History,
    /// How often a core saw its node's lease lapse.
    pub(crate) lapses: u64,
}

/// The cluster of one run.
pub(crate) struct Cluster {
    pub(crate) world: NodeWorld,
    pub(crate) nodes: Vec<SimNode>,
    pub(crate) stage: Stage,
    /// Every lifecycle that clients were started on, and its handle.
    pub(crate) lives: Vec<(Life, Node)>,
    served: BTreeMap<u16, u32>,
    seed: u64,
}

fn builder(rid: &str, cores: u16, shape: &Shape) -> homing::NodeBuilder {
    Node::builder("sim")
        .rid(rid)
        .cores(cores)
        .lease_duration(shape.lease.0)
        .lease_renew_interval(shape.lease.1)
        .request_timeout(TIMEOUT)
        .send_timeout(TIMEOUT)
        .create_timeout(Duration::from_secs(4))
        .store_timeout(Duration::from_secs(1))
        .liveness_interval(Duration::from_secs(1))
        .liveness_timeout(Duration::from_secs(4))
        .lane_window_bytes(shape.window)
        .route_cache_max_age(shape.cache_max_age)
        .messages_through_bytes(shape.through_bytes)
        .actor::<Ledger>(|a| a.handles::<Note>())
}

/// The faults of a seed.
pub(crate) fn plan(seed: u64, shape: &Shape) -> FaultPlan {
    let scope = FaultScope {
        cores: CORES.to_vec(),
        from: FAULTS_FROM,
        to: CALM_AT,
        lease: shape.lease.0,
        every: Duration::from_secs(4),
    };
    FaultPlan::seeded(seed, shape.classes, &scope)
}

/// Runs one seed.
pub(crate) fn run(seed: u64, shape: &Shape) -> Outcome {
    run_plan(seed, shape, plan(seed, shape))
}

/// Runs one seed under stated faults.
pub(crate) fn run_plan(seed: u64, shape: &Shape, plan: FaultPlan) -> Outcome {
    let mut cluster = Cluster::new(seed, shape);
    let calm = FaultPlan { schedule: Vec::new(), ..FaultPlan::none() };
    cluster.world.set_plan(plan);
    if shape.shutdowns {
        cluster.shut_down_some();
    }
    cluster.run_until(CALM_AT);
    // The rates of a plan would go on for ever.
    cluster.world.set_plan(calm);
    cluster.run_until(END_AT);
    cluster.end()
}

/// Prints what happens to the rows of the object that `HOMING_SIM_OBJECT` names.
fn show_object(world: &mut NodeWorld) {
    let Ok(name) = std::env::var("HOMING_SIM_OBJECT") else { return };
    world.on_commit(Box::new(move |at, node, batch, outcome| {
        let text = |write: &Write| match write {
            Write::Put { key, value, .. } => {
                format!("put {} {}", key.escape_ascii(), value.escape_ascii())
            }
            Write::Delete { key } => format!("delete {}", key.escape_ascii()),
        };
        let writes: Vec<String> = batch.writes.iter().map(text).collect();
        if writes.iter().any(|write| write.contains(&name)) {
            println!("{at} n{} {outcome:?} {writes:?}", node.0);
        }
    }));
}

impl Cluster {
    pub(crate) fn new(seed: u64, shape: &Shape) -> Self {
        let mut world = NodeWorld::new(seed);
        show_object(&mut world);
        shape.planted.into_iter().for_each(|fault| world.plant(fault));
        let time = world.time();
        world.set_store(Arc::new(MemoryStore::with_clock(Arc::new(move || time.now()))));
        let stage = Stage::new(world.history(), world.time(), shape);
        let mut nodes = Vec::new();
        let mut rids = Vec::new();
        for (at, cores) in CORES.into_iter().enumerate() {
            let (rid, shape) = (format!("n{at}"), shape.clone());
            rids.push(rid.clone());
            let node = world.node(move |_| builder(&rid, cores, &shape));
            stage.nodes.borrow_mut().insert(rids[at].clone(), node.clone());
            nodes.push(node);
        }
        world.on_bytes(wire_tap::tap(stage.clone(), seed, rids));
        Self { world, nodes, stage, lives: Vec::new(), served: BTreeMap::new(), seed }
    }

    fn run_until(&mut self, at: Nanos) {
        while self.world.now() < at {
            self.serve();
            if self.world.now() >= CALM_AT {
                // Whatever is down comes back; nothing happens to a node that is up.
                self.nodes.iter().for_each(|n| self.world.inject(Fault::Start(n.ix())));
            }
            self.world.run_for(Duration::from_millis(50));
        }
    }

    /// Starts the clients of every lifecycle that has none yet.
    fn serve(&mut self) {
        for node in self.nodes.clone() {
            let life = node.life();
            let is_new = self.served.get(&life.node.0) != Some(&life.life);
            let is_up = self.world.is_up(node.ix()) && self.world.life(node.ix()) == life;
            let Some(handle) = node.node().filter(|_| is_new && is_up) else { continue };
            self.served.insert(life.node.0, life.life);
            self.lives.push((life, handle.clone()));
            for at in 0..=SENDERS {
                let sender = sender_number(life, at);
                let client = Client {
                    node: handle.clone(),
                    life,
                    stage: self.stage.clone(),
                    handle: self.world.handle(),
                    sender,
                    rng: SimRng::new(self.seed ^ u64::from(sender) << 20),
                    until: QUIET_AT,
                };
                if at == SENDERS {
                    self.world.spawn(Some(life.node), client.keep_on());
                } else {
                    self.world.spawn(Some(life.node), client.send_on());
                }
            }
        }
    }

    /// Shuts nodes down in order, and starts them again.
    fn shut_down_some(&mut self) {
        let mut rng = SimRng::new(self.seed ^ 0xD0E);
        for node in self.nodes.clone() {
            let at = rng.instant(FAULTS_FROM, CALM_AT);
            let deadline = rng.duration((Duration::from_millis(1), Duration::from_secs(1)));
            let down = rng.duration((Duration::from_secs(1), Duration::from_secs(5)));
            let (stage, handle) = (self.stage.clone(), self.world.handle());
            self.world.spawn(None, async move {
                stage.time.sleep_until(at).await;
                let Some(running) = node.node() else { return };
                stage.facts.borrow_mut().shut_down.insert(node.life());
                let concerns = Concerns::Node(node.ix());
                stage.history.trouble(TroubleKind::Died, concerns, deadline + TIMEOUT);
                running.shutdown(deadline).await;
                handle.schedule(stage.time.now() + down, Fault::Start(node.ix()));
            });
        }
    }

    /// Looks at everything.
    fn end(mut self) -> Outcome {
        self.look_for_leftovers("after all work has ended");
        self.probe();
        self.world.run_for(Duration::from_secs(3));
        self.look_for_leftovers("after the last requests");
        let history = self.world.history().snapshot();
        let violations = judge::judge(&history, &self);
        let hash = self.world.trace_hash();
        let lapsed = |(_, node): &(Life, Node)| node.counters().get(Counter::LeaseLapses);
        let lapses = self.lives.iter().map(lapsed).sum();
        Outcome { violations, hash, steps: self.world.step_count(), history, lapses }
    }

    fn look_for_leftovers(&mut self, when: &str) {
        for node in &self.nodes {
            if !self.world.is_up(node.ix()) {
                self.stage.history.complain(format!("{} is not up {when}", node.life()));
            }
            let held = node.held();
            if !held.is_empty() {
                self.stage.history.complain(format!("{} holds {held:?} {when}", node.life()));
            }
        }
    }

    /// After the faults everything works again: every node finds and reaches every Actor that is
    /// not on a lifecycle that died, and an id that is free can be taken.
    fn probe(&mut self) {
        let ids = self.stage.all_ids.borrow().clone();
        let handles: Vec<(Life, Node)> =
            self.nodes.iter().filter_map(|n| Some((n.life(), n.node()?))).collect();
        for (at, id) in (0..).zip(&ids) {
            let mut found = None;
            for (life, node) in &handles {
                let (node, of) = (node.clone(), id.clone());
                let seen = self.world.block_on(async move { node.actors().find(&of).await });
                if found.as_ref().is_some_and(|before| *before != seen) || seen.is_err() {
                    let text = format!("{life} finds {seen:?} for {id}, another {found:?}");
                    self.stage.history.complain(text);
                }
                found = Some(seen);
            }
            let owner = match found {
                Some(Ok(Some(owner))) => Some(owner),
                Some(Ok(None)) => self.probe_free_id(&handles, at, id),
                _ => None,
            };
            let Some(owner) = owner else { continue };
            let object = self.stage.history.object(id);
            let lives = self
                .stage
                .history
                .with(|h| h.authorities.iter().rfind(|a| a.object == object).and_then(|a| a.owner));
            let is_alive = lives.is_some_and(|(generation, _, life)| {
                generation == owner.generation.get() && self.world.life(life.node) == life
            });
            for (life, node) in &handles {
                let mut end = self.ask(node, *life, at, id);
                if matches!(&end, Err(e) if e.text().contains(" any more: ")) {
                    // A route cached before, which is now forgotten (R2.6-3).
                    end = self.ask(node, *life, at, id);
                }
                let is_right = match &end {
                    Ok(()) => is_alive,
                    Err(e) => !is_alive && e.kind() == ErrorKind::Unavailable,
                };
                if !is_right {
                    let text = format!("{life} asks {id} of {lives:?} at last: {end:?}");
                    self.stage.history.complain(text);
                }
            }
        }
    }

    fn probe_free_id(&mut self, handles: &[(Life, Node)], at: u32, id: &str) -> Option<ActorRef> {
        for (life, node) in handles {
            let mut end = self.ask(node, *life, at, id);
            if matches!(&end, Err(e) if e.text().contains(" any more: ")) {
                end = self.ask(node, *life, at, id);
            }
            if !matches!(&end, Err(e) if e.kind() == ErrorKind::NotFound) {
                let text = format!("{life} asks {id}, which nobody has, at last: {end:?}");
                self.stage.history.complain(text);
            }
        }
        let (life, node) = &handles[at as usize % handles.len()];
        let creating = node.actors().create::<Ledger>(id, Birth(Wish::Make)).into_future();
        match self.world.block_on(creating) {
            Ok(CreateOutcome::Created(made)) => Some(made),
            other => {
                let text = format!("{life} creates {id}, which nobody has, at last: {other:?}");
                self.stage.history.complain(text);
                None
            }
        }
    }

    fn ask(&mut self, node: &Node, life: Life, at: u32, id: &str) -> Result<()> {
        let sender = 0x4000_0000 | u32::from(life.node.0) << 16 | at;
        let key = self.stage.next_key(sender, id);
        self.stage.submitted(key, OpKind::Request, life, TIMEOUT);
        let message = Note::new(key, Extra::Nothing, 0);
        let request = node.actor(id).request(message).timeout(TIMEOUT).into_future();
        let end = self.world.block_on(request);
        self.stage.ended(key, life, end.clone().map(Some));
        end.map(|_| ())
    }
}
