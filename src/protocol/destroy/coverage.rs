#![forbid(unsafe_code)]
//! The cells of the destroyer.

use super::{Destroyer, Event, Phase};
use crate::ids::ObjectKey;
use crate::protocol::coverage::{Machine, names};

names! {
    STATES, state(phase: Option<Phase>) {
        None => "Idle",
        Some(Phase::Closing) => "Closing",
        Some(Phase::Deleting) => "Deleting",
        Some(Phase::Checking) => "Checking",
    }
}

names! {
    EVENTS, name(event: &Event) {
        Event::Destroy { .. } => "Destroy",
        Event::Cancel { .. } => "Cancel",
        Event::Closed { .. } => "Closed",
        Event::Deleted { .. } => "Deleted",
        Event::RowAnswered { .. } => "RowAnswered",
        Event::Tick => "Tick",
        Event::Shutdown => "Shutdown",
    }
}

/// See [`crate::protocol::coverage`].
pub static MACHINE: Machine =
    Machine { name: "destroy", states: STATES, events: EVENTS, impossible: &[] };

fn key(event: &Event) -> Option<&ObjectKey> {
    match event {
        Event::Destroy { key, .. }
        | Event::Cancel { key, .. }
        | Event::Closed { key }
        | Event::Deleted { key, .. }
        | Event::RowAnswered { key, .. } => Some(key),
        Event::Tick | Event::Shutdown => None,
    }
}

impl Destroyer {
    pub(super) fn note(&self, event: &Event) {
        let of = |phase| MACHINE.hit(state(phase), name(event));
        match key(event) {
            Some(key) => of(self.ids.get(key).map(|closing| closing.phase)),
            None if self.ids.is_empty() => of(None),
            None => self.ids.values().for_each(|closing| of(Some(closing.phase))),
        }
    }
}
