#![forbid(unsafe_code)]
//! A peer that can do anything: bare sockets, and a handshake where it wants one.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, ErrorKind as Io, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use homing::env::ConnId;
use homing::ids::{
    AuthorityOwnerGeneration, Correlation, MeshName, NodeGeneration, NodeRid, ObjectGeneration,
    ObjectHash, ObjectKind, OperationId, OwnerLeaseGeneration,
};
use homing::location::LocationStore;
use homing::protocol::peer::{
    MeshSecret, PeerConfig, PeerDescriptor, PeerEffect, PeerEvent, PeerIdentity, Peers,
};
use homing::store::records::{HashSeed, NodeDescriptor, hash_seed_key, node_key};
use homing::time::Nanos;
use homing::wire::{
    self, Body, FrameParts, Liveness, MessageForm, ObjectMessage, Record, RouteFenceRef,
};

use super::super::command::Fence;
use super::{SECRET, Stage};

/// Longest time a node may take to close a stream: far longer than any of its limits.
const PATIENCE: Duration = Duration::from_secs(60);

/// A stream to the node under attack.
pub(super) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

macro_rules! both {
    ($self:expr, $s:ident => $what:expr) => {
        match $self {
            Stream::Tcp($s) => $what,
            Stream::Unix($s) => $what,
        }
    };
}

impl Read for Stream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        both!(self, s => s.read(buf))
    }
}

impl Write for Stream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        both!(self, s => s.write(buf))
    }
    fn flush(&mut self) -> io::Result<()> {
        both!(self, s => s.flush())
    }
}

impl Stream {
    pub(super) fn connect(endpoint: &str) -> Self {
        let stream = match endpoint.strip_prefix("tcp://") {
            Some(address) => Self::Tcp(TcpStream::connect(address).expect("it listens")),
            None => {
                let path = endpoint.strip_prefix("unix://").expect("an endpoint");
                Self::Unix(UnixStream::connect(path).expect("it listens"))
            }
        };
        stream.wait_at_most(PATIENCE);
        both!(&stream, s => s.set_write_timeout(Some(PATIENCE)).expect("a timeout"));
        stream
    }

    /// How long a read waits.
    pub(super) fn wait_at_most(&self, time: Duration) {
        both!(self, s => s.set_read_timeout(Some(time)).expect("a timeout"));
    }

    pub(super) fn another(&self) -> Self {
        match self {
            Self::Tcp(s) => Self::Tcp(s.try_clone().expect("a descriptor")),
            Self::Unix(s) => Self::Unix(s.try_clone().expect("a descriptor")),
        }
    }

    pub(super) fn end(&self) {
        // One that is closed already is as good.
        let _ = both!(self, s => s.shutdown(Shutdown::Both));
    }

    /// Says this, if the node still listens.
    pub(super) fn say(&mut self, bytes: &[u8]) -> bool {
        self.write_all(bytes).is_ok()
    }

    /// Reads one frame.
    #[track_caller]
    pub(super) fn frame(&mut self) -> Vec<u8> {
        let mut frame = vec![0; 4];
        self.read_exact(&mut frame).expect("a frame comes");
        frame.resize(u32::from_be_bytes([frame[0], frame[1], frame[2], frame[3]]) as usize, 0);
        self.read_exact(&mut frame[4..]).expect("the frame is whole");
        frame
    }

    /// Reads until the node closes the stream.
    #[track_caller]
    pub(super) fn must_be_closed(mut self) {
        let mut bytes = [0; 1 << 16];
        loop {
            match self.read(&mut bytes) {
                Ok(0) => return,
                Ok(_) => {}
                Err(e) if matches!(e.kind(), Io::ConnectionReset | Io::BrokenPipe) => return,
                Err(e) => panic!("the node does not close the stream: {e}"),
            }
        }
    }
}

/// Who the rogue says it is.
#[derive(Clone, Debug)]
pub(super) struct Rogue {
    pub(super) rid: String,
    pub(super) generation: u64,
    pub(super) key: u8,
    pub(super) cores: u16,
}

impl Rogue {
    pub(super) fn new(rid: &str, generation: u64) -> Self {
        Self { rid: rid.to_owned(), generation, key: 1, cores: 1 }
    }
}

/// A link the victim has admitted.
pub(super) struct Joined {
    pub(super) lanes: BTreeMap<u16, Stream>,
    seed: u64,
}

static DRAWN: AtomicU8 = AtomicU8::new(0);

impl Stage {
    pub(super) fn connect(&self) -> Stream {
        Stream::connect(&self.victim.endpoint)
    }

    fn record(&self, key: Vec<u8>) -> Vec<u8> {
        let answer = self.world.store().read(&[key], PATIENCE).expect("the store answers");
        answer.records[0].clone().expect("the record is there").value
    }

    pub(super) fn descriptor(&self, rid: &str) -> PeerDescriptor {
        let key = node_key(&NodeRid::parse(rid).unwrap());
        let node = NodeDescriptor::decode(&key, &self.record(key.clone())).unwrap();
        let key_id = node.key_id.to_be_bytes();
        let identity =
            PeerIdentity { rid: node.rid, node_generation: node.node_generation, key_id };
        PeerDescriptor { identity, endpoint: node.endpoint }
    }

    fn machine(&self, rogue: &Rogue) -> (Peers, u64) {
        let key = hash_seed_key();
        let HashSeed(seed) = HashSeed::decode(&key, &self.record(key.clone())).unwrap();
        let config = PeerConfig {
            mesh: MeshName::new("contract").unwrap(),
            identity: PeerIdentity {
                rid: NodeRid::parse(&rogue.rid).unwrap(),
                node_generation: NodeGeneration::new(rogue.generation).unwrap(),
                key_id: [rogue.key; 16],
            },
            lease_generation: OwnerLeaseGeneration::FIRST,
            secret: Some(MeshSecret::new(SECRET).unwrap()),
            cores: rogue.cores,
            max_frame_bytes: 16 << 20,
            lane_window_bytes: 1 << 20,
            hash_seed_check: ObjectHash::of(seed, ObjectKind::Actor, "homing").low(),
            route_cache_max_age: Duration::from_secs(15),
            message_follow_duration: Duration::from_secs(30),
            advertised: None,
            handshake_timeout: PATIENCE,
            half_open_limit: 1,
        };
        let drawn = DRAWN.fetch_add(1, Ordering::Relaxed);
        (Peers::new(config, [drawn; 32]).unwrap(), seed)
    }

    /// The first frame of a good handshake.
    pub(super) fn hello(&self, rogue: &Rogue) -> Vec<u8> {
        let (mut machine, _) = self.machine(rogue);
        let mut out = Vec::new();
        let descriptor = self.descriptor("victim");
        machine.step(PeerEvent::Need { descriptor }, Nanos(0), &mut out);
        let dial = out.iter().find_map(|e| match e {
            PeerEffect::Dial { dial, .. } => Some(*dial),
            _ => None,
        });
        let (dial, conn) = (dial.expect("it dials"), ConnId(1));
        machine.step(PeerEvent::Dialed { dial, conn }, Nanos(0), &mut out);
        machine.step(PeerEvent::Connected { conn }, Nanos(0), &mut out);
        let hello = out.into_iter().find_map(|e| match e {
            PeerEffect::Send { frame, .. } => Some(frame),
            _ => None,
        });
        hello.expect("a dialer says hello first")
    }

    /// Makes a whole handshake, all lanes but those of `without` attached.
    #[track_caller]
    pub(super) fn join(&self, rogue: &Rogue) -> Joined {
        self.join_without(rogue, |_| false)
    }

    #[track_caller]
    pub(super) fn join_without(&self, rogue: &Rogue, without: impl Fn(u16) -> bool) -> Joined {
        let (mut machine, seed) = self.machine(rogue);
        let mut joined = Joined { lanes: BTreeMap::new(), seed };
        let mut talking: BTreeMap<ConnId, Stream> = BTreeMap::new();
        let mut events =
            VecDeque::from([PeerEvent::Need { descriptor: self.descriptor("victim") }]);
        let (mut dials, mut lanes) = (0, u16::MAX);
        loop {
            let event = events.pop_front().unwrap_or_else(|| {
                let (conn, stream) = talking.iter_mut().next().expect("a handshake is under way");
                PeerEvent::Received { conn: *conn, bytes: stream.frame() }
            });
            let mut out = Vec::new();
            machine.step(event, Nanos(0), &mut out);
            for effect in out {
                match effect {
                    PeerEffect::Dial { dial, .. } => {
                        // The first dial is lane 0, the others are the further lanes in order.
                        if !without(dials) {
                            let conn = ConnId(u64::from(dials) + 1);
                            talking.insert(conn, self.connect());
                            events.push_back(PeerEvent::Dialed { dial, conn });
                            events.push_back(PeerEvent::Connected { conn });
                        }
                        dials += 1;
                    }
                    PeerEffect::Send { conn, frame } => {
                        assert!(talking.get_mut(&conn).expect("a stream").say(&frame));
                    }
                    PeerEffect::LinkAdmitted { info, .. } => lanes = info.lanes,
                    PeerEffect::LaneReady { conn, lane, unread, .. } => {
                        assert!(unread.is_empty(), "frames are read one by one");
                        joined.lanes.insert(lane, talking.remove(&conn).expect("a stream"));
                    }
                    PeerEffect::Close { reason, detail, .. }
                    | PeerEffect::CloseLink { reason, detail, .. } => {
                        panic!("the handshake ends: {reason}: {detail}")
                    }
                    PeerEffect::NeedFailed { reason, .. } => panic!("no link: {reason}"),
                    _ => {}
                }
            }
            let missing = (0..lanes).filter(|lane| without(*lane)).count();
            if events.is_empty() && joined.lanes.len() + missing == usize::from(lanes) {
                return joined;
            }
        }
    }
}

impl Joined {
    pub(super) fn lane(&mut self, lane: u16) -> &mut Stream {
        self.lanes.get_mut(&lane).expect("the lane is attached")
    }

    /// The hash of an Actor, and its lane.
    pub(super) fn place(&self, id: &str) -> (u64, u16) {
        let hash = ObjectHash::of(self.seed, ObjectKind::Actor, id).low();
        (hash, (hash % self.lanes.len() as u64) as u16)
    }

    /// The frame of a message to an Actor; a request with a correlation.
    pub(super) fn message(
        &self,
        id: &str,
        fence: &Fence,
        correlation: Option<u64>,
        packet: (&str, &[u8]),
    ) -> Vec<u8> {
        let (object_hash, lane) = self.place(id);
        let record = Record::Message(ObjectMessage {
            correlation: correlation.map(|n| Correlation::new(n).unwrap()),
            operation_id: OperationId::new(u128::from(correlation.unwrap_or(1)) << 64 | 7).unwrap(),
            hop_count: 0,
            form: MessageForm::Actor { source: None, bound_session: None },
            id,
            fence: RouteFenceRef {
                object_generation: ObjectGeneration::new(fence.object).unwrap(),
                rid: fence.rid.as_bytes(),
                node_generation: NodeGeneration::new(fence.node).unwrap(),
                authority_owner_generation: AuthorityOwnerGeneration::new(fence.tenure).unwrap(),
                owner_lease_generation: OwnerLeaseGeneration::new(fence.lease).unwrap(),
            },
        });
        let mut payload = Vec::new();
        let (name, bytes) = packet;
        wire::encode_payload_part(&mut payload, name, "application/postcard", bytes).unwrap();
        let parts = FrameParts {
            object_hash,
            remaining_ms: if correlation.is_some() { 600_000 } else { 0 },
            payload_part: Some(&payload),
            ..FrameParts::link(lane, Body::Record(record))
        };
        encode(&parts)
    }
}

pub(super) fn encode(parts: &FrameParts<'_>) -> Vec<u8> {
    let mut frame = Vec::new();
    parts.encode(&mut frame, 16 << 20).expect("a good frame");
    frame
}

pub(super) fn probe(lane: u16, probe_id: u64) -> Vec<u8> {
    let record = Record::LivenessProbe(Liveness { probe_id });
    encode(&FrameParts::link(lane, Body::Record(record)))
}

/// Changes a header and makes its checksum right again.
pub(super) fn bent(mut frame: Vec<u8>, bend: impl FnOnce(&mut [u8])) -> Vec<u8> {
    bend(&mut frame[..36]);
    let crc = crc32c::crc32c(&frame[..36]).to_be_bytes();
    frame[36..40].copy_from_slice(&crc);
    frame
}
