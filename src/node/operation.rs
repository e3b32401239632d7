#![forbid(unsafe_code)]
//! An operation as it moves between application threads and cores, and the mail that carries it.

use std::sync::Arc;
use std::time::Duration;

use super::oneshot::{Abandoned, Settler};
use crate::env::Endpoint;
use crate::error::{Error, ErrorKind, Result};
use crate::ids::{
    ActorId, ActorRef, Correlation, NodeGeneration, NodeRid, ObjectGeneration, ObjectKey,
    OperationId, OwnerLeaseGeneration,
};
use crate::object::{Content, Metadata, Payload};
use crate::protocol::peer::{LaneLoss, LinkId, LinkInfo, PeerDescriptor};
use crate::route::{NodeEntry, Resolution, RouteLifetimes};
use crate::time::Nanos;

/// How an operation ended: a reply, nothing, or an error.
pub(crate) type End = Result<Option<Content>>;

impl Abandoned for Resolution {
    fn abandoned() -> Self {
        Self::StoreFailure(Error::new(ErrorKind::ShuttingDown, "the node has stopped"))
    }
}

/// Who learns of an operation's end.
pub(crate) enum Waiter {
    /// Nobody: a detached send.
    Nobody,
    /// An application thread.
    App(Settler<End>),
    /// A turn on core `core`, by its token there.
    Turn { core: u16, token: u64 },
}

/// What an operation does at its target.
pub(crate) enum Body {
    /// A message for a handler.
    Message { content: Content, metadata: Metadata, is_request: bool },
    /// The end of one incarnation.
    Destroy { generation: ObjectGeneration },
}

/// One send, request or control operation addressed to an id, before it is submitted.
pub(crate) struct Operation {
    pub(crate) key: ObjectKey,
    pub(crate) body: Body,
    pub(crate) waiter: Waiter,
    /// From the caller; counted from when the home core takes the operation in.
    pub(crate) timeout: Duration,
    /// Set by the home core; earlier for an operation of a turn.
    pub(crate) deadline: Nanos,
    /// Names the operation to [`Mail::Cancel`]; 0 for one that is never cancelled.
    pub(crate) ticket: u64,
    /// The object whose turn made it.
    pub(crate) source: Option<(ActorId, ObjectGeneration)>,
}

impl Operation {
    /// Whether somebody waits for an answer of the target.
    pub(crate) fn wants_reply(&self) -> bool {
        !matches!(self.body, Body::Message { is_request: false, .. })
    }

    /// Encodes its message, if it is not.
    ///
    /// # Errors
    /// `InvalidOperation` when it cannot be encoded.
    pub(crate) fn encode(&mut self) -> Result<()> {
        match &mut self.body {
            Body::Message { content, .. } => content.encode(),
            Body::Destroy { .. } => Ok(()),
        }
    }
}

/// Where a reply goes: the pending request's node and number (R4-1). Never a socket or a core.
#[derive(Clone, Debug)]
pub(crate) enum ReplyTo {
    /// This node, this core.
    Local(Correlation),
    /// Another node.
    Remote { rid: NodeRid, node_generation: NodeGeneration, correlation: Correlation },
}

/// Whose credit a queued message holds until its turn starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CreditOf {
    /// The core's own budget.
    Local { bytes: u32 },
    /// A lane's window.
    Lane { link: LinkId, lane: u16, bytes: u32 },
}

/// A message in an object's queue.
pub(crate) struct Queued {
    pub(crate) operation: OperationId,
    pub(crate) content: Content,
    pub(crate) metadata: Metadata,
    pub(crate) reply: Option<ReplyTo>,
    /// [`Nanos::MAX`] for a one-way message.
    pub(crate) deadline: Nanos,
    pub(crate) credit: CreditOf,
}

/// What became of a creation.
///
/// ```
/// # fn show(o: homing::CreateOutcome) {
/// use homing::CreateOutcome::*;
/// match o {
///     Created(r) => println!("made {}", r.id),
///     Existing(r) => println!("{} was there", r.id),
///     Rejected(why) => println!("refused: {why}"),
/// }
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CreateOutcome {
    /// This call made the object.
    Created(ActorRef),
    /// The object was there, or another call made it at the same time.
    Existing(ActorRef),
    /// The factory refused, with this sentence.
    Rejected(String),
}

impl CreateOutcome {
    /// The object's ref.
    ///
    /// # Errors
    /// `Rejected` with the factory's sentence.
    pub fn actor_ref(self) -> Result<ActorRef> {
        match self {
            Self::Created(r) | Self::Existing(r) => Ok(r),
            Self::Rejected(why) => Err(Error::rejected(why)),
        }
    }
}

/// Who learns of a creation's outcome.
pub(crate) enum CreateWaiter {
    App(Settler<Result<CreateOutcome>>),
    /// A node that asked with record 49.
    Remote {
        rid: NodeRid,
        node_generation: NodeGeneration,
        correlation: Correlation,
    },
}

/// A call to create an Actor.
pub(crate) struct CreateCall {
    pub(crate) key: ObjectKey,
    pub(crate) type_name: String,
    pub(crate) request: Payload,
    /// The node it shall live on; this node or a host of the type when `None`.
    pub(crate) target: Option<NodeRid>,
    pub(crate) timeout: Duration,
    pub(crate) waiter: CreateWaiter,
}

/// What is to become of the configured endpoints.
pub(crate) enum PeerWish {
    Add(Endpoint),
    Replace { old: Endpoint, new: Endpoint },
    Remove(Endpoint),
}

/// A call to change a configured endpoint, and who learns when that is done.
pub(crate) struct PeerChange {
    pub(crate) wish: PeerWish,
    pub(crate) slot: Settler<Result<()>>,
}

/// How far a configured endpoint is. See [`ConfiguredPeer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PeerState {
    /// It is being dialled, or its link is being made.
    Connecting,
    /// Its node is linked: by the dial that was made for it, or by another.
    Connected,
    /// The last dial failed or the link was lost; the next dial comes by itself.
    Waiting,
    /// Its connection is being closed; then it moves or ends.
    Closing,
    /// It will not be dialled: see [`ConfiguredPeer::last_failure`].
    Refused,
}

/// A configured endpoint: where it points, who is there, and how far it is (R2.3-3).
///
/// ```
/// # async fn show(node: &homing::Node) -> homing::Result<()> {
/// for peer in node.peers().list().await? {
///     println!("{} {:?} {}", peer.endpoint, peer.state, peer.last_failure);
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfiguredPeer {
    /// Where it points.
    pub endpoint: Endpoint,
    /// Where it will point once the connection to `endpoint` is closed.
    pub moving_to: Option<Endpoint>,
    /// The node that answered there last and proved who it is.
    pub rid: Option<NodeRid>,
    /// How far it is.
    pub state: PeerState,
    /// Why the last connection failed, as a sentence; empty when none did.
    pub last_failure: String,
}

/// A node as the background scan saw it.
pub(crate) struct NodeSeen {
    pub(crate) entry: NodeEntry,
    pub(crate) actor_types: Arc<[String]>,
}

/// What cores of a node and its application threads send each other. Public only as the name of
/// what a simulated world carries; nobody can make or read one.
#[allow(unreachable_pub, private_interfaces)]
#[allow(clippy::large_enum_variant)] // the large one is the frequent one: it is not boxed
pub enum Mail {
    /// To the home core of the operation's key.
    Submit(Operation),
    /// The caller of the operation gave up.
    Cancel { key: ObjectKey, ticket: u64 },
    /// To the core of a waiting turn.
    TurnSettled { token: u64, end: End },
    /// A waker of a turn was called.
    Wake { cell: u64 },
    /// To the core that owns the lane: an encoded frame to send.
    Frame { link: LinkId, lane: u16, bytes: Vec<u8> },
    /// To the home core: a whole frame that came in on another core.
    Inbound { link: LinkId, lane: u16, bytes: Vec<u8> },
    /// To a home core: credit the peer returned.
    CreditReturned { link: LinkId, lane: u16, object: u64, bytes: u32 },
    /// To the core that owns the lane: a turn started, its bytes are free again.
    CreditFreed { link: LinkId, lane: u16, object: u64, bytes: u32 },
    /// To core 0: connect to this node.
    Need(Box<PeerDescriptor>),
    /// To all: there is no link to this node for now.
    NeedFailed { rid: NodeRid, node_generation: NodeGeneration, text: Arc<str> },
    /// To all: a peer was admitted; its lanes follow.
    LinkAdmitted { link: LinkId, info: Arc<LinkInfo> },
    /// To all: a link is up.
    LinkUp { link: LinkId },
    /// To all: a link is being closed; forget it, close its lanes.
    LinkClose { link: LinkId, reason: Arc<str> },
    /// To core 0: a lane broke.
    LaneLost { link: LinkId, lane: u16, loss: LaneLoss, reason: String },
    /// To core 0: a lane's stream is closed after `LinkClose`.
    LaneClosed { link: LinkId, lane: u16 },
    /// To all: nodes that were seen in the Store.
    Nodes(Arc<[NodeSeen]>),
    /// To all: a node's descriptor is gone.
    NodeGone { rid: NodeRid },
    /// To all: a peer announced its renewed lease.
    LeaseRenewed { rid: NodeRid, lease_generation: OwnerLeaseGeneration, deadline: Nanos },
    /// To all: a peer changed how long it relays (R0-7).
    PeerFollow { rid: NodeRid, node_generation: NodeGeneration, duration: Duration },
    /// To all: a peer gives its lease back (R2.2-4).
    PeerEnds { rid: NodeRid, lease_generation: OwnerLeaseGeneration },
    /// To all: the Store answers again after failures.
    StoreRecovered,
    /// To all: the own lease is lost for good.
    Fenced(Arc<str>),
    /// To the home core of the key.
    Create(Box<CreateCall>),
    /// Resolve an id for an application thread.
    Resolve { key: ObjectKey, timeout: Duration, slot: Settler<Resolution> },
    /// Read an authority row for an application thread.
    Find { key: ObjectKey, timeout: Duration, slot: Settler<Result<Option<ActorRef>>> },
    /// To core 0: change a configured endpoint.
    ChangePeer(Box<PeerChange>),
    /// To core 0: tell the configured endpoints.
    ListPeers { slot: Settler<Result<Vec<ConfiguredPeer>>> },
    /// To all: new cache age and follow duration.
    Configure(RouteLifetimes),
    /// To all: stop taking in, end what is pending by then; `Stopped` says that it is done.
    Shutdown { deadline_in: Duration, slot: Settler<()> },
    /// To all: end at once.
    Stop,
}
