#![allow(unsafe_code)]
//! The embedded provider: several node processes on one host share one directory. No server.
//!
//! # What lives where
//!
//! ```text
//! <dir>/homing-store.layout        one line: the version of this layout
//! <dir>/homing-store-<boot id>/    the map of this boot: data.mdb, lock.mdb, writer.lock
//! ```
//!
//! The records live as long as the host's boot. A process that dies leaves them whole: pages are
//! written beside the old ones and the page that makes them current comes last. A host that dies
//! takes all its nodes with it, so nothing of them needs to survive: nothing is ever synced to
//! disk, and the first open of a new boot starts an empty map and removes the old ones.
//!
//! All processes must be on one host, in one PID name space and one time name space, and the
//! directory on a local file system: LMDB's locks and CLOCK_BOOTTIME, by which time to live runs,
//! reach no further. A network file system is refused.
//!
//! # Records
//!
//! One tree. `r<key>` holds version, end (0: none) and value; `x<end><key>` finds what has
//! expired, which every commit sweeps a little of; `v` is the version counter.
//!
//! # Who waits for whom
//!
//! Readers wait for nobody. Writers take turns by `writer.lock`, a lock that the kernel gives back
//! when its holder dies, and only then by LMDB's own mutex, which is robust. A process that is
//! *stopped* inside a write keeps the lock until it goes on or is killed: the commits of others
//! answer `Failed` when their time is over, and say why.

mod place;
mod tree;
mod turn;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use heed::{EnvFlags, EnvOpenOptions, MdbError, WithoutTls};

use crate::error::Error;
use crate::location::{
    Batch, BatchOutcome, Cursor, Key, LocationStore, ReadAnswer, ScanPage, StoreError, check_batch,
    check_key,
};
use crate::time::Nanos;

use place::Place;
use tree::Tree;
use turn::Turns;

/// Size of the map's address range. The file grows with what is written, not to this size.
pub const DEFAULT_MAP_BYTES: usize = 16 << 30;
/// Processes times threads that can read at once.
const MAX_READERS: u32 = 1024;
/// Commits between two looks for readers that died.
const READER_CHECK_EVERY: u64 = 1024;
/// What this provider's cursors start with.
const CURSOR_TAG: u8 = b'L';

type Env = heed::Env<WithoutTls>;

/// A Location Store in a directory, shared by the processes of one host. Clones, and further
/// opens of the same directory in the same process, share one map.
///
/// ```
/// # let temporary = tempfile::tempdir().unwrap();
/// # let dir = temporary.path();
/// use homing::store::lmdb::LmdbStore;
/// let store = LmdbStore::open(dir)?;
/// let same = LmdbStore::open(dir)?;
/// # Ok::<(), homing::Error>(())
/// ```
pub struct LmdbStore {
    /// `None` only while it is dropped.
    shared: Option<Arc<Shared>>,
}

struct Shared {
    dir: PathBuf,
    map_bytes: usize,
    env: Env,
    tree: Tree,
    turns: Turns,
    commits: AtomicU64,
}

/// The maps this process has open, by device and inode of their directory. A second map of the
/// same files would break LMDB's locks: closing any descriptor of a file ends the process's locks
/// on it.
static OPEN: Mutex<BTreeMap<(u64, u64), Weak<Shared>>> = Mutex::new(BTreeMap::new());

impl LmdbStore {
    /// Opens the store in `dir`, which is created when it is missing.
    ///
    /// # Errors
    /// `NotConfigured` with one sentence when the directory cannot be created or written, is on a
    /// network file system, or has another layout.
    pub fn open(dir: impl AsRef<Path>) -> Result<Self, Error> {
        Self::open_with_map_bytes(dir, DEFAULT_MAP_BYTES)
    }

    /// As [`LmdbStore::open`], with another size of the map's address range: a multiple of the
    /// page size, the same in all processes. Commits that need more answer `Failed`.
    ///
    /// # Errors
    /// As [`LmdbStore::open`].
    pub fn open_with_map_bytes(dir: impl AsRef<Path>, map_bytes: usize) -> Result<Self, Error> {
        let place = Place::prepare(dir.as_ref())?;
        let mut open = lock_registry();
        if let Some(shared) = open.get(&place.identity).and_then(Weak::upgrade) {
            return Ok(Self { shared: Some(shared) });
        }
        let shared = Arc::new(Shared::open(&place, map_bytes)?);
        open.insert(place.identity, Arc::downgrade(&shared));
        Ok(Self { shared: Some(shared) })
    }

    fn shared(&self) -> &Shared {
        self.shared.as_deref().expect("a store that is used was not dropped")
    }
}

fn lock_registry() -> std::sync::MutexGuard<'static, BTreeMap<(u64, u64), Weak<Shared>>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Clone for LmdbStore {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone() }
    }
}

impl Drop for LmdbStore {
    fn drop(&mut self) {
        // Under the registry's lock, so that an open at the same time sees the map either open or
        // closed.
        let mut open = lock_registry();
        self.shared = None;
        open.retain(|_, shared| shared.strong_count() > 0);
    }
}

impl fmt::Debug for LmdbStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LmdbStore").field("dir", &self.shared().dir).finish()
    }
}

impl Shared {
    fn open(place: &Place, map_bytes: usize) -> Result<Self, Error> {
        let cannot = |e: heed::Error| {
            Error::not_configured(format!(
                "store directory {:?} cannot be opened with a map of {map_bytes} bytes: {e}",
                place.dir
            ))
        };
        let mut options = EnvOpenOptions::new().read_txn_without_tls();
        options.map_size(map_bytes).max_readers(MAX_READERS);
        // SAFETY: NO_SYNC gives up durability against a crash of the host only, which ends the
        // boot and with it the use of this map; within a boot the page cache keeps the order.
        unsafe { options.flags(EnvFlags::NO_SYNC | EnvFlags::NO_READ_AHEAD) };
        // SAFETY: the files are changed by LMDB alone: the directory carries our name and the boot
        // id, is on a local file system, and is removed only in a later boot. This process maps
        // them once (`OPEN`), with LMDB's locking on.
        let env = unsafe { options.open(&place.boot_dir) }.map_err(cannot)?;
        env.clear_stale_readers().map_err(cannot)?;
        let turns = Turns::open(&place.boot_dir.join("writer.lock")).map_err(|e| {
            Error::not_configured(format!(
                "store directory {:?} cannot be locked for writing: {e}",
                place.dir
            ))
        })?;
        let tree = turns
            .take(super::boottime() + place::OPEN_PATIENCE)
            .map_err(|e| Error::unavailable(format!("store directory {:?}: {e}", place.dir)))
            .and_then(|_turn| Tree::open(&env).map_err(cannot))?;
        let dir = place.dir.clone();
        Ok(Self { dir, map_bytes, env, tree, turns, commits: AtomicU64::new(0) })
    }

    /// A transaction's error as the SPI's. Nothing was written: the transaction is dropped.
    fn failed(&self, e: &heed::Error) -> StoreError {
        StoreError::Failed(match e {
            heed::Error::Mdb(MdbError::MapFull) => format!(
                "the store in {:?} is full: its map has {} bytes; delete records or open it with a \
                 larger map in all processes",
                self.dir, self.map_bytes
            ),
            heed::Error::Mdb(MdbError::ReadersFull) => {
                format!("the store in {:?} has {MAX_READERS} readers at once, its limit", self.dir)
            }
            heed::Error::Mdb(MdbError::MapResized) => format!(
                "the store in {:?} was opened with a larger map by another process; open it with \
                 the same size in all",
                self.dir
            ),
            e => format!("the store in {:?}: {e}", self.dir),
        })
    }

    /// Runs `body` in a read transaction.
    fn reading<T>(
        &self,
        body: impl Fn(&heed::RoTxn<'_, WithoutTls>) -> Result<T, heed::Error>,
    ) -> Result<T, StoreError> {
        let mut txn = self.env.read_txn();
        if matches!(txn, Err(heed::Error::Mdb(MdbError::ReadersFull))) {
            self.env.clear_stale_readers().map_err(|e| self.failed(&e))?;
            txn = self.env.read_txn();
        }
        txn.and_then(|txn| body(&txn)).map_err(|e| self.failed(&e))
    }

    fn write(&self, batches: &[Batch], now: Nanos) -> Result<Vec<BatchOutcome>, StoreError> {
        match self.try_write(batches, now) {
            Err((heed::Error::Mdb(MdbError::MapFull), _)) if self.age_free_pages().is_ok() => {
                self.try_write(batches, now)
            }
            result => result,
        }
        .map_err(|(e, in_commit)| match e {
            heed::Error::Mdb(MdbError::MapFull) => self.failed(&e),
            // The page that makes the commit current may or may not have been written.
            e if in_commit => StoreError::Unknown(format!("the store in {:?}: {e}", self.dir)),
            e => self.failed(&e),
        })
    }

    /// One transaction; an error says whether it came from the commit itself.
    fn try_write(
        &self,
        batches: &[Batch],
        now: Nanos,
    ) -> Result<Vec<BatchOutcome>, (heed::Error, bool)> {
        let mut txn = self.env.write_txn().map_err(|e| (e, false))?;
        let outcomes = self.tree.apply(&mut txn, batches, now).map_err(|e| (e, false))?;
        txn.commit().map_err(|e| (e, true))?;
        Ok(outcomes)
    }

    /// Makes the pages that the last commit freed usable: they are so only for the commit after
    /// the next, and only when no reader that died still holds them.
    fn age_free_pages(&self) -> Result<(), heed::Error> {
        self.env.clear_stale_readers()?;
        let mut txn = self.env.write_txn()?;
        self.tree.touch(&mut txn)?;
        txn.commit()
    }
}

impl LocationStore for LmdbStore {
    fn read(&self, keys: &[Key], _budget: Duration) -> Result<ReadAnswer, StoreError> {
        keys.iter().try_for_each(|key| check_key(key))?;
        let shared = self.shared();
        shared.reading(|txn| {
            let now = super::boottime();
            let records = shared.tree.read(txn, keys, now)?;
            Ok(ReadAnswer { records, store_now_ms: now.0 / 1_000_000 })
        })
    }

    fn commit(&self, batches: &[Batch], budget: Duration) -> Result<Vec<BatchOutcome>, StoreError> {
        batches.iter().try_for_each(check_batch)?;
        if batches.is_empty() {
            return Ok(Vec::new());
        }
        let shared = self.shared();
        let _turn = shared
            .turns
            .take(super::boottime() + budget)
            .map_err(|e| StoreError::Failed(format!("the store in {:?}: {e}", shared.dir)))?;
        if shared.commits.fetch_add(1, Ordering::Relaxed).is_multiple_of(READER_CHECK_EVERY) {
            shared.env.clear_stale_readers().map_err(|e| shared.failed(&e))?;
        }
        shared.write(batches, super::boottime())
    }

    fn scan(
        &self,
        prefix: &[u8],
        cursor: Option<&Cursor>,
        limit: usize,
        _budget: Duration,
    ) -> Result<ScanPage, StoreError> {
        let after = super::scan_start(CURSOR_TAG, prefix, cursor, limit)?;
        let shared = self.shared();
        shared.reading(|txn| {
            let now = super::boottime();
            let (records, more) = shared.tree.scan(txn, prefix, after, limit, now)?;
            let last = records.last().filter(|_| more);
            let next = last.map(|(key, _)| super::cursor(CURSOR_TAG, key));
            Ok(ScanPage { records, next, store_now_ms: now.0 / 1_000_000 })
        })
    }

    fn change_stamp(&self, _budget: Duration) -> Result<u64, StoreError> {
        let shared = self.shared();
        shared.reading(|txn| shared.tree.last_version(txn))
    }
}
