#![forbid(unsafe_code)]
//! The composition root.

pub(crate) mod store_threads;
