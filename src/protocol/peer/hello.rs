#![forbid(unsafe_code)]
//! What travels in a handshake: the frames of it, read and written, and the rules a hello is
//! held to whoever sends it.

use std::time::Duration;

use super::event::{PeerCloseReason, PeerConfig, PeerIdentity};
use super::proof::{Label, LinkKey, mac, verify};
use crate::error::Error;
use crate::ids::{MeshName, NodeRid, OwnerLeaseGeneration};
use crate::limits::{FRAME_HEADER_BYTES, MAX_HANDSHAKE_FRAME_BYTES, MAX_ID_BYTES, MAX_LANES};
use crate::wire::{
    Admit, Body, Control, Frame, FrameHeader, FrameParts, Hello, LaneAttach, LinkGrant,
    PROTOCOL_VERSION, Record, Reject, RejectReason, WireError,
};

/// A rule that was broken, with the sentence that says how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) reason: PeerCloseReason,
    pub(super) detail: String,
}

impl Refusal {
    pub(super) fn new(reason: PeerCloseReason, detail: impl Into<String>) -> Self {
        Self { reason, detail: detail.into() }
    }
}

/// A hello, owned.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct PeerHello {
    pub(super) version: u16,
    pub(super) mesh: MeshName,
    pub(super) identity: PeerIdentity,
    pub(super) lease_generation: OwnerLeaseGeneration,
    pub(super) nonce: [u8; 32],
    pub(super) cores: u16,
    pub(super) max_frame_bytes: u32,
    pub(super) lane_window_bytes: u32,
    pub(super) hash_seed_check: u64,
    pub(super) route_cache_max_age_ms: u64,
    pub(super) message_follow_duration_ms: u64,
    pub(super) advertised: Option<String>,
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl PeerHello {
    /// What this node says.
    pub(super) fn of(config: &PeerConfig, nonce: [u8; 32]) -> Self {
        Self {
            version: PROTOCOL_VERSION,
            mesh: config.mesh.clone(),
            identity: config.identity.clone(),
            lease_generation: config.lease_generation,
            nonce,
            cores: config.cores,
            max_frame_bytes: config.max_frame_bytes,
            lane_window_bytes: config.lane_window_bytes,
            hash_seed_check: config.hash_seed_check,
            route_cache_max_age_ms: ms(config.route_cache_max_age),
            message_follow_duration_ms: ms(config.message_follow_duration),
            advertised: config.advertised.clone(),
        }
    }

    fn read(hello: &Hello<'_>) -> Result<Self, Error> {
        Ok(Self {
            version: hello.protocol_version,
            mesh: MeshName::new(hello.mesh)?,
            identity: PeerIdentity {
                rid: NodeRid::new(hello.rid)?,
                node_generation: hello.node_generation,
                key_id: hello.key_id,
            },
            lease_generation: hello.owner_lease_generation,
            nonce: hello.nonce,
            cores: hello.cores,
            max_frame_bytes: hello.max_frame_bytes,
            lane_window_bytes: hello.lane_window_bytes,
            hash_seed_check: hello.hash_seed_check,
            route_cache_max_age_ms: hello.route_cache_max_age_ms,
            message_follow_duration_ms: hello.message_follow_duration_ms,
            advertised: hello.endpoint.map(str::to_owned),
        })
    }

    fn record(&self, proof: Option<[u8; 32]>) -> Record<'_> {
        Record::Hello(Hello {
            protocol_version: self.version,
            mesh: self.mesh.as_str(),
            rid: self.identity.rid.as_bytes(),
            node_generation: self.identity.node_generation,
            owner_lease_generation: self.lease_generation,
            key_id: self.identity.key_id,
            nonce: self.nonce,
            cores: self.cores,
            max_frame_bytes: self.max_frame_bytes,
            lane_window_bytes: self.lane_window_bytes,
            hash_seed_check: self.hash_seed_check,
            route_cache_max_age_ms: self.route_cache_max_age_ms,
            message_follow_duration_ms: self.message_follow_duration_ms,
            endpoint: self.advertised.as_deref(),
            proof,
        })
    }

    /// The frame of this hello.
    pub(super) fn frame(&self, proof: Option<[u8; 32]>) -> Vec<u8> {
        frame_of(0, Body::Record(self.record(proof)))
    }

    /// What proofs are made over: the record without a proof. Decoding is strict, so writing a
    /// hello that was read gives the bytes the peer wrote.
    pub(super) fn transcript(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.record(None)
            .encode(false, &mut bytes)
            .expect("a hello that was checked can be written");
        bytes
    }

    /// Whether this can be written at all: the check of a node's own settings.
    pub(super) fn check_own(&self) -> Result<(), Error> {
        self.record(None).encoded_len(false).map(|_| ()).map_err(|e| {
            Error::not_configured(format!(
                "this node cannot say hello: {} (cores {}, largest frame {}, lane window {}, \
                 advertised endpoint {:?})",
                e.rule.text(),
                self.cores,
                self.max_frame_bytes,
                self.lane_window_bytes,
                self.advertised
            ))
        })
    }

    /// The rules that need no proof: version, mesh, hash seed, not this node itself.
    pub(super) fn check_against(&self, own: &PeerConfig) -> Result<(), Refusal> {
        use PeerCloseReason as R;
        let who = &self.identity;
        if self.version != PROTOCOL_VERSION {
            return Err(Refusal::new(
                R::VersionMismatch,
                format!(
                    "{who} speaks link protocol version {}, this node speaks {PROTOCOL_VERSION}",
                    self.version
                ),
            ));
        }
        if self.mesh != own.mesh {
            return Err(Refusal::new(
                R::MeshMismatch,
                format!("{who} is of mesh {:?}, this node is of mesh {:?}", self.mesh, own.mesh),
            ));
        }
        if *who == own.identity {
            return Err(Refusal::new(
                R::SelfDial,
                format!("node {} reached itself; a node needs no link to itself", who.rid),
            ));
        }
        if who.rid == own.identity.rid {
            return Err(Refusal::new(
                R::DuplicateRid,
                format!(
                    "{who} has the rid of {}; every live node needs a rid of its own",
                    own.identity
                ),
            ));
        }
        if self.hash_seed_check != own.hash_seed_check {
            return Err(Refusal::new(
                R::HashSeedMismatch,
                format!(
                    "{who} hashes ids with another seed (check {:016x}, here {:016x}): it uses \
                     another Location Store, or one that was started afresh",
                    self.hash_seed_check, own.hash_seed_check
                ),
            ));
        }
        Ok(())
    }
}

/// Lanes of a link between nodes with these cores.
pub(super) fn lanes_between(cores_a: u16, cores_b: u16) -> u16 {
    cores_a.max(cores_b).clamp(1, MAX_LANES)
}

/// Both hellos, as the two sides saw them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Transcript {
    pub(super) dialer: Vec<u8>,
    pub(super) acceptor: Vec<u8>,
}

impl Transcript {
    pub(super) fn proof(&self, secret: &[u8], label: Label) -> [u8; 32] {
        mac(secret, label, &[&self.dialer, &self.acceptor])
    }

    pub(super) fn verify(&self, secret: &[u8], label: Label, proof: &[u8; 32]) -> bool {
        verify(secret, label, &[&self.dialer, &self.acceptor], proof)
    }

    fn grant_parts(grant: &LinkGrant) -> [u8; 10] {
        let mut parts = [0; 10];
        parts[..8].copy_from_slice(&grant.link_id.to_be_bytes());
        parts[8..].copy_from_slice(&grant.lanes.to_be_bytes());
        parts
    }

    pub(super) fn grant_proof(&self, secret: &[u8], grant: &LinkGrant) -> [u8; 32] {
        let grant = Self::grant_parts(grant);
        mac(secret, Label::Grant, &[&self.dialer, &self.acceptor, &grant])
    }

    pub(super) fn verify_grant(&self, secret: &[u8], grant: &LinkGrant, proof: &[u8; 32]) -> bool {
        let grant = Self::grant_parts(grant);
        verify(secret, Label::Grant, &[&self.dialer, &self.acceptor, &grant], proof)
    }

    pub(super) fn link_key(&self, secret: &[u8]) -> LinkKey {
        LinkKey::derive(secret, &self.dialer, &self.acceptor)
    }
}

/// One message of a handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Opening {
    Hello { hello: Box<PeerHello>, proof: Option<[u8; 32]> },
    Admit(Admit),
    Reject { reason: RejectReason, sentence: String },
    Attach(LaneAttach),
}

/// Takes the next whole frame off the front of what came in. `None`: more bytes are needed.
pub(super) fn cut_frame(inbox: &mut Vec<u8>) -> Result<Option<Vec<u8>>, Refusal> {
    let Some(head) = inbox.first_chunk::<4>() else { return Ok(None) };
    let length = u32::from_be_bytes(*head);
    if length > MAX_HANDSHAKE_FRAME_BYTES {
        return Err(Refusal::new(
            PeerCloseReason::FrameTooLarge,
            format!(
                "a frame of {length} bytes during the handshake; at most \
                 {MAX_HANDSHAKE_FRAME_BYTES} are allowed before a peer has proved who it is"
            ),
        ));
    }
    if inbox.len() < FRAME_HEADER_BYTES {
        return Ok(None);
    }
    let header = FrameHeader::decode(inbox, MAX_HANDSHAKE_FRAME_BYTES)
        .map_err(|e| Refusal::new(PeerCloseReason::BadFrame, e.to_string()))?;
    let length = header.frame_len as usize;
    if inbox.len() < length {
        return Ok(None);
    }
    let rest = inbox.split_off(length);
    Ok(Some(std::mem::replace(inbox, rest)))
}

impl Opening {
    /// What it is called in sentences.
    pub(super) const fn name(&self) -> &'static str {
        match self {
            Self::Hello { proof: None, .. } => "a hello without proof",
            Self::Hello { proof: Some(_), .. } => "a hello with proof",
            Self::Admit(Admit { grant: None, .. }) => "an admit without grant",
            Self::Admit(Admit { grant: Some(_), .. }) => "an admit with grant",
            Self::Reject { .. } => "a reject",
            Self::Attach(_) => "a lane attach",
        }
    }
}

/// Decodes a whole frame of a handshake. Any other record is refused here, before it can reach
/// a queue.
pub(super) fn read_frame(bytes: &[u8]) -> Result<Opening, Refusal> {
    let bad = |e: WireError| Refusal::new(PeerCloseReason::BadFrame, e.to_string());
    let frame = Frame::decode(bytes, MAX_HANDSHAKE_FRAME_BYTES).map_err(bad)?;
    let (lane, opening) = match frame.body {
        Body::Record(Record::Hello(hello)) => {
            let read = PeerHello::read(&hello)
                .map_err(|e| Refusal::new(PeerCloseReason::BadValue, e.text()))?;
            (0, Opening::Hello { hello: Box::new(read), proof: hello.proof })
        }
        Body::Record(Record::Admit(admit)) => (0, Opening::Admit(admit)),
        Body::Record(Record::Reject(reject)) => {
            let sentence = reject.sentence.to_owned();
            (0, Opening::Reject { reason: reject.reason, sentence })
        }
        Body::Control(Control::LaneAttach(attach)) => (attach.lane, Opening::Attach(attach)),
        Body::Record(record) => {
            let detail = format!("record {} came during the handshake", record.command().number());
            return Err(Refusal::new(PeerCloseReason::UnexpectedRecord, detail));
        }
        Body::Control(control) => {
            let number = control.type_number();
            let detail = format!("link control {number} came during the handshake");
            return Err(Refusal::new(PeerCloseReason::UnexpectedRecord, detail));
        }
    };
    if frame.lane != lane {
        let detail = format!("a handshake frame of lane {lane} says it is of lane {}", frame.lane);
        return Err(Refusal::new(PeerCloseReason::BadFrame, detail));
    }
    Ok(opening)
}

fn frame_of(lane: u16, body: Body<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    FrameParts::link(lane, body)
        .encode(&mut bytes, MAX_HANDSHAKE_FRAME_BYTES)
        .expect("a handshake record of checked values can be written");
    bytes
}

/// The frame of an admit.
pub(super) fn admit_frame(admit: &Admit) -> Vec<u8> {
    frame_of(0, Body::Record(Record::Admit(*admit)))
}

/// The frame of a lane attach.
pub(super) fn attach_frame(attach: &LaneAttach) -> Vec<u8> {
    frame_of(attach.lane, Body::Control(Control::LaneAttach(*attach)))
}

/// The frame of a reject; the sentence is cut to what a record holds.
pub(super) fn reject_frame(reason: RejectReason, sentence: &str) -> Vec<u8> {
    let mut sentence = sentence.replace('\0', " ");
    let mut end = sentence.len().min(MAX_ID_BYTES);
    while !sentence.is_char_boundary(end) {
        end -= 1;
    }
    sentence.truncate(end);
    if sentence.is_empty() {
        sentence.push('-');
    }
    frame_of(0, Body::Record(Record::Reject(Reject { reason, sentence: &sentence })))
}
