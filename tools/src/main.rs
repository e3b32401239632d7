//! The `homing` command.
#![forbid(unsafe_code)]

fn main() {}
