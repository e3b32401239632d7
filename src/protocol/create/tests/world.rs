#![forbid(unsafe_code)]
//! Three coordinators, one Store, one id; everything that can go wrong, in any order.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

const NODES: u64 = 3;
const TYPES: [&str; 2] = ["t", "other"];

#[derive(Clone, Debug)]
enum Move {
    Create {
        node: u64,
        other_type: bool,
        wait_s: u64,
    },
    Cancel {
        which: usize,
    },
    /// The Store carries out a call that is out. With `lost` its answer never comes; a call the
    /// Store refuses is `failed`; `unknown` tells that nobody knows.
    Serve {
        which: usize,
        luck: u8,
    },
    Factory {
        which: usize,
        luck: u8,
    },
    /// A join that is out reaches its node (or is lost); later its answer comes back.
    Join {
        which: usize,
        lost: bool,
    },
    Lapse {
        node: u64,
    },
    Resume {
        node: u64,
    },
    Kill {
        node: u64,
    },
    Pass {
        ms: u64,
    },
}

fn a_move() -> impl Strategy<Value = Move> {
    prop_oneof![
        6 => (0..NODES, proptest::bool::weighted(0.15), 1..30u64)
            .prop_map(|(node, other_type, wait_s)| Move::Create { node, other_type, wait_s }),
        1 => (0..8usize).prop_map(|which| Move::Cancel { which }),
        24 => (0..8usize, 0..12u8).prop_map(|(which, luck)| Move::Serve { which, luck }),
        6 => (0..4usize, 0..8u8).prop_map(|(which, luck)| Move::Factory { which, luck }),
        6 => (0..4usize, proptest::bool::weighted(0.1))
            .prop_map(|(which, lost)| Move::Join { which, lost }),
        1 => (0..NODES).prop_map(|node| Move::Lapse { node }),
        2 => (0..NODES).prop_map(|node| Move::Resume { node }),
        1 => (1..NODES).prop_map(|node| Move::Kill { node }),
        4 => (0..1500u64).prop_map(|ms| Move::Pass { ms }),
    ]
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Health {
    Alive,
    /// Its lease does not stand; it goes on all the same, which is the worst case.
    Lapsed,
    Dead,
}

struct World {
    creators: Vec<Creator>,
    health: Vec<Health>,
    now: Nanos,
    row: Option<Row>,
    last_version: u64,
    last_generation: u64,
    last_token: u64,
    /// Store calls that are out, per node.
    calls: Vec<(u64, Effect)>,
    factories: Vec<(u64, CallId, ObjectGeneration)>,
    joins: Vec<(u64, Effect)>,
    /// Tokens of joins at their target: who asked, under which call.
    joining: BTreeMap<u64, (u64, CallId)>,
    /// Callers that wait: node and what they want.
    waiting: BTreeMap<u64, (u64, usize)>,
    /// Built and neither installed nor discarded.
    built: BTreeSet<(u64, CallId)>,
    installed: Vec<(u64, ObjectGeneration)>,
    /// Incarnations whose row was Ready at some time.
    was_ready: BTreeSet<ObjectGeneration>,
    was_rejected: bool,
    reserved: BTreeSet<(u64, ObjectGeneration)>,
    created_answers: BTreeSet<ObjectGeneration>,
    ever_lapsed: bool,
}

impl World {
    fn new() -> Self {
        Self {
            creators: (0..NODES)
                .map(|n| Creator::new(identity(n), CreateTimes::default()))
                .collect(),
            health: vec![Health::Alive; NODES as usize],
            now: Nanos(0),
            row: None,
            last_version: 0,
            last_generation: 0,
            last_token: 0,
            calls: Vec::new(),
            factories: Vec::new(),
            joins: Vec::new(),
            joining: BTreeMap::new(),
            waiting: BTreeMap::new(),
            built: BTreeSet::new(),
            installed: Vec::new(),
            was_ready: BTreeSet::new(),
            was_rejected: false,
            reserved: BTreeSet::new(),
            created_answers: BTreeSet::new(),
            ever_lapsed: false,
        }
    }

    fn node_of(rid: &NodeRid) -> u64 {
        (0..NODES).find(|n| identity(*n).rid == *rid).unwrap()
    }

    fn is_dead(&self, node: u64) -> bool {
        self.health[node as usize] == Health::Dead
    }

    fn sight(&self, row: &Row) -> OwnerSight {
        let alive = self.health[Self::node_of(&row.authority.rid) as usize] == Health::Alive;
        if alive { ALIVE } else { DEAD }
    }

    fn feed(&mut self, node: u64, event: Event) {
        if self.is_dead(node) {
            return;
        }
        let mut out = Vec::new();
        self.creators[node as usize].handle(event, self.now, &mut out);
        for effect in out {
            self.carry_out(node, effect);
        }
    }

    fn carry_out(&mut self, node: u64, effect: Effect) {
        match effect {
            Effect::JoinRemote { .. } => self.joins.push((node, effect)),
            Effect::RunFactory { call, object_generation, caller, .. } => {
                assert!(
                    self.reserved.contains(&(node, object_generation)),
                    "a factory runs without a reservation"
                );
                assert!(self.waiting.contains_key(&caller), "for a caller that is not there");
                if !self.ever_lapsed {
                    assert!(self.factories.is_empty(), "two factories run at once");
                    assert!(self.installed.is_empty(), "a factory runs beside the object");
                }
                self.factories.push((node, call, object_generation));
            }
            Effect::StopFactory { factory, .. } => {
                self.factories.retain(|f| (f.0, f.1) != (node, factory));
            }
            Effect::Install { factory, object_generation, .. } => {
                assert!(self.built.remove(&(node, factory)), "installed twice, or never built");
                let stands = self.row.as_ref().map(|r| (&r.authority.rid, r.attempt()));
                assert_eq!(stands, Some((&identity(node).rid, None)), "the row names the owner");
                self.installed.push((node, object_generation));
                assert_eq!(self.installed.len(), 1, "one object, never two");
            }
            Effect::Discard { factory, .. } => {
                assert!(self.built.remove(&(node, factory)), "discarded what was not built");
            }
            Effect::Answered { caller, answer, .. } => self.check_answer(node, caller, answer),
            Effect::Joined { caller, reply, .. } => {
                // The answer travels back; its node may be gone.
                if let Some((asker, call)) = self.joining.remove(&caller) {
                    let answer = Ok(reply);
                    self.feed(asker, Event::JoinAnswered { key: key(), call, answer });
                }
            }
            Effect::TakeGeneration { call, .. } => {
                self.last_generation += 1;
                let generation = Ok(generation(self.last_generation));
                self.feed(node, Event::GenerationTaken { key: key(), call, generation });
            }
            call => self.calls.push((node, call)),
        }
    }

    fn check_answer(&mut self, node: u64, caller: u64, answer: CreateAnswer) {
        let (at, wanted) = self.waiting.remove(&caller).expect("answered twice");
        assert_eq!(at, node);
        match answer {
            CreateAnswer::Created(made) => {
                assert!(self.installed.contains(&(node, made.object_generation)));
                assert!(self.created_answers.insert(made.object_generation), "Created twice");
                assert_eq!(wanted, self.type_of_row(), "of the wrong type");
            }
            CreateAnswer::Existing(made) => {
                assert!(self.was_ready.contains(&made.object_generation), "existed never");
                assert_eq!(wanted, self.type_of_row(), "of the wrong type");
            }
            CreateAnswer::Rejected(_) => assert!(self.was_rejected, "nobody rejected"),
            CreateAnswer::Failed(_) => {}
        }
    }

    /// Once Ready, the row stays.
    fn type_of_row(&self) -> usize {
        let row = self.row.as_ref().expect("an object without a row");
        TYPES.iter().position(|t| *t == row.authority.type_name).unwrap()
    }

    fn write(&mut self, node: u64, state: AuthorityState, object: ObjectGeneration, t: &str) {
        self.last_version += 1;
        let mut row = row(state, &identity(node), object.get(), self.last_version);
        row.authority.type_name = t.into();
        self.row = Some(row);
    }

    /// Carries out a commit, if its conditions hold.
    fn commit(&mut self, node: u64, effect: &Effect) -> CommitOutcome {
        let stands = self.row.as_ref().map(|r| r.version);
        match effect {
            Effect::Reserve { object_generation, attempt, type_name, .. } => {
                if stands.is_some() {
                    return CommitOutcome::Conflict;
                }
                let state = AuthorityState::Creating { attempt: *attempt };
                self.write(node, state, *object_generation, type_name);
                self.reserved.insert((node, *object_generation));
            }
            Effect::CommitReady { object_generation, creating, type_name, .. } => {
                if stands != Some(*creating) {
                    return CommitOutcome::Conflict;
                }
                self.write(node, AuthorityState::Ready, *object_generation, type_name);
                self.was_ready.insert(*object_generation);
            }
            Effect::Delete { version, .. } => {
                if stands != Some(*version) {
                    return CommitOutcome::Conflict;
                }
                self.row = None;
                self.last_version += 1;
            }
            Effect::Clear { row, .. } => {
                if stands != Some(row.version) {
                    return CommitOutcome::Conflict;
                }
                if self.sight(row).dead.is_none() {
                    return CommitOutcome::Fenced;
                }
                self.row = None;
                self.last_version += 1;
            }
            other => panic!("not a commit: {other:?}"),
        }
        CommitOutcome::Committed(version(self.last_version))
    }

    fn serve(&mut self, which: usize, luck: u8) {
        if self.calls.is_empty() {
            return;
        }
        let (node, effect) = self.calls.remove(which % self.calls.len());
        let (until, is_silent) = (until_of(&effect), luck == 3 || luck == 4);
        let fails = luck == 0;
        // A call whose time is over is not begun; a dead node's call may still be carried out.
        if until <= self.now {
            return;
        }
        let error = || Error::unavailable("planned");
        let event = match &effect {
            Effect::ReadRow { call, .. } => {
                let row = if fails { Err(error()) } else { Ok(self.row.clone()) };
                let owner = match &row {
                    Ok(Some(r)) if luck.is_multiple_of(2) => Some(self.sight(r)),
                    _ => None,
                };
                Event::RowAnswered { key: key(), call: *call, row, owner }
            }
            Effect::ReadOwner { call, row, .. } => {
                let owner = if fails { Err(error()) } else { Ok(self.sight(row)) };
                Event::OwnerAnswered { key: key(), call: *call, owner }
            }
            Effect::Reserve { call, .. }
            | Effect::CommitReady { call, .. }
            | Effect::Delete { call, .. }
            | Effect::Clear { call, .. } => {
                let outcome = match luck {
                    0 => CommitOutcome::Failed(error()),
                    1 | 3 => CommitOutcome::Unknown,
                    2 | 4 => {
                        self.commit(node, &effect);
                        CommitOutcome::Unknown
                    }
                    _ => self.commit(node, &effect),
                };
                Event::Committed { key: key(), call: *call, outcome }
            }
            other => panic!("not a Store call: {other:?}"),
        };
        if !is_silent {
            self.feed(node, event);
        }
    }

    fn finish_factory(&mut self, which: usize, luck: u8) {
        if self.factories.is_empty() {
            return;
        }
        let (node, call, _) = self.factories.remove(which % self.factories.len());
        let outcome = match luck {
            0 => FactoryOutcome::Failed(Error::internal("planned")),
            1 => {
                self.was_rejected = true;
                FactoryOutcome::Rejected(Error::rejected("planned"))
            }
            _ => FactoryOutcome::Made,
        };
        if outcome == FactoryOutcome::Made && !self.is_dead(node) {
            self.built.insert((node, call));
        }
        self.feed(node, Event::FactoryEnded { key: key(), call, outcome });
    }

    fn deliver_join(&mut self, which: usize, lost: bool) {
        if self.joins.is_empty() {
            return;
        }
        let (node, effect) = self.joins.remove(which % self.joins.len());
        let Effect::JoinRemote { call, rid, attempt, until, .. } = effect else { unreachable!() };
        let target = Self::node_of(&rid);
        if lost || self.is_dead(target) {
            let answer = Err(Error::unavailable("link lost"));
            return self.feed(node, Event::JoinAnswered { key: key(), call, answer });
        }
        self.last_token += 1;
        let caller = self.last_token;
        self.joining.insert(caller, (node, call));
        self.feed(target, Event::Join { key: key(), caller, attempt, deadline: until });
    }

    fn kill(&mut self, node: u64) {
        self.health[node as usize] = Health::Dead;
        self.ever_lapsed = true;
        self.factories.retain(|f| f.0 != node);
        self.built.retain(|b| b.0 != node);
        self.waiting.retain(|_, w| w.0 != node);
        self.joins.retain(|j| j.0 != node);
        // Its links break: who waits for its answer learns so.
        let rid = identity(node).rid;
        let lost: Vec<(u64, (u64, CallId))> = self.joining.iter().map(|(t, j)| (*t, *j)).collect();
        for (token, (asker, call)) in lost {
            if self.is_dead(asker) {
                self.joining.remove(&token);
                continue;
            }
            let waits_here = self.creators[node as usize].is_busy(&key());
            if waits_here && self.row.as_ref().is_some_and(|r| r.authority.rid == rid) {
                self.joining.remove(&token);
                let answer = Err(Error::unavailable("link lost"));
                self.feed(asker, Event::JoinAnswered { key: key(), call, answer });
            }
        }
    }

    fn play(&mut self, m: Move) {
        match m {
            Move::Create { node, other_type, wait_s } => {
                if self.is_dead(node) {
                    return;
                }
                self.last_token += 1;
                let (caller, wanted) = (self.last_token, usize::from(other_type));
                self.waiting.insert(caller, (node, wanted));
                let local = match self.installed.iter().find(|i| i.0 == node) {
                    Some((_, object_generation)) => LocalSight::Ready {
                        object_generation: *object_generation,
                        type_name: Arc::from(TYPES[self.type_of_row()]),
                    },
                    None => LocalSight::Absent,
                };
                let event = Event::Create {
                    key: key(),
                    caller,
                    type_name: Arc::from(TYPES[wanted]),
                    deadline: Nanos(self.now.0 + wait_s * SEC),
                    attempt: 1_000_000 + u128::from(caller),
                    local,
                };
                self.feed(node, event);
            }
            Move::Cancel { which } => {
                let chosen = self.waiting.iter().nth(which).map(|(token, w)| (*token, w.0));
                if let Some((caller, node)) = chosen {
                    self.waiting.remove(&caller);
                    self.feed(node, Event::Cancel { key: key(), caller });
                }
            }
            Move::Serve { which, luck } => self.serve(which, luck),
            Move::Factory { which, luck } => self.finish_factory(which, luck),
            Move::Join { which, lost } => self.deliver_join(which, lost),
            Move::Lapse { node } => {
                if !self.is_dead(node) {
                    self.health[node as usize] = Health::Lapsed;
                    self.ever_lapsed = true;
                }
            }
            Move::Resume { node } => {
                if !self.is_dead(node) {
                    self.health[node as usize] = Health::Alive;
                }
            }
            Move::Kill { node } => self.kill(node),
            Move::Pass { ms } => {
                self.now = Nanos(self.now.0 + ms * 1_000_000);
                for node in 0..NODES {
                    self.feed(node, Event::Tick);
                }
            }
        }
        for (node, creator) in self.creators.iter().enumerate() {
            if self.health[node] != Health::Dead && creator.is_busy(&key()) {
                assert!(creator.next_deadline().is_some(), "node {node} would wait for ever");
            }
        }
    }

    /// From here on nothing goes wrong any more.
    fn settle(&mut self) {
        for node in 0..NODES {
            self.play(Move::Resume { node });
        }
        for _ in 0..200 {
            self.play(Move::Serve { which: 0, luck: 11 });
            self.play(Move::Factory { which: 0, luck: 7 });
            self.play(Move::Join { which: 0, lost: false });
            self.play(Move::Pass { ms: 400 });
        }
    }

    fn check_end(&self) {
        assert!(self.waiting.is_empty(), "callers without an answer: {:?}", self.waiting);
        for node in 0..NODES {
            assert!(self.is_dead(node) || self.creators[node as usize].is_empty());
        }
        assert!(self.built.is_empty(), "objects that are neither owner nor dropped");
        match &self.row {
            None => assert!(self.installed.is_empty()),
            Some(row) => {
                let owner = Self::node_of(&row.authority.rid);
                let here = (owner, row.authority.object_generation);
                let is_there = row.attempt().is_none() && self.installed.contains(&here);
                assert!(
                    is_there || self.is_dead(owner),
                    "a row of a live node without its object: {row:?}"
                );
            }
        }
    }
}

fn until_of(effect: &Effect) -> Nanos {
    match effect {
        Effect::ReadRow { until, .. }
        | Effect::ReadOwner { until, .. }
        | Effect::Clear { until, .. }
        | Effect::Reserve { until, .. }
        | Effect::CommitReady { until, .. }
        | Effect::Delete { until, .. } => *until,
        other => panic!("not a Store call: {other:?}"),
    }
}

proptest! {
    /// Proves R2.6-2, R2.2b-2.
    ///
    /// Creators on three nodes, lost answers, lost writes, silent and failing Store calls, lapsed
    /// leases, dead nodes, lost joins: never two objects, never a factory without a reservation,
    /// never two factories at once while no lease lapsed; everybody is answered once and
    /// truthfully; and in the end no row of a live node stands without its object.
    #[test]
    fn one_object_and_one_story(moves in proptest::collection::vec(a_move(), 1..150)) {
        let mut world = World::new();
        for m in moves {
            world.play(m);
        }
        world.settle();
        world.check_end();
    }

    /// Without faults, whoever calls, however many and in whatever order: the factory runs once
    /// and all learn the same incarnation.
    #[test]
    fn without_faults_the_factory_runs_once(
        steps in proptest::collection::vec((0..NODES, 0..4u8, 0..8usize), 3..60),
    ) {
        let mut world = World::new();
        let mut factories = 0;
        for (node, what, which) in steps {
            let before = world.factories.len();
            world.play(match what {
                0 => Move::Create { node, other_type: false, wait_s: 30 },
                1 => Move::Join { which, lost: false },
                2 => Move::Factory { which, luck: 7 },
                _ => Move::Serve { which, luck: 10 },
            });
            factories += world.factories.len().saturating_sub(before);
        }
        let callers = world.last_token;
        for _ in 0..100 {
            let before = world.factories.len();
            world.play(Move::Serve { which: 0, luck: 11 });
            factories += world.factories.len().saturating_sub(before);
            world.play(Move::Factory { which: 0, luck: 7 });
            world.play(Move::Join { which: 0, lost: false });
        }
        world.check_end();
        prop_assert_eq!(factories, usize::from(callers > 0));
        prop_assert_eq!(world.created_answers.len(), factories);
    }
}

/// The test above can fail: a coordinator with a planted fault does not pass it.
#[test]
fn planted_faults_are_found() {
    use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
    for fault in [Planted::RunTwoFactories, Planted::GuessLostCommit] {
        let config = Config {
            cases: 3000,
            failure_persistence: None,
            max_shrink_iters: 0,
            ..Config::default()
        };
        let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
        let found = TestRunner::new_with_rng(config, rng).run(
            &proptest::collection::vec(a_move(), 50..150),
            |moves| {
                let mut world = World::new();
                world.creators.iter_mut().for_each(|creator| creator.plant(fault));
                moves.into_iter().for_each(|m| world.play(m));
                world.settle();
                world.check_end();
                Ok(())
            },
        );
        assert!(found.is_err(), "{fault:?} was not found");
    }
}
