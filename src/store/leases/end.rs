#![forbid(unsafe_code)]
//! The ways a lease ends: fenced by somebody else, or released in order.

use crate::env::{LeaseView, StoreAnswer, StoreOp};
use crate::error::Error;
use crate::location::{Batch, BatchOutcome, Write};
use crate::store::records::{OwnerGuard, OwnerRecord, OwnerState, lease_key, node_key, owner_key};
use crate::time::Nanos;

use super::{Keeper, KeeperEffect, State};

/// No core acts as an owner any more.
const FENCED: LeaseView = LeaseView { admission_deadline: Nanos::ZERO, fenced: true };

impl Keeper {
    /// The owner record is no longer ours: fence at once, then read why.
    pub(super) fn fence(&mut self, now: Nanos, out: &mut Vec<KeeperEffect>) {
        if self.release.is_some() {
            self.end_release(true, out);
            return;
        }
        out.push(KeeperEffect::Publish(FENCED));
        self.state = State::Fencing;
        self.send(StoreOp::Read(vec![owner_key(&self.config.rid)]), now, out);
    }

    pub(super) fn on_fence_reason(&mut self, answer: &StoreAnswer, out: &mut Vec<KeeperEffect>) {
        let why = match answer {
            StoreAnswer::Read(read) => match read.records.first() {
                Some(Some(record)) => self.why_fenced(&record.value),
                _ => "its owner record is gone from the Location Store".to_owned(),
            },
            _ => "its owner record was changed".to_owned(),
        };
        self.state = State::Ended;
        out.push(KeeperEffect::Fenced(Error::unavailable(format!(
            "rid {:?} may own no objects any more: {why}; only a new start of the node joins again",
            self.config.rid
        ))));
        if self.release.is_some() {
            self.end_release(true, out);
        }
    }

    fn why_fenced(&self, owner: &[u8]) -> String {
        match OwnerRecord::decode(&owner_key(&self.config.rid), owner) {
            Err(e) => e.text().to_owned(),
            Ok(owner) if owner.lifecycle != self.config.lifecycle => {
                format!("a later start took it, with node generation {}", owner.node_generation)
            }
            Ok(owner) if owner.state == OwnerState::Released => {
                "it was released while its lease had lapsed".to_owned()
            }
            Ok(_) => "its owner record was written by somebody else".to_owned(),
        }
    }

    pub(super) fn on_release(&mut self, deadline: Nanos, now: Nanos, out: &mut Vec<KeeperEffect>) {
        if self.release.is_some() {
            return;
        }
        self.release = Some(deadline);
        // Nothing runs here from now on, whatever becomes of the records.
        out.push(KeeperEffect::Publish(FENCED));
        match std::mem::replace(&mut self.state, State::Ended) {
            State::Ended => self.end_release(true, out),
            State::Held(held) => self.send_release(held.owner, deadline, now, out),
            State::Idle | State::Watching if self.doubt.is_none() => self.end_release(true, out),
            other => self.state = other,
        }
    }

    pub(super) fn send_release(
        &mut self,
        owner: OwnerGuard,
        deadline: Nanos,
        now: Nanos,
        out: &mut Vec<KeeperEffect>,
    ) {
        if now >= deadline {
            self.end_release(false, out);
            return;
        }
        let rid = &self.config.rid;
        let keys = [lease_key(rid), node_key(rid), owner_key(rid)];
        let batch = Batch {
            conditions: vec![owner.condition()],
            writes: keys.into_iter().map(|key| Write::Delete { key }).collect(),
        };
        self.state = State::Releasing { owner, deadline };
        self.send(StoreOp::Commit(batch), now, out);
    }

    pub(super) fn on_release_answer(
        &mut self,
        owner: OwnerGuard,
        deadline: Nanos,
        answer: &StoreAnswer,
        now: Nanos,
        out: &mut Vec<KeeperEffect>,
    ) {
        match answer {
            // A conflict: an earlier try was applied, or somebody released the node. Gone anyway.
            StoreAnswer::Commit(BatchOutcome::Committed(_) | BatchOutcome::Conflict { .. }) => {
                self.end_release(true, out);
            }
            _ => {
                let again = now + self.retry_pause();
                if again >= deadline {
                    self.end_release(false, out);
                    return;
                }
                self.state = State::Releasing { owner, deadline };
                self.wait_until = again;
            }
        }
    }

    pub(super) fn end_release(&mut self, clean: bool, out: &mut Vec<KeeperEffect>) {
        self.state = State::Ended;
        out.push(KeeperEffect::Released { clean });
    }
}
