#![forbid(unsafe_code)]
//! What a turn is given, and the outbox its operations go into.
//!
//! A turn never touches its core: its operations are put into the core's outbox, and the core
//! loop carries them out after the poll. Everything here stays on one core (`Rc`).

use std::cell::RefCell;
use std::future::{Future, IntoFuture};
use std::marker::PhantomData;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use super::message::Packet;
use super::payload::{Metadata, Payload};
use crate::error::{Error, Result};
use crate::ids::{ActorId, NodeRid, ObjectGeneration, OperationId};

/// What an operation of a turn asks for.
pub(crate) enum Want {
    /// Local admission of a one-way message.
    Admission,
    /// A reply within this time; the default when `None`.
    Reply(Option<Duration>),
}

/// Where the end of a turn's operation is put.
#[derive(Default)]
pub(crate) struct Slot {
    end: RefCell<Option<Result<Option<Payload>>>>,
}

impl Slot {
    pub(crate) fn settle(&self, end: Result<Option<Payload>>) {
        self.end.borrow_mut().get_or_insert(end);
    }
}

/// One operation a turn wants carried out.
pub(crate) struct OutboxItem {
    pub(crate) target: ActorId,
    pub(crate) payload: Payload,
    pub(crate) metadata: Metadata,
    pub(crate) want: Want,
    /// `None`: nobody waits.
    pub(crate) slot: Option<Rc<Slot>>,
}

/// The outbox of a core; the loop empties it after each poll of a turn.
#[derive(Default)]
pub(crate) struct Outbox {
    items: RefCell<Vec<OutboxItem>>,
}

impl Outbox {
    fn push(&self, item: OutboxItem) {
        self.items.borrow_mut().push(item);
    }

    /// Moves what is there to `into`.
    pub(crate) fn drain(&self, into: &mut Vec<OutboxItem>) {
        into.append(&mut self.items.borrow_mut());
    }
}

/// What is true for a turn as a whole.
pub(crate) struct TurnFacts {
    pub(crate) id: ActorId,
    pub(crate) generation: ObjectGeneration,
    pub(crate) rid: NodeRid,
    pub(crate) operation: OperationId,
    pub(crate) metadata: Metadata,
    pub(crate) remaining: Option<Duration>,
}

/// What a handler is given beside its message.
///
/// ```
/// # use homing::prelude::*;
/// # #[derive(serde::Serialize, serde::Deserialize)] struct Hit;
/// # impl Message for Hit { const NAME: &'static str = "hit"; type Reply = u64; }
/// # struct A; impl Actor for A { const TYPE: &'static str = "a";
/// #   async fn create(_: &CreateContext, _: Payload) -> Result<Self> { Ok(A) } }
/// impl Handler<Hit> for A {
///     async fn handle(&mut self, _: Hit, cx: &mut Context<'_, Self>) -> Result<u64> {
///         cx.actor("scoreboard")?.request(Hit).await
///     }
/// }
/// ```
pub struct Context<'a, A> {
    facts: &'a TurnFacts,
    outbox: &'a Rc<Outbox>,
    of: PhantomData<fn(A)>,
}

impl<'a, A> Context<'a, A> {
    pub(crate) fn new(facts: &'a TurnFacts, outbox: &'a Rc<Outbox>) -> Self {
        Self { facts, outbox, of: PhantomData }
    }

    /// The id of the object whose turn this is.
    #[must_use]
    pub fn id(&self) -> &ActorId {
        &self.facts.id
    }

    /// Its incarnation.
    #[must_use]
    pub fn generation(&self) -> ObjectGeneration {
        self.facts.generation
    }

    /// The node the turn runs on.
    #[must_use]
    pub fn rid(&self) -> &NodeRid {
        &self.facts.rid
    }

    /// The operation that started the turn; the same on every node it passed.
    #[must_use]
    pub fn operation_id(&self) -> OperationId {
        self.facts.operation
    }

    /// The metadata that came with the message. It is not copied to the reply (R4-2).
    #[must_use]
    pub fn metadata(&self) -> &Metadata {
        &self.facts.metadata
    }

    /// The time the requester had left when the turn started; `None` for a one-way message.
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        self.facts.remaining
    }

    /// Another Actor, by id alone. Cheap; not a look-up.
    ///
    /// # Errors
    /// `InvalidOperation` when the id breaks R0-1.
    pub fn actor(&self, id: impl AsRef<str>) -> Result<TurnActor> {
        Ok(TurnActor {
            id: ActorId::new(id)?,
            metadata: Metadata::default(),
            outbox: self.outbox.clone(),
        })
    }
}

/// An Actor as a turn addresses it: by id.
///
/// See [`Context`] for an example.
#[derive(Clone)]
pub struct TurnActor {
    id: ActorId,
    metadata: Metadata,
    outbox: Rc<Outbox>,
}

impl TurnActor {
    /// The same Actor, with metadata for what is sent through this value.
    #[must_use]
    pub fn with_metadata(mut self, metadata: Metadata) -> Self {
        self.metadata = metadata;
        self
    }

    /// Sends one way. Submitted at once; awaiting it gives local admission or its error.
    ///
    /// Dropping the future does not take the message back.
    pub fn send<P: Packet>(&self, message: P) -> TurnSend {
        self.submit(message.into_packet(), Want::Admission)
    }

    /// Asks for a reply. Submitted when it is first polled. The turn keeps its gate while it waits.
    pub fn request<P: Packet>(&self, message: P) -> TurnRequest<P> {
        TurnRequest {
            actor: self.clone(),
            payload: message.into_packet(),
            timeout: None,
            of: PhantomData,
        }
    }

    fn submit(&self, payload: Result<Payload>, want: Want) -> TurnSend {
        let slot = Rc::new(Slot::default());
        match payload {
            Err(e) => slot.settle(Err(e)),
            Ok(payload) => self.outbox.push(OutboxItem {
                target: self.id.clone(),
                payload,
                metadata: self.metadata.clone(),
                want,
                slot: Some(slot.clone()),
            }),
        }
        TurnSend { slot }
    }
}

/// A send of a turn on its way. Awaiting it gives local admission.
///
/// See [`Context`] for an example of the calls.
#[must_use = "await it for local admission, or call detach()"]
pub struct TurnSend {
    slot: Rc<Slot>,
}

impl TurnSend {
    /// Asks for nothing back; a later failure is counted.
    pub fn detach(self) {}
}

impl Future for TurnSend {
    type Output = Result<()>;

    fn poll(self: Pin<&mut Self>, _cx: &mut TaskContext<'_>) -> Poll<Result<()>> {
        match self.slot.end.borrow_mut().take() {
            Some(end) => Poll::Ready(end.map(|_| ())),
            // The core polls the turn again when it settles the slot.
            None => Poll::Pending,
        }
    }
}

/// A request of a turn; submitted when awaited.
///
/// See [`Context`] for an example of the calls.
#[must_use = "a request is submitted when it is awaited"]
pub struct TurnRequest<P> {
    actor: TurnActor,
    payload: Result<Payload>,
    timeout: Option<Duration>,
    of: PhantomData<fn(P)>,
}

impl<P> TurnRequest<P> {
    /// How long to wait for the reply; the node's request timeout otherwise.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }
}

impl<P: Packet> IntoFuture for TurnRequest<P> {
    type Output = Result<P::Reply>;
    type IntoFuture = TurnReply<P>;

    fn into_future(self) -> TurnReply<P> {
        let sent = self.actor.submit(self.payload, Want::Reply(self.timeout));
        TurnReply { slot: sent.slot, of: PhantomData }
    }
}

/// A request of a turn on its way.
pub struct TurnReply<P> {
    slot: Rc<Slot>,
    of: PhantomData<fn(P)>,
}

impl<P: Packet> Future for TurnReply<P> {
    type Output = Result<P::Reply>;

    fn poll(self: Pin<&mut Self>, _cx: &mut TaskContext<'_>) -> Poll<Self::Output> {
        let end = self.slot.end.borrow_mut().take();
        match end {
            None => Poll::Pending,
            Some(Ok(Some(payload))) => Poll::Ready(P::reply_from_packet(payload)),
            Some(Ok(None)) => Poll::Ready(Err(Error::new(
                crate::error::ErrorKind::ProtocolError,
                "the reply has no payload",
            ))),
            Some(Err(e)) => Poll::Ready(Err(e)),
        }
    }
}
