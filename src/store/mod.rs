#![forbid(unsafe_code)]
//! Records, leases and generation blocks above the Location Store, and the providers.
