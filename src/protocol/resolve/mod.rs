#![forbid(unsafe_code)]
//! Resolving an id: from a miss in the route cache to one of four answers (R2.2b-1).
//!
//! One [`Resolver`] per home core; it knows only ids somebody waits for or a read is out for.
//!
//! **Words.** A *waiter* is a token of the node's (a message FIFO, a resolver call) with a
//! deadline. A *read* is a Store read of the id's authority row and, where the node does not know
//! the owner yet, a second one of the owner's lease and descriptor. An *invalidation* is anything
//! that makes what was read doubtful: a greater store version, a stale result, a lease that ended,
//! a notice; a recovery of the Store is one of every id.
//!
//! **Order.** Waiters, reads and invalidations draw numbers from one counter. A read answers
//! waiters with smaller numbers than its own: those who called before it was issued. So nobody is
//! told of an absence older than the call. Callers that come while a read is out share the next
//! one. One exception, which a hit of the cache would have been too: a valid read that found a
//! Ready route answers everybody who waits, unless they asked for a fresh one or nothing is cached.
//!
//! **States of an id.**
//!
//! ```text
//! Idle ─lookup→ Reading(row) ─row→ Reading(owner) ─owner→ answer → Idle, or the next Reading
//!                   │ owner known: answer at once
//!                   └─Creating, its creator dead→ Clearing ─any end→ Reading(row)
//! invalidation: a read that is out stays out for who called before; it inserts nothing, and the
//! next caller gets a read of its own at once.
//! ```
//!
//! **Failure.** A read that fails, or does not answer in the Store time, answers StoreFailure to
//! its waiters; nothing is cached and nobody else is touched. A clear whose outcome is unknown is
//! followed by a read like every other end of it: nothing is guessed. The machine holds nothing
//! that must survive a crash: a row that was not cleared is cleared by the next caller.

#[cfg(feature = "protocol-coverage")]
mod coverage;

#[cfg(feature = "protocol-coverage")]
pub use coverage::MACHINE;
mod classify;
mod rows;
mod words;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use crate::protocol::commit::CommitOutcome;
pub use classify::{Answer, Classified, OwnerSight, Row, SeenLease, classify};
pub use rows::{decode_owner, decode_row, node_entry, owner_keys};
pub use words::{Effect, Event, ReadId, ResolveCounters};

use crate::env::Planted;
use crate::error::{Error, ErrorKind};
use crate::ids::ObjectKey;
use crate::limits::{DEFAULT_STORE_TIMEOUT, MAX_READS_PER_ID};
use crate::store::records::DeadOwner;
use crate::time::Nanos;

/// The owner of an absent row, at whom nobody looks.
const NOBODY: OwnerSight = OwnerSight { dead: None, lease: None, descriptor: None };

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Waiter {
    token: u64,
    called: u64,
    deadline: Nanos,
    fresh: bool,
}

/// A read that is out. It covers the waiters that called before `issued`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Read {
    id: ReadId,
    issued: u64,
    gives_up_at: Nanos,
    /// Read already, while the owner is being read.
    row: Option<Row>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Clear {
    id: ReadId,
    issued: u64,
    gives_up_at: Nanos,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Pending {
    waiters: VecDeque<Waiter>,
    reads: Vec<Read>,
    clearing: Option<Clear>,
    invalidated: u64,
    last_failure: Option<Error>,
    wake: Option<Nanos>,
}

impl Pending {
    /// The number of the newest read that is out.
    fn newest_read(&self) -> u64 {
        self.reads.iter().map(|r| r.issued).max().unwrap_or(0)
    }

    fn next_wake(&self) -> Option<Nanos> {
        let waiters = self.waiters.iter().map(|w| w.deadline);
        let reads = self.reads.iter().map(|r| r.gives_up_at);
        waiters.chain(reads).chain(self.clearing.iter().map(|c| c.gives_up_at)).min()
    }

    /// Takes out the waiters `which` says, in order.
    fn take(&mut self, mut which: impl FnMut(&Waiter) -> bool) -> Vec<u64> {
        let mut taken = Vec::new();
        self.waiters.retain(|w| {
            let take = which(w);
            if take {
                taken.push(w.token);
            }
            !take
        });
        taken
    }
}

/// The resolver of one home core. See the module's head.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Resolver {
    ids: BTreeMap<ObjectKey, Pending>,
    timers: BTreeSet<(Nanos, ObjectKey)>,
    /// One order for calls, reads and invalidations.
    counter: u64,
    all_invalidated: u64,
    store_timeout: Duration,
    is_caching: bool,
    inserts_outdated: bool,
    counters: ResolveCounters,
}

impl Default for Resolver {
    fn default() -> Self {
        Self::new(DEFAULT_STORE_TIMEOUT)
    }
}

impl Resolver {
    /// A resolver whose Store calls count as failed after `store_timeout`.
    #[must_use]
    pub fn new(store_timeout: Duration) -> Self {
        Self {
            ids: BTreeMap::new(),
            timers: BTreeSet::new(),
            counter: 0,
            all_invalidated: 0,
            store_timeout: store_timeout.max(Duration::from_millis(1)),
            is_caching: true,
            inserts_outdated: false,
            counters: ResolveCounters::default(),
        }
    }

    /// Says whether routes are cached at all (`route_cache_max_age` is positive). Without a cache
    /// every caller gets a read that was issued after its call.
    pub fn set_caching(&mut self, is_caching: bool) {
        self.is_caching = is_caching;
    }

    /// Plants a fault for the simulator's own tests.
    #[doc(hidden)]
    pub fn plant(&mut self, fault: Planted) {
        self.inserts_outdated |= fault == Planted::InsertAfterInvalidation;
    }

    /// What was counted.
    #[must_use]
    pub fn counters(&self) -> ResolveCounters {
        self.counters
    }

    /// Ids somebody waits for or a read is out for.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Whether nobody waits and nothing is out.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Whether somebody waits for this id.
    #[must_use]
    pub fn is_waited_for(&self, key: &ObjectKey) -> bool {
        self.ids.get(key).is_some_and(|p| !p.waiters.is_empty())
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
            Event::Lookup { key, waiter, deadline, fresh } => {
                self.on_lookup(key, waiter, deadline, fresh, now, out);
            }
            Event::Cancel { key, waiter } => {
                if let Some(pending) = self.ids.get_mut(&key) {
                    pending.waiters.retain(|w| w.token != waiter);
                    self.settle(key);
                }
            }
            Event::RowAnswered { key, read, row, owner } => {
                self.on_row(key, read, row, owner, now, out);
            }
            Event::OwnerAnswered { key, read, owner } => {
                self.on_owner(key, read, owner, now, out);
            }
            Event::Cleared { key, read, outcome } => {
                self.on_cleared(key, read, outcome, now, out);
            }
            Event::Invalidated { key } => {
                let number = self.number();
                if let Some(pending) = self.ids.get_mut(&key) {
                    pending.invalidated = number;
                    self.advance(key, now, out);
                }
            }
            Event::AllInvalidated => {
                self.all_invalidated = self.number();
                for key in self.ids.keys().cloned().collect::<Vec<_>>() {
                    self.advance(key, now, out);
                }
            }
            Event::Tick => self.on_tick(now, out),
            Event::Shutdown => self.on_shutdown(out),
        }
    }

    fn number(&mut self) -> u64 {
        self.counter += 1;
        self.counter
    }

    fn on_lookup(
        &mut self,
        key: ObjectKey,
        token: u64,
        deadline: Nanos,
        fresh: bool,
        now: Nanos,
        out: &mut Vec<Effect>,
    ) {
        self.counters.lookups += 1;
        if deadline <= now {
            self.counters.expired += 1;
            let error = too_late(&key);
            out.push(Effect::Ended { key, waiter: token, error });
            return;
        }
        let called = self.number();
        let pending = self.ids.entry(key.clone()).or_default();
        pending.waiters.push_back(Waiter { token, called, deadline, fresh });
        self.advance(key, now, out);
    }

    fn is_valid(&self, pending: &Pending, issued: u64) -> bool {
        issued > pending.invalidated && issued > self.all_invalidated
    }

    /// Issues the next read of the id when somebody needs one, then looks after its timer.
    fn advance(&mut self, key: ObjectKey, now: Nanos, out: &mut Vec<Effect>) {
        if let Some(pending) = self.ids.get(&key) {
            let is_needed =
                pending.waiters.back().is_some_and(|w| w.called > pending.newest_read());
            let is_valid_out = pending.reads.iter().any(|r| self.is_valid(pending, r.issued));
            if is_needed
                && !is_valid_out
                && pending.clearing.is_none()
                && pending.reads.len() < MAX_READS_PER_ID
            {
                self.issue(&key, now, out);
            }
        }
        self.settle(key);
    }

    fn issue(&mut self, key: &ObjectKey, now: Nanos, out: &mut Vec<Effect>) {
        let issued = self.number();
        let read = ReadId(issued);
        let gives_up_at = now + self.store_timeout;
        if let Some(pending) = self.ids.get_mut(key) {
            pending.reads.push(Read { id: read, issued, gives_up_at, row: None });
            self.counters.reads += 1;
            out.push(Effect::Read { key: key.clone(), read, until: gives_up_at });
        }
    }

    /// Sets the id's timer, and forgets an id nobody waits for and no read is out for.
    fn settle(&mut self, key: ObjectKey) {
        let Some(pending) = self.ids.get_mut(&key) else { return };
        let wake = pending.next_wake();
        if wake != pending.wake {
            if let Some(old) = pending.wake.take() {
                self.timers.remove(&(old, key.clone()));
            }
            if let Some(at) = wake {
                self.timers.insert((at, key.clone()));
            }
            pending.wake = wake;
        }
        if wake.is_none() {
            self.ids.remove(&key);
        }
    }

    fn take_read(&mut self, key: &ObjectKey, id: ReadId) -> Option<Read> {
        let found = self.ids.get_mut(key).and_then(|pending| {
            let at = pending.reads.iter().position(|r| r.id == id)?;
            Some(pending.reads.remove(at))
        });
        if found.is_none() {
            self.counters.late_answers += 1;
        }
        found
    }

    fn on_row(
        &mut self,
        key: ObjectKey,
        id: ReadId,
        row: Result<Option<Row>, Error>,
        owner: Option<OwnerSight>,
        now: Nanos,
        out: &mut Vec<Effect>,
    ) {
        let Some(mut read) = self.take_read(&key, id) else { return };
        match (row, owner) {
            (Err(error), _) => self.fail(&key, &read, error, out),
            (Ok(Some(row)), None) => {
                self.counters.owner_reads += 1;
                let until = now + self.store_timeout;
                out.push(Effect::ReadOwner { key: key.clone(), read: id, row: row.clone(), until });
                (read.row, read.gives_up_at) = (Some(row), until);
                if let Some(pending) = self.ids.get_mut(&key) {
                    pending.reads.push(read);
                }
                return self.settle(key);
            }
            (Ok(row), owner) => {
                let owner = owner.unwrap_or(NOBODY);
                self.conclude(&key, &read, row.as_ref(), &owner, now, out);
            }
        }
        self.advance(key, now, out);
    }

    fn on_owner(
        &mut self,
        key: ObjectKey,
        id: ReadId,
        owner: Result<OwnerSight, Error>,
        now: Nanos,
        out: &mut Vec<Effect>,
    ) {
        let Some(mut read) = self.take_read(&key, id) else { return };
        match owner {
            Err(error) => self.fail(&key, &read, error, out),
            Ok(owner) => {
                let row = read.row.take();
                debug_assert!(row.is_some(), "an owner is read after its row only");
                self.conclude(&key, &read, row.as_ref(), &owner, now, out);
            }
        }
        self.advance(key, now, out);
    }

    /// A read has everything it wanted.
    fn conclude(
        &mut self,
        key: &ObjectKey,
        read: &Read,
        row: Option<&Row>,
        owner: &OwnerSight,
        now: Nanos,
        out: &mut Vec<Effect>,
    ) {
        let Some(pending) = self.ids.get(key) else { return };
        let is_valid = self.is_valid(pending, read.issued);
        self.counters.outdated_reads += u64::from(!is_valid);
        let shares = is_valid && self.is_caching;
        let answer = match (classify(key, row, owner, now), row) {
            (Classified::Ready(route), _) => Answer::Ready(route),
            (Classified::Missing, _) => Answer::Missing,
            (Classified::Unavailable(text), _) => Answer::Unavailable(text),
            (Classified::Creating { dead: Some(dead) }, Some(row)) => {
                return self.clear(key, read, row, dead, now, out);
            }
            (Classified::Creating { .. }, _) => {
                Answer::Unavailable(format!("{key} is being created").into_boxed_str())
            }
        };
        let is_ready = matches!(answer, Answer::Ready(_));
        if let Answer::Ready(route) = &answer
            && (is_valid || self.inserts_outdated)
        {
            out.push(Effect::Insert(route.clone()));
        }
        let Some(pending) = self.ids.get_mut(key) else { return };
        pending.last_failure = None;
        let waiters = pending.take(|w| w.called < read.issued || (is_ready && shares && !w.fresh));
        resolved(key, waiters, answer, out);
    }

    /// The creator is dead. Its row goes if somebody still wants to know; the read after that
    /// answers.
    fn clear(
        &mut self,
        key: &ObjectKey,
        read: &Read,
        row: &Row,
        dead: DeadOwner,
        now: Nanos,
        out: &mut Vec<Effect>,
    ) {
        let issued = self.number();
        let until = now + self.store_timeout;
        let Some(pending) = self.ids.get_mut(key) else { return };
        pending.last_failure = None;
        if pending.clearing.is_some() || !pending.waiters.iter().any(|w| w.called < read.issued) {
            return;
        }
        let id = ReadId(issued);
        pending.clearing = Some(Clear { id, issued, gives_up_at: until });
        self.counters.clears += 1;
        out.push(Effect::Clear { key: key.clone(), read: id, row: row.clone(), dead, until });
    }

    fn on_cleared(
        &mut self,
        key: ObjectKey,
        id: ReadId,
        outcome: CommitOutcome,
        now: Nanos,
        out: &mut Vec<Effect>,
    ) {
        let clear = self
            .ids
            .get_mut(&key)
            .and_then(|pending| pending.clearing.take_if(|clear| clear.id == id));
        let Some(clear) = clear else {
            self.counters.late_answers += 1;
            return;
        };
        if let CommitOutcome::Failed(error) = outcome
            && let Some(pending) = self.ids.get_mut(&key)
        {
            let waiters = pending.take(|w| w.called < clear.issued);
            resolved(&key, waiters, Answer::StoreFailure(error), out);
        }
        self.advance(key, now, out);
    }

    /// A read failed: its waiters are told, unless another read that is out covers them too.
    fn fail(&mut self, key: &ObjectKey, read: &Read, error: Error, out: &mut Vec<Effect>) {
        self.counters.failed_reads += 1;
        let Some(pending) = self.ids.get_mut(key) else { return };
        let newest_out = pending.newest_read();
        let is_clearing = pending.clearing.is_some();
        let waiters =
            pending.take(|w| w.called < read.issued && w.called >= newest_out && !is_clearing);
        pending.last_failure = (!pending.waiters.is_empty()).then(|| error.clone());
        resolved(key, waiters, Answer::StoreFailure(error), out);
    }

    fn on_tick(&mut self, now: Nanos, out: &mut Vec<Effect>) {
        while let Some((at, key)) = self.timers.first().cloned() {
            if at > now {
                return;
            }
            self.expire(&key, now, out);
            self.give_up(&key, now, out);
            self.advance(key, now, out);
        }
    }

    fn expire(&mut self, key: &ObjectKey, now: Nanos, out: &mut Vec<Effect>) {
        let Some(pending) = self.ids.get_mut(key) else { return };
        let late = pending.take(|w| w.deadline <= now);
        self.counters.expired += late.len() as u64;
        match &pending.last_failure {
            Some(error) => resolved(key, late, Answer::StoreFailure(error.clone()), out),
            None => out.extend(late.into_iter().map(|waiter| Effect::Ended {
                key: key.clone(),
                waiter,
                error: too_late(key),
            })),
        }
    }

    fn give_up(&mut self, key: &ObjectKey, now: Nanos, out: &mut Vec<Effect>) {
        let Some(pending) = self.ids.get_mut(key) else { return };
        pending.clearing.take_if(|clear| clear.gives_up_at <= now);
        let silent: Vec<ReadId> =
            pending.reads.iter().filter(|r| r.gives_up_at <= now).map(|r| r.id).collect();
        for id in silent {
            if let Some(read) = self.take_read(key, id) {
                let error = Error::unavailable(format!(
                    "no answer to the read of {key} within {:?}",
                    self.store_timeout
                ));
                self.fail(key, &read, error, out);
            }
        }
    }

    fn on_shutdown(&mut self, out: &mut Vec<Effect>) {
        self.timers.clear();
        for (key, pending) in std::mem::take(&mut self.ids) {
            out.extend(pending.waiters.into_iter().map(|w| Effect::Ended {
                key: key.clone(),
                waiter: w.token,
                error: Error::new(
                    ErrorKind::ShuttingDown,
                    format!("the node shuts down while {key} is being resolved"),
                ),
            }));
        }
    }
}

fn too_late(key: &ObjectKey) -> Error {
    Error::new(
        ErrorKind::DeadlineExceeded,
        format!("the time to resolve {key} ran out before the Location Store answered"),
    )
}

fn resolved(key: &ObjectKey, waiters: Vec<u64>, answer: Answer, out: &mut Vec<Effect>) {
    if !waiters.is_empty() {
        out.push(Effect::Resolved { key: key.clone(), waiters, answer });
    }
}

#[cfg(test)]
mod tests;
