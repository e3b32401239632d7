#![forbid(unsafe_code)]
//! Destroying one exact incarnation at its owner (R2.6-2).
//!
//! One [`Destroyer`] per home core; it knows only ids that are being destroyed here.
//!
//! **States of an id.**
//!
//! ```text
//! destroy → Closing (no new turn; the running one ends) ─closed→ drop the object, Deleting
//!           Deleting ─committed→ released       ─conflict, ?→ Checking
//!           Checking ─row of this incarnation→ Deleting ─any other, none→ released
//! ```
//!
//! Until the end is reported the row stands, so the id answers Unavailable everywhere; Missing
//! comes only after (R2.2b-2). A delete whose answer is lost is decided by a read. A delete that
//! fails is tried again until it is decided; who waits is told by its own deadline, and that the
//! object is gone.
//!
//! **Crash.** A node that dies between the two leaves a Ready row of a dead owner: Unavailable until
//! it is released (R5-13). A node that is fenced has lost the row to whoever released it.

#[cfg(feature = "protocol-coverage")]
mod coverage;

#[cfg(feature = "protocol-coverage")]
pub use coverage::MACHINE;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::commit::CommitOutcome;
use super::create::{CallId, Identity};
use super::resolve::Row;
use crate::error::{Error, ErrorKind};
use crate::ids::{ObjectGeneration, ObjectKey, StoreVersion};
use crate::time::Nanos;

/// Pause before a delete is looked at again after the Store failed.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// The object that stands at this node under an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Standing {
    /// Its incarnation.
    pub object_generation: ObjectGeneration,
    /// The version of its authority row.
    pub version: StoreVersion,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// Somebody wants this incarnation destroyed.
    Destroy {
        /// What.
        key: ObjectKey,
        /// Who.
        caller: u64,
        /// Which incarnation.
        object_generation: ObjectGeneration,
        /// When the caller stops waiting.
        deadline: Nanos,
        /// The Ready object that stands here, if any.
        standing: Option<Standing>,
    },
    /// The caller does not wait any more.
    Cancel {
        /// What.
        key: ObjectKey,
        /// Who.
        caller: u64,
    },
    /// After [`Effect::Close`]: no turn of the object runs or will.
    Closed {
        /// What.
        key: ObjectKey,
    },
    /// An [`Effect::Delete`] ended.
    Deleted {
        /// What.
        key: ObjectKey,
        /// Which call.
        call: CallId,
        /// How.
        outcome: CommitOutcome,
    },
    /// An [`Effect::ReadRow`] ended.
    RowAnswered {
        /// What.
        key: ObjectKey,
        /// Which call.
        call: CallId,
        /// The row, or why there is no answer.
        row: Result<Option<Row>, Error>,
    },
    /// Time passed.
    Tick,
    /// The node shuts down: everybody waiting is answered, and no more calls are made.
    Shutdown,
}

/// What is to be done. `until` says after when an answer is not waited for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Admit nothing more, start no turn, let the running one end; then [`Event::Closed`].
    Close {
        /// What.
        key: ObjectKey,
    },
    /// Drop the object and end what is queued for it. The id stays Unavailable here.
    Drop {
        /// What.
        key: ObjectKey,
    },
    /// Delete this node's own row ([`crate::store::records::delete_row`]).
    Delete {
        /// What.
        key: ObjectKey,
        /// Under this name.
        call: CallId,
        /// The row's version.
        version: StoreVersion,
        /// Time limit.
        until: Nanos,
    },
    /// Read the authority row.
    ReadRow {
        /// What.
        key: ObjectKey,
        /// Under this name.
        call: CallId,
        /// Time limit.
        until: Nanos,
    },
    /// The row is gone, or not this incarnation's: the id is free as far as this node goes. Comes
    /// before the answers.
    Released {
        /// What.
        key: ObjectKey,
        /// The incarnation that is gone.
        object_generation: ObjectGeneration,
    },
    /// Answer a caller of [`Event::Destroy`].
    Answered {
        /// What.
        key: ObjectKey,
        /// Who.
        caller: u64,
        /// With what.
        answer: Result<(), Error>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Closing,
    Deleting,
    /// A read is out, or the next one is waited for.
    Checking,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Closing {
    generation: ObjectGeneration,
    version: StoreVersion,
    phase: Phase,
    callers: Vec<(u64, Nanos)>,
    call: Option<(CallId, Nanos)>,
    retry_at: Option<Nanos>,
    wake: Option<Nanos>,
}

impl Closing {
    fn next_wake(&self) -> Option<Nanos> {
        let callers = self.callers.iter().map(|(_, deadline)| *deadline);
        callers.chain(self.call.map(|(_, until)| until)).chain(self.retry_at).min()
    }

    fn take_call(&mut self, call: CallId, phase: Phase) -> bool {
        self.phase == phase && self.call.take_if(|(id, _)| *id == call).is_some()
    }
}

/// Destroys objects of one home core. See the module's head.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Destroyer {
    me: Identity,
    store_timeout: Duration,
    ids: BTreeMap<ObjectKey, Closing>,
    timers: BTreeSet<(Nanos, ObjectKey)>,
    last_call: u64,
}

impl Destroyer {
    /// The destroyer of a core of this node, whose Store calls count as silent after
    /// `store_timeout`.
    #[must_use]
    pub fn new(me: Identity, store_timeout: Duration) -> Self {
        Self {
            me,
            store_timeout: store_timeout.max(Duration::from_millis(1)),
            ids: BTreeMap::new(),
            timers: BTreeSet::new(),
            last_call: 0,
        }
    }

    /// Whether this id is being destroyed here. It answers Unavailable until it is not.
    #[must_use]
    pub fn is_busy(&self, key: &ObjectKey) -> bool {
        self.ids.contains_key(key)
    }

    /// Whether nothing is being destroyed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// When [`Event::Tick`] is due next.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Nanos> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Takes one event and appends what is to be done.
    pub fn handle(&mut self, event: Event, now: Nanos, out: &mut Vec<Effect>) {
        #[cfg(feature = "protocol-coverage")]
        self.note(&event);
        match event {
            Event::Destroy { key, caller, object_generation, deadline, standing } => {
                self.on_destroy(key, (caller, deadline), object_generation, standing, now, out);
            }
            Event::Cancel { key, caller } => {
                if let Some(closing) = self.ids.get_mut(&key) {
                    closing.callers.retain(|(token, _)| *token != caller);
                    self.settle(key);
                }
            }
            Event::Closed { key } => {
                if self.ids.get(&key).is_some_and(|c| c.phase == Phase::Closing) {
                    out.push(Effect::Drop { key: key.clone() });
                    self.delete(key, now, out);
                }
            }
            Event::Deleted { key, call, outcome } => self.on_deleted(key, call, outcome, now, out),
            Event::RowAnswered { key, call, row } => self.on_row(key, call, row, now, out),
            Event::Tick => self.on_tick(now, out),
            Event::Shutdown => {
                self.timers.clear();
                for (key, closing) in std::mem::take(&mut self.ids) {
                    let text = format!("the node shuts down while {key} is being destroyed");
                    let answer = Err(Error::new(ErrorKind::ShuttingDown, text));
                    tell(&key, closing.callers, &answer, out);
                }
            }
        }
    }

    fn on_destroy(
        &mut self,
        key: ObjectKey,
        caller: (u64, Nanos),
        wanted: ObjectGeneration,
        standing: Option<Standing>,
        now: Nanos,
        out: &mut Vec<Effect>,
    ) {
        let busy = self.ids.get_mut(&key);
        let there = busy.as_ref().map(|c| c.generation).or(standing.map(|s| s.object_generation));
        let refusal = match there {
            _ if caller.1 <= now => Some(too_late(&key)),
            None => Some(Error::new(ErrorKind::NotFound, format!("{key} is not at this node"))),
            Some(there) if there != wanted => Some(Error::invalid(format!(
                "{key} has generation {there} now; generation {wanted} was to be destroyed"
            ))),
            Some(_) => None,
        };
        if let Some(error) = refusal {
            out.push(Effect::Answered { key, caller: caller.0, answer: Err(error) });
            return;
        }
        if let Some(closing) = busy {
            closing.callers.push(caller);
        } else if let Some(standing) = standing {
            let closing = Closing {
                generation: wanted,
                version: standing.version,
                phase: Phase::Closing,
                callers: vec![caller],
                call: None,
                retry_at: None,
                wake: None,
            };
            self.ids.insert(key.clone(), closing);
            out.push(Effect::Close { key: key.clone() });
        }
        self.settle(key);
    }

    fn delete(&mut self, key: ObjectKey, now: Nanos, out: &mut Vec<Effect>) {
        if let Some((closing, call, until)) = self.issue(&key, Phase::Deleting, now) {
            let version = closing.version;
            out.push(Effect::Delete { key: key.clone(), call, version, until });
        }
        self.settle(key);
    }

    fn check(&mut self, key: ObjectKey, now: Nanos, out: &mut Vec<Effect>) {
        if let Some((_, call, until)) = self.issue(&key, Phase::Checking, now) {
            out.push(Effect::ReadRow { key: key.clone(), call, until });
        }
        self.settle(key);
    }

    fn issue(
        &mut self,
        key: &ObjectKey,
        phase: Phase,
        now: Nanos,
    ) -> Option<(&mut Closing, CallId, Nanos)> {
        let closing = self.ids.get_mut(key)?;
        self.last_call += 1;
        let (call, until) = (CallId(self.last_call), now + self.store_timeout);
        (closing.phase, closing.call, closing.retry_at) = (phase, Some((call, until)), None);
        Some((closing, call, until))
    }

    fn on_deleted(
        &mut self,
        key: ObjectKey,
        call: CallId,
        outcome: CommitOutcome,
        now: Nanos,
        out: &mut Vec<Effect>,
    ) {
        let Some(closing) = self.ids.get_mut(&key) else { return };
        if !closing.take_call(call, Phase::Deleting) {
            return;
        }
        match outcome {
            CommitOutcome::Committed(_) => self.finish(&key, Ok(()), out),
            CommitOutcome::Conflict | CommitOutcome::Unknown => self.check(key, now, out),
            CommitOutcome::Failed(_) => self.pause(key, now),
            CommitOutcome::Fenced => {
                let error = Error::unavailable(format!(
                    "this node was released by another one; {key} is gone here, and its row belongs to \
                     who released it"
                ));
                self.finish(&key, Err(error), out);
            }
        }
    }

    fn pause(&mut self, key: ObjectKey, now: Nanos) {
        if let Some(closing) = self.ids.get_mut(&key) {
            (closing.phase, closing.retry_at) = (Phase::Checking, Some(now + RETRY_PAUSE));
        }
        self.settle(key);
    }

    fn on_row(
        &mut self,
        key: ObjectKey,
        call: CallId,
        row: Result<Option<Row>, Error>,
        now: Nanos,
        out: &mut Vec<Effect>,
    ) {
        let Some(closing) = self.ids.get_mut(&key) else { return };
        if !closing.take_call(call, Phase::Checking) {
            return;
        }
        let Ok(row) = row else { return self.pause(key, now) };
        let same = row.filter(|row| row.authority.object_generation == closing.generation);
        match same {
            None => self.finish(&key, Ok(()), out),
            Some(row)
                if row.authority.node_generation == self.me.node_generation
                    && row.authority.owner_lease_generation == self.me.lease_generation =>
            {
                closing.version = row.version;
                self.delete(key, now, out);
            }
            Some(row) => {
                let error = Error::unavailable(format!(
                    "{key} belongs to node {} by now and was not destroyed",
                    row.authority.rid
                ));
                self.finish(&key, Err(error), out);
            }
        }
    }

    fn finish(&mut self, key: &ObjectKey, answer: Result<(), Error>, out: &mut Vec<Effect>) {
        let Some(closing) = self.ids.remove(key) else { return };
        if let Some(at) = closing.wake {
            self.timers.remove(&(at, key.clone()));
        }
        let object_generation = closing.generation;
        out.push(Effect::Released { key: key.clone(), object_generation });
        tell(key, closing.callers, &answer, out);
    }

    fn on_tick(&mut self, now: Nanos, out: &mut Vec<Effect>) {
        while let Some((at, key)) = self.timers.first().cloned() {
            if at > now {
                return;
            }
            let Some(closing) = self.ids.get_mut(&key) else { return };
            let (late, waiting) =
                std::mem::take(&mut closing.callers).into_iter().partition(|(_, d)| *d <= now);
            closing.callers = waiting;
            tell(&key, late, &Err(too_late(&key)), out);
            let silent = closing.call.filter(|(_, until)| *until <= now);
            let is_retry = closing.retry_at.is_some_and(|at| at <= now);
            match (silent, closing.phase) {
                (Some((call, _)), Phase::Deleting) => {
                    self.on_deleted(key, call, CommitOutcome::Unknown, now, out);
                }
                (Some((call, _)), _) => {
                    let error = Error::unavailable("the Location Store did not answer");
                    self.on_row(key, call, Err(error), now, out);
                }
                (None, _) if is_retry => self.check(key, now, out),
                (None, _) => self.settle(key),
            }
        }
    }

    fn settle(&mut self, key: ObjectKey) {
        let Some(closing) = self.ids.get_mut(&key) else { return };
        let wake = closing.next_wake();
        if wake != closing.wake {
            if let Some(old) = closing.wake.take() {
                self.timers.remove(&(old, key.clone()));
            }
            if let Some(at) = wake {
                self.timers.insert((at, key));
            }
            closing.wake = wake;
        }
    }
}

fn tell(
    key: &ObjectKey,
    callers: Vec<(u64, Nanos)>,
    answer: &Result<(), Error>,
    out: &mut Vec<Effect>,
) {
    out.extend(callers.into_iter().map(|(caller, _)| Effect::Answered {
        key: key.clone(),
        caller,
        answer: answer.clone(),
    }));
}

fn too_late(key: &ObjectKey) -> Error {
    Error::new(
        ErrorKind::DeadlineExceeded,
        format!("the time to destroy {key} ran out; it is being destroyed all the same"),
    )
}

#[cfg(test)]
mod tests;
