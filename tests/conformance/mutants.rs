#![forbid(unsafe_code)]
//! The suite finds what it is there to find: providers that each break one rule of the SPI.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use homing::location::{
    Batch, BatchOutcome, Condition, Cursor, Key, LocationStore, ReadAnswer, ScanPage, StoreError,
    Write,
};
use homing::store::conformance;
use homing::store::memory::MemoryStore;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    IgnoreVersionIs,
    IgnoreValueIs,
    IgnoreAbsent,
    LastConflict,
    ConflictStopsTheCall,
    HalfABatch,
    BatchesBackwards,
    ReadsOutOfOrder,
    NoTtl,
    TtlTooShort,
    TtlKeptByAPut,
    ScanRepeatsTheCursor,
    ScanSkipsAfterTheCursor,
    ScanIgnoresThePrefixEnd,
    StampStands,
    AnyCursor,
    TruncatesValues,
    CheckThenWrite,
}

use Fault::*;

const ALL: [Fault; 18] = [
    IgnoreVersionIs,
    IgnoreValueIs,
    IgnoreAbsent,
    LastConflict,
    ConflictStopsTheCall,
    HalfABatch,
    BatchesBackwards,
    ReadsOutOfOrder,
    NoTtl,
    TtlTooShort,
    TtlKeptByAPut,
    ScanRepeatsTheCursor,
    ScanSkipsAfterTheCursor,
    ScanIgnoresThePrefixEnd,
    StampStands,
    AnyCursor,
    TruncatesValues,
    CheckThenWrite,
];

/// The memory store with one fault.
struct Faulty {
    inner: MemoryStore,
    fault: Fault,
    stamp: AtomicU64,
}

impl Faulty {
    fn new(fault: Fault) -> Self {
        Self { inner: MemoryStore::new(), fault, stamp: AtomicU64::new(0) }
    }

    fn weaken(&self, batch: &Batch) -> Batch {
        let mut batch = batch.clone();
        let fault = self.fault;
        batch.conditions.retain(|condition| match condition {
            Condition::VersionIs(..) => fault != IgnoreVersionIs,
            Condition::ValueIs(..) => fault != IgnoreValueIs,
            Condition::Absent(..) => fault != IgnoreAbsent,
        });
        for write in &mut batch.writes {
            let Write::Put { key, value, ttl } = write else { continue };
            match fault {
                NoTtl => *ttl = None,
                TtlTooShort => *ttl = ttl.map(|ttl| ttl / 3),
                TtlKeptByAPut if ttl.is_none() => {
                    let read = self.inner.read(std::slice::from_ref(key), Duration::MAX);
                    let record = read.ok().and_then(|mut read| read.records.remove(0));
                    *ttl = record.and_then(|record| record.expires_in);
                }
                TruncatesValues => value.truncate(1 << 15),
                _ => {}
            }
        }
        batch
    }

    /// Commits a batch in two halves, or without holding what was checked.
    fn torn(&self, batch: Batch, budget: Duration) -> Result<BatchOutcome, StoreError> {
        let Batch { conditions, writes } = batch;
        let check = Batch { conditions: conditions.clone(), writes: vec![] };
        let checked = self.inner.commit(&[check], budget)?.remove(0);
        if matches!(checked, BatchOutcome::Conflict { .. }) {
            return Ok(checked);
        }
        let parts: Vec<Batch> = match self.fault {
            HalfABatch => writes
                .into_iter()
                .map(|write| Batch { conditions: vec![], writes: vec![write] })
                .collect(),
            _ => vec![Batch { conditions: vec![], writes }],
        };
        let mut versions = Vec::new();
        for part in parts {
            std::thread::yield_now();
            if let BatchOutcome::Committed(v) = self.inner.commit(&[part], budget)?.remove(0) {
                versions.extend(v);
            }
        }
        Ok(BatchOutcome::Committed(versions))
    }
}

impl LocationStore for Faulty {
    fn read(&self, keys: &[Key], budget: Duration) -> Result<ReadAnswer, StoreError> {
        if self.fault == ReadsOutOfOrder {
            let mut sorted = keys.to_vec();
            sorted.sort();
            return self.inner.read(&sorted, budget);
        }
        let mut answer = self.inner.read(keys, budget)?;
        if self.fault == NoTtl {
            // A clock that runs fast, so that the case's patience ends soon.
            answer.store_now_ms *= 1000;
        }
        Ok(answer)
    }

    fn commit(&self, batches: &[Batch], budget: Duration) -> Result<Vec<BatchOutcome>, StoreError> {
        let mut batches: Vec<Batch> = batches.iter().map(|batch| self.weaken(batch)).collect();
        match self.fault {
            HalfABatch | CheckThenWrite => {
                return batches.into_iter().map(|batch| self.torn(batch, budget)).collect();
            }
            BatchesBackwards => {
                batches.reverse();
                let mut outcomes = self.inner.commit(&batches, budget)?;
                outcomes.reverse();
                return Ok(outcomes);
            }
            ConflictStopsTheCall => {
                let mut outcomes = Vec::new();
                for batch in batches {
                    let stopped = matches!(outcomes.last(), Some(BatchOutcome::Conflict { .. }));
                    outcomes.push(match stopped {
                        true => BatchOutcome::Conflict { condition: 0 },
                        false => self.inner.commit(&[batch], budget)?.remove(0),
                    });
                }
                return Ok(outcomes);
            }
            _ => {}
        }
        let mut outcomes = self.inner.commit(&batches, budget)?;
        if self.fault == LastConflict {
            for (outcome, batch) in outcomes.iter_mut().zip(&batches) {
                if let BatchOutcome::Conflict { condition } = outcome {
                    *condition = batch.conditions.len() - 1;
                }
            }
        }
        Ok(outcomes)
    }

    fn scan(
        &self,
        prefix: &[u8],
        cursor: Option<&Cursor>,
        limit: usize,
        budget: Duration,
    ) -> Result<ScanPage, StoreError> {
        let mut page = match (self.fault, cursor) {
            (AnyCursor, Some(cursor)) => {
                let page = self.inner.scan(prefix, Some(cursor), limit, budget);
                page.or_else(|_| self.inner.scan(prefix, None, limit, budget))?
            }
            (ScanIgnoresThePrefixEnd, None) if prefix.last() == Some(&0xff) => {
                self.inner.scan(&prefix[..prefix.len() - 1], None, limit, budget)?
            }
            _ => self.inner.scan(prefix, cursor, limit, budget)?,
        };
        match self.fault {
            ScanRepeatsTheCursor if page.next.is_some() && page.records.len() > 1 => {
                // The cursor stands before the last record of the page, not behind it.
                let (key, _) = &page.records[page.records.len() - 2];
                page.next = Some(Cursor([&b"M"[..], key].concat()));
            }
            ScanSkipsAfterTheCursor if cursor.is_some() && page.records.len() > 1 => {
                page.records.remove(0);
            }
            _ => {}
        }
        Ok(page)
    }

    fn change_stamp(&self, budget: Duration) -> Result<u64, StoreError> {
        match self.fault {
            StampStands => Ok(self.stamp.load(Ordering::Relaxed)),
            _ => self.inner.change_stamp(budget),
        }
    }
}

/// Each fault fails a case of the suite that the store without it passes.
#[test]
fn every_planted_fault_is_found() {
    for fault in ALL {
        let found = conformance::cases()
            .into_iter()
            // Without its end a record never expires: the cases that wait would wait for long.
            .filter(|case| fault != NoTtl || case.name.contains("and not before"))
            .find_map(|case| {
                let store: Arc<dyn LocationStore> = Arc::new(Faulty::new(fault));
                case.run(&store).err().map(|why| format!("{}: {why}", case.name))
            });
        let told = found.unwrap_or_else(|| panic!("{fault:?} was not found"));
        println!("{fault:?} is found by: {told}");
    }
}
