#![forbid(unsafe_code)]
//! Fresh object generations without a Store call each: numbers are taken in blocks and the next
//! block is fetched before the last is used up.
//!
//! Words: *in use* is the block numbers are handed out from; *spare* is the next one. A refill is
//! one read of the counter and one conditional commit; it is wanted when less than a quarter of a
//! block is left. A lost race reads again. After an unknown outcome the numbers may or may not be
//! ours: they are given up, and the next refill reads afresh; gaps are harmless, a number used
//! twice is not (R0-3).
//!
//! Crash: numbers of a block that were not handed out are lost with the process.

use crate::env::{StoreAnswer, StoreOp};
use crate::error::Error;
use crate::limits::GENERATION_BLOCK;
use crate::location::{Batch, BatchOutcome};
use crate::store::records::{Block, generation_key, take_block};

/// Numbers left below which a refill is wanted.
pub const REFILL_BELOW: u64 = GENERATION_BLOCK / 4;

/// Where the refill is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Refill {
    /// None is under way.
    Idle,
    /// The counter is being read.
    Reading,
    /// The counter was read; this commit takes the block.
    Read(Batch, Block),
    /// The commit is out.
    Committing(Block),
}

/// Hands out generation numbers. Pure: its owner carries out the Store calls.
///
/// ```
/// use homing::store::generations::Allocator;
/// use homing::store::records::Block;
/// let mut generations = Allocator::new(Block::new(7, 9).unwrap());
/// assert_eq!(generations.take(), Some(7));
/// assert_eq!(generations.take(), Some(8));
/// assert_eq!(generations.take(), None); // a block must be fetched first
/// assert!(generations.store_op().is_some());
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Allocator {
    in_use: Block,
    spare: Block,
    refill: Refill,
}

impl Allocator {
    /// Starts with a block, which may be [`Block::EMPTY`].
    #[must_use]
    pub const fn new(block: Block) -> Self {
        Self { in_use: block, spare: Block::EMPTY, refill: Refill::Idle }
    }

    /// The next number. `None`: a block must come from the Store first; carry out
    /// [`Allocator::store_op`] until it gives nothing, then ask again.
    pub fn take(&mut self) -> Option<u64> {
        if self.in_use.is_empty() {
            self.in_use = std::mem::replace(&mut self.spare, Block::EMPTY);
        }
        self.in_use.take()
    }

    /// Numbers that can be taken without the Store.
    #[must_use]
    pub const fn available(&self) -> u64 {
        self.in_use.len() + self.spare.len()
    }

    /// The Store call to issue now, if any. Ask after every [`Allocator::take`] and every
    /// [`Allocator::on_answer`]; at most one call is out at a time.
    pub fn store_op(&mut self) -> Option<StoreOp> {
        match std::mem::replace(&mut self.refill, Refill::Idle) {
            Refill::Idle if self.available() < REFILL_BELOW && self.spare.is_empty() => {
                self.refill = Refill::Reading;
                Some(StoreOp::Read(vec![generation_key()]))
            }
            Refill::Read(batch, block) => {
                self.refill = Refill::Committing(block);
                Some(StoreOp::Commit(batch))
            }
            waiting => {
                self.refill = waiting;
                None
            }
        }
    }

    /// Takes in the answer to the call of [`Allocator::store_op`]. An answer nobody waits for
    /// changes nothing.
    ///
    /// # Errors
    /// `Unavailable` when the Store did not answer, and the errors of [`take_block`]. The refill
    /// starts over at the next `store_op`.
    pub fn on_answer(&mut self, answer: StoreAnswer) -> Result<(), Error> {
        match (std::mem::replace(&mut self.refill, Refill::Idle), answer) {
            (Refill::Reading, StoreAnswer::Read(read)) => {
                let (batch, block) = take_block(read.records.first().and_then(Option::as_ref))?;
                self.refill = Refill::Read(batch, block);
            }
            (Refill::Committing(block), StoreAnswer::Commit(BatchOutcome::Committed(_))) => {
                self.spare = block;
            }
            // Somebody else took a block in between: read again.
            (Refill::Committing(_), StoreAnswer::Commit(BatchOutcome::Conflict { .. })) => {}
            (Refill::Reading | Refill::Committing(_), StoreAnswer::Failed(e)) => {
                return Err(Error::unavailable(format!("no generation block: {e}")));
            }
            (waiting, _) => self.refill = waiting,
        }
        Ok(())
    }

    /// The core stopped waiting for the call of [`Allocator::store_op`]: the refill starts over.
    /// The answer to that call must not be passed in any more (its token is forgotten); a block
    /// that it took all the same is given up.
    pub fn on_timeout(&mut self) {
        self.refill = Refill::Idle;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::StoreVersion;
    use crate::limits::MAX_FENCE;
    use crate::location::{LocationStore, ReadAnswer, StoreError};
    use crate::store::memory::MemoryStore;
    use crate::store::records::GenerationCounter;
    use crate::time::Nanos;
    use std::collections::BTreeSet;
    use std::sync::Arc;
    use std::time::Duration;

    fn carry_out(store: &MemoryStore, op: StoreOp) -> StoreAnswer {
        let budget = Duration::from_secs(1);
        match op {
            StoreOp::Read(keys) => StoreAnswer::Read(store.read(&keys, budget).unwrap()),
            StoreOp::Commit(batch) => {
                StoreAnswer::Commit(store.commit(&[batch], budget).unwrap().remove(0))
            }
            StoreOp::Scan { .. } => unreachable!("a refill does not scan"),
        }
    }

    fn store() -> MemoryStore {
        MemoryStore::with_clock(Arc::new(|| Nanos(1)))
    }

    /// Proves R0-3.
    #[test]
    fn two_allocators_that_interleave_every_step_never_share_a_number() {
        let store = store();
        let mut both = [Allocator::new(Block::EMPTY), Allocator::new(Block::EMPTY)];
        let mut seen = BTreeSet::new();
        let mut pending: [Option<StoreOp>; 2] = [None, None];
        for step in 0..40_000 {
            let who = step % 2;
            // Ops of both are out at the same time, so that reads go stale and commits race.
            if let Some(op) = pending[who].take() {
                let answer = carry_out(&store, op);
                both[who].on_answer(answer).unwrap();
            }
            if let Some(n) = both[who].take() {
                assert!(seen.insert(n), "{n} was handed out twice");
            }
            pending[who] = both[who].store_op();
        }
        assert!(seen.len() > 30_000, "only {} numbers were handed out", seen.len());
    }

    #[test]
    fn a_refill_comes_before_the_block_is_used_up() {
        let store = store();
        let mut one = Allocator::new(Block::new(1, 1 + REFILL_BELOW).unwrap());
        assert_eq!(one.store_op(), None, "a quarter is left");
        one.take().unwrap();
        for _ in 0..2 {
            let op = one.store_op().expect("a call");
            assert_eq!(one.store_op(), None, "one call at a time");
            let answer = carry_out(&store, op);
            one.on_answer(answer).unwrap();
        }
        assert_eq!(one.available(), REFILL_BELOW - 1 + GENERATION_BLOCK);
        assert_eq!(one.store_op(), None);
    }

    /// Proves R0-3.
    #[test]
    fn an_unknown_outcome_gives_its_numbers_up() {
        let store = store();
        let mut one = Allocator::new(Block::EMPTY);
        let read = one.store_op().unwrap();
        one.on_answer(carry_out(&store, read)).unwrap();
        let commit = one.store_op().unwrap();
        carry_out(&store, commit); // applied, but the answer is lost
        let lost = StoreAnswer::Failed(StoreError::Unknown("lost".into()));
        let e = one.on_answer(lost).unwrap_err();
        assert!(e.text().contains("unknown outcome"), "{e}");
        assert_eq!(one.take(), None);
        for _ in 0..2 {
            let op = one.store_op().unwrap();
            one.on_answer(carry_out(&store, op)).unwrap();
        }
        assert_eq!(one.take(), Some(1 + GENERATION_BLOCK));
    }

    #[test]
    fn an_answer_nobody_waits_for_changes_nothing() {
        let mut one = Allocator::new(Block::EMPTY);
        one.store_op().unwrap();
        one.on_timeout();
        let before = one.clone();
        let late = ReadAnswer { records: vec![None], store_now_ms: 0 };
        one.on_answer(StoreAnswer::Read(late)).unwrap();
        assert_eq!(one, before);
    }

    /// Proves R0-3.
    #[test]
    fn running_out_is_an_error_and_no_wrap() {
        let record = crate::location::Record {
            value: GenerationCounter { next: MAX_FENCE - 7 }.encode(),
            version: StoreVersion::FIRST,
            expires_in: None,
        };
        let mut one = Allocator::new(Block::EMPTY);
        one.store_op().unwrap();
        let read = ReadAnswer { records: vec![Some(record)], store_now_ms: 0 };
        let e = one.on_answer(StoreAnswer::Read(read)).unwrap_err();
        assert!(e.text().contains("run out"), "{e}");
        assert_eq!(one.take(), None);
    }
}
