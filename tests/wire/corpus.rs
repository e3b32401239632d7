#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods)] // reads a variable of the test run
//! The stored corpora that the fuzz targets begin with (`fuzz/corpus`): they are made of the samples
//! of these tests, and stay so.
//!
//! `HOMING_WRITE_CORPUS=1` writes them anew.

use std::collections::BTreeMap;
use std::path::PathBuf;

use homing::ids::{
    AuthorityOwnerGeneration, MeshName, NodeGeneration, NodeRid, ObjectGeneration,
    OwnerLeaseGeneration,
};
use homing::layout::RegionSizes;
use homing::shm::{CounterSpec, Place, ProcessIdentity, Region, RegionIdentity, RegionSpec};
use homing::store::records::{
    Authority, AuthorityState, GenerationCounter, HashSeed, LeaseRecord, NodeDescriptor,
    OwnerRecord, OwnerState,
};
use homing::time::Nanos;
use homing::wire::Rule;
use zerocopy::IntoBytes;

use super::own_layouts::controls;
use super::random::frames;
use super::sample::{metadata_part, payload_part, records};

type Corpus = BTreeMap<String, Vec<u8>>;

fn file_name(text: &str) -> String {
    text.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect()
}

fn record_corpus() -> Corpus {
    let samples = records().into_iter().chain(controls()).chain([metadata_part(), payload_part()]);
    samples.map(|sample| (file_name(sample.name), sample.bytes())).collect()
}

fn frame_corpus() -> Corpus {
    let good = frames().into_iter().enumerate();
    let mut corpus: Corpus = good.map(|(i, bytes)| (format!("good-{i:02}"), bytes)).collect();
    // One that breaks each rule of frames.
    for case in super::frame_rules::cases() {
        let name = Rule::name(case.rule);
        corpus.entry(format!("bad-{name}")).or_insert(case.bytes);
    }
    corpus.retain(|_, bytes| bytes.len() <= 1_024);
    corpus
}

/// Rows: the first byte says of which kind (see `fuzz_targets/row.rs`).
fn row_corpus() -> Corpus {
    let rid = NodeRid::new("node-a").expect("a good rid");
    let (node_generation, owner_lease_generation) =
        (NodeGeneration::FIRST, OwnerLeaseGeneration::FIRST);
    let ready = Authority {
        state: AuthorityState::Ready,
        type_name: "counter".into(),
        object_generation: ObjectGeneration::FIRST,
        authority_owner_generation: AuthorityOwnerGeneration::FIRST,
        mesh: MeshName::new("game").expect("a good name"),
        rid: rid.clone(),
        node_generation,
        owner_lease_generation,
        spot: None,
    };
    let creating = Authority { state: AuthorityState::Creating { attempt: 7 }, ..ready.clone() };
    let owner = OwnerRecord {
        node_generation,
        owner_lease_generation,
        lifecycle: 7,
        state: OwnerState::Active,
    };
    let released = OwnerRecord { state: OwnerState::Released, ..owner.clone() };
    let node = NodeDescriptor {
        rid,
        mesh: MeshName::new("game").expect("a good name"),
        endpoint: "tcp://127.0.0.1:7000".parse().expect("a good endpoint"),
        node_generation,
        key_id: 7,
        cores: 4,
        actor_types: vec!["counter".into()],
        spot_types: vec!["room".into()],
        message_follow_duration_ms: 30_000,
    };
    let rows = [
        ("actor-ready", 0, ready.encode()),
        ("actor-creating", 0, creating.encode()),
        ("spot-ready", 1, ready.encode()),
        ("owner-active", 2, owner.encode()),
        ("owner-released", 2, released.encode()),
        ("lease", 3, LeaseRecord { node_generation, owner_lease_generation }.encode()),
        ("node", 4, node.encode()),
        ("generation", 5, GenerationCounter { next: 4_097 }.encode()),
        ("hash-seed", 6, HashSeed(7).encode()),
    ];
    rows.into_iter().map(|(name, kind, row)| (name.into(), [vec![kind], row].concat())).collect()
}

/// Headers of regions of unlike sizes.
fn region_corpus() -> Corpus {
    let identity = RegionIdentity {
        mesh: MeshName::new("game").expect("a good name"),
        rid: NodeRid::new("node-a").expect("a good rid"),
        node_generation: 11,
        hash_seed: 7,
        process: ProcessIdentity { pid: 22, start_time_ticks: 33, boot_id: [5; 16] },
        created_at: Nanos(44),
    };
    let mut corpus = Corpus::new();
    for (cores, routes) in [(1, 4), (3, 64), (16, 4_096)] {
        let spec = RegionSpec {
            identity: identity.clone(),
            sizes: RegionSizes { node_rows_per_core: 8, ..RegionSizes::of_node(cores, routes) },
            counters: vec![CounterSpec { id: 1, label: "cache_hits", unit: "" }],
        };
        let region = Region::create(&spec, Place::Private, &mut |_| {}).expect("memory");
        corpus.insert(format!("cores-{cores:02}"), region.header().as_bytes().to_vec());
    }
    corpus
}

#[test]
fn the_stored_corpora_are_these_samples() {
    let write = std::env::var_os("HOMING_WRITE_CORPUS").is_some();
    for (target, corpus) in [
        ("record", record_corpus()),
        ("frame", frame_corpus()),
        ("row", row_corpus()),
        ("region", region_corpus()),
    ] {
        let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
        if write {
            std::fs::create_dir_all(&dir).expect("a directory");
            for (name, bytes) in &corpus {
                std::fs::write(dir.join(name), bytes).expect("written");
            }
        }
        for (name, bytes) in &corpus {
            let stored = std::fs::read(dir.join(name)).unwrap_or_default();
            assert!(
                stored == *bytes,
                "fuzz/corpus/{target}/{name} is not the sample any more: run this test with \
                 HOMING_WRITE_CORPUS=1"
            );
        }
    }
}
