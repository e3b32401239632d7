#![forbid(unsafe_code)]
//! How streams end and change cores: closed, broken, left behind by a process, handed over.

use std::collections::VecDeque;

use super::fault::{Death, NodeIx};
use super::net::{EndState, Item, Moved, Stream, conn_id, end_code, item_len};
use super::state::{Due, State};
use super::trace::{NONE, TraceKind};
use crate::env::{ConnId, Event};

impl<M> State<M> {
    pub(crate) fn close(&mut self, conn: ConnId, flush: bool) {
        let Some((id, side, s)) = self.end(conn) else { return };
        let (node, core, open) =
            (s.ends[side].node, s.ends[side].core, s.ends[side].state == EndState::Open);
        self.note_step(TraceKind::Close, node, core, end_code(id, side), u64::from(flush));
        if open && flush {
            self.pump(id, side);
        }
        self.link_lost(id);
        let waiting = self.take_waiting(node, core, conn);
        self.leave(id, side, open, !waiting.is_empty());
    }

    /// One end goes; the other hears of it when `tell`.
    fn leave(&mut self, id: u64, side: usize, tell: bool, had_waiting: bool) {
        let Some(s) = self.streams.get_mut(&id) else { return };
        s.ends[side].state = EndState::Gone;
        s.ends[side].transit = None;
        s.ends[side].moved.clear();
        s.dirs[side].queue.clear();
        let unread = had_waiting || !s.dirs[1 - side].flight.is_empty();
        if s.ends[1 - side].state == EndState::Gone {
            self.forget(id);
        } else if tell && !s.dirs[side].shut {
            // A kernel that has bytes nobody will read resets the stream.
            if unread && self.net_rng.below(2) == 0 {
                self.break_dir(id, side);
            } else {
                self.send(id, side, Item::Fin);
            }
        }
    }

    /// Loses what is in flight from a random byte on and ends the direction with a failure.
    fn break_dir(&mut self, id: u64, side: usize) {
        let Some(s) = self.streams.get_mut(&id) else { return };
        let d = &mut s.dirs[side];
        if d.shut && !d.flight.iter().any(|(_, i)| matches!(i, Item::Fin)) {
            return;
        }
        let total: usize = d.flight.iter().map(|(_, i)| item_len(i)).sum();
        let mut keep = self.net_rng.below(total as u64 + 1) as usize;
        let mut kept = VecDeque::new();
        for (at, item) in std::mem::take(&mut d.flight) {
            if let Item::Bytes(mut bytes) = item {
                let part = keep.min(bytes.len());
                d.in_flight -= bytes.len() - part;
                keep -= part;
                bytes.truncate(part);
                if part > 0 {
                    kept.push_back((at, Item::Bytes(bytes)));
                }
            }
        }
        d.last_at = kept.back().map_or(self.local, |&(at, _)| at);
        d.flight = kept;
        d.queue.clear();
        self.send(id, side, Item::Reset);
    }

    /// Breaks a stream: both ends learn of it, each after what still got through.
    pub(crate) fn reset_stream(&mut self, id: u64) {
        self.note_step(TraceKind::Reset, NONE, NONE, id, 0);
        self.link_lost(id);
        self.break_dir(id, 0);
        self.break_dir(id, 1);
    }

    /// A connected stream ends, whoever ends it: what is in flight may be lost, and so may be what
    /// an end writes that has not heard of it.
    fn link_lost(&mut self, id: u64) {
        let Some(s) = self.streams.get_mut(&id) else { return };
        let one_open = s.ends.iter().any(|e| e.state == EndState::Open);
        if s.connected && one_open && s.lost.is_none() {
            s.lost = Some(self.history.link_lost(NodeIx(s.ends[0].node), NodeIx(s.ends[1].node)));
        }
    }

    pub(super) fn forget(&mut self, id: u64) {
        if let Some(Stream { lost: Some(trouble), .. }) = self.streams.remove(&id) {
            self.history.over(trouble);
        }
    }

    /// The connected streams between two nodes.
    pub(crate) fn streams_between(&self, a: u16, b: u16) -> Vec<u64> {
        let on = |s: &Stream| {
            let (x, y) = (s.ends[0].node, s.ends[1].node);
            s.connected && !s.silent && ((x, y) == (a, b) || (x, y) == (b, a))
        };
        self.streams.iter().filter(|(_, s)| on(s)).map(|(&id, _)| id).collect()
    }

    /// The process of a node ended: its streams do as `death` says.
    pub(crate) fn drop_node_streams(&mut self, node: u16, life: u32, death: Death) {
        let ids: Vec<u64> = self.streams.keys().copied().collect();
        for id in ids {
            for side in 0..2 {
                let Some(s) = self.streams.get_mut(&id) else { break };
                let end = &s.ends[side];
                if end.node != node || end.life != life || end.state == EndState::Gone {
                    continue;
                }
                let tell = end.state == EndState::Open;
                match death {
                    Death::Silent => {
                        s.silent = true;
                        self.leave(id, side, false, false);
                    }
                    Death::Eof => self.leave(id, side, tell, false),
                    Death::Reset => {
                        self.break_dir(id, side);
                        self.leave(id, side, false, false);
                    }
                }
            }
        }
    }

    /// A host that died silently is back: its peers' old streams fail.
    pub(crate) fn host_is_back(&mut self, node: u16) {
        let ids: Vec<u64> = self.streams.keys().copied().collect();
        for id in ids {
            let Some(s) = self.streams.get_mut(&id) else { continue };
            let Some(side) = (0..2).find(|&i| s.ends[i].node == node) else { continue };
            if s.silent && s.ends[side].state == EndState::Gone {
                s.silent = false;
                s.connected = true;
                s.dirs[side].flight.clear();
                s.dirs[side].held = false;
                self.link_lost(id);
                self.send(id, side, Item::Reset);
            }
        }
    }

    /// A partition ended: what was held goes on.
    pub(crate) fn release_held(&mut self, from: u16, to: u16) {
        let ids: Vec<u64> = self.streams.keys().copied().collect();
        for id in ids {
            for side in 0..2 {
                let Some(s) = self.streams.get_mut(&id) else { continue };
                if s.dirs[side].held && (s.ends[side].node, s.ends[1 - side].node) == (from, to) {
                    s.dirs[side].held = false;
                    self.expect(id, side);
                }
            }
        }
    }

    pub(crate) fn hand_over(&mut self, conn: ConnId, to: u16, tag: u64, unread: Vec<u8>) {
        let Some((id, side, s)) = self.end(conn) else { return };
        let (node, core) = (s.ends[side].node, s.ends[side].core);
        let waiting = self.take_waiting(node, core, conn);
        let range = self.rates.mail;
        let delay = self.net_rng.duration(range);
        let Some(s) = self.streams.get_mut(&id) else { return };
        let end = &mut s.ends[side];
        end.hand_overs += 1;
        end.conn = conn_id(id, side, end.hand_overs);
        end.core = to;
        end.transit = Some((tag, unread));
        end.moved = waiting;
        end.polled = 0;
        self.schedule(self.local + delay, Due::Adopt { stream: id, side });
    }

    pub(crate) fn adopt(&mut self, id: u64, side: usize) {
        let Some(s) = self.streams.get_mut(&id) else { return };
        let end = &mut s.ends[side];
        let Some((tag, unread)) = end.transit.take() else { return };
        let moved = std::mem::take(&mut end.moved);
        let (node, core, conn) = (end.node, end.core, end.conn);
        let held = std::mem::take(&mut s.dirs[1 - side].held);
        self.note_step(TraceKind::Adopted, node, core, id, tag);
        self.push_event(node, core, Event::Adopted { conn, tag, unread });
        for event in moved {
            let event = match event {
                Moved::Received(bytes) => Event::Received { conn, bytes },
                Moved::Closed(reason) => Event::Closed { conn, reason },
            };
            self.push_event(node, core, event);
        }
        if held {
            self.expect(id, 1 - side);
        }
    }
}
