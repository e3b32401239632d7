#![forbid(unsafe_code)]
//! What the benches share: arguments, samples, alternating rounds, child processes, the Actors that
//! are measured and the bare programs they are measured against.
//!
//! A **segment** is one run of one side: its set-up, a warm-up that is thrown away, and a fixed
//! number of operations that are measured. Because the number is fixed, the hash of what was
//! answered is known beforehand and compared: work that was left out shows.
#![allow(dead_code)] // each bench uses its part

pub(crate) mod actors;
pub(crate) mod args;
pub(crate) mod bare;
pub(crate) mod frames;
pub(crate) mod node_work;
pub(crate) mod process;
pub(crate) mod role;
pub(crate) mod rounds;
pub(crate) mod samples;
pub(crate) mod table;
