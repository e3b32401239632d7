#![forbid(unsafe_code)]
//! Creation of an object.
