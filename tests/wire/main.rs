#![forbid(unsafe_code)]
//! The wire from outside: every rule broken once, every published vector, and random bytes.
//!
//! Samples are written here field by field, by code that shares nothing with the encoder.

mod corpus;
mod frame_rules;
mod own_layouts;
mod part_rules;
mod random;
mod record_rules;
mod sample;
mod status;
mod vectors;

use homing::wire::{Rule, WireError};

/// One way to break a rule: what is wrong, the bytes, and what must be said about them.
struct Case {
    what: String,
    bytes: Vec<u8>,
    rule: Rule,
    offset: usize,
}

impl Case {
    fn check<T: std::fmt::Debug>(&self, decode: impl Fn(&[u8]) -> Result<T, WireError>) {
        let expected = WireError::new(self.rule, self.offset);
        match decode(&self.bytes) {
            Err(e) => assert_eq!(e, expected, "{}: {e}", self.what),
            Ok(value) => panic!("{} was accepted as {value:?}", self.what),
        }
    }
}

/// The set of rules is closed, and each has its own name and sentence. The tables of this
/// test binary break every one of them; those that no bytes alone can break are named here.
#[test]
fn every_rule_is_broken_somewhere() {
    let by_call_or_encoder =
        [Rule::WrongLane, Rule::HashMismatch, Rule::TextTooLong, Rule::RidTooLong];
    let broken: Vec<Rule> = record_rules::cases()
        .into_iter()
        .chain(frame_rules::cases())
        .chain(part_rules::metadata_cases())
        .chain(part_rules::payload_cases())
        .chain(own_layouts::control_cases())
        .chain(own_layouts::tail_cases())
        .map(|case| case.rule)
        .chain(by_call_or_encoder)
        .collect();
    let missing: Vec<_> = Rule::ALL.iter().filter(|rule| !broken.contains(rule)).collect();
    assert!(missing.is_empty(), "no case breaks {missing:?}");
    for (i, rule) in Rule::ALL.iter().enumerate() {
        assert_eq!(*rule as usize, i);
        assert_eq!(Rule::from_name(rule.name()), Some(*rule));
        assert!(rule.text().ends_with('.') && rule.text().len() > 15, "{rule}");
        let kebab = |b: u8| b == b'-' || b.is_ascii_lowercase() || b.is_ascii_digit();
        assert!(rule.name().bytes().all(kebab), "{rule}");
    }
}
