//! Homing: Actors that are found by id, wherever they live now.
#![warn(missing_docs)]

// Ranks, bottom to top (tests/tidy.rs holds the table and checks it).
pub mod error;
pub mod ids;
pub mod limits;
pub mod sync;
pub mod time;

pub mod location;
pub mod wire;

pub mod env;

pub mod store;

pub mod protocol;

pub mod exec;
pub mod transport;

pub mod node;

#[cfg(feature = "sim")]
pub mod sim;

pub use error::{Error, ErrorKind, Result};
