#![forbid(unsafe_code)]
//! R2.4: when there is no object.

use homing::{Counter, ErrorKind, block_on};

use super::command::Sight;
use super::probe::{Note, Show};
use super::world::{Asks, World, refused};

/// A send and a request to an id that does not exist end NotFound on every node, and leave nothing.
///
/// Proves R2.4-1.
#[test]
fn a_message_to_nothing_creates_nothing() {
    let world = World::new();
    let host = world.child(&world.setup("host"));
    let (node, store) = world.node(&world.setup("caller"));
    for _ in 0..10 {
        let text = refused(node.note("a", 1), ErrorKind::NotFound);
        assert!(text.contains("\"a\""), "{text}");
        refused(node.actor("a").send(Note { number: 1 }).wait(), ErrorKind::NotFound);
        refused(block_on(node.actor("a").request(Show {})), ErrorKind::NotFound);
        node.actor("a").send(Note { number: 1 }).detach();
    }
    assert_eq!(node.sight("a"), Sight::Missing);
    assert_eq!(host.sight("a"), Sight::Missing);
    assert_eq!(block_on(node.actors().find("a")), Ok(None));
    assert_eq!(node.count(Counter::ObjectsCreated), 0);
    assert_eq!(host.counter(Counter::ObjectsCreated), 0);
    assert_eq!(node.count(Counter::SubmittedRemote), 0);
    assert!(store.row_reads("a") >= 30, "nothing was cached");
}

/// A turn is told the same.
///
/// Proves R2.4-1.
#[test]
fn a_turn_that_asks_nothing_is_told_so() {
    let world = World::new();
    let host = world.child(&world.setup("host"));
    let (node, _) = world.node(&world.setup("caller"));
    host.create("asker");
    let asked = node.ask("asker", super::r4::ask(1, "nobody", "")).unwrap();
    let (kind, text) = asked.reply.unwrap_err();
    assert_eq!(ErrorKind::from_wire(kind), Some(ErrorKind::NotFound), "{text}");
    assert_eq!(node.sight("nobody"), Sight::Missing);
}
