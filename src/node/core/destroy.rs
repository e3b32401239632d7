#![forbid(unsafe_code)]
//! The end of an object: closed, its row deleted, then the id is Missing (R2.2b-2).

use super::Core;
use super::objects::State;
use super::store_calls::{StoreUse, row_of};
use crate::env::{Env, StoreAnswer, StoreOp};
use crate::error::{Error, ErrorKind};
use crate::ids::{FixedMap, ObjectGeneration, ObjectKey, StoreVersion};
use crate::node::counters::Counter;
use crate::node::operation::{Mail, ReplyTo};
use crate::protocol::commit::CommitOutcome;
use crate::store::records;
use crate::wire::Status;

/// A Store call of an ending object.
pub(super) enum DestroyStep {
    Delete { key: ObjectKey },
    Check { key: ObjectKey },
}

/// Who waits for an object's end.
#[derive(Default)]
pub(super) struct Destroys(FixedMap<ObjectKey, Vec<ReplyTo>>);

impl<E: Env<Mail = Mail>> Core<E> {
    /// Ends the object at `index` if it is this incarnation.
    pub(super) fn destroy_here(
        &mut self,
        env: &mut E,
        index: usize,
        generation: ObjectGeneration,
        to: ReplyTo,
    ) {
        let object = &self.objects.objects[index];
        let (key, current, state) = (object.key.clone(), object.generation, object.state);
        if current != generation {
            let status = Status::of_kind(ErrorKind::InvalidOperation, key.kind());
            let text =
                format!("{key} generation {generation} is not here; generation {current} is");
            self.refuse(&key, Some(to), status, &text);
            return;
        }
        self.destroys.0.entry(key).or_default().push(to);
        if state != State::Closing {
            self.begin_close(env, index);
        }
    }

    /// The object is closed, its state gone: its row goes.
    pub(super) fn on_closed(&mut self, env: &mut E, index: usize) {
        let object = &mut self.objects.objects[index];
        object.turn = None;
        let (key, version) = (object.key.clone(), object.version);
        self.delete_row(env, key, version);
    }

    /// A turn panicked: nothing of the object's state is used again.
    pub(super) fn close_after_panic(&mut self, env: &mut E, index: usize) {
        if self.objects.objects[index].state != State::Closing {
            self.begin_close(env, index);
        } else {
            self.on_closed(env, index);
        }
    }

    fn delete_row(&mut self, env: &mut E, key: ObjectKey, version: StoreVersion) {
        let name = records::authority_key(key.kind(), key.id());
        let batch = records::delete_row(name, version, &self.shared.identity.owner);
        self.destroy_call(env, StoreOp::Commit(batch), DestroyStep::Delete { key });
    }

    fn destroy_call(&mut self, env: &mut E, op: StoreOp, step: DestroyStep) {
        let budget = self.shared.settings.store_timeout;
        let token = self.store_call(env, op, budget, StoreUse::Destroy(step));
        self.set_timer(self.now + budget, super::Timer::Store(token));
    }

    fn check_row(&mut self, env: &mut E, key: ObjectKey) {
        let op = StoreOp::Read(vec![records::authority_key(key.kind(), key.id())]);
        self.destroy_call(env, op, DestroyStep::Check { key });
    }

    pub(super) fn on_destroy_store(&mut self, env: &mut E, step: DestroyStep, answer: StoreAnswer) {
        match step {
            DestroyStep::Delete { key } => match CommitOutcome::of(&answer) {
                CommitOutcome::Committed(_) => self.end_destroy(env, &key, Ok(())),
                // Nothing is guessed: the row says what happened.
                CommitOutcome::Conflict | CommitOutcome::Unknown => self.check_row(env, key),
                CommitOutcome::Fenced => {
                    let error = Error::unavailable(format!("{key}: this node is fenced"));
                    self.end_destroy(env, &key, Err(error));
                }
                CommitOutcome::Failed(e) => self.retry_destroy(env, key, e),
            },
            DestroyStep::Check { key } => {
                let Some(index) = self.objects.index(&key) else { return };
                let generation = self.objects.objects[index].generation;
                match row_of(&key, answer) {
                    Ok(Some(row)) if row.authority.object_generation == generation => {
                        self.objects.objects[index].version = row.version;
                        self.delete_row(env, key, row.version);
                    }
                    Ok(_) => self.end_destroy(env, &key, Ok(())),
                    Err(e) => self.retry_destroy(env, key, e),
                }
            }
        }
    }

    /// The Store does not answer: whoever waits is told, and the row is looked at again later.
    fn retry_destroy(&mut self, env: &mut E, key: ObjectKey, error: Error) {
        self.answer_destroyers(&key, &Err(error));
        let _ = env;
        self.set_timer(self.now + self.shared.settings.store_timeout, super::Timer::Destroy(key));
    }

    pub(super) fn tick_destroy(&mut self, env: &mut E, key: ObjectKey) {
        if self.objects.index(&key).is_some_and(|i| self.objects.objects[i].state == State::Closing)
        {
            self.check_row(env, key);
        }
    }

    fn end_destroy(&mut self, env: &mut E, key: &ObjectKey, end: Result<(), Error>) {
        if let Some(index) = self.objects.index(key) {
            self.remove_object(env, index);
            self.count(Counter::ObjectsDestroyed, 1);
        }
        self.answer_destroyers(key, &end);
    }

    fn answer_destroyers(&mut self, key: &ObjectKey, end: &Result<(), Error>) {
        for to in self.destroys.0.remove(key).into_iter().flatten() {
            match end {
                Ok(()) => self.answer_empty(key, to),
                Err(e) => {
                    let status = Status::of_kind(e.kind(), key.kind());
                    self.refuse(key, Some(to), status, e.text());
                }
            }
        }
    }
}
