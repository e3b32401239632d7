#![forbid(unsafe_code)]
//! R2.2 and R2.2b: the positive route cache, and the four answers of resolving.

use std::time::Duration;

use homing::{Counter, ErrorKind, Node, block_on};

use super::command::{Command, Sight};
use super::eventually::eventually;
use super::probe::{Make, Note};
use super::watched::Watched;
use super::world::{Asks, Child, World, refused, route_of};

/// An owner, a caller, and the Actor `a`.
fn pair(world: &World) -> (Child, Node, Watched) {
    let owner = world.child(&world.setup("owner"));
    let (node, store) = world.node(&world.setup("caller"));
    owner.create("a");
    (owner, node, store)
}

/// A node that renews often and whose entries, and those of routes to it, outlive the patience of
/// `eventually`: when one goes, it is not of age.
fn long_lived(world: &World, rid: &str) -> super::command::Setup {
    let mut setup = world.brief(rid);
    (setup.cache_ms, setup.follow_ms) = (Some(500_000), Some(600_000));
    setup
}

/// Sends until the row is read once more than now.
fn until_a_miss(node: &Node, store: &Watched, id: &str) {
    let before = store.row_reads(id);
    eventually("the cached route to end", || {
        node.note(id, 0).unwrap();
        (store.row_reads(id) > before).then_some(())
    });
}

/// What a route is known by: kind and id in the call, every fence and the version in the answer.
///
/// Proves R2.2-1.
#[test]
fn a_route_carries_every_fence() {
    let world = World::new();
    let (owner, node, store) = pair(&world);
    let made = owner.create("a");
    node.note("a", 1).unwrap();
    let route = route_of(&node, "a");
    assert_eq!(store.row_reads("a"), 1, "the resolver answered from the cache");
    assert_eq!(route.rid, owner.node_rid());
    assert_eq!(route.mesh.as_str(), "contract");
    assert_eq!(route.object_generation.get(), made.generation);
    assert_eq!(route.authority_owner_generation.get(), 1, "the first tenure");
    // The version is the row's: another row's is another, and a row made anew has a greater one.
    owner.create("b");
    node.note("b", 1).unwrap();
    assert!(route_of(&node, "b").store_version > route.store_version);
    assert_eq!(route_of(&node, "b").node_generation, route.node_generation);
    assert_eq!(route_of(&node, "b").owner_lease_generation, route.owner_lease_generation);
}

/// Proves R2.2-2.
#[test]
fn a_route_ends_at_its_greatest_age() {
    let world = World::new();
    let owner = world.child(&long_lived(&world, "owner"));
    let mut setup = world.setup("caller");
    setup.cache_ms = Some(400);
    let (node, store) = world.node(&setup);
    owner.create("a");
    for _ in 0..3 {
        node.note("a", 0).unwrap();
        until_a_miss(&node, &store, "a");
    }
    assert!(node.count(Counter::CacheHits) > 0, "it was used in between");
}

/// The owner is stopped and its lease lapses: however young the entry, nothing is submitted on it
/// from then on.
///
/// Proves R2.2-2, R2.6-3.
#[test]
fn a_route_ends_with_its_owners_lease() {
    let world = World::new();
    let owner = world.child(&long_lived(&world, "owner"));
    let mut setup = long_lived(&world, "caller");
    setup.request_ms = Some(300);
    // The link outlasts the lease, so that it is the lease that ends the route.
    setup.liveness_ms = None;
    let (node, _) = world.node(&setup);
    owner.create("a");
    node.note("a", 1).unwrap();
    owner.pause();
    // While its lease stands, the stopped owner is asked and says nothing.
    let text = eventually("the owner's lease to lapse", || match node.note("a", 3) {
        Err(e) if e.kind() == ErrorKind::Unavailable => Some(e.text().to_owned()),
        Err(e) if e.kind() == ErrorKind::DeadlineExceeded => None,
        other => panic!("{other:?}"),
    });
    let submitted = node.count(Counter::SubmittedRemote);
    for _ in 0..20 {
        let patient = node.actor("a").request(Note { number: 4 }).timeout(Duration::from_secs(60));
        refused(patient.wait(), ErrorKind::Unavailable);
    }
    assert_eq!(node.count(Counter::SubmittedRemote), submitted, "submitted after: {text}");
    assert_eq!(node.sight("a"), Sight::Unavailable);
    owner.resume();
    // It renews, and is as it stood; what reached it in time and is still awaited would run, what
    // has ended here must not have been doubled.
    eventually("the owner to be back", || node.note("a", 5).ok());
    let notes = owner.notes("a");
    assert_eq!(notes.iter().filter(|n| **n == 4).count(), 0, "{notes:?}");
    assert_eq!(notes.iter().filter(|n| **n == 1).count(), 1, "{notes:?}");
}

/// Missing, Creating, Unavailable and a failed Store are looked at afresh by every call.
///
/// Proves R2.2-3, R2.2b-1.
#[test]
fn only_a_ready_route_is_cached() {
    let world = World::new();
    let owner = world.child(&world.setup("owner"));
    let (node, store) = world.node(&world.setup("caller"));
    let gate = world.gate("factory");
    // Missing.
    for reads in 1..=3 {
        refused(node.note("a", 1), ErrorKind::NotFound);
        assert_eq!(store.row_reads("a"), reads);
    }
    // Being made: Unavailable, and not Missing.
    let make = Make { gate: gate.clone(), ..Make::default() };
    let making = owner.begin(Child::creation("a", Some(&make)));
    owner.await_waiting(&gate, 1);
    for reads in 4..=6 {
        refused(node.note("a", 1), ErrorKind::Unavailable);
        assert_eq!(store.row_reads("a"), reads);
    }
    assert_eq!(node.sight("a"), Sight::Unavailable);
    owner.open_gate(&gate);
    making.end::<super::command::Made>().unwrap();
    // Not decidable.
    store.fail(true);
    assert_eq!(node.sight("a"), Sight::StoreFailure);
    refused(node.note("a", 1), ErrorKind::Unavailable);
    store.fail(false);
    // Ready: the very next call sees it, and the one after needs no read.
    assert_eq!(node.note("a", 1), Ok(1));
    let reads = store.row_reads("a");
    assert_eq!(node.note("a", 2), Ok(2));
    assert_eq!(store.row_reads("a"), reads);
}

/// A stale answer takes the entry away, and the next call reads once.
///
/// Case: Cached (N1,g5), actor now on N3, N1 says not here ⇒ entry evicted unless cached is newer;
/// next send 1 store read, 0 to N1.
///
/// Proves R2.2-4, R2.5-6, R2.5-8.
#[test]
fn a_stale_answer_takes_the_entry_away() {
    let world = World::new();
    let n1 = world.child(&world.setup("n1"));
    let n3 = world.child(&world.setup("n3"));
    let (node, store) = world.node(&world.setup("n2"));
    let old = n1.create("a");
    node.note("a", 1).unwrap();
    n1.destroy(&old).unwrap();
    n3.create("a");
    let text = refused(node.note("a", 2), ErrorKind::Unavailable);
    assert!(text.contains("n1"), "{text}");
    assert_eq!(n3.notes("a"), [0; 0], "nothing is submitted again to the owner that now is");
    let (reads, refused) = (store.row_reads("a"), n1.counter(Counter::RefusedStale));
    assert_eq!((reads, refused), (1, 1));
    node.actor("a").send(Note { number: 3 }).wait().unwrap();
    node.note("a", 4).unwrap();
    assert_eq!(store.row_reads("a"), 2, "one read");
    assert_eq!(n1.counter(Counter::RefusedStale), 1, "and nothing more to N1");
    assert_eq!(n3.notes("a"), [3, 4]);
}

/// When the Store comes back, everything that was cached before is looked at again.
///
/// Proves R2.2-4.
#[test]
fn all_entries_go_when_the_store_recovered() {
    let world = World::new();
    let owner = world.child(&long_lived(&world, "owner"));
    let (node, store) = world.node(&long_lived(&world, "caller"));
    owner.create("a");
    owner.create("b");
    for id in ["a", "b", "a", "b"] {
        node.note(id, 1).unwrap();
    }
    assert_eq!((store.row_reads("a"), store.row_reads("b")), (1, 1));
    store.fail(true);
    // The renewal of the lease is what notices.
    eventually("the Store's failure to be noticed", || (store.failed() > 0).then_some(()));
    // Cached routes serve all the same.
    for id in ["a", "b"] {
        node.note(id, 2).unwrap();
    }
    assert_eq!((store.row_reads("a"), store.row_reads("b")), (1, 1));
    store.fail(false);
    until_a_miss(&node, &store, "a");
    until_a_miss(&node, &store, "b");
    // The core and the lease thread each see the Store come back; after that entries stay again.
    eventually("a new entry to stay", || {
        let before = store.row_reads("a");
        (0..10).for_each(|_| assert!(node.note("a", 3).is_ok()));
        (store.row_reads("a") == before).then_some(())
    });
}

/// Proves R2.2-5.
#[test]
fn a_changed_age_governs_later_entries_only() {
    let world = World::new();
    let (owner, node, store) = pair(&world);
    owner.create("b");
    node.note("a", 1).unwrap();
    node.set_route_cache_max_age(Duration::ZERO).unwrap();
    for reads in 1..=5 {
        node.note("b", 1).unwrap();
        assert_eq!(store.row_reads("b"), reads, "0 is no cache");
        node.note("a", 1).unwrap();
        assert_eq!(store.row_reads("a"), 1, "the entry that stands keeps its own age");
    }
    node.set_route_cache_max_age(Duration::from_secs(15)).unwrap();
    node.note("b", 1).unwrap();
    node.note("b", 1).unwrap();
    assert_eq!(store.row_reads("b"), 6);
}

/// Proves R2.2-5.
#[test]
fn a_longer_age_lengthens_no_entry_that_stands() {
    let world = World::new();
    let owner = world.child(&long_lived(&world, "owner"));
    let mut setup = long_lived(&world, "caller");
    setup.cache_ms = Some(500);
    let (node, store) = world.node(&setup);
    owner.create("a");
    node.note("a", 1).unwrap();
    // Longer than `eventually` is patient: had the entry taken it over, the wait would be in vain.
    node.set_route_cache_max_age(Duration::from_secs(500)).unwrap();
    until_a_miss(&node, &store, "a");
}

/// Proves R2.2-6.
#[test]
fn a_lowered_follow_duration_shortens_entries_that_stand() {
    let world = World::new();
    let owner = world.child(&long_lived(&world, "owner"));
    let (node, store) = world.node(&long_lived(&world, "caller"));
    owner.create("a");
    node.note("a", 1).unwrap();
    node.note("a", 2).unwrap();
    assert_eq!(store.row_reads("a"), 1);
    // What is cached from now on is not: so the miss below is the end of the entry that stood.
    node.set_route_cache_max_age(Duration::ZERO).unwrap();
    node.set_message_follow_duration(Duration::from_millis(200)).unwrap();
    until_a_miss(&node, &store, "a");
    // 0 is no detour, and bounds nothing.
    node.set_message_follow_duration(Duration::ZERO).unwrap();
    node.set_route_cache_max_age(Duration::from_secs(500)).unwrap();
    node.note("a", 3).unwrap();
    let reads = store.row_reads("a");
    node.note("a", 4).unwrap();
    assert_eq!(store.row_reads("a"), reads);
}

/// A counting provider in the caller's process sees one read for the miss and none for the hits.
///
/// Proves R2.2-7.
#[test]
fn a_hit_reads_nothing() {
    let world = World::new();
    let (owner, node, store) = pair(&world);
    node.note("a", 0).unwrap();
    assert_eq!(store.row_reads("a"), 1);
    let all = store.all_row_reads();
    for number in 1..=200 {
        node.actor("a").send(Note { number }).wait().unwrap();
        node.note("a", number).unwrap();
        assert_eq!(node.sight("a"), Sight::ReadyRoute);
    }
    assert_eq!(store.all_row_reads(), all);
    assert!(node.count(Counter::CacheHits) >= 400);
    assert_eq!(owner.notes("a").len(), 401);
}

/// A hundred callers of one id while its read is out: they share that read, and none is lost.
///
/// Proves R2.2-8.
#[test]
fn concurrent_misses_of_an_id_share_a_read() {
    let world = World::new();
    let (owner, node, store) = pair(&world);
    store.block("a");
    std::thread::scope(|s| {
        let asking: Vec<_> = (0..100)
            .map(|number| {
                let node = &node;
                s.spawn(move || node.note("a", number))
            })
            .collect();
        eventually("the read to be out", || (store.waiting() == 1).then_some(()));
        eventually("all callers to wait", || (node.count(Counter::CacheMisses) >= 1).then_some(()));
        store.unblock();
        let mut counts: Vec<u64> = asking.into_iter().map(|t| t.join().unwrap().unwrap()).collect();
        counts.sort_unstable();
        assert_eq!(counts, (1..=100).collect::<Vec<u64>>());
    });
    let reads = store.row_reads("a");
    assert!((1..=2).contains(&reads), "{reads} reads of one row");
    assert_eq!(owner.notes("a").len(), 100);
}

/// Two hundred ids that are missed at once are read in a few calls.
///
/// Proves R2.2-8.
#[test]
fn a_burst_of_misses_is_read_in_batches() {
    let world = World::new();
    let owner = world.child(&world.setup("owner"));
    let (node, store) = world.node(&world.setup("caller"));
    let ids: Vec<String> = (0..200).map(|n| format!("many-{n}")).collect();
    for id in &ids {
        owner.create(id);
    }
    owner.create("first");
    // The Store thread is held in one read while the burst comes.
    store.block("first");
    std::thread::scope(|s| {
        let first = s.spawn(|| node.note("first", 1));
        eventually("the first read to be out", || (store.waiting() == 1).then_some(()));
        let sends: Vec<_> = ids.iter().map(|id| node.actor(id).send(Note { number: 1 })).collect();
        eventually("the burst to be resolved", || {
            (node.count(Counter::CacheMisses) == 201).then_some(())
        });
        let calls = store.row_read_calls();
        store.unblock();
        for send in sends {
            send.wait().unwrap();
        }
        first.join().unwrap().unwrap();
        let calls = store.row_read_calls() - calls;
        assert!((1..=4).contains(&calls), "200 ids took {calls} read calls");
    });
}

/// A read that hangs holds other ids up until their own deadline and not longer; then the callers
/// go on with what the Store says.
///
/// Proves R2.2-8.
#[test]
fn one_ids_slow_read_delays_no_other_past_its_deadline() {
    let world = World::new();
    let (owner, node, store) = pair(&world);
    owner.create("b");
    node.note("b", 0).unwrap();
    store.block("a");
    let ms = Duration::from_millis;
    std::thread::scope(|s| {
        let slow = s.spawn(|| node.actor("a").request(Note { number: 1 }).timeout(ms(300)).wait());
        eventually("the read to hang", || (store.waiting() == 1).then_some(()));
        // One that is cached is not delayed at all; one that is not ends by its own deadline.
        node.note("b", 1).unwrap();
        let other = node.actor("c").request(Note { number: 1 }).timeout(ms(200)).wait();
        refused(other, ErrorKind::DeadlineExceeded);
        let slow = slow.join().unwrap().unwrap_err();
        let ends = [ErrorKind::DeadlineExceeded, ErrorKind::Unavailable];
        assert!(ends.contains(&slow.kind()), "{slow}");
        store.unblock();
    });
    eventually("the Store to answer again", || node.note("a", 2).ok());
    assert_eq!(
        owner.notes("a").iter().filter(|n| **n == 1).count(),
        0,
        "an ended call was submitted"
    );
}

/// A read has seen the old owner, and its answer is late. Meanwhile everything cached is invalidated,
/// and the Actor is made anew elsewhere: who called before may be told what was read; who calls
/// afterwards is not, and the late answer is cached for nobody.
///
/// Proves R2.2-8, R2.2-4.
#[test]
fn a_read_from_before_an_invalidation_answers_nobody_after_it() {
    let world = World::new();
    let old = world.child(&world.setup("old"));
    let new = world.child(&long_lived(&world, "new"));
    let (node, store) = world.node(&long_lived(&world, "caller"));
    let made = old.create("a");
    new.create("b");
    node.note("b", 0).unwrap();
    store.hold_answer("a");
    std::thread::scope(|s| {
        let before = s.spawn(|| node.note("a", 1));
        eventually("the answer to be late", || (store.waiting() == 1).then_some(()));
        old.destroy(&made).unwrap();
        new.create("a");
        // The lease's renewals fail, then succeed: the Store recovered.
        let failed = store.failed();
        store.fail(true);
        eventually("the Store's failure to be noticed", || (store.failed() > failed).then_some(()));
        store.fail(false);
        let misses = node.count(Counter::CacheMisses);
        eventually("all entries to go", || {
            node.actor("b").send(Note { number: 2 }).detach();
            (node.count(Counter::CacheMisses) > misses).then_some(())
        });
        let after = node.actor("a").send(Note { number: 3 });
        // One behind it ends by its own deadline: so the one before it has been taken in.
        let behind = node.actor("a").request(Note { number: 9 });
        refused(behind.timeout(Duration::from_millis(200)).wait(), ErrorKind::DeadlineExceeded);
        store.release_answer();
        if let Err(e) = before.join().unwrap() {
            assert_eq!(e.kind(), ErrorKind::Unavailable, "{e}");
        }
        after.wait().unwrap();
    });
    node.note("a", 4).unwrap();
    let notes = new.notes("a");
    assert!(notes.contains(&3), "it was answered by the read from before: {notes:?}");
    assert!(notes.contains(&4) && !notes.contains(&9), "{notes:?}");
}

/// Case: Store always fails ⇒ one typed error, hop count never refunded.
///
/// Each call that needs the Store is told once what the Store said, and nothing is submitted.
///
/// Proves R2.2b-1, R2.2-3.
#[test]
fn a_store_that_fails_answers_each_call_with_one_error() {
    let world = World::new();
    let (owner, node, store) = pair(&world);
    let hops = node.count(Counter::SubmittedRemote);
    store.fail(true);
    for _ in 0..5 {
        let text = refused(node.note("a", 1), ErrorKind::Unavailable);
        assert!(text.contains("the test lets it fail"), "{text}");
    }
    assert_eq!(node.count(Counter::SubmittedRemote), hops);
    store.fail(false);
    assert_eq!(node.note("a", 2), Ok(1));
    assert_eq!(owner.notes("a"), [2]);
}

/// The four answers, each with what it leads to.
///
/// Proves R2.2b-1.
#[test]
fn resolving_has_four_answers() {
    let world = World::new();
    let mut dying = world.child(&world.brief("dying"));
    let owner = world.child(&world.brief("owner"));
    let (node, store) = world.node(&world.brief("caller"));
    owner.create("ready");
    dying.create("orphan");
    dying.kill();
    assert_eq!(node.sight("ready"), Sight::ReadyRoute);
    assert_eq!(node.sight("missing"), Sight::Missing);
    eventually("the dead owner's lease to lapse", || {
        (node.sight("orphan") == Sight::Unavailable).then_some(())
    });
    store.fail(true);
    assert_eq!(node.sight("undecidable"), Sight::StoreFailure);
    store.fail(false);
    assert_eq!(node.note("ready", 1), Ok(1));
    refused(node.note("missing", 1), ErrorKind::NotFound);
    refused(node.note("orphan", 1), ErrorKind::Unavailable);
    // Only Missing may be created; what has an owner, dead or not, is not made again.
    let counted = world.counted("orphan-runs");
    let orphan = node.make("orphan", Some(&counted));
    assert!(!matches!(orphan, Ok(super::command::Made::Created(_))), "{orphan:?}");
    assert_eq!(world.runs(&counted), [""; 0]);
    assert!(matches!(node.make("missing", None), Ok(super::command::Made::Created(_))));
}

/// While an Actor is being closed its id is Unavailable; it is Missing when that is done.
///
/// Proves R2.2b-2.
#[test]
fn an_id_is_missing_only_after_its_release() {
    let world = World::new();
    let owner = world.child(&world.setup("owner"));
    let (node, _) = world.node(&world.setup("caller"));
    let gate = world.gate("closing");
    let make = Make { closing_gate: gate.clone(), ..Make::default() };
    let made = owner.make("a", Some(&make)).unwrap().standing();
    let destroying = owner.begin(Command::Destroy(made.clone()));
    owner.await_waiting(&gate, 1);
    for _ in 0..5 {
        let sight = node.sight("a");
        assert!(matches!(sight, Sight::Unavailable | Sight::ReadyRoute), "{sight:?}");
        refused(node.note("a", 1), ErrorKind::Unavailable);
        assert_eq!(owner.sight("a"), Sight::Unavailable);
        refused(
            owner.try_ask::<u64>(Command::Note { id: "a".into(), number: 1, is_request: true }),
            ErrorKind::Unavailable,
        );
    }
    owner.open_gate(&gate);
    destroying.end::<()>().unwrap();
    assert_eq!(owner.sight("a"), Sight::Missing);
    eventually("the caller to see it", || (node.sight("a") == Sight::Missing).then_some(()));
    assert_eq!(block_on(node.actors().find("a")), Ok(None));
    refused(node.note("a", 1), ErrorKind::NotFound);
}
