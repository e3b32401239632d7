#![forbid(unsafe_code)]
//! Reading, and what the row decides.

use std::sync::Arc;

use super::super::{CallId, CreateAnswer, Effect, JoinReply, RETRY_PAUSE, Shared, type_mismatch};
use super::ending::{incarnation, no_answer, told};
use super::{Attempt, Caller, Out, Phase};
use crate::error::Error;
use crate::ids::ObjectKey;
use crate::protocol::resolve::{OwnerSight, Row};
use crate::time::Nanos;

impl Attempt {
    pub(super) fn issue(
        &mut self,
        until: Nanos,
        shared: &mut Shared,
    ) -> (ObjectKey, CallId, Nanos) {
        let call = shared.next_call();
        (self.call, self.call_until, self.retry_at) = (Some(call), Some(until), None);
        (self.key.clone(), call, until)
    }

    pub(super) fn issue_store(
        &mut self,
        shared: &mut Shared,
        now: Nanos,
    ) -> (ObjectKey, CallId, Nanos) {
        self.issue(now + shared.times.store, shared)
    }

    /// Takes the answer to the call that is out; says whether it is that one.
    pub(super) fn take_call(&mut self, call: CallId) -> bool {
        if !self.waits_for(call) {
            return false;
        }
        (self.call, self.call_until) = (None, None);
        true
    }

    pub(in super::super) fn read(&mut self, shared: &mut Shared, now: Nanos, out: Out<'_>) {
        self.phase = Phase::Reading;
        let (key, call, until) = self.issue_store(shared, now);
        out.push(Effect::ReadRow { key, call, until });
    }

    pub(in super::super) fn on_row(
        &mut self,
        call: CallId,
        row: Result<Option<Row>, Error>,
        owner: Option<OwnerSight>,
        shared: &mut Shared,
        now: Nanos,
        out: Out<'_>,
    ) {
        let reads =
            matches!(self.phase, Phase::Reading | Phase::CheckingCommit(_) | Phase::CheckingDelete);
        if !reads || !self.take_call(call) {
            return;
        }
        self.row_call = call.0;
        match (&self.phase, row) {
            (Phase::Reading, Ok(row)) => self.decide(row, owner, shared, now, out),
            (Phase::Reading, Err(error)) => self.fail(no_answer(&error), shared, now, out),
            (Phase::CheckingCommit(built), Ok(row)) => {
                let built = *built;
                self.decide_commit(built, row, shared, now, out);
            }
            (Phase::CheckingCommit(_), Err(_)) => self.pause(now),
            (_, Ok(row)) => self.decide_delete(row, shared, now, out),
            (_, Err(_)) if self.is_stray_probe => self.clean(shared, out),
            (_, Err(_)) => {
                self.tell_end(shared, out);
                self.pause(now);
            }
        }
    }

    pub(super) fn pause(&mut self, now: Nanos) {
        self.retry_at = Some(now + RETRY_PAUSE);
    }

    pub(super) fn is_mine(&self, row: &Row, shared: &Shared) -> bool {
        row.authority.node_generation == shared.me.node_generation
            && row.authority.owner_lease_generation == shared.me.lease_generation
    }

    pub(super) fn decide(
        &mut self,
        row: Option<Row>,
        owner: Option<OwnerSight>,
        shared: &mut Shared,
        now: Nanos,
        out: Out<'_>,
    ) {
        self.in_doubt = false;
        let Some(row) = row else { return self.number(shared, now, out) };
        let is_mine = self.is_mine(&row, shared);
        match row.attempt() {
            None => self.existing(&row, shared, now, out),
            Some(number) if is_mine && number == self.number => {
                self.generation = Some(row.authority.object_generation);
                self.keep_type(Arc::from(&*row.authority.type_name), out);
                self.run(row.authority.object_generation, row.version, shared, now, out);
            }
            Some(_) if is_mine => {
                self.phase = Phase::ClearingStray;
                let (key, call, until) = self.issue_store(shared, now);
                out.push(Effect::Delete { key, call, version: row.version, until });
            }
            Some(number) => match owner {
                Some(owner) => self.foreign(row, number, owner, shared, now, out),
                None => {
                    self.phase = Phase::ReadingOwner(row.clone());
                    let (key, call, until) = self.issue_store(shared, now);
                    out.push(Effect::ReadOwner { key, call, row, until });
                }
            },
        }
    }

    pub(in super::super) fn on_owner(
        &mut self,
        call: CallId,
        owner: Result<OwnerSight, Error>,
        shared: &mut Shared,
        now: Nanos,
        out: Out<'_>,
    ) {
        let Phase::ReadingOwner(row) = &self.phase else { return };
        let row = row.clone();
        if !self.take_call(call) {
            return;
        }
        match (owner, row.attempt()) {
            (Ok(owner), Some(number)) => self.foreign(row, number, owner, shared, now, out),
            (Ok(_), None) => self.existing(&row, shared, now, out),
            (Err(error), _) => self.fail(no_answer(&error), shared, now, out),
        }
    }

    /// A Ready row: the object is there. Who called after the read was issued reads again.
    pub(super) fn existing(&mut self, row: &Row, shared: &mut Shared, now: Nanos, out: Out<'_>) {
        let is = &row.authority;
        for caller in self.take_callers_before_row() {
            let answer = if *is.type_name == *caller.type_name {
                CreateAnswer::Existing(incarnation(row))
            } else {
                let error = type_mismatch(&self.key, &is.type_name, &caller.type_name);
                CreateAnswer::Failed(error)
            };
            self.answer(caller.token, answer, out);
        }
        self.read_again_or_end(shared, now, out);
    }

    pub(super) fn take_callers_before_row(&mut self) -> Vec<Caller> {
        let row_call = self.row_call;
        let (before, after) = std::mem::take(&mut self.callers)
            .into_iter()
            .partition::<Vec<_>, _>(|(_, last_call)| *last_call < row_call);
        self.callers = after;
        before.into_iter().map(|(c, _)| c).collect()
    }

    pub(super) fn read_again_or_end(&mut self, shared: &mut Shared, now: Nanos, out: Out<'_>) {
        if self.callers.is_empty() {
            self.clean(shared, out);
        } else {
            self.read(shared, now, out);
        }
    }

    /// A Creating row of another lifecycle.
    pub(super) fn foreign(
        &mut self,
        row: Row,
        attempt: u128,
        owner: OwnerSight,
        shared: &mut Shared,
        now: Nanos,
        out: Out<'_>,
    ) {
        if let Some(dead) = owner.dead {
            self.phase = Phase::Clearing;
            let (key, call, until) = self.issue_store(shared, now);
            out.push(Effect::Clear { key, call, row, dead, until });
            return;
        }
        if self.refused == Some(row.version) {
            let error = Error::unavailable(format!(
                "{} is marked as being created at node {}, which does not create it",
                self.key, row.authority.rid
            ));
            return self.fail(error, shared, now, out);
        }
        self.keep_type(Arc::from(&*row.authority.type_name), out);
        if self.callers.is_empty() {
            return self.clean(shared, out);
        }
        self.phase = Phase::Joining(row.version);
        let (key, call, until) = self.issue(self.deadline, shared);
        out.push(Effect::JoinRemote {
            key,
            call,
            rid: row.authority.rid,
            node_generation: row.authority.node_generation,
            attempt,
            type_name: self.type_name.clone(),
            until,
        });
    }

    /// From now on `type_name` is being made; callers that want another are told so.
    pub(super) fn keep_type(&mut self, type_name: Arc<str>, out: Out<'_>) {
        self.type_name = type_name;
        let (same, others) = std::mem::take(&mut self.callers)
            .into_iter()
            .partition::<Vec<_>, _>(|(c, _)| c.type_name == self.type_name);
        self.callers = same;
        for (other, _) in others {
            let error = type_mismatch(&self.key, &self.type_name, &other.type_name);
            self.answer(other.token, CreateAnswer::Failed(error), out);
        }
    }

    pub(in super::super) fn on_join_answered(
        &mut self,
        call: CallId,
        answer: Result<JoinReply, Error>,
        shared: &mut Shared,
        now: Nanos,
        out: Out<'_>,
    ) {
        let Phase::Joining(version) = self.phase else { return };
        if !self.take_call(call) {
            return;
        }
        match answer {
            Ok(JoinReply::Ended(end)) => {
                for caller in self.take_callers_before_row() {
                    self.answer(caller.token, told(&end, false), out);
                }
                self.read_again_or_end(shared, now, out);
            }
            Ok(JoinReply::NoSuchAttempt) => {
                self.refused = Some(version);
                self.read(shared, now, out);
            }
            Err(error) => self.fail(error, shared, now, out),
        }
    }
}
