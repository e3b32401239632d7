#![forbid(unsafe_code)]
//! A row of the Location Store, whoever wrote it: refused with its key, or accepted so that it reads
//! back as it was.
#![no_main]

use homing::ids::{NodeRid, ObjectKind};
use homing::store::records::{
    Authority, GenerationCounter, HashSeed, LeaseRecord, NodeDescriptor, OwnerRecord,
    authority_key, generation_key, hash_seed_key, lease_key, node_key, owner_key,
};
use libfuzzer_sys::fuzz_target;

macro_rules! reads_back {
    ($type:ty, $key:expr, $bytes:expr) => {{
        let key = $key;
        match <$type>::decode(&key, $bytes) {
            Ok(row) => {
                let again = row.encode();
                let back = <$type>::decode(&key, &again).expect("what was written reads back");
                assert_eq!(back, row);
                assert_eq!(back.encode(), again, "equal records have equal bytes");
            }
            Err(e) => {
                let named = key.escape_ascii().to_string();
                assert!(e.text().contains(&named), "the error names the row: {e}");
            }
        }
    }};
}

fuzz_target!(|bytes: &[u8]| {
    let Some((which, bytes)) = bytes.split_first() else { return };
    let rid = NodeRid::new("node-a").expect("a good rid");
    match which % 7 {
        0 => reads_back!(Authority, authority_key(ObjectKind::Actor, "a"), bytes),
        1 => reads_back!(Authority, authority_key(ObjectKind::Spot, "s"), bytes),
        2 => reads_back!(OwnerRecord, owner_key(&rid), bytes),
        3 => reads_back!(LeaseRecord, lease_key(&rid), bytes),
        4 => reads_back!(NodeDescriptor, node_key(&rid), bytes),
        5 => reads_back!(GenerationCounter, generation_key(), bytes),
        _ => reads_back!(HashSeed, hash_seed_key(), bytes),
    }
});
