#![forbid(unsafe_code)]
//! The keeper of a node's lease: a pure machine, driven by the lease thread and by the simulator.
//!
//! # Words
//!
//! A node's *lifecycle* is one run of its process. Its *owner record* (`owner/<rid>`, no time to
//! live) says which lifecycle may own objects under the rid; its *lease* (`lease/<rid>`, with time
//! to live) says that this lifecycle is alive; its *descriptor* (`node/<rid>`) lives as long as
//! the lease and is written together with it. All times here are on the node's own clock, and
//! a lease counts from **before** the commit that wrote it was sent, so that the node stops no
//! later than anybody else believes it does. The node acts until the lease's end less
//! [`LEASE_ADMISSION_MARGIN`] (R2.1-3).
//!
//! # States
//!
//! ```text
//! Idle -Start-> Reading -lease of another-> Watching -look again-> Reading
//!                  |  ^                                              |
//!        no lease  |  | conflict, or no answer           renewed meanwhile: StartFailed
//!                  v  |
//!               Acquiring -committed-> Held <-answered- Renewing -owner record changed-> Fencing
//!                                       |  -due, or a descriptor->                         |
//!                                    Release                                             Fenced
//!                                       v
//!                                   Releasing -> Released
//! ```
//!
//! # Rules
//!
//! - Node and lease generation come from the Store's one counter, in the same commit that writes
//!   owner record and lease (R0-3). The rest of the block is the node's first object generations.
//! - A lease that stands under the rid is watched. Its version changes: a live node uses the rid,
//!   and starting fails. It runs out: the dead lifecycle's owner record is replaced; its objects'
//!   rows carry the old generations and stay Unavailable (R5-13).
//! - A renewal is conditioned on the owner record alone, never on the lease: after a Store outage
//!   longer than the lease, the next renewal writes the lease anew and the node goes on (R5-16).
//!   An owner record that changed means released or replaced: fenced for good.
//! - No answer to a renewal: the lease is not extended; the renewal is sent again. It is
//!   idempotent under its condition, so sending it again is the read that decides. No answer to
//!   an acquisition: what stands is read; the random `lifecycle` in the owner record tells ours.
//!
//! # Crash
//!
//! A node that dies leaves its owner record and, until it runs out, its lease. Nothing takes its
//! objects over (R5-13). A node that ends in order deletes lease, descriptor and owner record.

mod end;
mod start;

#[cfg(test)]
mod tests;

use std::time::Duration;

use crate::env::{LeaseView, StoreAnswer, StoreOp};
use crate::error::Error;
use crate::ids::{NodeGeneration, NodeRid, OwnerLeaseGeneration};
use crate::limits::{
    DEFAULT_LEASE_DURATION, DEFAULT_LEASE_RENEW_INTERVAL, DEFAULT_STORE_TIMEOUT,
    LEASE_ADMISSION_MARGIN,
};
use crate::location::{Batch, BatchOutcome, StoreError, Write};
use crate::store::records::{Block, LeaseRecord, NodeDescriptor, OwnerGuard, lease_key, node_key};
use crate::time::Nanos;

use start::{Claim, SeenLease};

/// How long the Store may fail in a row while a node starts.
pub const DEFAULT_START_TIMEOUT: Duration = Duration::from_secs(5);

/// What a [`Keeper`] is made with.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KeeperConfig {
    /// The node.
    pub rid: NodeRid,
    /// Length of the lease (R0-6).
    pub lease_duration: Duration,
    /// How often it is renewed (R0-6).
    pub renew_interval: Duration,
    /// Time for one Store call.
    pub store_timeout: Duration,
    /// How long the Store may fail in a row before starting fails.
    pub start_timeout: Duration,
    /// Random: written as the mesh's hash seed if there is none yet.
    pub hash_seed: u64,
    /// Random: names this lifecycle in its owner record.
    pub lifecycle: u128,
}

impl KeeperConfig {
    /// The defaults of R0-6, with the two random numbers.
    #[must_use]
    pub const fn new(rid: NodeRid, hash_seed: u64, lifecycle: u128) -> Self {
        Self {
            rid,
            lease_duration: DEFAULT_LEASE_DURATION,
            renew_interval: DEFAULT_LEASE_RENEW_INTERVAL,
            store_timeout: DEFAULT_STORE_TIMEOUT,
            start_timeout: DEFAULT_START_TIMEOUT,
            hash_seed,
            lifecycle,
        }
    }

    /// Checks that the durations go together.
    ///
    /// # Errors
    /// `NotConfigured` when the lease has no room for two renewals and the admission margin, or
    /// a duration is zero.
    pub fn check(&self) -> Result<(), Error> {
        let room = self.renew_interval.saturating_mul(2).saturating_add(LEASE_ADMISSION_MARGIN);
        if self.renew_interval.is_zero() || self.lease_duration <= room {
            return Err(Error::not_configured(format!(
                "lease_duration is {:?} with a renewal every {:?}; the lease must be longer than \
                 two renewals and the admission margin of {LEASE_ADMISSION_MARGIN:?}",
                self.lease_duration, self.renew_interval
            )));
        }
        if self.store_timeout.is_zero() {
            return Err(Error::not_configured("store_timeout is 0; a Store call needs time"));
        }
        Ok(())
    }
}

/// What happens to a [`Keeper`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum KeeperEvent {
    /// Take the lease. Once, first.
    Start,
    /// The instant of the last [`KeeperEffect::WaitUntil`] has come.
    Timer,
    /// A Store call ended.
    Answer {
        /// From [`KeeperEffect::Store`].
        token: u64,
        /// How.
        answer: StoreAnswer,
    },
    /// Write this descriptor, now and with every renewal. The first one when the node has bound
    /// its endpoint; later ones replace it.
    Publish(Box<NodeDescriptor>),
    /// Give the lease back: the node runs no more objects.
    Release {
        /// When to give up trying.
        deadline: Nanos,
    },
}

/// What a started node knows about its lifecycle.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Started {
    /// The node's lifecycle.
    pub node_generation: NodeGeneration,
    /// The process lifecycle (R0-3).
    pub owner_lease_generation: OwnerLeaseGeneration,
    /// What every write of an authority row is conditioned on.
    pub owner: OwnerGuard,
    /// The seed of [`crate::ids::ObjectHash`], the same on every node of the Store.
    pub hash_seed: u64,
    /// The first object generations.
    pub generations: Block,
}

/// Whether the Store answers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum StoreHealth {
    /// It answers again: a Store recovery event, which empties the route caches (R2.2-4).
    Up,
    /// It did not answer; why.
    Down(String),
}

/// What a [`Keeper`] wants done, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeeperEffect {
    /// Make a Store call and bring its answer back. One is out at a time.
    Store {
        /// Comes back in [`KeeperEvent::Answer`].
        token: u64,
        /// The call.
        op: StoreOp,
        /// The time it has.
        budget: Duration,
    },
    /// Bring [`KeeperEvent::Timer`] at this instant; replaces the one before. Every step ends
    /// with one until the keeper has ended. Whoever makes Store calls blocking may ignore it
    /// while a call is out.
    WaitUntil(Nanos),
    /// This is the lease from now on: let every core see it.
    Publish(LeaseView),
    /// The lease was taken; the view was published before.
    Started(Box<Started>),
    /// Starting failed; the keeper has ended. What an acquisition without an answer may have
    /// written runs out with its lease.
    StartFailed(Error),
    /// The descriptor given last stands in the Store.
    DescriptorPublished,
    /// The descriptor cannot be a record; it was ignored.
    DescriptorRefused(Error),
    /// Released or replaced by somebody else: the lifecycle is over (R5-16). The fenced view was
    /// published before.
    Fenced(Error),
    /// The answer to `Release`; the keeper has ended.
    Released {
        /// Whether the records are known to be gone; otherwise the lease runs out by itself.
        clean: bool,
    },
    /// The Store stopped or began to answer.
    Health(StoreHealth),
}

/// The lease while it is held.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Held {
    owner: OwnerGuard,
    lease: LeaseRecord,
    descriptor: Option<Box<NodeDescriptor>>,
    /// The descriptor came while a call was out and goes with the next one, at once.
    descriptor_unsent: bool,
    /// The descriptor is not known to stand in the Store.
    descriptor_unconfirmed: bool,
    /// When the next renewal is due.
    renew_at: Nanos,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum State {
    Idle,
    /// The read that a start begins with is out.
    Reading,
    /// Waits before the next read of the start: for a lease of another, or after a failure.
    Watching,
    /// The acquiring commit is out.
    Acquiring(Claim),
    Held(Held),
    /// A renewal is out.
    Renewing {
        held: Held,
        sent_at: Nanos,
    },
    /// Fenced; the read that finds out why is out.
    Fencing,
    /// The releasing commit is out, or waits to be sent again.
    Releasing {
        owner: OwnerGuard,
        deadline: Nanos,
    },
    Ended,
}

/// The keeper of one lifecycle's lease. See the module's head.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Keeper {
    config: KeeperConfig,
    state: State,
    last_token: u64,
    /// The Store call that is out, and when it counts as lost.
    flight: Option<(u64, Nanos)>,
    /// What waits to be done at which instant when no call is out.
    wait_until: Nanos,
    /// When the Store began to fail.
    failing_since: Option<Nanos>,
    /// The lease of another lifecycle, as seen while starting.
    seen: SeenLease,
    /// When the first acquisition of unknown outcome was sent.
    doubt: Option<Nanos>,
    /// A release asked for before the lease was taken, or while a call was out.
    release: Option<Nanos>,
}

impl Keeper {
    /// A keeper that waits for [`KeeperEvent::Start`].
    #[must_use]
    pub const fn new(config: KeeperConfig) -> Self {
        Self {
            config,
            state: State::Idle,
            last_token: 0,
            flight: None,
            wait_until: Nanos::MAX,
            failing_since: None,
            seen: SeenLease::Unknown,
            doubt: None,
            release: None,
        }
    }

    /// Whether nothing will happen any more.
    #[must_use]
    pub const fn has_ended(&self) -> bool {
        matches!(self.state, State::Ended)
    }

    /// One step. Effects are appended to `out`.
    pub fn step(&mut self, event: KeeperEvent, now: Nanos, out: &mut Vec<KeeperEffect>) {
        match event {
            KeeperEvent::Start if self.state == State::Idle => self.send_start_read(now, out),
            KeeperEvent::Start => {}
            KeeperEvent::Timer => self.on_timer(now, out),
            KeeperEvent::Answer { token, answer } => {
                if self.flight.is_some_and(|(out_token, _)| out_token == token) {
                    self.on_answer(answer, now, out);
                }
            }
            KeeperEvent::Publish(descriptor) => self.on_publish(descriptor, now, out),
            KeeperEvent::Release { deadline } => self.on_release(deadline, now, out),
        }
        if !self.has_ended() {
            let flight = self.flight.map(|(_, lost_at)| lost_at);
            out.push(KeeperEffect::WaitUntil(flight.unwrap_or(self.wait_until)));
        }
    }

    fn on_timer(&mut self, now: Nanos, out: &mut Vec<KeeperEffect>) {
        if let Some((_, lost_at)) = self.flight {
            if now >= lost_at {
                let lost = "no answer in the call's time".to_owned();
                self.on_answer(StoreAnswer::Failed(StoreError::Unknown(lost)), now, out);
            }
            return;
        }
        if now < self.wait_until {
            return;
        }
        match std::mem::replace(&mut self.state, State::Ended) {
            State::Watching => self.send_start_read(now, out),
            State::Held(held) => self.send_renewal(held, now, out),
            State::Releasing { owner, deadline } => self.send_release(owner, deadline, now, out),
            other => self.state = other,
        }
    }

    fn on_answer(&mut self, answer: StoreAnswer, now: Nanos, out: &mut Vec<KeeperEffect>) {
        self.flight = None;
        self.note_health(&answer, now, out);
        match std::mem::replace(&mut self.state, State::Ended) {
            State::Reading => self.on_start_read(answer, now, out),
            State::Acquiring(claim) => self.on_acquired(claim, answer, now, out),
            State::Renewing { held, sent_at } => self.on_renewed(held, sent_at, answer, now, out),
            State::Fencing => self.on_fence_reason(&answer, out),
            State::Releasing { owner, deadline } => {
                self.on_release_answer(owner, deadline, &answer, now, out);
            }
            other => self.state = other,
        }
    }

    fn note_health(&mut self, answer: &StoreAnswer, now: Nanos, out: &mut Vec<KeeperEffect>) {
        match (answer, self.failing_since) {
            (StoreAnswer::Failed(e), None) => {
                self.failing_since = Some(now);
                out.push(KeeperEffect::Health(StoreHealth::Down(e.to_string())));
            }
            (StoreAnswer::Failed(_), Some(_)) | (_, None) => {}
            (_, Some(_)) => {
                self.failing_since = None;
                out.push(KeeperEffect::Health(StoreHealth::Up));
            }
        }
    }

    /// Sends a Store call. The caller sets the state.
    fn send(&mut self, op: StoreOp, now: Nanos, out: &mut Vec<KeeperEffect>) {
        debug_assert!(self.flight.is_none(), "one Store call at a time");
        self.last_token += 1;
        let budget = self.config.store_timeout;
        // Twice the budget: a provider that keeps its time answers before this.
        self.flight = Some((self.last_token, now + budget + budget));
        out.push(KeeperEffect::Store { token: self.last_token, op, budget });
    }

    /// The pause after a failed call.
    fn retry_pause(&self) -> Duration {
        self.config.renew_interval / 6
    }

    fn on_publish(
        &mut self,
        descriptor: Box<NodeDescriptor>,
        now: Nanos,
        out: &mut Vec<KeeperEffect>,
    ) {
        if let Err(e) = descriptor.check() {
            out.push(KeeperEffect::DescriptorRefused(e));
            return;
        }
        match std::mem::replace(&mut self.state, State::Ended) {
            State::Held(mut held) => {
                held.descriptor = Some(descriptor);
                held.descriptor_unconfirmed = true;
                self.send_renewal(held, now, out);
            }
            State::Renewing { mut held, sent_at } => {
                held.descriptor = Some(descriptor);
                held.descriptor_unconfirmed = true;
                held.descriptor_unsent = true;
                self.state = State::Renewing { held, sent_at };
            }
            other => {
                self.state = other;
                out.push(KeeperEffect::DescriptorRefused(Error::invalid(
                    "a descriptor is published only while the node holds its lease",
                )));
            }
        }
    }

    /// The batch that renews lease and descriptor (R5-16): conditioned on the owner record alone.
    fn renewal(&self, held: &Held) -> Batch {
        let rid = &self.config.rid;
        let ttl = Some(self.config.lease_duration);
        let lease = Write::Put { key: lease_key(rid), value: held.lease.encode(), ttl };
        let descriptor = held.descriptor.as_ref().map(|node| Write::Put {
            key: node_key(rid),
            value: node.encode(),
            ttl,
        });
        Batch {
            conditions: vec![held.owner.condition()],
            writes: std::iter::once(lease).chain(descriptor).collect(),
        }
    }

    fn send_renewal(&mut self, mut held: Held, now: Nanos, out: &mut Vec<KeeperEffect>) {
        let batch = self.renewal(&held);
        held.descriptor_unsent = false;
        self.state = State::Renewing { held, sent_at: now };
        self.send(StoreOp::Commit(batch), now, out);
    }

    fn on_renewed(
        &mut self,
        mut held: Held,
        sent_at: Nanos,
        answer: StoreAnswer,
        now: Nanos,
        out: &mut Vec<KeeperEffect>,
    ) {
        match answer {
            StoreAnswer::Commit(BatchOutcome::Committed(_)) => {
                held.renew_at = sent_at + self.config.renew_interval;
                if self.release.is_none() {
                    self.publish_lease(sent_at, out);
                    if held.descriptor_unconfirmed && !held.descriptor_unsent {
                        held.descriptor_unconfirmed = false;
                        out.push(KeeperEffect::DescriptorPublished);
                    }
                }
            }
            StoreAnswer::Commit(BatchOutcome::Conflict { .. }) => {
                self.fence(now, out);
                return;
            }
            // Not extended. Sent again soon, lapsed or not: only the condition decides (R5-16).
            _ => held.renew_at = now + self.retry_pause(),
        }
        self.hold(held, now, out);
    }

    /// Publishes the lease that a commit sent at `sent_at` wrote.
    fn publish_lease(&self, sent_at: Nanos, out: &mut Vec<KeeperEffect>) {
        let end = sent_at + self.config.lease_duration;
        let admission_deadline = end.minus(LEASE_ADMISSION_MARGIN);
        out.push(KeeperEffect::Publish(LeaseView { admission_deadline, fenced: false }));
    }

    /// Goes on holding: does at once what came up while a call was out, or waits.
    fn hold(&mut self, held: Held, now: Nanos, out: &mut Vec<KeeperEffect>) {
        if let Some(deadline) = self.release {
            self.send_release(held.owner, deadline, now, out);
        } else if held.descriptor_unsent {
            self.send_renewal(held, now, out);
        } else {
            self.wait_until = held.renew_at;
            self.state = State::Held(held);
        }
    }
}
