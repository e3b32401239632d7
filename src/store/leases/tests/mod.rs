#![forbid(unsafe_code)]
//! Keepers against the memory store under a virtual clock, with failures placed by hand and by
//! seeds.

mod life;
mod seeds;
mod start;

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
