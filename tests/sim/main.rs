#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods)] // the number of seeds comes from the environment
//! The product's own nodes in the simulated world, under seeded faults, judged by the checkers.
//!
//! `HOMING_SIM_SEEDS` changes how many seeds are run, `HOMING_SIM_SEED` runs one.
//!
//! `shape` says what differs between runs, `stage` is what Actors and clients share, `ledger` the
//! Actor, `clients` the load, `wire_tap` looks into frames (and lets some arrive under foreign
//! fences), `cluster` runs a seed, `judge` holds what the library's checkers do not know.

mod clients;
mod cluster;
mod failpoints;
mod judge;
mod ledger;
mod outage;
mod planted;
mod regressions;
mod seeds;
mod shape;
mod stage;
mod wire_tap;
