#![forbid(unsafe_code)]
//! The libraries, each in the set-up in which it is fastest.

pub(crate) mod actix;
pub(crate) mod kameo;
pub(crate) mod ractor;
pub(crate) mod xtra;

use homing::Error;

/// What went wrong at a peer, as the caller's code has it.
fn failed(e: impl std::fmt::Display) -> Error {
    Error::internal(e.to_string())
}
