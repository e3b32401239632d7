#![forbid(unsafe_code)]
//! R2.6: where the incarnation counts, and what a dead owner leaves.

use homing::{Counter, ErrorKind, block_on};

use super::command::{Command, Made, Ref, Sight};
use super::eventually::eventually;
use super::probe::{Hold, Make};
use super::world::{Asks, World, refused};

/// A destroy names its incarnation: with an old ref nothing is destroyed, from the owner, from a
/// node that has a route, and from one that has none.
///
/// Proves R2.6-2.
#[test]
fn a_destroy_touches_its_own_incarnation_only() {
    let world = World::new();
    let owner = world.child(&world.setup("owner"));
    let other = world.child(&world.setup("other"));
    let (node, _) = world.node(&world.setup("caller"));
    let old = owner.create("a");
    owner.destroy(&old).unwrap();
    let new = owner.create("a");
    node.note("a", 1).unwrap();
    for _ in 0..2 {
        let text = refused(owner.destroy(&old), ErrorKind::InvalidOperation);
        assert!(text.contains(&old.generation.to_string()), "{text}");
        refused(other.destroy(&old), ErrorKind::InvalidOperation);
        let destroy = block_on(node.actors().destroy(&old.actor_ref()));
        refused(destroy, ErrorKind::InvalidOperation);
    }
    assert_eq!(owner.notes("a"), [1], "the new incarnation is untouched");
    // Where the ref says it lives plays no part; the incarnation does.
    let elsewhere = Ref { rid: "nowhere".into(), ..new };
    other.destroy(&elsewhere).unwrap();
    refused(owner.destroy(&elsewhere), ErrorKind::NotFound);
    let again = block_on(node.actors().destroy(&elsewhere.actor_ref())).unwrap_err();
    assert!(matches!(again.kind(), ErrorKind::NotFound | ErrorKind::Unavailable), "{again}");
    assert_eq!(owner.sight("a"), Sight::Missing);
}

/// What runs is let end, what waits is told, `on_closing` runs, and then the id is free.
///
/// Proves R2.6-2, R4-6.
#[test]
fn a_destroy_lets_the_turn_end_and_tells_the_queue() {
    let world = World::new();
    let owner = world.child(&world.setup("owner"));
    let (node, _) = world.node(&world.setup("caller"));
    let (turn, closing) = (world.gate("turn"), world.gate("closing"));
    let make = Make { closing_gate: closing.clone(), ..Make::default() };
    let made = owner.make("a", Some(&make)).unwrap().standing();
    std::thread::scope(|s| {
        let running = s.spawn(|| node.hold("a", 1, &turn));
        owner.await_waiting(&turn, 1);
        let queued = s.spawn(|| node.note("a", 2));
        eventually("the second request to be there", || {
            (owner.counter(Counter::AdmittedRemote) == 2).then_some(())
        });
        let destroying = owner.begin(Command::Destroy(made.clone()));
        refused(queued.join().unwrap(), ErrorKind::Unavailable);
        assert_eq!(owner.ask::<usize>(Command::WaitingAt { name: closing.clone() }), 0);
        owner.open_gate(&turn);
        assert_eq!(running.join().unwrap(), Ok(1), "the running turn answers");
        owner.await_waiting(&closing, 1);
        owner.open_gate(&closing);
        destroying.end::<()>().unwrap();
    });
    assert_eq!(owner.counter(Counter::ObjectsDestroyed), 1);
    assert_ne!(owner.create("a").generation, made.generation);
}

/// The owner's process is killed: what was on its way ends Unavailable, and so does all that comes,
/// before its lease has lapsed and after; nothing is made again anywhere.
///
/// Proves R2.6-3, R4-6, R4-7.
#[test]
fn a_killed_owner_leaves_its_actors_unavailable() {
    let world = World::new();
    let mut owner = world.child(&world.brief("owner"));
    let bystander = world.child(&world.brief("bystander"));
    let mut setup = world.brief("caller");
    setup.request_ms = Some(20_000);
    let (node, _) = world.node(&setup);
    let counted = world.counted("runs");
    owner.make("a", Some(&counted)).unwrap();
    assert_eq!(world.runs(&counted).len(), 1);
    node.note("a", 1).unwrap();
    std::thread::scope(|s| {
        let pending: Vec<_> = (0..5)
            .map(|n| {
                let node = &node;
                s.spawn(move || node.hold("a", n, "never-opened"))
            })
            .collect();
        owner.await_waiting("never-opened", 1);
        eventually("all requests to be there", || {
            (owner.counter(Counter::AdmittedRemote) == 6).then_some(())
        });
        owner.kill();
        for request in pending {
            refused(request.join().unwrap(), ErrorKind::Unavailable);
        }
    });
    let submitted = node.count(Counter::SubmittedRemote);
    for _ in 0..3 {
        refused(node.note("a", 2), ErrorKind::Unavailable);
    }
    eventually("the dead owner's lease to lapse", || {
        (node.sight("a") == Sight::Unavailable).then_some(())
    });
    for _ in 0..3 {
        refused(node.note("a", 3), ErrorKind::Unavailable);
        assert_eq!(node.sight("a"), Sight::Unavailable);
        assert_eq!(bystander.sight("a"), Sight::Unavailable);
        assert!(!matches!(bystander.make("a", Some(&counted)), Ok(Made::Created(_))));
    }
    assert_eq!(node.count(Counter::SubmittedRemote), submitted);
    assert_eq!(world.runs(&counted).len(), 1, "nothing was made again");
    assert_eq!(node.count(Counter::ObjectsCreated), 0);
    assert_eq!(bystander.counter(Counter::ObjectsCreated), 0);
}

/// An owner that ends in order takes its Actors with it: their ids are Missing at once. Who has a
/// cached route is told Unavailable, at once as well, until that route ends.
///
/// Proves R2.6-3, R2.2b-2.
#[test]
fn an_owner_that_ends_in_order_leaves_nothing() {
    let world = World::new();
    let owner = world.child(&world.setup("owner"));
    let (node, _) = world.node(&world.setup("caller"));
    owner.create("a");
    owner.create("b");
    node.note("a", 1).unwrap();
    let gate = world.gate("turn");
    let hold = Hold { number: 9, gate: gate.clone() };
    std::thread::scope(|s| {
        let pending = s.spawn(|| node.actor("b").request(hold).wait());
        owner.await_waiting(&gate, 1);
        let ending = owner.begin(Command::Shutdown { deadline_ms: 20_000 });
        owner.open_gate(&gate);
        assert_eq!(pending.join().unwrap(), Ok(9), "a turn that ends in time answers");
        ending.end::<()>().unwrap();
    });
    let (other, _) = world.node(&world.setup("other"));
    for id in ["a", "b"] {
        assert_eq!(other.sight(id), Sight::Missing);
        eventually("the cached route to end", || {
            let e = node.note(id, 2).unwrap_err();
            assert!(matches!(e.kind(), ErrorKind::NotFound | ErrorKind::Unavailable), "{e}");
            (e.kind() == ErrorKind::NotFound).then_some(())
        });
        assert!(matches!(node.make(id, None), Ok(Made::Created(_))));
    }
}
