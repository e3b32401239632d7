#![forbid(unsafe_code)]
//! Streams on their way to become lanes: what may come in at which step, and what answers it.

use super::admit::Candidate;
use super::event::{DialToken, IntentId, LinkId, PeerCloseReason as R, PeerEffect, PeerIdentity};
use super::hello::{
    Opening, PeerHello, Refusal, Transcript, admit_frame, cut_frame, lanes_between, read_frame,
    reject_frame,
};
use super::proof::Label;
use super::{Peers, Timer, Turn};
use crate::env::{CloseReason, ConnId, Endpoint};
use crate::ids::NodeRid;
use crate::time::Nanos;
use crate::wire::{Admit, LinkGrant, RejectReason};

/// A stream that core 0 still reads.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Conn {
    /// What came in and is not yet a whole frame.
    pub(super) inbox: Vec<u8>,
    pub(super) role: Role,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Role {
    /// Accepted; what it is for comes with its first frame.
    Incoming(Incoming),
    /// Lane 0 of a link we dial.
    Attempt(DialToken),
    /// A further lane of a link we dialled.
    Lane(DialToken),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Incoming {
    /// Its place in `half_open`.
    order: u64,
    deadline: Nanos,
    pub(super) stage: IncomingStage,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum IncomingStage {
    /// Nothing came yet.
    Silent,
    /// Hello answered; the peer's proof is awaited. `saw` is the link that stood then.
    Answered { talk: Box<Talk>, saw: Option<LinkId> },
    /// Proven, and waiting for its peer's old link to be gone.
    Held(Box<Talk>),
}

/// What both sides have said.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Talk {
    pub(super) hello: PeerHello,
    pub(super) transcript: Transcript,
}

/// What a dial is for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Target {
    Peer(NodeRid),
    Intent(IntentId),
}

/// A dial of lane 0.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Attempt {
    pub(super) target: Target,
    pub(super) endpoint: Endpoint,
    /// Who must answer, by the descriptor (R2.3-2).
    pub(super) expected: Option<PeerIdentity>,
    pub(super) conn: Option<ConnId>,
    pub(super) deadline: Nanos,
    pub(super) stage: AttemptStage,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum AttemptStage {
    Dialing,
    HelloSent(Box<PeerHello>),
    /// The peer is proven; waiting for its old link to be gone.
    Held(Box<Talk>),
    /// Our proof is sent; the grant is awaited.
    AdmitSent(Box<Talk>),
}

impl Attempt {
    /// Who answered, once proven.
    pub(super) fn proven(&self) -> Option<&PeerIdentity> {
        match &self.stage {
            AttemptStage::Held(talk) | AttemptStage::AdmitSent(talk) => Some(&talk.hello.identity),
            AttemptStage::Dialing | AttemptStage::HelloSent(_) => None,
        }
    }
}

impl Peers {
    pub(super) fn on_accepted(&mut self, conn: ConnId, turn: &mut Turn<'_>) {
        if self.shutting_down {
            let detail = "this node is shutting down".to_owned();
            turn.out.push(PeerEffect::Close { conn, reason: R::ShuttingDown, detail });
            return;
        }
        let limit = self.config.half_open_limit;
        if self.half_open.len() >= limit
            && let Some((_, oldest)) = self.half_open.pop_first()
        {
            let detail = format!("{limit} later handshakes are half done");
            self.end_conn(oldest, R::HandshakeCrowded, detail, true, turn);
        }
        let order = self.next_serial();
        let deadline = turn.now + self.config.handshake_timeout;
        self.half_open.insert(order, conn);
        self.arm(deadline, Timer::Incoming(conn));
        let incoming = Incoming { order, deadline, stage: IncomingStage::Silent };
        self.conns.insert(conn, Conn { inbox: Vec::new(), role: Role::Incoming(incoming) });
    }

    /// Starts the dial of a lane 0.
    pub(super) fn start_attempt(
        &mut self,
        target: Target,
        endpoint: Endpoint,
        expected: Option<PeerIdentity>,
        turn: &mut Turn<'_>,
    ) -> DialToken {
        let dial = DialToken(self.next_serial());
        let deadline = turn.now + self.config.handshake_timeout;
        self.arm(deadline, Timer::Attempt(dial));
        turn.out.push(PeerEffect::Dial { dial, endpoint: endpoint.clone() });
        let stage = AttemptStage::Dialing;
        let attempt = Attempt { target, endpoint, expected, conn: None, deadline, stage };
        self.attempts.insert(dial, attempt);
        dial
    }

    pub(super) fn on_dialed(&mut self, dial: DialToken, conn: ConnId, turn: &mut Turn<'_>) {
        let role = if let Some(attempt) = self.attempts.get_mut(&dial) {
            attempt.conn = Some(conn);
            Role::Attempt(dial)
        } else if let Some(lane) = self.lane_dials.get_mut(&dial) {
            lane.conn = Some(conn);
            Role::Lane(dial)
        } else {
            let detail = "the dial was given up before its stream was named".to_owned();
            turn.out.push(PeerEffect::Close { conn, reason: R::NotWanted, detail });
            if let Some(Some(intent)) = self.given_up.remove(&dial) {
                self.intent_closed(intent, turn);
            }
            return;
        };
        self.conns.insert(conn, Conn { inbox: Vec::new(), role });
    }

    pub(super) fn on_connected(&mut self, conn: ConnId, turn: &mut Turn<'_>) {
        match self.conns.get(&conn).map(|c| &c.role) {
            Some(&Role::Attempt(dial)) => {
                let nonce = self.chance.draw();
                let Some(attempt) = self.attempts.get_mut(&dial) else { return };
                if attempt.stage == AttemptStage::Dialing {
                    let ours = PeerHello::of(&self.config, nonce);
                    turn.out.push(PeerEffect::Send { conn, frame: ours.frame(None) });
                    attempt.stage = AttemptStage::HelloSent(Box::new(ours));
                }
            }
            Some(&Role::Lane(dial)) => self.send_attach(dial, conn, turn),
            Some(Role::Incoming(_)) | None => {}
        }
    }

    pub(super) fn on_closed(&mut self, conn: ConnId, reason: &CloseReason, turn: &mut Turn<'_>) {
        let why = match reason {
            CloseReason::DialFailed(_) => R::DialFailed,
            CloseReason::Eof | CloseReason::Failed(_) => R::StreamLost,
        };
        self.end_conn(conn, why, reason.to_string(), false, turn);
    }

    pub(super) fn on_received(&mut self, conn: ConnId, bytes: &[u8], turn: &mut Turn<'_>) {
        if let Some(c) = self.conns.get_mut(&conn) {
            c.inbox.extend_from_slice(bytes);
        }
        // Ends when the stream wants more bytes, or is closed or handed over.
        while let Some(c) = self.conns.get_mut(&conn) {
            let frame = match cut_frame(&mut c.inbox) {
                Ok(Some(frame)) => frame,
                Ok(None) => return,
                Err(refusal) => return self.refuse(conn, refusal, turn),
            };
            let result = read_frame(&frame).and_then(|o| self.on_opening(conn, o, turn));
            if let Err(refusal) = result {
                self.refuse(conn, refusal, turn);
            }
        }
    }

    fn on_opening(
        &mut self,
        conn: ConnId,
        opening: Opening,
        turn: &mut Turn<'_>,
    ) -> Result<(), Refusal> {
        let Some(c) = self.conns.get_mut(&conn) else { return Ok(()) };
        let unexpected = |step: &str, opening: &Opening| {
            Refusal::new(R::UnexpectedRecord, format!("{} came {step}", opening.name()))
        };
        match &mut c.role {
            Role::Incoming(incoming) => match (&incoming.stage, opening) {
                (IncomingStage::Silent, Opening::Hello { hello, proof: None }) => {
                    self.on_hello(conn, *hello, turn)
                }
                (IncomingStage::Silent, Opening::Attach(attach)) => {
                    self.on_attach(conn, &attach, turn)
                }
                (IncomingStage::Answered { .. }, Opening::Admit(Admit { proof, grant: None })) => {
                    self.on_proof(conn, &proof, turn)
                }
                (
                    IncomingStage::Answered { .. } | IncomingStage::Held(_),
                    Opening::Reject { reason, sentence },
                ) => {
                    self.end_conn(conn, R::RejectedByPeer, rejected(reason, &sentence), true, turn);
                    Ok(())
                }
                (IncomingStage::Silent, o) => Err(unexpected("first on an accepted stream", &o)),
                (IncomingStage::Answered { .. }, o) => {
                    Err(unexpected("where the dialer's proof was due", &o))
                }
                (IncomingStage::Held(_), o) => Err(unexpected("before the link was granted", &o)),
            },
            &mut Role::Attempt(dial) => self.on_attempt_opening(conn, dial, opening, turn),
            &mut Role::Lane(dial) => match opening {
                Opening::Attach(echo) => self.on_attach_echo(conn, dial, &echo, turn),
                o => Err(unexpected("where a lane's confirmation was due", &o)),
            },
        }
    }

    fn on_attempt_opening(
        &mut self,
        conn: ConnId,
        dial: DialToken,
        opening: Opening,
        turn: &mut Turn<'_>,
    ) -> Result<(), Refusal> {
        let Some(attempt) = self.attempts.get(&dial) else { return Ok(()) };
        match (&attempt.stage, opening) {
            (AttemptStage::HelloSent(ours), Opening::Hello { hello, proof: Some(proof) }) => {
                let transcript =
                    Transcript { dialer: ours.transcript(), acceptor: hello.transcript() };
                let talk = Talk { hello: *hello, transcript };
                self.on_answer(conn, dial, talk, &proof, turn)
            }
            (AttemptStage::AdmitSent(_), Opening::Admit(Admit { proof, grant: Some(grant) })) => {
                self.on_grant(conn, dial, &grant, &proof, turn)
            }
            (AttemptStage::Dialing, o) => Err(Refusal::new(
                R::UnexpectedRecord,
                format!("{} came before this node's hello", o.name()),
            )),
            (_, Opening::Reject { reason, sentence }) => {
                self.on_rejected(dial, reason, &sentence, turn);
                Ok(())
            }
            (_, o) => Err(Refusal::new(
                R::UnexpectedRecord,
                format!("{} came out of turn on a dialled stream", o.name()),
            )),
        }
    }

    /// Acceptor: the first hello.
    fn on_hello(
        &mut self,
        conn: ConnId,
        hello: PeerHello,
        turn: &mut Turn<'_>,
    ) -> Result<(), Refusal> {
        hello.check_against(&self.config)?;
        self.check_known(&hello.identity)?;
        let saw = self.peers.get(&hello.identity.rid).and_then(|p| p.link);
        let nonce = self.chance.draw();
        let ours = PeerHello::of(&self.config, nonce);
        let transcript = Transcript { dialer: hello.transcript(), acceptor: ours.transcript() };
        let proof = transcript.proof(self.secret(), Label::AcceptorProof);
        turn.out.push(PeerEffect::Send { conn, frame: ours.frame(Some(proof)) });
        let talk = Box::new(Talk { hello, transcript });
        if let Some(incoming) = self.incoming_mut(conn) {
            incoming.stage = IncomingStage::Answered { talk, saw };
        }
        Ok(())
    }

    fn incoming_mut(&mut self, conn: ConnId) -> Option<&mut Incoming> {
        match self.conns.get_mut(&conn).map(|c| &mut c.role) {
            Some(Role::Incoming(incoming)) => Some(incoming),
            _ => None,
        }
    }

    /// Acceptor: the dialer's proof.
    fn on_proof(
        &mut self,
        conn: ConnId,
        proof: &[u8; 32],
        turn: &mut Turn<'_>,
    ) -> Result<(), Refusal> {
        let Some(incoming) = self.incoming_mut(conn) else { return Ok(()) };
        let order = incoming.order;
        let IncomingStage::Answered { talk, saw } = &incoming.stage else { return Ok(()) };
        let (talk, saw) = (talk.clone(), *saw);
        if !talk.transcript.verify(self.secret(), Label::DialerProof, proof) {
            return Err(wrong_proof(&talk.hello.identity));
        }
        self.half_open.remove(&order);
        let identity = talk.hello.identity.clone();
        if let Some(incoming) = self.incoming_mut(conn) {
            incoming.stage = IncomingStage::Held(talk);
        }
        self.weigh(Candidate::Accepted(conn), &identity, saw, turn)?;
        self.proceed(&identity.rid, turn);
        Ok(())
    }

    /// Dialer: the acceptor's hello and proof.
    fn on_answer(
        &mut self,
        conn: ConnId,
        dial: DialToken,
        talk: Talk,
        proof: &[u8; 32],
        turn: &mut Turn<'_>,
    ) -> Result<(), Refusal> {
        talk.hello.check_against(&self.config)?;
        let identity = talk.hello.identity.clone();
        if !talk.transcript.verify(self.secret(), Label::AcceptorProof, proof) {
            return Err(wrong_proof(&identity));
        }
        let Some(attempt) = self.attempts.get_mut(&dial) else { return Ok(()) };
        if let Some(expected) = attempt.expected.clone()
            && expected != identity
        {
            let refusal = wrong_identity(&attempt.endpoint, &identity, &expected);
            self.refuse(conn, refusal, turn);
            // It did prove who it is: older lifecycles of it are over.
            let _ = self.know(&identity, turn);
            return Ok(());
        }
        attempt.stage = AttemptStage::Held(Box::new(talk));
        if let Target::Intent(intent) = attempt.target {
            self.intent_met(intent, &identity.rid);
        }
        if self.weigh(Candidate::Dialed(dial), &identity, None, turn)? {
            self.proceed(&identity.rid, turn);
        } else {
            self.attempt_redundant(dial, &identity.rid, R::Redundant, turn);
        }
        Ok(())
    }

    /// Sends our proof: from here on the peer decides.
    pub(super) fn send_proof(&mut self, dial: DialToken, turn: &mut Turn<'_>) {
        let Some(attempt) = self.attempts.get_mut(&dial) else { return };
        let (AttemptStage::Held(talk), Some(conn)) = (&attempt.stage, attempt.conn) else {
            return;
        };
        let talk = talk.clone();
        attempt.stage = AttemptStage::AdmitSent(talk.clone());
        let proof = talk.transcript.proof(self.secret(), Label::DialerProof);
        let frame = admit_frame(&Admit { proof, grant: None });
        turn.out.push(PeerEffect::Send { conn, frame });
    }

    /// Acceptor: grants the link of a proven stream.
    pub(super) fn grant(&mut self, conn: ConnId, turn: &mut Turn<'_>) {
        let Some(incoming) = self.incoming_mut(conn) else { return };
        let IncomingStage::Held(talk) = &incoming.stage else { return };
        let (talk, deadline) = (talk.clone(), incoming.deadline);
        self.disarm(deadline, Timer::Incoming(conn));
        let link = LinkId(self.next_serial());
        let lanes = lanes_between(self.config.cores, talk.hello.cores);
        let grant = LinkGrant { link_id: link.0, lanes };
        let proof = talk.transcript.grant_proof(self.secret(), &grant);
        let frame = admit_frame(&Admit { proof, grant: Some(grant) });
        turn.out.push(PeerEffect::Send { conn, frame });
        self.form_link(link, grant, &talk, conn, deadline, None, turn);
    }

    /// Dialer: the grant.
    fn on_grant(
        &mut self,
        conn: ConnId,
        dial: DialToken,
        grant: &LinkGrant,
        proof: &[u8; 32],
        turn: &mut Turn<'_>,
    ) -> Result<(), Refusal> {
        let Some(attempt) = self.attempts.get(&dial) else { return Ok(()) };
        let AttemptStage::AdmitSent(talk) = &attempt.stage else { return Ok(()) };
        if !talk.transcript.verify_grant(self.secret(), grant, proof) {
            return Err(wrong_proof(&talk.hello.identity));
        }
        let lanes = lanes_between(self.config.cores, talk.hello.cores);
        if grant.lanes != lanes {
            return Err(Refusal::new(
                R::BadValue,
                format!(
                    "{} grants {} lanes; nodes of {} and {} cores share {lanes}",
                    talk.hello.identity, grant.lanes, talk.hello.cores, self.config.cores
                ),
            ));
        }
        let Some(attempt) = self.attempts.remove(&dial) else { return Ok(()) };
        self.disarm(attempt.deadline, Timer::Attempt(dial));
        let AttemptStage::AdmitSent(talk) = &attempt.stage else { return Ok(()) };
        let link = LinkId(self.next_serial());
        if let Target::Peer(rid) = &attempt.target
            && let Some(peer) = self.peers.get_mut(rid)
        {
            peer.attempt = None;
        }
        let dialed = Some((attempt.target.clone(), attempt.endpoint.clone()));
        self.form_link(link, *grant, talk, conn, attempt.deadline, dialed, turn);
        Ok(())
    }

    /// Whether an accepted stream of this node waits for its proof.
    pub(super) fn has_answered(&self, rid: &NodeRid) -> bool {
        self.half_open.values().any(|conn| match self.conns.get(conn).map(|c| &c.role) {
            Some(Role::Incoming(Incoming {
                stage: IncomingStage::Answered { talk, .. }, ..
            })) => talk.hello.identity.rid == *rid,
            _ => false,
        })
    }

    /// An accepted stream that becomes a lane has no handshake of its own any more.
    pub(super) fn forget_incoming(&mut self, conn: ConnId) {
        let Some(incoming) = self.incoming_mut(conn) else { return };
        let (order, deadline) = (incoming.order, incoming.deadline);
        self.half_open.remove(&order);
        self.disarm(deadline, Timer::Incoming(conn));
    }

    /// Says no, with a reject where the peer can make use of it, and closes the stream.
    pub(super) fn refuse(&mut self, conn: ConnId, refusal: Refusal, turn: &mut Turn<'_>) {
        if !self.conns.contains_key(&conn) {
            return;
        }
        if let Some(reason) = reject_reason(refusal.reason) {
            let frame = reject_frame(reason, &refusal.detail);
            turn.out.push(PeerEffect::Send { conn, frame });
        }
        self.end_conn(conn, refusal.reason, refusal.detail, true, turn);
    }

    /// Forgets a stream, closing it when `close`, with all that follows from its loss.
    pub(super) fn end_conn(
        &mut self,
        conn: ConnId,
        reason: R,
        detail: String,
        close: bool,
        turn: &mut Turn<'_>,
    ) {
        let Some(c) = self.conns.remove(&conn) else { return };
        if close {
            turn.out.push(PeerEffect::Close { conn, reason, detail: detail.clone() });
        }
        match c.role {
            Role::Incoming(incoming) => {
                self.disarm(incoming.deadline, Timer::Incoming(conn));
                self.half_open.remove(&incoming.order);
                match incoming.stage {
                    IncomingStage::Silent => {}
                    IncomingStage::Answered { talk, .. } => {
                        self.their_dial_gone(&talk.hello.identity.rid, &detail, turn);
                    }
                    IncomingStage::Held(talk) => {
                        let rid = talk.hello.identity.rid;
                        self.candidate_gone(&rid, Candidate::Accepted(conn), turn);
                    }
                }
            }
            Role::Attempt(dial) => self.attempt_failed(dial, reason, detail, turn),
            Role::Lane(dial) => self.lane_dial_failed(dial, &detail, turn),
        }
    }
}

pub(super) fn rejected(reason: RejectReason, sentence: &str) -> String {
    format!("the peer refused ({reason:?}): {sentence}")
}

fn wrong_proof(who: &PeerIdentity) -> Refusal {
    Refusal::new(
        R::WrongProof,
        format!(
            "{who} does not prove the mesh secret; the same secret must be set on every node of \
             the mesh, or on none"
        ),
    )
}

pub(super) fn wrong_identity(
    endpoint: &Endpoint,
    who: &PeerIdentity,
    expected: &PeerIdentity,
) -> Refusal {
    Refusal::new(
        R::IdentityMismatch,
        format!("{who} answers at {endpoint}, where its descriptor names {expected}"),
    )
}

/// What a peer is told; `None` where a sentence would not help it.
const fn reject_reason(reason: R) -> Option<RejectReason> {
    Some(match reason {
        R::VersionMismatch => RejectReason::VersionUnsupported,
        R::MeshMismatch => RejectReason::MeshMismatch,
        R::HashSeedMismatch => RejectReason::HashSeedMismatch,
        R::WrongProof => RejectReason::WrongProof,
        R::StaleIncarnation => RejectReason::OldIncarnation,
        R::SelfDial | R::DuplicateRid | R::IdentityMismatch => RejectReason::WrongIdentity,
        R::SimultaneousDial | R::AlreadyLinked => RejectReason::DuplicateLink,
        R::BadValue | R::TooManyPeers => RejectReason::SettingsMismatch,
        R::ShuttingDown => RejectReason::ShuttingDown,
        _ => return None,
    })
}
