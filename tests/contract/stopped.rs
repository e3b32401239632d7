#![forbid(unsafe_code)]
//! R5-16 at the steps themselves: a node that stops at a failpoint, between taking a message in and
//! letting its answer out, and goes on when its lease has lapsed.

use std::time::Duration;

use homing::env::Failpoint;
use homing::location::{BatchOutcome, LocationStore};
use homing::store::records::{OwnerRecord, lease_key, owner_key, release_dead_owner};
use homing::wire::{Body, Command as WireCommand, Frame};
use homing::{Counter, ErrorKind, Node};

use super::command::{Command, Setup, Sight};
use super::eventually::eventually;
use super::probe::{Note, Show};
use super::proxy::Proxy;
use super::world::{Asks, Child, World};

const BUDGET: Duration = Duration::from_secs(20);

/// Whether the frame does the work of an owner; liveness, credit and the handshake do not.
fn is_work(frame: &[u8]) -> bool {
    match Frame::decode(frame, u32::MAX).expect("a node sends good frames").body {
        Body::Control(_) => false,
        Body::Record(record) => !matches!(
            record.command(),
            WireCommand::Hello
                | WireCommand::Admit
                | WireCommand::Reject
                | WireCommand::LivenessProbe
                | WireCommand::LivenessAck
        ),
    }
}

/// An owner behind a recording proxy, a caller in this process, and the owner's Actor `a`.
struct Stage {
    world: World,
    owner: Child,
    proxy: Proxy,
    node: Node,
}

impl Stage {
    fn new() -> Self {
        let world = World::new();
        let proxy = Proxy::new();
        let mut setup = Self::setup(&world, "owner");
        setup.request_ms = Some(300);
        let endpoint = world.free_tcp();
        setup.listen = Some(endpoint.clone());
        setup.advertise = Some(proxy.endpoint());
        proxy.lead_to(&endpoint);
        let owner = world.child(&setup);
        let mut setup = Self::setup(&world, "caller");
        setup.request_ms = Some(120_000);
        let (node, _) = world.node(&setup);
        owner.create("a");
        assert_eq!(node.note("a", 1), Ok(1));
        Self { world, owner, proxy, node }
    }

    /// The lease leaves time to get to the stop, and the links outlast it.
    fn setup(world: &World, rid: &str) -> Setup {
        Setup {
            lease_ms: Some((6_000, 1_000)),
            liveness_ms: Some((100_000, 300_000)),
            cores: Some(1),
            ..world.setup(rid)
        }
    }

    /// Lets the owner stop at a point with work on its way, and keeps its lease thread from
    /// renewing. The sends are handled in their order; the requests ask for two numbers more.
    fn stop_at(&self, point: &str) {
        self.owner.ask::<()>(Command::Arm("admitted=wait".into()));
        self.node.actor("a").send(Note { number: 2 }).wait().unwrap();
        self.await_waiting("admitted");
        // The core waits inside a round; what comes meanwhile is read in one piece after it.
        for number in 3..=8 {
            self.node.actor("a").send(Note { number }).wait().unwrap();
        }
        eventually("the sends to be on their way", || {
            (self.node.count(Counter::SubmittedRemote) == 8).then_some(())
        });
        self.owner.ask::<()>(Command::Arm(format!("{point}=stop, renewal-sent=wait")));
    }

    fn await_waiting(&self, point: &str) {
        eventually("the owner to come to the failpoint", || {
            self.owner.ask::<bool>(Command::WaitsAt(point.into())).then_some(())
        });
    }

    /// The owner's lease is gone from the Store.
    fn await_lapse(&self) {
        let store = self.world.store();
        let key = lease_key(&self.owner.node_rid());
        eventually("the owner's lease to lapse", || {
            let read = store.read(std::slice::from_ref(&key), BUDGET).ok()?;
            read.records[0].is_none().then_some(())
        });
    }

    fn works(&self) -> usize {
        self.proxy.frames_said().iter().filter(|frame| is_work(frame)).count()
    }
}

/// Where the owner stops, and how many turns it has begun since the story began.
const POINTS: [(&str, std::ops::RangeInclusive<u64>); 4] = [
    // Three of seven messages are in the queue, none of their turns has begun.
    ("admitted@3", 1..=1),
    // Three turns of a batch are done, nothing is let out, others are in the queue.
    ("turn-done@3", 3..=3),
    // The answer is not a frame yet.
    ("reply-let-out", 8..=8),
    // The answer is a frame, and about to be handed to the kernel.
    ("frames-ready@2", 1..=8),
];

/// Runs the story up to the moment where the owner goes on, past its lease and with its renewal
/// held back; looks that it does nothing then; lets it renew. `meanwhile` happens while it is
/// stopped. Gives the stage, the frames that had left before the stop, and the request's end.
fn past_the_lease(
    (point, turns): (&str, std::ops::RangeInclusive<u64>),
    meanwhile: impl FnOnce(&Stage),
) -> (Stage, usize, homing::Result<u64>) {
    let stage = Stage::new();
    let before = stage.owner.counter(Counter::TurnsHandled);
    stage.stop_at(point);
    let asked = stage.node.actor("a").request(Note { number: 9 });
    let asked = std::thread::spawn(move || asked.wait());
    eventually("the request to be on its way", || {
        (stage.node.count(Counter::SubmittedRemote) == 9).then_some(())
    });
    stage.owner.ask::<()>(Command::LetGo("admitted".into()));
    stage.owner.await_stop();
    let works = stage.works();
    stage.await_lapse();
    meanwhile(&stage);
    stage.owner.resume();
    eventually("the owner to see its lapse", || {
        (stage.owner.counter(Counter::LeaseLapses) == 1).then_some(())
    });
    stage.await_waiting("renewal-sent");
    // It goes round, and runs nothing: what is asked meanwhile runs out of time.
    let local = Command::Note { id: "a".into(), number: 10, is_request: true };
    let local = stage.owner.try_ask::<u64>(local).expect_err("nothing runs");
    assert_eq!(local.kind(), ErrorKind::DeadlineExceeded, "{local}");
    let ran = stage.owner.counter(Counter::TurnsHandled) - before;
    assert!(turns.contains(&ran), "{point}: {ran} turns, expected {turns:?}");
    assert!(!asked.is_finished(), "{point}: nothing is answered");
    assert_eq!(stage.works(), works, "{point}: no frame left");
    stage.owner.ask::<()>(Command::LetGo("renewal-sent".into()));
    let end = asked.join().expect("no panic");
    (stage, works, end)
}

/// Nobody released it: with the renewal it goes on, its Actor as it stood; what was withheld leaves,
/// what was queued and held runs, in its order.
///
/// Proves R5-16, R5-4.
#[test]
fn a_node_stopped_at_a_step_past_its_lease_does_nothing_and_goes_on_when_it_renewed() {
    for (point, turns) in POINTS {
        let (stage, _, end) = past_the_lease((point, turns), |_| {});
        assert_eq!(end, Ok(9), "{point}");
        let shown = eventually("the owner to be found again", || {
            stage.node.actor("a").request(Show {}).wait().ok()
        });
        assert_eq!(shown.notes, (1..=9).collect::<Vec<u64>>(), "{point}");
        assert_eq!(stage.owner.counter(Counter::Fenced), 0);
    }
}

/// It was released meanwhile: it is fenced for good. What it withheld never leaves, its Actor is
/// gone, and it says so; the id is free, and a new incarnation of it begins anew elsewhere.
///
/// Proves R5-16, R5-13.
#[test]
fn a_node_stopped_at_a_step_and_released_meanwhile_is_fenced() {
    for (point, turns) in POINTS {
        let (stage, works, end) = past_the_lease((point, turns), release);
        let e = end.expect_err("nothing is answered");
        assert_eq!(e.kind(), ErrorKind::Unavailable, "{point}: {e}");
        assert_eq!(stage.owner.counter(Counter::Fenced), 1, "{point}");
        let said = stage.owner.try_ask::<super::command::Made>(Child::creation("b", None));
        let said = said.expect_err("a fenced node creates nothing");
        assert_eq!(said.kind(), ErrorKind::ShuttingDown, "{said}");
        assert!(said.text().contains("it was released while its lease had lapsed"), "{said}");
        let local = stage.owner.try_ask::<u64>(Command::Note {
            id: "a".into(),
            number: 99,
            is_request: true,
        });
        assert_eq!(local.expect_err("its Actor is closed").kind(), ErrorKind::ShuttingDown);
        eventually("the id to be free", || (stage.node.sight("a") == Sight::Missing).then_some(()));
        let made = stage.node.make("a", None).unwrap().standing();
        assert_eq!(made.rid, "caller");
        assert_eq!(stage.node.note("a", 50), Ok(1), "it begins anew");
        assert_eq!(stage.works(), works, "{point}: nothing left after it was fenced");
    }
}

/// What `release` does (R5-13), once its waiting is over: the lease was seen to be gone.
fn release(stage: &Stage) {
    let store = stage.world.store();
    let rid = stage.owner.node_rid();
    let key = owner_key(&rid);
    let read = store.read(std::slice::from_ref(&key), BUDGET).expect("the Store answers");
    let record = read.records[0].as_ref().expect("the owner record stands");
    let owner = OwnerRecord::decode(&key, &record.value).expect("it is good");
    let batch = release_dead_owner(&rid, &owner, record.version);
    let outcome = store.commit(&[batch], BUDGET).expect("the Store answers");
    assert!(matches!(outcome[..], [BatchOutcome::Committed(_)]), "{outcome:?}");
}

/// A life of a node, from its links over creations and messages to destructions, comes by every
/// failpoint there is.
#[test]
fn every_failpoint_is_reached() {
    let stage = Stage::new();
    let made = stage.owner.create("b");
    assert_eq!(stage.node.note("b", 1), Ok(1));
    stage.owner.destroy(&made).unwrap();
    // The owner dials, too.
    stage.node.make("c", None).unwrap();
    let there = Command::Note { id: "c".into(), number: 1, is_request: true };
    let mut setup = Stage::setup(&stage.world, "third");
    setup.cores = Some(2);
    let third = stage.world.child(&setup);
    let asked: u64 = third.ask(there);
    assert_eq!(asked, 1);
    let missed = || {
        let hits = |child: &Child, point: Failpoint| -> u64 {
            child.ask(Command::Hits(point.name().into()))
        };
        let missed: Vec<_> = Failpoint::ALL
            .iter()
            .filter(|point| hits(&stage.owner, **point) + hits(&third, **point) == 0)
            .map(|point| point.name())
            .collect();
        // The renewals come by themselves.
        missed.is_empty().then_some(())
    };
    eventually("every failpoint to be reached", missed);
}

/// A node that ends at a step leaves nothing undecided: every operation of its callers ends, the id
/// is what its row says, and a new start of the node takes part again.
///
/// Proves R4-6, R2.6-3, R5-13.
#[test]
fn a_node_killed_at_any_step_leaves_nothing_undecided() {
    for some in Failpoint::ALL.chunks(6) {
        std::thread::scope(|s| some.iter().for_each(|point| drop(s.spawn(|| killed_at(*point)))));
    }
}

fn killed_at(point: Failpoint) {
    let world = World::new();
    let brief = |rid: &str| Setup {
        create_ms: Some(6_000),
        request_ms: Some(6_000),
        cores: Some(2),
        ..world.brief(rid)
    };
    let mut victim = world.child(&brief("victim"));
    let (node, _) = world.node(&brief("caller"));
    let rid = victim.node_rid();
    node.make("home", None).unwrap();
    victim.ask::<()>(Command::Arm(format!("{point}=abort")));
    // Until the victim ends, both sides work with each other. Each operation may end well, when
    // the step comes later; none may hang.
    let dials = point == Failpoint::HandshakeConnected;
    if dials {
        victim.begin(Command::Note { id: "home".into(), number: 1, is_request: true });
    }
    let mut ids = Vec::new();
    eventually(&format!("the victim to end at {point}"), || {
        if dials {
            return victim.has_ended().then_some(());
        }
        let id = format!("a{}", ids.len());
        ids.push(id.clone());
        let _ = node.actors().create_type("probe", &id, ()).on(&rid).wait();
        let _ = node.note(&id, 1);
        if let Ok(Some(found)) = homing::block_on(node.actors().find(&id)) {
            let _ = homing::block_on(node.actors().destroy(&found));
        }
        victim.has_ended().then_some(())
    });
    let victim = world.child_named(&brief("victim"), "victim-again");
    for id in &ids {
        let sight = eventually("the row to be decided", || match node.sight(id) {
            Sight::StoreFailure | Sight::ReadyRoute => None,
            sight => Some(sight),
        });
        if sight == Sight::Missing {
            assert!(node.make(id, None).is_ok(), "{point}: a free id can be taken");
        }
    }
    eventually("the new start to host", || {
        node.actors().create_type("probe", "b", ()).on(&victim.node_rid()).wait().ok()
    });
    assert_eq!(node.note("b", 1), Ok(1), "{point}");
}
