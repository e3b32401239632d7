#![forbid(unsafe_code)]
//! What every Location Store provider must do, as tests that a provider of any origin runs.
//!
//! ```
//! use homing::location::LocationStore;
//! use homing::store::{conformance, memory::MemoryStore};
//! use std::sync::Arc;
//!
//! conformance::run(&|| Arc::new(MemoryStore::new()) as Arc<dyn LocationStore>);
//! ```
//!
//! Every case gets a store of its own, which must be empty. Cases that concern time to live wait
//! for real; the whole suite takes a few seconds. A case that waits gives up after
//! [`PATIENCE_MS`] by the Store's own clock, so a store whose clock stands still is not for it.

mod basic;
mod concurrent;
mod scan;
mod ttl;

use std::sync::Arc;
use std::time::Duration;

use crate::ids::StoreVersion;
use crate::location::{
    Batch, BatchOutcome, Condition, Key, LocationStore, Record, StoreError, Write,
};

/// How long a case waits for something that must happen, in milliseconds of the Store's clock.
pub const PATIENCE_MS: u64 = 10_000;

/// The time given to every call.
const BUDGET: Duration = Duration::from_secs(10);

/// Why a case failed: one sentence.
pub type Outcome = Result<(), String>;

/// One case of the suite.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// What is proved.
    pub name: &'static str,
    run: fn(&Arc<dyn LocationStore>) -> Outcome,
}

impl Case {
    /// Runs the case on an empty store.
    ///
    /// # Errors
    /// The sentence that says what the store did and what it should have done.
    pub fn run(&self, store: &Arc<dyn LocationStore>) -> Outcome {
        (self.run)(store)
    }
}

/// All cases.
#[must_use]
pub fn cases() -> Vec<Case> {
    [basic::CASES, ttl::CASES, scan::CASES, concurrent::CASES]
        .concat()
        .into_iter()
        .map(|(name, run)| Case { name, run })
        .collect()
}

/// Runs every case on a fresh store of `make`.
///
/// # Panics
/// When a case fails, after all have run: the text has one line for each that failed.
pub fn run(make: &dyn Fn() -> Arc<dyn LocationStore>) {
    let failures: Vec<String> = cases()
        .iter()
        .filter_map(|case| case.run(&make()).err().map(|why| format!("{}: {why}", case.name)))
        .collect();
    assert!(
        failures.is_empty(),
        "the store breaks {} rule(s):\n{}",
        failures.len(),
        failures.join("\n")
    );
}

type NamedCase = (&'static str, fn(&Arc<dyn LocationStore>) -> Outcome);

/// Ends a case with a sentence unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            return Err(format!($($text)+));
        }
    };
}
use ensure;

fn key(text: &str) -> Key {
    text.as_bytes().to_vec()
}

fn put(key: &[u8], value: &[u8]) -> Write {
    Write::Put { key: key.to_vec(), value: value.to_vec(), ttl: None }
}

fn put_ttl(key: &[u8], value: &[u8], ttl: Duration) -> Write {
    Write::Put { key: key.to_vec(), value: value.to_vec(), ttl: Some(ttl) }
}

fn delete(key: &[u8]) -> Write {
    Write::Delete { key: key.to_vec() }
}

fn batch(conditions: &[Condition], writes: &[Write]) -> Batch {
    Batch { conditions: conditions.to_vec(), writes: writes.to_vec() }
}

fn said(e: StoreError) -> String {
    format!("a call that must work failed: {e}")
}

fn read(store: &Arc<dyn LocationStore>, key: &[u8]) -> Result<Option<Record>, String> {
    let answer = store.read(&[key.to_vec()], BUDGET).map_err(said)?;
    let [record] = <[_; 1]>::try_from(answer.records)
        .map_err(|r| format!("a read of one key gave {} records", r.len()))?;
    Ok(record)
}

fn value_of(store: &Arc<dyn LocationStore>, key: &[u8]) -> Result<Option<Vec<u8>>, String> {
    Ok(read(store, key)?.map(|record| record.value))
}

fn commit(store: &Arc<dyn LocationStore>, batch: Batch) -> Result<BatchOutcome, String> {
    let outcomes = store.commit(&[batch], BUDGET).map_err(said)?;
    let [outcome] = <[_; 1]>::try_from(outcomes)
        .map_err(|o| format!("a commit of one batch gave {} outcomes", o.len()))?;
    Ok(outcome)
}

/// Commits what must commit; gives the versions.
fn write(
    store: &Arc<dyn LocationStore>,
    conditions: &[Condition],
    writes: &[Write],
) -> Result<Vec<StoreVersion>, String> {
    match commit(store, batch(conditions, writes))? {
        BatchOutcome::Committed(versions) if versions.len() == writes.len() => Ok(versions),
        other => Err(format!("{writes:?} under {conditions:?} gave {other:?}")),
    }
}

/// Commits what must meet a conflict at the condition of this index.
fn conflict(
    store: &Arc<dyn LocationStore>,
    conditions: &[Condition],
    writes: &[Write],
    at: usize,
) -> Outcome {
    let got = commit(store, batch(conditions, writes))?;
    ensure!(
        got == BatchOutcome::Conflict { condition: at },
        "{conditions:?} gave {got:?} and not a conflict of condition {at}"
    );
    Ok(())
}

/// Expects a call to be refused as a whole, for certain.
fn refused<T>(what: &str, result: Result<T, StoreError>) -> Outcome {
    match result {
        Err(StoreError::Failed(text)) if !text.is_empty() => Ok(()),
        Err(other) => Err(format!("{what} was answered {other:?} and not Failed with a text")),
        Ok(_) => Err(format!("{what} was accepted")),
    }
}
