#![forbid(unsafe_code)]
//! How many operations a ring was given and how many have ended.

use std::sync::atomic::{AtomicU64, Ordering};

/// Operations of one ring, from any thread; exact when no poll is under way, and for good once the
/// driver was dropped.
#[derive(Debug, Default)]
pub struct OperationCounts {
    started: AtomicU64,
    completed: AtomicU64,
}

impl OperationCounts {
    /// Operations given to the ring so far.
    #[must_use]
    pub fn started(&self) -> u64 {
        self.started.load(Ordering::Relaxed)
    }

    /// Operations whose last completion was taken.
    #[must_use]
    pub fn completed(&self) -> u64 {
        self.completed.load(Ordering::Relaxed)
    }

    pub(super) fn set(&self, started: u64, completed: u64) {
        self.started.store(started, Ordering::Relaxed);
        self.completed.store(completed, Ordering::Relaxed);
    }
}
