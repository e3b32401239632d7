#![forbid(unsafe_code)]
//! The positive route cache of one core (R2.2), in shared memory (DESIGN §7).
//!
//! It answers as [`RouteCache`](super::RouteCache) does and has the same methods. Its home core is
//! the only writer; a [`RouteReader`] of any thread or process looks routes up beside it, without
//! either waiting for the other.
//!
//! What a message needs of a route is one cache line: the object's 128-bit hash, the fences, the
//! deadline, and which row of the node table has the owner's. The id itself is in a cold line for
//! whoever inspects. A route is identified by the hash: two ids of equal hashes would share an
//! entry, the target of a wrong one refuses it as stale, and nothing is delivered wrongly
//! (R2.1-3).
//!
//! The home core keeps its [`NodeTable`] in its own memory, because names are of any length, and
//! writes what readers need of it into the rows of the region. A node beyond the last row is known
//! to the home core as any other; readers miss its routes.

mod found;
mod nodes;
mod reader;

use std::mem::offset_of;
use std::time::Duration;

pub use found::FoundRoute;
pub use nodes::NodesMut;
pub use reader::{InspectedRoute, RouteReader, SeenNode, SeenRoute};

use self::nodes::NodeRows;
use super::cache::peer_end;
use super::{
    CacheCounters, InsertOutcome, NodeEntry, NodeSlot, NodeTable, Route, RouteLifetimes, Sighting,
};
use crate::error::{Error, Result};
use crate::ids::{
    AuthorityOwnerGeneration, MeshName, NodeRid, ObjectGeneration, ObjectHash, ObjectKey,
    OwnerLeaseGeneration, RouteFence, StoreVersion,
};
use crate::layout::{
    ColdRoute, HotRoute, INLINE_ID_BYTES, IdBlock, NO_BLOCK, RegionSizes, ShardHead, WORD_BYTES,
    pack_node, set_of, unpack_node, ways_of,
};
use crate::limits::{CACHE_FOLLOW_GAP, ROUTE_CACHE_WAYS};
use crate::shm::{Place, ProcessIdentity, Region, RegionIdentity, RegionSpec, Shard, WriteWords};
use crate::time::{Nanos, duration_ns};

/// The word of a field.
macro_rules! word {
    ($item:ident . $field:ident) => {
        const { offset_of!($item, $field) / WORD_BYTES }
    };
}
use word;

/// Words of one set.
const SET_WORDS: usize = ROUTE_CACHE_WAYS * HotRoute::WORDS;

/// The positive route cache of one core, in shared memory. See the module's head.
#[derive(Debug)]
pub struct SharedRouteCache {
    hot: WriteWords,
    cold: WriteWords,
    arena: WriteWords,
    head: WriteWords,
    rows: NodeRows,
    nodes: NodeTable,
    lifetimes: RouteLifetimes,
    /// No route that stands has a longer life than this.
    longest_life: Duration,
    sets: usize,
    free_blocks: Vec<u32>,
    len: usize,
}

impl SharedRouteCache {
    /// A cache in memory of this process alone, of at most `capacity` routes: rounded down to a
    /// power of two, at least one set. For worlds without a region, and for tests.
    ///
    /// # Errors
    /// When the kernel gives no memory.
    pub fn private(capacity: usize, lifetimes: RouteLifetimes) -> Result<Self> {
        let spec = RegionSpec {
            identity: RegionIdentity {
                mesh: MeshName::new("-")?,
                rid: NodeRid::new("-")?,
                node_generation: 0,
                hash_seed: 0,
                process: ProcessIdentity { pid: 0, start_time_ticks: 0, boot_id: [0; 16] },
                created_at: Nanos::ZERO,
            },
            sizes: RegionSizes::of_node(1, capacity),
            counters: Vec::new(),
        };
        let mut region = Region::create(&spec, Place::Private, &mut |_| ())?;
        let shard = region.take_shard(0).ok_or_else(|| Error::internal("a region of no core"))?;
        Ok(Self::over(shard, lifetimes))
    }

    /// A cache in a core's shard of a region. What a writer before left there is dropped.
    #[must_use]
    pub fn over(shard: Shard, lifetimes: RouteLifetimes) -> Self {
        let slots = shard.route_hot.len() / HotRoute::WORDS;
        let blocks = shard.id_arena.len() / IdBlock::WORDS;
        let mut cache = Self {
            sets: slots / ROUTE_CACHE_WAYS,
            hot: shard.route_hot,
            cold: shard.route_cold,
            arena: shard.id_arena,
            head: shard.head,
            rows: NodeRows::new(shard.node_hot, shard.node_cold),
            nodes: NodeTable::new(),
            lifetimes,
            longest_life: Duration::ZERO,
            free_blocks: (0..blocks as u32).rev().collect(),
            len: 0,
        };
        if !shard.is_fresh {
            cache.sweep();
        }
        cache.show_lifetimes();
        cache
    }

    /// Empties every item, whatever state a writer that died has left it in.
    fn sweep(&mut self) {
        for slot in 0..self.capacity() {
            let words: [u64; HotRoute::WORDS] = self.hot.copy(slot * HotRoute::WORDS);
            // An even seq over an empty slot is as good as a fresh one.
            if words[0] & 1 == 1 || words[1..].iter().any(|word| *word != 0) {
                self.hot.write(slot * HotRoute::WORDS, &[0; HotRoute::WORDS - 1], || ());
            }
        }
        self.rows.sweep();
        self.head.put(0, &[0; ShardHead::WORDS]);
    }

    /// Routes it can hold.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.sets * ROUTE_CACHE_WAYS
    }

    /// Entries that stand, usable or not.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no entry stands.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The nodes this core knows.
    #[must_use]
    pub fn nodes(&self) -> &NodeTable {
        &self.nodes
    }

    /// The nodes this core knows, to renew a lease or to set a follow duration. Entries to a node
    /// that is removed or replaced are dead from then on.
    pub fn nodes_mut(&mut self) -> NodesMut<'_> {
        NodesMut { table: &mut self.nodes, rows: &mut self.rows, head: &mut self.head }
    }

    /// Takes in what was read or announced about a node; see [`NodeTable::see`].
    pub fn see_node(&mut self, entry: NodeEntry) -> Sighting {
        self.nodes_mut().see(entry)
    }

    /// What was counted.
    #[must_use]
    pub fn counters(&self) -> CacheCounters {
        CacheCounters {
            hits: self.head.load(word!(ShardHead.hits)),
            misses: self.head.load(word!(ShardHead.misses)),
            inserts: self.head.load(word!(ShardHead.inserts)),
            refused: self.head.load(word!(ShardHead.refused)),
            evictions: self.head.load(word!(ShardHead.evictions)),
            removals: self.head.load(word!(ShardHead.removals)),
        }
    }

    /// The two durations.
    #[must_use]
    pub fn lifetimes(&self) -> RouteLifetimes {
        self.lifetimes
    }

    /// Whether routes are cached at all.
    #[must_use]
    pub fn is_on(&self) -> bool {
        !self.lifetimes.max_age.is_zero()
    }

    /// Tells readers that the core's loop came round.
    pub fn beat(&mut self, now: Nanos) {
        self.head.store(word!(ShardHead.heartbeat_ns), now.0);
    }

    /// The route of an id, while both its deadlines hold (R2.2-2). Counts a hit or a miss; an
    /// entry that has ended is removed. A hit touches one cache line of the routes as a rule, four
    /// at most, and the owner's entry in the node table; no allocation, no reference count.
    #[inline]
    pub fn find(&mut self, key: &ObjectKey, now: Nanos) -> Option<FoundRoute> {
        let slot = self.slot_of(key.object_hash());
        match slot.and_then(|slot| self.usable(slot, now)) {
            Some((found, _)) => {
                self.head.add(word!(ShardHead.hits), 1);
                Some(found)
            }
            None => {
                self.miss(slot);
                None
            }
        }
    }

    /// As [`SharedRouteCache::find`], with the names, which are shared with `key` and with the
    /// node table: three reference counts, no allocation.
    pub fn lookup(&mut self, key: &ObjectKey, now: Nanos) -> Option<Route> {
        let found = self.find(key, now)?;
        self.whole(key, &found)
    }

    /// The route that was found, with the names; `None` when its owner's lifecycle is not known
    /// any more.
    #[must_use]
    pub fn whole(&self, key: &ObjectKey, found: &FoundRoute) -> Option<Route> {
        self.nodes.at(found.owner).map(|node| found.at(key, node))
    }

    /// As [`SharedRouteCache::lookup`], without counting or removing.
    #[must_use]
    pub fn peek(&self, key: &ObjectKey, now: Nanos) -> Option<Route> {
        let (found, node) = self.usable(self.slot_of(key.object_hash())?, now)?;
        Some(found.at(key, node))
    }

    /// Counts a miss; the entry that was found and has ended goes.
    #[cold]
    fn miss(&mut self, ended: Option<usize>) {
        self.head.add(word!(ShardHead.misses), 1);
        if let Some(slot) = ended {
            self.remove_at(slot);
        }
    }

    /// Keeps a route that was just read. The owner must be in the node table already, under the
    /// route's mesh.
    ///
    /// An entry with a greater store version stays (R2.2-4); one with the same version is renewed.
    pub fn insert(&mut self, route: Route, now: Nanos) -> InsertOutcome {
        let outcome = self.try_insert(&route, now);
        let counted = match outcome {
            InsertOutcome::Inserted => word!(ShardHead.inserts),
            _ => word!(ShardHead.refused),
        };
        self.head.add(counted, 1);
        outcome
    }

    fn try_insert(&mut self, route: &Route, now: Nanos) -> InsertOutcome {
        if !self.is_on() {
            return InsertOutcome::Off;
        }
        let hash = route.key.object_hash();
        let standing = self.slot_of(hash);
        if standing.is_some_and(|s| self.hot_at(s).store_version > route.store_version.get()) {
            return InsertOutcome::Older;
        }
        let Some(slot_of_node) = self.nodes.slot_of(&route.fence) else {
            return InsertOutcome::OwnerUnknown;
        };
        let (row, stamp) = slot_of_node.parts();
        let Some((node, packed)) = self.nodes.at(slot_of_node).zip(pack_node(row, stamp)) else {
            return InsertOutcome::OwnerUnknown;
        };
        if !node.is_alive(now) || node.mesh != route.mesh {
            return InsertOutcome::OwnerUnknown;
        }
        let expires_at = self.lifetimes.end_of(now);
        if now >= expires_at || peer_end(node, now).is_some_and(|end| now >= end) {
            return InsertOutcome::NoLife;
        }
        let hot = HotRoute {
            seq: 0,
            hash_low: hash.low(),
            hash_high: hash.high(),
            node: packed,
            object_generation: route.fence.object_generation.get(),
            authority_owner_generation: route.fence.authority_owner_generation.get(),
            store_version: route.store_version.get(),
            expires_at_ns: expires_at.0,
        };
        let slot = standing.unwrap_or_else(|| self.slot_for(hash, now));
        self.set(slot, hot, &route.key, now);
        InsertOutcome::Inserted
    }

    /// A slot for an id that has none: an empty one of its set, else the one to give up.
    fn slot_for(&mut self, hash: ObjectHash, now: Nanos) -> usize {
        let first = set_of(hash.high(), self.sets) * ROUTE_CACHE_WAYS;
        let slots = ways_of(hash.high()).map(|way| first + way);
        if let Some(empty) = slots.into_iter().find(|slot| self.is_empty_at(*slot)) {
            self.set_len(self.len + 1);
            return empty;
        }
        self.head.add(word!(ShardHead.evictions), 1);
        // One that cannot be used, else the one that ends first.
        let rank = |slot: &usize| {
            let usable = self.usable(*slot, now).is_some();
            (usable, self.hot_at(*slot).expires_at_ns, self.inserted_at(*slot))
        };
        slots.into_iter().min_by_key(rank).unwrap_or(first)
    }

    /// A follow notice named `fence` as the route it relayed from: drops the entry only when it is
    /// that route (R2.5-10). Says whether it was. An entry whose owner is not known any more has
    /// only its incarnation and tenure to compare, which no two owners share.
    pub fn remove_if_matches(&mut self, key: &ObjectKey, fence: &RouteFence) -> bool {
        self.remove_if(key, |hot, node| {
            hot.object_generation == fence.object_generation.get()
                && hot.authority_owner_generation == fence.authority_owner_generation.get()
                && node.is_none_or(|node| {
                    node.rid == fence.rid && node.node_generation == fence.node_generation
                })
        })
    }

    /// A message sent by `fence` was refused as stale: drops the entry unless it is of a later
    /// incarnation or tenure (R2.2-4). Says whether it was dropped.
    pub fn remove_stale(&mut self, key: &ObjectKey, fence: &RouteFence) -> bool {
        let refused = (fence.object_generation.get(), fence.authority_owner_generation.get());
        self.remove_if(key, |hot, _| {
            (hot.object_generation, hot.authority_owner_generation) <= refused
        })
    }

    /// A store version of the id's row was seen: drops an entry with a smaller one (R2.2-4). Says
    /// whether one was dropped. Reads in flight are the resolver's to invalidate.
    pub fn see_version(&mut self, key: &ObjectKey, version: StoreVersion) -> bool {
        self.remove_if(key, |hot, _| hot.store_version < version.get())
    }

    /// Drops the entry whatever it is. Says whether there was one.
    pub fn remove(&mut self, key: &ObjectKey) -> bool {
        self.remove_if(key, |_, _| true)
    }

    /// A lease was seen lapsed or released: every entry to that owner is dead from now on
    /// (R2.2-4), for every reader. O(log nodes); the dead entries are removed as they are met.
    /// Says whether the node was known.
    pub fn invalidate_lease(&mut self, rid: &NodeRid, generation: OwnerLeaseGeneration) -> bool {
        self.nodes_mut().invalidate_lease(rid, generation)
    }

    /// Store recovery: drops every entry (R2.2-4). The node table stays: it describes leases that
    /// end by themselves. O(capacity), unless it is empty.
    pub fn clear(&mut self) {
        for slot in self.standing() {
            self.remove_at(slot);
        }
    }

    /// Changes `route_cache_max_age` for entries inserted later; none that stands is lengthened
    /// (R2.2-5).
    ///
    /// # Errors
    /// As [`RouteLifetimes::check`]; nothing is changed then.
    pub fn set_max_age(&mut self, max_age: Duration) -> Result<()> {
        let lifetimes = RouteLifetimes { max_age, ..self.lifetimes };
        lifetimes.check()?;
        self.lifetimes = lifetimes;
        self.show_lifetimes();
        Ok(())
    }

    /// Changes both durations at once: as the two setters, without a pair in between that the
    /// rule refuses.
    ///
    /// # Errors
    /// As [`RouteLifetimes::check`]; nothing is changed then.
    pub fn set_lifetimes(&mut self, lifetimes: RouteLifetimes, now: Nanos) -> Result<()> {
        lifetimes.check()?;
        self.lifetimes.max_age = lifetimes.max_age;
        self.set_follow_duration(lifetimes.follow_duration, now)
    }

    /// Changes this node's follow duration. Lowering it shortens entries that stand and drops
    /// those that are older already (R2.2-6). O(capacity).
    ///
    /// # Errors
    /// As [`RouteLifetimes::check`]; nothing is changed then.
    pub fn set_follow_duration(&mut self, follow_duration: Duration, now: Nanos) -> Result<()> {
        let lifetimes = RouteLifetimes { follow_duration, ..self.lifetimes };
        lifetimes.check()?;
        self.lifetimes = lifetimes;
        self.show_lifetimes();
        if follow_duration.is_zero() {
            return Ok(());
        }
        for slot in self.standing() {
            let mut hot = self.hot_at(slot);
            let end = (Nanos(self.inserted_at(slot)) + follow_duration).0;
            if now.0 >= end.min(hot.expires_at_ns) {
                self.remove_at(slot);
            } else if end < hot.expires_at_ns {
                hot.expires_at_ns = end;
                let words: [u64; HotRoute::WORDS] = zerocopy::transmute!(hot);
                self.hot.write(slot * HotRoute::WORDS, &words[1..], || ());
            }
        }
        Ok(())
    }

    /// Shows the durations to readers. `longest_life_ns` comes before any entry that needs it and
    /// never falls, so that whoever sees the entry sees it.
    fn show_lifetimes(&mut self) {
        self.longest_life = self.longest_life.max(self.lifetimes.max_age);
        self.head.store(word!(ShardHead.longest_life_ns), duration_ns(self.longest_life));
        self.head.store(word!(ShardHead.max_age_ns), duration_ns(self.lifetimes.max_age));
        let follow_ns = duration_ns(self.lifetimes.follow_duration);
        self.head.store(word!(ShardHead.follow_duration_ns), follow_ns);
    }

    /// The slot of an object's route, usable or not. The home core alone writes, so it needs no
    /// seq to read.
    #[inline]
    fn slot_of(&self, hash: ObjectHash) -> Option<usize> {
        let set = set_of(hash.high(), self.sets);
        let words = self.hot.run::<SET_WORDS>(set * SET_WORDS);
        let way = ways_of(hash.high()).into_iter().find(|way| {
            let at = way * HotRoute::WORDS;
            words.load(at + word!(HotRoute.hash_high)) == hash.high()
                && words.load(at + word!(HotRoute.hash_low)) == hash.low()
                && words.load(at + word!(HotRoute.node)) != 0
        })?;
        Some(set * ROUTE_CACHE_WAYS + way)
    }

    fn is_empty_at(&self, slot: usize) -> bool {
        self.hot.load(slot * HotRoute::WORDS + word!(HotRoute.node)) == 0
    }

    #[inline]
    fn hot_at(&self, slot: usize) -> HotRoute {
        let words: [u64; HotRoute::WORDS] = self.hot.copy(slot * HotRoute::WORDS);
        zerocopy::transmute!(words)
    }

    fn cold_at(&self, slot: usize) -> ColdRoute {
        let words: [u64; ColdRoute::WORDS] = self.cold.copy(slot * ColdRoute::WORDS);
        zerocopy::transmute!(words)
    }

    fn inserted_at(&self, slot: usize) -> u64 {
        self.cold.load(slot * ColdRoute::WORDS + word!(ColdRoute.inserted_at_ns))
    }

    /// Slots that are not empty, as they stand now.
    fn standing(&self) -> Vec<usize> {
        if self.len == 0 {
            return Vec::new();
        }
        (0..self.capacity()).filter(|slot| !self.is_empty_at(*slot)).collect()
    }

    /// An entry and its owner while both deadlines hold (R2.2-2), the peer's follow duration
    /// included (R0-7).
    #[inline]
    fn usable(&self, slot: usize, now: Nanos) -> Option<(FoundRoute, &NodeEntry)> {
        let hot = self.hot_at(slot);
        let (row, stamp) = unpack_node(hot.node)?;
        let owner = NodeSlot::of_parts(row, stamp);
        let node = self.nodes.at(owner)?;
        if now.0 >= hot.expires_at_ns || !node.is_alive(now) {
            return None;
        }
        // The cold line is looked at only when the peer's duration can be what ends the entry.
        let shortest = self.longest_life.saturating_add(CACHE_FOLLOW_GAP);
        if node.message_follow_duration.is_some_and(|follow| follow < shortest)
            && peer_end(node, Nanos(self.inserted_at(slot))).is_some_and(|end| now >= end)
        {
            return None;
        }
        let found = FoundRoute {
            object_generation: ObjectGeneration::new(hot.object_generation)?,
            authority_owner_generation: AuthorityOwnerGeneration::new(
                hot.authority_owner_generation,
            )?,
            store_version: StoreVersion::new(hot.store_version)?,
            owner,
        };
        Some((found, node))
    }

    fn set(&mut self, slot: usize, hot: HotRoute, key: &ObjectKey, now: Nanos) {
        self.free_block(slot);
        let id = key.id().as_bytes();
        let (inline, rest) = id.split_at(id.len().min(INLINE_ID_BYTES));
        let block = if rest.is_empty() { None } else { self.free_blocks.pop() };
        let mut cold = ColdRoute {
            inserted_at_ns: now.0,
            arena_block: block.unwrap_or(NO_BLOCK),
            kind: key.kind() as u8,
            id_len: id.len() as u8,
            reserved: 0,
            id: [0; INLINE_ID_BYTES],
        };
        cold.id[..inline.len()].copy_from_slice(inline);
        let hot: [u64; HotRoute::WORDS] = zerocopy::transmute!(hot);
        let cold: [u64; ColdRoute::WORDS] = zerocopy::transmute!(cold);
        let (cold_words, arena) = (&mut self.cold, &mut self.arena);
        self.hot.write(slot * HotRoute::WORDS, &hot[1..], || {
            cold_words.put(slot * ColdRoute::WORDS, &cold);
            if let Some(block) = block {
                let mut bytes = IdBlock { bytes: [0; 208] };
                bytes.bytes[..rest.len()].copy_from_slice(rest);
                let words: [u64; IdBlock::WORDS] = zerocopy::transmute!(bytes);
                arena.put(block as usize * IdBlock::WORDS, &words);
            }
        });
        self.show_blocks();
    }

    /// Gives back the block of a slot that is about to be written. A reader of the slot's old
    /// route that looks into the block sees the seq of the slot change first.
    fn free_block(&mut self, slot: usize) {
        if self.is_empty_at(slot) {
            return;
        }
        let block = self.cold_at(slot).arena_block;
        if block != NO_BLOCK {
            self.free_blocks.push(block);
        }
    }

    fn show_blocks(&mut self) {
        let blocks = self.arena.len() / IdBlock::WORDS;
        let used = (blocks - self.free_blocks.len()) as u64;
        self.head.store(word!(ShardHead.arena_blocks_used), used);
    }

    fn set_len(&mut self, len: usize) {
        self.len = len;
        self.head.store(word!(ShardHead.route_count), len as u64);
    }

    fn remove_at(&mut self, slot: usize) {
        self.free_block(slot);
        self.hot.write(slot * HotRoute::WORDS, &[0; HotRoute::WORDS - 1], || ());
        self.set_len(self.len - 1);
        self.show_blocks();
        self.head.add(word!(ShardHead.removals), 1);
    }

    fn remove_if(
        &mut self,
        key: &ObjectKey,
        drop_it: impl FnOnce(&HotRoute, Option<&NodeEntry>) -> bool,
    ) -> bool {
        let Some(slot) = self.slot_of(key.object_hash()) else { return false };
        let hot = self.hot_at(slot);
        let node = unpack_node(hot.node)
            .and_then(|(row, stamp)| self.nodes.at(NodeSlot::of_parts(row, stamp)));
        if !drop_it(&hot, node) {
            return false;
        }
        self.remove_at(slot);
        true
    }
}

/// How long an entry may stand under a node's follow duration; `None` when that sets no end, as
/// [`peer_end`] says. Zero stands for none.
fn follow_limit_ns(follow_duration_ns: u64) -> Option<u64> {
    (follow_duration_ns != 0)
        .then(|| follow_duration_ns.saturating_sub(duration_ns(CACHE_FOLLOW_GAP)))
}

#[cfg(test)]
mod tests;
