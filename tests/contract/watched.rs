#![forbid(unsafe_code)]
//! A provider around the real one: it counts what is read, and blocks or fails when it is told.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use homing::location::{
    Batch, BatchOutcome, Cursor, Key, LocationStore, ReadAnswer, ScanPage, StoreError,
};

#[derive(Default)]
struct State {
    /// The keys of every read call, in order.
    reads: Vec<Vec<Key>>,
    commits: usize,
    fails_after: Option<usize>,
    failed: usize,
    is_failing: bool,
    /// Reads with a key that ends like this wait.
    blocked: Option<String>,
    /// The first read with this key is made, and its answer then waits.
    held: Option<String>,
    holding: bool,
    waiting: usize,
    /// Commits that touch Actor rows whose answers get lost.
    losing: usize,
}

/// The provider. Clones share everything.
#[derive(Clone)]
pub(crate) struct Watched {
    inner: Arc<dyn LocationStore>,
    state: Arc<(Mutex<State>, Condvar)>,
}

impl Watched {
    pub(crate) fn new(inner: impl LocationStore) -> Self {
        Self { inner: Arc::new(inner), state: Arc::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How often a key that ends with `id` was read as an Actor's row.
    pub(crate) fn row_reads(&self, id: &str) -> usize {
        let key = format!("actor/{id}");
        let state = self.state();
        state.reads.iter().flatten().filter(|k| **k == key.as_bytes()).count()
    }

    /// How many read calls had an Actor's row among their keys.
    pub(crate) fn row_read_calls(&self) -> usize {
        let state = self.state();
        state.reads.iter().filter(|keys| keys.iter().any(|k| k.starts_with(b"actor/"))).count()
    }

    /// How many Actor rows were read.
    pub(crate) fn all_row_reads(&self) -> usize {
        let state = self.state();
        state.reads.iter().flatten().filter(|k| k.starts_with(b"actor/")).count()
    }

    /// Calls that failed because they were told to.
    pub(crate) fn failed(&self) -> usize {
        self.state().failed
    }

    /// Lets every call fail, or none.
    pub(crate) fn fail(&self, is_failing: bool) {
        self.state().is_failing = is_failing;
    }

    /// Lets every call fail once so many commits have been made.
    pub(crate) fn fail_after_commits(&self, commits: usize) {
        self.state().fails_after = Some(commits);
    }

    /// Lets reads of this Actor's row wait.
    pub(crate) fn block(&self, id: &str) {
        self.state().blocked = Some(format!("actor/{id}"));
    }

    /// Lets them go on.
    pub(crate) fn unblock(&self) {
        self.state().blocked = None;
        self.state.1.notify_all();
    }

    /// Lets the answer of the next read of this Actor's row wait; the read itself is made.
    pub(crate) fn hold_answer(&self, id: &str) {
        let mut state = self.state();
        (state.held, state.holding) = (Some(format!("actor/{id}")), true);
    }

    /// Lets it arrive.
    pub(crate) fn release_answer(&self) {
        self.state().holding = false;
        self.state.1.notify_all();
    }

    /// Lets the answers of the next commits that write Actor rows get lost; the commits are made.
    pub(crate) fn lose_answers(&self, commits: usize) {
        self.state().losing = commits;
    }

    /// How many calls wait.
    pub(crate) fn waiting(&self) -> usize {
        self.state().waiting
    }

    fn may_go_on(&self) -> Result<(), StoreError> {
        let mut state = self.state();
        let is_over = state.fails_after.is_some_and(|most| state.commits > most);
        if state.is_failing || is_over {
            state.failed += 1;
            return Err(StoreError::Failed("the test lets it fail".into()));
        }
        Ok(())
    }
}

impl LocationStore for Watched {
    fn read(&self, keys: &[Key], budget: Duration) -> Result<ReadAnswer, StoreError> {
        let is_blocked = |state: &State| {
            let blocked = state.blocked.as_ref();
            blocked.is_some_and(|id| keys.iter().any(|key| key == id.as_bytes()))
        };
        let mut state = self.state();
        state.reads.push(keys.to_vec());
        if is_blocked(&state) {
            state.waiting += 1;
            while is_blocked(&state) {
                state = self.state.1.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            state.waiting -= 1;
        }
        drop(state);
        self.may_go_on()?;
        let answer = self.inner.read(keys, budget);
        let mut state = self.state();
        let is_held = state.held.as_ref().is_some_and(|id| keys.iter().any(|k| k == id.as_bytes()));
        if is_held {
            state.held = None;
            state.waiting += 1;
            while state.holding {
                state = self.state.1.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            state.waiting -= 1;
        }
        answer
    }

    fn commit(&self, batches: &[Batch], budget: Duration) -> Result<Vec<BatchOutcome>, StoreError> {
        self.state().commits += 1;
        self.may_go_on()?;
        let answer = self.inner.commit(batches, budget);
        let writes_a_row =
            |batch: &Batch| batch.writes.iter().any(|w| w.key().starts_with(b"actor/"));
        let mut state = self.state();
        if state.losing > 0 && batches.iter().any(writes_a_row) {
            state.losing -= 1;
            return Err(StoreError::Unknown("the test lets the answer get lost".into()));
        }
        answer
    }

    fn scan(
        &self,
        prefix: &[u8],
        cursor: Option<&Cursor>,
        limit: usize,
        budget: Duration,
    ) -> Result<ScanPage, StoreError> {
        self.may_go_on()?;
        self.inner.scan(prefix, cursor, limit, budget)
    }

    fn change_stamp(&self, budget: Duration) -> Result<u64, StoreError> {
        self.may_go_on()?;
        self.inner.change_stamp(budget)
    }
}
