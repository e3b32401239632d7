#![forbid(unsafe_code)]

use proptest::prelude::*;

use super::*;
use crate::ids::{
    AuthorityOwnerGeneration, MeshName, NodeGeneration, NodeRid, ObjectKind, OwnerLeaseGeneration,
};
use crate::store::records::{Authority, AuthorityState};

const SEC: u64 = 1_000_000_000;

fn key() -> ObjectKey {
    ObjectKey::new(3, ObjectKind::Actor, "x").unwrap()
}

fn me() -> Identity {
    Identity {
        rid: NodeRid::new("n").unwrap(),
        mesh: MeshName::new("m").unwrap(),
        node_generation: NodeGeneration::new(5).unwrap(),
        lease_generation: OwnerLeaseGeneration::new(6).unwrap(),
    }
}

fn generation(n: u64) -> ObjectGeneration {
    ObjectGeneration::new(n).unwrap()
}

fn version(n: u64) -> StoreVersion {
    StoreVersion::new(n).unwrap()
}

fn row(object: u64, owner: &Identity, at: u64) -> Row {
    Row {
        authority: Authority {
            state: AuthorityState::Ready,
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

struct Bench {
    destroyer: Destroyer,
    now: Nanos,
}

impl Bench {
    fn new() -> Self {
        Self { destroyer: Destroyer::new(me(), Duration::from_secs(2)), now: Nanos(0) }
    }

    fn on(&mut self, event: Event) -> Vec<Effect> {
        let mut out = Vec::new();
        self.destroyer.handle(event, self.now, &mut out);
        out
    }

    /// Destroy generation 9 of an object of generation 9 at version 20.
    fn destroy(&mut self, caller: u64, wanted: u64, stands: bool) -> Vec<Effect> {
        let standing =
            stands.then(|| Standing { object_generation: generation(9), version: version(20) });
        self.on(Event::Destroy {
            key: key(),
            caller,
            object_generation: generation(wanted),
            deadline: Nanos(60 * SEC),
            standing,
        })
    }

    /// Up to the first delete.
    fn start(&mut self) -> CallId {
        assert_eq!(self.destroy(1, 9, true), [Effect::Close { key: key() }]);
        let out = self.on(Event::Closed { key: key() });
        let [Effect::Drop { .. }, Effect::Delete { call, version: at, .. }] = &out[..] else {
            panic!("{out:?}")
        };
        assert_eq!(*at, version(20));
        *call
    }

    fn deleted(&mut self, call: CallId, outcome: CommitOutcome) -> Vec<Effect> {
        self.on(Event::Deleted { key: key(), call, outcome })
    }

    fn row(&mut self, call: CallId, row: Option<Row>) -> Vec<Effect> {
        self.on(Event::RowAnswered { key: key(), call, row: Ok(row) })
    }
}

fn read_call(out: &[Effect]) -> CallId {
    let [Effect::ReadRow { call, .. }] = out else { panic!("{out:?}") };
    *call
}

fn is_done(out: &[Effect], kind: Option<ErrorKind>) -> bool {
    matches!(out, [Effect::Released { .. }, Effect::Answered { answer, .. }]
        if answer.as_ref().err().map(Error::kind) == kind)
}

/// Proves R2.6-2, R2.2b-2.
#[test]
fn closes_drops_deletes_and_only_then_releases() {
    let mut b = Bench::new();
    let call = b.start();
    assert!(b.destroyer.is_busy(&key()));
    let out = b.deleted(call, CommitOutcome::Committed(version(30)));
    assert!(is_done(&out, None), "{out:?}");
    assert!(b.destroyer.is_empty() && b.destroyer.next_deadline().is_none());
    assert_eq!(b.deleted(call, CommitOutcome::Committed(version(30))), []);
}

/// Proves R2.6-2.
#[test]
fn another_incarnation_is_left_alone() {
    let mut b = Bench::new();
    let kind = |out: &[Effect]| match out {
        [Effect::Answered { answer: Err(e), .. }] => e.kind(),
        other => panic!("{other:?}"),
    };
    assert_eq!(kind(&b.destroy(1, 8, true)), ErrorKind::InvalidOperation);
    assert_eq!(kind(&b.destroy(1, 10, true)), ErrorKind::InvalidOperation);
    assert_eq!(kind(&b.destroy(1, 9, false)), ErrorKind::NotFound);
    assert!(b.destroyer.is_empty());
    b.start();
    assert_eq!(kind(&b.destroy(2, 8, false)), ErrorKind::InvalidOperation);
    assert_eq!(b.destroy(3, 9, false), [], "a second call for the same one joins");
    b.now = Nanos(61 * SEC);
    assert_eq!(kind(&b.destroy(4, 9, false)), ErrorKind::DeadlineExceeded);
}

/// Proves R2.2b-2, R2.6-2.
#[test]
fn a_lost_answer_is_decided_by_a_read() {
    for outcome in [CommitOutcome::Unknown, CommitOutcome::Conflict] {
        let mut b = Bench::new();
        let call = b.start();
        let out = b.deleted(call, outcome);
        let out = b.row(read_call(&out), Some(row(9, &me(), 21)));
        let [Effect::Delete { call, version: at, .. }] = &out[..] else { panic!("{out:?}") };
        assert_eq!(*at, version(21), "by the version that was read");
        let out = b.deleted(*call, CommitOutcome::Unknown);
        // A new incarnation stands, or nothing: the old one is gone either way.
        let next = Some(row(10, &me(), 40));
        assert!(is_done(&b.row(read_call(&out), next), None));
    }
    let mut b = Bench::new();
    let call = b.start();
    let out = b.deleted(call, CommitOutcome::Unknown);
    let other = Identity { lease_generation: OwnerLeaseGeneration::new(9).unwrap(), ..me() };
    let out = b.row(read_call(&out), Some(row(9, &other, 40)));
    assert!(is_done(&out, Some(ErrorKind::Unavailable)));
}

#[test]
fn a_store_that_fails_is_asked_until_it_decides_and_callers_keep_their_deadlines() {
    let mut b = Bench::new();
    let call = b.start();
    assert_eq!(b.deleted(call, CommitOutcome::Failed(Error::unavailable("no"))), []);
    let mut told = 0;
    let mut reads = 0;
    while b.now < Nanos(70 * SEC) {
        b.now = b.destroyer.next_deadline().expect("never given up");
        for effect in b.on(Event::Tick) {
            match effect {
                Effect::ReadRow { .. } => reads += 1, // never answered
                Effect::Answered { answer, .. } => {
                    assert_eq!(answer.unwrap_err().kind(), ErrorKind::DeadlineExceeded);
                    told += 1;
                }
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!(told, 1);
    assert!(reads > 20);
    b.now = b.destroyer.next_deadline().unwrap();
    let mut out = b.on(Event::Tick);
    while out.is_empty() {
        b.now = b.destroyer.next_deadline().unwrap();
        out = b.on(Event::Tick);
    }
    let out = b.row(read_call(&out), None);
    assert!(matches!(&out[..], [Effect::Released { .. }]));
}

/// Proves R5-16.
#[test]
fn a_fenced_node_stops_trying() {
    let mut b = Bench::new();
    let call = b.start();
    let out = b.deleted(call, CommitOutcome::Fenced);
    assert!(is_done(&out, Some(ErrorKind::Unavailable)));
}

#[test]
fn a_shutdown_answers_and_a_cancelled_caller_hears_nothing() {
    let mut b = Bench::new();
    b.start();
    b.destroy(2, 9, false);
    b.on(Event::Cancel { key: key(), caller: 1 });
    let out = b.on(Event::Shutdown);
    assert!(matches!(&out[..], [Effect::Answered { caller: 2, answer: Err(e), .. }]
        if e.kind() == ErrorKind::ShuttingDown));
    assert!(b.destroyer.next_deadline().is_none());
}

proptest! {
    /// Proves R2.6-2, R2.2b-2.
    ///
    /// Lost answers, lost writes, failures and silence in any order: the row of this incarnation
    /// is gone when, and only when, the end is reported; each caller is answered once.
    #[test]
    fn released_means_gone(luck in proptest::collection::vec((0..6u8, 0..3000u64), 1..60)) {
        let mut b = Bench::new();
        let mut stands: Option<Row> = Some(row(9, &me(), 20));
        let mut out = b.destroy(1, 9, true);
        out.extend(b.on(Event::Closed { key: key() }));
        let (mut released, mut answered) = (false, 0);
        for (luck, ms) in luck.into_iter().chain([(0, 2100); 8]) {
            let mut events = Vec::new();
            for effect in out.drain(..) {
                match effect {
                    Effect::Delete { key, call, version: at, .. } => {
                        let matches = stands.as_ref().is_some_and(|r| r.version == at);
                        let failed = luck == 1;
                        if matches && !failed && luck != 2 {
                            stands = None;
                        }
                        let outcome = match luck {
                            1 => CommitOutcome::Failed(Error::unavailable("no")),
                            2 | 3 => CommitOutcome::Unknown,
                            4 => continue,
                            _ if matches => CommitOutcome::Committed(version(50)),
                            _ => CommitOutcome::Conflict,
                        };
                        events.push(Event::Deleted { key, call, outcome });
                    }
                    Effect::ReadRow { key, call, .. } => {
                        let row = match luck {
                            1 => Err(Error::unavailable("no")),
                            4 => continue,
                            _ => Ok(stands.clone()),
                        };
                        events.push(Event::RowAnswered { key, call, row });
                    }
                    Effect::Released { .. } => {
                        prop_assert!(stands.is_none(), "released while the row stands");
                        released = true;
                    }
                    Effect::Answered { .. } => answered += 1,
                    Effect::Close { .. } | Effect::Drop { .. } => {}
                }
            }
            for event in events {
                out.extend(b.on(event));
            }
            b.now = Nanos(b.now.0 + ms * 1_000_000);
            out.extend(b.on(Event::Tick));
        }
        while let Some(effect) = out.pop() {
            released |= matches!(effect, Effect::Released { .. });
            answered += u32::from(matches!(effect, Effect::Answered { .. }));
        }
        prop_assert!(released && b.destroyer.is_empty());
        prop_assert_eq!(answered, 1);
    }
}
