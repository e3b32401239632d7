#![forbid(unsafe_code)]
//! Calls, Store executions, answers, losses, changes and invalidations in any order.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Move {
    Lookup {
        id: usize,
        wait_s: u64,
        fresh: bool,
    },
    /// The Store does the oldest (or newest) call that is out, now.
    Serve {
        which: usize,
    },
    /// The answer of a served call comes back.
    Answer {
        which: usize,
        lost: bool,
    },
    Change {
        id: usize,
        to: u8,
    },
    Invalidate {
        id: usize,
    },
    InvalidateAll,
    Cancel {
        which: usize,
    },
    Pass {
        ms: u64,
    },
}

fn a_move() -> impl Strategy<Value = Move> {
    prop_oneof![
        6 => (0..3usize, 1..6u64, any::<bool>())
            .prop_map(|(id, wait_s, fresh)| Move::Lookup { id, wait_s, fresh }),
        6 => (0..8usize).prop_map(|which| Move::Serve { which }),
        6 => (0..8usize, proptest::bool::weighted(0.1))
            .prop_map(|(which, lost)| Move::Answer { which, lost }),
        3 => (0..3usize, 0..4u8).prop_map(|(id, to)| Move::Change { id, to }),
        2 => (0..3usize).prop_map(|id| Move::Invalidate { id }),
        1 => Just(Move::InvalidateAll),
        1 => (0..8usize).prop_map(|which| Move::Cancel { which }),
        3 => (0..900u64).prop_map(|ms| Move::Pass { ms }),
    ]
}

/// A Store with three rows, calls on their way, and what everybody may be told.
struct World {
    bench: Bench,
    step: u64,
    /// Per id and step: what stood from that step on. 0 absent, 1 Ready, 2 Creating by a live
    /// node, 3 Creating by a dead one.
    history: Vec<Vec<(u64, u8, u64)>>,
    version: u64,
    calls: Vec<(Effect, u64, Option<Event>)>,
    issued: std::collections::BTreeMap<ReadId, u64>,
    invalidated: Vec<u64>,
    waiting: std::collections::BTreeMap<u64, (usize, u64, bool)>,
    next_waiter: u64,
}

impl World {
    fn new() -> Self {
        Self {
            bench: Bench::new(),
            step: 0,
            history: vec![vec![(0, 0, 0)]; 3],
            version: 0,
            calls: Vec::new(),
            issued: Default::default(),
            invalidated: vec![0; 3],
            waiting: Default::default(),
            next_waiter: 0,
        }
    }

    fn index(&self, k: &ObjectKey) -> usize {
        k.id().parse().unwrap()
    }

    fn stands(&self, id: usize) -> (u8, Option<Row>) {
        let (_, kind, version) = *self.history[id].last().unwrap();
        let state = if kind == 1 { READY } else { CREATING };
        (kind, (kind > 0).then(|| row(state, version)))
    }

    /// Whether `kind` stood at some instant since `from`.
    fn stood(&self, id: usize, kinds: &[u8], from: u64) -> bool {
        let h = &self.history[id];
        h.iter().enumerate().any(|(i, (_, kind, _))| {
            let until = h.get(i + 1).map_or(u64::MAX, |next| next.0);
            kinds.contains(kind) && until >= from
        })
    }

    fn change(&mut self, id: usize, to: u8) {
        self.version += 1;
        self.history[id].push((self.step, to, self.version));
    }

    /// The Store's side of a call.
    fn serve(&mut self, effect: &Effect) -> Event {
        match effect.clone() {
            Effect::Read { key, read, .. } => {
                let (kind, row) = self.stands(self.index(&key));
                let owner = (kind == 1 && self.step.is_multiple_of(2)).then(alive);
                Event::RowAnswered { key, read, row: Ok(row), owner }
            }
            Effect::ReadOwner { key, read, .. } => {
                let (kind, _) = self.stands(self.index(&key));
                let owner = Ok(if kind == 3 { dead() } else { alive() });
                Event::OwnerAnswered { key, read, owner }
            }
            Effect::Clear { key, read, row, .. } => {
                let id = self.index(&key);
                let (kind, standing) = self.stands(id);
                let matches = kind == 3 && standing == Some(row);
                if matches {
                    self.change(id, 0);
                }
                let outcome = if matches {
                    CommitOutcome::Committed(StoreVersion::FIRST)
                } else {
                    CommitOutcome::Conflict
                };
                Event::Cleared { key, read, outcome }
            }
            other => panic!("not a call: {other:?}"),
        }
    }

    fn feed(&mut self, event: Event) {
        let answered = match &event {
            Event::RowAnswered { read, .. } | Event::OwnerAnswered { read, .. } => Some(*read),
            _ => None,
        };
        let out = self.bench.on(event);
        for effect in out {
            match effect {
                Effect::Read { read, .. } => {
                    self.issued.insert(read, self.step);
                    self.calls.push((effect, self.step, None));
                }
                Effect::ReadOwner { .. } | Effect::Clear { .. } => {
                    self.calls.push((effect, self.step, None));
                }
                Effect::Insert(route) => {
                    let id = self.index(&route.key);
                    let issued = self.issued[&answered.unwrap()];
                    assert!(issued >= self.invalidated[id], "inserted by an outdated read");
                }
                Effect::Resolved { key, waiters, answer } => {
                    self.check_answer(&key, &waiters, &answer, answered);
                }
                Effect::Ended { waiter, .. } => {
                    assert!(self.waiting.remove(&waiter).is_some(), "ended twice");
                }
            }
        }
    }

    fn check_answer(
        &mut self,
        key: &ObjectKey,
        waiters: &[u64],
        answer: &Answer,
        read: Option<ReadId>,
    ) {
        let id = self.index(key);
        assert!(waiters.is_sorted(), "answered out of order: {waiters:?}");
        for w in waiters {
            let (asked, called, fresh) = self.waiting.remove(w).expect("answered twice");
            assert_eq!(asked, id);
            let issued = read.map_or(u64::MAX, |r| self.issued[&r]);
            match answer {
                Answer::StoreFailure(_) => {}
                Answer::Ready(_) => assert!(
                    issued >= called || (!fresh && self.invalidated[id] <= issued),
                    "a call after an invalidation was answered by a read before it"
                ),
                Answer::Missing => assert!(issued >= called && self.stood(id, &[0], called)),
                Answer::Unavailable(_) => {
                    assert!(issued >= called && self.stood(id, &[2, 3], called));
                }
            }
        }
    }

    fn play(&mut self, m: Move) {
        self.step += 1;
        match m {
            Move::Lookup { id, wait_s, fresh } => {
                self.next_waiter += 1;
                let waiter = self.next_waiter;
                self.waiting.insert(waiter, (id, self.step, fresh));
                let deadline = Nanos(self.bench.now.0 + wait_s * SEC);
                self.feed(Event::Lookup { key: key(&id.to_string()), waiter, deadline, fresh });
            }
            Move::Serve { which } => {
                let open: Vec<usize> =
                    (0..self.calls.len()).filter(|&i| self.calls[i].2.is_none()).collect();
                if let Some(&i) = open.get(which % open.len().max(1)) {
                    let effect = self.calls[i].0.clone();
                    self.calls[i].2 = Some(self.serve(&effect));
                }
            }
            Move::Answer { which, lost } => {
                let done: Vec<usize> =
                    (0..self.calls.len()).filter(|&i| self.calls[i].2.is_some()).collect();
                if let Some(&i) = done.get(which % done.len().max(1)) {
                    let event = self.calls.remove(i).2.unwrap();
                    if !lost {
                        self.feed(event);
                    }
                }
            }
            Move::Change { id, to } => self.change(id, to),
            Move::Invalidate { id } => {
                self.invalidated[id] = self.step;
                self.feed(Event::Invalidated { key: key(&id.to_string()) });
            }
            Move::InvalidateAll => {
                self.invalidated = vec![self.step; 3];
                self.feed(Event::AllInvalidated);
            }
            Move::Cancel { which } => {
                let w = self.waiting.iter().nth(which).map(|(w, (id, ..))| (*w, *id));
                if let Some((waiter, id)) = w {
                    self.waiting.remove(&waiter);
                    self.feed(Event::Cancel { key: key(&id.to_string()), waiter });
                }
            }
            Move::Pass { ms } => {
                self.bench.now = Nanos(self.bench.now.0 + ms * 1_000_000);
                self.feed(Event::Tick);
            }
        }
        for (k, p) in &self.bench.resolver.ids {
            assert!(p.reads.len() <= MAX_READS_PER_ID);
            assert!(p.next_wake().is_some(), "{k} would be kept for ever");
            assert!(self.bench.resolver.timers.contains(&(p.next_wake().unwrap(), k.clone())));
        }
    }
}

proptest! {
    /// Proves R2.2-8, R2.2b-1, R2.2b-2.
    ///
    /// Calls, Store executions, answers, losses, changes and invalidations in any order: every
    /// waiter ends once; nobody is told of an absence that did not exist between call and answer;
    /// nothing outdated is inserted; and nothing is left behind.
    #[test]
    fn any_order_of_events(moves in proptest::collection::vec(a_move(), 1..200)) {
        let mut world = World::new();
        for m in moves {
            world.play(m);
        }
        for _ in 0..20 {
            world.play(Move::Pass { ms: 1000 });
        }
        prop_assert!(world.waiting.is_empty(), "waiters without an end: {:?}", world.waiting);
        prop_assert!(world.bench.resolver.is_empty());
    }
}
