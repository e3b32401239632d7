#![forbid(unsafe_code)]
//! Two nodes that dial each other, in every order in which things can happen.

use std::time::Duration;

use proptest::prelude::*;

use super::super::*;
use super::net::Net;
use super::{config, descriptor, endpoint, identity};
use crate::ids::FixedSet;
use crate::limits::RECONNECT_MAX;

/// Visits every state that can be reached and checks those in which nothing is left to happen.
fn explore(start: Net, at_rest: &dyn Fn(&Net)) -> usize {
    let mut seen = FixedSet::default();
    let mut open = vec![start];
    while let Some(net) = open.pop() {
        if net.choices() == 0 {
            at_rest(&net);
        }
        for n in 0..net.choices() {
            let mut next = net.clone();
            next.deliver(n);
            if !seen.contains(&next) {
                seen.insert(next.clone());
                open.push(next);
            }
        }
        assert!(seen.len() < 2_000_000, "too many states to visit");
    }
    seen.len()
}

fn one_link_and_no_failure(net: &Net) {
    net.assert_linked(0, 1);
    net.assert_needs_answered();
    assert!(net.nodes.iter().all(|n| n.need_failures.is_empty() && n.links_down == 0));
}

/// Proves R2.3-3, R2.3-5.
#[test]
fn needs_on_both_sides_make_one_link_in_every_order() {
    let mut net = Net::new([config("a", 1, 1), config("b", 2, 1)]);
    net.event(0, PeerEvent::Need { descriptor: descriptor("b", 2) });
    net.event(1, PeerEvent::Need { descriptor: descriptor("a", 1) });
    let states = explore(net, &one_link_and_no_failure);
    assert!(states > 100, "{states}");
}

/// Proves R2.3-1, R2.3-3.
#[test]
fn an_intent_against_a_need_makes_one_link_in_every_order() {
    for (intent_at, need_at) in [(0, 1), (1, 0)] {
        let names = ["a", "b"];
        let mut net = Net::new([config("a", 1, 1), config("b", 2, 1)]);
        let there = endpoint(names[need_at]);
        net.event(intent_at, PeerEvent::Intent { intent: IntentId(1), endpoint: there });
        let descriptor = descriptor(names[intent_at], intent_at as u64 + 1);
        net.event(need_at, PeerEvent::Need { descriptor });
        explore(net, &|net| {
            one_link_and_no_failure(net);
            let view = net.nodes[intent_at].machine.intents().next().unwrap();
            assert!(
                matches!(view.state, IntentState::Linked(_) | IntentState::Attached(_)),
                "{view:?}"
            );
        });
    }
}

/// Where both get as far as a proof, the link dialled by the smaller rid stays.
#[test]
fn the_dial_of_the_smaller_rid_stays() {
    let mut net = Net::new([config("a", 1, 2), config("b", 2, 2)]);
    net.event(0, PeerEvent::Need { descriptor: descriptor("b", 2) });
    net.event(1, PeerEvent::Need { descriptor: descriptor("a", 1) });
    // In step: each side is as far as the other at every moment.
    while net.choices() > 0 {
        for n in (0..net.choices()).rev() {
            if n < net.choices() {
                net.deliver(n);
            }
        }
    }
    assert!(net.assert_linked(0, 1), "the link was dialled by the larger rid");
    assert_eq!(net.nodes[0].links_down + net.nodes[1].links_down, 0);
}

/// What a random run does next.
#[derive(Clone, Debug)]
enum Act {
    Deliver(usize, usize),
    Cut(usize),
    Need(usize),
    Timer,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        40 => (any::<usize>(), any::<usize>()).prop_map(|(n, cut)| Act::Deliver(n, cut)),
        1 => any::<usize>().prop_map(Act::Cut),
        2 => (0..2usize).prop_map(Act::Need),
        1 => Just(Act::Timer),
    ]
}

fn run(net: &mut Net, acts: Vec<Act>) {
    let descriptors = [descriptor("b", 2), descriptor("a", 1)];
    for act in acts {
        match act {
            Act::Deliver(n, cut) if net.choices() > 0 => net.deliver_cut(n % net.choices(), cut),
            Act::Deliver(..) => {}
            Act::Cut(n) => {
                net.cut(n / 2, n % 2 == 0);
            }
            Act::Need(node) => {
                net.event(node, PeerEvent::Need { descriptor: descriptors[node].clone() });
            }
            Act::Timer => {
                net.fire_next();
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Two dials of one node to the same peer (a need and an intent) and one the other way.
    ///
    /// Proves R2.3-3.
    #[test]
    fn three_dials_make_one_link(order in prop::collection::vec(any::<usize>(), 200)) {
        let mut net = Net::new([config("a", 1, 2), config("b", 2, 2)]);
        net.event(0, PeerEvent::Intent { intent: IntentId(1), endpoint: endpoint("b") });
        net.event(0, PeerEvent::Need { descriptor: descriptor("b", 2) });
        net.event(1, PeerEvent::Need { descriptor: descriptor("a", 1) });
        for n in order {
            if net.choices() > 0 {
                net.deliver(n % net.choices());
            }
        }
        net.settle();
        one_link_and_no_failure(&net);
    }

    /// Whatever was cut, cut up and timed out on the way: every need is answered, and once
    /// nothing breaks any more one need makes one whole link.
    ///
    /// Proves R2.3-3, R2.3-5, R5-4.
    #[test]
    fn any_run_ends_in_one_link(
        cores in (1..=4u16, 1..=4u16),
        acts in prop::collection::vec(act(), 0..400),
    ) {
        let mut net = Net::new([config("a", 1, cores.0), config("b", 2, cores.1)]);
        run(&mut net, acts);
        // Long enough for every handshake and pause.
        net.pass(Duration::from_secs(30));
        net.assert_needs_answered();
        net.event(0, PeerEvent::Need { descriptor: descriptor("b", 2) });
        net.pass(Duration::from_secs(30));
        net.assert_needs_answered();
        net.assert_linked(0, 1);
        let lanes = net.nodes[0].standing()[0].1.info.lanes;
        prop_assert_eq!(lanes, cores.0.max(cores.1));
        prop_assert_eq!(net.nodes[0].machine.half_open.len(), 0);
    }

    /// With intents on both sides the link comes back by itself, and then stays.
    ///
    /// Proves R2.3-3, R5-4.
    #[test]
    fn intents_come_back_and_do_not_flap(acts in prop::collection::vec(act(), 0..400)) {
        let mut net = Net::new([config("a", 1, 3), config("b", 2, 2)]);
        net.event(0, PeerEvent::Intent { intent: IntentId(7), endpoint: endpoint("b") });
        net.event(1, PeerEvent::Intent { intent: IntentId(9), endpoint: endpoint("a") });
        run(&mut net, acts);
        net.pass(Duration::from_secs(30));
        net.assert_linked(0, 1);
        let before: Vec<_> = net.nodes.iter().map(|n| (n.dials, n.links_down)).collect();
        net.pass(RECONNECT_MAX * 20);
        net.assert_linked(0, 1);
        let after: Vec<_> = net.nodes.iter().map(|n| (n.dials, n.links_down)).collect();
        prop_assert_eq!(before, after);
        let known: Vec<_> = net.nodes[0].machine.peers.values().map(|p| p.known.clone()).collect();
        prop_assert_eq!(known, vec![identity("b", 2)]);
    }
}
