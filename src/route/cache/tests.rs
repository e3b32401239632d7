#![forbid(unsafe_code)]

use proptest::prelude::*;

use super::*;
use crate::ids::{
    AuthorityOwnerGeneration, MeshName, NodeGeneration, ObjectGeneration, ObjectKind,
};

const SEC: u64 = 1_000_000_000;

fn secs(s: u64) -> Duration {
    Duration::from_secs(s)
}

fn key(id: &str) -> ObjectKey {
    ObjectKey::new(3, ObjectKind::Actor, id).unwrap()
}

fn node(rid: &str, generation: u64, deadline_s: u64) -> NodeEntry {
    NodeEntry {
        rid: NodeRid::new(rid).unwrap(),
        node_generation: NodeGeneration::new(generation).unwrap(),
        lease_generation: OwnerLeaseGeneration::new(generation).unwrap(),
        admission_deadline: Nanos(deadline_s * SEC),
        mesh: MeshName::new("m").unwrap(),
        endpoint: "tcp://127.0.0.1:1".parse().unwrap(),
        key_id: 7,
        message_follow_duration: None,
    }
}

fn route(id: &str, rid: &str, node_generation: u64, tenure: (u64, u64), version: u64) -> Route {
    Route {
        key: key(id),
        mesh: MeshName::new("m").unwrap(),
        fence: RouteFence {
            object_generation: ObjectGeneration::new(tenure.0).unwrap(),
            rid: NodeRid::new(rid).unwrap(),
            node_generation: NodeGeneration::new(node_generation).unwrap(),
            authority_owner_generation: AuthorityOwnerGeneration::new(tenure.1).unwrap(),
            owner_lease_generation: OwnerLeaseGeneration::new(node_generation).unwrap(),
        },
        store_version: StoreVersion::new(version).unwrap(),
    }
}

fn lifetimes(max_age_s: u64, follow_s: u64) -> RouteLifetimes {
    RouteLifetimes { max_age: secs(max_age_s), follow_duration: secs(follow_s) }
}

/// A cache that knows nodes `a` (generation 1) and `b` (generation 2), leases alive to 1,000 s.
fn cache(max_age_s: u64, follow_s: u64) -> RouteCache {
    let mut cache = RouteCache::new(1024, lifetimes(max_age_s, follow_s));
    cache.see_node(node("a", 1, 1000));
    cache.see_node(node("b", 2, 1000));
    cache
}

/// Proves R2.2-1, R2.2-2.
#[test]
fn usable_until_the_earlier_of_age_and_lease() {
    let mut cache = cache(15, 30);
    let r = route("x", "a", 1, (1, 1), 10);
    assert_eq!(cache.insert(r.clone(), Nanos(0)), InsertOutcome::Inserted);
    assert_eq!(cache.lookup(&r.key, Nanos(15 * SEC - 1)), Some(&r));
    assert_eq!(cache.lookup(&r.key, Nanos(15 * SEC)), None);
    assert_eq!(cache.len(), 0, "an entry that ended is gone");

    let mut cache = RouteCache::new(64, lifetimes(15, 30));
    cache.see_node(node("a", 1, 4));
    cache.insert(r.clone(), Nanos(0));
    assert!(cache.lookup(&r.key, Nanos(4 * SEC - 1)).is_some());
    let a = NodeRid::new("a").unwrap();
    cache.nodes_mut().renew(&a, OwnerLeaseGeneration::new(1).unwrap(), Nanos(8 * SEC));
    assert!(cache.lookup(&r.key, Nanos(5 * SEC)).is_some(), "a renewal reaches every route");
    assert!(cache.lookup(&r.key, Nanos(8 * SEC)).is_none());
    let c = cache.counters();
    assert_eq!((c.hits, c.misses, c.inserts, c.removals), (2, 1, 1, 1));
}

/// Proves R2.2-4.
#[test]
fn a_smaller_version_never_replaces_a_larger_one() {
    let mut cache = cache(15, 30);
    let newer = route("x", "b", 2, (1, 2), 11);
    cache.insert(newer.clone(), Nanos(0));
    assert_eq!(cache.insert(route("x", "a", 1, (1, 1), 10), Nanos(1)), InsertOutcome::Older);
    assert_eq!(cache.peek(&newer.key, Nanos(1)), Some(&newer));
    assert!(!cache.see_version(&newer.key, StoreVersion::new(11).unwrap()));
    assert!(cache.see_version(&newer.key, StoreVersion::new(12).unwrap()));
    assert_eq!(cache.peek(&newer.key, Nanos(1)), None);
}

/// Proves R2.2-4.
#[test]
fn a_stale_result_drops_what_it_is_about_or_older_and_keeps_a_newer_route() {
    let mut cache = cache(15, 30);
    let new = route("x", "b", 2, (7, 2), 11);
    let old = route("x", "a", 1, (7, 1), 10);
    cache.insert(new.clone(), Nanos(0));
    assert!(!cache.remove_stale(&new.key, &old.fence), "the newer route survives");
    assert!(cache.remove_stale(&new.key, &new.fence));
    cache.insert(old.clone(), Nanos(0));
    assert!(cache.remove_stale(&new.key, &new.fence), "an older one does not");
    // A new incarnation starts its tenures from 1 and is newer all the same.
    let reborn = route("x", "a", 1, (9, 1), 20);
    cache.insert(reborn.clone(), Nanos(0));
    assert!(!cache.remove_stale(&new.key, &new.fence));
    assert_eq!(cache.peek(&reborn.key, Nanos(0)), Some(&reborn));
}

/// Proves R2.5-10.
#[test]
fn a_notice_drops_only_the_entry_it_names() {
    let mut cache = cache(15, 30);
    let r = route("x", "a", 1, (7, 2), 11);
    let others = [
        route("x", "b", 1, (7, 2), 11),
        route("x", "a", 2, (7, 2), 11),
        route("x", "a", 1, (8, 2), 11),
        route("x", "a", 1, (7, 3), 11),
        route("x", "a", 1, (7, 1), 11),
    ];
    cache.insert(r.clone(), Nanos(0));
    for other in &others {
        assert!(!cache.remove_if_matches(&r.key, &other.fence), "{other:?}");
    }
    assert!(!cache.remove_if_matches(&key("y"), &r.fence));
    assert!(cache.remove_if_matches(&r.key, &r.fence));
    assert!(!cache.remove_if_matches(&r.key, &r.fence));
}

/// Proves R2.2-4.
#[test]
fn an_invalidated_lease_ends_its_routes_for_good_and_no_others() {
    let mut cache = cache(15, 30);
    let (x, y) = (route("x", "a", 1, (1, 1), 1), route("y", "b", 2, (2, 1), 2));
    cache.insert(x.clone(), Nanos(0));
    cache.insert(y.clone(), Nanos(0));
    let a = NodeRid::new("a").unwrap();
    assert!(cache.invalidate_lease(&a, OwnerLeaseGeneration::new(1).unwrap()));
    assert_eq!(cache.peek(&x.key, Nanos(1)), None);
    assert_eq!(cache.peek(&y.key, Nanos(1)), Some(&y));
    cache.see_node(node("a", 1, 2000));
    assert_eq!(cache.lookup(&x.key, Nanos(1)), None, "renewed later, read again first");
    assert_eq!(cache.insert(x.clone(), Nanos(2)), InsertOutcome::Inserted);
}

/// Proves R2.2-4.
#[test]
fn a_new_lifecycle_of_the_owner_ends_its_routes() {
    let mut cache = cache(15, 30);
    let x = route("x", "a", 1, (1, 1), 1);
    cache.insert(x.clone(), Nanos(0));
    cache.see_node(node("a", 8, 2000));
    assert_eq!(cache.peek(&x.key, Nanos(1)), None);
    assert_eq!(cache.insert(x, Nanos(1)), InsertOutcome::OwnerUnknown);
}

/// Proves R2.2-4.
#[test]
fn a_store_recovery_drops_everything() {
    let mut cache = cache(15, 30);
    for i in 0..50 {
        cache.insert(route(&format!("x{i}"), "a", 1, (1, 1), 1), Nanos(0));
    }
    cache.clear();
    assert!(cache.is_empty());
    assert!((0..50).all(|i| cache.peek(&key(&format!("x{i}")), Nanos(0)).is_none()));
}

/// Proves R2.2-5.
#[test]
fn a_changed_age_governs_later_entries_only() {
    let mut cache = cache(10, 0);
    let (x, y) = (route("x", "a", 1, (1, 1), 1), route("y", "a", 1, (2, 1), 2));
    cache.insert(x.clone(), Nanos(0));
    cache.set_max_age(secs(100)).unwrap();
    cache.insert(y.clone(), Nanos(0));
    assert_eq!(cache.peek(&x.key, Nanos(10 * SEC)), None);
    assert!(cache.peek(&y.key, Nanos(99 * SEC)).is_some());
    cache.set_max_age(secs(0)).unwrap();
    assert!(cache.peek(&y.key, Nanos(99 * SEC)).is_some());
    assert_eq!(cache.insert(x, Nanos(99 * SEC)), InsertOutcome::Off);
}

/// Proves R2.2-6.
#[test]
fn a_lower_follow_duration_shortens_or_drops_entries_that_stand() {
    let mut cache = cache(15, 0);
    let (x, y) = (route("x", "a", 1, (1, 1), 1), route("y", "a", 1, (2, 1), 2));
    cache.insert(x.clone(), Nanos(0));
    cache.insert(y.clone(), Nanos(9 * SEC));
    cache.set_max_age(secs(3)).unwrap();
    cache.set_follow_duration(secs(8), Nanos(10 * SEC)).unwrap();
    assert_eq!(cache.len(), 1, "x is older than the new duration");
    assert!(cache.peek(&y.key, Nanos(17 * SEC - 1)).is_some());
    assert_eq!(cache.peek(&y.key, Nanos(17 * SEC)), None);
    // Raising it again lengthens nothing that stands.
    cache.set_follow_duration(secs(300), Nanos(10 * SEC)).unwrap();
    assert_eq!(cache.peek(&y.key, Nanos(17 * SEC)), None);
}

/// Proves R0-7.
#[test]
fn the_pair_is_checked_and_a_refused_change_changes_nothing() {
    for (age, follow, good) in [
        (15, 30, true),
        (25, 30, true),
        (26, 30, false),
        (30, 30, false),
        (0, 1, true),
        (9, 0, true),
    ] {
        let l = lifetimes(age, follow);
        assert_eq!(l.check().is_ok(), good, "{l:?}");
    }
    let e = lifetimes(26, 30).check().unwrap_err();
    assert_eq!(e.kind(), crate::ErrorKind::NotConfigured);
    assert!(e.text().contains("route_cache_max_age is 26s"), "{e}");
    let mut cache = cache(15, 30);
    let before = cache.clone();
    assert!(cache.set_max_age(secs(26)).is_err());
    assert!(cache.set_follow_duration(secs(19), Nanos(0)).is_err());
    assert_eq!(cache, before);
}

/// Proves R0-7.
#[test]
fn a_route_never_outlives_the_peers_follow_duration_less_the_gap() {
    let mut cache = cache(15, 30);
    let x = route("x", "a", 1, (1, 1), 1);
    let a = NodeRid::new("a").unwrap();
    let generation = NodeGeneration::new(1).unwrap();
    cache.insert(x.clone(), Nanos(0));
    cache.nodes_mut().set_follow_duration(&a, generation, secs(9));
    assert!(cache.peek(&x.key, Nanos(4 * SEC - 1)).is_some());
    assert!(cache.peek(&x.key, Nanos(4 * SEC)).is_none());
    cache.nodes_mut().set_follow_duration(&a, generation, secs(5));
    assert_eq!(cache.insert(x.clone(), Nanos(0)), InsertOutcome::NoLife);
    cache.nodes_mut().set_follow_duration(&a, generation, secs(0));
    assert_eq!(cache.insert(x, Nanos(0)), InsertOutcome::Inserted);
}

/// Proves R2.2-3.
#[test]
fn a_route_to_an_owner_without_a_standing_lease_is_not_cached() {
    let mut cache = cache(15, 30);
    assert_eq!(cache.insert(route("x", "c", 1, (1, 1), 1), Nanos(0)), InsertOutcome::OwnerUnknown);
    assert_eq!(
        cache.insert(route("x", "a", 1, (1, 1), 1), Nanos(1000 * SEC)),
        InsertOutcome::OwnerUnknown
    );
    assert!(cache.is_empty());
}

#[test]
fn capacity_is_a_power_of_two_of_sets() {
    for (asked, got) in [(0, 4), (3, 4), (4, 4), (9, 8), (65_536, 65_536), (65_535, 32_768)] {
        assert_eq!(RouteCache::new(asked, RouteLifetimes::default()).capacity(), got, "{asked}");
    }
}

#[test]
fn a_full_set_gives_up_what_ends_first_and_the_dead_before_that() {
    let mut cache = RouteCache::new(4, lifetimes(15, 30));
    cache.see_node(node("a", 1, 1000));
    cache.see_node(node("b", 2, 8));
    for i in 0..4u64 {
        cache.insert(route(&format!("x{i}"), "a", 1, (1, 1), 1), Nanos(i));
    }
    cache.insert(route("y", "b", 2, (1, 1), 1), Nanos(5));
    assert!(cache.peek(&key("x0"), Nanos(5)).is_none());
    // The lease of b has ended: y goes although x1 ends earlier by age.
    cache.insert(route("z", "a", 1, (1, 1), 1), Nanos(9 * SEC));
    assert!(cache.peek(&key("x1"), Nanos(9 * SEC)).is_some());
    assert_eq!((cache.len(), cache.counters().evictions), (4, 2));
}

#[derive(Clone, Debug)]
enum Step {
    Insert { id: u8, owner: u8, tenure: u64, version: u64 },
    See { id: u8, version: u64 },
    Stale { id: u8, tenure: u64 },
    Lease { owner: u8 },
    Renew { owner: u8, by_s: u64 },
    Age { s: u64 },
    Follow { s: u64 },
    Clear,
    Pass { s: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..12u8, 0..2u8, 1..5u64, 1..40u64)
            .prop_map(|(id, owner, tenure, version)| Step::Insert { id, owner, tenure, version }),
        2 => (0..12u8, 1..40u64).prop_map(|(id, version)| Step::See { id, version }),
        2 => (0..12u8, 1..5u64).prop_map(|(id, tenure)| Step::Stale { id, tenure }),
        1 => (0..2u8).prop_map(|owner| Step::Lease { owner }),
        2 => (0..2u8, 0..30u64).prop_map(|(owner, by_s)| Step::Renew { owner, by_s }),
        1 => (0..40u64).prop_map(|s| Step::Age { s }),
        1 => (0..60u64).prop_map(|s| Step::Follow { s }),
        1 => Just(Step::Clear),
        4 => (0..6u64).prop_map(|s| Step::Pass { s }),
    ]
}

/// What an unbounded, obvious cache would hold.
#[derive(Default)]
struct Model {
    entries: std::collections::BTreeMap<u8, (Route, u64, u64)>,
    leases: [u64; 2],
}

proptest! {
    /// Proves R2.2-2, R2.2-4, R2.2-5, R2.2-6.
    ///
    /// Whatever the cache hands out, the obvious cache would hand out too; and it holds what the
    /// obvious one holds unless the set was full.
    #[test]
    fn never_more_than_the_obvious_cache(steps in proptest::collection::vec(step(), 1..120)) {
        let mut cache = RouteCache::new(16, lifetimes(15, 30));
        let mut model = Model { leases: [100, 100], ..Model::default() };
        cache.see_node(node("a", 1, 100));
        cache.see_node(node("b", 2, 100));
        let rids = ["a", "b"];
        let mut now = 0u64;
        let mut lifetimes = (15u64, 30u64);
        for step in steps {
            match step {
                Step::Insert { id, owner, tenure, version } => {
                    let r = route(&format!("o{id}"), rids[owner as usize],
                        u64::from(owner) + 1, (1, tenure), version);
                    let outcome = cache.insert(r.clone(), Nanos(now * SEC));
                    let newer = cache.peek(&r.key, Nanos(now * SEC))
                        .is_some_and(|s| s.store_version > r.store_version);
                    prop_assert_eq!(outcome == InsertOutcome::Inserted,
                        lifetimes.0 > 0 && model.leases[owner as usize] > now && !newer
                        && outcome != InsertOutcome::Older);
                    if outcome == InsertOutcome::Inserted {
                        let life = if lifetimes.1 == 0 { lifetimes.0 }
                            else { lifetimes.0.min(lifetimes.1) };
                        model.entries.insert(id, (r, now, now + life));
                    }
                }
                Step::See { id, version } => {
                    cache.see_version(&key(&format!("o{id}")), StoreVersion::new(version).unwrap());
                    model.entries.retain(|k, e| *k != id || e.0.store_version.get() >= version);
                }
                Step::Stale { id, tenure } => {
                    let f = route("o", "a", 1, (1, tenure), 1).fence;
                    cache.remove_stale(&key(&format!("o{id}")), &f);
                    model.entries.retain(|k, e| *k != id
                        || e.0.fence.authority_owner_generation.get() > tenure);
                }
                Step::Lease { owner } => {
                    let rid = NodeRid::new(rids[owner as usize]).unwrap();
                    let generation = OwnerLeaseGeneration::new(u64::from(owner) + 1).unwrap();
                    cache.invalidate_lease(&rid, generation);
                    model.leases[owner as usize] = 0;
                    model.entries.retain(|_, e| e.0.fence.rid != rid);
                }
                Step::Renew { owner, by_s } => {
                    cache.see_node(node(rids[owner as usize], u64::from(owner) + 1, now + by_s));
                    let lease = &mut model.leases[owner as usize];
                    *lease = (*lease).max(now + by_s);
                }
                Step::Age { s } => {
                    if cache.set_max_age(secs(s)).is_ok() { lifetimes.0 = s; }
                }
                Step::Follow { s } => {
                    if cache.set_follow_duration(secs(s), Nanos(now * SEC)).is_ok() {
                        lifetimes.1 = s;
                        if s > 0 {
                            model.entries.values_mut().for_each(|e| e.2 = e.2.min(e.1 + s));
                        }
                    }
                }
                Step::Clear => { cache.clear(); model.entries.clear(); }
                Step::Pass { s } => now += s,
            }
            prop_assert!(cache.len() <= cache.capacity());
            prop_assert_eq!(cache.len(), cache.sets.iter().map(Vec::len).sum::<usize>());
            for id in 0..12u8 {
                let seen = cache.peek(&key(&format!("o{id}")), Nanos(now * SEC));
                let owner_alive = |r: &Route| {
                    model.leases[usize::from(r.fence.rid.as_bytes() == b"b")] > now
                };
                let expected = model.entries.get(&id)
                    .filter(|e| now < e.2 && owner_alive(&e.0)).map(|e| &e.0);
                match (seen, expected) {
                    (Some(a), b) => prop_assert_eq!(Some(a), b),
                    (None, Some(_)) => prop_assert!(cache.counters().evictions > 0),
                    (None, None) => {}
                }
            }
        }
    }
}
