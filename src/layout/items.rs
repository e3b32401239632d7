#![forbid(unsafe_code)]
//! The structs of the region. Each line is an offset, a field and its type; a field that does not
//! lie at its offset does not compile.

use std::mem::offset_of;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{Field, Item, MAX_SECTIONS};

macro_rules! shared_structs {
    ($(
        $(#[$doc:meta])*
        $name:ident: $size:literal bytes, align $align:literal {
            $($(#[$field_doc:meta])* $offset:literal $field:ident: $ty:ty,)*
        }
    )*) => {
        $(
            $(#[$doc])*
            #[derive(
                Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
            )]
            #[repr(C, align($align))]
            pub struct $name {
                $($(#[$field_doc])* pub $field: $ty,)*
            }

            impl $name {
                /// Its length in words.
                pub const WORDS: usize = $size / super::WORD_BYTES;
            }

            const _: () = {
                assert!(size_of::<$name>() == $size && $size % super::WORD_BYTES == 0);
                assert!(align_of::<$name>() == $align);
                $(assert!(offset_of!($name, $field) == $offset);)*
            };
        )*

        /// Every struct with its fields.
        pub(super) const ALL: &[Item] = &[$(Item {
            name: stringify!($name),
            size_bytes: size_of::<$name>(),
            align_bytes: align_of::<$name>(),
            fields: &[$(Field {
                name: stringify!($field),
                type_name: stringify!($ty),
                offset_bytes: offset_of!($name, $field),
                size_bytes: {
                    const fn size_of_field<S, T>(_: fn(&S) -> &T) -> usize {
                        size_of::<T>()
                    }
                    size_of_field(|s: &$name| &s.$field)
                },
            }),*],
        }),*];
    };
}

shared_structs! {
    /// Whose region it is and where everything lies. Written once, before `version`.
    RegionHeader: 1664 bytes, align 64 {
        /// [`super::MAGIC`]
        0 magic: u64,
        /// [`super::LAYOUT_VERSION`], published last; zero while the region is being made.
        8 version: u64,
        /// [`super::LAYOUT_HASH`]
        16 layout_hash: u64,
        /// [`super::HEADER_BYTES`]
        24 header_bytes: u64,
        /// Bytes of the whole region.
        32 region_bytes: u64,
        /// Cores of the node.
        40 core_count: u32,
        /// Entries of `sections` that are used.
        44 section_count: u32,
        /// The seed of the object hash, so that an id can be looked up.
        48 hash_seed: u64,
        /// The node's lifecycle; zero in a region that belongs to no node.
        56 node_generation: u64,
        /// When the region was made, in nanoseconds since boot.
        64 created_at_ns: u64,
        /// The process.
        72 pid: u64,
        /// When the process started, in clock ticks since boot: two processes that had one pid
        /// after the other differ in it.
        80 start_time_ticks: u64,
        /// The boot.
        88 boot_id: [u8; 16],
        /// The node's mesh, its length first.
        104 mesh: [u8; 256],
        /// The node's rid, its length first.
        360 rid: [u8; 256],
        /// Zero.
        616 reserved: [u64; 3],
        /// Where everything lies.
        640 sections: [Section; MAX_SECTIONS],
    }

    /// Where one kind of item lies: shards of equal length, one behind the other.
    Section: 64 bytes, align 64 {
        /// A [`super::SectionKind`]; zero for an entry that is not used.
        0 kind: u32,
        /// One, or the number of cores.
        4 shard_count: u32,
        /// Where the first shard begins.
        8 offset_bytes: u64,
        /// From the begin of one shard to the next.
        16 shard_bytes: u64,
        /// Bytes of one item.
        24 item_bytes: u32,
        /// Items of one shard.
        28 items_per_shard: u32,
        /// Zero.
        32 reserved: [u64; 4],
    }

    /// What one core says about its shard. Each word stands for itself. What every look-up reads
    /// and hardly anything changes lies apart from what the core writes all the time.
    ShardHead: 256 bytes, align 128 {
        /// The longest life a route that stands can have: `inserted_at` is not needed to judge a
        /// route whose owner's follow duration (less the gap) is longer.
        0 longest_life_ns: u64,
        /// `route_cache_max_age` in force.
        8 max_age_ns: u64,
        /// `message_follow_duration` in force.
        16 follow_duration_ns: u64,
        /// Zero.
        24 reserved_of_settings: [u64; 13],
        /// Routes that stand.
        128 route_count: u64,
        /// Look-ups answered by an entry.
        136 hits: u64,
        /// Look-ups that found nothing usable.
        144 misses: u64,
        /// Entries set.
        152 inserts: u64,
        /// Insertions refused.
        160 refused: u64,
        /// Entries given up for another id of the same set.
        168 evictions: u64,
        /// Entries removed.
        176 removals: u64,
        /// Arena blocks in use.
        184 arena_blocks_used: u64,
        /// Nodes known to the core.
        192 node_count: u64,
        /// When the core's loop came round last, in nanoseconds since boot.
        200 heartbeat_ns: u64,
        /// Zero.
        208 reserved_of_counts: [u64; 6],
    }

    /// What a message needs of a cached route: one cache line.
    HotRoute: 64 bytes, align 64 {
        /// Odd while the item is written.
        0 seq: u64,
        /// The object's hash, low half.
        8 hash_low: u64,
        /// The object's hash, high half.
        16 hash_high: u64,
        /// The owner, see [`super::pack_node`]; zero for an empty slot.
        24 node: u64,
        /// The incarnation.
        32 object_generation: u64,
        /// The tenure.
        40 authority_owner_generation: u64,
        /// The version of the authority row.
        48 store_version: u64,
        /// When the entry ends by the settings of this node, in nanoseconds since boot.
        56 expires_at_ns: u64,
    }

    /// What else is known about a cached route, for whoever inspects it. Same index as its
    /// [`HotRoute`], whose seq covers it.
    ColdRoute: 64 bytes, align 64 {
        /// When the entry was set, in nanoseconds since boot.
        0 inserted_at_ns: u64,
        /// The block that has the rest of the id, or [`super::NO_BLOCK`].
        8 arena_block: u32,
        /// An `ObjectKind`.
        12 kind: u8,
        /// Bytes of the whole id. More than 48 without a block: the rest found no place.
        13 id_len: u8,
        /// Zero.
        14 reserved: u16,
        /// The id, or its first part.
        16 id: [u8; 48],
    }

    /// The part of an id behind its first 48 bytes.
    IdBlock: 208 bytes, align 8 {
        /// The bytes; zero behind the end.
        0 bytes: [u8; 208],
    }

    /// What a message needs of a node: one cache line, so that a lease's deadline stands once.
    HotNode: 64 bytes, align 64 {
        /// Odd while the item is written.
        0 seq: u64,
        /// Names the lifecycle that stands here; zero for an empty row.
        8 stamp: u64,
        /// The node's lifecycle.
        16 node_generation: u64,
        /// Its process lifecycle.
        24 lease_generation: u64,
        /// Its lease's local admission deadline, in nanoseconds since boot.
        32 admission_deadline_ns: u64,
        /// Its `message_follow_duration`; zero for none, [`super::FOLLOW_UNKNOWN`] when it has
        /// not said it.
        40 follow_duration_ns: u64,
        /// Its security identity, low half first.
        48 key_id: [u64; 2],
    }

    /// The names of a node. Same index as its [`HotNode`], whose seq covers it.
    ColdNode: 640 bytes, align 64 {
        /// The rid, its length first.
        0 rid: [u8; 256],
        /// The mesh, its length first.
        256 mesh: [u8; 256],
        /// Where it listens, its length first.
        512 endpoint: [u8; 128],
    }

    /// What a counter is. Written once, before `RegionHeader::version`.
    CounterLabel: 128 bytes, align 64 {
        /// A number that stays with the counter across versions.
        0 id: u32,
        /// Zero.
        4 reserved: u32,
        /// What it counts in: `ns`, `bytes`, or nothing for plain events; its length first.
        8 unit: [u8; 16],
        /// Its name, its length first.
        24 label: [u8; 104],
    }
}
