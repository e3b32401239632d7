#![forbid(unsafe_code)]
//! The pure protocol machines: `(state, event, now) -> effects`.

pub mod batch;
pub mod commit;
#[cfg(feature = "protocol-coverage")]
pub mod coverage;
pub mod create;
pub mod credit;
pub mod destroy;
pub mod peer;
pub mod request;
pub mod resolve;
