#![forbid(unsafe_code)]
//! R2.5, as far as nothing moves: a message at a node that has no follow route.

use homing::{Counter, ErrorKind};

use super::eventually::eventually;
use super::probe::Note;
use super::world::{Asks, World, refused};

/// A stale request ends Unavailable, at once and for good: the framework submits it nowhere else,
/// and only the next call resolves.
///
/// Proves R2.5-6, R2.5-8, R4-7.
#[test]
fn a_stale_request_ends_and_is_not_submitted_again() {
    let world = World::new();
    let old = world.child(&world.setup("old"));
    let new = world.child(&world.setup("new"));
    let (node, store) = world.node(&world.setup("caller"));
    for round in 0..5 {
        let made = old.create("a");
        eventually("the caller to have a route to the old owner", || {
            node.note("a", round).ok().filter(|_| old.notes("a").contains(&round))
        });
        old.destroy(&made).unwrap();
        let made = new.create("a");
        let (reads, submitted) = (store.row_reads("a"), node.count(Counter::SubmittedRemote));
        let text = refused(node.note("a", 100 + round), ErrorKind::Unavailable);
        assert!(text.contains("old"), "the sentence names the node that refused: {text}");
        assert_eq!(store.row_reads("a"), reads, "the failed call read nothing");
        assert_eq!(node.count(Counter::SubmittedRemote), submitted + 1);
        assert_eq!(new.notes("a"), [0; 0]);
        assert_eq!(node.note("a", 200 + round), Ok(1), "the next call resolves");
        assert_eq!(store.row_reads("a"), reads + 1);
        new.destroy(&made).unwrap();
        refused(node.note("a", 300 + round), ErrorKind::Unavailable);
    }
    assert_eq!(old.counter(Counter::RefusedStale), 5);
}

/// Case: 1,000 stale sends ⇒ 0 activations, flat memory.
///
/// Each is dropped and counted at the node that has nothing under the id; its factory runs for none.
///
/// Proves R2.5-6, R2.5-8, R2.4-1.
#[test]
fn a_thousand_stale_sends_activate_nothing() {
    let world = World::new();
    let old = world.child(&world.setup("old"));
    let new = world.child(&world.setup("new"));
    let (node, store) = world.node(&world.setup("caller"));
    let made = old.create("a");
    node.note("a", 1).unwrap();
    old.destroy(&made).unwrap();
    new.create("a");
    let (created, reads) = (old.counter(Counter::ObjectsCreated), store.row_reads("a"));
    let sends: Vec<_> = (0..1_000).map(|number| node.actor("a").send(Note { number })).collect();
    for send in sends {
        // Local admission: what becomes of it there is counted there.
        send.wait().unwrap();
    }
    eventually("all of them to be dropped", || {
        (old.counter(Counter::DroppedStale) == 1_000).then_some(())
    });
    assert_eq!(old.counter(Counter::ObjectsCreated), created);
    assert_eq!(store.row_reads("a"), reads);
    assert_eq!(new.notes("a"), [0; 0], "none was sent on");
    // All credit came back: the way is free for as many again.
    refused(node.note("a", 2), ErrorKind::Unavailable);
    let sends: Vec<_> = (0..1_000).map(|number| node.actor("a").send(Note { number })).collect();
    sends.into_iter().for_each(|send| send.wait().unwrap());
    node.note("a", 5_000).unwrap();
    assert_eq!(new.notes("a").len(), 1_001);
}
