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

use slab::Slab;

use super::content::Content;
use super::message::Packet;
use super::payload::Metadata;
use crate::error::{Error, Result};
use crate::ids::{ActorId, NodeRid, ObjectGeneration, ObjectKey, OperationId};

/// What an operation of a turn asks for.
pub(crate) enum Want {
    /// Local admission of a one-way message.
    Admission,
    /// A reply within this time; the default when `None`.
    Reply(Option<Duration>),
}

/// How an operation of a turn ended: a reply, nothing, or an error.
type End = Result<Option<Content>>;

/// Where the end of a turn's operation is put.
struct Slot {
    /// The cell of the turn that waits; 0 before the core has taken the operation.
    cell: u64,
    end: Option<End>,
    /// The core has nothing more to put here.
    is_settled: bool,
    /// Somebody may still look here.
    is_watched: bool,
}

/// One operation a turn wants carried out.
pub(crate) struct OutboxItem {
    pub(crate) target: ObjectKey,
    pub(crate) content: Content,
    pub(crate) metadata: Metadata,
    pub(crate) want: Want,
    /// Where its end is put, if anybody looks there: see [`Outbox::claim`].
    pub(crate) slot: usize,
}

/// The outbox of a core, which the loop empties after each poll of a turn, and the places where
/// turns look for the ends of their operations.
pub(crate) struct Outbox {
    hash_seed: u64,
    rid: NodeRid,
    items: RefCell<Vec<OutboxItem>>,
    slots: RefCell<Slab<Slot>>,
}

impl Outbox {
    /// The outbox of a core of node `rid`, whose mesh hashes ids under `hash_seed`.
    pub(crate) fn new(hash_seed: u64, rid: NodeRid) -> Self {
        Self { hash_seed, rid, items: RefCell::default(), slots: RefCell::default() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.items.borrow().is_empty()
    }

    /// Operations whose end is not known, or was not looked at.
    #[cfg(feature = "sim")]
    pub(crate) fn waits(&self) -> usize {
        self.slots.borrow().len()
    }

    /// Moves what is there to `into`.
    pub(crate) fn drain(&self, into: &mut Vec<OutboxItem>) {
        into.append(&mut self.items.borrow_mut());
    }

    /// The core takes an operation of the turn in `cell`. `false`: nobody looks for its end, and
    /// the slot is gone.
    pub(crate) fn claim(&self, slot: usize, cell: u64) -> bool {
        let mut slots = self.slots.borrow_mut();
        let Some(at) = slots.get_mut(slot) else { return false };
        at.cell = cell;
        let is_watched = at.is_watched;
        if !is_watched {
            slots.remove(slot);
        }
        is_watched
    }

    /// The core puts an end where the turn looks for it, and learns which cell to poll.
    pub(crate) fn settle(&self, slot: usize, end: End) -> Option<u64> {
        let mut slots = self.slots.borrow_mut();
        let at = slots.get_mut(slot)?;
        if at.is_watched {
            at.is_settled = true;
            at.end.get_or_insert(end);
            return Some(at.cell);
        }
        let gone = slots.remove(slot);
        // What is in them may have destructors of the application.
        drop(slots);
        drop((gone, end));
        None
    }

    fn open(&self, end: Option<End>) -> usize {
        let is_settled = end.is_some();
        self.slots.borrow_mut().insert(Slot { cell: 0, end, is_settled, is_watched: true })
    }

    fn take_end(&self, slot: usize) -> Option<End> {
        self.slots.borrow_mut().get_mut(slot)?.end.take()
    }

    /// Nobody looks at the slot any more.
    fn leave(&self, slot: usize) {
        let mut slots = self.slots.borrow_mut();
        let Some(at) = slots.get_mut(slot) else { return };
        at.is_watched = false;
        if at.is_settled {
            let gone = slots.remove(slot);
            drop(slots);
            drop(gone);
        }
    }
}

/// What is true for a turn as a whole.
pub(crate) struct TurnFacts {
    pub(crate) id: ActorId,
    pub(crate) generation: ObjectGeneration,
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
        &self.outbox.rid
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
            key: ObjectKey::actor(self.outbox.hash_seed, &ActorId::new(id)?),
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
    key: ObjectKey,
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
        self.submit(message.into_content(), Want::Admission)
    }

    /// Asks for a reply. Submitted when it is first polled. The turn keeps its gate while it waits.
    pub fn request<P: Packet>(&self, message: P) -> TurnRequest<P> {
        TurnRequest {
            actor: self.clone(),
            content: message.into_content(),
            timeout: None,
            of: PhantomData,
        }
    }

    fn submit(&self, content: Result<Content>, want: Want) -> TurnSend {
        let outbox = self.outbox.clone();
        let slot = match content {
            Err(e) => outbox.open(Some(Err(e))),
            Ok(content) => {
                let slot = outbox.open(None);
                outbox.items.borrow_mut().push(OutboxItem {
                    target: self.key.clone(),
                    content,
                    metadata: self.metadata.clone(),
                    want,
                    slot,
                });
                slot
            }
        };
        TurnSend { outbox, slot }
    }
}

/// A send of a turn on its way. Awaiting it gives local admission.
///
/// See [`Context`] for an example of the calls.
#[must_use = "await it for local admission, or call detach()"]
pub struct TurnSend {
    outbox: Rc<Outbox>,
    slot: usize,
}

impl TurnSend {
    /// Asks for nothing back; a later failure is counted.
    pub fn detach(self) {}
}

impl Drop for TurnSend {
    fn drop(&mut self) {
        self.outbox.leave(self.slot);
    }
}

impl Future for TurnSend {
    type Output = Result<()>;

    fn poll(self: Pin<&mut Self>, _cx: &mut TaskContext<'_>) -> Poll<Result<()>> {
        match self.outbox.take_end(self.slot) {
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
    content: Result<Content>,
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
        let sent = self.actor.submit(self.content, Want::Reply(self.timeout));
        TurnReply { sent, of: PhantomData }
    }
}

/// A request of a turn on its way.
pub struct TurnReply<P> {
    sent: TurnSend,
    of: PhantomData<fn(P)>,
}

impl<P: Packet> Future for TurnReply<P> {
    type Output = Result<P::Reply>;

    fn poll(self: Pin<&mut Self>, _cx: &mut TaskContext<'_>) -> Poll<Self::Output> {
        match self.sent.outbox.take_end(self.sent.slot) {
            None => Poll::Pending,
            Some(Ok(Some(content))) => Poll::Ready(P::reply_from_content(content)),
            Some(Ok(None)) => Poll::Ready(Err(Error::new(
                crate::error::ErrorKind::ProtocolError,
                "the reply has no payload",
            ))),
            Some(Err(e)) => Poll::Ready(Err(e)),
        }
    }
}
