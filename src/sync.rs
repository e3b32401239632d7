#![forbid(unsafe_code)]
//! Small cells that threads share, and the words that processes share.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::time::Nanos;

/// The node's own lease as the lease thread published it last: written by that thread alone, read
/// by every core before each batch of turns.
///
/// Deadline and fence are one word, so a reader can never see half of a change. The word stands
/// for itself and orders nothing else, hence `Relaxed`: a core that sees it late acts under the
/// old deadline, which was true when it was published.
///
/// ```
/// use homing::sync::LeaseCell;
/// use homing::time::Nanos;
/// let cell = LeaseCell::new();
/// assert_eq!(cell.load(), (Nanos::ZERO, false));
/// cell.store(Nanos(7), false);
/// assert_eq!(cell.load(), (Nanos(7), false));
/// cell.store(Nanos::ZERO, true);
/// cell.store(Nanos(9), false); // fenced is for good
/// assert_eq!(cell.load(), (Nanos::ZERO, true));
/// ```
#[derive(Debug, Default)]
pub struct LeaseCell(AtomicU64);

/// The word of a fenced lease. No deadline has this value: clocks do not reach it.
const FENCED: u64 = u64::MAX;

impl LeaseCell {
    /// A lease not taken yet: its deadline is zero.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Publishes the admission deadline, or that the lease is fenced, which stays.
    pub fn store(&self, admission_deadline: Nanos, fenced: bool) {
        // One writer, so this check cannot race.
        if self.0.load(Ordering::Relaxed) == FENCED {
            return;
        }
        let word = if fenced { FENCED } else { admission_deadline.0.min(FENCED - 1) };
        self.0.store(word, Ordering::Relaxed);
    }

    /// The admission deadline, and whether the lease is fenced (the deadline is zero then).
    #[must_use]
    pub fn load(&self) -> (Nanos, bool) {
        match self.0.load(Ordering::Relaxed) {
            FENCED => (Nanos::ZERO, true),
            deadline => (Nanos(deadline), false),
        }
    }
}

/// An atomic word as the seqlock of `shm` uses it: the only loads and stores it makes, under the
/// names of what they order. It is implemented for the word of `std`, and with the feature `loom`
/// for that of the model checker, from one text.
pub trait Word {
    /// Reads; orders nothing. This is the only load that is sound on a read-only mapping.
    fn load_relaxed(&self) -> u64;
    /// Writes; orders nothing.
    fn store_relaxed(&self, value: u64);
    /// Writes; whoever reads the value and then passes [`Word::fence_acquire`] sees everything
    /// that was written before.
    fn store_release(&self, value: u64);
    /// What was read before this comes before everything after it.
    fn fence_acquire();
    /// Everything before this comes before what is written after it.
    fn fence_release();
}

macro_rules! word {
    ($atomic:ty, $fence:path) => {
        impl Word for $atomic {
            #[inline(always)]
            fn load_relaxed(&self) -> u64 {
                self.load(Ordering::Relaxed)
            }

            #[inline(always)]
            fn store_relaxed(&self, value: u64) {
                self.store(value, Ordering::Relaxed);
            }

            #[inline(always)]
            fn store_release(&self, value: u64) {
                // SYNC: pairs with `fence_acquire` after a relaxed load of this word.
                self.store(value, Ordering::Release);
            }

            #[inline(always)]
            fn fence_acquire() {
                // SYNC: pairs with `store_release` and with `fence_release`.
                $fence(Ordering::Acquire);
            }

            #[inline(always)]
            fn fence_release() {
                // SYNC: pairs with `fence_acquire` of whoever read a word written after this.
                $fence(Ordering::Release);
            }
        }
    };
}

word!(AtomicU64, std::sync::atomic::fence);
#[cfg(feature = "loom")]
word!(loom::sync::atomic::AtomicU64, loom::sync::atomic::fence);
