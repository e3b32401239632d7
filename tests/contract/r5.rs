#![forbid(unsafe_code)]
//! R5, as far as nothing moves: exactly once, in order, and a node past its lease.

use std::time::Duration;

use homing::{Counter, ErrorKind};

use super::eventually::eventually;
use super::probe::{Note, Show};
use super::world::{Asks, World};

/// What one sender sends to one Actor is handled once and in its order: the sends before the route
/// was known, those that waited for the link, for credit, and requests in between.
///
/// Proves R5-4.
#[test]
fn one_senders_order_holds_and_nothing_is_doubled() {
    let world = World::new();
    let mut setup = world.setup("owner");
    setup.cores = Some(2);
    let owner = world.child(&setup);
    let mut setup = world.setup("caller");
    setup.cores = Some(3);
    setup.send_ms = Some(60_000);
    let (node, _) = world.node(&setup);
    let ids: Vec<String> = (0..8).map(|n| format!("a{n}")).collect();
    ids.iter().for_each(|id| drop(owner.create(id)));
    std::thread::scope(|s| {
        for id in &ids {
            let node = &node;
            s.spawn(move || {
                let sends: Vec<_> =
                    (0..1_500).map(|number| node.actor(id).send(Note { number })).collect();
                // Behind them all, and answered when they have been handled.
                let handled = node.actor(id).request(Note { number: 1_500 });
                assert_eq!(handled.timeout(Duration::from_secs(60)).wait(), Ok(1_501));
                sends.into_iter().for_each(|send| send.wait().unwrap());
            });
        }
    });
    for id in &ids {
        let shown = node.actor(id).request(Show {}).wait().unwrap();
        assert_eq!(shown.notes, (0..=1_500).collect::<Vec<u64>>(), "{id}");
    }
}

/// A node that was stopped beyond its lease answers nothing until it has renewed; then it goes on,
/// its Actors as they stood, because nobody released it.
///
/// Proves R5-16, R5-4.
#[test]
fn a_node_past_its_lease_goes_on_when_it_renewed() {
    let world = World::new();
    let mut setup = world.brief("owner");
    // The link outlasts the pause, so that what was sent before it is still there after it.
    setup.liveness_ms = Some((20_000, 60_000));
    let owner = world.child(&setup);
    let mut setup = world.brief("caller");
    setup.liveness_ms = Some((20_000, 60_000));
    setup.request_ms = Some(60_000);
    let (node, _) = world.node(&setup);
    let made = owner.create("a");
    node.note("a", 1).unwrap();
    std::thread::scope(|s| {
        owner.pause();
        let during = s.spawn(|| node.note("a", 2));
        eventually("the request to be on its way", || {
            (node.count(Counter::SubmittedRemote) == 2).then_some(())
        });
        eventually("the owner's lease to lapse", || {
            match node.actor("a").request(Show {}).timeout(Duration::from_millis(200)).wait() {
                Err(e) if e.kind() == ErrorKind::Unavailable => Some(()),
                Err(e) if e.kind() == ErrorKind::DeadlineExceeded => None,
                other => panic!("{other:?}"),
            }
        });
        assert!(!during.is_finished());
        owner.resume();
        assert_eq!(during.join().unwrap(), Ok(2), "it is handled once the lease stands again");
    });
    let shown = eventually("the owner to be back", || node.show("a").ok());
    assert_eq!((shown.generation, shown.notes), (made.generation, vec![1, 2]));
}

/// The Store fails for longer than a lease: the cluster pauses and loses nothing.
///
/// Proves R5-16.
#[test]
fn a_long_outage_of_the_store_pauses_and_loses_nothing() {
    let world = World::new();
    let owner = world.child(&world.brief("owner"));
    let (node, store) = world.node(&world.brief("caller"));
    node.make("here", None).unwrap();
    owner.create("there");
    for id in ["here", "there"] {
        node.note(id, 1).unwrap();
    }
    store.fail(true);
    eventually("the own lease to lapse", || (node.count(Counter::LeaseLapses) == 1).then_some(()));
    std::thread::scope(|s| {
        let waiting = s.spawn(|| {
            node.actor("here").request(Note { number: 2 }).timeout(Duration::from_secs(60)).wait()
        });
        let short = node.actor("here").request(Note { number: 9 });
        let e = short.timeout(Duration::from_millis(200)).wait().unwrap_err();
        assert_eq!(e.kind(), ErrorKind::DeadlineExceeded, "{e}");
        assert!(e.text().contains("lease"), "{e}");
        assert!(!waiting.is_finished(), "nothing is run or answered");
        store.fail(false);
        assert_eq!(waiting.join().unwrap(), Ok(2));
    });
    assert_eq!(node.show("here").unwrap().notes, [1, 2]);
    assert_eq!(eventually("the other node to be reached", || node.note("there", 2).ok()), 2);
}
