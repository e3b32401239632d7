#![forbid(unsafe_code)]
//! R2.2 as another process sees it: a node's routes and counters in its region of shared memory.

use std::os::fd::OwnedFd;
use std::path::Path;

use homing::Counter;
use homing::ids::ObjectKind;
use homing::route::RouteReader;
use homing::shm::RegionView;
use homing::time::Nanos;
use rustix::fs::{Mode, OFlags};
use rustix::time::{ClockId, clock_gettime};

use super::command::Setup;
use super::world::{Child, World};

/// The region of a child's node, through the child's fd directory.
fn region_of(child: &Child) -> RegionView {
    let descriptors = format!("/proc/{}/fd", child.pid());
    let is_region = |path: &Path| {
        let target = std::fs::read_link(path).unwrap_or_default();
        target.to_str().is_some_and(|name| name.starts_with("/memfd:homing-region"))
    };
    let path = std::fs::read_dir(descriptors)
        .expect("the child runs")
        .map(|entry| entry.expect("a descriptor").path())
        .find(|path| is_region(path))
        .expect("the child's node has a region");
    let file: OwnedFd = rustix::fs::open(&path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
        .expect("a region may be read by its owner");
    RegionView::attach(file).expect("the region passes")
}

/// The clock that deadlines are told in.
fn now() -> Nanos {
    let time = clock_gettime(ClockId::Boottime);
    Nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// A route that a node uses is read from its region by another process, with its fences and both
/// deadlines, and is no route any more from either deadline on. The node is stopped meanwhile: it
/// cannot answer, and need not.
///
/// Proves R2.2-1, R2.2-2.
#[test]
fn another_process_reads_a_stopped_nodes_routes_and_counters() {
    let world = World::new();
    let owner = world.child(&world.setup("owner"));
    let caller = world.child(&Setup { cores: Some(2), ..world.setup("caller") });
    let made = owner.create("a");
    caller.show("a");
    let view = region_of(&caller);
    assert_eq!(view.rid(), Some(caller.node_rid()));
    assert_eq!(view.mesh().unwrap().as_str(), "contract");
    assert_eq!(view.process().unwrap().pid, caller.pid());
    assert_eq!(view.map().core_count(), 2);

    caller.pause();
    let mut reader = RouteReader::new(&view);
    let asked_at = now();
    let look = |reader: &RouteReader, at| reader.lookup(ObjectKind::Actor, "a", at);
    let seen = look(&reader, asked_at).expect("the route that was just used");
    let fence = reader.fence(&seen).expect("the owner is known");
    assert_eq!(fence.rid, owner.node_rid());
    assert_eq!(fence.object_generation.get(), made.generation);
    assert_eq!(fence.authority_owner_generation.get(), 1, "the first tenure");
    assert_eq!(reader.node(&seen).unwrap().endpoint, owner.endpoint);
    // R0-6: cached for 15 s, under a lease of 10 s that ends 500 ms earlier for callers.
    assert!(seen.expires_at > asked_at && seen.expires_at.0 < asked_at.0 + 15_000_000_000);
    assert!(
        seen.admission_deadline > asked_at
            && seen.admission_deadline.0 <= asked_at.0 + 9_500_000_000
    );
    let end = seen.expires_at.min(seen.admission_deadline);
    assert_eq!(look(&reader, Nanos(end.0 - 1)), Some(seen));
    assert_eq!(look(&reader, end), None);
    assert_eq!(reader.lookup(ObjectKind::Spot, "a", asked_at), None, "kinds are apart");
    assert_eq!(reader.lookup(ObjectKind::Actor, "b", asked_at), None);

    let counters = view.counters();
    let read = |counter: Counter| {
        let found = counters.iter().find(|c| c.id == counter.id()).expect("every counter is there");
        assert_eq!((found.label.as_str(), found.per_core.len()), (counter.label(), 2));
        found.sum()
    };
    assert_eq!((read(Counter::SubmittedRemote), read(Counter::CacheMisses)), (1, 1));
    caller.resume();
    for counter in Counter::ALL {
        assert!(read(*counter) <= caller.counter(*counter), "{} went back", counter.label());
    }
    assert_eq!(caller.counter(Counter::SubmittedRemote), 1, "it is what the node itself says");
}
