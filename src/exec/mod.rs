#![forbid(unsafe_code)]
//! The core loop's parts: mailboxes, wake-ups, timers, idling.

pub(crate) mod cells;
pub mod idle;
pub mod mailbox;
pub mod wheel;
