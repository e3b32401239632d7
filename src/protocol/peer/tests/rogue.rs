#![forbid(unsafe_code)]
//! A peer that knows the secret and breaks the rules all the same; every frame by hand.

use super::super::event::PeerCloseReason as R;
use super::super::hello::{
    Opening, PeerHello, Transcript, admit_frame, attach_frame, cut_frame, read_frame, reject_frame,
};
use super::super::proof::{Label, LinkKey};
use super::super::*;
use super::{config, descriptor, endpoint, peers};
use crate::wire::{Admit, LaneAttach, LinkGrant, RejectReason};

const SECRET: &[u8] = b"s3cret";
const AT: Nanos = Nanos(1_000);

/// A machine under test and what it did last.
struct Bench {
    machine: Peers,
    out: Vec<PeerEffect>,
    next_conn: u64,
}

impl Bench {
    fn new(config: PeerConfig) -> Self {
        Self { machine: peers(config), out: Vec::new(), next_conn: 0 }
    }

    fn step(&mut self, event: PeerEvent) {
        self.out.clear();
        self.machine.step(event, AT, &mut self.out);
    }

    fn hear(&mut self, conn: ConnId, frame: &[u8]) {
        self.step(PeerEvent::Received { conn, bytes: frame.to_vec() });
    }

    /// Names the streams of all dials that were just asked for, and lets them through. Returns
    /// each stream with the frame that was sent on it at once.
    fn connect(&mut self) -> Vec<(ConnId, Vec<u8>)> {
        let dials = self.out.iter().filter_map(|e| match e {
            PeerEffect::Dial { dial, .. } => Some(*dial),
            _ => None,
        });
        let dials: Vec<_> = dials.collect();
        let mut streams = Vec::new();
        for dial in dials {
            self.next_conn += 1;
            let conn = ConnId(self.next_conn);
            self.step(PeerEvent::Dialed { dial, conn });
            self.step(PeerEvent::Connected { conn });
            streams.push((conn, self.sent(conn).expect("something is said first")));
        }
        streams
    }

    fn accept(&mut self) -> ConnId {
        self.next_conn += 1;
        let conn = ConnId(self.next_conn);
        self.step(PeerEvent::Accepted { conn });
        conn
    }

    fn sent(&self, conn: ConnId) -> Option<Vec<u8>> {
        self.out.iter().find_map(|e| match e {
            PeerEffect::Send { conn: to, frame } if *to == conn => Some(frame.clone()),
            _ => None,
        })
    }

    fn closed(&self, conn: ConnId) -> Option<R> {
        self.out.iter().find_map(|e| match e {
            PeerEffect::Close { conn: closed, reason, .. } if *closed == conn => Some(*reason),
            _ => None,
        })
    }

    fn admitted(&self) -> Option<LinkId> {
        self.out.iter().find_map(|e| match e {
            PeerEffect::LinkAdmitted { link, .. } => Some(*link),
            _ => None,
        })
    }

    fn need_failed(&self) -> bool {
        self.out.iter().any(|e| matches!(e, PeerEffect::NeedFailed { .. }))
    }
}

fn read(frame: &[u8]) -> Opening {
    let mut inbox = frame.to_vec();
    read_frame(&cut_frame(&mut inbox).unwrap().unwrap()).unwrap()
}

fn hello_of(frame: &[u8]) -> PeerHello {
    let Opening::Hello { hello, .. } = read(frame) else { panic!("no hello") };
    *hello
}

/// Answers a dialer's hello as node `name` would.
fn answer(theirs: &[u8], as_config: &PeerConfig) -> (Vec<u8>, Transcript) {
    let ours = PeerHello::of(as_config, [3; 32]);
    let transcript =
        Transcript { dialer: hello_of(theirs).transcript(), acceptor: ours.transcript() };
    (ours.frame(Some(transcript.proof(SECRET, Label::AcceptorProof))), transcript)
}

/// The machine has dialled node b and sent its proof. Returns its stream and the transcript.
fn until_proof(cores: u16) -> (Bench, ConnId, Transcript) {
    let mut bench = Bench::new(config("a", 1, cores));
    bench.step(PeerEvent::Need { descriptor: descriptor("b", 2) });
    let (conn, hello) = bench.connect().remove(0);
    let (frame, transcript) = answer(&hello, &config("b", 2, cores));
    bench.hear(conn, &frame);
    let Opening::Admit(admit) = read(&bench.sent(conn).unwrap()) else { panic!("no proof") };
    assert!(transcript.verify(SECRET, Label::DialerProof, &admit.proof));
    (bench, conn, transcript)
}

fn grant_frame(transcript: &Transcript, link_id: u64, lanes: u16) -> Vec<u8> {
    let grant = LinkGrant { link_id, lanes };
    let proof = transcript.grant_proof(SECRET, &grant);
    admit_frame(&Admit { proof, grant: Some(grant) })
}

/// Proves R2.3-5.
#[test]
fn a_grant_needs_its_own_proof() {
    let (mut bench, conn, transcript) = until_proof(2);
    let grant = LinkGrant { link_id: 8, lanes: 2 };
    // The proof of another use, and that of another grant.
    for proof in [
        transcript.proof(SECRET, Label::AcceptorProof),
        transcript.grant_proof(SECRET, &LinkGrant { link_id: 9, lanes: 2 }),
        transcript.grant_proof(b"guess", &grant),
    ] {
        let mut again = until_proof(2).0;
        again.hear(conn, &admit_frame(&Admit { proof, grant: Some(grant) }));
        assert_eq!(again.closed(conn), Some(R::WrongProof));
        assert!(again.admitted().is_none() && again.need_failed());
    }
    bench.hear(conn, &grant_frame(&transcript, 8, 2));
    assert!(bench.admitted().is_some());
}

#[test]
fn a_grant_of_other_lanes_is_refused() {
    for lanes in [1, 3, 16] {
        let (mut bench, conn, transcript) = until_proof(2);
        bench.hear(conn, &grant_frame(&transcript, 8, lanes));
        assert_eq!(bench.closed(conn), Some(R::BadValue));
        assert!(bench.admitted().is_none());
    }
}

/// Proves R2.3-5.
#[test]
fn a_lane_is_confirmed_only_with_its_own_proof() {
    let confirm = |key: &LinkKey, link_id, lane, of_lane, label| {
        attach_frame(&LaneAttach { link_id, lane, mac: key.lane(label, link_id, of_lane) })
    };
    let (mut good, conn, transcript) = until_proof(3);
    let key = transcript.link_key(SECRET);
    let other = LinkKey::derive(b"guess", &transcript.dialer, &transcript.acceptor);
    good.hear(conn, &grant_frame(&transcript, 8, 3));
    let link = good.admitted().unwrap();
    let lanes = good.connect();
    let first = lanes[0].0;
    for (n, frame) in [
        confirm(&other, 8, 1, 1, Label::AcceptorLane),
        confirm(&key, 8, 1, 1, Label::DialerLane),
        confirm(&key, 8, 1, 2, Label::AcceptorLane),
        confirm(&key, 8, 2, 2, Label::AcceptorLane),
        confirm(&key, 9, 1, 1, Label::AcceptorLane),
    ]
    .into_iter()
    .enumerate()
    {
        let mut bench =
            Bench { machine: good.machine.clone(), out: Vec::new(), next_conn: good.next_conn };
        bench.hear(first, &frame);
        assert_eq!(bench.closed(first), Some(R::WrongLaneProof), "{n}");
        // One lane lost is the link lost, and its other dial with it.
        let lost = bench.out.iter().any(
            |e| matches!(e, PeerEffect::CloseLink { link: l, reason: R::LaneLost, .. } if *l == link),
        );
        assert!(lost && bench.need_failed(), "{:?}", bench.out);
        assert_eq!(bench.closed(lanes[1].0), Some(R::LaneLost));
    }
    // What lies behind the confirmation goes along with the lane.
    let mut bytes = confirm(&key, 8, 1, 1, Label::AcceptorLane);
    bytes.extend([1, 2, 3]);
    good.hear(first, &bytes);
    let ready = good.out.iter().any(
        |e| matches!(e, PeerEffect::LaneReady { lane: 1, unread, .. } if unread == &[1, 2, 3]),
    );
    assert!(ready, "{:?}", good.out);
    good.hear(lanes[1].0, &confirm(&key, 8, 2, 2, Label::AcceptorLane));
    assert!(good.out.iter().any(|e| matches!(e, PeerEffect::LinkUp { .. })));
}

/// A dialer that attaches a lane twice, or one the link does not have, while it is being made.
#[test]
fn a_lane_number_is_taken_once() {
    let mut bench = Bench::new(config("b", 2, 4));
    let conn = bench.accept();
    let ours = PeerHello::of(&config("a", 1, 2), [4; 32]);
    bench.hear(conn, &ours.frame(None));
    let theirs = hello_of(&bench.sent(conn).unwrap());
    let transcript = Transcript { dialer: ours.transcript(), acceptor: theirs.transcript() };
    let proof = transcript.proof(SECRET, Label::DialerProof);
    bench.hear(conn, &admit_frame(&Admit { proof, grant: None }));
    let Opening::Admit(Admit { grant: Some(grant), .. }) = read(&bench.sent(conn).unwrap()) else {
        panic!("no grant")
    };
    assert_eq!(grant.lanes, 4);
    let key = transcript.link_key(SECRET);
    let attach = |lane| {
        let mac = key.lane(Label::DialerLane, grant.link_id, lane);
        attach_frame(&LaneAttach { link_id: grant.link_id, lane, mac })
    };
    for (lane, closed) in [
        (1, None),
        (1, Some(R::LaneTaken)),
        (4, Some(R::LaneTaken)),
        (15, Some(R::LaneTaken)),
        (2, None),
    ] {
        let conn = bench.accept();
        bench.hear(conn, &attach(lane));
        assert_eq!(bench.closed(conn), closed, "lane {lane}");
        let ready = bench.out.iter().any(|e| matches!(e, PeerEffect::LaneReady { .. }));
        assert_eq!(ready, closed.is_none());
    }
    // None of that hurt the link.
    let conn = bench.accept();
    bench.hear(conn, &attach(3));
    assert!(bench.out.iter().any(|e| matches!(e, PeerEffect::LinkUp { .. })));
}

#[test]
fn a_handshake_frame_of_a_wrong_lane_closes_the_stream() {
    let mut bench = Bench::new(config("b", 2, 4));
    let conn = bench.accept();
    let mut frame = PeerHello::of(&config("a", 1, 2), [4; 32]).frame(None);
    frame[7] = 1;
    let crc = crc32c::crc32c(&frame[..36]).to_be_bytes();
    frame[36..40].copy_from_slice(&crc);
    bench.hear(conn, &frame);
    assert_eq!(bench.closed(conn), Some(R::BadFrame));
}

#[test]
fn another_protocol_version_is_refused_with_a_sentence() {
    let mut bench = Bench::new(config("b", 2, 4));
    let conn = bench.accept();
    let mut ours = PeerHello::of(&config("a", 1, 2), [4; 32]);
    ours.version = 2;
    bench.hear(conn, &ours.frame(None));
    assert_eq!(bench.closed(conn), Some(R::VersionMismatch));
    let Opening::Reject { reason, sentence } = read(&bench.sent(conn).unwrap()) else {
        panic!("no reject")
    };
    assert_eq!(reason, RejectReason::VersionUnsupported);
    assert!(sentence.contains("version 2"), "{sentence}");
}

/// A record that comes before its turn, at every step of both sides.
///
/// Proves R2.3-5.
#[test]
fn records_out_of_turn_close_the_stream() {
    // Dialer, hello sent: a hello without proof, an early grant.
    let transcript = Transcript { dialer: vec![1], acceptor: vec![2] };
    let early = grant_frame(&transcript, 8, 2);
    let bare = PeerHello::of(&config("b", 2, 2), [3; 32]).frame(None);
    for frame in [&early, &bare] {
        let mut bench = Bench::new(config("a", 1, 2));
        bench.step(PeerEvent::Need { descriptor: descriptor("b", 2) });
        let (conn, _) = bench.connect().remove(0);
        bench.hear(conn, frame);
        assert_eq!(bench.closed(conn), Some(R::UnexpectedRecord));
    }
    // Dialer, proof sent: another hello.
    let (mut bench, conn, _) = until_proof(2);
    bench.hear(conn, &bare);
    assert_eq!(bench.closed(conn), Some(R::UnexpectedRecord));
    // Dialer, lane attach sent: a hello on the lane.
    let (mut bench, conn, transcript) = until_proof(2);
    bench.hear(conn, &grant_frame(&transcript, 8, 2));
    let (lane, _) = bench.connect().remove(0);
    bench.hear(lane, &bare);
    assert_eq!(bench.closed(lane), Some(R::UnexpectedRecord));
    // Acceptor, hello answered: another hello, a grant.
    for frame in [&bare, &early] {
        let mut bench = Bench::new(config("a", 1, 2));
        let conn = bench.accept();
        bench.hear(conn, &bare);
        bench.hear(conn, frame);
        assert_eq!(bench.closed(conn), Some(R::UnexpectedRecord));
    }
}

/// The larger rid is told that the other's dial stays, but nothing of it was ever seen here: it
/// does not wait.
#[test]
fn a_duplicate_that_is_nowhere_to_be_seen_fails_at_once() {
    let mut bench = Bench::new(config("c", 1, 2));
    bench.step(PeerEvent::Need { descriptor: descriptor("b", 2) });
    let (conn, hello) = bench.connect().remove(0);
    let (frame, _) = answer(&hello, &config("b", 2, 2));
    bench.hear(conn, &frame);
    bench.hear(conn, &reject_frame(RejectReason::DuplicateLink, "the other stays"));
    assert_eq!(bench.closed(conn), Some(R::RejectedByPeer));
    assert!(bench.need_failed(), "{:?}", bench.out);
}

/// A need's own dial dies while the stream of an intent for the same node is proven: the need
/// waits for that one.
#[test]
fn a_need_waits_for_whichever_stream_gets_through() {
    let mut bench = Bench::new(config("a", 1, 1));
    bench.step(PeerEvent::Intent { intent: IntentId(1), endpoint: endpoint("b") });
    let (by_intent, hello) = bench.connect().remove(0);
    bench.step(PeerEvent::Need { descriptor: descriptor("b", 2) });
    let (by_need, _) = bench.connect().remove(0);
    let (frame, transcript) = answer(&hello, &config("b", 2, 1));
    bench.hear(by_intent, &frame);
    let reason = crate::env::CloseReason::Eof;
    bench.step(PeerEvent::Closed { conn: by_need, reason });
    assert!(!bench.need_failed());
    bench.hear(by_intent, &grant_frame(&transcript, 8, 1));
    assert!(bench.out.iter().any(|e| matches!(e, PeerEffect::LinkUp { .. })));
}

/// Sentences are cut to what a reject holds, between characters.
#[test]
fn long_sentences_are_cut_between_characters() {
    for (text, kept) in [("é".repeat(200), 254), ("x".repeat(300), 255), (String::new(), 1)] {
        let frame = reject_frame(RejectReason::MeshMismatch, &text);
        let Opening::Reject { sentence, .. } = read(&frame) else { panic!("no reject") };
        assert_eq!(sentence.len(), kept);
    }
    let Opening::Reject { sentence, .. } = read(&reject_frame(RejectReason::MeshMismatch, "a\0b"))
    else {
        panic!("no reject")
    };
    assert_eq!(sentence, "a b");
}
