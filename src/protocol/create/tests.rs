#![forbid(unsafe_code)]

mod world;

use super::*;
use crate::ids::{AuthorityOwnerGeneration, ObjectKind, StoreVersion};
use crate::protocol::commit::CommitOutcome;
use crate::protocol::resolve::{OwnerSight, Row};
use crate::store::records::{Authority, AuthorityState, DeadOwner};

const SEC: u64 = 1_000_000_000;

fn key() -> ObjectKey {
    ObjectKey::new(3, ObjectKind::Actor, "x").unwrap()
}

fn identity(node: u64) -> Identity {
    Identity {
        rid: NodeRid::new(format!("n{node}")).unwrap(),
        mesh: MeshName::new("m").unwrap(),
        node_generation: NodeGeneration::new(100 + node).unwrap(),
        lease_generation: OwnerLeaseGeneration::new(200 + node).unwrap(),
    }
}

fn generation(n: u64) -> ObjectGeneration {
    ObjectGeneration::new(n).unwrap()
}

fn version(n: u64) -> StoreVersion {
    StoreVersion::new(n).unwrap()
}

fn row(state: AuthorityState, owner: &Identity, object: u64, at: u64) -> Row {
    Row {
        authority: Authority {
            state,
            type_name: "t".into(),
            object_generation: generation(object),
            authority_owner_generation: AuthorityOwnerGeneration::FIRST,
            mesh: owner.mesh.clone(),
            rid: owner.rid.clone(),
            node_generation: owner.node_generation,
            owner_lease_generation: owner.lease_generation,
            spot: None,
        },
        version: version(at),
    }
}

fn creating(owner: u64, attempt: u128, at: u64) -> Row {
    row(AuthorityState::Creating { attempt }, &identity(owner), 9, at)
}

const DEAD: OwnerSight =
    OwnerSight { dead: Some(DeadOwner::LeaseAbsent), lease: None, descriptor: None };
const ALIVE: OwnerSight = OwnerSight { dead: None, lease: None, descriptor: None };

/// Node 1's coordinator. The attempt of caller `c` is `1000 + c`.
struct Bench {
    creator: Creator,
    now: Nanos,
}

impl Bench {
    fn new() -> Self {
        Self { creator: Creator::new(identity(1), CreateTimes::default()), now: Nanos(0) }
    }

    fn on(&mut self, event: Event) -> Vec<Effect> {
        let mut out = Vec::new();
        self.creator.handle(event, self.now, &mut out);
        out
    }

    fn create_at(&mut self, caller: u64, type_name: &str, local: LocalSight) -> Vec<Effect> {
        self.on(Event::Create {
            key: key(),
            caller,
            type_name: Arc::from(type_name),
            deadline: Nanos(60 * SEC),
            attempt: 1000 + u128::from(caller),
            local,
        })
    }

    fn create(&mut self, caller: u64) -> Vec<Effect> {
        self.create_at(caller, "t", LocalSight::Absent)
    }

    fn row(&mut self, call: CallId, row: Option<Row>, owner: Option<OwnerSight>) -> Vec<Effect> {
        self.on(Event::RowAnswered { key: key(), call, row: Ok(row), owner })
    }

    fn committed(&mut self, call: CallId, outcome: CommitOutcome) -> Vec<Effect> {
        self.on(Event::Committed { key: key(), call, outcome })
    }

    fn factory(&mut self, call: CallId, outcome: FactoryOutcome) -> Vec<Effect> {
        self.on(Event::FactoryEnded { key: key(), call, outcome })
    }

    fn join(&mut self, caller: u64, attempt: u128) -> Vec<Effect> {
        self.on(Event::Join { key: key(), caller, attempt, deadline: Nanos(60 * SEC) })
    }

    fn tick(&mut self, now: u64) -> Vec<Effect> {
        self.now = Nanos(now);
        self.on(Event::Tick)
    }

    /// Up to the Reserve of generation 9, for caller 1.
    fn reach_reserve(&mut self) -> CallId {
        let out = self.create(1);
        let out = self.row(read(&out), None, None);
        let [Effect::TakeGeneration { call, .. }] = &out[..] else { panic!("{out:?}") };
        let generation = Ok(generation(9));
        let out = self.on(Event::GenerationTaken { key: key(), call: *call, generation });
        let [Effect::Reserve { call, attempt: 1001, .. }] = &out[..] else { panic!("{out:?}") };
        *call
    }

    /// Up to the running factory.
    fn reach_factory(&mut self) -> CallId {
        let call = self.reach_reserve();
        let out = self.committed(call, CommitOutcome::Committed(version(20)));
        let [Effect::RunFactory { call, caller: 1, .. }] = &out[..] else { panic!("{out:?}") };
        *call
    }

    /// Up to the Ready commit; gives the factory's call and the commit's.
    fn reach_ready(&mut self) -> (CallId, CallId) {
        let factory = self.reach_factory();
        let out = self.factory(factory, FactoryOutcome::Made);
        let [Effect::CommitReady { call, creating, .. }] = &out[..] else { panic!("{out:?}") };
        assert_eq!(*creating, version(20));
        (factory, *call)
    }
}

fn read(out: &[Effect]) -> CallId {
    match out.last() {
        Some(Effect::ReadRow { call, .. }) => *call,
        _ => panic!("no read at the end of {out:?}"),
    }
}

fn delete(out: &[Effect], at: u64) -> CallId {
    match out.last() {
        Some(Effect::Delete { call, version: v, .. }) if *v == version(at) => *call,
        _ => panic!("no delete of {at} at the end of {out:?}"),
    }
}

/// Who is told what: `C` created, `E` existing, `R` rejected, `F` and the kind.
fn told(out: &[Effect]) -> Vec<(u64, String)> {
    out.iter()
        .filter_map(|e| match e {
            Effect::Answered { caller, answer, .. } => Some((
                *caller,
                match answer {
                    CreateAnswer::Created(i) => format!("C{}", i.object_generation),
                    CreateAnswer::Existing(i) => format!("E{}", i.object_generation),
                    CreateAnswer::Rejected(_) => "R".into(),
                    CreateAnswer::Failed(e) => format!("F {}", e.kind()),
                },
            )),
            Effect::Joined { caller, reply, .. } => Some((
                *caller,
                match reply {
                    JoinReply::Ended(AttemptEnd::Made(i)) => format!("M{}", i.object_generation),
                    JoinReply::Ended(AttemptEnd::Rejected(_)) => "R".into(),
                    JoinReply::Ended(AttemptEnd::Failed(e)) => format!("F {}", e.kind()),
                    JoinReply::NoSuchAttempt => "none".into(),
                },
            )),
            _ => None,
        })
        .collect()
}

fn says(out: &[Effect], expected: &[(u64, &str)]) {
    let told = told(out);
    let told: Vec<(u64, &str)> = told.iter().map(|(c, s)| (*c, s.as_str())).collect();
    assert_eq!(told, expected, "{out:?}");
}

#[test]
fn what_stands_here_answers_at_once() {
    let mut b = Bench::new();
    let ready = LocalSight::Ready { object_generation: generation(4), type_name: Arc::from("t") };
    says(&b.create_at(1, "t", ready.clone()), &[(1, "E4")]);
    says(&b.create_at(1, "other", ready), &[(1, "F TypeMismatch")]);
    says(&b.create_at(1, "t", LocalSight::Closing), &[(1, "F Unavailable")]);
    b.now = Nanos(60 * SEC);
    says(&b.create(1), &[(1, "F DeadlineExceeded")]);
    assert!(b.creator.is_empty());
}

/// Proves R2.6-2.
#[test]
fn the_initiator_is_told_created_and_everybody_else_existing() {
    let mut b = Bench::new();
    let (factory, call) = b.reach_ready();
    assert_eq!(b.create(2), []);
    says(&b.create_at(3, "other", LocalSight::Absent), &[(3, "F TypeMismatch")]);
    assert_eq!(b.join(4, 1001), []);
    let out = b.committed(call, CommitOutcome::Committed(version(21)));
    let install = Effect::Install {
        key: key(),
        factory,
        object_generation: generation(9),
        version: version(21),
    };
    assert_eq!(out[0], install, "installed before anybody is told");
    says(&out, &[(1, "C9"), (2, "E9"), (4, "M9")]);
    assert!(b.creator.is_empty() && b.creator.next_deadline().is_none());
    says(&b.join(5, 1001), &[(5, "M9")]);
}

#[test]
fn a_ready_row_is_existing_for_who_called_before_it_was_read() {
    let mut b = Bench::new();
    let first = read(&b.create(1));
    b.create_at(2, "other", LocalSight::Absent);
    let ready = row(AuthorityState::Ready, &identity(2), 7, 20);
    let out = b.row(first, Some(ready.clone()), None);
    says(&out, &[(1, "E7")]);
    let out = b.row(read(&out), Some(ready), None);
    says(&out, &[(2, "F TypeMismatch")]);
    assert!(b.creator.is_empty());
}

#[test]
fn a_live_creator_elsewhere_is_joined_and_its_result_shared() {
    let ends = [
        (
            AttemptEnd::Made(Incarnation {
                object_generation: generation(9),
                mesh: MeshName::new("m").unwrap(),
                rid: NodeRid::new("n2").unwrap(),
            }),
            "E9",
        ),
        (AttemptEnd::Rejected(Error::rejected("no")), "R"),
        (AttemptEnd::Failed(Error::internal("broken")), "F InternalFailure"),
    ];
    for (end, word) in ends {
        let mut b = Bench::new();
        let call = read(&b.create(1));
        let out = b.row(call, Some(creating(2, 77, 20)), None);
        let [Effect::ReadOwner { call, .. }] = &out[..] else { panic!("{out:?}") };
        let owner = Ok(ALIVE);
        let out = b.on(Event::OwnerAnswered { key: key(), call: *call, owner });
        let [Effect::JoinRemote { call, attempt: 77, rid, .. }] = &out[..] else {
            panic!("{out:?}")
        };
        assert_eq!(rid.to_string(), "n2");
        let answer = Ok(JoinReply::Ended(end));
        let out = b.on(Event::JoinAnswered { key: key(), call: *call, answer });
        says(&out, &[(1, word)]);
        assert!(b.creator.is_empty());
    }
}

#[test]
fn a_creator_that_knows_nothing_of_its_row_is_asked_once_more_by_a_read() {
    let mut b = Bench::new();
    let call = read(&b.create(1));
    let out = b.row(call, Some(creating(2, 77, 20)), Some(ALIVE));
    let [Effect::JoinRemote { call, .. }] = &out[..] else { panic!("{out:?}") };
    let answer = Ok(JoinReply::NoSuchAttempt);
    let out = b.on(Event::JoinAnswered { key: key(), call: *call, answer });
    let out = b.row(read(&out), Some(creating(2, 77, 20)), Some(ALIVE));
    says(&out, &[(1, "F Unavailable")]);
    assert!(b.creator.is_empty());
}

#[test]
fn a_lost_joined_creator_is_unavailable_and_nothing_is_tried_again() {
    let mut b = Bench::new();
    let call = read(&b.create(1));
    let out = b.row(call, Some(creating(2, 77, 20)), Some(ALIVE));
    let [Effect::JoinRemote { call, .. }] = &out[..] else { panic!("{out:?}") };
    let answer = Err(Error::unavailable("link lost"));
    says(&b.on(Event::JoinAnswered { key: key(), call: *call, answer }), &[(1, "F Unavailable")]);
    assert!(b.creator.is_empty());
}

/// Proves R2.2b-2.
#[test]
fn a_dead_creators_row_is_cleared_and_read_again_whatever_the_clear_says() {
    for outcome in [
        CommitOutcome::Committed(version(30)),
        CommitOutcome::Conflict,
        CommitOutcome::Fenced,
        CommitOutcome::Unknown,
    ] {
        let mut b = Bench::new();
        let call = read(&b.create(1));
        let out = b.row(call, Some(creating(2, 77, 20)), Some(DEAD));
        let [Effect::Clear { call, dead: DeadOwner::LeaseAbsent, .. }] = &out[..] else {
            panic!("{out:?}")
        };
        let out = b.committed(*call, outcome);
        let out = b.row(read(&out), None, None);
        assert!(matches!(&out[..], [Effect::TakeGeneration { .. }]));
    }
}

/// Proves R2.6-2.
#[test]
fn a_lost_reservation_answer_is_decided_by_the_attempt_in_the_row() {
    // It was written.
    let mut b = Bench::new();
    let call = b.reach_reserve();
    let out = b.committed(call, CommitOutcome::Unknown);
    let out = b.row(read(&out), Some(creating(1, 1001, 20)), None);
    assert!(matches!(&out[..], [Effect::RunFactory { .. }]));
    // It was not: the same attempt and generation are reserved again.
    let mut b = Bench::new();
    let call = b.reach_reserve();
    let out = b.committed(call, CommitOutcome::Unknown);
    let out = b.row(read(&out), None, None);
    assert!(matches!(&out[..], [Effect::Reserve { attempt: 1001, .. }]));
    // Somebody else was first.
    let mut b = Bench::new();
    let call = b.reach_reserve();
    let out = b.committed(call, CommitOutcome::Unknown);
    let out = b.row(read(&out), Some(creating(2, 77, 20)), Some(ALIVE));
    assert!(matches!(&out[..], [Effect::JoinRemote { attempt: 77, .. }]));
}

#[test]
fn a_caller_of_another_type_that_came_while_the_doubt_was_read_gets_no_part_of_the_attempt() {
    let mut b = Bench::new();
    let call = b.reach_reserve();
    let out = b.committed(call, CommitOutcome::Unknown);
    assert_eq!(b.create_at(2, "other", LocalSight::Absent), []);
    let out = b.row(read(&out), Some(creating(1, 1001, 20)), None);
    says(&out, &[(2, "F TypeMismatch")]);
    assert!(matches!(out.last(), Some(Effect::RunFactory { caller: 1, .. })));
}

#[test]
fn a_reservation_in_doubt_is_looked_after_when_the_store_falls_silent() {
    let mut b = Bench::new();
    let call = b.reach_reserve();
    b.committed(call, CommitOutcome::Unknown);
    let out = b.tick(2 * SEC);
    // The read failed: the row may stand, so it is looked for until that is known.
    let call = read(&out);
    says(&out, &[]);
    let out = b.on(Event::RowAnswered {
        key: key(),
        call,
        row: Err(Error::unavailable("no")),
        owner: None,
    });
    says(&out, &[(1, "F Unavailable")]);
    let out = b.tick(3 * SEC);
    let out = b.row(read(&out), Some(creating(1, 1001, 20)), None);
    let out = b.committed(delete(&out, 20), CommitOutcome::Committed(version(30)));
    assert_eq!(out, []);
    assert!(b.creator.is_empty());
}

#[test]
fn a_conflict_means_somebody_was_first_and_no_factory_runs() {
    let mut b = Bench::new();
    let call = b.reach_reserve();
    let out = b.committed(call, CommitOutcome::Conflict);
    let ready = row(AuthorityState::Ready, &identity(2), 7, 20);
    says(&b.row(read(&out), Some(ready), None), &[(1, "E7")]);
    assert!(b.creator.is_empty());
}

#[test]
fn rejection_and_failure_delete_the_row_and_reach_everybody() {
    let cases = [
        (FactoryOutcome::Rejected(Error::rejected("full")), "R"),
        (FactoryOutcome::Failed(Error::internal("panicked")), "F InternalFailure"),
    ];
    for (outcome, word) in cases {
        let mut b = Bench::new();
        let factory = b.reach_factory();
        b.create(2);
        b.join(3, 1001);
        let out = b.factory(factory, outcome);
        says(&out, &[]);
        let call = delete(&out, 20);
        assert_eq!(b.create(4), [], "comes too late for this attempt and waits for the next");
        let out = b.committed(call, CommitOutcome::Committed(version(30)));
        says(&out, &[(1, word), (2, word), (3, word)]);
        let out = b.row(read(&out), None, None);
        assert!(matches!(&out[..], [Effect::TakeGeneration { .. }]), "4 starts anew");
        says(&b.join(5, 1001), &[(5, word)]);
    }
}

#[test]
fn a_cleanup_is_tried_until_it_is_decided_and_callers_are_told_meanwhile() {
    let mut b = Bench::new();
    let factory = b.reach_factory();
    let out = b.factory(factory, FactoryOutcome::Rejected(Error::rejected("full")));
    let failed = CommitOutcome::Failed(Error::unavailable("no"));
    let out = b.committed(delete(&out, 20), failed);
    says(&out, &[(1, "R")]);
    assert_eq!(b.join(2, 1001), [], "waits for the row to go");
    let mut now = 0;
    for _ in 0..5 {
        now += SEC / 10;
        let out = b.tick(now);
        let call = read(&out);
        let row = Err(Error::unavailable("no"));
        b.on(Event::RowAnswered { key: key(), call, row, owner: None });
    }
    let out = b.tick(now + SEC / 10);
    let out = b.row(read(&out), Some(creating(1, 1001, 20)), None);
    let out = b.committed(delete(&out, 20), CommitOutcome::Unknown);
    let out = b.row(read(&out), None, None);
    says(&out, &[(2, "none")]);
    assert!(b.creator.is_empty());
}

/// Proves R2.6-2.
#[test]
fn a_lost_ready_answer_is_decided_by_a_read_and_the_object_is_kept_meanwhile() {
    // It was written.
    let mut b = Bench::new();
    let (_, call) = b.reach_ready();
    let out = b.committed(call, CommitOutcome::Unknown);
    let ready = row(AuthorityState::Ready, &identity(1), 9, 21);
    let out = b.row(read(&out), Some(ready), None);
    assert!(matches!(out[0], Effect::Install { version: v, .. } if v == version(21)));
    says(&out, &[(1, "C9")]);
    // It was not.
    let mut b = Bench::new();
    let (_, call) = b.reach_ready();
    let out = b.committed(call, CommitOutcome::Unknown);
    let out = b.row(read(&out), Some(creating(1, 1001, 20)), None);
    assert!(matches!(&out[..], [Effect::CommitReady { .. }]));
    // The row was cleared by somebody.
    for row in [None, Some(creating(2, 77, 40))] {
        let mut b = Bench::new();
        let (factory, call) = b.reach_ready();
        let out = b.committed(call, CommitOutcome::Conflict);
        let out = b.row(read(&out), row, None);
        assert_eq!(out[0], Effect::Discard { key: key(), factory });
        says(&out, &[(1, "F Unavailable")]);
        assert!(b.creator.is_empty());
    }
}

#[test]
fn a_ready_commit_in_doubt_outlives_every_deadline() {
    let mut b = Bench::new();
    let (_, call) = b.reach_ready();
    b.committed(call, CommitOutcome::Failed(Error::unavailable("no")));
    let mut told_at = None;
    while b.now < Nanos(80 * SEC) {
        let at = b.creator.next_deadline().expect("never given up").0;
        let out = b.tick(at);
        if !told(&out).is_empty() {
            says(&out[..1], &[(1, "F DeadlineExceeded")]);
            told_at = Some(at);
        }
    }
    assert_eq!(told_at, Some(10 * SEC), "the attempt's time");
    let call = loop {
        let at = b.creator.next_deadline().unwrap().0;
        if let [Effect::ReadRow { call, .. }] = b.tick(at)[..] {
            break call;
        }
    };
    // Not written, and too late now: it is taken back.
    let out = b.row(call, Some(creating(1, 1001, 20)), None);
    assert!(matches!(out[0], Effect::Discard { .. }));
    b.committed(delete(&out, 20), CommitOutcome::Committed(version(50)));
    assert!(b.creator.is_empty());
}

#[test]
fn a_factory_whose_caller_gave_up_runs_on_and_one_that_takes_too_long_is_stopped() {
    let mut b = Bench::new();
    let factory = b.reach_factory();
    b.on(Event::Cancel { key: key(), caller: 1 });
    let out = b.factory(factory, FactoryOutcome::Made);
    let [Effect::CommitReady { call, .. }] = &out[..] else { panic!("{out:?}") };
    let out = b.committed(*call, CommitOutcome::Committed(version(21)));
    assert!(matches!(&out[..], [Effect::Install { .. }]));

    let mut b = Bench::new();
    let factory = b.reach_factory();
    b.create(2);
    let out = b.tick(10 * SEC);
    assert_eq!(out[0], Effect::StopFactory { key: key(), factory });
    let out = b.committed(delete(&out, 20), CommitOutcome::Committed(version(30)));
    says(&out, &[(1, "F InternalFailure"), (2, "F InternalFailure")]);
    let out = b.factory(factory, FactoryOutcome::Made);
    assert_eq!(out, [Effect::Discard { key: key(), factory }], "too late");
}

#[test]
fn nothing_is_begun_for_nobody() {
    let mut b = Bench::new();
    let call = read(&b.create(1));
    b.on(Event::Cancel { key: key(), caller: 1 });
    assert!(b.creator.is_empty());
    assert_eq!(b.row(call, None, None), []);
    // The reservation stands when the caller is gone: it is deleted, and no factory runs.
    let mut b = Bench::new();
    let call = b.reach_reserve();
    b.on(Event::Cancel { key: key(), caller: 1 });
    b.join(2, 1001);
    let out = b.committed(call, CommitOutcome::Committed(version(20)));
    let out = b.committed(delete(&out, 20), CommitOutcome::Committed(version(30)));
    says(&out, &[(2, "F DeadlineExceeded")]);
    assert!(b.creator.is_empty());
}

#[test]
fn the_attempts_deadline_during_a_reservation_waits_for_its_outcome() {
    let mut late = Bench::new();
    late.creator.shared.times.store = Duration::from_secs(60);
    let late_call = late.reach_reserve();
    says(&late.tick(10 * SEC), &[(1, "F DeadlineExceeded")]);
    assert_eq!(late.create(2), [], "waits for the old attempt's row");
    let out = late.committed(late_call, CommitOutcome::Committed(version(20)));
    let out = late.committed(delete(&out, 20), CommitOutcome::Committed(version(30)));
    assert!(matches!(&out[..], [Effect::ReadRow { .. }]), "2 starts anew");
}

#[test]
fn a_stray_row_of_this_lifecycle_is_deleted_by_who_meets_it() {
    // A caller here.
    let mut b = Bench::new();
    let call = read(&b.create(1));
    let out = b.row(call, Some(creating(1, 555, 20)), None);
    let out = b.committed(delete(&out, 20), CommitOutcome::Committed(version(30)));
    read(&out);
    // A node that asks how it ends.
    let mut b = Bench::new();
    let out = b.join(7, 555);
    let out = b.row(read(&out), Some(creating(1, 555, 20)), None);
    let out = b.committed(delete(&out, 20), CommitOutcome::Committed(version(30)));
    says(&out, &[(7, "none")]);
    assert!(b.creator.is_empty());
    // A row of another node is left alone, and so is one of another attempt.
    for row in [creating(2, 555, 20), creating(1, 556, 20)] {
        let out = b.join(7, 555);
        says(&b.row(read(&out), Some(row), None), &[(7, "none")]);
    }
    // Without an answer of the Store nothing is known of it.
    let out = b.join(7, 555);
    let row = Err(Error::unavailable("no"));
    let event = Event::RowAnswered { key: key(), call: read(&out), row, owner: None };
    says(&b.on(event), &[(7, "none")]);
    assert!(b.creator.is_empty());
}

/// Proves R5-16.
#[test]
fn a_fenced_node_creates_nothing() {
    let mut b = Bench::new();
    let call = b.reach_reserve();
    says(&b.committed(call, CommitOutcome::Fenced), &[(1, "F Unavailable")]);
    let mut b = Bench::new();
    let (factory, call) = b.reach_ready();
    let out = b.committed(call, CommitOutcome::Fenced);
    assert_eq!(out[0], Effect::Discard { key: key(), factory });
    says(&out, &[(1, "F Unavailable")]);
    assert!(b.creator.is_empty());
}

#[test]
fn a_store_that_fails_before_anything_was_written_ends_the_attempt() {
    let failed = || CommitOutcome::Failed(Error::unavailable("no"));
    let mut b = Bench::new();
    let call = read(&b.create(1));
    let row = Err(Error::unavailable("no"));
    let out = b.on(Event::RowAnswered { key: key(), call, row, owner: None });
    says(&out, &[(1, "F Unavailable")]);
    let call = b.reach_reserve();
    says(&b.committed(call, failed()), &[(1, "F Unavailable")]);
    let out = b.create(1);
    let out = b.row(read(&out), None, None);
    let [Effect::TakeGeneration { call, .. }] = &out[..] else { panic!("{out:?}") };
    let generation = Err(Error::internal("ran out"));
    let out = b.on(Event::GenerationTaken { key: key(), call: *call, generation });
    says(&out, &[(1, "F InternalFailure")]);
    assert!(b.creator.is_empty());
}

#[test]
fn a_shutdown_answers_everybody_and_leaves_no_object_behind() {
    let mut b = Bench::new();
    let (factory, _) = b.reach_ready();
    b.create(2);
    b.join(3, 1001);
    let out = b.on(Event::Shutdown);
    assert_eq!(out[0], Effect::Discard { key: key(), factory });
    says(&out, &[(1, "F ShuttingDown"), (2, "F ShuttingDown"), (3, "F ShuttingDown")]);
    let mut b = Bench::new();
    let factory = b.reach_factory();
    assert_eq!(b.on(Event::Shutdown)[0], Effect::StopFactory { key: key(), factory });
    assert!(b.creator.is_empty() && b.creator.next_deadline().is_none());
}

/// The planted faults do what they say, so that the simulator has something to find.
#[test]
fn planted_faults_are_faults() {
    let mut b = Bench::new();
    b.creator.plant(Planted::RunTwoFactories);
    let call = b.reach_reserve();
    let out = b.committed(call, CommitOutcome::Conflict);
    assert!(matches!(&out[..], [Effect::RunFactory { .. }]));
    let mut b = Bench::new();
    b.creator.plant(Planted::GuessLostCommit);
    let (_, call) = b.reach_ready();
    assert!(matches!(b.committed(call, CommitOutcome::Unknown)[0], Effect::Install { .. }));
}
