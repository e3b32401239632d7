#![forbid(unsafe_code)]
//! One stream of the ring driver: what it has under way, what it has to report.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::OpId;
use crate::env::{CloseReason, ConnId, Endpoint};
use crate::transport::driver::StreamState;
use crate::transport::filter::Filter;
use crate::transport::send_queue::SendQueue;
use crate::transport::socket::READ_CHUNK_BYTES;

/// With so much received and not reported, receiving pauses.
pub(super) const INBOX_LIMIT_BYTES: usize = 4 * READ_CHUNK_BYTES;

#[derive(Debug)]
pub(super) struct Stream {
    pub(super) id: ConnId,
    pub(super) socket: Arc<OwnedFd>,
    pub(super) state: StreamState,
    pub(super) filter: Filter,
    /// What no send carries.
    pub(super) queue: SendQueue,
    pub(super) sending: Option<Sending>,
    /// The receive that is under way; of a stream being dialled, the wait for the outcome.
    pub(super) incoming: Option<Incoming>,
    pub(super) news: Option<News>,
    pub(super) inbox: Inbox,
    /// To be reported after all that is in the inbox.
    pub(super) end: Option<CloseReason>,
    /// Its id is in the driver's list of streams with something to report.
    pub(super) is_ready: bool,
    /// Its id is in a list of streams with something to start.
    pub(super) is_due: bool,
}

/// The one send under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sending {
    pub(super) op: OpId,
    pub(super) bytes: usize,
    pub(super) is_cancelled: bool,
}

/// The one operation under way that waits for the peer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Incoming {
    pub(super) op: OpId,
    pub(super) is_cancelled: bool,
    /// It has brought bytes.
    pub(super) has_fed: bool,
}

/// What is reported before anything else.
#[derive(Debug)]
pub(super) enum News {
    Accepted,
    Connected(Endpoint),
}

/// Bytes received and not reported, in pieces of at most [`READ_CHUNK_BYTES`].
#[derive(Debug, Default)]
pub(super) struct Inbox {
    chunks: VecDeque<Vec<u8>>,
    bytes: usize,
}

impl Stream {
    pub(super) fn new(
        id: ConnId,
        socket: OwnedFd,
        state: StreamState,
        filter: Filter,
        queue: SendQueue,
    ) -> Self {
        Self {
            id,
            socket: Arc::new(socket),
            state,
            filter,
            queue,
            sending: None,
            incoming: None,
            news: None,
            inbox: Inbox::default(),
            end: None,
            is_ready: false,
            is_due: false,
        }
    }

    pub(super) fn unsent_bytes(&self) -> usize {
        self.queue.unsent_bytes() + self.sending.map_or(0, |sending| sending.bytes)
    }

    /// Whether the outcome of its dial has to be waited for.
    pub(super) fn wants_dial(&self) -> bool {
        matches!(self.state, StreamState::Dialling(_)) && self.is_quiet()
    }

    /// Whether a receive should be under way and is not. (Before its news are reported nobody knows
    /// what to do with its bytes.)
    pub(super) fn wants_receive(&self) -> bool {
        self.state == StreamState::Open
            && self.is_quiet()
            && self.news.is_none()
            && self.inbox.bytes < INBOX_LIMIT_BYTES
    }

    fn is_quiet(&self) -> bool {
        self.incoming.is_none() && self.end.is_none()
    }

    /// Whether a send should be under way and is not.
    pub(super) fn wants_send(&self) -> bool {
        self.state == StreamState::Open && self.sending.is_none() && !self.queue.is_empty()
    }

    /// Whether more has come than is taken.
    pub(super) fn is_overfull(&self) -> bool {
        self.inbox.bytes >= INBOX_LIMIT_BYTES
    }

    /// Whether there is something to report, or to read by hand.
    pub(super) fn has_report(&self) -> bool {
        self.news.is_some()
            || !self.inbox.chunks.is_empty()
            || self.end.is_some()
            || (matches!(self.state, StreamState::Broken(_)) && self.incoming.is_none())
    }

    /// How another driver takes it up.
    pub(super) fn parts_state(&mut self) -> StreamState {
        match (self.end.take(), self.news.take()) {
            (Some(reason), _) => StreamState::Ended(reason),
            // Its core has not been told.
            (None, Some(News::Connected(endpoint))) => StreamState::Dialling(endpoint),
            (None, _) => self.state.clone(),
        }
    }
}

impl Inbox {
    /// Appends `len` bytes, which `fill` appends to the buffer it is given.
    pub(super) fn append(&mut self, len: usize, fill: impl FnOnce(&mut Vec<u8>)) {
        self.bytes += len;
        match self.chunks.back_mut() {
            Some(last) if last.len() + len <= READ_CHUNK_BYTES => {
                if last.capacity() - last.len() < len {
                    // Where more than one piece has come, many will.
                    last.reserve_exact(READ_CHUNK_BYTES - last.len());
                }
                fill(last);
            }
            _ => {
                let mut chunk = Vec::with_capacity(len);
                fill(&mut chunk);
                self.chunks.push_back(chunk);
            }
        }
    }

    /// The oldest piece.
    pub(super) fn pop(&mut self) -> Option<Vec<u8>> {
        let chunk = self.chunks.pop_front()?;
        self.bytes -= chunk.len();
        Some(chunk)
    }
}
