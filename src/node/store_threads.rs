#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods)] // threads and their clock: this file is a part of the real Env
//! The two threads that call the Location Store: one batches the cores' reads and commits, one
//! keeps the node's lease. Both drive pure machines ([`StoreQueue`], [`Keeper`]) with blocking
//! provider calls; a provider that panics counts as one that did not answer.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use super::real::reached;
use crate::env::{Failpoint, StoreAnswer, StoreOp};
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
            reached(Failpoint::CommitSent);
            let answer = caught(StoreError::Unknown, || store.commit(&batches, budget));
            reached(Failpoint::CommitAnswered);
            CallResult::Commit(answer)
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
                        let is_held = self.cell.load().0 > Nanos::ZERO;
                        let is_renewal = is_held && matches!(op, StoreOp::Commit(_));
                        if is_renewal {
                            reached(Failpoint::RenewalSent);
                        }
                        let given = call_one(&*self.store, op, budget);
                        if is_renewal {
                            reached(Failpoint::RenewalAnswered);
                        }
                        answer = Some(KeeperEvent::Answer { token, answer: given });
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{MeshName, NodeRid};
    use crate::location::{Batch, BatchOutcome, Cursor, Key, ReadAnswer, ScanPage, Write};
    use crate::store::leases::KeeperConfig;
    use crate::store::memory::MemoryStore;
    use crate::store::records::{OwnerRecord, lease_key, node_key, owner_key, release_dead_owner};
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Long enough that only a hang meets it.
    const HANG: Duration = Duration::from_secs(60);
    const FAR: Nanos = Nanos::MAX;

    /// A memory store whose reads wait at a gate, that counts calls and panics on demand.
    #[derive(Clone)]
    struct Gated {
        inner: MemoryStore,
        gate: flume::Receiver<()>,
        entered: flume::Sender<usize>,
        panics: Arc<AtomicUsize>,
    }

    impl Gated {
        /// The store, what lets one read through per message, and what tells each read's size.
        fn new() -> (Self, flume::Sender<()>, flume::Receiver<usize>) {
            let (open, gate) = flume::unbounded();
            let (entered, sizes) = flume::unbounded();
            let panics = Arc::default();
            (Self { inner: MemoryStore::new(), gate, entered, panics }, open, sizes)
        }

        fn maybe_panic(&self) {
            let left = self.panics.load(Ordering::Relaxed);
            if left > 0 {
                self.panics.store(left - 1, Ordering::Relaxed);
                panic!("planted");
            }
        }
    }

    impl LocationStore for Gated {
        fn read(&self, keys: &[Key], budget: Duration) -> Result<ReadAnswer, StoreError> {
            self.maybe_panic();
            let _ = self.entered.send(keys.len());
            let _ = self.gate.recv();
            self.inner.read(keys, budget)
        }
        fn commit(
            &self,
            batches: &[Batch],
            budget: Duration,
        ) -> Result<Vec<BatchOutcome>, StoreError> {
            self.maybe_panic();
            self.inner.commit(batches, budget)
        }
        fn scan(
            &self,
            prefix: &[u8],
            cursor: Option<&Cursor>,
            limit: usize,
            budget: Duration,
        ) -> Result<ScanPage, StoreError> {
            self.maybe_panic();
            self.inner.scan(prefix, cursor, limit, budget)
        }
        fn change_stamp(&self, budget: Duration) -> Result<u64, StoreError> {
            self.inner.change_stamp(budget)
        }
    }

    struct StoreThread {
        jobs: flume::Sender<StoreJob>,
        answers: flume::Receiver<(u16, u64, StoreAnswer)>,
        thread: JoinHandle<()>,
    }

    impl StoreThread {
        fn start(store: impl LocationStore) -> Self {
            let (jobs, receiver) = flume::unbounded();
            let (sender, answers) = flume::unbounded();
            let deliver: Deliver = Arc::new(move |core, token, answer| {
                sender.send((core, token, answer)).unwrap();
            });
            let thread = spawn_store_thread(Arc::new(store), receiver, deliver).unwrap();
            Self { jobs, answers, thread }
        }

        fn ask(&self, core: u16, token: u64, op: StoreOp, deadline: Nanos) {
            self.jobs.send(StoreJob { core, token, op, deadline }).unwrap();
        }

        fn answer(&self) -> (u16, u64, StoreAnswer) {
            self.answers.recv_timeout(HANG).expect("the Store thread hangs")
        }
    }

    fn read(key: &str) -> StoreOp {
        StoreOp::Read(vec![key.into()])
    }

    fn put(key: &str) -> Batch {
        let put = Write::Put { key: key.into(), value: b"v".to_vec(), ttl: None };
        Batch { conditions: vec![], writes: vec![put] }
    }

    /// Proves R2.2-8.
    #[test]
    fn reads_that_wait_for_a_slow_call_share_the_next_one() {
        let (store, open, sizes) = Gated::new();
        let store_thread = StoreThread::start(store);
        store_thread.ask(0, 1, read("a"), FAR);
        assert_eq!(sizes.recv_timeout(HANG), Ok(1));
        for token in 2..=40 {
            store_thread.ask((token % 3) as u16, token, read(&format!("k{}", token % 5)), FAR);
        }
        open.send(()).unwrap();
        open.send(()).unwrap();
        let mut tokens: Vec<_> = (0..40).map(|_| store_thread.answer()).collect();
        assert_eq!(sizes.recv_timeout(HANG), Ok(5), "39 reads of 5 keys are one call");
        assert!(tokens.iter().all(|(core, token, answer)| {
            matches!(answer, StoreAnswer::Read(_)) && (*token == 1 || *core == (token % 3) as u16)
        }));
        tokens.sort_by_key(|(_, token, _)| *token);
        assert!(tokens.iter().map(|(_, token, _)| *token).eq(1..=40), "each is answered once");
    }

    #[test]
    fn a_provider_that_panics_gave_no_answer_and_the_thread_goes_on() {
        let (store, open, _sizes) = Gated::new();
        let panics = store.panics.clone();
        let store_thread = StoreThread::start(store);
        let scan = StoreOp::Scan { prefix: b"k".to_vec(), cursor: None, limit: 1 };
        panics.store(3, Ordering::Relaxed);
        for (token, op, unknown) in
            [(1, read("a"), false), (2, StoreOp::Commit(put("a")), true), (3, scan, false)]
        {
            store_thread.ask(0, token, op, FAR);
            let (_, answered, answer) = store_thread.answer();
            assert_eq!(answered, token);
            match answer {
                StoreAnswer::Failed(StoreError::Unknown(text)) if unknown => {
                    assert!(text.contains("planted"), "{text}");
                }
                StoreAnswer::Failed(StoreError::Failed(text)) if !unknown => {
                    assert!(text.contains("planted"), "{text}");
                }
                other => panic!("job {token}: {other:?}"),
            }
        }
        open.send(()).unwrap();
        store_thread.ask(0, 4, read("a"), FAR);
        assert!(matches!(store_thread.answer(), (0, 4, StoreAnswer::Read(_))));
    }

    /// Proves R2.2-8.
    #[test]
    fn a_job_that_is_late_already_never_reaches_the_provider() {
        let (store, _open, sizes) = Gated::new();
        let store_thread = StoreThread::start(store);
        store_thread.ask(0, 1, read("a"), Nanos(1));
        assert!(matches!(store_thread.answer(), (0, 1, StoreAnswer::Failed(_))));
        assert!(sizes.is_empty());
    }

    #[test]
    fn the_thread_answers_what_is_queued_and_ends_with_its_senders() {
        let store_thread = StoreThread::start(MemoryStore::new());
        for token in 0..100 {
            store_thread.ask(0, token, StoreOp::Commit(put("a")), FAR);
        }
        drop(store_thread.jobs);
        store_thread.thread.join().unwrap();
        assert_eq!(store_thread.answers.len(), 100);
    }

    struct Lease {
        control: Option<flume::Sender<LeaseControl>>,
        reports: flume::Receiver<LeaseReport>,
        cell: Arc<LeaseCell>,
        thread: JoinHandle<()>,
    }

    fn rid() -> NodeRid {
        NodeRid::new("n").unwrap()
    }

    impl Lease {
        fn start(store: impl LocationStore, lifecycle: u128) -> Self {
            let config = KeeperConfig {
                lease_duration: Duration::from_secs(20),
                renew_interval: Duration::from_millis(30),
                start_timeout: Duration::from_millis(20),
                ..KeeperConfig::new(rid(), 7, lifecycle)
            };
            let (control, receiver) = flume::unbounded();
            let (sender, reports) = flume::unbounded();
            let cell = Arc::new(LeaseCell::new());
            let thread = spawn_lease_thread(
                Arc::new(store),
                Keeper::new(config),
                cell.clone(),
                receiver,
                Box::new(move |report| drop(sender.send(report))),
            )
            .unwrap();
            Self { control: Some(control), reports, cell, thread }
        }

        fn report(&self) -> LeaseReport {
            self.reports.recv_timeout(HANG).expect("the lease thread hangs")
        }

        fn started(&self) -> Box<Started> {
            match self.report() {
                LeaseReport::Started(started) => started,
                other => panic!("{other:?}"),
            }
        }

        fn tell(&self, control: LeaseControl) {
            self.control.as_ref().unwrap().send(control).unwrap();
        }
    }

    fn is_there(store: &MemoryStore, key: Key) -> bool {
        store.read(&[key], HANG).unwrap().records[0].is_some()
    }

    fn descriptor(started: &Started) -> Box<NodeDescriptor> {
        Box::new(NodeDescriptor {
            rid: rid(),
            mesh: MeshName::new("m").unwrap(),
            endpoint: "tcp://127.0.0.1:1".parse().unwrap(),
            node_generation: started.node_generation,
            key_id: 1,
            cores: 1,
            actor_types: vec![],
            spot_types: vec![],
            message_follow_duration_ms: 0,
        })
    }

    /// Proves R0-6, R5-16.
    #[test]
    fn the_lease_is_taken_published_renewed_and_given_back() {
        let store = MemoryStore::new();
        let lease = Lease::start(store.clone(), 1);
        let started = lease.started();
        let (first, fenced) = lease.cell.load();
        assert!(first > now() && !fenced, "published before the report");
        lease.tell(LeaseControl::Publish(descriptor(&started)));
        assert!(matches!(lease.report(), LeaseReport::DescriptorPublished));
        assert!(is_there(&store, node_key(&rid())) && is_there(&store, lease_key(&rid())));
        let published = lease.cell.load().0;
        while lease.cell.load().0 <= published {
            std::thread::yield_now();
        }
        lease.tell(LeaseControl::Release { deadline: now() + HANG });
        assert!(matches!(lease.report(), LeaseReport::Released { clean: true }));
        assert_eq!(lease.cell.load(), (Nanos::ZERO, true));
        lease.thread.join().unwrap();
        for key in [node_key(&rid()), lease_key(&rid()), owner_key(&rid())] {
            assert!(!is_there(&store, key));
        }
    }

    #[test]
    fn a_node_that_goes_away_without_a_word_leaves_no_lease() {
        let store = MemoryStore::new();
        let mut lease = Lease::start(store.clone(), 1);
        lease.started();
        lease.control = None;
        assert!(matches!(lease.report(), LeaseReport::Released { clean: true }));
        lease.thread.join().unwrap();
        assert!(!is_there(&store, lease_key(&rid())));
    }

    #[test]
    fn a_store_that_panics_fails_the_start_by_one_sentence() {
        let (store, _open, _sizes) = Gated::new();
        store.panics.store(usize::MAX, Ordering::Relaxed);
        let lease = Lease::start(store, 1);
        let LeaseReport::Health(StoreHealth::Down(text)) = lease.report() else {
            panic!("the failure is told first")
        };
        assert!(text.contains("planted"), "{text}");
        let LeaseReport::StartFailed(e) = lease.report() else { panic!("then the start fails") };
        assert!(e.text().contains("did not answer"), "{e}");
        lease.thread.join().unwrap();
        assert_eq!(lease.cell.load(), (Nanos::ZERO, false));
    }

    /// Proves R5-16.
    #[test]
    fn a_released_node_is_fenced_in_the_cell_before_it_is_told() {
        let store = MemoryStore::new();
        let lease = Lease::start(store.clone(), 1);
        lease.started();
        let key = owner_key(&rid());
        let record =
            store.read(std::slice::from_ref(&key), HANG).unwrap().records.remove(0).unwrap();
        let owner = OwnerRecord::decode(&key, &record.value).unwrap();
        let mut release = release_dead_owner(&rid(), &owner, record.version);
        release.conditions.truncate(1); // as if the lease had lapsed
        assert!(matches!(store.commit(&[release], HANG).unwrap()[0], BatchOutcome::Committed(_)));
        let LeaseReport::Fenced(e) = lease.report() else { panic!("fenced") };
        assert!(e.text().contains("released"), "{e}");
        assert_eq!(lease.cell.load(), (Nanos::ZERO, true));
        lease.tell(LeaseControl::Release { deadline: now() + HANG });
        assert!(matches!(lease.report(), LeaseReport::Released { .. }));
        lease.thread.join().unwrap();
    }

    #[test]
    fn two_live_nodes_of_one_rid_are_told_apart() {
        let store = MemoryStore::new();
        let live = Lease::start(store.clone(), 1);
        live.started();
        let second = Lease::start(store.clone(), 2);
        let LeaseReport::StartFailed(e) = second.report() else { panic!("refused") };
        assert!(e.text().contains("rid \"n\" is used by a live node"), "{e}");
        second.thread.join().unwrap();
        live.tell(LeaseControl::Release { deadline: now() + HANG });
        assert!(matches!(live.report(), LeaseReport::Released { clean: true }));
    }
}
