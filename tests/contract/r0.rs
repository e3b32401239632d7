#![forbid(unsafe_code)]
//! R0: identities, fences, defaults, the closed set of errors.

use std::collections::BTreeSet;
use std::time::Duration;

use homing::ids::NodeRid;
use homing::{ErrorKind, Node, block_on};

use super::command::{Command, Ref};
use super::eventually::eventually;
use super::probe::{Fail, Note, Show};
use super::world::{Asks, World, refused, route_of};

/// Ids that differ in a byte name different Actors: case, normal form and space count.
///
/// Proves R0-1.
#[test]
fn ids_are_compared_byte_by_byte() {
    let world = World::new();
    let owner = world.child(&world.setup("owner"));
    let (node, _) = world.node(&world.setup("caller"));
    let longest = "ä".repeat(127) + "b";
    assert_eq!(longest.len(), 255);
    // One letter as one code point and as two, cases, a place that looks like one, a space.
    let ids = [
        "\u{e9}",
        "e\u{301}",
        "Room",
        "room",
        " room",
        "room ",
        "caller/room",
        &longest,
        "actor/x",
    ];
    for (number, id) in (0..).zip(ids) {
        owner.create(id);
        node.note(id, number).unwrap();
    }
    for (number, id) in (0..).zip(ids) {
        let shown = node.show(id).unwrap();
        assert_eq!((shown.id.as_str(), shown.notes), (id, vec![number]));
        // An id that looks like a place names none.
        assert_eq!(shown.rid, "owner");
    }
}

/// Proves R0-1.
#[test]
fn ids_that_break_the_rule_are_refused_at_the_call() {
    let world = World::new();
    let (node, store) = world.node(&world.setup("caller"));
    let reads = store.all_row_reads();
    let too_long = "x".repeat(256);
    for (id, word) in [("", "0 bytes"), (too_long.as_str(), "256 bytes"), ("a\0b", "NUL")] {
        let texts = [
            refused(node.note(id, 1), ErrorKind::InvalidOperation),
            refused(node.actor(id).send(Note { number: 1 }).wait(), ErrorKind::InvalidOperation),
            refused(node.make(id, None), ErrorKind::InvalidOperation),
            refused(block_on(node.actors().find(id)), ErrorKind::InvalidOperation),
        ];
        for text in texts {
            assert!(text.contains("actor id") && text.contains(word), "{text}");
        }
    }
    assert_eq!(store.all_row_reads(), reads, "a bad id never reaches the Store");
}

/// Rids of any 255 bytes and mesh names of 255 bytes of UTF-8 serve; one more byte is refused.
///
/// Proves R0-2.
#[test]
fn rids_and_mesh_names_at_their_bounds() {
    let world = World::new();
    let mesh = "m".repeat(255);
    let rid = vec![0xfe; 255];
    let owner = {
        let mut setup = world.setup(&NodeRid::new(&rid).unwrap().to_string());
        setup.mesh.clone_from(&mesh);
        // The child is told the rid as text; as bytes it has 255.
        setup.rid = "r".repeat(255);
        world.child_named(&setup, "owner")
    };
    let node = Node::builder(&mesh).rid(&rid).store(world.store()).start().unwrap();
    assert_eq!(node.rid().as_bytes(), rid);
    owner.create("a");
    node.note("a", 1).unwrap();
    assert_eq!(route_of(&node, "a").rid.as_bytes(), "r".repeat(255).as_bytes());
    assert_eq!(route_of(&node, "a").mesh.as_str(), mesh);

    let refused = |builder: homing::NodeBuilder, words: [&str; 2]| {
        let e = builder.store(world.store()).start().err().expect("it is refused");
        assert_eq!(e.kind(), ErrorKind::NotConfigured);
        assert!(words.iter().all(|word| e.text().contains(word)), "{e}");
    };
    refused(Node::builder(&mesh).rid([7; 256]), ["rid", "256 bytes"]);
    refused(Node::builder(&mesh).rid(""), ["rid", "0 bytes"]);
    refused(Node::builder(&"m".repeat(256)), ["mesh", "256 bytes"]);
    refused(Node::builder(""), ["mesh", "0 bytes"]);
    refused(Node::builder("a\0b"), ["mesh", "NUL"]);
}

/// Whoever makes an id anew, on whatever node, in whatever process lifecycle of it, the incarnation
/// is a new one.
///
/// Proves R0-3.
#[test]
fn an_object_generation_never_comes_back() {
    let world = World::new();
    let a = world.child(&world.setup("a"));
    let b = world.child(&world.setup("b"));
    let mut seen = BTreeSet::new();
    let mut round = |maker: &super::world::Child, other: &super::world::Child| {
        let made = maker.create("x");
        assert!(seen.insert(made.generation), "generation {} came back", made.generation);
        // A node that still has a route to the earlier lifecycle is told Unavailable for a while.
        eventually("it to be destroyed", || match other.destroy(&made) {
            Ok(()) => Some(()),
            Err(e) if e.kind() == ErrorKind::Unavailable => None,
            Err(e) => panic!("{e}"),
        });
    };
    for _ in 0..10 {
        round(&a, &b);
        round(&b, &a);
    }
    // A new lifecycle of a node counts on.
    a.ask::<()>(Command::Shutdown { deadline_ms: 5_000 });
    let a = world.child_named(&world.setup("a"), "a-again");
    for _ in 0..3 {
        round(&a, &b);
        round(&b, &a);
    }
}

/// Every operation has an id of its own, never zero; a local one as well as a remote one.
///
/// Proves R0-4.
#[test]
fn operation_ids_are_never_zero_and_never_equal() {
    let world = World::new();
    let owner = world.child(&world.setup("owner"));
    let (node, _) = world.node(&world.setup("caller"));
    owner.create("there");
    node.make("here", None).unwrap();
    let mut seen = BTreeSet::new();
    for _ in 0..50 {
        for id in ["there", "here"] {
            let operation = node.show(id).unwrap().operation;
            assert_ne!(operation, "0".repeat(32));
            assert!(seen.insert(operation.clone()), "operation {operation} came twice");
        }
    }
}

/// Each kind reaches the caller as it was raised, with its sentence, from near and from far.
///
/// Proves R0-5, R2.1-5, R4-5.
#[test]
fn every_error_kind_crosses_the_link_as_it_is() {
    let world = World::new();
    let owner = world.child(&world.setup("owner"));
    let (node, _) = world.node(&world.setup("caller"));
    owner.create("there");
    node.make("here", None).unwrap();
    for kind in ErrorKind::ALL {
        for id in ["there", "here"] {
            let text = format!("{kind} as the handler put it");
            let fail = Fail { kind: kind as u8, text: text.clone() };
            let e = node.actor(id).request(fail).wait().unwrap_err();
            assert_eq!((e.kind(), e.text()), (kind, text.as_str()), "from {id}");
        }
    }
}

/// The builder's value is the one in force.
///
/// Proves R0-6.
#[test]
fn the_request_timeout_of_the_builder_is_in_force() {
    let world = World::new();
    let gate = world.gate("never");
    let mut setup = world.setup("caller");
    setup.request_ms = Some(600);
    let (node, _) = world.node(&setup);
    node.make("a", None).unwrap();
    assert!(node.show("a").unwrap().remaining_ms.is_some_and(|ms| ms <= 600));
    refused(node.hold("a", 1, &gate), ErrorKind::DeadlineExceeded);
    // The caller's own word goes before it.
    let long = node.actor("a").request(Show {}).timeout(Duration::from_secs(60));
    super::probe::open_gate(&gate);
    assert!(long.wait().unwrap().remaining_ms.is_some_and(|ms| ms > 600));
}

/// At start and at every change: the pair is looked at before anything is done.
///
/// Proves R0-7.
#[test]
fn the_cache_age_stays_five_seconds_below_the_follow_duration() {
    let world = World::new();
    let mut setup = world.setup("n");
    (setup.cache_ms, setup.follow_ms) = (Some(25_001), Some(30_000));
    let e = setup.builder().store(world.store()).start().err().expect("it is refused");
    assert_eq!(e.kind(), ErrorKind::NotConfigured);
    for word in ["route_cache_max_age", "25.001s", "message_follow_duration", "30s", "5s"] {
        assert!(e.text().contains(word), "{e} does not say {word}");
    }
    // What is exactly five seconds, or switched off, is good.
    for (cache, follow) in [(25_000, 30_000), (0, 1), (60_000, 0)] {
        (setup.cache_ms, setup.follow_ms) = (Some(cache), Some(follow));
        let (node, _) = world.node(&setup);
        block_on(node.shutdown(Duration::from_secs(5)));
    }
    let (node, _) = world.node(&world.setup("n"));
    let s = Duration::from_secs;
    refused(node.set_route_cache_max_age(s(26)), ErrorKind::NotConfigured);
    refused(node.set_message_follow_duration(s(19)), ErrorKind::NotConfigured);
    node.set_message_follow_duration(s(20)).unwrap();
    // The refused changes changed nothing: 15 s is in force, so 20 s was the least.
    refused(node.set_message_follow_duration(s(19)), ErrorKind::NotConfigured);
    node.set_route_cache_max_age(s(0)).unwrap();
    node.set_message_follow_duration(s(1)).unwrap();
}

/// A peer that relays for five seconds only gives routes no time in any cache: they end five
/// seconds before its detour does.
///
/// Proves R0-7.
#[test]
fn a_cached_route_ends_before_its_peers_detour() {
    let world = World::new();
    let short = world.child(&{
        let mut setup = world.setup("short");
        (setup.cache_ms, setup.follow_ms) = (Some(0), Some(5_000));
        setup
    });
    let long = world.child(&world.setup("long"));
    let (node, store) = world.node(&world.setup("caller"));
    short.create("s");
    long.create("l");
    // The first message waits for its link too, and looks at the route again after that.
    node.note("s", 0).unwrap();
    let first = store.row_reads("s");
    for round in 1..=5 {
        node.note("s", round).unwrap();
        node.note("l", round).unwrap();
        let reads = store.row_reads("s") - first;
        assert_eq!(reads, round as usize, "a route of the short peer was cached");
        assert_eq!(store.row_reads("l"), 1);
    }
}

/// A ref says which incarnation stands where; a later lifecycle of the same rid has fences of its
/// own that nobody set.
///
/// Proves R0-3, R2.3-4.
#[test]
fn fences_come_from_the_store_and_not_from_the_caller() {
    let world = World::new();
    let (node, _) = world.node(&world.setup("caller"));
    let mut fences = BTreeSet::new();
    for round in 0..3 {
        let owner = world.child_named(&world.setup("owner"), &format!("owner-{round}"));
        let made: Ref = owner.create("x");
        let route = eventually("the new lifecycle to be seen", || {
            node.note("x", 1).ok().map(|_| route_of(&node, "x"))
        });
        assert_eq!(route.object_generation.get(), made.generation);
        assert!(fences.insert(("node", route.node_generation.get())));
        assert!(fences.insert(("lease", route.owner_lease_generation.get())));
        owner.ask::<()>(Command::Shutdown { deadline_ms: 5_000 });
    }
}
