#![forbid(unsafe_code)]
//! What goes into and comes out of [`Peers`](super::Peers): settings, events, effects, and the
//! closed set of reasons for which a stream or a link is closed.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::env::{CloseReason, ConnId, Endpoint};
use crate::error::Error;
use crate::ids::{MeshName, NodeGeneration, NodeRid, OwnerLeaseGeneration};
use crate::limits::CACHE_FOLLOW_GAP;
use crate::time::Nanos;

/// The secret all nodes of a mesh share (R2.3-5). Never shown.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct MeshSecret(Arc<[u8]>);

impl MeshSecret {
    /// Takes the secret's bytes.
    ///
    /// # Errors
    /// `NotConfigured` when there are none: an empty secret would be no secret.
    pub fn new(bytes: impl AsRef<[u8]>) -> Result<Self, Error> {
        let bytes = bytes.as_ref();
        if bytes.is_empty() {
            return Err(Error::not_configured(
                "mesh secret is empty; give at least one byte (32 random bytes are a good \
                 choice), or leave the setting out for a mesh on this machine only",
            ));
        }
        Ok(Self(Arc::from(bytes)))
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for MeshSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MeshSecret(..)")
    }
}

/// Checks that a node without a mesh secret keeps to this machine (R2.3-5). `setting` is the name
/// of the setting the endpoint came from.
///
/// # Errors
/// `NotConfigured` for an endpoint others can reach when there is no secret.
pub fn check_endpoint_secrecy(
    setting: &str,
    endpoint: &Endpoint,
    secret: Option<&MeshSecret>,
) -> Result<(), Error> {
    if secret.is_some() || endpoint.is_local() {
        return Ok(());
    }
    Err(Error::not_configured(format!(
        "{setting} {endpoint} can be reached from other machines, but no mesh secret is set; a \
         node without one uses loopback and Unix sockets only: set the mesh secret on every node, \
         or use for example tcp://127.0.0.1:7000"
    )))
}

/// What a lifecycle of a node is known by: the three values a descriptor in the Location Store
/// states and a peer must present (R2.3-2).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerIdentity {
    /// The node.
    pub rid: NodeRid,
    /// Its lifecycle.
    pub node_generation: NodeGeneration,
    /// The security identity: random, made anew for every lifecycle.
    pub key_id: [u8; 16],
}

impl fmt::Display for PeerIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {} (generation {}, key ", self.rid, self.node_generation)?;
        self.key_id[..4].iter().try_for_each(|b| write!(f, "{b:02x}"))?;
        f.write_str("…)")
    }
}

/// A node as the Location Store describes it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PeerDescriptor {
    /// Who must answer there.
    pub identity: PeerIdentity,
    /// Where.
    pub endpoint: Endpoint,
}

/// What this node says about itself in every handshake.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PeerConfig {
    /// The mesh. Peers of another are refused.
    pub mesh: MeshName,
    /// This node, this lifecycle, its key id.
    pub identity: PeerIdentity,
    /// The lease generation of this lifecycle.
    pub lease_generation: OwnerLeaseGeneration,
    /// The mesh secret. Without one only local endpoints are dialled.
    pub secret: Option<MeshSecret>,
    /// Cores, 1 to [`crate::limits::MAX_CORES`].
    pub cores: u16,
    /// Largest frame this node takes.
    pub max_frame_bytes: u32,
    /// Credit this node grants per lane.
    pub lane_window_bytes: u32,
    /// Derived from the hash seed of the mesh's Store. Peers with another are refused, because
    /// they would look for objects on other lanes and cores.
    pub hash_seed_check: u64,
    /// How long this node keeps routes (R0-7).
    pub route_cache_max_age: Duration,
    /// How long this node relays after a move (R0-7).
    pub message_follow_duration: Duration,
    /// Where others can dial this node, as text, if it says so.
    pub advertised: Option<String>,
    /// How long a handshake may take, from dial or accept to the last lane.
    pub handshake_timeout: Duration,
    /// Accepted streams that may be without a proof at once.
    pub half_open_limit: usize,
}

macro_rules! token {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u64);
    };
}

token!(
    /// A link of this node, as long as the node lives. Never used again.
    LinkId
);
token!(
    /// One [`PeerEffect::Dial`]. Never used again.
    DialToken
);
token!(
    /// A configured endpoint: an intent to connect (R2.3-1). Chosen by the node.
    IntentId
);

/// What the two sides agreed on, fixed for the life of a link.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LinkInfo {
    /// Who the peer proved to be.
    pub peer: PeerIdentity,
    /// The peer's mesh (the same as ours).
    pub mesh: MeshName,
    /// The peer's lease generation.
    pub lease_generation: OwnerLeaseGeneration,
    /// The peer's cores.
    pub cores: u16,
    /// Lanes of the link: the larger core count, at most [`crate::limits::MAX_LANES`].
    pub lanes: u16,
    /// Largest frame either side may send: the smaller of the two settings.
    pub max_frame_bytes: u32,
    /// Credit the peer grants per lane at the start.
    pub lane_window_bytes: u32,
    /// How long the peer keeps routes (R0-7).
    pub route_cache_max_age: Duration,
    /// How long the peer relays (R0-7).
    pub message_follow_duration: Duration,
    /// Where the peer says it can be dialled.
    pub advertised: Option<String>,
    /// Which side dialled.
    pub dialed_by_us: bool,
    /// The intent for which it was dialled, if any.
    pub intent: Option<IntentId>,
}

impl LinkInfo {
    /// Whether the link is evidence for a route to the node `descriptor` describes: only when
    /// rid, node generation and key id are all equal. A link made for an endpoint alone carries
    /// no message until a descriptor confirms its peer (R2.3-1, R2.3-2).
    #[must_use]
    pub fn is_evidence_for(&self, descriptor: Option<&PeerDescriptor>) -> bool {
        descriptor.is_some_and(|d| d.identity == self.peer)
    }

    /// The longest a cached route to this peer may live: the peer's follow duration less 5 s
    /// (R0-7). `None` when the peer does not relay at all: then there is nothing to outlive.
    #[must_use]
    pub fn route_age_cap(&self) -> Option<Duration> {
        (!self.message_follow_duration.is_zero())
            .then(|| self.message_follow_duration.saturating_sub(CACHE_FOLLOW_GAP))
    }
}

/// What a lane's core lost a lane by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LaneLoss {
    /// The stream ended or failed.
    Stream,
    /// Nothing was received for the liveness timeout.
    Silent,
    /// The peer took nothing of what was sent for the liveness timeout.
    NotRead,
    /// More was unsent than a lane may hold.
    Unsent,
    /// The peer broke a rule, which is counted under its own name.
    Violation,
}

impl LaneLoss {
    /// Why the link is closed for it.
    #[must_use]
    pub const fn reason(self) -> PeerCloseReason {
        match self {
            Self::Stream => PeerCloseReason::LaneLost,
            Self::Silent => PeerCloseReason::LaneSilent,
            Self::NotRead => PeerCloseReason::LaneNotRead,
            Self::Unsent => PeerCloseReason::LaneUnsent,
            Self::Violation => PeerCloseReason::RuleBroken,
        }
    }
}

/// Something that happened, for [`Peers::step`](super::Peers::step).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PeerEvent {
    /// Somebody connected to the node's endpoint.
    Accepted {
        /// The stream.
        conn: ConnId,
    },
    /// The node started the dial of an effect; `conn` is its stream. Exactly one for each
    /// [`PeerEffect::Dial`], before any other event of that stream.
    Dialed {
        /// From the effect.
        dial: DialToken,
        /// The stream.
        conn: ConnId,
    },
    /// A dial got through.
    Connected {
        /// The stream.
        conn: ConnId,
    },
    /// Bytes came in on a stream that was not handed over. Streams this machine does not know
    /// (any more) are ignored.
    Received {
        /// The stream.
        conn: ConnId,
        /// The bytes, cut anywhere.
        bytes: Vec<u8>,
    },
    /// A stream ended by itself, or its dial failed.
    Closed {
        /// The stream.
        conn: ConnId,
        /// Why.
        reason: CloseReason,
    },
    /// A lane's core says that its stream ended, broke a rule or fell silent. The link is lost.
    LaneLost {
        /// The link.
        link: LinkId,
        /// The lane.
        lane: u16,
        /// What kind of loss it is.
        loss: LaneLoss,
        /// Why, as a sentence.
        reason: String,
    },
    /// A lane's core says that the lane's stream is closed and that the bytes it had not used
    /// are gone. Expected once for every [`PeerEffect::LaneReady`], after
    /// [`PeerEffect::CloseLink`].
    LaneClosed {
        /// The link.
        link: LinkId,
        /// The lane.
        lane: u16,
    },
    /// An operation needs a link to this node. Answered by exactly one of
    /// [`PeerEffect::NeedMet`], [`PeerEffect::LinkUp`] and [`PeerEffect::NeedFailed`] (needs for
    /// one node that wait together share one answer).
    Need {
        /// The node, as the Store describes it.
        descriptor: PeerDescriptor,
    },
    /// A configured endpoint (R2.3-3). An id that stands already is replaced.
    Intent {
        /// Its id.
        intent: IntentId,
        /// Where.
        endpoint: Endpoint,
    },
    /// Points an intent to another endpoint, once its old connection is seen closed (R2.3-3).
    ReplaceIntent {
        /// Its id.
        intent: IntentId,
        /// The new endpoint.
        endpoint: Endpoint,
    },
    /// Ends an intent, and the connection that was made for it.
    RemoveIntent {
        /// Its id.
        intent: IntentId,
    },
    /// A live node's descriptor was read in the background (R2.3-2). Nodes with a lower
    /// generation of the same rid are refused from here on.
    Descriptor {
        /// What was read.
        descriptor: PeerDescriptor,
    },
    /// The descriptor of this lifecycle is gone from the Store or its lease lapsed: its endpoint
    /// says no longer who must answer there.
    DescriptorGone {
        /// Whose.
        identity: PeerIdentity,
    },
    /// The two durations changed at run time (R0-7). Later handshakes carry the new values.
    Settings {
        /// See [`PeerConfig::route_cache_max_age`].
        route_cache_max_age: Duration,
        /// See [`PeerConfig::message_follow_duration`].
        message_follow_duration: Duration,
    },
    /// The clock reached the last [`PeerEffect::Wake`]. Harmless at any time.
    Tick,
    /// The node shuts down: everything is closed and refused from here on.
    Shutdown,
}

/// Something to do, from [`Peers::step`](super::Peers::step). In order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PeerEffect {
    /// Start a dial and answer with [`PeerEvent::Dialed`].
    Dial {
        /// Names the dial.
        dial: DialToken,
        /// Where to.
        endpoint: Endpoint,
    },
    /// Send a frame.
    Send {
        /// On which stream.
        conn: ConnId,
        /// One whole link frame.
        frame: Vec<u8>,
    },
    /// Close a stream (flush: a reject may be queued on it) and count the reason.
    Close {
        /// Which stream.
        conn: ConnId,
        /// Why.
        reason: PeerCloseReason,
        /// The same as a sentence with the values.
        detail: String,
    },
    /// A peer was admitted and a link is being made. Its lanes follow.
    LinkAdmitted {
        /// The new link.
        link: LinkId,
        /// What was agreed on.
        info: Arc<LinkInfo>,
    },
    /// A lane is attached and may be received from. The stream moves to core `core`; nothing of
    /// it is read on core 0 any more, and `unread` goes along.
    LaneReady {
        /// The stream.
        conn: ConnId,
        /// Its link.
        link: LinkId,
        /// Which lane.
        lane: u16,
        /// The core that reads it: `lane % cores`.
        core: u16,
        /// Bytes received behind the handshake.
        unread: Vec<u8>,
    },
    /// All lanes are attached: the link may be sent on. Answers waiting needs of that node.
    LinkUp {
        /// The link.
        link: LinkId,
        /// What was agreed on.
        info: Arc<LinkInfo>,
    },
    /// The link is lost or given up. From here on nothing is submitted on it and its operations
    /// end. Every core that got a lane of it closes the stream, discards its unread bytes and
    /// reports [`PeerEvent::LaneClosed`]. Once per admitted link.
    CloseLink {
        /// The link.
        link: LinkId,
        /// Its peer.
        peer: PeerIdentity,
        /// Why.
        reason: PeerCloseReason,
        /// The same as a sentence.
        detail: String,
    },
    /// All lanes of a closed link reported closed: no byte of it can be read any more. Only from
    /// here on is its peer admitted again (R5-4). Once per admitted link, after `CloseLink`.
    LinkDown {
        /// The link.
        link: LinkId,
        /// Its peer.
        peer: PeerIdentity,
        /// Why it was closed.
        reason: PeerCloseReason,
    },
    /// A need found its link up.
    NeedMet {
        /// Who was needed.
        peer: PeerIdentity,
        /// The link.
        link: LinkId,
    },
    /// All needs of this node that wait have failed.
    NeedFailed {
        /// Who was needed.
        peer: PeerIdentity,
        /// Why, as a sentence.
        reason: String,
        /// When the node will be dialled again, if somebody still needs it then.
        next_attempt_in: Option<Duration>,
    },
    /// An intent points to this endpoint from here on: nothing of an old connection of it is left
    /// (R2.3-3).
    IntentInstalled {
        /// Which.
        intent: IntentId,
    },
    /// An intent is gone, and the connection that was made for it is closed.
    IntentRemoved {
        /// Which.
        intent: IntentId,
    },
    /// Give a [`PeerEvent::Tick`] at this time. The last one counts; [`Nanos::MAX`]: none needed.
    Wake(Nanos),
}

macro_rules! close_reasons {
    ($($(#[$doc:meta])* $name:ident = $counter:literal, $violation:literal;)*) => {
        /// Why a stream or a link was closed: one variant per rule, each with its counter.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum PeerCloseReason {
            $($(#[$doc])* $name,)*
        }

        impl PeerCloseReason {
            /// All reasons, in the order of their counters.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The name of the counter.
            #[must_use]
            pub const fn counter(self) -> &'static str {
                match self { $(Self::$name => $counter,)* }
            }

            /// Whether the peer broke a rule, as opposed to what happens between sound nodes.
            #[must_use]
            pub const fn is_violation(self) -> bool {
                match self { $(Self::$name => $violation,)* }
            }
        }
    };
}

close_reasons! {
    /// The handshake took longer than the handshake timeout.
    HandshakeTimeout = "peer_handshake_timeout", false;
    /// Too many handshakes were half done; this one was the oldest.
    HandshakeCrowded = "peer_handshake_crowded", false;
    /// Bytes that are no frame or no record.
    BadFrame = "peer_bad_frame", true;
    /// A frame larger than `MAX_HANDSHAKE_FRAME_BYTES` during the handshake.
    FrameTooLarge = "peer_handshake_frame_too_large", true;
    /// A record that has no place at this step.
    UnexpectedRecord = "peer_unexpected_record", true;
    /// A field outside its range.
    BadValue = "peer_bad_value", true;
    /// Another version of the link protocol.
    VersionMismatch = "peer_version_mismatch", false;
    /// Another mesh.
    MeshMismatch = "peer_mesh_mismatch", false;
    /// Another hash seed: another Store, or a Store that was started afresh.
    HashSeedMismatch = "peer_hash_seed_mismatch", false;
    /// This node dialled itself.
    SelfDial = "peer_self_dial", false;
    /// Another live node presents a rid that is taken.
    DuplicateRid = "peer_duplicate_rid", false;
    /// The peer is not who the descriptor says.
    IdentityMismatch = "peer_identity_mismatch", false;
    /// A lifecycle of the node that a later one has replaced.
    StaleIncarnation = "peer_stale_incarnation", false;
    /// The proof of the mesh secret is wrong.
    WrongProof = "peer_wrong_proof", true;
    /// The proof of a lane is wrong.
    WrongLaneProof = "peer_wrong_lane_proof", true;
    /// A lane for a link that does not stand.
    UnknownLink = "peer_unknown_link", false;
    /// A lane that is attached already, or that the link does not have.
    LaneTaken = "peer_lane_taken", true;
    /// Both sides dialled; the other stream stays.
    SimultaneousDial = "peer_simultaneous_dial", false;
    /// A link stands that was made after this handshake began.
    AlreadyLinked = "peer_already_linked", false;
    /// The node behind this endpoint is linked already.
    Redundant = "peer_redundant_dial", false;
    /// A later handshake of the same peer took this one's place.
    Superseded = "peer_handshake_superseded", false;
    /// More peers than `MAX_KNOWN_PEERS`.
    TooManyPeers = "peer_too_many", false;
    /// The peer answered with a reject.
    RejectedByPeer = "peer_rejected_by_peer", false;
    /// The dial did not get through.
    DialFailed = "peer_dial_failed", false;
    /// The stream ended during the handshake.
    StreamLost = "peer_handshake_stream_lost", false;
    /// The stream of a lane ended or failed, and the link with it.
    LaneLost = "peer_lane_lost", false;
    /// Nothing was received on a lane for the liveness timeout.
    LaneSilent = "peer_lane_silent", false;
    /// The peer took nothing of what a lane had to send for the liveness timeout.
    LaneNotRead = "peer_lane_not_read", false;
    /// The peer reads a lane so slowly that more was unsent than a lane may hold.
    LaneUnsent = "peer_lane_unsent", false;
    /// The peer broke a rule on a lane. The rule is counted under its own name, and as a violation.
    RuleBroken = "peer_rule_broken", false;
    /// A later lifecycle of the peer takes the link's place.
    Replaced = "peer_replaced", false;
    /// The peer has lost the link and connects anew.
    PeerReconnected = "peer_reconnected", false;
    /// The intent points elsewhere now, or is gone.
    IntentReplaced = "peer_intent_replaced", false;
    /// Nobody wants this dial any more.
    NotWanted = "peer_not_wanted", false;
    /// The node shuts down.
    ShuttingDown = "peer_shutting_down", false;
}

impl fmt::Display for PeerCloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.counter())
    }
}
