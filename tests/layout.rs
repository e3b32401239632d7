#![forbid(unsafe_code)]
//! The shared region byte by byte: every size and offset, and a whole small region with known
//! content.
//!
//! Both are compared with files. A difference means that a program of before this change cannot
//! read a region of after it: raise `LAYOUT_VERSION`, and let
//! `HOMING_LAYOUT_WRITE=1 cargo test --test layout` write the files anew.
#![allow(clippy::disallowed_methods)] // reads an environment variable

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::Duration;

use homing::ids::{
    AuthorityOwnerGeneration, MeshName, NodeGeneration, NodeRid, ObjectGeneration, ObjectKey,
    ObjectKind, OwnerLeaseGeneration, RouteFence, StoreVersion,
};
use homing::layout::{
    ITEMS, LAYOUT_HASH, LAYOUT_VERSION, RegionMap, RegionSizes, SectionKind, check_header,
};
use homing::route::{InsertOutcome, NodeEntry, Route, RouteLifetimes, SharedRouteCache};
use homing::shm::{CounterSpec, Place, ProcessIdentity, Region, RegionIdentity, RegionSpec};
use homing::time::Nanos;
use proptest::prelude::*;

const SEED: u64 = 0x5eed;

/// Compares with a file of the tree, or writes it when that is asked for.
fn compare(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/layout").join(name);
    if std::env::var_os("HOMING_LAYOUT_WRITE").is_some() {
        fs::write(&path, text).unwrap();
    }
    let wanted = fs::read_to_string(&path).unwrap();
    for (n, (found, wanted)) in text.lines().zip(wanted.lines()).enumerate() {
        assert_eq!(found, wanted, "line {} of tests/layout/{name}", n + 1);
    }
    assert_eq!(text.lines().count(), wanted.lines().count(), "length of tests/layout/{name}");
}

#[test]
fn sizes_and_offsets_are_pinned() {
    let mut text = format!("version {LAYOUT_VERSION}\nhash {LAYOUT_HASH:#018x}\n");
    for item in ITEMS {
        writeln!(text, "{} {} align {}", item.name, item.size_bytes, item.align_bytes).unwrap();
        let mut end = 0;
        for field in item.fields {
            let (offset, size) = (field.offset_bytes, field.size_bytes);
            assert_eq!(offset, end, "no hole before {}.{}", item.name, field.name);
            end = offset + size;
            writeln!(text, "  {offset:4} {} {} {size}", field.name, field.type_name).unwrap();
        }
        assert_eq!(end, item.size_bytes, "no hole at the end of {}", item.name);
    }
    for kind in SectionKind::ALL {
        writeln!(text, "section {} {} {}", kind as u32, kind.as_str(), kind.item_bytes()).unwrap();
    }
    compare("offsets.txt", &text);
}

const SIZES: RegionSizes = RegionSizes {
    core_count: 2,
    routes_per_core: 4,
    arena_blocks_per_core: 1,
    node_rows_per_core: 2,
    counter_count: 2,
};

fn spec() -> RegionSpec {
    RegionSpec {
        identity: RegionIdentity {
            mesh: MeshName::new("game").unwrap(),
            rid: NodeRid::new("node-a").unwrap(),
            node_generation: 11,
            hash_seed: SEED,
            process: ProcessIdentity {
                pid: 22,
                start_time_ticks: 33,
                boot_id: *b"boot-id-16-bytes",
            },
            created_at: Nanos(44),
        },
        sizes: SIZES,
        counters: vec![
            CounterSpec { id: 1, label: "cache_hits", unit: "" },
            CounterSpec { id: 2, label: "busy", unit: "ns" },
        ],
    }
}

fn lifetimes() -> RouteLifetimes {
    RouteLifetimes { max_age: Duration::from_secs(15), follow_duration: Duration::from_secs(30) }
}

fn node() -> NodeEntry {
    NodeEntry {
        rid: NodeRid::new("node-b").unwrap(),
        node_generation: NodeGeneration::new(0x101).unwrap(),
        lease_generation: OwnerLeaseGeneration::new(0x102).unwrap(),
        admission_deadline: Nanos(0x103),
        mesh: MeshName::new("game").unwrap(),
        endpoint: "unix:///run/b.sock".parse().unwrap(),
        key_id: 0x1112_1314_1516_1718_2122_2324_2526_2728,
        message_follow_duration: Some(Duration::from_secs(20)),
    }
}

fn insert(cache: &mut SharedRouteCache, kind: ObjectKind, id: &str, version: u64) {
    let route = Route {
        key: ObjectKey::new(SEED, kind, id).unwrap(),
        mesh: MeshName::new("game").unwrap(),
        fence: RouteFence {
            object_generation: ObjectGeneration::new(0x201).unwrap(),
            rid: NodeRid::new("node-b").unwrap(),
            node_generation: NodeGeneration::new(0x101).unwrap(),
            authority_owner_generation: AuthorityOwnerGeneration::new(0x202).unwrap(),
            owner_lease_generation: OwnerLeaseGeneration::new(0x102).unwrap(),
        },
        store_version: StoreVersion::new(version).unwrap(),
    };
    assert_eq!(cache.insert(route, Nanos(0x42)), InsertOutcome::Inserted);
}

/// The words of a file that are not zero, each with its place.
fn dump(bytes: &[u8], map: &RegionMap) -> String {
    let mut text = format!("{} bytes\n", bytes.len());
    for (n, word) in bytes.chunks_exact(8).enumerate() {
        for kind in SectionKind::ALL {
            let cores = if kind.is_per_core() { map.core_count() } else { 1 };
            for core in 0..cores {
                if map.shard_words(kind, core).unwrap().start == n {
                    writeln!(text, "{} of core {core} at {:#x}", kind.as_str(), n * 8).unwrap();
                }
            }
        }
        if word != [0; 8] {
            let hex: Vec<String> = word.iter().map(|byte| format!("{byte:02x}")).collect();
            let shown = |byte: &u8| if byte.is_ascii_graphic() { char::from(*byte) } else { '.' };
            let ascii: String = word.iter().map(shown).collect();
            writeln!(text, "  {:#06x} {} {ascii}", n * 8, hex.join(" ")).unwrap();
        }
    }
    text
}

#[test]
#[cfg(target_endian = "little")]
fn a_small_region_is_byte_for_byte_what_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r");
    let mut region = Region::create(&spec(), Place::File(&path), &mut |_| ()).unwrap();
    let mut cache = SharedRouteCache::over(region.take_shard(1).unwrap(), lifetimes());
    cache.see_node(node());
    insert(&mut cache, ObjectKind::Actor, "counter-42", 0x203);
    insert(&mut cache, ObjectKind::Spot, &"0123456789".repeat(6), 0x204);
    let known = ObjectKey::new(SEED, ObjectKind::Actor, "counter-42").unwrap();
    let unknown = ObjectKey::new(SEED, ObjectKind::Actor, "x").unwrap();
    assert!(cache.lookup(&known, Nanos(0x50)).is_some());
    assert!(cache.lookup(&unknown, Nanos(0x50)).is_none());
    cache.beat(Nanos(0x51));
    let block = region.take_counters(0).unwrap();
    block.add(0, 0x301);
    block.set(1, 0x302);
    let map = region.map().clone();
    compare("dump.txt", &dump(&fs::read(&path).unwrap(), &map));
}

/// Sections of any sizes lie one after the other, aligned, and a header that says so passes.
#[test]
fn sections_never_share_a_word() {
    for core_count in [1, 2, 7, 256] {
        for (routes, rows, blocks, counters) in [(4, 0, 0, 0), (8, 1, 3, 1), (1 << 16, 1024, 5, 40)]
        {
            let sizes = RegionSizes {
                core_count,
                routes_per_core: routes,
                arena_blocks_per_core: blocks,
                node_rows_per_core: rows,
                counter_count: counters,
            };
            disjoint(&sizes.map().unwrap());
        }
    }
}

fn disjoint(map: &RegionMap) {
    let mut end = 4096 / 8;
    let mut ranges: Vec<_> = SectionKind::ALL
        .into_iter()
        .flat_map(|kind| {
            let cores = if kind.is_per_core() { map.core_count() } else { 1 };
            (0..cores).map(move |core| map.shard_words(kind, core).unwrap())
        })
        .filter(|range| !range.is_empty())
        .collect();
    ranges.sort_by_key(|range| range.start);
    for range in ranges {
        assert!(range.start >= end && range.start % 16 == 0, "{range:?} after {end}");
        end = range.end;
    }
    assert!(end as u64 * 8 <= map.region_bytes());
}

fn good_header() -> homing::layout::RegionHeader {
    *Region::create(&spec(), Place::Private, &mut |_| ()).unwrap().header()
}

proptest! {
    /// However the section table is damaged, what passes lies inside the region and apart.
    #[test]
    fn a_damaged_table_is_refused_or_harmless(
        damage in proptest::collection::vec((0..8usize, 0..6u8, damaged_number()), 1..4),
    ) {
        let mut header = good_header();
        for (entry, field, value) in damage {
            let section = &mut header.sections[entry];
            match field {
                0 => section.kind = value as u32,
                1 => section.shard_count = value as u32,
                2 => section.offset_bytes = value,
                3 => section.shard_bytes = value,
                4 => section.item_bytes = value as u32,
                _ => section.items_per_shard = value as u32,
            }
        }
        if let Ok(map) = check_header(&header, header.region_bytes) {
            disjoint(&map);
        }
    }
}

/// Numbers that could pass, numbers at edges, any numbers.
fn damaged_number() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => (0..80u64).prop_map(|n| n * 128),
        4 => 0..10u64,
        2 => prop_oneof![Just(u64::MAX), Just(u64::MAX - 127), Just(1 << 63), Just(1 << 31)],
        1 => any::<u64>(),
    ]
}

#[test]
fn the_good_header_passes() {
    let header = good_header();
    let map = check_header(&header, header.region_bytes).unwrap();
    assert_eq!(map, SIZES.map().unwrap());
    disjoint(&map);
}
