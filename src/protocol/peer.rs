#![forbid(unsafe_code)]
//! Links: admission, lanes, liveness, reconnection.
