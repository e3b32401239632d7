#![forbid(unsafe_code)]
//! Whole clusters in one thread under one seed: the simulated [`Env`](crate::env::Env), its
//! faults and its checkers.
//!
//! A [`SimWorld`] runs many multi-core nodes with virtual time. Everything that can differ between
//! two runs (latencies, how bytes are cut, who runs first, what fails) is drawn from the seed, so
//! a seed is a run. The nodes' code is the same as over the kernel: a core sees only `Env`.
//!
//! # How to write a simulation
//!
//! 1. Make a world: `SimWorld::new(seed)`, and give it a Store under its clock:
//!    `MemoryStore::with_clock` with [`SimWorld::time`].
//! 2. Add nodes: [`SimWorld::add_node`] with a [`NodeSpec`] (name, cores, lease) and a factory that
//!    builds the cores of each lifecycle of the node. With [`NodeSpec::with_lease`] the lease
//!    thread takes the lease first; the factory then finds it in [`NodeStart::started`].
//! 3. Choose what goes wrong: [`SimWorld::set_plan`] with [`FaultPlan::seeded`], or single faults at
//!    stated times for a regression test. Faults in the nodes' own code are planted with
//!    [`SimWorld::plant`].
//! 4. Write clients as ordinary futures and [`SimWorld::spawn`] them. They await handles of the
//!    nodes and [`SimTime::sleep`]. Record what they submit and how it ends with
//!    [`SimWorld::history`]; let handlers record what they execute.
//! 5. Run: [`SimWorld::run_for`], [`SimWorld::run_until`], [`SimWorld::block_on`]. Let the run end
//!    calm: [`FaultScope::to`] well before the end, so that everything can settle.
//! 6. Judge: [`SimWorld::assert_clean`], or [`check_all`] on a [`Recorder::snapshot`].
//!
//! ```
//! use homing::env::{Env, Event};
//! use homing::sim::{Built, NodeSpec, SimCore, SimEnv, SimWorld};
//! use homing::time::Nanos;
//! use std::time::Duration;
//!
//! /// A core that adds up its mail.
//! struct Sum(u64);
//! impl SimCore<u64> for Sum {
//!     fn run_once(&mut self, env: &mut SimEnv<u64>, park_until: Nanos) -> Nanos {
//!         let mut events = Vec::new();
//!         env.poll(&mut events, park_until);
//!         for event in events {
//!             if let Event::Mail(n) = event {
//!                 self.0 += n;
//!             }
//!         }
//!         Nanos::MAX
//!     }
//! }
//!
//! let run = |seed| {
//!     let mut world = SimWorld::<u64>::new(seed);
//!     world.add_node(NodeSpec::new("a", 1), |start| {
//!         start.poster.post(0, 42);
//!         Ok(Built::new(vec![Box::new(Sum(0))]))
//!     });
//!     world.run_for(Duration::from_secs(1));
//!     world.trace_hash()
//! };
//! assert_eq!(run(7), run(7));
//! assert_ne!(run(7), run(8));
//! ```
//!
//! # How to see a run again
//!
//! A test that fails while a world exists prints the world's seed, its trace hash and its last
//! trace lines. Run the test with that seed alone: tests that go over many seeds take them from
//! [`seeds`], which obeys `HOMING_SIM_SEED`. [`SimWorld::note`] puts lines of the test into the
//! trace, [`SimWorld::keep_trace`] keeps more of it. Every step goes into the hash, so two runs
//! with one hash took the same steps; when a seed gives two hashes, something read a clock, a
//! random number or the order of a map outside of `Env`.
//!
//! # What is modelled
//!
//! - **Streams** keep their bytes in order and cut and join them anywhere. A stream has a window;
//!   what it does not take stays in `unsent_bytes`. An orderly close is seen after the bytes before
//!   it; a broken stream loses a tail at a random byte. Nothing inside a live stream is lost: a
//!   partition holds bytes back, as retransmission does.
//! - **Dials** are refused where nobody listens and time out where the host is down.
//! - **Mail** between two cores keeps its order; so does that of other threads to a core.
//! - [`Env::poll`](crate::env::Env::poll) reports at most one event of a stream per call, so that
//!   a core may hand the stream over or close it while it handles the batch.
//! - **Cores** take time for an iteration and may lose their processor: between iterations
//!   ([`Fault::Stall`], [`Fault::Pause`]) or right after they took their events
//!   ([`FaultRates::stall_per_million`]). In the latter case that core alone is later than the
//!   world for the rest of its iteration, and what it does takes effect at its own time.
//! - **The Store** is a provider that carries a call out at one instant, between a delay on the
//!   way there and one on the way back. Each node has the Store thread and the lease thread of the
//!   real node, run by the same machines ([`StoreQueue`](crate::protocol::batch::StoreQueue),
//!   [`Keeper`](crate::store::leases::Keeper)).
//! - **A process that dies** takes its cores, its tasks and its threads along. Its Store calls
//!   under way are carried out all the same. A new lifecycle waits for the old lease as a real one
//!   does.
//!
//! # Modules
//!
//! `world` runs; `state` is what is run; `nodes` begins and ends lifecycles; `net` and `net_end`
//! are the streams, `stores` and `keepers` the two Store threads; `fault` says what goes wrong and
//! `strike` lets it; `task` is time and the executor; `trace` the hash and the lines; `history` what
//! was done and `check` whether it was right.

mod check;
mod core_env;
mod fault;
mod handle;
mod history;
mod keepers;
mod net;
mod net_end;
mod nodes;
mod product;
mod rng;
mod state;
mod stores;
mod strike;
mod task;
mod trace;
mod world;

#[cfg(test)]
mod tests;

pub use check::{
    CheckConfig, Rule, Violation, at_most_once, check_all, complaints, deadlines_kept,
    errors_have_causes, exactly_once, honest_endings, lapsed_owner, one_factory, one_terminal,
    sender_order, single_owner, stale_fences,
};
pub use core_env::{SimCore, SimEnv};
pub use fault::{Death, Fault, FaultClasses, FaultPlan, FaultRates, FaultScope, NodeIx, StoreMode};
pub use handle::SimHandle;
pub use history::{
    Authority, Concerns, Ending, Execution, ExecutionIx, FactoryRun, History, LeaseChange, Life,
    ObjectIx, OpKey, OpKind, Operation, Recorder, Trouble, TroubleKind,
};
pub use nodes::{Built, NodeSpec, NodeStart};
pub use product::{NodeWorld, SimNode};
pub use rng::SimRng;
pub use state::{CommitWatch, Tap};
pub use task::{SimTime, Sleep, Task};
pub use trace::{TraceKind, TraceRecord};
pub use world::SimWorld;

/// The seeds a test goes over: those of `range`, or the one that the environment variable
/// `HOMING_SIM_SEED` names.
///
/// # Panics
/// When the variable is set and is not a number.
#[must_use]
#[allow(clippy::disallowed_methods)] // a test asks for one seed
pub fn seeds(range: std::ops::Range<u64>) -> Vec<u64> {
    match std::env::var("HOMING_SIM_SEED") {
        Ok(text) => vec![text.parse().unwrap_or_else(|_| {
            panic!("HOMING_SIM_SEED is {text:?}; it must be a whole number, the seed to run")
        })],
        Err(_) => range.collect(),
    }
}
