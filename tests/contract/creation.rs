#![forbid(unsafe_code)]
//! Creation above the Store: one factory run for however many creators, and what failures leave.

use std::time::Duration;

use homing::location::LocationStore;
use homing::{Counter, ErrorKind, block_on};

use super::command::{Command, Made, Said, Sight};
use super::eventually::eventually;
use super::probe::{Make, Outcome};
use super::watched::Watched;
use super::world::{Asks, Child, World, refused};

type Answers = Vec<Result<Made, Said>>;

/// Case: Three same-tick creates ⇒ one winner.
///
/// Three nodes in three processes, eight callers each: the factory runs once, one caller is told
/// Created, all others Existing, and all refs are the same.
///
/// Proves R2.2-3, R2.6-2.
#[test]
fn of_many_creators_on_three_nodes_one_runs_the_factory() {
    let world = World::new();
    let nodes: Vec<Child> =
        ["n1", "n2", "n3"].iter().map(|rid| world.child(&world.setup(rid))).collect();
    let mut winners = std::collections::BTreeSet::new();
    for round in 0..10 {
        let id = format!("a{round}");
        let make = world.counted(&format!("runs-{round}"));
        let command = Command::CreateAtOnce { id: id.clone(), make: make.clone(), times: 8 };
        let pending: Vec<_> = nodes.iter().map(|n| n.begin(command.clone())).collect();
        let mut created = 0;
        let mut refs = Vec::new();
        for answers in pending {
            for answer in answers.end::<Answers>().unwrap() {
                let made = answer.unwrap_or_else(|said| panic!("{said:?}"));
                created += usize::from(matches!(made, Made::Created(_)));
                refs.push(made.standing());
            }
        }
        assert_eq!(refs.len(), 24);
        assert!(refs.windows(2).all(|two| two[0] == two[1]), "{refs:?}");
        assert_eq!(created, 1, "one caller made it");
        let runs = world.runs(&make);
        assert_eq!(runs, [format!("{} {}", refs[0].rid, refs[0].generation)]);
        winners.insert(refs[0].rid.clone());
        // It works, from everywhere.
        for node in &nodes {
            assert_eq!(node.show(&id).generation, refs[0].generation);
        }
    }
    let made: u64 = nodes.iter().map(|n| n.counter(Counter::ObjectsCreated)).sum();
    assert_eq!(made, 10, "made on {winners:?}");
}

/// While a factory runs, creators elsewhere wait for its result and do not run their own.
///
/// Proves R2.2-3.
#[test]
fn a_second_creator_waits_for_the_running_factory() {
    let world = World::new();
    let first = world.child(&world.setup("first"));
    let second = world.child(&world.setup("second"));
    let gate = world.gate("factory");
    let make = Make { gate: gate.clone(), ..world.counted("runs") };
    let making = first.begin(Child::creation("a", Some(&make)));
    first.await_waiting(&gate, 1);
    let joining = second.begin(Child::creation("a", Some(&make)));
    let here = first.begin(Child::creation("a", Some(&make)));
    eventually("the second node to ask the first", || {
        (first.counter(Counter::LinksUp) == 1).then_some(())
    });
    assert_eq!(second.sight("a"), Sight::Unavailable, "Creating resolves to Unavailable");
    first.open_gate(&gate);
    let made: Made = making.end().unwrap();
    let Made::Created(made) = made else { panic!("{made:?}") };
    assert_eq!(joining.end::<Made>(), Ok(Made::Existing(made.clone())));
    assert_eq!(here.end::<Made>(), Ok(Made::Existing(made)));
    assert_eq!(world.runs(&make).len(), 1);
}

/// A factory that refuses, fails or panics: everybody who waits learns that, the row is gone, and
/// the next creation starts anew.
///
/// Proves R2.2-3.
#[test]
fn a_rejected_or_failed_factory_leaves_nothing() {
    let world = World::new();
    let first = world.child(&world.setup("first"));
    let second = world.child(&world.setup("second"));
    let outcomes =
        [Outcome::Reject("full".into()), Outcome::Fail("no database".into()), Outcome::Panic];
    for (number, outcome) in outcomes.into_iter().enumerate() {
        let id = format!("a{number}");
        let gate = world.gate(&format!("factory-{number}"));
        let counted = world.counted(&format!("runs-{number}"));
        let make = Make { gate: gate.clone(), outcome: outcome.clone(), ..counted };
        let making = first.begin(Child::creation(&id, Some(&make)));
        first.await_waiting(&gate, 1);
        let joining = [&first, &second].map(|n| n.begin(Child::creation(&id, Some(&make))));
        first.open_gate(&gate);
        // A call that comes when the row has gone already makes its own attempt, with the same end.
        second.open_gate(&gate);
        for answer in [making.end::<Made>()].into_iter().chain(joining.map(|j| j.end::<Made>())) {
            match &outcome {
                Outcome::Reject(text) => assert_eq!(answer, Ok(Made::Rejected(text.clone()))),
                Outcome::Fail(text) => {
                    let said = refused(answer, ErrorKind::InternalFailure);
                    assert!(said.contains(text), "{said}");
                }
                _ => {
                    let said = refused(answer, ErrorKind::InternalFailure);
                    assert!(said.contains("told to panic"), "{said}");
                }
            }
        }
        eventually("the row to be gone", || (second.sight(&id) == Sight::Missing).then_some(()));
        assert_eq!(first.counter(Counter::ObjectsCreated), number as u64);
        let made = second.make(&id, None).unwrap();
        assert!(matches!(made, Made::Created(_)), "{made:?}");
        // One to keep the count of the next round.
        first.create(&format!("other{number}"));
    }
}

/// A creator's process killed inside its factory, with a row of its that nobody else touches.
fn die_in_a_factory(world: &World) -> Make {
    let mut dying = world.child(&world.brief("dying"));
    let gate = world.gate("factory");
    let make = Make { gate: gate.clone(), ..world.counted("runs") };
    let making = dying.begin(Child::creation("a", Some(&make)));
    dying.await_waiting(&gate, 1);
    dying.kill();
    drop(making);
    make
}

/// Whether something stands in the Store under this key.
fn stands(store: &Watched, key: Vec<u8>) -> bool {
    store.read(&[key], Duration::from_secs(5)).unwrap().records[0].is_some()
}

/// The creator's process is killed inside its factory. Its row stands until somebody calls after its
/// lease has lapsed; that call clears it and makes the Actor.
///
/// Proves R2.2-3, R2.6-2, R2.2b-2.
#[test]
fn a_creator_that_dies_in_its_factory_is_cleared_by_the_next_creator() {
    let world = World::new();
    let make = die_in_a_factory(&world);
    let other = world.child(&world.brief("other"));
    let store = world.store();
    eventually("the dead creator's lease to end", || {
        (!stands(&store, b"lease/dying".to_vec())).then_some(())
    });
    assert!(stands(&store, b"actor/a".to_vec()), "it is cleared by a call and not by time");
    let counted = world.counted("later-runs");
    let made = eventually("a creator to have seen the lease lapsed", || {
        match other.make("a", Some(&counted)) {
            Ok(made) => Some(made),
            Err(e) if e.kind() == ErrorKind::Unavailable => None,
            Err(e) => panic!("{e}"),
        }
    });
    let Made::Created(made) = made else { panic!("{made:?}") };
    assert_eq!(made.rid, "other");
    assert_eq!(world.runs(&make).len(), 1);
    assert_eq!(world.runs(&counted), [format!("other {}", made.generation)]);
    assert_eq!(other.show("a").generation, made.generation);
}

/// The same, met by messages: Unavailable as long as the lease stands, NotFound after it.
///
/// Proves R2.2-3, R2.2b-1, R2.2b-2.
#[test]
fn a_creator_that_dies_in_its_factory_is_unavailable_until_its_lease_lapsed() {
    let world = World::new();
    let make = die_in_a_factory(&world);
    let (node, store) = world.node(&world.brief("caller"));
    eventually("a message to find the row cleared", || {
        let (sight, e) = (node.sight("a"), node.note("a", 1).unwrap_err());
        if stands(&store, b"lease/dying".to_vec()) {
            assert_eq!((sight, e.kind()), (Sight::Unavailable, ErrorKind::Unavailable), "{e}");
        }
        assert!(matches!(e.kind(), ErrorKind::Unavailable | ErrorKind::NotFound), "{e}");
        (e.kind() == ErrorKind::NotFound).then_some(())
    });
    assert!(!stands(&store, b"actor/a".to_vec()));
    assert_eq!(node.count(Counter::ObjectsCreated), 0);
    assert_eq!(world.runs(&make).len(), 1);
}

/// A creator that was stopped beyond its lease comes back when another node has made the Actor: its
/// own attempt changes nothing of it.
///
/// Proves R2.6-2.
#[test]
fn a_creator_that_comes_back_late_changes_nothing() {
    let world = World::new();
    let late = world.child(&world.brief("late"));
    let other = world.child(&world.brief("other"));
    let gate = world.gate("factory");
    let make = Make { gate: gate.clone(), ..world.counted("runs") };
    let making = late.begin(Child::creation("a", Some(&make)));
    late.await_waiting(&gate, 1);
    late.pause();
    let made = eventually("the late creator's lease to lapse", || {
        let command = Command::Create {
            id: "a".into(),
            make: None,
            type_name: "probe".into(),
            on: None,
            timeout_ms: Some(400),
        };
        other.try_ask::<Made>(command).ok()
    });
    let standing = made.standing();
    late.resume();
    late.open_gate(&gate);
    match making.end::<Made>() {
        Ok(Made::Existing(found)) => assert_eq!(found, standing),
        Ok(answer) => panic!("{answer:?}"),
        Err(e) => {
            let kinds = [ErrorKind::Unavailable, ErrorKind::DeadlineExceeded];
            assert!(kinds.contains(&e.kind()), "{e}");
        }
    }
    assert_eq!(other.show("a").generation, standing.generation);
    assert_eq!(
        eventually("the late node to see it", || {
            late.try_ask::<u64>(Command::Note { id: "a".into(), number: 1, is_request: true }).ok()
        }),
        1
    );
    assert_eq!(other.notes("a"), [1]);
    assert_eq!(late.counter(Counter::ObjectsCreated), 0);
}

/// The answers of commits get lost, and the commits were made: nothing is guessed, the factory runs
/// once, and a destroy is over when the row is gone.
///
/// Proves R2.6-2, R2.2b-2.
#[test]
fn a_lost_answer_of_the_store_is_looked_up() {
    let world = World::new();
    let other = world.child(&world.setup("other"));
    let (node, store) = world.node(&world.setup("caller"));
    for lost in 1..=3 {
        let id = format!("a{lost}");
        let make = world.counted(&format!("runs-{lost}"));
        store.lose_answers(lost);
        let made = node.make(&id, Some(&make)).unwrap();
        let Made::Created(made) = made else { panic!("{made:?}") };
        assert_eq!(world.runs(&make), [format!("caller {}", made.generation)]);
        assert_eq!(other.show(&id).generation, made.generation);
        store.lose_answers(lost);
        block_on(node.actors().destroy(&made.actor_ref())).unwrap();
        assert!(!stands(&store, format!("actor/{id}").into_bytes()));
        assert!(matches!(other.make(&id, None), Ok(Made::Created(_))));
    }
    store.lose_answers(0);
    assert_eq!(node.count(Counter::ObjectsCreated), 3);
}

/// What exists is found and not made again, whoever asks; another type is a mismatch; a node that
/// hosts nothing has it made where the type lives, or on the node it names.
///
/// Proves R2.6-2.
#[test]
fn creation_finds_what_exists_and_where_it_may_live() {
    let world = World::new();
    let mut setup = world.setup("host");
    setup.hosts_other = true;
    let host = world.child(&setup);
    let second = world.child(&world.setup("second"));
    let mut setup = world.setup("caller");
    setup.hosts_nothing = true;
    let (node, _) = world.node(&setup);
    let make = world.counted("runs");
    let made = eventually("a host to be known", || node.make("a", Some(&make)).ok());
    let Made::Created(made) = made else { panic!("{made:?}") };
    assert!(["host", "second"].contains(&made.rid.as_str()), "{made:?}");
    for _ in 0..3 {
        for found in [
            node.make("a", Some(&make)),
            host.make("a", Some(&make)),
            second.make("a", Some(&make)),
        ] {
            assert_eq!(found, Ok(Made::Existing(made.clone())));
        }
    }
    assert_eq!(world.runs(&make).len(), 1);
    // Named: made there and nowhere else.
    for child in [&host, &second] {
        let id = format!("on-{}", child.rid);
        let creating = node.actors().create_type("probe", &id, ()).on(&child.node_rid());
        assert_eq!(Made::of(creating.wait().unwrap()).standing().rid, child.rid);
    }
    let other = |id: &str, on: &Child| {
        block_on(node.actors().create_type("other", id, ()).on(&on.node_rid()))
    };
    let text = refused(other("a", &host), ErrorKind::TypeMismatch);
    assert!(text.contains("\"probe\"") && text.contains("\"other\""), "{text}");
    let text = refused(other("b", &second), ErrorKind::NotConfigured);
    assert!(text.contains("second") && text.contains("\"other\""), "{text}");
    let nowhere = homing::ids::NodeRid::new("nowhere").unwrap();
    let creating = node.actors().create_type("probe", "c", ()).on(&nowhere);
    let text = refused(creating.wait(), ErrorKind::Unavailable);
    assert!(text.contains("nowhere"), "{text}");
    refused(node.actors().create_type("unheard-of", "c", ()).wait(), ErrorKind::Unavailable);
    assert_eq!(node.sight("c"), Sight::Missing);
    // Find tells the same, and never makes anything.
    assert_eq!(
        block_on(node.actors().find("a")).unwrap().map(super::command::Ref::from),
        Some(made)
    );
    assert_eq!(block_on(node.actors().find("c")), Ok(None));
}

/// A caller that does not wait any longer does not end the creation.
///
/// Proves R2.2-3.
#[test]
fn a_creation_outlives_its_caller() {
    let world = World::new();
    let owner = world.child(&world.setup("owner"));
    let (node, _) = world.node(&world.setup("caller"));
    let gate = world.gate("factory");
    let make = Make { gate: gate.clone(), ..world.counted("runs") };
    let creating = node
        .actors()
        .create_type("probe", "a", make.clone())
        .on(&owner.node_rid())
        .timeout(Duration::from_millis(400));
    eventually("the owner to be known", || {
        match node.actors().create_type("probe", "warm", ()).on(&owner.node_rid()).wait() {
            Ok(_) => Some(()),
            Err(e) if e.kind() == ErrorKind::Unavailable => None,
            Err(e) => panic!("{e}"),
        }
    });
    refused(creating.wait(), ErrorKind::DeadlineExceeded);
    owner.await_waiting(&gate, 1);
    owner.open_gate(&gate);
    eventually("it to be made", || node.note("a", 1).ok());
    assert_eq!(world.runs(&make).len(), 1);
}
