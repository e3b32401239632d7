#![forbid(unsafe_code)]
//! Every rule of the metadata and payload parts, broken once.

use homing::wire::{
    MetadataPart, PayloadPart, Rule, WireError, encode_metadata_part, encode_payload_part,
    payload_part_len,
};

use super::Case;
use super::sample::{Sample, metadata_part, payload_part, text8, text16, u32be};

fn broken(sample: &Sample, field: &str, value: &[u8], rule: Rule, delta: usize) -> Case {
    Case {
        what: format!("{} with a wrong {field} ({rule})", sample.name),
        bytes: sample.with(field, value),
        rule,
        offset: sample.offset(field) + delta,
    }
}

fn cut(sample: &Sample, rule: impl Fn(usize) -> (Rule, usize)) -> Vec<Case> {
    let bytes = sample.bytes();
    let cut = |len: usize| {
        let (rule, offset) = rule(len);
        Case {
            what: format!("{} cut to {len} bytes", sample.name),
            bytes: bytes[..len].to_vec(),
            rule,
            offset,
        }
    };
    (0..bytes.len()).map(cut).collect()
}

pub(crate) fn metadata_cases() -> Vec<Case> {
    let m = metadata_part();
    let mut cases = vec![
        broken(&m, "version", &[0], Rule::MetadataVersion, 0),
        broken(&m, "version", &[2], Rule::MetadataVersion, 0),
        broken(&m, "second key", &text8("A"), Rule::MetadataDuplicateKey, 0),
        broken(&m, "first key", &[0], Rule::TextEmpty, 0),
        broken(&m, "first key", &text8("\0"), Rule::TextNul, 1),
        broken(&m, "second key", &[1, 0x80], Rule::TextUtf8, 1),
        Case {
            what: "an entry more than counted".into(),
            bytes: m.with("count", [1]),
            rule: Rule::TrailingBytes,
            offset: m.offset("second key"),
        },
        Case {
            what: "an entry less than counted".into(),
            bytes: m.with("count", [3]),
            rule: Rule::Truncated,
            offset: m.bytes().len(),
        },
        Case {
            what: "1025 bytes".into(),
            bytes: sized_metadata(1025),
            rule: Rule::MetadataTooLarge,
            offset: 0,
        },
    ];
    cases.extend(cut(&m, |len| (Rule::Truncated, m.field_start(len))));
    cases
}

/// A part with one entry, of exactly that many bytes.
fn sized_metadata(len: usize) -> Vec<u8> {
    Sample::new("sized")
        .field("head", [1, 1])
        .field("key", text8("k"))
        .field("value", text16(&"v".repeat(len - 6)))
        .bytes()
}

pub(crate) fn payload_cases() -> Vec<Case> {
    let p = payload_part();
    let length = p.offset("body length");
    let mut cases = vec![
        broken(&p, "version", &[2], Rule::PayloadVersion, 0),
        broken(&p, "body length", &u32be(12), Rule::BodyLength, 0),
        broken(&p, "body length", &u32be(14), Rule::BodyLength, 0),
        broken(&p, "body length", &u32be(u32::MAX), Rule::BodyLength, 0),
        broken(&p, "bytes", &[0, 0, 0, 3, 1, 2], Rule::Truncated, 0),
        broken(&p, "bytes", &[0xFF, 0xFF, 0xFF, 0xFF, 1, 2], Rule::Truncated, 0),
        broken(&p, "bytes", &[0, 0, 0, 1, 1, 2], Rule::TrailingBytes, 5),
        broken(&p, "packet name", &[0, 1, b'a', b'b'], Rule::TextEmpty, 0),
        broken(&p, "packet name", &text8("a\0b"), Rule::TextNul, 2),
        broken(&p, "content type", &[2, 0xC0, 0x80], Rule::TextUtf8, 1),
        Case {
            what: "a payload part and a byte".into(),
            bytes: [p.bytes(), vec![0]].concat(),
            rule: Rule::BodyLength,
            offset: length,
        },
    ];
    cases.extend(cut(&p, |len| match len {
        0 => (Rule::Truncated, 0),
        1..=4 => (Rule::Truncated, length),
        _ => (Rule::BodyLength, length),
    }));
    cases
}

/// Every rule of a metadata part, with its place.
#[test]
fn every_rule_of_a_metadata_part_is_named_with_its_place() {
    metadata_cases().iter().for_each(|case| case.check(|b| MetadataPart::decode(b).map(|_| ())));
}

/// Every rule of a payload part, with its place.
#[test]
fn every_rule_of_a_payload_part_is_named_with_its_place() {
    payload_cases().iter().for_each(|case| case.check(|b| PayloadPart::decode(b).map(|_| ())));
}

/// The largest metadata part is taken, by the encoder too.
#[test]
fn metadata_up_to_its_bound() {
    let largest = sized_metadata(1024);
    let decoded = MetadataPart::decode(&largest).expect("1024 bytes are allowed");
    assert_eq!((decoded.len(), decoded.get("k").map(<[u8]>::len)), (1, Some(1018)));
    let mut out = Vec::new();
    let value = vec![b'v'; 1018];
    encode_metadata_part(&mut out, &[("k", &value)]).expect("fits");
    assert_eq!(out, largest);

    let value = vec![b'v'; 1019];
    let refused = encode_metadata_part(&mut out, &[("k", &value)]);
    assert_eq!(refused.map_err(|e| e.rule), Err(Rule::MetadataTooLarge));
    assert_eq!(out, largest, "a refused part leaves the buffer as it was");

    let empty = MetadataPart::decode(&[1, 0]).expect("no entries are allowed");
    assert!(empty.is_empty() && empty.entries().next().is_none());
    // 255 entries of 4 bytes fit; a 256th cannot be counted.
    let keys: Vec<String> = (1..=127_u8).map(|b| char::from(b).to_string()).collect();
    let entries: Vec<(&str, &[u8])> = keys.iter().map(|k| (k.as_str(), &[][..])).collect();
    out.clear();
    encode_metadata_part(&mut out, &entries).expect("fits");
    let decoded = MetadataPart::decode(&out).expect("valid");
    assert!(decoded.entries().eq(entries.iter().copied()));
    let many: Vec<(&str, &[u8])> = (0..256).map(|_| ("k", &[][..])).collect();
    let refused = encode_metadata_part(&mut out, &many).map_err(|e| e.rule);
    assert_eq!(refused, Err(Rule::MetadataTooLarge));
}

/// The encoders refuse what the decoders would.
#[test]
fn parts_that_would_be_refused_are_not_encoded() {
    let mut out = vec![9];
    let long = "x".repeat(256);
    let bad: [(&str, Rule, usize); 3] =
        [("", Rule::TextEmpty, 5), ("a\0", Rule::TextNul, 5), (&long, Rule::TextTooLong, 5)];
    for (name, rule, offset) in bad {
        let e = WireError::new(rule, offset);
        assert_eq!(encode_payload_part(&mut out, name, "t", b""), Err(e));
        assert_eq!(payload_part_len(name, "t", 0), Err(e));
        let e = WireError::new(rule, 2);
        assert_eq!(encode_metadata_part(&mut out, &[(name, b"")]), Err(e));
    }
    let twice: [(&str, &[u8]); 2] = [("k", b"1"), ("k", b"2")];
    let e = WireError::new(Rule::MetadataDuplicateKey, 7);
    assert_eq!(encode_metadata_part(&mut out, &twice), Err(e));
    assert_eq!(payload_part_len("a", "b", 1 << 32).map_err(|e| e.rule), Err(Rule::FrameTooLarge));
    assert_eq!(out, [9], "nothing was written");

    encode_payload_part(&mut out, "add", "x/", &[0xAA, 0xBB]).expect("valid");
    assert_eq!(out[1..], payload_part().bytes());
    assert_eq!(payload_part_len("add", "x/", 2), Ok(out.len() - 1));
}
