#![forbid(unsafe_code)]
//! Carries out what the destruction machine wants: closing an object, then deleting its row.

use slab::Slab;

use super::Core;
use super::objects::State;
use super::store_calls::{StoreUse, row_of};
use crate::env::{Env, Failpoint, StoreAnswer, StoreOp};
use crate::error::Error;
use crate::ids::{ObjectGeneration, ObjectKey};
use crate::node::counters::Counter;
use crate::node::operation::{Mail, ReplyTo};
use crate::protocol::commit::CommitOutcome;
use crate::protocol::create::{CallId, Identity};
use crate::protocol::destroy::{Destroyer, Effect, Event, Standing};
use crate::store::records;
use crate::time::Nanos;
use crate::wire::Status;

/// A caller that does not exist: a node that shuts down, or an object whose turn panicked.
const NOBODY: u64 = u64::MAX;

/// A Store call of an ending object.
pub(super) enum DestroyStep {
    Delete { key: ObjectKey, call: CallId },
    Row { key: ObjectKey, call: CallId },
}

/// The destructions of a core.
pub(super) struct Destroys {
    destroyer: Destroyer,
    callers: Slab<ReplyTo>,
}

impl Destroys {
    pub(super) fn new(me: Identity, store_timeout: std::time::Duration) -> Self {
        Self { destroyer: Destroyer::new(me, store_timeout), callers: Slab::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.destroyer.is_empty()
    }

    /// Those who wait for a destruction.
    pub(super) fn callers(&self) -> usize {
        self.callers.len()
    }

    pub(super) fn next_deadline(&self) -> Nanos {
        self.destroyer.next_deadline().unwrap_or(Nanos::MAX)
    }
}

#[cfg(feature = "sim")]
impl Destroys {
    /// What is held, for tests that look for what was left behind.
    pub(super) fn held(&self) -> [(&'static str, u64); 2] {
        let is_busy = u64::from(!self.is_empty());
        [("destructions", is_busy), ("destroyers' callers", self.callers.len() as u64)]
    }
}

impl<E: Env<Mail = Mail>> Core<E> {
    /// Ends the object at `index` if it is this incarnation (R2.6-2).
    pub(super) fn destroy_here(
        &mut self,
        env: &mut E,
        index: usize,
        object_generation: ObjectGeneration,
        to: ReplyTo,
        deadline: Nanos,
    ) {
        let caller = self.destroys.callers.insert(to) as u64;
        self.begin_destroy(env, index, object_generation, caller, deadline);
    }

    /// Ends an object nobody asked to end.
    pub(super) fn end_object(&mut self, env: &mut E, index: usize) {
        let generation = self.objects.objects[index].generation;
        self.begin_destroy(env, index, generation, NOBODY, Nanos::MAX);
    }

    fn begin_destroy(
        &mut self,
        env: &mut E,
        index: usize,
        object_generation: ObjectGeneration,
        caller: u64,
        deadline: Nanos,
    ) {
        let object = &self.objects.objects[index];
        let key = object.key.clone();
        let standing = (object.state == State::Ready)
            .then_some(Standing { object_generation: object.generation, version: object.version });
        let event = Event::Destroy { key, caller, object_generation, deadline, standing };
        self.step_destroyer(env, event);
    }

    /// No turn of the object runs or will, and `on_closing` has run.
    pub(super) fn on_closed(&mut self, env: &mut E, index: usize) {
        let object = &mut self.objects.objects[index];
        object.turn = None;
        let key = object.key.clone();
        self.step_destroyer(env, Event::Closed { key });
    }

    /// Gives the machine an event and carries out what it wants.
    pub(super) fn step_destroyer(&mut self, env: &mut E, event: Event) {
        let mut effects = Vec::new();
        self.destroys.destroyer.handle(event, self.now, &mut effects);
        for effect in effects {
            self.do_destroy_effect(env, effect);
        }
    }

    fn do_destroy_effect(&mut self, env: &mut E, effect: Effect) {
        match effect {
            Effect::Close { key } => {
                env.reached(Failpoint::DestroyClose);
                if let Some(index) = self.objects.index(&key) {
                    self.begin_close(env, index);
                }
            }
            // Its state is gone and its queue was ended when it closed; what is left of it says
            // Unavailable until its row is gone.
            Effect::Drop { .. } => {}
            Effect::Delete { key, call, version, until } => {
                env.reached(Failpoint::DestroyDelete);
                let name = records::authority_key(key.kind(), key.id());
                let batch = records::delete_row(name, version, &self.shared.identity.owner);
                let used = StoreUse::Destroy(DestroyStep::Delete { key, call });
                self.store_call(env, StoreOp::Commit(batch), until.since(self.now), used);
            }
            Effect::ReadRow { key, call, until } => {
                let op = StoreOp::Read(vec![records::authority_key(key.kind(), key.id())]);
                let used = StoreUse::Destroy(DestroyStep::Row { key, call });
                self.store_call(env, op, until.since(self.now), used);
            }
            Effect::Released { key, object_generation } => {
                env.reached(Failpoint::DestroyReleased);
                let found = self.objects.index(&key);
                let index =
                    found.filter(|i| self.objects.objects[*i].generation == object_generation);
                if let Some(index) = index {
                    self.remove_object(env, index);
                    self.count(Counter::ObjectsDestroyed, 1);
                }
            }
            Effect::Answered { key, caller, answer } => self.answer_destroyer(&key, caller, answer),
        }
    }

    fn answer_destroyer(&mut self, key: &ObjectKey, caller: u64, answer: Result<(), Error>) {
        let Some(to) = self.destroys.callers.try_remove(caller as usize) else { return };
        match answer {
            Ok(()) => self.answer_empty(key, to),
            Err(e) => {
                let status = Status::of_kind(e.kind(), key.kind());
                self.refuse(key, Some(to), status, e.text());
            }
        }
    }

    pub(super) fn on_destroy_store(&mut self, env: &mut E, step: DestroyStep, answer: StoreAnswer) {
        let event = match step {
            DestroyStep::Delete { key, call } => {
                Event::Deleted { key, call, outcome: CommitOutcome::of(&answer) }
            }
            DestroyStep::Row { key, call } => {
                let row = row_of(&key, answer);
                Event::RowAnswered { key, call, row }
            }
        };
        self.step_destroyer(env, event);
    }
}
