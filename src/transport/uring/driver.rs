#![forbid(unsafe_code)]
//! The driver's state machine, over the ring's safe face.
//!
//! # Words and states
//! A stream is **dialling**, **open** or **broken** as in the epoll driver. It has at most one
//! **incoming** operation (the wait for a dial's outcome, then a receive that goes on by itself)
//! and at most one **send**, which carries everything queued since the last. It is **due** while an
//! operation should be under way and is not, **ready** while it has something to report: news, then
//! what is in its **inbox**, then its end.
//!
//! # Choices
//! - A write only queues. The next poll starts the sends of all streams and gives them to the
//!   kernel in one system call, together with whatever else is to be started; that call also
//!   brings what was received.
//! - A poll that finds nothing to start, no completion and no work of the kernel for this thread
//!   (which the kernel says in shared memory) makes no system call.
//! - All completions are taken whenever the kernel was entered, so the counts of unsent bytes are
//!   exact. For that reason sends do not use MSG_WAITALL: such a send would hide how much of it has
//!   left.
//! - The bytes received are copied out of the ring's buffers at once, and those are given back, so
//!   one stream cannot keep the others' buffers. A stream with [`INBOX_LIMIT_BYTES`] unreported is
//!   not received from until some were reported: its receive is cancelled.
//! - Of the streams whose receive found no buffer, those that got nothing are served first.
//! - A stream that is closed or handed over has its operations cancelled and their last completions
//!   taken within the call: what was received is not lost, and the peer sees the end at once.
//! - The waker is an eventfd that is polled for and never read; waiting ends by the ring's own
//!   time-out, on CLOCK_BOOTTIME where the kernel has that.
//! - When accepting fails for want of descriptors or memory it pauses, as in the epoll driver.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::net::{self, Shutdown, sockopt};
use slab::Slab;

use super::message::Batch;
use super::probe::{probe, refusal};
use super::streams::{Incoming, News, Sending, Stream};
use super::{Completion, Filled, Op, OpId, OperationCounts, Outcome, Ring};
use crate::env::{CloseReason, ConnId, Endpoint, Event};
use crate::error::Error;
use crate::store::boottime;
use crate::time::Nanos;
use crate::transport::driver::{Driver, StreamParts, StreamState, Waker};
use crate::transport::filter::Filter;
use crate::transport::listen::{BoundListener, os_text};
use crate::transport::send_queue::SendQueue;
use crate::transport::socket::{
    ACCEPT_PAUSE, READ_CHUNK_BYTES, ReadOutcome, conn_id, dial_result, discard_unread, flush,
    index_of, read_chunk, reading_failed, start_dial, writing_failed,
};

#[allow(unused_imports)] // named in the head
use super::streams::INBOX_LIMIT_BYTES;

/// Events reported in one poll, at most.
const MAX_EVENTS: usize = 256;
/// Buffers of finished sends kept for the next writes, and the largest kept.
const MAX_SPARES: usize = 32;
const MAX_SPARE_BYTES: usize = 256 << 10;
// Tokens that are no stream: serials start at 1, so no id is this small.
const WAKER: u64 = 0;
const LISTENER: u64 = 1;
const CANCEL: u64 = 2;

/// How large a ring and its buffers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Entries of the submission queue; a power of two, at most `completions`.
    pub submissions: u32,
    /// Entries of the completion queue; a power of two.
    pub completions: u32,
    /// Buffers to receive into; a power of two, at most 2^15.
    pub buffers: u16,
    /// Bytes of one buffer; 1 to 64 KiB.
    pub buffer_bytes: u32,
}

impl Default for Sizes {
    /// What a node's cores use: about 40 KiB that count as locked memory, and 2 MiB of buffers.
    fn default() -> Self {
        Self { submissions: 256, completions: 1024, buffers: 256, buffer_bytes: 8 << 10 }
    }
}

/// See the module's head.
#[derive(Debug)]
pub struct Uring {
    ring: Ring,
    wake: Arc<OwnedFd>,
    is_waking: bool,
    streams: Slab<Stream>,
    next_serial: u64,
    listener: Option<Arc<BoundListener>>,
    accepting: Option<OpId>,
    accept_paused_until: Option<Nanos>,
    /// Ends of streams that are gone, to be reported.
    ended: Vec<(ConnId, CloseReason)>,
    ready: VecDeque<ConnId>,
    due: VecDeque<ConnId>,
    /// As `due`, and served first.
    starved: VecDeque<ConnId>,
    spares: Vec<Vec<u8>>,
    scratch: Vec<u8>,
}

impl Driver for Uring {
    fn new() -> Result<Self, Error> {
        Self::with_sizes(Sizes::default())
    }

    fn waker(&self) -> Waker {
        Waker(self.wake.clone())
    }

    fn listen(&mut self, listener: BoundListener) -> Result<(), Error> {
        // The first poll starts it: this may not be the thread that polls.
        self.stop_listening();
        self.listener = Some(Arc::new(listener));
        Ok(())
    }

    fn stop_listening(&mut self) {
        self.listener = None;
        self.accept_paused_until = None;
        if let Some(op) = self.accepting {
            self.ring.start(CANCEL, Op::Cancel(op));
        }
        while self.accepting.is_some() {
            self.enter(None);
            self.reap();
        }
    }

    fn dial(&mut self, endpoint: &Endpoint) -> ConnId {
        match start_dial(endpoint) {
            Ok(socket) => {
                let state = StreamState::Dialling(endpoint.clone());
                self.insert(socket, state, Filter::Plain, SendQueue::default())
            }
            Err(reason) => {
                let id = self.next_id();
                let reason = CloseReason::DialFailed(format!("{endpoint}: {reason}"));
                self.ended.push((id, reason));
                id
            }
        }
    }

    fn write(&mut self, conn: ConnId, bytes: &mut Vec<u8>) {
        match self.streams.get_mut(index_of(conn)).filter(|stream| stream.id == conn) {
            Some(stream) if !matches!(stream.state, StreamState::Broken(_)) => {
                stream.filter.outgoing(bytes);
                stream.queue.push(bytes, 0);
                if bytes.capacity() == 0 {
                    *bytes = self.spares.pop().unwrap_or_default();
                }
                self.look_at(conn);
            }
            _ => bytes.clear(),
        }
    }

    fn unsent_bytes(&self, conn: ConnId) -> usize {
        self.stream(conn).map_or(0, Stream::unsent_bytes)
    }

    fn close(&mut self, conn: ConnId, flush_first: bool) {
        self.ended.retain(|(id, _)| *id != conn);
        if !flush_first && let Some(stream) = self.stream(conn) {
            end_sending(stream);
        }
        self.settle(conn);
        let Some(mut stream) = self.remove(conn) else { return };
        if flush_first
            && stream.state == StreamState::Open
            && flush(&stream.socket, &mut stream.queue).is_ok()
        {
            // A socket closed with bytes unread resets the connection, which can destroy what was
            // just flushed before the peer has read it.
            let _ = net::shutdown(&stream.socket, Shutdown::Write);
            discard_unread(&stream.socket, &mut self.scratch);
        }
    }

    fn take_out(&mut self, conn: ConnId, unread: &mut Vec<u8>) -> Option<StreamParts> {
        self.settle(conn);
        let mut stream = self.remove(conn)?;
        while let Some(chunk) = stream.inbox.pop() {
            unread.extend_from_slice(&chunk);
        }
        let state = stream.parts_state();
        // Nothing is under way, so nobody else has the socket.
        let socket = Arc::try_unwrap(stream.socket).or_else(|shared| shared.try_clone()).ok()?;
        let unsent = stream.queue.into_chunks();
        Some(StreamParts { socket, state, filter: stream.filter, unsent })
    }

    fn adopt(&mut self, parts: StreamParts) -> ConnId {
        let queue = SendQueue::from_chunks(parts.unsent);
        self.insert(parts.socket, parts.state, parts.filter, queue)
    }

    fn has_due(&self) -> bool {
        !self.due.is_empty()
    }

    fn poll<M>(&mut self, events: &mut Vec<Event<M>>, now: Nanos, wait_until: Option<Nanos>) {
        let before = events.len();
        events.extend(self.ended.drain(..).map(|(conn, reason)| Event::Closed { conn, reason }));
        self.start_due(now);
        let is_idle =
            events.len() == before && self.ready.is_empty() && !self.ring.has_completions();
        match wait_until.filter(|_| is_idle) {
            Some(until) => {
                let until = self.accept_paused_until.map_or(until, |resume| resume.min(until));
                self.enter(Some(until));
            }
            None if self.ring.wants_enter() => self.enter(None),
            None => {}
        }
        self.reap();
        self.report(events);
        self.ring.publish_counts();
    }
}

impl Uring {
    /// Whether this process can have io_uring, by trying it: `Err` says why not, in one clause.
    ///
    /// # Errors
    /// The call that was refused, the kernel's reason, the usual cause.
    pub fn probe() -> Result<(), String> {
        probe()
    }

    /// A driver whose ring is not of the ordinary size.
    ///
    /// # Errors
    /// `InternalFailure` when the kernel refuses what the driver needs.
    pub fn with_sizes(sizes: Sizes) -> Result<Self, Error> {
        assert!(sizes.buffer_bytes as usize <= READ_CHUNK_BYTES, "{sizes:?}");
        let refused = |reason| Error::internal(format!("cannot set up io_uring: {reason}"));
        let ring = Ring::new(sizes).map_err(|(call, e)| refused(refusal(call, e)))?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| refused(format!("eventfd: {}", os_text(e))))?;
        Ok(Self {
            ring,
            wake: Arc::new(wake),
            is_waking: false,
            streams: Slab::new(),
            next_serial: 1,
            listener: None,
            accepting: None,
            accept_paused_until: None,
            ended: Vec::new(),
            ready: VecDeque::new(),
            due: VecDeque::new(),
            starved: VecDeque::new(),
            spares: Vec::new(),
            scratch: Vec::with_capacity(READ_CHUNK_BYTES),
        })
    }

    /// The ring's operations so far; goes on being readable when the driver has been dropped.
    #[must_use]
    pub fn operation_counts(&self) -> Arc<OperationCounts> {
        self.ring.counts()
    }

    fn next_id(&mut self) -> ConnId {
        let id = conn_id(self.next_serial, self.streams.vacant_key());
        self.next_serial += 1;
        id
    }

    fn stream(&self, conn: ConnId) -> Option<&Stream> {
        self.streams.get(index_of(conn)).filter(|stream| stream.id == conn)
    }

    fn stream_mut(&mut self, conn: ConnId) -> Option<&mut Stream> {
        self.streams.get_mut(index_of(conn)).filter(|stream| stream.id == conn)
    }

    fn insert(
        &mut self,
        socket: OwnedFd,
        state: StreamState,
        filter: Filter,
        queue: SendQueue,
    ) -> ConnId {
        let id = self.next_id();
        if let StreamState::Ended(reason) = state {
            self.ended.push((id, reason));
            return id;
        }
        self.streams.insert(Stream::new(id, socket, state, filter, queue));
        self.look_at(id);
        id
    }

    /// Takes a stream out of the table. The lists may still name it.
    fn remove(&mut self, conn: ConnId) -> Option<Stream> {
        self.stream(conn)?;
        // A descriptor is about to be free: accepting may go on.
        if let Some(until) = &mut self.accept_paused_until {
            *until = Nanos::ZERO;
        }
        Some(self.streams.remove(index_of(conn)))
    }

    /// Puts a stream into the lists it belongs in.
    fn look_at(&mut self, conn: ConnId) {
        let Some(stream) = self.streams.get_mut(index_of(conn)).filter(|s| s.id == conn) else {
            return;
        };
        if !stream.is_ready && stream.has_report() {
            stream.is_ready = true;
            self.ready.push_back(conn);
        }
        let is_due = stream.wants_dial() || stream.wants_receive() || stream.wants_send();
        if is_due && !stream.is_due {
            stream.is_due = true;
            self.due.push_back(conn);
        }
    }

    /// Starts every operation that should be under way and is not.
    fn start_due(&mut self, now: Nanos) {
        if !self.is_waking {
            self.is_waking = true;
            self.ring.start(WAKER, Op::PollIn(self.wake.clone()));
        }
        if self.accept_paused_until.is_some_and(|until| now >= until) {
            self.accept_paused_until = None;
        }
        if let (Some(listener), None, None) =
            (&self.listener, self.accepting, self.accept_paused_until)
        {
            self.accepting = Some(self.ring.start(LISTENER, Op::Accept(listener.clone())));
        }
        while let Some(conn) = self.starved.pop_front().or_else(|| self.due.pop_front()) {
            self.start_due_of(conn);
        }
    }

    fn start_due_of(&mut self, conn: ConnId) {
        let Some(stream) = self.streams.get_mut(index_of(conn)).filter(|s| s.id == conn) else {
            return;
        };
        stream.is_due = false;
        let incoming = if stream.wants_dial() {
            Some(Op::PollOut(stream.socket.clone()))
        } else if stream.wants_receive() {
            Some(Op::Receive(stream.socket.clone()))
        } else {
            None
        };
        if let Some(op) = incoming {
            let op = self.ring.start(conn.0, op);
            stream.incoming = Some(Incoming { op, is_cancelled: false, has_fed: false });
        }
        if stream.wants_send() {
            let batch = Batch::take(&mut stream.queue);
            let bytes = batch.unsent_bytes();
            let op = self.ring.start(conn.0, Op::Send(stream.socket.clone(), batch));
            stream.sending = Some(Sending { op, bytes, is_cancelled: false });
        }
    }

    /// Enters the kernel.
    fn enter(&mut self, wait_until: Option<Nanos>) {
        if let Err(e) = self.ring.enter(wait_until) {
            // Polled from two threads, or the ring is broken: nothing would ever move again.
            panic!("io_uring_enter: {}", os_text(e));
        }
    }

    /// Takes all completions.
    fn reap(&mut self) {
        loop {
            while let Some(completion) = self.ring.next() {
                self.completed(completion);
            }
            if !self.ring.has_overflow() {
                return;
            }
            self.enter(None);
        }
    }

    fn completed(&mut self, Completion { token, outcome, done }: Completion) {
        match token {
            WAKER => self.is_waking &= done.is_none(),
            LISTENER => self.accepted(outcome, done.is_some()),
            CANCEL => {}
            id => {
                let conn = ConnId(id);
                match done {
                    Some(Op::Send(_, batch)) => self.sent(conn, &outcome, batch),
                    Some(Op::PollOut(_)) => self.dialled(conn, &outcome),
                    done => self.received(conn, outcome, done.is_some()),
                }
                self.look_at(conn);
            }
        }
    }

    fn accepted(&mut self, outcome: Outcome, is_last: bool) {
        if is_last {
            self.accepting = None;
        }
        match outcome {
            Outcome::Accepted(socket) => {
                let is_tcp = |listener: &Arc<BoundListener>| {
                    matches!(listener.local_endpoint(), Endpoint::Tcp(_))
                };
                if self.listener.as_ref().is_some_and(is_tcp) {
                    // It fails only for a connection that is dead already.
                    let _ = sockopt::set_tcp_nodelay(&socket, true);
                }
                let queue = SendQueue::default();
                let conn = self.insert(socket, StreamState::Open, Filter::Plain, queue);
                if let Some(stream) = self.stream_mut(conn) {
                    stream.news = Some(News::Accepted);
                }
                self.look_at(conn);
            }
            Outcome::Failed(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                self.accept_paused_until = Some(boottime() + ACCEPT_PAUSE);
            }
            // It was stopped, or a connection failed before it was accepted: on to the next.
            Outcome::Failed(_) | Outcome::Number(_) | Outcome::Received(_) => {}
        }
    }

    /// The outcome of a dial is known.
    fn dialled(&mut self, conn: ConnId, outcome: &Outcome) {
        let Some(stream) = self.stream_mut(conn) else { return };
        stream.incoming = None;
        let StreamState::Dialling(endpoint) = &stream.state else { return };
        if matches!(outcome, Outcome::Failed(_)) {
            // Cancelled; whoever did that knows how to go on.
            return;
        }
        match dial_result(&stream.socket) {
            Ok(()) => {
                stream.news = Some(News::Connected(endpoint.clone()));
                stream.state = StreamState::Open;
            }
            Err(reason) => {
                stream.end = Some(CloseReason::DialFailed(format!("{endpoint}: {reason}")));
            }
        }
    }

    /// A send has ended: what it did not send goes before what was queued meanwhile.
    fn sent(&mut self, conn: ConnId, outcome: &Outcome, batch: Batch) {
        let Some(stream) = self.streams.get_mut(index_of(conn)).filter(|s| s.id == conn) else {
            return;
        };
        stream.sending = None;
        let mut rest = batch.into_queue();
        if let Outcome::Number(sent) = outcome {
            let spares = &mut self.spares;
            rest.advance_into(*sent as usize, |mut buffer| {
                if spares.len() < MAX_SPARES && buffer.capacity() <= MAX_SPARE_BYTES {
                    buffer.clear();
                    spares.push(buffer);
                }
            });
        }
        let is_broken = matches!(stream.state, StreamState::Broken(_));
        match outcome {
            Outcome::Failed(e) if !is_passing(*e) => self.break_stream(conn, writing_failed(*e)),
            _ if is_broken => {}
            _ => stream.queue.put_front(rest),
        }
    }

    /// Writing failed. What is queued cannot leave any more; what came in is still to be read.
    fn break_stream(&mut self, conn: ConnId, reason: String) {
        let Some(stream) = self.streams.get_mut(index_of(conn)).filter(|s| s.id == conn) else {
            return;
        };
        stream.queue.clear();
        if !matches!(stream.state, StreamState::Broken(_)) {
            stream.state = StreamState::Broken(reason);
        }
        cancel_incoming(&mut self.ring, stream);
    }

    fn received(&mut self, conn: ConnId, outcome: Outcome, is_last: bool) {
        let Some(stream) = self.streams.get_mut(index_of(conn)).filter(|s| s.id == conn) else {
            if let Outcome::Received(filled) = outcome {
                self.scratch.clear();
                self.ring.take_bytes(filled, &mut self.scratch);
            }
            return;
        };
        let mut has_fed = matches!(outcome, Outcome::Received(_));
        if let Some(incoming) = &mut stream.incoming {
            incoming.has_fed |= has_fed;
            has_fed = incoming.has_fed;
        }
        if is_last {
            stream.incoming = None;
        }
        match outcome {
            Outcome::Received(filled) => self.take_in(conn, filled),
            Outcome::Failed(Errno::NOBUFS) => {
                if !has_fed && !stream.is_due && stream.wants_receive() {
                    stream.is_due = true;
                    self.starved.push_back(conn);
                }
            }
            Outcome::Failed(e) if is_passing(e) => {}
            Outcome::Failed(e) => stream.end = Some(reading_failed(e)),
            Outcome::Number(_) => stream.end = Some(CloseReason::Eof),
            Outcome::Accepted(_) => {}
        }
    }

    /// Moves received bytes to the stream's inbox.
    fn take_in(&mut self, conn: ConnId, filled: Filled) {
        let Some(stream) = self.streams.get_mut(index_of(conn)).filter(|s| s.id == conn) else {
            return;
        };
        let ring = &mut self.ring;
        if stream.filter.is_plain() {
            stream.inbox.append(filled.len(), |chunk| ring.take_bytes(filled, chunk));
        } else {
            let mut bytes = Vec::new();
            let mut answer = Vec::new();
            ring.take_bytes(filled, &mut bytes);
            if let Err(reason) = stream.filter.incoming(&mut bytes, &mut answer) {
                stream.end = Some(CloseReason::Failed(reason));
            } else if !bytes.is_empty() {
                stream.inbox.append(bytes.len(), |chunk| chunk.append(&mut bytes));
            }
            stream.queue.push(&mut answer, 0);
        }
        if stream.is_overfull() {
            cancel_incoming(ring, stream);
        }
    }

    /// Reports, of each stream that has something to report, one thing.
    fn report<M>(&mut self, events: &mut Vec<Event<M>>) {
        for _ in 0..self.ready.len().min(MAX_EVENTS) {
            let Some(conn) = self.ready.pop_front() else { return };
            let Some(stream) = self.stream_mut(conn) else { continue };
            stream.is_ready = false;
            let event = match stream.news.take() {
                Some(News::Accepted) => Some(Event::Accepted { conn }),
                Some(News::Connected(_)) => Some(Event::Connected { conn }),
                None => match stream.inbox.pop() {
                    Some(bytes) => Some(Event::Received { conn, bytes }),
                    None => self.report_end(conn),
                },
            };
            events.extend(event);
            self.look_at(conn);
        }
    }

    /// Nothing is left in the inbox: the end, if it has come to that.
    fn report_end<M>(&mut self, conn: ConnId) -> Option<Event<M>> {
        let stream = self.streams.get_mut(index_of(conn)).filter(|s| s.id == conn)?;
        let reason = match (stream.end.take(), &stream.state) {
            (Some(reason), _) => reason,
            // No receive is under way any more: what is left is read by hand.
            (None, StreamState::Broken(reason)) => {
                match read_chunk(&stream.socket, &mut self.scratch) {
                    ReadOutcome::Bytes(mut bytes) => {
                        let mut answer = Vec::new();
                        match stream.filter.incoming(&mut bytes, &mut answer) {
                            Ok(()) if bytes.is_empty() => return None,
                            Ok(()) => return Some(Event::Received { conn, bytes }),
                            Err(reason) => CloseReason::Failed(reason),
                        }
                    }
                    ReadOutcome::Nothing => CloseReason::Failed(reason.clone()),
                    ReadOutcome::Ended(reason) => reason,
                }
            }
            (None, _) => return None,
        };
        let mut stream = self.remove(conn)?;
        // Their last completions come to nobody.
        end_sending(&stream);
        cancel_incoming(&mut self.ring, &mut stream);
        cancel_sending(&mut self.ring, &mut stream);
        Some(Event::Closed { conn, reason })
    }

    /// Cancels what a stream has under way and takes the last completions of it.
    fn settle(&mut self, conn: ConnId) {
        loop {
            let Some(stream) = self.streams.get_mut(index_of(conn)).filter(|s| s.id == conn) else {
                return;
            };
            if stream.incoming.is_none() && stream.sending.is_none() {
                return;
            }
            cancel_incoming(&mut self.ring, stream);
            cancel_sending(&mut self.ring, stream);
            self.enter(None);
            self.reap();
        }
    }
}

/// Ends the incoming operation early, once.
fn cancel_incoming(ring: &mut Ring, stream: &mut Stream) {
    if let Some(incoming) = &mut stream.incoming
        && !std::mem::replace(&mut incoming.is_cancelled, true)
    {
        ring.start(CANCEL, Op::Cancel(incoming.op));
    }
}

/// Ends the send early, once.
fn cancel_sending(ring: &mut Ring, stream: &mut Stream) {
    if let Some(sending) = &mut stream.sending
        && !std::mem::replace(&mut sending.is_cancelled, true)
    {
        ring.start(CANCEL, Op::Cancel(sending.op));
    }
}

/// Makes a send that waits fail, of a stream that is about to be gone. What the kernel has taken
/// still leaves.
fn end_sending(stream: &Stream) {
    if stream.sending.is_some() {
        let _ = net::shutdown(&stream.socket, Shutdown::Both);
    }
}

/// Whether an operation that ended this way may be started again.
fn is_passing(e: Errno) -> bool {
    matches!(e, Errno::CANCELED | Errno::AGAIN | Errno::INTR | Errno::NOBUFS | Errno::NOMEM)
}
