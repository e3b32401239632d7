#![forbid(unsafe_code)]
//! The positive route cache of one core (R2.2).
//!
//! Sets of four ways, one writer, bounded. A full set gives up an entry that cannot be used any
//! more, else the one that would end first; equal input leaves equal state.

use std::time::Duration;

use super::{NodeEntry, NodeSlot, NodeTable, Route, Sighting};
use crate::error::{Error, Result};
use crate::ids::{NodeRid, ObjectKey, OwnerLeaseGeneration, RouteFence, StoreVersion};
use crate::limits::{
    CACHE_FOLLOW_GAP, DEFAULT_MESSAGE_FOLLOW_DURATION, DEFAULT_ROUTE_CACHE_MAX_AGE,
    ROUTE_CACHE_WAYS,
};
use crate::time::Nanos;

/// The two durations that bound the life of a cached route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RouteLifetimes {
    /// `route_cache_max_age`; zero caches nothing.
    pub max_age: Duration,
    /// `message_follow_duration` of this node; zero relays nothing and bounds nothing.
    pub follow_duration: Duration,
}

impl Default for RouteLifetimes {
    fn default() -> Self {
        Self {
            max_age: DEFAULT_ROUTE_CACHE_MAX_AGE,
            follow_duration: DEFAULT_MESSAGE_FOLLOW_DURATION,
        }
    }
}

impl RouteLifetimes {
    /// Checks the pair (R0-7), at start and at every change.
    ///
    /// # Errors
    /// `NotConfigured` when both are positive and the cache age is not at least 5 s shorter than
    /// the follow duration.
    pub fn check(self) -> Result<()> {
        if self.max_age.is_zero()
            || self.follow_duration.is_zero()
            || self.max_age.saturating_add(CACHE_FOLLOW_GAP) <= self.follow_duration
        {
            return Ok(());
        }
        Err(Error::not_configured(format!(
            "route_cache_max_age is {:?} and message_follow_duration is {:?}; when both are \
             positive the cache age must be at least {CACHE_FOLLOW_GAP:?} shorter: lower \
             route_cache_max_age (0 caches nothing) or raise message_follow_duration",
            self.max_age, self.follow_duration
        )))
    }

    /// When an entry that is inserted now ends by this node's own settings.
    pub(super) fn end_of(self, inserted_at: Nanos) -> Nanos {
        let end = inserted_at + self.max_age;
        if self.follow_duration.is_zero() {
            return end;
        }
        end.min(inserted_at + self.follow_duration)
    }
}

/// What [`RouteCache::insert`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum InsertOutcome {
    /// The entry stands.
    Inserted,
    /// `route_cache_max_age` is zero.
    Off,
    /// An entry with a greater store version stands (R2.2-4).
    Older,
    /// The node table does not know the owner under the fence's generations, or its lease does
    /// not stand.
    OwnerUnknown,
    /// The owner's follow duration leaves the entry no life (R0-7).
    NoLife,
}

/// What the cache counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CacheCounters {
    /// Look-ups answered by an entry.
    pub hits: u64,
    /// Look-ups that found nothing usable.
    pub misses: u64,
    /// Entries set.
    pub inserts: u64,
    /// Insertions refused.
    pub refused: u64,
    /// Entries given up for another id of the same set.
    pub evictions: u64,
    /// Entries removed by a stale result, a notice, a greater version, a lapsed deadline, a lease
    /// or a recovery.
    pub removals: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Entry {
    route: Route,
    node: NodeSlot,
    inserted_at: Nanos,
    expires_at: Nanos,
}

impl Entry {
    /// Both deadlines hold (R2.2-2), the peer's follow duration included (R0-7).
    fn is_usable(&self, nodes: &NodeTable, now: Nanos) -> bool {
        now < self.expires_at
            && nodes.at(self.node).is_some_and(|node| {
                node.is_alive(now) && peer_end(node, self.inserted_at).is_none_or(|end| now < end)
            })
    }
}

/// When an entry to this node ends by the node's own follow duration. A peer that relays nothing
/// sets no end: there is no follow route that the entry could outlive.
pub(super) fn peer_end(node: &NodeEntry, inserted_at: Nanos) -> Option<Nanos> {
    let follow = node.message_follow_duration?;
    (!follow.is_zero()).then(|| inserted_at + follow.saturating_sub(CACHE_FOLLOW_GAP))
}

/// The positive route cache of one core, with the node table beside it. See the module's head.
///
/// Only Ready routes exist as values of [`Route`], so nothing else can be cached (R2.2-3).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RouteCache {
    sets: Vec<Vec<Entry>>,
    nodes: NodeTable,
    lifetimes: RouteLifetimes,
    counters: CacheCounters,
    len: usize,
}

impl RouteCache {
    /// A cache of at most `capacity` routes: rounded down to a power of two, at least one set.
    /// An empty cache takes 24 bytes per set; entries are allocated as they come.
    #[must_use]
    pub fn new(capacity: usize, lifetimes: RouteLifetimes) -> Self {
        let sets = (capacity / ROUTE_CACHE_WAYS).max(1);
        let sets = if sets.is_power_of_two() { sets } else { sets.next_power_of_two() / 2 };
        Self {
            sets: vec![Vec::new(); sets],
            nodes: NodeTable::new(),
            lifetimes,
            counters: CacheCounters::default(),
            len: 0,
        }
    }

    /// Routes it can hold.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.sets.len() * ROUTE_CACHE_WAYS
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
    pub fn nodes_mut(&mut self) -> &mut NodeTable {
        &mut self.nodes
    }

    /// Takes in what was read or announced about a node; see [`NodeTable::see`].
    pub fn see_node(&mut self, entry: NodeEntry) -> Sighting {
        self.nodes.see(entry)
    }

    /// What was counted.
    #[must_use]
    pub fn counters(&self) -> CacheCounters {
        self.counters
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

    /// The route of an id, while both its deadlines hold (R2.2-2). Counts a hit or a miss; an
    /// entry that has ended is removed. At most four comparisons, no allocation.
    pub fn lookup(&mut self, key: &ObjectKey, now: Nanos) -> Option<&Route> {
        let set = self.set_of(key);
        let Some(way) = self.way_of(set, key) else {
            self.counters.misses += 1;
            return None;
        };
        if !self.sets[set][way].is_usable(&self.nodes, now) {
            self.counters.misses += 1;
            self.remove_at(set, way);
            return None;
        }
        self.counters.hits += 1;
        Some(&self.sets[set][way].route)
    }

    /// As [`RouteCache::lookup`], without counting or removing.
    #[must_use]
    pub fn peek(&self, key: &ObjectKey, now: Nanos) -> Option<&Route> {
        let set = self.set_of(key);
        let entry = &self.sets[set][self.way_of(set, key)?];
        entry.is_usable(&self.nodes, now).then_some(&entry.route)
    }

    /// Keeps a route that was just read. The owner must be in the node table already.
    ///
    /// An entry with a greater store version stays (R2.2-4); one with the same version is renewed.
    pub fn insert(&mut self, route: Route, now: Nanos) -> InsertOutcome {
        let outcome = self.try_insert(route, now);
        match outcome {
            InsertOutcome::Inserted => self.counters.inserts += 1,
            _ => self.counters.refused += 1,
        }
        outcome
    }

    fn try_insert(&mut self, route: Route, now: Nanos) -> InsertOutcome {
        if !self.is_on() {
            return InsertOutcome::Off;
        }
        let set = self.set_of(&route.key);
        let standing = self.way_of(set, &route.key);
        if standing.is_some_and(|w| self.sets[set][w].route.store_version > route.store_version) {
            return InsertOutcome::Older;
        }
        let Some(node) = self.nodes.slot_of(&route.fence) else {
            return InsertOutcome::OwnerUnknown;
        };
        if !self.nodes.at(node).is_some_and(|n| n.is_alive(now)) {
            return InsertOutcome::OwnerUnknown;
        }
        let expires_at = self.lifetimes.end_of(now);
        let entry = Entry { route, node, inserted_at: now, expires_at };
        if !entry.is_usable(&self.nodes, now) {
            return InsertOutcome::NoLife;
        }
        match standing {
            Some(way) => self.sets[set][way] = entry,
            None if self.sets[set].len() < ROUTE_CACHE_WAYS => {
                self.sets[set].push(entry);
                self.len += 1;
            }
            None => {
                let way = self.victim(set, now);
                self.sets[set][way] = entry;
                self.counters.evictions += 1;
            }
        }
        InsertOutcome::Inserted
    }

    /// The way of a full set to give up: one that cannot be used, else the one that ends first.
    fn victim(&self, set: usize, now: Nanos) -> usize {
        let rank = |e: &Entry| (e.is_usable(&self.nodes, now), e.expires_at, e.inserted_at);
        let ways = self.sets[set].iter().enumerate();
        ways.min_by_key(|(_, e)| rank(e)).map_or(0, |(way, _)| way)
    }

    /// A follow notice named `fence` as the route it relayed from: drops the entry only when it is
    /// that route (R2.5-10). Says whether it was.
    pub fn remove_if_matches(&mut self, key: &ObjectKey, fence: &RouteFence) -> bool {
        self.remove_if(key, |r| {
            r.fence.object_generation == fence.object_generation
                && r.fence.authority_owner_generation == fence.authority_owner_generation
                && r.fence.rid == fence.rid
                && r.fence.node_generation == fence.node_generation
        })
    }

    /// A message sent by `fence` was refused as stale: drops the entry unless it is of a later
    /// incarnation or tenure (R2.2-4). Says whether it was dropped.
    pub fn remove_stale(&mut self, key: &ObjectKey, fence: &RouteFence) -> bool {
        let refused = (fence.object_generation, fence.authority_owner_generation);
        self.remove_if(key, |r| {
            (r.fence.object_generation, r.fence.authority_owner_generation) <= refused
        })
    }

    /// A store version of the id's row was seen: drops an entry with a smaller one (R2.2-4). Says
    /// whether one was dropped. Reads in flight are the resolver's to invalidate.
    pub fn see_version(&mut self, key: &ObjectKey, version: StoreVersion) -> bool {
        self.remove_if(key, |r| r.store_version < version)
    }

    /// Drops the entry whatever it is. Says whether there was one.
    pub fn remove(&mut self, key: &ObjectKey) -> bool {
        self.remove_if(key, |_| true)
    }

    /// A lease was seen lapsed or released: every entry to that owner is dead from now on
    /// (R2.2-4). O(log nodes); the dead entries are removed as they are met. Says whether the
    /// node was known.
    pub fn invalidate_lease(&mut self, rid: &NodeRid, generation: OwnerLeaseGeneration) -> bool {
        self.nodes.invalidate_lease(rid, generation)
    }

    /// Store recovery: drops every entry (R2.2-4). The node table stays: it describes leases that
    /// end by themselves.
    pub fn clear(&mut self) {
        self.counters.removals += self.len as u64;
        self.sets.iter_mut().for_each(Vec::clear);
        self.len = 0;
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
        if follow_duration.is_zero() {
            return Ok(());
        }
        let before = self.len;
        for set in &mut self.sets {
            set.retain_mut(|e| {
                e.expires_at = e.expires_at.min(e.inserted_at + follow_duration);
                now < e.expires_at
            });
        }
        self.len = self.sets.iter().map(Vec::len).sum();
        self.counters.removals += (before - self.len) as u64;
        Ok(())
    }

    fn set_of(&self, key: &ObjectKey) -> usize {
        key.object_hash().high() as usize & (self.sets.len() - 1)
    }

    fn way_of(&self, set: usize, key: &ObjectKey) -> Option<usize> {
        self.sets[set].iter().position(|e| e.route.key == *key)
    }

    fn remove_at(&mut self, set: usize, way: usize) {
        self.sets[set].remove(way);
        self.len -= 1;
        self.counters.removals += 1;
    }

    fn remove_if(&mut self, key: &ObjectKey, drop_it: impl FnOnce(&Route) -> bool) -> bool {
        let set = self.set_of(key);
        match self.way_of(set, key) {
            Some(way) if drop_it(&self.sets[set][way].route) => {
                self.remove_at(set, way);
                true
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests;
