#![forbid(unsafe_code)]
//! The seqlock under the model checker: every interleaving, and every value a relaxed load may see.
//!
//! `./tools/test loom`, or `cargo test --features loom --test loom_seqlock`
//!
//! Each mistake is the sound protocol with one step left out. A test of a mistake passes when the
//! model finds a torn item, so the model is known to look where the steps matter.
#![allow(clippy::disallowed_methods)] // threads of the model

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

use homing::shm::seqlock::{Sound, Steps, attempt, write};
use homing::sync::Word;
use loom::sync::Arc;
use loom::sync::atomic::AtomicU64;

/// w2 is left out.
struct NoWriterFence;
impl Steps for NoWriterFence {
    fn after_claim<W: Word>() {}
}

/// w4 is a relaxed store.
struct RelaxedPublish;
impl Steps for RelaxedPublish {
    fn publish<W: Word>(seq: &W, even: u64) {
        seq.store_relaxed(even);
    }
}

/// r2 is left out.
struct NoFirstReaderFence;
impl Steps for NoFirstReaderFence {
    fn after_first_look<W: Word>() {}
}

/// r4 is left out.
struct NoSecondReaderFence;
impl Steps for NoSecondReaderFence {
    fn before_second_look<W: Word>() {}
}

/// w1 without `| 1`: after a writer that died, the item looks whole while it is written.
struct InvertedParity;
impl Steps for InvertedParity {
    fn odd(seq: u64) -> u64 {
        seq.wrapping_add(1)
    }
}

/// The seq as its writer holds it: nobody else writes it, so the writer's load is what it stored
/// last. The checker need not be asked for that, and would not look behind such a load for older
/// ones of other threads.
struct OwnSeq<'a> {
    seq: &'a AtomicU64,
    stored: Cell<u64>,
}

impl Word for OwnSeq<'_> {
    fn load_relaxed(&self) -> u64 {
        self.stored.get()
    }

    fn store_relaxed(&self, value: u64) {
        self.stored.set(value);
        self.seq.store_relaxed(value);
    }

    fn store_release(&self, value: u64) {
        self.stored.set(value);
        self.seq.store_release(value);
    }

    fn fence_acquire() {
        AtomicU64::fence_acquire();
    }

    fn fence_release() {
        AtomicU64::fence_release();
    }
}

/// An item of two words that are always equal.
struct Item {
    seq: AtomicU64,
    words: [AtomicU64; 2],
}

impl Item {
    fn new(seq: u64) -> Self {
        Self { seq: AtomicU64::new(seq), words: [AtomicU64::new(0), AtomicU64::new(0)] }
    }

    /// Writes the item once for each value, from the seq that stands.
    fn write<S: Steps>(&self, seq: u64, values: &[u64]) {
        let seq = OwnSeq { seq: &self.seq, stored: Cell::new(seq) };
        for value in values {
            write::<S, _>(&seq, || self.words.iter().for_each(|w| w.store_relaxed(*value)));
        }
    }

    fn read<S: Steps>(&self) -> Option<(u64, u64)> {
        attempt::<S, _, _>(&self.seq, || {
            (self.words[0].load_relaxed(), self.words[1].load_relaxed())
        })
    }
}

/// A writer that writes `values` and a reader that tries `tries` times, over an item whose seq
/// stands at `seq`: every item that was read is whole, and a later one is not older.
fn model<S: Steps>(seq: u64, values: &'static [u64], tries: usize) {
    loom::model(move || {
        let item = Arc::new(Item::new(seq));
        let writer = loom::thread::spawn({
            let item = item.clone();
            move || item.write::<S>(seq, values)
        });
        let mut last = 0;
        for _ in 0..tries {
            if let Some((a, b)) = item.read::<S>() {
                assert_eq!(a, b, "torn");
                assert!(a >= last, "back in time");
                last = a;
            }
        }
        writer.join().unwrap();
        if S::odd(seq) & 1 == 1 {
            let last = values[values.len() - 1];
            assert_eq!(item.read::<S>(), Some((last, last)), "whole once the writer is out of it");
        }
    });
}

/// Whether the model finds a torn item.
fn is_caught<S: Steps>(seq: u64) -> bool {
    let ended = catch_unwind(AssertUnwindSafe(|| model::<S>(seq, &[1, 2], 1)));
    let Err(why) = ended else { return false };
    let why = why
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| why.downcast_ref::<&str>().map(ToString::to_string))
        .unwrap_or_default();
    assert!(why.contains("torn"), "the model ended for another reason: {why}");
    true
}

#[test]
fn the_sound_protocol_never_tears() {
    model::<Sound>(0, &[1, 2], 1);
}

#[test]
fn a_reader_never_goes_back() {
    model::<Sound>(0, &[1], 2);
}

/// A writer died in the item before; the next one and its readers get on.
#[test]
fn the_sound_protocol_never_tears_after_a_writer_that_died() {
    model::<Sound>(1, &[1, 2], 1);
}

#[test]
fn a_missing_fence_of_the_writer_is_caught() {
    assert!(is_caught::<NoWriterFence>(0));
}

#[test]
fn a_relaxed_publish_is_caught() {
    assert!(is_caught::<RelaxedPublish>(0));
}

#[test]
fn a_missing_first_fence_of_the_reader_is_caught() {
    assert!(is_caught::<NoFirstReaderFence>(0));
}

#[test]
fn a_missing_second_fence_of_the_reader_is_caught() {
    assert!(is_caught::<NoSecondReaderFence>(0));
}

#[test]
fn an_inverted_parity_is_caught() {
    assert!(is_caught::<InvertedParity>(1));
    model::<InvertedParity>(0, &[1, 2], 1); // it takes a writer that died to bring it out
}

/// The reader of the other end: whoever sees the publication word sees what came before it.
#[test]
fn what_was_filled_is_seen_with_the_version() {
    loom::model(|| {
        let item = Arc::new(Item::new(0));
        let maker = loom::thread::spawn({
            let item = item.clone();
            move || {
                item.words[0].store_relaxed(7);
                item.seq.store_release(1);
            }
        });
        let version = item.seq.load_relaxed();
        AtomicU64::fence_acquire();
        if version == 1 {
            assert_eq!(item.words[0].load_relaxed(), 7);
        }
        maker.join().unwrap();
    });
}
