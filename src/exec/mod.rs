#![deny(unsafe_code)]
//! The core loop's parts: mailboxes, wake-ups, timers, idling.

#[cfg(test)]
mod boxed;
pub(crate) mod cell;
pub(crate) mod cells;
pub mod doorbell;
pub mod idle;
pub mod mailbox;
pub mod pair;
pub(crate) mod value;
pub mod wheel;
