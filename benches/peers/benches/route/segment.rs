#![forbid(unsafe_code)]
//! A segment: one thread looks up and is measured, another may read or write beside it.

use std::cell::{Cell, RefCell};
use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::ids::{Ids, Walk};
use crate::side::{NOW, Reader, Side, Threads, Writer};
use crate::support::samples::{Outcome, Samples, fold, median};

/// Look-ups between two readings of the clock, where many are timed together.
const BATCH: u64 = 64;
/// Of how many look-ups one is timed by itself, for the percentiles.
const TAIL_SHARE: u64 = 4;
/// From one write to the next: 100,000 a second.
const WRITE_EVERY: Duration = Duration::from_micros(10);

/// Who else is there.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Setting {
    Alone,
    SecondReader,
    Writer,
}

impl Setting {
    pub(crate) const ALL: [Self; 3] = [Self::Alone, Self::SecondReader, Self::Writer];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Alone => "alone",
            Self::SecondReader => "second reader",
            Self::Writer => "writer at 100 k/s",
        }
    }
}

/// What is said below the table.
#[derive(Default)]
pub(crate) struct Notes {
    /// Writes a second, of each segment with a writer.
    rates: RefCell<Vec<f64>>,
    /// Look-ups that were misses because their entry was being written, and then made again.
    misses: Cell<u64>,
}

impl Notes {
    pub(crate) fn print(&self) {
        let rates = self.rates.borrow();
        if !rates.is_empty() {
            println!(
                "\nWriters wrote {:.0} entries a second (median); {} look-ups met an entry that \
                 was being written, and were made again.",
                median(rates.clone()),
                self.misses.get()
            );
        }
    }
}

/// Runs a segment. The time of a look-up is that of many together; percentiles are of look-ups
/// that were timed one by one afterwards, two readings of the clock included.
pub(crate) fn run(
    side: &mut impl Side,
    ids: &Ids,
    setting: Setting,
    ops: u64,
    notes: &Notes,
) -> Outcome {
    let Threads { reader, second, writer } = side.open();
    let mut looker = Looker { reader, may_miss: setting == Setting::Writer, misses: 0 };
    let (running, stop) = (AtomicBool::new(false), AtomicBool::new(false));
    let began = Instant::now();
    let (outcome, written) = std::thread::scope(|scope| {
        // However this ends, the other thread ends.
        let stopper = StopAtEnd(&stop);
        let other = match setting {
            Setting::Alone => None,
            Setting::SecondReader => Some(scope.spawn(|| read_on(second, ids, &running, &stop))),
            Setting::Writer => Some(scope.spawn(|| write_on(writer, ids, &running, &stop))),
        };
        while other.is_some() && !running.load(Ordering::Relaxed) {
            spin_loop();
        }
        let outcome = measured(&mut looker, ids, ops);
        drop(stopper);
        (outcome, other.map(|other| other.join().expect("the other thread ends well")))
    });
    if let (Setting::Writer, Some(written)) = (setting, written) {
        notes.rates.borrow_mut().push(written as f64 / began.elapsed().as_secs_f64());
    }
    notes.misses.set(notes.misses.get() + looker.misses);
    outcome
}

struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn measured(looker: &mut Looker<impl Reader>, ids: &Ids, ops: u64) -> Outcome {
    let mut walk = ids.walk(0);
    timed(looker, &mut walk, ops / 4, BATCH);
    let (samples, hash) = timed(looker, &mut walk, ops, BATCH);
    let together = samples.finish(hash);
    let (samples, hash) = timed(looker, &mut walk, ops / TAIL_SHARE, 1);
    let one_by_one = samples.finish(fold(together.hash, hash));
    Outcome { ops: together.ops, elapsed_ns: together.elapsed_ns, ..one_by_one }
}

fn timed(
    looker: &mut Looker<impl Reader>,
    walk: &mut Walk<'_>,
    ops: u64,
    batch: u64,
) -> (Samples, u64) {
    let mut hash = 0;
    let mut samples = Samples::start(batch);
    for _ in 0..ops / batch {
        samples.begin();
        for _ in 0..batch {
            hash = fold(hash, looker.look_up(walk.next()));
        }
        samples.end();
    }
    (samples, hash)
}

/// A thread that looks up.
struct Looker<R> {
    reader: R,
    /// A writer may have been stopped inside of an entry; without one, a miss is a fault.
    may_miss: bool,
    misses: u64,
}

impl<R: Reader> Looker<R> {
    /// One look-up; the one of its numbers that no write changes.
    #[inline]
    fn look_up(&mut self, id: &str) -> u64 {
        loop {
            if let Some(seen) = self.reader.look_up(black_box(id), black_box(NOW)) {
                return black_box(seen).object_generation;
            }
            assert!(self.may_miss, "every look-up is a hit");
            self.misses += 1;
        }
    }
}

/// Reads until it is told to stop.
fn read_on(reader: impl Reader, ids: &Ids, running: &AtomicBool, stop: &AtomicBool) -> u64 {
    let mut looker = Looker { reader, may_miss: false, misses: 0 };
    let mut walk = ids.walk(ids.len() / 2);
    let mut count = 0;
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..BATCH {
            looker.look_up(walk.next());
        }
        count += BATCH;
        running.store(true, Ordering::Relaxed);
    }
    count
}

/// The version that was written last, by whatever side: no entry is ever older than the one before.
static VERSION: AtomicU64 = AtomicU64::new(1 << 32);

/// Writes at its pace until it is told to stop; what it missed it makes up for.
fn write_on(mut writer: impl Writer, ids: &Ids, running: &AtomicBool, stop: &AtomicBool) -> u64 {
    let mut walk = ids.walk(ids.len() / 2);
    let mut count = 0;
    let mut next = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        if Instant::now() < next {
            spin_loop();
            continue;
        }
        let (id, number) = walk.next_numbered();
        writer.renew(id, number, VERSION.fetch_add(1, Ordering::Relaxed));
        next += WRITE_EVERY;
        count += 1;
        running.store(true, Ordering::Relaxed);
    }
    count
}
