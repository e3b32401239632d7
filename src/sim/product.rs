#![forbid(unsafe_code)]
//! The product's own nodes in a world: the same builder, the same cores, another door.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::{Built, NodeIx, NodeSpec, NodeStart, SimCore, SimEnv, SimWorld};
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
/// let a = world.node(|| Node::builder("game").rid("a").cores(2));
/// let b = world.node(|| Node::builder("game").rid("b"));
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
    handle: Rc<RefCell<Option<Node>>>,
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
        self.handle.borrow().clone()
    }
}

impl SimWorld<Mail> {
    /// Adds a node as its builder describes it and starts it. The world takes the place of the
    /// builder's Store, endpoint and threads. `describe` is called for every lifecycle.
    ///
    /// # Panics
    /// When the builder refuses its settings.
    pub fn node(&mut self, mut describe: impl FnMut() -> NodeBuilder + 'static) -> SimNode {
        let plan = describe().plan(|| 0).expect("the builder's settings are good");
        let settings = &plan.settings;
        let spec = NodeSpec::new(&settings.rid.to_string(), settings.cores)
            .with_lease(settings.lease_duration, settings.lease_renew_interval);
        let handle: Rc<RefCell<Option<Node>>> = Rc::default();
        let slot = handle.clone();
        let ix = self.add_node(spec, move |start| {
            let seed = start.seed;
            let plan = describe().plan(|| seed)?;
            let (built, node) = build(plan, start)?;
            *slot.borrow_mut() = Some(node);
            Ok(built)
        });
        SimNode { ix, handle }
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

fn build(plan: Plan, start: NodeStart<Mail>) -> Result<(Built<Mail>, Node), Error> {
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
    let built = (0..cores)
        .map(|_| {
            let block = generations.split_front(share);
            let core = NodeCore::Described(Some(Box::new((shared.clone(), peers.take(), block))));
            Box::new(core) as Box<dyn SimCore<Mail>>
        })
        .collect();
    let tell = poster.clone();
    let reports = Box::new(move |report| {
        if let Some(mail) = crate::node::simulated::report_mail(&report) {
            (0..cores).for_each(|core| tell.post(core, mail(&report)));
        }
    });
    let end = SimEnd { poster, cores, control, time: start.time };
    Ok((Built::new(built).with_reports(reports), Node::new(shared, Box::new(end))))
}

type Description = (Arc<Shared>, Option<Peers>, Block);

/// A core in a world; it is made in its first round, because it draws from its door.
enum NodeCore {
    Described(Option<Box<Description>>),
    Running(Box<Core<SimEnv<Mail>>>),
    Ended,
}

impl SimCore<Mail> for NodeCore {
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

    fn has_ended(&self) -> bool {
        matches!(self, Self::Ended)
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
