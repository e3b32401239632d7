#![forbid(unsafe_code)]
//! A ring so small that every queue and buffer of it runs full all the time.

use homing::Error;
use homing::env::{ConnId, Endpoint, Event};
use homing::time::Nanos;
use homing::transport::driver::{Driver, StreamParts, Waker};
use homing::transport::listen::BoundListener;
use homing::transport::uring::{Sizes, Uring};

/// Four buffers, a completion queue of eight: the io_uring driver by another name, for the suite.
pub(crate) struct Tiny(pub(crate) Uring);

pub(crate) const TINY: Sizes =
    Sizes { submissions: 4, completions: 8, buffers: 4, buffer_bytes: 2048 };

impl Driver for Tiny {
    fn new() -> Result<Self, Error> {
        Uring::with_sizes(TINY).map(Self)
    }

    fn waker(&self) -> Waker {
        self.0.waker()
    }

    fn listen(&mut self, listener: BoundListener) -> Result<(), Error> {
        self.0.listen(listener)
    }

    fn stop_listening(&mut self) {
        self.0.stop_listening();
    }

    fn dial(&mut self, endpoint: &Endpoint) -> ConnId {
        self.0.dial(endpoint)
    }

    fn write(&mut self, conn: ConnId, bytes: &mut Vec<u8>) {
        self.0.write(conn, bytes);
    }

    fn unsent_bytes(&self, conn: ConnId) -> usize {
        self.0.unsent_bytes(conn)
    }

    fn close(&mut self, conn: ConnId, flush: bool) {
        self.0.close(conn, flush);
    }

    fn take_out(&mut self, conn: ConnId, unread: &mut Vec<u8>) -> Option<StreamParts> {
        self.0.take_out(conn, unread)
    }

    fn adopt(&mut self, parts: StreamParts) -> ConnId {
        self.0.adopt(parts)
    }

    fn has_due(&self) -> bool {
        self.0.has_due()
    }

    fn poll<M>(&mut self, events: &mut Vec<Event<M>>, now: Nanos, wait_until: Option<Nanos>) {
        self.0.poll(events, now, wait_until);
    }
}
