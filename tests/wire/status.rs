#![forbid(unsafe_code)]
//! Terminal results and failure codes against the public error kinds.

use homing::ErrorKind;
use homing::ErrorKind::{
    AlreadyExists, DataLost, DeadlineExceeded, InternalFailure, InvalidOperation, NotFound,
    ProtocolError, Rejected, ShuttingDown, TypeMismatch, Unavailable,
};
use homing::ids::ObjectKind;
use homing::wire::{FailureCode, Status, Terminal};

/// The published table, code by code.
const CODES: [(u32, ErrorKind); 25] = [
    (1, NotFound),
    (2, InternalFailure),
    (3, AlreadyExists),
    (4, TypeMismatch),
    (5, InternalFailure),
    (6, NotFound),
    (7, TypeMismatch),
    (8, InvalidOperation),
    (9, NotFound),
    (10, NotFound),
    (11, NotFound),
    (12, ProtocolError),
    (13, Unavailable),
    (14, NotFound),
    (15, Rejected),
    (16, ProtocolError),
    (17, InternalFailure),
    (18, Unavailable),
    (19, DeadlineExceeded),
    (20, InternalFailure),
    (21, Unavailable),
    (22, Rejected),
    (33, InvalidOperation),
    (34, Unavailable),
    (35, DataLost),
];

/// Proves R0-5.
#[test]
fn every_failure_code_has_its_kind() {
    for number in 0..200 {
        let code = FailureCode::from_number(number);
        let expected = CODES.iter().find(|(n, _)| *n == number).map(|(_, kind)| *kind);
        assert_eq!(code.is_some(), number == 0 || expected.is_some(), "{number}");
        let Some(code) = code else { continue };
        assert_eq!(code.error_kind(), expected, "{number}");
        let status = Status::of_code(code);
        assert_eq!(status.error_kind(), expected, "{number}");
        assert_eq!(status.terminal == Terminal::Ok, number == 0);
        // The code decides, whatever the terminal result beside it.
        let other = Status { terminal: Terminal::Busy, failure_code: code };
        assert_eq!(other.error_kind(), expected.or(Some(Unavailable)));
    }
}

/// Proves R0-5.
#[test]
fn a_terminal_result_alone_has_a_kind() {
    let kind = |number| {
        let terminal = Terminal::from_number(number).expect("published");
        Status { terminal, failure_code: FailureCode::None }.error_kind()
    };
    assert_eq!(kind(0), None);
    assert_eq!(kind(101), Some(DeadlineExceeded));
    assert_eq!(kind(102), Some(NotFound));
    assert_eq!(kind(103), Some(ShuttingDown));
    assert_eq!(kind(104), Some(ProtocolError));
    assert_eq!(kind(105), Some(InternalFailure));
    assert_eq!(kind(106), Some(Rejected));
    assert_eq!(kind(111), Some(InvalidOperation));
    let numbers: Vec<u32> = Terminal::ALL.iter().map(|t| t.number()).collect();
    assert_eq!(numbers, [vec![0], (101..=113).collect()].concat());
}

/// Proves R0-5.
///
/// Every kind survives the way through a reply, for either kind of object.
#[test]
fn every_kind_comes_back_from_its_canonical_status() {
    for object in [ObjectKind::Actor, ObjectKind::Spot] {
        for kind in ErrorKind::ALL {
            let status = Status::of_kind(kind, object);
            assert_eq!(status.error_kind(), Some(kind), "{kind} of a {object}");
            assert_ne!(status.terminal, Terminal::Ok);
        }
    }
    assert_eq!(Status::OK.error_kind(), None);
    let of = |kind, object| Status::of_kind(kind, object).failure_code;
    assert_eq!(of(NotFound, ObjectKind::Spot), FailureCode::SpotRouteNotFound);
    assert_eq!(of(TypeMismatch, ObjectKind::Spot), FailureCode::SpotTypeMismatch);
    assert_eq!(of(TypeMismatch, ObjectKind::Actor), FailureCode::ActorTypeMismatch);
}
