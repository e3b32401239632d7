#![forbid(unsafe_code)]
//! The cells of the sender's side of a window.

use super::CreditWindow;
use crate::protocol::coverage::{Machine, names};

/// How a window stands.
#[derive(Clone, Copy)]
enum State {
    Full,
    Open,
    Waiting,
    Overdrawn,
}

/// What happens to it.
#[derive(Clone, Copy)]
pub(super) enum Happens {
    Take,
    Withdraw,
    GiveBack,
}

names! {
    STATES, state_name(state: State) {
        State::Full => "Full",
        State::Open => "Open",
        State::Waiting => "Waiting",
        State::Overdrawn => "Overdrawn",
    }
}

names! {
    EVENTS, name(event: Happens) {
        Happens::Take => "Take",
        Happens::Withdraw => "Withdraw",
        Happens::GiveBack => "GiveBack",
    }
}

/// See [`crate::protocol::coverage`].
pub static MACHINE: Machine =
    Machine { name: "credit", states: STATES, events: EVENTS, impossible: &[] };

impl CreditWindow {
    pub(super) fn note(&self, event: Happens) {
        let state = if self.first_waiter.is_some() {
            State::Waiting
        } else if self.outstanding_bytes > self.window_bytes {
            State::Overdrawn
        } else if self.is_full() {
            State::Full
        } else {
            State::Open
        };
        MACHINE.hit(state_name(state), name(event));
    }
}
