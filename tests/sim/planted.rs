#![forbid(unsafe_code)]
//! The simulator can fail: each fault planted in the nodes is found within the seeds of CI.

use homing::env::Planted;

use super::cluster::{Shape, run};

/// Seeds in which a planted fault has to show.
const SEEDS: u64 = 200;

fn is_found(fault: Planted) {
    let found = (0..SEEDS).find_map(|seed| {
        let shape = Shape { planted: Some(fault), ..Shape::of(seed) };
        let outcome = run(seed, &shape);
        outcome.violations.into_iter().next().map(|violation| (seed, violation))
    });
    let (seed, violation) =
        found.unwrap_or_else(|| panic!("{fault:?} was not found in {SEEDS} seeds"));
    println!("{fault:?} was found by seed {seed}: {violation:?}");
}

macro_rules! found {
    ($($name:ident: $fault:ident;)*) => {
        $(#[test]
        fn $name() {
            is_found(Planted::$fault);
        })*
    };
}

found! {
    a_fifo_that_is_passed: DropFifoWhileResolving;
    a_correlation_used_again: ReuseCorrelation;
    an_answer_after_the_lease: AnswerAfterLease;
    an_unavailable_that_is_kept: CacheUnavailable;
    a_second_factory: RunTwoFactories;
    a_message_lost_on_credit: LoseMessageOnCredit;
    a_commit_that_is_guessed: GuessLostCommit;
    a_request_settled_twice: SettleTwice;
}
