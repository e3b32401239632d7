#![forbid(unsafe_code)]
//! Every rule of a record, broken once.

use homing::wire::{Command, PartRule, Record, Rule};

use super::Case;
use super::sample::{self, Sample, records, text8, text16, u16be, u32be, u64be, wide};

/// Breaks one field of a sample; the offset counts from the field's start.
fn broken(name: &str, field: &str, value: impl AsRef<[u8]>, rule: Rule, delta: usize) -> Case {
    let sample = sample::record(name);
    Case {
        what: format!("{name} with a wrong {field} ({rule})"),
        bytes: sample.with(field, value),
        rule,
        offset: sample.offset(field) + delta,
    }
}

/// As `broken`, where the rule is said of another field.
fn broken_at(name: &str, field: &str, value: impl AsRef<[u8]>, rule: Rule, at: &str) -> Case {
    let offset = sample::record(name).offset(at);
    Case { offset, ..broken(name, field, value, rule, 0) }
}

fn head_cases() -> Vec<Case> {
    let mut cases = vec![
        broken("update", "magic", [0x5A, 0x4E], Rule::RecordMagic, 0),
        broken("update", "major", [2], Rule::RecordMajor, 0),
        broken("update", "major", [0], Rule::RecordMajor, 0),
        broken("actorSend", "flags", [0x0E], Rule::FlagExtension, 0),
        broken("actorSend", "flags", [0x16], Rule::FlagUnknown, 0),
        broken("actorSend", "flags", [0x80], Rule::FlagUnknown, 0),
        broken("actorSend", "flags", [0x02], Rule::FlagPair, 0),
        broken("actorRequest", "flags", [0x05], Rule::FlagPair, 0),
        broken("spotSend", "flags", [0x06], Rule::FlagNotAllowed, 0),
        broken("spotRequest", "flags", [0x03], Rule::FlagNotAllowed, 0),
    ];
    for sample in records() {
        let command = Command::of(sample.bytes()[3]).expect("spoken");
        if command.metadata() == PartRule::Refused {
            for flag in [1, 2, 4, 6] {
                cases.push(broken(sample.name, "flags", [flag], Rule::FlagNotAllowed, 0));
            }
        }
    }
    let reserved = [0, 32, 35, 41, 45].into_iter().chain(7..=15).chain(54..=255);
    let unspoken = [23, 26, 33, 37, 46, 51].into_iter().chain(16..=19);
    let later = [28, 29, 30, 31, 34, 36, 39, 40, 47, 48, 52, 53];
    for n in reserved {
        cases.push(broken("update", "command", [n], Rule::CommandReserved, 0));
    }
    for n in unspoken.chain(later) {
        cases.push(broken("update", "command", [n], Rule::CommandUnsupported, 0));
    }
    cases
}

/// Every gen of every record: zero, and the first number that is too large.
fn generation_cases() -> Vec<Case> {
    let gens: &[(&str, &[&str])] = &[
        ("hello", &["node generation", "owner lease"]),
        ("update", &["owner lease"]),
        ("reply", &["correlation"]),
        ("spotSend", &["object generation"]),
        ("spotRequest", &["correlation"]),
        (
            "actorSend",
            &[
                "source generation",
                "object generation",
                "node generation",
                "authority owner",
                "owner lease",
                "binding",
                "sequence",
            ],
        ),
        ("actorRequest", &["correlation"]),
        ("actorDestroy", &["correlation", "object generation"]),
        ("actorCreate", &["correlation"]),
        ("boundSessionBind", &["correlation", "owner lease", "binding"]),
        (
            "sessionRelocationSeal",
            &["coordinator lease", "coordinator node", "session node", "session lease", "binding"],
        ),
        ("sessionRelocationSealed", &["coordinator lease", "authority owner", "binding"]),
        (
            "sessionRelocationRoute",
            &["object generation", "previous owner", "target owner", "target node", "target lease"],
        ),
        ("sessionRelocationRoute abort", &["current owner"]),
        ("messageFollow", &["source generation", "source node", "target owner", "target lease"]),
    ];
    let mut cases = Vec::new();
    for (name, fields) in gens {
        for field in *fields {
            cases.push(broken(name, field, u64be(0), Rule::GenerationZero, 0));
            cases.push(broken(name, field, u64be(1 << 63), Rule::GenerationRange, 0));
            cases.push(broken(name, field, u64be(u64::MAX), Rule::GenerationRange, 0));
        }
    }
    cases.push(broken("messageFollow", "reply route", u64be(1 << 63), Rule::GenerationRange, 0));
    cases
}

/// Every text and rid of every record: empty, broken UTF-8, NUL.
fn text_cases() -> Vec<Case> {
    let texts: &[(&str, &[&str])] = &[
        ("hello", &["mesh"]),
        ("reject", &["sentence"]),
        ("spotSend", &["source spot", "id"]),
        ("actorSend", &["id"]),
        ("actorDestroy", &["id"]),
        ("actorCreate", &["type name", "id"]),
        ("boundSessionBind", &["id"]),
        ("sessionRelocationSeal", &["coordinator owner id", "id", "session owner id"]),
        ("sessionRelocationSealed", &["id"]),
        ("sessionRelocationRoute", &["id"]),
        ("messageFollow", &["id"]),
    ];
    let mut cases = Vec::new();
    for (name, fields) in texts {
        for field in *fields {
            cases.push(broken(name, field, [0], Rule::TextEmpty, 0));
            cases.extend(bad_texts(name, field));
        }
    }
    // An opt-text8 of length 0 is absent, so only the other rules can be broken.
    cases.extend(bad_texts("hello", "endpoint"));
    cases.extend(bad_texts("actorSend", "source actor"));
    for name in ["sessionRelocationSeal", "sessionRelocationSealed", "sessionRelocationRoute"] {
        cases.push(broken(name, "store version", [0, 0], Rule::TextEmpty, 0));
        cases.push(broken(name, "store version", text16("a\0"), Rule::TextNul, 3));
        cases.push(broken(name, "store version", [0, 1, 0xFF], Rule::TextUtf8, 2));
    }
    let rids: &[(&str, &[&str])] = &[
        ("hello", &["rid"]),
        ("actorSend", &["target rid", "session"]),
        ("boundSessionBind", &["target rid", "session"]),
        ("sessionRelocationSeal", &["coordinator rid", "session node rid", "session"]),
        ("sessionRelocationRoute", &["target rid"]),
        ("messageFollow", &["source rid", "target rid"]),
    ];
    for (name, fields) in rids {
        for field in *fields {
            cases.push(broken(name, field, [0], Rule::RidEmpty, 0));
        }
    }
    cases
}

fn bad_texts(name: &str, field: &str) -> Vec<Case> {
    let utf8: [&[u8]; 7] = [
        &[2, 0xC0, 0x80],             // NUL in an overlong form
        &[2, 0xC1, 0xBF],             // overlong, two bytes
        &[3, 0xE0, 0x80, 0xAF],       // overlong, three bytes
        &[4, 0xF0, 0x80, 0x80, 0xAF], // overlong, four bytes
        &[3, 0xED, 0xA0, 0x80],       // a surrogate
        &[4, 0xF4, 0x90, 0x80, 0x80], // above U+10FFFF
        &[2, 0xE2, 0x82],             // cut off
    ];
    let mut cases: Vec<Case> =
        utf8.iter().map(|bytes| broken(name, field, bytes, Rule::TextUtf8, 1)).collect();
    cases.push(broken(name, field, [3, b'a', b'b', 0xFF], Rule::TextUtf8, 3));
    cases.push(broken(name, field, text8("ab\0c"), Rule::TextNul, 3));
    cases
}

fn value_cases() -> Vec<Case> {
    let mut cases = vec![
        broken("livenessProbe", "probe id", u64be(0), Rule::ProbeIdZero, 0),
        broken("livenessAck", "probe id", u64be(0), Rule::ProbeIdZero, 0),
        broken("actorCreate", "attempt id", wide(0, 0), Rule::AttemptIdZero, 0),
        broken("actorCreate", "mode", [0], Rule::CreateMode, 0),
        broken("actorCreate", "mode", [3], Rule::CreateMode, 0),
        broken("boundSessionBind", "state", [0], Rule::BindState, 0),
        broken("boundSessionBind", "state", [3], Rule::BindState, 0),
        broken("boundSessionBind", "body length", u16be(7), Rule::BodyLength, 0),
        broken("boundSessionBind", "body length", u16be(9), Rule::BodyLength, 0),
        broken("reply", "terminal", u32be(1), Rule::TerminalUnknown, 0),
        broken("reply", "terminal", u32be(100), Rule::TerminalUnknown, 0),
        broken("reply", "terminal", u32be(114), Rule::TerminalUnknown, 0),
        broken("reply", "failure", u32be(23), Rule::FailureUnknown, 0),
        broken("reply", "failure", u32be(32), Rule::FailureUnknown, 0),
        broken("reply", "failure", u32be(36), Rule::FailureUnknown, 0),
        broken_at("reply", "terminal", u32be(0), Rule::OkWithFailure, "failure"),
        broken("hello", "cores", u16be(0), Rule::CoreCount, 0),
        broken("hello", "cores", u16be(257), Rule::CoreCount, 0),
        broken("hello", "max frame", u32be((64 << 10) - 1), Rule::MaxFrameRange, 0),
        broken("hello", "max frame", u32be((1 << 30) + 1), Rule::MaxFrameRange, 0),
        broken("hello", "lane window", u32be(0), Rule::LaneWindow, 0),
        broken("hello", "proof present", [2], Rule::PresenceByte, 0),
        broken("admit", "grant present", [0xFF], Rule::PresenceByte, 0),
        broken("admit", "link id", u64be(0), Rule::LinkIdZero, 0),
        broken("admit", "lanes", u16be(0), Rule::LaneCount, 0),
        broken("admit", "lanes", u16be(17), Rule::LaneCount, 0),
        broken("reject", "reason", u16be(0), Rule::RejectReason, 0),
        broken("reject", "reason", u16be(10), Rule::RejectReason, 0),
        broken("update", "draining", [2], Rule::PresenceByte, 0),
        broken("sessionRelocationSeal", "role", [0], Rule::RelocationRole, 0),
        broken("sessionRelocationRoute", "role", [4], Rule::RelocationRole, 0),
        broken("sessionRelocationRoute", "action", [0], Rule::RouteAction, 0),
        broken("sessionRelocationRoute", "action", [3], Rule::RouteAction, 0),
        broken("sessionRelocationRoute", "body length", u16be(38), Rule::BodyLength, 0),
        broken("sessionRelocationRoute abort", "body length", u16be(9), Rule::BodyLength, 0),
        broken("sessionRelocationRoute abort", "role", [2], Rule::AbortRole, 0),
        broken("sessionRelocationRoute abort", "role", [3], Rule::AbortRole, 0),
    ];
    for name in ["spotSend", "spotRequest", "actorSend", "actorRequest", "messageFollow"] {
        cases.push(broken(name, "operation id", wide(0, 0), Rule::OperationIdZero, 0));
        cases.push(broken(name, "hop count", [9], Rule::HopCount, 0));
    }
    for name in ["sessionRelocationSeal", "sessionRelocationSealed", "sessionRelocationRoute"] {
        cases.push(broken(name, "relocation id", wide(0, 0), Rule::RelocationIdZero, 0));
    }
    cases
}

fn follow_cases() -> Vec<Case> {
    let f = "messageFollow";
    vec![
        broken(f, "version", [2], Rule::FollowVersion, 0),
        broken(f, "body length", u32be(132), Rule::BodyLength, 0),
        broken(f, "body length", u32be(u32::MAX), Rule::BodyLength, 0),
        broken(f, "source length", u16be(46), Rule::BodyLength, 0),
        broken(f, "target length", u16be(48), Rule::BodyLength, 0),
        broken(f, "hop count", [0], Rule::HopCount, 0),
        broken(f, "source kind", [0], Rule::ObjectKindUnknown, 0),
        broken(f, "target kind", [3], Rule::ObjectKindUnknown, 0),
        broken(f, "target kind", [2], Rule::FollowRoutes, 0),
        broken_at(f, "target id", text8("actor-2"), Rule::FollowRoutes, "target kind"),
        broken_at(f, "target generation", u64be(6), Rule::FollowRoutes, "target kind"),
        broken_at(f, "target owner", u64be(11), Rule::FollowOrder, "target kind"),
        broken_at(f, "target owner", u64be(10), Rule::FollowOrder, "target kind"),
    ]
}

/// Every sample cut at every byte, and with a byte too many.
fn length_cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for sample in records() {
        let bytes = sample.bytes();
        for len in 0..bytes.len() {
            cases.push(Case {
                what: format!("{} cut to {len} bytes", sample.name),
                bytes: bytes[..len].to_vec(),
                rule: Rule::Truncated,
                offset: sample.field_start(len),
            });
        }
        // A reply has a tail instead of an end, and may have one only if it is ok.
        let reply = bytes[3] == 20;
        cases.push(Case {
            what: format!("{} and a byte", sample.name),
            rule: if reply { Rule::TailNotAllowed } else { Rule::TrailingBytes },
            offset: bytes.len(),
            bytes: [bytes, vec![0]].concat(),
        });
    }
    cases
}

pub(crate) fn cases() -> Vec<Case> {
    let tables = [
        head_cases(),
        generation_cases(),
        text_cases(),
        value_cases(),
        follow_cases(),
        length_cases(),
    ];
    tables.into_iter().flatten().collect()
}

/// Proves R0-1, R0-2, R0-3, R0-4, R2.5-2, R2.5-9, R4-2.
#[test]
fn every_rule_of_a_record_is_named_with_its_place() {
    for case in cases() {
        case.check(|bytes| Record::decode(bytes).map(|_| ()));
    }
}

/// Proves R0-1.
///
/// What the rules do not forbid is accepted, and comes back byte for byte.
#[test]
fn what_is_allowed_is_accepted_and_has_one_encoding() {
    let mut accepted: Vec<Vec<u8>> = records().iter().map(Sample::bytes).collect();
    let allowed: &[(&str, &str, Vec<u8>)] = &[
        ("actorSend", "hop count", vec![8]),
        ("messageFollow", "hop count", vec![8]),
        ("messageFollow", "reply route", u64be(0)),
        ("messageFollow", "queued bytes", u32be(u32::MAX)),
        ("actorSend", "id", text8("\u{feff}a")), // a BOM is ordinary text
        ("actorSend", "id", text8(&"é".repeat(127))),
        ("actorSend", "id", text8(&"x".repeat(255))),
        ("actorSend", "object generation", u64be((1 << 63) - 1)),
        ("actorSend", "operation id", wide(0, 1)),
        ("actorSend", "operation id", wide(u64::MAX, u64::MAX)),
        ("actorSend", "target rid", vec![3, 0, 0xFF, 0x80]),
        ("reply", "failure", u32be(0)),
        ("hello", "endpoint", vec![0]),
        ("sessionRelocationRoute", "previous owner", u64be(4000)), // information only
        ("sessionRelocationRoute", "role", vec![3]),
        ("sessionRelocationSeal", "store version", text16(&"7".repeat(300))),
    ];
    for (name, field, value) in allowed {
        accepted.push(sample::record(name).with(field, value));
    }
    for bytes in accepted {
        let decoded = Record::decode(&bytes).unwrap_or_else(|e| panic!("{bytes:02x?}: {e}"));
        let mut again = b"before".to_vec();
        decoded.record.encode(decoded.has_metadata, &mut again).expect("valid");
        assert_eq!(&again[6..], bytes);
        let len = decoded.record.encoded_len(decoded.has_metadata);
        assert_eq!(len, Ok(bytes.len()));
        assert_eq!(Record::decode(&again[6..]), Ok(decoded));
    }
}

/// The head alone decides what a record is.
#[test]
fn commands_have_names_and_numbers() {
    for sample in records() {
        let bytes = sample.bytes();
        let decoded = Record::decode(&bytes).expect("valid");
        assert_eq!(decoded.record.command().number(), bytes[3]);
        let name = sample.name.split(' ').next().expect("a word");
        assert_eq!(decoded.record.command().name(), name);
        assert_eq!(decoded.has_metadata, bytes[4] & 1 != 0);
    }
    for command in Command::ALL {
        let seen = records().iter().any(|sample| sample.bytes()[3] == command.number());
        assert!(seen, "no sample of {command:?}");
    }
}
