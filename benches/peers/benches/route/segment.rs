#![forbid(unsafe_code)]
//! A segment: one thread looks up and is measured, another may read or write beside it.

use std::cell::RefCell;
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

/// How often the writers wrote.
#[derive(Default)]
pub(crate) struct WriterRate(RefCell<Vec<f64>>);

impl WriterRate {
    pub(crate) fn print(&self) {
        let rates = self.0.borrow();
        if !rates.is_empty() {
            println!("Writers wrote {:.0} entries a second (median).", median(rates.clone()));
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
    rate: &WriterRate,
) -> Outcome {
    let Threads { mut reader, second, writer } = side.open();
    let (running, stop) = (AtomicBool::new(false), AtomicBool::new(false));
    let began = Instant::now();
    let (outcome, written) = std::thread::scope(|scope| {
        // However this ends, the other thread ends.
        let stopper = StopAtEnd(&stop);
        let other = match setting {
            Setting::Alone => None,
            Setting::SecondReader => {
                let reader = second.expect("this side has a second reader");
                Some(scope.spawn(|| read_on(reader, ids, &running, &stop)))
            }
            Setting::Writer => {
                let writer = writer.expect("this side has a writer");
                Some(scope.spawn(|| write_on(writer, ids, &running, &stop)))
            }
        };
        while other.is_some() && !running.load(Ordering::Relaxed) {
            spin_loop();
        }
        let outcome = measured(&mut reader, ids, ops);
        drop(stopper);
        (outcome, other.map(|other| other.join().expect("the other thread ends well")))
    });
    if let (Setting::Writer, Some(written)) = (setting, written) {
        rate.0.borrow_mut().push(written as f64 / began.elapsed().as_secs_f64());
    }
    outcome
}

struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn measured(reader: &mut impl Reader, ids: &Ids, ops: u64) -> Outcome {
    let mut walk = ids.walk(0);
    timed(reader, &mut walk, ops / 4, BATCH);
    let (samples, hash) = timed(reader, &mut walk, ops, BATCH);
    let together = samples.finish(hash);
    let (samples, hash) = timed(reader, &mut walk, ops / TAIL_SHARE, 1);
    let one_by_one = samples.finish(fold(together.hash, hash));
    Outcome { ops: together.ops, elapsed_ns: together.elapsed_ns, ..one_by_one }
}

fn timed(reader: &mut impl Reader, walk: &mut Walk<'_>, ops: u64, batch: u64) -> (Samples, u64) {
    let mut hash = 0;
    let mut samples = Samples::start(batch);
    for _ in 0..ops / batch {
        samples.begin();
        for _ in 0..batch {
            hash = fold(hash, look_up(reader, walk.next()));
        }
        samples.end();
    }
    (samples, hash)
}

/// One look-up; the one of its numbers that no write changes.
#[inline]
fn look_up(reader: &mut impl Reader, id: &str) -> u64 {
    let seen = reader.look_up(black_box(id), black_box(NOW)).expect("every look-up is a hit");
    black_box(seen).object_generation
}

/// Reads until it is told to stop.
fn read_on(mut reader: impl Reader, ids: &Ids, running: &AtomicBool, stop: &AtomicBool) -> u64 {
    let mut walk = ids.walk(ids.len() / 2);
    let mut count = 0;
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..BATCH {
            look_up(&mut reader, walk.next());
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
