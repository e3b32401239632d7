#![forbid(unsafe_code)]
//! Link control records and the tails of replies: layouts of our own.

use homing::ids::{Correlation, ObjectGeneration};
use homing::wire::{
    Control, CreateTail, CreatedActor, Credit, CreditEntry, FailureCode, Record, Reply, Rule,
    Status, Terminal, WireError,
};

use super::Case;
use super::sample::{Sample, text8, u16be, u32be, u64be};

pub(crate) fn controls() -> Vec<Sample> {
    vec![
        Sample::new("lane attach")
            .field("type", u16be(1))
            .field("link id", u64be(12))
            .field("lane", u16be(3))
            .field("mac", [5; 32]),
        Sample::new("credit")
            .field("type", u16be(2))
            .field("total", u32be(300))
            .field("count", u16be(2))
            .field("first hash", u64be(0xABCD))
            .field("first bytes", u32be(100))
            .field("second hash", u64be(0xEF))
            .field("second bytes", u32be(200)),
        Sample::new("lease renewed")
            .field("type", u16be(9))
            .field("probe id", u64be(1))
            .field("owner lease", u64be(2))
            .field("remaining", u32be(9_000)),
    ]
}

pub(crate) fn control_cases() -> Vec<Case> {
    let broken = |name: &str, field: &str, value: &[u8], rule| {
        let all = controls();
        let sample = all.iter().find(|sample| sample.name == name).expect("a sample");
        Case {
            what: format!("{name} with a wrong {field} ({rule})"),
            bytes: sample.with(field, value),
            rule,
            offset: sample.offset(field),
        }
    };
    let mut cases = vec![
        broken("lane attach", "link id", &u64be(0), Rule::LinkIdZero),
        broken("lane attach", "lane", &u16be(0), Rule::LaneNumber),
        broken("lane attach", "lane", &u16be(16), Rule::LaneNumber),
        broken("credit", "total", &u32be(299), Rule::CreditSum),
        broken("credit", "total", &u32be(301), Rule::CreditSum),
        broken("credit", "count", &u16be(0), Rule::CreditEmpty),
        broken("credit", "first bytes", &u32be(0), Rule::CreditEmpty),
        broken("credit", "second bytes", &u32be(0), Rule::CreditEmpty),
        broken("lease renewed", "probe id", &u64be(0), Rule::ProbeIdZero),
        broken("lease renewed", "owner lease", &u64be(0), Rule::GenerationZero),
    ];
    // 2^32-1 and 301 make 300 in 32 bits.
    let mut wrap = controls()[1].clone();
    wrap.fields[4].1 = u32be(u32::MAX);
    wrap.fields[6].1 = u32be(301);
    cases.push(Case {
        what: "credit that wraps in 32 bits".into(),
        bytes: wrap.bytes(),
        rule: Rule::CreditSum,
        offset: 2,
    });
    for number in [0, 3, 4, 5, 6, 7, 8, 10, 11, 12, 0x0100, u16::MAX] {
        cases.push(broken("lease renewed", "type", &u16be(number), Rule::ControlUnknown));
    }
    for sample in controls() {
        let bytes = sample.bytes();
        for len in 0..bytes.len() {
            let start = sample.field_start(len);
            cases.push(Case {
                what: format!("{} cut to {len} bytes", sample.name),
                bytes: bytes[..len].to_vec(),
                rule: Rule::Truncated,
                // All entries of a credit record are taken at once.
                offset: if sample.name == "credit" { start.min(8) } else { start },
            });
        }
        cases.push(Case {
            what: format!("{} and a byte", sample.name),
            rule: Rule::TrailingBytes,
            offset: bytes.len(),
            bytes: [bytes, vec![0]].concat(),
        });
    }
    cases
}

fn reply(tail: &[u8]) -> Vec<u8> {
    Sample::record("reply", 20, 0)
        .field("correlation", u64be(77))
        .field("terminal", u32be(0))
        .field("failure", u32be(0))
        .field("tail", tail)
        .bytes()
}

fn created() -> Vec<u8> {
    [vec![1], u64be(5), text8("game"), text8("n1")].concat()
}

/// Replies whose record is right and whose tail is not, as a creation reads it.
pub(crate) fn tail_cases() -> Vec<Case> {
    let case = |what: &str, tail: &[u8], rule, offset: usize| Case {
        what: what.into(),
        bytes: reply(tail),
        rule,
        offset: 21 + offset,
    };
    vec![
        case("no outcome", &[], Rule::Truncated, 0),
        case("outcome 0", &[0], Rule::CreateOutcome, 0),
        case("outcome 5", &[5], Rule::CreateOutcome, 0),
        case("rejected and a byte", &[3, 0], Rule::TrailingBytes, 1),
        case("created and a byte", &[created(), vec![0]].concat(), Rule::TrailingBytes, 17),
        case("created without generation", &[1, 0, 0], Rule::Truncated, 1),
        case("generation 0", &[vec![2], u64be(0)].concat(), Rule::GenerationZero, 1),
        case("no mesh", &[vec![2], u64be(1), vec![0]].concat(), Rule::TextEmpty, 9),
        case("no rid", &[vec![2], u64be(1), text8("m"), vec![0]].concat(), Rule::RidEmpty, 11),
    ]
}

fn as_reply(bytes: &[u8]) -> Reply<'_> {
    match Record::decode(bytes).expect("the record is right").record {
        Record::Reply(reply) => reply,
        other => panic!("{other:?}"),
    }
}

/// Proves R0-4.
///
/// Every rule of the link control records, with its place.
#[test]
fn every_rule_of_a_control_record_is_named_with_its_place() {
    control_cases().iter().for_each(|case| case.check(|b| Control::decode(b).map(|_| ())));
}

/// Control records have one encoding, and say what was put in.
#[test]
fn control_records_come_back() {
    for sample in controls() {
        let bytes = sample.bytes();
        let control = Control::decode(&bytes).expect("valid");
        let mut again = Vec::new();
        control.encode(&mut again).expect("valid");
        assert_eq!(again, bytes);
        assert_eq!(control.encoded_len(), Ok(bytes.len()));
    }
    let entries = [
        CreditEntry { object_hash: 0xABCD, bytes: 100 },
        CreditEntry { object_hash: 0xEF, bytes: 200 },
    ];
    let credit = Credit::new(&entries).expect("valid");
    assert_eq!((credit.total_bytes(), credit.count()), (300, 2));
    let bytes = controls()[1].bytes();
    assert_eq!(Control::decode(&bytes), Ok(Control::Credit(credit)));
    assert!(credit.entries().eq(entries));

    let rule = |entries: &[CreditEntry]| Credit::new(entries).map_err(|e| e.rule).err();
    assert_eq!(rule(&[]), Some(Rule::CreditEmpty));
    assert_eq!(rule(&[CreditEntry { object_hash: 1, bytes: 0 }]), Some(Rule::CreditEmpty));
    let large = CreditEntry { object_hash: 1, bytes: u32::MAX };
    assert_eq!(rule(&[large, entries[0]]), Some(Rule::CreditSum));
    assert_eq!(rule(&[entries[0]; 65_536]), Some(Rule::CreditEmpty));
}

/// Proves R4-1.
///
/// The tail of a reply is read as the pending operation says, and only if the reply is ok.
#[test]
fn tails_are_read_by_operation() {
    tail_cases().iter().for_each(|case| case.check(|b| as_reply(b).create_tail().map(|_| ())));

    let bytes = reply(&created());
    let actor = CreatedActor {
        object_generation: ObjectGeneration::new(5).expect("in range"),
        mesh: "game",
        rid: b"n1",
    };
    assert_eq!(as_reply(&bytes).create_tail(), Ok(CreateTail::Created(actor)));
    let not_allowed = Err(WireError::new(Rule::TailNotAllowed, 21));
    assert_eq!(as_reply(&bytes).no_tail(), not_allowed);
    assert_eq!(as_reply(&reply(&[])).no_tail(), Ok(()));

    let outcomes = [
        CreateTail::Created(actor),
        CreateTail::Existing(actor),
        CreateTail::Rejected,
        CreateTail::NoSuchAttempt,
    ];
    for outcome in outcomes {
        let mut tail = Vec::new();
        outcome.encode(&mut tail).expect("valid");
        assert_eq!(outcome.encoded_len(), Ok(tail.len()));
        assert_eq!(as_reply(&reply(&tail)).create_tail(), Ok(outcome));
    }

    let bytes = reply(&[u64be(6), u64be(11)].concat());
    let bind = as_reply(&bytes).bind_tail().expect("valid");
    assert_eq!((bind.binding_generation.get(), bind.authority_owner_generation.get()), (6, 11));
    let mut tail = Vec::new();
    bind.encode(&mut tail).expect("valid");
    assert_eq!(reply(&tail), bytes);
    let cut = reply(&u64be(6));
    assert_eq!(as_reply(&cut).bind_tail(), Err(WireError::new(Rule::Truncated, 29)));

    let failed = Reply {
        correlation: Correlation::FIRST,
        status: Status::of_code(FailureCode::RequestFailed),
        tail: &[3],
    };
    let mut out = Vec::new();
    let e = WireError::new(Rule::TailNotAllowed, 21);
    assert_eq!(Record::Reply(failed).encode(false, &mut out), Err(e));
    let contradiction = Status { terminal: Terminal::Ok, failure_code: FailureCode::RequestFailed };
    let e = WireError::new(Rule::OkWithFailure, 17);
    let reply = Reply { status: contradiction, tail: &[], ..failed };
    assert_eq!(Record::Reply(reply).encode(false, &mut out), Err(e));
    assert!(out.is_empty());
}
