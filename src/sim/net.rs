#![forbid(unsafe_code)]
//! Streams between nodes: ordered bytes that come in other pieces than they went, late, and
//! sometimes not to the end.
//!
//! A stream has two ends and two directions. What is written goes into the direction's queue (the
//! writer's side, `unsent_bytes`); the window takes bytes out of it into flight, cut and joined at
//! random; each chunk arrives after a random delay, never before the one ahead of it; its share of
//! the window comes back when the receiving core polls it. A paused or stalled reader therefore
//! pushes back on its writer as a kernel's buffers do.
//!
//! An end is `Open`, then `Ending` (a `Closed` event waits in the inbox), then `Gone`. A stream is
//! forgotten when both ends are gone. A `ConnId` is (stream, side, number of hand-overs), so an id
//! is never used again.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::BytesMut;

use super::fault::NodeIx;
use super::rng::SimRng;
use super::state::{Due, Phase, State, conn_of};
use super::trace::{NONE, TraceKind, digest_bytes};
use crate::env::{CloseReason, ConnId, Endpoint, Event};
use crate::time::Nanos;

/// How long a dial into silence lasts.
const DIAL_TIMEOUT: Duration = Duration::from_secs(30);
/// Pause between two attempts of a dial to get through.
const DIAL_RETRY: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndState {
    Open,
    Ending,
    Gone,
}

#[derive(Debug)]
pub(super) struct End {
    pub(super) node: u16,
    pub(super) life: u32,
    pub(super) core: u16,
    pub(super) conn: ConnId,
    pub(super) state: EndState,
    pub(super) hand_overs: u64,
    /// Under way to another core: its tag and unread bytes.
    pub(super) transit: Option<(u64, Vec<u8>)>,
    /// What waited in the old core's inbox.
    pub(super) moved: Vec<Moved>,
    /// Poll of the core that reported an event of this end last.
    pub(super) polled: u64,
}

/// An event of a stream without its mail type.
#[derive(Debug)]
pub(super) enum Moved {
    Received(Vec<u8>),
    Closed(CloseReason),
}

#[derive(Debug)]
pub(super) enum Item {
    Bytes(Vec<u8>),
    Fin,
    Reset,
}

#[derive(Debug)]
pub(super) struct Dir {
    pub(super) queue: BytesMut,
    pub(super) flight: VecDeque<(Nanos, Item)>,
    /// Bytes taken from the queue and not polled by the receiver.
    pub(super) in_flight: usize,
    pub(super) window: usize,
    pub(super) last_at: Nanos,
    pub(super) scheduled: bool,
    /// The next chunk cannot arrive: a partition, or the end is under way to another core.
    pub(super) held: bool,
    /// Nothing more goes this way.
    pub(super) shut: bool,
}

impl Dir {
    fn new(window: usize) -> Self {
        Self {
            queue: BytesMut::new(),
            flight: VecDeque::new(),
            in_flight: 0,
            window,
            last_at: Nanos::ZERO,
            scheduled: false,
            held: false,
            shut: false,
        }
    }
}

/// One stream.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(super) ends: [End; 2],
    /// `dirs[i]` goes from end `i` to the other.
    pub(super) dirs: [Dir; 2],
    pub(super) connected: bool,
    pub(super) dialled_at: Nanos,
    pub(super) target: u16,
    /// A host is down without a word.
    pub(super) silent: bool,
    /// The trouble that says so in the history, from the first end's end to the last one's.
    pub(super) lost: Option<usize>,
}

const SIDE_BIT: u64 = 1 << 16;

pub(super) fn conn_id(stream: u64, side: usize, hand_overs: u64) -> ConnId {
    ConnId((stream << 17) | ((side as u64) * SIDE_BIT) | (hand_overs & (SIDE_BIT - 1)))
}

fn split_conn(conn: ConnId) -> (u64, usize) {
    (conn.0 >> 17, usize::from(conn.0 & SIDE_BIT != 0))
}

pub(super) fn end_code(stream: u64, side: usize) -> u64 {
    (stream << 1) | side as u64
}

impl<M> State<M> {
    pub(super) fn end(&mut self, conn: ConnId) -> Option<(u64, usize, &mut Stream)> {
        let (id, side) = split_conn(conn);
        let s = self.streams.get_mut(&id)?;
        (s.ends[side].conn == conn && s.ends[side].state != EndState::Gone).then_some((id, side, s))
    }

    /// Asserts that a core uses only streams of its own: over the kernel it could not.
    pub(crate) fn assert_own(&self, conn: ConnId, node: u16, core: u16) {
        let (id, side) = split_conn(conn);
        if let Some(end) = self.streams.get(&id).map(|s| &s.ends[side]) {
            assert!(
                end.conn != conn || (end.node, end.core) == (node, core),
                "n{node}.{core} used a stream of n{}.{}: {conn:?}",
                end.node,
                end.core
            );
        }
    }

    fn latency(&mut self, a: u16, b: u16) -> Duration {
        let mut d = self.net_rng.duration(self.rates.latency);
        if self.net_rng.chance(self.rates.spike_per_million) {
            d += self.net_rng.duration(self.rates.spike);
        }
        if !self.delays.is_empty() {
            let (local, pair) = (self.local, (a.min(b), a.max(b)));
            self.delays.retain(|&(_, _, until)| until > local);
            d += self.delays.iter().filter(|x| x.0 == pair).map(|x| x.1).sum::<Duration>();
        }
        d
    }

    fn is_blocked(&self, from: u16, to: u16) -> bool {
        !self.blocked.is_empty() && self.blocked.contains_key(&(from, to))
    }

    // ---- dialling -------------------------------------------------------------------------

    pub(crate) fn dial(&mut self, node: u16, core: u16, endpoint: &Endpoint) -> ConnId {
        let id = self.next_stream;
        self.next_stream += 1;
        let life = self.nodes[usize::from(node)].life;
        let target = self.nodes.iter().position(|n| n.endpoint == *endpoint);
        let target = target.map_or(NONE, |n| n as u16);
        let (low, high) = self.rates.window_bytes;
        let window = |rng: &mut SimRng| {
            low as usize + rng.below(u64::from(high.saturating_sub(low)) + 1) as usize
        };
        let windows = [window(&mut self.net_rng), window(&mut self.net_rng)];
        let end = |node, life, core, side, state| End {
            node,
            life,
            core,
            conn: conn_id(id, side, 0),
            state,
            hand_overs: 0,
            transit: None,
            moved: Vec::new(),
            polled: 0,
        };
        let stream = Stream {
            ends: [end(node, life, core, 0, EndState::Open), end(target, 0, 0, 1, EndState::Gone)],
            dirs: windows.map(|w| Dir::new(w.max(1))),
            connected: false,
            dialled_at: self.local,
            target,
            silent: false,
            lost: None,
        };
        self.streams.insert(id, stream);
        self.note_step(TraceKind::Dial, node, core, id, u64::from(target));
        let latency = self.latency(node, target);
        self.schedule(self.local + latency, Due::DialArrives { stream: id });
        conn_id(id, 0, 0)
    }

    pub(crate) fn dial_arrives(&mut self, id: u64) {
        let Some(s) = self.streams.get(&id) else { return };
        let (node, target, since) = (s.ends[0].node, s.target, s.dialled_at);
        if s.ends[0].state == EndState::Gone {
            self.forget(id);
            return;
        }
        let host = self.nodes.get(usize::from(target));
        let reachable = host.is_some_and(|n| !n.host_down)
            && !self.is_blocked(node, target)
            && !self.is_blocked(target, node);
        if host.is_some() && !reachable {
            if self.now.since(since) < DIAL_TIMEOUT {
                self.schedule(self.now + DIAL_RETRY, Due::DialArrives { stream: id });
            } else {
                self.dial_failed(id, "the dial timed out");
            }
            return;
        }
        let listens = host.is_some_and(|n| n.listening && n.phase == Phase::Up);
        let latency = self.latency(node, target);
        let at = self.now + latency;
        if listens {
            let life = self.nodes[usize::from(target)].life;
            let Some(s) = self.streams.get_mut(&id) else { return };
            let end = &mut s.ends[1];
            (end.life, end.state) = (life, EndState::Open);
            let conn = end.conn;
            s.dirs[1].last_at = at;
            self.note_step(TraceKind::Accepted, target, 0, id, 0);
            self.push_event(target, 0, Event::Accepted { conn });
        }
        self.schedule(at, Due::DialAnswered { stream: id });
    }

    pub(crate) fn dial_answered(&mut self, id: u64) {
        let Some(s) = self.streams.get_mut(&id) else { return };
        if s.connected || s.ends[0].state != EndState::Open {
            return;
        }
        if s.target == NONE || s.ends[1].life == 0 {
            self.dial_failed(id, "connection refused");
            return;
        }
        if s.silent {
            return;
        }
        s.connected = true;
        let (node, core, conn) = (s.ends[0].node, s.ends[0].core, s.ends[0].conn);
        self.note_step(TraceKind::Connected, node, core, id, 0);
        self.push_event(node, core, Event::Connected { conn });
        self.pump(id, 0);
    }

    fn dial_failed(&mut self, id: u64, why: &str) {
        let Some(s) = self.streams.get_mut(&id) else { return };
        let end = &mut s.ends[0];
        if end.state != EndState::Open {
            return;
        }
        end.state = EndState::Ending;
        let (node, core, conn) = (end.node, end.core, end.conn);
        self.note_step(TraceKind::DialFailed, node, core, id, 0);
        let reason = CloseReason::DialFailed(why.to_owned());
        self.push_event(node, core, Event::Closed { conn, reason });
    }

    // ---- bytes ----------------------------------------------------------------------------

    pub(crate) fn write(&mut self, conn: ConnId, bytes: &mut Vec<u8>) {
        let taken = std::mem::take(bytes);
        let Some((id, side, s)) = self.end(conn) else { return };
        if taken.is_empty() || s.ends[side].state != EndState::Open || s.dirs[side].shut {
            return;
        }
        let (node, core) = (s.ends[side].node, s.ends[side].core);
        let d = &mut s.dirs[side];
        let count = taken.len();
        let whole = d.queue.is_empty() && d.in_flight + count <= d.window && s.connected;
        if whole && !self.net_rng.chance(self.rates.split_per_million) {
            self.send(id, side, Item::Bytes(taken));
        } else if let Some(s) = self.streams.get_mut(&id) {
            s.dirs[side].queue.extend_from_slice(&taken);
            self.pump(id, side);
        }
        self.note_step(TraceKind::Write, node, core, end_code(id, side), count as u64);
    }

    pub(crate) fn unsent_bytes(&self, conn: ConnId) -> usize {
        let (id, side) = split_conn(conn);
        self.streams.get(&id).map_or(0, |s| {
            let live = s.ends[side].conn == conn && s.ends[side].state == EndState::Open;
            if live { s.dirs[side].queue.len() } else { 0 }
        })
    }

    /// Moves what the window allows from the queue into flight, cut at random.
    pub(super) fn pump(&mut self, id: u64, side: usize) {
        loop {
            let Some(s) = self.streams.get_mut(&id) else { return };
            let d = &mut s.dirs[side];
            if !s.connected || d.queue.is_empty() || d.in_flight >= d.window {
                return;
            }
            let mut count = d.queue.len().min(d.window - d.in_flight);
            if self.net_rng.chance(self.rates.split_per_million) {
                count = 1 + self.net_rng.below(count as u64) as usize;
            }
            let chunk = d.queue.split_to(count).to_vec();
            self.send(id, side, Item::Bytes(chunk));
        }
    }

    /// Puts one item into flight.
    pub(super) fn send(&mut self, id: u64, side: usize, item: Item) {
        let Some(s) = self.streams.get(&id) else { return };
        let latency = self.latency(s.ends[side].node, s.ends[1 - side].node);
        let at = self.local + latency;
        let Some(s) = self.streams.get_mut(&id) else { return };
        let d = &mut s.dirs[side];
        let at = at.max(d.last_at);
        d.last_at = at;
        if let Item::Bytes(bytes) = &item {
            d.in_flight += bytes.len();
        } else {
            d.shut = true;
        }
        d.flight.push_back((at, item));
        self.expect(id, side);
    }

    /// Schedules the arrival of the first chunk in flight.
    pub(super) fn expect(&mut self, id: u64, side: usize) {
        let Some(s) = self.streams.get_mut(&id) else { return };
        let d = &mut s.dirs[side];
        if d.scheduled || d.held {
            return;
        }
        if let Some(&(at, _)) = d.flight.front() {
            d.scheduled = true;
            self.schedule(at, Due::Deliver { stream: id, dir: side });
        }
    }

    pub(crate) fn deliver(&mut self, id: u64, side: usize) {
        let Some(s) = self.streams.get_mut(&id) else { return };
        s.dirs[side].scheduled = false;
        let (from, to) = (s.ends[side].node, s.ends[1 - side].node);
        if s.silent {
            return;
        }
        if s.ends[1 - side].transit.is_some() || self.is_blocked(from, to) {
            if let Some(s) = self.streams.get_mut(&id) {
                s.dirs[side].held = true;
            }
            return;
        }
        let Some(s) = self.streams.get_mut(&id) else { return };
        // What was thrown away meanwhile may have been what was due.
        if s.dirs[side].flight.front().is_some_and(|&(at, _)| at <= self.now)
            && let Some((_, item)) = s.dirs[side].flight.pop_front()
        {
            self.arrive(id, side, item);
        }
        self.expect(id, side);
    }

    fn arrive(&mut self, id: u64, side: usize, item: Item) {
        let Some(s) = self.streams.get_mut(&id) else { return };
        let end = &mut s.ends[1 - side];
        let (node, core, conn) = (end.node, end.core, end.conn);
        let from = s.ends[side].node;
        match item {
            Item::Bytes(mut bytes) if s.ends[1 - side].state == EndState::Open => {
                let code = end_code(id, 1 - side);
                self.note_step(TraceKind::Received, node, core, code, digest_bytes(&bytes));
                if let Some(tap) = &mut self.tap {
                    tap(self.local, NodeIx(from), NodeIx(node), end_code(id, side), &mut bytes);
                }
                self.receive(node, core, conn, bytes);
            }
            // The peer of a closed end hears of it by what that end sent last.
            Item::Bytes(bytes) => {
                s.dirs[side].in_flight -= bytes.len();
                self.pump(id, side);
            }
            Item::Fin | Item::Reset if s.ends[1 - side].state != EndState::Open => {}
            end_of_stream => {
                s.ends[1 - side].state = EndState::Ending;
                let failed = matches!(end_of_stream, Item::Reset);
                let reason = if failed {
                    CloseReason::Failed("connection reset by peer".to_owned())
                } else {
                    CloseReason::Eof
                };
                let code = end_code(id, 1 - side);
                self.note_step(TraceKind::Closed, node, core, code, u64::from(failed));
                self.push_event(node, core, Event::Closed { conn, reason });
            }
        }
    }

    /// Joins a chunk to the one before it, by chance, or puts it before the core.
    fn receive(&mut self, node: u16, core: u16, conn: ConnId, mut bytes: Vec<u8>) {
        let join = self.net_rng.below(2) == 0;
        if let Some(c) = self.nodes[usize::from(node)].cores.get_mut(usize::from(core))
            && let (true, Some(Event::Received { conn: last, bytes: tail })) =
                (join, c.inbox.back_mut())
            && *last == conn
        {
            tail.append(&mut bytes);
            return;
        }
        self.push_event(node, core, Event::Received { conn, bytes });
    }

    /// A core polls an event of a stream. Gives the event back when this poll has already
    /// reported one of this stream.
    pub(crate) fn poll_stream(
        &mut self,
        conn: ConnId,
        mark: u64,
        event: Event<M>,
        events: &mut Vec<Event<M>>,
    ) -> Option<Event<M>> {
        let (id, side, s) = self.end(conn)?;
        if s.ends[side].polled == mark {
            return Some(event);
        }
        s.ends[side].polled = mark;
        match &event {
            Event::Received { bytes, .. } => {
                let count = bytes.len();
                s.dirs[1 - side].in_flight -= count;
                self.pump(id, 1 - side);
            }
            Event::Closed { .. } => {
                s.ends[side].state = EndState::Gone;
                self.forget_if_gone(id);
            }
            _ => {}
        }
        events.push(event);
        None
    }

    fn forget_if_gone(&mut self, id: u64) {
        if let Some(s) = self.streams.get(&id)
            && s.ends.iter().all(|e| e.state == EndState::Gone)
        {
            self.forget(id);
        }
    }

    /// Takes the waiting events of a stream out of its core's inbox.
    pub(super) fn take_waiting(&mut self, node: u16, core: u16, conn: ConnId) -> Vec<Moved> {
        let mut waiting = Vec::new();
        let Some(c) = self.nodes[usize::from(node)].cores.get_mut(usize::from(core)) else {
            return waiting;
        };
        if !c.inbox.iter().any(|e| conn_of(e) == Some(conn)) {
            return waiting;
        }
        for event in std::mem::take(&mut c.inbox) {
            match event {
                Event::Received { conn: of, bytes } if of == conn => {
                    waiting.push(Moved::Received(bytes));
                }
                Event::Closed { conn: of, reason } if of == conn => {
                    waiting.push(Moved::Closed(reason));
                }
                other if conn_of(&other) == Some(conn) => {}
                other => c.inbox.push_back(other),
            }
        }
        waiting
    }
}

pub(super) fn item_len(item: &Item) -> usize {
    match item {
        Item::Bytes(bytes) => bytes.len(),
        Item::Fin | Item::Reset => 0,
    }
}
