#![forbid(unsafe_code)]
//! Look-ups in a core's route cache against an immutable map of the same keys. See BENCHMARKS.md.
#![allow(clippy::disallowed_methods)] // reads the clock and the machine

mod support;

use std::time::Duration;

use homing::ids::{
    ActorId, AuthorityOwnerGeneration, FixedMap, MeshName, NodeGeneration, NodeRid,
    ObjectGeneration, ObjectKey, ObjectKind, OwnerLeaseGeneration, RouteFence, StoreVersion,
};
use homing::route::{NodeEntry, Route, RouteCache, RouteLifetimes};
use homing::time::Nanos;
use support::args::Args;
use support::rounds::Compared;
use support::samples::{Outcome, Samples, fold};
use support::table::{Per, Table};

const SEED: u64 = 0x5eed;
/// Look-ups of one sample.
const BATCH: usize = 64;
const NOW: Nanos = Nanos(1_000_000_000);

/// What the floor keeps: the same words, both deadlines in the entry itself.
struct Plain {
    version: u64,
    expires_at: Nanos,
    admission_deadline: Nanos,
}

/// How a look-up begins.
#[derive(Clone, Copy)]
enum Begin {
    /// With the key: its hash is known.
    Key,
    /// With the bytes of the id: they are checked and hashed first.
    Bytes,
}

struct Tables {
    cache: RouteCache,
    plain: FixedMap<ObjectKey, Plain>,
    /// Every id that is in both, in an order that no cache foresees.
    keys: Vec<ObjectKey>,
}

fn main() {
    let args = Args::parse();
    let mut table = Table::begin("route_cache", args.tiny);
    let sizes: &[usize] = if args.tiny { &[2_000] } else { &[2_000, 16_000, 1_000_000] };
    for &size in sizes {
        let wanted = |begin: &str| args.wants(&format!("hit, {size} entries, {begin}"));
        if !wanted("key at hand") && !wanted("from the id's bytes") {
            continue;
        }
        let mut tables = fill(size);
        for (name, begin) in [("key at hand", Begin::Key), ("from the id's bytes", Begin::Bytes)] {
            if wanted(name) {
                let compared = compare(&mut tables, begin, &args);
                table.row(&format!("hit, {size} entries, {name}"), Per::Throughput, &compared);
            }
        }
    }
    table.end();
}

fn id(number: usize) -> String {
    format!("player-{number:012}")
}

fn fill(size: usize) -> Tables {
    let lifetimes = RouteLifetimes {
        max_age: Duration::from_secs(15),
        follow_duration: Duration::from_secs(30),
    };
    let mut cache = RouteCache::new((2 * size).next_power_of_two(), lifetimes);
    let mesh = MeshName::new("bench").expect("a name");
    let fences: Vec<RouteFence> = (0..4).map(|node| see_node(&mut cache, &mesh, node)).collect();
    let mut plain = FixedMap::default();
    let key_of = |number| ObjectKey::actor(SEED, &ActorId::new(id(number)).expect("an id"));
    for number in 0..size {
        let key = key_of(number);
        let version = number as u64 + 1;
        let route = Route {
            key: key.clone(),
            mesh: mesh.clone(),
            fence: fences[number % fences.len()].clone(),
            store_version: StoreVersion::new(version).expect("not zero"),
        };
        let _ = cache.insert(route, NOW);
        let end = NOW + Duration::from_secs(10);
        plain.insert(key, Plain { version, expires_at: end, admission_deadline: end });
    }
    // A full set gave an entry up here and there; only what stands is looked up.
    let mut keys: Vec<_> =
        (0..size).map(key_of).filter(|key| cache.peek(key, NOW).is_some()).collect();
    let mut state = SEED;
    for last in (1..keys.len()).rev() {
        state = fold(state, last as u64);
        keys.swap(last, (state % (last as u64 + 1)) as usize);
    }
    Tables { cache, plain, keys }
}

fn see_node(cache: &mut RouteCache, mesh: &MeshName, number: u64) -> RouteFence {
    let rid = NodeRid::new(format!("node-{number:016x}")).expect("a rid");
    let node_generation = NodeGeneration::new(number + 1).expect("not zero");
    let lease_generation = OwnerLeaseGeneration::new(number + 1).expect("not zero");
    cache.see_node(NodeEntry {
        rid: rid.clone(),
        node_generation,
        lease_generation,
        admission_deadline: NOW + Duration::from_secs(10),
        mesh: mesh.clone(),
        endpoint: "tcp://127.0.0.1:1".parse().expect("an endpoint"),
        key_id: 1,
        message_follow_duration: Some(Duration::from_secs(30)),
    });
    RouteFence {
        object_generation: ObjectGeneration::FIRST,
        rid,
        node_generation,
        authority_owner_generation: AuthorityOwnerGeneration::FIRST,
        owner_lease_generation: lease_generation,
    }
}

fn compare(tables: &mut Tables, begin: Begin, args: &Args) -> Compared {
    let Tables { cache, plain, keys } = tables;
    let ops = args.operations(2_000_000) as usize;
    let mut in_cache =
        |key: &ObjectKey, now| cache.lookup(key, now).map_or(0, |route| route.store_version.get());
    let mut in_plain = |key: &ObjectKey, now: Nanos| match plain.get(key) {
        Some(p) if now < p.expires_at && now < p.admission_deadline => p.version,
        _ => 0,
    };
    Compared::run(
        args.rounds,
        || segment(keys, begin, ops, &mut in_cache),
        || segment(keys, begin, ops, &mut in_plain),
    )
}

fn segment(
    keys: &[ObjectKey],
    begin: Begin,
    ops: usize,
    look_up: &mut impl FnMut(&ObjectKey, Nanos) -> u64,
) -> Outcome {
    let mut run = |ops: usize| {
        let mut hash = 0;
        let mut samples = Samples::start(BATCH as u64);
        let mut at = keys.iter().cycle();
        for _ in 0..ops / BATCH {
            let batch = at.by_ref().take(BATCH);
            samples.begin();
            for key in batch {
                let now = std::hint::black_box(NOW);
                let version = match begin {
                    Begin::Key => look_up(key, now),
                    Begin::Bytes => {
                        let id = std::hint::black_box(key.id());
                        let key = ObjectKey::new(SEED, ObjectKind::Actor, id).expect("an id");
                        look_up(&key, now)
                    }
                };
                assert_ne!(version, 0, "every look-up is a hit");
                hash = fold(hash, version);
            }
            samples.end();
        }
        (samples, hash)
    };
    run(ops / 4);
    let (samples, hash) = run(ops);
    samples.finish(hash)
}
