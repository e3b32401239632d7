#![forbid(unsafe_code)]
//! The published vectors, decoded into what they mean and encoded again.

use homing::ids::{
    AuthorityOwnerGeneration, BindingGeneration, NodeGeneration, ObjectGeneration, OperationId,
    OwnerLeaseGeneration, RelocationId, RouteFence,
};
use homing::wire::{
    CoordinatorFence, DecodedRecord, MessageForm, MetadataPart, ObjectMessage, PayloadPart, Record,
    RelocationRole, RelocationRoute, RelocationSeal, RouteAction, RouteFenceRef, SessionOwnerFence,
    encode_metadata_part, encode_payload_part,
};

pub(crate) const ACTOR_SEND: &str = "5a4d01180000000000000000010000000000000001000001610000000000000001016e000000000000000100000000000000010000000000000001";
pub(crate) const PAYLOAD: &str = "010000002d0e666978747572652e7061636b6574186170706c69636174696f6e2f6f637465742d73747265616d000000017f";
pub(crate) const METADATA: &str = "0102014100056669727374014200067365636f6e64";
pub(crate) const SEAL: &str = "5a4d012a00000000000000000700000000000000090b636f6f7264696e61746f72000000000000000306736f757263650000000000000002000973746f72652d76313701076163746f722d31000000000000000506736f757263650000000000000002000000000000000b000000000000000d06736f7572636500000000000000020d73657373696f6e2d6f776e657200000000000000080773657373696f6e0000000000000006";
pub(crate) const COMMIT: &str = "5a4d012c00000000000000000700000000000000090b636f6f7264696e61746f72000000000000000306736f757263650000000000000002000973746f72652d76313702076163746f722d31000000000000000506736f7572636500000000000000020d73657373696f6e2d6f776e657200000000000000080773657373696f6e0000000000000006010027000000000000000b000000000000000c0674617267657400000000000000040000000000000005";

pub(crate) fn unhex(text: &str) -> Vec<u8> {
    let digit = |i| u8::from_str_radix(&text[i..i + 2], 16).expect("hex");
    (0..text.len()).step_by(2).map(digit).collect()
}

fn owner(n: u64) -> AuthorityOwnerGeneration {
    AuthorityOwnerGeneration::new(n).expect("in range")
}

fn lease(n: u64) -> OwnerLeaseGeneration {
    OwnerLeaseGeneration::new(n).expect("in range")
}

fn node(n: u64) -> NodeGeneration {
    NodeGeneration::new(n).expect("in range")
}

fn object(n: u64) -> ObjectGeneration {
    ObjectGeneration::new(n).expect("in range")
}

fn relocation() -> RelocationId {
    RelocationId::new(7 << 64 | 9).expect("not zero")
}

fn coordinator() -> CoordinatorFence<'static> {
    CoordinatorFence {
        owner_id: "coordinator",
        owner_lease_generation: lease(3),
        rid: b"source",
        node_generation: node(2),
        expected_store_version: "store-v17",
    }
}

fn session_owner() -> SessionOwnerFence<'static> {
    SessionOwnerFence {
        rid: b"source",
        node_generation: node(2),
        owner_id: "session-owner",
        owner_lease_generation: lease(8),
        session: b"session",
        binding_generation: BindingGeneration::new(6).expect("in range"),
    }
}

fn check(hex: &str, record: Record<'_>) {
    let bytes = unhex(hex);
    let decoded = Record::decode(&bytes).expect("published");
    assert_eq!(decoded, DecodedRecord { record, has_metadata: false });
    let mut out = Vec::new();
    record.encode(false, &mut out).expect("valid");
    assert_eq!(out, bytes);
}

/// Proves R0-3, R0-4.
#[test]
fn actor_send() {
    let fence = RouteFenceRef {
        object_generation: object(1),
        rid: b"n",
        node_generation: node(1),
        authority_owner_generation: owner(1),
        owner_lease_generation: lease(1),
    };
    let message = ObjectMessage {
        correlation: None,
        operation_id: OperationId::new(1 << 64 | 1).expect("not zero"),
        hop_count: 0,
        form: MessageForm::Actor { source: None, bound_session: None },
        id: "a",
        fence,
    };
    check(ACTOR_SEND, Record::Message(message));

    let owned = RouteFence::try_from(fence).expect("decoded rids are valid");
    assert!(fence.matches(&owned));
    assert_eq!(RouteFenceRef::from(&owned), fence);
    let other = RouteFence { node_generation: node(2), ..owned };
    assert!(!fence.matches(&other));
}

/// The published payload part.
#[test]
fn payload() {
    let bytes = unhex(PAYLOAD);
    let part = PayloadPart::decode(&bytes).expect("published");
    assert_eq!(part.packet_name, "fixture.packet");
    assert_eq!(part.content_type, "application/octet-stream");
    assert_eq!((part.bytes, part.part), (&[0x7F][..], &bytes[..]));
    let mut out = Vec::new();
    encode_payload_part(&mut out, part.packet_name, part.content_type, part.bytes).expect("valid");
    assert_eq!(out, bytes);
}

/// The published metadata part.
#[test]
fn metadata() {
    let bytes = unhex(METADATA);
    let part = MetadataPart::decode(&bytes).expect("published");
    let entries: Vec<_> = part.entries().collect();
    assert_eq!(entries, [("A", &b"first"[..]), ("B", &b"second"[..])]);
    assert_eq!((part.get("B"), part.get("C")), (Some(&b"second"[..]), None));
    let mut out = Vec::new();
    encode_metadata_part(&mut out, &entries).expect("valid");
    assert_eq!(out, bytes);
}

/// Proves R3.3-2.
#[test]
fn session_relocation_seal() {
    let seal = RelocationSeal {
        relocation_id: relocation(),
        coordinator: coordinator(),
        role: RelocationRole::Source,
        id: "actor-1",
        fence: RouteFenceRef {
            object_generation: object(5),
            rid: b"source",
            node_generation: node(2),
            authority_owner_generation: owner(11),
            owner_lease_generation: lease(13),
        },
        session_owner: session_owner(),
    };
    check(SEAL, Record::RelocationSeal(seal));
}

/// Proves R3.3-7.
#[test]
fn session_relocation_route_commit() {
    let route = RelocationRoute {
        relocation_id: relocation(),
        coordinator: coordinator(),
        role: RelocationRole::Target,
        id: "actor-1",
        object_generation: object(5),
        session_owner: session_owner(),
        action: RouteAction::Commit {
            previous_owner_generation: owner(11),
            target_owner_generation: owner(12),
            rid: b"target",
            node_generation: node(4),
            owner_lease_generation: lease(5),
        },
    };
    check(COMMIT, Record::RelocationRoute(route));
}
