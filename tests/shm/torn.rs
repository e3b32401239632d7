#![forbid(unsafe_code)]
//! Two processes, one writing all the time, one reading all the time.

use homing::ids::ObjectKind;
use homing::route::RouteReader;
use homing::shm::{Announcement, Claim, Place, ProcessIdentity, Region, RegionView};

use crate::process::{Other, part, say};
use crate::world::{NOW, SIZES, cache, check, check_slot, ids, key, spec, write_for_ever};

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

    let ids = ids();
    let hashes: Vec<_> = ids.iter().map(|id| key(id).object_hash()).collect();
    let wanted = reads();
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
            inspected += u64::from(check_slot(&reader, &ids, turn / 64 % reader.slots()));
            let seen = reader.lookup(ObjectKind::Actor, &ids[turn / 64 % ids.len()], NOW);
            seen.iter().for_each(|seen| {
                check(seen);
            });
        }
        if done.is_multiple_of(1 << 20) {
            assert!(!writer.has_ended(), "the writer ended");
        }
        done += 1;
    }
    println!("{done} look-ups, {hits} hits, {changes} changes seen, {inspected} inspected");
    writer.kill();
}
