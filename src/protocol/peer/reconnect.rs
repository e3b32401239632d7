#![forbid(unsafe_code)]
//! Needs: dialling a node because an operation wants it, and the pauses between failures.

use std::time::Duration;

use super::admit::Candidate;
use super::event::{
    DialToken, PeerCloseReason as R, PeerDescriptor, PeerEffect, PeerIdentity,
    check_endpoint_secrecy,
};
use super::handshake::{Attempt, Target, rejected};
use super::{Peers, Timer, Turn};
use crate::ids::NodeRid;
use crate::limits::{RECONNECT_MAX, RECONNECT_MIN};
use crate::time::Nanos;
use crate::wire::RejectReason;

/// Why a peer is not dialled now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Pause {
    None,
    /// It failed; the next dial comes then, if it is wanted.
    Backoff {
        until: Nanos,
    },
    /// It refused our dial because its own is under way.
    TheirDial {
        until: Nanos,
    },
}

/// The longest pause after so many failures in a row.
pub(super) fn longest_pause(failures: u32) -> Duration {
    let doubled = 1u32.checked_shl(failures.saturating_sub(1));
    doubled.map_or(RECONNECT_MAX, |n| RECONNECT_MIN.saturating_mul(n).min(RECONNECT_MAX))
}

impl Peers {
    pub(super) fn on_need(&mut self, descriptor: PeerDescriptor, turn: &mut Turn<'_>) {
        if let Err((reason, next_attempt_in)) = self.need(&descriptor, turn) {
            let peer = descriptor.identity;
            turn.out.push(PeerEffect::NeedFailed { peer, reason, next_attempt_in });
        }
    }

    fn need(
        &mut self,
        descriptor: &PeerDescriptor,
        turn: &mut Turn<'_>,
    ) -> Result<(), (String, Option<Duration>)> {
        let identity = &descriptor.identity;
        let rid = &identity.rid;
        if self.shutting_down {
            return Err(("this node is shutting down".to_owned(), None));
        }
        if *rid == self.config.identity.rid {
            return Err((format!("{identity} has this node's own rid"), None));
        }
        check_endpoint_secrecy("peer endpoint", &descriptor.endpoint, self.config.secret.as_ref())
            .map_err(|e| (e.text().to_owned(), None))?;
        self.know(identity, turn).map_err(|r| (r.detail, None))?;
        self.learn(descriptor, turn);
        let Some(peer) = self.peers.get_mut(rid) else { return Ok(()) };
        if let Some(link) = peer.link
            && self.links.get(&link).is_some_and(|l| l.is_up())
        {
            turn.out.push(PeerEffect::NeedMet { peer: identity.clone(), link });
            return Ok(());
        }
        if let Pause::Backoff { until } = peer.pause {
            let moved = peer.want.as_ref().is_some_and(|w| w.endpoint != descriptor.endpoint);
            if !moved {
                peer.want = Some(descriptor.clone());
                let next = until.since(turn.now);
                return Err((
                    not_connected(descriptor, &peer.last_failure, Some(next)),
                    Some(next),
                ));
            }
            self.end_pause(rid);
        }
        let Some(peer) = self.peers.get_mut(rid) else { return Ok(()) };
        peer.want = Some(descriptor.clone());
        peer.waiting = true;
        self.proceed(rid, turn);
        Ok(())
    }

    /// Dials a peer that somebody wants, unless that is under way or has to wait.
    pub(super) fn dial_wanted(&mut self, rid: &NodeRid, turn: &mut Turn<'_>) {
        let Some(peer) = self.peers.get(rid) else { return };
        let Some(want) = peer.want.clone() else { return };
        if peer.attempt.is_some() || peer.pause != Pause::None {
            return;
        }
        let target = Target::Peer(rid.clone());
        let dial = self.start_attempt(target, want.endpoint, Some(want.identity), turn);
        if let Some(peer) = self.peers.get_mut(rid) {
            peer.attempt = Some(dial);
        }
    }

    pub(super) fn end_pause(&mut self, rid: &NodeRid) {
        let Some(peer) = self.peers.get_mut(rid) else { return };
        match std::mem::replace(&mut peer.pause, Pause::None) {
            Pause::None => {}
            Pause::Backoff { until } | Pause::TheirDial { until } => {
                self.disarm(until, Timer::Peer(rid.clone()));
            }
        }
    }

    pub(super) fn peer_pause_over(&mut self, rid: &NodeRid, turn: &mut Turn<'_>) {
        let Some(peer) = self.peers.get_mut(rid) else { return };
        match std::mem::replace(&mut peer.pause, Pause::None) {
            Pause::None => {}
            Pause::Backoff { .. } => self.proceed(rid, turn),
            Pause::TheirDial { .. } => {
                let detail = "both sides dialled, and the stream of the other side that was to \
                              stay did not become a link";
                self.peer_failed(rid, detail, turn);
            }
        }
    }

    /// A link that lived long enough ended: the peer owes nothing.
    pub(super) fn peer_lived(&mut self, rid: &NodeRid) {
        if let Some(peer) = self.peers.get_mut(rid) {
            peer.failures = 0;
        }
    }

    /// A dial or a young link failed: those who wait are told, and the next dial waits. Nothing
    /// happens when the peer comes another way.
    pub(super) fn peer_failed(&mut self, rid: &NodeRid, detail: &str, turn: &mut Turn<'_>) {
        if self.is_coming(rid) {
            return;
        }
        self.end_pause(rid);
        let Some(peer) = self.peers.get_mut(rid) else { return };
        peer.failures = peer.failures.saturating_add(1);
        peer.last_failure = detail.to_owned();
        let pause = self.chance.jitter(longest_pause(peer.failures));
        let until = turn.now + pause;
        peer.pause = Pause::Backoff { until };
        if peer.waiting
            && let Some(want) = peer.want.take()
        {
            let reason = not_connected(&want, detail, Some(pause));
            let (peer, next_attempt_in) = (want.identity, Some(pause));
            turn.out.push(PeerEffect::NeedFailed { peer, reason, next_attempt_in });
        }
        peer.want = None;
        peer.waiting = false;
        self.arm(until, Timer::Peer(rid.clone()));
    }

    /// Tells those who wait for a peer that it will not come.
    pub(super) fn drop_need(&mut self, rid: &NodeRid, detail: &str, turn: &mut Turn<'_>) {
        let Some(peer) = self.peers.get_mut(rid) else { return };
        let waiting = std::mem::take(&mut peer.waiting);
        if let Some(want) = peer.want.take()
            && waiting
        {
            let reason = not_connected(&want, detail, None);
            let effect =
                PeerEffect::NeedFailed { peer: want.identity, reason, next_attempt_in: None };
            turn.out.push(effect);
        }
    }

    /// Ends an attempt without judging it, closing its stream. `None` when it is gone already.
    pub(super) fn remove_attempt(
        &mut self,
        dial: DialToken,
        reason: R,
        detail: String,
        turn: &mut Turn<'_>,
    ) -> Option<Attempt> {
        let attempt = self.attempts.remove(&dial)?;
        self.disarm(attempt.deadline, Timer::Attempt(dial));
        match attempt.conn {
            Some(conn) => {
                if self.conns.remove(&conn).is_some() {
                    turn.out.push(PeerEffect::Close { conn, reason, detail });
                }
            }
            None => {
                let intent = match attempt.target {
                    Target::Intent(intent) => Some(intent),
                    Target::Peer(_) => None,
                };
                self.given_up.insert(dial, intent);
            }
        }
        if let Target::Peer(rid) = &attempt.target
            && let Some(peer) = self.peers.get_mut(rid)
            && peer.attempt == Some(dial)
        {
            peer.attempt = None;
        }
        if let Some(identity) = attempt.proven()
            && let Some(peer) = self.peers.get_mut(&identity.rid)
            && peer.candidate == Some(Candidate::Dialed(dial))
        {
            peer.candidate = None;
        }
        Some(attempt)
    }

    /// An attempt failed: whoever made it waits before the next.
    pub(super) fn attempt_failed(
        &mut self,
        dial: DialToken,
        reason: R,
        detail: String,
        turn: &mut Turn<'_>,
    ) {
        let Some(attempt) = self.remove_attempt(dial, reason, detail.clone(), turn) else {
            return;
        };
        let proven = attempt.proven().map(|identity| identity.rid.clone());
        match attempt.target {
            Target::Peer(rid) => self.peer_failed(&rid, &detail, turn),
            Target::Intent(intent) => self.intent_failed(intent, detail, turn),
        }
        if let Some(rid) = proven {
            self.settle(&rid, turn);
        }
    }

    /// An attempt is not needed because its peer comes another way.
    pub(super) fn attempt_redundant(
        &mut self,
        dial: DialToken,
        rid: &NodeRid,
        reason: R,
        turn: &mut Turn<'_>,
    ) {
        let detail = format!("node {rid} is linked by another stream");
        if let Some(attempt) = self.remove_attempt(dial, reason, detail, turn)
            && let Target::Intent(intent) = attempt.target
        {
            self.intent_attached(intent, rid);
        }
    }

    /// The acceptor said no.
    pub(super) fn on_rejected(
        &mut self,
        dial: DialToken,
        reason: RejectReason,
        sentence: &str,
        turn: &mut Turn<'_>,
    ) {
        let detail = rejected(reason, sentence);
        let Some(attempt) = self.attempts.get(&dial) else { return };
        let (deadline, proven) = (attempt.deadline, attempt.proven().cloned());
        // Only the side with the smaller rid keeps its own stream; then that is on its way here.
        if reason == RejectReason::DuplicateLink
            && let Some(PeerIdentity { rid, .. }) = proven
            && rid < self.config.identity.rid
            && matches!(attempt.target, Target::Peer(_))
            && self.has_answered(&rid)
        {
            self.remove_attempt(dial, R::RejectedByPeer, detail, turn);
            if !self.is_coming(&rid)
                && let Some(peer) = self.peers.get_mut(&rid)
            {
                peer.pause = Pause::TheirDial { until: deadline };
                self.arm(deadline, Timer::Peer(rid));
            }
            return;
        }
        self.attempt_failed(dial, R::RejectedByPeer, detail, turn);
    }

    /// A stream whose proof was awaited is gone: whoever waited for it goes on.
    pub(super) fn their_dial_gone(&mut self, rid: &NodeRid, detail: &str, turn: &mut Turn<'_>) {
        let waits = |pause| matches!(pause, Pause::TheirDial { .. });
        if self.peers.get(rid).is_some_and(|p| waits(p.pause)) && !self.has_answered(rid) {
            self.peer_failed(rid, detail, turn);
        }
    }

    /// Needs of an older lifecycle end.
    pub(super) fn drop_need_of(
        &mut self,
        rid: &NodeRid,
        older: PeerIdentity,
        detail: &str,
        turn: &mut Turn<'_>,
    ) {
        let stands = self.peers.get(rid).and_then(|p| p.want.as_ref());
        if stands.is_some_and(|want| want.identity.node_generation <= older.node_generation) {
            self.drop_need(rid, detail, turn);
        }
    }
}

fn not_connected(want: &PeerDescriptor, why: &str, next: Option<Duration>) -> String {
    let mut text = format!("{} at {} is not connected: {why}", want.identity, want.endpoint);
    if let Some(next) = next {
        text.push_str(&format!("; the next attempt is in {} ms", next.as_millis()));
    }
    text
}
