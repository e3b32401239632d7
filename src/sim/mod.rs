#![forbid(unsafe_code)]
//! The simulated Env, its faults and its checkers.
