#![forbid(unsafe_code)]
//! The composition root: the builder, the handles, and the cores that carry effects out.

mod builder;
mod core;
mod counters;
mod handles;
mod oneshot;
mod operation;
#[doc(hidden)] // for the suite every driver runs; a program has no use for it
pub mod real;
mod settings;
mod start;
pub(crate) mod store_threads;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

pub use builder::NodeBuilder;
pub use counters::{Counter, Counters};
pub use handles::{ActorHandle, Actors, Creating, Request, Requesting, Resolver, Sending};
pub use oneshot::block_on;
pub use operation::CreateOutcome;

use crate::env::{Endpoint, Post};
use crate::error::Result;
use crate::ids::{ActorId, MeshName, NodeGeneration, NodeRid, ObjectKey, OwnerLeaseGeneration};
use crate::object::Registry;
use crate::route::RouteLifetimes;
use crate::shm::{CounterBlock, ReadWords, Region, Shard};
use crate::store::records::OwnerGuard;
use operation::Mail;
use settings::Settings;

/// What the simulated nodes are made of; the same parts as the real ones.
#[cfg(feature = "sim")]
pub(crate) mod simulated {
    pub(crate) use super::builder::Plan;
    pub(crate) use super::core::Core;
    pub(crate) use super::oneshot::{Taken, oneshot};
    #[allow(unreachable_pub)] // the name a simulated world carries
    pub use super::operation::Mail;
    pub(crate) use super::start::{parts, region, report_mail};
    pub(crate) use super::{End, Shared};
}

/// What a lifecycle of the node is known by.
pub(crate) struct Identity {
    pub(crate) node_generation: NodeGeneration,
    pub(crate) lease_generation: OwnerLeaseGeneration,
    pub(crate) owner: OwnerGuard,
    pub(crate) hash_seed: u64,
    pub(crate) endpoint: Endpoint,
}

/// What all cores and handles of a node share. Never changes, but for counters.
pub(crate) struct Shared {
    pub(crate) settings: Settings,
    pub(crate) identity: Identity,
    pub(crate) registry: Registry,
    pub(crate) poster: Arc<dyn Post<Mail>>,
    /// What each core has counted.
    counters: Vec<ReadWords>,
    /// What other processes see of the node.
    region: Mutex<Region>,
    /// The two durations in force (R0-7).
    lifetimes: Mutex<RouteLifetimes>,
    closes: Mutex<BTreeMap<&'static str, u64>>,
    tickets: AtomicU64,
}

impl Shared {
    pub(crate) fn new(
        settings: Settings,
        identity: Identity,
        registry: Registry,
        poster: Arc<dyn Post<Mail>>,
        region: Region,
    ) -> Self {
        let view = region.view();
        let counters = (0..settings.cores).filter_map(|core| view.counter_values(core)).collect();
        let lifetimes = Mutex::new(settings.lifetimes);
        Self {
            settings,
            identity,
            registry,
            poster,
            counters,
            region: Mutex::new(region),
            lifetimes,
            closes: Mutex::default(),
            tickets: AtomicU64::new(1),
        }
    }

    /// The right to write a core's part of the region.
    ///
    /// # Panics
    /// When it was taken before: each core is made once.
    pub(crate) fn take_part(&self, core: u16) -> (Shard, CounterBlock) {
        let mut region = self.region.lock().unwrap_or_else(PoisonError::into_inner);
        let part = region.take_shard(core).zip(region.take_counters(core));
        part.expect("each core is made once")
    }

    pub(crate) fn actor_key(&self, id: &ActorId) -> ObjectKey {
        ObjectKey::actor(self.identity.hash_seed, id)
    }

    /// The core of this node that owns what the node knows about the id.
    pub(crate) fn home_core(&self, key: &ObjectKey) -> u16 {
        (key.object_hash().low() % u64::from(self.settings.cores)) as u16
    }

    /// The two durations in force.
    pub(crate) fn lifetimes(&self) -> RouteLifetimes {
        *self.lifetimes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A number for a cancellable operation; never 0.
    fn ticket(&self) -> u64 {
        self.tickets.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn count_close(&self, reason: &'static str) {
        *self.closes.lock().unwrap_or_else(PoisonError::into_inner).entry(reason).or_default() += 1;
    }
}

/// A running node. Cheap to clone; all clones are the same node.
///
/// When the last clone is dropped without [`Node::shutdown`], the node stops at once: requests
/// that are pending end with `ShuttingDown`, its objects are gone and their ids stay Unavailable.
///
/// ```
/// use homing::prelude::*;
/// use homing::store::memory::MemoryStore;
///
/// #[derive(serde::Serialize, serde::Deserialize)]
/// struct Add(i64);
/// impl Message for Add { const NAME: &'static str = "counter.add"; type Reply = i64; }
///
/// #[derive(Default)]
/// struct Counter { total: i64 }
/// impl Actor for Counter {
///     const TYPE: &'static str = "counter";
///     async fn create(_: &CreateContext, _: Payload) -> Result<Self> { Ok(Self::default()) }
/// }
/// impl Handler<Add> for Counter {
///     async fn handle(&mut self, add: Add, _cx: &mut Context<'_, Self>) -> Result<i64> {
///         self.total += add.0;
///         Ok(self.total)
///     }
/// }
///
/// let node = Node::builder("game")
///     .store(MemoryStore::new())
///     .actor::<Counter>(|a| a.handles::<Add>())
///     .start()?;
/// homing::block_on(async {
///     node.actors().create::<Counter>("counter-42", ()).await?;
///     let counter = node.actor("counter-42");
///     counter.send(Add(1)).await?;
///     assert_eq!(counter.request(Add(1)).await?, 2);
///     node.shutdown(std::time::Duration::from_secs(5)).await;
///     Ok::<(), homing::Error>(())
/// })?;
/// # Ok::<(), homing::Error>(())
/// ```
#[derive(Clone)]
pub struct Node {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
    end: Box<dyn End>,
}

/// How a node's cores and threads are ended: real threads, or a simulated node's.
pub(crate) trait End: Send + Sync {
    /// Stops the cores, gives the lease back, ends the threads. Settled when all that is done; at
    /// once when it was called before.
    fn finish(&self) -> oneshot::Taken<()>;
}

impl Drop for Inner {
    fn drop(&mut self) {
        drop(self.end.finish());
    }
}

impl Node {
    /// Begins to describe a node of this mesh.
    pub fn builder(mesh: &str) -> NodeBuilder {
        NodeBuilder::new(mesh)
    }

    pub(crate) fn new(shared: Arc<Shared>, end: Box<dyn End>) -> Self {
        Self { inner: Arc::new(Inner { shared, end }) }
    }

    fn shared(&self) -> &Arc<Shared> {
        &self.inner.shared
    }

    /// An Actor by id. Only the id is kept: nothing is looked up. A bad id is told by the calls.
    #[must_use]
    pub fn actor(&self, id: impl AsRef<str>) -> ActorHandle {
        ActorHandle::new(self.shared().clone(), id.as_ref())
    }

    /// Lifecycle of Actors.
    #[must_use]
    pub fn actors(&self) -> Actors<'_> {
        Actors { shared: self.shared() }
    }

    /// Looks routes up.
    #[must_use]
    pub fn resolver(&self) -> Resolver<'_> {
        Resolver { shared: self.shared() }
    }

    /// The node's rid.
    #[must_use]
    pub fn rid(&self) -> &NodeRid {
        &self.shared().settings.rid
    }

    /// The node's mesh.
    #[must_use]
    pub fn mesh(&self) -> &MeshName {
        &self.shared().settings.mesh
    }

    /// Where other nodes dial it.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.shared().identity.endpoint
    }

    /// The sums of the node's counters. Costs the cores nothing.
    #[must_use]
    pub fn counters(&self) -> Counters {
        Counters::sum(&self.shared().counters)
    }

    /// How often streams and links were closed, by reason. The reasons are stable names.
    #[must_use]
    pub fn close_reasons(&self) -> BTreeMap<&'static str, u64> {
        self.shared().closes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Changes how long routes are cached (R2.2-5): governs entries inserted from now on.
    ///
    /// # Errors
    /// `NotConfigured` when the value breaks R0-7 with the follow duration in force.
    pub fn set_route_cache_max_age(&self, max_age: Duration) -> Result<()> {
        self.configure(|now| now.max_age = max_age)
    }

    /// Changes how long this node relays after a move (R2.5-4), and shortens cached routes that
    /// stand to it (R2.2-6).
    ///
    /// # Errors
    /// `NotConfigured` when the value breaks R0-7 with the cache age in force.
    pub fn set_message_follow_duration(&self, duration: Duration) -> Result<()> {
        self.configure(|now| now.follow_duration = duration)
    }

    fn configure(&self, change: impl FnOnce(&mut RouteLifetimes)) -> Result<()> {
        let shared = self.shared();
        let mut lifetimes = shared.lifetimes.lock().unwrap_or_else(PoisonError::into_inner);
        let mut wanted = *lifetimes;
        change(&mut wanted);
        wanted.check()?;
        *lifetimes = wanted;
        // Posted under the lock: two changes reach every core in one order.
        for core in 0..shared.settings.cores {
            shared.poster.post(core, Mail::Configure(wanted));
        }
        Ok(())
    }

    /// Ends the node in order: takes nothing in any more, lets queued work go on until the
    /// deadline, closes every object and deletes its authority, ends what is pending with
    /// `ShuttingDown`, gives the lease back.
    ///
    /// Objects that do not end in time are dropped; their ids stay Unavailable until they are
    /// released. Calls after this end with `ShuttingDown`. Calling it twice is the same as once.
    ///
    /// Cancel safety: a shutdown that has begun goes on.
    pub async fn shutdown(&self, deadline: Duration) {
        let shared = self.shared();
        let mut done = Vec::new();
        for core in 0..shared.settings.cores {
            let (slot, taken) = oneshot::oneshot();
            shared.poster.post(core, Mail::Shutdown { deadline_in: deadline, slot });
            done.push(taken);
        }
        for taken in done {
            taken.await;
        }
        self.inner.end.finish().await;
    }
}
