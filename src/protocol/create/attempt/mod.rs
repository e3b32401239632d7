#![forbid(unsafe_code)]
//! One attempt at one id: its phases and the steps between them.

mod ending;
mod making;
mod reading;

use std::sync::Arc;

use super::{
    AttemptEnd, CallId, CreateAnswer, Effect, JoinReply, Shared, shutting_down, too_late,
    type_mismatch,
};
use crate::error::Error;
use crate::ids::{ObjectGeneration, ObjectKey, StoreVersion};
use crate::protocol::commit::CommitOutcome;
use crate::protocol::resolve::Row;
use crate::time::Nanos;

/// Somebody who waits: a caller here, or a node that joined.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Caller {
    pub(super) token: u64,
    pub(super) deadline: Nanos,
    pub(super) type_name: Arc<str>,
    /// The number of an attempt this call may start.
    pub(super) attempt: u128,
}

/// A built object that is not owner yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Built {
    factory: CallId,
    generation: ObjectGeneration,
    /// The version of the Creating row.
    creating: StoreVersion,
}

/// See the diagram at the head of [`super`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    New,
    Reading,
    ReadingOwner(Row),
    Clearing,
    /// A row of this lifecycle that no attempt stands behind is being deleted.
    ClearingStray,
    /// Another node's attempt, and the version of its row.
    Joining(StoreVersion),
    Numbering,
    Reserving(ObjectGeneration),
    Running(Built),
    Committing(Built),
    /// A read is out, or the next one is waited for.
    CheckingCommit(Built),
    Deleting,
    /// As `CheckingCommit`.
    CheckingDelete,
    Over,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Attempt {
    key: ObjectKey,
    number: u128,
    /// The type that is being made, here or by whom is joined.
    type_name: Arc<str>,
    deadline: Nanos,
    is_late: bool,
    /// With the number of the last call that was made before theirs: a row that was read by a
    /// later call was read after they called.
    callers: Vec<(Caller, u64)>,
    joiners: Vec<Caller>,
    /// Callers and joiners that came while the row of this attempt was being deleted.
    next: Vec<Caller>,
    next_joiners: Vec<Caller>,
    initiator: Option<u64>,
    phase: Phase,
    call: Option<CallId>,
    call_until: Option<Nanos>,
    retry_at: Option<Nanos>,
    /// The call that read the row in hand.
    row_call: u64,
    generation: Option<ObjectGeneration>,
    /// The reservation may stand although no answer said so.
    in_doubt: bool,
    /// The version of a row whose owner knew nothing of the attempt.
    refused: Option<StoreVersion>,
    /// Decided, and not told yet.
    end: Option<AttemptEnd>,
    is_stray_probe: bool,
    pub(super) wake: Option<Nanos>,
}

type Out<'a> = &'a mut Vec<Effect>;

/// Who arrives, and when whoever waits stops waiting.
impl Attempt {
    #[cfg(feature = "protocol-coverage")]
    pub(super) const fn phase(&self) -> &Phase {
        &self.phase
    }

    pub(super) fn new(key: ObjectKey, first: &Caller, shared: &Shared, now: Nanos) -> Self {
        Self {
            key,
            number: first.attempt,
            type_name: first.type_name.clone(),
            deadline: now + shared.times.attempt,
            is_late: false,
            callers: Vec::new(),
            joiners: Vec::new(),
            next: Vec::new(),
            next_joiners: Vec::new(),
            initiator: None,
            phase: Phase::New,
            call: None,
            call_until: None,
            retry_at: None,
            row_call: 0,
            generation: None,
            in_doubt: false,
            refused: None,
            end: None,
            is_stray_probe: false,
            wake: None,
        }
    }

    /// No attempt, but a look at a row that names one of this lifecycle which does not run.
    pub(super) fn for_stray_row(
        key: ObjectKey,
        joiner: &Caller,
        shared: &Shared,
        now: Nanos,
    ) -> Self {
        let mut probe = Self::new(key, joiner, shared, now);
        (probe.phase, probe.is_stray_probe) = (Phase::CheckingDelete, true);
        probe
    }

    pub(super) fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }

    /// The attempt of those who waited for this one's row to go.
    pub(super) fn start_next(&mut self, shared: &Shared, now: Nanos) -> Option<Self> {
        let callers = std::mem::take(&mut self.next);
        let mut next = Self::new(self.key.clone(), callers.first()?, shared, now);
        next.callers = callers.into_iter().map(|c| (c, shared.last_call)).collect();
        next.wake = self.wake;
        Some(next)
    }

    pub(super) fn waits_for(&self, call: CallId) -> bool {
        self.call == Some(call)
    }

    fn is_cleaning(&self) -> bool {
        matches!(self.phase, Phase::Deleting | Phase::CheckingDelete)
    }

    fn is_committing(&self) -> bool {
        matches!(self.phase, Phase::Committing(_) | Phase::CheckingCommit(_))
    }

    /// Nothing is written yet, as far as this node knows.
    fn is_before_reservation(&self) -> bool {
        matches!(
            self.phase,
            Phase::New
                | Phase::Reading
                | Phase::ReadingOwner(_)
                | Phase::Clearing
                | Phase::ClearingStray
                | Phase::Joining(_)
                | Phase::Numbering
        )
    }

    pub(super) fn call(&mut self, caller: Caller, shared: &mut Shared, now: Nanos, out: Out<'_>) {
        let is_typed = !matches!(
            self.phase,
            Phase::New
                | Phase::Reading
                | Phase::ReadingOwner(_)
                | Phase::Clearing
                | Phase::ClearingStray
        );
        if self.is_cleaning() || (self.is_late && !self.is_committing()) {
            self.next.push(caller);
        } else if is_typed && caller.type_name != self.type_name {
            let error = type_mismatch(&self.key, &self.type_name, &caller.type_name);
            self.answer(caller.token, CreateAnswer::Failed(error), out);
        } else {
            self.callers.push((caller, shared.last_call));
            if self.phase == Phase::New {
                self.read(shared, now, out);
            }
        }
    }

    /// Whether a node that asks for attempt `number` waits here.
    pub(super) fn takes_joiner(&self, number: u128) -> bool {
        self.number == number
    }

    pub(super) fn join(&mut self, joiner: Caller) {
        if self.is_cleaning() && self.end.is_none() {
            self.next_joiners.push(joiner);
        } else {
            self.joiners.push(joiner);
        }
    }

    pub(super) fn cancel(&mut self, token: u64, shared: &mut Shared, now: Nanos, out: Out<'_>) {
        self.callers.retain(|(c, _)| c.token != token);
        for list in [&mut self.joiners, &mut self.next, &mut self.next_joiners] {
            list.retain(|c| c.token != token);
        }
        self.abandon_if_unwanted(shared, now, out);
    }

    /// Without callers nothing is begun; what was begun goes on to its end.
    fn abandon_if_unwanted(&mut self, shared: &mut Shared, now: Nanos, out: Out<'_>) {
        if self.callers.is_empty() && self.is_before_reservation() {
            self.end_nothing_written(shared, now, out);
        }
    }

    pub(super) fn next_wake(&self) -> Option<Nanos> {
        let callers = self.callers.iter().map(|(c, _)| c);
        let waiting = callers.chain(&self.joiners).chain(&self.next).chain(&self.next_joiners);
        let deadline = (!self.is_late && !self.is_cleaning()).then_some(self.deadline);
        let own = [deadline, self.call_until, self.retry_at];
        waiting.map(|c| c.deadline).chain(own.into_iter().flatten()).min()
    }

    pub(super) fn tick(&mut self, shared: &mut Shared, now: Nanos, out: Out<'_>) {
        self.expire(now, out);
        if !self.is_late && self.deadline <= now {
            self.is_late = true;
            self.on_deadline(shared, now, out);
        }
        if self.call_until.is_some_and(|at| at <= now) {
            self.on_silence(shared, now, out);
        }
        if self.retry_at.is_some_and(|at| at <= now) {
            match self.phase {
                Phase::CheckingCommit(built) => self.check_commit(built, shared, now, out),
                _ => self.check_delete(shared, now, out),
            }
        }
        self.abandon_if_unwanted(shared, now, out);
    }

    fn expire(&mut self, now: Nanos, out: Out<'_>) {
        let late = |c: &Caller| c.deadline <= now;
        let callers: Vec<u64> = self
            .callers
            .iter()
            .map(|(c, _)| c)
            .chain(&self.next)
            .filter(|c| late(c))
            .map(|c| c.token)
            .collect();
        let joiners = self.joiners.iter().chain(&self.next_joiners).filter(|c| late(c));
        let joiners: Vec<u64> = joiners.map(|c| c.token).collect();
        self.callers.retain(|(c, _)| !late(c));
        for list in [&mut self.joiners, &mut self.next, &mut self.next_joiners] {
            list.retain(|c| !late(c));
        }
        let error = too_late(&self.key);
        for token in callers {
            self.answer(token, CreateAnswer::Failed(error.clone()), out);
        }
        for token in joiners {
            let end = AttemptEnd::Failed(error.clone());
            self.reply(token, JoinReply::Ended(end), out);
        }
    }

    fn on_deadline(&mut self, shared: &mut Shared, now: Nanos, out: Out<'_>) {
        let error = too_late(&self.key);
        match self.phase {
            Phase::Running(built) => {
                out.push(Effect::StopFactory { key: self.key.clone(), factory: built.factory });
                let error = Error::internal(format!(
                    "the factory of {} did not finish within {:?}",
                    self.key, shared.times.attempt
                ));
                self.end = Some(AttemptEnd::Failed(error));
                self.delete(built.creating, shared, now, out);
            }
            // What stands is decided by the Store, not by the clock; but nobody waits for it.
            Phase::Reserving(_) | Phase::Committing(_) | Phase::CheckingCommit(_) => {
                self.tell(&AttemptEnd::Failed(error), out);
            }
            Phase::Deleting | Phase::CheckingDelete | Phase::Over => {}
            _ => self.fail(error, shared, now, out),
        }
    }

    /// The call that is out did not answer in time.
    fn on_silence(&mut self, shared: &mut Shared, now: Nanos, out: Out<'_>) {
        let Some(call) = self.call else { return };
        let error = Error::unavailable(format!(
            "no answer about {} within {:?}",
            self.key, shared.times.store
        ));
        match self.phase {
            Phase::Reading | Phase::CheckingCommit(_) | Phase::CheckingDelete => {
                self.on_row(call, Err(error), None, shared, now, out);
            }
            Phase::ReadingOwner(_) => self.on_owner(call, Err(error), shared, now, out),
            Phase::Joining(_) => self.on_join_answered(call, Err(error), shared, now, out),
            Phase::Numbering => self.on_generation(call, Err(error), shared, now, out),
            _ => self.on_committed(call, CommitOutcome::Unknown, shared, now, out),
        }
    }

    pub(super) fn shut_down(mut self, out: Out<'_>) {
        match self.phase {
            Phase::Running(built) => {
                out.push(Effect::StopFactory { key: self.key.clone(), factory: built.factory });
            }
            Phase::Committing(built) | Phase::CheckingCommit(built) => self.discard(built, out),
            _ => {}
        }
        self.callers.extend(std::mem::take(&mut self.next).into_iter().map(|c| (c, 0)));
        self.joiners.append(&mut self.next_joiners);
        self.tell(&AttemptEnd::Failed(shutting_down(&self.key)), out);
    }
}
