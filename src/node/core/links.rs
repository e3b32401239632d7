#![forbid(unsafe_code)]
//! Links and lanes as a core sees them: the streams it owns, what goes out on them, and, on core
//! 0, the peers machine.
//!
//! A lane has two outgoing buffers. `control` (probes, credit) always leaves. `frames` (messages
//! and replies) leaves only while the node's lease stands; otherwise it stays where it is, in
//! order, until a renewal (R5-16).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::Core;
use super::inbound::Broken;
use super::lanes::push_control;
use crate::env::{ConnId, Env, Failpoint};
use crate::ids::{FixedMap, NodeGeneration, NodeRid};
use crate::node::counters::Counter;
use crate::node::operation::Mail;
use crate::protocol::credit::{CreditReturn, CreditWindow, lane_share_bytes};
use crate::protocol::peer::{
    LaneLiveness, LaneLoss, LinkId, LinkInfo, PeerEffect, PeerEvent, Peers, announced_ms,
};
use crate::time::Nanos;
use crate::transport::framing::{FrameLengthError, FrameReader};
use crate::wire::{self, Body, Control, CreditEntry, Frame, FrameHeader, FrameParts, Record};

/// Closed links a core remembers, for lanes that are handed over late.
const CLOSED_LINKS_KEPT: usize = 1024;

/// A stream this core owns.
pub(super) struct Lane {
    pub(super) conn: ConnId,
    reader: FrameReader,
    pub(super) control: Vec<u8>,
    pub(super) frames: Vec<u8>,
    pub(super) liveness: LaneLiveness,
    pub(super) returns: CreditReturn,
    /// Too much waits for the peer to read: no credit goes back before then.
    pub(super) credit_paused_until: Nanos,
    /// Bytes given to the stream here, and those that waited on it when it came.
    pub(super) written_bytes: u64,
}

/// The head of a frame breaks a rule.
struct BadHead(Broken);

impl From<FrameLengthError> for BadHead {
    fn from(e: FrameLengthError) -> Self {
        Self(("frame-length", e.to_string()))
    }
}

/// A link as every core knows it.
pub(super) struct Link {
    pub(super) info: Arc<LinkInfo>,
    /// All lanes are attached.
    pub(super) is_up: bool,
    /// The peer broke a rule: nothing more of it is looked at here.
    pub(super) is_given_up: bool,
    /// This home core's share of the peer's credit, per lane it sends on.
    windows: BTreeMap<u16, CreditWindow>,
}

/// All links of a core.
#[derive(Default)]
pub(super) struct Links {
    pub(super) lanes: BTreeMap<(LinkId, u16), Lane>,
    lane_of: FixedMap<ConnId, (LinkId, u16)>,
    links: BTreeMap<LinkId, Link>,
    of_node: FixedMap<(NodeRid, NodeGeneration), LinkId>,
    closed: BTreeSet<LinkId>,
    /// Frames for lanes whose stream is still on its way to this core.
    early_frames: BTreeMap<(LinkId, u16), Vec<u8>>,
    /// Lanes with something to send.
    pub(super) dirty: BTreeSet<(LinkId, u16)>,
}

impl Links {
    /// The link to this lifecycle of a node, if it is up.
    pub(super) fn to_node(
        &self,
        rid: &NodeRid,
        generation: NodeGeneration,
    ) -> Option<(LinkId, &Link)> {
        let id = self.reply_link(rid, generation)?;
        let link = self.links.get(&id)?;
        link.is_up.then_some((id, link))
    }

    /// The link that answers to this lifecycle of a node go by: also one that is not up yet. Its
    /// first lanes are received from while the last one is still being attached, and the peer, for
    /// whom it may be up already, sends on them.
    pub(super) fn reply_link(&self, rid: &NodeRid, generation: NodeGeneration) -> Option<LinkId> {
        self.of_node.get(&(rid.clone(), generation)).copied()
    }

    pub(super) fn get(&self, link: LinkId) -> Option<&Link> {
        self.links.get(&link)
    }

    /// This core's credit on a lane.
    pub(super) fn window(&mut self, link: LinkId, lane: u16) -> Option<&mut CreditWindow> {
        self.links.get_mut(&link)?.windows.get_mut(&lane)
    }

    /// The outgoing frames of a lane of this core; its stream may still be on its way here.
    fn frames_of(&mut self, link: LinkId, lane: u16) -> &mut Vec<u8> {
        match self.lanes.get_mut(&(link, lane)) {
            Some(state) => &mut state.frames,
            None => self.early_frames.entry((link, lane)).or_default(),
        }
    }

    /// The links that are up.
    pub(super) fn up(&self) -> Vec<LinkId> {
        self.links.iter().filter(|(_, link)| link.is_up).map(|(id, _)| *id).collect()
    }

    /// The next time a lane wants to be looked at.
    pub(super) fn next_deadline(&self) -> Nanos {
        self.lanes.values().map(Lane::next_deadline).min().unwrap_or(Nanos::MAX)
    }

    /// Drops what was not let out; a fenced node does this.
    pub(super) fn drop_withheld(&mut self) {
        self.lanes.values_mut().for_each(|lane| lane.frames.clear());
        self.early_frames.clear();
    }
}

#[cfg(feature = "sim")]
impl Links {
    /// What is held beside the links themselves, for tests that look for what was left behind.
    pub(super) fn held(&self) -> [(&'static str, u64); 4] {
        let windows = self.links.values().flat_map(|link| link.windows.values());
        [
            ("outstanding credit bytes", windows.map(CreditWindow::outstanding_bytes).sum()),
            ("frames not sent, bytes", self.lanes.values().map(|l| l.frames.len() as u64).sum()),
            ("early frames", self.early_frames.len() as u64),
            ("links that are not up", self.links.values().filter(|l| !l.is_up).count() as u64),
        ]
    }
}

/// What only core 0 has.
pub(super) struct Zero {
    pub(super) peers: Peers,
    events: VecDeque<PeerEvent>,
    is_stepping: bool,
    pub(super) intents: super::intents::Intents,
}

impl Zero {
    pub(super) fn new(peers: Peers) -> Self {
        let intents = super::intents::Intents::default();
        Self { peers, events: VecDeque::new(), is_stepping: false, intents }
    }
}

fn tag_of(link: LinkId, lane: u16) -> u64 {
    link.0 << 16 | u64::from(lane)
}

impl<E: Env<Mail = Mail>> Core<E> {
    /// The core of this node that owns a lane.
    fn lane_core(&self, lane: u16) -> u16 {
        lane % self.shared.settings.cores
    }

    /// The share of this node's window that one home core of the peer has on a lane.
    fn granted_share(&self, info: &LinkInfo) -> u64 {
        lane_share_bytes(self.shared.settings.lane_window_bytes, info.cores, info.lanes)
    }

    /// Sends mail to every core of the node; this one handles it at once.
    pub(super) fn broadcast(&mut self, env: &mut E, mail: impl Fn() -> Mail) {
        for core in 0..self.shared.settings.cores {
            if core != self.index {
                env.mail(core, mail());
            }
        }
        self.on_mail(env, mail());
    }

    /// Gives the peers machine an event and carries out what it wants. Core 0 only.
    pub(super) fn step_peers(&mut self, env: &mut E, event: PeerEvent) {
        let Some(zero) = &mut self.zero else { return };
        zero.events.push_back(event);
        if std::mem::replace(&mut zero.is_stepping, true) {
            // An effect that is being carried out caused it: it waits until that one is done.
            return;
        }
        let mut effects = Vec::new();
        while let Some(zero) = &mut self.zero
            && let Some(event) = zero.events.pop_front()
        {
            zero.peers.step(event, self.now, &mut effects);
            for effect in effects.drain(..) {
                self.do_peer_effect(env, effect);
            }
        }
        if let Some(zero) = &mut self.zero {
            zero.is_stepping = false;
        }
    }

    fn do_peer_effect(&mut self, env: &mut E, effect: PeerEffect) {
        match effect {
            PeerEffect::Dial { dial, endpoint } => {
                let conn = env.dial(&endpoint);
                self.step_peers(env, PeerEvent::Dialed { dial, conn });
            }
            PeerEffect::Send { conn, mut frame } => {
                env.reached(Failpoint::HandshakeSend);
                env.write(conn, &mut frame);
            }
            PeerEffect::Close { conn, reason, detail } => {
                tracing::debug!(reason = reason.counter(), detail, "a stream is closed");
                self.count_close(reason.counter(), reason.is_violation());
                env.close(conn, true);
            }
            PeerEffect::LinkAdmitted { link, info } => {
                env.reached(Failpoint::LinkAdmitted);
                self.broadcast(env, || Mail::LinkAdmitted { link, info: info.clone() });
            }
            PeerEffect::LaneReady { conn, link, lane, core, unread } => {
                env.hand_over(conn, core, tag_of(link, lane), unread);
            }
            PeerEffect::LinkUp { link, info } => {
                tracing::info!(peer = %info.peer, lanes = info.lanes, "a link is up");
                self.count(Counter::LinksUp, 1);
                env.reached(Failpoint::LinkUp);
                self.broadcast(env, || Mail::LinkUp { link });
            }
            PeerEffect::CloseLink { link, peer, reason, detail } => {
                tracing::info!(peer = %peer, reason = reason.counter(), detail, "a link is closed");
                self.count_close(reason.counter(), reason.is_violation());
                let reason: Arc<str> = detail.into();
                self.broadcast(env, || Mail::LinkClose { link, reason: reason.clone() });
            }
            PeerEffect::LinkDown { .. } => self.count(Counter::LinksDown, 1),
            PeerEffect::IntentInstalled { intent } | PeerEffect::IntentRemoved { intent } => {
                self.on_intent_settled(intent);
            }
            PeerEffect::NeedFailed { peer, reason, next_attempt_in } => {
                let text: Arc<str> = match next_attempt_in {
                    Some(pause) => {
                        format!("{reason}; dialled again at the earliest in {pause:?}").into()
                    }
                    None => reason.into(),
                };
                self.broadcast(env, || Mail::NeedFailed {
                    rid: peer.rid.clone(),
                    node_generation: peer.node_generation,
                    text: text.clone(),
                });
            }
            // The loop asks the machine for its next deadline; and whoever needed a link that is up
            // has been told of it.
            PeerEffect::NeedMet { .. } | PeerEffect::Wake(_) => {}
        }
    }

    /// Counts why a stream or link was closed.
    pub(super) fn count_close(&mut self, reason: &'static str, is_violation: bool) {
        self.shared.count_close(reason);
        if is_violation {
            self.count(Counter::ProtocolViolations, 1);
        }
    }

    pub(super) fn on_link_admitted(&mut self, env: &mut E, link: LinkId, info: Arc<LinkInfo>) {
        if self.links.closed.contains(&link) {
            return;
        }
        let cores = self.shared.settings.cores;
        let share = lane_share_bytes(info.lane_window_bytes, cores, info.lanes);
        let windows = (0..info.lanes).map(|lane| (lane, CreditWindow::new(share))).collect();
        let max_frame_bytes = info.max_frame_bytes;
        let (granted, peer_cores) = (self.granted_share(&info), info.cores);
        let node = (info.peer.rid.clone(), info.peer.node_generation);
        self.links.of_node.insert(node, link);
        self.links.links.insert(link, Link { info, is_up: false, is_given_up: false, windows });
        let early: Vec<u16> = self
            .links
            .lanes
            .range_mut((link, 0)..=(link, u16::MAX))
            .map(|((_, lane), state)| {
                state.reader.set_max_bytes(max_frame_bytes);
                state.returns = CreditReturn::new(granted, peer_cores);
                *lane
            })
            .collect();
        for lane in early {
            self.read_lane(env, link, lane);
        }
    }

    pub(super) fn on_link_up(&mut self, env: &mut E, link: LinkId) {
        let Some(state) = self.links.links.get_mut(&link) else { return };
        state.is_up = true;
        let peer = state.info.peer.clone();
        self.pump_waiting_for_link(env, &peer.rid, peer.node_generation);
    }

    /// A stream this core owns from now on.
    pub(super) fn on_adopted(&mut self, env: &mut E, conn: ConnId, tag: u64, unread: Vec<u8>) {
        let (link, lane) = (LinkId(tag >> 16), (tag & 0xffff) as u16);
        if self.links.closed.contains(&link) {
            env.close(conn, false);
            self.mail_core_zero(env, Mail::LaneClosed { link, lane });
            return;
        }
        let settings = &self.shared.settings;
        let max = self.links.get(link).map_or(settings.max_frame_bytes, |l| l.info.max_frame_bytes);
        let mut reader = FrameReader::new(max);
        reader.feed(unread);
        let liveness =
            LaneLiveness::new(settings.liveness_interval, settings.liveness_timeout, self.now);
        // Nothing is read, and so nothing counted, before the link's terms are known.
        let granted = |l: &Link| (self.granted_share(&l.info), l.info.cores);
        let (share, cores) = self.links.get(link).map_or((1, 1), granted);
        let returns = CreditReturn::new(share, cores);
        let frames = self.links.early_frames.remove(&(link, lane)).unwrap_or_default();
        let state = Lane {
            conn,
            reader,
            control: Vec::new(),
            frames,
            liveness,
            returns,
            credit_paused_until: Nanos::ZERO,
            written_bytes: env.unsent_bytes(conn) as u64,
        };
        self.links.dirty.insert((link, lane));
        self.links.lanes.insert((link, lane), state);
        self.links.lane_of.insert(conn, (link, lane));
        self.read_lane(env, link, lane);
    }

    /// Whether `conn` is a lane of this core, which one.
    pub(super) fn lane_of(&self, conn: ConnId) -> Option<(LinkId, u16)> {
        self.links.lane_of.get(&conn).copied()
    }

    pub(super) fn on_lane_bytes(&mut self, env: &mut E, link: LinkId, lane: u16, bytes: Vec<u8>) {
        let (now, received) = (self.now, bytes.len());
        let Some(state) = self.links.lanes.get_mut(&(link, lane)) else { return };
        state.reader.feed(bytes);
        let frames = self.read_lane(env, link, lane);
        let Some(state) = self.links.lanes.get_mut(&(link, lane)) else { return };
        if frames > 0 {
            state.liveness.on_received(now);
        } else {
            state.liveness.on_piece(received, now);
        }
    }

    /// Handles every whole frame a lane has, and tells how many. Nothing is read before the link's
    /// terms are known.
    fn read_lane(&mut self, env: &mut E, link: LinkId, lane: u16) -> usize {
        let mut frames = 0;
        let Some(terms) = self.links.get(link) else { return frames };
        let max = terms.info.max_frame_bytes;
        let Some(state) = self.links.lanes.get_mut(&(link, lane)) else { return frames };
        let mut reader = std::mem::replace(&mut state.reader, FrameReader::new(max));
        loop {
            // A bad header of a long frame is noticed before the frame has come.
            let check = |header: &[u8]| match FrameHeader::decode(header, max) {
                Ok(_) => Ok(()),
                Err(e) => Err(BadHead((e.rule.name(), e.to_string()))),
            };
            let bytes = match reader.next_checked_frame(check) {
                Ok(Some(bytes)) => bytes,
                Ok(None) => break,
                Err(BadHead((rule, text))) => {
                    self.violation(env, link, lane, rule, &text);
                    return frames;
                }
            };
            frames += 1;
            self.count(Counter::FramesIn, 1);
            if let Err((rule, text)) = self.on_frame(env, link, lane, bytes) {
                self.violation(env, link, lane, rule, &text);
                return frames;
            }
            if !self.links.lanes.contains_key(&(link, lane)) {
                return frames;
            }
        }
        if let Some(state) = self.links.lanes.get_mut(&(link, lane)) {
            state.reader = reader;
        }
        frames
    }

    fn on_frame(
        &mut self,
        env: &mut E,
        link: LinkId,
        lane: u16,
        bytes: &[u8],
    ) -> Result<(), (&'static str, String)> {
        let Some(state) = self.links.get(link) else { return Ok(()) };
        let frame = Frame::decode(bytes, state.info.max_frame_bytes)
            .map_err(|e| (e.rule.name(), e.to_string()))?;
        if frame.lane != lane {
            return Err((
                "wrong-lane",
                format!("a frame of lane {} came on lane {lane}", frame.lane),
            ));
        }
        match &frame.body {
            Body::Control(control) => self.on_control(env, link, lane, control),
            Body::Record(Record::LivenessProbe(probe)) => {
                self.answer_probe(env, link, lane, probe.probe_id);
                Ok(())
            }
            Body::Record(Record::LivenessAck(_)) => Ok(()),
            Body::Record(Record::Update(update)) => {
                self.on_update(env, link, update);
                Ok(())
            }
            Body::Record(record) => {
                if record.command().spends_credit()
                    && let Some(state) = self.links.lanes.get_mut(&(link, lane))
                {
                    let received = state.returns.received(frame.object_hash, bytes.len() as u64);
                    received.map_err(|e| ("credit-overspent", e.to_string()))?;
                }
                let home = (frame.object_hash % u64::from(self.shared.settings.cores)) as u16;
                if home == self.index {
                    return self.on_record(env, link, lane, bytes, &frame);
                }
                self.count(Counter::CoreHops, 1);
                env.mail(home, Mail::Inbound { link, lane, bytes: bytes.to_vec() });
                Ok(())
            }
        }
    }

    /// A frame that another core read for this home core.
    pub(super) fn on_inbound(&mut self, env: &mut E, link: LinkId, lane: u16, bytes: &[u8]) {
        let Some(state) = self.links.get(link).filter(|state| !state.is_given_up) else { return };
        // The reading core has decoded it before; only what it means can still be wrong.
        let Ok(frame) = Frame::decode(bytes, state.info.max_frame_bytes) else { return };
        if let Err(broken) = self.on_record(env, link, lane, bytes, &frame) {
            self.give_link_up(env, link, lane, broken);
        }
    }

    /// A rule was broken in what another core read: that core is told, by way of core 0, and
    /// nothing more of the link is looked at here meanwhile.
    pub(super) fn give_link_up(&mut self, env: &mut E, link: LinkId, lane: u16, broken: Broken) {
        let Some(state) = self.links.links.get_mut(&link) else { return };
        if std::mem::replace(&mut state.is_given_up, true) {
            return;
        }
        let (rule, text) = broken;
        tracing::warn!(rule, text, "a peer broke the protocol; its link is closed");
        self.count_close(rule, true);
        let reason = format!("{rule}: {text}");
        self.mail_core_zero(env, Mail::LaneLost { link, lane, loss: LaneLoss::Violation, reason });
    }

    fn on_control(
        &mut self,
        env: &mut E,
        link: LinkId,
        lane: u16,
        control: &Control<'_>,
    ) -> Result<(), (&'static str, String)> {
        match control {
            Control::Credit(credit) => {
                for CreditEntry { object_hash, bytes } in credit.entries() {
                    let home = (object_hash % u64::from(self.shared.settings.cores)) as u16;
                    if home == self.index {
                        self.on_credit_returned(link, lane, object_hash, bytes)
                            .map_err(|text| ("credit-not-spent", text))?;
                    } else {
                        env.mail(
                            home,
                            Mail::CreditReturned { link, lane, object: object_hash, bytes },
                        );
                    }
                }
                self.pump_waiting_for_credit(env, link, lane);
                Ok(())
            }
            Control::LeaseRenewed(renewed) => {
                let Some(state) = self.links.lanes.get(&(link, lane)) else { return Ok(()) };
                let announced =
                    (renewed.probe_id, renewed.owner_lease_generation, renewed.remaining_ms);
                if let Some(renewed) =
                    state.liveness.on_lease_renewed(announced.0, announced.1, announced.2)
                    && let Some(state) = self.links.get(link)
                {
                    let rid = state.info.peer.rid.clone();
                    self.broadcast(env, || Mail::LeaseRenewed {
                        rid: rid.clone(),
                        lease_generation: renewed.lease_generation,
                        deadline: renewed.admission_deadline,
                    });
                }
                Ok(())
            }
            Control::LaneAttach(_) => {
                Err(("unexpected-lane-attach", "a lane that is attached attached again".to_owned()))
            }
        }
    }

    /// Credit the peer gave back to this home core.
    pub(super) fn on_credit_returned(
        &mut self,
        link: LinkId,
        lane: u16,
        object: u64,
        bytes: u32,
    ) -> Result<(), String> {
        match self.links.window(link, lane) {
            Some(window) => window.give_back(object, bytes.into()).map_err(|e| {
                format!(
                    "{} bytes of credit came back for object {:016x}, which holds {}",
                    e.returned_bytes, e.object_hash, e.outstanding_bytes
                )
            }),
            None => Ok(()),
        }
    }

    /// The peer changed its settings at run time (R0-7): routes to it outlive no shorter follow
    /// duration. The next reading of its descriptor says the same.
    fn on_update(&mut self, env: &mut E, link: LinkId, update: &wire::Update) {
        let Some(state) = self.links.get(link) else { return };
        let (rid, node_generation) = (state.info.peer.rid.clone(), state.info.peer.node_generation);
        let duration = Duration::from_millis(update.message_follow_duration_ms);
        self.broadcast(env, || Mail::PeerFollow { rid: rid.clone(), node_generation, duration });
        if update.draining {
            let lease_generation = update.owner_lease_generation;
            self.broadcast(env, || Mail::PeerEnds { rid: rid.clone(), lease_generation });
        }
    }

    fn answer_probe(&mut self, env: &mut E, link: LinkId, lane: u16, probe_id: u64) {
        let lease = env.lease();
        let now = self.now;
        let generation = self.shared.identity.lease_generation;
        let Some(state) = self.links.lanes.get_mut(&(link, lane)) else { return };
        let ack = Record::LivenessAck(wire::Liveness { probe_id });
        push_control(&mut state.control, lane, Body::Record(ack));
        if let Some(remaining_ms) = announced_ms(&lease, now) {
            let renewed =
                wire::LeaseRenewed { probe_id, owner_lease_generation: generation, remaining_ms };
            push_control(&mut state.control, lane, Body::Control(Control::LeaseRenewed(renewed)));
        }
        self.links.dirty.insert((link, lane));
    }

    /// The peer broke the protocol on a lane.
    fn violation(&mut self, env: &mut E, link: LinkId, lane: u16, rule: &'static str, text: &str) {
        tracing::warn!(rule, text, "a peer broke the protocol; its link is closed");
        self.count_close(rule, true);
        self.lose_lane(env, link, lane, LaneLoss::Violation, format!("{rule}: {text}"));
    }

    /// Closes a lane's stream and tells core 0, which closes the link.
    pub(super) fn lose_lane(
        &mut self,
        env: &mut E,
        link: LinkId,
        lane: u16,
        loss: LaneLoss,
        reason: String,
    ) {
        self.drop_lane(env, link, lane);
        self.mail_core_zero(env, Mail::LaneLost { link, lane, loss, reason });
        // The stream is gone already: nothing of it can be read any more.
        self.mail_core_zero(env, Mail::LaneClosed { link, lane });
    }

    fn drop_lane(&mut self, env: &mut E, link: LinkId, lane: u16) -> bool {
        let Some(state) = self.links.lanes.remove(&(link, lane)) else { return false };
        self.links.lane_of.remove(&state.conn);
        // What was written may have arrived; this has not.
        self.count(Counter::DroppedLinkLost, frames_in(&state.frames));
        self.links.dirty.remove(&(link, lane));
        env.close(state.conn, false);
        true
    }

    /// Closes what this core has of a link, ends what was sent on it.
    pub(super) fn on_link_close(&mut self, env: &mut E, link: LinkId, reason: &Arc<str>) {
        let lanes: Vec<u16> =
            self.links.lanes.range((link, 0)..=(link, u16::MAX)).map(|(k, _)| k.1).collect();
        for lane in lanes {
            if self.drop_lane(env, link, lane) {
                self.mail_core_zero(env, Mail::LaneClosed { link, lane });
            }
        }
        self.links.early_frames.retain(|(of, _), _| *of != link);
        self.links.closed.insert(link);
        while self.links.closed.len() > CLOSED_LINKS_KEPT {
            self.links.closed.pop_first();
        }
        let Some(state) = self.links.links.remove(&link) else { return };
        let peer = &state.info.peer;
        let node = (peer.rid.clone(), peer.node_generation);
        if self.links.of_node.get(&node) == Some(&link) {
            self.links.of_node.remove(&node);
        }
        let held = self.held_inbound.len();
        self.held_inbound.retain(|(l, _, _)| *l != link);
        self.count(Counter::DroppedLinkLost, (held - self.held_inbound.len()) as u64);
        self.settle_link_lost(env, link, reason);
        self.resubmit_planted(env, link);
        for lane in 0..state.info.lanes {
            self.pump_waiting_for_credit(env, link, lane);
        }
        self.pump_waiting_for_link(env, &node.0, node.1);
    }

    pub(super) fn mail_core_zero(&mut self, env: &mut E, mail: Mail) {
        if self.index == 0 {
            self.on_mail(env, mail);
        } else {
            env.mail(0, mail);
        }
    }

    /// Encodes one frame for the lane of `object_hash` on a link and queues it there. Returns its
    /// size; `None` when it is larger than the peer takes, or the link is gone.
    pub(super) fn send_frame(
        &mut self,
        env: &mut E,
        link: LinkId,
        parts: FrameParts<'_>,
    ) -> Option<usize> {
        let state = self.links.links.get(&link)?;
        let lane = (parts.object_hash % u64::from(state.info.lanes)) as u16;
        let parts = FrameParts { lane, ..parts };
        let max = state.info.max_frame_bytes;
        let len = parts.encoded_len().ok().filter(|len| *len <= max as usize)?;
        self.count(Counter::FramesOut, 1);
        let core = self.lane_core(lane);
        if core == self.index {
            parts.encode(self.links.frames_of(link, lane), max).ok()?;
            self.links.dirty.insert((link, lane));
        } else {
            let mut bytes = Vec::with_capacity(len);
            parts.encode(&mut bytes, max).ok()?;
            self.count(Counter::CoreHops, 1);
            env.mail(core, Mail::Frame { link, lane, bytes });
        }
        Some(len)
    }

    /// A frame another core encoded for a lane of this core.
    pub(super) fn on_frame_mail(&mut self, link: LinkId, lane: u16, bytes: &[u8]) {
        if self.links.links.contains_key(&link) {
            self.links.frames_of(link, lane).extend_from_slice(bytes);
            self.links.dirty.insert((link, lane));
        }
    }

    /// A message that came on a lane has started or was refused: its bytes are free again.
    pub(super) fn lane_credit_freed(
        &mut self,
        env: &mut E,
        link: LinkId,
        lane: u16,
        object: u64,
        bytes: u32,
    ) {
        let core = self.lane_core(lane);
        if core != self.index {
            env.mail(core, Mail::CreditFreed { link, lane, object, bytes });
        } else if let Some(state) = self.links.lanes.get_mut(&(link, lane)) {
            state.returns.turned(object, bytes.into(), self.now);
            self.links.dirty.insert((link, lane));
        }
    }
}

/// How many whole frames an outgoing buffer holds.
fn frames_in(mut bytes: &[u8]) -> u64 {
    let mut frames = 0;
    while let Some((len, _)) = bytes.split_first_chunk::<4>() {
        let Some(rest) = bytes.get(u32::from_be_bytes(*len) as usize..) else { break };
        bytes = rest;
        frames += 1;
    }
    frames
}
