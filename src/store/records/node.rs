#![forbid(unsafe_code)]
//! Records of a node: its owner record, its lease, its descriptor.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{bad_record, check_type, field, from_json, node_key, parse_hex128, to_json};
use crate::env::Endpoint;
use crate::error::Error;
use crate::ids::{MeshName, NodeGeneration, NodeRid, OwnerLeaseGeneration};
use crate::limits::{LEASE_ADMISSION_MARGIN, MAX_CORES};
use crate::location::MAX_VALUE_BYTES;
use crate::time::Nanos;

/// Whether an owner record's lifecycle may own objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OwnerState {
    /// It may, while its lease is alive.
    Active,
    /// It never may again (R5-13).
    Released,
}

/// The value of `owner/<rid>`: the lifecycle of the node that may own objects. Without time to
/// live, so that a node whose lease lapsed can tell whether it was released (R5-16).
///
/// JSON fields, in this order: `node_generation`, `owner_lease_generation`, `lifecycle` (32 hex
/// digits, random), `state` (`"active"` or `"released"`).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct OwnerRecord {
    /// The node's lifecycle.
    pub node_generation: NodeGeneration,
    /// The process lifecycle.
    pub owner_lease_generation: OwnerLeaseGeneration,
    /// Drawn by the lifecycle itself: a node whose acquisition got no answer knows its own record
    /// by it.
    pub lifecycle: u128,
    /// Active or released.
    pub state: OwnerState,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct OwnerJson {
    node_generation: NodeGeneration,
    owner_lease_generation: OwnerLeaseGeneration,
    lifecycle: String,
    state: OwnerState,
}

impl OwnerRecord {
    /// The JSON bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        to_json(&OwnerJson {
            node_generation: self.node_generation,
            owner_lease_generation: self.owner_lease_generation,
            lifecycle: format!("{:032x}", self.lifecycle),
            state: self.state,
        })
    }

    /// Reads a record back.
    ///
    /// # Errors
    /// `ProtocolError` that names the key and what is wrong with the value.
    pub fn decode(key: &[u8], value: &[u8]) -> Result<Self, Error> {
        let json: OwnerJson = from_json(key, value)?;
        Ok(Self {
            node_generation: json.node_generation,
            owner_lease_generation: json.owner_lease_generation,
            lifecycle: parse_hex128(key, "lifecycle", &json.lifecycle)?,
            state: json.state,
        })
    }
}

/// The value of `lease/<rid>`: while it stands, the lifecycle is alive. Its time to live is the
/// lease.
///
/// JSON fields, in this order: `node_generation`, `owner_lease_generation`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeaseRecord {
    /// The node's lifecycle.
    pub node_generation: NodeGeneration,
    /// The process lifecycle; a renewal keeps it (R0-3).
    pub owner_lease_generation: OwnerLeaseGeneration,
}

impl LeaseRecord {
    /// The JSON bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        to_json(self)
    }

    /// Reads a record back.
    ///
    /// # Errors
    /// `ProtocolError` that names the key and what is wrong with the value.
    pub fn decode(key: &[u8], value: &[u8]) -> Result<Self, Error> {
        from_json(key, value)
    }

    /// Until when a reader may send to the lease's owner, on the reader's clock (R2.2-2): the time
    /// to live counted from **before** the read was sent, less the admission margin.
    #[must_use]
    pub fn admission_deadline(read_sent: Nanos, expires_in: Duration) -> Nanos {
        read_sent + expires_in.saturating_sub(LEASE_ADMISSION_MARGIN)
    }
}

/// The value of `node/<rid>`: how a node is reached and what it hosts (R2.3-2).
///
/// JSON fields, in this order: `rid`, `mesh`, `endpoint`, `node_generation`, `key_id` (32 hex
/// digits), `cores`, `actor_types`, `spot_types`, `message_follow_duration_ms`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NodeDescriptor {
    /// The node.
    pub rid: NodeRid,
    /// Its mesh.
    pub mesh: MeshName,
    /// Where it listens.
    pub endpoint: Endpoint,
    /// Its lifecycle.
    pub node_generation: NodeGeneration,
    /// Its security identity: random per lifecycle, bound into the handshake (R2.3-2, R2.3-5).
    pub key_id: u128,
    /// Its core count, which decides the lanes of a link.
    pub cores: u16,
    /// The Actor types it hosts.
    pub actor_types: Vec<String>,
    /// The Spot types it hosts.
    pub spot_types: Vec<String>,
    /// Its `message_follow_duration` (R0-7), in milliseconds.
    pub message_follow_duration_ms: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct DescriptorJson {
    rid: String,
    mesh: String,
    endpoint: String,
    node_generation: NodeGeneration,
    key_id: String,
    cores: u16,
    actor_types: Vec<String>,
    spot_types: Vec<String>,
    message_follow_duration_ms: u64,
}

impl NodeDescriptor {
    /// The JSON bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        to_json(&DescriptorJson {
            rid: self.rid.to_string(),
            mesh: self.mesh.to_string(),
            endpoint: self.endpoint.to_string(),
            node_generation: self.node_generation,
            key_id: format!("{:032x}", self.key_id),
            cores: self.cores,
            actor_types: self.actor_types.clone(),
            spot_types: self.spot_types.clone(),
            message_follow_duration_ms: self.message_follow_duration_ms,
        })
    }

    /// Reads a descriptor back.
    ///
    /// # Errors
    /// `ProtocolError` that names the key and what is wrong with the value; also when the
    /// descriptor names another rid than its key.
    pub fn decode(key: &[u8], value: &[u8]) -> Result<Self, Error> {
        let json: DescriptorJson = from_json(key, value)?;
        let rid = field(key, "rid", NodeRid::parse(&json.rid))?;
        if node_key(&rid) != key {
            return Err(bad_record(key, format!("it describes another node, {rid:?}")));
        }
        if json.cores == 0 || json.cores > MAX_CORES {
            return Err(bad_record(
                key,
                format!("cores is {}; it must be 1 to {MAX_CORES}", json.cores),
            ));
        }
        for name in json.actor_types.iter().chain(&json.spot_types) {
            check_type(key, name)?;
        }
        Ok(Self {
            rid,
            mesh: field(key, "mesh", MeshName::new(&json.mesh))?,
            endpoint: field(key, "endpoint", json.endpoint.parse())?,
            node_generation: json.node_generation,
            key_id: parse_hex128(key, "key_id", &json.key_id)?,
            cores: json.cores,
            actor_types: json.actor_types,
            spot_types: json.spot_types,
            message_follow_duration_ms: json.message_follow_duration_ms,
        })
    }

    /// Checks that the descriptor can be written and read back.
    ///
    /// # Errors
    /// `NotConfigured` when it is too large for a Store record (too many or too long type names),
    /// or has a field no reader accepts.
    pub fn check(&self) -> Result<(), Error> {
        let value = self.encode();
        if value.len() > MAX_VALUE_BYTES {
            return Err(Error::not_configured(format!(
                "the descriptor of node {:?} has {} bytes with {} types; a Store record has at \
                 most {MAX_VALUE_BYTES}: register fewer types or shorter names",
                self.rid,
                value.len(),
                self.actor_types.len() + self.spot_types.len()
            )));
        }
        match Self::decode(&node_key(&self.rid), &value) {
            Ok(read) if read == *self => Ok(()),
            Ok(_) => Err(Error::not_configured(format!(
                "the endpoint {} of node {:?} cannot be written as text",
                self.endpoint, self.rid
            ))),
            Err(e) => Err(Error::not_configured(e.text().to_owned())),
        }
    }
}
