#![forbid(unsafe_code)]
//! The cells of the creation coordinator.

use super::attempt::{Attempt, Phase};
use super::{Creator, Event};
use crate::ids::ObjectKey;
use crate::protocol::coverage::{Machine, names};

names! {
    STATES, state(phase: Option<&Phase>) {
        None => "Idle",
        Some(Phase::New) => "New",
        Some(Phase::Reading) => "Reading",
        Some(Phase::ReadingOwner(_)) => "ReadingOwner",
        Some(Phase::Clearing) => "Clearing",
        Some(Phase::ClearingStray) => "ClearingStray",
        Some(Phase::Joining(_)) => "Joining",
        Some(Phase::Numbering) => "Numbering",
        Some(Phase::Reserving(_)) => "Reserving",
        Some(Phase::Running(_)) => "Running",
        Some(Phase::Committing(_)) => "Committing",
        Some(Phase::CheckingCommit(_)) => "CheckingCommit",
        Some(Phase::Deleting) => "Deleting",
        Some(Phase::CheckingDelete) => "CheckingDelete",
        Some(Phase::Over) => "Over",
    }
}

names! {
    EVENTS, name(event: &Event) {
        Event::Create { .. } => "Create",
        Event::Join { .. } => "Join",
        Event::Cancel { .. } => "Cancel",
        Event::RowAnswered { .. } => "RowAnswered",
        Event::OwnerAnswered { .. } => "OwnerAnswered",
        Event::JoinAnswered { .. } => "JoinAnswered",
        Event::GenerationTaken { .. } => "GenerationTaken",
        Event::Committed { .. } => "Committed",
        Event::FactoryEnded { .. } => "FactoryEnded",
        Event::Tick => "Tick",
        Event::Shutdown => "Shutdown",
    }
}

const NEW: &str = "an attempt reads in the step that makes it";
const OVER: &str = "an attempt that is over is forgotten in the same step";

/// See [`crate::protocol::coverage`].
pub static MACHINE: Machine = Machine {
    name: "create",
    states: STATES,
    events: EVENTS,
    impossible: &[
        ("New", "Create", NEW),
        ("New", "Join", NEW),
        ("New", "Cancel", NEW),
        ("New", "RowAnswered", NEW),
        ("New", "OwnerAnswered", NEW),
        ("New", "JoinAnswered", NEW),
        ("New", "GenerationTaken", NEW),
        ("New", "Committed", NEW),
        ("New", "FactoryEnded", NEW),
        ("New", "Tick", NEW),
        ("New", "Shutdown", NEW),
        ("Over", "Create", OVER),
        ("Over", "Join", OVER),
        ("Over", "Cancel", OVER),
        ("Over", "RowAnswered", OVER),
        ("Over", "OwnerAnswered", OVER),
        ("Over", "JoinAnswered", OVER),
        ("Over", "GenerationTaken", OVER),
        ("Over", "Committed", OVER),
        ("Over", "FactoryEnded", OVER),
        ("Over", "Tick", OVER),
        ("Over", "Shutdown", OVER),
    ],
};

fn key(event: &Event) -> Option<&ObjectKey> {
    match event {
        Event::Create { key, .. }
        | Event::Join { key, .. }
        | Event::Cancel { key, .. }
        | Event::RowAnswered { key, .. }
        | Event::OwnerAnswered { key, .. }
        | Event::JoinAnswered { key, .. }
        | Event::GenerationTaken { key, .. }
        | Event::Committed { key, .. }
        | Event::FactoryEnded { key, .. } => Some(key),
        Event::Tick | Event::Shutdown => None,
    }
}

impl Creator {
    pub(super) fn note(&self, event: &Event) {
        let of = |attempt: Option<&Attempt>| {
            MACHINE.hit(state(attempt.map(Attempt::phase)), name(event));
        };
        match key(event) {
            Some(key) => of(self.attempts.get(key)),
            None if self.attempts.is_empty() => of(None),
            None => self.attempts.values().for_each(|attempt| of(Some(attempt))),
        }
    }
}
