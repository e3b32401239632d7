#![forbid(unsafe_code)]
//! Store batching: many waiting operations, one provider call.
//!
//! # Words
//!
//! A *job* is one [`StoreOp`] of one core with a deadline. The Store thread makes one provider
//! *call* at a time; while it is out, jobs wait.
//!
//! # Rules
//!
//! - The oldest waiting job decides what the next call does. Every other waiting job of its shape
//!   joins it, oldest first, up to a bound: reads into one `read` with each key once, commits into
//!   one `commit` with their batches in order. A scan goes by itself.
//! - A job whose deadline has passed is answered `Failed` without a call; so is a job that breaks
//!   a rule of the SPI, so that it cannot spoil the call of others (R2.2-8).
//! - A call gets the time of its most patient job, and never more than the bound of one call: an
//!   impatient job does not cut the others short. Its core ends it by its own timer.
//! - The answer is distributed as it is. `Unknown` holds for every batch of its call. An answer of
//!   the wrong shape is `Failed` for reads and `Unknown` for commits: nothing is guessed.
//! - A joined read that failed is not tried again here; the next call of each id reads afresh.
//!
//! # Crash
//!
//! Jobs of a process that dies are gone with it; what its commits did stands in the Store.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::env::{StoreAnswer, StoreOp};
use crate::limits::DEFAULT_STORE_TIMEOUT;
use crate::location::{
    Batch, BatchOutcome, Cursor, Key, ReadAnswer, ScanPage, StoreError, check_batch, check_key,
};
use crate::time::Nanos;

/// Keys of one joined read at most. A single job with more goes by itself.
pub const MAX_JOINED_KEYS: usize = 1024;
/// Batches of one joined commit at most.
pub const MAX_JOINED_BATCHES: usize = 256;

/// One provider call.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// `read`
    Read {
        /// Each key once.
        keys: Vec<Key>,
        /// The time it has.
        budget: Duration,
    },
    /// `commit`
    Commit {
        /// In the order in which they were queued.
        batches: Vec<Batch>,
        /// The time it has.
        budget: Duration,
    },
    /// `scan`
    Scan {
        /// What the keys start with.
        prefix: Key,
        /// Where to go on.
        cursor: Option<Cursor>,
        /// Records at most.
        limit: usize,
        /// The time it has.
        budget: Duration,
    },
}

/// The result of a provider call of the same shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallResult {
    /// Of `read`.
    Read(Result<ReadAnswer, StoreError>),
    /// Of `commit`.
    Commit(Result<Vec<BatchOutcome>, StoreError>),
    /// Of `scan`.
    Scan(Result<ScanPage, StoreError>),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Job<J> {
    job: J,
    op: StoreOp,
    deadline: Nanos,
}

/// Who waits for the call that is out.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Flight<J> {
    None,
    /// Each with the places of its keys in the call.
    Read(Vec<(J, Vec<usize>)>, usize),
    Commit(Vec<J>),
    Scan(J),
}

/// The queue in front of one provider. `J` names a job to whoever queued it.
///
/// ```
/// use homing::env::StoreOp;
/// use homing::protocol::batch::{Call, StoreQueue};
/// use homing::time::Nanos;
///
/// let mut queue = StoreQueue::new();
/// let mut answers = Vec::new();
/// let deadline = Nanos(1_000_000);
/// queue.push(1, StoreOp::Read(vec![b"a".to_vec()]), deadline, &mut answers);
/// queue.push(2, StoreOp::Read(vec![b"b".to_vec(), b"a".to_vec()]), deadline, &mut answers);
/// let Some(Call::Read { keys, .. }) = queue.next_call(Nanos(0), &mut answers) else { panic!() };
/// assert_eq!(keys, [b"a", b"b"]);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StoreQueue<J> {
    waiting: VecDeque<Job<J>>,
    flight: Flight<J>,
    max_call: Duration,
}

impl<J> Default for StoreQueue<J> {
    fn default() -> Self {
        Self::new()
    }
}

impl<J> StoreQueue<J> {
    /// An empty queue whose calls get [`DEFAULT_STORE_TIMEOUT`] at most.
    #[must_use]
    pub const fn new() -> Self {
        Self::with_max_call(DEFAULT_STORE_TIMEOUT)
    }

    /// An empty queue with another bound for the time of one call.
    #[must_use]
    pub const fn with_max_call(max_call: Duration) -> Self {
        Self { waiting: VecDeque::new(), flight: Flight::None, max_call }
    }

    /// Jobs that wait, without those of the call that is out.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whether a call is out.
    #[must_use]
    pub const fn is_calling(&self) -> bool {
        !matches!(self.flight, Flight::None)
    }

    /// Queues a job. One that no provider may take is answered at once.
    pub fn push(&mut self, job: J, op: StoreOp, deadline: Nanos, out: &mut Vec<(J, StoreAnswer)>) {
        let checked = match &op {
            StoreOp::Read(keys) => keys.iter().try_for_each(|key| check_key(key)),
            StoreOp::Commit(batch) => check_batch(batch),
            StoreOp::Scan { .. } => Ok(()),
        };
        match checked {
            Ok(()) => self.waiting.push_back(Job { job, op, deadline }),
            Err(e) => out.push((job, StoreAnswer::Failed(e))),
        }
    }

    /// The next provider call; `None` when none is due or one is out. Jobs whose time has passed
    /// are answered into `out`.
    pub fn next_call(&mut self, now: Nanos, out: &mut Vec<(J, StoreAnswer)>) -> Option<Call> {
        if self.is_calling() {
            return None;
        }
        self.drop_expired(now, out);
        let first = self.waiting.pop_front()?;
        let deadline = first.deadline;
        match first.op {
            StoreOp::Read(keys) => Some(self.join_reads(first.job, keys, deadline, now)),
            StoreOp::Commit(batch) => Some(self.join_commits(first.job, batch, deadline, now)),
            StoreOp::Scan { prefix, cursor, limit } => {
                self.flight = Flight::Scan(first.job);
                let budget = self.budget(deadline, now);
                Some(Call::Scan { prefix, cursor, limit, budget })
            }
        }
    }

    fn drop_expired(&mut self, now: Nanos, out: &mut Vec<(J, StoreAnswer)>) {
        if self.waiting.iter().all(|job| now < job.deadline) {
            return;
        }
        for job in std::mem::take(&mut self.waiting) {
            if now < job.deadline {
                self.waiting.push_back(job);
            } else {
                let text = "its time ran out before the Store could be called".to_owned();
                out.push((job.job, StoreAnswer::Failed(StoreError::Failed(text))));
            }
        }
    }

    fn budget(&self, deadline: Nanos, now: Nanos) -> Duration {
        deadline.since(now).min(self.max_call)
    }

    fn join_reads(&mut self, job: J, keys: Vec<Key>, deadline: Nanos, now: Nanos) -> Call {
        let mut latest = deadline;
        let mut joined = JoinedKeys::default();
        let mut jobs = vec![(job, joined.add(keys))];
        let mut rest = VecDeque::with_capacity(self.waiting.len());
        for waiting in std::mem::take(&mut self.waiting) {
            match waiting {
                Job { job, op: StoreOp::Read(keys), deadline }
                    if joined.order.len() + keys.len() <= MAX_JOINED_KEYS =>
                {
                    latest = latest.max(deadline);
                    jobs.push((job, joined.add(keys)));
                }
                other => rest.push_back(other),
            }
        }
        self.waiting = rest;
        self.flight = Flight::Read(jobs, joined.order.len());
        Call::Read { keys: joined.order, budget: self.budget(latest, now) }
    }

    fn join_commits(&mut self, job: J, batch: Batch, deadline: Nanos, now: Nanos) -> Call {
        let mut latest = deadline;
        let (mut jobs, mut batches) = (vec![job], vec![batch]);
        let mut rest = VecDeque::with_capacity(self.waiting.len());
        for waiting in std::mem::take(&mut self.waiting) {
            match waiting {
                Job { job, op: StoreOp::Commit(batch), deadline }
                    if batches.len() < MAX_JOINED_BATCHES =>
                {
                    latest = latest.max(deadline);
                    jobs.push(job);
                    batches.push(batch);
                }
                other => rest.push_back(other),
            }
        }
        self.waiting = rest;
        self.flight = Flight::Commit(jobs);
        Call::Commit { batches, budget: self.budget(latest, now) }
    }

    /// Distributes the result of the call that is out.
    ///
    /// # Panics
    /// When no call of that shape is out: a defect of the caller.
    pub fn on_result(&mut self, result: CallResult, out: &mut Vec<(J, StoreAnswer)>) {
        match (std::mem::replace(&mut self.flight, Flight::None), result) {
            (Flight::Read(jobs, keys), CallResult::Read(result)) => {
                give_reads(jobs, keys, result, out)
            }
            (Flight::Commit(jobs), CallResult::Commit(result)) => give_commits(jobs, result, out),
            (Flight::Scan(job), CallResult::Scan(result)) => out.push((
                job,
                match result {
                    Ok(page) => StoreAnswer::Scan(page),
                    Err(e) => StoreAnswer::Failed(as_failed(e)),
                },
            )),
            _ => panic!("the result is not of the call that is out"),
        }
    }
}

/// Keys of a joined read: each once, in the order in which they were first asked for.
#[derive(Default)]
struct JoinedKeys {
    order: Vec<Key>,
    places: BTreeMap<Key, usize>,
}

impl JoinedKeys {
    /// Adds a job's keys; gives the place of each.
    fn add(&mut self, keys: Vec<Key>) -> Vec<usize> {
        let Self { order, places } = self;
        keys.into_iter()
            .map(|key| {
                *places.entry(key).or_insert_with_key(|key| {
                    order.push(key.clone());
                    order.len() - 1
                })
            })
            .collect()
    }
}

/// Reads and scans write nothing, so their outcome is never unknown.
fn as_failed(e: StoreError) -> StoreError {
    match e {
        StoreError::Failed(text) | StoreError::Unknown(text) => StoreError::Failed(text),
    }
}

fn give_reads<J>(
    jobs: Vec<(J, Vec<usize>)>,
    keys: usize,
    result: Result<ReadAnswer, StoreError>,
    out: &mut Vec<(J, StoreAnswer)>,
) {
    let result = match result {
        Ok(answer) if answer.records.len() == keys => Ok(answer),
        Ok(answer) => Err(StoreError::Failed(format!(
            "the provider answered {} records for {keys} keys",
            answer.records.len()
        ))),
        Err(e) => Err(as_failed(e)),
    };
    for (job, places) in jobs {
        let answer = match &result {
            Ok(answer) => StoreAnswer::Read(ReadAnswer {
                records: places.iter().map(|&at| answer.records[at].clone()).collect(),
                store_now_ms: answer.store_now_ms,
            }),
            Err(e) => StoreAnswer::Failed(e.clone()),
        };
        out.push((job, answer));
    }
}

fn give_commits<J>(
    jobs: Vec<J>,
    result: Result<Vec<BatchOutcome>, StoreError>,
    out: &mut Vec<(J, StoreAnswer)>,
) {
    let result = match result {
        Ok(outcomes) if outcomes.len() == jobs.len() => Ok(outcomes),
        Ok(outcomes) => Err(StoreError::Unknown(format!(
            "the provider answered {} outcomes for {} batches",
            outcomes.len(),
            jobs.len()
        ))),
        Err(e) => Err(e),
    };
    match result {
        Ok(outcomes) => {
            out.extend(jobs.into_iter().zip(outcomes.into_iter().map(StoreAnswer::Commit)));
        }
        Err(e) => out.extend(jobs.into_iter().map(|job| (job, StoreAnswer::Failed(e.clone())))),
    }
}
