#![forbid(unsafe_code)]
//! A region, and routes of which every number can be told from one: a torn one shows.

use std::time::Duration;

use homing::ids::{
    AuthorityOwnerGeneration, MeshName, NodeGeneration, NodeRid, ObjectGeneration, ObjectKey,
    ObjectKind, OwnerLeaseGeneration, RouteFence, StoreVersion,
};
use homing::layout::RegionSizes;
use homing::route::{NodeEntry, Route, RouteLifetimes, RouteReader, SeenRoute, SharedRouteCache};
use homing::shm::{CounterSpec, ProcessIdentity, Region, RegionIdentity, RegionSpec};
use homing::time::Nanos;

pub(crate) const SEED: u64 = 77;
/// All of it happens at one instant, long before any deadline.
pub(crate) const NOW: Nanos = Nanos(1);

/// One set of four, for six ids of which three need a block; two blocks.
pub(crate) const SIZES: RegionSizes = RegionSizes {
    core_count: 1,
    routes_per_core: 4,
    arena_blocks_per_core: 2,
    node_rows_per_core: 4,
    counter_count: 0,
};

pub(crate) fn ids() -> Vec<String> {
    (0..6).map(|n| if n % 2 == 0 { format!("id-{n}") } else { format!("{n}").repeat(90) }).collect()
}

pub(crate) fn key(id: &str) -> ObjectKey {
    ObjectKey::new(SEED, ObjectKind::Actor, id).unwrap()
}

pub(crate) fn spec(sizes: RegionSizes) -> RegionSpec {
    RegionSpec {
        identity: RegionIdentity {
            mesh: MeshName::new("m").unwrap(),
            rid: NodeRid::new("here").unwrap(),
            node_generation: 1,
            hash_seed: SEED,
            process: ProcessIdentity::own().unwrap(),
            created_at: NOW,
        },
        sizes,
        counters: vec![
            CounterSpec { id: 1, label: "writes", unit: "" },
            CounterSpec { id: 2, label: "busy", unit: "ns" },
        ],
    }
}

/// The owner in its lifecycle `generation`: every number follows from that.
pub(crate) fn owner(generation: u64) -> NodeEntry {
    NodeEntry {
        rid: NodeRid::new("owner").unwrap(),
        node_generation: NodeGeneration::new(generation).unwrap(),
        lease_generation: OwnerLeaseGeneration::new(generation + 7).unwrap(),
        admission_deadline: Nanos(u64::MAX - generation),
        mesh: MeshName::new("m").unwrap(),
        endpoint: format!("tcp://127.0.0.1:{}", generation % 60_000 + 1).parse().unwrap(),
        key_id: u128::from(generation) << 64 | u128::from(!generation),
        message_follow_duration: Some(Duration::from_secs(1 << 30)),
    }
}

/// The route of `id` as the write number `n` makes it.
pub(crate) fn route(id: &str, generation: u64, n: u64) -> Route {
    Route {
        key: key(id),
        mesh: MeshName::new("m").unwrap(),
        fence: RouteFence {
            object_generation: ObjectGeneration::new(n).unwrap(),
            rid: NodeRid::new("owner").unwrap(),
            node_generation: NodeGeneration::new(generation).unwrap(),
            authority_owner_generation: AuthorityOwnerGeneration::new(n + 3).unwrap(),
            owner_lease_generation: OwnerLeaseGeneration::new(generation + 7).unwrap(),
        },
        store_version: StoreVersion::new(n + 5).unwrap(),
    }
}

pub(crate) fn lifetimes() -> RouteLifetimes {
    RouteLifetimes { max_age: Duration::from_secs(1 << 20), follow_duration: Duration::ZERO }
}

pub(crate) fn cache(region: &mut Region) -> SharedRouteCache {
    SharedRouteCache::over(region.take_shard(0).unwrap(), lifetimes())
}

/// Writes for ever, faster than anyone looks.
pub(crate) fn write_for_ever(cache: SharedRouteCache, first: u64) -> ! {
    write_while(cache, first, || true);
    unreachable!("the numbers do not run out")
}

/// Writes: write number `n` is of one of the ids; now and then the owner enters its next
/// lifecycle.
pub(crate) fn write_while(mut cache: SharedRouteCache, first: u64, goes_on: impl Fn() -> bool) {
    let ids = ids();
    for n in (first..).take_while(|_| goes_on()) {
        let generation = n / 32 + 1;
        cache.see_node(owner(generation));
        let id = &ids[(n % ids.len() as u64) as usize];
        cache.insert(route(id, generation, n), NOW);
        if n.is_multiple_of(7) {
            cache.remove(&key(&ids[(n / 7 % ids.len() as u64) as usize]));
        }
    }
}

/// Checks that a route is of one write, and of one lifecycle of its owner. Says of which write.
#[track_caller]
pub(crate) fn check(seen: &SeenRoute) -> u64 {
    let n = seen.object_generation.get();
    let generation = n / 32 + 1;
    let found = [
        seen.authority_owner_generation.get(),
        seen.store_version.get(),
        seen.node_generation.get(),
        seen.owner_lease_generation.get(),
        seen.admission_deadline.0,
        seen.expires_at.0,
    ];
    let whole = [
        n + 3,
        n + 5,
        generation,
        generation + 7,
        u64::MAX - generation,
        (NOW + lifetimes().max_age).0,
    ];
    assert_eq!(found, whole, "torn: {seen:?}");
    n
}

/// Checks what an inspector sees of a slot: the id has the hash that stands there. Says whether
/// there was something.
#[track_caller]
pub(crate) fn check_slot(reader: &RouteReader, ids: &[String], slot: usize) -> bool {
    let Some(seen) = reader.inspect(0, slot) else { return false };
    let id = ids.iter().find(|id| {
        let hash = key(id).object_hash();
        (hash.low(), hash.high()) == seen.hash
    });
    let id = id.unwrap_or_else(|| panic!("torn: no id has the hash of {seen:?}"));
    let shown = if seen.is_cut { &id[..48] } else { id };
    assert_eq!(seen.id, shown, "torn: {seen:?}");
    assert_eq!(seen.store_version, seen.object_generation + 5, "torn: {seen:?}");
    if let Some(node) = &seen.node {
        let generation = seen.object_generation / 32 + 1;
        let whole = owner(generation);
        assert_eq!(node.node_generation, whole.node_generation, "torn: {seen:?}");
        assert_eq!(node.endpoint, whole.endpoint.to_string(), "torn: {seen:?}");
        assert_eq!(node.key_id, whole.key_id, "torn: {seen:?}");
    }
    true
}
