#![forbid(unsafe_code)]
//! The cells of the resolver.

use super::{Event, Pending, Resolver};
use crate::ids::ObjectKey;
use crate::protocol::coverage::{Machine, names};

/// How far an id is.
#[derive(Clone, Copy)]
enum State {
    Idle,
    ReadingRow,
    ReadingOwner,
    ReadingMany,
    Clearing,
    Waiting,
}

names! {
    STATES, state_name(state: State) {
        State::Idle => "Idle",
        State::ReadingRow => "ReadingRow",
        State::ReadingOwner => "ReadingOwner",
        State::ReadingMany => "ReadingMany",
        State::Clearing => "Clearing",
        State::Waiting => "Waiting",
    }
}

names! {
    EVENTS, name(event: &Event) {
        Event::Lookup { .. } => "Lookup",
        Event::Cancel { .. } => "Cancel",
        Event::RowAnswered { .. } => "RowAnswered",
        Event::OwnerAnswered { .. } => "OwnerAnswered",
        Event::Cleared { .. } => "Cleared",
        Event::Invalidated { .. } => "Invalidated",
        Event::AllInvalidated => "AllInvalidated",
        Event::Tick => "Tick",
        Event::Shutdown => "Shutdown",
    }
}

/// See [`crate::protocol::coverage`].
pub static MACHINE: Machine =
    Machine { name: "resolve", states: STATES, events: EVENTS, impossible: &[] };

fn key(event: &Event) -> Option<&ObjectKey> {
    match event {
        Event::Lookup { key, .. }
        | Event::Cancel { key, .. }
        | Event::RowAnswered { key, .. }
        | Event::OwnerAnswered { key, .. }
        | Event::Cleared { key, .. }
        | Event::Invalidated { key } => Some(key),
        Event::AllInvalidated | Event::Tick | Event::Shutdown => None,
    }
}

fn state(pending: Option<&Pending>) -> State {
    let Some(pending) = pending else { return State::Idle };
    match (&pending.clearing, pending.reads.as_slice()) {
        (Some(_), _) => State::Clearing,
        (None, []) => State::Waiting,
        (None, [read]) if read.row.is_some() => State::ReadingOwner,
        (None, [_]) => State::ReadingRow,
        (None, _) => State::ReadingMany,
    }
}

impl Resolver {
    pub(super) fn note(&self, event: &Event) {
        let of = |pending| MACHINE.hit(state_name(state(pending)), name(event));
        match key(event) {
            Some(key) => of(self.ids.get(key)),
            None if self.ids.is_empty() => of(None),
            None => self.ids.values().for_each(|pending| of(Some(pending))),
        }
    }
}
