#![forbid(unsafe_code)]
//! What a script answered, taken apart; whatever a server may send is checked.

use std::collections::VecDeque;
use std::time::Duration;

use redis::Value;

use crate::ids::StoreVersion;
use crate::location::{Batch, BatchOutcome, Record, StoreError};

/// The items of a script's answer that were not used yet.
#[derive(Debug)]
pub(super) struct Reply(VecDeque<Value>);

pub(super) fn bad_reply(why: &str) -> StoreError {
    StoreError::Failed(format!("the Redis server gave an answer that makes no sense: {why}"))
}

impl Reply {
    pub(super) fn new(value: Value) -> Result<Self, StoreError> {
        match value {
            Value::Array(items) => Ok(Self(items.into())),
            _ => Err(bad_reply("it is no array")),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Nothing may be left.
    pub(super) fn end(&self) -> Result<(), StoreError> {
        if self.0.is_empty() { Ok(()) } else { Err(bad_reply("it has too many items")) }
    }

    fn next(&mut self) -> Result<Value, StoreError> {
        self.0.pop_front().ok_or_else(|| bad_reply("it has too few items"))
    }

    pub(super) fn bytes(&mut self) -> Result<Vec<u8>, StoreError> {
        match self.next()? {
            Value::BulkString(bytes) => Ok(bytes),
            Value::SimpleString(text) => Ok(text.into_bytes()),
            _ => Err(bad_reply("an item is no string")),
        }
    }

    pub(super) fn number(&mut self) -> Result<u64, StoreError> {
        let number = match self.next()? {
            Value::Int(number) => u64::try_from(number).ok(),
            Value::BulkString(bytes) => decimal(&bytes),
            _ => None,
        };
        number.ok_or_else(|| bad_reply("an item is no number"))
    }

    /// The server's seconds and microseconds.
    pub(super) fn time_ms(&mut self) -> Result<u64, StoreError> {
        let (seconds, micros) = (self.number()?, self.number()?);
        Ok(seconds.saturating_mul(1000).saturating_add(micros / 1000))
    }

    /// A record's bytes and what it has left to live, or two nils.
    pub(super) fn record(&mut self) -> Result<Option<Record>, StoreError> {
        let raw = match self.next()? {
            Value::Nil => None,
            Value::BulkString(bytes) => Some(bytes),
            _ => return Err(bad_reply("a record is no string")),
        };
        let left_ms = self.next()?;
        let Some(mut raw) = raw else { return Ok(None) };
        let version = raw
            .iter()
            .position(|byte| *byte == b':')
            .and_then(|colon| {
                let version = decimal(&raw[..colon]).and_then(StoreVersion::new)?;
                raw.drain(..=colon);
                Some(version)
            })
            .ok_or_else(|| bad_reply("a record has no version before its value"))?;
        let expires_in = match left_ms {
            Value::Int(-1) => None,
            // Ended between the two looks of one script; it has no time left.
            Value::Int(-2) => return Ok(None),
            Value::Int(ms) if ms >= 0 => Some(Duration::from_millis(ms.unsigned_abs())),
            _ => return Err(bad_reply("a record's time to live is no number")),
        };
        Ok(Some(Record { value: raw, version, expires_in }))
    }

    /// What became of a batch.
    pub(super) fn outcome(&mut self, batch: &Batch) -> Result<BatchOutcome, StoreError> {
        let mut of = Self::new(self.next()?)?;
        let outcome = match &of.bytes()?[..] {
            b"C" => {
                let version = |of: &mut Self| {
                    StoreVersion::new(of.number()?)
                        .ok_or_else(|| bad_reply("a version is out of range"))
                };
                let versions = batch.writes.iter().map(|_| version(&mut of));
                BatchOutcome::Committed(versions.collect::<Result<_, _>>()?)
            }
            b"X" => {
                let condition = of.number()? as usize;
                if condition >= batch.conditions.len() {
                    return Err(bad_reply("it names a condition that was not there"));
                }
                BatchOutcome::Conflict { condition }
            }
            _ => return Err(bad_reply("an outcome is neither C nor X")),
        };
        of.end()?;
        Ok(outcome)
    }
}

fn decimal(bytes: &[u8]) -> Option<u64> {
    std::str::from_utf8(bytes).ok()?.parse().ok()
}
