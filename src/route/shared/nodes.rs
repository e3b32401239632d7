#![forbid(unsafe_code)]
//! What readers see of a core's node table: one row per node, at its place in the table.

use std::time::Duration;

use super::super::{NodeEntry, NodeSlot, NodeTable, Sighting};
use super::word;
use crate::ids::{NodeGeneration, NodeRid, OwnerLeaseGeneration};
use crate::layout::{
    ColdNode, FOLLOW_UNKNOWN, HotNode, ShardHead, WORD_BYTES, pack_node, put_text,
};
use crate::shm::WriteWords;
use crate::time::{Nanos, duration_ns};
use std::mem::offset_of;

/// The rows.
#[derive(Debug)]
pub(super) struct NodeRows {
    hot: WriteWords,
    cold: WriteWords,
}

impl NodeRows {
    pub(super) fn new(hot: WriteWords, cold: WriteWords) -> Self {
        Self { hot, cold }
    }

    /// Empties every row, whatever state a writer that died has left it in.
    pub(super) fn sweep(&mut self) {
        for row in 0..self.len() {
            self.empty(row as u32);
        }
    }

    /// As a writer that died in a row leaves it.
    #[cfg(test)]
    pub(super) fn store_seq(&mut self, row: usize, seq: u64) {
        self.hot.store(row * HotNode::WORDS, seq);
    }

    fn len(&self) -> usize {
        self.hot.len() / HotNode::WORDS
    }

    fn empty(&mut self, row: u32) {
        let row = row as usize;
        if row < self.len() {
            self.hot.write(row * HotNode::WORDS, &[0; HotNode::WORDS - 1], || ());
        }
    }

    /// Shows what changes while a lifecycle stands; `names` too when they may be new.
    fn show(&mut self, slot: NodeSlot, node: &NodeEntry, names: bool) {
        let (row, stamp) = slot.parts();
        // What no route can name is not shown.
        if row as usize >= self.len() || pack_node(row, stamp).is_none() {
            return;
        }
        let row = row as usize;
        let hot = HotNode {
            seq: 0,
            stamp,
            node_generation: node.node_generation.get(),
            lease_generation: node.lease_generation.get(),
            admission_deadline_ns: node.admission_deadline.0,
            follow_duration_ns: match node.message_follow_duration {
                None => FOLLOW_UNKNOWN,
                Some(duration) => duration_ns(duration).min(FOLLOW_UNKNOWN - 1),
            },
            key_id: [node.key_id as u64, (node.key_id >> 64) as u64],
        };
        let hot: [u64; HotNode::WORDS] = zerocopy::transmute!(hot);
        let cold = &mut self.cold;
        self.hot.write(row * HotNode::WORDS, &hot[1..], || {
            if names {
                let names: [u64; ColdNode::WORDS] = zerocopy::transmute!(names_of(node));
                cold.put(row * ColdNode::WORDS, &names);
            }
        });
    }
}

fn names_of(node: &NodeEntry) -> ColdNode {
    let mut names = ColdNode { rid: [0; 256], mesh: [0; 256], endpoint: [0; 128] };
    put_text(&mut names.rid, node.rid.as_bytes());
    put_text(&mut names.mesh, node.mesh.as_str().as_bytes());
    put_text(&mut names.endpoint, node.endpoint.to_string().as_bytes());
    names
}

/// The right to change a [`SharedRouteCache`](super::SharedRouteCache)'s node table: every change
/// is shown to readers.
#[derive(Debug)]
pub struct NodesMut<'a> {
    pub(super) table: &'a mut NodeTable,
    pub(super) rows: &'a mut NodeRows,
    pub(super) head: &'a mut WriteWords,
}

impl NodesMut<'_> {
    /// As [`NodeTable::see`].
    pub fn see(&mut self, entry: NodeEntry) -> Sighting {
        let rid = entry.rid.clone();
        let sighting = self.table.see(entry);
        if sighting != Sighting::Stale {
            self.show(&rid, true);
            self.show_count();
        }
        sighting
    }

    /// As [`NodeTable::renew`].
    pub fn renew(
        &mut self,
        rid: &NodeRid,
        lease_generation: OwnerLeaseGeneration,
        admission_deadline: Nanos,
    ) -> bool {
        let taken = self.table.renew(rid, lease_generation, admission_deadline);
        if taken {
            self.show(rid, false);
        }
        taken
    }

    /// As [`NodeTable::set_follow_duration`].
    pub fn set_follow_duration(
        &mut self,
        rid: &NodeRid,
        generation: NodeGeneration,
        duration: Duration,
    ) -> bool {
        let known = self.table.set_follow_duration(rid, generation, duration);
        if known {
            self.show(rid, false);
        }
        known
    }

    /// As [`NodeTable::invalidate_lease`].
    pub fn invalidate_lease(
        &mut self,
        rid: &NodeRid,
        lease_generation: OwnerLeaseGeneration,
    ) -> bool {
        let slot = self.table.slot_of_rid(rid);
        let known = self.table.invalidate_lease(rid, lease_generation);
        if known {
            self.hide_if_gone(slot);
            self.show_count();
        }
        known
    }

    /// As [`NodeTable::forget_lapsed`].
    pub fn forget_lapsed(&mut self, before: Nanos) -> usize {
        let slots: Vec<_> =
            self.table.iter().map(|node| self.table.slot_of_rid(&node.rid)).collect();
        let count = self.table.forget_lapsed(before);
        if count > 0 {
            slots.into_iter().for_each(|slot| self.hide_if_gone(slot));
            self.show_count();
        }
        count
    }

    fn show(&mut self, rid: &NodeRid, names: bool) {
        let slot = self.table.slot_of_rid(rid);
        if let Some((slot, node)) = slot.and_then(|slot| Some((slot, self.table.at(slot)?))) {
            self.rows.show(slot, node, names);
        }
    }

    fn hide_if_gone(&mut self, slot: Option<NodeSlot>) {
        if let Some(slot) = slot
            && self.table.at(slot).is_none()
        {
            self.rows.empty(slot.parts().0);
        }
    }

    fn show_count(&mut self) {
        self.head.store(word!(ShardHead.node_count), self.table.len() as u64);
    }
}
