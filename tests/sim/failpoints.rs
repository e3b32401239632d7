#![forbid(unsafe_code)]
//! Nodes stopped at the steps of their protocols, in the middle of a round, for less than their
//! lease and for more.

use std::time::Duration;

use homing::sim::FaultPlan;

use super::cluster::{plan, run_plan};
use super::shape::Shape;

/// Seeds in CI.
const SEEDS: u64 = 24;

/// Stops in a million steps: a few dozen in a run.
const STOPS_PER_MILLION: u32 = 3_000;

fn with_stops(plan: FaultPlan, shape: &Shape) -> FaultPlan {
    let mut plan = plan;
    plan.rates.failpoint_per_million = STOPS_PER_MILLION;
    plan.rates.failpoint = (Duration::from_millis(1), shape.lease.0 * 2);
    plan
}

/// Whatever step a node is stopped at, it does nothing as owner past its lease, and no message is
/// lost, doubled or out of order beyond what a stop excuses.
///
/// Proves R5-16, R5-4.
#[test]
fn stops_at_every_step_break_no_rule() {
    let mut lapses = 0;
    for seed in homing::sim::seeds(0..SEEDS) {
        // By itself in one run of two; beside the other faults of the seed in the other.
        let shape = if seed % 2 == 0 { Shape::calm() } else { Shape::of(seed) };
        let outcome = run_plan(seed, &shape, with_stops(plan(seed, &shape), &shape));
        let shown: Vec<_> = outcome.violations.iter().take(8).collect();
        assert!(shown.is_empty(), "seed {seed}, {shape:?}: {shown:#?}");
        lapses += outcome.lapses;
    }
    assert!(lapses > SEEDS, "only {lapses} leases lapsed: the stops are too short or too few");
}
