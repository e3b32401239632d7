#![forbid(unsafe_code)]
//! Store batching.
