#![forbid(unsafe_code)]
//! A writer that is killed in the middle of its writes, and the one that comes after it.

use std::path::Path;

use homing::ids::ObjectKind;
use homing::layout::HotRoute;
use homing::route::RouteReader;
use homing::shm::{Place, Region};

use crate::eventually::eventually;
use crate::process::{Other, die, part, say, wait_for_end};
use crate::world::{
    NOW, SIZES, cache, check, check_slot, ids, key, owner, route, spec, write_for_ever,
};

const ROUNDS: u64 = 50;
/// More writes than any round gets to.
const WRITES_PER_ROUND: u64 = 1 << 40;

/// Proves R2.2-4.
///
/// Killed wherever it may be, a writer leaves whole routes and misses; the next one starts from
/// nothing and is read again.
#[test]
fn killed_while_it_writes() {
    if let Some(part) = part() {
        let (round, path) = part.split_once(' ').unwrap();
        let mut region = Region::adopt(Path::new(path)).unwrap();
        let cache = cache(&mut region);
        say("writing");
        write_for_ever(cache, round.parse::<u64>().unwrap() * WRITES_PER_ROUND);
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r");
    let region = Region::create(&spec(SIZES), Place::File(&path), &mut |_| ()).unwrap();
    let reader = RouteReader::new(&region.view());
    let hot = region.view().shard(0).unwrap().route_hot;
    let ids = ids();
    let mut left_inside = 0;
    for round in 1..=ROUNDS {
        let mut writer = Other::start(&format!("{round} {}", path.display()));
        writer.wait_for("writing");
        let first = round * WRITES_PER_ROUND;
        // It writes, and nothing of the one before is left.
        let mut looks = 0u64;
        let seen = eventually("a route of this round", || {
            (0..10_000).find_map(|_| {
                looks += 1;
                let id = &ids[(looks % ids.len() as u64) as usize];
                reader.lookup(ObjectKind::Actor, id, NOW).map(|seen| check(&seen))
            })
        });
        assert!(seen >= first, "write {seen} outlived its writer (round {round})");
        // Not at the same place each time.
        for _ in 0..round * 997 % 5000 {
            for id in &ids {
                reader.lookup(ObjectKind::Actor, id, NOW).map(|seen| check(&seen));
            }
        }
        writer.kill();
        for id in &ids {
            if let Some(seen) = reader.lookup(ObjectKind::Actor, id, NOW) {
                assert!(check(&seen) >= first);
            }
        }
        for slot in 0..reader.slots() {
            check_slot(&reader, &ids, slot);
            left_inside += hot.load(slot * HotRoute::WORDS) & 1;
        }
    }
    println!("{ROUNDS} writers killed, {left_inside} of them inside of a route");
}

/// As above, but surely inside of a route, each time at another word of it.
#[test]
fn killed_inside_of_a_write() {
    let ids = ids();
    if let Some(part) = part() {
        let (n, path) = part.split_once(' ').unwrap();
        let n: usize = n.parse().unwrap();
        let mut region = Region::adopt(Path::new(path)).unwrap();
        if n.is_multiple_of(2) {
            // Torn in a way that would show: half of the words are of another route.
            let mut shard = region.take_shard(0).unwrap();
            let values = vec![u64::MAX; n / 2 % HotRoute::WORDS];
            for slot in 0..SIZES.routes_per_core as usize {
                shard.route_hot.write(slot * HotRoute::WORDS, &values, || {
                    if slot + 1 == SIZES.routes_per_core as usize {
                        die();
                    }
                });
            }
            unreachable!("it died in the last slot");
        }
        let mut cache = cache(&mut region);
        cache.see_node(owner(1));
        for id in &ids[..4] {
            cache.insert(route(id, 1, n as u64 % 32), NOW);
        }
        say("written");
        wait_for_end();
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r");
    let region = Region::create(&spec(SIZES), Place::File(&path), &mut |_| ()).unwrap();
    let reader = RouteReader::new(&region.view());
    let hot = region.view().shard(0).unwrap().route_hot;
    let last = (SIZES.routes_per_core as usize - 1) * HotRoute::WORDS;
    for n in 1..2 * HotRoute::WORDS {
        let mut writer = Other::start(&format!("{n} {}", path.display()));
        if n.is_multiple_of(2) {
            assert!(!writer.wait().success());
            assert_eq!(hot.load(last) & 1, 1, "it died inside");
            for id in &ids {
                // Slots it finished have nonsense, and are whole; none of it is a route.
                assert_eq!(reader.lookup(ObjectKind::Actor, id, NOW), None);
            }
            assert!(reader.inspect(0, SIZES.routes_per_core as usize - 1).is_none());
            continue;
        }
        writer.wait_for("written");
        for id in &ids[..4] {
            let seen = reader.lookup_hash(key(id).object_hash(), NOW);
            assert_eq!(check(&seen.expect("the next writer is read")), n as u64 % 32);
        }
        assert!((0..4).all(|slot| check_slot(&reader, &ids, slot)));
        assert_eq!(hot.load(last) & 1, 0);
        writer.kill();
    }
}
