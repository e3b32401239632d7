#![forbid(unsafe_code)]
//! Look-ups in a core's route cache, by its own core and by a reader of another thread, against
//! an immutable map of the same ids under the same hash. See BENCHMARKS.md.
#![allow(clippy::disallowed_methods)] // reads the clock and the machine, starts threads

mod support;

#[path = "route_cache/company.rs"]
mod company;
#[path = "route_cache/tables.rs"]
mod tables;

use std::hint::black_box;

use homing::ids::{ObjectHash, ObjectKey, ObjectKind};
use homing::route::{FoundRoute, RouteReader};
use homing::time::Nanos;

use company::{Company, beside};
use support::args::Args;
use support::rounds::Compared;
use support::samples::{Outcome, Samples, fold};
use support::table::{Per, Table};
use tables::{ByHash, NOW, Plain, SEED, Tables, local};

/// Look-ups of one sample.
const BATCH: usize = 64;

/// What is measured. The baseline of each is the map with what the same look-up needs there.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Case {
    /// The core-local form that the shared one is compared with in tests.
    Local,
    /// The home core, which wants to know whether and where to.
    Home,
    /// The home core, which takes the names along.
    HomeWhole,
    /// The home core, from the bytes of the id: checked and hashed first.
    HomeBytes,
    /// A reader of another thread or process.
    Reader(Company),
    /// A reader, from the bytes of the id.
    ReaderBytes,
}

const CASES: &[(&str, Case)] = &[
    ("core-local form", Case::Local),
    ("home core", Case::Home),
    ("home core, with the names", Case::HomeWhole),
    ("home core, from the id's bytes", Case::HomeBytes),
    ("reader", Case::Reader(Company::None)),
    ("reader, from the id's bytes", Case::ReaderBytes),
    ("reader, beside a second one", Case::Reader(Company::Reader)),
    ("reader, beside a writer of 100,000 a second", Case::Reader(Company::Writer)),
];

fn main() {
    let args = Args::parse();
    let mut table = Table::begin("route_cache", args.tiny);
    let mut notes = Vec::new();
    let sizes: &[usize] = if args.tiny { &[2_000] } else { &[2_000, 16_000, 1_000_000] };
    for &size in sizes {
        let name_of = |name: &str| format!("hit, {size} entries, {name}");
        let wanted: Vec<_> =
            CASES.iter().filter(|(name, _)| args.wants(&name_of(name))).copied().collect();
        if wanted.is_empty() {
            continue;
        }
        let mut tables = Tables::fill(size);
        for (name, case) in wanted {
            let compared = measure(&mut tables, case, &args, &mut notes);
            table.row(&name_of(name), Per::Throughput, &compared);
        }
    }
    notes.iter().for_each(|note| println!("\n{note}"));
    table.end();
}

fn measure(tables: &mut Tables, case: Case, args: &Args, notes: &mut Vec<String>) -> Compared {
    let Tables { view, cache, by_hash, by_key, keys } = tables;
    let keys = &keys[..];
    let hashed = |hash, now| version_of(by_hash.get(&ByHash(hash)), now);
    let in_map = |key: &ObjectKey, now| hashed(key.object_hash(), now);
    match case {
        Case::Local => {
            let mut local = local(keys);
            let look_up = |key: &ObjectKey, now| {
                local.lookup(key, now).map_or(0, |route| route.store_version.get())
            };
            compare(args, keys, look_up, |key, now| version_of(by_key.get(key), now))
        }
        Case::Home => compare(args, keys, |key, now| version_in(cache.find(key, now)), in_map),
        Case::HomeWhole => {
            let look_up = |key: &ObjectKey, now| {
                cache.lookup(key, now).map_or(0, |route| route.store_version.get())
            };
            compare(args, keys, look_up, in_map)
        }
        Case::HomeBytes => {
            let key_of = |key: &ObjectKey| {
                ObjectKey::new(SEED, ObjectKind::Actor, black_box(key.id())).expect("an id")
            };
            compare(
                args,
                keys,
                |key, now| version_in(cache.find(&key_of(key), now)),
                |key, now| version_of(by_key.get(&key_of(key)), now),
            )
        }
        Case::ReaderBytes => {
            let reader = RouteReader::new(view);
            let look_up = |key: &ObjectKey, now| {
                let seen = reader.lookup(ObjectKind::Actor, black_box(key.id()), now);
                seen.map_or(0, |seen| seen.store_version.get())
            };
            let hash_of =
                |key: &ObjectKey| ObjectHash::of(SEED, ObjectKind::Actor, black_box(key.id()));
            compare(args, keys, look_up, |key, now| hashed(hash_of(key), now))
        }
        Case::Reader(company) => {
            let reader = RouteReader::new(view);
            let mut misses = 0;
            let look_up = |key: &ObjectKey, now| {
                loop {
                    if let Some(seen) = reader.lookup_hash(key.object_hash(), now) {
                        break seen.store_version.get();
                    }
                    // The writer was stopped inside of this entry; alone, a miss is a fault.
                    assert!(company == Company::Writer, "every look-up is a hit");
                    misses += 1;
                }
            };
            let measured = || compare(args, keys, look_up, in_map);
            let (compared, note) = beside(company, cache, view, keys, measured);
            notes.extend(note.map(|note| format!("{note}; {misses} look-ups were misses.")));
            compared
        }
    }
}

fn version_in(found: Option<FoundRoute>) -> u64 {
    found.map_or(0, |found| found.store_version.get())
}

/// What a map answers: both deadlines are checked there too.
fn version_of(found: Option<&Plain>, now: Nanos) -> u64 {
    match found {
        Some(p) if now < p.expires_at && now < p.admission_deadline => p.version,
        _ => 0,
    }
}

fn compare(
    args: &Args,
    keys: &[ObjectKey],
    mut subject: impl FnMut(&ObjectKey, Nanos) -> u64,
    mut baseline: impl FnMut(&ObjectKey, Nanos) -> u64,
) -> Compared {
    let ops = args.operations(2_000_000) as usize;
    Compared::run(
        args.rounds,
        || segment(keys, ops, &mut subject),
        || segment(keys, ops, &mut baseline),
    )
}

fn segment(
    keys: &[ObjectKey],
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
                let version = look_up(key, black_box(NOW));
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
