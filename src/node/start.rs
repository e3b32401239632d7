#![forbid(unsafe_code)]
//! Starting a node over the real machine, and ending it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{JoinHandle, ThreadId};
use std::time::Duration;

use super::builder::Plan;
use super::core::Core;
use super::oneshot::{Taken, oneshot};
use super::operation::Mail;
use super::real::{self, RealNode, RealParts};
use super::settings::Settings;
use super::store_threads::{
    LeaseControl, LeaseReport, StoreJob, spawn_lease_thread, spawn_store_thread,
};
use super::{End, Identity, Node, Shared};
use crate::env::{Endpoint, LeaseView, Post};
use crate::error::{Error, Result};
use crate::exec::cells::panic_text;
use crate::ids::{ObjectHash, ObjectKind};
use crate::layout::RegionSizes;
use crate::limits;
use crate::location::LocationStore;
use crate::object::Registry;
use crate::protocol::peer::{PeerConfig, PeerIdentity, Peers};
use crate::shm::{Place, ProcessIdentity, Region, RegionIdentity, RegionSpec};
use crate::store::leases::{Keeper, KeeperConfig, Started, StoreHealth};
use crate::store::records::NodeDescriptor;
use crate::sync::LeaseCell;
use crate::time::Nanos;
use crate::transport::listen::BoundListener;

/// How long the lease is tried to be given back.
const RELEASE_TIME: Duration = Duration::from_secs(2);

/// 64 random bits, for a rid that was left out.
pub(super) fn random_u64() -> u64 {
    real::random_words::<1>().map_or(0, |[word]| word)
}

/// The machine that keeps this node's lease.
fn keeper(settings: &Settings, random: [u64; 3]) -> Keeper {
    Keeper::new(KeeperConfig {
        rid: settings.rid.clone(),
        lease_duration: settings.lease_duration,
        renew_interval: settings.lease_renew_interval,
        store_timeout: settings.store_timeout,
        start_timeout: limits::START_TIMEOUT,
        hash_seed: random[0],
        lifecycle: u128::from(random[1]) << 64 | u128::from(random[2]),
    })
}

/// What the node says about itself in handshakes.
fn peers(
    settings: &Settings,
    started: &Started,
    endpoint: &Endpoint,
    key_id: [u8; 16],
    seed: [u8; 32],
) -> Result<Peers> {
    let config = PeerConfig {
        mesh: settings.mesh.clone(),
        identity: PeerIdentity {
            rid: settings.rid.clone(),
            node_generation: started.node_generation,
            key_id,
        },
        lease_generation: started.owner_lease_generation,
        secret: settings.secret.clone(),
        cores: settings.cores,
        max_frame_bytes: settings.max_frame_bytes,
        lane_window_bytes: settings.lane_window_bytes,
        hash_seed_check: ObjectHash::of(started.hash_seed, ObjectKind::Actor, "homing").low(),
        route_cache_max_age: settings.lifetimes.max_age,
        message_follow_duration: settings.lifetimes.follow_duration,
        advertised: Some(endpoint.to_string()),
    };
    Peers::new(config, seed)
}

/// The node's descriptor in the Store.
fn descriptor(
    settings: &Settings,
    started: &Started,
    endpoint: &Endpoint,
    key_id: [u8; 16],
    actor_types: Vec<String>,
) -> NodeDescriptor {
    let follow_ms = settings.lifetimes.follow_duration.as_millis();
    NodeDescriptor {
        rid: settings.rid.clone(),
        mesh: settings.mesh.clone(),
        endpoint: endpoint.clone(),
        node_generation: started.node_generation,
        key_id: u128::from_be_bytes(key_id),
        cores: settings.cores,
        actor_types,
        spot_types: Vec::new(),
        message_follow_duration_ms: u64::try_from(follow_ms).unwrap_or(u64::MAX),
    }
}

/// What a lifecycle is known by, from what the keeper found.
fn identity(started: &Started, endpoint: &Endpoint) -> Identity {
    Identity {
        node_generation: started.node_generation,
        lease_generation: started.owner_lease_generation,
        owner: started.owner.clone(),
        hash_seed: started.hash_seed,
        endpoint: endpoint.clone(),
    }
}

/// The node's region of shared memory, with a shard of the route cache for each core.
pub(crate) fn region(
    settings: &Settings,
    identity: &Identity,
    place: Place<'_>,
    process: ProcessIdentity,
    created_at: Nanos,
) -> Result<Region> {
    let spec = RegionSpec {
        identity: RegionIdentity {
            mesh: settings.mesh.clone(),
            rid: settings.rid.clone(),
            node_generation: identity.node_generation.get(),
            hash_seed: identity.hash_seed,
            process,
            created_at,
        },
        sizes: RegionSizes::of_node(settings.cores, settings.route_cache_capacity),
        counters: super::counters::specs(),
    };
    Ok(Region::create(&spec, place, &mut |_| ())?)
}

/// The mail that tells every core what the lease thread reported; `None` for what only the start
/// and the end wait for.
pub(crate) fn report_mail(report: &LeaseReport) -> Option<fn(&LeaseReport) -> Mail> {
    match report {
        LeaseReport::Health(StoreHealth::Up) => Some(|_| Mail::StoreRecovered),
        LeaseReport::Fenced(_) => Some(|report| match report {
            LeaseReport::Fenced(e) => Mail::Fenced(e.to_string().into()),
            _ => Mail::StoreRecovered,
        }),
        _ => None,
    }
}

/// What a lifecycle is made of beside its cores and doors.
pub(crate) struct Parts {
    pub(crate) peers: Peers,
    pub(crate) descriptor: NodeDescriptor,
    pub(crate) identity: Identity,
}

/// Makes the parts; `seed` and `key_id` are random.
pub(crate) fn parts(
    settings: &Settings,
    registry: &Registry,
    started: &Started,
    endpoint: &Endpoint,
    key_id: [u8; 16],
    seed: [u8; 32],
) -> Result<Parts> {
    Ok(Parts {
        peers: peers(settings, started, endpoint, key_id, seed)?,
        descriptor: descriptor(settings, started, endpoint, key_id, registry.names()),
        identity: identity(started, endpoint),
    })
}

type Poster = Arc<dyn Post<Mail>>;

/// The lease thread from the outside.
struct Lease {
    cell: Arc<LeaseCell>,
    control: flume::Sender<LeaseControl>,
    reports: flume::Receiver<LeaseReport>,
    /// Set once there are cores to tell.
    cores: Arc<OnceLock<(Poster, u16)>>,
}

impl Lease {
    fn start(settings: &Settings, store: Arc<dyn LocationStore>) -> Result<Self> {
        let cell = Arc::new(LeaseCell::new());
        let (control, controlled) = flume::unbounded();
        let (reported, reports) = flume::unbounded();
        let cores: Arc<OnceLock<(Poster, u16)>> = Arc::default();
        let tell = cores.clone();
        let report = Box::new(move |report: LeaseReport| {
            if let (Some(mail), Some((poster, cores))) = (report_mail(&report), tell.get()) {
                (0..*cores).for_each(|core| poster.post(core, mail(&report)));
            }
            // Whoever waited may be gone: then nobody wants to know.
            let _ = reported.send(report);
        });
        let keeper = keeper(settings, real::random_words()?);
        spawn_lease_thread(store, keeper, cell.clone(), controlled, report)?;
        Ok(Self { cell, control, reports, cores })
    }

    /// Waits for the report `pick` picks.
    fn wait<T>(&self, pick: impl Fn(LeaseReport) -> Option<Result<T>>) -> Result<T> {
        loop {
            let report = self
                .reports
                .recv()
                .map_err(|_| Error::internal("the lease thread ended without a report"))?;
            if let Some(picked) = pick(report) {
                return picked;
            }
        }
    }

    fn wait_for_start(&self) -> Result<Started> {
        self.wait(|report| match report {
            LeaseReport::Started(started) => Some(Ok(*started)),
            LeaseReport::StartFailed(e) => Some(Err(e)),
            _ => None,
        })
    }

    fn publish(&self, descriptor: NodeDescriptor) -> Result<()> {
        let _ = self.control.send(LeaseControl::Publish(Box::new(descriptor)));
        let until = real::boottime() + limits::START_TIMEOUT;
        loop {
            // The lease thread tries for as long as it lives; a start does not.
            let left = until.since(real::boottime());
            let report = self.reports.recv_timeout(left).map_err(|_| {
                Error::unavailable(format!(
                    "the Location Store did not take the node's descriptor within {:?}; check the \
                     store setting and the server behind it",
                    limits::START_TIMEOUT
                ))
            })?;
            match report {
                LeaseReport::DescriptorPublished => return Ok(()),
                LeaseReport::DescriptorRefused(e) | LeaseReport::Fenced(e) => return Err(e),
                _ => {}
            }
        }
    }

    /// Gives the lease back and waits for it, bounded.
    fn release(&self) {
        let deadline = real::boottime() + RELEASE_TIME;
        if self.control.send(LeaseControl::Release { deadline }).is_err() {
            return;
        }
        let released = self.wait(|report| match report {
            LeaseReport::Released { clean } => Some(Ok(clean)),
            _ => None,
        });
        if released != Ok(true) {
            tracing::warn!("the lease could not be given back; it runs out by itself");
        }
    }
}

/// Starts a node.
pub(super) fn start(plan: Plan) -> Result<Node> {
    let Plan { settings, store, registry } = plan;
    let store = store.ok_or_else(|| {
        Error::not_configured(
            "store is not set; give the builder a Location Store, for example \
             .store(LmdbStore::open(dir)?)",
        )
    })?;
    let lease = Lease::start(&settings, store.clone())?;
    let started = lease.wait_for_start()?;
    let lease = Arc::new(lease);
    match start_cores(settings, registry, store, &lease, &started) {
        Ok(node) => Ok(node),
        Err(e) => {
            lease.release();
            Err(e)
        }
    }
}

fn start_cores(
    settings: Settings,
    registry: Registry,
    store: Arc<dyn LocationStore>,
    lease: &Arc<Lease>,
    started: &Started,
) -> Result<Node> {
    let listener = BoundListener::bind(&settings.listen)?;
    let endpoint = settings.advertise.clone().unwrap_or_else(|| listener.local_endpoint().clone());
    let (jobs, job_queue) = flume::unbounded();
    let submit_store = Arc::new(move |core, token, op, deadline| {
        // The thread is gone only when the process ends.
        let _ = jobs.send(StoreJob { core, token, op, deadline });
    });
    let cell = lease.cell.clone();
    let read_lease = Arc::new(move || {
        let (admission_deadline, fenced) = cell.load();
        LeaseView { admission_deadline, fenced }
    });
    let real_parts = RealParts {
        cores: settings.cores,
        listener: Some(listener),
        submit_store,
        read_lease,
        idle: settings.idle,
    };
    let node: RealNode<Mail> = RealNode::new(real_parts)?;
    spawn_store_thread(store, job_queue, node.deliver_store.clone())?;

    let [a, b, seed @ ..] = real::random_words::<6>()?;
    let key_id = (u128::from(a) << 64 | u128::from(b)).to_be_bytes();
    let mut seed_bytes = [0; 32];
    seed_bytes.chunks_mut(8).zip(seed).for_each(|(c, w)| c.copy_from_slice(&w.to_be_bytes()));
    let parts = parts(&settings, &registry, started, &endpoint, key_id, seed_bytes)?;
    let mut peers = Some(parts.peers);
    let cores = settings.cores;
    let poster = node.poster.clone();
    let process = ProcessIdentity::own()
        .map_err(|e| Error::internal(format!("this process cannot be looked up: {e}")))?;
    let region = region(&settings, &parts.identity, Place::Memfd, process, real::boottime())?;
    let shared = Shared::new(settings, parts.identity, registry, poster.clone(), region);
    let shared = Arc::new(shared);
    let _ = lease.cores.set((poster.clone(), cores));

    let mut threads = Threads { shared: shared.clone(), cores: Vec::new(), lease: lease.clone() };
    let mut generations = started.generations;
    let share = generations.len() / u64::from(cores);
    for env in node.envs {
        let index = threads.cores.len();
        let block = generations.split_front(share);
        let (shared, peers) = (shared.clone(), peers.take());
        let pin = shared.settings.pin.then_some(index);
        let run = move || run_core(shared, env, peers, block);
        match real::spawn_core(&format!("homing-core-{index}"), pin, run) {
            Ok(thread) => threads.cores.push(thread),
            Err(e) => {
                threads.stop_cores();
                return Err(e);
            }
        }
    }
    if let Err(e) = lease.publish(parts.descriptor) {
        threads.stop_cores();
        return Err(e);
    }
    Ok(Node::new(shared, Box::new(RealEnd(Mutex::new(Some(threads))))))
}

/// The body of a core's thread.
fn run_core(
    shared: Arc<Shared>,
    mut env: real::RealEnv<Mail>,
    peers: Option<Peers>,
    generations: crate::store::records::Block,
) {
    let for_others = shared.clone();
    let run = move || {
        let mut core = Core::new(shared, &mut env, peers, generations);
        let mut park_until = Nanos::ZERO;
        while let Some(next) = core.run_once(&mut env, park_until) {
            park_until = next;
        }
    };
    // A panic here is a bug of ours, not of a handler. The node cannot go on without a core.
    if let Err(panic) = catch_unwind(AssertUnwindSafe(run)) {
        let panic = panic_text(&*panic);
        tracing::error!(panic, "a core failed; the node stops");
        for core in 0..for_others.settings.cores {
            for_others.poster.post(core, Mail::Stop);
        }
    }
}

/// A running node's threads. The Store thread is not among them: it ends by itself when the cores
/// are gone, and nobody waits for a provider that hangs.
struct Threads {
    shared: Arc<Shared>,
    cores: Vec<JoinHandle<()>>,
    lease: Arc<Lease>,
}

impl Threads {
    fn stop_cores(&mut self) {
        for core in 0..self.shared.settings.cores {
            self.shared.poster.post(core, Mail::Stop);
        }
        let this: ThreadId = std::thread::current().id();
        for thread in self.cores.drain(..).filter(|t| t.thread().id() != this) {
            // A core that panicked has said so.
            let _ = thread.join();
        }
    }
}

/// Ends the threads, once.
struct RealEnd(Mutex<Option<Threads>>);

impl End for RealEnd {
    fn finish(&self) -> Taken<()> {
        let (settler, taken) = oneshot();
        let threads = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(mut threads) = threads {
            let end = move || {
                threads.stop_cores();
                threads.lease.release();
                settler.settle(());
            };
            // Joined on a thread of its own: a runtime's thread, or a core's, must not wait. When
            // there is no thread to be had, the settler is dropped, and the cores end by the mail
            // they have.
            if let Err(e) = real::spawn_core("homing-end", None, end) {
                tracing::warn!(error = %e, "the node's threads are not waited for");
            }
        }
        taken
    }
}
