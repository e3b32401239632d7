#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods)] // stands outside: starts and kills processes
//! The shared region between processes: a reader beside a writer that writes, stops, is killed in
//! the middle of a write, dies while it makes the region, or makes a bad one.

mod attach;
mod create;
mod killed;
mod process;
mod torn;
mod world;

#[path = "../support/eventually.rs"]
mod eventually;
