#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods)] // a test starts processes and threads of its own
//! The Location Store conformance suite, run on every provider here, and what concerns one
//! provider alone.

mod mutants;
mod suite;

#[cfg(feature = "lmdb")]
mod lmdb;

#[cfg(feature = "redis")]
#[path = "../support/eventually.rs"]
mod eventually;
#[cfg(feature = "redis")]
mod redis;
