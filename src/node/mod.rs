#![forbid(unsafe_code)]
//! The composition root.

// The lead's `node` uses it; on this branch only its tests do.
#[allow(dead_code)]
pub(crate) mod store_threads;
