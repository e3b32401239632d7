#![forbid(unsafe_code)]
//! Who is admitted: what is known of each peer, and which of its streams becomes the link.

use super::event::{DialToken, LinkId, PeerCloseReason as R, PeerDescriptor, PeerIdentity};
use super::hello::Refusal;
use super::reconnect::Pause;
use super::{Peers, Turn};
use crate::env::ConnId;
use crate::ids::NodeRid;

/// A proven stream that is to become the link of its peer. At most one per peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Candidate {
    Dialed(DialToken),
    Accepted(ConnId),
}

/// What is known of one rid.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Peer {
    /// The newest lifecycle heard of, from the Store or proven.
    pub(super) known: PeerIdentity,
    /// What the Store says about it.
    pub(super) descriptor: Option<PeerDescriptor>,
    /// Its link, from the grant until every lane is closed.
    pub(super) link: Option<LinkId>,
    pub(super) candidate: Option<Candidate>,
    /// The dial made because somebody needs it.
    pub(super) attempt: Option<DialToken>,
    /// Whom to dial, while somebody wants it.
    pub(super) want: Option<PeerDescriptor>,
    /// Whether operations wait for the outcome.
    pub(super) waiting: bool,
    pub(super) pause: Pause,
    /// Failures in a row.
    pub(super) failures: u32,
    pub(super) last_failure: String,
    /// When it was last heard of, as a serial number.
    pub(super) touched: u64,
}

impl Peer {
    fn new(known: PeerIdentity, touched: u64) -> Self {
        Self {
            known,
            descriptor: None,
            link: None,
            candidate: None,
            attempt: None,
            want: None,
            waiting: false,
            pause: Pause::None,
            failures: 0,
            last_failure: String::new(),
            touched,
        }
    }

    /// Whether nothing but memory would be lost with it.
    const fn is_idle(&self) -> bool {
        self.link.is_none()
            && self.candidate.is_none()
            && self.attempt.is_none()
            && self.want.is_none()
            && matches!(self.pause, Pause::None)
    }
}

impl Peers {
    /// Whether a lifecycle may be admitted, by what is known of its rid. Changes nothing.
    pub(super) fn check_known(&self, identity: &PeerIdentity) -> Result<(), Refusal> {
        let Some(peer) = self.peers.get(&identity.rid) else { return Ok(()) };
        if identity.node_generation < peer.known.node_generation {
            return Err(Refusal::new(
                R::StaleIncarnation,
                format!("{identity} is over: {} was seen", peer.known),
            ));
        }
        if identity.node_generation == peer.known.node_generation
            && identity.key_id != peer.known.key_id
        {
            return Err(Refusal::new(
                R::DuplicateRid,
                format!(
                    "{identity} has rid and generation of {}; every live node needs a rid of its \
                     own",
                    peer.known
                ),
            ));
        }
        Ok(())
    }

    /// Notes a lifecycle that is certain (proven, or read from the Store). A newer one ends all
    /// that belongs to the older.
    pub(super) fn know(
        &mut self,
        identity: &PeerIdentity,
        turn: &mut Turn<'_>,
    ) -> Result<(), Refusal> {
        self.check_known(identity)?;
        let touched = self.next_serial();
        if let Some(peer) = self.peers.get_mut(&identity.rid) {
            peer.touched = touched;
            if identity.node_generation > peer.known.node_generation {
                self.replace_lifecycle(identity, turn);
            }
            return Ok(());
        }
        if self.peers.len() >= self.known_peers_limit {
            self.forget_one()?;
        }
        self.peers.insert(identity.rid.clone(), Peer::new(identity.clone(), touched));
        Ok(())
    }

    /// Makes room for one more peer.
    fn forget_one(&mut self) -> Result<(), Refusal> {
        let idle = self.peers.iter().filter(|(_, p)| p.is_idle());
        let Some(rid) = idle.min_by_key(|(_, p)| p.touched).map(|(rid, _)| rid.clone()) else {
            return Err(Refusal::new(
                R::TooManyPeers,
                format!("this node keeps up {} peers and takes no more", self.peers.len()),
            ));
        };
        if let Some(peer) = self.peers.remove(&rid)
            && let Some(descriptor) = peer.descriptor
        {
            self.undescribe(&descriptor);
        }
        Ok(())
    }

    fn replace_lifecycle(&mut self, newer: &PeerIdentity, turn: &mut Turn<'_>) {
        let rid = &newer.rid;
        let Some(peer) = self.peers.get_mut(rid) else { return };
        let older = std::mem::replace(&mut peer.known, newer.clone());
        peer.failures = 0;
        let (link, candidate, attempt) = (peer.link, peer.candidate, peer.attempt);
        let descriptor = peer.descriptor.take();
        let detail = format!("{older} is over: {newer} was seen");
        self.end_pause(rid);
        self.drop_need_of(rid, older, &detail, turn);
        if let Some(descriptor) = descriptor {
            self.undescribe(&descriptor);
        }
        if let Some(dial) = attempt {
            self.remove_attempt(dial, R::Replaced, detail.clone(), turn);
        }
        if let Some(link) = link {
            self.close_link(link, R::Replaced, detail.clone(), turn);
        }
        match candidate {
            Some(Candidate::Accepted(conn)) => {
                self.end_conn(conn, R::Superseded, detail, true, turn);
            }
            Some(Candidate::Dialed(dial)) => {
                self.attempt_failed(dial, R::Superseded, detail, turn);
            }
            None => {}
        }
    }

    /// Decides what becomes of a stream that was just proven: `true` makes it the candidate,
    /// `false` means a dialled one is not needed. See "Who is admitted" at the module's head.
    pub(super) fn weigh(
        &mut self,
        new: Candidate,
        identity: &PeerIdentity,
        saw: Option<LinkId>,
        turn: &mut Turn<'_>,
    ) -> Result<bool, Refusal> {
        self.know(identity, turn)?;
        let Some(peer) = self.peers.get(&identity.rid) else { return Ok(false) };
        let candidate = peer.candidate;
        if let Some(link) = peer.link
            && !self.is_closing(link)
        {
            match new {
                Candidate::Dialed(_) => return Ok(false),
                Candidate::Accepted(_) if saw == Some(link) => {
                    let detail = format!("{identity} connects anew: it has lost the link");
                    self.close_link(link, R::PeerReconnected, detail, turn);
                }
                Candidate::Accepted(_) => {
                    return Err(Refusal::new(
                        R::AlreadyLinked,
                        format!("{identity} is linked since this handshake began"),
                    ));
                }
            }
        }
        match (candidate, new) {
            (None, _) => self.set_candidate(&identity.rid, new),
            (Some(_), Candidate::Dialed(_)) => return Ok(false),
            (Some(Candidate::Dialed(_)), Candidate::Accepted(_))
                if self.config.identity.rid < identity.rid =>
            {
                return Err(Refusal::new(
                    R::SimultaneousDial,
                    format!("both sides dialled; that of node {} stays", self.config.identity.rid),
                ));
            }
            (Some(Candidate::Dialed(own)), Candidate::Accepted(_)) => {
                self.set_candidate(&identity.rid, new);
                self.attempt_redundant(own, &identity.rid, R::SimultaneousDial, turn);
            }
            (Some(Candidate::Accepted(old)), Candidate::Accepted(_)) => {
                self.set_candidate(&identity.rid, new);
                let detail = format!("{identity} began another handshake");
                self.end_conn(old, R::Superseded, detail, true, turn);
            }
        }
        Ok(true)
    }

    fn set_candidate(&mut self, rid: &NodeRid, candidate: Candidate) {
        if let Some(peer) = self.peers.get_mut(rid) {
            peer.candidate = Some(candidate);
        }
    }

    /// A proven stream is gone. When it was the candidate, whoever waits for the peer goes on.
    pub(super) fn candidate_gone(&mut self, rid: &NodeRid, gone: Candidate, turn: &mut Turn<'_>) {
        if let Some(peer) = self.peers.get_mut(rid)
            && peer.candidate == Some(gone)
        {
            peer.candidate = None;
            self.their_dial_gone(rid, "the stream of the other side was lost", turn);
            self.settle(rid, turn);
        }
    }

    /// Whether a link stands or a proven stream is to become one.
    pub(super) fn is_coming(&self, rid: &NodeRid) -> bool {
        self.peers.get(rid).is_some_and(|p| {
            p.candidate.is_some() || p.link.is_some_and(|link| !self.is_closing(link))
        })
    }

    /// After a peer lost its link or candidate: intents that relied on it dial by themselves.
    pub(super) fn settle(&mut self, rid: &NodeRid, turn: &mut Turn<'_>) {
        if !self.is_coming(rid) && self.peers.get(rid).is_some_and(|p| p.link.is_none()) {
            self.detach_intents(rid, turn);
        }
        self.proceed(rid, turn);
    }

    /// Does the next thing for a peer that has no link: its candidate, or a dial that is wanted.
    pub(super) fn proceed(&mut self, rid: &NodeRid, turn: &mut Turn<'_>) {
        let Some(peer) = self.peers.get(rid) else { return };
        if peer.link.is_some() || self.shutting_down {
            return;
        }
        match peer.candidate {
            Some(Candidate::Dialed(dial)) => self.send_proof(dial, turn),
            Some(Candidate::Accepted(conn)) => self.grant(conn, turn),
            None => self.dial_wanted(rid, turn),
        }
    }
}
