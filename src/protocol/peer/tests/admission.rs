#![forbid(unsafe_code)]
//! The way to a link, and what may take its place.

use std::time::Duration;

use super::super::event::PeerCloseReason as R;
use super::super::hello::{cut_frame, lanes_between, read_frame};
use super::super::*;
use super::net::Net;
use super::{config, descriptor, endpoint, identity, peers, rid};
use crate::limits::{HANDSHAKE_TIMEOUT, MAX_LANES, RECONNECT_MAX};

fn linked(cores_a: u16, cores_b: u16) -> Net {
    let mut net = Net::new([config("a", 1, cores_a), config("b", 2, cores_b)]);
    net.event(0, PeerEvent::Need { descriptor: descriptor("b", 2) });
    net.settle();
    net.assert_linked(0, 1);
    net
}

/// Proves R2.3-5, R0-7.
#[test]
fn a_need_makes_a_link_and_both_sides_learn_of_the_other() {
    let mut there = config("b", 2, 3);
    there.max_frame_bytes = 1 << 17;
    there.lane_window_bytes = 777;
    there.message_follow_duration = Duration::from_secs(20);
    there.route_cache_max_age = Duration::from_secs(3);
    let mut net = Net::new([config("a", 1, 2), there]);
    net.event(0, PeerEvent::Need { descriptor: descriptor("b", 2) });
    net.settle();
    assert!(net.assert_linked(0, 1));
    net.assert_needs_answered();
    let (_, info) = net.nodes[0].machine.link_to(&rid("b")).unwrap();
    assert_eq!(info.peer, identity("b", 2));
    assert_eq!(info.lease_generation.get(), 102);
    assert_eq!((info.cores, info.lanes), (3, 3));
    assert_eq!((info.max_frame_bytes, info.lane_window_bytes), (1 << 17, 777));
    assert_eq!(info.route_cache_max_age, Duration::from_secs(3));
    assert_eq!(info.message_follow_duration, Duration::from_secs(20));
    assert_eq!(info.route_age_cap(), Some(Duration::from_secs(15)));
    assert_eq!(info.advertised.as_deref(), Some("unix:///run/b"));
    assert!(info.dialed_by_us && info.intent.is_none());
    let (_, info) = net.nodes[1].machine.link_to(&rid("a")).unwrap();
    assert_eq!((info.cores, info.lanes, info.max_frame_bytes), (2, 3, 1 << 17));
    assert!(!info.dialed_by_us);
}

/// Proves R0-7.
#[test]
fn later_handshakes_carry_changed_settings_and_no_follow_means_no_cap() {
    let mut net = Net::new([config("a", 1, 1), config("b", 2, 1)]);
    net.event(
        1,
        PeerEvent::Settings {
            route_cache_max_age: Duration::ZERO,
            message_follow_duration: Duration::ZERO,
        },
    );
    net.event(0, PeerEvent::Need { descriptor: descriptor("b", 2) });
    net.settle();
    let (_, info) = net.nodes[0].machine.link_to(&rid("b")).unwrap();
    assert_eq!(info.message_follow_duration, Duration::ZERO);
    assert_eq!(info.route_age_cap(), None);
}

#[test]
fn lanes_are_the_larger_core_count_up_to_the_cap() {
    for (a, b) in [(1, 1), (1, 4), (5, 2), (16, 3), (17, 1), (256, 256)] {
        let net = linked(a, b);
        let lanes = net.nodes[0].standing()[0].1.info.lanes;
        assert_eq!(lanes, a.max(b).min(MAX_LANES));
        assert_eq!(lanes, lanes_between(b, a));
    }
}

/// Bytes may come one at a time, or all at once: what lies behind a handshake goes along with
/// the lane.
#[test]
fn bytes_may_be_cut_anywhere() {
    for cut in [0, 1, 38, 39, 40, 1_000_000] {
        let mut net = Net::new([config("a", 1, 3), config("b", 2, 2)]);
        net.event(0, PeerEvent::Need { descriptor: descriptor("b", 2) });
        while net.choices() > 0 {
            net.deliver_cut(0, cut);
        }
        net.assert_linked(0, 1);
    }
}

/// Proves R2.3-3, R5-4.
#[test]
fn one_lost_lane_loses_the_link_and_a_need_brings_it_back() {
    let mut net = linked(4, 4);
    net.pass(Duration::from_secs(60));
    let (link, _) = net.nodes[0].machine.link_to(&rid("b")).unwrap();
    let lost = PeerEvent::LaneLost {
        link,
        lane: 3,
        loss: LaneLoss::Stream,
        reason: "silent for 15 s".to_owned(),
    };
    net.event(0, lost.clone());
    assert_eq!(net.nodes[0].links[&link].closing, Some(R::LaneLost));
    assert!(net.nodes[0].machine.link_to(&rid("b")).is_none());
    // A second report changes nothing (the harness refuses a second CloseLink).
    net.event(0, lost);
    net.settle();
    assert!(net.nodes.iter().all(|n| n.links.is_empty() && n.links_down == 1));
    net.event(0, PeerEvent::Need { descriptor: descriptor("b", 2) });
    net.settle();
    net.assert_linked(0, 1);
}

/// The peer connects anew while this node has not closed all lanes of the old link: it is held
/// until then.
///
/// Proves R5-4.
#[test]
fn a_peer_is_admitted_again_only_after_its_old_lanes_are_closed() {
    let mut acceptor = peers(config("b", 2, 1));
    let mut net = linked(1, 1);
    net.pass(Duration::from_secs(60));
    std::mem::swap(&mut acceptor, &mut net.nodes[1].machine);
    let (link, _) = acceptor.link_to(&rid("a")).unwrap();
    let now = net.now;
    let mut out = Vec::new();
    acceptor.step(
        PeerEvent::LaneLost { link, lane: 0, loss: LaneLoss::Stream, reason: "reset".to_owned() },
        now,
        &mut out,
    );
    // The dialer is another machine of the same lifecycle that has no link any more.
    let mut dialer = peers(config("a", 1, 1));
    dialer.step(PeerEvent::Need { descriptor: descriptor("b", 2) }, now, &mut out);
    let Some(PeerEffect::Dial { dial, .. }) =
        out.iter().find(|e| matches!(e, PeerEffect::Dial { .. })).cloned()
    else {
        panic!("{out:?}")
    };
    let (here, there) = (ConnId(900), ConnId(901));
    dialer.step(PeerEvent::Dialed { dial, conn: here }, now, &mut out);
    acceptor.step(PeerEvent::Accepted { conn: there }, now, &mut out);
    out.clear();
    dialer.step(PeerEvent::Connected { conn: here }, now, &mut out);
    for _ in 0..2 {
        carry(&mut out, &mut acceptor, there, now);
        carry(&mut out, &mut dialer, here, now);
    }
    // Proven, but neither granted nor closed.
    assert!(out.is_empty(), "{out:?}");
    assert!(acceptor.link_to(&rid("a")).is_none());
    acceptor.step(PeerEvent::LaneClosed { link, lane: 0 }, now, &mut out);
    let kinds: Vec<_> = out.iter().map(std::mem::discriminant).collect();
    let down = PeerEffect::LinkDown { link, peer: identity("a", 1), reason: R::LaneLost };
    assert_eq!(kinds[0], std::mem::discriminant(&down), "{out:?}");
    assert!(out.iter().any(|e| matches!(e, PeerEffect::LinkUp { .. })), "{out:?}");
}

/// Brings every frame in `out` to `to`, and leaves what it does in `out`.
fn carry(out: &mut Vec<PeerEffect>, to: &mut Peers, conn: ConnId, now: Nanos) {
    for effect in std::mem::take(out) {
        if let PeerEffect::Send { frame, .. } = effect {
            to.step(PeerEvent::Received { conn, bytes: frame }, now, out);
        }
    }
    out.retain(|e| !matches!(e, PeerEffect::Wake(_)));
}

/// A node that comes back as a new lifecycle takes the place of the old one, which is closed
/// first; the old one never comes back.
///
/// Proves R2.3-2, R2.3-3.
#[test]
fn a_newer_incarnation_replaces_and_the_older_is_never_admitted_again() {
    let mut net = Net::new([config("a", 1, 2), config("b", 2, 2), config("b", 7, 2)]);
    net.event(0, PeerEvent::Need { descriptor: descriptor("b", 2) });
    net.settle();
    net.assert_linked(0, 1);
    // The newer one dials while the link to the older stands.
    net.event(2, PeerEvent::Need { descriptor: descriptor("a", 1) });
    net.settle();
    net.assert_linked(0, 2);
    assert_eq!(net.nodes[0].links_down, 1);
    assert!(net.nodes[1].links.is_empty());
    // The older one tries again, by itself and by a stale descriptor.
    net.pass(RECONNECT_MAX);
    net.event(1, PeerEvent::Need { descriptor: descriptor("a", 1) });
    net.settle();
    assert!(net.nodes[1].need_failures[0].1.contains("OldIncarnation"));
    net.event(0, PeerEvent::Need { descriptor: descriptor("b", 2) });
    net.settle();
    assert!(net.nodes[0].need_failures[0].1.contains("is over"));
    net.assert_linked(0, 2);
    assert_eq!(net.nodes[0].closed_for(R::StaleIncarnation), 1);
    net.assert_needs_answered();
}

/// A hello that is not proven changes nothing, whatever generation it claims.
///
/// Proves R2.3-5.
#[test]
fn a_claim_without_proof_replaces_nobody() {
    let mut liar = config("b", 50, 2);
    liar.secret = Some(MeshSecret::new("guess").unwrap());
    let mut net = Net::new([config("a", 1, 2), config("b", 2, 2), liar]);
    net.event(0, PeerEvent::Need { descriptor: descriptor("b", 2) });
    net.settle();
    net.event(2, PeerEvent::Need { descriptor: descriptor("a", 1) });
    net.settle();
    assert_eq!(net.nodes[2].need_failures.len(), 1);
    net.assert_linked(0, 1);
    // Even when the liar takes the acceptor's proof for good, its own is refused.
    assert_eq!(net.nodes[0].links_down, 0);
}

/// The Store knows of a newer lifecycle: the link to the older is given up.
///
/// Proves R2.3-2.
#[test]
fn a_descriptor_of_a_newer_lifecycle_ends_the_older_link() {
    let mut net = linked(2, 2);
    net.event(0, PeerEvent::Descriptor { descriptor: descriptor("b", 2) });
    assert_eq!(net.nodes[0].standing().len(), 1);
    net.event(0, PeerEvent::Descriptor { descriptor: descriptor("b", 3) });
    assert!(net.nodes[0].standing().is_empty());
    net.pass(RECONNECT_MAX);
    net.event(1, PeerEvent::Need { descriptor: descriptor("a", 1) });
    net.settle();
    assert!(net.nodes[0].links.is_empty() && net.nodes[1].links.is_empty());
    assert_eq!(net.nodes[0].closed_for(R::StaleIncarnation), 1);
}

/// The peer lost the link and this node has not noticed: the old link is closed, then the new
/// one made.
///
/// Proves R5-4.
#[test]
fn a_peer_that_lost_the_link_replaces_it() {
    let mut net = linked(3, 3);
    net.pass(Duration::from_secs(60));
    let (link, _) = net.nodes[1].machine.link_to(&rid("a")).unwrap();
    net.lose_silently(1, link);
    net.settle();
    assert_eq!((net.nodes[0].standing().len(), net.nodes[1].standing().len()), (1, 0));
    net.event(1, PeerEvent::Need { descriptor: descriptor("a", 1) });
    net.settle();
    assert!(!net.assert_linked(0, 1));
    assert_eq!(net.nodes[0].links_down, 1);
}

/// Proves R2.3-5.
#[test]
fn an_unfinished_handshake_ends_by_the_timeout_on_both_sides() {
    for deliveries in 0..14 {
        let mut net = Net::new([config("a", 1, 2), config("b", 2, 2)]);
        net.event(0, PeerEvent::Need { descriptor: descriptor("b", 2) });
        for _ in 0..deliveries {
            if net.choices() > 0 {
                net.deliver(0);
            }
        }
        if net.nodes.iter().all(|n| n.standing().iter().any(|(_, l)| l.up)) {
            continue;
        }
        net.now += HANDSHAKE_TIMEOUT;
        for node in 0..2 {
            net.event(node, PeerEvent::Tick);
        }
        net.settle();
        assert!(net.nodes.iter().all(|n| n.links.is_empty()), "after {deliveries}");
        assert_eq!(net.nodes[0].need_failures.len(), 1, "after {deliveries}");
        net.assert_needs_answered();
        assert!(net.nodes.iter().all(|n| n.machine.is_quiet()), "after {deliveries}");
    }
}

/// Proves R2.3-1, R2.3-2.
#[test]
fn only_a_matching_descriptor_makes_a_link_evidence_for_routes() {
    let mut net = Net::new([config("a", 1, 1), config("b", 2, 1)]);
    net.event(0, PeerEvent::Intent { intent: IntentId(1), endpoint: endpoint("b") });
    net.settle();
    net.assert_linked(0, 1);
    let (_, info) = net.nodes[0].machine.link_to(&rid("b")).unwrap();
    assert!(!info.is_evidence_for(None));
    assert!(info.is_evidence_for(Some(&descriptor("b", 2))));
    let mut other = descriptor("b", 2);
    other.identity.key_id[15] ^= 1;
    assert!(!info.is_evidence_for(Some(&other)));
    assert!(!info.is_evidence_for(Some(&descriptor("b", 3))));
    assert!(!info.is_evidence_for(Some(&descriptor("c", 2))));
}

#[test]
fn a_shutdown_closes_everything_and_answers_those_who_wait() {
    for deliveries in 0..30 {
        let mut net = Net::new([config("a", 1, 2), config("b", 2, 2), config("c", 3, 1)]);
        net.event(0, PeerEvent::Need { descriptor: descriptor("b", 2) });
        net.event(0, PeerEvent::Intent { intent: IntentId(1), endpoint: endpoint("c") });
        net.event(2, PeerEvent::Need { descriptor: descriptor("a", 1) });
        for _ in 0..deliveries {
            if net.choices() > 0 {
                net.deliver(net.choices() / 2);
            }
        }
        net.event(0, PeerEvent::Shutdown);
        assert!(net.nodes[0].unanswered.get(&rid("b")).is_none_or(|n| *n == 0));
        net.pass(Duration::from_secs(20));
        assert!(net.nodes[0].machine.is_quiet(), "after {deliveries}");
        assert_eq!(net.nodes[0].machine.next_deadline(), Nanos::MAX);
        net.event(0, PeerEvent::Need { descriptor: descriptor("b", 2) });
        assert!(net.nodes[0].need_failures.last().unwrap().1.contains("shutting down"));
        assert!(net.nodes[1].links.is_empty() && net.nodes[2].links.is_empty());
    }
}

/// All frames of a handshake, as they were sent.
#[test]
fn the_handshake_is_the_documented_one() {
    let mut net = Net::new([config("a", 1, 2), config("b", 2, 2)]);
    net.sent = Some(Vec::new());
    net.event(0, PeerEvent::Need { descriptor: descriptor("b", 2) });
    net.settle();
    let sent = net.sent.take().unwrap();
    let names: Vec<_> = sent
        .into_iter()
        .map(|(node, mut frame)| {
            let whole = cut_frame(&mut frame).unwrap().unwrap();
            assert!(frame.is_empty());
            (node, read_frame(&whole).unwrap().name())
        })
        .collect();
    assert_eq!(
        names,
        [
            (0, "a hello without proof"),
            (1, "a hello with proof"),
            (0, "an admit without grant"),
            (1, "an admit with grant"),
            (0, "a lane attach"),
            (1, "a lane attach"),
        ]
    );
}
