#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods)] // threads and their clock: this file is a part of the real Env
//! The two threads that call the Location Store: one batches the cores' reads and commits, one
//! keeps the node's lease. Both drive pure machines ([`StoreQueue`], [`Keeper`]) with blocking
//! provider calls; a provider that panics counts as one that did not answer.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::env::{StoreAnswer, StoreOp};
use crate::error::Error;
use crate::location::{LocationStore, StoreError};
use crate::protocol::batch::{Call, CallResult, StoreQueue};
use crate::store::leases::{Keeper, KeeperEffect, KeeperEvent, Started, StoreHealth};
use crate::store::records::NodeDescriptor;
use crate::sync::LeaseCell;
use crate::time::Nanos;

/// A Store call of a core.
#[derive(Debug)]
pub(crate) struct StoreJob {
    /// Who asks.
    pub(crate) core: u16,
    /// Names the call to that core.
    pub(crate) token: u64,
    /// The call.
    pub(crate) op: StoreOp,
    /// Not begun after this.
    pub(crate) deadline: Nanos,
}

/// Brings an answer to a core: `(core, token, answer)`.
pub(crate) type Deliver = Arc<dyn Fn(u16, u64, StoreAnswer) + Send + Sync>;

/// Starts the Store thread. It ends when every sender of `jobs` is gone and the queue is empty.
///
/// # Errors
/// What the kernel says when it gives no thread.
pub(crate) fn spawn_store_thread(
    store: Arc<dyn LocationStore>,
    jobs: flume::Receiver<StoreJob>,
    deliver: Deliver,
) -> Result<JoinHandle<()>, Error> {
    spawn("homing-store", move || run_store_thread(&*store, &jobs, &deliver))
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, Error> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(body)
        .map_err(|e| Error::internal(format!("the thread {name} cannot be started: {e}")))
}

fn run_store_thread(
    store: &dyn LocationStore,
    jobs: &flume::Receiver<StoreJob>,
    deliver: &Deliver,
) {
    let mut queue: StoreQueue<(u16, u64)> = StoreQueue::new();
    let mut answers = Vec::new();
    while let Ok(first) = jobs.recv() {
        let mut next = Some(first);
        loop {
            for job in next.take().into_iter().chain(jobs.try_iter()) {
                queue.push((job.core, job.token), job.op, job.deadline, &mut answers);
            }
            let call = queue.next_call(now(), &mut answers);
            give(&mut answers, deliver);
            let Some(call) = call else { break };
            queue.on_result(carry_out(store, call), &mut answers);
            give(&mut answers, deliver);
        }
    }
}

fn give(answers: &mut Vec<((u16, u64), StoreAnswer)>, deliver: &Deliver) {
    for ((core, token), answer) in answers.drain(..) {
        deliver(core, token, answer);
    }
}

/// Makes one provider call. A panic of a read or scan is `Failed`, of a commit `Unknown`.
fn carry_out(store: &dyn LocationStore, call: Call) -> CallResult {
    match call {
        Call::Read { keys, budget } => {
            CallResult::Read(caught(StoreError::Failed, || store.read(&keys, budget)))
        }
        Call::Commit { batches, budget } => {
            CallResult::Commit(caught(StoreError::Unknown, || store.commit(&batches, budget)))
        }
        Call::Scan { prefix, cursor, limit, budget } => {
            CallResult::Scan(caught(StoreError::Failed, || {
                store.scan(&prefix, cursor.as_ref(), limit, budget)
            }))
        }
    }
}

fn caught<T>(
    kind: fn(String) -> StoreError,
    call: impl FnOnce() -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    // The provider keeps its own state sound: the SPI lets any thread call it at any time.
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
        let text = panic
            .downcast_ref::<&str>()
            .map(|text| (*text).to_owned())
            .or_else(|| panic.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "no text".to_owned());
        Err(kind(format!("the provider panicked: {text}")))
    })
}

/// What the node tells the lease thread.
#[derive(Debug)]
pub(crate) enum LeaseControl {
    /// Write this descriptor, now and with every renewal; replaces the one before.
    Publish(Box<NodeDescriptor>),
    /// Give the lease back, trying until `deadline`, and end.
    Release {
        /// When to give up.
        deadline: Nanos,
    },
}

/// What the lease thread tells the node.
#[derive(Debug)]
pub(crate) enum LeaseReport {
    /// The lease was taken.
    Started(Box<Started>),
    /// It was not; the thread ends.
    StartFailed(Error),
    /// The descriptor given last stands in the Store.
    DescriptorPublished,
    /// The descriptor cannot be a record.
    DescriptorRefused(Error),
    /// The lifecycle is over (R5-16). The cell says so already.
    Fenced(Error),
    /// The Store stopped or began to answer; `Up` is the recovery event of R2.2-4.
    Health(StoreHealth),
    /// The answer to `Release`; the thread ends.
    Released {
        /// Whether the records are known to be gone.
        clean: bool,
    },
}

/// Takes a report of the lease thread. Called on that thread; must not block.
pub(crate) type Report = Box<dyn Fn(LeaseReport) + Send>;

/// How long a lease is given back when the node went away without asking for it.
const ABANDONED_RELEASE: Duration = Duration::from_secs(2);

/// Starts the lease thread: takes the lease through `store` (a connection of its own), keeps it,
/// and publishes it in `cell`. It ends after `StartFailed`, after `Release` was answered, and,
/// giving the lease back, when every sender of `control` is gone.
///
/// # Errors
/// What the kernel says when it gives no thread.
pub(crate) fn spawn_lease_thread(
    store: Arc<dyn LocationStore>,
    keeper: Keeper,
    cell: Arc<LeaseCell>,
    control: flume::Receiver<LeaseControl>,
    report: Report,
) -> Result<JoinHandle<()>, Error> {
    spawn("homing-lease", move || {
        LeaseThread { store, keeper, cell, control: Some(control), report }.run();
    })
}

struct LeaseThread {
    store: Arc<dyn LocationStore>,
    keeper: Keeper,
    cell: Arc<LeaseCell>,
    /// `None` once every sender is gone.
    control: Option<flume::Receiver<LeaseControl>>,
    report: Report,
}

impl LeaseThread {
    fn run(mut self) {
        let mut event = KeeperEvent::Start;
        let mut effects = Vec::new();
        let mut released = false;
        loop {
            self.keeper.step(event, now(), &mut effects);
            let mut answer = None;
            let mut wait_until = Nanos::MAX;
            for effect in effects.drain(..) {
                match effect {
                    KeeperEffect::Store { token, op, budget } => {
                        answer = Some(KeeperEvent::Answer {
                            token,
                            answer: call_one(&*self.store, op, budget),
                        });
                    }
                    KeeperEffect::WaitUntil(at) => wait_until = at,
                    KeeperEffect::Released { .. } | KeeperEffect::StartFailed(_) => {
                        released = true;
                        self.tell(effect);
                    }
                    other => self.tell(other),
                }
            }
            if released {
                return;
            }
            event = match answer {
                Some(answer) => answer,
                None => self.wait(wait_until),
            };
        }
    }

    fn tell(&self, effect: KeeperEffect) {
        let report = match effect {
            KeeperEffect::Publish(view) => {
                self.cell.store(view.admission_deadline, view.fenced);
                return;
            }
            KeeperEffect::Started(started) => LeaseReport::Started(started),
            KeeperEffect::StartFailed(e) => LeaseReport::StartFailed(e),
            KeeperEffect::DescriptorPublished => LeaseReport::DescriptorPublished,
            KeeperEffect::DescriptorRefused(e) => LeaseReport::DescriptorRefused(e),
            KeeperEffect::Fenced(e) => LeaseReport::Fenced(e),
            KeeperEffect::Health(health) => LeaseReport::Health(health),
            KeeperEffect::Released { clean } => LeaseReport::Released { clean },
            KeeperEffect::Store { .. } | KeeperEffect::WaitUntil(_) => return,
        };
        (self.report)(report);
    }

    /// Waits for the node or the keeper's next instant.
    fn wait(&mut self, until: Nanos) -> KeeperEvent {
        let left = until.since(now());
        let Some(control) = &self.control else {
            std::thread::sleep(left);
            return KeeperEvent::Timer;
        };
        let received = if until == Nanos::MAX {
            control.recv().map_err(|_| flume::RecvTimeoutError::Disconnected)
        } else {
            control.recv_timeout(left)
        };
        match received {
            Ok(LeaseControl::Publish(descriptor)) => KeeperEvent::Publish(descriptor),
            Ok(LeaseControl::Release { deadline }) => KeeperEvent::Release { deadline },
            Err(flume::RecvTimeoutError::Timeout) => KeeperEvent::Timer,
            Err(flume::RecvTimeoutError::Disconnected) => {
                self.control = None;
                KeeperEvent::Release { deadline: now() + ABANDONED_RELEASE }
            }
        }
    }
}

fn call_one(store: &dyn LocationStore, op: StoreOp, budget: Duration) -> StoreAnswer {
    let answer = match op {
        StoreOp::Read(keys) => {
            caught(StoreError::Failed, || store.read(&keys, budget)).map(StoreAnswer::Read)
        }
        StoreOp::Commit(batch) => caught(StoreError::Unknown, || store.commit(&[batch], budget))
            .and_then(|mut outcomes| match (outcomes.pop(), outcomes.is_empty()) {
                (Some(outcome), true) => Ok(StoreAnswer::Commit(outcome)),
                _ => Err(StoreError::Unknown("the provider answered no single outcome".into())),
            }),
        StoreOp::Scan { prefix, cursor, limit } => {
            caught(StoreError::Failed, || store.scan(&prefix, cursor.as_ref(), limit, budget))
                .map(StoreAnswer::Scan)
        }
    };
    answer.unwrap_or_else(StoreAnswer::Failed)
}

fn now() -> Nanos {
    crate::store::boottime()
}
