#![forbid(unsafe_code)]
//! The lease thread of each node of a world.

use std::time::Duration;

use super::fault::NodeIx;
use super::history::Life;
use super::state::{Due, State};
use super::stores::{Call, CallAnswer};
use super::trace::{NONE, TraceKind};
use crate::env::LeaseView;
use crate::time::Nanos;

impl<M> State<M> {
    /// A node's process began: its lease is acquired before anything else.
    pub(crate) fn keeper_start(&mut self, node: u16) {
        self.publish(node, LeaseView { admission_deadline: Nanos::MAX, fenced: false });
        let life = self.nodes[usize::from(node)].life;
        let boot = self.rng.duration((Duration::from_micros(50), Duration::from_millis(5)));
        self.schedule(self.now + boot, Due::BringUp { node, life });
    }

    pub(crate) fn keeper_answer(&mut self, _node: u16, _call: u64, _: &Call, _: CallAnswer) {}

    pub(crate) fn keeper_release(&mut self, _node: u16) {}

    pub(crate) fn keeper_drop(&mut self, _node: u16) {}

    fn publish(&mut self, node: u16, view: LeaseView) {
        let n = &mut self.nodes[usize::from(node)];
        n.lease = view;
        let life = n.life;
        let (until, fenced) = (view.admission_deadline.0, u64::from(view.fenced));
        self.note_step(TraceKind::Lease, node, NONE, until, fenced);
        self.history.lease(Life { node: NodeIx(node), life }, view);
    }
}
