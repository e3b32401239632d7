#![forbid(unsafe_code)]
//! Authority rows: who owns an object, in which incarnation and tenure.

use serde::{Deserialize, Serialize};

use super::{
    OWNER_CONDITION, OwnerGuard, OwnerRecord, OwnerState, ROW_CONDITION, bad_record, check_type,
    field, from_json, lease_key, owner_key, parse_hex128, to_json,
};
use crate::error::Error;
use crate::ids::{
    AuthorityOwnerGeneration, MeshName, NodeGeneration, NodeRid, ObjectGeneration,
    OwnerLeaseGeneration, RouteFence, SpotId, StoreVersion,
};
use crate::location::{Batch, Condition, Key, Write};

/// How far an object's creation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AuthorityState {
    /// Reserved by a creator whose factory has not succeeded yet (R2.2-3).
    Creating {
        /// Names the attempt, so that a creator that lost an answer knows its own row.
        attempt: u128,
    },
    /// The owner runs it.
    Ready,
}

/// The User Spot an Actor is a member of.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Membership {
    /// The Spot.
    pub id: SpotId,
    /// Its incarnation.
    pub object_generation: ObjectGeneration,
}

/// The value of `actor/<id>` and `spot/<id>`.
///
/// JSON fields, in this order: `state` (`"creating"` or `"ready"`), `type`, `object_generation`,
/// `authority_owner_generation`, `mesh`, `rid`, `node_generation`, `owner_lease_generation`,
/// `attempt` (32 hex digits, only while creating), `spot` (optional: `id`, `object_generation`).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Authority {
    /// Creating or ready.
    pub state: AuthorityState,
    /// The object's type name.
    pub type_name: String,
    /// The incarnation.
    pub object_generation: ObjectGeneration,
    /// The tenure.
    pub authority_owner_generation: AuthorityOwnerGeneration,
    /// The owner's mesh.
    pub mesh: MeshName,
    /// The owner.
    pub rid: NodeRid,
    /// The owner node's lifecycle.
    pub node_generation: NodeGeneration,
    /// The owner's process lifecycle.
    pub owner_lease_generation: OwnerLeaseGeneration,
    /// The Spot the Actor belongs to, if any.
    pub spot: Option<Membership>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum StateWord {
    Creating,
    Ready,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SpotJson {
    id: String,
    object_generation: ObjectGeneration,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct AuthorityJson {
    state: StateWord,
    r#type: String,
    object_generation: ObjectGeneration,
    authority_owner_generation: AuthorityOwnerGeneration,
    mesh: String,
    rid: String,
    node_generation: NodeGeneration,
    owner_lease_generation: OwnerLeaseGeneration,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    attempt: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    spot: Option<SpotJson>,
}

impl Authority {
    /// The JSON bytes. Equal rows have equal bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let (state, attempt) = match self.state {
            AuthorityState::Creating { attempt } => {
                (StateWord::Creating, Some(format!("{attempt:032x}")))
            }
            AuthorityState::Ready => (StateWord::Ready, None),
        };
        to_json(&AuthorityJson {
            state,
            r#type: self.type_name.clone(),
            object_generation: self.object_generation,
            authority_owner_generation: self.authority_owner_generation,
            mesh: self.mesh.to_string(),
            rid: self.rid.to_string(),
            node_generation: self.node_generation,
            owner_lease_generation: self.owner_lease_generation,
            attempt,
            spot: self.spot.as_ref().map(|spot| SpotJson {
                id: spot.id.to_string(),
                object_generation: spot.object_generation,
            }),
        })
    }

    /// Reads a row back. `key` is only named in the error.
    ///
    /// # Errors
    /// `ProtocolError` that names the key and what is wrong with the value.
    pub fn decode(key: &[u8], value: &[u8]) -> Result<Self, Error> {
        let row: AuthorityJson = from_json(key, value)?;
        let state = match (row.state, row.attempt) {
            (StateWord::Creating, Some(text)) => {
                AuthorityState::Creating { attempt: parse_hex128(key, "attempt", &text)? }
            }
            (StateWord::Ready, None) => AuthorityState::Ready,
            (StateWord::Creating, None) => {
                return Err(bad_record(key, "state \"creating\" needs an attempt"));
            }
            (StateWord::Ready, Some(_)) => {
                return Err(bad_record(key, "state \"ready\" has no attempt"));
            }
        };
        check_type(key, &row.r#type)?;
        let spot = match row.spot {
            None => None,
            Some(spot) => Some(Membership {
                id: field(key, "spot", SpotId::new(&spot.id))?,
                object_generation: spot.object_generation,
            }),
        };
        Ok(Self {
            state,
            type_name: row.r#type,
            object_generation: row.object_generation,
            authority_owner_generation: row.authority_owner_generation,
            mesh: field(key, "mesh", MeshName::new(&row.mesh))?,
            rid: field(key, "rid", NodeRid::parse(&row.rid))?,
            node_generation: row.node_generation,
            owner_lease_generation: row.owner_lease_generation,
            spot,
        })
    }

    /// The fences a message to this row's owner carries (R2.1-3).
    #[must_use]
    pub fn fence(&self) -> RouteFence {
        RouteFence {
            object_generation: self.object_generation,
            rid: self.rid.clone(),
            node_generation: self.node_generation,
            authority_owner_generation: self.authority_owner_generation,
            owner_lease_generation: self.owner_lease_generation,
        }
    }

    /// Whether the row is owned by the lifecycle that wrote `owner`.
    #[must_use]
    pub fn is_owned_by(&self, owner: &OwnerRecord) -> bool {
        self.node_generation == owner.node_generation
            && self.owner_lease_generation == owner.owner_lease_generation
    }
}

/// A batch on an authority row: the row's condition first, the owner's second.
fn on_row(row: Condition, owner: Condition, writes: Vec<Write>) -> Batch {
    const { assert!(ROW_CONDITION == 0 && OWNER_CONDITION == 1) };
    Batch { conditions: vec![row, owner], writes }
}

fn put(key: Key, row: &Authority) -> Write {
    Write::Put { key, value: row.encode(), ttl: None }
}

/// Reserves an absent id for a creation attempt of the node that `owner` stands for.
///
/// A conflict on [`ROW_CONDITION`] means somebody else has the id; on [`OWNER_CONDITION`] that
/// the node is fenced.
///
/// # Panics
/// When `row` is not Creating.
#[must_use]
pub fn reserve_creating(key: Key, row: &Authority, owner: &OwnerGuard) -> Batch {
    assert!(matches!(row.state, AuthorityState::Creating { .. }), "a reservation is Creating");
    let writes = vec![put(key.clone(), row)];
    on_row(Condition::Absent(key), owner.condition(), writes)
}

/// Turns the reservation of version `creating` into a Ready row.
///
/// # Panics
/// When `row` is not Ready.
#[must_use]
pub fn commit_ready(
    key: Key,
    creating: StoreVersion,
    row: &Authority,
    owner: &OwnerGuard,
) -> Batch {
    assert!(row.state == AuthorityState::Ready, "a commit is Ready");
    let writes = vec![put(key.clone(), row)];
    on_row(Condition::VersionIs(key, creating), owner.condition(), writes)
}

/// Deletes the owner's own row: a destroyed object, or a reservation whose factory failed.
#[must_use]
pub fn delete_row(key: Key, version: StoreVersion, owner: &OwnerGuard) -> Batch {
    let writes = vec![Write::Delete { key: key.clone() }];
    on_row(Condition::VersionIs(key, version), owner.condition(), writes)
}

/// Why an owner counts as dead, as the Store can check it at the instant of the commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeadOwner {
    /// Its lease has run out and was not renewed.
    LeaseAbsent,
    /// Its owner record is gone: the node ended in order.
    OwnerAbsent,
    /// Its owner record, at this version, is released or belongs to a later lifecycle.
    OwnerChanged(StoreVersion),
}

impl DeadOwner {
    /// The condition under which the owner `rid` is dead in this way.
    #[must_use]
    pub fn condition(self, rid: &NodeRid) -> Condition {
        match self {
            Self::LeaseAbsent => Condition::Absent(lease_key(rid)),
            Self::OwnerAbsent => Condition::Absent(owner_key(rid)),
            Self::OwnerChanged(version) => Condition::VersionIs(owner_key(rid), version),
        }
    }

    /// Decides from what was read in one call whether the owner of `row` is dead: `owner` and
    /// `lease` are the records under `owner/<rid>` and `lease/<rid>`.
    #[must_use]
    pub fn of(
        row: &Authority,
        owner: Option<(&OwnerRecord, StoreVersion)>,
        lease_present: bool,
    ) -> Option<Self> {
        match owner {
            None => Some(Self::OwnerAbsent),
            Some((owner, version))
                if owner.state == OwnerState::Released || !row.is_owned_by(owner) =>
            {
                Some(Self::OwnerChanged(version))
            }
            Some(_) if !lease_present => Some(Self::LeaseAbsent),
            Some(_) => None,
        }
    }
}

/// Clears the reservation of a creator that died half way (R2.2b-2: until this is done the id is
/// Unavailable, not Missing).
///
/// A lapsed lease suffices here: should that creator come back, its [`commit_ready`] finds
/// another version and its object is dropped. It does not suffice for a Ready row (R5-13).
///
/// # Panics
/// When `row` is not Creating.
#[must_use]
pub fn clear_dead_creating(
    key: Key,
    row: &Authority,
    version: StoreVersion,
    dead: DeadOwner,
) -> Batch {
    assert!(matches!(row.state, AuthorityState::Creating { .. }), "only a reservation is cleared");
    let writes = vec![Write::Delete { key: key.clone() }];
    on_row(Condition::VersionIs(key, version), dead.condition(&row.rid), writes)
}

/// Marks the owner record of a dead node released: one commit conditioned on the lease being
/// absent and the record unchanged (R5-13). The releaser has watched both for a whole lease plus
/// margin before. A node that comes back after it is fenced (R5-16).
#[must_use]
pub fn release_dead_owner(rid: &NodeRid, owner: &OwnerRecord, version: StoreVersion) -> Batch {
    let released = OwnerRecord { state: OwnerState::Released, ..owner.clone() };
    Batch {
        conditions: vec![
            Condition::VersionIs(owner_key(rid), version),
            Condition::Absent(lease_key(rid)),
        ],
        writes: vec![Write::Put { key: owner_key(rid), value: released.encode(), ttl: None }],
    }
}

/// Deletes a row whose owner was released, replaced or ended (R5-13); after it the id is Missing.
/// A lapsed lease alone is no reason, so [`DeadOwner::LeaseAbsent`] is not one: `None`.
#[must_use]
pub fn delete_released_row(
    key: Key,
    row: &Authority,
    version: StoreVersion,
    dead: DeadOwner,
) -> Option<Batch> {
    if dead == DeadOwner::LeaseAbsent {
        return None;
    }
    let writes = vec![Write::Delete { key: key.clone() }];
    Some(on_row(Condition::VersionIs(key, version), dead.condition(&row.rid), writes))
}
