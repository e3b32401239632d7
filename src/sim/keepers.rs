#![forbid(unsafe_code)]
//! The lease thread of each node of a world: the same [`Keeper`] as the real one, in virtual time.
//!
//! A node whose [`super::NodeSpec::lease`] is `None` has no lease thread: its lease never ends.

use std::time::Duration;

use super::fault::NodeIx;
use super::history::Life;
use super::state::{Due, Phase, State};
use super::stores::Caller;
use super::trace::{NONE, TraceKind, digest};
use crate::env::{LeaseView, StoreAnswer, StoreOp};
use crate::location::StoreError;
use crate::node::store_threads::{LeaseControl, LeaseReport};
use crate::protocol::batch::{Call, CallResult};
use crate::store::leases::{Keeper, KeeperConfig, KeeperEffect, KeeperEvent, Started};
use crate::time::Nanos;

/// How long a lease is given back when the node ended without asking for it.
const ABANDONED_RELEASE: Duration = Duration::from_secs(2);
/// A start that failed for want of a lease is tried again after this: somebody restarts servers.
const START_AGAIN: Duration = Duration::from_secs(1);

/// Takes what the lease thread reports to the node.
pub(crate) type Reports = Box<dyn Fn(LeaseReport)>;

/// The lease thread of one lifecycle.
pub(crate) struct KeeperSlot {
    keeper: Keeper,
    wait_until: Nanos,
    control: flume::Receiver<LeaseControl>,
    pub(crate) sender: Option<flume::Sender<LeaseControl>>,
    pub(crate) started: Option<Box<Started>>,
    pub(crate) reports: Option<Reports>,
    releasing: bool,
}

impl<M> State<M> {
    /// A node's process began: its lease is taken before anything else.
    pub(crate) fn keeper_start(&mut self, node: u16) {
        let n = &mut self.nodes[usize::from(node)];
        let life = n.life;
        let Some(config) = n.keeper_config.clone() else {
            self.publish(node, LeaseView { admission_deadline: Nanos::MAX, fenced: false });
            let boot = self.rng.duration((Duration::from_micros(50), Duration::from_millis(5)));
            self.schedule(self.now + boot, Due::BringUp { node, life });
            return;
        };
        let hash_seed = self.rng.next_u64();
        let lifecycle = u128::from(self.rng.next_u64()) << 64 | u128::from(self.rng.next_u64());
        let (sender, control) = flume::unbounded();
        self.nodes[usize::from(node)].keeper = Some(Box::new(KeeperSlot {
            keeper: Keeper::new(KeeperConfig { hash_seed, lifecycle, ..config }),
            wait_until: Nanos::MAX,
            control,
            sender: Some(sender),
            started: None,
            reports: None,
            releasing: false,
        }));
        self.keeper_step(node, KeeperEvent::Start);
    }

    fn keeper_step(&mut self, node: u16, event: KeeperEvent) {
        let now = self.now;
        let Some(slot) = &mut self.nodes[usize::from(node)].keeper else { return };
        let mut effects = Vec::new();
        slot.keeper.step(event, now, &mut effects);
        self.note_step(TraceKind::Keeper, node, NONE, effects.len() as u64, 0);
        for effect in effects {
            self.keeper_effect(node, effect);
        }
    }

    fn keeper_effect(&mut self, node: u16, effect: KeeperEffect) {
        let life = self.nodes[usize::from(node)].life;
        let now = self.now;
        let report = match effect {
            KeeperEffect::Store { token, op, budget } => {
                let call = match op {
                    StoreOp::Read(keys) => Call::Read { keys, budget },
                    StoreOp::Commit(batch) => Call::Commit { batches: vec![batch], budget },
                    StoreOp::Scan { prefix, cursor, limit } => {
                        Call::Scan { prefix, cursor, limit, budget }
                    }
                };
                self.store_launch(node, Caller::Keeper(token), call);
                return;
            }
            KeeperEffect::WaitUntil(at) => {
                if let Some(slot) = &mut self.nodes[usize::from(node)].keeper {
                    slot.wait_until = at;
                }
                if at != Nanos::MAX {
                    self.schedule(at, Due::Keeper { node, life });
                }
                return;
            }
            KeeperEffect::Publish(view) => {
                self.publish(node, view);
                return;
            }
            KeeperEffect::Started(started) => {
                self.lives.insert(started.node_generation.get(), Life { node: NodeIx(node), life });
                if let Some(slot) = &mut self.nodes[usize::from(node)].keeper {
                    slot.started = Some(started.clone());
                }
                self.schedule(now, Due::BringUp { node, life });
                LeaseReport::Started(started)
            }
            KeeperEffect::StartFailed(e) => {
                self.trace.note(now, format!("n{node} got no lease: {e}"));
                self.schedule(now, Due::End { node, life, failed: true });
                self.schedule(now + START_AGAIN, Due::StartAgain { node, life });
                LeaseReport::StartFailed(e)
            }
            KeeperEffect::DescriptorPublished => LeaseReport::DescriptorPublished,
            KeeperEffect::DescriptorRefused(e) => LeaseReport::DescriptorRefused(e),
            KeeperEffect::Fenced(e) => LeaseReport::Fenced(e),
            KeeperEffect::Health(health) => LeaseReport::Health(health),
            KeeperEffect::Released { clean } => {
                self.end_when_idle(node);
                LeaseReport::Released { clean }
            }
        };
        if let Some(reports) =
            self.nodes[usize::from(node)].keeper.as_ref().and_then(|k| k.reports.as_ref())
        {
            reports(report);
        }
    }

    /// The instant of a keeper's last wait.
    pub(crate) fn keeper_due(&mut self, node: u16, life: u32) {
        let now = self.now;
        if let Some(until) = self.paused_until(node) {
            self.schedule(until, Due::Keeper { node, life });
            return;
        }
        let Some(n) = self.alive(node, life) else { return };
        if n.keeper.as_ref().is_some_and(|k| k.wait_until <= now) {
            self.keeper_step(node, KeeperEvent::Timer);
        }
    }

    pub(crate) fn keeper_answer(&mut self, node: u16, token: u64, answer: CallResult) {
        let answer = match answer {
            CallResult::Read(Ok(read)) => StoreAnswer::Read(read),
            CallResult::Scan(Ok(page)) => StoreAnswer::Scan(page),
            CallResult::Commit(Ok(mut outcomes)) => match outcomes.pop() {
                Some(outcome) => StoreAnswer::Commit(outcome),
                None => StoreAnswer::Failed(StoreError::Unknown("no outcome".to_owned())),
            },
            CallResult::Read(Err(e)) | CallResult::Scan(Err(e)) | CallResult::Commit(Err(e)) => {
                StoreAnswer::Failed(e)
            }
        };
        let code = digest(&answer);
        self.note_step(TraceKind::StoreAnswer, node, NONE, token, code);
        self.keeper_step(node, KeeperEvent::Answer { token, answer });
    }

    /// Takes what nodes told their lease threads.
    pub(crate) fn drain_lease_controls(&mut self) {
        for node in 0..self.nodes.len() {
            loop {
                let n = &mut self.nodes[node];
                let Some(slot) = &mut n.keeper else { break };
                let Ok(control) = slot.control.try_recv() else { break };
                let event = match control {
                    LeaseControl::Publish(descriptor) => KeeperEvent::Publish(descriptor),
                    LeaseControl::Release { deadline } => {
                        slot.releasing = true;
                        KeeperEvent::Release { deadline }
                    }
                };
                self.keeper_step(node as u16, event);
            }
        }
    }

    /// All cores of a node have ended: its process ends with its lease thread.
    pub(crate) fn end_when_idle(&mut self, node: u16) {
        let now = self.now;
        let n = &mut self.nodes[usize::from(node)];
        let life = n.life;
        if n.phase != Phase::Up || !n.cores.iter().all(|c| c.ended) {
            return;
        }
        match &mut n.keeper {
            Some(slot) if !slot.keeper.has_ended() => {
                if !std::mem::replace(&mut slot.releasing, true) {
                    let deadline = now + ABANDONED_RELEASE;
                    self.keeper_step(node, KeeperEvent::Release { deadline });
                }
            }
            _ => self.schedule(now, Due::End { node, life, failed: false }),
        }
    }

    fn publish(&mut self, node: u16, view: LeaseView) {
        let n = &mut self.nodes[usize::from(node)];
        n.lease = view;
        let life = n.life;
        let (until, fenced) = (view.admission_deadline.0, u64::from(view.fenced));
        self.note_step(TraceKind::Lease, node, NONE, until, fenced);
        self.history.lease(Life { node: NodeIx(node), life }, view);
    }
}
