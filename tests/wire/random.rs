#![forbid(unsafe_code)]
//! Random bytes, mutated valid frames, and random valid records: nothing panics, and what is
//! accepted has one encoding.

use homing::wire::{
    Body, Command, Control, Frame, FrameParts, MetadataPart, PartRule, PayloadPart, Record,
    encode_metadata_part, encode_payload_part,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

use super::frame_rules::{MAX, RawFrame, with_crc};
use super::own_layouts::controls;
use super::sample::{self, records};

/// Whatever is accepted is encoded to the same bytes.
fn decode_everything(bytes: &[u8]) {
    let mut out = Vec::new();
    if let Ok(decoded) = Record::decode(bytes) {
        decoded.record.encode(decoded.has_metadata, &mut out).expect("was accepted");
        assert_eq!(out, bytes);
        if let Record::Reply(reply) = decoded.record {
            let _ = (reply.no_tail(), reply.bind_tail(), reply.create_tail());
        }
    }
    if let Ok(control) = Control::decode(bytes) {
        out.clear();
        control.encode(&mut out).expect("was accepted");
        assert_eq!(out, bytes);
    }
    if let Ok(part) = MetadataPart::decode(bytes) {
        out.clear();
        let entries: Vec<_> = part.entries().collect();
        encode_metadata_part(&mut out, &entries).expect("was accepted");
        assert_eq!(out, bytes);
    }
    if let Ok(part) = PayloadPart::decode(bytes) {
        out.clear();
        encode_payload_part(&mut out, part.packet_name, part.content_type, part.bytes)
            .expect("was accepted");
        assert_eq!(out, bytes);
    }
    decode_frame(bytes);
}

fn decode_frame(bytes: &[u8]) -> bool {
    let Ok(frame) = Frame::decode(bytes, MAX) else { return false };
    let _ = frame.check_object_hash(1);
    let mut out = Vec::new();
    frame.parts().encode(&mut out, MAX).expect("was accepted");
    assert_eq!(out, bytes);
    true
}

/// Every valid record and control record of the tables, in a frame with the parts it may have.
pub(crate) fn frames() -> Vec<Vec<u8>> {
    let mut frames: Vec<Vec<u8>> = controls()
        .iter()
        .map(|c| RawFrame { extra_flags: 8, record: c.bytes(), ..RawFrame::default() }.bytes())
        .collect();
    for record in records() {
        let bytes = record.bytes();
        let command = Command::of(bytes[3]).expect("spoken");
        let mut frame = RawFrame { record: bytes, ..RawFrame::default() };
        if frame.record[4] & 1 == 1 {
            frame.metadata = sample::metadata_part().bytes();
        }
        if command.payload() != PartRule::Refused {
            frame.payload = sample::payload_part().bytes();
        }
        frames.push(frame.bytes());
    }
    frames
}

/// One change to some bytes.
#[derive(Clone, Debug)]
enum Change {
    Set(Index, u8),
    Flip(Index, u8),
    Remove(Index),
    Insert(Index, u8),
    Cut(Index),
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        4 => (any::<Index>(), any::<u8>()).prop_map(|(i, b)| Change::Set(i, b)),
        4 => (any::<Index>(), 0..8_u8).prop_map(|(i, b)| Change::Flip(i, b)),
        1 => any::<Index>().prop_map(Change::Remove),
        1 => (any::<Index>(), any::<u8>()).prop_map(|(i, b)| Change::Insert(i, b)),
        1 => any::<Index>().prop_map(Change::Cut),
    ]
}

fn apply(bytes: &mut Vec<u8>, change: &Change) {
    if bytes.is_empty() {
        return;
    }
    let len = bytes.len();
    match change {
        Change::Set(i, b) => bytes[i.index(len)] = *b,
        Change::Flip(i, bit) => bytes[i.index(len)] ^= 1 << bit,
        Change::Remove(i) => drop(bytes.remove(i.index(len))),
        Change::Insert(i, b) => bytes.insert(i.index(len), *b),
        Change::Cut(i) => bytes.truncate(i.index(len)),
    }
}

fn random_text(seed: u64) -> Vec<u8> {
    let letters = ['a', 'z', '-', 'é', '\u{feff}', '\u{10ffff}', ' ', '/'];
    let len = 1 + seed as usize % 12;
    let letter = |i| letters[(seed >> (4 + 3 * i)) as usize % letters.len()];
    sample::text8(&(0..len).map(letter).collect::<String>())
}

fn random_generation(seed: u64) -> Vec<u8> {
    // Small, large and the two ends.
    sample::u64be(match seed % 4 {
        0 => 1 + seed % 300,
        1 => 1,
        2 => (1 << 63) - 1,
        _ => seed >> 1 | 1,
    })
}

/// Bytes of a valid record of any command, made without the encoder: every field of a sample
/// is replaced by a random value of its own kind.
fn random_record() -> impl Strategy<Value = Vec<u8>> {
    let all = records();
    (0..all.len(), vec(any::<u64>(), 32)).prop_map(move |(which, seeds)| {
        let mut record = all[which].clone();
        let follow = record.name == "messageFollow";
        for (i, (name, bytes)) in record.fields.iter_mut().enumerate() {
            // The fields of messageFollow hang together; the rest of its body is free.
            let free = !follow || i > 21;
            let text = bytes.len() > 1 && usize::from(bytes[0]) == bytes.len() - 1;
            let in_a_counted_body = matches!(*name, "target rid") && record.name.contains("Route");
            if free && text && !in_a_counted_body {
                *bytes = random_text(seeds[i]);
            } else if free && bytes.len() == 8 && !text {
                *bytes = random_generation(seeds[i]);
            }
        }
        record.bytes()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2_000) })]

    /// Proves R0-1, R0-3, R0-4.
    ///
    /// Random bytes never panic a decoder.
    #[test]
    fn random_bytes_are_decoded_or_refused(bytes in vec(any::<u8>(), 0..300)) {
        decode_everything(&bytes);
        decode_everything(&with_crc(bytes));
    }

    /// As above, behind a head that gets them past the first checks.
    #[test]
    fn random_bodies_are_decoded_or_refused(
        command in 0..60_u8,
        flags in prop_oneof![3 => Just(0_u8), 1 => 0..8_u8],
        body in vec(any::<u8>(), 0..200),
        small in any::<bool>(),
    ) {
        // Small numbers pass for lengths and choices more often.
        let body: Vec<u8> = body.iter().map(|b| if small { b % 9 } else { *b }).collect();
        let record = [vec![0x5A, 0x4D, 1, command, flags], body.clone()].concat();
        decode_everything(&record);
        decode_frame(&RawFrame { record, payload: body.clone(), ..RawFrame::default() }.bytes());
        let control = [&[0, command % 12][..], &body].concat();
        decode_everything(&control);
        decode_frame(&RawFrame { extra_flags: 8, record: control, ..RawFrame::default() }.bytes());
    }

    /// A valid frame with a few changes is refused, or accepted with one encoding; also when
    /// the checksum is made to fit.
    #[test]
    fn mutated_frames_are_decoded_or_refused(
        which in any::<Index>(),
        changes in vec(change(), 0..4),
        fix in any::<bool>(),
    ) {
        let all = frames();
        let mut bytes = all[which.index(all.len())].clone();
        changes.iter().for_each(|change| apply(&mut bytes, change));
        let bytes = if fix { with_crc(bytes) } else { bytes };
        let accepted = decode_frame(&bytes);
        prop_assert!(accepted || !changes.is_empty(), "a valid frame was refused");
        decode_everything(bytes.get(40..).unwrap_or_default());
    }

    /// Proves R4-4, R2.5-5.
    ///
    /// A random valid record is accepted, and comes back from its frame as it went in.
    #[test]
    fn random_valid_records_come_back(
        bytes in random_record(),
        lane in any::<u16>(),
        hash in any::<u64>(),
        remaining_ms in any::<u32>(),
        payload in vec(any::<u8>(), 0..64),
        entries in proptest::collection::btree_map("[a-z]{1,5}", vec(any::<u8>(), 0..20), 0..5),
    ) {
        let decoded = Record::decode(&bytes);
        prop_assert!(decoded.is_ok(), "{:?}", decoded);
        let decoded = decoded.expect("checked");
        let command = decoded.record.command();

        let (mut metadata_part, mut payload_part) = (Vec::new(), Vec::new());
        let entries: Vec<_> = entries.iter().map(|(k, v)| (k.as_str(), v.as_slice())).collect();
        encode_metadata_part(&mut metadata_part, &entries).expect("valid");
        encode_payload_part(&mut payload_part, "p", "t", &payload).expect("valid");
        let parts = FrameParts {
            lane,
            object_hash: if command.is_link_scoped() { 0 } else { hash },
            remaining_ms,
            bundle: false,
            origin: None,
            body: Body::Record(decoded.record),
            metadata_part: decoded.has_metadata.then_some(&metadata_part),
            payload_part: (command.payload() != PartRule::Refused).then_some(&payload_part),
        };
        let mut out = Vec::new();
        parts.encode(&mut out, MAX).expect("valid");
        let frame = Frame::decode(&out, MAX).expect("was encoded");
        prop_assert_eq!(frame.parts(), parts);
        if let Some(metadata) = frame.metadata {
            prop_assert!(metadata.entries().eq(entries));
        }
        if let Some(part) = frame.payload {
            prop_assert_eq!(part.bytes, payload);
        }
    }
}

/// Decoding takes no memory, and encoding takes it once.
#[test]
fn decoding_does_not_allocate() {
    for bytes in frames() {
        let count = allocation_counter::measure(|| {
            std::hint::black_box(Frame::decode(&bytes, MAX).is_ok());
        });
        assert_eq!(count.count_total, 0, "{bytes:02x?}");
        let frame = Frame::decode(&bytes, MAX).expect("valid");
        let count = allocation_counter::measure(|| {
            let mut out = Vec::new();
            frame.parts().encode(&mut out, MAX).expect("valid");
            std::hint::black_box(out);
        });
        assert_eq!(count.count_total, 1, "{bytes:02x?}");
    }
}
