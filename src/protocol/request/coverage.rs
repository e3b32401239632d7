#![forbid(unsafe_code)]
//! The cells of the pending requests.

use super::{End, Requests};
use crate::ids::Correlation;
use crate::protocol::coverage::{Machine, names};

/// What is known of a correlation.
#[derive(Clone, Copy)]
pub(super) enum State {
    Unknown,
    Pending,
    Linked,
    Ended,
}

/// What happens to it.
#[derive(Clone, Copy)]
pub(super) enum Happens {
    Submit,
    BindLink,
    Reply,
    Error,
    Cancel,
    Ends(End),
}

names! {
    STATES, state_name(state: State) {
        State::Unknown => "Unknown",
        State::Pending => "Pending",
        State::Linked => "Linked",
        State::Ended => "Ended",
    }
}

names! {
    EVENTS, name(event: Happens) {
        Happens::Submit => "Submit",
        Happens::BindLink => "BindLink",
        Happens::Reply => "Reply",
        Happens::Error => "Error",
        Happens::Cancel => "Cancel",
        Happens::Ends(End::TimedOut) => "TimedOut",
        Happens::Ends(End::LinkLost) => "LinkLost",
        Happens::Ends(End::ShutDown) => "ShutDown",
        Happens::Ends(End::Cancelled) => "GivenUp",
    }
}

const GIVEN: &str = "a correlation is given out once";
const ENDED: &str = "only what is pending is ended";
const CANCEL: &str = "who gives up cancels, and is not told of it";

/// See [`crate::protocol::coverage`].
pub static MACHINE: Machine = Machine {
    name: "request",
    states: STATES,
    events: EVENTS,
    impossible: &[
        ("Pending", "Submit", GIVEN),
        ("Linked", "Submit", GIVEN),
        ("Ended", "Submit", GIVEN),
        ("Unknown", "TimedOut", ENDED),
        ("Unknown", "LinkLost", ENDED),
        ("Unknown", "ShutDown", ENDED),
        ("Ended", "TimedOut", ENDED),
        ("Ended", "LinkLost", ENDED),
        ("Ended", "ShutDown", ENDED),
        ("Pending", "LinkLost", "it went out on no link"),
        ("Unknown", "GivenUp", CANCEL),
        ("Pending", "GivenUp", CANCEL),
        ("Linked", "GivenUp", CANCEL),
        ("Ended", "GivenUp", CANCEL),
    ],
};

impl Requests {
    pub(super) fn note(&self, correlation: Correlation, event: Happens) {
        let state = match self.pending.get(&correlation) {
            Some(pending) if pending.link.is_some() => State::Linked,
            Some(_) => State::Pending,
            None if self.ended.contains_key(&correlation) => State::Ended,
            None => State::Unknown,
        };
        MACHINE.hit(state_name(state), name(event));
    }

    /// A correlation is about to be given out; a planted fault may give out one that has ended.
    pub(super) fn note_submit() {
        MACHINE.hit(state_name(State::Unknown), name(Happens::Submit));
    }
}
