#![forbid(unsafe_code)]
//! What a test tells a child process: one JSON line per command, one per answer.

use std::time::Duration;

use homing::ids::{ActorId, ActorRef, MeshName, NodeRid, ObjectGeneration};
use homing::{ConfiguredPeer, CreateOutcome, Error, ErrorKind, NodeBuilder, Resolution};
use serde::{Deserialize, Serialize};

use super::probe::{Ask, Explode, Fail, Fill, Hold, Make, Note, Other, Probe, RAW, Show};

/// Set in the environment when nodes encode the messages they keep, too.
pub(crate) const THROUGH_BYTES: &str = "HOMING_TEST_THROUGH_BYTES";

/// Runs all nodes of the tests on this driver (`epoll`, `uring`), whatever a test asks for.
const DRIVER: &str = "HOMING_TEST_DRIVER";

/// The settings of a node of the tests. What is `None` keeps its default.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Setup {
    pub(crate) mesh: String,
    pub(crate) rid: String,
    pub(crate) dir: String,
    pub(crate) listen: Option<String>,
    pub(crate) advertise: Option<String>,
    pub(crate) peers: Vec<String>,
    pub(crate) secret: Option<String>,
    pub(crate) cores: Option<u16>,
    pub(crate) driver: Option<String>,
    pub(crate) lease_ms: Option<(u64, u64)>,
    pub(crate) liveness_ms: Option<(u64, u64)>,
    pub(crate) cache_ms: Option<u64>,
    pub(crate) follow_ms: Option<u64>,
    pub(crate) request_ms: Option<u64>,
    pub(crate) send_ms: Option<u64>,
    pub(crate) create_ms: Option<u64>,
    pub(crate) store_ms: Option<u64>,
    pub(crate) max_frame: Option<u32>,
    pub(crate) handshake_ms: Option<u64>,
    pub(crate) half_open: Option<usize>,
    pub(crate) unsent: Option<u64>,
    pub(crate) window: Option<u32>,
    /// The Store fails after so many commits.
    pub(crate) fail_after_commits: Option<usize>,
    /// Hosts no `Probe`.
    pub(crate) hosts_nothing: bool,
    pub(crate) hosts_other: bool,
}

impl Setup {
    /// The builder of such a node, all but its store.
    pub(crate) fn builder(&self) -> NodeBuilder {
        let ms = Duration::from_millis;
        let through_bytes = std::env::var_os(THROUGH_BYTES).is_some();
        let mut b =
            homing::Node::builder(&self.mesh).rid(&self.rid).messages_through_bytes(through_bytes);
        // The one place where the tests choose a driver; children inherit the variable.
        if let Some(name) = std::env::var(DRIVER).ok().or(self.driver.clone()) {
            b = b.driver(name.parse().expect("the test, or HOMING_TEST_DRIVER, names a driver"));
        }
        if let Some(listen) = &self.listen {
            b = b.listen(listen);
        }
        if let Some(advertise) = &self.advertise {
            b = b.advertise(advertise);
        }
        for peer in &self.peers {
            b = b.peer(peer);
        }
        if let Some(secret) = &self.secret {
            b = b.mesh_secret(secret);
        }
        if let Some(cores) = self.cores {
            b = b.cores(cores);
        }
        if let Some((length, renew)) = self.lease_ms {
            b = b.lease_duration(ms(length)).lease_renew_interval(ms(renew));
        }
        if let Some((probe, lost)) = self.liveness_ms {
            b = b.liveness_interval(ms(probe)).liveness_timeout(ms(lost));
        }
        type Set = fn(NodeBuilder, Duration) -> NodeBuilder;
        let times: [(Option<u64>, Set); 7] = [
            (self.cache_ms, NodeBuilder::route_cache_max_age),
            (self.follow_ms, NodeBuilder::message_follow_duration),
            (self.request_ms, NodeBuilder::request_timeout),
            (self.send_ms, NodeBuilder::send_timeout),
            (self.create_ms, NodeBuilder::create_timeout),
            (self.store_ms, NodeBuilder::store_timeout),
            (self.handshake_ms, NodeBuilder::handshake_timeout),
        ];
        for (value, set) in times {
            if let Some(value) = value {
                b = set(b, ms(value));
            }
        }
        if let Some(bytes) = self.max_frame {
            b = b.max_frame_bytes(bytes);
        }
        if let Some(streams) = self.half_open {
            b = b.max_half_open_handshakes(streams);
        }
        if let Some(bytes) = self.unsent {
            b = b.lane_unsent_bytes(bytes);
        }
        if let Some(bytes) = self.window {
            b = b.lane_window_bytes(bytes);
        }
        if !self.hosts_nothing {
            b = b.actor::<Probe>(|a| {
                a.handles::<Note>()
                    .handles::<Show>()
                    .handles::<Fail>()
                    .handles::<Explode>()
                    .handles::<Hold>()
                    .handles::<Ask>()
                    .handles::<Fill>()
                    .handles_packet(RAW)
            });
        }
        if self.hosts_other {
            b = b.actor::<Other>(|a| a);
        }
        b
    }
}

/// An Actor's ref as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ref {
    pub(crate) id: String,
    pub(crate) generation: u64,
    pub(crate) mesh: String,
    pub(crate) rid: String,
}

impl From<ActorRef> for Ref {
    fn from(r: ActorRef) -> Self {
        Self {
            id: r.id.to_string(),
            generation: r.generation.get(),
            mesh: r.mesh.to_string(),
            rid: r.rid.to_string(),
        }
    }
}

impl Ref {
    pub(crate) fn actor_ref(&self) -> ActorRef {
        ActorRef {
            id: ActorId::new(&self.id).unwrap(),
            generation: ObjectGeneration::new(self.generation).unwrap(),
            mesh: MeshName::new(&self.mesh).unwrap(),
            rid: NodeRid::parse(&self.rid).unwrap(),
        }
    }
}

/// What a creation came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Made {
    Created(Ref),
    Existing(Ref),
    Rejected(String),
}

impl Made {
    pub(crate) fn of(outcome: CreateOutcome) -> Self {
        match outcome {
            CreateOutcome::Created(r) => Self::Created(r.into()),
            CreateOutcome::Existing(r) => Self::Existing(r.into()),
            CreateOutcome::Rejected(text) => Self::Rejected(text),
        }
    }

    #[track_caller]
    pub(crate) fn standing(&self) -> Ref {
        match self {
            Self::Created(r) | Self::Existing(r) => r.clone(),
            Self::Rejected(text) => panic!("rejected: {text}"),
        }
    }
}

/// The four answers of resolving, without what they carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Sight {
    ReadyRoute,
    Missing,
    Unavailable,
    StoreFailure,
}

impl Sight {
    pub(crate) fn of(resolution: &Resolution) -> Self {
        match resolution {
            Resolution::ReadyRoute(_) => Self::ReadyRoute,
            Resolution::Missing => Self::Missing,
            Resolution::Unavailable => Self::Unavailable,
            Resolution::StoreFailure(_) => Self::StoreFailure,
        }
    }
}

/// The fences of a route, as numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Fence {
    pub(crate) rid: String,
    pub(crate) object: u64,
    pub(crate) node: u64,
    pub(crate) tenure: u64,
    pub(crate) lease: u64,
}

/// What a child is to do with its configured endpoints.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum OnPeers {
    Add(String),
    Replace(String, String),
    Remove(String),
}

/// A configured endpoint as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Configured {
    pub(crate) endpoint: String,
    pub(crate) moving_to: Option<String>,
    pub(crate) rid: Option<String>,
    pub(crate) state: String,
    pub(crate) last_failure: String,
}

impl From<ConfiguredPeer> for Configured {
    fn from(peer: ConfiguredPeer) -> Self {
        Self {
            endpoint: peer.endpoint.to_string(),
            moving_to: peer.moving_to.map(|to| to.to_string()),
            rid: peer.rid.map(|rid| rid.to_string()),
            state: format!("{:?}", peer.state),
            last_failure: peer.last_failure,
        }
    }
}

/// A command to a child.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Command {
    /// The connection on which the child's life depends.
    Attach,
    Start(Setup),
    /// Tries to start, and says what the attempt left behind.
    StartInVain(Setup),
    Create {
        id: String,
        make: Option<Make>,
        type_name: String,
        on: Option<String>,
        timeout_ms: Option<u64>,
    },
    /// As many creations of one id at once as `times` says.
    CreateAtOnce {
        id: String,
        make: Make,
        times: usize,
    },
    Note {
        id: String,
        number: u64,
        is_request: bool,
    },
    /// So many requests, one after the other; answers how many were answered.
    Burst {
        id: String,
        count: u64,
    },
    Fence {
        id: String,
    },
    OnPeers(OnPeers),
    Peers,
    Show {
        id: String,
    },
    Hold(String, Hold),
    Ask(String, Ask),
    Find {
        id: String,
    },
    Resolve {
        id: String,
    },
    Destroy(Ref),
    Counter {
        label: String,
    },
    Closes,
    /// Actor rows read so far.
    RowReads,
    OpenGate {
        name: String,
    },
    WaitingAt {
        name: String,
    },
    Shutdown {
        deadline_ms: u64,
    },
    /// Arms failpoints, lets go what waits at one, says whether something waits or how often it
    /// was reached.
    #[cfg(feature = "failpoints")]
    Arm(String),
    #[cfg(feature = "failpoints")]
    LetGo(String),
    #[cfg(feature = "failpoints")]
    WaitsAt(String),
    #[cfg(feature = "failpoints")]
    Hits(String),
    /// Lets every call of the child's Store fail, or none.
    FailStore(bool),
    /// Seconds since the epoch, by the wall clock that this process sees.
    WallClock,
}

/// An error as JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Said {
    pub(crate) kind: u8,
    pub(crate) text: String,
}

impl From<Error> for Said {
    fn from(e: Error) -> Self {
        Self { kind: e.kind() as u8, text: e.text().to_owned() }
    }
}

impl From<Said> for Error {
    fn from(said: Said) -> Self {
        Self::new(ErrorKind::from_wire(said.kind).unwrap(), said.text)
    }
}

/// What a start in vain said, and which descriptors and threads it left.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Vain {
    pub(crate) error: Said,
    pub(crate) left: Vec<String>,
}
