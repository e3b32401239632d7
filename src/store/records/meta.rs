#![forbid(unsafe_code)]
//! Records of the whole Store: the generation counter and the hash seed.

use serde::{Deserialize, Serialize};

use super::{bad_record, from_json, generation_key, to_json};
use crate::error::Error;
use crate::limits::{GENERATION_BLOCK, MAX_FENCE};
use crate::location::{Batch, Condition, Record, Write};

/// A run of generation numbers that belongs to whoever took it: `next..end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Block {
    next: u64,
    end: u64,
}

impl Block {
    /// No numbers.
    pub const EMPTY: Self = Self { next: 1, end: 1 };

    /// The block `next..end`; `None` unless `1 <= next <= end <= 2^63`.
    #[must_use]
    pub const fn new(next: u64, end: u64) -> Option<Self> {
        if next == 0 || next > end || end > MAX_FENCE + 1 {
            return None;
        }
        Some(Self { next, end })
    }

    /// Takes the first number.
    pub fn take(&mut self) -> Option<u64> {
        (self.next < self.end).then(|| {
            self.next += 1;
            self.next - 1
        })
    }

    /// Takes the first `count` numbers (fewer when fewer are left), for another core.
    #[must_use]
    pub fn split_front(&mut self, count: u64) -> Self {
        let cut = self.next + count.min(self.len());
        let front = Self { next: self.next, end: cut };
        self.next = cut;
        front
    }

    /// Numbers left.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.end - self.next
    }

    /// Whether none is left.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.next == self.end
    }
}

/// The value of `meta/generation`: object, node and lease generations all come from this one
/// counter, so no number is ever used twice for anything (R0-3).
///
/// JSON field: `next`, the first number nobody has taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GenerationCounter {
    /// The first number nobody has taken.
    pub next: u64,
}

impl GenerationCounter {
    /// The JSON bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        to_json(self)
    }

    /// Reads the counter back.
    ///
    /// # Errors
    /// `ProtocolError` that names the key and what is wrong with the value.
    pub fn decode(key: &[u8], value: &[u8]) -> Result<Self, Error> {
        let counter: Self = from_json(key, value)?;
        if counter.next == 0 || counter.next > MAX_FENCE + 1 {
            return Err(bad_record(key, format!("next is {}, outside 1..=2^63", counter.next)));
        }
        Ok(counter)
    }
}

/// The batch that takes the next [`GENERATION_BLOCK`] numbers, given the counter's record as read,
/// and the block it takes. The block belongs to the caller once the batch is committed, and only
/// then; after an unknown outcome its numbers are given up.
///
/// # Errors
/// `InternalFailure` when the numbers have run out (R0-3); `ProtocolError` when the record cannot
/// be read.
pub fn take_block(found: Option<&Record>) -> Result<(Batch, Block), Error> {
    let key = generation_key();
    let (next, condition) = match found {
        None => (1, Condition::Absent(key.clone())),
        Some(Record { value, version, .. }) => (
            GenerationCounter::decode(&key, value)?.next,
            Condition::VersionIs(key.clone(), *version),
        ),
    };
    let block = next.checked_add(GENERATION_BLOCK).and_then(|end| Block::new(next, end));
    let Some(block) = block else {
        return Err(Error::internal(format!(
            "generation numbers have run out: the Location Store counter stands at {next}, the \
             largest number is 2^63-1"
        )));
    };
    let value = GenerationCounter { next: block.end }.encode();
    let writes = vec![Write::Put { key, value, ttl: None }];
    Ok((Batch { conditions: vec![condition], writes }, block))
}

/// The value of `meta/hash-seed`: the seed of the hash that chooses home cores and lanes. Written
/// once by the first node of all, compared in hello.
///
/// JSON field: `seed`, 16 hex digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HashSeed(pub u64);

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SeedJson {
    seed: String,
}

impl HashSeed {
    /// The JSON bytes.
    #[must_use]
    pub fn encode(self) -> Vec<u8> {
        to_json(&SeedJson { seed: format!("{:016x}", self.0) })
    }

    /// Reads the seed back.
    ///
    /// # Errors
    /// `ProtocolError` that names the key and what is wrong with the value.
    pub fn decode(key: &[u8], value: &[u8]) -> Result<Self, Error> {
        let SeedJson { seed } = from_json(key, value)?;
        let digits = seed.len() == 16 && seed.bytes().all(|b| b.is_ascii_hexdigit());
        digits
            .then(|| u64::from_str_radix(&seed, 16).ok())
            .flatten()
            .map(Self)
            .ok_or_else(|| bad_record(key, format!("seed {seed:?} is not 16 hex digits")))
    }

    /// The condition and the write that set the seed when there is none.
    #[must_use]
    pub fn write_once(self) -> (Condition, Write) {
        let key = super::hash_seed_key();
        let write = Write::Put { key: key.clone(), value: self.encode(), ttl: None };
        (Condition::Absent(key), write)
    }
}
