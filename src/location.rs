#![forbid(unsafe_code)]
//! The Location Store SPI: what a provider implements, and nothing that means anything.
//!
//! A provider keeps bytes under keys, with a version and perhaps a time to live for each, and
//! applies batches of conditional writes one after another. Authority, leases, descriptors and
//! generation blocks are built above it in [`crate::store::records`]; a provider cannot get
//! their rules wrong because it does not know them.
//!
//! All calls block; Homing makes them on its Store threads, never on a core. A provider is
//! given the time that is left for a call and should give up by itself then; a core ends its
//! operation by its own timer in any case.

use std::fmt;
use std::time::Duration;

use crate::ids::StoreVersion;

/// A key: non-empty bytes, at most [`MAX_KEY_BYTES`].
pub type Key = Vec<u8>;

/// Longest key a provider must take.
pub const MAX_KEY_BYTES: usize = 480;
/// Largest value a provider must take.
pub const MAX_VALUE_BYTES: usize = 64 << 10;

/// One record as read.
///
/// ```
/// # fn show(r: &homing::location::Record) {
/// println!("{} bytes, version {}, ends {:?}", r.value.len(), r.version, r.expires_in);
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Record {
    /// The bytes.
    pub value: Vec<u8>,
    /// Grows with every write in the whole Store, across deletes: a record that was deleted and
    /// written again has a greater version than before.
    pub version: StoreVersion,
    /// Time to live left, by the Store's clock; `None` for a record without one. A record whose
    /// time is over is absent, for reads and conditions alike.
    pub expires_in: Option<Duration>,
}

/// The answer to [`LocationStore::read`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ReadAnswer {
    /// One entry per key, in the order asked.
    pub records: Vec<Option<Record>>,
    /// The Store's clock, in milliseconds since any fixed point.
    pub store_now_ms: u64,
}

/// A condition of a batch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Condition {
    /// No live record under the key.
    Absent(Key),
    /// The live record under the key has this version.
    VersionIs(Key, StoreVersion),
    /// The live record under the key has this value.
    ValueIs(Key, Vec<u8>),
}

impl Condition {
    /// The key the condition looks at.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        match self {
            Self::Absent(key) | Self::VersionIs(key, _) | Self::ValueIs(key, _) => key,
        }
    }

    /// Whether it holds for what stands under its key: `None` for no live record.
    #[must_use]
    pub fn holds(&self, live: Option<(&[u8], StoreVersion)>) -> bool {
        match (self, live) {
            (Self::Absent(_), found) => found.is_none(),
            (Self::VersionIs(_, wanted), Some((_, version))) => version == *wanted,
            (Self::ValueIs(_, wanted), Some((value, _))) => value == wanted,
            (_, None) => false,
        }
    }
}

/// A write of a batch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Write {
    /// Sets the record; `ttl` is counted by the Store's clock from the commit.
    Put {
        /// Where.
        key: Key,
        /// What.
        value: Vec<u8>,
        /// How long it lives; `None` until it is deleted.
        ttl: Option<Duration>,
    },
    /// Removes the record; nothing happens when it is absent.
    Delete {
        /// Where.
        key: Key,
    },
}

impl Write {
    /// The key that is written.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        match self {
            Self::Put { key, .. } | Self::Delete { key } => key,
        }
    }
}

/// Conditions and writes that are applied all or nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Batch {
    /// All must hold at the instant of the commit.
    pub conditions: Vec<Condition>,
    /// Applied in order when they do. A key is written at most once in a batch.
    pub writes: Vec<Write>,
}

/// What became of one batch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum BatchOutcome {
    /// Applied. One version per write, in order; for a delete, the version of the delete itself.
    Committed(Vec<StoreVersion>),
    /// Nothing was applied: the condition of this index (the first that failed) did not hold.
    Conflict {
        /// Index into [`Batch::conditions`].
        condition: usize,
    },
}

/// Where a scan goes on. Opaque; only meaningful to the provider that made it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Cursor(pub Vec<u8>);

/// One page of a scan.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ScanPage {
    /// Live records in key order, at most the limit asked for.
    pub records: Vec<(Key, Record)>,
    /// Where to go on; `None` when the scan is complete.
    pub next: Option<Cursor>,
    /// The Store's clock, as in [`ReadAnswer::store_now_ms`].
    pub store_now_ms: u64,
}

/// Why a Store call gave no answer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum StoreError {
    /// Nothing was read or written, for certain.
    Failed(String),
    /// A write may or may not have been applied. Only [`LocationStore::commit`] answers this.
    Unknown(String),
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(text) => write!(f, "store call failed: {text}"),
            Self::Unknown(text) => write!(f, "store call has an unknown outcome: {text}"),
        }
    }
}

impl std::error::Error for StoreError {}

/// Checks a key against the rule every provider keeps: 1 to [`MAX_KEY_BYTES`] bytes.
///
/// # Errors
/// [`StoreError::Failed`] with a sentence that names the key and the rule.
pub fn check_key(key: &[u8]) -> Result<(), StoreError> {
    if key.is_empty() {
        return Err(StoreError::Failed(format!(
            "the key is empty; a key has 1 to {MAX_KEY_BYTES} bytes"
        )));
    }
    if key.len() > MAX_KEY_BYTES {
        return Err(StoreError::Failed(format!(
            "the key \"{}…\" has {} bytes; a key has 1 to {MAX_KEY_BYTES} bytes",
            key[..32].escape_ascii(),
            key.len()
        )));
    }
    Ok(())
}

/// Checks a batch against the rules every provider keeps: keys as in [`check_key`], values of at
/// most [`MAX_VALUE_BYTES`], no key written twice. A provider refuses the whole call of a batch
/// that breaks one, before anything is written.
///
/// # Errors
/// [`StoreError::Failed`] with a sentence that names the key and the rule.
pub fn check_batch(batch: &Batch) -> Result<(), StoreError> {
    for condition in &batch.conditions {
        check_key(condition.key())?;
    }
    for (at, write) in batch.writes.iter().enumerate() {
        let key = write.key();
        check_key(key)?;
        if let Write::Put { value, .. } = write
            && value.len() > MAX_VALUE_BYTES
        {
            return Err(StoreError::Failed(format!(
                "the value for key \"{}\" has {} bytes; a value has at most {MAX_VALUE_BYTES}",
                key.escape_ascii(),
                value.len()
            )));
        }
        if batch.writes[..at].iter().any(|earlier| earlier.key() == key) {
            return Err(StoreError::Failed(format!(
                "the key \"{}\" is written twice in one batch; a batch writes a key at most once",
                key.escape_ascii()
            )));
        }
    }
    Ok(())
}

/// A Location Store provider.
///
/// Keys, batches and cursors that break a rule ([`check_key`], [`check_batch`], a scan limit of
/// 0) are answered with [`StoreError::Failed`]; nothing of such a call is written.
///
/// Calls are linearizable: a read that starts after a commit was answered sees it. Every method
/// may be called from any thread. The tests of a provider run `store::conformance` (feature
/// `conformance`).
///
/// Reads and commits take `budget`, the time left for the call. A provider that cannot answer in
/// that time returns [`StoreError::Failed`] when it is certain that nothing was written, and
/// [`StoreError::Unknown`] otherwise.
pub trait LocationStore: Send + Sync + 'static {
    /// Reads records by key.
    ///
    /// # Errors
    /// [`StoreError::Failed`].
    fn read(&self, keys: &[Key], budget: Duration) -> Result<ReadAnswer, StoreError>;

    /// Applies batches, each all or nothing, in order; a conflict of one does not stop the next.
    ///
    /// # Errors
    /// [`StoreError`]; `Unknown` holds for every batch of the call.
    fn commit(&self, batches: &[Batch], budget: Duration) -> Result<Vec<BatchOutcome>, StoreError>;

    /// Lists live records whose key starts with `prefix`, in key order. Records that stand
    /// unchanged during the whole scan are listed exactly once; others may or may not appear.
    ///
    /// # Errors
    /// [`StoreError::Failed`]; also for a cursor this provider did not make.
    fn scan(
        &self,
        prefix: &[u8],
        cursor: Option<&Cursor>,
        limit: usize,
        budget: Duration,
    ) -> Result<ScanPage, StoreError>;

    /// A number that differs from the one before whenever something was committed in between.
    /// It never goes back unless the Store itself did.
    ///
    /// # Errors
    /// [`StoreError::Failed`].
    fn change_stamp(&self, budget: Duration) -> Result<u64, StoreError>;
}

impl<S: LocationStore + ?Sized> LocationStore for std::sync::Arc<S> {
    fn read(&self, keys: &[Key], budget: Duration) -> Result<ReadAnswer, StoreError> {
        (**self).read(keys, budget)
    }
    fn commit(&self, batches: &[Batch], budget: Duration) -> Result<Vec<BatchOutcome>, StoreError> {
        (**self).commit(batches, budget)
    }
    fn scan(
        &self,
        prefix: &[u8],
        cursor: Option<&Cursor>,
        limit: usize,
        budget: Duration,
    ) -> Result<ScanPage, StoreError> {
        (**self).scan(prefix, cursor, limit, budget)
    }
    fn change_stamp(&self, budget: Duration) -> Result<u64, StoreError> {
        (**self).change_stamp(budget)
    }
}
