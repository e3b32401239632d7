#![forbid(unsafe_code)]
//! The records of a link: hello, admit, reject, update, liveness, and what they carry.

use super::field::{Codec, Reader, Sink, numbers};
use super::rule::{Rule, WireError};
use crate::ids::{NodeGeneration, OwnerLeaseGeneration};
use crate::limits::{MAX_CORES, MAX_LANES, MAX_MAX_FRAME_BYTES, MIN_MAX_FRAME_BYTES};

/// The version of the protocol this library speaks, as hello carries it.
pub const PROTOCOL_VERSION: u16 = 1;

/// Record 1 `hello`: who a node is and what it can do. First on lane 0, in both directions.
///
/// | | body, in order |
/// |---|---|
/// | 1 hello | u16 protocol version, text8 mesh, rid node, gen node, gen owner lease, 16 bytes key id, 32 bytes nonce, u16 cores (1..=256), u32 largest frame (64 KiB..=1 GiB), u32 lane window (not 0), u64 hash seed check, u64 route_cache_max_age in ms, u64 message_follow_duration in ms, opt-text8 advertised endpoint, u8 proof present (0, 1), 32 bytes proof if present |
///
/// The dialer's hello has no proof; the acceptor's has one, made over both hellos as they
/// are [without a proof](Self::without_proof).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Hello<'a> {
    /// The version of the protocol; judged by the receiver.
    pub protocol_version: u16,
    /// The mesh.
    pub mesh: &'a str,
    /// The node's rid.
    pub rid: &'a [u8],
    /// The node's lifecycle.
    pub node_generation: NodeGeneration,
    /// The process's owner lease.
    pub owner_lease_generation: OwnerLeaseGeneration,
    /// The security identity: names the key that the descriptor publishes (R2.3-5).
    pub key_id: [u8; 16],
    /// Random, new for every hello.
    pub nonce: [u8; 32],
    /// Configured cores.
    pub cores: u16,
    /// Largest frame the node accepts, in bytes.
    pub max_frame_bytes: u32,
    /// Credit the node grants per lane, in bytes.
    pub lane_window_bytes: u32,
    /// Equal on both sides if, and only if, the seeds of the object hash are.
    pub hash_seed_check: u64,
    /// The node's `route_cache_max_age`, in milliseconds (R0-7).
    pub route_cache_max_age_ms: u64,
    /// The node's `message_follow_duration`, in milliseconds (R0-7).
    pub message_follow_duration_ms: u64,
    /// Where the node listens, if it says so.
    pub endpoint: Option<&'a str>,
    /// The acceptor's proof that it knows the mesh secret.
    pub proof: Option<[u8; 32]>,
}

impl Hello<'_> {
    /// The same hello without its proof: what proofs are made over.
    #[must_use]
    pub const fn without_proof(self) -> Self {
        Self { proof: None, ..self }
    }
}

impl<'a> Codec<'a> for Hello<'a> {
    fn get(r: &mut Reader<'a>) -> Result<Self, WireError> {
        let cores = |n| (1..=MAX_CORES).contains(&n).then_some(n);
        let frame = |n| (MIN_MAX_FRAME_BYTES..=MAX_MAX_FRAME_BYTES).contains(&n).then_some(n);
        let window = |n| (n > 0).then_some(n);
        Ok(Self {
            protocol_version: r.u16()?,
            mesh: r.text8()?,
            rid: r.rid()?,
            node_generation: r.fence(NodeGeneration::new)?,
            owner_lease_generation: r.fence(OwnerLeaseGeneration::new)?,
            key_id: r.array()?,
            nonce: r.array()?,
            cores: r.choice(Reader::u16, cores, Rule::CoreCount)?,
            max_frame_bytes: r.choice(Reader::u32, frame, Rule::MaxFrameRange)?,
            lane_window_bytes: r.choice(Reader::u32, window, Rule::LaneWindow)?,
            hash_seed_check: r.u64()?,
            route_cache_max_age_ms: r.u64()?,
            message_follow_duration_ms: r.u64()?,
            endpoint: r.opt_text8()?,
            proof: if r.flag()? { Some(r.array()?) } else { None },
        })
    }

    fn put<S: Sink>(&self, s: &mut S) {
        s.u16(self.protocol_version);
        s.text8(self.mesh);
        s.rid(self.rid);
        s.u64(self.node_generation.get());
        s.u64(self.owner_lease_generation.get());
        s.raw(&self.key_id);
        s.raw(&self.nonce);
        s.require((1..=MAX_CORES).contains(&self.cores), Rule::CoreCount);
        s.u16(self.cores);
        let frame = MIN_MAX_FRAME_BYTES..=MAX_MAX_FRAME_BYTES;
        s.require(frame.contains(&self.max_frame_bytes), Rule::MaxFrameRange);
        s.u32(self.max_frame_bytes);
        s.require(self.lane_window_bytes > 0, Rule::LaneWindow);
        s.u32(self.lane_window_bytes);
        s.u64(self.hash_seed_check);
        s.u64(self.route_cache_max_age_ms);
        s.u64(self.message_follow_duration_ms);
        s.opt_text8(self.endpoint);
        s.flag(self.proof.is_some());
        if let Some(proof) = &self.proof {
            s.raw(proof);
        }
    }
}

/// Record 2 `admit`: the end of the handshake of lane 0.
///
/// | | body, in order |
/// |---|---|
/// | 2 admit | 32 bytes proof, u8 grant present (0, 1), then if present: u64 link id (not 0), u16 lanes (1..=16) |
///
/// The dialer sends one without a grant: its proof over both hellos. The acceptor answers
/// with a grant; its proof covers the grant as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Admit {
    /// HMAC-SHA-256 under the mesh secret.
    pub proof: [u8; 32],
    /// The acceptor's grant.
    pub grant: Option<LinkGrant>,
}

/// What the acceptor of a link decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LinkGrant {
    /// Names the link when further lanes attach; not zero.
    pub link_id: u64,
    /// Lanes of the link, lane 0 included: 1..=16.
    pub lanes: u16,
}

impl<'a> Codec<'a> for Admit {
    fn get(r: &mut Reader<'a>) -> Result<Self, WireError> {
        let lanes = |n| (1..=MAX_LANES).contains(&n).then_some(n);
        Ok(Self {
            proof: r.array()?,
            grant: if r.flag()? {
                Some(LinkGrant {
                    link_id: r.non_zero(Rule::LinkIdZero)?,
                    lanes: r.choice(Reader::u16, lanes, Rule::LaneCount)?,
                })
            } else {
                None
            },
        })
    }

    fn put<S: Sink>(&self, s: &mut S) {
        s.raw(&self.proof);
        s.flag(self.grant.is_some());
        if let Some(grant) = &self.grant {
            s.require(grant.link_id != 0, Rule::LinkIdZero);
            s.u64(grant.link_id);
            s.require((1..=MAX_LANES).contains(&grant.lanes), Rule::LaneCount);
            s.u16(grant.lanes);
        }
    }
}

numbers! {
    /// Why a peer was not admitted.
    RejectReason: u16 {
        /// The two nodes belong to different meshes.
        MeshMismatch = 1,
        /// The proof of the mesh secret is wrong.
        WrongProof = 2,
        /// A later lifecycle of that node was seen already.
        OldIncarnation = 3,
        /// The node is not the one its descriptor or configuration names (R2.3-2).
        WrongIdentity = 4,
        /// The seeds of the object hash differ.
        HashSeedMismatch = 5,
        /// The other of two simultaneous dials stands.
        DuplicateLink = 6,
        /// The protocol version is not spoken.
        VersionUnsupported = 7,
        /// Settings that must agree do not.
        SettingsMismatch = 8,
        /// The node is shutting down.
        ShuttingDown = 9,
    }
}

/// Record 3 `reject`: the peer is not admitted, or not any more; the link closes.
///
/// | | body, in order |
/// |---|---|
/// | 3 reject | u16 reason (1 mesh mismatch, 2 wrong proof, 3 old incarnation, 4 wrong identity, 5 hash seed mismatch, 6 duplicate link, 7 version unsupported, 8 settings mismatch, 9 shutting down), text8 sentence |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Reject<'a> {
    /// The reason.
    pub reason: RejectReason,
    /// One sentence for people, at most 255 bytes.
    pub sentence: &'a str,
}

impl<'a> Codec<'a> for Reject<'a> {
    fn get(r: &mut Reader<'a>) -> Result<Self, WireError> {
        Ok(Self {
            reason: r.choice(Reader::u16, RejectReason::from_number, Rule::RejectReason)?,
            sentence: r.text8()?,
        })
    }

    fn put<S: Sink>(&self, s: &mut S) {
        s.u16(self.reason.number());
        s.text8(self.sentence);
    }
}

/// Record 4 `update`: what hello said and has changed since.
///
/// | | body, in order |
/// |---|---|
/// | 4 update | gen owner lease, u64 route_cache_max_age in ms, u64 message_follow_duration in ms, u8 draining (0, 1) |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Update {
    /// The owner lease of the process (R0-6).
    pub owner_lease_generation: OwnerLeaseGeneration,
    /// The new `route_cache_max_age`, in milliseconds.
    pub route_cache_max_age_ms: u64,
    /// The new `message_follow_duration`, in milliseconds.
    pub message_follow_duration_ms: u64,
    /// Whether the node takes no new objects.
    pub draining: bool,
}

impl<'a> Codec<'a> for Update {
    fn get(r: &mut Reader<'a>) -> Result<Self, WireError> {
        Ok(Self {
            owner_lease_generation: r.fence(OwnerLeaseGeneration::new)?,
            route_cache_max_age_ms: r.u64()?,
            message_follow_duration_ms: r.u64()?,
            draining: r.flag()?,
        })
    }

    fn put<S: Sink>(&self, s: &mut S) {
        s.u64(self.owner_lease_generation.get());
        s.u64(self.route_cache_max_age_ms);
        s.u64(self.message_follow_duration_ms);
        s.flag(self.draining);
    }
}

/// Records 5 `livenessProbe` and 6 `livenessAck`.
///
/// | | body, in order |
/// |---|---|
/// | 5 / 6 | u64 probe id, not 0 |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Liveness {
    /// Chosen by the prober; the ack repeats it.
    pub probe_id: u64,
}

impl<'a> Codec<'a> for Liveness {
    fn get(r: &mut Reader<'a>) -> Result<Self, WireError> {
        Ok(Self { probe_id: r.non_zero(Rule::ProbeIdZero)? })
    }

    fn put<S: Sink>(&self, s: &mut S) {
        s.require(self.probe_id != 0, Rule::ProbeIdZero);
        s.u64(self.probe_id);
    }
}
