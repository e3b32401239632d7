#![forbid(unsafe_code)]
//! How operations end: once, in time, honestly, and not without a cause.

use super::cause::Causes;
use super::cause::Timeline;
use super::{CheckConfig, Rule, Violation, op_name, runs_of};
use crate::error::ErrorKind;
use crate::sim::history::{Concerns, Ending, History, OpKind, TroubleKind};

/// What was admitted, or answered, was executed, unless R5-4 excuses it.
///
/// A one-way message whose sender asked for nothing back (no ending recorded) may also have ended
/// with an error that had a cause.
#[must_use]
pub fn exactly_once(h: &History, config: &CheckConfig) -> Vec<Violation> {
    let causes = Causes::new(h, config);
    let runs = runs_of(h);
    let mut found = Vec::new();
    for (&key, operation) in &h.operations {
        let young = operation.submitted + config.grace > h.end;
        if operation.kind != OpKind::Send || young || runs.contains_key(&key) {
            continue;
        }
        let (admitted, excused) = match operation.endings.first() {
            Some((_, Ending::Failed(_))) => continue, // has to have a cause of its own
            Some(_) => ("was admitted", causes.loss(key, operation)),
            None => {
                let until = operation.submitted + config.flight;
                let error = causes.error(key, operation, until.min(h.end));
                ("was sent", causes.loss(key, operation) || error)
            }
        };
        if !excused {
            found.push(Violation::new(
                Rule::ExactlyOnce,
                format!(
                    "{} {admitted} at {} and never executed, and nothing excuses it",
                    op_name(h, key),
                    operation.submitted
                ),
            ));
        }
    }
    found
}

/// Every request ends exactly once (R4-6), and nothing ends that was not submitted.
#[must_use]
pub fn one_terminal(h: &History, config: &CheckConfig) -> Vec<Violation> {
    let mut found = Vec::new();
    for (&key, operation) in &h.operations {
        match operation.endings.len() {
            1 => {}
            0 => {
                let source_died = h.deaths.iter().any(|&(life, _)| life == operation.source);
                let young = operation.deadline + config.grace > h.end;
                if operation.kind == OpKind::Request && !source_died && !young {
                    found.push(Violation::new(
                        Rule::OneTerminal,
                        format!(
                            "{} was submitted at {} with deadline {} and never ended",
                            op_name(h, key),
                            operation.submitted,
                            operation.deadline
                        ),
                    ));
                }
            }
            count => found.push(Violation::new(
                Rule::OneTerminal,
                format!("{} ended {count} times: {:?}", op_name(h, key), operation.endings),
            )),
        }
    }
    for (key, at, ending) in &h.stray_endings {
        found.push(Violation::new(
            Rule::OneTerminal,
            format!("{} ended at {at} with {ending:?} and was never submitted", op_name(h, *key)),
        ));
    }
    found
}

/// A request has ended by its deadline, unless its node stood still, or a turn made it and its
/// node's lease was lapsed.
#[must_use]
pub fn deadlines_kept(h: &History, config: &CheckConfig) -> Vec<Violation> {
    let timeline = Timeline::new(h);
    let mut found = Vec::new();
    for (&key, operation) in &h.operations {
        let Some(&(ended, _)) = operation.endings.first() else { continue };
        if operation.kind != OpKind::Request || ended <= operation.deadline + config.late {
            continue;
        }
        let stood_still = h.troubles.iter().any(|t| {
            t.kind == TroubleKind::Paused
                && t.concerns == Concerns::Node(operation.source.node)
                && t.from <= ended
                && t.to >= operation.submitted
        });
        let lapsed = operation.in_turn
            && timeline.lapsed_within(operation.source, operation.submitted, ended);
        if !stood_still && !lapsed {
            found.push(Violation::new(
                Rule::Deadline,
                format!(
                    "{} had to end by {} and ended at {ended}",
                    op_name(h, key),
                    operation.deadline
                ),
            ));
        }
    }
    found
}

/// A reply is the operation's own and comes after its execution; a one-way message is not
/// answered.
#[must_use]
pub fn honest_endings(h: &History) -> Vec<Violation> {
    let runs = runs_of(h);
    let mut found = Vec::new();
    for (&key, operation) in &h.operations {
        for &(at, ending) in &operation.endings {
            let wrong = match (operation.kind, ending) {
                (_, Ending::Failed(_)) | (OpKind::Send, Ending::Admitted) => None,
                (OpKind::Send, Ending::Replied(_)) => Some("is one-way and was answered".into()),
                (OpKind::Request, Ending::Admitted) => Some("ended without a reply".into()),
                (OpKind::Request, Ending::Replied(of)) if of != key => {
                    Some(format!("was given the reply to {}", op_name(h, of)))
                }
                (OpKind::Request, Ending::Replied(_)) => {
                    let ran = runs.get(&key).is_some_and(|r| r.iter().any(|r| r.from <= at));
                    (!ran).then(|| "was answered and had not been executed".to_owned())
                }
            };
            if let Some(text) = wrong {
                let text = format!("{} {text} (at {at})", op_name(h, key));
                found.push(Violation::new(Rule::HonestEnding, text));
            }
        }
    }
    found
}

/// An error has a cause: trouble that concerned the operation, or the object's absence.
#[must_use]
pub fn errors_have_causes(h: &History, config: &CheckConfig) -> Vec<Violation> {
    let causes = Causes::new(h, config);
    let mut found = Vec::new();
    for (&key, operation) in &h.operations {
        for &(at, ending) in &operation.endings {
            let Ending::Failed(kind) = ending else { continue };
            let fine = match kind {
                _ if config.expected.contains(&kind) => true,
                ErrorKind::NotFound => {
                    causes.timeline().stood(key.object, operation.submitted, at) != Some(true)
                }
                ErrorKind::Unavailable | ErrorKind::DeadlineExceeded | ErrorKind::ShuttingDown => {
                    causes.error(key, operation, at)
                }
                _ => false,
            };
            if !fine {
                found.push(Violation::new(
                    Rule::Cause,
                    format!(
                        "{} submitted at {} by {} ended at {at} with {kind}, and nothing explains it",
                        op_name(h, key),
                        operation.submitted,
                        operation.source
                    ),
                ));
            }
        }
    }
    found
}
