#![forbid(unsafe_code)]
//! Checkers: pure functions over a [`History`] that say what it violates.
//!
//! Each checker is one promise of the contract and gives one sentence per violation. They know
//! nothing of nodes; whoever records a history can have it checked.
//!
//! Two lengths of time are judgements rather than facts, and are in [`CheckConfig`]: how long
//! trouble has after-effects, and how long an admitted one-way message can be under way.

mod cause;
mod endings;
mod owners;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

pub use endings::{deadlines_kept, errors_have_causes, exactly_once, honest_endings, one_terminal};
pub use owners::{lapsed_owner, one_factory, single_owner, stale_fences};

use super::history::{Execution, History, OpKey};
use crate::error::ErrorKind;

/// Which promise is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// R5-2: one node runs an incarnation, and it is the authority's owner.
    SingleOwner,
    /// R5-4: no operation is executed twice.
    AtMostOnce,
    /// R5-4: what was admitted is executed, unless excused.
    ExactlyOnce,
    /// One sender's operations to one object are executed in the order of submission.
    SenderOrder,
    /// R4-6: a request ends once.
    OneTerminal,
    /// R4-6: by its deadline.
    Deadline,
    /// R5-16: a node whose lease lapsed executes and answers nothing.
    LapsedOwner,
    /// An ending is of its operation: its own reply, after its execution.
    HonestEnding,
    /// An error has a cause.
    Cause,
    /// R2.1-3: nothing is executed under fences that are not the node's own.
    StaleFence,
    /// R2.4-2 and creation: one of many creators runs its factory.
    OneFactory,
    /// What the test itself found.
    Complaint,
}

/// One broken promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which.
    pub rule: Rule,
    /// What happened, in a sentence.
    pub text: String,
}

impl Violation {
    fn new(rule: Rule, text: impl Into<String>) -> Self {
        Self { rule, text: text.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.rule, self.text)
    }
}

/// Judgements of the checkers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckConfig {
    /// How long trouble has after-effects: reconnecting, a lease to be taken again. Operations
    /// younger than this at the end of the run may be unfinished.
    pub grace: Duration,
    /// How long an admitted one-way message can be under way.
    pub flight: Duration,
    /// How long a route is cached: an operation may go where an object was removed that long ago,
    /// and end with an error (R2.6-3).
    pub route_age: Duration,
    /// How far after its deadline a request may end.
    pub late: Duration,
    /// Errors the application itself gives.
    pub expected: Vec<ErrorKind>,
}

impl Default for CheckConfig {
    fn default() -> Self {
        Self {
            grace: Duration::from_secs(15),
            flight: Duration::from_secs(30),
            route_age: crate::limits::DEFAULT_ROUTE_CACHE_MAX_AGE,
            late: Duration::from_millis(500),
            expected: Vec::new(),
        }
    }
}

/// All checkers.
///
/// ```
/// use homing::sim::{CheckConfig, History, check_all};
/// assert!(check_all(&History::default(), &CheckConfig::default()).is_empty());
/// ```
#[must_use]
pub fn check_all(h: &History, config: &CheckConfig) -> Vec<Violation> {
    [
        complaints(h),
        single_owner(h),
        at_most_once(h),
        exactly_once(h, config),
        sender_order(h),
        one_terminal(h, config),
        deadlines_kept(h, config),
        lapsed_owner(h),
        honest_endings(h),
        errors_have_causes(h, config),
        stale_fences(h),
        one_factory(h),
    ]
    .concat()
}

/// What the test itself complained about.
#[must_use]
pub fn complaints(h: &History) -> Vec<Violation> {
    let told = h.complaints.iter();
    told.map(|(at, text)| Violation::new(Rule::Complaint, format!("{at}: {text}"))).collect()
}

/// No operation is executed twice (R5-4).
#[must_use]
pub fn at_most_once(h: &History) -> Vec<Violation> {
    let mut found = Vec::new();
    for (key, runs) in runs_of(h) {
        if let [first, .., last] = &runs[..] {
            found.push(Violation::new(
                Rule::AtMostOnce,
                format!(
                    "{} was executed {} times: at {} by {}, at last at {} by {}",
                    op_name(h, key),
                    runs.len(),
                    first.from,
                    first.at,
                    last.from,
                    last.at
                ),
            ));
        }
    }
    found
}

/// One sender's operations to one incarnation are executed in the order of submission, with gaps
/// where some were not executed. Nothing is promised between incarnations: a message that is late
/// on its way to where the object was may meet the next one there (R2.6-1).
#[must_use]
pub fn sender_order(h: &History) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut last: BTreeMap<_, &Execution> = BTreeMap::new();
    for run in in_time(h) {
        let order = (run.key.sender, run.key.object, run.generation);
        match last.get(&order) {
            Some(before) if run.key.seq < before.key.seq => found.push(Violation::new(
                Rule::SenderOrder,
                format!(
                    "{} was executed at {} by {}, after number {} of the same sender at {} by {}",
                    op_name(h, run.key),
                    run.from,
                    run.at,
                    before.key.seq,
                    before.from,
                    before.at
                ),
            )),
            _ => {
                last.insert(order, run);
            }
        }
    }
    found
}

/// Executions by operation, in time.
fn runs_of(h: &History) -> BTreeMap<OpKey, Vec<&Execution>> {
    let mut runs: BTreeMap<OpKey, Vec<&Execution>> = BTreeMap::new();
    for run in in_time(h) {
        runs.entry(run.key).or_default().push(run);
    }
    runs
}

/// Executions in the order of their beginning. A core that lost time inside an iteration records
/// later instants before others record earlier ones.
fn in_time(h: &History) -> Vec<&Execution> {
    let mut runs: Vec<&Execution> = h.executions.iter().collect();
    runs.sort_by_key(|run| run.from);
    runs
}

/// An operation in words.
fn op_name(h: &History, key: OpKey) -> String {
    let kind = h.operations.get(&key).map_or("operation", |o| match o.kind {
        super::history::OpKind::Send => "send",
        super::history::OpKind::Request => "request",
    });
    format!("{kind} {} of sender {} to {:?}", key.seq, key.sender, h.name(key.object))
}
