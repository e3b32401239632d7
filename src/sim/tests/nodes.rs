#![forbid(unsafe_code)]
//! Mail, pauses, the Store, leases, tasks, and whole runs.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::*;
use crate::env::Planted;
use crate::location::{Batch, BatchOutcome, Condition, StoreError, Write};
use crate::node::store_threads::{LeaseControl, LeaseReport};

#[test]
fn mail_keeps_its_order_per_pair() {
    for seed in 0..10 {
        let mut w = ToyWorld::new(seed, &[3], false);
        for core in 0..2 {
            w.post(0, core, Mail::Relay { to: 2, count: 200 });
        }
        for n in 1000..1200 {
            w.post(0, 2, Mail::Note(n));
        }
        w.secs(1);
        let notes = w.log.with(|l| std::mem::take(&mut l.notes));
        assert_eq!(notes.len(), 600);
        let outside: Vec<u64> = notes.iter().map(|n| n.1).filter(|n| *n >= 1000).collect();
        assert!(outside.is_sorted(), "an application thread's mail keeps its order");
        let mut next = [0, 0];
        for n in notes.iter().map(|n| n.1).filter(|n| *n < 1000) {
            // Two senders with the same numbers: each number is the next of one of them.
            let of = next.iter().position(|x| *x == n).unwrap_or_else(|| panic!("{n} {next:?}"));
            next[of] += 1;
        }
    }
}

#[test]
fn a_paused_node_does_nothing_while_time_goes_on() {
    let mut w = ToyWorld::new(4, &[2, 1], false);
    w.world.handle().inject(Fault::Pause(NodeIx(0), Duration::from_secs(10)));
    w.secs(1);
    w.post(0, 1, Mail::Note(7));
    let time = w.world.time();
    let task = w.world.spawn(Some(NodeIx(0)), async move { time.now() });
    w.dial(1, 0, vec![vec![5; 5]], None);
    w.secs(8);
    assert!(w.log.with(|l| l.notes.is_empty() && l.bytes.is_empty()));
    assert!(!task.is_done());
    w.secs(2);
    assert_eq!(w.log.with(|l| l.notes.len()), 1);
    assert_eq!(w.log.with(|l| l.bytes[&(NodeIx(0), 0)].len()), 5);
    assert!(task.take().unwrap() >= Nanos(10_000_000_000));
}

#[test]
fn a_stalled_core_lets_the_others_run() {
    let mut w = ToyWorld::new(4, &[2], false);
    w.world.handle().inject(Fault::Stall(NodeIx(0), 0, Duration::from_secs(5)));
    w.secs(1);
    w.post(0, 0, Mail::Note(0));
    w.post(0, 1, Mail::Note(1));
    w.secs(1);
    assert_eq!(w.log.with(|l| l.notes.clone()), [(1, 1)]);
    w.secs(5);
    assert_eq!(w.log.with(|l| l.notes.clone()), [(1, 1), (0, 0)]);
}

fn put(key: &str, condition: Option<Condition>) -> StoreOp {
    StoreOp::Commit(Batch {
        conditions: condition.into_iter().collect(),
        writes: vec![Write::Put { key: key.into(), value: vec![1], ttl: None }],
    })
}

#[test]
fn store_calls_answer_and_fail_as_told() {
    let mut w = ToyWorld::new(4, &[2], false);
    let ask = |w: &mut ToyWorld, op: StoreOp| {
        w.post(0, 0, Mail::Ask(op));
        w.secs(4);
        w.log.with(|l| l.answers.drain(..).map(|(_, a)| a).collect::<Vec<_>>())
    };
    let absent = |key: &str| Some(Condition::Absent(key.into()));
    let committed =
        |a: &[StoreAnswer]| matches!(a, [StoreAnswer::Commit(BatchOutcome::Committed(_))]);
    let exists = |a: &[StoreAnswer]| match a {
        [StoreAnswer::Read(r)] => r.records[0].is_some(),
        other => panic!("{other:?}"),
    };
    assert!(committed(&ask(&mut w, put("a", absent("a")))));
    let again = ask(&mut w, put("a", absent("a")));
    assert!(matches!(again[..], [StoreAnswer::Commit(BatchOutcome::Conflict { condition: 0 })]));
    for (mode, key) in [
        (StoreMode::Failing, "failing"),
        (StoreMode::AnswerLost, "lost"),
        (StoreMode::Slow(Duration::from_millis(700)), "slow"),
    ] {
        let lasts = Duration::from_secs(3);
        w.world.handle().inject(Fault::Store { node: Some(NodeIx(0)), mode, lasts });
        let answers = ask(&mut w, put(key, absent(key)));
        let written = exists(&ask(&mut w, StoreOp::Read(vec![key.into()])));
        match mode {
            StoreMode::Failing => {
                assert!(matches!(answers[..], [StoreAnswer::Failed(StoreError::Failed(_))]));
                assert!(!written);
            }
            StoreMode::AnswerLost => {
                assert!(matches!(answers[..], [StoreAnswer::Failed(StoreError::Unknown(_))]));
                assert!(written);
            }
            _ => assert!(committed(&answers) && written),
        }
    }
}

#[test]
fn silent_store_calls_end_with_their_budget_or_not_at_all() {
    let (mut written, mut answered) = (0, 0);
    for seed in 0..40 {
        let mut w = ToyWorld::new(seed, &[1], false);
        let lasts = Duration::from_secs(2);
        w.world.handle().inject(Fault::Store { node: None, mode: StoreMode::Silent, lasts });
        w.world.run_for(Duration::from_millis(1));
        let asked = w.world.now();
        w.post(0, 0, Mail::Ask(put("k", None)));
        w.secs(5);
        for (_, answer) in w.log.with(|l| std::mem::take(&mut l.answers)) {
            assert!(matches!(answer, StoreAnswer::Failed(StoreError::Unknown(_))), "{answer:?}");
            answered += 1;
        }
        let when = w.log.with(|l| {
            l.lines.iter().find(|(.., e)| e.starts_with("Store")).map(|(at, ..)| at.since(asked))
        });
        assert!(when.is_none_or(|d| d >= Duration::from_secs(1)), "{when:?}");
        w.post(0, 0, Mail::Ask(StoreOp::Read(vec![b"k".to_vec()])));
        w.secs(2);
        let answers = w.log.with(|l| std::mem::take(&mut l.answers));
        let [(_, StoreAnswer::Read(read))] = &answers[..] else { panic!("{answers:?}") };
        written += u32::from(read.records[0].is_some());
    }
    assert!((5..35).contains(&written), "{written}");
    assert!((5..35).contains(&answered), "{answered}");
}

const LEASE: Duration = Duration::from_secs(10);
const RENEW: Duration = Duration::from_secs(3);

#[test]
fn a_lease_is_renewed_lapses_in_a_pause_and_comes_back() {
    let mut w = ToyWorld::new(6, &[], false);
    let node = w.add(NodeSpec::new("kept", 1).with_lease(LEASE, RENEW), false);
    w.secs(60);
    let alive = |w: &ToyWorld| w.world.lease(node).is_alive(w.world.now());
    assert!(w.world.is_up(node) && alive(&w));
    w.world.handle().inject(Fault::Pause(node, Duration::from_secs(15)));
    w.secs(14);
    assert!(!alive(&w), "no renewal while paused");
    w.secs(3);
    assert!(alive(&w), "nobody released it meanwhile (R5-16)");
    let outage =
        Fault::Store { node: None, mode: StoreMode::Failing, lasts: Duration::from_secs(20) };
    w.world.handle().inject(outage);
    w.secs(15);
    assert!(!alive(&w));
    w.secs(10);
    assert!(alive(&w));
    let views = w.world.history().with(|h| h.leases.len());
    assert!(views > 20, "{views}");
}

#[test]
fn a_killed_node_comes_back_after_its_old_lease() {
    let mut w = ToyWorld::new(6, &[], false);
    let node = w.add(NodeSpec::new("kept", 1).with_lease(LEASE, RENEW), false);
    w.secs(5);
    w.world.handle().inject(Fault::Kill(node, Death::Eof));
    w.secs(1);
    w.world.handle().inject(Fault::Start(node));
    w.secs(3);
    assert!(!w.world.is_up(node), "the old lease stands");
    w.secs(15);
    assert!(w.world.is_up(node));
    assert_eq!(w.world.life(node).life, 2);
}

#[test]
fn a_node_that_ends_gives_its_lease_back() {
    for tell in [true, false] {
        let mut w = ToyWorld::new(6, &[], false);
        let reports = Arc::new(Mutex::new(Vec::new()));
        let control = Arc::new(Mutex::new(None));
        let (log, seen, sender) = (w.log.clone(), reports.clone(), control.clone());
        let door = Door::default();
        w.doors.push(door.clone());
        let node =
            w.world.add_node(NodeSpec::new("kept", 1).with_lease(LEASE, RENEW), move |start| {
                assert!(start.started.is_some() && start.lease.is_alive(start.time.now()));
                door.lock().unwrap().push(start.poster.clone());
                *sender.lock().unwrap() = start.lease_control;
                let seen = seen.clone();
                let cores = vec![Box::new(Toy::new(log.clone(), false)) as Box<dyn SimCore<Mail>>];
                Ok(Built::new(cores).with_reports(Box::new(move |r| seen.lock().unwrap().push(r))))
            });
        w.secs(1);
        if tell {
            let deadline = w.world.now() + Duration::from_secs(1);
            let sender = control.lock().unwrap();
            sender.as_ref().unwrap().send(LeaseControl::Release { deadline }).unwrap();
        }
        w.post(0, 0, Mail::EndNow);
        w.secs(1);
        assert!(!w.world.is_up(node));
        let reports = std::mem::take(&mut *reports.lock().unwrap());
        assert!(
            reports.iter().any(|r| matches!(r, LeaseReport::Released { clean: true })),
            "{reports:?}"
        );
        // The lease is gone, so the next lifecycle need not wait for its end.
        w.world.handle().inject(Fault::Start(node));
        w.secs(1);
        assert!(w.world.is_up(node));
    }
}

#[test]
fn tasks_run_in_virtual_time_in_the_order_of_their_wakes() {
    let mut world = SimWorld::<()>::new(1);
    let order = Arc::new(Mutex::new(Vec::new()));
    for n in [3u64, 1, 2] {
        let (time, order) = (world.time(), order.clone());
        world.spawn(None, async move {
            time.sleep(Duration::from_secs(n)).await;
            order.lock().unwrap().push(n);
        });
    }
    let handle = world.handle();
    let inner = world.block_on(async move {
        let time = handle.time().clone();
        let task = handle.spawn(None, async move {
            time.sleep(Duration::from_secs(10)).await;
            time.now()
        });
        handle.note("half way");
        task.await
    });
    assert_eq!(inner, Some(Nanos(10_000_000_000)));
    assert_eq!(*order.lock().unwrap(), [1, 2, 3]);
    assert!(world.trace_lines(100).iter().any(|l| l.contains("half way")));
    assert!(!world.run_until(Nanos(20_000_000_000), |_| false));
    assert_eq!(world.now(), Nanos(20_000_000_000));
}

#[test]
#[should_panic(expected = "seed 77: the future did not end")]
fn a_future_that_never_ends_is_reported_with_the_seed() {
    SimWorld::<()>::new(77).block_on(std::future::pending::<()>());
}

#[test]
fn planted_faults_are_seen_by_the_cores() {
    let mut w = ToyWorld::new(1, &[1], false);
    let planted = Arc::new(Mutex::new(Vec::new()));
    struct Looks(Arc<Mutex<Vec<bool>>>);
    impl SimCore<Mail> for Looks {
        fn run_once(&mut self, env: &mut SimEnv<Mail>, _: Nanos) -> Nanos {
            let seen = [Planted::DoubleReply, Planted::SettleTwice].map(|p| env.planted(p));
            self.0.lock().unwrap().extend(seen);
            Nanos::MAX
        }
    }
    let seen = planted.clone();
    w.world.plant(Planted::SettleTwice);
    w.world.add_node(NodeSpec::new("looks", 1), move |_| {
        Ok(Built::new(vec![Box::new(Looks(seen.clone()))]))
    });
    w.secs(1);
    assert_eq!(*planted.lock().unwrap(), [false, true]);
}

/// A run with everything in it.
fn busy_run(seed: u64, plan_seed: u64) -> (u128, u64) {
    let mut w = ToyWorld::new(seed, &[1, 2], false);
    let node = w.add(NodeSpec::new("kept", 3).with_lease(LEASE, RENEW), true);
    let scope = FaultScope {
        cores: vec![1, 2, 3],
        from: Nanos(1_000_000_000),
        to: Nanos(50_000_000_000),
        lease: LEASE,
        every: Duration::from_secs(5),
    };
    let classes = FaultClasses { swarm: false, ..FaultClasses::all() };
    let mut plan = FaultPlan::seeded(plan_seed, classes, &scope);
    plan.rates.jump_per_million = 100;
    w.world.set_plan(plan);
    for round in 0..60u64 {
        for (from, to) in [(0u16, 1u16), (1, 2), (2, 0)] {
            if w.world.is_up(NodeIx(from)) {
                w.dial(from, to, vec![vec![(round % 2) as u8; 900]; 40], Some(round % 3 == 0));
                w.post(from, 0, Mail::Ask(put(&format!("k{round}"), None)));
            }
        }
        w.secs(1);
    }
    assert!(w.world.is_up(node), "calm at the end");
    (w.world.trace_hash(), w.world.step_count())
}

#[test]
fn a_seed_reproduces_its_run() {
    let first = busy_run(11, 5);
    assert_eq!(first, busy_run(11, 5));
    assert_ne!(first.0, busy_run(12, 5).0);
    assert_ne!(first.0, busy_run(11, 6).0);
    assert!(first.1 > 5_000, "{first:?}");
}

#[test]
fn authority_rows_that_reach_the_store_are_in_the_history() {
    use crate::ids::{AuthorityOwnerGeneration, MeshName, NodeRid, ObjectGeneration, ObjectKind};
    use crate::store::leases::Started;
    use crate::store::records::{
        Authority, AuthorityState, authority_key, commit_ready, delete_row, reserve_creating,
    };
    let mut w = ToyWorld::new(2, &[], false);
    let started: Arc<Mutex<Option<Box<Started>>>> = Arc::default();
    let (log, door, keep) = (w.log.clone(), Door::default(), started.clone());
    w.doors.push(door.clone());
    let node = w.world.add_node(NodeSpec::new("owner", 1).with_lease(LEASE, RENEW), move |start| {
        door.lock().unwrap().push(start.poster.clone());
        *keep.lock().unwrap() = start.started;
        Ok(Built::new(vec![Box::new(Toy::new(log.clone(), false))]))
    });
    w.secs(1);
    let started = started.lock().unwrap().take().expect("the lease was taken first");
    let mut row = Authority {
        state: AuthorityState::Creating { attempt: 1 },
        type_name: "t".into(),
        object_generation: ObjectGeneration::new(77).unwrap(),
        authority_owner_generation: AuthorityOwnerGeneration::FIRST,
        mesh: MeshName::new("m").unwrap(),
        rid: NodeRid::new("owner").unwrap(),
        node_generation: started.node_generation,
        owner_lease_generation: started.owner_lease_generation,
        spot: None,
    };
    let key = authority_key(ObjectKind::Actor, "x");
    let commit = |w: &mut ToyWorld, batch: Batch| {
        w.post(0, 0, Mail::Ask(StoreOp::Commit(batch)));
        w.secs(1);
        match w.log.with(|l| l.answers.pop()) {
            Some((_, StoreAnswer::Commit(BatchOutcome::Committed(versions)))) => versions[0],
            other => panic!("{other:?}"),
        }
    };
    let owners = |w: &ToyWorld| {
        w.world.history().with(|h| {
            assert_eq!(h.objects, ["x"]);
            h.authorities.iter().map(|a| a.owner).collect::<Vec<_>>()
        })
    };
    let reserved = commit(&mut w, reserve_creating(key.clone(), &row, &started.owner));
    assert_eq!(owners(&w), [], "a reservation makes no owner");
    row.state = AuthorityState::Ready;
    let ready = commit(&mut w, commit_ready(key.clone(), reserved, &row, &started.owner));
    let life = w.world.life(node);
    assert_eq!(owners(&w), [Some((77, 1, life))]);
    commit(&mut w, delete_row(key, ready, &started.owner));
    assert_eq!(owners(&w), [Some((77, 1, life)), None]);
    assert_eq!(w.world.history().with(|h| h.removals.len()), 1);
}
