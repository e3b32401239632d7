#![forbid(unsafe_code)]
//! Keepers against the memory store under a virtual clock, with failures placed by hand and by
//! seeds.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::*;
use crate::ids::{MeshName, ObjectGeneration, ObjectKind, StoreVersion};
use crate::limits::GENERATION_BLOCK;
use crate::location::{LocationStore, Record};
use crate::store::memory::MemoryStore;
use crate::store::records::{
    Authority, AuthorityState, DeadOwner, OwnerRecord, OwnerState, authority_key,
    clear_dead_creating, owner_key, release_dead_owner, reserve_creating,
};

const BUDGET: Duration = Duration::from_secs(1);
const LEASE: Duration = DEFAULT_LEASE_DURATION;

/// The Store and the clock all keepers of a test share.
struct World {
    store: MemoryStore,
    clock: Arc<AtomicU64>,
}

/// What becomes of a Store call.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    Answered,
    /// Not carried out, and known so.
    Failed,
    /// Not carried out, and nobody knows.
    Lost,
    /// Carried out, but nobody knows.
    AnswerLost,
}

impl World {
    fn new() -> Self {
        let clock = Arc::new(AtomicU64::new(1_000_000_000));
        let ticks = clock.clone();
        let store = MemoryStore::with_clock(Arc::new(move || Nanos(ticks.load(Ordering::Relaxed))));
        Self { store, clock }
    }

    fn now(&self) -> Nanos {
        Nanos(self.clock.load(Ordering::Relaxed))
    }

    fn go_to(&self, at: Nanos) {
        self.clock.fetch_max(at.0, Ordering::Relaxed);
    }

    fn pass(&self, time: Duration) {
        self.go_to(self.now() + time);
    }

    fn read(&self, key: Vec<u8>) -> Option<Record> {
        self.store.read(&[key], BUDGET).unwrap().records.remove(0)
    }

    fn commit(&self, batch: Batch) -> BatchOutcome {
        self.store.commit(&[batch], BUDGET).unwrap().remove(0)
    }

    fn carry_out(&self, op: StoreOp) -> StoreAnswer {
        match op {
            StoreOp::Read(keys) => StoreAnswer::Read(self.store.read(&keys, BUDGET).unwrap()),
            StoreOp::Commit(batch) => StoreAnswer::Commit(self.commit(batch)),
            StoreOp::Scan { .. } => panic!("a keeper does not scan"),
        }
    }

    fn fate(&self, op: StoreOp, fate: Fate) -> StoreAnswer {
        match fate {
            Fate::Answered => self.carry_out(op),
            Fate::Failed => StoreAnswer::Failed(StoreError::Failed("refused".into())),
            Fate::Lost => StoreAnswer::Failed(StoreError::Unknown("lost".into())),
            Fate::AnswerLost => {
                self.carry_out(op);
                StoreAnswer::Failed(StoreError::Unknown("answer lost".into()))
            }
        }
    }

    fn owner(&self, rid: &NodeRid) -> Option<(OwnerRecord, StoreVersion)> {
        let record = self.read(owner_key(rid))?;
        Some((OwnerRecord::decode(&owner_key(rid), &record.value).unwrap(), record.version))
    }
}

/// A keeper, its call that is out, and what it has told.
struct Driven {
    keeper: Keeper,
    call: Option<(u64, StoreOp)>,
    /// Calls the keeper gave up: they may still be carried out.
    late: Vec<(u64, StoreOp)>,
    wait_until: Nanos,
    view: LeaseView,
    told: Vec<KeeperEffect>,
}

impl Driven {
    fn new(rid: &str, lifecycle: u128) -> Self {
        let config =
            KeeperConfig::new(NodeRid::new(rid).unwrap(), lifecycle as u64 * 1000, lifecycle);
        config.check().unwrap();
        Self {
            keeper: Keeper::new(config),
            call: None,
            late: Vec::new(),
            wait_until: Nanos::MAX,
            view: LeaseView { admission_deadline: Nanos::ZERO, fenced: false },
            told: Vec::new(),
        }
    }

    fn step(&mut self, world: &World, event: KeeperEvent) {
        let mut out = Vec::new();
        self.keeper.step(event, world.now(), &mut out);
        let waits = out.iter().filter(|e| matches!(e, KeeperEffect::WaitUntil(_))).count();
        assert_eq!(waits, usize::from(!self.keeper.has_ended()), "{out:?}");
        for effect in out {
            match effect {
                KeeperEffect::Store { token, op, .. } => {
                    self.late.extend(self.call.replace((token, op)));
                }
                KeeperEffect::WaitUntil(at) => self.wait_until = at,
                KeeperEffect::Publish(view) => {
                    assert!(!self.view.fenced || view.fenced, "a fenced lease came back");
                    self.view = view;
                }
                other => self.told.push(other),
            }
        }
    }

    /// Ends the call that is out.
    fn answer(&mut self, world: &World, fate: Fate) {
        let (token, op) = self.call.take().expect("a call is out");
        let answer = world.fate(op, fate);
        self.step(world, KeeperEvent::Answer { token, answer });
    }

    /// Answers calls until none is out.
    fn settle(&mut self, world: &World) {
        while self.call.is_some() {
            self.answer(world, Fate::Answered);
        }
    }

    /// Lets time pass until `at`, with every call answered.
    fn run_to(&mut self, world: &World, at: Nanos) {
        self.settle(world);
        while self.wait_until <= at && !self.keeper.has_ended() {
            world.go_to(self.wait_until);
            self.step(world, KeeperEvent::Timer);
            self.settle(world);
        }
        world.go_to(at);
    }

    /// The same with every call meeting `fate`.
    fn run_failing_to(&mut self, world: &World, at: Nanos, fate: Fate) {
        loop {
            while self.call.is_some() {
                self.answer(world, fate);
            }
            if self.wait_until > at || self.keeper.has_ended() {
                break;
            }
            world.go_to(self.wait_until);
            self.step(world, KeeperEvent::Timer);
        }
        world.go_to(at);
    }

    fn start(&mut self, world: &World) -> Started {
        self.step(world, KeeperEvent::Start);
        self.settle(world);
        self.started().expect("started")
    }

    fn started(&self) -> Option<Started> {
        self.told.iter().find_map(|effect| match effect {
            KeeperEffect::Started(started) => Some((**started).clone()),
            _ => None,
        })
    }

    fn start_error(&self) -> Option<&Error> {
        self.told.iter().find_map(|effect| match effect {
            KeeperEffect::StartFailed(e) => Some(e),
            _ => None,
        })
    }

    fn fenced(&self) -> Option<&Error> {
        self.told.iter().find_map(|effect| match effect {
            KeeperEffect::Fenced(e) => Some(e),
            _ => None,
        })
    }

    fn count(&self, wanted: &KeeperEffect) -> usize {
        self.told.iter().filter(|effect| *effect == wanted).count()
    }
}

fn rid() -> NodeRid {
    NodeRid::new("n").unwrap()
}

fn descriptor(started: &Started, port: u16) -> Box<NodeDescriptor> {
    Box::new(NodeDescriptor {
        rid: started.owner.rid.clone(),
        mesh: MeshName::new("game").unwrap(),
        endpoint: format!("tcp://127.0.0.1:{port}").parse().unwrap(),
        node_generation: started.node_generation,
        key_id: 7,
        cores: 2,
        actor_types: vec!["counter".into()],
        spot_types: vec![],
        message_follow_duration_ms: 30_000,
    })
}

/// Proves R0-3.
#[test]
fn the_first_node_takes_the_first_numbers_and_writes_the_seed() {
    let world = World::new();
    let mut one = Driven::new("n", 1);
    let started = one.start(&world);
    assert_eq!(started.node_generation.get(), 1);
    assert_eq!(started.owner_lease_generation.get(), 2);
    assert_eq!(started.hash_seed, 1000);
    assert_eq!(started.generations, Block::new(3, 1 + GENERATION_BLOCK).unwrap());
    let (owner, version) = world.owner(&rid()).unwrap();
    assert_eq!(started.owner.version, version);
    assert_eq!((owner.lifecycle, owner.state), (1, OwnerState::Active));
    let lease = world.read(lease_key(&rid())).unwrap();
    assert_eq!(lease.expires_in, Some(LEASE));
}

/// Proves R0-3.
#[test]
fn later_nodes_take_later_numbers_and_the_same_seed() {
    let world = World::new();
    let first = Driven::new("a", 1).start(&world);
    let second = Driven::new("b", 2).start(&world);
    assert_eq!(second.hash_seed, first.hash_seed);
    assert_eq!(second.node_generation.get(), 1 + GENERATION_BLOCK);
    assert_eq!(second.owner_lease_generation.get(), 2 + GENERATION_BLOCK);
}

/// Proves R2.1-3, R2.2-2.
#[test]
fn a_lease_counts_from_before_its_commit_was_sent() {
    let world = World::new();
    let mut one = Driven::new("n", 1);
    one.step(&world, KeeperEvent::Start);
    one.answer(&world, Fate::Answered);
    let sent_at = world.now();
    world.pass(Duration::from_millis(700));
    one.answer(&world, Fate::Answered);
    let wanted = (sent_at + LEASE).minus(LEASE_ADMISSION_MARGIN);
    assert_eq!(one.view, LeaseView { admission_deadline: wanted, fenced: false });

    world.go_to(one.wait_until);
    one.step(&world, KeeperEvent::Timer);
    let sent_at = world.now();
    world.pass(Duration::from_millis(700));
    one.answer(&world, Fate::Answered);
    let wanted = (sent_at + LEASE).minus(LEASE_ADMISSION_MARGIN);
    assert_eq!(one.view.admission_deadline, wanted);
    assert_eq!(one.wait_until, sent_at + DEFAULT_LEASE_RENEW_INTERVAL);
}

/// Proves R0-6, R0-3.
#[test]
fn renewals_keep_the_lease_alive_and_its_generation() {
    let world = World::new();
    let mut one = Driven::new("n", 1);
    let started = one.start(&world);
    for _ in 0..100 {
        let next = one.wait_until;
        assert!(next.since(world.now()) <= DEFAULT_LEASE_RENEW_INTERVAL);
        world.go_to(next);
        assert!(one.view.is_alive(world.now()));
        one.step(&world, KeeperEvent::Timer);
        one.settle(&world);
        let lease = world.read(lease_key(&rid())).unwrap();
        assert_eq!(lease.expires_in, Some(LEASE));
        let lease = LeaseRecord::decode(b"lease", &lease.value).unwrap();
        assert_eq!(lease.owner_lease_generation, started.owner_lease_generation);
    }
    assert_eq!(one.told.len(), 1, "{:?}", one.told);
}

#[test]
fn a_timer_that_comes_early_does_nothing() {
    let world = World::new();
    let mut one = Driven::new("n", 1);
    one.start(&world);
    one.step(&world, KeeperEvent::Timer);
    assert!(one.call.is_none());
}

#[test]
fn a_rid_used_by_a_live_node_fails_the_start_and_changes_nothing() {
    let world = World::new();
    let mut live = Driven::new("n", 1);
    live.start(&world);
    world.pass(Duration::from_secs(2));
    let mut second = Driven::new("n", 2);
    second.step(&world, KeeperEvent::Start);
    let begun = world.now();
    while second.start_error().is_none() {
        let next = second.wait_until.min(live.wait_until);
        second.run_to(&world, next);
        live.run_to(&world, next);
    }
    let e = second.start_error().unwrap();
    assert_eq!(e.kind(), crate::ErrorKind::NotConfigured);
    assert!(e.text().contains("rid \"n\" is used by a live node"), "{e}");
    assert!(world.now().since(begun) <= DEFAULT_LEASE_RENEW_INTERVAL, "soon after a renewal");
    assert!(second.keeper.has_ended() && second.started().is_none());
    assert_eq!(world.owner(&rid()).unwrap().0.lifecycle, 1);
    live.run_to(&world, world.now() + LEASE * 3);
    assert!(live.view.is_alive(world.now()));
}

/// Proves R5-13, R0-3.
#[test]
fn the_lease_of_a_dead_lifecycle_is_waited_for_and_its_owner_record_replaced() {
    let world = World::new();
    let dead = Driven::new("n", 1).start(&world);
    world.pass(Duration::from_secs(1));
    let died = world.now();
    let mut next = Driven::new("n", 2);
    next.step(&world, KeeperEvent::Start);
    next.run_to(&world, (died + LEASE * 9 / 10).minus(Duration::from_millis(1)));
    assert!(next.started().is_none(), "it did not wait");
    next.run_to(&world, died + LEASE);
    let started = next.started().expect("started once the lease had run out");
    assert!(started.node_generation > dead.node_generation);
    assert!(started.owner_lease_generation > dead.owner_lease_generation);
    // A row of the dead lifecycle is not the new one's.
    let (owner, _) = world.owner(&rid()).unwrap();
    let row = Authority {
        state: AuthorityState::Ready,
        type_name: "t".into(),
        object_generation: ObjectGeneration::FIRST,
        authority_owner_generation: crate::ids::AuthorityOwnerGeneration::FIRST,
        mesh: MeshName::new("m").unwrap(),
        rid: rid(),
        node_generation: dead.node_generation,
        owner_lease_generation: dead.owner_lease_generation,
        spot: None,
    };
    assert!(!row.is_owned_by(&owner));
}

#[test]
fn of_two_nodes_that_start_with_one_rid_one_wins() {
    let world = World::new();
    let mut both = [Driven::new("n", 1), Driven::new("n", 2)];
    for one in &mut both {
        one.step(&world, KeeperEvent::Start);
        one.answer(&world, Fate::Answered);
    }
    // Both have read the empty store; both commits are out.
    both.iter_mut().for_each(|one| one.settle(&world));
    assert!(both[0].started().is_some());
    assert!(both[1].start_error().unwrap().text().contains("used by a live node"));
}

#[test]
fn nodes_of_other_rids_that_race_for_numbers_all_start() {
    let world = World::new();
    let mut all: Vec<_> = (1..=5).map(|i| Driven::new(&format!("n{i}"), i)).collect();
    for one in &mut all {
        one.step(&world, KeeperEvent::Start);
        one.answer(&world, Fate::Answered);
    }
    all.iter_mut().for_each(|one| one.settle(&world));
    let mut numbers: Vec<_> =
        all.iter().map(|one| one.started().unwrap().node_generation).collect();
    numbers.dedup();
    assert_eq!(numbers.len(), 5);
}

#[test]
fn an_acquisition_whose_answer_was_lost_is_found_by_reading() {
    let world = World::new();
    let mut one = Driven::new("n", 1);
    one.step(&world, KeeperEvent::Start);
    one.answer(&world, Fate::Answered);
    let sent_at = world.now();
    world.pass(Duration::from_secs(1));
    one.answer(&world, Fate::AnswerLost);
    one.run_to(&world, world.now() + Duration::from_secs(1));
    let started = one.started().expect("started");
    assert_eq!((started.node_generation.get(), started.hash_seed), (1, 1000));
    assert_eq!(started.generations, Block::new(3, 1 + GENERATION_BLOCK).unwrap());
    assert_eq!(started.owner.version, world.owner(&rid()).unwrap().1);
    assert_eq!(one.view.admission_deadline, (sent_at + LEASE).minus(LEASE_ADMISSION_MARGIN));
    // The records it adopted can be renewed.
    one.run_to(&world, world.now() + LEASE);
    assert!(one.view.is_alive(world.now()));
}

#[test]
fn an_acquisition_that_was_lost_is_sent_again() {
    let world = World::new();
    let mut one = Driven::new("n", 1);
    one.step(&world, KeeperEvent::Start);
    one.answer(&world, Fate::Answered);
    one.answer(&world, Fate::Lost);
    assert!(one.started().is_none());
    one.run_to(&world, world.now() + Duration::from_secs(1));
    assert_eq!(one.started().unwrap().node_generation.get(), 1);
}

#[test]
fn an_acquisition_that_is_applied_late_is_adopted_and_not_doubled() {
    let world = World::new();
    let mut one = Driven::new("n", 1);
    one.step(&world, KeeperEvent::Start);
    one.answer(&world, Fate::Answered);
    let (_, late) = one.call.clone().unwrap();
    let sent_at = world.now();
    one.answer(&world, Fate::Lost);
    world.go_to(one.wait_until);
    one.step(&world, KeeperEvent::Timer);
    one.answer(&world, Fate::Answered); // reads: not there
    world.carry_out(late); // there now
    one.settle(&world);
    assert_eq!(one.started().unwrap().node_generation.get(), 1);
    assert_eq!(one.view.admission_deadline, (sent_at + LEASE).minus(LEASE_ADMISSION_MARGIN));
}

/// Proves R5-16.
#[test]
fn an_outage_longer_than_the_lease_pauses_the_node_and_loses_nothing() {
    let world = World::new();
    for fate in [Fate::Failed, Fate::Lost] {
        let mut one = Driven::new(&format!("{fate:?}"), 1);
        let started = one.start(&world);
        let deadline = one.view.admission_deadline;
        one.run_failing_to(&world, world.now() + LEASE * 4, fate);
        assert_eq!(one.view.admission_deadline, deadline, "an outage stretches no lease");
        assert!(!one.view.is_alive(world.now()));
        assert!(world.read(lease_key(&started.owner.rid)).is_none());
        one.run_to(&world, world.now() + Duration::from_secs(1));
        assert!(one.view.is_alive(world.now()), "resumed");
        let lease = world.read(lease_key(&started.owner.rid)).expect("written anew");
        let lease = LeaseRecord::decode(b"lease", &lease.value).unwrap();
        assert_eq!(lease.owner_lease_generation, started.owner_lease_generation);
        assert!(one.fenced().is_none());
        let downs = one
            .told
            .iter()
            .filter(|e| matches!(e, KeeperEffect::Health(StoreHealth::Down(_))))
            .count();
        assert_eq!(downs, 1, "told once");
        assert_eq!(one.count(&KeeperEffect::Health(StoreHealth::Up)), 1);
    }
}

/// Proves R5-16, R5-13.
#[test]
fn a_node_released_while_it_was_lapsed_is_fenced_for_good() {
    let world = World::new();
    let mut one = Driven::new("n", 1);
    let started = one.start(&world);
    let (owner, version) = world.owner(&rid()).unwrap();
    let release = release_dead_owner(&rid(), &owner, version);
    assert!(
        matches!(world.commit(release.clone()), BatchOutcome::Conflict { condition: 1 }),
        "a node whose lease stands cannot be released"
    );
    world.pass(LEASE);
    assert!(matches!(world.commit(release), BatchOutcome::Committed(_)));
    one.run_to(&world, world.now());
    assert_eq!(one.view, LeaseView { admission_deadline: Nanos::ZERO, fenced: true });
    assert!(one.fenced().unwrap().text().contains("released while its lease had lapsed"));
    assert!(one.keeper.has_ended());
    assert!(world.read(lease_key(&rid())).is_none(), "a fenced node writes no lease");
    // Nor can it write a row any more.
    let row = creating_row(&started);
    let reserve = reserve_creating(authority_key(ObjectKind::Actor, "a"), &row, &started.owner);
    assert_eq!(world.commit(reserve), BatchOutcome::Conflict { condition: 1 });
    one.step(&world, KeeperEvent::Release { deadline: world.now() + LEASE });
    assert_eq!(one.count(&KeeperEffect::Released { clean: true }), 1);
}

/// Proves R5-16.
#[test]
fn a_node_whose_rid_was_taken_while_it_was_lapsed_is_fenced_at_once() {
    let world = World::new();
    let mut one = Driven::new("n", 1);
    one.start(&world);
    world.pass(LEASE);
    let mut next = Driven::new("n", 2);
    next.start(&world);
    // The keeper of the stopped node goes on; the fence comes before its reason.
    one.step(&world, KeeperEvent::Timer);
    one.answer(&world, Fate::Answered);
    assert!(one.view.fenced && one.fenced().is_none());
    one.answer(&world, Fate::Failed);
    assert!(one.fenced().unwrap().text().contains("only a new start"), "{:?}", one.fenced());
    assert!(next.view.is_alive(world.now()));

    let mut other = Driven::new("m", 3);
    other.start(&world);
    world.pass(LEASE);
    Driven::new("m", 4).start(&world);
    other.run_to(&world, world.now());
    assert!(other.fenced().unwrap().text().contains("a later start took it"));
}

#[test]
fn a_store_that_lost_its_records_fences_the_node() {
    let world = World::new();
    let mut one = Driven::new("n", 1);
    one.start(&world);
    let wipe = Write::Delete { key: owner_key(&rid()) };
    world.commit(Batch { conditions: vec![], writes: vec![wipe] });
    one.run_to(&world, world.now() + LEASE);
    assert!(one.fenced().unwrap().text().contains("gone from the Location Store"));
}

#[test]
fn a_release_in_order_removes_all_three_records() {
    let world = World::new();
    let mut one = Driven::new("n", 1);
    let started = one.start(&world);
    one.step(&world, KeeperEvent::Publish(descriptor(&started, 1)));
    one.settle(&world);
    one.step(&world, KeeperEvent::Release { deadline: world.now() + LEASE });
    assert!(one.view.fenced, "nothing runs while the records go");
    one.settle(&world);
    assert_eq!(one.count(&KeeperEffect::Released { clean: true }), 1);
    for key in [lease_key(&rid()), node_key(&rid()), owner_key(&rid())] {
        assert!(world.read(key).is_none());
    }
    // The rid is free at once.
    Driven::new("n", 2).start(&world);
}

#[test]
fn a_release_waits_for_the_call_that_is_out_and_outlives_lost_answers() {
    let world = World::new();
    let mut one = Driven::new("n", 1);
    one.start(&world);
    world.go_to(one.wait_until);
    one.step(&world, KeeperEvent::Timer);
    one.step(&world, KeeperEvent::Release { deadline: world.now() + LEASE });
    one.answer(&world, Fate::Answered); // the renewal
    assert!(one.view.fenced, "the renewal does not bring the lease back");
    one.answer(&world, Fate::AnswerLost); // the release
    assert!(!one.keeper.has_ended());
    one.run_to(&world, one.wait_until);
    assert_eq!(one.count(&KeeperEffect::Released { clean: true }), 1);
    assert!(one.fenced().is_none());
}

#[test]
fn a_release_without_a_store_ends_at_its_deadline() {
    let world = World::new();
    let mut one = Driven::new("n", 1);
    one.start(&world);
    let deadline = world.now() + Duration::from_secs(2);
    one.step(&world, KeeperEvent::Release { deadline });
    one.run_failing_to(&world, deadline, Fate::Failed);
    assert_eq!(one.count(&KeeperEffect::Released { clean: false }), 1);
    assert!(one.keeper.has_ended());
}

#[test]
fn a_release_before_the_lease_was_taken_leaves_nothing_behind() {
    let world = World::new();
    let mut idle = Driven::new("n", 1);
    idle.step(&world, KeeperEvent::Release { deadline: world.now() + LEASE });
    assert_eq!(idle.count(&KeeperEffect::Released { clean: true }), 1);

    let mut reading = Driven::new("n", 2);
    reading.step(&world, KeeperEvent::Start);
    reading.step(&world, KeeperEvent::Release { deadline: world.now() + LEASE });
    reading.settle(&world);
    assert_eq!(reading.count(&KeeperEffect::Released { clean: true }), 1);

    // The acquisition was applied and nobody knew: it is found and taken back.
    let mut doubtful = Driven::new("n", 3);
    doubtful.step(&world, KeeperEvent::Start);
    doubtful.answer(&world, Fate::Answered);
    doubtful.step(&world, KeeperEvent::Release { deadline: world.now() + LEASE });
    doubtful.answer(&world, Fate::AnswerLost);
    assert!(world.owner(&rid()).is_some());
    doubtful.run_to(&world, world.now() + Duration::from_secs(1));
    assert_eq!(doubtful.count(&KeeperEffect::Released { clean: true }), 1);
    assert!(doubtful.started().is_none());
    assert!(world.owner(&rid()).is_none() && world.read(lease_key(&rid())).is_none());
}

/// Proves R2.3-2.
#[test]
fn a_descriptor_is_written_with_the_lease_and_lives_as_long() {
    let world = World::new();
    let mut one = Driven::new("n", 1);
    let started = one.start(&world);
    assert!(world.read(node_key(&rid())).is_none(), "not before the node has an endpoint");
    one.step(&world, KeeperEvent::Publish(descriptor(&started, 1)));
    // A second one while the first is out goes right behind it.
    one.step(&world, KeeperEvent::Publish(descriptor(&started, 2)));
    one.answer(&world, Fate::Answered);
    assert_eq!(one.count(&KeeperEffect::DescriptorPublished), 0, "the newest is not there yet");
    one.answer(&world, Fate::Answered);
    assert_eq!(one.count(&KeeperEffect::DescriptorPublished), 1);
    one.run_to(&world, world.now() + LEASE * 3);
    let record = world.read(node_key(&rid())).expect("renewed with the lease");
    let lease = world.read(lease_key(&rid())).unwrap();
    assert_eq!(record.expires_in, lease.expires_in);
    let node = NodeDescriptor::decode(&node_key(&rid()), &record.value).unwrap();
    assert_eq!(node, *descriptor(&started, 2));
    assert_eq!(one.count(&KeeperEffect::DescriptorPublished), 1, "told once");
}

#[test]
fn a_descriptor_whose_commit_failed_is_written_by_the_next_renewal() {
    let world = World::new();
    let mut one = Driven::new("n", 1);
    let started = one.start(&world);
    one.step(&world, KeeperEvent::Publish(descriptor(&started, 1)));
    one.answer(&world, Fate::Lost);
    assert_eq!(one.count(&KeeperEffect::DescriptorPublished), 0);
    one.run_to(&world, world.now() + Duration::from_secs(1));
    assert_eq!(one.count(&KeeperEffect::DescriptorPublished), 1);
    assert!(world.read(node_key(&rid())).is_some());
}

#[test]
fn a_descriptor_too_large_for_a_record_is_refused_and_the_lease_goes_on() {
    let world = World::new();
    let mut one = Driven::new("n", 1);
    let started = one.start(&world);
    let mut node = descriptor(&started, 1);
    node.actor_types = (0..1000).map(|i| format!("{i:0200}")).collect();
    one.step(&world, KeeperEvent::Publish(node));
    let refused = one.told.iter().find_map(|effect| match effect {
        KeeperEffect::DescriptorRefused(e) => Some(e),
        _ => None,
    });
    assert!(refused.unwrap().text().contains("65536"), "{refused:?}");
    one.run_to(&world, world.now() + LEASE * 2);
    assert!(one.view.is_alive(world.now()));
}

#[test]
fn a_store_that_does_not_answer_fails_the_start_in_its_time() {
    let world = World::new();
    let mut one = Driven::new("n", 1);
    let begun = world.now();
    one.step(&world, KeeperEvent::Start);
    one.run_failing_to(&world, begun + DEFAULT_START_TIMEOUT + BUDGET, Fate::Failed);
    let e = one.start_error().expect("failed");
    assert!(e.text().contains("did not answer"), "{e}");
    assert!(one.keeper.has_ended());
}

#[test]
fn a_call_without_any_answer_counts_as_lost_in_its_time() {
    let world = World::new();
    let mut one = Driven::new("n", 1);
    one.start(&world);
    world.go_to(one.wait_until);
    one.step(&world, KeeperEvent::Timer);
    let (token, op) = one.call.take().unwrap();
    world.go_to(one.wait_until);
    one.step(&world, KeeperEvent::Timer);
    assert!(matches!(one.told.last(), Some(KeeperEffect::Health(StoreHealth::Down(_)))));
    let deadline = one.view.admission_deadline;
    // The answer comes after all: too late to count.
    let answer = world.carry_out(op);
    one.step(&world, KeeperEvent::Answer { token, answer });
    assert_eq!(one.view.admission_deadline, deadline);
    one.run_to(&world, world.now() + Duration::from_secs(1));
    assert!(one.view.admission_deadline > deadline);
}

#[test]
fn records_that_cannot_be_read_fail_the_start_by_name() {
    for key in [owner_key(&rid()), b"meta/generation".to_vec(), b"meta/hash-seed".to_vec()] {
        let world = World::new();
        let put = Write::Put { key: key.clone(), value: b"{}".to_vec(), ttl: None };
        world.commit(Batch { conditions: vec![], writes: vec![put] });
        let mut one = Driven::new("n", 1);
        one.step(&world, KeeperEvent::Start);
        one.settle(&world);
        let e = one.start_error().expect("refused");
        assert!(e.text().contains(&*String::from_utf8(key).unwrap()), "{e}");
    }
}

#[test]
fn durations_that_do_not_go_together_are_refused() {
    let good = KeeperConfig::new(rid(), 1, 1);
    good.check().unwrap();
    let short = KeeperConfig { lease_duration: Duration::from_secs(6), ..good.clone() };
    assert!(short.check().unwrap_err().text().contains("lease_duration is 6s"));
    assert!(KeeperConfig { renew_interval: Duration::ZERO, ..good.clone() }.check().is_err());
    assert!(KeeperConfig { store_timeout: Duration::ZERO, ..good }.check().is_err());
}

fn creating_row(started: &Started) -> Authority {
    Authority {
        state: AuthorityState::Creating { attempt: 9 },
        type_name: "t".into(),
        object_generation: ObjectGeneration::FIRST,
        authority_owner_generation: crate::ids::AuthorityOwnerGeneration::FIRST,
        mesh: MeshName::new("m").unwrap(),
        rid: started.owner.rid.clone(),
        node_generation: started.node_generation,
        owner_lease_generation: started.owner_lease_generation,
        spot: None,
    }
}

/// Proves R2.2b-2.
#[test]
fn a_reservation_is_cleared_only_when_its_creator_is_seen_dead() {
    let world = World::new();
    let started = Driven::new("n", 1).start(&world);
    let key = authority_key(ObjectKind::Actor, "a");
    let row = creating_row(&started);
    let reserve = reserve_creating(key.clone(), &row, &started.owner);
    let BatchOutcome::Committed(versions) = world.commit(reserve) else { panic!("reserved") };
    let owner = world.owner(&rid()).unwrap();
    assert_eq!(DeadOwner::of(&row, Some((&owner.0, owner.1)), true), None);
    let clear = clear_dead_creating(key.clone(), &row, versions[0], DeadOwner::LeaseAbsent);
    assert_eq!(world.commit(clear.clone()), BatchOutcome::Conflict { condition: 1 });
    world.pass(LEASE);
    assert_eq!(DeadOwner::of(&row, Some((&owner.0, owner.1)), false), Some(DeadOwner::LeaseAbsent));
    assert!(matches!(world.commit(clear), BatchOutcome::Committed(_)));
    assert!(world.read(key).is_none());
}

/// Keepers of two rids start, stop, die and meet every fate of a Store call, by seeds. Two
/// lifecycles of one rid never hold a live lease at the same instant, and no generation is given
/// twice.
///
/// Proves R0-3, R5-2.
#[test]
fn no_two_lifecycles_of_one_rid_are_alive_at_once() {
    for seed in 1..=200u64 {
        let mut random = Random(seed);
        let world = World::new();
        let mut nodes: Vec<Driven> = Vec::new();
        let mut given = std::collections::BTreeSet::new();
        let mut starts = 0;
        for step in 1..600u128 {
            if nodes.len() < 4 && random.one_in(10) {
                let rid = if random.one_in(2) { "a" } else { "b" };
                nodes.push(Driven::new(rid, step));
                nodes.last_mut().unwrap().step(&world, KeeperEvent::Start);
            }
            if nodes.is_empty() {
                continue;
            }
            let at = random.below(nodes.len() as u64) as usize;
            let node = &mut nodes[at];
            match random.below(12) {
                0 => world.pass(Duration::from_millis(random.below(4000))),
                1 if random.one_in(4) => {
                    let deadline = world.now() + Duration::from_secs(3);
                    node.step(&world, KeeperEvent::Release { deadline });
                }
                2 if random.one_in(6) => {
                    nodes.remove(at); // its process dies
                    continue;
                }
                3 | 4 => {
                    world.go_to(node.wait_until.min(world.now() + Duration::from_secs(2)));
                    node.step(&world, KeeperEvent::Timer);
                }
                5 if !node.late.is_empty() => {
                    let (token, op) = node.late.remove(0);
                    let answer = world.carry_out(op);
                    node.step(&world, KeeperEvent::Answer { token, answer });
                }
                _ if node.call.is_some() => {
                    let fate = match random.below(8) {
                        0 => Fate::Failed,
                        1 => Fate::Lost,
                        2 => Fate::AnswerLost,
                        _ => Fate::Answered,
                    };
                    node.answer(&world, fate);
                }
                _ => {}
            }
            for node in &mut nodes {
                for effect in node.told.drain(..) {
                    let KeeperEffect::Started(started) = effect else { continue };
                    starts += 1;
                    assert!(given.insert(started.node_generation.get()), "seed {seed}");
                    assert!(given.insert(started.owner_lease_generation.get()), "seed {seed}");
                }
            }
            for rid in ["a", "b"] {
                let alive = nodes
                    .iter()
                    .filter(|n| n.keeper.config.rid.as_bytes() == rid.as_bytes())
                    .filter(|n| n.view.is_alive(world.now()))
                    .count();
                assert!(alive <= 1, "seed {seed}, step {step}: {alive} live leases of {rid}");
            }
            nodes.retain(|node| !node.keeper.has_ended());
        }
        assert!(starts > 0, "seed {seed} started nothing");
    }
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % end
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}
