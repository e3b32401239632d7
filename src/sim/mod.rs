#![forbid(unsafe_code)]
//! The simulated Env, its faults and its checkers.

mod check;
mod core_env;
mod fault;
mod history;
mod keepers;
mod net;
mod rng;
mod state;
mod stores;
mod task;
mod trace;
mod world;

#[cfg(test)]
mod tests;
#[cfg(test)]
mod toy_tests;

pub use check::{
    CheckConfig, Rule, Violation, at_most_once, check_all, complaints, deadlines_kept,
    errors_have_causes, exactly_once, honest_endings, lapsed_owner, one_factory, one_terminal,
    sender_order, single_owner, stale_fences,
};
pub use core_env::{SimCore, SimEnv};
pub use fault::{Death, Fault, FaultClasses, FaultPlan, FaultRates, FaultScope, NodeIx, StoreMode};
pub use history::{
    Authority, Concerns, Ending, Execution, ExecutionIx, FactoryRun, History, LeaseChange, Life,
    ObjectIx, OpKey, OpKind, Operation, Recorder, Trouble, TroubleKind,
};
pub use rng::SimRng;
pub use state::{CommitWatch, Tap};
pub use task::{SimTime, Sleep, Task};
pub use trace::{TraceKind, TraceRecord};
pub use world::{Built, NodeSpec, NodeStart, SimHandle, SimWorld};
