#![forbid(unsafe_code)]
//! Carries out the faults that touch no core's value.

use std::time::Duration;

use super::fault::{Fault, NodeIx};
use super::history::{Concerns, TroubleKind};
use super::state::{Due, Phase, State};
use super::trace::{NONE, TraceKind};
use crate::env::Failpoint;
use crate::time::Nanos;

impl<M> State<M> {
    pub(crate) fn paused_until(&self, node: u16) -> Option<Nanos> {
        self.nodes[usize::from(node)].paused_until.filter(|&t| t > self.now)
    }

    pub(crate) fn resume(&mut self, node: u16) {
        let now = self.now;
        let n = &mut self.nodes[usize::from(node)];
        if n.paused_until.is_none_or(|t| t > now) {
            return;
        }
        n.paused_until = None;
        let cores = n.cores.len() as u16;
        self.note_step(TraceKind::Resume, node, NONE, 0, 0);
        for core in 0..cores {
            self.wake_core(node, core, now);
        }
    }

    pub(crate) fn unblock(&mut self, from: u16, to: u16) {
        if let Some(count) = self.blocked.get_mut(&(from, to)) {
            *count -= 1;
            if *count > 0 {
                return;
            }
            self.blocked.remove(&(from, to));
        }
        self.note_step(TraceKind::Unblock, NONE, NONE, u64::from(from), u64::from(to));
        self.release_held(from, to);
    }

    fn block(&mut self, from: NodeIx, to: NodeIx, lasts: Duration) {
        *self.blocked.entry((from.0, to.0)).or_insert(0) += 1;
        self.note_step(TraceKind::Block, NONE, NONE, u64::from(from.0), u64::from(to.0));
        self.history.trouble(TroubleKind::LinkSlow, Concerns::Link(from, to), lasts);
        self.schedule(self.now + lasts, Due::Unblock { from: from.0, to: to.0 });
    }

    /// A core came to a failpoint and its whole node is stopped there: this core in the middle of
    /// its iteration, the others before their next.
    pub(crate) fn stop_at(&mut self, point: Failpoint, node: u16, core: u16, by: Duration) {
        let until = self.local + by;
        let n = &mut self.nodes[usize::from(node)];
        n.paused_until = Some(n.paused_until.map_or(until, |t| t.max(until)));
        self.note_step(TraceKind::StopAt, node, core, point as u64, crate::time::duration_ns(by));
        self.history.trouble(TroubleKind::Paused, Concerns::Node(NodeIx(node)), by);
        self.schedule(until, Due::Resume { node });
        self.lose_time(node, core, by);
    }

    /// The faults that touch no core's value.
    pub(super) fn strike(&mut self, fault: &Fault) {
        let now = self.now;
        match fault {
            Fault::Start(_) | Fault::Kill(..) => {}
            Fault::ResetOne(a, b) => {
                let all = self.streams_between(a.0, b.0);
                if !all.is_empty() {
                    let which = self.rng.below(all.len() as u64) as usize;
                    self.reset_stream(all[which]);
                }
            }
            Fault::ResetAll(a, b) => {
                for id in self.streams_between(a.0, b.0) {
                    self.reset_stream(id);
                }
            }
            Fault::Partition { from, to, both, lasts } => {
                for &a in from {
                    for &b in to {
                        self.block(a, b, *lasts);
                        if *both {
                            self.block(b, a, *lasts);
                        }
                    }
                }
            }
            Fault::Delay { a, b, by, lasts } => {
                let pair = (a.0.min(b.0), a.0.max(b.0));
                self.delays.push((pair, *by, now + *lasts));
                self.history.trouble(TroubleKind::LinkSlow, Concerns::Link(*a, *b), *lasts);
            }
            Fault::Pause(node, lasts) => {
                let until = now + *lasts;
                let n = &mut self.nodes[usize::from(node.0)];
                if n.phase == Phase::Down {
                    return;
                }
                n.paused_until = Some(n.paused_until.map_or(until, |t| t.max(until)));
                self.note_step(TraceKind::Pause, node.0, NONE, until.0, 0);
                self.history.trouble(TroubleKind::Paused, Concerns::Node(*node), *lasts);
                self.schedule(until, Due::Resume { node: node.0 });
            }
            Fault::Stall(node, core, lasts) => {
                let until = now + *lasts;
                let n = &mut self.nodes[usize::from(node.0)];
                let Some(c) = n.cores.get_mut(usize::from(*core)) else { return };
                c.busy_until = c.busy_until.max(until);
                self.note_step(TraceKind::Stall, node.0, *core, until.0, 0);
                self.history.trouble(TroubleKind::Paused, Concerns::Node(*node), *lasts);
            }
            Fault::Store { node, mode, lasts } => self.store_mode(*node, *mode, *lasts),
        }
    }
}
