#![forbid(unsafe_code)]
//! What a core knows about other nodes.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::env::Endpoint;
use crate::ids::{MeshName, NodeGeneration, NodeRid, OwnerLeaseGeneration, RouteFence};
use crate::time::Nanos;

/// One lifecycle of another node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NodeEntry {
    /// Which node.
    pub rid: NodeRid,
    /// Its lifecycle.
    pub node_generation: NodeGeneration,
    /// Its process lifecycle, as its lease names it.
    pub lease_generation: OwnerLeaseGeneration,
    /// Its lease's local admission deadline (R2.2-2): the end of the lease less the admission
    /// margin, counted on this node's clock from before the call or probe that told it.
    pub admission_deadline: Nanos,
    /// Its mesh.
    pub mesh: MeshName,
    /// Where it listens.
    pub endpoint: Endpoint,
    /// Its security identity, as its descriptor says it.
    pub key_id: u128,
    /// Its `message_follow_duration`: `None` while it has not said it, zero when it relays
    /// nothing.
    pub message_follow_duration: Option<Duration>,
}

impl NodeEntry {
    /// Whether its lease stands at `now`, as far as this node knows.
    #[must_use]
    pub fn is_alive(&self, now: Nanos) -> bool {
        now < self.admission_deadline
    }
}

/// Names a [`NodeEntry`] for as long as it stands. Never names another one later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeSlot {
    index: u32,
    stamp: u64,
}

impl NodeSlot {
    /// Place and stamp.
    pub(super) const fn parts(self) -> (u32, u64) {
        (self.index, self.stamp)
    }

    /// The slot of these parts; it names a node only if such a slot was handed out.
    pub(super) const fn of_parts(index: u32, stamp: u64) -> Self {
        Self { index, stamp }
    }
}

/// What [`NodeTable::see`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sighting {
    /// The node was not known.
    Inserted,
    /// The same lifecycle and lease; its deadline moved forward or stayed.
    Renewed,
    /// A newer lifecycle or lease took the place of the old one; routes to the old one are dead.
    Replaced,
    /// Older than what stands; nothing changed.
    Stale,
}

/// The nodes a core knows, by rid; one lifecycle of each.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct NodeTable {
    slots: Vec<Option<(u64, NodeEntry)>>,
    free: Vec<u32>,
    by_rid: BTreeMap<NodeRid, u32>,
    last_stamp: u64,
}

impl NodeTable {
    /// A table that knows nobody.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Nodes known.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_rid.len()
    }

    /// Whether no node is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_rid.is_empty()
    }

    /// The nodes in the order of their rids.
    pub fn iter(&self) -> impl Iterator<Item = &NodeEntry> {
        self.by_rid.values().filter_map(|&i| self.slots[i as usize].as_ref()).map(|(_, e)| e)
    }

    /// The node of that rid, whatever its lifecycle. O(log nodes).
    #[must_use]
    pub fn get(&self, rid: &NodeRid) -> Option<&NodeEntry> {
        let &index = self.by_rid.get(rid)?;
        self.slots[index as usize].as_ref().map(|(_, e)| e)
    }

    /// The node of that rid and lifecycle.
    #[must_use]
    pub fn get_exact(&self, rid: &NodeRid, generation: NodeGeneration) -> Option<&NodeEntry> {
        self.get(rid).filter(|e| e.node_generation == generation)
    }

    /// The entry a slot named; `None` once it was replaced or removed. O(1).
    #[must_use]
    #[inline]
    pub fn at(&self, slot: NodeSlot) -> Option<&NodeEntry> {
        match self.slots.get(slot.index as usize) {
            Some(Some((stamp, entry))) if *stamp == slot.stamp => Some(entry),
            _ => None,
        }
    }

    /// The slot of the node of that rid, whatever its lifecycle.
    pub(super) fn slot_of_rid(&self, rid: &NodeRid) -> Option<NodeSlot> {
        let &index = self.by_rid.get(rid)?;
        let (stamp, _) = self.slots[index as usize].as_ref()?;
        Some(NodeSlot { index, stamp: *stamp })
    }

    /// The slot of exactly the node, lifecycle and lease that `fence` names.
    #[must_use]
    pub fn slot_of(&self, fence: &RouteFence) -> Option<NodeSlot> {
        let &index = self.by_rid.get(&fence.rid)?;
        let (stamp, entry) = self.slots[index as usize].as_ref()?;
        (entry.node_generation == fence.node_generation
            && entry.lease_generation == fence.owner_lease_generation)
            .then_some(NodeSlot { index, stamp: *stamp })
    }

    /// Takes in what was read or announced about a node.
    ///
    /// A greater node generation replaces what stands, a smaller one changes nothing. Within one
    /// lifecycle the lease's deadline only moves forward; a follow duration that is not said
    /// (`None`) does not erase one that was.
    pub fn see(&mut self, mut entry: NodeEntry) -> Sighting {
        let Some(&index) = self.by_rid.get(&entry.rid) else {
            self.insert(entry);
            return Sighting::Inserted;
        };
        let stamp = self.last_stamp + 1;
        let slot = &mut self.slots[index as usize];
        let Some((old_stamp, old)) = slot else {
            debug_assert!(false, "an indexed slot is never empty");
            return Sighting::Stale;
        };
        let new = (entry.node_generation, entry.lease_generation);
        let standing = (old.node_generation, old.lease_generation);
        if new < standing {
            return Sighting::Stale;
        }
        if new > standing {
            (*old_stamp, *old) = (stamp, entry);
            self.last_stamp = stamp;
            return Sighting::Replaced;
        }
        entry.admission_deadline = entry.admission_deadline.max(old.admission_deadline);
        entry.message_follow_duration =
            entry.message_follow_duration.or(old.message_follow_duration);
        *old = entry;
        Sighting::Renewed
    }

    /// A lease renewal that a peer announced. Says whether it was taken: only for the lifecycle
    /// that stands, and only forward.
    pub fn renew(
        &mut self,
        rid: &NodeRid,
        lease_generation: OwnerLeaseGeneration,
        admission_deadline: Nanos,
    ) -> bool {
        match self.get_mut(rid) {
            Some(e)
                if e.lease_generation == lease_generation
                    && e.admission_deadline < admission_deadline =>
            {
                e.admission_deadline = admission_deadline;
                true
            }
            _ => false,
        }
    }

    /// The follow duration a peer announced at admission or later (R0-7). Says whether that
    /// lifecycle is known.
    pub fn set_follow_duration(
        &mut self,
        rid: &NodeRid,
        generation: NodeGeneration,
        duration: Duration,
    ) -> bool {
        match self.get_mut(rid) {
            Some(e) if e.node_generation == generation => {
                e.message_follow_duration = Some(duration);
                true
            }
            _ => false,
        }
    }

    /// Forgets the node when it stands with this lease or an older one: the lease was seen lapsed
    /// or released. Every route to it is dead from now on, even if the same lease is renewed
    /// later (R2.2-4). Says whether it was known.
    pub fn invalidate_lease(
        &mut self,
        rid: &NodeRid,
        lease_generation: OwnerLeaseGeneration,
    ) -> bool {
        let known = self.get(rid).is_some_and(|e| e.lease_generation <= lease_generation);
        if known {
            self.remove(rid);
        }
        known
    }

    /// Forgets every node whose lease has not stood since `before`; returns how many. Keeps the
    /// table as small as the cluster.
    pub fn forget_lapsed(&mut self, before: Nanos) -> usize {
        let lapsed: Vec<NodeRid> =
            self.iter().filter(|e| e.admission_deadline < before).map(|e| e.rid.clone()).collect();
        for rid in &lapsed {
            self.remove(rid);
        }
        lapsed.len()
    }

    fn get_mut(&mut self, rid: &NodeRid) -> Option<&mut NodeEntry> {
        let &index = self.by_rid.get(rid)?;
        self.slots[index as usize].as_mut().map(|(_, e)| e)
    }

    fn next_stamp(&mut self) -> u64 {
        self.last_stamp += 1;
        self.last_stamp
    }

    fn insert(&mut self, entry: NodeEntry) {
        let stamp = self.next_stamp();
        let rid = entry.rid.clone();
        let index = match self.free.pop() {
            Some(index) => {
                self.slots[index as usize] = Some((stamp, entry));
                index
            }
            None => {
                self.slots.push(Some((stamp, entry)));
                (self.slots.len() - 1) as u32
            }
        };
        self.by_rid.insert(rid, index);
    }

    fn remove(&mut self, rid: &NodeRid) {
        if let Some(index) = self.by_rid.remove(rid) {
            self.slots[index as usize] = None;
            self.free.push(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn node(rid: &str, generation: u64, deadline: u64) -> NodeEntry {
        NodeEntry {
            rid: NodeRid::new(rid).unwrap(),
            node_generation: NodeGeneration::new(generation).unwrap(),
            lease_generation: OwnerLeaseGeneration::new(generation + 1).unwrap(),
            admission_deadline: Nanos(deadline),
            mesh: MeshName::new("m").unwrap(),
            endpoint: "tcp://127.0.0.1:1".parse().unwrap(),
            key_id: 7,
            message_follow_duration: None,
        }
    }

    fn fence(e: &NodeEntry) -> RouteFence {
        RouteFence {
            object_generation: crate::ids::ObjectGeneration::FIRST,
            rid: e.rid.clone(),
            node_generation: e.node_generation,
            authority_owner_generation: crate::ids::AuthorityOwnerGeneration::FIRST,
            owner_lease_generation: e.lease_generation,
        }
    }

    /// Proves R2.2-1, R2.2-2.
    #[test]
    fn a_deadline_only_moves_forward_within_a_lifecycle() {
        let mut table = NodeTable::new();
        assert_eq!(table.see(node("a", 5, 100)), Sighting::Inserted);
        assert_eq!(table.see(node("a", 5, 60)), Sighting::Renewed);
        let rid = NodeRid::new("a").unwrap();
        assert_eq!(table.get(&rid).unwrap().admission_deadline, Nanos(100));
        let lease = OwnerLeaseGeneration::new(6).unwrap();
        assert!(!table.renew(&rid, lease, Nanos(90)));
        assert!(table.renew(&rid, lease, Nanos(150)));
        assert!(!table.renew(&rid, OwnerLeaseGeneration::new(5).unwrap(), Nanos(900)));
        assert_eq!(table.get(&rid).unwrap().admission_deadline, Nanos(150));
        assert!(table.get(&rid).unwrap().is_alive(Nanos(149)));
        assert!(!table.get(&rid).unwrap().is_alive(Nanos(150)));
    }

    /// Proves R2.2-4.
    #[test]
    fn a_newer_lifecycle_replaces_and_an_older_one_does_not() {
        let mut table = NodeTable::new();
        table.see(node("a", 5, 100));
        let old = table.slot_of(&fence(&node("a", 5, 0))).unwrap();
        assert_eq!(table.see(node("a", 9, 50)), Sighting::Replaced);
        assert_eq!(table.at(old), None, "a slot never names a later lifecycle");
        assert_eq!(table.see(node("a", 5, 900)), Sighting::Stale);
        assert_eq!(table.get(&NodeRid::new("a").unwrap()).unwrap().node_generation.get(), 9);
        assert_eq!(table.len(), 1);
    }

    /// Proves R2.2-4.
    #[test]
    fn an_invalidated_lease_kills_its_slot_for_good() {
        let mut table = NodeTable::new();
        let rid = NodeRid::new("a").unwrap();
        table.see(node("a", 5, 100));
        let old = table.slot_of(&fence(&node("a", 5, 0))).unwrap();
        assert!(!table.invalidate_lease(&rid, OwnerLeaseGeneration::new(5).unwrap()));
        assert!(table.invalidate_lease(&rid, OwnerLeaseGeneration::new(6).unwrap()));
        assert!(table.is_empty());
        // The node resumes with the same lease and takes the same place in the table.
        assert_eq!(table.see(node("a", 5, 300)), Sighting::Inserted);
        assert_eq!(table.at(old), None);
        assert!(table.slot_of(&fence(&node("a", 5, 0))).is_some());
    }

    /// Proves R0-7.
    #[test]
    fn what_a_peer_said_about_following_is_not_erased_by_a_descriptor() {
        let mut table = NodeTable::new();
        let rid = NodeRid::new("a").unwrap();
        table.see(node("a", 5, 100));
        let generation = NodeGeneration::new(5).unwrap();
        assert!(table.set_follow_duration(&rid, generation, Duration::from_secs(9)));
        assert!(!table.set_follow_duration(
            &rid,
            NodeGeneration::new(4).unwrap(),
            Duration::from_secs(1)
        ));
        table.see(node("a", 5, 200));
        assert_eq!(
            table.get_exact(&rid, generation).unwrap().message_follow_duration,
            Some(Duration::from_secs(9))
        );
    }

    #[test]
    fn lapsed_nodes_are_forgotten_and_their_places_used_again() {
        let mut table = NodeTable::new();
        for i in 0..100u64 {
            table.see(node(&format!("n{i}"), 5 + i, 100 * i));
            table.forget_lapsed(Nanos(100 * i));
        }
        assert_eq!(table.len(), 1);
        assert!(table.slots.len() <= 2, "the table does not grow with nodes that are gone");
    }
}
