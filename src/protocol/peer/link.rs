#![forbid(unsafe_code)]
//! Links: made of lanes, up when all are attached, lost with any of them, gone when all are
//! closed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::event::{DialToken, IntentId, LinkId, LinkInfo, PeerCloseReason as R, PeerEffect};
use super::handshake::{Talk, Target};
use super::hello::{Refusal, attach_frame};
use super::proof::{Label, LinkKey};
use super::{Peers, Timer, Turn};
use crate::env::{ConnId, Endpoint};
use crate::ids::NodeRid;
use crate::limits::RECONNECT_MAX;
use crate::time::Nanos;
use crate::wire::{LaneAttach, LinkGrant};

/// A link and how far it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Link {
    pub(super) info: Arc<LinkInfo>,
    pub(super) state: LinkState,
    /// The lanes that were handed to their cores and not reported closed.
    handed: BTreeSet<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum LinkState {
    /// Lanes are missing until `deadline`; `wire_id` names the link in lane attach.
    Forming { wire_id: u64, key: LinkKey, deadline: Nanos },
    /// All lanes are attached.
    Up { since: Nanos },
    /// Given up; the cores are closing its lanes.
    Closing { reason: R, lived: bool },
}

/// A dial of lane 1 or higher.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct LaneDial {
    pub(super) link: LinkId,
    pub(super) lane: u16,
    pub(super) conn: Option<ConnId>,
}

impl Link {
    pub(super) const fn is_up(&self) -> bool {
        matches!(self.state, LinkState::Up { .. })
    }
}

impl R {
    /// Whether a link closed for this reason says nothing against dialling again at once.
    const fn is_deliberate(self) -> bool {
        matches!(
            self,
            Self::Replaced
                | Self::PeerReconnected
                | Self::IdentityMismatch
                | Self::IntentReplaced
                | Self::ShuttingDown
        )
    }
}

impl Peers {
    /// What was agreed on for a link; `None` once it is down.
    #[must_use]
    pub fn link(&self, link: LinkId) -> Option<&Arc<LinkInfo>> {
        self.links.get(&link).map(|l| &l.info)
    }

    /// The link to a node that may be sent on, if there is one.
    #[must_use]
    pub fn link_to(&self, rid: &NodeRid) -> Option<(LinkId, &Arc<LinkInfo>)> {
        let id = self.peers.get(rid)?.link?;
        let link = self.links.get(&id)?;
        link.is_up().then_some((id, &link.info))
    }

    pub(super) fn is_closing(&self, link: LinkId) -> bool {
        self.links.get(&link).is_none_or(|l| matches!(l.state, LinkState::Closing { .. }))
    }

    /// A grant was sent or received: the stream becomes lane 0. `dialed` says for whom and where
    /// this side dialled.
    #[allow(clippy::too_many_arguments)] // every argument is a fact of the handshake that ends here
    pub(super) fn form_link(
        &mut self,
        id: LinkId,
        grant: LinkGrant,
        talk: &Talk,
        conn: ConnId,
        deadline: Nanos,
        dialed: Option<(Target, Endpoint)>,
        turn: &mut Turn<'_>,
    ) {
        let intent = match dialed {
            Some((Target::Intent(intent), _)) => Some(intent),
            _ => None,
        };
        let info = Arc::new(self.link_info(talk, grant.lanes, dialed.is_some(), intent));
        let key = talk.transcript.link_key(self.secret());
        let state = LinkState::Forming { wire_id: grant.link_id, key, deadline };
        self.links.insert(id, Link { info: info.clone(), state, handed: BTreeSet::new() });
        self.arm(deadline, Timer::Link(id));
        turn.out.push(PeerEffect::LinkAdmitted { link: id, info: info.clone() });
        self.peer_linked(&info.peer.rid, id, intent, turn);
        self.hand_over(id, 0, conn, turn);
        if let Some((_, endpoint)) = dialed {
            for lane in 1..grant.lanes {
                let dial = DialToken(self.next_serial());
                self.lane_dials.insert(dial, LaneDial { link: id, lane, conn: None });
                turn.out.push(PeerEffect::Dial { dial, endpoint: endpoint.clone() });
            }
        }
    }

    fn link_info(
        &self,
        talk: &Talk,
        lanes: u16,
        dialed_by_us: bool,
        intent: Option<IntentId>,
    ) -> LinkInfo {
        let hello = &talk.hello;
        LinkInfo {
            peer: hello.identity.clone(),
            mesh: hello.mesh.clone(),
            lease_generation: hello.lease_generation,
            cores: hello.cores,
            lanes,
            max_frame_bytes: hello.max_frame_bytes.min(self.config.max_frame_bytes),
            lane_window_bytes: hello.lane_window_bytes,
            route_cache_max_age: Duration::from_millis(hello.route_cache_max_age_ms),
            message_follow_duration: Duration::from_millis(hello.message_follow_duration_ms),
            advertised: hello.advertised.clone(),
            dialed_by_us,
            intent,
        }
    }

    /// What a new link means for its peer: other dials of it are not needed any more.
    fn peer_linked(
        &mut self,
        rid: &NodeRid,
        link: LinkId,
        intent: Option<IntentId>,
        turn: &mut Turn<'_>,
    ) {
        self.end_pause(rid);
        let Some(peer) = self.peers.get_mut(rid) else { return };
        peer.link = Some(link);
        peer.candidate = None;
        if let Some(dial) = peer.attempt {
            self.attempt_redundant(dial, rid, R::Redundant, turn);
        }
        self.attach_intents(rid, link, intent);
    }

    /// A lane is attached: its core has it from here on.
    fn hand_over(&mut self, id: LinkId, lane: u16, conn: ConnId, turn: &mut Turn<'_>) {
        let unread = self.conns.remove(&conn).map(|c| c.inbox).unwrap_or_default();
        let core = lane % self.config.cores;
        turn.out.push(PeerEffect::LaneReady { conn, link: id, lane, core, unread });
        let Some(link) = self.links.get_mut(&id) else { return };
        link.handed.insert(lane);
        if link.handed.len() < usize::from(link.info.lanes) {
            return;
        }
        let LinkState::Forming { deadline, .. } = link.state else { return };
        link.state = LinkState::Up { since: turn.now };
        let info = link.info.clone();
        self.disarm(deadline, Timer::Link(id));
        if let Some(peer) = self.peers.get_mut(&info.peer.rid) {
            peer.want = None;
            peer.waiting = false;
        }
        turn.out.push(PeerEffect::LinkUp { link: id, info });
    }

    /// Dialer: a lane's stream got through.
    pub(super) fn send_attach(&mut self, dial: DialToken, conn: ConnId, turn: &mut Turn<'_>) {
        let Some(&LaneDial { link, lane, .. }) = self.lane_dials.get(&dial) else { return };
        if let Some(LinkState::Forming { wire_id, key, .. }) =
            self.links.get(&link).map(|l| &l.state)
        {
            let mac = key.lane(Label::DialerLane, *wire_id, lane);
            let frame = attach_frame(&LaneAttach { link_id: *wire_id, lane, mac });
            turn.out.push(PeerEffect::Send { conn, frame });
        }
    }

    /// Acceptor: a stream wants to be a lane.
    pub(super) fn on_attach(
        &mut self,
        conn: ConnId,
        attach: &LaneAttach,
        turn: &mut Turn<'_>,
    ) -> Result<(), Refusal> {
        let id = LinkId(attach.link_id);
        let lane = attach.lane;
        let unknown = || {
            let detail = format!("lane {lane} is for link {}, which does not stand", id.0);
            Refusal::new(R::UnknownLink, detail)
        };
        let link = self.links.get(&id).filter(|l| !l.info.dialed_by_us).ok_or_else(unknown)?;
        let LinkState::Forming { wire_id, key, .. } = &link.state else {
            return Err(if matches!(link.state, LinkState::Up { .. }) {
                lane_taken(lane, &link.info)
            } else {
                unknown()
            });
        };
        if !key.verify_lane(Label::DialerLane, *wire_id, lane, &attach.mac) {
            return Err(wrong_lane_proof(lane, &link.info));
        }
        if lane >= link.info.lanes || link.handed.contains(&lane) {
            return Err(lane_taken(lane, &link.info));
        }
        let mac = key.lane(Label::AcceptorLane, *wire_id, lane);
        let frame = attach_frame(&LaneAttach { link_id: *wire_id, lane, mac });
        turn.out.push(PeerEffect::Send { conn, frame });
        self.forget_incoming(conn);
        self.hand_over(id, lane, conn, turn);
        Ok(())
    }

    /// Dialer: the acceptor confirms a lane.
    pub(super) fn on_attach_echo(
        &mut self,
        conn: ConnId,
        dial: DialToken,
        echo: &LaneAttach,
        turn: &mut Turn<'_>,
    ) -> Result<(), Refusal> {
        let Some(&LaneDial { link: id, lane, .. }) = self.lane_dials.get(&dial) else {
            return Ok(());
        };
        let Some(link) = self.links.get(&id) else { return Ok(()) };
        let LinkState::Forming { wire_id, key, .. } = &link.state else { return Ok(()) };
        if echo.link_id != *wire_id
            || echo.lane != lane
            || !key.verify_lane(Label::AcceptorLane, *wire_id, lane, &echo.mac)
        {
            return Err(wrong_lane_proof(lane, &link.info));
        }
        self.lane_dials.remove(&dial);
        self.hand_over(id, lane, conn, turn);
        Ok(())
    }

    /// The stream of a lane that was being dialled is gone, and the link with it.
    pub(super) fn lane_dial_failed(&mut self, dial: DialToken, detail: &str, turn: &mut Turn<'_>) {
        if let Some(LaneDial { link, lane, .. }) = self.lane_dials.remove(&dial) {
            let detail = format!("lane {lane} could not be attached: {detail}");
            self.close_link(link, R::LaneLost, detail, turn);
        }
    }

    /// Gives a link up. Nothing happens when that was done already.
    pub(super) fn close_link(
        &mut self,
        id: LinkId,
        reason: R,
        detail: String,
        turn: &mut Turn<'_>,
    ) {
        let Some(link) = self.links.get_mut(&id) else { return };
        let (lived, deadline) = match link.state {
            LinkState::Forming { deadline, .. } => (false, Some(deadline)),
            LinkState::Up { since } => (turn.now.since(since) >= RECONNECT_MAX, None),
            LinkState::Closing { .. } => return,
        };
        link.state = LinkState::Closing { reason, lived };
        let peer = link.info.peer.clone();
        if let Some(deadline) = deadline {
            self.disarm(deadline, Timer::Link(id));
        }
        turn.out.push(PeerEffect::CloseLink {
            link: id,
            peer: peer.clone(),
            reason,
            detail: detail.clone(),
        });
        self.drop_lane_dials(id, reason, &detail, turn);
        if !reason.is_deliberate() {
            if lived {
                self.peer_lived(&peer.rid);
            } else {
                self.peer_failed(&peer.rid, &detail, turn);
            }
        }
    }

    fn drop_lane_dials(&mut self, id: LinkId, reason: R, detail: &str, turn: &mut Turn<'_>) {
        let dials = self.lane_dials.iter().filter(|(_, d)| d.link == id);
        for dial in dials.map(|(dial, _)| *dial).collect::<Vec<_>>() {
            match self.lane_dials.remove(&dial).and_then(|d| d.conn) {
                Some(conn) => {
                    if self.conns.remove(&conn).is_some() {
                        let detail = detail.to_owned();
                        turn.out.push(PeerEffect::Close { conn, reason, detail });
                    }
                }
                None => {
                    self.given_up.insert(dial, None);
                }
            }
        }
    }

    pub(super) fn on_lane_closed(&mut self, id: LinkId, lane: u16, turn: &mut Turn<'_>) {
        if !self.links.get(&id).is_some_and(|l| l.handed.contains(&lane)) {
            return;
        }
        self.close_link(id, R::LaneLost, format!("lane {lane} was closed"), turn);
        let Some(link) = self.links.get_mut(&id) else { return };
        link.handed.remove(&lane);
        if !link.handed.is_empty() {
            return;
        }
        let LinkState::Closing { reason, lived } = link.state else { return };
        let peer = link.info.peer.clone();
        self.links.remove(&id);
        if let Some(known) = self.peers.get_mut(&peer.rid)
            && known.link == Some(id)
        {
            known.link = None;
        }
        turn.out.push(PeerEffect::LinkDown { link: id, peer: peer.clone(), reason });
        self.intent_link_down(id, lived || reason.is_deliberate(), turn);
        self.settle(&peer.rid, turn);
    }
}

fn wrong_lane_proof(lane: u16, info: &LinkInfo) -> Refusal {
    let detail = format!("the proof of lane {lane} of the link with {} is wrong", info.peer);
    Refusal::new(R::WrongLaneProof, detail)
}

fn lane_taken(lane: u16, info: &LinkInfo) -> Refusal {
    let detail = format!(
        "lane {lane} of the link with {} is attached already or is none of its {} lanes",
        info.peer, info.lanes
    );
    Refusal::new(R::LaneTaken, detail)
}
