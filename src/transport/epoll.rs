#![forbid(unsafe_code)]
//! The driver on epoll: works on every Linux, also where io_uring is forbidden.
//!
//! # Words and states
//! A stream is **dialling** until its socket can be written, then **open**; it becomes **broken**
//! when a write fails: what has come in is still reported, one chunk a poll, and then its end. The
//! **rest** is what was written and the kernel has not taken.
//!
//! # Choices
//! - Level-triggered. One read per readable stream per poll, of at most [`READ_CHUNK_BYTES`]; the
//!   kernel then moves a stream that has more to the end of its ready list, so a busy stream waits
//!   for all others. No readiness has to be remembered here.
//! - A write goes to the kernel at once. Interest in writability is registered only while there is
//!   a rest, and the rest leaves in gathered writes.
//! - A [`ConnId`] is a serial number and an index. Serials are never used again, so a late event or
//!   call for a stream that is gone finds nothing.
//! - Waiting ends by a timerfd on CLOCK_BOOTTIME: exact to the nanosecond, and right across a
//!   suspend, which epoll's own time-out is not. It is set only when the instant changed.
//! - The waker is an eventfd, registered edge-triggered so that it never has to be read.
//! - When accepting fails for want of descriptors or memory, the listener is taken out of the poll
//!   set for [`ACCEPT_PAUSE`] (or until a stream here closes): those who wait stay in the backlog,
//!   and the core does not spin on an error.
//!
//! # When it ends
//! Dropping the driver closes all sockets and removes the file of a Unix listener. After a crash
//! the kernel does the first, and the next listener on the path the second.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::net::{self, Shutdown, SocketFlags, sockopt};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use slab::Slab;

use crate::env::{CloseReason, ConnId, Endpoint, Event};
use crate::error::Error;
use crate::time::Nanos;
use crate::transport::driver::{Driver, StreamParts, StreamState, Waker};
use crate::transport::filter::Filter;
use crate::transport::listen::{BoundListener, os_text};
use crate::transport::send_queue::SendQueue;
use crate::transport::socket::{
    ACCEPT_PAUSE, READ_CHUNK_BYTES, ReadOutcome, conn_id, dial_result, discard_unread, flush,
    index_of, read_chunk, send_now, start_dial,
};

/// Streams accepted in one poll, at most.
const MAX_ACCEPTS: usize = 32;
/// Kernel events taken in one poll, at most.
const MAX_EVENTS: usize = 256;
// Event data that is no stream: serials start at 1, so no id is this small.
const WAKER: u64 = 0;
const TIMER: u64 = 1;
const LISTENER: u64 = 2;

/// See the module's head.
#[derive(Debug)]
pub struct Epoll {
    epoll: OwnedFd,
    wake: Arc<OwnedFd>,
    timer: OwnedFd,
    /// What the timer was set to last.
    timer_at: Nanos,
    listener: Option<BoundListener>,
    /// The listener is out of the poll set until then.
    accept_paused_until: Option<Nanos>,
    streams: Slab<Stream>,
    next_serial: u64,
    /// Ends that were found outside a poll.
    ended: Vec<(ConnId, CloseReason)>,
    /// Streams in state broken.
    broken: Vec<ConnId>,
    scratch: Vec<u8>,
}

#[derive(Debug)]
struct Stream {
    id: ConnId,
    socket: OwnedFd,
    state: StreamState,
    filter: Filter,
    rest: SendQueue,
    /// What the poll set has; empty when the stream is not in it.
    interest: EventFlags,
}

impl Driver for Epoll {
    fn new() -> Result<Self, Error> {
        let make = || {
            let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
            let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
            let timer = timerfd_create(
                TimerfdClockId::Boottime,
                TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
            )?;
            let edge = EventFlags::IN | EventFlags::ET;
            epoll::add(&epoll, &wake, EventData::new_u64(WAKER), edge)?;
            epoll::add(&epoll, &timer, EventData::new_u64(TIMER), edge)?;
            Ok((epoll, wake, timer))
        };
        let (epoll, wake, timer) = make().map_err(|e: Errno| {
            Error::internal(format!("cannot set up epoll for a core: {}", os_text(e)))
        })?;
        Ok(Self {
            epoll,
            wake: Arc::new(wake),
            timer,
            timer_at: Nanos::ZERO,
            listener: None,
            accept_paused_until: None,
            streams: Slab::new(),
            next_serial: 1,
            ended: Vec::new(),
            broken: Vec::new(),
            scratch: Vec::with_capacity(READ_CHUNK_BYTES),
        })
    }

    fn waker(&self) -> Waker {
        Waker(self.wake.clone())
    }

    fn listen(&mut self, listener: BoundListener) -> Result<(), Error> {
        self.stop_listening();
        self.watch_listener(&listener).map_err(|e| {
            let endpoint = listener.local_endpoint();
            Error::internal(format!("cannot accept on {endpoint}: {}", os_text(e)))
        })?;
        self.listener = Some(listener);
        Ok(())
    }

    fn stop_listening(&mut self) {
        if let Some(listener) = self.listener.take() {
            // It is out of the poll set already while accepting pauses.
            let _ = epoll::delete(&self.epoll, listener.socket());
        }
        self.accept_paused_until = None;
    }

    fn dial(&mut self, endpoint: &Endpoint) -> ConnId {
        let failed = |reason| CloseReason::DialFailed(format!("{endpoint}: {reason}"));
        let (id, _) = self.next_id();
        match start_dial(endpoint) {
            Ok(socket) => {
                let state = StreamState::Dialling(endpoint.clone());
                self.insert(socket, state, Filter::Plain, SendQueue::default())
            }
            Err(reason) => {
                self.next_serial += 1;
                self.ended.push((id, failed(reason)));
                id
            }
        }
    }

    fn write(&mut self, conn: ConnId, bytes: &mut Vec<u8>) {
        let Some(stream) = self.stream_mut(conn) else {
            bytes.clear();
            return;
        };
        stream.filter.outgoing(bytes);
        if let Err(reason) = stream.write(bytes) {
            bytes.clear();
            self.break_stream(conn, reason);
        }
        self.update_interest(conn);
    }

    fn unsent_bytes(&self, conn: ConnId) -> usize {
        self.stream(conn).map_or(0, |stream| stream.rest.unsent_bytes())
    }

    fn close(&mut self, conn: ConnId, flush: bool) {
        self.ended.retain(|(id, _)| *id != conn);
        let Some(mut stream) = self.remove(conn) else { return };
        if flush && stream.state == StreamState::Open && stream.flush().is_ok() {
            // A socket closed with bytes unread resets the connection, which can destroy what was
            // just flushed before the peer has read it.
            let _ = net::shutdown(&stream.socket, Shutdown::Write);
            discard_unread(&stream.socket, &mut self.scratch);
        }
    }

    fn take_out(&mut self, conn: ConnId, _unread: &mut Vec<u8>) -> Option<StreamParts> {
        let stream = self.remove(conn)?;
        if !stream.interest.is_empty() {
            // The socket lives on, so it has to be taken out of the poll set by hand.
            let _ = epoll::delete(&self.epoll, &stream.socket);
        }
        Some(StreamParts {
            socket: stream.socket,
            state: stream.state,
            filter: stream.filter,
            unsent: stream.rest.into_chunks(),
        })
    }

    fn adopt(&mut self, parts: StreamParts) -> ConnId {
        let rest = SendQueue::from_chunks(parts.unsent);
        self.insert(parts.socket, parts.state, parts.filter, rest)
    }

    fn has_due(&self) -> bool {
        // Calls go to the kernel when they are made.
        false
    }

    fn poll<M>(&mut self, events: &mut Vec<Event<M>>, now: Nanos, wait_until: Option<Nanos>) {
        let before = events.len();
        self.report_ended(events);
        self.read_broken(events);
        self.resume_accepting(now);
        let wait_until = wait_until.filter(|_| events.len() == before && self.broken.is_empty());
        let waits = wait_until.is_some_and(|until| self.set_timer(until));
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut room = [const { MaybeUninit::uninit() }; MAX_EVENTS];
        let timeout = if waits { None } else { Some(&at_once) };
        // An interrupted wait is an early return.
        let Ok((ready, _)) = epoll::wait(&self.epoll, &mut room, timeout) else { return };
        for event in ready {
            match event.data.u64() {
                WAKER => {}
                TIMER => self.timer_at = Nanos::ZERO,
                LISTENER => self.accept(events, now),
                id => self.stream_ready(ConnId(id), event.flags, events),
            }
        }
    }
}

impl Epoll {
    /// The id a stream inserted next would get, and its index.
    fn next_id(&self) -> (ConnId, usize) {
        let index = self.streams.vacant_key();
        (conn_id(self.next_serial, index), index)
    }

    fn stream(&self, conn: ConnId) -> Option<&Stream> {
        self.streams.get(index_of(conn)).filter(|stream| stream.id == conn)
    }

    fn stream_mut(&mut self, conn: ConnId) -> Option<&mut Stream> {
        self.streams.get_mut(index_of(conn)).filter(|stream| stream.id == conn)
    }

    /// Puts a stream in; when the kernel refuses it, its end is reported by the next poll.
    fn insert(
        &mut self,
        socket: OwnedFd,
        state: StreamState,
        filter: Filter,
        rest: SendQueue,
    ) -> ConnId {
        let (id, _) = self.next_id();
        self.next_serial += 1;
        if let StreamState::Ended(reason) = state {
            self.ended.push((id, reason));
            return id;
        }
        let broken = matches!(state, StreamState::Broken(_));
        let stream = Stream { id, socket, state, filter, rest, interest: EventFlags::empty() };
        self.streams.insert(stream);
        if broken {
            self.broken.push(id);
        } else {
            self.update_interest(id);
        }
        id
    }

    /// Takes a stream out of the table. Its socket stays in the poll set until it is closed.
    fn remove(&mut self, conn: ConnId) -> Option<Stream> {
        self.stream(conn)?;
        let stream = self.streams.remove(index_of(conn));
        if matches!(stream.state, StreamState::Broken(_)) {
            self.broken.retain(|id| *id != conn);
        }
        // A descriptor is about to be free: accepting may go on.
        if let Some(until) = &mut self.accept_paused_until {
            *until = Nanos::ZERO;
        }
        Some(stream)
    }

    /// Makes the poll set agree with the stream's state.
    fn update_interest(&mut self, conn: ConnId) {
        let index = index_of(conn);
        let Some(stream) = self.streams.get_mut(index).filter(|stream| stream.id == conn) else {
            return;
        };
        let wanted = stream.wanted_interest();
        if wanted == stream.interest {
            return;
        }
        let data = EventData::new_u64(conn.0);
        let result = if stream.interest.is_empty() {
            epoll::add(&self.epoll, &stream.socket, data, wanted)
        } else if wanted.is_empty() {
            epoll::delete(&self.epoll, &stream.socket)
        } else {
            epoll::modify(&self.epoll, &stream.socket, data, wanted)
        };
        match result {
            Ok(()) => stream.interest = wanted,
            Err(e) => {
                let reason = CloseReason::Failed(format!("epoll refuses it: {}", os_text(e)));
                self.remove(conn);
                self.ended.push((conn, reason));
            }
        }
    }

    /// Writing failed. What is queued cannot leave any more; what came in is still to be read.
    fn break_stream(&mut self, conn: ConnId, reason: String) {
        let Some(stream) = self.stream_mut(conn) else { return };
        stream.rest.clear();
        stream.state = StreamState::Broken(reason);
        self.broken.push(conn);
    }

    fn report_ended<M>(&mut self, events: &mut Vec<Event<M>>) {
        events.extend(self.ended.drain(..).map(|(conn, reason)| Event::Closed { conn, reason }));
    }

    fn read_broken<M>(&mut self, events: &mut Vec<Event<M>>) {
        for i in (0..self.broken.len()).rev() {
            let conn = self.broken[i];
            match self.read(conn) {
                ReadOutcome::Bytes(bytes) => events.push(Event::Received { conn, bytes }),
                ReadOutcome::Ended(reason) => self.end(conn, reason, events),
                ReadOutcome::Nothing => {
                    let reason = match self.stream(conn).map(|stream| &stream.state) {
                        Some(StreamState::Broken(reason)) => reason.clone(),
                        _ => unreachable!("the list names broken streams only"),
                    };
                    self.end(conn, CloseReason::Failed(reason), events);
                }
            }
        }
    }

    fn end<M>(&mut self, conn: ConnId, reason: CloseReason, events: &mut Vec<Event<M>>) {
        if self.remove(conn).is_some() {
            events.push(Event::Closed { conn, reason });
        }
    }

    /// Sets the timer to `until`, or to when accepting goes on; `false` when that cannot be waited
    /// for.
    fn set_timer(&mut self, until: Nanos) -> bool {
        let at = self.accept_paused_until.map_or(until, |resume| resume.min(until));
        if at == Nanos::ZERO {
            return false;
        }
        if at == self.timer_at {
            return true;
        }
        // What lies beyond the kernel's range (292 years) is as good as never.
        let ns = i64::try_from(at.0).unwrap_or(i64::MAX);
        let value = Timespec { tv_sec: ns / 1_000_000_000, tv_nsec: ns % 1_000_000_000 };
        let interval = Timespec { tv_sec: 0, tv_nsec: 0 };
        let spec = Itimerspec { it_interval: interval, it_value: value };
        let set = timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &spec).is_ok();
        self.timer_at = if set { at } else { Nanos::ZERO };
        set
    }

    fn watch_listener(&self, listener: &BoundListener) -> Result<(), Errno> {
        let data = EventData::new_u64(LISTENER);
        epoll::add(&self.epoll, listener.socket(), data, EventFlags::IN)
    }

    fn accept<M>(&mut self, events: &mut Vec<Event<M>>, now: Nanos) {
        for _ in 0..MAX_ACCEPTS {
            let Some(listener) = &self.listener else { return };
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            match net::accept_with(listener.socket(), flags) {
                Ok(socket) => {
                    if matches!(listener.local_endpoint(), Endpoint::Tcp(_)) {
                        // It fails only for a connection that is dead already.
                        let _ = sockopt::set_tcp_nodelay(&socket, true);
                    }
                    let rest = SendQueue::default();
                    let conn = self.insert(socket, StreamState::Open, Filter::Plain, rest);
                    events.push(Event::Accepted { conn });
                }
                Err(Errno::AGAIN) => return,
                Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                    if epoll::delete(&self.epoll, listener.socket()).is_ok() {
                        self.accept_paused_until = Some(now + ACCEPT_PAUSE);
                    }
                    return;
                }
                // The connection failed before it was accepted: on to the next.
                Err(_) => {}
            }
        }
    }

    fn resume_accepting(&mut self, now: Nanos) {
        if self.accept_paused_until.is_none_or(|until| now < until) {
            return;
        }
        let Some(listener) = &self.listener else { return };
        self.accept_paused_until = match self.watch_listener(listener) {
            Ok(()) => None,
            Err(_) => Some(now + ACCEPT_PAUSE),
        };
    }

    /// Handles one kernel event of a stream: at most one event comes of it.
    fn stream_ready<M>(&mut self, conn: ConnId, flags: EventFlags, events: &mut Vec<Event<M>>) {
        let Some(stream) = self.stream_mut(conn) else { return };
        if matches!(stream.state, StreamState::Dialling(_)) {
            self.finish_dial(conn, events);
            return;
        }
        if flags.contains(EventFlags::OUT)
            && let Err(reason) = stream.flush()
        {
            self.break_stream(conn, reason);
        }
        self.update_interest(conn);
        if flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR | EventFlags::RDHUP)
        {
            match self.read(conn) {
                ReadOutcome::Bytes(bytes) => events.push(Event::Received { conn, bytes }),
                ReadOutcome::Nothing => {}
                ReadOutcome::Ended(reason) => self.end(conn, reason, events),
            }
        }
    }

    fn finish_dial<M>(&mut self, conn: ConnId, events: &mut Vec<Event<M>>) {
        let Some(stream) = self.stream_mut(conn) else { return };
        let StreamState::Dialling(endpoint) = &stream.state else { return };
        if let Err(reason) = dial_result(&stream.socket) {
            let reason = CloseReason::DialFailed(format!("{endpoint}: {reason}"));
            self.end(conn, reason, events);
            return;
        }
        stream.state = StreamState::Open;
        if let Err(reason) = stream.flush() {
            self.break_stream(conn, reason);
        }
        self.update_interest(conn);
        events.push(Event::Connected { conn });
    }

    /// Reads one chunk.
    fn read(&mut self, conn: ConnId) -> ReadOutcome {
        let Some(stream) = self.streams.get_mut(index_of(conn)).filter(|s| s.id == conn) else {
            return ReadOutcome::Nothing;
        };
        let mut bytes = match read_chunk(&stream.socket, &mut self.scratch) {
            ReadOutcome::Bytes(bytes) => bytes,
            other => return other,
        };
        let mut answer = Vec::new();
        if let Err(reason) = stream.filter.incoming(&mut bytes, &mut answer) {
            return ReadOutcome::Ended(CloseReason::Failed(reason));
        }
        if !answer.is_empty() {
            if let Err(reason) = stream.write(&mut answer) {
                self.break_stream(conn, reason);
            }
            self.update_interest(conn);
        }
        if bytes.is_empty() { ReadOutcome::Nothing } else { ReadOutcome::Bytes(bytes) }
    }
}

impl Stream {
    fn wanted_interest(&self) -> EventFlags {
        match self.state {
            StreamState::Dialling(_) => EventFlags::OUT,
            StreamState::Open if self.rest.is_empty() => EventFlags::IN,
            StreamState::Open => EventFlags::IN | EventFlags::OUT,
            StreamState::Broken(_) | StreamState::Ended(_) => EventFlags::empty(),
        }
    }

    /// Sends or queues `bytes` and leaves it empty.
    fn write(&mut self, bytes: &mut Vec<u8>) -> Result<(), String> {
        let mut sent = 0;
        match self.state {
            StreamState::Broken(_) | StreamState::Ended(_) => {
                bytes.clear();
                return Ok(());
            }
            StreamState::Open if self.rest.is_empty() && !bytes.is_empty() => {
                sent = send_now(&self.socket, &[IoSlice::new(bytes)])?;
            }
            StreamState::Open | StreamState::Dialling(_) => {}
        }
        self.rest.push(bytes, sent);
        Ok(())
    }

    /// Sends of the rest what the kernel takes.
    fn flush(&mut self) -> Result<(), String> {
        flush(&self.socket, &mut self.rest)
    }
}
