#![forbid(unsafe_code)]
//! Needs, failures, and the pauses between them.

use std::time::Duration;

use super::super::admit::Peer;
use super::super::event::PeerCloseReason as R;
use super::super::reconnect::{Pause, longest_pause};
use super::super::*;
use super::net::Net;
use super::{config, descriptor, endpoint, rid};
use crate::limits::{HANDSHAKE_TIMEOUT, RECONNECT_MAX, RECONNECT_MIN};

fn alone() -> Net {
    Net::new([config("a", 1, 1), config("b", 2, 1)])
}

#[test]
fn pauses_double_up_to_the_longest() {
    let all: Vec<_> = (0..9).map(|n| longest_pause(n).as_millis()).collect();
    assert_eq!(all, [50, 50, 100, 200, 400, 800, 1600, 3200, 5000]);
    assert_eq!(longest_pause(33), RECONNECT_MAX);
    assert_eq!(longest_pause(u32::MAX), RECONNECT_MAX);
}

/// A need in the pause fails at once and says when the next attempt is; that attempt is made,
/// and pauses grow within their bounds.
#[test]
fn needs_fail_fast_and_pauses_grow() {
    let mut net = alone();
    net.listen(1, false);
    for failures in (1..12).step_by(2) {
        // Nobody wanted it for a while: the need dials, and fails with its dial.
        net.event(0, PeerEvent::Need { descriptor: descriptor("b", 2) });
        net.settle();
        assert_eq!(net.nodes[0].dials, failures);
        let (_, why, next) = net.nodes[0].need_failures.last().unwrap();
        let (pause, longest) = (next.unwrap(), longest_pause(failures));
        assert!(pause <= longest && pause >= longest / 2, "{pause:?}");
        assert!(why.contains("connection refused") && why.contains("next attempt"), "{why}");
        // Asked again half way: no dial, the same reason, the time that is left.
        net.pass(pause / 2);
        let failed = net.nodes[0].need_failures.len();
        net.event(0, PeerEvent::Need { descriptor: descriptor("b", 2) });
        assert_eq!((net.nodes[0].dials, net.nodes[0].need_failures.len()), (failures, failed + 1));
        let (_, why, left) = &net.nodes[0].need_failures[failed];
        assert!(why.contains("connection refused"), "{why}");
        assert_eq!(left.unwrap(), pause - pause / 2);
        // The attempt is made although nobody waits for it; after that nobody wants it.
        net.pass(pause - pause / 2);
        assert_eq!(net.nodes[0].dials, failures + 1);
        net.pass(RECONNECT_MAX * 3);
        assert_eq!(net.nodes[0].dials, failures + 1);
        assert_eq!(net.nodes[0].need_failures.len(), failed + 1);
    }
    net.assert_needs_answered();
}

#[test]
fn different_nodes_do_not_retry_in_step() {
    let pauses: Vec<_> = (0..20)
        .map(|n| {
            let mut net = Net::new([config(&format!("n{n}"), n + 1, 1)]);
            net.event(0, PeerEvent::Need { descriptor: descriptor("b", 100) });
            net.settle();
            net.nodes[0].need_failures[0].2.unwrap()
        })
        .collect();
    let mut distinct = pauses.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert!(distinct.len() > 15, "{pauses:?}");
}

/// All that wait share one dial and one outcome.
#[test]
fn needs_that_wait_together_end_together() {
    let mut net = alone();
    for _ in 0..5 {
        net.event(0, PeerEvent::Need { descriptor: descriptor("b", 2) });
    }
    assert_eq!(net.nodes[0].unanswered[&rid("b")], 5);
    net.settle();
    net.assert_needs_answered();
    assert_eq!(net.nodes[0].dials, 1);
    net.event(0, PeerEvent::Need { descriptor: descriptor("b", 2) });
    net.assert_needs_answered();
    assert_eq!(net.nodes[0].dials, 1);
}

/// A dial that never gets through ends by the handshake's timeout.
#[test]
fn a_dial_into_the_void_times_out() {
    let mut machine = super::peers(config("a", 1, 1));
    let mut out = Vec::new();
    machine.step(PeerEvent::Need { descriptor: descriptor("b", 2) }, Nanos(0), &mut out);
    let PeerEffect::Dial { dial, .. } = out[0] else { panic!("{out:?}") };
    let due = machine.next_deadline();
    assert_eq!(due, Nanos(0) + HANDSHAKE_TIMEOUT);
    out.clear();
    machine.step(PeerEvent::Tick, due, &mut out);
    let failed = |e: &PeerEffect| matches!(e, PeerEffect::NeedFailed { reason, .. } if reason.contains("5s"));
    assert!(out.iter().any(failed), "{out:?}");
    // Its stream is named late, and closed.
    assert!(machine.given_up.contains_key(&dial));
    out.clear();
    machine.step(PeerEvent::Dialed { dial, conn: ConnId(5) }, due, &mut out);
    assert!(matches!(out[0], PeerEffect::Close { reason: R::NotWanted, .. }), "{out:?}");
    machine.step(PeerEvent::Connected { conn: ConnId(5) }, due, &mut out);
    assert!(machine.is_quiet());
}

/// A link that lived is dialled again at once; one that did not counts as a failure.
#[test]
fn a_link_that_flaps_is_dialled_less_and_less() {
    let mut net = alone();
    let lose = |net: &mut Net| {
        let (link, _) = net.nodes[0].machine.link_to(&rid("b")).unwrap();
        net.event(
            0,
            PeerEvent::LaneLost {
                link,
                lane: 0,
                loss: LaneLoss::Stream,
                reason: "reset".to_owned(),
            },
        );
        net.settle();
    };
    net.event(0, PeerEvent::Need { descriptor: descriptor("b", 2) });
    net.settle();
    for failures in 1..6 {
        lose(&mut net);
        net.event(0, PeerEvent::Need { descriptor: descriptor("b", 2) });
        let (_, why, next) = net.nodes[0].need_failures.last().unwrap();
        assert!(why.contains("lane 0 was lost: reset"), "{why}");
        let longest = longest_pause(failures);
        assert!(next.unwrap() >= longest / 2 && next.unwrap() <= longest);
        let next = next.unwrap();
        net.pass(next);
        net.assert_linked(0, 1);
    }
    net.pass(RECONNECT_MAX);
    lose(&mut net);
    let failed = net.nodes[0].need_failures.len();
    net.event(0, PeerEvent::Need { descriptor: descriptor("b", 2) });
    net.settle();
    net.assert_linked(0, 1);
    assert_eq!(net.nodes[0].need_failures.len(), failed);
    // What it owed is forgotten: the next young loss is the first.
    lose(&mut net);
    net.event(0, PeerEvent::Need { descriptor: descriptor("b", 2) });
    assert!(net.nodes[0].need_failures.last().unwrap().2.unwrap() <= longest_pause(1));
}

/// Nobody wants the link: nobody dials.
#[test]
fn without_need_or_intent_a_lost_link_stays_down() {
    let mut net = alone();
    net.event(0, PeerEvent::Need { descriptor: descriptor("b", 2) });
    net.pass(RECONNECT_MAX);
    net.cut(0, false);
    net.pass(RECONNECT_MAX * 10);
    assert!(net.nodes.iter().all(|n| n.links.is_empty() && n.machine.is_quiet()));
    assert_eq!(net.nodes[0].dials, 1);
}

/// A new lifecycle owes nothing for the failures of the old one.
///
/// Proves R2.3-2.
#[test]
fn a_new_lifecycle_is_dialled_at_once() {
    let mut net = alone();
    net.listen(1, false);
    net.event(0, PeerEvent::Need { descriptor: descriptor("b", 2) });
    net.settle();
    net.event(0, PeerEvent::Need { descriptor: descriptor("b", 2) });
    assert_eq!((net.nodes[0].dials, net.nodes[0].need_failures.len()), (1, 2));
    net.restart(1, config("b", 5, 1));
    net.event(0, PeerEvent::Need { descriptor: descriptor("b", 5) });
    net.settle();
    net.assert_linked(0, 1);
}

/// A process that died and came back under the same endpoint is reached again.
///
/// Proves R2.3-2, R5-4.
#[test]
fn a_killed_node_comes_back_as_a_new_lifecycle() {
    let mut net = Net::new([config("a", 1, 3), config("b", 2, 3)]);
    net.event(0, PeerEvent::Intent { intent: IntentId(1), endpoint: endpoint("b") });
    net.settle();
    net.assert_linked(0, 1);
    net.kill(1);
    net.pass(Duration::from_secs(2));
    assert!(net.nodes[0].links.is_empty());
    net.restart(1, config("b", 9, 2));
    net.pass(RECONNECT_MAX * 2);
    net.assert_linked(0, 1);
    assert!(RECONNECT_MIN < RECONNECT_MAX);
}

/// The smaller rid keeps its own dial and tells the larger; when that dial then dies, the larger
/// does not wait for ever.
#[test]
fn a_dial_that_gave_way_is_not_forgotten_when_the_other_dies() {
    let mut start = alone();
    start.event(0, PeerEvent::Need { descriptor: descriptor("b", 2) });
    start.event(1, PeerEvent::Need { descriptor: descriptor("a", 1) });
    // The first order in which the larger rid hears that it is refused while the proof of the
    // smaller one is still on its way.
    let mut net = (0..10_000)
        .find_map(|mut order: usize| {
            let mut net = start.clone();
            while net.choices() > 0 {
                net.deliver(order % net.choices());
                order /= 2;
                let waits = |p: &Peer| matches!(p.pause, Pause::TheirDial { .. });
                if net.nodes[1].machine.peers.values().any(waits) {
                    return Some(net);
                }
            }
            None
        })
        .expect("there is such an order");
    assert_eq!(net.nodes[0].closed_for(R::SimultaneousDial), 1);
    assert!(net.nodes[1].need_failures.is_empty());
    let mut whole = net.clone();
    whole.settle();
    assert!(whole.assert_linked(0, 1));
    whole.assert_needs_answered();
    // Its end is told at once, without waiting for the timeout.
    while net.cut(0, true) {}
    net.settle();
    net.assert_needs_answered();
    assert!(net.nodes.iter().all(|n| n.need_failures.len() == 1));
    net.event(1, PeerEvent::Need { descriptor: descriptor("a", 1) });
    net.pass(RECONNECT_MAX);
    net.assert_linked(0, 1);
}
