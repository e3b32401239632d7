#![forbid(unsafe_code)]
//! Byte streams, framing and the drivers.
