#![forbid(unsafe_code)]
//! R2.1: finding the owner, and what a target admits.

use homing::{Counter, Error, ErrorKind, Metadata, block_on};

use super::command::{Command, Sight};
use super::eventually::eventually;
use super::probe::{Note, Show, Unknown, garbage, raw};
use super::world::{Asks, World, refused, route_of};

/// An id is all a caller needs, wherever the Actor lives and however often it was made anew.
///
/// Proves R2.1-1, R2.1-5.
#[test]
fn the_same_call_reaches_an_actor_wherever_it_lives() {
    let world = World::new();
    let (left, right) = (world.child(&world.setup("left")), world.child(&world.setup("right")));
    let (node, _) = world.node(&world.setup("caller"));
    left.create("on-left");
    right.create("on-right");
    node.make("here", None).unwrap();
    let metadata = Metadata::new([("trace", b"t-1".as_slice()), ("empty", b"")]).unwrap();
    for (id, rid) in [("on-left", "left"), ("on-right", "right"), ("here", "caller")] {
        let handle = node.actor(id).with_metadata(metadata.clone());
        handle.send(Note { number: 1 }).wait().unwrap();
        assert_eq!(handle.request(Note { number: 2 }).wait(), Ok(2));
        let shown = handle.request(Show {}).wait().unwrap();
        assert_eq!((shown.rid.as_str(), shown.notes), (rid, vec![1, 2]));
        let expected = [("trace".to_owned(), b"t-1".to_vec()), ("empty".to_owned(), Vec::new())];
        assert_eq!(shown.metadata, expected);
        assert!(shown.remaining_ms.is_some_and(|ms| ms > 0 && ms <= 5_000));
        // Raw payloads, what nobody handles, what cannot be decoded: alike too.
        let echo = block_on(node.actor(id).request(raw(b"\0bytes\xff"))).unwrap();
        assert_eq!((echo.name(), echo.bytes()), (super::probe::RAW, b"\0bytes\xff".as_slice()));
        refused(node.actor(id).request(Unknown {}).wait(), ErrorKind::NotFound);
        let bad = node.actor(id).request(garbage("probe.hold"));
        refused(bad.wait(), ErrorKind::ProtocolError);
    }
}

/// With a usable route nothing is resolved; without one the row is read, then the message goes, and
/// only the target decides.
///
/// Proves R2.1-2.
#[test]
fn cache_then_store_then_submit_then_admission() {
    let world = World::new();
    let owner = world.child(&world.setup("owner"));
    let (node, store) = world.node(&world.setup("caller"));
    // No object: the Store is asked, and nothing is submitted.
    refused(node.note("a", 1), ErrorKind::NotFound);
    assert_eq!((store.row_reads("a"), node.count(Counter::SubmittedRemote)), (1, 0));
    let made = owner.create("a");
    node.note("a", 1).unwrap();
    assert_eq!((store.row_reads("a"), node.count(Counter::SubmittedRemote)), (2, 1));
    assert_eq!(owner.counter(Counter::AdmittedRemote), 1);
    node.note("a", 2).unwrap();
    assert_eq!((store.row_reads("a"), node.count(Counter::SubmittedRemote)), (2, 2));
    // The row is gone and the cache does not know: submitted all the same, refused at the target.
    owner.destroy(&made).unwrap();
    refused(node.note("a", 3), ErrorKind::Unavailable);
    assert_eq!((store.row_reads("a"), node.count(Counter::SubmittedRemote)), (2, 3));
    assert_eq!(owner.counter(Counter::AdmittedRemote), 2);
    assert_eq!(owner.counter(Counter::RefusedStale), 1);
}

/// What was resolved for an earlier lifecycle of the owner's process is not admitted by the next
/// one, even where it listens and under the rid it has.
///
/// Proves R2.1-3.
#[test]
fn a_later_lifecycle_admits_nothing_meant_for_an_earlier_one() {
    let world = World::new();
    let (node, _) = world.node(&world.brief("caller"));
    let first = world.child(&world.brief("owner"));
    let mut again = world.brief("owner");
    again.listen = Some(first.endpoint.clone());
    first.create("a");
    node.note("a", 1).unwrap();
    let before = route_of(&node, "a");
    drop(first);
    // The rid is free once its lease has lapsed.
    let second = world.bare_child("again");
    eventually("the lease of the dead node to lapse", || {
        second.try_ask::<String>(Command::Start(again.clone())).ok()
    });
    // Nobody takes its objects over: the id stays Unavailable (R2.6-3), here as there.
    refused(node.note("a", 2), ErrorKind::Unavailable);
    assert_eq!(second.sight("a"), Sight::Unavailable);
    assert_eq!(second.counter(Counter::AdmittedRemote), 0);
    // Something new there is reached under the new fences.
    second.create("b");
    eventually("the new lifecycle to be reached", || node.note("b", 1).ok());
    let after = route_of(&node, "b");
    assert!(after.node_generation > before.node_generation);
    assert!(after.owner_lease_generation > before.owner_lease_generation);
}

/// A route whose object is gone is refused by the node that had it; the incarnation it carried
/// plays no part when another one is Ready.
///
/// Proves R2.1-3, R2.1-4, R2.6-1.
#[test]
fn the_carried_incarnation_plays_no_part() {
    let world = World::new();
    let owner = world.child(&world.setup("owner"));
    let (node, store) = world.node(&world.setup("caller"));
    let first = owner.create("a");
    node.note("a", 1).unwrap();
    for round in 0..3 {
        let old = if round == 0 { first.clone() } else { owner.create("a") };
        owner.destroy(&old).unwrap();
        let new = owner.create("a");
        assert_ne!(old.generation, new.generation);
        // Still the route of the first incarnation: no read, and the Ready one handles it.
        let shown = node.show("a").unwrap();
        assert_eq!((shown.generation, shown.notes), (new.generation, Vec::new()));
        node.note("a", round).unwrap();
        assert_eq!(owner.notes("a"), [round]);
        assert_eq!(store.row_reads("a"), 1);
        owner.destroy(&new).unwrap();
    }
    assert_eq!(owner.counter(Counter::RefusedStale), 0);
}

/// A node in an async runtime and one without take the same calls.
///
/// Proves R2.1-5.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_runtime_may_call_as_well_as_a_thread() {
    let world = World::new();
    let owner = world.child(&world.setup("owner"));
    let (node, _) = world.node(&world.setup("caller"));
    owner.create("a");
    let tasks: Vec<_> = (0..50)
        .map(|number| {
            let node = node.clone();
            tokio::spawn(async move { node.actor("a").request(Note { number }).await })
        })
        .collect();
    let mut counts = Vec::new();
    for task in tasks {
        counts.push(task.await.unwrap().unwrap());
    }
    counts.sort_unstable();
    assert_eq!(counts, (1..=50).collect::<Vec<u64>>());
    let (left, right) =
        tokio::join!(node.actor("a").request(Show {}), async { node.actors().find("a").await });
    assert_eq!(left.unwrap().notes.len(), 50);
    assert_eq!(right.unwrap().unwrap().rid.to_string(), "owner");
    // A future that is given up by the runtime is given up by the node.
    let gate = world.gate("g");
    let hold = super::probe::Hold { number: 1, gate: gate.clone() };
    let given_up =
        tokio::time::timeout(std::time::Duration::from_millis(50), node.actor("a").request(hold));
    assert!(given_up.await.is_err());
    eventually("the request to be given up", || {
        (node.count(Counter::RequestsCancelled) == 1).then_some(())
    });
    tokio::task::spawn_blocking(move || {
        owner.open_gate(&gate);
        drop(owner);
    })
    .await
    .unwrap();
    node.shutdown(std::time::Duration::from_secs(5)).await;
    let e: Error = node.actor("a").request(Show {}).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::ShuttingDown);
}
