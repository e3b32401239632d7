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

#[cfg(feature = "protocol-coverage")]
mod coverage;

#[cfg(feature = "protocol-coverage")]
pub use coverage::MACHINE;
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
        #[cfg(feature = "protocol-coverage")]
        self.note(coverage::Happens::Push);
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
        #[cfg(feature = "protocol-coverage")]
        self.note(coverage::Happens::NextCall);
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
        #[cfg(feature = "protocol-coverage")]
        self.note(coverage::Happens::Result(&result));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::StoreVersion;
    use crate::location::{Condition, MAX_KEY_BYTES, Record, Write};

    const FAR: Nanos = Nanos(60_000_000_000);

    type Answers = Vec<(u32, StoreAnswer)>;

    fn key(i: usize) -> Key {
        format!("k{i}").into_bytes()
    }

    fn read(keys: impl IntoIterator<Item = usize>) -> StoreOp {
        StoreOp::Read(keys.into_iter().map(key).collect())
    }

    fn batch(i: usize) -> Batch {
        let put = Write::Put { key: key(i), value: vec![], ttl: None };
        Batch { conditions: vec![Condition::Absent(key(i))], writes: vec![put] }
    }

    fn scan() -> StoreOp {
        StoreOp::Scan { prefix: b"k".to_vec(), cursor: None, limit: 10 }
    }

    /// What a store that has every key answers: the value is the key.
    fn all_there(keys: &[Key]) -> ReadAnswer {
        let record = |key: &Key| {
            Some(Record { value: key.clone(), version: StoreVersion::FIRST, expires_in: None })
        };
        ReadAnswer { records: keys.iter().map(record).collect(), store_now_ms: 7 }
    }

    fn values(answer: &StoreAnswer) -> Vec<Vec<u8>> {
        let StoreAnswer::Read(answer) = answer else { panic!("{answer:?} is no read") };
        answer.records.iter().map(|r| r.as_ref().unwrap().value.clone()).collect()
    }

    fn queue(jobs: impl IntoIterator<Item = (u32, StoreOp)>) -> (StoreQueue<u32>, Answers) {
        let (mut queue, mut answers) = (StoreQueue::new(), Vec::new());
        for (job, op) in jobs {
            queue.push(job, op, FAR, &mut answers);
        }
        (queue, answers)
    }

    fn reads(queue: &mut StoreQueue<u32>, answers: &mut Answers) -> Vec<Key> {
        match queue.next_call(Nanos(0), answers) {
            Some(Call::Read { keys, .. }) => keys,
            other => panic!("{other:?} is no read"),
        }
    }

    /// Proves R2.2-8.
    #[test]
    fn waiting_reads_share_one_call_and_each_gets_its_own_keys_in_order() {
        let (mut queue, mut answers) =
            queue([(1, read([3, 1])), (2, read([])), (3, read([1, 1, 2])), (4, read([3]))]);
        let keys = reads(&mut queue, &mut answers);
        assert_eq!(keys, [key(3), key(1), key(2)], "each key once");
        assert_eq!(queue.next_call(Nanos(0), &mut answers), None, "one call at a time");
        queue.on_result(CallResult::Read(Ok(all_there(&keys))), &mut answers);
        let got: Vec<_> = answers.iter().map(|(job, answer)| (*job, values(answer))).collect();
        assert_eq!(
            got,
            [
                (1, vec![key(3), key(1)]),
                (2, vec![]),
                (3, vec![key(1), key(1), key(2)]),
                (4, vec![key(3)]),
            ]
        );
        assert_eq!(queue.waiting(), 0);
    }

    /// Proves R2.2-8.
    #[test]
    fn a_read_that_comes_while_a_call_is_out_is_read_by_the_next() {
        let (mut queue, mut answers) = queue([(1, read([1]))]);
        let keys = reads(&mut queue, &mut answers);
        queue.push(2, read([1]), FAR, &mut answers);
        queue.on_result(CallResult::Read(Ok(all_there(&keys))), &mut answers);
        assert_eq!(answers.len(), 1, "the call began before job 2 came");
        assert_eq!(reads(&mut queue, &mut answers), [key(1)]);
    }

    #[test]
    fn the_oldest_job_decides_and_kinds_do_not_mix() {
        let (mut queue, mut answers) = queue([
            (1, StoreOp::Commit(batch(1))),
            (2, read([1])),
            (3, scan()),
            (4, StoreOp::Commit(batch(2))),
            (5, read([2])),
        ]);
        let Some(Call::Commit { batches, .. }) = queue.next_call(Nanos(0), &mut answers) else {
            panic!("a commit is the oldest")
        };
        assert_eq!(batches, [batch(1), batch(2)], "in the order in which they were queued");
        let outcomes =
            vec![BatchOutcome::Conflict { condition: 0 }, BatchOutcome::Committed(vec![])];
        queue.on_result(CallResult::Commit(Ok(outcomes.clone())), &mut answers);
        let wanted = [1, 4].into_iter().zip(outcomes.into_iter().map(StoreAnswer::Commit));
        assert_eq!(answers, wanted.collect::<Vec<_>>());
        assert_eq!(reads(&mut queue, &mut answers), [key(1), key(2)]);
        queue.on_result(CallResult::Read(Ok(all_there(&[key(1), key(2)]))), &mut answers);
        let Some(Call::Scan { limit: 10, .. }) = queue.next_call(Nanos(0), &mut answers) else {
            panic!("the scan is left")
        };
        let page = ScanPage { records: vec![], next: None, store_now_ms: 0 };
        queue.on_result(CallResult::Scan(Ok(page.clone())), &mut answers);
        assert_eq!(answers.last(), Some(&(3, StoreAnswer::Scan(page))));
        assert_eq!(queue.next_call(Nanos(0), &mut answers), None);
    }

    /// Proves R2.2-8.
    #[test]
    fn a_job_whose_time_has_passed_is_answered_without_a_call() {
        let (mut queue, mut answers) = (StoreQueue::new(), Vec::new());
        queue.push(1, read([1]), Nanos(100), &mut answers);
        queue.push(2, StoreOp::Commit(batch(2)), Nanos(100), &mut answers);
        queue.push(3, read([3]), Nanos(101), &mut answers);
        let call = queue.next_call(Nanos(100), &mut answers);
        assert!(matches!(call, Some(Call::Read { keys, .. }) if keys == [key(3)]));
        assert_eq!(answers.iter().map(|(job, _)| *job).collect::<Vec<_>>(), [1, 2]);
        for (_, answer) in &answers {
            assert!(matches!(answer, StoreAnswer::Failed(StoreError::Failed(_))), "for certain");
        }
    }

    /// Proves R2.2-8.
    #[test]
    fn a_call_has_the_time_of_its_most_patient_job_within_the_bound() {
        let (mut queue, mut answers) = (StoreQueue::new(), Vec::new());
        queue.push(1, read([1]), Nanos(1_000), &mut answers);
        queue.push(2, read([2]), Nanos(5_000), &mut answers);
        queue.push(3, read([3]), Nanos(3_000), &mut answers);
        let Some(Call::Read { budget, .. }) = queue.next_call(Nanos(500), &mut answers) else {
            panic!("a read")
        };
        assert_eq!(budget, Duration::from_nanos(4_500));

        let mut queue = StoreQueue::with_max_call(Duration::from_nanos(70));
        queue.push(1, StoreOp::Commit(batch(1)), FAR, &mut answers);
        let Some(Call::Commit { budget, .. }) = queue.next_call(Nanos(0), &mut answers) else {
            panic!("a commit")
        };
        assert_eq!(budget, Duration::from_nanos(70));
    }

    /// Proves R2.2-8.
    #[test]
    fn a_job_no_provider_may_take_is_answered_alone() {
        let long = vec![b'x'; MAX_KEY_BYTES + 1];
        let twice =
            Batch { conditions: vec![], writes: [batch(1).writes, batch(1).writes].concat() };
        let (mut queue, mut answers) = queue([
            (1, read([1])),
            (2, StoreOp::Read(vec![long])),
            (3, StoreOp::Read(vec![vec![]])),
            (4, StoreOp::Commit(twice)),
        ]);
        assert_eq!(answers.iter().map(|(job, _)| *job).collect::<Vec<_>>(), [2, 3, 4]);
        assert_eq!(reads(&mut queue, &mut answers), [key(1)]);
    }

    #[test]
    fn calls_are_bounded_and_one_large_job_goes_by_itself() {
        let jobs = (0..5).map(|i| (i as u32, read(i * 300..(i + 1) * 300)));
        let large = (9, read(0..10 * MAX_JOINED_KEYS));
        let (mut queue, mut answers) = queue(jobs.chain([large]));
        let mut sizes = Vec::new();
        while queue.waiting() > 0 {
            let keys = reads(&mut queue, &mut answers);
            sizes.push(keys.len());
            queue.on_result(CallResult::Read(Ok(all_there(&keys))), &mut answers);
        }
        assert_eq!(sizes, [900, 600, 10 * MAX_JOINED_KEYS]);
        assert_eq!(answers.len(), 6);

        let commits = (0..MAX_JOINED_BATCHES + 1).map(|i| (i as u32, StoreOp::Commit(batch(i))));
        let (mut queue, mut answers) = self::queue(commits);
        for size in [MAX_JOINED_BATCHES, 1] {
            let Some(Call::Commit { batches, .. }) = queue.next_call(Nanos(0), &mut answers) else {
                panic!("a commit")
            };
            assert_eq!(batches.len(), size);
            let outcomes = vec![BatchOutcome::Committed(vec![]); size];
            queue.on_result(CallResult::Commit(Ok(outcomes)), &mut answers);
        }
        assert_eq!(answers.len(), MAX_JOINED_BATCHES + 1);
    }

    #[test]
    fn a_failure_is_everybodys_and_keeps_its_certainty() {
        let failures = [
            (StoreError::Failed("down".into()), StoreError::Failed("down".into())),
            (StoreError::Unknown("cut".into()), StoreError::Unknown("cut".into())),
        ];
        for (said, given) in failures {
            let (mut queue, mut answers) =
                queue([(1, StoreOp::Commit(batch(1))), (2, StoreOp::Commit(batch(2)))]);
            queue.next_call(Nanos(0), &mut answers).unwrap();
            queue.on_result(CallResult::Commit(Err(said)), &mut answers);
            let wanted = StoreAnswer::Failed(given);
            assert_eq!(answers, [(1, wanted.clone()), (2, wanted)]);
        }
        let failed = StoreAnswer::Failed(StoreError::Failed("cut".into()));
        let (mut queue, mut answers) = queue([(1, read([1])), (2, read([1])), (3, scan())]);
        reads(&mut queue, &mut answers);
        queue.on_result(CallResult::Read(Err(StoreError::Unknown("cut".into()))), &mut answers);
        queue.next_call(Nanos(0), &mut answers).unwrap();
        queue.on_result(CallResult::Scan(Err(StoreError::Unknown("cut".into()))), &mut answers);
        assert_eq!(answers, [(1, failed.clone()), (2, failed.clone()), (3, failed)]);
    }

    #[test]
    fn an_answer_of_the_wrong_size_is_no_answer() {
        let (mut queue, mut answers) = queue([(1, read([1, 2])), (2, StoreOp::Commit(batch(1)))]);
        reads(&mut queue, &mut answers);
        queue.on_result(CallResult::Read(Ok(all_there(&[key(1)]))), &mut answers);
        queue.next_call(Nanos(0), &mut answers).unwrap();
        queue.on_result(CallResult::Commit(Ok(vec![])), &mut answers);
        assert!(matches!(&answers[0].1, StoreAnswer::Failed(StoreError::Failed(_))));
        assert!(matches!(&answers[1].1, StoreAnswer::Failed(StoreError::Unknown(_))));
    }

    #[test]
    #[should_panic(expected = "not of the call that is out")]
    fn a_result_of_another_shape_is_a_defect_of_the_caller() {
        let (mut queue, mut answers) = queue([(1, read([1]))]);
        reads(&mut queue, &mut answers);
        queue.on_result(CallResult::Commit(Ok(vec![])), &mut answers);
    }
}
