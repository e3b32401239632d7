#![forbid(unsafe_code)]
//! Link frame and records: borrowed decode, sized encode.
