#![forbid(unsafe_code)]
//! Requests and their one end.
