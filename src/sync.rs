#![forbid(unsafe_code)]
//! Small cells that threads share.

pub mod flag;

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
