#![forbid(unsafe_code)]
//! The seeds of CI: no checker finds anything.

use homing::sim::FaultClasses;

use super::cluster::{Shape, run};

/// Seeds in CI; `HOMING_SIM_SEEDS` asks for more.
const SEEDS: u64 = 200;

fn count() -> u64 {
    match std::env::var("HOMING_SIM_SEEDS") {
        Ok(text) => text.parse().expect("HOMING_SIM_SEEDS is a whole number"),
        Err(_) => SEEDS,
    }
}

fn check(part: u64, of: u64) {
    let mut executions = 0;
    for seed in homing::sim::seeds(0..count()).into_iter().filter(|seed| seed % of == part) {
        let outcome = run(seed, &Shape::of(seed));
        assert!(outcome.violations.is_empty(), "seed {seed}: {:#?}", outcome.violations);
        executions += outcome.executions;
    }
    assert!(executions > 0 || count() < of, "the runs did something");
}

/// Proves R2.1-3, R2.6-1, R4-6, R4-7.
#[test]
fn seeds_are_clean_first_half() {
    check(0, 2);
}

/// Proves R2.1-3, R2.6-1, R4-6, R4-7.
#[test]
fn seeds_are_clean_second_half() {
    check(1, 2);
}

/// One seed is one run: twice the same trace, and another one for another seed.
#[test]
fn a_seed_repeats_itself() {
    let hash = |seed| run(seed, &Shape::of(seed)).hash;
    assert_eq!(hash(5), hash(5));
    assert_ne!(hash(5), hash(6));
}

/// Without faults nothing fails at all.
#[test]
fn a_calm_world_has_no_errors() {
    let shape = Shape { classes: FaultClasses::none(), objects: 4, ..Shape::of(1) };
    let outcome = run(1, &shape);
    assert!(outcome.violations.is_empty(), "{:#?}", outcome.violations);
    assert!(outcome.executions > 500, "{} executions", outcome.executions);
}
