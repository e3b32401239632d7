#![forbid(unsafe_code)]
//! The core loop's parts: mailboxes, wake-ups, timers, idling.
