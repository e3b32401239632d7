#![forbid(unsafe_code)]
//! The Location Store conformance suite, run on every provider here, and what concerns one
//! provider alone.

mod mutants;
mod suite;

#[cfg(feature = "lmdb")]
mod lmdb;
