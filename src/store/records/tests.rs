#![forbid(unsafe_code)]
//! The records' bytes, what decoding refuses, and what each batch is conditioned on.

use super::*;
use crate::ids::{
    AuthorityOwnerGeneration, MeshName, NodeGeneration, ObjectGeneration, OwnerLeaseGeneration,
    SpotId,
};
use crate::limits::{GENERATION_BLOCK, MAX_FENCE};
use crate::location::{Batch, BatchOutcome, LocationStore, Record, Write, check_key};
use crate::store::memory::MemoryStore;
use crate::time::Nanos;
use std::sync::Arc;
use std::time::Duration;

const BUDGET: Duration = Duration::from_secs(1);

fn rid() -> NodeRid {
    NodeRid::new("node-a").unwrap()
}

fn ready() -> Authority {
    Authority {
        state: AuthorityState::Ready,
        type_name: "counter".into(),
        object_generation: ObjectGeneration::new(17).unwrap(),
        authority_owner_generation: AuthorityOwnerGeneration::FIRST,
        mesh: MeshName::new("game").unwrap(),
        rid: rid(),
        node_generation: NodeGeneration::new(5).unwrap(),
        owner_lease_generation: OwnerLeaseGeneration::new(6).unwrap(),
        spot: None,
    }
}

fn creating() -> Authority {
    Authority { state: AuthorityState::Creating { attempt: 0xabc }, ..ready() }
}

fn owner() -> OwnerRecord {
    OwnerRecord {
        node_generation: NodeGeneration::new(5).unwrap(),
        owner_lease_generation: OwnerLeaseGeneration::new(6).unwrap(),
        lifecycle: 0xfeed,
        state: OwnerState::Active,
    }
}

fn lease() -> LeaseRecord {
    LeaseRecord {
        node_generation: NodeGeneration::new(5).unwrap(),
        owner_lease_generation: OwnerLeaseGeneration::new(6).unwrap(),
    }
}

fn descriptor() -> NodeDescriptor {
    NodeDescriptor {
        rid: rid(),
        mesh: MeshName::new("game").unwrap(),
        endpoint: "tcp://127.0.0.1:7000".parse().unwrap(),
        node_generation: NodeGeneration::new(5).unwrap(),
        key_id: 0xbeef,
        cores: 4,
        actor_types: vec!["counter".into()],
        spot_types: vec![],
        message_follow_duration_ms: 30_000,
    }
}

/// Proves R0-1, R0-2.
#[test]
fn keys_of_the_longest_ids_fit_every_provider_and_stay_distinct() {
    let id = "x".repeat(MAX_ID_BYTES);
    let rid = NodeRid::new([0xffu8; MAX_ID_BYTES]).unwrap();
    let keys = [
        authority_key(ObjectKind::Actor, &id),
        authority_key(ObjectKind::Spot, &id),
        node_key(&rid),
        lease_key(&rid),
        owner_key(&rid),
        generation_key(),
        hash_seed_key(),
    ];
    for key in &keys {
        check_key(key).unwrap();
    }
    let distinct: std::collections::BTreeSet<_> = keys.iter().collect();
    assert_eq!(distinct.len(), keys.len());
}

/// The bytes are a format: other versions of the library and operators read them.
#[test]
fn records_have_these_bytes() {
    let spot = Some(Membership {
        id: SpotId::new("room").unwrap(),
        object_generation: ObjectGeneration::new(9).unwrap(),
    });
    let member = Authority { spot, ..ready() };
    let texts = [
        (
            ready().encode(),
            r#"{"state":"ready","type":"counter","object_generation":17,"authority_owner_generation":1,"mesh":"game","rid":"node-a","node_generation":5,"owner_lease_generation":6}"#,
        ),
        (
            creating().encode(),
            r#"{"state":"creating","type":"counter","object_generation":17,"authority_owner_generation":1,"mesh":"game","rid":"node-a","node_generation":5,"owner_lease_generation":6,"attempt":"00000000000000000000000000000abc"}"#,
        ),
        (
            member.encode(),
            r#"{"state":"ready","type":"counter","object_generation":17,"authority_owner_generation":1,"mesh":"game","rid":"node-a","node_generation":5,"owner_lease_generation":6,"spot":{"id":"room","object_generation":9}}"#,
        ),
        (
            owner().encode(),
            r#"{"node_generation":5,"owner_lease_generation":6,"lifecycle":"0000000000000000000000000000feed","state":"active"}"#,
        ),
        (lease().encode(), r#"{"node_generation":5,"owner_lease_generation":6}"#),
        (
            descriptor().encode(),
            r#"{"rid":"node-a","mesh":"game","endpoint":"tcp://127.0.0.1:7000","node_generation":5,"key_id":"0000000000000000000000000000beef","cores":4,"actor_types":["counter"],"spot_types":[],"message_follow_duration_ms":30000}"#,
        ),
        (GenerationCounter { next: 4097 }.encode(), r#"{"next":4097}"#),
        (HashSeed(0xfeed).encode(), r#"{"seed":"000000000000feed"}"#),
    ];
    for (bytes, text) in texts {
        assert_eq!(String::from_utf8(bytes).unwrap(), text);
    }
}

#[test]
fn records_are_read_back_as_they_were_written() {
    let spot = Some(Membership {
        id: SpotId::new("r\"o\\om\n").unwrap(),
        object_generation: ObjectGeneration::new(MAX_FENCE).unwrap(),
    });
    let odd = NodeRid::new([0xff, 0, b'"']).unwrap();
    for row in [ready(), creating(), Authority { spot, rid: odd.clone(), ..ready() }] {
        assert_eq!(Authority::decode(b"k", &row.encode()).unwrap(), row);
    }
    assert_eq!(OwnerRecord::decode(b"k", &owner().encode()).unwrap(), owner());
    assert_eq!(LeaseRecord::decode(b"k", &lease().encode()).unwrap(), lease());
    for rid in [rid(), odd, NodeRid::new("0xzz").unwrap()] {
        let node = NodeDescriptor { rid: rid.clone(), ..descriptor() };
        assert_eq!(NodeDescriptor::decode(&node_key(&rid), &node.encode()).unwrap(), node);
        node.check().unwrap();
    }
    assert_eq!(HashSeed::decode(b"k", &HashSeed(u64::MAX).encode()).unwrap().0, u64::MAX);
}

/// Replaces a piece of a record's JSON, then expects decoding to be refused with the key and the
/// reason in one sentence.
fn refuse<T: std::fmt::Debug>(
    decode: fn(&[u8], &[u8]) -> Result<T, Error>,
    good: &[u8],
    piece: &str,
    by: &str,
    reason: &str,
) {
    let good = std::str::from_utf8(good).unwrap();
    assert!(good.contains(piece), "{good} has no {piece}");
    let bad = good.replacen(piece, by, 1);
    let key = b"node/node-a";
    let e = decode(key, bad.as_bytes()).expect_err(&bad);
    assert_eq!(e.kind(), ErrorKind::ProtocolError);
    assert!(e.text().contains("\"node/node-a\""), "{e} does not name the key");
    assert!(e.text().contains(reason), "{e} does not say {reason:?}");
    assert!(!e.text().contains('\n'), "{e} has several lines");
}

/// Proves R0-1, R0-2, R0-3.
#[test]
fn rows_that_break_a_rule_are_refused_by_name() {
    let row = ready().encode();
    let long = "x".repeat(256);
    let cases = [
        (r#""ready""#, r#""gone""#, "gone"),
        (r#""type":"counter""#, r#""type":"""#, "type \"\""),
        ("17", "0", "object generation 0"),
        ("17", "9223372036854775808", "object generation"),
        ("17", "-1", "-1"),
        ("17", "1.5", "1.5"),
        (r#""game""#, r#""""#, "mesh"),
        (r#""node-a""#, r#""""#, "rid"),
        (r#""node-a""#, r#""0x0""#, "rid"),
        (r#""node_generation":5,"#, "", "node_generation"),
        (r#","owner_lease_generation":6"#, r#","owner_lease_generation":6,"new":1"#, "new"),
        ("}", r#","attempt":"00000000000000000000000000000abc"}"#, "has no attempt"),
        ("}", r#","spot":{"id":"","object_generation":1}}"#, "spot"),
        ("}", "", "EOF"),
        ("}", "}x", "trailing"),
    ];
    for (piece, by, reason) in cases {
        refuse(Authority::decode, &row, piece, by, reason);
    }
    refuse(Authority::decode, &row, "counter", &long, "type");
    let row = creating().encode();
    refuse(
        Authority::decode,
        &row,
        r#","attempt":"00000000000000000000000000000abc""#,
        "",
        "attempt",
    );
    refuse(Authority::decode, &row, "00abc", "00abg", "attempt");
    refuse(Authority::decode, b"\"a\"", "\"a\"", "\u{7f}", "expected value");
}

/// Proves R2.3-2.
#[test]
fn node_records_that_break_a_rule_are_refused_by_name() {
    let node = descriptor().encode();
    let cases = [
        (r#""rid":"node-a""#, r#""rid":"node-b""#, "another node"),
        ("tcp://127.0.0.1:7000", "udp://x", "endpoint"),
        (r#""cores":4"#, r#""cores":0"#, "cores is 0"),
        (r#""cores":4"#, r#""cores":257"#, "cores is 257"),
        (r#"["counter"]"#, r#"[""]"#, "type \"\""),
        ("beef", "bee", "key_id"),
        ("30000", "-1", "-1"),
    ];
    for (piece, by, reason) in cases {
        refuse(NodeDescriptor::decode, &node, piece, by, reason);
    }
    refuse(OwnerRecord::decode, &owner().encode(), "active", "gone", "gone");
    refuse(OwnerRecord::decode, &owner().encode(), "feed", "fee", "lifecycle");
    refuse(LeaseRecord::decode, &lease().encode(), ":6", ":0", "owner lease generation 0");
    refuse(HashSeed::decode, &HashSeed(1).encode(), "0001", "001", "seed");
    refuse(
        GenerationCounter::decode,
        &GenerationCounter { next: 1 }.encode(),
        "1",
        "0",
        "next is 0",
    );
}

#[test]
fn a_descriptor_that_no_reader_would_take_is_refused_before_it_is_written() {
    use std::os::unix::ffi::OsStrExt;
    let path = std::path::PathBuf::from(std::ffi::OsStr::from_bytes(b"/run/\xff.sock"));
    let node = NodeDescriptor { endpoint: crate::env::Endpoint::Unix(path), ..descriptor() };
    assert!(node.check().unwrap_err().text().contains("endpoint"));
    let none = NodeDescriptor { cores: 0, ..descriptor() };
    assert!(none.check().unwrap_err().text().contains("cores is 0"));
    assert!(NodeDescriptor { actor_types: vec!["".into()], ..descriptor() }.check().is_err());
}

/// Proves R2.2-2.
#[test]
fn a_reader_counts_a_lease_from_before_its_read_and_stops_a_margin_early() {
    let deadline = LeaseRecord::admission_deadline(Nanos(1_000_000_000), Duration::from_secs(4));
    assert_eq!(deadline, Nanos(4_500_000_000));
    let over = LeaseRecord::admission_deadline(Nanos(7), Duration::from_millis(499));
    assert_eq!(over, Nanos(7));
}

/// Proves R0-3.
#[test]
fn blocks_follow_each_other_and_end_before_the_largest_number() {
    let (batch, mut block) = take_block(None).unwrap();
    assert_eq!(batch.conditions, [Condition::Absent(generation_key())]);
    assert_eq!(block, Block::new(1, 1 + GENERATION_BLOCK).unwrap());
    let mut front = block.split_front(2);
    assert_eq!((front.take(), front.take(), front.take()), (Some(1), Some(2), None));
    assert_eq!((block.take(), block.len()), (Some(3), GENERATION_BLOCK - 3));
    assert_eq!(block.split_front(u64::MAX).len(), GENERATION_BLOCK - 3);
    assert!(block.is_empty() && block.split_front(1).is_empty());

    let record = |next| Record {
        value: GenerationCounter { next }.encode(),
        version: StoreVersion::new(9).unwrap(),
        expires_in: None,
    };
    let last = MAX_FENCE + 1 - GENERATION_BLOCK;
    let (batch, mut block) = take_block(Some(&record(last))).unwrap();
    assert_eq!(
        batch.conditions,
        [Condition::VersionIs(generation_key(), StoreVersion::new(9).unwrap())]
    );
    let numbers: Vec<_> = std::iter::from_fn(|| block.take()).collect();
    assert_eq!(numbers.last(), Some(&MAX_FENCE));
    let e = take_block(Some(&record(last + 1))).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InternalFailure);
    assert!(take_block(Some(&record(MAX_FENCE + 2))).is_err());
}

/// A store with an owner record, and what a lifecycle does to its rows in it.
struct Rows {
    store: MemoryStore,
    guard: OwnerGuard,
    key: Key,
}

impl Rows {
    fn new() -> Self {
        let store = MemoryStore::with_clock(Arc::new(|| Nanos(1)));
        let put = Write::Put { key: owner_key(&rid()), value: owner().encode(), ttl: None };
        let rows = Self {
            store,
            guard: OwnerGuard { rid: rid(), version: StoreVersion::FIRST },
            key: authority_key(ObjectKind::Actor, "a"),
        };
        rows.commit(Batch { conditions: vec![], writes: vec![put] }).unwrap();
        rows
    }

    /// The version of the first write, or the condition that failed.
    fn commit(&self, batch: Batch) -> Result<StoreVersion, usize> {
        match self.store.commit(&[batch], BUDGET).unwrap().remove(0) {
            BatchOutcome::Committed(versions) => Ok(versions[0]),
            BatchOutcome::Conflict { condition } => Err(condition),
        }
    }

    fn row(&self) -> Option<Authority> {
        let record =
            self.store.read(std::slice::from_ref(&self.key), BUDGET).unwrap().records.remove(0)?;
        Some(Authority::decode(&self.key, &record.value).unwrap())
    }

    /// A later lifecycle takes the owner record.
    fn replace_owner(&self) -> StoreVersion {
        let value = OwnerRecord { node_generation: NodeGeneration::new(50).unwrap(), ..owner() };
        let put = Write::Put { key: owner_key(&rid()), value: value.encode(), ttl: None };
        self.commit(Batch { conditions: vec![], writes: vec![put] }).unwrap()
    }
}

#[test]
fn a_creation_is_reserved_committed_and_deleted_by_its_own_versions_only() {
    let rows = Rows::new();
    let key = || rows.key.clone();
    let reserve = reserve_creating(key(), &creating(), &rows.guard);
    let reserved = rows.commit(reserve.clone()).unwrap();
    assert_eq!(rows.commit(reserve), Err(ROW_CONDITION), "one creator wins");
    assert_eq!(rows.row(), Some(creating()));
    let ready_at = rows.commit(commit_ready(key(), reserved, &ready(), &rows.guard)).unwrap();
    assert_eq!(rows.row(), Some(ready()));
    let again = commit_ready(key(), reserved, &ready(), &rows.guard);
    assert_eq!(rows.commit(again), Err(ROW_CONDITION));
    assert_eq!(rows.commit(delete_row(key(), reserved, &rows.guard)), Err(ROW_CONDITION));
    rows.commit(delete_row(key(), ready_at, &rows.guard)).unwrap();
    assert_eq!(rows.row(), None);
}

/// Proves R5-16.
#[test]
fn a_lifecycle_whose_owner_record_changed_writes_no_row() {
    let rows = Rows::new();
    let key = || rows.key.clone();
    let reserved = rows.commit(reserve_creating(key(), &creating(), &rows.guard)).unwrap();
    rows.replace_owner();
    let late = commit_ready(key(), reserved, &ready(), &rows.guard);
    assert_eq!(rows.commit(late), Err(OWNER_CONDITION));
    assert_eq!(rows.commit(delete_row(key(), reserved, &rows.guard)), Err(OWNER_CONDITION));
    let other = authority_key(ObjectKind::Actor, "b");
    assert_eq!(
        rows.commit(reserve_creating(other, &creating(), &rows.guard)),
        Err(OWNER_CONDITION)
    );
}

/// Proves R5-13, R2.2b-2.
#[test]
fn a_dead_owner_is_told_from_a_live_one() {
    let at = StoreVersion::new(4).unwrap();
    let released = OwnerRecord { state: OwnerState::Released, ..owner() };
    let later = OwnerRecord { node_generation: NodeGeneration::new(50).unwrap(), ..owner() };
    let of = |owner: Option<&OwnerRecord>, lease| {
        DeadOwner::of(&ready(), owner.map(|owner| (owner, at)), lease)
    };
    assert_eq!(of(Some(&owner()), true), None);
    assert_eq!(of(Some(&owner()), false), Some(DeadOwner::LeaseAbsent));
    assert_eq!(of(Some(&released), false), Some(DeadOwner::OwnerChanged(at)));
    assert_eq!(of(Some(&later), true), Some(DeadOwner::OwnerChanged(at)));
    assert_eq!(of(None, true), Some(DeadOwner::OwnerAbsent));
}

/// Proves R5-13.
#[test]
fn a_dead_owners_rows_are_cleared_as_the_state_of_the_owner_allows() {
    let rows = Rows::new();
    let key = || rows.key.clone();
    let reserved = rows.commit(reserve_creating(key(), &creating(), &rows.guard)).unwrap();
    let absent = clear_dead_creating(key(), &creating(), reserved, DeadOwner::OwnerAbsent);
    assert_eq!(rows.commit(absent), Err(OWNER_CONDITION), "the owner record stands");
    let clear = clear_dead_creating(key(), &creating(), reserved, DeadOwner::LeaseAbsent);
    rows.commit(clear.clone()).unwrap();
    assert_eq!(rows.commit(clear), Err(ROW_CONDITION));

    // A Ready row outlives its owner's lease: only a release, or a later lifecycle, frees it.
    let reserved = rows.commit(reserve_creating(key(), &creating(), &rows.guard)).unwrap();
    let at = rows.commit(commit_ready(key(), reserved, &ready(), &rows.guard)).unwrap();
    assert_eq!(delete_released_row(key(), &ready(), at, DeadOwner::LeaseAbsent), None);
    let released = rows.commit(release_dead_owner(&rid(), &owner(), rows.guard.version)).unwrap();
    let stale = DeadOwner::OwnerChanged(rows.guard.version);
    let stale = delete_released_row(key(), &ready(), at, stale).unwrap();
    assert_eq!(rows.commit(stale), Err(OWNER_CONDITION));
    let delete = delete_released_row(key(), &ready(), at, DeadOwner::OwnerChanged(released));
    rows.commit(delete.unwrap()).unwrap();
    assert_eq!(rows.row(), None);
}

/// Proves R5-13.
#[test]
fn a_dead_owner_is_released_once_and_never_while_its_lease_stands() {
    let rows = Rows::new();
    let put = Write::Put { key: lease_key(&rid()), value: lease().encode(), ttl: Some(BUDGET) };
    rows.commit(Batch { conditions: vec![], writes: vec![put] }).unwrap();
    let release = release_dead_owner(&rid(), &owner(), rows.guard.version);
    assert_eq!(rows.commit(release.clone()), Err(1), "the lease stands");
    let lapse = Write::Delete { key: lease_key(&rid()) };
    rows.commit(Batch { conditions: vec![], writes: vec![lapse] }).unwrap();
    rows.commit(release.clone()).unwrap();
    assert_eq!(rows.commit(release), Err(0), "released already");
}

#[test]
fn the_hash_seed_is_written_once() {
    let rows = Rows::new();
    for (seed, outcome) in [(7, true), (8, false)] {
        let (condition, write) = HashSeed(seed).write_once();
        let batch = Batch { conditions: vec![condition], writes: vec![write] };
        assert_eq!(rows.commit(batch).is_ok(), outcome);
    }
}
