#![forbid(unsafe_code)]
//! Composition root.

pub mod real;
