#![forbid(unsafe_code)]
//! What another thread does with the same cache meanwhile.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use homing::ids::ObjectKey;
use homing::route::{InsertOutcome, RouteReader, SharedRouteCache};
use homing::shm::RegionView;

use crate::tables::{NOW, route_of};

/// Writes of one millisecond.
const WRITES_PER_MS: usize = 100;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Company {
    None,
    /// A second reader of the same ids.
    Reader,
    /// The home core renews entries, 100 of them each millisecond.
    Writer,
}

/// Runs `measured` beside the company, and says what that did.
pub(crate) fn beside<T>(
    company: Company,
    cache: &mut SharedRouteCache,
    view: &RegionView,
    keys: &[ObjectKey],
    measured: impl FnOnce() -> T,
) -> (T, Option<String>) {
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let ends = &ends;
        let other = match company {
            Company::None => None,
            Company::Reader => Some(scope.spawn(move || read(view, keys, ends))),
            Company::Writer => Some(scope.spawn(move || write(cache, keys, ends))),
        };
        let out = measured();
        ends.store(true, Ordering::Relaxed);
        (out, other.map(|other| other.join().expect("the other thread")))
    })
}

fn read(view: &RegionView, keys: &[ObjectKey], ends: &AtomicBool) -> String {
    let reader = RouteReader::new(view);
    let started = Instant::now();
    let mut reads = 0u64;
    while !ends.load(Ordering::Relaxed) {
        for key in keys.iter().rev().cycle().take(4096) {
            assert!(reader.lookup_hash(key.object_hash(), NOW).is_some(), "a hit");
            reads += 1;
        }
    }
    let rate = reads as f64 / started.elapsed().as_secs_f64() / 1e6;
    format!("The second reader made {rate:.1} M look-ups a second")
}

fn write(cache: &mut SharedRouteCache, keys: &[ObjectKey], ends: &AtomicBool) -> String {
    let started = Instant::now();
    let (mut writes, mut ms) = (0u64, 0);
    let mut at = keys.iter().rev().cycle();
    while !ends.load(Ordering::Relaxed) {
        for key in at.by_ref().take(WRITES_PER_MS) {
            let outcome = cache.insert(route_of(key), NOW);
            assert_eq!(outcome, InsertOutcome::Inserted);
            writes += 1;
        }
        ms += 1;
        let due = started + Duration::from_millis(ms);
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
    }
    let rate = writes as f64 / started.elapsed().as_secs_f64() / 1e3;
    format!("The writer made {rate:.1} k writes a second")
}
