#![forbid(unsafe_code)]
//! Every rule of the link frame, broken once.

use homing::ids::{Correlation, NodeGeneration, ObjectHash, ObjectKind};
use homing::wire::{
    Body, Control, Credit, CreditEntry, Frame, FrameHeader, FrameParts, Liveness, Origin, Record,
    Rule, WireError,
};

use super::Case;
use super::sample::{self, metadata_part, payload_part, u64be};

/// Largest frame of these tests.
pub(crate) const MAX: u32 = 1 << 20;

/// A frame by its fields; lengths and flags follow from the parts unless a test says otherwise.
#[derive(Clone, Debug, Default)]
pub(crate) struct RawFrame {
    pub(crate) version: Option<u8>,
    pub(crate) extra_flags: u8,
    pub(crate) flags: Option<u8>,
    pub(crate) lane: u16,
    pub(crate) object_hash: u64,
    pub(crate) remaining_ms: u32,
    pub(crate) origin: Vec<u8>,
    pub(crate) record: Vec<u8>,
    pub(crate) metadata: Vec<u8>,
    pub(crate) payload: Vec<u8>,
    pub(crate) reserved: u32,
    pub(crate) frame_len: Option<u32>,
}

impl RawFrame {
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let len = |part: &[u8]| u32::try_from(part.len()).expect("small");
        let (o, r, m, p) =
            (len(&self.origin), len(&self.record), len(&self.metadata), len(&self.payload));
        let flags = u8::from(m > 0) | u8::from(p > 0) << 1 | u8::from(o > 0) << 2;
        let mut b = Vec::new();
        b.extend(self.frame_len.unwrap_or(40 + o + r + m + p).to_be_bytes());
        b.push(self.version.unwrap_or(1));
        b.push(self.flags.unwrap_or(flags | self.extra_flags));
        b.extend(self.lane.to_be_bytes());
        b.extend(self.object_hash.to_be_bytes());
        b.extend(self.remaining_ms.to_be_bytes());
        b.extend(u16::try_from(o).expect("small").to_be_bytes());
        b.extend(u16::try_from(m).expect("small").to_be_bytes());
        b.extend(r.to_be_bytes());
        b.extend(p.to_be_bytes());
        b.extend(self.reserved.to_be_bytes());
        b.extend(crc32c(&b).to_be_bytes());
        for part in [&self.origin, &self.record, &self.metadata, &self.payload] {
            b.extend_from_slice(part);
        }
        b
    }
}

/// CRC-32C bit by bit: another implementation than the library's.
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| if crc & 1 == 1 { crc >> 1 ^ 0x82F6_3B78 } else { crc >> 1 };
    !bytes.iter().fold(u32::MAX, |crc, b| (0..8).fold(crc ^ u32::from(*b), step))
}

/// Writes the right checksum over the header of `bytes`.
pub(crate) fn with_crc(mut bytes: Vec<u8>) -> Vec<u8> {
    if bytes.len() >= 40 {
        let crc = crc32c(&bytes[..36]);
        bytes[36..40].copy_from_slice(&crc.to_be_bytes());
    }
    bytes
}

fn origin(reply_route: u64) -> Vec<u8> {
    [&[2, b'n', b'1'][..], &u64be(3), &u64be(reply_route)].concat()
}

/// A relayed request with every part.
fn full() -> RawFrame {
    RawFrame {
        lane: 3,
        object_hash: 0xABCD,
        remaining_ms: 4_000,
        origin: origin(77),
        record: sample::record("spotRequest").with("hop count", [1]),
        metadata: metadata_part().bytes(),
        payload: payload_part().bytes(),
        ..RawFrame::default()
    }
}

fn of(record: &str) -> RawFrame {
    RawFrame { record: sample::record(record).bytes(), ..RawFrame::default() }
}

fn control(record: Vec<u8>) -> RawFrame {
    RawFrame { extra_flags: 8, record, ..RawFrame::default() }
}

fn lease_renewed() -> RawFrame {
    control([&[0, 9][..], &u64be(1), &u64be(2), &[0, 0, 0, 9]].concat())
}

fn case(what: &str, frame: &RawFrame, rule: Rule, offset: usize) -> Case {
    Case { what: what.into(), bytes: frame.bytes(), rule, offset }
}

fn header_cases() -> Vec<Case> {
    let f = full();
    let len = u32::try_from(f.bytes().len()).expect("small");
    let mut cases = vec![
        case("version 0", &RawFrame { version: Some(0), ..f.clone() }, Rule::FrameVersion, 4),
        case("version 2", &RawFrame { version: Some(2), ..f.clone() }, Rule::FrameVersion, 4),
        case("reserved", &RawFrame { reserved: 1, ..f.clone() }, Rule::FrameReserved, 32),
        case("len 39", &RawFrame { frame_len: Some(39), ..f.clone() }, Rule::FrameTooShort, 0),
        case("len 0", &RawFrame { frame_len: Some(0), ..f.clone() }, Rule::FrameTooShort, 0),
        case(
            "a frame of 4 GiB",
            &RawFrame { frame_len: Some(u32::MAX), ..f.clone() },
            Rule::FrameTooLarge,
            0,
        ),
        case(
            "one byte over the largest frame",
            &RawFrame { frame_len: Some(MAX + 1), ..f.clone() },
            Rule::FrameTooLarge,
            0,
        ),
        case(
            "a length more",
            &RawFrame { frame_len: Some(len + 1), ..f.clone() },
            Rule::PartLengths,
            0,
        ),
        case(
            "a length less",
            &RawFrame { frame_len: Some(len - 1), ..f.clone() },
            Rule::PartLengths,
            0,
        ),
        case("no record", &RawFrame::default(), Rule::Truncated, 40),
        Case {
            what: "lengths that add up only in 32 bits".into(),
            bytes: {
                let mut bytes = f.bytes();
                bytes[24..28].copy_from_slice(&u32::MAX.to_be_bytes());
                bytes[28..32].copy_from_slice(&(len - 39).to_be_bytes());
                with_crc(bytes)
            },
            rule: Rule::PartLengths,
            offset: 0,
        },
    ];
    for bit in 5..8 {
        let flagged = RawFrame { extra_flags: 1 << bit, ..f.clone() };
        cases.push(case("an unknown flag", &flagged, Rule::FrameFlags, 5));
    }
    for bit in 0..3 {
        let missing = RawFrame { flags: Some(7 & !(1 << bit)), ..f.clone() };
        cases.push(case("a part without its flag", &missing, Rule::PartFlag, 5));
        let extra = RawFrame { extra_flags: 1 << bit, ..of("update") };
        cases.push(case("a flag without its part", &extra, Rule::PartFlag, 5));
    }
    for byte in (0..40).filter(|byte| *byte != 4) {
        let mut bytes = f.bytes();
        bytes[byte] ^= 0x40;
        let what = format!("byte {byte} of the header flipped");
        cases.push(Case { what, bytes, rule: Rule::HeaderCrc, offset: 36 });
    }
    cases
}

fn length_cases() -> Vec<Case> {
    let bytes = full().bytes();
    let mut cases: Vec<Case> = (0..bytes.len())
        .map(|len| Case {
            what: format!("a frame cut to {len} bytes"),
            bytes: bytes[..len].to_vec(),
            rule: Rule::FrameTruncated,
            offset: len,
        })
        .collect();
    cases.push(Case {
        what: "a frame and a byte".into(),
        rule: Rule::FrameTrailing,
        offset: bytes.len(),
        bytes: [bytes, vec![0]].concat(),
    });
    cases
}

fn origin_cases() -> Vec<Case> {
    let f = full();
    let with = |origin: Vec<u8>| RawFrame { origin, ..f.clone() };
    let one_way = RawFrame {
        record: sample::record("actorSend").bytes(),
        metadata: Vec::new(),
        ..with(origin(77))
    };
    let mut cases = vec![
        case("origin without rid", &with(vec![0]), Rule::RidEmpty, 40),
        case(
            "origin with node generation 0",
            &with([&[1, b'n'][..], &u64be(0), &u64be(77)].concat()),
            Rule::GenerationZero,
            42,
        ),
        case(
            "origin with a reply route out of range",
            &with([&[1, b'n'][..], &u64be(1), &u64be(1 << 63)].concat()),
            Rule::GenerationRange,
            50,
        ),
        case(
            "origin and a byte",
            &with([origin(77), vec![0]].concat()),
            Rule::TrailingBytes,
            40 + 19,
        ),
        case("origin cut off", &with(origin(77)[..18].to_vec()), Rule::Truncated, 40 + 11),
        case("another reply route", &with(origin(78)), Rule::OriginReplyRoute, 40 + 11),
        case("a request without reply route", &with(origin(0)), Rule::OriginReplyRoute, 40 + 11),
        case("a send with reply route", &one_way, Rule::OriginReplyRoute, 40 + 11),
        case("a relayed message without origin", &with(Vec::new()), Rule::OriginMissing, 40),
    ];
    for name in ["reply", "livenessProbe", "messageFollow", "hello", "sessionRelocationSeal"] {
        let frame = RawFrame { origin: origin(0), ..of(name) };
        cases.push(case(name, &frame, Rule::OriginNotAllowed, 40));
    }
    let frame = RawFrame { origin: origin(0), ..lease_renewed() };
    cases.push(case("control with origin", &frame, Rule::OriginNotAllowed, 40));
    cases
}

fn part_cases() -> Vec<Case> {
    let f = full();
    let record_at = 40 + f.origin.len();
    let metadata_at = record_at + f.record.len();
    let payload_at = metadata_at + f.metadata.len();
    let without = RawFrame { metadata: Vec::new(), ..f.clone() };
    let mut unannounced = f.clone();
    unannounced.record[4] = 0;
    let mut cases = vec![
        case("no metadata", &without, Rule::MetadataMissing, record_at + 4),
        case("unannounced metadata", &unannounced, Rule::MetadataNotAllowed, metadata_at),
        case(
            "wrong metadata",
            &RawFrame { metadata: metadata_part().with("version", [2]), ..f.clone() },
            Rule::MetadataVersion,
            metadata_at,
        ),
        case(
            "wrong payload",
            &RawFrame { payload: payload_part().with("content type", [0]), ..f.clone() },
            Rule::BodyLength,
            payload_at + 1,
        ),
        case(
            "wrong record",
            &RawFrame { record: sample::record("spotRequest").with("hop count", [9]), ..f.clone() },
            Rule::HopCount,
            record_at + 5 + 8 + 16,
        ),
    ];
    let metadata = metadata_part().bytes();
    for name in ["reply", "update", "actorCreate"] {
        let frame = RawFrame { metadata: metadata.clone(), ..of(name) };
        let at = 40 + frame.record.len();
        cases.push(case(name, &frame, Rule::MetadataNotAllowed, at));
    }
    let frame = RawFrame { metadata, ..lease_renewed() };
    cases.push(case("control with metadata", &frame, Rule::MetadataNotAllowed, 62));

    for name in ["spotSend", "actorSend"] {
        let frame = of(name);
        let at = 40 + frame.record.len();
        cases.push(case(name, &frame, Rule::PayloadMissing, at));
    }
    let none = ["update", "livenessAck", "actorDestroy", "boundSessionBind", "messageFollow"];
    for name in none {
        let frame = RawFrame { payload: payload_part().bytes(), ..of(name) };
        let at = 40 + frame.record.len();
        cases.push(case(name, &frame, Rule::PayloadNotAllowed, at));
    }
    let frame = RawFrame { payload: payload_part().bytes(), ..lease_renewed() };
    cases.push(case("control with payload", &frame, Rule::PayloadNotAllowed, 62));
    cases
}

fn scope_cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let link = ["hello", "admit", "reject", "update", "livenessProbe", "livenessAck"];
    for name in link.into_iter().chain(["reply"]) {
        let bundle = RawFrame { extra_flags: 16, ..of(name) };
        cases.push(case(name, &bundle, Rule::BundleNotAllowed, 5));
    }
    for name in link {
        let hashed = RawFrame { object_hash: 1, ..of(name) };
        cases.push(case(name, &hashed, Rule::HashNotZero, 8));
    }
    let hashed = RawFrame { object_hash: 1, ..lease_renewed() };
    cases.push(case("control with a hash", &hashed, Rule::HashNotZero, 8));
    let bundle = RawFrame { extra_flags: 8 | 16, ..lease_renewed() };
    cases.push(case("control of a bundle", &bundle, Rule::BundleNotAllowed, 5));
    let unknown = control(vec![0, 77]);
    cases.push(case("unknown control", &unknown, Rule::ControlUnknown, 40));
    cases
}

pub(crate) fn cases() -> Vec<Case> {
    let tables = [header_cases(), length_cases(), origin_cases(), part_cases(), scope_cases()];
    tables.into_iter().flatten().collect()
}

/// Proves R4-2, R2.5-5.
///
/// Every rule of the link frame, with its place.
#[test]
fn every_rule_of_a_frame_is_named_with_its_place() {
    for case in cases() {
        case.check(|bytes| Frame::decode(bytes, MAX).map(|_| ()));
    }
}

/// The header alone tells the length, before the body is there, and refuses before anybody
/// takes memory for it.
#[test]
fn the_header_is_judged_before_the_body_is_there() {
    let bytes = full().bytes();
    let header = FrameHeader::decode(&bytes[..40], MAX).expect("valid");
    assert_eq!(header.frame_len as usize, bytes.len());
    assert_eq!(header.encode(MAX).expect("valid"), bytes[..40]);
    for case in header_cases().iter().filter(|case| case.rule != Rule::Truncated) {
        let cut = Case { bytes: case.bytes[..40].to_vec(), what: case.what.clone(), ..*case };
        cut.check(|bytes| FrameHeader::decode(bytes, MAX));
    }
    let exact = u32::try_from(bytes.len()).expect("small");
    assert!(FrameHeader::decode(&bytes, exact).is_ok());
    let e = WireError::new(Rule::FrameTooLarge, 0);
    assert_eq!(FrameHeader::decode(&bytes, exact - 1), Err(e));
    assert_eq!(header.encode(exact - 1), Err(e));
}

/// A frame is refused on a lane it does not name.
#[test]
fn a_frame_stays_on_its_lane() {
    let header = FrameHeader::decode(&full().bytes(), MAX).expect("valid");
    assert_eq!(header.check_lane(3), Ok(()));
    assert_eq!(header.check_lane(2), Err(WireError::new(Rule::WrongLane, 6)));
}

/// A hash that is not that of the id the record names is a violation; bundles and records
/// that name no object are exempt.
#[test]
fn the_hash_is_checked_against_the_id() {
    let seed = 42;
    let id = "actor-1";
    let hash = ObjectHash::of(seed, ObjectKind::Spot, id).low();
    let check = |frame: &RawFrame| {
        let bytes = frame.bytes();
        Frame::decode(&bytes, MAX).expect("valid").check_object_hash(seed)
    };
    let mismatch = Err(WireError::new(Rule::HashMismatch, 8));
    assert_eq!(check(&RawFrame { object_hash: hash, ..full() }), Ok(()));
    assert_eq!(check(&RawFrame { object_hash: hash ^ 1, ..full() }), mismatch);
    assert_eq!(check(&RawFrame { extra_flags: 16, ..full() }), Ok(()));
    assert_eq!(check(&RawFrame { object_hash: 5, ..of("reply") }), Ok(()));
    assert_eq!(check(&lease_renewed()), Ok(()));
    // The kind is part of the hash: the same id as an Actor has another.
    let actor = RawFrame { object_hash: hash, ..of("actorDestroy") };
    assert_eq!(check(&actor), mismatch);
}

/// Proves R2.5-5.
///
/// A frame comes back from its parts byte for byte; the payload part is kept as it is.
#[test]
fn frames_have_one_encoding() {
    let mut frames = vec![full(), lease_renewed(), RawFrame { extra_flags: 16, ..full() }];
    for sample in sample::records() {
        let command = sample.bytes()[3];
        let message = matches!(command, 21 | 22 | 24 | 25);
        let mut frame = RawFrame { record: sample.bytes(), lane: 1, ..RawFrame::default() };
        if frame.record[4] & 1 == 1 {
            frame.metadata = metadata_part().bytes();
        }
        if message || matches!(command, 20 | 49) {
            frame.payload = payload_part().bytes();
            frame.object_hash = 9;
        }
        frames.push(frame);
    }
    for frame in frames {
        let bytes = frame.bytes();
        let decoded = Frame::decode(&bytes, MAX).unwrap_or_else(|e| panic!("{frame:?}: {e}"));
        let parts = decoded.parts();
        let mut out = b"before".to_vec();
        parts.encode(&mut out, MAX).expect("valid");
        assert_eq!(out[6..], bytes);
        assert_eq!(parts.encoded_len(), Ok(bytes.len()));
        assert_eq!(parts.payload_part.unwrap_or_default(), frame.payload);
        let mut head = Vec::new();
        assert_eq!(parts.encode_head(&mut head, MAX), Ok(bytes.len()));
        head.extend_from_slice(&frame.payload);
        assert_eq!(head, bytes);
    }
}

/// What a peer would refuse is not encoded, and leaves the buffer as it was.
#[test]
fn frames_that_would_be_refused_are_not_encoded() {
    let probe = |id| Body::Record(Record::LivenessProbe(Liveness { probe_id: id }));
    let link = FrameParts::link(0, probe(1));
    let origin = Origin {
        rid: b"n",
        node_generation: NodeGeneration::FIRST,
        reply_route: Correlation::new(1),
    };
    let entries = [CreditEntry { object_hash: 1, bytes: 1 }];
    let credit = Body::Control(Control::Credit(Credit::new(&entries).expect("valid")));
    let record = sample::record("spotSend").with("hop count", [1]);
    let message = Body::Record(Record::decode(&record).expect("valid").record);
    let payload = payload_part().bytes();
    let sent = FrameParts { payload_part: Some(&payload), ..FrameParts::link(0, message) };
    let big = vec![0; MAX as usize];
    let refused = [
        (FrameParts::link(0, probe(0)), Rule::ProbeIdZero, 45),
        (FrameParts { object_hash: 1, ..link }, Rule::HashNotZero, 8),
        (FrameParts { bundle: true, ..link }, Rule::BundleNotAllowed, 5),
        (FrameParts { origin: Some(origin), ..link }, Rule::OriginNotAllowed, 40),
        (FrameParts { payload_part: Some(&payload), ..link }, Rule::PayloadNotAllowed, 53),
        (FrameParts { metadata_part: Some(&[1, 0]), ..link }, Rule::FlagNotAllowed, 44),
        (
            FrameParts { metadata_part: Some(&[1, 0]), ..FrameParts::link(0, credit) },
            Rule::MetadataNotAllowed,
            40,
        ),
        (sent, Rule::OriginMissing, 40),
        (FrameParts { origin: Some(origin), ..sent }, Rule::OriginReplyRoute, 40 + 10),
        (FrameParts { origin: Some(Origin { rid: b"", ..origin }), ..sent }, Rule::RidEmpty, 40),
        (
            FrameParts { origin: Some(Origin { rid: &big[..256], ..origin }), ..sent },
            Rule::RidTooLong,
            40,
        ),
        (FrameParts { payload_part: Some(&[]), ..sent }, Rule::PartFlag, 5),
        (
            FrameParts { metadata_part: Some(&big[..1025]), ..sent },
            Rule::MetadataTooLarge,
            40 + record.len(),
        ),
        (
            FrameParts {
                payload_part: Some(&big),
                origin: Some(Origin { reply_route: None, ..origin }),
                ..sent
            },
            Rule::FrameTooLarge,
            0,
        ),
    ];
    for (parts, rule, offset) in refused {
        let e = WireError::new(rule, offset);
        let mut out = vec![9];
        assert_eq!(parts.encode(&mut out, MAX), Err(e));
        assert_eq!(parts.encode_head(&mut out, MAX), Err(e));
        assert_eq!(out, [9]);
    }
}
