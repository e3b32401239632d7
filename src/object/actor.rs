#![forbid(unsafe_code)]
//! The traits of an Actor.

use std::future::Future;

use super::context::Context;
use super::message::Packet;
use super::payload::Payload;
use crate::error::Result;
use crate::ids::{ActorId, MeshName, NodeRid, ObjectGeneration};

/// What a factory is told about the object it makes.
///
/// ```
/// # use homing::CreateContext;
/// fn greet(cx: &CreateContext) -> String {
///     format!("{} generation {}", cx.id(), cx.generation())
/// }
/// ```
#[derive(Clone, Debug)]
pub struct CreateContext {
    pub(crate) id: ActorId,
    pub(crate) generation: ObjectGeneration,
    pub(crate) mesh: MeshName,
    pub(crate) rid: NodeRid,
}

impl CreateContext {
    /// The id being created.
    #[must_use]
    pub fn id(&self) -> &ActorId {
        &self.id
    }

    /// The incarnation being created.
    #[must_use]
    pub fn generation(&self) -> ObjectGeneration {
        self.generation
    }

    /// The mesh of the node that creates it.
    #[must_use]
    pub fn mesh(&self) -> &MeshName {
        &self.mesh
    }

    /// The node that creates it.
    #[must_use]
    pub fn rid(&self) -> &NodeRid {
        &self.rid
    }
}

/// A stateful object with a global id. Its turns run one after another.
///
/// An object is `Send`; the futures of its turns need not be, they never leave their core.
///
/// ```
/// use homing::prelude::*;
/// #[derive(Default)]
/// struct Counter { total: i64 }
/// impl Actor for Counter {
///     const TYPE: &'static str = "counter";
///     async fn create(_: &CreateContext, _request: Payload) -> Result<Self> { Ok(Self::default()) }
/// }
/// ```
pub trait Actor: Sized + Send + 'static {
    /// The type's name, 1..=255 bytes, the same on every node that hosts it.
    const TYPE: &'static str;

    /// Makes the object. Runs once for an incarnation, on exactly one node however many ask.
    ///
    /// # Errors
    /// An error of kind [`Rejected`](crate::ErrorKind::Rejected) is the outcome `Rejected` for
    /// everyone who asked; any other error ends the creation with `InternalFailure`.
    fn create(cx: &CreateContext, request: Payload) -> impl Future<Output = Result<Self>>;

    /// Called once before a destroyed object, or one whose node shuts down, is dropped. Not called
    /// when a turn panicked (the state may be torn) or the process dies.
    fn on_closing(&mut self) -> impl Future<Output = ()> {
        async {}
    }
}

/// Handles one kind of message.
///
/// `Handler<Payload>` handles raw payloads under the names given at registration.
///
/// ```
/// # use homing::prelude::*;
/// # #[derive(serde::Serialize, serde::Deserialize)] struct Add(i64);
/// # impl Message for Add { const NAME: &'static str = "counter.add"; type Reply = i64; }
/// # #[derive(Default)] struct Counter { total: i64 }
/// # impl Actor for Counter {
/// #     const TYPE: &'static str = "counter";
/// #     async fn create(_: &CreateContext, _: Payload) -> Result<Self> { Ok(Self::default()) }
/// # }
/// impl Handler<Add> for Counter {
///     async fn handle(&mut self, add: Add, _cx: &mut Context<'_, Self>) -> Result<i64> {
///         self.total += add.0;
///         Ok(self.total)
///     }
/// }
/// ```
pub trait Handler<P: Packet>: Actor {
    /// Handles the message. What it returns answers a request; for a one-way send it is dropped,
    /// an error is counted.
    ///
    /// # Errors
    /// The error's kind and sentence reach the requester (R4-5).
    fn handle(
        &mut self,
        message: P,
        cx: &mut Context<'_, Self>,
    ) -> impl Future<Output = Result<P::Reply>>;
}

/// Lets an object's state travel when it moves to another node (R5-8).
///
/// ```
/// # use homing::prelude::*;
/// # #[derive(Default)] struct Counter { total: i64 }
/// # impl Actor for Counter {
/// #     const TYPE: &'static str = "counter";
/// #     async fn create(_: &CreateContext, _: Payload) -> Result<Self> { Ok(Self::default()) }
/// # }
/// impl PreserveState for Counter {
///     async fn capture(&mut self) -> Result<Vec<u8>> { Ok(self.total.to_be_bytes().to_vec()) }
///     async fn restore(_: &CreateContext, state: &[u8]) -> Result<Self> {
///         let bytes = state.try_into().map_err(|_| Error::internal("state is not 8 bytes"))?;
///         Ok(Self { total: i64::from_be_bytes(bytes) })
///     }
/// }
/// ```
pub trait PreserveState: Actor {
    /// The state as bytes; empty is fine.
    ///
    /// # Errors
    /// Any error ends the move before it begins; the object goes on here.
    fn capture(&mut self) -> impl Future<Output = Result<Vec<u8>>>;

    /// Makes the object from captured state.
    ///
    /// # Errors
    /// Any error ends the move; the object goes on at its source.
    fn restore(cx: &CreateContext, state: &[u8]) -> impl Future<Output = Result<Self>>;
}
