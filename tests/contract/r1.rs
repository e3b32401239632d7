#![forbid(unsafe_code)]
//! R1: which route a message uses.

use homing::{Counter, Metadata, block_on};

use super::command::Command;
use super::probe::Show;
use super::world::{Asks, World};

/// The first message reads the Actor's row once; then the route is cached; creation apart, nothing
/// else a caller does with a message reads one.
///
/// Proves R1-1.
#[test]
fn only_a_message_without_a_usable_route_reads_the_store() {
    let world = World::new();
    let owner = world.child(&world.setup("owner"));
    let (node, store) = world.node(&world.setup("caller"));
    owner.create("a");
    assert_eq!(store.row_reads("a"), 0);
    node.note("a", 1).unwrap();
    assert_eq!(store.row_reads("a"), 1, "one resolution");
    for number in 2..=20 {
        node.note("a", number).unwrap();
        node.actor("a").send(super::probe::Note { number: 100 + number }).wait().unwrap();
    }
    assert_eq!(store.row_reads("a"), 1, "the cached route serves");
    assert_eq!(node.count(Counter::CacheMisses), 1);
    assert_eq!(node.count(Counter::CacheHits), 38, "each operation counts once");
    // Local objects take neither.
    node.make("here", None).unwrap();
    let reads = store.all_row_reads();
    for number in 1..=20 {
        node.note("here", number).unwrap();
    }
    assert_eq!(store.all_row_reads(), reads);
}

/// The answering node never looks the requester up: it reads no row, whoever asks.
///
/// Proves R1-3, R4-1.
#[test]
fn a_reply_takes_the_way_its_request_carried() {
    let world = World::new();
    let owner = world.child(&world.setup("owner"));
    let (node, _) = world.node(&world.setup("caller"));
    let (second, _) = world.node(&world.setup("second"));
    owner.create("a");
    let rows: usize = owner.ask(Command::RowReads);
    for number in 0..25 {
        // Metadata that looks like a way back is the application's own business.
        let misleading = [
            ("reply-route", b"second".as_slice()),
            ("correlation", b"1".as_slice()),
            ("origin", b"nowhere".as_slice()),
        ];
        let metadata = Metadata::new(misleading).unwrap();
        for asker in [&node, &second] {
            let handle = asker.actor("a").with_metadata(metadata.clone());
            let shown = block_on(handle.request(Show {})).unwrap();
            assert_eq!(shown.metadata.len(), 3);
            asker.note("a", number).unwrap();
        }
    }
    assert_eq!(owner.ask::<usize>(Command::RowReads), rows, "a reply read the Store");
    assert_eq!(owner.counter(Counter::RepliesSent), 100);
    assert_eq!(owner.counter(Counter::RepliesUnroutable), 0);
}
