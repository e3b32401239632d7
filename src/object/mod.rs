#![forbid(unsafe_code)]
//! What users implement: [`Actor`], [`Handler`], [`Message`], and what their turns are given.

mod actor;
mod context;
mod message;
mod payload;
mod registry;

pub use actor::{Actor, CreateContext, Handler, PreserveState};
pub use context::{Context, TurnActor, TurnRequest, TurnSend};
pub use message::{IntoPayload, Message, Packet};
pub use payload::{Metadata, Payload};
pub use registry::ActorType;

pub(crate) use context::{Outbox, OutboxItem, Slot, TurnFacts, Want};
pub(crate) use registry::{Body, CellFuture, CellOutput, ErasedType, Registry, TurnInput};
