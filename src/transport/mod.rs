#![deny(unsafe_code)]
//! Byte streams, framing and the drivers.
//!
//! A **driver** ([`driver::Driver`]) moves bytes of non-blocking streams for one core: [`uring`]
//! where the kernel allows it, else [`epoll`], which works everywhere; [`chosen`] picks one. [`framing`] cuts what it receives into frames, [`listen`] binds
//! endpoints, [`filter`] is where a stream's bytes can be changed on their way (TLS, later).

pub mod chosen;
pub mod driver;
pub mod epoll;
pub mod filter;
pub mod framing;
pub mod kind;
pub mod listen;
mod send_queue;
pub mod socket;
pub mod uring;
