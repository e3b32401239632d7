#![forbid(unsafe_code)]
//! From records of the Store to what the machines look at.

use std::time::Duration;

use super::{OwnerSight, Row, SeenLease};
use crate::error::{Error, Result};
use crate::ids::NodeRid;
use crate::location::{Key, Record};
use crate::route::NodeEntry;
use crate::store::records::{
    Authority, DeadOwner, LeaseRecord, NodeDescriptor, OwnerRecord, lease_key, node_key, owner_key,
};
use crate::time::Nanos;

/// The row in an authority record that was read under `key`.
///
/// # Errors
/// `ProtocolError` when the record cannot be read.
pub fn decode_row(key: &[u8], record: Option<&Record>) -> Result<Option<Row>> {
    let Some(record) = record else { return Ok(None) };
    let authority = Authority::decode(key, &record.value)?;
    Ok(Some(Row { authority, version: record.version }))
}

/// The keys an owner is read by, in the order [`decode_owner`] takes them: owner record, lease,
/// descriptor. They must be read in one call.
#[must_use]
pub fn owner_keys(rid: &NodeRid) -> Vec<Key> {
    vec![owner_key(rid), lease_key(rid), node_key(rid)]
}

/// What the records read by [`owner_keys`] say about the owner of `row`, and, when all of them
/// name one lifecycle whose lease stands, that node's entry for the node table. `sent_at` is when
/// the read was issued: the lease is counted from there.
///
/// # Errors
/// `ProtocolError` when a record cannot be read, `InternalFailure` when there are not three.
pub fn decode_owner(
    row: &Row,
    records: &[Option<Record>],
    sent_at: Nanos,
) -> Result<(OwnerSight, Option<NodeEntry>)> {
    let [owner, lease, descriptor] = records else {
        return Err(Error::internal(format!(
            "the Location Store answered a read of 3 keys with {} records",
            records.len()
        )));
    };
    let rid = &row.authority.rid;
    let owner = match owner {
        Some(r) => Some((OwnerRecord::decode(&owner_key(rid), &r.value)?, r.version)),
        None => None,
    };
    let lease = match lease {
        Some(r) => {
            let left = r.expires_in.unwrap_or(Duration::ZERO);
            let deadline = LeaseRecord::admission_deadline(sent_at, left);
            Some((LeaseRecord::decode(&lease_key(rid), &r.value)?, deadline))
        }
        None => None,
    };
    let descriptor = match descriptor {
        Some(r) => Some(NodeDescriptor::decode(&node_key(rid), &r.value)?),
        None => None,
    };
    let owner = owner.as_ref().map(|(record, version)| (record, *version));
    let sight = OwnerSight {
        dead: DeadOwner::of(&row.authority, owner, lease.is_some()),
        lease: lease.as_ref().map(|(record, deadline)| SeenLease {
            lease_generation: record.owner_lease_generation,
            admission_deadline: *deadline,
        }),
        descriptor: descriptor.as_ref().map(|d| d.node_generation),
    };
    Ok((sight, node_entry(lease, descriptor)))
}

/// A node's entry for the node table, when its lease and its descriptor name one lifecycle. The
/// instant is the lease's local admission deadline.
#[must_use]
pub fn node_entry(
    lease: Option<(LeaseRecord, Nanos)>,
    descriptor: Option<NodeDescriptor>,
) -> Option<NodeEntry> {
    let ((lease, admission_deadline), descriptor) = (lease?, descriptor?);
    (lease.node_generation == descriptor.node_generation).then_some(NodeEntry {
        rid: descriptor.rid,
        node_generation: descriptor.node_generation,
        lease_generation: lease.owner_lease_generation,
        admission_deadline,
        mesh: descriptor.mesh,
        endpoint: descriptor.endpoint,
        key_id: descriptor.key_id,
        message_follow_duration: Some(Duration::from_millis(descriptor.message_follow_duration_ms)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{
        AuthorityOwnerGeneration, MeshName, NodeGeneration, ObjectGeneration, ObjectKind,
        OwnerLeaseGeneration, StoreVersion,
    };
    use crate::store::records::{AuthorityState, OwnerState, authority_key};

    const SEC: u64 = 1_000_000_000;

    fn record(value: Vec<u8>, ttl: Option<u64>) -> Option<Record> {
        let expires_in = ttl.map(Duration::from_secs);
        Some(Record { value, version: StoreVersion::new(8).unwrap(), expires_in })
    }

    fn row() -> Row {
        Row {
            authority: Authority {
                state: AuthorityState::Ready,
                type_name: "t".into(),
                object_generation: ObjectGeneration::FIRST,
                authority_owner_generation: AuthorityOwnerGeneration::FIRST,
                mesh: MeshName::new("m").unwrap(),
                rid: NodeRid::new("n").unwrap(),
                node_generation: NodeGeneration::new(5).unwrap(),
                owner_lease_generation: OwnerLeaseGeneration::new(6).unwrap(),
                spot: None,
            },
            version: StoreVersion::new(8).unwrap(),
        }
    }

    /// Owner record, lease and descriptor of node `n` in this lifecycle.
    fn records(node: u64, lease: u64) -> Vec<Option<Record>> {
        let node_generation = NodeGeneration::new(node).unwrap();
        let owner_lease_generation = OwnerLeaseGeneration::new(lease).unwrap();
        let owner = OwnerRecord {
            node_generation,
            owner_lease_generation,
            lifecycle: 1,
            state: OwnerState::Active,
        };
        let lease = LeaseRecord { node_generation, owner_lease_generation };
        let descriptor = NodeDescriptor {
            rid: NodeRid::new("n").unwrap(),
            mesh: MeshName::new("m").unwrap(),
            endpoint: "tcp://127.0.0.1:9".parse().unwrap(),
            node_generation,
            key_id: 77,
            cores: 2,
            actor_types: vec![],
            spot_types: vec![],
            message_follow_duration_ms: 30_000,
        };
        vec![
            record(owner.encode(), None),
            record(lease.encode(), Some(10)),
            record(descriptor.encode(), Some(10)),
        ]
    }

    /// Proves R2.2-1, R2.2-2, R0-7.
    #[test]
    fn a_live_owner_is_seen_with_its_deadline_less_the_margin() {
        let (sight, node) = decode_owner(&row(), &records(5, 6), Nanos(SEC)).unwrap();
        let node = node.unwrap();
        assert_eq!(sight.dead, None);
        assert_eq!(node.admission_deadline, Nanos(10 * SEC + SEC / 2));
        assert_eq!(sight.lease.unwrap().admission_deadline, node.admission_deadline);
        assert_eq!((node.lease_generation.get(), node.key_id), (6, 77));
        assert_eq!(node.message_follow_duration, Some(Duration::from_secs(30)));
    }

    /// Proves R5-13.
    #[test]
    fn a_dead_owner_is_seen_dead_and_gives_no_node_unless_a_later_one_stands() {
        let mut lapsed = records(5, 6);
        (lapsed[1], lapsed[2]) = (None, None);
        let (sight, node) = decode_owner(&row(), &lapsed, Nanos(0)).unwrap();
        assert_eq!((sight.dead, node), (Some(DeadOwner::LeaseAbsent), None));
        let (sight, node) = decode_owner(&row(), &[None, None, None], Nanos(0)).unwrap();
        assert_eq!((sight.dead, node), (Some(DeadOwner::OwnerAbsent), None));
        let (sight, node) = decode_owner(&row(), &records(7, 8), Nanos(0)).unwrap();
        assert!(matches!(sight.dead, Some(DeadOwner::OwnerChanged(_))));
        assert_eq!(node.unwrap().node_generation.get(), 7);
        // A descriptor of another lifecycle than the lease names no node.
        let mut mixed = records(5, 6);
        mixed[2] = records(7, 8)[2].clone();
        assert_eq!(decode_owner(&row(), &mixed, Nanos(0)).unwrap().1, None);
    }

    #[test]
    fn bad_records_are_errors_and_not_answers() {
        let key = authority_key(ObjectKind::Actor, "x");
        assert_eq!(decode_row(&key, None), Ok(None));
        let good = record(row().authority.encode(), None);
        assert_eq!(decode_row(&key, good.as_ref()), Ok(Some(row())));
        assert!(decode_row(&key, record(b"{}".to_vec(), None).as_ref()).is_err());
        for i in 0..3 {
            let mut bad = records(5, 6);
            bad[i] = record(b"?".to_vec(), None);
            assert!(decode_owner(&row(), &bad, Nanos(0)).is_err(), "record {i}");
        }
        assert!(decode_owner(&row(), &[], Nanos(0)).is_err());
        assert_eq!(owner_keys(&row().authority.rid).len(), 3);
    }
}
