#![forbid(unsafe_code)]
//! What the records of the Location Store mean: keys, JSON values, and the batches that change
//! them.
//!
//! | key | value | lives |
//! |---|---|---|
//! | `actor/<id>`, `spot/<id>` | [`Authority`]: who owns the object | until destroyed or released |
//! | `owner/<rid>` | [`OwnerRecord`]: the node's lifecycle that may own objects | until the node ends in order |
//! | `lease/<rid>` | [`LeaseRecord`]: that lifecycle is alive | time to live, renewed |
//! | `node/<rid>` | [`NodeDescriptor`]: how the node is reached | as the lease, renewed with it |
//! | `meta/generation` | [`GenerationCounter`]: the next unused generation number | for ever |
//! | `meta/hash-seed` | [`HashSeed`]: the seed of [`crate::ids::ObjectHash`] | for ever, written once |
//!
//! Ids and rids stand in keys as their bytes, so every key is shorter than
//! [`crate::location::MAX_KEY_BYTES`]; inside values a rid stands in the text form of
//! [`crate::ids::NodeRid`]'s `Display`. Values are compact JSON objects with fixed field order:
//! equal records have equal bytes, so `ValueIs` conditions work. A field this version does not
//! know is refused: rewriting such a record would lose it.
//!
//! Two nodes cannot both own an object because every write of an authority row is conditioned on
//! the row (its version, or its absence) **and** on the writer's own owner record ([`OwnerGuard`]).
//! A node that was released, or whose rid was taken by a later lifecycle, fails the second
//! condition whatever it believes about the first (R5-13, R5-16).

mod authority;
mod meta;
mod node;

pub use authority::{
    Authority, AuthorityState, DeadOwner, Membership, clear_dead_creating, commit_ready,
    delete_released_row, delete_row, release_dead_owner, reserve_creating,
};
pub use meta::{Block, GenerationCounter, HashSeed, take_block};
pub use node::{LeaseRecord, NodeDescriptor, OwnerRecord, OwnerState};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Error, ErrorKind};
use crate::ids::{NodeRid, ObjectKind, StoreVersion};
use crate::limits::MAX_ID_BYTES;
use crate::location::{Condition, Key, MAX_KEY_BYTES};

/// What the keys of Actor authority rows start with.
pub const ACTOR_PREFIX: &str = "actor/";
/// What the keys of Spot authority rows start with.
pub const SPOT_PREFIX: &str = "spot/";
/// What the keys of node descriptors start with.
pub const NODE_PREFIX: &str = "node/";
/// What the keys of leases start with.
pub const LEASE_PREFIX: &str = "lease/";
/// What the keys of owner records start with.
pub const OWNER_PREFIX: &str = "owner/";
/// The key of the generation counter.
pub const GENERATION_KEY: &str = "meta/generation";
/// The key of the hash seed.
pub const HASH_SEED_KEY: &str = "meta/hash-seed";

const _: () = assert!(MAX_ID_BYTES + OWNER_PREFIX.len() <= MAX_KEY_BYTES);

/// In every batch that changes an authority row: the index of the condition on the row.
pub const ROW_CONDITION: usize = 0;
/// In every batch that changes an authority row: the index of the condition on the owner record
/// or lease (of the writer, or of the dead owner).
pub const OWNER_CONDITION: usize = 1;

/// The key of an object's authority row.
#[must_use]
pub fn authority_key(kind: ObjectKind, id: &str) -> Key {
    let prefix = match kind {
        ObjectKind::Actor => ACTOR_PREFIX,
        ObjectKind::Spot => SPOT_PREFIX,
    };
    [prefix.as_bytes(), id.as_bytes()].concat()
}

/// The key of a node's descriptor.
#[must_use]
pub fn node_key(rid: &NodeRid) -> Key {
    [NODE_PREFIX.as_bytes(), rid.as_bytes()].concat()
}

/// The key of a node's lease.
#[must_use]
pub fn lease_key(rid: &NodeRid) -> Key {
    [LEASE_PREFIX.as_bytes(), rid.as_bytes()].concat()
}

/// The key of a node's owner record.
#[must_use]
pub fn owner_key(rid: &NodeRid) -> Key {
    [OWNER_PREFIX.as_bytes(), rid.as_bytes()].concat()
}

/// The key of the generation counter.
#[must_use]
pub fn generation_key() -> Key {
    GENERATION_KEY.as_bytes().to_vec()
}

/// The key of the hash seed.
#[must_use]
pub fn hash_seed_key() -> Key {
    HASH_SEED_KEY.as_bytes().to_vec()
}

/// A node's right to write authority rows: its owner record, at the version at which this
/// lifecycle wrote it (R5-16).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OwnerGuard {
    /// The node.
    pub rid: NodeRid,
    /// The version of `owner/<rid>`.
    pub version: StoreVersion,
}

impl OwnerGuard {
    /// The condition that the owner record is unchanged.
    #[must_use]
    pub fn condition(&self) -> Condition {
        Condition::VersionIs(owner_key(&self.rid), self.version)
    }
}

/// An error about a record's content: names the key and the reason.
fn bad_record(key: &[u8], reason: impl std::fmt::Display) -> Error {
    Error::new(
        ErrorKind::ProtocolError,
        format!("the Location Store record \"{}\" cannot be used: {reason}", key.escape_ascii()),
    )
}

fn to_json(value: &impl Serialize) -> Vec<u8> {
    // Only maps with non-text keys and failing Serialize impls make this fail; records have neither.
    serde_json::to_vec(value).expect("a record of plain fields has a JSON form")
}

fn from_json<T: DeserializeOwned>(key: &[u8], value: &[u8]) -> Result<T, Error> {
    serde_json::from_slice(value).map_err(|e| bad_record(key, e))
}

/// A 128-bit number as 32 hex digits.
fn parse_hex128(key: &[u8], field: &str, text: &str) -> Result<u128, Error> {
    let digits = text.len() == 32 && text.bytes().all(|b| b.is_ascii_hexdigit());
    digits
        .then(|| u128::from_str_radix(text, 16).ok())
        .flatten()
        .ok_or_else(|| bad_record(key, format!("{field} {text:?} is not 32 hex digits")))
}

/// Parses a field by the word's own rule and adds the key and the field to its error.
fn field<T>(key: &[u8], name: &str, parsed: Result<T, Error>) -> Result<T, Error> {
    parsed.map_err(|e| bad_record(key, format!("{name}: {}", e.text())))
}

/// Checks the name of an Actor or Spot type: 1..=255 bytes, no NUL.
fn check_type(key: &[u8], name: &str) -> Result<(), Error> {
    if name.is_empty() || name.len() > MAX_ID_BYTES || name.contains('\0') {
        return Err(bad_record(
            key,
            format!("type {name:?} must have 1 to {MAX_ID_BYTES} bytes and no NUL"),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
