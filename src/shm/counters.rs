#![forbid(unsafe_code)]
//! Counters in the region: what each is, and one value per core.

use std::cell::Cell;
use std::marker::PhantomData;

use super::WriteWords;

/// What a counter is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CounterSpec {
    /// A number that stays with the counter across versions.
    pub id: u32,
    /// Its name, at most 103 bytes.
    pub label: &'static str,
    /// What it counts in (`ns`, `bytes`), at most 15 bytes; empty for plain events.
    pub unit: &'static str,
}

/// The counters of one core, in the order of the region's specs. Only one thread at a time can
/// hold it, so none of its changes is lost; no other core writes to its cache lines.
#[derive(Debug)]
pub struct CounterBlock {
    words: WriteWords,
    /// Two threads that share a block would lose each other's changes.
    one_thread: PhantomData<Cell<()>>,
}

impl CounterBlock {
    pub(super) fn new(words: WriteWords) -> Self {
        Self { words, one_thread: PhantomData }
    }

    /// Adds to a counter: one load and one store of a line that this core alone writes.
    ///
    /// # Panics
    /// When there is no counter `index`.
    #[inline]
    pub fn add(&self, index: usize, by: u64) {
        self.set(index, self.get(index).wrapping_add(by));
    }

    /// Sets a counter that is a level and not a sum.
    ///
    /// # Panics
    /// When there is no counter `index`.
    #[inline]
    pub fn set(&self, index: usize, value: u64) {
        self.words.store_single(index, value);
    }

    /// The value.
    ///
    /// # Panics
    /// When there is no counter `index`.
    #[must_use]
    #[inline]
    pub fn get(&self, index: usize) -> u64 {
        self.words.load(index)
    }
}

/// A counter as a reader sees it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CounterReading {
    /// Its number.
    pub id: u32,
    /// Its name; what is not UTF-8 is shown as `U+FFFD`.
    pub label: String,
    /// What it counts in.
    pub unit: String,
    /// Its value on each core.
    pub per_core: Vec<u64>,
}

impl CounterReading {
    /// The sum over all cores, wrapping.
    #[must_use]
    pub fn sum(&self) -> u64 {
        self.per_core.iter().fold(0, |sum, value| sum.wrapping_add(*value))
    }
}
