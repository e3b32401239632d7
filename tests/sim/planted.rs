#![forbid(unsafe_code)]
//! The simulator can fail: each fault planted in the nodes is found within the seeds of CI, by a
//! checker that is there for it.

use homing::env::Planted;
use homing::sim::Rule;

use super::cluster::run;
use super::seeds::SEEDS;
use super::shape::Shape;

fn is_found(fault: Planted, rules: &[Rule]) {
    for seed in 0..SEEDS {
        let shape = Shape { planted: Some(fault), ..Shape::of(seed) };
        let violations = run(seed, &shape).violations;
        if let Some(violation) = violations.iter().find(|v| rules.contains(&v.rule)) {
            println!("{fault:?} was found by seed {seed}: {violation}");
            return;
        }
    }
    panic!("{fault:?} was not found in {SEEDS} seeds");
}

macro_rules! found {
    ($($name:ident: $fault:ident by $($rule:ident)+;)*) => {
        $(#[test]
        fn $name() {
            is_found(Planted::$fault, &[$(Rule::$rule),+]);
        })*
    };
}

found! {
    an_admission_without_fences: SkipAdmissionFence by StaleFence;
    a_reply_sent_twice: DoubleReply by OneTerminal;
    a_fifo_that_is_passed: DropFifoWhileResolving by SenderOrder;
    a_correlation_used_again: ReuseCorrelation by HonestEnding;
    a_route_inserted_after_its_invalidation: InsertAfterInvalidation by Cause;
    an_answer_after_the_lease: AnswerAfterLease by LapsedOwner;
    an_unavailable_that_is_kept: CacheUnavailable by Cause Complaint;
    a_second_factory: RunTwoFactories by OneFactory;
    a_message_lost_on_credit: LoseMessageOnCredit by ExactlyOnce;
    a_message_submitted_again: ResubmitAfterLinkLoss by AtMostOnce Complaint;
    a_commit_that_is_guessed: GuessLostCommit by OneFactory SingleOwner;
    a_request_settled_twice: SettleTwice by Cause Deadline;
}
