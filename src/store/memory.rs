#![forbid(unsafe_code)]
//! The provider of one process: for tests, the simulator, and nodes that live alone.
//!
//! Everything is one ordered map under one mutex, so the rules of the SPI hold by construction
//! and this provider serves as the reference the others are compared with.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::ids::StoreVersion;
use crate::limits::MAX_FENCE;
use crate::location::{
    Batch, BatchOutcome, Cursor, Key, LocationStore, ReadAnswer, Record, ScanPage, StoreError,
    Write, check_batch, check_key,
};
use crate::time::Nanos;

/// A Location Store in memory. Clones share one store: give clones to the nodes of one process.
///
/// ```
/// use homing::location::{Batch, LocationStore, Write};
/// use homing::store::memory::MemoryStore;
/// use std::time::Duration;
///
/// let store = MemoryStore::new();
/// let put = Write::Put { key: b"k".to_vec(), value: b"v".to_vec(), ttl: None };
/// let batch = Batch { conditions: vec![], writes: vec![put] };
/// let second = Duration::from_secs(1);
/// store.commit(&[batch], second)?;
/// let answer = store.clone().read(&[b"k".to_vec()], second)?;
/// assert_eq!(answer.records[0].as_ref().unwrap().value, b"v");
/// # Ok::<(), homing::location::StoreError>(())
/// ```
#[derive(Clone)]
pub struct MemoryStore {
    state: Arc<Mutex<State>>,
    clock: Arc<dyn Fn() -> Nanos + Send + Sync>,
}

#[derive(Default)]
struct State {
    records: BTreeMap<Key, Entry>,
    by_expiry: BTreeSet<(Nanos, Key)>,
    last_version: u64,
}

struct Entry {
    value: Vec<u8>,
    version: StoreVersion,
    /// The record is absent from this instant on.
    expires_at: Option<Nanos>,
}

impl Entry {
    fn is_live(&self, now: Nanos) -> bool {
        self.expires_at.is_none_or(|at| now < at)
    }

    fn record(&self, now: Nanos) -> Record {
        Record {
            value: self.value.clone(),
            version: self.version,
            expires_in: self.expires_at.map(|at| at.since(now)),
        }
    }
}

impl State {
    fn live(&self, key: &[u8], now: Nanos) -> Option<&Entry> {
        self.records.get(key).filter(|entry| entry.is_live(now))
    }

    fn remove(&mut self, key: &[u8]) {
        if let Some((key, entry)) = self.records.remove_entry(key)
            && let Some(at) = entry.expires_at
        {
            self.by_expiry.remove(&(at, key));
        }
    }

    /// Drops what has expired; every commit does it first, so the map stays as small as its live
    /// records and those of the last quiet time.
    fn sweep(&mut self, now: Nanos) {
        while let Some((at, key)) = self.by_expiry.first() {
            if *at > now {
                break;
            }
            self.records.remove(key);
            self.by_expiry.pop_first();
        }
    }

    fn next_version(&mut self) -> StoreVersion {
        self.last_version += 1;
        StoreVersion::new(self.last_version).expect("the call was checked to have versions left")
    }

    fn apply(&mut self, batch: &Batch, now: Nanos) -> BatchOutcome {
        for (condition, wanted) in batch.conditions.iter().enumerate() {
            let live = self.live(wanted.key(), now);
            if !wanted.holds(live.map(|entry| (&*entry.value, entry.version))) {
                return BatchOutcome::Conflict { condition };
            }
        }
        let mut versions = Vec::with_capacity(batch.writes.len());
        for write in &batch.writes {
            let version = self.next_version();
            self.remove(write.key());
            if let Write::Put { key, value, ttl } = write {
                let expires_at = ttl.map(|ttl| now + ttl);
                if let Some(at) = expires_at {
                    self.by_expiry.insert((at, key.clone()));
                }
                let entry = Entry { value: value.clone(), version, expires_at };
                self.records.insert(key.clone(), entry);
            }
            versions.push(version);
        }
        BatchOutcome::Committed(versions)
    }
}

impl MemoryStore {
    /// An empty store whose time to live runs by CLOCK_BOOTTIME.
    #[must_use]
    pub fn new() -> Self {
        Self::with_clock(Arc::new(super::boottime))
    }

    /// An empty store with a clock of the caller's: the simulator's virtual time.
    #[must_use]
    pub fn with_clock(clock: Arc<dyn Fn() -> Nanos + Send + Sync>) -> Self {
        Self { state: Arc::default(), clock }
    }

    /// Records held, expired ones that were not swept yet included.
    #[must_use]
    pub fn held_records(&self) -> usize {
        self.lock().records.len()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code under the lock panics half way through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        f.debug_struct("MemoryStore")
            .field("records", &state.records.len())
            .field("last_version", &state.last_version)
            .finish()
    }
}

/// What this provider's cursors start with; the rest is the last key listed.
const CURSOR_TAG: u8 = b'M';

impl LocationStore for MemoryStore {
    fn read(&self, keys: &[Key], _budget: Duration) -> Result<ReadAnswer, StoreError> {
        keys.iter().try_for_each(|key| check_key(key))?;
        let state = self.lock();
        let now = (self.clock)();
        let find = |key: &Key| state.live(key, now).map(|entry| entry.record(now));
        Ok(ReadAnswer { records: keys.iter().map(find).collect(), store_now_ms: now.0 / 1_000_000 })
    }

    fn commit(
        &self,
        batches: &[Batch],
        _budget: Duration,
    ) -> Result<Vec<BatchOutcome>, StoreError> {
        batches.iter().try_for_each(check_batch)?;
        let mut state = self.lock();
        let now = (self.clock)();
        state.sweep(now);
        // Checked for the whole call, so that no batch is left half applied.
        let writes = batches.iter().map(|batch| batch.writes.len() as u64).sum::<u64>();
        if writes > MAX_FENCE - state.last_version {
            return Err(StoreError::Failed("store versions have run out (2^63-1 used)".into()));
        }
        Ok(batches.iter().map(|batch| state.apply(batch, now)).collect())
    }

    fn scan(
        &self,
        prefix: &[u8],
        cursor: Option<&Cursor>,
        limit: usize,
        _budget: Duration,
    ) -> Result<ScanPage, StoreError> {
        let after = super::scan_start(CURSOR_TAG, prefix, cursor, limit)?;
        let state = self.lock();
        let now = (self.clock)();
        let start = match after {
            Some(last) => Bound::Excluded(last),
            None => Bound::Included(prefix),
        };
        let mut live = state
            .records
            .range::<[u8], _>((start, Bound::Unbounded))
            .take_while(|(key, _)| key.starts_with(prefix))
            .filter(|(_, entry)| entry.is_live(now))
            .map(|(key, entry)| (key.clone(), entry.record(now)));
        let records: Vec<_> = live.by_ref().take(limit).collect();
        let next = live.next().and(records.last()).map(|(key, _)| super::cursor(CURSOR_TAG, key));
        Ok(ScanPage { records, next, store_now_ms: now.0 / 1_000_000 })
    }

    fn change_stamp(&self, _budget: Duration) -> Result<u64, StoreError> {
        Ok(self.lock().last_version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn expired_records_are_absent_at_once_and_swept_by_the_next_commit() {
        let time = Arc::new(AtomicU64::new(0));
        let clock = time.clone();
        let store = MemoryStore::with_clock(Arc::new(move || Nanos(clock.load(Ordering::Relaxed))));
        let second = Duration::from_secs(1);
        let put = |key: &[u8], ttl| Batch {
            conditions: vec![],
            writes: vec![Write::Put { key: key.to_vec(), value: vec![1], ttl }],
        };
        store.commit(&[put(b"a", Some(second)), put(b"b", None)], second).unwrap();
        time.store(999_999_999, Ordering::Relaxed);
        let read = store.read(&[b"a".to_vec()], second).unwrap();
        assert_eq!(read.records[0].as_ref().unwrap().expires_in, Some(Duration::from_nanos(1)));
        time.store(1_000_000_000, Ordering::Relaxed);
        assert_eq!(store.read(&[b"a".to_vec()], second).unwrap().records, [None]);
        assert_eq!(store.held_records(), 2);
        store.commit(&[put(b"c", None)], second).unwrap();
        assert_eq!(store.held_records(), 2);
    }

    /// Proves R0-3.
    #[test]
    fn versions_that_run_out_refuse_the_call_whole() {
        let store = MemoryStore::with_clock(Arc::new(|| Nanos(0)));
        store.lock().last_version = MAX_FENCE - 1;
        let put = |key: &[u8]| Write::Put { key: key.to_vec(), value: vec![], ttl: None };
        let batch = |writes| Batch { conditions: vec![], writes };
        let second = Duration::from_secs(1);
        let both = [batch(vec![put(b"a")]), batch(vec![put(b"b")])];
        assert!(matches!(store.commit(&both, second), Err(StoreError::Failed(_))));
        assert_eq!(store.held_records(), 0);
        store.commit(&both[..1], second).unwrap();
    }

    #[test]
    fn a_record_put_anew_without_ttl_outlives_its_old_one() {
        let time = Arc::new(AtomicU64::new(0));
        let clock = time.clone();
        let store = MemoryStore::with_clock(Arc::new(move || Nanos(clock.load(Ordering::Relaxed))));
        let second = Duration::from_secs(1);
        for ttl in [Some(second), None] {
            let put = Write::Put { key: b"a".to_vec(), value: vec![1], ttl };
            store.commit(&[Batch { conditions: vec![], writes: vec![put] }], second).unwrap();
        }
        time.store(u64::MAX, Ordering::Relaxed);
        store.commit(&[], second).unwrap();
        assert!(store.read(&[b"a".to_vec()], second).unwrap().records[0].is_some());
    }
}
