#![forbid(unsafe_code)]
//! R5-16 and the leases under clocks and Stores that misbehave: the wall clock jumps, the Store is
//! away for many leases.

use std::path::PathBuf;
use std::process::Command as Program;
use std::time::{Duration, Instant};

use homing::location::LocationStore;
use homing::store::records::lease_key;
use homing::{Counter, Error, ErrorKind};

use super::command::{Command, Setup};
use super::eventually::eventually;
use super::probe::{Hold, Note, Show};
use super::world::{Asks, Child, World};

/// The library that moves the wall clock of a process, built for this test.
fn shim(world: &World) -> PathBuf {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/clock_step.c");
    let library = world.path("clock_step.so");
    let built = Program::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"])
        .args([library.as_os_str(), source.as_ref()])
        .status()
        .expect("`cc` is there (the tests of LMDB need it too)");
    assert!(built.success(), "{source} does not compile");
    library
}

/// Steps of the wall clock by an hour, back and forth, in one node and not in the other: leases,
/// routes, deadlines and requests go on as if nothing had happened.
///
/// Proves R5-16, R2.2-2, R4-6.
#[test]
fn steps_of_the_wall_clock_change_nothing() {
    let world = World::new();
    let clock = world.path("clock");
    let step = |hours: i64| {
        std::fs::write(&clock, (hours * 3_600_000_000_000).to_ne_bytes()).expect("written");
    };
    step(0);
    let library = shim(&world);
    let preload = [("LD_PRELOAD", library.as_path()), ("HOMING_TEST_CLOCK", clock.as_path())];
    let stepped = world.child_with(&world.brief("stepped"), &preload);
    let (node, store) = world.node(&world.brief("steady"));
    let made = stepped.create("there");
    node.make("here", None).unwrap();
    let key = lease_key(&stepped.node_rid());
    let version = || {
        let read = store.read(std::slice::from_ref(&key), Duration::from_secs(20)).ok()?;
        read.records[0].as_ref().map(|record| record.version)
    };
    let mut number = 0;
    for hours in [1, 0, -1, 1] {
        let gate = world.gate(&format!("step{hours}-{number}"));
        let held = Hold { number: 1_000 + number, gate: gate.clone() };
        let held = node.actor("held").request(held).timeout(Duration::from_secs(60));
        if number == 0 {
            stepped.create("held");
        }
        std::thread::scope(|s| {
            let held = s.spawn(|| held.wait());
            stepped.await_waiting(&gate, 1);
            step(hours);
            let off = stepped.ask::<u64>(Command::WallClock).abs_diff(wall_clock());
            let expected = hours.unsigned_abs() * 3_600;
            assert!(off.abs_diff(expected) < 600, "the clock of the child is off by {off} s");
            // Longer than a lease: five renewals.
            let mut seen = version();
            for _ in 0..5 {
                seen = eventually("the lease to be renewed", || {
                    number += 1;
                    assert!(node.note("there", number).is_ok());
                    stepped.ask::<u64>(Command::Note {
                        id: "here".into(),
                        number,
                        is_request: true,
                    });
                    version().filter(|v| seen.is_some_and(|before| *v > before)).map(Some)
                });
            }
            let soon = node.actor("held").request(Note { number: 1 });
            let soon = soon.timeout(Duration::from_millis(200)).wait();
            assert!(matches!(&soon, Err(e) if e.kind() == ErrorKind::DeadlineExceeded), "{soon:?}");
            assert!(!held.is_finished(), "a step ends no deadline");
            stepped.open_gate(&gate);
            assert!(held.join().unwrap().is_ok());
        });
    }
    let shown = node.show("there").unwrap();
    assert_eq!((shown.generation, shown.rid.as_str()), (made.generation, "stepped"));
    assert_eq!(shown.notes, (1..=number).collect::<Vec<u64>>());
    assert_eq!(node.show("here").unwrap().notes, (1..=number).collect::<Vec<u64>>());
    assert_eq!(stepped.counter(Counter::LeaseLapses) + node.count(Counter::LeaseLapses), 0);
    stepped.create("after");
    assert_eq!(node.note("after", 1), Ok(1));
}

fn wall_clock() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.expect("after the epoch").as_secs()
}

/// What a sender was told of its numbered requests.
#[derive(Default)]
struct Told {
    done: Vec<u64>,
    failed: Vec<(u64, Error)>,
}

impl Told {
    fn next(&self) -> u64 {
        (self.done.len() + self.failed.len()) as u64
    }

    fn ask(&mut self, node: &homing::Node, id: &str) {
        let number = self.next();
        match node.actor(id).request(Note { number }).timeout(Duration::from_millis(500)).wait() {
            Ok(_) => self.done.push(number),
            Err(e) => self.failed.push((number, e)),
        }
    }
}

/// The Store is away for three leases, for every node. The cluster pauses: nothing is answered once
/// the leases have lapsed. Then it goes on with every object as it stood: what was answered was
/// handled, nothing twice, nothing out of order. An outage of 30 s under the default lease when
/// `HOMING_TEST_DEEP` is 1, else of 9 s under one of 3 s.
///
/// Proves R5-16, R5-4.
#[test]
fn an_outage_of_three_leases_pauses_and_loses_nothing() {
    let is_deep = std::env::var("HOMING_TEST_DEEP").is_ok_and(|deep| deep == "1");
    let (lease, brief): (u64, fn(&World, &str) -> Setup) =
        if is_deep { (10_000, World::setup) } else { (3_000, World::brief) };
    let outage = Duration::from_millis(3 * lease);
    let world = World::new();
    let owners: Vec<Child> =
        ["first", "second"].iter().map(|rid| world.child(&brief(&world, rid))).collect();
    let (node, store) = world.node(&brief(&world, "caller"));
    let made: Vec<_> = owners.iter().map(|owner| owner.create(&owner.rid)).collect();
    node.make("caller", None).unwrap();
    let ids = ["first", "second", "caller"];
    let mut told: Vec<Told> = ids.iter().map(|_| Told::default()).collect();
    for (id, told) in ids.iter().zip(&mut told) {
        eventually("the Actor to answer", || {
            told.ask(&node, id);
            (!told.done.is_empty()).then_some(())
        });
    }
    store.fail(true);
    owners.iter().for_each(|owner| owner.ask::<()>(Command::FailStore(true)));
    let since = Instant::now();
    // A request that has time waits for the lease, and is handled after it.
    let patient = node.actor("caller").request(Note { number: u64::MAX });
    let mut patient = Some(patient.timeout(Duration::from_secs(150)));
    std::thread::scope(|s| {
        let mut waiting = None;
        while since.elapsed() < outage {
            let has_lapsed = node.count(Counter::LeaseLapses) >= 1
                && owners.iter().all(|owner| owner.counter(Counter::LeaseLapses) >= 1);
            let before: Vec<usize> = told.iter().map(|told| told.done.len()).collect();
            for (id, told) in ids.iter().zip(&mut told) {
                told.ask(&node, id);
            }
            if has_lapsed {
                let after: Vec<usize> = told.iter().map(|told| told.done.len()).collect();
                assert_eq!(before, after, "nothing is answered past the lease");
                let patient = patient.take();
                waiting = waiting.or_else(|| patient.map(|p| s.spawn(move || p.wait())));
            }
        }
        let waiting = waiting.expect("every lease lapsed within the outage");
        assert!(!waiting.is_finished());
        store.fail(false);
        owners.iter().for_each(|owner| owner.ask::<()>(Command::FailStore(false)));
        assert!(waiting.join().expect("no panic").is_ok());
    });
    for (id, told) in ids.iter().zip(&mut told) {
        let before = told.done.len();
        eventually("the Actor to answer again", || {
            told.ask(&node, id);
            (told.done.len() > before).then_some(())
        });
        let shown = node.actor(*id).request(Show {}).wait().unwrap();
        let notes: Vec<u64> = shown.notes.into_iter().filter(|n| *n != u64::MAX).collect();
        assert!(notes.is_sorted_by(|a, b| a < b), "{id}: in order, none twice: {notes:?}");
        let lost: Vec<_> = told.done.iter().filter(|n| !notes.contains(n)).collect();
        assert!(lost.is_empty(), "{id}: {lost:?} were answered and are lost");
        for (number, e) in &told.failed {
            let is_pause = matches!(e.kind(), ErrorKind::Unavailable | ErrorKind::DeadlineExceeded);
            assert!(is_pause, "{id} {number}: {e}");
        }
    }
    for (owner, made) in owners.iter().zip(&made) {
        assert_eq!(node.show(&owner.rid).unwrap().generation, made.generation);
    }
}
