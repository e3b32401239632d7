//! The header of a shared-memory region, whoever wrote it: refused, or every range it leads to lies
//! inside the region, behind the header, on whole words, and apart from every other.
#![no_main]

use homing::layout::{HEADER_BYTES, RegionHeader, SectionKind, WORD_BYTES, check_header};
use libfuzzer_sys::fuzz_target;
use zerocopy::FromBytes;

fuzz_target!(|bytes: &[u8]| {
    let Ok((header, rest)) = RegionHeader::read_from_prefix(bytes) else { return };
    let claimed = rest.first_chunk().map_or(header.region_bytes, |b| u64::from_le_bytes(*b));
    for actual in [claimed, header.region_bytes] {
        let Ok(map) = check_header(&header, actual) else { continue };
        assert!(map.region_bytes() <= actual, "the region is as long as it says");
        let mut ranges = Vec::new();
        for kind in SectionKind::ALL {
            for core in 0..map.core_count() {
                ranges.extend(map.shard_words(kind, core));
            }
            assert_eq!(map.shard_words(kind, u16::MAX).is_some(), map.shard_words(kind, 0).is_some() && !kind.is_per_core());
        }
        ranges.sort_by_key(|range| (range.start, range.end));
        ranges.dedup();
        let header_words = HEADER_BYTES as usize / WORD_BYTES;
        let end = (actual / WORD_BYTES as u64) as usize;
        for range in &ranges {
            assert!(range.start >= header_words && range.start <= range.end && range.end <= end);
        }
        for pair in ranges.windows(2) {
            assert!(pair[0].end <= pair[1].start, "{pair:?} overlap");
        }
    }
});
