#![allow(unsafe_code)]
//! A node's region of shared memory: making it, finding it, reading it from another process.
//!
//! [`Region`] is the node's side: it makes the region, hands each core its [`Shard`] (the only
//! thing that can write there) and keeps the descriptor open. [`RegionView`] is everybody else's:
//! it maps the region read-only, after every number of its header was checked. Both see words:
//! [`WriteWords`] and [`ReadWords`], accessed one at a time as relaxed atomics, with the
//! [`seqlock`] for items of more than one word. What the words mean is in `layout`.
//!
//! # Why nobody can hurt anybody
//!
//! - A reader never waits for the writer, nor the writer for a reader.
//! - The region is a memfd, sealed against shrinking, growing, further writable mappings and
//!   further seals, mode 0400: a reader can neither change it nor cut it off under another one.
//! - Its space is reserved before it is used: a full file system is an error at the start and not
//!   a SIGBUS later.
//! - A reader takes every number it reads for hostile: it is checked before it is used as an
//!   index or a length.
//!
//! # What a death leaves
//!
//! A memfd goes with its process. What can stay is in the runtime directory: a lock file (the
//! kernel releases its lock), an announcement, a temporary file of one, and in file form the
//! region. The next [`Claim`] of the same name takes the lock and replaces them.

mod announce;
mod counters;
mod process;
mod region;
pub mod seqlock;
mod view;

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use memmap2::{MmapOptions, MmapRaw};

pub use announce::{Announcement, Claim, ClaimError};
pub use counters::{CounterBlock, CounterReading, CounterSpec};
pub use process::ProcessIdentity;
pub use region::{CreateError, CreateStep, Place, Region, RegionIdentity, RegionSpec, Shard};
pub use view::{AttachError, RegionView, ShardView};

use crate::layout::WORD_BYTES;

/// A mapping, kept as long as something points into it.
#[derive(Debug)]
struct Memory {
    map: MmapRaw,
}

impl Memory {
    /// Zeroed memory of this process alone. Pages are taken as they are touched.
    fn anonymous(bytes: u64) -> io::Result<Self> {
        let map = MmapOptions::new().len(checked_len(bytes)?).map_anon()?;
        Ok(Self { map: map.into() })
    }

    /// A shared mapping of a file that can be written.
    fn writable(file: impl AsFd, bytes: u64) -> io::Result<Self> {
        let map = MmapOptions::new().len(checked_len(bytes)?).map_raw(file.as_fd().as_raw_fd())?;
        Ok(Self { map })
    }

    /// A shared mapping of a file that is only read.
    fn read_only(file: impl AsFd, bytes: u64) -> io::Result<Self> {
        let fd = file.as_fd().as_raw_fd();
        let map = MmapOptions::new().len(checked_len(bytes)?).map_raw_read_only(fd)?;
        Ok(Self { map })
    }

    fn word_count(&self) -> usize {
        self.map.len() / WORD_BYTES
    }

    fn base(&self) -> *const AtomicU64 {
        self.map.as_ptr().cast()
    }
}

/// A length that can be mapped: not empty, whole words.
fn checked_len(bytes: u64) -> io::Result<usize> {
    match usize::try_from(bytes) {
        Ok(len) if len > 0 && len % WORD_BYTES == 0 && isize::try_from(len).is_ok() => Ok(len),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{bytes} bytes cannot be mapped as words"),
        )),
    }
}

/// A run of words of a mapping, with the mapping.
#[derive(Clone)]
struct Span {
    base: *const AtomicU64,
    len: usize,
    _memory: Arc<Memory>,
}

// SAFETY: a span is a pointer into a mapping that it keeps, to words that are only accessed as
// atomics; nothing about it belongs to one thread.
unsafe impl Send for Span {}
// SAFETY: as for `Send`; shared access goes through atomics only.
unsafe impl Sync for Span {}

impl Span {
    /// # Panics
    /// When the range does not lie in the mapping, which is a bug of the caller: ranges come from
    /// a checked map.
    fn new(memory: Arc<Memory>, range: std::ops::Range<usize>) -> Self {
        assert!(
            range.start <= range.end && range.end <= memory.word_count(),
            "words {range:?} of a mapping of {}",
            memory.word_count()
        );
        let base = memory.base().wrapping_add(range.start);
        Self { base, len: range.len(), _memory: memory }
    }

    #[inline(always)]
    fn words(&self) -> &[AtomicU64] {
        // SAFETY: `new` checked that the words lie in the mapping, which begins at a page and
        // stands as long as `self._memory`. Whoever else maps the memory accesses it as atomic
        // words too, or only reads. Every bit pattern is a word.
        unsafe { std::slice::from_raw_parts(self.base, self.len) }
    }
}

/// Words that are read: relaxed loads and nothing else, because the mapping may be read-only.
#[derive(Clone)]
pub struct ReadWords(Span);

impl ReadWords {
    fn new(memory: &Arc<Memory>, range: std::ops::Range<usize>) -> Self {
        Self(Span::new(memory.clone(), range))
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// One word.
    ///
    /// # Panics
    /// When there are not so many words.
    #[must_use]
    #[inline]
    pub fn load(&self, at: usize) -> u64 {
        self.0.words()[at].load(Ordering::Relaxed)
    }

    /// `N` words, each whole, all of them perhaps of different writes.
    ///
    /// # Panics
    /// When there are not so many words.
    #[must_use]
    #[inline]
    pub fn copy<const N: usize>(&self, at: usize) -> [u64; N] {
        load_all(self.run(at).0)
    }

    /// `N` words from `at` on, to be loaded without another look at where they lie.
    ///
    /// # Panics
    /// When there are not so many words.
    #[must_use]
    #[inline(always)]
    pub fn run<const N: usize>(&self, at: usize) -> Run<'_, N> {
        Run::new(self.0.words(), at)
    }

    /// The item of `N` words that begins with its seq at `at`; see [`Run::read_item`].
    ///
    /// # Panics
    /// When there are not so many words.
    #[must_use]
    #[inline]
    pub fn read_item<const N: usize>(&self, at: usize) -> Option<[u64; N]> {
        self.run::<N>(at).read_item(0)
    }

    /// Reads under the seqlock whose seq is word `seq_at`; see [`seqlock::read`]. `None` is a
    /// miss.
    ///
    /// # Panics
    /// When there is no such word.
    #[inline]
    pub fn read<T>(&self, seq_at: usize, copy: impl Fn() -> T) -> Option<T> {
        seqlock::read(&self.0.words()[seq_at], copy)
    }
}

/// `N` words that lie one behind the other, whose place was checked once. Relaxed loads only.
#[derive(Clone, Copy)]
pub struct Run<'a, const N: usize>(&'a [AtomicU64; N]);

impl<'a, const N: usize> Run<'a, N> {
    /// # Panics
    /// When there are not so many words.
    #[inline(always)]
    fn new(words: &'a [AtomicU64], at: usize) -> Self {
        match words.get(at..).and_then(|words| words.first_chunk()) {
            Some(words) => Self(words),
            None => out_of_bounds(at, N, words.len()),
        }
    }

    /// One word.
    ///
    /// # Panics
    /// When there are not so many words.
    #[must_use]
    #[inline(always)]
    pub fn load(self, at: usize) -> u64 {
        self.0[at].load(Ordering::Relaxed)
    }

    /// `M` of the words from `at` on, each whole, all of them perhaps of different writes.
    ///
    /// # Panics
    /// When there are not so many words.
    #[must_use]
    #[inline(always)]
    pub fn copy<const M: usize>(self, at: usize) -> [u64; M] {
        load_all(Run::<M>::new(self.0, at).0)
    }

    /// The item of `M` words that begins with its seq at `at`, under that seqlock; see
    /// [`seqlock::read`]. `None` is a miss.
    ///
    /// # Panics
    /// When there are not so many words.
    #[must_use]
    #[inline(always)]
    pub fn read_item<const M: usize>(self, at: usize) -> Option<[u64; M]> {
        let item = Run::<M>::new(self.0, at).0;
        seqlock::read(&item[0], || load_all(item))
    }
}

impl<const N: usize> fmt::Debug for Run<'_, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Run({N})")
    }
}

#[cold]
#[inline(never)]
fn out_of_bounds(at: usize, count: usize, len: usize) -> ! {
    panic!("{count} words from {at} on, of {len}")
}

impl fmt::Debug for ReadWords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReadWords({})", self.0.len)
    }
}

/// Words that this owner alone writes, and anyone reads.
pub struct WriteWords(Span);

impl WriteWords {
    fn new(memory: &Arc<Memory>, range: std::ops::Range<usize>) -> Self {
        Self(Span::new(memory.clone(), range))
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// The reading side of the same words.
    #[must_use]
    pub fn reader(&self) -> ReadWords {
        ReadWords(self.0.clone())
    }

    /// One word.
    ///
    /// # Panics
    /// When there are not so many words.
    #[must_use]
    #[inline]
    pub fn load(&self, at: usize) -> u64 {
        self.0.words()[at].load(Ordering::Relaxed)
    }

    /// `N` words. Nobody else writes them, so they belong together.
    ///
    /// # Panics
    /// When there are not so many words.
    #[must_use]
    #[inline]
    pub fn copy<const N: usize>(&self, at: usize) -> [u64; N] {
        load_all(self.run(at).0)
    }

    /// `N` words from `at` on, to be loaded without another look at where they lie.
    ///
    /// # Panics
    /// When there are not so many words.
    #[must_use]
    #[inline(always)]
    pub fn run<const N: usize>(&self, at: usize) -> Run<'_, N> {
        Run::new(self.0.words(), at)
    }

    /// Stores one word. A word outside of a seqlocked item stands for itself.
    ///
    /// # Panics
    /// When there are not so many words.
    #[inline]
    pub fn store(&mut self, at: usize, value: u64) {
        self.store_single(at, value);
    }

    /// As [`WriteWords::store`], for a holder that one thread alone can reach.
    #[inline]
    fn store_single(&self, at: usize, value: u64) {
        self.0.words()[at].store(value, Ordering::Relaxed);
    }

    /// Adds to one word; no read-modify-write is needed, as nobody else writes.
    ///
    /// # Panics
    /// When there are not so many words.
    #[inline]
    pub fn add(&mut self, at: usize, by: u64) {
        self.store(at, self.load(at).wrapping_add(by));
    }

    /// Stores words one after the other.
    ///
    /// # Panics
    /// When there are not so many words.
    #[inline]
    pub fn put(&mut self, at: usize, values: &[u64]) {
        let words = &self.0.words()[at..at + values.len()];
        for (word, value) in words.iter().zip(values) {
            word.store(*value, Ordering::Relaxed);
        }
    }

    /// Writes an item: `values` are its words behind the seq at `seq_at`; `store` writes what
    /// else the seq covers. See [`seqlock::write`].
    ///
    /// # Panics
    /// When there are not so many words.
    #[inline]
    pub fn write(&mut self, seq_at: usize, values: &[u64], store: impl FnOnce()) {
        let words = &self.0.words()[seq_at..=seq_at + values.len()];
        seqlock::write::<seqlock::Sound, _>(&words[0], || {
            for (word, value) in words[1..].iter().zip(values) {
                word.store(*value, Ordering::Relaxed);
            }
            store();
        });
    }

    /// Stores the word that says that everything stored before is whole.
    ///
    /// # Panics
    /// When there are not so many words.
    fn publish(&mut self, at: usize, value: u64) {
        // SYNC: pairs with the acquire fence in `RegionView::attach`, after its load of the word.
        self.0.words()[at].store(value, Ordering::Release);
    }
}

impl fmt::Debug for WriteWords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WriteWords({})", self.0.len)
    }
}

#[inline(always)]
fn load_all<const N: usize>(words: &[AtomicU64; N]) -> [u64; N] {
    std::array::from_fn(|at| words[at].load(Ordering::Relaxed))
}
