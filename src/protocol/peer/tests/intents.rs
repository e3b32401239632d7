#![forbid(unsafe_code)]
//! Configured endpoints.

use std::time::Duration;

use super::super::event::PeerCloseReason as R;
use super::super::*;
use super::net::Net;
use super::{config, descriptor, endpoint, identity, peers, rid};
use crate::limits::RECONNECT_MAX;

const INTENT: IntentId = IntentId(1);

fn three() -> Net {
    Net::new([config("a", 1, 2), config("b", 2, 2), config("c", 3, 2)])
}

fn view(net: &Net) -> IntentView<'_> {
    net.nodes[0].machine.intents().next().expect("one intent")
}

/// Proves R2.3-1, R2.3-3.
#[test]
fn an_intent_keeps_its_peer_connected_and_says_who_it_is() {
    let mut net = three();
    net.event(0, PeerEvent::Intent { intent: INTENT, endpoint: endpoint("b") });
    assert!(matches!(view(&net).state, IntentState::Dialing(_)));
    assert_eq!(view(&net).peer, None);
    net.settle();
    net.assert_linked(0, 1);
    assert_eq!(view(&net).peer, Some(&rid("b")));
    let (link, info) = net.nodes[0].machine.link_to(&rid("b")).unwrap();
    assert_eq!((*view(&net).state == IntentState::Linked(link), info.intent), (true, Some(INTENT)));
    for _ in 0..4 {
        net.cut(1, false);
        net.pass(RECONNECT_MAX * 2);
        net.assert_linked(0, 1);
    }
}

/// Proves R2.3-3.
#[test]
fn a_replaced_intent_closes_the_old_connection_before_it_dials_the_new() {
    let mut net = three();
    net.event(0, PeerEvent::Intent { intent: INTENT, endpoint: endpoint("b") });
    net.settle();
    let (link, _) = net.nodes[0].machine.link_to(&rid("b")).unwrap();
    let dials = net.nodes[0].dials;
    net.event(0, PeerEvent::ReplaceIntent { intent: INTENT, endpoint: endpoint("c") });
    assert_eq!(net.nodes[0].links[&link].closing, Some(R::IntentReplaced));
    // Not yet seen closed: the old endpoint stands, the new one waits.
    assert_eq!(view(&net).endpoint, &endpoint("b"));
    assert_eq!(view(&net).next_endpoint, Some(&endpoint("c")));
    assert_eq!(net.nodes[0].dials, dials);
    while net.nodes[0].links.contains_key(&link) {
        assert_eq!(net.nodes[0].dials, dials);
        net.deliver(0);
    }
    assert_eq!(net.nodes[0].dials, dials + 1);
    assert_eq!(net.nodes[0].intents, [(INTENT, true), (INTENT, true)], "told when it was closed");
    assert_eq!((view(&net).endpoint, view(&net).next_endpoint), (&endpoint("c"), None));
    // Late events of the old connection change nothing on the new one.
    let before = net.nodes[0].machine.clone();
    net.event(
        0,
        PeerEvent::LaneLost { link, lane: 0, loss: LaneLoss::Stream, reason: "late".to_owned() },
    );
    net.event(0, PeerEvent::LaneClosed { link, lane: 1 });
    let bytes = vec![1, 2, 3];
    net.event(0, PeerEvent::Received { conn: ConnId(1), bytes });
    assert_eq!(net.nodes[0].machine, before);
    net.settle();
    net.assert_linked(0, 2);
    assert!(net.nodes[1].links.is_empty());
}

/// A removed intent is gone when its connection is; adding it again meanwhile brings it back, behind
/// the close of the old connection.
///
/// Proves R2.3-3.
#[test]
fn an_intent_that_is_being_removed_can_be_added_again() {
    let mut net = three();
    net.event(0, PeerEvent::Intent { intent: INTENT, endpoint: endpoint("b") });
    net.settle();
    let (link, _) = net.nodes[0].machine.link_to(&rid("b")).unwrap();
    net.event(0, PeerEvent::RemoveIntent { intent: INTENT });
    assert!(view(&net).is_ending && view(&net).next_endpoint.is_none());
    let dials = net.nodes[0].dials;
    net.event(0, PeerEvent::Intent { intent: INTENT, endpoint: endpoint("b") });
    assert!(!view(&net).is_ending);
    while net.nodes[0].links.contains_key(&link) {
        assert_eq!((net.nodes[0].dials, net.nodes[0].intents.len()), (dials, 1));
        net.deliver(0);
    }
    assert_eq!(net.nodes[0].intents, [(INTENT, true), (INTENT, true)]);
    net.settle();
    net.assert_linked(0, 1);
    net.event(0, PeerEvent::RemoveIntent { intent: INTENT });
    net.settle();
    assert_eq!(net.nodes[0].intents[2..], [(INTENT, false)]);
    assert!(net.nodes[0].links.is_empty() && net.nodes[0].machine.is_quiet());
}

/// Whatever the old dial was doing when the intent moved, one link to the new endpoint is left.
///
/// Proves R2.3-3.
#[test]
fn an_intent_can_be_replaced_at_any_moment() {
    for moment in 0..24 {
        for then_remove in [false, true] {
            let mut net = three();
            net.event(0, PeerEvent::Intent { intent: INTENT, endpoint: endpoint("b") });
            for _ in 0..moment {
                if net.choices() > 0 {
                    net.deliver(0);
                }
            }
            net.event(0, PeerEvent::ReplaceIntent { intent: INTENT, endpoint: endpoint("c") });
            if then_remove {
                net.event(0, PeerEvent::RemoveIntent { intent: INTENT });
            }
            net.pass(RECONNECT_MAX);
            assert!(net.nodes[1].links.is_empty());
            if then_remove {
                assert_eq!(net.nodes[0].machine.intents().count(), 0);
                assert!(net.nodes[0].links.is_empty() && net.nodes[2].links.is_empty());
                assert!(net.nodes[0].machine.is_quiet());
            } else {
                net.assert_linked(0, 2);
            }
        }
    }
}

/// A dial is given up before the node named its stream: the new intent waits for that too.
///
/// Proves R2.3-3.
#[test]
fn a_dial_without_a_name_is_seen_closed_before_the_next() {
    let mut machine = peers(config("a", 1, 1));
    let mut out = Vec::new();
    let mut step = |machine: &mut Peers, event| {
        out.clear();
        machine.step(event, Nanos(0), &mut out);
        out.clone()
    };
    let effects = step(&mut machine, PeerEvent::Intent { intent: INTENT, endpoint: endpoint("b") });
    let PeerEffect::Dial { dial, .. } = effects[0] else { panic!("{effects:?}") };
    let moved = PeerEvent::ReplaceIntent { intent: INTENT, endpoint: endpoint("c") };
    let effects = step(&mut machine, moved);
    assert!(!effects.iter().any(|e| matches!(e, PeerEffect::Dial { .. })), "{effects:?}");
    assert_eq!(*machine.intents().next().unwrap().state, IntentState::Closing);
    let effects = step(&mut machine, PeerEvent::Dialed { dial, conn: ConnId(1) });
    let order: Vec<_> = effects
        .iter()
        .map(|e| match e {
            PeerEffect::Close { conn: ConnId(1), .. } => "close",
            PeerEffect::Dial { endpoint: to, .. } if *to == endpoint("c") => "dial",
            _ => "other",
        })
        .collect();
    assert_eq!(order[..2], ["close", "dial"], "{effects:?}");
}

/// Proves R2.3-2.
#[test]
fn a_descriptor_for_the_endpoint_is_held_against_whoever_answers() {
    // Known before the dial.
    let mut net = three();
    let mut other = descriptor("x", 9);
    other.endpoint = endpoint("b");
    net.event(0, PeerEvent::Descriptor { descriptor: other.clone() });
    net.event(0, PeerEvent::Intent { intent: INTENT, endpoint: endpoint("b") });
    net.settle();
    assert!(net.nodes[0].links.is_empty());
    assert_eq!(net.nodes[0].closed_for(R::IdentityMismatch), 1);
    assert!(view(&net).last_failure.contains("its descriptor names node x"));
    // That node is gone: its descriptor says nothing any more.
    net.event(0, PeerEvent::DescriptorGone { identity: identity("x", 9) });
    net.pass(RECONNECT_MAX);
    net.assert_linked(0, 1);

    // Read at any moment during the dial, or after it.
    for moment in 0..20 {
        let mut net = three();
        net.event(0, PeerEvent::Intent { intent: INTENT, endpoint: endpoint("b") });
        for _ in 0..moment {
            if net.choices() > 0 {
                net.deliver(0);
            }
        }
        net.event(0, PeerEvent::Descriptor { descriptor: other.clone() });
        net.settle();
        assert!(net.nodes[0].links.is_empty(), "at {moment}");
        // A descriptor that names who is there lets it in.
        net.event(0, PeerEvent::DescriptorGone { identity: identity("x", 9) });
        net.event(0, PeerEvent::Descriptor { descriptor: descriptor("b", 2) });
        net.pass(RECONNECT_MAX);
        net.assert_linked(0, 1);
        let (_, info) = net.nodes[0].machine.link_to(&rid("b")).unwrap();
        assert!(info.is_evidence_for(Some(&descriptor("b", 2))));
    }
}

/// An older descriptor of an endpoint does not displace a newer one.
///
/// Proves R2.3-2.
#[test]
fn the_newest_descriptor_of_an_endpoint_counts() {
    let mut net = three();
    let mut old = descriptor("old", 1);
    old.endpoint = endpoint("b");
    net.event(0, PeerEvent::Descriptor { descriptor: descriptor("b", 2) });
    net.event(0, PeerEvent::Descriptor { descriptor: old });
    net.event(0, PeerEvent::Intent { intent: INTENT, endpoint: endpoint("b") });
    net.settle();
    net.assert_linked(0, 1);
}

/// Two intents and a link of the peer's own making lead to one node: one link, and each intent
/// knows whose it is. When it goes, they bring it back.
///
/// Proves R2.3-3.
#[test]
fn intents_for_one_node_share_its_link() {
    let mut net = three();
    net.event(1, PeerEvent::Need { descriptor: descriptor("a", 1) });
    net.settle();
    net.event(0, PeerEvent::Intent { intent: INTENT, endpoint: endpoint("b") });
    net.event(0, PeerEvent::Intent { intent: IntentId(2), endpoint: endpoint("b") });
    net.settle();
    assert!(!net.assert_linked(0, 1));
    assert_eq!(net.nodes[0].closed_for(R::Redundant), 2);
    let attached = IntentState::Attached(rid("b"));
    assert!(net.nodes[0].machine.intents().all(|i| *i.state == attached));
    // Removing one leaves the link, which was not made for it.
    net.event(0, PeerEvent::RemoveIntent { intent: IntentId(2) });
    net.settle();
    assert!(!net.assert_linked(0, 1));
    net.pass(RECONNECT_MAX);
    net.cut(0, false);
    net.pass(RECONNECT_MAX);
    assert!(net.assert_linked(0, 1));
    // Removing the one it was made for ends it.
    net.event(0, PeerEvent::RemoveIntent { intent: INTENT });
    net.settle();
    assert!(net.nodes[0].links.is_empty());
    assert_eq!(net.nodes[0].machine.intents().count(), 0);
    net.pass(Duration::from_secs(60));
    assert!(net.nodes.iter().all(|n| n.links.is_empty()));
}

/// A peer that nobody answers for is tried for ever, less and less often.
#[test]
fn an_intent_never_gives_up() {
    let mut net = three();
    net.listen(1, false);
    net.event(0, PeerEvent::Intent { intent: INTENT, endpoint: endpoint("b") });
    net.pass(Duration::from_secs(60));
    let dials = net.nodes[0].dials;
    assert!((12 + 6..=24 + 8).contains(&dials), "{dials}");
    assert!(view(&net).last_failure.contains("connection refused"));
    net.listen(1, true);
    net.pass(RECONNECT_MAX);
    net.assert_linked(0, 1);
}
