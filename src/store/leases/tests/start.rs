#![forbid(unsafe_code)]
//! Taking the lease.

use super::*;

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
