#![forbid(unsafe_code)]
//! The one polling loop of the tests. A test crate takes it in with
//! `#[path = "../support/eventually.rs"] mod eventually;`.
#![allow(clippy::disallowed_methods)] // the clock and the pause of a test

use std::time::{Duration, Instant};

/// How long anything may take before a test gives up: far longer than a loaded machine needs, so
/// that only what never happens fails.
const PATIENCE: Duration = Duration::from_secs(60);

/// Calls `probe` until it gives a value. Use it only for what no event announces.
///
/// # Panics
/// When nothing came for a minute; says `what` was awaited.
#[track_caller]
pub(crate) fn eventually<T>(what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    let mut pause = Duration::from_micros(100);
    loop {
        if let Some(value) = probe() {
            return value;
        }
        assert!(start.elapsed() < PATIENCE, "waited {PATIENCE:?} in vain for {what}");
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}
