#![forbid(unsafe_code)]
//! The cells of the queue in front of the Store.

use super::{CallResult, Flight, StoreQueue};
use crate::protocol::coverage::{Machine, names};

/// How the queue stands.
#[derive(Clone, Copy)]
enum State {
    Idle,
    Queued,
    Reading,
    Committing,
    Scanning,
}

/// What happens to it.
#[derive(Clone, Copy)]
pub(super) enum Happens<'a> {
    Push,
    NextCall,
    Result(&'a CallResult),
}

names! {
    STATES, state_name(state: State) {
        State::Idle => "Idle",
        State::Queued => "Queued",
        State::Reading => "Reading",
        State::Committing => "Committing",
        State::Scanning => "Scanning",
    }
}

names! {
    EVENTS, name(event: Happens<'_>) {
        Happens::Push => "Push",
        Happens::NextCall => "NextCall",
        Happens::Result(CallResult::Read(_)) => "ReadResult",
        Happens::Result(CallResult::Commit(_)) => "CommitResult",
        Happens::Result(CallResult::Scan(_)) => "ScanResult",
    }
}

const NONE_OUT: &str = "the result is not of the call that is out";

/// See [`crate::protocol::coverage`].
pub static MACHINE: Machine = Machine {
    name: "batch",
    states: STATES,
    events: EVENTS,
    impossible: &[
        ("Idle", "ReadResult", NONE_OUT),
        ("Idle", "CommitResult", NONE_OUT),
        ("Idle", "ScanResult", NONE_OUT),
        ("Queued", "ReadResult", NONE_OUT),
        ("Queued", "CommitResult", NONE_OUT),
        ("Queued", "ScanResult", NONE_OUT),
        ("Reading", "CommitResult", NONE_OUT),
        ("Reading", "ScanResult", NONE_OUT),
        ("Committing", "ReadResult", NONE_OUT),
        ("Committing", "ScanResult", NONE_OUT),
        ("Scanning", "ReadResult", NONE_OUT),
        ("Scanning", "CommitResult", NONE_OUT),
    ],
};

impl<J> StoreQueue<J> {
    pub(super) fn note(&self, event: Happens<'_>) {
        let state = match self.flight {
            Flight::None if self.waiting.is_empty() => State::Idle,
            Flight::None => State::Queued,
            Flight::Read(..) => State::Reading,
            Flight::Commit(_) => State::Committing,
            Flight::Scan(_) => State::Scanning,
        };
        MACHINE.hit(state_name(state), name(event));
    }
}
