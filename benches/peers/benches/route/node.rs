#![forbid(unsafe_code)]
//! The subject: the route cache of one core in shared memory.

use std::time::Duration;

use homing::ids::{
    AuthorityOwnerGeneration, MeshName, NodeGeneration, NodeRid, ObjectGeneration, ObjectKey,
    OwnerLeaseGeneration, RouteFence, StoreVersion,
};
use homing::layout::RegionSizes;
use homing::route::{NodeEntry, Route, RouteLifetimes, RouteReader, SharedRouteCache};
use homing::shm::{Place, ProcessIdentity, Region, RegionIdentity, RegionSpec};
use homing::time::Nanos;

use crate::ids::{Ids, KIND, SEED, id};
use crate::side::{Entry, LATER, NODES, NOW, Reader, Seen, Side, Threads, Writer};

/// Between the making of an entry and its end.
const MAX_AGE: Duration = Duration::from_secs(3_000);

/// A region with the cache of one core, and its one writer.
pub(crate) struct Shared {
    region: Region,
    cache: SharedRouteCache,
    mesh: MeshName,
    /// The fence of each owner, for the first incarnation of an object.
    fences: Vec<RouteFence>,
}

fn region(size: usize, mesh: &MeshName) -> Region {
    let spec = RegionSpec {
        identity: RegionIdentity {
            mesh: mesh.clone(),
            rid: NodeRid::new("here").expect("a rid"),
            node_generation: 1,
            hash_seed: SEED,
            process: ProcessIdentity::own().expect("this process is known"),
            created_at: Nanos(1),
        },
        // Half full, so that few sets of four give an entry up.
        sizes: RegionSizes::of_node(1, 2 * size),
        counters: Vec::new(),
    };
    Region::create(&spec, Place::Memfd, &mut |_| ()).expect("the kernel gives memory")
}

impl Shared {
    /// One with `size` routes put in, and the ids of those that stand: a full set gave one up here
    /// and there.
    pub(crate) fn fill(size: usize) -> (Self, Ids) {
        let mesh = MeshName::new("bench").expect("a name");
        let mut region = region(size, &mesh);
        let lifetimes = RouteLifetimes { max_age: MAX_AGE, follow_duration: Duration::ZERO };
        let shard = region.take_shard(0).expect("the shard of the one core");
        let cache = SharedRouteCache::over(shard, lifetimes);
        let mut shared = Self { region, cache, mesh, fences: Vec::new() };
        for node in 0..NODES {
            shared.see_node(node);
        }
        for number in 0..size {
            shared.renew(&id(number), number, number as u64 + 1);
        }
        let stands = |number: &usize| shared.cache.peek(&key(&id(*number)), NOW).is_some();
        let ids = Ids::shuffled((0..size).filter(stands).collect());
        (shared, ids)
    }

    fn see_node(&mut self, number: u64) {
        let rid = NodeRid::new(format!("node-{number:016x}")).expect("a rid");
        let node_generation = NodeGeneration::new(number + 1).expect("not zero");
        let lease_generation = OwnerLeaseGeneration::new(number + 1).expect("not zero");
        self.cache.see_node(NodeEntry {
            rid: rid.clone(),
            node_generation,
            lease_generation,
            admission_deadline: LATER,
            mesh: self.mesh.clone(),
            endpoint: "tcp://127.0.0.1:1".parse().expect("an endpoint"),
            key_id: 1,
            message_follow_duration: Some(2 * Duration::from_nanos(LATER.0)),
        });
        self.fences.push(RouteFence {
            object_generation: ObjectGeneration::FIRST,
            rid,
            node_generation,
            authority_owner_generation: AuthorityOwnerGeneration::FIRST,
            owner_lease_generation: lease_generation,
        });
    }
}

fn key(id: &str) -> ObjectKey {
    ObjectKey::new(SEED, KIND, id).expect("an id")
}

impl Side for Shared {
    type Reader<'a> = RouteReader;
    type Writer<'a> = &'a mut Self;

    fn open(&mut self) -> Threads<RouteReader, &mut Self> {
        let view = self.region.view();
        let (reader, second) = (RouteReader::new(&view), RouteReader::new(&view));
        Threads { reader, second, writer: self }
    }
}

impl Reader for RouteReader {
    #[inline]
    fn look_up(&mut self, id: &str, now: Nanos) -> Option<Seen> {
        let route = self.lookup(KIND, id, now)?;
        Some(Seen {
            object_generation: route.object_generation.get(),
            authority_owner_generation: route.authority_owner_generation.get(),
            store_version: route.store_version.get(),
            node_generation: route.node_generation.get(),
            owner_lease_generation: route.owner_lease_generation.get(),
            // Which row the owner has is not shown, but its lifecycle stands for it here.
            node: route.node_generation.get() - 1,
        })
    }
}

impl Writer for &mut Shared {
    fn renew(&mut self, id: &str, number: usize, version: u64) {
        Shared::renew(self, id, number, version);
    }
}

impl Shared {
    fn renew(&mut self, id: &str, number: usize, version: u64) {
        let seen = Entry::of(number, version).seen;
        let mut fence = self.fences[seen.node as usize].clone();
        fence.object_generation = ObjectGeneration::new(seen.object_generation).expect("not zero");
        let store_version = StoreVersion::new(version).expect("not zero");
        let route = Route { key: key(id), mesh: self.mesh.clone(), fence, store_version };
        self.cache.insert(route, NOW);
    }
}
