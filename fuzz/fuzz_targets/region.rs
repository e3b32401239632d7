#![forbid(unsafe_code)]
//! The header of a shared-memory region, whoever wrote it: refused, or every range it leads to lies
//! inside the region, behind the header, and apart from every other. What is compared with a
//! constant is made to fit, so that mutations get behind it.
#![no_main]

use homing::layout::{
    HEADER_BYTES, LAYOUT_HASH, LAYOUT_VERSION, MAGIC, RegionHeader, SectionKind, WORD_BYTES,
    check_header,
};
use libfuzzer_sys::fuzz_target;
use zerocopy::FromBytes;

fn check(header: &RegionHeader) {
    let Ok(map) = check_header(header, header.region_bytes) else { return };
    assert_eq!(map.region_bytes(), header.region_bytes);
    let mut ranges = Vec::new();
    for kind in SectionKind::ALL {
        ranges.extend((0..map.core_count()).filter_map(|core| map.shard_words(kind, core)));
        assert_eq!(map.shard_words(kind, u16::MAX).is_some(), !kind.is_per_core());
    }
    ranges.sort_by_key(|range| (range.start, range.end));
    ranges.dedup(); // A section with one shard leads every core there.
    ranges.retain(|range| !range.is_empty());
    let first = (HEADER_BYTES as usize) / WORD_BYTES;
    let end = usize::try_from(map.region_bytes() / WORD_BYTES as u64).expect("64 bits");
    for range in &ranges {
        assert!(range.start >= first && range.end <= end, "{range:?} of {first}..{end}");
    }
    for pair in ranges.windows(2) {
        assert!(pair[0].end <= pair[1].start, "{pair:?} overlap");
    }
}

fuzz_target!(|bytes: &[u8]| {
    let Ok((header, _)) = RegionHeader::read_from_prefix(bytes) else { return };
    check(&header);
    let fitted = RegionHeader {
        magic: MAGIC,
        version: LAYOUT_VERSION,
        layout_hash: LAYOUT_HASH,
        header_bytes: HEADER_BYTES,
        ..header
    };
    check(&fitted);
});
