#![forbid(unsafe_code)]
//! What a driver does for one core, whatever kernel interface it uses.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::env::{CloseReason, ConnId, Endpoint, Event};
use crate::error::Error;
use crate::time::Nanos;
use crate::transport::filter::Filter;
use crate::transport::listen::BoundListener;

/// Moves the bytes of one core's streams. Made on any thread, used on one.
///
/// The promises of [`crate::env::Env`] about streams are a driver's: order, exact counts of unsent
/// bytes, at most one `Closed` and nothing after it. One more, on which [`Driver::close`] and
/// [`Driver::take_out`] rest: **one call of [`Driver::poll`] gives at most one event per stream**,
/// so that a caller that closes a stream or hands it over while it walks through the events of one
/// poll never meets another event of that stream in them.
pub trait Driver: Sized + Send + 'static {
    /// A driver without streams.
    ///
    /// # Errors
    /// `InternalFailure` when the kernel refuses what the driver needs.
    fn new() -> Result<Self, Error>;

    /// What makes a waiting [`Driver::poll`] return, from any thread; when it comes between two
    /// polls, the next one that would wait returns at once.
    fn waker(&self) -> Waker;

    /// Accepts streams of `listener` from now on.
    ///
    /// # Errors
    /// `InternalFailure` when the kernel refuses.
    fn listen(&mut self, listener: BoundListener) -> Result<(), Error>;

    /// Stops accepting; unlinks a Unix socket. Streams go on.
    fn stop_listening(&mut self);

    /// See [`crate::env::Env::dial`].
    fn dial(&mut self, endpoint: &Endpoint) -> ConnId;

    /// See [`crate::env::Env::write`]. The bytes leave in this call or in the next poll.
    fn write(&mut self, conn: ConnId, bytes: &mut Vec<u8>);

    /// See [`crate::env::Env::unsent_bytes`].
    fn unsent_bytes(&self, conn: ConnId) -> usize;

    /// See [`crate::env::Env::close`].
    fn close(&mut self, conn: ConnId, flush: bool);

    /// Takes a stream out, to be given to another core's driver; `None` when it is gone. Bytes that
    /// were received and not reported are appended to `unread`.
    fn take_out(&mut self, conn: ConnId, unread: &mut Vec<u8>) -> Option<StreamParts>;

    /// Puts in a stream that another driver gave up. When that cannot work, the id given back is
    /// reported closed by the next poll.
    fn adopt(&mut self, parts: StreamParts) -> ConnId;

    /// Whether something that was asked for begins only with the next poll: bytes to send, a dial, a
    /// close. A core that has other work does not let it wait.
    fn has_due(&self) -> bool;

    /// Appends what happened to `events`. With `wait_until`, and when nothing has happened, waits
    /// until something does, the waker is called or that instant comes; it may return early.
    /// Bounded work per call, shared evenly between the streams.
    fn poll<M>(&mut self, events: &mut Vec<Event<M>>, now: Nanos, wait_until: Option<Nanos>);
}

/// Makes a waiting driver return. Clones wake the same driver.
#[derive(Clone, Debug)]
pub struct Waker(pub(super) Arc<OwnedFd>);

impl Waker {
    /// Wakes the driver: one system call.
    pub fn wake(&self) {
        // The counter cannot overflow before 2^64 - 1 wake-ups, so nothing but EINTR can happen.
        let _ = rustix::io::retry_on_intr(|| rustix::io::write(&*self.0, &1u64.to_ne_bytes()));
    }
}

/// A stream between two drivers: the socket, what is queued for it, and its state.
#[derive(Debug)]
pub struct StreamParts {
    pub(super) socket: OwnedFd,
    pub(super) state: StreamState,
    pub(super) filter: Filter,
    pub(super) unsent: VecDeque<Vec<u8>>,
}

impl StreamParts {
    /// Bytes queued and not taken by the kernel.
    #[must_use]
    pub fn unsent_bytes(&self) -> usize {
        self.unsent.iter().map(Vec::len).sum()
    }
}

/// How far a stream is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum StreamState {
    /// Being dialled. What is written waits.
    Dialling(Endpoint),
    /// Open in both directions.
    Open,
    /// Writing failed, for this reason. What has come in is still read, then it is reported.
    Broken(String),
    /// It has ended, for this reason, which is to be reported.
    Ended(CloseReason),
}
