#![forbid(unsafe_code)]
//! The seqlock: one writer, any number of readers, in any process, none of whom waits.
//!
//! An item is a few words and a `seq`. While the writer is in the item its seq is odd; each write
//! leaves it at another even number. A reader copies the words between two looks at the seq, and
//! has a whole item when both looks saw the same even number.
//!
//! # The protocol
//!
//! | writer | reader |
//! |---|---|
//! | w1 `odd = (seq + 1) \| 1`, stored relaxed | r1 seq, loaded relaxed; odd: try again |
//! | w2 release fence | r2 acquire fence |
//! | w3 the words, stored relaxed | r3 the words, loaded relaxed |
//! | w4 `odd + 1`, stored with release | r4 acquire fence |
//! | | r5 seq, loaded relaxed; another number: try again |
//!
//! w4 with r1 + r2: a reader that saw an even seq sees at least the words of that write. w2 with
//! r4: a reader that saw a word of a write sees at least its odd seq in r5. Each of the four is
//! needed; the model in `tests/loom_seqlock.rs` takes away one at a time and finds the torn read.
//!
//! The words are atomics, because a plain read that races with a write is undefined behaviour. A
//! reader uses relaxed loads of whole words only: nothing else is promised on a read-only mapping.
//!
//! # When the writer dies or stalls
//!
//! A writer that stops between w1 and w4 leaves an odd seq. Readers try [`MAX_TRIES`] times and
//! then report a miss. The next writer of the item starts from whatever seq stands: `| 1` makes
//! it odd for the time of the write even when it was odd before. Without it the parity would be
//! inverted for ever, and torn items would look whole.

use crate::sync::Word;

/// How often a reader tries before it reports a miss.
pub const MAX_TRIES: usize = 64;

/// The steps of the protocol that can be got wrong. [`Sound`] takes all of them; the tests of the
/// model checker leave out one each.
pub trait Steps {
    /// w1: the odd number that follows `seq`, whatever its parity.
    #[inline(always)]
    fn odd(seq: u64) -> u64 {
        seq.wrapping_add(1) | 1
    }

    /// w2: after the seq was made odd, before the words.
    #[inline(always)]
    fn after_claim<W: Word>() {
        W::fence_release();
    }

    /// w4: the words are whole.
    #[inline(always)]
    fn publish<W: Word>(seq: &W, even: u64) {
        seq.store_release(even);
    }

    /// r2: after the first look at the seq, before the words.
    #[inline(always)]
    fn after_first_look<W: Word>() {
        W::fence_acquire();
    }

    /// r4: after the words, before the second look at the seq.
    #[inline(always)]
    fn before_second_look<W: Word>() {
        W::fence_acquire();
    }
}

/// The protocol as it stands above.
#[derive(Clone, Copy, Debug)]
pub struct Sound;

impl Steps for Sound {}

/// Writes an item: `store` stores its words, relaxed. Only the item's one writer calls this. When
/// `store` does not return, the item stays unreadable until it is written again.
#[inline]
pub fn write<S: Steps, W: Word>(seq: &W, store: impl FnOnce()) {
    let odd = S::odd(seq.load_relaxed());
    seq.store_relaxed(odd);
    S::after_claim::<W>();
    store();
    S::publish(seq, odd.wrapping_add(1));
}

/// Tries once to read an item: `copy` loads its words, relaxed. `None` when the writer was in it.
#[inline(always)]
pub fn attempt<S: Steps, W: Word, T>(seq: &W, copy: impl FnOnce() -> T) -> Option<T> {
    let first = seq.load_relaxed();
    if first & 1 == 1 {
        return None;
    }
    S::after_first_look::<W>();
    let value = copy();
    S::before_second_look::<W>();
    (seq.load_relaxed() == first).then_some(value)
}

/// Reads an item: `None` when the writer was in it at every one of [`MAX_TRIES`] tries.
#[inline(always)]
pub fn read<W: Word, T>(seq: &W, copy: impl Fn() -> T) -> Option<T> {
    match attempt::<Sound, W, T>(seq, &copy) {
        Some(value) => Some(value),
        None => read_again(seq, copy),
    }
}

/// The tries after the first, which are rare.
#[cold]
#[inline(never)]
fn read_again<W: Word, T>(seq: &W, copy: impl Fn() -> T) -> Option<T> {
    for _ in 1..MAX_TRIES {
        std::hint::spin_loop();
        if let Some(value) = attempt::<Sound, W, T>(seq, &copy) {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn a_write_leaves_another_even_number() {
        for before in [0, 4, u64::MAX - 1] {
            let seq = AtomicU64::new(before);
            write::<Sound, _>(&seq, || assert_eq!(seq.load(Ordering::Relaxed) & 1, 1));
            let after = seq.load(Ordering::Relaxed);
            assert!(after & 1 == 0 && after != before, "{before} became {after}");
        }
    }

    #[test]
    fn what_a_dead_writer_left_is_a_miss_until_it_is_written_again() {
        let seq = AtomicU64::new(7);
        let tries = Cell::new(0);
        assert_eq!(read(&seq, || tries.set(tries.get() + 1)), None);
        assert_eq!(tries.get(), 0, "an odd seq: the words are not looked at");
        write::<Sound, _>(&seq, || assert_eq!(seq.load(Ordering::Relaxed) & 1, 1));
        assert_eq!(read(&seq, || 5), Some(5));
    }

    #[test]
    fn a_reader_that_is_disturbed_gives_up_after_its_tries() {
        let seq = AtomicU64::new(0);
        let tries = Cell::new(0);
        let copy = || {
            tries.set(tries.get() + 1);
            write::<Sound, _>(&seq, || ());
        };
        assert_eq!(read(&seq, copy), None);
        assert_eq!(tries.get(), MAX_TRIES);
    }
}
