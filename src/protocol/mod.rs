#![forbid(unsafe_code)]
//! The pure protocol machines: `(state, event, now) -> effects`.

pub mod batch;
pub mod commit;
pub mod create;
pub mod credit;
pub mod destroy;
pub mod peer;
pub mod request;
pub mod resolve;
