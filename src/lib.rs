#![deny(unsafe_code)]
//! Homing: Actors that are found by id, wherever they live now.
#![warn(missing_docs)]

// Ranks, bottom to top (tests/tidy.rs holds the table and checks it).
pub mod error;
pub mod ids;
pub mod limits;
pub mod sync;
pub mod time;

pub mod layout;
pub mod location;
pub mod wire;

pub mod env;
pub mod shm;

pub mod route;
pub mod store;

pub mod protocol;

pub mod exec;
pub mod transport;

pub mod object;

pub mod node;

#[cfg(feature = "sim")]
pub mod sim;

pub use error::{Error, ErrorKind, Result};
pub use exec::idle::Idle;
pub use node::{
    ActorHandle, Actors, Counter, Counters, CreateOutcome, Creating, Node, NodeBuilder, Request,
    Requesting, Resolver, Sending, block_on,
};
pub use object::{
    Actor, ActorType, Context, CreateContext, Handler, IntoPayload, Message, Metadata, Packet,
    Payload, PreserveState,
};
pub use route::{Resolution, RouteInfo};

/// What most programs use.
pub mod prelude {
    pub use crate::error::{Error, ErrorKind, Result};
    pub use crate::ids::{ActorId, ActorRef, NodeRid};
    pub use crate::node::{CreateOutcome, Node};
    pub use crate::object::{
        Actor, Context, CreateContext, Handler, Message, Metadata, Payload, PreserveState,
    };
    pub use crate::route::Resolution;
    #[cfg(feature = "lmdb")]
    pub use crate::store::lmdb::LmdbStore;
}

/// The README's program, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeProgram;
