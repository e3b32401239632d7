#![forbid(unsafe_code)]
//! The load: senders with a bounded number of operations in flight, and what they count.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use homing::{ActorHandle, Node, Requesting, Result, Sending};

use super::actor::{Note, actor_id};
use super::ledger::{Ending, SenderLog};
use super::talk::Config;
use super::window::Window;

/// Longest latency that is told apart, in nanoseconds.
pub(crate) const MAX_LATENCY_NS: u64 = 60_000_000_000;
/// Digits a latency keeps.
const DIGITS: u8 = 3;
/// Sentences of errors a process keeps.
const MAX_ERROR_TEXTS: usize = 5;
/// Most messages a sender gives one Actor in a row.
const MAX_BURST: u64 = 8;

/// An empty histogram of latencies in nanoseconds.
pub(crate) fn latencies() -> Histogram<u64> {
    Histogram::new_with_max(MAX_LATENCY_NS, DIGITS).expect("the bounds are constants and fit")
}

/// What the threads of a process count together.
pub(crate) struct Meter {
    pub(crate) progress: AtomicU64,
    pub(crate) sends: AtomicU64,
    pub(crate) requests: AtomicU64,
    pub(crate) errors: AtomicU64,
    latencies: Mutex<Histogram<u64>>,
    error_texts: Mutex<Vec<String>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Meter {
    pub(crate) fn new() -> Self {
        Self {
            progress: AtomicU64::new(0),
            sends: AtomicU64::new(0),
            requests: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            latencies: Mutex::new(latencies()),
            error_texts: Mutex::default(),
        }
    }

    pub(crate) fn step(&self) {
        self.progress.fetch_add(1, Ordering::Relaxed);
    }

    /// The latencies since the last call: nanoseconds and how many took as long.
    pub(crate) fn take_latencies(&self) -> Vec<(u64, u64)> {
        let mut latencies = lock(&self.latencies);
        let taken = latencies.iter_recorded().map(|v| (v.value_iterated_to(), v.count_at_value()));
        let taken = taken.collect();
        latencies.reset();
        taken
    }

    fn error(&self, text: String) {
        self.errors.fetch_add(1, Ordering::Relaxed);
        let mut texts = lock(&self.error_texts);
        if texts.len() < MAX_ERROR_TEXTS && !texts.contains(&text) {
            texts.push(text);
        }
    }

    pub(crate) fn error_texts(&self) -> Vec<String> {
        lock(&self.error_texts).clone()
    }
}

/// A send or a request on its way; the answer, if there is one, says whose message it is for.
enum Operation {
    Send(Sending),
    Request(Requesting<Note>),
}

impl Future for Operation {
    type Output = Result<Option<(u32, u64)>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut *self {
            Self::Send(send) => Pin::new(send).poll(cx).map(|end| end.map(|()| None)),
            Self::Request(request) => Pin::new(request).poll(cx).map(|end| end.map(Some)),
        }
    }
}

/// What is known of an operation on its way.
struct Tag {
    actor: u32,
    number: u64,
    submitted: Instant,
}

/// One sender: one thread's chain of calls on the handles of a node.
pub(crate) struct Sender {
    log: SenderLog,
    handles: Vec<ActorHandle>,
    window: usize,
    payload_bytes: usize,
    random: u64,
    meter: Arc<Meter>,
}

impl Sender {
    pub(crate) fn new(node: &Node, config: &Config, sender: u32, meter: Arc<Meter>) -> Self {
        Self {
            log: SenderLog::new(sender, config.actors),
            handles: (0..config.actors).map(|a| node.actor(actor_id(a))).collect(),
            window: config.window,
            payload_bytes: config.payload_bytes,
            // Every sender walks another way; the same in every run.
            random: 0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(u64::from(sender) + 1),
            meter,
        }
    }

    /// Xorshift: chance enough to spread a load.
    fn random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    /// Sends and requests for a time: a few messages in a row to one Actor, so that their order is
    /// put to the test, then to another.
    pub(crate) fn drive(mut self, time: Duration) -> Self {
        let until = Instant::now() + time;
        let mut window = Window::new(self.window);
        while Instant::now() < until {
            let chance = self.random();
            let actor = (chance % u64::from(self.actors())) as u32;
            let burst = (chance >> 32) % MAX_BURST + 1;
            for at in 0..burst {
                self.submit(&mut window, actor, chance >> (40 + at) & 1 == 0);
            }
        }
        self.finish(window)
    }

    /// Sends every Actor a message and a request: when the answer is there, all that this sender
    /// sent before was handled or is lost.
    pub(crate) fn settle(mut self) -> Self {
        let mut window = Window::new(self.window);
        for actor in 0..self.actors() {
            self.submit(&mut window, actor, false);
            self.submit(&mut window, actor, true);
            self.meter.step();
        }
        self.finish(window)
    }

    pub(crate) fn log(&self) -> &SenderLog {
        &self.log
    }

    fn actors(&self) -> u32 {
        self.handles.len() as u32
    }

    fn submit(&mut self, window: &mut Window<Tag, Operation>, actor: u32, is_request: bool) {
        while let Some((tag, end)) =
            if window.is_full() { window.next() } else { window.try_next() }
        {
            self.end(&tag, end);
        }
        let number = self.log.submit(actor);
        let note = Note::new(self.log.sender, number, self.payload_bytes);
        let handle = &self.handles[actor as usize];
        let tag = Tag { actor, number, submitted: Instant::now() };
        let operation = if is_request {
            Operation::Request(handle.request(note).into_future())
        } else {
            Operation::Send(handle.send(note))
        };
        if let Some((tag, end)) = window.push(tag, operation) {
            self.end(&tag, end);
        }
    }

    fn finish(mut self, mut window: Window<Tag, Operation>) -> Self {
        while let Some((tag, end)) = window.next() {
            self.end(&tag, end);
        }
        self
    }

    fn end(&mut self, tag: &Tag, end: Result<Option<(u32, u64)>>) {
        let ending = match end {
            Ok(None) => {
                self.meter.sends.fetch_add(1, Ordering::Relaxed);
                Ending::Admitted
            }
            Ok(Some(answered)) => {
                let ns = tag.submitted.elapsed().as_nanos().min(u128::from(MAX_LATENCY_NS)) as u64;
                lock(&self.meter.latencies).saturating_record(ns);
                self.meter.requests.fetch_add(1, Ordering::Relaxed);
                if answered == (self.log.sender, tag.number) {
                    Ending::Replied
                } else {
                    Ending::Misanswered
                }
            }
            Err(e) => {
                let ending = Ending::Failed(e.kind());
                self.meter.error(format!("{}: {e}", actor_id(tag.actor)));
                ending
            }
        };
        self.log.end(tag.actor, tag.number, ending);
    }
}
