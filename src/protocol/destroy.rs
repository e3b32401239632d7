#![forbid(unsafe_code)]
//! Destroying.
