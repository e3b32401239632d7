#![forbid(unsafe_code)]
//! The seeds of CI: no checker finds anything.

use super::cluster::run;
use super::shape::Shape;

/// Seeds in CI; `HOMING_SIM_SEEDS` asks for more.
pub(crate) const SEEDS: u64 = 200;

fn count() -> u64 {
    match std::env::var("HOMING_SIM_SEEDS") {
        Ok(text) => text.parse().unwrap_or_else(|_| {
            panic!("HOMING_SIM_SEEDS is {text:?}; it must be a whole number, how many seeds to run")
        }),
        Err(_) => SEEDS,
    }
}

fn check(part: u64, of: u64) {
    let mut bad = Vec::new();
    for seed in homing::sim::seeds(0..count()).into_iter().filter(|seed| seed % of == part) {
        let shape = Shape::of(seed);
        let outcome = run(seed, &shape);
        if !outcome.violations.is_empty() {
            println!("seed {seed}, {} steps, {shape:?}:", outcome.steps);
            outcome.violations.iter().take(8).for_each(|v| println!("    {v}"));
            bad.push(seed);
        }
        assert!(
            outcome.history.executions.len() > 20,
            "seed {seed}: only {} turns",
            outcome.history.executions.len()
        );
    }
    assert!(
        bad.is_empty(),
        "seeds {bad:?} violate the contract (see above); run one with HOMING_SIM_SEED"
    );
}

/// Proves R2.1-3, R2.4-1, R2.6-1, R2.6-2, R2.6-3, R4-6, R4-7, R5-16.
#[test]
fn seeds_are_clean_first_quarter() {
    check(0, 4);
}

/// Proves R2.1-3, R2.4-1, R2.6-1, R2.6-2, R2.6-3, R4-6, R4-7, R5-16.
#[test]
fn seeds_are_clean_second_quarter() {
    check(1, 4);
}

/// Proves R2.1-3, R2.4-1, R2.6-1, R2.6-2, R2.6-3, R4-6, R4-7, R5-16.
#[test]
fn seeds_are_clean_third_quarter() {
    check(2, 4);
}

/// Proves R2.1-3, R2.4-1, R2.6-1, R2.6-2, R2.6-3, R4-6, R4-7, R5-16.
#[test]
fn seeds_are_clean_fourth_quarter() {
    check(3, 4);
}

/// One seed is one run: twice the same trace, and another one for another seed.
#[test]
fn a_seed_repeats_itself() {
    for seed in [5, 15] {
        let hash = |seed| run(seed, &Shape::of(seed)).hash;
        assert_eq!(hash(seed), hash(seed));
        assert_ne!(hash(seed), hash(seed + 1));
    }
}

/// Whether messages that stay on a node are moved as values or encoded changes nothing at all: the
/// same seed makes the same steps in the same order.
///
/// Proves R2.1-5.
#[test]
fn values_and_bytes_make_the_same_run() {
    for seed in [2, 3, 12] {
        let hash = |through_bytes| run(seed, &Shape { through_bytes, ..Shape::of(seed) }).hash;
        assert_eq!(hash(false), hash(true), "seed {seed}");
    }
}
