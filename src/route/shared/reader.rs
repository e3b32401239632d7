#![forbid(unsafe_code)]
//! Looking routes up from any thread or process.
//!
//! A reader waits for nobody and trusts nothing: a route that is being written, whose owner's row
//! does not fit, or whose numbers make no sense is a miss.

use std::mem::offset_of;

use super::{SET_WORDS, follow_limit_ns, word};
use crate::ids::{
    AuthorityOwnerGeneration, FixedMap, MeshName, NodeGeneration, NodeRid, ObjectGeneration,
    ObjectHash, ObjectKind, OwnerLeaseGeneration, RouteFence, StoreVersion,
};
use crate::layout::{
    ColdNode, ColdRoute, FOLLOW_UNKNOWN, HotNode, HotRoute, INLINE_ID_BYTES, IdBlock, NO_BLOCK,
    SectionKind, ShardHead, WORD_BYTES, get_text, set_of, unpack_node, ways_of,
};
use crate::limits::ROUTE_CACHE_WAYS;
use crate::shm::{RegionView, ShardView};
use crate::time::Nanos;

/// The words of a node's row that say whether a route to it is usable.
const JUDGED_WORDS: usize = word!(HotNode.follow_duration_ns) + 1;

/// A usable route, as one look at the region saw it. Numbers only; the owner's names come from
/// [`RouteReader::fence`] and [`RouteReader::node`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SeenRoute {
    /// The incarnation.
    pub object_generation: ObjectGeneration,
    /// The tenure.
    pub authority_owner_generation: AuthorityOwnerGeneration,
    /// The version of the authority row.
    pub store_version: StoreVersion,
    /// The lifecycle of the owner's node.
    pub node_generation: NodeGeneration,
    /// The owner's process lifecycle.
    pub owner_lease_generation: OwnerLeaseGeneration,
    /// When the entry ends by the settings of the node.
    pub expires_at: Nanos,
    /// The owner's local admission deadline.
    pub admission_deadline: Nanos,
    core: u16,
    row: u32,
    stamp: u64,
}

/// A node, as one look at the region saw it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SeenNode {
    /// Which node.
    pub rid: NodeRid,
    /// Its mesh.
    pub mesh: MeshName,
    /// Where it listens.
    pub endpoint: String,
    /// Its lifecycle.
    pub node_generation: NodeGeneration,
    /// Its process lifecycle.
    pub lease_generation: OwnerLeaseGeneration,
    /// Its lease's local admission deadline.
    pub admission_deadline: Nanos,
    /// Its security identity.
    pub key_id: u128,
}

/// An entry with what only an inspector wants to know. It may have ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InspectedRoute {
    /// Actor or Spot.
    pub kind: ObjectKind,
    /// The id, or its first 48 bytes.
    pub id: String,
    /// Whether the end of the id is missing, because the arena was full.
    pub is_cut: bool,
    /// The object's hash, low half and high half.
    pub hash: (u64, u64),
    /// When the entry was set.
    pub inserted_at: Nanos,
    /// When it ends by the settings of the node.
    pub expires_at: Nanos,
    /// The incarnation.
    pub object_generation: u64,
    /// The tenure.
    pub authority_owner_generation: u64,
    /// The version of the authority row.
    pub store_version: u64,
    /// The owner; `None` when it is not known any more, and the entry is dead.
    pub node: Option<SeenNode>,
}

/// Looks routes up in a region. Each thread has its own.
#[derive(Debug)]
pub struct RouteReader {
    shards: Vec<ShardView>,
    seed: u64,
    /// One less than the number of cores, when that is a power of two.
    core_mask: Option<u64>,
    sets: usize,
    slots: usize,
    node_rows: usize,
    /// Names of nodes that were met, by core and row, with the stamp they are of.
    names: FixedMap<(u16, u32), (u64, NodeRid, MeshName)>,
}

impl RouteReader {
    /// A reader of a region, of whatever process.
    #[must_use]
    pub fn new(view: &RegionView) -> Self {
        let map = view.map();
        let slots = map.items(SectionKind::RouteHot);
        let cores = u64::from(map.core_count());
        Self {
            shards: (0..map.core_count()).filter_map(|core| view.shard(core)).collect(),
            seed: view.header().hash_seed,
            core_mask: cores.is_power_of_two().then(|| cores - 1),
            sets: slots / ROUTE_CACHE_WAYS,
            slots,
            node_rows: map.items(SectionKind::NodeHot),
            names: FixedMap::default(),
        }
    }

    /// Cores of the node.
    #[must_use]
    pub fn core_count(&self) -> u16 {
        self.shards.len() as u16
    }

    /// Slots of each core, for [`RouteReader::inspect`].
    #[must_use]
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Rows of each core, for [`RouteReader::node_at`].
    #[must_use]
    pub fn node_rows(&self) -> usize {
        self.node_rows
    }

    /// The route of an id, while both its deadlines hold (R2.2-2). Does not wait, allocates
    /// nothing; an entry that is being written the whole time is a miss.
    #[must_use]
    pub fn lookup(&self, kind: ObjectKind, id: &str, now: Nanos) -> Option<SeenRoute> {
        self.lookup_hash(ObjectHash::of(self.seed, kind, id), now)
    }

    /// As [`RouteReader::lookup`], for a hash under the region's seed. A hit touches two cache
    /// lines as a rule: the route's and its owner's.
    #[must_use]
    pub fn lookup_hash(&self, hash: ObjectHash, now: Nanos) -> Option<SeenRoute> {
        // A division takes longer than the rest of a hit.
        let core = match self.core_mask {
            Some(mask) => hash.low() & mask,
            None => hash.low() % self.shards.len().max(1) as u64,
        };
        let shard = self.shards.get(core as usize)?;
        let set = set_of(hash.high(), self.sets);
        let words = shard.route_hot.run::<SET_WORDS>(set * SET_WORDS);
        for way in ways_of(hash.high()) {
            let at = way * HotRoute::WORDS;
            // A look that may be torn, to pass over other ids; the one under the seq decides.
            if words.load(at + word!(HotRoute.hash_high)) != hash.high() {
                continue;
            }
            let hot: HotRoute = zerocopy::transmute!(words.read_item::<{ HotRoute::WORDS }>(at)?);
            if (hot.hash_low, hot.hash_high) == (hash.low(), hash.high()) && hot.node != 0 {
                return self.judge(shard, core as u16, set * ROUTE_CACHE_WAYS + way, &hot, now);
            }
        }
        None
    }

    #[inline]
    fn judge(
        &self,
        shard: &ShardView,
        core: u16,
        slot: usize,
        hot: &HotRoute,
        now: Nanos,
    ) -> Option<SeenRoute> {
        let (row, stamp) = unpack_node(hot.node)?;
        if now.0 >= hot.expires_at_ns || row as usize >= self.node_rows {
            return None;
        }
        let node = shard.node_hot.read_item::<JUDGED_WORDS>(row as usize * HotNode::WORDS)?;
        let admission_deadline_ns = node[word!(HotNode.admission_deadline_ns)];
        if node[word!(HotNode.stamp)] != stamp || now.0 >= admission_deadline_ns {
            return None;
        }
        let follow_ns = node[word!(HotNode.follow_duration_ns)];
        if !is_within_follow(shard, slot, hot, follow_ns, now) {
            return None;
        }
        Some(SeenRoute {
            object_generation: ObjectGeneration::new(hot.object_generation)?,
            authority_owner_generation: AuthorityOwnerGeneration::new(
                hot.authority_owner_generation,
            )?,
            store_version: StoreVersion::new(hot.store_version)?,
            node_generation: NodeGeneration::new(node[word!(HotNode.node_generation)])?,
            owner_lease_generation: OwnerLeaseGeneration::new(
                node[word!(HotNode.lease_generation)],
            )?,
            expires_at: Nanos(hot.expires_at_ns),
            admission_deadline: Nanos(admission_deadline_ns),
            core,
            row,
            stamp,
        })
    }

    /// The fence to submit under. `None` when the owner's row has changed since. Names are kept
    /// for the next route to the same owner: only the first allocates.
    pub fn fence(&mut self, route: &SeenRoute) -> Option<RouteFence> {
        let (rid, _) = self.names_of(route)?;
        Some(RouteFence {
            object_generation: route.object_generation,
            rid,
            node_generation: route.node_generation,
            authority_owner_generation: route.authority_owner_generation,
            owner_lease_generation: route.owner_lease_generation,
        })
    }

    /// The owner's rid and mesh; as [`RouteReader::fence`].
    pub fn names_of(&mut self, route: &SeenRoute) -> Option<(NodeRid, MeshName)> {
        let place = (route.core, route.row);
        if let Some((stamp, rid, mesh)) = self.names.get(&place)
            && *stamp == route.stamp
        {
            return Some((rid.clone(), mesh.clone()));
        }
        let (stamp, node) = self.node_at(route.core, route.row as usize)?;
        if stamp != route.stamp {
            return None;
        }
        self.names.insert(place, (stamp, node.rid.clone(), node.mesh.clone()));
        Some((node.rid, node.mesh))
    }

    /// The owner of a route; `None` when its row has changed since.
    #[must_use]
    pub fn node(&self, route: &SeenRoute) -> Option<SeenNode> {
        let (stamp, node) = self.node_at(route.core, route.row as usize)?;
        (stamp == route.stamp).then_some(node)
    }

    /// The node in a row of a core's table, with the stamp of its lifecycle; `None` for an empty
    /// row, one that is being written, and one that makes no sense.
    #[must_use]
    pub fn node_at(&self, core: u16, row: usize) -> Option<(u64, SeenNode)> {
        let shard = self.shards.get(usize::from(core))?;
        if row >= self.node_rows {
            return None;
        }
        let (hot, cold) = shard.node_hot.read(row * HotNode::WORDS, || {
            (
                shard.node_hot.copy::<{ HotNode::WORDS }>(row * HotNode::WORDS),
                shard.node_cold.copy::<{ ColdNode::WORDS }>(row * ColdNode::WORDS),
            )
        })?;
        let (hot, cold): (HotNode, ColdNode) =
            (zerocopy::transmute!(hot), zerocopy::transmute!(cold));
        let node = SeenNode {
            rid: NodeRid::new(get_text(&cold.rid)?).ok()?,
            mesh: MeshName::new(std::str::from_utf8(get_text(&cold.mesh)?).ok()?).ok()?,
            endpoint: String::from_utf8_lossy(get_text(&cold.endpoint)?).into_owned(),
            node_generation: NodeGeneration::new(hot.node_generation)?,
            lease_generation: OwnerLeaseGeneration::new(hot.lease_generation)?,
            admission_deadline: Nanos(hot.admission_deadline_ns),
            key_id: u128::from(hot.key_id[0]) | u128::from(hot.key_id[1]) << 64,
        };
        (hot.stamp != 0).then_some((hot.stamp, node))
    }

    /// The entry in a slot of a core, usable or not; `None` for an empty slot, one that is being
    /// written, and one that makes no sense.
    #[must_use]
    pub fn inspect(&self, core: u16, slot: usize) -> Option<InspectedRoute> {
        let shard = self.shards.get(usize::from(core))?;
        if slot >= self.slots {
            return None;
        }
        let (hot, cold, rest) = shard.route_hot.read(slot * HotRoute::WORDS, || {
            let hot = shard.route_hot.copy::<{ HotRoute::WORDS }>(slot * HotRoute::WORDS);
            let cold = shard.route_cold.copy::<{ ColdRoute::WORDS }>(slot * ColdRoute::WORDS);
            let cold: ColdRoute = zerocopy::transmute!(cold);
            (hot, cold, block_of(shard, &cold))
        })?;
        let hot: HotRoute = zerocopy::transmute!(hot);
        let (row, stamp) = unpack_node(hot.node)?;
        let (id, is_cut) = id_of(&cold, rest.as_ref())?;
        Some(InspectedRoute {
            kind: [ObjectKind::Actor, ObjectKind::Spot]
                .into_iter()
                .find(|kind| *kind as u8 == cold.kind)?,
            id,
            is_cut,
            hash: (hot.hash_low, hot.hash_high),
            inserted_at: Nanos(cold.inserted_at_ns),
            expires_at: Nanos(hot.expires_at_ns),
            object_generation: hot.object_generation,
            authority_owner_generation: hot.authority_owner_generation,
            store_version: hot.store_version,
            node: self
                .node_at(core, row as usize)
                .and_then(|(now, node)| (now == stamp).then_some(node)),
        })
    }
}

/// Whether the peer's follow duration lets the entry stand (R0-7). Looks at the cold line only
/// when that duration can be what ends it.
#[inline]
fn is_within_follow(
    shard: &ShardView,
    slot: usize,
    hot: &HotRoute,
    follow_ns: u64,
    now: Nanos,
) -> bool {
    if follow_ns == FOLLOW_UNKNOWN {
        return true;
    }
    let Some(limit_ns) = follow_limit_ns(follow_ns) else { return true };
    if limit_ns >= shard.head.load(word!(ShardHead.longest_life_ns)) {
        return true;
    }
    is_within_limit(shard, slot, hot, limit_ns, now)
}

#[cold]
fn is_within_limit(
    shard: &ShardView,
    slot: usize,
    hot: &HotRoute,
    limit_ns: u64,
    now: Nanos,
) -> bool {
    // Hot and cold of one write, and still the entry that was looked at.
    let again = shard.route_hot.read(slot * HotRoute::WORDS, || {
        let seq_and_words = shard.route_hot.copy::<{ HotRoute::WORDS }>(slot * HotRoute::WORDS);
        let at = slot * ColdRoute::WORDS + word!(ColdRoute.inserted_at_ns);
        (seq_and_words, shard.route_cold.load(at))
    });
    let Some((words, inserted_at_ns)) = again else { return false };
    let same: HotRoute = zerocopy::transmute!(words);
    same == *hot && now.0 < inserted_at_ns.saturating_add(limit_ns)
}

/// The arena block a cold route names, when there is such a block.
fn block_of(shard: &ShardView, cold: &ColdRoute) -> Option<IdBlock> {
    let blocks = shard.id_arena.len() / IdBlock::WORDS;
    let block = cold.arena_block as usize;
    if cold.arena_block == NO_BLOCK || block >= blocks {
        return None;
    }
    let words: [u64; IdBlock::WORDS] = shard.id_arena.copy(block * IdBlock::WORDS);
    Some(zerocopy::transmute!(words))
}

/// The id, and whether its end is missing.
fn id_of(cold: &ColdRoute, rest: Option<&IdBlock>) -> Option<(String, bool)> {
    let len = usize::from(cold.id_len);
    let mut bytes = cold.id[..len.min(INLINE_ID_BYTES)].to_vec();
    let rest_len = len.saturating_sub(INLINE_ID_BYTES);
    let is_cut = rest_len > 0 && rest.is_none();
    if let Some(block) = rest {
        bytes.extend_from_slice(block.bytes.get(..rest_len)?);
    }
    if bytes.is_empty() {
        return None;
    }
    // A cut may fall into a character, and a hostile region may hold anything.
    Some((String::from_utf8_lossy(&bytes).into_owned(), is_cut))
}
