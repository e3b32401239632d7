#![forbid(unsafe_code)]
//! The records in LMDB's tree, inside one transaction.

use std::ops::Bound;

use heed::types::Bytes;
use heed::{CommitOrAbort, Database, MdbError, RoTxn, RwTxn, WithoutTls};

use super::Env;
use crate::ids::StoreVersion;
use crate::location::{Batch, BatchOutcome, Key, Record, Write};
use crate::time::Nanos;

/// What the keys of records start with.
const RECORD: u8 = b'r';
/// What the keys of the expiry index start with.
const EXPIRY: u8 = b'x';
/// The key of the version counter.
const VERSION: &[u8] = b"v";
/// Version and end, before a record's value.
const HEAD_BYTES: usize = 16;
/// Expired records that one commit sweeps.
const SWEEP: usize = 32;

pub(super) struct Tree {
    tree: Database<'static, Bytes, Bytes>,
}

/// A record as it stands in the tree, expired or not.
struct Stored<'t> {
    version: StoreVersion,
    /// Absent from this instant on; zero: never.
    end: Nanos,
    value: &'t [u8],
}

impl<'t> Stored<'t> {
    fn parse(bytes: &'t [u8]) -> Result<Self, heed::Error> {
        let corrupted = || heed::Error::Mdb(MdbError::Corrupted);
        let (version, rest) = bytes.split_first_chunk::<8>().ok_or_else(corrupted)?;
        let (end, value) = rest.split_first_chunk::<8>().ok_or_else(corrupted)?;
        let version = StoreVersion::new(u64::from_be_bytes(*version)).ok_or_else(corrupted)?;
        Ok(Self { version, end: Nanos(u64::from_be_bytes(*end)), value })
    }

    fn is_live(&self, now: Nanos) -> bool {
        self.end == Nanos::ZERO || now < self.end
    }

    fn record(&self, now: Nanos) -> Record {
        Record {
            value: self.value.to_vec(),
            version: self.version,
            expires_in: (self.end != Nanos::ZERO).then(|| self.end.since(now)),
        }
    }
}

fn record_key(key: &[u8]) -> Vec<u8> {
    [&[RECORD], key].concat()
}

fn expiry_key(end: Nanos, key: &[u8]) -> Vec<u8> {
    [&[EXPIRY], &end.0.to_be_bytes()[..], key].concat()
}

impl Tree {
    pub(super) fn open(env: &Env) -> Result<Self, heed::Error> {
        let txn = env.write_txn()?;
        let opened = env.create_databases_and_commit(txn, |opener, txn| {
            let options = opener.database_options().types::<Bytes, Bytes>();
            Ok::<_, heed::Error>(CommitOrAbort::<_, ()>::Commit(options.create(txn)?))
        })?;
        Ok(Self { tree: opened.unwrap_commit() })
    }

    fn stored<'t>(
        &self,
        txn: &'t RoTxn<'_>,
        key: &[u8],
    ) -> Result<Option<Stored<'t>>, heed::Error> {
        self.tree.get(txn, &record_key(key))?.map(Stored::parse).transpose()
    }

    pub(super) fn read(
        &self,
        txn: &RoTxn<'_, WithoutTls>,
        keys: &[Key],
        now: Nanos,
    ) -> Result<Vec<Option<Record>>, heed::Error> {
        keys.iter()
            .map(|key| {
                let stored = self.stored(txn, key)?.filter(|stored| stored.is_live(now));
                Ok(stored.map(|stored| stored.record(now)))
            })
            .collect()
    }

    /// Live records of the prefix behind `after`, and whether there are more.
    #[allow(clippy::type_complexity)]
    pub(super) fn scan(
        &self,
        txn: &RoTxn<'_, WithoutTls>,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
        now: Nanos,
    ) -> Result<(Vec<(Key, Record)>, bool), heed::Error> {
        let prefix = record_key(prefix);
        let after = after.map(record_key);
        let start = match &after {
            Some(last) => Bound::Excluded(&last[..]),
            None => Bound::Included(&prefix[..]),
        };
        let mut records = Vec::new();
        for entry in self.tree.range(txn, &(start, Bound::Unbounded))? {
            let (key, bytes) = entry?;
            if !key.starts_with(&prefix) {
                break;
            }
            let stored = Stored::parse(bytes)?;
            if !stored.is_live(now) {
                continue;
            }
            if records.len() == limit {
                return Ok((records, true));
            }
            records.push((key[1..].to_vec(), stored.record(now)));
        }
        Ok((records, false))
    }

    pub(super) fn last_version(&self, txn: &RoTxn<'_>) -> Result<u64, heed::Error> {
        match self.tree.get(txn, VERSION)? {
            None => Ok(0),
            Some(bytes) => {
                let bytes = bytes.try_into().map_err(|_| MdbError::Corrupted)?;
                Ok(u64::from_be_bytes(bytes))
            }
        }
    }

    /// A write that changes nothing.
    pub(super) fn touch(&self, txn: &mut RwTxn<'_>) -> Result<(), heed::Error> {
        let version = self.last_version(txn)?;
        self.tree.put(txn, VERSION, &version.to_be_bytes())
    }

    /// Applies a call's batches. On an error the transaction must be dropped.
    pub(super) fn apply(
        &self,
        txn: &mut RwTxn<'_>,
        batches: &[Batch],
        now: Nanos,
    ) -> Result<Vec<BatchOutcome>, heed::Error> {
        self.sweep(txn, now)?;
        let first = self.last_version(txn)?;
        let mut last = first;
        let mut outcomes = Vec::with_capacity(batches.len());
        for batch in batches {
            outcomes.push(self.apply_one(txn, batch, &mut last, now)?);
        }
        if last != first {
            self.tree.put(txn, VERSION, &last.to_be_bytes())?;
        }
        Ok(outcomes)
    }

    fn apply_one(
        &self,
        txn: &mut RwTxn<'_>,
        batch: &Batch,
        last: &mut u64,
        now: Nanos,
    ) -> Result<BatchOutcome, heed::Error> {
        for (condition, wanted) in batch.conditions.iter().enumerate() {
            let live = self.stored(txn, wanted.key())?.filter(|stored| stored.is_live(now));
            if !wanted.holds(live.map(|stored| (stored.value, stored.version))) {
                return Ok(BatchOutcome::Conflict { condition });
            }
        }
        let mut versions = Vec::with_capacity(batch.writes.len());
        for write in &batch.writes {
            let version = StoreVersion::new(*last + 1).ok_or_else(|| {
                heed::Error::Io(std::io::Error::other("store versions have run out"))
            })?;
            *last = version.get();
            versions.push(version);
            self.write(txn, write, version, now)?;
        }
        Ok(BatchOutcome::Committed(versions))
    }

    fn write(
        &self,
        txn: &mut RwTxn<'_>,
        write: &Write,
        version: StoreVersion,
        now: Nanos,
    ) -> Result<(), heed::Error> {
        let before = self.stored(txn, write.key())?.map(|stored| stored.end);
        if let Some(end) = before.filter(|end| *end != Nanos::ZERO) {
            self.tree.delete(txn, &expiry_key(end, write.key()))?;
        }
        match write {
            Write::Delete { key } => {
                if before.is_some() {
                    self.tree.delete(txn, &record_key(key))?;
                }
            }
            Write::Put { key, value, ttl } => {
                // Zero stands for no end; a clock that reads zero and a ttl of zero do not meet.
                let end = ttl.map_or(Nanos::ZERO, |ttl| (now + ttl).max(Nanos(1)));
                let mut bytes = Vec::with_capacity(HEAD_BYTES + value.len());
                bytes.extend_from_slice(&version.get().to_be_bytes());
                bytes.extend_from_slice(&end.0.to_be_bytes());
                bytes.extend_from_slice(value);
                self.tree.put(txn, &record_key(key), &bytes)?;
                if ttl.is_some() {
                    self.tree.put(txn, &expiry_key(end, key), &[])?;
                }
            }
        }
        Ok(())
    }

    /// Removes records that have expired, the oldest first, a few per commit.
    fn sweep(&self, txn: &mut RwTxn<'_>, now: Nanos) -> Result<(), heed::Error> {
        let from = [EXPIRY];
        let to = expiry_key(Nanos(now.0.saturating_add(1)), &[]);
        let range = (Bound::Included(&from[..]), Bound::Excluded(&to[..]));
        let expired = self
            .tree
            .range(txn, &range)?
            .take(SWEEP)
            .map(|entry| entry.map(|(key, _)| key.to_vec()))
            .collect::<Result<Vec<_>, _>>()?;
        for index in expired {
            self.tree.delete(txn, &index)?;
            let (_, key) = index.split_at_checked(1 + 8).ok_or(MdbError::Corrupted)?;
            self.tree.delete(txn, &record_key(key))?;
        }
        Ok(())
    }
}
