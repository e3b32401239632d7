#![forbid(unsafe_code)]
//! Keeping the lease, losing it, giving it back.

use super::*;

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
