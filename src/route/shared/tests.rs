#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::ids::{NodeGeneration, ObjectKind};
use crate::route::RouteCache;
use crate::shm::RegionView;

const SEC: u64 = 1_000_000_000;
const SEED: u64 = 3;

fn secs(s: u64) -> Duration {
    Duration::from_secs(s)
}

fn key(id: &str) -> ObjectKey {
    ObjectKey::new(SEED, ObjectKind::Actor, id).unwrap()
}

fn node(rid: &str, generation: u64, deadline: Nanos) -> NodeEntry {
    NodeEntry {
        rid: NodeRid::new(rid).unwrap(),
        node_generation: NodeGeneration::new(generation).unwrap(),
        lease_generation: OwnerLeaseGeneration::new(generation + 100).unwrap(),
        admission_deadline: deadline,
        mesh: MeshName::new("m").unwrap(),
        endpoint: "tcp://127.0.0.1:1".parse().unwrap(),
        key_id: 7 << 100 | 9,
        message_follow_duration: None,
    }
}

fn route(key: &ObjectKey, rid: &str, generation: u64, tenure: (u64, u64), version: u64) -> Route {
    Route {
        key: key.clone(),
        mesh: MeshName::new("m").unwrap(),
        fence: RouteFence {
            object_generation: ObjectGeneration::new(tenure.0).unwrap(),
            rid: NodeRid::new(rid).unwrap(),
            node_generation: NodeGeneration::new(generation).unwrap(),
            authority_owner_generation: AuthorityOwnerGeneration::new(tenure.1).unwrap(),
            owner_lease_generation: OwnerLeaseGeneration::new(generation + 100).unwrap(),
        },
        store_version: StoreVersion::new(version).unwrap(),
    }
}

fn lifetimes(max_age_s: u64, follow_s: u64) -> RouteLifetimes {
    RouteLifetimes { max_age: secs(max_age_s), follow_duration: secs(follow_s) }
}

fn spec(sizes: RegionSizes) -> RegionSpec {
    RegionSpec {
        identity: RegionIdentity {
            mesh: MeshName::new("m").unwrap(),
            rid: NodeRid::new("here").unwrap(),
            node_generation: 1,
            hash_seed: SEED,
            process: ProcessIdentity { pid: 1, start_time_ticks: 2, boot_id: [3; 16] },
            created_at: Nanos(4),
        },
        sizes,
        counters: Vec::new(),
    }
}

fn cache_and_view(sizes: RegionSizes, lifetimes: RouteLifetimes) -> (SharedRouteCache, RegionView) {
    let mut region = Region::create(&spec(sizes), Place::Private, &mut |_| ()).unwrap();
    let cache = SharedRouteCache::over(region.take_shard(0).unwrap(), lifetimes);
    assert!(region.take_shard(0).is_none(), "one writer");
    (cache, region.view())
}

const SMALL: RegionSizes = RegionSizes {
    core_count: 1,
    routes_per_core: 16,
    arena_blocks_per_core: 2,
    node_rows_per_core: 2,
    counter_count: 0,
};

/// Node `a`, generation 1, alive to 1,000 s, and a cache over a region.
fn small() -> (SharedRouteCache, RouteReader) {
    let (mut cache, view) = cache_and_view(SMALL, lifetimes(15, 30));
    cache.see_node(node("a", 1, Nanos(1000 * SEC)));
    (cache, RouteReader::new(&view))
}

/// Proves R2.2-1, R2.2-2.
#[test]
fn a_reader_sees_what_the_home_core_sees_until_either_deadline() {
    let (mut cache, mut reader) = small();
    let r = route(&key("x"), "a", 1, (5, 6), 10);
    assert_eq!(reader.lookup(ObjectKind::Actor, "x", Nanos(0)), None);
    assert_eq!(cache.insert(r.clone(), Nanos(0)), InsertOutcome::Inserted);
    let seen = reader.lookup(ObjectKind::Actor, "x", Nanos(15 * SEC - 1)).unwrap();
    assert_eq!(reader.fence(&seen), Some(r.fence.clone()));
    assert_eq!((seen.store_version, seen.expires_at), (r.store_version, Nanos(15 * SEC)));
    assert_eq!(cache.lookup(&r.key, Nanos(15 * SEC - 1)), Some(r.clone()));
    assert_eq!(reader.lookup(ObjectKind::Actor, "x", Nanos(15 * SEC)), None);
    assert_eq!(reader.lookup(ObjectKind::Spot, "x", Nanos(0)), None, "kinds are apart");
    assert_eq!(cache.lookup(&r.key, Nanos(15 * SEC)), None);
    assert!(cache.is_empty(), "an entry that ended is gone");
}

/// Proves R2.2-2, R2.2-4.
#[test]
fn a_lease_ends_and_is_renewed_for_all_its_routes_at_once() {
    let (mut cache, mut reader) = small();
    cache.see_node(node("b", 2, Nanos(4 * SEC)));
    for id in ["x", "y"] {
        cache.insert(route(&key(id), "b", 2, (5, 6), 10), Nanos(0));
    }
    let both = |reader: &RouteReader, now| {
        ["x", "y"].map(|id| reader.lookup(ObjectKind::Actor, id, Nanos(now)).is_some())
    };
    assert_eq!(both(&reader, 4 * SEC - 1), [true; 2]);
    assert_eq!(both(&reader, 4 * SEC), [false; 2]);
    let (rid, lease) = (NodeRid::new("b").unwrap(), OwnerLeaseGeneration::new(102).unwrap());
    assert!(cache.nodes_mut().renew(&rid, lease, Nanos(8 * SEC)));
    assert_eq!(both(&reader, 5 * SEC), [true; 2]);
    let seen = reader.lookup(ObjectKind::Actor, "x", Nanos(5 * SEC)).unwrap();
    assert!(cache.invalidate_lease(&rid, lease));
    assert_eq!(both(&reader, 5 * SEC), [false; 2]);
    assert_eq!(reader.fence(&seen), None, "a route outlives no lifecycle");
    // The same lifecycle comes back into the same row: routes of before stay dead.
    cache.see_node(node("b", 2, Nanos(9 * SEC)));
    assert_eq!(both(&reader, 5 * SEC), [false; 2]);
    assert_eq!(reader.node(&seen), None);
}

/// Proves R0-7.
#[test]
fn a_peers_follow_duration_ends_a_route_for_readers_too() {
    let (mut cache, reader) = small();
    cache.insert(route(&key("x"), "a", 1, (5, 6), 10), Nanos(0));
    let (rid, generation) = (NodeRid::new("a").unwrap(), NodeGeneration::new(1).unwrap());
    let usable = |now| reader.lookup(ObjectKind::Actor, "x", Nanos(now)).is_some();
    for (follow_s, end_s) in [(9, 4), (300, 15), (5, 0), (0, 15)] {
        assert!(cache.nodes_mut().set_follow_duration(&rid, generation, secs(follow_s)));
        assert!(end_s == 0 || usable(end_s * SEC - 1), "{follow_s}");
        assert!(!usable(end_s * SEC), "{follow_s}");
        assert_eq!(cache.peek(&key("x"), Nanos(end_s * SEC)), None, "{follow_s}");
    }
}

/// An id is in the cold line; a long one needs a block, which goes from route to route.
#[test]
fn an_inspector_sees_ids_of_any_length_while_there_are_blocks() {
    let (mut cache, reader) = small();
    let ids =
        [48, 49, 255, 100].map(|len| "ä".repeat(len)[..len & !1].to_owned() + &"z"[..len & 1]);
    for (n, id) in ids.iter().enumerate() {
        cache.insert(route(&key(id), "a", 1, (5, 6), 10), Nanos(n as u64));
    }
    let seen = |reader: &RouteReader| {
        let mut all: Vec<InspectedRoute> =
            (0..reader.slots()).filter_map(|slot| reader.inspect(0, slot)).collect();
        all.sort_by_key(|r| r.inserted_at);
        all
    };
    let all = seen(&reader);
    assert_eq!(all.len(), 4);
    for (n, (r, id)) in all.iter().zip(&ids).enumerate() {
        assert_eq!(r.is_cut, n == 3, "two blocks, three long ids");
        assert_eq!(&r.id, if r.is_cut { &id[..48] } else { id });
        assert_eq!(r.kind, ObjectKind::Actor);
        let hash = key(id).object_hash();
        assert_eq!(r.hash, (hash.low(), hash.high()));
        let owner = r.node.as_ref().unwrap();
        assert_eq!((owner.rid.as_bytes(), owner.key_id), (&b"a"[..], 7 << 100 | 9));
        assert_eq!(owner.endpoint, "tcp://127.0.0.1:1");
    }
    assert!(cache.remove(&key(&ids[1])));
    cache.insert(route(&key(&ids[3]), "a", 1, (5, 6), 11), Nanos(9));
    let all = seen(&reader);
    assert_eq!((all.len(), all[2].is_cut, &all[2].id), (3, false, &ids[3]), "a block came free");
    cache.clear();
    assert_eq!(cache.head.load(word!(ShardHead.arena_blocks_used)), 0);
    assert!(seen(&reader).is_empty());
}

/// A node beyond the last row is known to its core alone.
#[test]
fn the_home_core_knows_more_nodes_than_readers_do() {
    let (mut cache, mut reader) = small();
    for (n, rid) in ["b", "c", "d"].into_iter().enumerate() {
        cache.see_node(node(rid, 2 + n as u64, Nanos(1000 * SEC)));
    }
    for (id, rid, generation) in [("x", "b", 2), ("y", "d", 4)] {
        let r = route(&key(id), rid, generation, (1, 1), 1);
        assert_eq!(cache.insert(r.clone(), Nanos(0)), InsertOutcome::Inserted);
        assert_eq!(cache.lookup(&r.key, Nanos(1)), Some(r));
    }
    let seen = reader.lookup(ObjectKind::Actor, "x", Nanos(1)).unwrap();
    assert_eq!(reader.fence(&seen).unwrap().rid.as_bytes(), b"b");
    assert_eq!(reader.lookup(ObjectKind::Actor, "y", Nanos(1)), None);
}

/// Proves R2.2-3.
#[test]
fn a_route_of_another_mesh_than_its_owner_is_not_cached() {
    let (mut cache, _) = small();
    let r = Route { mesh: MeshName::new("other").unwrap(), ..route(&key("x"), "a", 1, (1, 1), 1) };
    assert_eq!(cache.insert(r, Nanos(0)), InsertOutcome::OwnerUnknown);
}

#[test]
fn capacity_is_that_of_the_core_local_cache() {
    for asked in [0, 3, 4, 9, 65_536, 65_535] {
        let local = RouteCache::new(asked, RouteLifetimes::default()).capacity();
        let shared = SharedRouteCache::private(asked, RouteLifetimes::default()).unwrap();
        assert_eq!(shared.capacity(), local, "{asked}");
        assert_eq!(RegionSizes::of_node(1, asked).routes_per_core as usize, local);
    }
}

/// A writer that comes after a dead one, which was in the middle of items, starts from nothing.
#[test]
fn what_a_dead_writer_left_is_swept() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r");
    let mut region = Region::create(&spec(SMALL), Place::File(&path), &mut |_| ()).unwrap();
    let mut cache = SharedRouteCache::over(region.take_shard(0).unwrap(), lifetimes(15, 30));
    cache.see_node(node("a", 1, Nanos(1000 * SEC)));
    for n in 0..40u64 {
        cache.insert(route(&key(&format!("{n:0>60}")), "a", 1, (1, 1), 1), Nanos(n));
    }
    // Dies in a route and in a row.
    let reader = RouteReader::new(&region.view());
    let first = (0..16).find(|slot| reader.inspect(0, *slot).is_some()).unwrap();
    cache.hot.store(first * HotRoute::WORDS, 7);
    cache.rows.store_seq(0, 9);
    let standing = (0..16).filter(|slot| reader.inspect(0, *slot).is_some()).count();
    assert!(standing > 4 && reader.inspect(0, first).is_none());
    drop((cache, region));

    let mut region = Region::adopt(&path).unwrap();
    let mut cache = SharedRouteCache::over(region.take_shard(0).unwrap(), lifetimes(15, 30));
    assert!((0..16).all(|slot| reader.inspect(0, slot).is_none()));
    assert_eq!((cache.len(), cache.counters()), (0, CacheCounters::default()));
    assert_eq!(cache.see_node(node("a", 1, Nanos(1000 * SEC))), Sighting::Inserted);
    for n in 0..40u64 {
        cache.insert(route(&key(&format!("{n:0>60}")), "a", 1, (1, 1), 1), Nanos(n));
    }
    let routes: Vec<_> = (0..16).filter_map(|slot| reader.inspect(0, slot)).collect();
    assert_eq!(routes.len(), cache.len());
    assert!(routes.iter().all(|r| r.node.is_some()));
    assert_eq!(routes.iter().filter(|r| !r.is_cut).count(), 2, "each block is used once");
}

/// The hot paths take no memory.
#[test]
fn a_look_up_takes_no_memory() {
    let (mut cache, mut reader) = small();
    let r = route(&key("x"), "a", 1, (5, 6), 10);
    cache.insert(r.clone(), Nanos(0));
    let seen = reader.lookup(ObjectKind::Actor, "x", Nanos(1)).unwrap();
    reader.fence(&seen);
    let info = allocation_counter::measure(|| {
        for n in 1..100 {
            assert!(cache.lookup(&r.key, Nanos(n)).is_some());
            let seen = reader.lookup(ObjectKind::Actor, "x", Nanos(n)).unwrap();
            assert!(reader.fence(&seen).is_some());
            assert!(cache.insert(r.clone(), Nanos(n)) == InsertOutcome::Inserted);
        }
    });
    assert_eq!(info.count_total, 0);
}

/// Owners in the test of comparison. A tenure has one owner, as in life.
const RIDS: [&str; 3] = ["a", "b", "c"];

fn owner_of(tenure: u64) -> (usize, u64) {
    ((tenure % 3) as usize, 1 + tenure / 3 % 3)
}

fn id_of(n: u8) -> String {
    if n.is_multiple_of(3) { format!("{n:0>70}") } else { format!("o{n}") }
}

#[derive(Clone, Debug)]
enum Step {
    Insert { id: u8, tenure: u64, version: u64 },
    Version { id: u8, version: u64 },
    Stale { id: u8, tenure: u64 },
    Notice { id: u8, tenure: u64 },
    Remove { id: u8 },
    Lookup { id: u8 },
    Lease { owner: usize, generation: u64 },
    See { owner: usize, generation: u64, by_s: u64, follow_s: Option<u64> },
    Renew { owner: usize, generation: u64, by_s: u64 },
    PeerFollow { owner: usize, generation: u64, s: u64 },
    Forget { ago_s: u64 },
    Age { s: u64 },
    Follow { s: u64 },
    Both { age_s: u64, follow_s: u64 },
    Clear,
    Pass { s: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    let id = 0..40u8;
    let tenure = 1..12u64;
    let owner = || (0..3usize, 1..4u64);
    prop_oneof![
        16 => (id.clone(), tenure.clone(), 1..40u64)
            .prop_map(|(id, tenure, version)| Step::Insert { id, tenure, version }),
        2 => (id.clone(), 1..40u64).prop_map(|(id, version)| Step::Version { id, version }),
        2 => (id.clone(), tenure.clone()).prop_map(|(id, tenure)| Step::Stale { id, tenure }),
        2 => (id.clone(), tenure).prop_map(|(id, tenure)| Step::Notice { id, tenure }),
        1 => id.clone().prop_map(|id| Step::Remove { id }),
        4 => id.prop_map(|id| Step::Lookup { id }),
        1 => owner().prop_map(|(owner, generation)| Step::Lease { owner, generation }),
        6 => (owner(), 1..60u64, proptest::option::of(0..30u64)).prop_map(
            |((owner, generation), by_s, follow_s)| Step::See { owner, generation, by_s, follow_s }
        ),
        3 => (owner(), 1..60u64)
            .prop_map(|((owner, generation), by_s)| Step::Renew { owner, generation, by_s }),
        2 => (owner(), 0..30u64)
            .prop_map(|((owner, generation), s)| Step::PeerFollow { owner, generation, s }),
        1 => (0..20u64).prop_map(|ago_s| Step::Forget { ago_s }),
        1 => (0..40u64).prop_map(|s| Step::Age { s }),
        1 => (0..60u64).prop_map(|s| Step::Follow { s }),
        1 => (0..60u64, 0..60u64).prop_map(|(age_s, follow_s)| Step::Both { age_s, follow_s }),
        1 => Just(Step::Clear),
        3 => (0..4u64).prop_map(|s| Step::Pass { s }),
    ]
}

/// What an unbounded map would hold: routes with the two instants, nodes by rid.
#[derive(Default)]
struct Plain {
    routes: BTreeMap<u8, (Route, u64, u64)>,
    nodes: BTreeMap<usize, NodeEntry>,
}

impl Plain {
    fn get(&self, id: u8, now: Nanos) -> Option<&Route> {
        let (route, inserted_at, expires_at) = self.routes.get(&id)?;
        let owner = RIDS.iter().position(|rid| rid.as_bytes() == route.fence.rid.as_bytes())?;
        let node = self.nodes.get(&owner)?;
        let follow = node.message_follow_duration.unwrap_or_default();
        let in_follow = follow.is_zero() || {
            now.0 < inserted_at + duration_ns(follow.saturating_sub(secs(5)))
        };
        let alive = now < node.admission_deadline;
        (alive && in_follow && now.0 < *expires_at).then_some(route)
    }

    fn forget_node(&mut self, owner: usize) {
        self.nodes.remove(&owner);
        self.routes.retain(|_, (r, ..)| r.fence.rid.as_bytes() != RIDS[owner].as_bytes());
    }
}

/// The three of them, and the clock.
struct Three {
    local: RouteCache,
    shared: SharedRouteCache,
    reader: RouteReader,
    plain: Plain,
    age_s: u64,
    follow_s: u64,
    now: Nanos,
}

impl Three {
    fn new() -> Self {
        let (shared, view) = cache_and_view(SMALL, lifetimes(15, 30));
        Self {
            local: RouteCache::new(16, lifetimes(15, 30)),
            shared,
            reader: RouteReader::new(&view),
            plain: Plain::default(),
            age_s: 15,
            follow_s: 30,
            now: Nanos(100 * SEC),
        }
    }

    fn set_follow(&mut self, follow_s: u64) {
        self.follow_s = follow_s;
        if follow_s > 0 {
            for (_, inserted_at, expires_at) in self.plain.routes.values_mut() {
                *expires_at = (*expires_at).min(*inserted_at + follow_s * SEC);
            }
        }
    }

    /// Takes the step on all three, and compares what it answered.
    fn take(&mut self, step: &Step) {
        let now = self.now;
        let tenure_route = |id: u8, tenure: u64, version: u64| {
            let (owner, generation) = owner_of(tenure);
            route(&key(&id_of(id)), RIDS[owner], generation, (1, tenure), version)
        };
        match *step {
            Step::Insert { id, tenure, version } => {
                let r = tenure_route(id, tenure, version);
                let outcome = self.local.insert(r.clone(), now);
                assert_eq!(self.shared.insert(r.clone(), now), outcome);
                if outcome == InsertOutcome::Inserted {
                    let life = match self.follow_s {
                        0 => self.age_s,
                        follow_s => self.age_s.min(follow_s),
                    };
                    self.plain.routes.insert(id, (r, now.0, now.0 + life * SEC));
                }
            }
            Step::Version { id, version } => {
                let (key, seen) = (key(&id_of(id)), StoreVersion::new(version).unwrap());
                let dropped = self.local.see_version(&key, seen);
                assert_eq!(self.shared.see_version(&key, seen), dropped);
                self.plain.routes.retain(|k, (r, ..)| *k != id || r.store_version >= seen);
            }
            Step::Stale { id, tenure } => {
                let r = tenure_route(id, tenure, 1);
                let dropped = self.local.remove_stale(&r.key, &r.fence);
                assert_eq!(self.shared.remove_stale(&r.key, &r.fence), dropped);
                self.plain.routes.retain(|k, (kept, ..)| {
                    *k != id || kept.fence.authority_owner_generation.get() > tenure
                });
            }
            Step::Notice { id, tenure } => {
                let r = tenure_route(id, tenure, 1);
                let dropped = self.local.remove_if_matches(&r.key, &r.fence);
                assert_eq!(self.shared.remove_if_matches(&r.key, &r.fence), dropped);
                self.plain.routes.retain(|k, (kept, ..)| *k != id || kept.fence != r.fence);
            }
            Step::Remove { id } => {
                let key = key(&id_of(id));
                assert_eq!(self.shared.remove(&key), self.local.remove(&key));
                self.plain.routes.remove(&id);
            }
            Step::Lookup { id } => {
                let key = key(&id_of(id));
                assert_eq!(self.shared.lookup(&key, now), self.local.lookup(&key, now).cloned());
                // What is found to have ended is gone, whatever is renewed or raised later.
                if self.plain.get(id, now).is_none() {
                    self.plain.routes.remove(&id);
                }
            }
            Step::Clear => {
                self.local.clear();
                self.shared.clear();
                self.plain.routes.clear();
            }
            Step::Pass { s } => self.now.0 += s * SEC,
            ref other => self.take_on_nodes_or_settings(other),
        }
        // No two entries are set at one instant: which of two equals goes is nobody's business.
        self.now.0 += 1;
    }

    fn take_on_nodes_or_settings(&mut self, step: &Step) {
        let now = self.now;
        let rid = |owner: usize| NodeRid::new(RIDS[owner]).unwrap();
        let lease = |generation| OwnerLeaseGeneration::new(generation + 100).unwrap();
        match *step {
            Step::Lease { owner, generation } => {
                let known = self.local.invalidate_lease(&rid(owner), lease(generation));
                let same = self.shared.invalidate_lease(&rid(owner), lease(generation));
                assert_eq!(same, known);
                if known {
                    self.plain.forget_node(owner);
                }
            }
            Step::See { owner, generation, by_s, follow_s } => {
                let mut entry = node(RIDS[owner], generation, now + secs(by_s));
                entry.message_follow_duration = follow_s.map(secs);
                let sighting = self.local.see_node(entry.clone());
                assert_eq!(self.shared.see_node(entry), sighting);
                if sighting == Sighting::Replaced {
                    self.plain.forget_node(owner);
                }
                let stands = self.local.nodes().get(&rid(owner)).cloned().unwrap();
                self.plain.nodes.insert(owner, stands);
            }
            Step::Renew { owner, generation, by_s } => {
                let until = now + secs(by_s);
                let taken = self.local.nodes_mut().renew(&rid(owner), lease(generation), until);
                let same = self.shared.nodes_mut().renew(&rid(owner), lease(generation), until);
                assert_eq!(same, taken);
                if taken {
                    self.plain.nodes.get_mut(&owner).unwrap().admission_deadline = until;
                }
            }
            Step::PeerFollow { owner, generation, s } => {
                let generation = NodeGeneration::new(generation).unwrap();
                let (rid, s) = (rid(owner), secs(s));
                let known = self.local.nodes_mut().set_follow_duration(&rid, generation, s);
                let same = self.shared.nodes_mut().set_follow_duration(&rid, generation, s);
                assert_eq!(same, known);
                if known {
                    self.plain.nodes.get_mut(&owner).unwrap().message_follow_duration = Some(s);
                }
            }
            Step::Forget { ago_s } => {
                let before = now.minus(secs(ago_s));
                let count = self.local.nodes_mut().forget_lapsed(before);
                assert_eq!(self.shared.nodes_mut().forget_lapsed(before), count);
                for owner in 0..3 {
                    if self.local.nodes().get(&rid(owner)).is_none() {
                        self.plain.forget_node(owner);
                    }
                }
            }
            Step::Age { s } => {
                let changed = self.local.set_max_age(secs(s));
                assert_eq!(self.shared.set_max_age(secs(s)), changed);
                if changed.is_ok() {
                    self.age_s = s;
                }
            }
            Step::Follow { s } => {
                let changed = self.local.set_follow_duration(secs(s), now);
                assert_eq!(self.shared.set_follow_duration(secs(s), now), changed);
                if changed.is_ok() {
                    self.set_follow(s);
                }
            }
            Step::Both { age_s, follow_s } => {
                let both = lifetimes(age_s, follow_s);
                let changed = self.local.set_lifetimes(both, now);
                assert_eq!(self.shared.set_lifetimes(both, now), changed);
                if changed.is_ok() {
                    self.age_s = age_s;
                    self.set_follow(follow_s);
                }
            }
            ref other => unreachable!("{other:?} is taken elsewhere"),
        }
    }

    /// All of them hold the same, the map perhaps more.
    fn compare(&mut self) {
        let now = self.now;
        assert_eq!(self.shared.len(), self.local.len());
        assert_eq!(self.shared.counters(), self.local.counters());
        assert_eq!(self.shared.nodes(), self.local.nodes());
        assert_eq!(self.shared.lifetimes(), self.local.lifetimes());
        for id in 0..40u8 {
            let key = key(&id_of(id));
            let local = self.local.peek(&key, now);
            assert_eq!(self.shared.peek(&key, now).as_ref(), local, "{key}");
            let plain = self.plain.get(id, now);
            if local.is_some() {
                assert_eq!(local, plain, "{key}");
            } else if plain.is_some() {
                assert!(self.local.counters().evictions > 0, "{key} was lost without need");
            }
            // Readers know the nodes of the first two rows.
            let row = local.and_then(|r| self.local.nodes().slot_of(&r.fence));
            let visible = local.filter(|_| row.is_some_and(|slot| slot.parts().0 < 2));
            let seen = self.reader.lookup(key.kind(), key.id(), now);
            let fence = seen.and_then(|seen| self.reader.fence(&seen));
            assert_eq!(fence.as_ref(), visible.map(|r| &r.fence), "{key}");
            assert_eq!(
                seen.map(|seen| seen.store_version),
                visible.map(|r| r.store_version),
                "{key}"
            );
        }
        let inspected =
            (0..self.reader.slots()).filter(|slot| self.reader.inspect(0, *slot).is_some());
        assert_eq!(inspected.count(), self.local.len());
        let map = self.shared.head.load(word!(ShardHead.route_count));
        assert_eq!(map, self.local.len() as u64);
    }
}

proptest! {
    /// Proves R2.2-2, R2.2-4, R2.2-5, R2.2-6, R0-7.
    ///
    /// The shared cache answers every call as the core-local one does; a reader sees what the home
    /// core sees; and none of them has what a plain map has not.
    #[test]
    fn shared_local_and_plain_agree(steps in proptest::collection::vec(step(), 1..150)) {
        let mut three = Three::new();
        for step in &steps {
            three.take(step);
            three.compare();
        }
    }
}
