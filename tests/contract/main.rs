#![forbid(unsafe_code)]
//! The contract, clause by clause, through the public surface and across real processes.
//!
//! A test starts its other nodes as child processes of this very program (`child`), on one embedded
//! store in a temporary directory (`world`), and is itself a caller: a node in the test's process.
//! `probe` has the Actors they all host, `watched` a provider that counts, blocks and fails,
//! `proxy` a network that can be cut. Each clause group has a module.
#![allow(clippy::disallowed_methods)] // drives nodes from outside
#![allow(missing_docs)] // a test names what it proves, the harness is read beside it

mod child;
mod command;
mod probe;
mod proxy;
mod watched;
mod world;

#[path = "../support/eventually.rs"]
mod eventually;

mod creation;
mod r0;
mod r1;
mod r2_1;
mod r2_2;
mod r2_3;
mod r2_4;
mod r2_5;
mod r2_6;
mod r4;
mod r5;
mod region;
mod start;
mod streams;
