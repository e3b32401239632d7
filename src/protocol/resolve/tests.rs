#![forbid(unsafe_code)]

mod world;

use super::*;
use crate::ids::{
    AuthorityOwnerGeneration, MeshName, NodeGeneration, NodeRid, ObjectGeneration, ObjectKind,
    OwnerLeaseGeneration, StoreVersion,
};
use crate::route::{NodeEntry, NodeTable, Resolution};
use crate::store::records::{Authority, AuthorityState};

const SEC: u64 = 1_000_000_000;
const LATER: Nanos = Nanos(60 * SEC);
const READY: AuthorityState = AuthorityState::Ready;
const CREATING: AuthorityState = AuthorityState::Creating { attempt: 1 };

fn key(id: &str) -> ObjectKey {
    ObjectKey::new(3, ObjectKind::Actor, id).unwrap()
}

fn row(state: AuthorityState, version: u64) -> Row {
    Row {
        authority: Authority {
            state,
            type_name: "counter".into(),
            object_generation: ObjectGeneration::new(9).unwrap(),
            authority_owner_generation: AuthorityOwnerGeneration::FIRST,
            mesh: MeshName::new("m").unwrap(),
            rid: NodeRid::new("n").unwrap(),
            node_generation: NodeGeneration::new(5).unwrap(),
            owner_lease_generation: OwnerLeaseGeneration::new(6).unwrap(),
            spot: None,
        },
        version: StoreVersion::new(version).unwrap(),
    }
}

fn held(lease: u64, deadline: u64) -> Option<SeenLease> {
    Some(SeenLease {
        lease_generation: OwnerLeaseGeneration::new(lease).unwrap(),
        admission_deadline: Nanos(deadline),
    })
}

fn alive() -> OwnerSight {
    OwnerSight { dead: None, lease: held(6, 100 * SEC), descriptor: NodeGeneration::new(5) }
}

fn dead() -> OwnerSight {
    OwnerSight { dead: Some(DeadOwner::LeaseAbsent), lease: None, descriptor: None }
}

/// A resolver with its outbox.
struct Bench {
    resolver: Resolver,
    now: Nanos,
}

impl Bench {
    fn new() -> Self {
        Self { resolver: Resolver::new(Duration::from_secs(2)), now: Nanos(0) }
    }

    fn on(&mut self, event: Event) -> Vec<Effect> {
        let mut out = Vec::new();
        self.resolver.handle(event, self.now, &mut out);
        out
    }

    fn lookup(&mut self, id: &str, waiter: u64) -> Vec<Effect> {
        self.on(Event::Lookup { key: key(id), waiter, deadline: LATER, fresh: false })
    }

    /// A lookup that must issue a read.
    fn lookup_read(&mut self, id: &str, waiter: u64) -> ReadId {
        let out = self.lookup(id, waiter);
        let [Effect::Read { read, .. }] = &out[..] else { panic!("no read: {out:?}") };
        *read
    }

    fn row(
        &mut self,
        id: &str,
        read: ReadId,
        row: Option<Row>,
        owner: Option<OwnerSight>,
    ) -> Vec<Effect> {
        self.on(Event::RowAnswered { key: key(id), read, row: Ok(row), owner })
    }

    fn fail(&mut self, id: &str, read: ReadId) -> Vec<Effect> {
        let row = Err(Error::unavailable("disk on fire"));
        self.on(Event::RowAnswered { key: key(id), read, row, owner: None })
    }

    fn tick(&mut self, now: u64) -> Vec<Effect> {
        self.now = Nanos(now);
        self.on(Event::Tick)
    }
}

fn answers(out: &[Effect]) -> Vec<(Vec<u64>, Answer)> {
    out.iter()
        .filter_map(|e| match e {
            Effect::Resolved { waiters, answer, .. } => Some((waiters.clone(), answer.clone())),
            _ => None,
        })
        .collect()
}

fn next_read(out: &[Effect]) -> Option<ReadId> {
    out.iter().find_map(|e| match e {
        Effect::Read { read, .. } => Some(*read),
        _ => None,
    })
}

fn has_insert(out: &[Effect]) -> bool {
    out.iter().any(|e| matches!(e, Effect::Insert(_)))
}

/// Proves R2.2b-1, R2.2-3.
#[test]
fn rows_say_one_of_four_things() {
    let (k, now) = (key("x"), Nanos(0));
    let ready = row(READY, 4);
    let creating = row(CREATING, 4);
    let say = |r: Option<&Row>, o: OwnerSight| classify(&k, r, &o, now);
    assert_eq!(say(None, dead()), Classified::Missing);
    assert_eq!(say(Some(&ready), alive()), Classified::Ready(ready.route(k.clone())));
    let ended = Some(DeadOwner::OwnerChanged(StoreVersion::FIRST));
    let next_life = OwnerSight { dead: ended, lease: held(8, SEC), ..alive() };
    for o in [alive(), dead(), next_life] {
        assert_eq!(say(Some(&creating), o), Classified::Creating { dead: o.dead });
    }
    for (unusable, why) in [
        (dead(), "lease does not stand"),
        (next_life, "which has ended; release"),
        (OwnerSight { lease: None, ..alive() }, "lease does not stand"),
        (OwnerSight { lease: held(8, SEC), ..alive() }, "the lease that stands is 8"),
        (OwnerSight { lease: held(6, 0), ..alive() }, "about to end"),
        (OwnerSight { descriptor: None, ..alive() }, "no descriptor"),
        (OwnerSight { descriptor: NodeGeneration::new(4), ..alive() }, "of generation 4"),
    ] {
        match say(Some(&ready), unusable) {
            Classified::Unavailable(text) => assert!(text.contains(why), "{text}"),
            other => panic!("{unusable:?} gave {other:?}"),
        }
    }
}

/// Proves R1-1, R2.2-2.
#[test]
fn a_known_owner_need_not_be_read_while_exactly_its_lease_stands() {
    let r = row(READY, 4).authority;
    let mut nodes = NodeTable::new();
    assert_eq!(OwnerSight::of_known(&r, &nodes, Nanos(0)), None);
    nodes.see(NodeEntry {
        rid: r.rid.clone(),
        node_generation: r.node_generation,
        lease_generation: r.owner_lease_generation,
        admission_deadline: Nanos(100 * SEC),
        mesh: r.mesh.clone(),
        endpoint: "tcp://127.0.0.1:1".parse().unwrap(),
        key_id: 1,
        message_follow_duration: None,
    });
    assert_eq!(OwnerSight::of_known(&r, &nodes, Nanos(0)), Some(alive()));
    assert_eq!(OwnerSight::of_known(&r, &nodes, Nanos(100 * SEC)), None);
    let older = Authority { owner_lease_generation: OwnerLeaseGeneration::FIRST, ..r };
    assert_eq!(OwnerSight::of_known(&older, &nodes, Nanos(0)), None);
}

/// Proves R2.2b-1.
#[test]
fn answers_map_to_the_public_tag_and_only_two_of_them_end_a_message() {
    let route = row(READY, 4).route(key("x"));
    let e = Error::unavailable("gone");
    let all = [
        (Answer::Ready(route.clone()), Resolution::ReadyRoute(route.info()), false),
        (Answer::Missing, Resolution::Missing, false),
        (Answer::Unavailable("busy".into()), Resolution::Unavailable, true),
        (Answer::StoreFailure(e.clone()), Resolution::StoreFailure(e), true),
    ];
    for (answer, resolution, ends) in all {
        assert_eq!(answer.resolution(), resolution);
        let error = answer.terminal_error();
        assert_eq!(error.is_some(), ends);
        assert!(error.is_none_or(|e| e.kind() == ErrorKind::Unavailable));
    }
}

/// Proves R2.1-2, R2.2-3.
#[test]
fn a_ready_row_of_a_known_owner_takes_one_read() {
    let mut b = Bench::new();
    let read = b.lookup_read("x", 1);
    let out = b.row("x", read, Some(row(READY, 4)), Some(alive()));
    let route = row(READY, 4).route(key("x"));
    assert_eq!(
        out,
        [
            Effect::Insert(route.clone()),
            Effect::Resolved { key: key("x"), waiters: vec![1], answer: Answer::Ready(route) },
        ]
    );
    assert!(b.resolver.is_empty());
    assert_eq!(b.resolver.next_deadline(), None);
}

/// Proves R1-1.
#[test]
fn an_unknown_owner_is_read_after_the_row() {
    let mut b = Bench::new();
    let read = b.lookup_read("x", 1);
    let out = b.row("x", read, Some(row(READY, 4)), None);
    let [Effect::ReadOwner { row: asked, read: second, .. }] = &out[..] else { panic!("{out:?}") };
    assert_eq!((asked, *second), (&row(READY, 4), read));
    let out = b.on(Event::OwnerAnswered { key: key("x"), read, owner: Ok(alive()) });
    assert!(has_insert(&out));
    assert_eq!(answers(&out).len(), 1);
    assert!(b.resolver.is_empty());
}

/// Proves R2.2-3, R2.2b-1.
#[test]
fn only_ready_is_inserted_and_the_next_call_reads_again() {
    let cases = [
        (None, Some(dead()), Resolution::Missing),
        (Some(row(CREATING, 4)), Some(alive()), Resolution::Unavailable),
        (Some(row(READY, 4)), Some(dead()), Resolution::Unavailable),
    ];
    for (r, o, expected) in cases {
        let mut b = Bench::new();
        let read = b.lookup_read("x", 1);
        let out = b.row("x", read, r, o);
        assert!(!has_insert(&out));
        assert_eq!(answers(&out)[0].1.resolution(), expected);
        assert!(b.resolver.is_empty());
        b.lookup_read("x", 2);
    }
}

/// Proves R2.2-8.
#[test]
fn callers_share_the_read_that_is_not_issued_yet() {
    let mut b = Bench::new();
    let first = b.lookup_read("x", 1);
    for waiter in 2..100 {
        assert_eq!(b.lookup("x", waiter), [], "one read of an id at a time");
    }
    // The first read says nothing to who called after it was issued ...
    let out = b.row("x", first, None, None);
    assert_eq!(answers(&out), [(vec![1], Answer::Missing)]);
    // ... and one more read answers all of them, in the order of their calls.
    let second = next_read(&out).unwrap();
    let out = b.row("x", second, None, None);
    assert_eq!(answers(&out), [((2..100).collect(), Answer::Missing)]);
    assert_eq!(b.resolver.counters().reads, 2);
}

/// Proves R2.2-7, R2.2-8.
#[test]
fn a_valid_ready_route_answers_who_came_later_as_a_hit_would() {
    let mut b = Bench::new();
    let read = b.lookup_read("x", 1);
    b.lookup("x", 2);
    b.on(Event::Lookup { key: key("x"), waiter: 3, deadline: LATER, fresh: true });
    let out = b.row("x", read, Some(row(READY, 4)), Some(alive()));
    assert_eq!(answers(&out)[0].0, [1, 2], "a fresh call is not served by an older read");
    let read = next_read(&out).unwrap();
    let out = b.row("x", read, None, None);
    assert_eq!(answers(&out), [(vec![3], Answer::Missing)]);

    let mut b = Bench::new();
    b.resolver.set_caching(false);
    let read = b.lookup_read("x", 1);
    b.lookup("x", 2);
    let out = b.row("x", read, Some(row(READY, 4)), Some(alive()));
    assert_eq!(answers(&out)[0].0, [1], "nothing is cached, so nothing is shared");
}

/// Proves R2.2-8.
#[test]
fn a_read_that_began_before_an_invalidation_inserts_nothing_and_answers_nobody_after_it() {
    let mut b = Bench::new();
    let old = b.lookup_read("x", 1);
    b.lookup("x", 2);
    let out = b.on(Event::Invalidated { key: key("x") });
    let fresh = next_read(&out).expect("waiter 2 is not covered and gets a read at once");
    b.lookup("x", 3);
    let out = b.row("x", old, Some(row(READY, 4)), Some(alive()));
    assert!(!has_insert(&out));
    assert_eq!(answers(&out)[0].0, [1]);
    let out = b.row("x", fresh, Some(row(READY, 5)), Some(alive()));
    assert!(has_insert(&out));
    assert_eq!(answers(&out)[0].0, [2, 3]);
}

/// Proves R2.2-8.
#[test]
fn a_newer_read_answers_who_waits_for_an_older_one_too() {
    let mut b = Bench::new();
    let old = b.lookup_read("x", 1);
    b.on(Event::Invalidated { key: key("x") });
    let fresh = b.lookup_read("x", 2);
    let out = b.row("x", fresh, None, None);
    assert_eq!(answers(&out), [(vec![1, 2], Answer::Missing)]);
    assert_eq!(b.row("x", old, Some(row(READY, 4)), Some(alive())), []);
    assert!(b.resolver.is_empty());
}

/// Proves R2.2-4, R2.2-8.
#[test]
fn a_recovery_of_the_store_invalidates_every_read() {
    let mut b = Bench::new();
    let (x, y) = (b.lookup_read("x", 1), b.lookup_read("y", 2));
    b.on(Event::AllInvalidated);
    for (id, read) in [("x", x), ("y", y)] {
        assert!(!has_insert(&b.row(id, read, Some(row(READY, 4)), Some(alive()))));
    }
    let read = b.lookup_read("x", 3);
    assert!(has_insert(&b.row("x", read, Some(row(READY, 4)), Some(alive()))));
}

/// Proves R2.2-8.
#[test]
fn an_invalidation_during_the_owners_read_counts() {
    let mut b = Bench::new();
    let read = b.lookup_read("x", 1);
    b.row("x", read, Some(row(READY, 4)), None);
    b.on(Event::Invalidated { key: key("x") });
    let out = b.on(Event::OwnerAnswered { key: key("x"), read, owner: Ok(alive()) });
    assert!(!has_insert(&out));
    assert_eq!(answers(&out)[0].0, [1]);
}

#[test]
fn invalidations_do_not_pile_up_reads() {
    let mut b = Bench::new();
    for waiter in 0..50 {
        b.lookup("x", waiter);
        b.on(Event::Invalidated { key: key("x") });
    }
    assert_eq!(b.resolver.counters().reads, MAX_READS_PER_ID as u64);
}

/// Proves R2.2b-1.
#[test]
fn a_failed_read_is_told_to_its_waiters_only_and_is_not_kept() {
    let mut b = Bench::new();
    let first = b.lookup_read("x", 1);
    b.lookup("x", 2);
    let other = b.lookup_read("y", 3);
    let out = b.fail("x", first);
    assert!(matches!(&answers(&out)[..], [(w, Answer::StoreFailure(_))] if w[..] == [1]));
    let second = next_read(&out).unwrap();
    let out = b.row("x", second, None, None);
    assert_eq!(answers(&out), [(vec![2], Answer::Missing)]);
    assert_eq!(answers(&b.row("y", other, None, None)), [(vec![3], Answer::Missing)]);
}

#[test]
fn a_failed_read_leaves_its_waiters_to_a_newer_one() {
    let mut b = Bench::new();
    let old = b.lookup_read("x", 1);
    b.on(Event::Invalidated { key: key("x") });
    let fresh = b.lookup_read("x", 2);
    assert_eq!(b.fail("x", old), []);
    assert_eq!(answers(&b.row("x", fresh, None, None)), [(vec![1, 2], Answer::Missing)]);
}

/// Proves R2.2-8.
#[test]
fn a_read_without_an_answer_fails_after_the_store_time() {
    let mut b = Bench::new();
    let read = b.lookup_read("x", 1);
    assert_eq!(b.resolver.next_deadline(), Some(Nanos(2 * SEC)));
    assert_eq!(b.tick(2 * SEC - 1), []);
    let out = b.tick(2 * SEC);
    assert!(matches!(&answers(&out)[..], [(_, Answer::StoreFailure(e))]
        if e.text().contains("within 2s")));
    assert!(b.resolver.is_empty());
    assert_eq!(b.row("x", read, None, None), [], "the late answer is dropped");
    assert_eq!(b.resolver.counters().late_answers, 1);
}

/// Proves R2.2-8.
#[test]
fn a_waiter_leaves_alone_when_its_time_is_over() {
    let mut b = Bench::new();
    let read = b.lookup_read("x", 1);
    b.on(Event::Lookup { key: key("x"), waiter: 2, deadline: Nanos(SEC), fresh: false });
    let out = b.tick(SEC);
    assert!(matches!(&out[..], [Effect::Ended { waiter: 2, error, .. }]
        if error.kind() == ErrorKind::DeadlineExceeded));
    assert_eq!(answers(&b.row("x", read, None, None)), [(vec![1], Answer::Missing)]);
    // A call whose time is over already never waits.
    let late = Event::Lookup { key: key("x"), waiter: 3, deadline: Nanos(SEC), fresh: false };
    assert!(matches!(&b.on(late)[..], [Effect::Ended { waiter: 3, .. }]));
    assert!(b.resolver.is_empty());
}

#[test]
fn a_waiter_whose_last_read_failed_ends_with_that_failure() {
    let mut b = Bench::new();
    let old = b.lookup_read("x", 1);
    b.on(Event::Cancel { key: key("x"), waiter: 1 });
    b.on(Event::Lookup { key: key("x"), waiter: 2, deadline: Nanos(SEC), fresh: false });
    b.fail("x", old);
    let out = b.tick(SEC);
    assert!(matches!(&answers(&out)[..], [(w, Answer::StoreFailure(_))] if w[..] == [2]));
}

#[test]
fn a_cancelled_waiter_hears_nothing_and_the_read_still_fills_the_cache() {
    let mut b = Bench::new();
    let read = b.lookup_read("x", 1);
    b.on(Event::Cancel { key: key("x"), waiter: 1 });
    let out = b.row("x", read, Some(row(READY, 4)), Some(alive()));
    assert!(has_insert(&out) && answers(&out).is_empty());
    assert!(b.resolver.is_empty());
}

/// Proves R2.2b-2.
#[test]
fn a_dead_creators_row_is_cleared_and_missing_comes_only_after_a_new_read() {
    for outcome in [
        CommitOutcome::Committed(StoreVersion::FIRST),
        CommitOutcome::Conflict,
        CommitOutcome::Fenced,
        CommitOutcome::Unknown,
    ] {
        let mut b = Bench::new();
        let read = b.lookup_read("x", 1);
        let creating = row(CREATING, 4);
        b.row("x", read, Some(creating.clone()), None);
        let out = b.on(Event::OwnerAnswered { key: key("x"), read, owner: Ok(dead()) });
        let [Effect::Clear { read: clear, row: cleared, .. }] = &out[..] else { panic!("{out:?}") };
        assert_eq!(cleared, &creating);
        assert_eq!(b.lookup("x", 2), [], "nobody reads while the row is being cleared");
        let out = b.on(Event::Cleared { key: key("x"), read: *clear, outcome });
        assert!(answers(&out).is_empty(), "the end of a clear answers nobody");
        let read = next_read(&out).unwrap();
        assert_eq!(answers(&b.row("x", read, None, None)), [(vec![1, 2], Answer::Missing)]);
        assert!(b.resolver.is_empty());
    }
}

#[test]
fn a_clear_that_failed_is_a_store_failure_and_one_without_an_answer_is_followed_by_a_read() {
    let start = |b: &mut Bench| {
        let read = b.lookup_read("x", 1);
        let out = b.row("x", read, Some(row(CREATING, 4)), Some(dead()));
        let [Effect::Clear { read, .. }] = &out[..] else { panic!("{out:?}") };
        *read
    };
    let mut b = Bench::new();
    let clear = start(&mut b);
    let outcome = CommitOutcome::Failed(Error::unavailable("no"));
    let out = b.on(Event::Cleared { key: key("x"), read: clear, outcome });
    assert!(matches!(&answers(&out)[..], [(w, Answer::StoreFailure(_))] if w[..] == [1]));
    assert!(b.resolver.is_empty());

    let mut b = Bench::new();
    start(&mut b);
    let out = b.tick(2 * SEC);
    assert!(next_read(&out).is_some() && answers(&out).is_empty());
}

#[test]
fn a_row_nobody_asks_for_any_more_is_left_to_the_next_caller() {
    let mut b = Bench::new();
    let read = b.lookup_read("x", 1);
    b.on(Event::Cancel { key: key("x"), waiter: 1 });
    assert_eq!(b.row("x", read, Some(row(CREATING, 4)), Some(dead())), []);
    assert!(b.resolver.is_empty());
}

#[test]
fn a_shutdown_answers_everybody() {
    let mut b = Bench::new();
    let read = b.lookup_read("x", 1);
    b.lookup_read("y", 2);
    let out = b.on(Event::Shutdown);
    assert_eq!(out.len(), 2);
    assert!(out.iter().all(|e| matches!(e, Effect::Ended { error, .. }
        if error.kind() == ErrorKind::ShuttingDown)));
    assert_eq!(b.row("x", read, None, None), []);
    assert_eq!(b.resolver.next_deadline(), None);
}
