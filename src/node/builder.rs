#![forbid(unsafe_code)]
//! The builder: every setting of R0-6, checked as a whole before anything is opened.

use std::sync::Arc;
use std::time::Duration;

use super::Node;
use super::settings::Settings;
use super::start;
use crate::env::Endpoint;
use crate::error::{Error, Result};
use crate::exec::idle::Idle;
use crate::ids::{MeshName, NodeRid};
use crate::location::LocationStore;
use crate::object::{Actor, ActorType, Registry};
use crate::protocol::peer::MeshSecret;
use crate::transport::kind::DriverKind;

/// Describes a node; [`NodeBuilder::start`] starts it.
///
/// A bad value is told by `start`, which then has opened nothing. Every duration has a default
/// (R0-6).
///
/// ```
/// use homing::prelude::*;
/// use homing::store::memory::MemoryStore;
/// let node = Node::builder("game")
///     .rid("node-a")
///     .listen("tcp://127.0.0.1:0")
///     .store(MemoryStore::new())
///     .start()?;
/// assert_eq!(node.rid().to_string(), "node-a");
/// let refused = Node::builder("game").listen("tcp://0.0.0.0:0").store(MemoryStore::new()).start();
/// assert!(refused.err().unwrap().text().contains("mesh secret"));
/// # Ok::<(), homing::Error>(())
/// ```
#[must_use = "a node runs when start() was called"]
pub struct NodeBuilder {
    mesh: Result<MeshName>,
    rid: Option<Result<NodeRid>>,
    listen: Result<Endpoint>,
    change: Vec<Change>,
    store: Option<Arc<dyn LocationStore>>,
    registry: Registry,
    errors: Vec<Error>,
}

/// One setting that was named, applied when all are known.
type Change = Box<dyn FnOnce(&mut Settings) + Send>;

/// A builder whose values have been checked.
pub(crate) struct Plan {
    pub(crate) settings: Settings,
    pub(crate) store: Option<Arc<dyn LocationStore>>,
    pub(crate) registry: Registry,
}

impl NodeBuilder {
    pub(crate) fn new(mesh: &str) -> Self {
        Self {
            mesh: MeshName::new(mesh),
            rid: None,
            listen: "tcp://127.0.0.1:0".parse(),
            change: Vec::new(),
            store: None,
            registry: Registry::default(),
            errors: Vec::new(),
        }
    }

    fn set(mut self, change: impl FnOnce(&mut Settings) + Send + 'static) -> Self {
        self.change.push(Box::new(change));
        self
    }

    fn endpoint(mut self, setting: &str, text: &str, set: fn(&mut Settings, Endpoint)) -> Self {
        match text.parse::<Endpoint>() {
            Ok(endpoint) => self.set(move |s| set(s, endpoint)),
            Err(e) => {
                self.errors.push(Error::not_configured(format!("{setting}: {}", e.text())));
                self
            }
        }
    }

    /// The node's routing id, 1 to 255 bytes. Two live nodes never share one. Generated when left
    /// out.
    pub fn rid(mut self, rid: impl AsRef<[u8]>) -> Self {
        self.rid = Some(NodeRid::new(rid));
        self
    }

    /// Where the node listens: `tcp://address:port` (port 0 takes a free one) or `unix:///path`.
    /// `tcp://127.0.0.1:0` when left out.
    pub fn listen(mut self, endpoint: &str) -> Self {
        self.listen = endpoint.parse();
        self
    }

    /// Where others dial this node, when that is not where it listens (an address of a proxy, or
    /// of one interface of many).
    pub fn advertise(self, endpoint: &str) -> Self {
        self.endpoint("advertise", endpoint, |s, e| s.advertise = Some(e))
    }

    /// A peer to connect to from the start. It is an intent only: no evidence for a route until a
    /// descriptor in the Store confirms who answers there (R2.3-1). May be called many times;
    /// naming an endpoint twice is the same as once. [`Node::peers`] changes them at run time.
    pub fn peer(self, endpoint: &str) -> Self {
        self.endpoint("peer", endpoint, |s, e| {
            if !s.peers.contains(&e) {
                s.peers.push(e);
            }
        })
    }

    /// The secret all nodes of the mesh share (R2.3-5). Without it a node uses loopback and Unix
    /// sockets only.
    pub fn mesh_secret(mut self, secret: impl AsRef<[u8]>) -> Self {
        match MeshSecret::new(secret) {
            Ok(secret) => self.set(move |s| s.secret = Some(secret)),
            Err(e) => {
                self.errors.push(e);
                self
            }
        }
    }

    /// The Location Store. Required.
    pub fn store(mut self, store: impl LocationStore) -> Self {
        self.store = Some(Arc::new(store));
        self
    }

    /// Hosts an Actor type.
    pub fn actor<A: Actor>(mut self, describe: impl FnOnce(ActorType<A>) -> ActorType<A>) -> Self {
        self.errors.extend(self.registry.add(describe(ActorType::new())));
        self
    }

    /// Core threads, 1 to 256. 1 when left out.
    pub fn cores(self, cores: u16) -> Self {
        self.set(move |s| s.cores = cores)
    }

    /// Binds core thread n to processor n.
    pub fn pin_cores(self, pin: bool) -> Self {
        self.set(move |s| s.pin = pin)
    }

    /// What a core does when it has nothing to do.
    pub fn idle(self, idle: Idle) -> Self {
        self.set(move |s| s.idle = idle)
    }

    /// What moves the node's bytes. [`DriverKind::Auto`] when left out; [`Node::driver`] tells which
    /// one it came to.
    ///
    /// [`NodeBuilder::start`] answers `NotConfigured` when this names [`DriverKind::Uring`] and the
    /// kernel refuses io_uring.
    pub fn driver(self, driver: DriverKind) -> Self {
        self.set(move |s| s.driver = driver)
    }

    /// How long a route is cached; 0 for not at all. 15 s when left out (R2.2-2).
    pub fn route_cache_max_age(self, max_age: Duration) -> Self {
        self.set(move |s| s.lifetimes.max_age = max_age)
    }

    /// Routes the node caches. 65,536 when left out.
    pub fn route_cache_capacity(self, routes: usize) -> Self {
        self.set(move |s| s.route_cache_capacity = routes)
    }

    /// How long a previous owner relays after a move; 0 for not at all. 30 s when left out.
    pub fn message_follow_duration(self, duration: Duration) -> Self {
        self.set(move |s| s.lifetimes.follow_duration = duration)
    }

    /// Length of the owner lease. 10 s when left out.
    pub fn lease_duration(self, duration: Duration) -> Self {
        self.set(move |s| s.lease_duration = duration)
    }

    /// How often the owner lease is renewed. 3 s when left out.
    pub fn lease_renew_interval(self, interval: Duration) -> Self {
        self.set(move |s| s.lease_renew_interval = interval)
    }

    /// How long a request waits for its reply. 5 s when left out.
    pub fn request_timeout(self, timeout: Duration) -> Self {
        self.set(move |s| s.request_timeout = timeout)
    }

    /// How long a send waits for its admission. 5 s when left out.
    pub fn send_timeout(self, timeout: Duration) -> Self {
        self.set(move |s| s.send_timeout = timeout)
    }

    /// How long a creation may take. 10 s when left out.
    pub fn create_timeout(self, timeout: Duration) -> Self {
        self.set(move |s| s.create_timeout = timeout)
    }

    /// After what time a Store call counts as failed. 2 s when left out.
    pub fn store_timeout(self, timeout: Duration) -> Self {
        self.set(move |s| s.store_timeout = timeout)
    }

    /// How often a lane is probed. 5 s when left out.
    pub fn liveness_interval(self, interval: Duration) -> Self {
        self.set(move |s| s.liveness_interval = interval)
    }

    /// After what silence a peer is lost. 15 s when left out.
    pub fn liveness_timeout(self, timeout: Duration) -> Self {
        self.set(move |s| s.liveness_timeout = timeout)
    }

    /// The largest frame, 64 KiB to 1 GiB. 16 MiB when left out. A link uses the smaller value of
    /// its two nodes.
    pub fn max_frame_bytes(self, bytes: u32) -> Self {
        self.set(move |s| s.max_frame_bytes = bytes)
    }

    /// Bytes of credit this node grants per lane of a link. 1 MiB when left out; at least 64 KiB.
    pub fn lane_window_bytes(self, bytes: u32) -> Self {
        self.set(move |s| s.lane_window_bytes = bytes)
    }

    /// Bytes a lane may have that its peer has not read: what waits in this process, not in the
    /// kernel. A peer that lets it come to more is cut off (`peer_lane_unsent`). 256 MiB, or
    /// two largest frames if that is more, when left out; never less than two largest frames. While more than a lane window is unsent, the peer gets no
    /// credit back on the lane, so one that keeps the rules rarely comes near.
    pub fn lane_unsent_bytes(self, bytes: u64) -> Self {
        self.set(move |s| s.lane_unsent_bytes = Some(bytes))
    }

    /// How long a handshake may take, from dial or accept to the last lane, whatever trickles in
    /// meanwhile. 5 s when left out.
    pub fn handshake_timeout(self, timeout: Duration) -> Self {
        self.set(move |s| s.handshake_timeout = timeout)
    }

    /// Accepted streams that may be without a proof of the mesh secret at once; then the oldest is
    /// closed. 1024 when left out, and never more than a quarter of the descriptors the process may
    /// open.
    pub fn max_half_open_handshakes(self, streams: usize) -> Self {
        self.set(move |s| s.half_open_limit = streams)
    }

    /// Encodes and decodes every message and reply within the node too, as if its objects were
    /// elsewhere. For tests: a message whose serde form does not say everything shows here.
    pub fn messages_through_bytes(self, all: bool) -> Self {
        self.set(move |s| s.messages_through_bytes = all)
    }

    /// Checks everything that needs nothing opened.
    pub(crate) fn plan(self, generated: impl FnOnce() -> u64) -> Result<Plan> {
        let named =
            |setting: &str, e: Error| Error::not_configured(format!("{setting}: {}", e.text()));
        let mesh = self.mesh.map_err(|e| named("mesh", e))?;
        let rid = match self.rid {
            Some(rid) => rid.map_err(|e| named("rid", e))?,
            None => NodeRid::new(format!("node-{:016x}", generated()))?,
        };
        let listen = self.listen.map_err(|e| named("listen", e))?;
        let mut settings = Settings::new(mesh, rid, listen);
        for change in self.change {
            change(&mut settings);
        }
        if let Some(error) = self.errors.into_iter().next() {
            return Err(error);
        }
        settings.check()?;
        Ok(Plan { settings, store: self.store, registry: self.registry })
    }

    /// Starts the node: takes the lease, binds the endpoint, starts the cores, publishes the
    /// descriptor. Blocks until the node is Ready.
    ///
    /// # Errors
    /// `NotConfigured`, with one sentence that names the setting, the value and the rule (a rid
    /// that a live node has is one of these); `Unavailable` when the Store does not answer;
    /// `InternalFailure` when the system gives no thread. Nothing is left half started.
    pub fn start(self) -> Result<Node> {
        start::start(self.plan(start::random_u64)?)
    }
}
