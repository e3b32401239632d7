#![forbid(unsafe_code)]
//! Where time, randomness and the machine's load come from.

use std::fs::File;
use std::os::unix::fs::FileExt;

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

/// Random words a refill gets.
const WORDS: usize = 512;

/// Random words from the kernel's generator, fetched 4 KiB at a time: good enough for nonces, and
/// one system call for 512 of them.
pub(super) struct RandomSource {
    bytes: Box<[u8; WORDS * 8]>,
    /// Words that are used.
    used: usize,
}

impl RandomSource {
    /// # Errors
    /// `InternalFailure` when the kernel gives no randomness.
    pub(super) fn new() -> Result<Self, Error> {
        let mut source = Self { bytes: Box::new([0; WORDS * 8]), used: 0 };
        source.refill().map_err(|e| {
            let reason = std::io::Error::from(e);
            Error::internal(format!("the kernel gives no random numbers: {reason}"))
        })?;
        Ok(source)
    }

    /// # Panics
    /// When the kernel stops giving randomness after it has once: there is no such kernel, and no
    /// safe way to go on without.
    pub(super) fn next(&mut self) -> u64 {
        if self.used == WORDS {
            self.refill().expect("getrandom worked at start");
        }
        let at = self.used * 8;
        self.used += 1;
        let word: [u8; 8] = self.bytes[at..at + 8].try_into().expect("8 bytes");
        u64::from_ne_bytes(word)
    }

    #[allow(clippy::disallowed_methods)] // the real randomness
    fn refill(&mut self) -> rustix::io::Result<()> {
        let mut filled = 0;
        while filled < self.bytes.len() {
            let room = &mut self.bytes[filled..];
            filled += rustix::io::retry_on_intr(|| getrandom(&mut *room, GetRandomFlags::empty()))?;
        }
        self.used = 0;
        Ok(())
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
    fn random_words_differ_across_refills_and_sources() {
        let mut source = RandomSource::new().unwrap();
        let mut other = RandomSource::new().unwrap();
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..3 * WORDS {
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
