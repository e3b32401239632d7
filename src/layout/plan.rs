#![forbid(unsafe_code)]
//! Where sections lie: worked out for a new region, checked for one that somebody else made.

use std::fmt;
use std::ops::Range;

use super::{
    HEADER_BYTES, LAYOUT_HASH, LAYOUT_VERSION, MAGIC, MAX_SECTIONS, RegionHeader,
    SHARD_ALIGN_BYTES, Section, SectionKind, WORD_BYTES, get_text,
};
use crate::limits::{MAX_CORES, ROUTE_CACHE_WAYS};

/// How large a new region is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RegionSizes {
    /// Cores of the node, 1..=256.
    pub core_count: u16,
    /// Routes of one core: a power of two, at least one set.
    pub routes_per_core: u32,
    /// Blocks of one core for the rest of long ids.
    pub arena_blocks_per_core: u32,
    /// Nodes of one core that others can look up, at most 2^24.
    pub node_rows_per_core: u32,
    /// Counters.
    pub counter_count: u32,
}

/// Where everything lies in a region. Every range it hands out lies inside the region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionMap {
    core_count: u16,
    region_bytes: u64,
    sections: [Section; SectionKind::ALL.len()],
}

impl RegionSizes {
    /// Works out where everything lies.
    ///
    /// # Errors
    /// A sentence that names the number that is out of its bounds.
    pub fn map(&self) -> Result<RegionMap, String> {
        self.check()?;
        let mut at = HEADER_BYTES;
        let sections = SectionKind::ALL.map(|kind| {
            let (shards, items) = self.shards_and_items(kind);
            let bytes = u64::from(items) * kind.item_bytes() as u64;
            let shard_bytes = bytes.next_multiple_of(SHARD_ALIGN_BYTES);
            let section = Section {
                kind: kind as u32,
                shard_count: shards,
                offset_bytes: at,
                shard_bytes,
                item_bytes: kind.item_bytes() as u32,
                items_per_shard: items,
                reserved: [0; 4],
            };
            at += u64::from(shards) * shard_bytes;
            section
        });
        Ok(RegionMap { core_count: self.core_count, region_bytes: at, sections })
    }

    fn check(&self) -> Result<(), String> {
        let ways = ROUTE_CACHE_WAYS as u32;
        if self.core_count == 0 || self.core_count > MAX_CORES {
            return Err(format!("a region of {} cores; 1 to {MAX_CORES}", self.core_count));
        }
        if !self.routes_per_core.is_power_of_two() || self.routes_per_core < ways {
            let n = self.routes_per_core;
            return Err(format!("{n} routes per core; a power of two from {ways} on is needed"));
        }
        if self.node_rows_per_core > 1 << super::NODE_ROW_BITS {
            let n = self.node_rows_per_core;
            return Err(format!("{n} node rows per core; 2^24 at most"));
        }
        Ok(())
    }

    fn shards_and_items(&self, kind: SectionKind) -> (u32, u32) {
        let cores = u32::from(self.core_count);
        let items = match kind {
            SectionKind::ShardHeads => 1,
            SectionKind::RouteHot | SectionKind::RouteCold => self.routes_per_core,
            SectionKind::IdArena => self.arena_blocks_per_core,
            SectionKind::NodeHot | SectionKind::NodeCold => self.node_rows_per_core,
            SectionKind::CounterLabels | SectionKind::CounterValues => self.counter_count,
        };
        (if kind.is_per_core() { cores } else { 1 }, items)
    }
}

impl RegionMap {
    /// Cores of the node.
    #[must_use]
    pub fn core_count(&self) -> u16 {
        self.core_count
    }

    /// Bytes of the whole region.
    #[must_use]
    pub fn region_bytes(&self) -> u64 {
        self.region_bytes
    }

    /// Items in each shard of a section.
    #[must_use]
    pub fn items(&self, kind: SectionKind) -> usize {
        self.sections[kind.index()].items_per_shard as usize
    }

    /// The words of one core's shard (of the only shard, for a section that has one); `None` for
    /// a core there is not.
    #[must_use]
    pub fn shard_words(&self, kind: SectionKind, core: u16) -> Option<Range<usize>> {
        let section = &self.sections[kind.index()];
        let shard = if kind.is_per_core() { u32::from(core) } else { 0 };
        if shard >= section.shard_count {
            return None;
        }
        let start = section.offset_bytes + u64::from(shard) * section.shard_bytes;
        let bytes = u64::from(section.items_per_shard) * u64::from(section.item_bytes);
        let start = start as usize / WORD_BYTES;
        Some(start..start + bytes as usize / WORD_BYTES)
    }

    /// The section table as the header has it.
    #[must_use]
    pub fn table(&self) -> [Section; MAX_SECTIONS] {
        let mut table = [Section::EMPTY; MAX_SECTIONS];
        table[..self.sections.len()].copy_from_slice(&self.sections);
        table
    }
}

impl Section {
    /// An entry that is not used.
    pub const EMPTY: Self = Self {
        kind: 0,
        shard_count: 0,
        offset_bytes: 0,
        shard_bytes: 0,
        item_bytes: 0,
        items_per_shard: 0,
        reserved: [0; 4],
    };

    fn end_bytes(&self) -> Option<u64> {
        u64::from(self.shard_count).checked_mul(self.shard_bytes)?.checked_add(self.offset_bytes)
    }
}

/// Why a region is not read. Each is one sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It does not begin as a region does.
    NotARegion,
    /// Its maker has not finished it, or died before that.
    Unfinished,
    /// Another version of the layout.
    OtherVersion {
        /// The version it says.
        found: u64,
    },
    /// The same version, and still laid out in another way.
    OtherLayout {
        /// The hash it says.
        found: u64,
    },
    /// It says one length and has another.
    OtherSize {
        /// The length it says.
        stated_bytes: u64,
        /// The length it has.
        actual_bytes: u64,
    },
    /// A number of the header is out of its bounds.
    Header(String),
    /// A section does not lie where it may.
    Section(String),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotARegion => {
                f.write_str("this is not a region: it does not begin with HOMINGSM")
            }
            Self::Unfinished => f.write_str(
                "the region is not finished: its node is starting, or died while it started",
            ),
            Self::OtherVersion { found } => write!(
                f,
                "the region has layout version {found} and this program reads version \
                 {LAYOUT_VERSION}: use the tool of the node's own release"
            ),
            Self::OtherLayout { found } => write!(
                f,
                "the region has layout hash {found:#018x} and this program reads \
                 {LAYOUT_HASH:#018x}: use the tool of the node's own build"
            ),
            Self::OtherSize { stated_bytes, actual_bytes } => write!(
                f,
                "the region says it has {stated_bytes} bytes and has {actual_bytes}: it was cut \
                 off or overwritten"
            ),
            Self::Header(text) => write!(f, "the region's header is damaged: {text}"),
            Self::Section(text) => write!(f, "the region's section table is damaged: {text}"),
        }
    }
}

impl std::error::Error for Refusal {}

/// Checks every field of a header that somebody else wrote, for a region that has `actual_bytes`.
/// Nothing behind the header may be read before this has passed.
///
/// # Errors
/// What is wrong, as one sentence.
pub fn check_header(header: &RegionHeader, actual_bytes: u64) -> Result<RegionMap, Refusal> {
    if header.magic != MAGIC {
        return Err(Refusal::NotARegion);
    }
    if header.version == 0 {
        return Err(Refusal::Unfinished);
    }
    if header.version != LAYOUT_VERSION {
        return Err(Refusal::OtherVersion { found: header.version });
    }
    if header.layout_hash != LAYOUT_HASH {
        return Err(Refusal::OtherLayout { found: header.layout_hash });
    }
    if header.region_bytes != actual_bytes {
        let stated_bytes = header.region_bytes;
        return Err(Refusal::OtherSize { stated_bytes, actual_bytes });
    }
    let core_count = check_numbers(header)?;
    let sections = check_sections(header, core_count)?;
    Ok(RegionMap { core_count, region_bytes: header.region_bytes, sections })
}

fn check_numbers(header: &RegionHeader) -> Result<u16, Refusal> {
    let bad = |text: String| Err(Refusal::Header(text));
    if header.header_bytes != HEADER_BYTES {
        return bad(format!("header_bytes is {}, not {HEADER_BYTES}", header.header_bytes));
    }
    let core_count = match u16::try_from(header.core_count) {
        Ok(n) if n > 0 && n <= MAX_CORES => n,
        _ => return bad(format!("core_count is {}, not 1 to {MAX_CORES}", header.core_count)),
    };
    if header.section_count as usize != SectionKind::ALL.len() {
        let wanted = SectionKind::ALL.len();
        return bad(format!("section_count is {}, not {wanted}", header.section_count));
    }
    if header.reserved != [0; 3] {
        return bad("a reserved word is not zero".to_owned());
    }
    for (name, field) in [("mesh", &header.mesh), ("rid", &header.rid)] {
        // 255 bytes fit behind any length, so only what is behind the text can be wrong.
        let len = get_text(field).map_or(0, <[u8]>::len);
        if field[1 + len..].iter().any(|b| *b != 0) {
            return bad(format!("{name} has bytes behind its {len}"));
        }
    }
    Ok(core_count)
}

fn check_sections(
    header: &RegionHeader,
    core_count: u16,
) -> Result<[Section; SectionKind::ALL.len()], Refusal> {
    let mut found = [Section::EMPTY; SectionKind::ALL.len()];
    for (at, section) in header.sections.iter().enumerate() {
        if at >= header.section_count as usize {
            if *section != Section::EMPTY {
                return Err(Refusal::Section(format!("entry {at} should be empty")));
            }
            continue;
        }
        let Some(kind) = SectionKind::of(section.kind) else {
            return Err(Refusal::Section(format!("entry {at} has kind {}", section.kind)));
        };
        if found[kind.index()] != Section::EMPTY {
            return Err(Refusal::Section(format!("{} is there twice", kind.as_str())));
        }
        check_section(kind, section, core_count, header.region_bytes)
            .map_err(|text| Refusal::Section(format!("{} {text}", kind.as_str())))?;
        found[kind.index()] = *section;
    }
    check_overlaps(&found)?;
    let items = |kind: SectionKind| found[kind.index()].items_per_shard;
    for (one, other) in [
        (SectionKind::RouteHot, SectionKind::RouteCold),
        (SectionKind::NodeHot, SectionKind::NodeCold),
        (SectionKind::CounterLabels, SectionKind::CounterValues),
    ] {
        if items(one) != items(other) {
            let text = format!("{} and {} differ in length", one.as_str(), other.as_str());
            return Err(Refusal::Section(text));
        }
    }
    Ok(found)
}

fn check_section(
    kind: SectionKind,
    section: &Section,
    core_count: u16,
    region_bytes: u64,
) -> Result<(), String> {
    let shards = if kind.is_per_core() { u32::from(core_count) } else { 1 };
    if section.shard_count != shards {
        return Err(format!("has {} shards, not {shards}", section.shard_count));
    }
    if section.item_bytes as usize != kind.item_bytes() {
        return Err(format!("has items of {} bytes", section.item_bytes));
    }
    if section.reserved != [0; 4] {
        return Err("has a reserved word that is not zero".to_owned());
    }
    let offset = section.offset_bytes;
    if !offset.is_multiple_of(SHARD_ALIGN_BYTES)
        || !section.shard_bytes.is_multiple_of(SHARD_ALIGN_BYTES)
    {
        return Err(format!("is not aligned: {offset}, {}", section.shard_bytes));
    }
    if u64::from(section.items_per_shard) * u64::from(section.item_bytes) > section.shard_bytes {
        return Err(format!("has shards too short for {} items", section.items_per_shard));
    }
    if offset < HEADER_BYTES || section.end_bytes().is_none_or(|end| end > region_bytes) {
        return Err(format!("lies outside of the region, at {offset}"));
    }
    let items = section.items_per_shard;
    let good = match kind {
        SectionKind::ShardHeads => items == 1,
        SectionKind::RouteHot => items.is_power_of_two() && items as usize >= ROUTE_CACHE_WAYS,
        SectionKind::NodeHot => items <= 1 << super::NODE_ROW_BITS,
        _ => true,
    };
    if good { Ok(()) } else { Err(format!("has {items} items")) }
}

fn check_overlaps(found: &[Section]) -> Result<(), Refusal> {
    let mut spans: Vec<(u64, u64, u32)> = found
        .iter()
        .map(|s| (s.offset_bytes, s.end_bytes().unwrap_or(u64::MAX), s.kind))
        .filter(|(start, end, _)| start != end)
        .collect();
    spans.sort_unstable();
    for pair in spans.windows(2) {
        if pair[0].1 > pair[1].0 {
            let name = |kind| SectionKind::of(kind).map_or("?", SectionKind::as_str);
            let text = format!("{} and {} overlap", name(pair[0].2), name(pair[1].2));
            return Err(Refusal::Section(text));
        }
    }
    Ok(())
}
