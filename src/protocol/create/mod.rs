#![forbid(unsafe_code)]
//! Creating an object: of many concurrent creators on many nodes one runs the factory, and all
//! learn the same result.
//!
//! One [`Creator`] per home core; it knows only ids that are being created here.
//!
//! **Words.** An *attempt* is one run of a creation at one node, named by 128 random bits that stand
//! in the Creating row. *Callers* called create at this node; *joiners* are nodes that read the row
//! and ask this node how its attempt ends. The *initiator* is the caller with whose request the
//! factory runs; it alone is told Created, every other caller Existing.
//!
//! **States of an id.**
//!
//! ```text
//!            ┌──────── any doubt: read again ────────────────┐
//! create → Reading ─Ready row→ Existing                       │
//!            ├─Creating, creator dead→ Clearing ──────────────┤
//!            ├─Creating, alive elsewhere→ Joining ─no such────┤
//!            ├─no row→ Numbering → Reserving ─conflict, ?─────┘
//!            └─Creating, this attempt─┐        │
//!                                     ▼        ▼
//!                                  Running (the factory)
//!                      made ▼              rejected, failed ▼
//!                     Committing ──not owner──→ discard   Deleting ─?→ CheckingDelete ─┐
//!                      │    └?→ CheckingCommit             ▲ │ └────────── row ours ───┘
//!                      ▼                                   └─┘
//!                 install, Created
//! ```
//!
//! **Doubt.** A commit whose answer is lost is decided by a read: a Creating row with this attempt's
//! number is ours, a Ready row with this attempt's object generation is ours. Both are never given
//! twice. Nothing is taken for written or not written without one.
//!
//! **Failure.** An attempt that ends without an object deletes its row, and its callers are told
//! when that delete is decided or has failed once; it is tried again until the row is somebody
//! else's or gone. Callers that come meanwhile wait for that and start anew. While a Ready commit is in
//! doubt the built object is kept, closed, past every deadline.
//!
//! **Time.** Every caller has a deadline, and the attempt has one. A factory whose caller gave up runs on; at the attempt's
//! deadline it is stopped, which counts as a failure of the factory.
//!
//! **Crash.** A creator that dies leaves a Creating row. It answers Unavailable until the lease of its
//! owner was seen lapsed; then the next caller clears it. Should the dead one come back, its Ready commit
//! finds another version and its object is discarded. A Creating row of this very lifecycle whose
//! attempt does not run here (a commit that landed after it was given up) is deleted by whoever meets it.

#[cfg(feature = "protocol-coverage")]
mod coverage;

#[cfg(feature = "protocol-coverage")]
pub use coverage::MACHINE;
mod attempt;
mod memory;
mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use attempt::{Attempt, Caller};
use memory::Memory;
pub use words::{
    AttemptEnd, CallId, CreateAnswer, Effect, Event, FactoryOutcome, Incarnation, JoinReply,
    LocalSight,
};

use crate::env::Planted;
use crate::error::{Error, ErrorKind};
use crate::ids::{
    MeshName, NodeGeneration, NodeRid, ObjectGeneration, ObjectKey, OwnerLeaseGeneration,
};
use crate::limits::{DEFAULT_CREATE_TIMEOUT, DEFAULT_STORE_TIMEOUT};
use crate::time::Nanos;

/// Pause before a cleanup or a doubtful commit is looked at again after the Store failed.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// This node's lifecycle, as its rows name it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// The node.
    pub rid: NodeRid,
    /// Its mesh.
    pub mesh: MeshName,
    /// Its lifecycle.
    pub node_generation: NodeGeneration,
    /// Its process lifecycle.
    pub lease_generation: OwnerLeaseGeneration,
}

/// How long things may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CreateTimes {
    /// A whole attempt.
    pub attempt: Duration,
    /// One Store call.
    pub store: Duration,
}

impl Default for CreateTimes {
    fn default() -> Self {
        Self { attempt: DEFAULT_CREATE_TIMEOUT, store: DEFAULT_STORE_TIMEOUT }
    }
}

/// What every attempt of a core shares.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Shared {
    me: Identity,
    times: CreateTimes,
    last_call: u64,
    memory: Memory,
    runs_two_factories: bool,
    guesses_commits: bool,
}

impl Shared {
    fn next_call(&mut self) -> CallId {
        self.last_call += 1;
        CallId(self.last_call)
    }

    fn incarnation(&self, object_generation: ObjectGeneration) -> Incarnation {
        Incarnation { object_generation, mesh: self.me.mesh.clone(), rid: self.me.rid.clone() }
    }
}

/// The creation coordinator of one home core. See the module's head.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Creator {
    attempts: BTreeMap<ObjectKey, Attempt>,
    timers: BTreeSet<(Nanos, ObjectKey)>,
    shared: Shared,
}

impl Creator {
    /// The coordinator of a core of this node.
    #[must_use]
    pub fn new(me: Identity, times: CreateTimes) -> Self {
        let store = times.store.max(Duration::from_millis(1));
        let attempt = times.attempt.max(Duration::from_millis(1));
        Self {
            attempts: BTreeMap::new(),
            timers: BTreeSet::new(),
            shared: Shared {
                me,
                times: CreateTimes { attempt, store },
                last_call: 0,
                memory: Memory::default(),
                runs_two_factories: false,
                guesses_commits: false,
            },
        }
    }

    /// Plants a fault for the simulator's own tests.
    #[doc(hidden)]
    pub fn plant(&mut self, fault: Planted) {
        self.shared.runs_two_factories |= fault == Planted::RunTwoFactories;
        self.shared.guesses_commits |= fault == Planted::GuessLostCommit;
    }

    /// Ids that are being created or cleaned up here.
    #[must_use]
    pub fn len(&self) -> usize {
        self.attempts.len()
    }

    /// Whether nothing is under way.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.attempts.is_empty()
    }

    /// Whether this id is being created or cleaned up here.
    #[must_use]
    pub fn is_busy(&self, key: &ObjectKey) -> bool {
        self.attempts.contains_key(key)
    }

    /// When [`Event::Tick`] is due next.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Nanos> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Takes one event and appends what is to be done. An answer to a call that is not waited for
    /// any more changes nothing, except that an object it built is discarded.
    pub fn handle(&mut self, event: Event, now: Nanos, out: &mut Vec<Effect>) {
        #[cfg(feature = "protocol-coverage")]
        self.note(&event);
        match event {
            Event::Create { key, caller, type_name, deadline, attempt, local } => {
                let caller = Caller { token: caller, deadline, type_name, attempt };
                self.on_create(key, caller, local, now, out);
            }
            Event::Join { key, caller, attempt, deadline } => {
                self.on_join(key, caller, attempt, deadline, now, out);
            }
            Event::Cancel { key, caller } => {
                self.with(key, now, out, |attempt, shared, now, out| {
                    attempt.cancel(caller, shared, now, out);
                });
            }
            Event::RowAnswered { key, call, row, owner } => {
                self.with(key, now, out, |attempt, shared, now, out| {
                    attempt.on_row(call, row, owner, shared, now, out);
                });
            }
            Event::OwnerAnswered { key, call, owner } => {
                self.with(key, now, out, |attempt, shared, now, out| {
                    attempt.on_owner(call, owner, shared, now, out);
                });
            }
            Event::JoinAnswered { key, call, answer } => {
                self.with(key, now, out, |attempt, shared, now, out| {
                    attempt.on_join_answered(call, answer, shared, now, out);
                });
            }
            Event::GenerationTaken { key, call, generation } => {
                self.with(key, now, out, |attempt, shared, now, out| {
                    attempt.on_generation(call, generation, shared, now, out);
                });
            }
            Event::Committed { key, call, outcome } => {
                self.with(key, now, out, |attempt, shared, now, out| {
                    attempt.on_committed(call, outcome, shared, now, out);
                });
            }
            Event::FactoryEnded { key, call, outcome } => {
                self.on_factory(key, call, outcome, now, out);
            }
            Event::Tick => self.on_tick(now, out),
            Event::Shutdown => self.on_shutdown(out),
        }
    }

    fn on_create(
        &mut self,
        key: ObjectKey,
        caller: Caller,
        local: LocalSight,
        now: Nanos,
        out: &mut Vec<Effect>,
    ) {
        let answer = match local {
            _ if caller.deadline <= now => Some(CreateAnswer::Failed(too_late(&key))),
            LocalSight::Ready { object_generation, type_name } => {
                Some(if type_name == caller.type_name {
                    CreateAnswer::Existing(self.shared.incarnation(object_generation))
                } else {
                    CreateAnswer::Failed(type_mismatch(&key, &type_name, &caller.type_name))
                })
            }
            LocalSight::Closing => Some(CreateAnswer::Failed(Error::unavailable(format!(
                "{key} is being closed; its id is not free yet"
            )))),
            LocalSight::Absent => None,
        };
        if let Some(answer) = answer {
            out.push(Effect::Answered { key, caller: caller.token, answer });
            return;
        }
        if !self.attempts.contains_key(&key) {
            let attempt = Attempt::new(key.clone(), &caller, &self.shared, now);
            self.attempts.insert(key.clone(), attempt);
        }
        self.with(key, now, out, |attempt, shared, now, out| {
            attempt.call(caller, shared, now, out);
        });
    }

    fn on_join(
        &mut self,
        key: ObjectKey,
        token: u64,
        number: u128,
        deadline: Nanos,
        now: Nanos,
        out: &mut Vec<Effect>,
    ) {
        let joiner = Caller { token, deadline, type_name: Arc::from(""), attempt: number };
        if let Some(attempt) = self.attempts.get_mut(&key)
            && attempt.takes_joiner(number)
        {
            return self.with(key, now, out, |attempt, _, _, _| attempt.join(joiner));
        }
        let reply = match self.shared.memory.get(number) {
            Some(end) => JoinReply::Ended(end.clone()),
            None if self.attempts.contains_key(&key) => JoinReply::NoSuchAttempt,
            None => {
                // The caller read a row of this lifecycle that names an attempt nobody runs.
                let attempt = Attempt::for_stray_row(key.clone(), &joiner, &self.shared, now);
                self.attempts.insert(key.clone(), attempt);
                return self.with(key, now, out, |attempt, shared, now, out| {
                    attempt.join(joiner);
                    attempt.check_delete(shared, now, out);
                });
            }
        };
        out.push(Effect::Joined { key, caller: token, reply });
    }

    fn on_factory(
        &mut self,
        key: ObjectKey,
        call: CallId,
        outcome: FactoryOutcome,
        now: Nanos,
        out: &mut Vec<Effect>,
    ) {
        if self.attempts.get(&key).is_some_and(|a| a.waits_for(call)) {
            return self.with(key, now, out, |attempt, shared, now, out| {
                attempt.on_factory(call, outcome, shared, now, out);
            });
        }
        if outcome == FactoryOutcome::Made {
            out.push(Effect::Discard { key, factory: call });
        }
    }

    fn on_tick(&mut self, now: Nanos, out: &mut Vec<Effect>) {
        while let Some((at, key)) = self.timers.first().cloned() {
            if at > now {
                return;
            }
            self.with(key, now, out, |attempt, shared, now, out| attempt.tick(shared, now, out));
        }
    }

    fn on_shutdown(&mut self, out: &mut Vec<Effect>) {
        self.timers.clear();
        for attempt in std::mem::take(&mut self.attempts).into_values() {
            attempt.shut_down(out);
        }
    }

    /// Runs one step of an id's attempt; then forgets it when it is over, or starts the next one
    /// for who waited for its cleanup, and sets its timer.
    fn with(
        &mut self,
        key: ObjectKey,
        now: Nanos,
        out: &mut Vec<Effect>,
        step: impl FnOnce(&mut Attempt, &mut Shared, Nanos, &mut Vec<Effect>),
    ) {
        let Some(attempt) = self.attempts.get_mut(&key) else { return };
        step(attempt, &mut self.shared, now, out);
        while attempt.is_over() {
            let Some(next) = attempt.start_next(&self.shared, now) else { break };
            *attempt = next;
            attempt.read(&mut self.shared, now, out);
        }
        let wake = if attempt.is_over() { None } else { attempt.next_wake() };
        if wake != attempt.wake {
            if let Some(old) = attempt.wake.take() {
                self.timers.remove(&(old, key.clone()));
            }
            if let Some(at) = wake {
                self.timers.insert((at, key.clone()));
            }
            attempt.wake = wake;
        }
        if attempt.is_over() {
            self.attempts.remove(&key);
        }
    }
}

fn too_late(key: &ObjectKey) -> Error {
    Error::new(
        ErrorKind::DeadlineExceeded,
        format!("the time to create {key} ran out; it may be made all the same"),
    )
}

fn type_mismatch(key: &ObjectKey, is: &str, wanted: &str) -> Error {
    Error::new(
        ErrorKind::TypeMismatch,
        format!("{key} is of type {is:?}; it cannot be created as {wanted:?}"),
    )
}

fn shutting_down(key: &ObjectKey) -> Error {
    Error::new(ErrorKind::ShuttingDown, format!("the node shuts down while {key} is being created"))
}

#[cfg(test)]
mod tests;
