#![forbid(unsafe_code)]
//! The tables in which the same ids are looked up.

use std::hash::{Hash, Hasher};
use std::time::Duration;

use homing::ids::{
    ActorId, AuthorityOwnerGeneration, FixedMap, MeshName, NodeGeneration, NodeRid,
    ObjectGeneration, ObjectHash, ObjectKey, OwnerLeaseGeneration, RouteFence, StoreVersion,
};
use homing::layout::RegionSizes;
use homing::route::{NodeEntry, Route, RouteCache, RouteLifetimes, SharedRouteCache};
use homing::shm::{Place, ProcessIdentity, Region, RegionIdentity, RegionSpec, RegionView};
use homing::time::Nanos;

use crate::support::samples::fold;

pub(crate) const SEED: u64 = 0x5eed;
pub(crate) const NOW: Nanos = Nanos(1_000_000_000);
/// Owners.
const NODES: u64 = 4;

/// A 128-bit hash as the key of a map: equal when all bits are, found by its high half.
#[derive(PartialEq, Eq)]
pub(crate) struct ByHash(pub(crate) ObjectHash);

impl Hash for ByHash {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0.high());
    }
}

/// What the maps keep: the same words, both deadlines in the entry itself.
#[derive(Clone, Copy)]
pub(crate) struct Plain {
    pub(crate) version: u64,
    pub(crate) expires_at: Nanos,
    pub(crate) admission_deadline: Nanos,
}

pub(crate) struct Tables {
    pub(crate) view: RegionView,
    pub(crate) cache: SharedRouteCache,
    /// The floor: whatever looks routes up has to do this much.
    pub(crate) by_hash: FixedMap<ByHash, Plain>,
    /// Compares whole ids, as the core-local form does.
    pub(crate) by_key: FixedMap<ObjectKey, Plain>,
    /// Every id that is in all of them, in an order that no cache foresees.
    pub(crate) keys: Vec<ObjectKey>,
}

impl Tables {
    pub(crate) fn fill(size: usize) -> Self {
        let (mut cache, view) = shared(size);
        for node in 0..NODES {
            cache.see_node(node_entry(node));
        }
        let mut keys: Vec<ObjectKey> = (0..size).map(key_of).collect();
        for key in &keys {
            let _ = cache.insert(route_of(key), NOW);
        }
        // A full set gave an entry up here and there; only what stands is looked up.
        keys.retain(|key| cache.peek(key, NOW).is_some());
        let mut state = SEED;
        for last in (1..keys.len()).rev() {
            state = fold(state, last as u64);
            keys.swap(last, (state % (last as u64 + 1)) as usize);
        }
        let end = NOW + Duration::from_secs(10);
        let plain = |key: &ObjectKey| Plain {
            version: version_of(key),
            expires_at: end,
            admission_deadline: end,
        };
        let by_hash = keys.iter().map(|key| (ByHash(key.object_hash()), plain(key))).collect();
        let by_key = keys.iter().map(|key| (key.clone(), plain(key))).collect();
        Self { view, cache, by_hash, by_key, keys }
    }
}

/// A shared cache in a memfd, as a node has it, half full once `size` routes are in it.
fn shared(size: usize) -> (SharedRouteCache, RegionView) {
    let spec = RegionSpec {
        identity: RegionIdentity {
            mesh: mesh(),
            rid: NodeRid::new("bench").expect("a rid"),
            node_generation: 1,
            hash_seed: SEED,
            process: ProcessIdentity::own().expect("this process"),
            created_at: NOW,
        },
        sizes: RegionSizes::of_node(1, (2 * size).next_power_of_two()),
        counters: Vec::new(),
    };
    let mut region = Region::create(&spec, Place::Memfd, &mut |_| ()).expect("a region");
    let shard = region.take_shard(0).expect("the only shard");
    (SharedRouteCache::over(shard, lifetimes()), region.view())
}

/// A core-local cache with the same routes.
pub(crate) fn local(keys: &[ObjectKey]) -> RouteCache {
    let mut cache = RouteCache::new((2 * keys.len()).next_power_of_two(), lifetimes());
    for node in 0..NODES {
        cache.see_node(node_entry(node));
    }
    for key in keys {
        let _ = cache.insert(route_of(key), NOW);
    }
    cache
}

fn lifetimes() -> RouteLifetimes {
    RouteLifetimes { max_age: Duration::from_secs(15), follow_duration: Duration::from_secs(30) }
}

fn mesh() -> MeshName {
    MeshName::new("bench").expect("a name")
}

fn key_of(number: usize) -> ObjectKey {
    let id = ActorId::new(format!("player-{number:012}")).expect("an id");
    ObjectKey::actor(SEED, &id)
}

/// Different for every id, and never zero.
fn version_of(key: &ObjectKey) -> u64 {
    (key.object_hash().low() >> 2) | 1
}

pub(crate) fn route_of(key: &ObjectKey) -> Route {
    let node = node_entry(key.object_hash().low() % NODES);
    Route {
        key: key.clone(),
        mesh: node.mesh,
        fence: RouteFence {
            object_generation: ObjectGeneration::FIRST,
            rid: node.rid,
            node_generation: node.node_generation,
            authority_owner_generation: AuthorityOwnerGeneration::FIRST,
            owner_lease_generation: node.lease_generation,
        },
        store_version: StoreVersion::new(version_of(key)).expect("not zero"),
    }
}

fn node_entry(number: u64) -> NodeEntry {
    NodeEntry {
        rid: NodeRid::new(format!("node-{number:016x}")).expect("a rid"),
        node_generation: NodeGeneration::new(number + 1).expect("not zero"),
        lease_generation: OwnerLeaseGeneration::new(number + 1).expect("not zero"),
        admission_deadline: NOW + Duration::from_secs(10),
        mesh: mesh(),
        endpoint: "tcp://127.0.0.1:1".parse().expect("an endpoint"),
        key_id: 1,
        message_follow_duration: Some(Duration::from_secs(30)),
    }
}
