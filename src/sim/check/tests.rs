#![forbid(unsafe_code)]
//! Each checker against histories that break its promise, and against ones that look like it.

use std::time::Duration;

use super::*;
use crate::env::LeaseView;
use crate::sim::fault::NodeIx;
use crate::sim::history::{Concerns, Ending, Life, ObjectIx, OpKind, Recorder, TroubleKind};
use crate::sim::task::SimTime;
use crate::time::Nanos;

/// A history told step by step, with times in milliseconds.
struct Story {
    time: SimTime,
    r: Recorder,
    object: ObjectIx,
}

const A: Life = Life { node: NodeIx(0), life: 1 };
const B: Life = Life { node: NodeIx(1), life: 1 };
const C: Life = Life { node: NodeIx(2), life: 1 };

fn ms(n: u64) -> Nanos {
    Nanos(n * 1_000_000)
}

impl Story {
    /// Object "x" made on B, which the Store knows; B's lease lasts for ever. The run ends at
    /// 200 s.
    fn new() -> Self {
        let s = Self::bare();
        s.at(0).factory(s.object, 1, B);
        s.at(1).authority(s.object, Some((1, 1, B)));
        s
    }

    fn bare() -> Self {
        let time = SimTime::default();
        let r = Recorder::new(time.clone());
        let object = r.object("x");
        Self { time, r, object }
    }

    fn at(&self, n: u64) -> &Recorder {
        self.time.set(ms(n));
        &self.r
    }

    fn key(&self, seq: u64) -> OpKey {
        OpKey { sender: 0, object: self.object, seq }
    }

    /// A operation of node A, submitted at `at` with five seconds.
    fn submit(&self, seq: u64, kind: OpKind, at: u64) -> OpKey {
        let key = self.key(seq);
        self.at(at).submitted(key, kind, A, Duration::from_secs(5));
        key
    }

    /// A send of node A, submitted and executed.
    fn run(&self, seq: u64, submitted: u64, at: u64, (generation, tenure, on): (u64, u64, Life)) {
        let key = self.submit(seq, OpKind::Send, submitted);
        self.at(at).executed(key, generation, tenure, on);
    }

    fn lease(&self, life: Life, at: u64, until: u64) {
        let view = LeaseView { admission_deadline: ms(until), fenced: false };
        self.at(at).lease(life, view);
    }

    fn trouble(&self, kind: TroubleKind, concerns: Concerns, at: u64, lasts: u64) {
        self.at(at).trouble(kind, concerns, Duration::from_millis(lasts));
    }

    fn rules(&self) -> Vec<Rule> {
        self.time.set(ms(200_000));
        let all = check_all(&self.r.snapshot(), &CheckConfig::default());
        let mut rules: Vec<Rule> = all.iter().map(|v| v.rule).collect();
        for v in &all {
            assert!(v.text.len() > 20 && v.text.contains(' '), "a sentence: {v}");
        }
        rules.dedup();
        rules
    }
}

#[test]
fn a_good_history_violates_nothing() {
    let s = Story::new();
    s.lease(B, 0, 10_000);
    for seq in 0..10 {
        let kind = if seq % 2 == 0 { OpKind::Send } else { OpKind::Request };
        let key = s.submit(seq, kind, 10 * seq + 10);
        s.at(10 * seq + 12).executed(key, 1, 1, B);
        let ending = if seq % 2 == 0 { Ending::Admitted } else { Ending::Replied(key) };
        s.at(10 * seq + 14).ended(key, ending);
    }
    assert_eq!(s.rules(), []);
}

#[test]
fn overlapping_executions_on_two_nodes() {
    // No authority known: the overlap alone.
    let s = Story::bare();
    let key = s.submit(0, OpKind::Send, 5);
    let first = s.at(10).begin(key, 1, 1, B);
    let key = s.submit(1, OpKind::Send, 11);
    let second = s.at(12).begin(key, 1, 2, C);
    s.at(14).finish(second);
    s.at(15).finish(first);
    assert_eq!(s.rules(), [Rule::SingleOwner]);
    // One after the other, with the tenure risen: a move.
    let s = Story::bare();
    let key = s.submit(0, OpKind::Send, 5);
    let first = s.at(10).begin(key, 1, 1, B);
    s.at(12).finish(first);
    s.run(1, 11, 12, (1, 2, C));
    assert_eq!(s.rules(), []);
    // The first never ended, but its process did.
    let s = Story::bare();
    let key = s.submit(0, OpKind::Send, 5);
    let _ = s.at(10).begin(key, 1, 1, B);
    s.at(11).died(B);
    s.run(1, 11, 12, (2, 1, C));
    assert_eq!(s.rules(), []);
}

#[test]
fn one_tenure_on_two_nodes_and_tenures_or_incarnations_that_come_back() {
    for (runs, wrong) in [
        (vec![(1, 1, B), (1, 1, C)], true),
        (vec![(1, 2, C), (1, 1, B)], true),
        (vec![(5, 1, B), (6, 1, C), (5, 1, B)], true),
        (vec![(6, 1, B), (5, 1, C)], false), // numbers are taken in blocks
        (vec![(5, 1, B), (5, 2, C), (5, 3, B), (6, 1, B)], false),
    ] {
        let s = Story::bare();
        for (i, (generation, tenure, at)) in (0u64..).zip(runs.iter().copied()) {
            let key = s.submit(i, OpKind::Send, 10 * i);
            s.at(10 * i + 5).executed(key, generation, tenure, at);
        }
        let expected = if wrong { vec![Rule::SingleOwner] } else { vec![] };
        assert_eq!(s.rules(), expected, "{runs:?}");
    }
}

#[test]
fn execution_by_another_than_the_authority_names() {
    let s = Story::new();
    s.run(0, 10, 15, (1, 1, C));
    assert_eq!(s.rules(), [Rule::SingleOwner]);
    // The right node, after the authority was removed.
    let s = Story::new();
    s.at(12).authority(s.object, None);
    s.at(12).removed(s.object);
    s.run(0, 10, 15, (1, 1, B));
    assert_eq!(s.rules(), [Rule::SingleOwner]);
    // Before it was written.
    let s = Story::bare();
    s.run(0, 4, 5, (1, 1, B));
    s.at(6).authority(s.object, Some((1, 1, B)));
    assert_eq!(s.rules(), [Rule::SingleOwner]);
}

#[test]
fn executed_twice() {
    let s = Story::new();
    let key = s.submit(0, OpKind::Send, 10);
    s.at(12).executed(key, 1, 1, B);
    s.at(13).executed(key, 1, 1, B);
    assert_eq!(s.rules(), [Rule::AtMostOnce]);
}

#[test]
fn out_of_order() {
    let s = Story::new();
    let (a, b) = (s.submit(0, OpKind::Send, 10), s.submit(1, OpKind::Send, 11));
    s.at(12).executed(b, 1, 1, B);
    s.at(13).executed(a, 1, 1, B);
    assert_eq!(s.rules(), [Rule::SenderOrder]);
    // Recorded later, but at an earlier instant: a core that lost time recorded first.
    let s = Story::new();
    let (a, b) = (s.submit(0, OpKind::Send, 10), s.submit(1, OpKind::Send, 11));
    s.at(20).executed(b, 1, 1, B);
    s.at(13).executed(a, 1, 1, B);
    assert_eq!(s.rules(), []);
    // Another sender's order is its own.
    let s = Story::new();
    let other = OpKey { sender: 9, ..s.key(0) };
    s.at(9).submitted(other, OpKind::Send, A, Duration::from_secs(5));
    let b = s.submit(1, OpKind::Send, 11);
    s.at(12).executed(b, 1, 1, B);
    s.at(13).executed(other, 1, 1, B);
    assert_eq!(s.rules(), []);
}

/// An admitted message that is never executed, with what a test adds.
fn lost_with(add: impl FnOnce(&Story)) -> Vec<Rule> {
    let s = Story::new();
    let key = s.submit(0, OpKind::Send, 60_000);
    s.at(60_001).ended(key, Ending::Admitted);
    add(&s);
    s.rules()
}

#[test]
fn admitted_and_lost() {
    let lost = [Rule::ExactlyOnce];
    assert_eq!(lost_with(|_| {}), lost);
    // What R5-4 excuses.
    let link = |a, b| Concerns::Link(NodeIx(a), NodeIx(b));
    assert_eq!(lost_with(|s| s.trouble(TroubleKind::LinkLost, link(1, 0), 60_500, 0)), []);
    assert_eq!(lost_with(|s| s.at(60_500).died(B)), []);
    assert_eq!(lost_with(|s| s.at(60_500).died(A)), []);
    assert_eq!(lost_with(|s| s.lease(B, 0, 61_000)), [], "its owner's lease ended at 61 s");
    assert_eq!(lost_with(|s| s.at(60_100).removed(s.object)), []);
    // What it does not.
    assert_eq!(lost_with(|s| s.trouble(TroubleKind::LinkLost, link(0, 2), 60_500, 0)), lost);
    assert_eq!(lost_with(|s| s.trouble(TroubleKind::LinkLost, link(0, 1), 59_000, 0)), lost);
    assert_eq!(lost_with(|s| s.trouble(TroubleKind::LinkLost, link(0, 1), 120_000, 0)), lost);
    assert_eq!(lost_with(|s| s.trouble(TroubleKind::LinkSlow, link(0, 1), 60_000, 900)), lost);
    assert_eq!(lost_with(|s| s.at(60_500).died(C)), lost);
    assert_eq!(lost_with(|s| s.lease(C, 0, 61_000)), lost);
    assert_eq!(lost_with(|s| s.trouble(TroubleKind::Store, Concerns::All, 60_000, 1_000)), lost);
}

#[test]
fn sent_without_asking_back_may_fail_with_a_cause_only() {
    let s = Story::new();
    s.submit(0, OpKind::Send, 60_000);
    assert_eq!(s.rules(), [Rule::ExactlyOnce]);
    s.trouble(TroubleKind::Store, Concerns::Store(NodeIx(0)), 60_000, 1_000);
    assert_eq!(s.rules(), []);
}

#[test]
fn young_operations_may_be_under_way() {
    let s = Story::new();
    let key = s.submit(0, OpKind::Send, 199_000);
    s.at(199_001).ended(key, Ending::Admitted);
    s.submit(1, OpKind::Request, 199_000);
    assert_eq!(s.rules(), []);
}

#[test]
fn requests_that_end_never_or_twice() {
    let s = Story::new();
    let key = s.submit(0, OpKind::Request, 10);
    assert_eq!(s.rules(), [Rule::OneTerminal]);
    s.at(12).executed(key, 1, 1, B);
    s.at(13).ended(key, Ending::Replied(key));
    assert_eq!(s.rules(), []);
    s.at(14).ended(key, Ending::Replied(key));
    assert_eq!(s.rules(), [Rule::OneTerminal]);
    // Its node died: nobody is there to be told.
    let s = Story::new();
    s.submit(0, OpKind::Request, 10);
    s.at(12).died(A);
    assert_eq!(s.rules(), []);
    // An ending out of nowhere.
    let s = Story::new();
    s.at(10).ended(s.key(4), Ending::Admitted);
    assert_eq!(s.rules(), [Rule::OneTerminal]);
}

#[test]
fn requests_that_end_late() {
    let late = |paused: bool| {
        let s = Story::new();
        let key = s.submit(0, OpKind::Request, 10);
        s.at(20).executed(key, 1, 1, B);
        if paused {
            s.trouble(TroubleKind::Paused, Concerns::Node(NodeIx(0)), 30, 9_000);
        }
        s.at(9_100).ended(key, Ending::Replied(key));
        s.rules()
    };
    assert_eq!(late(false), [Rule::Deadline]);
    assert_eq!(late(true), []);
}

#[test]
fn dishonest_endings() {
    let s = Story::new();
    let key = s.submit(0, OpKind::Request, 10);
    s.at(11).ended(key, Ending::Replied(key));
    assert_eq!(s.rules(), [Rule::HonestEnding], "never executed");

    let s = Story::new();
    let (a, b) = (s.submit(0, OpKind::Request, 10), s.submit(1, OpKind::Request, 10));
    for key in [a, b] {
        s.at(12).executed(key, 1, 1, B);
    }
    s.at(13).ended(a, Ending::Replied(b));
    s.at(13).ended(b, Ending::Replied(b));
    assert_eq!(s.rules(), [Rule::HonestEnding], "another's reply");

    let s = Story::new();
    let key = s.submit(0, OpKind::Request, 10);
    s.at(11).ended(key, Ending::Replied(key));
    s.at(12).executed(key, 1, 1, B);
    assert_eq!(s.rules(), [Rule::HonestEnding], "answered first");

    let s = Story::new();
    let (a, b) = (s.submit(0, OpKind::Request, 10), s.submit(1, OpKind::Send, 11));
    for key in [a, b] {
        s.at(12).executed(key, 1, 1, B);
    }
    s.at(13).ended(a, Ending::Admitted);
    s.at(13).ended(b, Ending::Replied(b));
    assert_eq!(s.rules(), [Rule::HonestEnding], "of the wrong kind");
}

#[test]
fn executions_and_answers_of_a_lapsed_owner() {
    // Executed after the lease.
    let s = Story::new();
    s.lease(B, 0, 10_000);
    let key = s.submit(0, OpKind::Send, 9_999);
    s.at(10_000).executed(key, 1, 1, B);
    assert_eq!(s.rules(), [Rule::LapsedOwner]);
    // Executed in time, answered after it, and after a renewal.
    for (renewed, expected) in [(false, vec![Rule::LapsedOwner]), (true, vec![])] {
        let s = Story::new();
        s.lease(B, 0, 10_000);
        let key = s.submit(0, OpKind::Request, 9_900);
        let run = s.at(9_950).begin(key, 1, 1, B);
        s.at(10_100).finish(run);
        if renewed {
            s.lease(B, 11_000, 20_000);
        }
        s.at(12_000).ended(key, Ending::Replied(key));
        assert_eq!(s.rules(), expected);
    }
    // Fenced.
    let s = Story::new();
    s.lease(B, 0, 100_000);
    let fenced = LeaseView { admission_deadline: ms(100_000), fenced: true };
    s.at(5_000).lease(B, fenced);
    s.run(0, 5_000, 5_001, (1, 1, B));
    assert_eq!(s.rules(), [Rule::LapsedOwner]);
}

/// A request that ended with `kind`, with what a test adds.
fn failed_with(kind: ErrorKind, add: impl FnOnce(&Story)) -> Vec<Rule> {
    let s = Story::new();
    let key = s.submit(0, OpKind::Request, 60_000);
    // Time runs out when it is over, not before.
    let ended = if kind == ErrorKind::DeadlineExceeded { 65_000 } else { 61_000 };
    s.at(ended).ended(key, Ending::Failed(kind));
    add(&s);
    s.rules()
}

#[test]
fn time_that_runs_out_too_early() {
    let s = Story::new();
    let key = s.submit(0, OpKind::Request, 60_000);
    s.at(64_900).ended(key, Ending::Failed(ErrorKind::DeadlineExceeded));
    s.trouble(TroubleKind::LinkSlow, Concerns::Link(NodeIx(0), NodeIx(1)), 60_000, 5_000);
    assert_eq!(s.rules(), [Rule::Deadline]);
}

#[test]
fn errors_without_a_cause() {
    let cause = [Rule::Cause];
    use ErrorKind::{DeadlineExceeded, InternalFailure, NotFound, ShuttingDown, Unavailable};
    for kind in [Unavailable, DeadlineExceeded, ShuttingDown, NotFound, InternalFailure] {
        assert_eq!(failed_with(kind, |_| {}), cause, "{kind}");
    }
    let link = |a, b| Concerns::Link(NodeIx(a), NodeIx(b));
    let slow = |s: &Story, concerns, at, lasts| {
        s.trouble(TroubleKind::LinkSlow, concerns, at, lasts);
    };
    assert_eq!(failed_with(DeadlineExceeded, |s| slow(s, link(0, 1), 50_000, 1_000)), []);
    assert_eq!(failed_with(DeadlineExceeded, |s| slow(s, link(0, 1), 10_000, 1_000)), cause);
    assert_eq!(failed_with(DeadlineExceeded, |s| slow(s, link(0, 2), 50_000, 1_000)), cause);
    assert_eq!(failed_with(Unavailable, |s| s.at(20_000).died(B)), [], "dead for good");
    assert_eq!(failed_with(Unavailable, |s| s.at(20_000).died(C)), cause);
    assert_eq!(failed_with(Unavailable, |s| s.lease(B, 0, 50_000)), []);
    assert_eq!(failed_with(InternalFailure, |s| s.at(60_000).died(B)), cause, "never right");
}

#[test]
fn not_found_is_right_when_the_object_was_absent() {
    use ErrorKind::NotFound;
    for (removed, again, right) in [
        (None, None, false),
        (Some(50_000), None, true),
        (Some(60_500), None, true),
        (Some(50_000), Some(60_500), true),
        (Some(50_000), Some(55_000), false),
        (Some(70_000), None, false),
    ] {
        let rules = failed_with(NotFound, |s| {
            if let Some(at) = removed {
                s.at(at).authority(s.object, None);
                s.at(at).removed(s.object);
            }
            if let Some(at) = again {
                s.at(at).authority(s.object, Some((2, 1, C)));
            }
        });
        assert_eq!(rules.is_empty(), right, "{removed:?} {again:?}");
    }
}

#[test]
fn the_application_may_reject() {
    let s = Story::new();
    let key = s.submit(0, OpKind::Request, 10);
    s.at(11).ended(key, Ending::Failed(ErrorKind::Rejected));
    assert_eq!(s.rules(), [Rule::Cause]);
    let config = CheckConfig { expected: vec![ErrorKind::Rejected], ..CheckConfig::default() };
    assert_eq!(check_all(&s.r.snapshot(), &config), []);
}

#[test]
fn executed_under_stale_fences() {
    for (at, wrong) in [(B, true), (C, false)] {
        let s = Story::bare();
        let key = s.submit(0, OpKind::Send, 10);
        s.at(12).stale_arrival(key, B);
        s.at(13).executed(key, 1, 1, at); // elsewhere: it was relayed
        let expected = if wrong { vec![Rule::StaleFence] } else { vec![] };
        assert_eq!(s.rules(), expected);
    }
}

#[test]
fn two_factories() {
    let two = |same: bool, between: &dyn Fn(&Story)| {
        let s = Story::bare();
        s.at(10).factory(s.object, 1, B);
        between(&s);
        s.at(100).factory(s.object, if same { 1 } else { 2 }, C);
        s.rules()
    };
    assert_eq!(two(true, &|_| {}), [Rule::OneFactory]);
    assert_eq!(two(false, &|_| {}), [Rule::OneFactory]);
    assert_eq!(two(false, &|s| s.at(50).removed(s.object)), []);
    assert_eq!(two(false, &|s| s.at(50).died(B)), []);
    assert_eq!(two(false, &|s| s.at(50).died(C)), [Rule::OneFactory]);
    assert_eq!(two(false, &|s| s.lease(B, 0, 50)), []);
}

#[test]
fn complaints_are_told() {
    let s = Story::new();
    s.at(3).complain("the counter went backwards");
    assert_eq!(s.rules(), [Rule::Complaint]);
    let s = Story::new();
    s.submit(0, OpKind::Request, 1);
    s.at(150).ended(s.key(0), Ending::Replied(s.key(0)));
    s.at(2).executed(s.key(0), 1, 1, B);
    s.submit(0, OpKind::Request, 1);
    assert!(s.rules().contains(&Rule::Complaint), "the same number twice");
}
