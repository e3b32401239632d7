#![forbid(unsafe_code)]
//! Peers behind a network whose packets vanish: noticed by liveness, and in nobody else's way.

use std::time::Instant;

use homing::{Counter, ErrorKind};

use super::command::{Command, Setup};
use super::eventually::eventually;
use super::namespace::TwoHosts;
use super::world::{Child, World};

const FLAPS: u64 = 4;

fn host(stage: (&World, &TwoHosts, &str), at: usize, rid: &str, port: u16) -> Child {
    let (world, hosts, driver) = stage;
    let setup = Setup {
        driver: Some(driver.into()),
        secret: Some("correct horse battery".into()),
        listen: Some(hosts.endpoint(at, port)),
        liveness_ms: Some((300, 1_500)),
        handshake_ms: Some(1_000),
        request_ms: Some(700),
        ..world.setup(rid)
    };
    world.child_under(&setup, rid, &hosts.launcher(at))
}

fn note(child: &Child, id: &str, number: u64) -> homing::Result<u64> {
    child.try_ask(Command::Note { id: id.into(), number, is_request: true })
}

fn silent(child: &Child) -> u64 {
    child.closes().get("peer_lane_silent").copied().unwrap_or(0)
}

/// The peer's packets vanish; nothing is reset. Both sides notice within their liveness timeout, end
/// what was under way, and four such flaps later data flows as before.
///
/// Proves R0-6, R4-6, R5-4.
#[test]
fn a_half_open_peer_is_noticed_and_comes_back() {
    // `auto` is io_uring wherever the kernel allows it.
    ["epoll", "auto"].into_iter().for_each(flaps);
}

fn flaps(driver: &str) {
    let world = World::new();
    let hosts = TwoHosts::new();
    let stage = (&world, &hosts, driver);
    let owner = host(stage, 0, "owner", 7000);
    let caller = host(stage, 1, "caller", 7000);
    owner.create("a");
    let mut number = 1;
    eventually("the link to be made", || note(&caller, "a", number).ok());
    for flap in 1..=FLAPS {
        hosts.vanish(true);
        let begun = Instant::now();
        number += 1;
        let e = note(&caller, "a", number).unwrap_err();
        assert!(matches!(e.kind(), ErrorKind::DeadlineExceeded | ErrorKind::Unavailable), "{e}");
        for side in [&caller, &owner] {
            eventually("the half-open link to be given up", || {
                (silent(side) == flap && side.counter(Counter::LinksDown) == flap).then_some(())
            });
            eprintln!("{driver}, flap {flap}: {} noticed by {:?}", side.rid, begun.elapsed());
        }
        hosts.vanish(false);
        number += 1;
        eventually("data to flow again", || note(&caller, "a", number).ok());
        assert_eq!((silent(&caller), silent(&owner)), (flap, flap));
    }
    assert_eq!(caller.counter(Counter::LinksUp), FLAPS + 1);
    let notes = owner.notes("a");
    assert!(notes.is_sorted(), "what was answered kept its order: {notes:?}");
    assert!(notes.contains(&1) && notes.contains(&number));
}

/// Case: Blackhole one peer ⇒ others unaffected.
///
/// Three nodes, one of them behind the network that swallows everything: the other two work as before,
/// also the very node whose requests to the lost one end by their deadlines.
///
/// Proves R2.2-8, R4-6.
#[test]
fn a_blackholed_peer_delays_no_other() {
    ["epoll", "auto"].into_iter().for_each(three_nodes);
}

fn three_nodes(driver: &str) {
    let world = World::new();
    let hosts = TwoHosts::new();
    let stage = (&world, &hosts, driver);
    let near = host(stage, 0, "near", 7000);
    let caller = host(stage, 0, "caller", 7001);
    let far = host(stage, 1, "far", 7000);
    near.create("n");
    far.create("f");
    for id in ["n", "f"] {
        eventually("the links to be made", || note(&caller, id, 0).ok());
    }
    hosts.vanish(true);
    for round in 0..5 {
        let lost: Vec<_> = (0..4)
            .map(|number| {
                let id = "f".to_owned();
                caller.begin(Command::Note { id, number, is_request: true })
            })
            .collect();
        // Every one of them is answered, whatever becomes of those to the lost peer.
        assert_eq!(
            caller.ask::<u64>(Command::Burst { id: "n".into(), count: 100 }),
            100,
            "{round}"
        );
        for request in lost {
            let e = request.end::<u64>().unwrap_err();
            assert!(
                matches!(e.kind(), ErrorKind::DeadlineExceeded | ErrorKind::Unavailable),
                "{e}"
            );
        }
    }
    eventually("the lost peer to be given up", || (silent(&caller) == 1).then_some(()));
    assert_eq!(near.counter(Counter::LinksDown), 0);
    assert_eq!(near.notes("n").len(), 501);
    hosts.vanish(false);
    eventually("the lost peer to be back", || note(&caller, "f", 9).ok());
    assert_eq!(near.counter(Counter::LinksDown), 0);
}
