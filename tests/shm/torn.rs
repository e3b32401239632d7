#![forbid(unsafe_code)]
//! One that writes all the time, and others that read all the time: processes and threads.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};

use homing::ids::ObjectKind;
use homing::layout::HotRoute;
use homing::route::RouteReader;
use homing::shm::{Announcement, Claim, Place, ProcessIdentity, Region, RegionView};

use crate::process::{Other, part, say};
use crate::world::{
    NOW, SIZES, cache, check, check_slot, ids, key, owner, route, spec, write_for_ever, write_while,
};

/// How many look-ups, unless the environment says otherwise.
const READS: u64 = 5_000_000;

/// `HOMING_TORN_READS` sets how many.
fn reads() -> u64 {
    match std::env::var("HOMING_TORN_READS") {
        Ok(text) => text.parse().unwrap_or_else(|e| panic!("HOMING_TORN_READS={text:?}: {e}")),
        Err(_) => READS,
    }
}

/// The writer's part: a node that does nothing but change its routes.
fn be_the_writer(dir: &str) -> ! {
    let spec = spec(SIZES);
    let mut claim = Claim::take(dir.as_ref(), &spec.identity.rid, &mut |_| ()).unwrap();
    let mut region = Region::create(&spec, Place::Memfd, &mut |_| ()).unwrap();
    let cache = cache(&mut region);
    claim.announce(&region, ProcessIdentity::own().unwrap(), &mut |_| ()).unwrap();
    say("writing");
    write_for_ever(cache, 1)
}

/// Proves R2.2-1.
///
/// Whatever a reader gets from a region that is being written is one whole route of one whole
/// lifecycle of its owner, names included.
#[test]
fn no_read_is_torn() {
    if let Some(dir) = part() {
        be_the_writer(&dir);
    }
    let dir = tempfile::tempdir().unwrap();
    let mut writer = Other::start(dir.path().to_str().unwrap());
    writer.wait_for("writing");
    let announcement = Announcement::read(&dir.path().join("here.node")).unwrap();
    let reader = RouteReader::new(&RegionView::of_node(&announcement).unwrap());

    let seen = read(&reader, reads(), || assert!(!writer.has_ended(), "the writer ended"));
    println!("{seen}");
    writer.kill();
}

/// Reads so many times and checks all of it. Says what was seen.
fn read(reader: &RouteReader, wanted: u64, mut at_times: impl FnMut()) -> String {
    let ids = ids();
    let hashes: Vec<_> = ids.iter().map(|id| key(id).object_hash()).collect();
    let (mut hits, mut inspected, mut changes, mut last) = (0u64, 0u64, 0u64, 0u64);
    let mut done = 0u64;
    // Both on one core: the reader may run for a while without the writer getting on.
    while done < wanted || changes < 1000 || inspected == 0 {
        let turn = done as usize;
        if let Some(seen) = reader.lookup_hash(hashes[turn % hashes.len()], NOW) {
            hits += 1;
            let n = check(&seen);
            changes += u64::from(n != last);
            last = n;
        }
        if done.is_multiple_of(64) {
            inspected += u64::from(check_slot(reader, &ids, turn / 64 % reader.slots()));
            let seen = reader.lookup(ObjectKind::Actor, &ids[turn / 64 % ids.len()], NOW);
            seen.iter().for_each(|seen| {
                check(seen);
            });
        }
        if done.is_multiple_of(1 << 20) {
            at_times();
        }
        done += 1;
    }
    format!("{done} look-ups, {hits} hits, {changes} changes seen, {inspected} inspected")
}

/// Proves R2.2-1.
///
/// As above, with two readers on threads of the writer's process. This is what a thread sanitizer
/// looks at.
#[test]
fn no_read_between_threads_is_torn() {
    let mut region = Region::create(&spec(SIZES), Place::Memfd, &mut |_| ()).unwrap();
    let cache = cache(&mut region);
    let view = region.view();
    let ends = AtomicBool::new(false);
    let writes = Arc::new(());
    let writing = Arc::downgrade(&writes);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _writes = writes;
            write_while(cache, 1, || !ends.load(Ordering::Relaxed));
        });
        let readers = [(); 2].map(|()| {
            let (reader, writing) = (RouteReader::new(&view), &writing);
            let alive = move || assert_eq!(writing.strong_count(), 1, "the writer ended");
            scope.spawn(move || read(&reader, READS / 20, alive))
        });
        let seen = readers.map(std::thread::ScopedJoinHandle::join);
        ends.store(true, Ordering::Relaxed);
        seen.into_iter().for_each(|seen| println!("{}", seen.unwrap()));
    });
}

/// Proves R2.2-2.
///
/// A writer that stops in the middle of a write costs a miss and never a wait; what it had written
/// before, and what it writes when it goes on, is whole.
#[test]
fn a_writer_that_stalls_costs_a_miss() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r");
    let id = &ids()[0];
    let mut region = Region::create(&spec(SIZES), Place::File(&path), &mut |_| ()).unwrap();
    let view = region.view();
    let mut cache = cache(&mut region);
    cache.see_node(owner(1));
    cache.insert(route(id, 1, 1), NOW);
    let reader = RouteReader::new(&view);
    let look = || reader.lookup(ObjectKind::Actor, id, NOW).map(|seen| check(&seen));
    assert_eq!(look(), Some(1));
    let slot = (0..reader.slots()).find(|slot| reader.inspect(0, *slot).is_some()).unwrap();
    let hot = view.shard(0).unwrap().route_hot;
    let words: [u64; HotRoute::WORDS] = hot.copy(slot * HotRoute::WORDS);
    // The bare words of it, to be able to stop between them.
    drop((cache, region));
    let mut shard = Region::adopt(&path).unwrap().take_shard(0).unwrap();

    let (stalled, is_stalled) = mpsc::channel();
    let (goes_on, may_go_on) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let writer = scope.spawn(move || {
            shard.route_hot.write(slot * HotRoute::WORDS, &words[1..], || {
                stalled.send(()).unwrap();
                may_go_on.recv().unwrap();
            });
        });
        is_stalled.recv().unwrap();
        for _ in 0..100 {
            assert_eq!(look(), None, "it is being written");
        }
        assert_eq!(reader.inspect(0, slot), None);
        goes_on.send(()).unwrap();
        writer.join().unwrap();
        assert_eq!(look(), Some(1), "whole again");
    });
}
