#![deny(unsafe_code)]
//! Records, leases and generation blocks above the Location Store, and the providers.
//!
//! A provider ([`crate::location::LocationStore`]) keeps bytes and knows no meaning. What the
//! bytes mean is in [`records`]; how a node takes and keeps its lease is in [`leases`]; where
//! fresh generation numbers come from is in [`generations`].

pub mod generations;
pub mod leases;
pub mod memory;
pub mod records;

#[cfg(feature = "lmdb")]
pub mod lmdb;

#[cfg(feature = "redis")]
pub mod redis;

#[cfg(feature = "conformance")]
pub mod conformance;

use crate::location::{Cursor, MAX_KEY_BYTES, StoreError};
use crate::time::Nanos;

/// CLOCK_BOOTTIME in nanoseconds, which all processes of a host share: the clock of cores, and of
/// the providers that live on one host.
#[must_use]
pub fn boottime() -> Nanos {
    #[allow(clippy::disallowed_methods)] // the clock of a Store, not of a core
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(now.tv_nsec).unwrap_or(0);
    Nanos(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
}

/// The cursor of the providers here: a tag of the provider, and the last key listed.
fn cursor(tag: u8, last: &[u8]) -> Cursor {
    Cursor([&[tag], last].concat())
}

/// Checks the arguments of a scan; gives the last key of the page before, if there was one.
fn scan_start<'c>(
    tag: u8,
    prefix: &[u8],
    cursor: Option<&'c Cursor>,
    limit: usize,
) -> Result<Option<&'c [u8]>, StoreError> {
    if limit == 0 {
        return Err(StoreError::Failed("the scan's limit is 0; it must be at least 1".into()));
    }
    if prefix.len() > MAX_KEY_BYTES {
        return Err(StoreError::Failed(format!(
            "the scan's prefix has {} bytes; a key has at most {MAX_KEY_BYTES}",
            prefix.len()
        )));
    }
    match cursor.map(|Cursor(bytes)| bytes.split_first()) {
        None => Ok(None),
        Some(Some((first, last)))
            if *first == tag
                && !last.is_empty()
                && last.len() <= MAX_KEY_BYTES
                && last.starts_with(prefix) =>
        {
            Ok(Some(last))
        }
        Some(_) => Err(StoreError::Failed(
            "the scan's cursor is not one this store gave for this prefix".into(),
        )),
    }
}
