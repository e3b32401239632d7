#![forbid(unsafe_code)]
//! What users implement: [`Actor`], [`Handler`], [`Message`], and what their turns are given.

mod actor;
mod content;
mod context;
mod message;
mod payload;
mod registry;

pub use actor::{Actor, CreateContext, Handler, PreserveState};
pub use context::{Context, TurnActor, TurnRequest, TurnSend};
pub use message::{IntoPayload, Message, Packet};
pub use payload::{Metadata, Payload};
pub use registry::ActorType;

pub(crate) use content::Content;
pub(crate) use context::{Outbox, OutboxItem, TurnFacts, Want};
pub(crate) use registry::{Body, CellFuture, CellOutput, ErasedType, Registry, ReplyAs, TurnInput};
