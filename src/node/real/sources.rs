#![forbid(unsafe_code)]
//! Where time, randomness and the machine's load come from.

use std::fs::File;
use std::os::unix::fs::FileExt;

use chacha20::ChaCha12Rng;
use chacha20::rand_core::{Rng, SeedableRng};
use rustix::process::{Resource, getrlimit};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::error::Error;
use crate::exec::idle::runnable_threads;

/// Random words of the kernel.
///
/// # Errors
/// `InternalFailure` when the kernel gives no randomness.
pub(crate) fn random_words<const N: usize>() -> Result<[u64; N], Error> {
    let mut source = RandomSource::new()?;
    Ok(std::array::from_fn(|_| source.next()))
}

/// Descriptors this process may have open.
pub(crate) fn max_descriptors() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Random words of a generator that a core has for itself: ChaCha with twelve rounds, under a key
/// of the kernel's. Nobody who sees some of its words can tell others, so they are good for ids
/// that must not be guessed and for nonces; and none of them is a system call.
pub(super) struct RandomSource(ChaCha12Rng);

impl RandomSource {
    /// # Errors
    /// `InternalFailure` when the kernel gives no randomness.
    #[allow(clippy::disallowed_methods)] // the real randomness
    pub(super) fn new() -> Result<Self, Error> {
        let mut key = [0; 32];
        let mut filled = 0;
        while filled < key.len() {
            let room = &mut key[filled..];
            let got = rustix::io::retry_on_intr(|| getrandom(&mut *room, GetRandomFlags::empty()));
            filled += got.map_err(|e| {
                let reason = std::io::Error::from(e);
                Error::internal(format!("the kernel gives no random numbers: {reason}"))
            })?;
        }
        Ok(Self(ChaCha12Rng::from_seed(key)))
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0.next_u64()
    }
}

/// Reads how many threads of the machine are runnable.
pub(super) struct LoadReader {
    file: Option<File>,
}

impl LoadReader {
    pub(super) fn new() -> Self {
        Self { file: File::open("/proc/loadavg").ok() }
    }

    /// One system call, a few µs. `None` where the system does not say.
    pub(super) fn runnable(&self) -> Option<u32> {
        let mut text = [0; 64];
        let len = self.file.as_ref()?.read_at(&mut text, 0).ok()?;
        runnable_threads(std::str::from_utf8(&text[..len]).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_words_differ_within_a_source_and_between_two() {
        let mut source = RandomSource::new().unwrap();
        let mut other = RandomSource::new().unwrap();
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..10_000 {
            assert!(seen.insert(source.next()) && seen.insert(other.next()));
        }
    }

    #[test]
    fn the_clock_goes_on_and_agrees_with_uptime() {
        let before = crate::store::boottime();
        let uptime = std::fs::read_to_string("/proc/uptime").unwrap();
        let after = crate::store::boottime();
        assert!(before < after);
        let seconds: f64 = uptime.split_whitespace().next().unwrap().parse().unwrap();
        // `uptime` is cut to hundredths.
        assert!(before.0 as f64 / 1e9 <= seconds + 0.011 && seconds <= after.0 as f64 / 1e9);
    }

    #[test]
    fn the_load_is_known() {
        assert!(LoadReader::new().runnable().unwrap() >= 1, "this thread runs");
        assert_eq!(LoadReader { file: None }.runnable(), None);
    }
}
