#![forbid(unsafe_code)]
//! Reserving, running the factory, committing.

use super::super::{AttemptEnd, CallId, Effect, FactoryOutcome, Shared, too_late};
use super::ending::{fenced, no_answer};
use super::{Attempt, Built, Out, Phase};
use crate::error::Error;
use crate::ids::{ObjectGeneration, StoreVersion};
use crate::protocol::commit::CommitOutcome;
use crate::protocol::resolve::Row;
use crate::time::Nanos;

impl Attempt {
    pub(super) fn number(&mut self, shared: &mut Shared, now: Nanos, out: Out<'_>) {
        let Some((first, _)) = self.callers.first() else { return self.clean(shared, out) };
        self.keep_type(first.type_name.clone(), out);
        if let Some(generation) = self.generation {
            return self.reserve(generation, shared, now, out);
        }
        self.phase = Phase::Numbering;
        let (key, call, until) = self.issue_store(shared, now);
        out.push(Effect::TakeGeneration { key, call, until });
    }

    pub(in super::super) fn on_generation(
        &mut self,
        call: CallId,
        generation: Result<ObjectGeneration, Error>,
        shared: &mut Shared,
        now: Nanos,
        out: Out<'_>,
    ) {
        if self.phase != Phase::Numbering || !self.take_call(call) {
            return;
        }
        match generation {
            Ok(generation) => self.reserve(generation, shared, now, out),
            Err(error) => self.fail(error, shared, now, out),
        }
    }

    pub(super) fn reserve(
        &mut self,
        generation: ObjectGeneration,
        shared: &mut Shared,
        now: Nanos,
        out: Out<'_>,
    ) {
        self.generation = Some(generation);
        self.phase = Phase::Reserving(generation);
        let (key, call, until) = self.issue_store(shared, now);
        out.push(Effect::Reserve {
            key,
            call,
            object_generation: generation,
            attempt: self.number,
            type_name: self.type_name.clone(),
            until,
        });
    }

    pub(in super::super) fn on_committed(
        &mut self,
        call: CallId,
        outcome: CommitOutcome,
        shared: &mut Shared,
        now: Nanos,
        out: Out<'_>,
    ) {
        if !self.take_call(call) {
            return;
        }
        match &self.phase {
            Phase::Clearing | Phase::ClearingStray => match outcome {
                CommitOutcome::Failed(error) => self.fail(no_answer(&error), shared, now, out),
                CommitOutcome::Fenced if self.phase == Phase::ClearingStray => {
                    self.fail(fenced(&self.key), shared, now, out);
                }
                _ => self.read(shared, now, out),
            },
            Phase::Reserving(generation) => {
                let generation = *generation;
                self.on_reserved(generation, outcome, shared, now, out);
            }
            Phase::Committing(built) => {
                let built = *built;
                self.on_ready(built, outcome, shared, now, out);
            }
            Phase::Deleting => self.on_deleted(outcome, shared, now, out),
            _ => debug_assert!(false, "no commit is out in {:?}", self.phase),
        }
    }

    pub(super) fn on_reserved(
        &mut self,
        generation: ObjectGeneration,
        outcome: CommitOutcome,
        shared: &mut Shared,
        now: Nanos,
        out: Out<'_>,
    ) {
        match outcome {
            CommitOutcome::Committed(version) => self.run(generation, version, shared, now, out),
            CommitOutcome::Conflict if shared.runs_two_factories => {
                self.run(generation, StoreVersion::FIRST, shared, now, out);
            }
            CommitOutcome::Conflict => self.read(shared, now, out),
            CommitOutcome::Unknown => {
                self.in_doubt = true;
                // The read's answer settles the doubt; should it not come, the doubt stays.
                self.read(shared, now, out);
            }
            CommitOutcome::Fenced => self.fail(fenced(&self.key), shared, now, out),
            CommitOutcome::Failed(error) => self.fail(no_answer(&error), shared, now, out),
        }
    }

    pub(super) fn run(
        &mut self,
        generation: ObjectGeneration,
        creating: StoreVersion,
        shared: &mut Shared,
        now: Nanos,
        out: Out<'_>,
    ) {
        let Some((first, _)) = self.callers.first().filter(|_| !self.is_late) else {
            self.end = Some(AttemptEnd::Failed(too_late(&self.key)));
            return self.delete(creating, shared, now, out);
        };
        let caller = first.token;
        self.initiator = Some(caller);
        let (key, call, until) = self.issue(self.deadline, shared);
        // The attempt's own deadline ends it.
        self.call_until = None;
        self.phase = Phase::Running(Built { factory: call, generation, creating });
        out.push(Effect::RunFactory {
            key,
            call,
            caller,
            object_generation: generation,
            type_name: self.type_name.clone(),
            until,
        });
    }

    pub(in super::super) fn on_factory(
        &mut self,
        call: CallId,
        outcome: FactoryOutcome,
        shared: &mut Shared,
        now: Nanos,
        out: Out<'_>,
    ) {
        let Phase::Running(built) = self.phase else { return };
        if !self.take_call(call) {
            return;
        }
        let end = match outcome {
            FactoryOutcome::Made => return self.commit_ready(built, shared, now, out),
            FactoryOutcome::Rejected(error) => AttemptEnd::Rejected(error),
            FactoryOutcome::Failed(error) => AttemptEnd::Failed(error),
        };
        self.end = Some(end);
        self.delete(built.creating, shared, now, out);
    }

    pub(super) fn commit_ready(
        &mut self,
        built: Built,
        shared: &mut Shared,
        now: Nanos,
        out: Out<'_>,
    ) {
        self.phase = Phase::Committing(built);
        let (key, call, until) = self.issue_store(shared, now);
        out.push(Effect::CommitReady {
            key,
            call,
            object_generation: built.generation,
            type_name: self.type_name.clone(),
            creating: built.creating,
            until,
        });
    }

    pub(super) fn on_ready(
        &mut self,
        built: Built,
        outcome: CommitOutcome,
        shared: &mut Shared,
        now: Nanos,
        out: Out<'_>,
    ) {
        match outcome {
            CommitOutcome::Committed(version) => self.install(built, version, shared, out),
            CommitOutcome::Unknown if shared.guesses_commits => {
                self.install(built, built.creating, shared, out);
            }
            CommitOutcome::Conflict | CommitOutcome::Unknown => {
                self.check_commit(built, shared, now, out);
            }
            CommitOutcome::Failed(_) => {
                self.phase = Phase::CheckingCommit(built);
                self.pause(now);
            }
            CommitOutcome::Fenced => {
                self.discard(built, out);
                self.end = Some(AttemptEnd::Failed(fenced(&self.key)));
                self.clean(shared, out);
            }
        }
    }

    pub(super) fn check_commit(
        &mut self,
        built: Built,
        shared: &mut Shared,
        now: Nanos,
        out: Out<'_>,
    ) {
        self.phase = Phase::CheckingCommit(built);
        let (key, call, until) = self.issue_store(shared, now);
        out.push(Effect::ReadRow { key, call, until });
    }

    /// A read decides a Ready commit in doubt.
    pub(super) fn decide_commit(
        &mut self,
        built: Built,
        row: Option<Row>,
        shared: &mut Shared,
        now: Nanos,
        out: Out<'_>,
    ) {
        let mine = row.filter(|row| self.is_mine(row, shared));
        match mine {
            Some(row)
                if row.attempt().is_none()
                    && row.authority.object_generation == built.generation =>
            {
                self.install(built, row.version, shared, out);
            }
            Some(row) if row.attempt() == Some(self.number) => {
                if self.is_late {
                    self.discard(built, out);
                    self.end = Some(AttemptEnd::Failed(too_late(&self.key)));
                    return self.delete(row.version, shared, now, out);
                }
                let built = Built { creating: row.version, ..built };
                self.commit_ready(built, shared, now, out);
            }
            _ => {
                self.discard(built, out);
                self.end = Some(AttemptEnd::Failed(Error::unavailable(format!(
                    "the creation of {} was cleared by another node while this node's lease did \
                     not stand; the object that was built is dropped",
                    self.key
                ))));
                self.clean(shared, out);
            }
        }
    }

    pub(super) fn install(
        &mut self,
        built: Built,
        version: StoreVersion,
        shared: &mut Shared,
        out: Out<'_>,
    ) {
        out.push(Effect::Install {
            key: self.key.clone(),
            factory: built.factory,
            object_generation: built.generation,
            version,
        });
        self.end = Some(AttemptEnd::Made(shared.incarnation(built.generation)));
        self.clean(shared, out);
    }

    pub(super) fn discard(&self, built: Built, out: Out<'_>) {
        out.push(Effect::Discard { key: self.key.clone(), factory: built.factory });
    }
}
