#![forbid(unsafe_code)]
//! What lies where in a node's shared-memory region (DESIGN §7).
//!
//! ```text
//! 0     ┌───────────────────────────────────────────────────────────────┐
//!       │ RegionHeader: magic, version (published last), layout hash,    │
//!       │ whose region it is, and where each section lies                │
//! 4096  ├───────────────────────────────────────────────────────────────┤
//!       │ shard_heads     one ShardHead per core                         │
//!       │ route_hot       per core: sets of four 64-byte HotRoute        │
//!       │ route_cold      per core: one ColdRoute per HotRoute           │
//!       │ id_arena        per core: IdBlocks for ids over 48 bytes       │
//!       │ node_hot        per core: one 64-byte HotNode per known node   │
//!       │ node_cold       per core: its names, same index                │
//!       │ counter_labels  one CounterLabel per counter                   │
//!       │ counter_values  per core: one u64 per counter                  │
//!       └───────────────────────────────────────────────────────────────┘
//!
//! HotRoute    0 seq │ 8 hash low │ 16 hash high │ 24 node (24 bit row, 40 bit stamp)
//!            32 object generation │ 40 authority owner generation │ 48 store version
//!            56 expires at
//!            set: low bits of hash high; first way: its top two bits
//! ColdRoute   0 inserted at │ 8 kind, id length, arena block │ 16 first 48 bytes of the id
//! HotNode     0 seq │ 8 stamp │ 16 node generation │ 24 lease generation
//!            32 admission deadline │ 40 follow duration │ 48 key id (low, high)
//! ```
//!
//! Every item is whole 64-bit words, because a word is what can be read and written at once. All
//! numbers are in the byte order of the host: a region never leaves it. The seq of a hot item also
//! covers the cold item of the same index, and the arena block that one names.
//!
//! Sizes and offsets are asserted at compile time, and all of them (names and types too) enter
//! [`LAYOUT_HASH`]: two programs that lay out anything differently have different hashes and refuse
//! each other's regions. This module is arithmetic only; `shm` maps memory.

mod items;
mod plan;

pub use items::{
    ColdNode, ColdRoute, CounterLabel, HotNode, HotRoute, IdBlock, RegionHeader, Section, ShardHead,
};
pub use plan::{Refusal, RegionMap, RegionSizes, check_header};

use crate::limits::ROUTE_CACHE_WAYS;

/// The first word of every region: `HOMINGSM` in memory.
pub const MAGIC: u64 = u64::from_ne_bytes(*b"HOMINGSM");
/// The version of this layout. It is the word that is published last; zero means that the region
/// is being made.
pub const LAYOUT_VERSION: u64 = 1;
/// Where the first section may begin.
pub const HEADER_BYTES: u64 = 4096;
/// Entries of the section table.
pub const MAX_SECTIONS: usize = 16;
/// Sections and shards begin at multiples of this: no two cores write to one cache line, nor to
/// the pair of lines that is fetched together.
pub const SHARD_ALIGN_BYTES: u64 = 128;
/// Id bytes that stand in a [`ColdRoute`]; the rest of a longer id is in an [`IdBlock`].
pub const INLINE_ID_BYTES: usize = 48;
/// `ColdRoute::arena_block` of an id that has no block.
pub const NO_BLOCK: u32 = u32::MAX;
/// `HotNode::follow_duration_ns` of a node that has not said it.
pub const FOLLOW_UNKNOWN: u64 = u64::MAX;
/// Bytes of a word.
pub const WORD_BYTES: usize = 8;

/// What a section holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u32)]
pub enum SectionKind {
    /// [`ShardHead`]
    ShardHeads = 1,
    /// [`HotRoute`]
    RouteHot = 2,
    /// [`ColdRoute`]
    RouteCold = 3,
    /// [`IdBlock`]
    IdArena = 4,
    /// [`HotNode`]
    NodeHot = 5,
    /// [`ColdNode`]
    NodeCold = 6,
    /// [`CounterLabel`]; one shard for all cores.
    CounterLabels = 7,
    /// `u64`
    CounterValues = 8,
}

impl SectionKind {
    /// All kinds in the order in which they lie.
    pub const ALL: [Self; 8] = [
        Self::ShardHeads,
        Self::RouteHot,
        Self::RouteCold,
        Self::IdArena,
        Self::NodeHot,
        Self::NodeCold,
        Self::CounterLabels,
        Self::CounterValues,
    ];

    /// The name under which it is shown.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ShardHeads => "shard_heads",
            Self::RouteHot => "route_hot",
            Self::RouteCold => "route_cold",
            Self::IdArena => "id_arena",
            Self::NodeHot => "node_hot",
            Self::NodeCold => "node_cold",
            Self::CounterLabels => "counter_labels",
            Self::CounterValues => "counter_values",
        }
    }

    /// Bytes of one item.
    #[must_use]
    pub const fn item_bytes(self) -> usize {
        match self {
            Self::ShardHeads => size_of::<ShardHead>(),
            Self::RouteHot => size_of::<HotRoute>(),
            Self::RouteCold => size_of::<ColdRoute>(),
            Self::IdArena => size_of::<IdBlock>(),
            Self::NodeHot => size_of::<HotNode>(),
            Self::NodeCold => size_of::<ColdNode>(),
            Self::CounterLabels => size_of::<CounterLabel>(),
            Self::CounterValues => WORD_BYTES,
        }
    }

    /// Whether each core has a shard of its own.
    #[must_use]
    pub const fn is_per_core(self) -> bool {
        !matches!(self, Self::CounterLabels)
    }

    fn index(self) -> usize {
        self as usize - 1
    }

    fn of(value: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u32 == value)
    }
}

/// One field of a shared struct, as the compiler laid it out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its name.
    pub name: &'static str,
    /// Its type as written.
    pub type_name: &'static str,
    /// Where it begins in its struct.
    pub offset_bytes: usize,
    /// How long it is.
    pub size_bytes: usize,
}

/// One shared struct, as the compiler laid it out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item {
    /// Its name.
    pub name: &'static str,
    /// Its size.
    pub size_bytes: usize,
    /// Its alignment in memory.
    pub align_bytes: usize,
    /// Its fields in order.
    pub fields: &'static [Field],
}

/// Every shared struct.
pub const ITEMS: &[Item] = items::ALL;

/// A hash of everything a reader must agree on: names, types, sizes and offsets of all fields, the
/// kinds of sections, and the constants above.
pub const LAYOUT_HASH: u64 = {
    let mut hash = hash_word(FNV_OFFSET, MAX_SECTIONS as u64);
    hash = hash_word(hash, HEADER_BYTES);
    hash = hash_word(hash, SHARD_ALIGN_BYTES);
    hash = hash_word(hash, NODE_ROW_BITS as u64);
    hash = hash_word(hash, ROUTE_CACHE_WAYS as u64);
    hash = hash_bytes(hash, ROUTE_SEARCH.as_bytes());
    let mut at = 0;
    while at < SectionKind::ALL.len() {
        hash = hash_word(hash, SectionKind::ALL[at] as u64);
        hash = hash_bytes(hash, SectionKind::ALL[at].as_str().as_bytes());
        at += 1;
    }
    at = 0;
    while at < ITEMS.len() {
        hash = hash_item(hash, &ITEMS[at]);
        at += 1;
    }
    hash
};

const fn hash_item(mut hash: u64, item: &Item) -> u64 {
    hash = hash_bytes(hash, item.name.as_bytes());
    hash = hash_word(hash, item.size_bytes as u64);
    hash = hash_word(hash, item.align_bytes as u64);
    let mut at = 0;
    while at < item.fields.len() {
        let field = &item.fields[at];
        hash = hash_bytes(hash, field.name.as_bytes());
        hash = hash_bytes(hash, field.type_name.as_bytes());
        hash = hash_word(hash, field.offset_bytes as u64);
        hash = hash_word(hash, field.size_bytes as u64);
        at += 1;
    }
    hash
}

/// FNV-1a, which a constant can compute.
const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0000_0100_0000_01b3;

const fn hash_bytes(mut hash: u64, bytes: &[u8]) -> u64 {
    let mut at = 0;
    while at < bytes.len() {
        hash = (hash ^ bytes[at] as u64).wrapping_mul(FNV_PRIME);
        at += 1;
    }
    // Ends the string, so that "ab","c" and "a","bc" differ.
    (hash ^ 0xff).wrapping_mul(FNV_PRIME)
}

const fn hash_word(hash: u64, word: u64) -> u64 {
    hash_bytes(hash, &word.to_le_bytes())
}

/// How [`set_of`] and [`ways_of`] find a route: another way to seek is another layout.
const ROUTE_SEARCH: &str = "set: low bits of hash high; ways: its top two bits xor 0, 1, 2, 3";

const _: () = assert!(ROUTE_CACHE_WAYS == 4);

/// The set of a shard of `sets` sets (a power of two) in which an object's route may be.
#[must_use]
#[inline]
pub const fn set_of(hash_high: u64, sets: usize) -> usize {
    hash_high as usize & (sets - 1)
}

/// The ways of that set in the order in which they are looked into and filled. Each object has a
/// first way of its own, so that in a set that is not full most routes are found in the first
/// line that is touched.
///
/// ```
/// use homing::layout::ways_of;
/// assert_eq!(ways_of(0), [0, 1, 2, 3]);
/// assert_eq!(ways_of(u64::MAX), [3, 2, 1, 0]);
/// ```
#[must_use]
#[inline]
pub const fn ways_of(hash_high: u64) -> [usize; ROUTE_CACHE_WAYS] {
    let first = (hash_high >> 62) as usize;
    [first, first ^ 1, first ^ 2, first ^ 3]
}

/// Bits of `HotRoute::node` that name the row.
const NODE_ROW_BITS: u32 = 24;

/// `HotRoute::node`: the row of the owner in the node table, and the stamp that row had. The
/// stamp is of one lifecycle, so that a route never speaks of a later one. `None` when a part
/// does not fit, or the stamp is zero, which is no stamp.
///
/// ```
/// use homing::layout::{pack_node, unpack_node};
/// let word = pack_node(5, 9).unwrap();
/// assert_eq!(unpack_node(word), Some((5, 9)));
/// assert_eq!(unpack_node(0), None);
/// assert_eq!(pack_node(1 << 24, 9), None);
/// ```
#[must_use]
pub const fn pack_node(row: u32, stamp: u64) -> Option<u64> {
    if row >> NODE_ROW_BITS != 0 || stamp == 0 || stamp >> (64 - NODE_ROW_BITS) != 0 {
        return None;
    }
    Some((stamp << NODE_ROW_BITS) | row as u64)
}

/// The row and stamp of a `HotRoute::node`; `None` for an empty slot.
#[must_use]
pub const fn unpack_node(word: u64) -> Option<(u32, u64)> {
    let stamp = word >> NODE_ROW_BITS;
    if stamp == 0 {
        return None;
    }
    Some(((word & ((1 << NODE_ROW_BITS) - 1)) as u32, stamp))
}

/// Writes text into a field whose first byte is the length; the rest becomes zero. What does not
/// fit is cut off.
pub fn put_text<const N: usize>(field: &mut [u8; N], text: &[u8]) {
    let len = text.len().min(N - 1).min(255);
    field.fill(0);
    field[0] = len as u8;
    field[1..=len].copy_from_slice(&text[..len]);
}

/// Reads what [`put_text`] wrote; `None` when the length leads out of the field.
///
/// ```
/// use homing::layout::{get_text, put_text};
/// let mut field = [0; 16];
/// put_text(&mut field, b"game");
/// assert_eq!(get_text(&field), Some(&b"game"[..]));
/// field[0] = 16;
/// assert_eq!(get_text(&field), None);
/// ```
#[must_use]
pub fn get_text<const N: usize>(field: &[u8; N]) -> Option<&[u8]> {
    field.get(1..1 + usize::from(field[0]))
}
