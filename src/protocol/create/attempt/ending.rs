#![forbid(unsafe_code)]
//! Ends: telling everybody, and removing what was written.

use super::super::{AttemptEnd, CreateAnswer, Effect, Incarnation, JoinReply, Shared};
use super::{Attempt, Out, Phase};
use crate::error::Error;
use crate::ids::{ObjectKey, StoreVersion};
use crate::protocol::commit::CommitOutcome;
use crate::protocol::resolve::Row;
use crate::time::Nanos;

impl Attempt {
    /// Ends the attempt without an object before anything of it is known to be written.
    pub(super) fn fail(&mut self, error: Error, shared: &mut Shared, now: Nanos, out: Out<'_>) {
        self.end = Some(AttemptEnd::Failed(error));
        self.end_nothing_written(shared, now, out);
    }

    pub(super) fn end_nothing_written(&mut self, shared: &mut Shared, now: Nanos, out: Out<'_>) {
        (self.call, self.call_until) = (None, None);
        if self.in_doubt {
            self.check_delete(shared, now, out);
        } else {
            self.clean(shared, out);
        }
    }

    pub(super) fn delete(
        &mut self,
        version: StoreVersion,
        shared: &mut Shared,
        now: Nanos,
        out: Out<'_>,
    ) {
        self.phase = Phase::Deleting;
        let (key, call, until) = self.issue_store(shared, now);
        out.push(Effect::Delete { key, call, version, until });
    }

    pub(super) fn on_deleted(
        &mut self,
        outcome: CommitOutcome,
        shared: &mut Shared,
        now: Nanos,
        out: Out<'_>,
    ) {
        match outcome {
            // A node that is fenced owns nothing; whoever meets the row clears it.
            CommitOutcome::Committed(_) | CommitOutcome::Fenced => self.clean(shared, out),
            CommitOutcome::Conflict => self.check_delete(shared, now, out),
            CommitOutcome::Unknown => {
                self.tell_end(shared, out);
                self.check_delete(shared, now, out);
            }
            CommitOutcome::Failed(_) => {
                self.tell_end(shared, out);
                self.phase = Phase::CheckingDelete;
                self.pause(now);
            }
        }
    }

    pub(in super::super) fn check_delete(&mut self, shared: &mut Shared, now: Nanos, out: Out<'_>) {
        self.phase = Phase::CheckingDelete;
        let (key, call, until) = self.issue_store(shared, now);
        out.push(Effect::ReadRow { key, call, until });
    }

    pub(super) fn decide_delete(
        &mut self,
        row: Option<Row>,
        shared: &mut Shared,
        now: Nanos,
        out: Out<'_>,
    ) {
        let stands = row.filter(|row| {
            self.is_mine(row, shared)
                && match row.attempt() {
                    Some(number) => number == self.number,
                    None => Some(row.authority.object_generation) == self.generation,
                }
        });
        match stands {
            Some(row) => self.delete(row.version, shared, now, out),
            None => self.clean(shared, out),
        }
    }

    /// Nothing of the attempt is left in the Store that should not be: it is over.
    pub(super) fn clean(&mut self, shared: &mut Shared, out: Out<'_>) {
        self.tell_end(shared, out);
        self.phase = Phase::Over;
        (self.call, self.call_until, self.retry_at) = (None, None, None);
        let left = std::mem::take(&mut self.joiners);
        for joiner in left.into_iter().chain(std::mem::take(&mut self.next_joiners)) {
            self.reply(joiner.token, JoinReply::NoSuchAttempt, out);
        }
        debug_assert!(self.callers.is_empty(), "an attempt ends with every caller answered");
    }

    pub(super) fn tell_end(&mut self, shared: &mut Shared, out: Out<'_>) {
        if let Some(end) = self.end.take() {
            self.tell(&end, out);
            shared.memory.keep(self.number, end);
        }
    }

    pub(super) fn tell(&mut self, end: &AttemptEnd, out: Out<'_>) {
        for (caller, _) in std::mem::take(&mut self.callers) {
            let is_initiator = self.initiator == Some(caller.token);
            self.answer(caller.token, told(end, is_initiator), out);
        }
        for joiner in std::mem::take(&mut self.joiners) {
            self.reply(joiner.token, JoinReply::Ended(end.clone()), out);
        }
    }

    pub(super) fn answer(&self, caller: u64, answer: CreateAnswer, out: Out<'_>) {
        out.push(Effect::Answered { key: self.key.clone(), caller, answer });
    }

    pub(super) fn reply(&self, caller: u64, reply: JoinReply, out: Out<'_>) {
        out.push(Effect::Joined { key: self.key.clone(), caller, reply });
    }
}

pub(super) fn told(end: &AttemptEnd, is_initiator: bool) -> CreateAnswer {
    match end {
        AttemptEnd::Made(made) if is_initiator => CreateAnswer::Created(made.clone()),
        AttemptEnd::Made(made) => CreateAnswer::Existing(made.clone()),
        AttemptEnd::Rejected(error) => CreateAnswer::Rejected(error.clone()),
        AttemptEnd::Failed(error) => CreateAnswer::Failed(error.clone()),
    }
}

pub(super) fn incarnation(row: &Row) -> Incarnation {
    Incarnation {
        object_generation: row.authority.object_generation,
        mesh: row.authority.mesh.clone(),
        rid: row.authority.rid.clone(),
    }
}

pub(super) fn no_answer(error: &Error) -> Error {
    Error::unavailable(format!("the Location Store did not answer: {}", error.text()))
}

pub(super) fn fenced(key: &ObjectKey) -> Error {
    Error::unavailable(format!(
        "this node was released by another one and owns nothing any more; {key} cannot be created \
         here"
    ))
}
