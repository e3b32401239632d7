#![forbid(unsafe_code)]
//! The pure protocol machines: `(state, event, now) -> effects`.

pub mod batch;
pub mod create;
pub mod credit;
pub mod peer;
pub mod request;
pub mod resolve;
