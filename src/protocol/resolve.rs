#![forbid(unsafe_code)]
//! Resolving an id.
