#![forbid(unsafe_code)]
//! The provider of clusters: one Redis 7 (or Valkey) master, found directly or by its sentinels.
//!
//! # Keys
//!
//! ```text
//! <prefix>r:<key>     one record: "<version>:<value>", with the server's own time to live
//! <prefix>version     the version counter
//! <prefix>index       the keys of all records in the order of their bytes
//! <prefix>ends        those with a time to live, by when it is over
//! <prefix>layout      the version of this layout
//! ```
//!
//! The prefix is `{homing}:` unless another is chosen; the braces keep all keys in one slot.
//!
//! # Calls
//!
//! Each call is one script, so it is atomic, and its time is the server's. The scripts count as
//! writing, the reading ones too: a server that is a replica, or that has lost the replicas it is
//! told to have (`min-replicas-to-write`), refuses them, and the provider looks for the master again.
//! A script that the server forgot (`SCRIPT FLUSH`, a failover) is sent again with its text.
//!
//! A connection belongs to one call at a time. One that timed out, or failed in any way, is closed:
//! its late answer reaches nobody. A call that may have reached the server and was not answered is
//! [`StoreError::Unknown`] when it writes; it is never sent again. What the server refused before
//! it ran the script is sent again, within the call's budget.
//!
//! # What Redis promises, and what it does not
//!
//! Replication is asynchronous: a failover may lose commits that were answered. `min-replicas-to-write`
//! and `min-replicas-max-lag` bound how long a master that was cut off goes on. Records must not be
//! evicted: a server whose `maxmemory-policy` is not `noeviction` is refused. Time to live and
//! [`ReadAnswer::store_now_ms`] run by the server's clock.

mod link;
mod options;
mod value;

use std::fmt;
use std::time::Duration;

use crate::error::Error;
use crate::location::{
    Batch, BatchOutcome, Cursor, Key, LocationStore, ReadAnswer, Record, ScanPage, StoreError,
    check_batch, check_key,
};

use link::{Call, Link};
pub use options::RedisOptions;
use value::{Reply, bad_reply};

/// What this provider's cursors start with.
const CURSOR_TAG: u8 = b'R';
/// Keys of the index that one call looks at.
const SCAN_STEP: usize = 1024;

/// A Location Store in Redis or Valkey. Clones share its connections.
///
/// ```no_run
/// use homing::store::redis::RedisStore;
/// let store = RedisStore::open("redis://homing:secret@10.0.0.5:6379/0")?;
/// let guarded = RedisStore::sentinels(["redis://10.0.0.1:26379", "redis://10.0.0.2:26379"], "main")
///     .server("rediss://homing:secret@any")
///     .prefix("{game}:")
///     .open()?;
/// # Ok::<(), homing::Error>(())
/// ```
#[derive(Clone)]
pub struct RedisStore {
    link: std::sync::Arc<Link>,
    keys: Names,
}

/// The names of keys under the prefix.
#[derive(Clone, Debug)]
struct Names {
    records: Vec<u8>,
    version: Vec<u8>,
    index: Vec<u8>,
    ends: Vec<u8>,
    layout: Vec<u8>,
}

impl Names {
    fn new(prefix: &str) -> Self {
        let name = |rest: &str| [prefix.as_bytes(), rest.as_bytes()].concat();
        Self {
            records: name("r:"),
            version: name("version"),
            index: name("index"),
            ends: name("ends"),
            layout: name("layout"),
        }
    }

    fn record(&self, key: &[u8]) -> Vec<u8> {
        [&self.records, key].concat()
    }
}

impl RedisStore {
    /// Opens the store of the server that `url` names: `redis://[user[:password]@]host[:port][/db]`,
    /// `rediss://…` with TLS, or `unix:///path[?db=0&user=…&pass=…]`.
    ///
    /// # Errors
    /// See [`RedisOptions::open`].
    pub fn open(url: impl Into<String>) -> Result<Self, Error> {
        Self::options(url).open()
    }

    /// As [`RedisStore::open`], with more to choose.
    pub fn options(url: impl Into<String>) -> RedisOptions {
        RedisOptions::server_at(url.into())
    }

    /// The store of the master that sentinels watch under the name `master`. User, password,
    /// database and TLS of the master itself are those of [`RedisOptions::server`].
    pub fn sentinels<U: Into<String>>(
        urls: impl IntoIterator<Item = U>,
        master: impl Into<String>,
    ) -> RedisOptions {
        RedisOptions::watched_by(urls.into_iter().map(Into::into).collect(), master.into())
    }

    fn call(&self, call: &Call<'_>, budget: Duration) -> Result<Reply, StoreError> {
        self.link.call(call, super::boottime() + budget)
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore").field("link", &self.link).finish_non_exhaustive()
    }
}

impl LocationStore for RedisStore {
    fn read(&self, keys: &[Key], budget: Duration) -> Result<ReadAnswer, StoreError> {
        keys.iter().try_for_each(|key| check_key(key))?;
        let mut names = vec![self.keys.version.clone()];
        names.extend(keys.iter().map(|key| self.keys.record(key)));
        let mut reply = self.call(&Call::read(names, vec![]), budget)?;
        let _version = reply.bytes()?;
        let store_now_ms = reply.time_ms()?;
        let records = keys.iter().map(|_| reply.record()).collect::<Result<_, _>>()?;
        reply.end()?;
        Ok(ReadAnswer { records, store_now_ms })
    }

    fn commit(&self, batches: &[Batch], budget: Duration) -> Result<Vec<BatchOutcome>, StoreError> {
        batches.iter().try_for_each(check_batch)?;
        if batches.is_empty() {
            return Ok(vec![]);
        }
        let mut reply = self.call(&self.commit_call(batches), budget)?;
        let outcomes = batches.iter().map(|batch| reply.outcome(batch)).collect::<Result<_, _>>();
        // The server ran the script: what cannot be understood may have been applied.
        outcomes.and_then(|o| reply.end().map(|()| o)).map_err(|e| StoreError::Unknown(text_of(e)))
    }

    fn scan(
        &self,
        prefix: &[u8],
        cursor: Option<&Cursor>,
        limit: usize,
        budget: Duration,
    ) -> Result<ScanPage, StoreError> {
        let until = super::boottime() + budget;
        let after = super::scan_start(CURSOR_TAG, prefix, cursor, limit)?;
        let mut from = match after {
            Some(last) => [b"(", last].concat(),
            None if prefix.is_empty() => b"-".to_vec(),
            None => [b"[", prefix].concat(),
        };
        let to = successor(prefix).map_or(b"+".to_vec(), |next| [b"(", &next[..]].concat());
        let mut records: Vec<(Key, Record)> = Vec::new();
        loop {
            // One more than is wanted: whether something follows decides about the cursor.
            let step = SCAN_STEP.min(limit.saturating_add(1));
            let args =
                vec![self.keys.records.clone(), from, to.clone(), step.to_string().into_bytes()];
            let call = Call::scan(vec![self.keys.index.clone()], args);
            let mut reply = self.link.call(&call, until)?;
            let store_now_ms = reply.time_ms()?;
            let looked_at = reply.number()?;
            let last = reply.bytes()?;
            while !reply.is_empty() {
                let key = reply.bytes()?;
                let record = reply.record()?.ok_or_else(|| bad_reply("a listed record is nil"))?;
                records.push((key, record));
            }
            if records.len() > limit {
                records.truncate(limit);
                let next = records.last().map(|(key, _)| super::cursor(CURSOR_TAG, key));
                return Ok(ScanPage { records, next, store_now_ms });
            }
            if looked_at < step as u64 {
                return Ok(ScanPage { records, next: None, store_now_ms });
            }
            from = [b"(", &last[..]].concat();
        }
    }

    fn change_stamp(&self, budget: Duration) -> Result<u64, StoreError> {
        let mut reply = self.call(&Call::read(vec![self.keys.version.clone()], vec![]), budget)?;
        let text = reply.bytes()?;
        std::str::from_utf8(&text)
            .ok()
            .and_then(|text| text.parse().ok())
            .ok_or_else(|| bad_reply("the version counter is no number"))
    }
}

impl RedisStore {
    /// See commit.lua for what goes where.
    fn commit_call(&self, batches: &[Batch]) -> Call<'static> {
        use crate::location::{Condition, Write};
        let mut keys = vec![self.keys.version.clone(), self.keys.index.clone()];
        keys.push(self.keys.ends.clone());
        let mut args = vec![self.keys.records.clone(), decimal(batches.len())];
        let place = |keys: &mut Vec<Vec<u8>>, key: &[u8]| {
            keys.push(self.keys.record(key));
            decimal(keys.len())
        };
        for batch in batches {
            args.push(decimal(batch.conditions.len()));
            for condition in &batch.conditions {
                let (kind, wanted) = match condition {
                    Condition::Absent(_) => (b"A", vec![]),
                    Condition::VersionIs(_, version) => {
                        (b"V", version.get().to_string().into_bytes())
                    }
                    Condition::ValueIs(_, value) => (b"E", value.clone()),
                };
                let key = place(&mut keys, condition.key());
                args.extend([kind.to_vec(), key, wanted]);
            }
            args.push(decimal(batch.writes.len()));
            for write in &batch.writes {
                let key = place(&mut keys, write.key());
                match write {
                    Write::Put { value, ttl, .. } => {
                        let ttl = ttl.map_or(vec![], |ttl| ttl_ms(ttl).to_string().into_bytes());
                        args.extend([key, b"P".to_vec(), value.clone(), ttl]);
                    }
                    Write::Delete { .. } => args.extend([key, b"D".to_vec(), vec![], vec![]]),
                }
            }
        }
        Call::commit(keys, args)
    }
}

fn decimal(number: usize) -> Vec<u8> {
    number.to_string().into_bytes()
}

/// A time to live as the server counts it: whole milliseconds, at least one, never shorter than
/// asked for, and below what overflows the server's clock.
fn ttl_ms(ttl: Duration) -> u128 {
    ttl.as_nanos().div_ceil(1_000_000).clamp(1, 1 << 52)
}

/// The first byte string behind all that start with `prefix`; `None` when nothing is behind them.
fn successor(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|byte| *byte != 0xff)?;
    let mut next = prefix[..=last].to_vec();
    next[last] += 1;
    Some(next)
}

fn text_of(e: StoreError) -> String {
    match e {
        StoreError::Failed(text) | StoreError::Unknown(text) => text,
    }
}
