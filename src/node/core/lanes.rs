#![forbid(unsafe_code)]
//! What leaves on a core's lanes, and what a lane may leave unsent.
//!
//! A peer that reads slowly, or not at all, costs a bounded amount of memory whoever it is:
//! - messages to it spend its credit;
//! - while more than a lane window is unsent, no credit goes back on the lane, so a peer that keeps
//!   the rules asks for no more than a window of further answers;
//! - a peer that takes nothing for the liveness timeout is lost, whatever it sends meanwhile;
//! - one for which more than `lane_unsent_bytes` waits is lost at once.

use std::collections::BTreeSet;

use super::Core;
use super::links::Lane;
use crate::env::Env;
use crate::limits;
use crate::node::operation::Mail;
use crate::protocol::peer::{LaneLoss, LinkId, LivenessAction};
use crate::time::Nanos;
use crate::wire::{self, Body, Control, CreditEntry, FrameParts, Record};

impl Lane {
    /// When the lane wants to be looked at next.
    pub(super) fn next_deadline(&self) -> Nanos {
        let returns = self.returns.next_deadline().unwrap_or(Nanos::MAX);
        self.liveness.next_deadline().min(returns.max(self.credit_paused_until))
    }

    /// Puts the credit that is due into what leaves next, unless too much waits already.
    fn return_credit(&mut self, lane: u16, unsent: u64, now: Nanos, window_bytes: u32) {
        if !self.returns.is_due(now) || now < self.credit_paused_until {
            return;
        }
        if unsent > u64::from(window_bytes) {
            // Nothing tells when it has become less.
            self.credit_paused_until = now + limits::CREDIT_RETURN_DELAY;
            return;
        }
        let mut entries = Vec::new();
        self.returns.take(limits::CREDIT_ENTRIES_PER_FRAME, &mut entries);
        push_credit(&mut self.control, lane, &entries);
    }
}

impl<E: Env<Mail = Mail>> Core<E> {
    /// Looks at the liveness of every lane whose time has come.
    pub(super) fn poll_liveness(&mut self, env: &mut E) {
        let now = self.now;
        let mut lost = Vec::new();
        for ((link, lane), state) in &mut self.links.lanes {
            if state.liveness.next_deadline() > now {
                continue;
            }
            let unsent = env.unsent_bytes(state.conn);
            let taken = state.written_bytes.saturating_sub(unsent as u64);
            state.liveness.on_sent(taken, unsent, now);
            match state.liveness.poll(now) {
                None => {}
                Some(LivenessAction::Probe(probe_id)) => {
                    let probe = Record::LivenessProbe(wire::Liveness { probe_id });
                    push_control(&mut state.control, *lane, Body::Record(probe));
                    self.links.dirty.insert((*link, *lane));
                }
                Some(LivenessAction::Lost { silence }) => {
                    let reason = format!("nothing was received for {silence:?}");
                    lost.push((*link, *lane, LaneLoss::Silent, reason));
                }
                Some(LivenessAction::NotRead { stall }) => {
                    let reason = format!("the peer took nothing of {unsent} bytes for {stall:?}");
                    lost.push((*link, *lane, LaneLoss::NotRead, reason));
                }
            }
        }
        for (link, lane, loss, reason) in lost {
            self.lose_lane(env, link, lane, loss, reason);
        }
    }

    /// Submits what lanes have: control always, frames while the lease stands.
    pub(super) fn flush_lanes(&mut self, env: &mut E, is_alive: bool) {
        let (now, window_bytes) = (self.now, self.shared.settings.lane_window_bytes);
        let limit = self.shared.settings.unsent_limit();
        let mut kept = BTreeSet::new();
        let mut over: Vec<(LinkId, u16, u64)> = Vec::new();
        for (link, lane) in std::mem::take(&mut self.links.dirty) {
            let Some(state) = self.links.lanes.get_mut(&(link, lane)) else { continue };
            let unsent = env.unsent_bytes(state.conn) as u64;
            state.return_credit(lane, unsent, now, window_bytes);
            let waiting = unsent + state.control.len() as u64 + state.frames.len() as u64;
            if waiting > limit {
                over.push((link, lane, waiting));
                continue;
            }
            if state.returns.next_deadline().is_some() {
                kept.insert((link, lane));
            }
            if !state.control.is_empty() {
                state.written_bytes += state.control.len() as u64;
                env.write(state.conn, &mut state.control);
            }
            if state.frames.is_empty() {
                continue;
            }
            if is_alive {
                state.written_bytes += state.frames.len() as u64;
                env.write(state.conn, &mut state.frames);
            } else {
                kept.insert((link, lane));
            }
        }
        self.links.dirty.append(&mut kept);
        for (link, lane, waiting) in over {
            let reason = format!(
                "{waiting} bytes wait for the peer to read; lane_unsent_bytes allows {limit}"
            );
            self.lose_lane(env, link, lane, LaneLoss::Unsent, reason);
        }
    }
}

/// Appends a control frame of a lane. Its fields are our own, so it always encodes.
pub(super) fn push_control(out: &mut Vec<u8>, lane: u16, body: Body<'_>) {
    let encoded = FrameParts::link(lane, body).encode(out, limits::MIN_MAX_FRAME_BYTES);
    debug_assert!(encoded.is_ok(), "control frames are well formed: {encoded:?}");
}

/// Appends a credit record for `entries`.
fn push_credit(out: &mut Vec<u8>, lane: u16, entries: &[(u64, u64)]) {
    let entries: Vec<CreditEntry> = entries
        .iter()
        .map(|(object_hash, bytes)| CreditEntry {
            object_hash: *object_hash,
            bytes: u32::try_from(*bytes).unwrap_or(u32::MAX),
        })
        .collect();
    if let Ok(credit) = wire::Credit::new(&entries) {
        push_control(out, lane, Body::Control(Control::Credit(credit)));
    }
}
