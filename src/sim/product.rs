#![forbid(unsafe_code)]
//! The product's own nodes in a world: the same builder, the same cores, another door.

use std::cell::RefCell;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use super::{Built, Life, NodeIx, NodeSpec, NodeStart, SimCore, SimEnv, SimWorld};
use crate::env::Post;
use crate::error::Error;
use crate::node::simulated::{Core, End, Mail, Plan, Shared, Taken, oneshot, parts, region};
use crate::node::store_threads::LeaseControl;
use crate::node::{Node, NodeBuilder};
use crate::protocol::peer::Peers;
use crate::shm::{Place, ProcessIdentity};
use crate::store::records::Block;
use crate::time::Nanos;

/// How long a stopped node tries to give its lease back.
const RELEASE_TIME: Duration = Duration::from_secs(2);

/// A world of the product's nodes.
///
/// ```
/// use homing::prelude::*;
/// use homing::sim::NodeWorld;
/// use homing::store::memory::MemoryStore;
/// use std::sync::Arc;
///
/// let mut world = NodeWorld::new(7);
/// let time = world.time();
/// world.set_store(Arc::new(MemoryStore::with_clock(Arc::new(move || time.now()))));
/// let a = world.node(|_| Node::builder("game").rid("a").cores(2));
/// let b = world.node(|_| Node::builder("game").rid("b"));
/// world.run_until_up(&[&a, &b]);
/// let handle = a.node().unwrap();
/// let found = world.block_on(async move { handle.actors().find("nobody").await });
/// assert_eq!(found, Ok(None));
/// ```
pub type NodeWorld = SimWorld<Mail>;

/// A node of a [`NodeWorld`], across its lifecycles.
#[derive(Clone)]
pub struct SimNode {
    ix: NodeIx,
    latest: Rc<RefCell<Latest>>,
}

/// The lifecycle that was built last.
#[derive(Default)]
struct Latest {
    life: u32,
    node: Option<Node>,
    cores: Vec<Weak<RefCell<Stage>>>,
}

impl SimNode {
    /// Which node of the world.
    #[must_use]
    pub fn ix(&self) -> NodeIx {
        self.ix
    }

    /// The handle of the lifecycle that was built last; `None` before the first.
    #[must_use]
    pub fn node(&self) -> Option<Node> {
        self.latest.borrow().node.clone()
    }

    /// The lifecycle that was built last; its number is 0 before the first.
    #[must_use]
    pub fn life(&self) -> Life {
        Life { node: self.ix, life: self.latest.borrow().life }
    }

    /// What the cores hold for work under way: what, and how much. When all work has ended,
    /// anything here was left behind.
    #[must_use]
    pub fn held(&self) -> Vec<(&'static str, u64)> {
        let latest = self.latest.borrow();
        let cores = latest.cores.iter().filter_map(Weak::upgrade);
        cores.flat_map(|core| core.borrow().held()).filter(|(_, count)| *count > 0).collect()
    }
}

impl SimWorld<Mail> {
    /// Adds a node as its builder describes it and starts it. The world takes the place of the
    /// builder's Store, endpoint and threads. `describe` is called for every lifecycle with its
    /// number, from 1; with 0 once before, to learn rid and cores.
    ///
    /// # Panics
    /// When the builder refuses its settings.
    pub fn node(&mut self, mut describe: impl FnMut(u32) -> NodeBuilder + 'static) -> SimNode {
        let plan = describe(0).plan(|| 0).expect("the builder's settings are good");
        let settings = &plan.settings;
        let spec = NodeSpec::new(&settings.rid.to_string(), settings.cores)
            .with_lease(settings.lease_duration, settings.lease_renew_interval);
        let latest: Rc<RefCell<Latest>> = Rc::default();
        let slot = latest.clone();
        let ix = self.add_node(spec, move |start| {
            let seed = start.seed;
            let plan = describe(start.life).plan(|| seed)?;
            let life = start.life;
            let (built, node, cores) = build(plan, start)?;
            let before = slot.replace(Latest { life, node: Some(node), cores });
            drop(before);
            Ok(built)
        });
        SimNode { ix, latest }
    }

    /// Runs until these nodes are up.
    ///
    /// # Panics
    /// When they are not within a minute of virtual time.
    pub fn run_until_up(&mut self, nodes: &[&SimNode]) {
        let limit = self.now() + Duration::from_secs(60);
        while !nodes.iter().all(|n| self.is_up(n.ix)) {
            assert!(self.now() < limit, "the nodes did not start within a minute");
            self.run_for(Duration::from_millis(10));
        }
    }
}

/// A lifecycle, its handle and its cores.
type BuiltNode = (Built<Mail>, Node, Vec<Weak<RefCell<Stage>>>);

fn build(plan: Plan, start: NodeStart<Mail>) -> Result<BuiltNode, Error> {
    let Plan { settings, registry, .. } = plan;
    let started = start.started.ok_or_else(|| Error::internal("the node has no lease"))?;
    let control =
        start.lease_control.ok_or_else(|| Error::internal("the node has no lease thread"))?;
    let endpoint = start.spec.endpoint;
    let mut seed = [0; 32];
    for (part, n) in seed.chunks_mut(8).zip(1..) {
        part.copy_from_slice(&start.seed.wrapping_mul(n).to_be_bytes());
    }
    let mut key_id = [0; 16];
    key_id.copy_from_slice(&seed[..16]);
    let parts = parts(&settings, &registry, &started, &endpoint, key_id, seed)?;
    let _ = control.send(LeaseControl::Publish(Box::new(parts.descriptor)));
    let cores = settings.cores;
    let poster = start.poster;
    let process = ProcessIdentity { pid: 0, start_time_ticks: 0, boot_id: [0; 16] };
    let region = region(&settings, &parts.identity, Place::Private, process, start.time.now())?;
    let shared = Shared::new(settings, parts.identity, registry, poster.clone(), region);
    let shared = Arc::new(shared);
    let mut generations = started.generations;
    let share = generations.len() / u64::from(cores);
    let mut peers = Some(parts.peers);
    let stages: Vec<Rc<RefCell<Stage>>> = (0..cores)
        .map(|_| {
            let block = generations.split_front(share);
            let description = Box::new((shared.clone(), peers.take(), block));
            Rc::new(RefCell::new(Stage::Described(Some(description))))
        })
        .collect();
    let handles = stages.iter().map(Rc::downgrade).collect();
    let built =
        stages.into_iter().map(|s| Box::new(NodeCore(s)) as Box<dyn SimCore<Mail>>).collect();
    let tell = poster.clone();
    let reports = Box::new(move |report| {
        if let Some(mail) = crate::node::simulated::report_mail(&report) {
            (0..cores).for_each(|core| tell.post(core, mail(&report)));
        }
    });
    let end = SimEnd { poster, cores, control, time: start.time };
    let node = Node::new(shared, Box::new(end));
    Ok((Built::new(built).with_reports(reports), node, handles))
}

type Description = (Arc<Shared>, Option<Peers>, Block);

/// A core of a world. The world owns it; its node's handle may look at it.
struct NodeCore(Rc<RefCell<Stage>>);

/// How far a core is; it is made in its first round, because it draws from its door.
enum Stage {
    Described(Option<Box<Description>>),
    Running(Box<Core<SimEnv<Mail>>>),
    Ended,
}

impl Stage {
    fn held(&self) -> Vec<(&'static str, u64)> {
        match self {
            Self::Running(core) => core.held(),
            Self::Described(_) | Self::Ended => Vec::new(),
        }
    }

    fn run_once(&mut self, env: &mut SimEnv<Mail>, park_until: Nanos) -> Nanos {
        if let Self::Described(description) = self {
            let Some((shared, peers, block)) = description.take().map(|d| *d) else {
                return Nanos::MAX;
            };
            *self = Self::Running(Box::new(Core::new(shared, env, peers, block)));
        }
        let Self::Running(core) = self else { return Nanos::MAX };
        core.run_once(env, park_until).unwrap_or_else(|| {
            *self = Self::Ended;
            Nanos::MAX
        })
    }
}

impl SimCore<Mail> for NodeCore {
    fn run_once(&mut self, env: &mut SimEnv<Mail>, park_until: Nanos) -> Nanos {
        self.0.borrow_mut().run_once(env, park_until)
    }

    fn has_ended(&self) -> bool {
        matches!(*self.0.borrow(), Stage::Ended)
    }
}

/// Ends a node of a world.
struct SimEnd {
    poster: Arc<dyn Post<Mail>>,
    cores: u16,
    control: flume::Sender<LeaseControl>,
    time: super::SimTime,
}

impl End for SimEnd {
    fn finish(&self) -> Taken<()> {
        (0..self.cores).for_each(|core| self.poster.post(core, Mail::Stop));
        let deadline = self.time.now() + RELEASE_TIME;
        let _ = self.control.send(LeaseControl::Release { deadline });
        let (settler, taken) = oneshot();
        settler.settle(());
        taken
    }
}
