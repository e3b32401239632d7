#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods)] // the number of seeds comes from the environment
//! The product's own nodes in the simulated world, under seeded faults, judged by the checkers.
//!
//! `HOMING_SIM_SEEDS` changes how many seeds are run, `HOMING_SIM_SEED` runs one.

mod cluster;
mod planted;
mod seeds;
