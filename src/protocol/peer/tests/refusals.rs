#![forbid(unsafe_code)]
//! Everything that is refused, and that nothing else comes of it.

use std::time::Duration;

use proptest::prelude::*;

use super::super::event::PeerCloseReason as R;
use super::super::*;
use super::net::Net;
use super::{config, descriptor, endpoint, identity, peers};
use crate::ErrorKind;
use crate::limits::{
    FRAME_HEADER_BYTES, HANDSHAKE_TIMEOUT, MAX_HALF_OPEN_HANDSHAKES, MAX_HANDSHAKE_FRAME_BYTES,
};
use crate::wire::{Body, FrameParts, LeaseRenewed, Liveness, Record};

/// Node a needs node b; returns the net at rest.
fn meet(a: PeerConfig, b: PeerConfig) -> Net {
    let need = PeerDescriptor {
        identity: b.identity.clone(),
        endpoint: endpoint(&b.identity.rid.to_string()),
    };
    let mut net = Net::new([a, b]);
    net.event(0, PeerEvent::Need { descriptor: need });
    net.settle();
    net.assert_needs_answered();
    net
}

/// The need failed with `words`, node `by` counted `reason`, and nobody has a link.
fn assert_refused(net: &Net, by: usize, reason: R, words: &str) {
    assert!(net.nodes.iter().all(|n| n.links.is_empty() && n.machine.is_quiet()));
    let (_, why, next) = &net.nodes[0].need_failures[0];
    assert!(why.contains(words), "{why}");
    assert!(next.is_some(), "{why}");
    assert_eq!(net.nodes[by].closed_for(reason), 1, "{:?}", net.nodes[by].closes);
}

/// Proves R2.3-5.
#[test]
fn a_wrong_secret_is_refused_by_whoever_checks_first() {
    let mut other = config("b", 2, 2);
    other.secret = Some(MeshSecret::new("another").unwrap());
    let net = meet(config("a", 1, 2), other.clone());
    assert_refused(&net, 0, R::WrongProof, "does not prove the mesh secret");
    let mut none = config("b", 2, 2);
    none.secret = None;
    assert_refused(&meet(config("a", 1, 2), none.clone()), 0, R::WrongProof, "secret");
    assert_refused(&meet(none, config("c", 1, 2)), 0, R::WrongProof, "secret");
}

/// A dialer that does not know the secret and goes on all the same is refused by the acceptor.
///
/// Proves R2.3-5.
#[test]
fn the_acceptor_checks_the_dialers_proof() {
    let mut net = Net::new([config("a", 1, 1), config("b", 2, 1)]);
    net.sent = Some(Vec::new());
    net.event(0, PeerEvent::Need { descriptor: descriptor("b", 2) });
    // Until the dialer's proof is on its way.
    while net.sent.as_ref().unwrap().len() < 3 {
        net.deliver(0);
    }
    let sent = net.sent.take().unwrap();
    // The recorded hello and proof, said again: the acceptor's nonce is another by now.
    let conn = net.stranger(1);
    net.say(1, conn, &sent[0].1);
    assert!(net.is_open(1, conn));
    net.say(1, conn, &sent[2].1);
    assert!(!net.is_open(1, conn));
    assert_eq!(net.nodes[1].closed_for(R::WrongProof), 1);
    // The acceptor's own answer, reflected.
    let conn = net.stranger(1);
    net.say(1, conn, &sent[0].1);
    net.say(1, conn, &sent[1].1);
    assert!(!net.is_open(1, conn));
    // One bit of the proof turned.
    let mut bent = sent[2].1.clone();
    let proof_at = FRAME_HEADER_BYTES + 5;
    bent[proof_at] ^= 1;
    let conn = net.stranger(1);
    net.say(1, conn, &sent[0].1);
    net.say(1, conn, &bent);
    assert_eq!(net.nodes[1].closed_for(R::WrongProof), 2);
    net.settle();
    net.assert_linked(0, 1);
}

/// Proves R2.3-5.
#[test]
fn mesh_hash_seed_and_own_rid_are_refused_with_a_sentence() {
    let mut b = config("b", 2, 2);
    b.mesh = "other".parse().unwrap();
    assert_refused(&meet(config("a", 1, 2), b), 1, R::MeshMismatch, "mesh \"game\"");
    let mut b = config("b", 2, 2);
    b.hash_seed_check = 98;
    assert_refused(&meet(config("a", 1, 2), b), 1, R::HashSeedMismatch, "another Location Store");

    // A node whose endpoint leads to another live node with its own rid.
    let mut net = Net::new([config("a", 1, 2), config("b", 2, 2)]);
    net.nodes[0].machine = peers(config("b", 9, 2));
    net.event(0, PeerEvent::Intent { intent: IntentId(1), endpoint: endpoint("b") });
    net.nodes[0].machine.intents().for_each(|i| assert_eq!(i.endpoint, &endpoint("b")));
    // Its advertised endpoint is the same, so it is not dialled at all.
    assert!(matches!(net.nodes[0].machine.intents().next().unwrap().state, IntentState::Refused));
}

/// Proves R2.3-2.
#[test]
fn two_live_nodes_with_one_rid_are_refused() {
    let mut twin = config("b", 9, 2);
    twin.advertised = None;
    let mut net = Net::new([config("a", 1, 2), config("b", 2, 2)]);
    net.nodes[0].machine = peers(twin);
    net.event(0, PeerEvent::Intent { intent: IntentId(1), endpoint: endpoint("b") });
    net.settle();
    assert_eq!(net.nodes[1].closed_for(R::DuplicateRid), 1);
    assert!(net.nodes[1].links.is_empty());

    // Same rid, same generation, another key, seen by a third node.
    let mut net = Net::new([config("a", 1, 2), config("b", 2, 2), config("c", 3, 2)]);
    let mut twin = config("b", 2, 2);
    twin.identity.key_id[0] ^= 1;
    net.event(0, PeerEvent::Need { descriptor: descriptor("b", 2) });
    net.settle();
    net.nodes[2].machine = peers(twin);
    net.event(2, PeerEvent::Need { descriptor: descriptor("a", 1) });
    net.settle();
    assert_eq!(net.nodes[0].closed_for(R::DuplicateRid), 1);
    assert!(net.nodes[2].need_failures[0].1.contains("needs a rid of its own"));
    net.assert_linked(0, 1);
}

/// Proves R2.3-1.
#[test]
fn a_node_does_not_link_to_itself() {
    let mut own = config("a", 1, 2);
    own.advertised = None;
    let mut net = Net::new([own]);
    net.event(0, PeerEvent::Intent { intent: IntentId(1), endpoint: endpoint("a") });
    net.settle();
    assert_eq!(net.nodes[0].closed_for(R::SelfDial), 1);
    assert!(net.nodes[0].links.is_empty());
    let view = net.nodes[0].machine.intents().next().unwrap();
    assert!(view.last_failure.contains("reached itself"), "{view:?}");
    net.event(0, PeerEvent::Need { descriptor: descriptor("a", 1) });
    assert!(net.nodes[0].need_failures[0].1.contains("own rid"));
}

/// Proves R2.3-2.
#[test]
fn whoever_answers_must_be_who_the_descriptor_names() {
    let mut key = descriptor("b", 2);
    key.identity.key_id[3] ^= 1;
    let mut name = descriptor("c", 2);
    name.endpoint = endpoint("b");
    for wanted in [descriptor("b", 1), descriptor("b", 3), key, name] {
        let mut net = Net::new([config("a", 1, 2), config("b", 2, 2)]);
        net.event(0, PeerEvent::Need { descriptor: wanted.clone() });
        net.settle();
        assert_refused(&net, 0, R::IdentityMismatch, "its descriptor names");
        net.assert_needs_answered();
        // What it proved to be is known all the same.
        let again = descriptor("b", 1);
        net.event(0, PeerEvent::Need { descriptor: again });
        if wanted.identity.rid == identity("b", 1).rid {
            assert!(!net.nodes[0].need_failures[1].1.is_empty());
        }
    }
}

/// Proves R2.3-5.
#[test]
fn without_a_secret_only_this_machine_is_reached() {
    let far: Endpoint = "tcp://10.0.0.1:7000".parse().unwrap();
    let near: Endpoint = "tcp://127.0.0.1:7000".parse().unwrap();
    let secret = MeshSecret::new("x").unwrap();
    assert!(check_endpoint_secrecy("listen", &far, Some(&secret)).is_ok());
    assert!(check_endpoint_secrecy("listen", &near, None).is_ok());
    let e = check_endpoint_secrecy("listen", &far, None).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NotConfigured);
    assert!(e.text().contains("listen tcp://10.0.0.1:7000") && e.text().contains("mesh secret"));
    assert_eq!(MeshSecret::new("").unwrap_err().kind(), ErrorKind::NotConfigured);

    let mut open = config("a", 1, 1);
    open.secret = None;
    let mut net = Net::new([open]);
    let descriptor = PeerDescriptor { identity: identity("b", 2), endpoint: far.clone() };
    net.event(0, PeerEvent::Need { descriptor });
    net.event(0, PeerEvent::Intent { intent: IntentId(1), endpoint: far });
    assert_eq!(net.nodes[0].dials, 0);
    assert!(net.nodes[0].need_failures[0].1.contains("no mesh secret is set"));
    assert_eq!(*net.nodes[0].machine.intents().next().unwrap().state, IntentState::Refused);
}

/// Proves R2.3-5.
#[test]
fn nodes_without_a_secret_link_on_one_machine() {
    let (mut a, mut b) = (config("a", 1, 2), config("b", 2, 2));
    (a.secret, b.secret) = (None, None);
    meet(a, b).assert_linked(0, 1);
}

#[test]
fn settings_that_cannot_be_said_are_refused_at_the_start() {
    let breaks: [fn(&mut PeerConfig); 5] = [
        |c| c.cores = 0,
        |c| c.cores = 257,
        |c| c.max_frame_bytes = 1,
        |c| c.lane_window_bytes = 0,
        |c| c.advertised = Some("x".repeat(256)),
    ];
    for change in breaks {
        let mut c = config("a", 1, 1);
        change(&mut c);
        assert_eq!(Peers::new(c, [0; 32]).unwrap_err().kind(), ErrorKind::NotConfigured);
    }
}

fn frame(body: Body<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    FrameParts::link(0, body).encode(&mut bytes, 1 << 20).unwrap();
    bytes
}

/// Proves R2.3-5.
#[test]
fn nothing_but_the_handshake_is_taken_before_a_proof() {
    use crate::ids::OwnerLeaseGeneration;
    use crate::wire::{Admit, Control, LinkGrant, Update};
    let probe = frame(Body::Record(Record::LivenessProbe(Liveness { probe_id: 1 })));
    let update = frame(Body::Record(Record::Update(Update {
        owner_lease_generation: OwnerLeaseGeneration::FIRST,
        route_cache_max_age_ms: 0,
        message_follow_duration_ms: 0,
        draining: false,
    })));
    let renewed = frame(Body::Control(Control::LeaseRenewed(LeaseRenewed {
        probe_id: 1,
        owner_lease_generation: OwnerLeaseGeneration::FIRST,
        remaining_ms: 1,
    })));
    let bare = frame(Body::Record(Record::Admit(Admit { proof: [0; 32], grant: None })));
    let grant = Some(LinkGrant { link_id: 1, lanes: 1 });
    let granted = frame(Body::Record(Record::Admit(Admit { proof: [0; 32], grant })));
    let mut net = Net::new([config("a", 1, 1)]);
    for bytes in [probe, update, renewed, bare, granted] {
        let conn = net.stranger(0);
        net.say(0, conn, &bytes);
        assert!(!net.is_open(0, conn));
    }
    assert_eq!(net.nodes[0].closed_for(R::UnexpectedRecord), 5);
    assert!(R::UnexpectedRecord.is_violation());
    assert!(net.nodes[0].machine.is_quiet());
}

/// Proves R2.3-5.
#[test]
fn frames_too_large_or_bent_close_the_stream_before_any_memory_is_taken() {
    let mut net = Net::new([config("a", 1, 1)]);
    for length in [MAX_HANDSHAKE_FRAME_BYTES + 1, u32::MAX] {
        let conn = net.stranger(0);
        net.say(0, conn, &length.to_be_bytes());
        assert!(!net.is_open(0, conn));
    }
    assert_eq!(net.nodes[0].closed_for(R::FrameTooLarge), 2);
    let good = frame(Body::Record(Record::LivenessProbe(Liveness { probe_id: 1 })));
    let mut short = good.clone();
    short[3] = 8;
    let mut crc = good.clone();
    crc[39] ^= 1;
    let mut magic = good;
    magic[40] ^= 1;
    for bytes in [short, crc, magic] {
        let conn = net.stranger(0);
        net.say(0, conn, &bytes);
        assert!(!net.is_open(0, conn));
    }
    assert_eq!(net.nodes[0].closed_for(R::BadFrame), 3);
}

/// Proves R2.3-5.
#[test]
fn half_done_handshakes_are_bounded_and_the_oldest_goes() {
    let mut net = Net::new([config("a", 1, 1)]);
    let first = net.stranger(0);
    let second = net.stranger(0);
    for _ in 2..MAX_HALF_OPEN_HANDSHAKES {
        net.stranger(0);
    }
    assert!(net.is_open(0, first));
    net.stranger(0);
    assert!(!net.is_open(0, first) && net.is_open(0, second));
    assert_eq!(net.nodes[0].closed_for(R::HandshakeCrowded), 1);
    net.pass(HANDSHAKE_TIMEOUT);
    assert_eq!(net.nodes[0].closed_for(R::HandshakeTimeout) as usize, MAX_HALF_OPEN_HANDSHAKES);
    assert!(net.nodes[0].machine.is_quiet());
    assert_eq!(net.nodes[0].machine.next_deadline(), Nanos::MAX);
}

/// A lane needs a link that is being made, a free number and the right proof, on both sides.
#[test]
fn lanes_are_attached_once_and_only_with_their_proof() {
    let mut net = Net::new([config("a", 1, 3), config("b", 2, 3)]);
    net.sent = Some(Vec::new());
    net.event(0, PeerEvent::Need { descriptor: descriptor("b", 2) });
    let attaches = |net: &Net| net.sent.as_ref().unwrap().iter().filter(|(n, _)| *n == 0).count();
    while attaches(&net) < 3 {
        net.deliver(0);
    }
    let attach = net.sent.as_ref().unwrap().iter().rfind(|(n, _)| *n == 0).unwrap().1.clone();
    let mac_at = FRAME_HEADER_BYTES + 2 + 8 + 2;
    let mut bent = attach.clone();
    bent[mac_at] ^= 1;
    let conn = net.stranger(1);
    net.say(1, conn, &bent);
    assert_eq!(net.nodes[1].closed_for(R::WrongLaneProof), 1);
    let mut unknown = attach.clone();
    unknown[FRAME_HEADER_BYTES + 2] ^= 1;
    let conn = net.stranger(1);
    net.say(1, conn, &unknown);
    assert_eq!(net.nodes[1].closed_for(R::UnknownLink), 1);
    net.settle();
    net.assert_linked(0, 1);
    // The same again, once the link is up.
    let conn = net.stranger(1);
    net.say(1, conn, &attach);
    assert_eq!(net.nodes[1].closed_for(R::LaneTaken), 1);
    net.assert_linked(0, 1);
    // The dialer has a link of another number, or none.
    let conn = net.stranger(0);
    net.say(0, conn, &attach);
    assert_eq!(net.nodes[0].closed_for(R::UnknownLink), 1);
}

#[test]
fn peers_are_forgotten_oldest_first_and_never_while_linked() {
    let mut net = Net::new([config("a", 1, 1), config("b", 2, 1), config("c", 3, 1)]);
    net.nodes[0].machine.known_peers_limit = 2;
    net.event(0, PeerEvent::Need { descriptor: descriptor("b", 2) });
    net.settle();
    for n in 10..20 {
        net.event(0, PeerEvent::Descriptor { descriptor: descriptor(&format!("n{n}"), n) });
        assert_eq!(net.nodes[0].machine.peers.len(), 2);
        assert_eq!(net.nodes[0].machine.described.len(), 2);
    }
    net.event(0, PeerEvent::Need { descriptor: descriptor("c", 3) });
    net.settle();
    net.assert_linked(0, 1);
    net.assert_linked(0, 2);
    // Both places are taken by links.
    net.event(0, PeerEvent::Need { descriptor: descriptor("d", 4) });
    assert!(net.nodes[0].need_failures[0].1.contains("takes no more"));
}

#[test]
fn every_reason_has_a_counter_of_its_own() {
    let mut names: Vec<_> = R::ALL.iter().map(|r| r.counter()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), R::ALL.len());
}

/// A whole handshake, as bytes of each side.
fn recorded() -> Vec<Vec<u8>> {
    let mut net = Net::new([config("a", 1, 2), config("b", 2, 2)]);
    net.sent = Some(Vec::new());
    net.event(0, PeerEvent::Need { descriptor: descriptor("b", 2) });
    net.settle();
    net.sent.take().unwrap().into_iter().map(|(_, frame)| frame).collect()
}

proptest! {
    /// Neither garbage nor recorded frames in any order get a stranger further than a hello.
    ///
    /// Proves R2.3-5.
    #[test]
    fn strangers_get_nowhere(
        garbage in prop::collection::vec(any::<u8>(), 0..200),
        order in prop::collection::vec((0..6usize, any::<(bool, u16, u8)>()), 1..6),
    ) {
        let frames = recorded();
        let mut net = Net::new([config("b", 2, 2)]);
        // Of another seed than when it was recorded, as every lifecycle is.
        net.nodes[0].machine = Peers::new(config("b", 2, 2), [9; 32]).unwrap();
        let conn = net.stranger(0);
        for (n, (bend, at, bit)) in order {
            let mut frame = frames[n].clone();
            if bend {
                let at = usize::from(at) % frame.len();
                frame[at] ^= 1 << (bit % 8);
            }
            net.say(0, conn, &frame);
        }
        net.say(0, conn, &garbage);
        let conn = net.stranger(0);
        net.say(0, conn, &garbage);
        prop_assert!(net.nodes[0].links.is_empty());
        prop_assert!(net.nodes[0].machine.peers.is_empty());
        net.pass(HANDSHAKE_TIMEOUT + Duration::from_millis(1));
        prop_assert!(net.nodes[0].machine.is_quiet());
    }
}
