#![forbid(unsafe_code)]
//! The Actors that are measured: one that answers, one whose turn is the caller.

use std::future::Future;
use std::pin::Pin;
use std::sync::OnceLock;
use std::task::Poll;
use std::time::Duration;

use homing::prelude::*;
use serde::{Deserialize, Serialize};

use super::samples::{Outcome, Samples, answer_to, fold};

/// Sends between two waits for admission.
pub(crate) const BATCH: u64 = 64;
/// How long a whole segment may take.
pub(crate) const SEGMENT_TIMEOUT: Duration = Duration::from_secs(300);

/// How a bench that counts allocations does it.
pub(crate) static COUNT_ALLOCATIONS: OnceLock<fn() -> u64> = OnceLock::new();

/// Allocations of this process so far; 0 in a bench that does not count them.
pub(crate) fn allocations() -> u64 {
    COUNT_ALLOCATIONS.get().map_or(0, |count| count())
}

/// A typed message whose encoding is 64 bytes: eight floats, as of a thing that moves. It is also
/// its own reply. The number travels as the bits of the first one.
#[derive(Serialize, Deserialize)]
pub(crate) struct Ping {
    number: f64,
    filling: [f64; 7],
}

impl Ping {
    pub(crate) fn new(number: u64) -> Self {
        Self { number: f64::from_bits(number), filling: [7.0; 7] }
    }

    pub(crate) fn number(&self) -> u64 {
        self.number.to_bits()
    }
}

impl Message for Ping {
    const NAME: &'static str = "bench.ping";
    type Reply = Ping;
}

/// Asks a target what it handled since it was asked last.
#[derive(Serialize, Deserialize)]
pub(crate) struct Take;

/// What a target handled.
#[derive(Serialize, Deserialize)]
pub(crate) struct Taken {
    pub(crate) count: u64,
    /// Of the numbers it was sent, in its order.
    pub(crate) hash: u64,
    /// Of its process, ever.
    pub(crate) allocations: u64,
}

impl Message for Take {
    const NAME: &'static str = "bench.take";
    type Reply = Taken;
}

/// Asks an Actor for the name of its thread.
#[derive(Serialize, Deserialize)]
pub(crate) struct WhereAreYou;

impl Message for WhereAreYou {
    const NAME: &'static str = "bench.where";
    type Reply = String;
}

/// Answers, and remembers what it was sent.
#[derive(Default)]
pub(crate) struct Target {
    count: u64,
    hash: u64,
}

impl Actor for Target {
    const TYPE: &'static str = "target";
    async fn create(_: &CreateContext, _request: Payload) -> Result<Self> {
        Ok(Self::default())
    }
}

impl Handler<Ping> for Target {
    async fn handle(&mut self, ping: Ping, _cx: &mut Context<'_, Self>) -> Result<Ping> {
        let answer = answer_to(ping.number());
        self.count += 1;
        self.hash = fold(self.hash, answer);
        Ok(Ping::new(answer))
    }
}

impl Handler<Payload> for Target {
    async fn handle(&mut self, raw: Payload, _cx: &mut Context<'_, Self>) -> Result<Payload> {
        self.count += 1;
        Ok(raw)
    }
}

impl Handler<Take> for Target {
    async fn handle(&mut self, _: Take, _cx: &mut Context<'_, Self>) -> Result<Taken> {
        let Self { count, hash } = std::mem::take(self);
        Ok(Taken { count, hash, allocations: allocations() })
    }
}

impl Handler<WhereAreYou> for Target {
    async fn handle(&mut self, _: WhereAreYou, _cx: &mut Context<'_, Self>) -> Result<String> {
        Ok(std::thread::current().name().unwrap_or_default().to_owned())
    }
}

/// What the caller does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Op {
    /// One-way messages; of each batch the last one's admission is awaited.
    Send,
    /// Requests, one after another.
    Request,
    /// Requests with raw payloads of this size, one after another.
    RawRequest(usize),
}

/// Asks a [`Caller`] to be the caller of a segment.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Call {
    pub(crate) target: String,
    pub(crate) op: Op,
    pub(crate) warm_up: u64,
    pub(crate) ops: u64,
}

impl Message for Call {
    const NAME: &'static str = "bench.call";
    /// The [`Outcome`] as JSON.
    type Reply = String;
}

/// Its turn is the caller.
#[derive(Default)]
pub(crate) struct Caller;

impl Actor for Caller {
    const TYPE: &'static str = "caller";
    async fn create(_: &CreateContext, _request: Payload) -> Result<Self> {
        Ok(Self)
    }
}

impl Handler<WhereAreYou> for Caller {
    async fn handle(&mut self, _: WhereAreYou, _cx: &mut Context<'_, Self>) -> Result<String> {
        Ok(std::thread::current().name().unwrap_or_default().to_owned())
    }
}

impl Handler<Call> for Caller {
    async fn handle(&mut self, call: Call, cx: &mut Context<'_, Self>) -> Result<String> {
        let target = cx.actor(&call.target)?;
        let outcome = run(&call, &target).await?;
        serde_json::to_string(&outcome).map_err(|e| Error::internal(e.to_string()))
    }
}

/// What callers of both kinds call: a turn's Actor or an application thread's handle. In the
/// comparison with other libraries also what those give.
pub(crate) trait Callee {
    /// Sends one way without waiting.
    fn send_detached(&self, ping: Ping);
    /// Sends one way and waits for admission.
    fn send(&self, ping: Ping) -> impl Future<Output = Result<()>>;
    fn request(&self, ping: Ping) -> impl Future<Output = Result<Ping>>;
    /// Only a node has raw payloads.
    fn request_raw(&self, _raw: Payload) -> impl Future<Output = Result<Payload>> {
        std::future::ready(Err(Error::invalid("this callee has no raw payloads")))
    }
    fn take(&self) -> impl Future<Output = Result<Taken>>;
}

macro_rules! callee {
    ($type:ty) => {
        impl Callee for $type {
            fn send_detached(&self, ping: Ping) {
                <$type>::send(self, ping).detach();
            }
            fn send(&self, ping: Ping) -> impl Future<Output = Result<()>> {
                <$type>::send(self, ping)
            }
            fn request(&self, ping: Ping) -> impl Future<Output = Result<Ping>> {
                <$type>::request(self, ping).into_future()
            }
            fn request_raw(&self, raw: Payload) -> impl Future<Output = Result<Payload>> {
                <$type>::request(self, raw).into_future()
            }
            fn take(&self) -> impl Future<Output = Result<Taken>> {
                <$type>::request(self, Take).timeout(SEGMENT_TIMEOUT).into_future()
            }
        }
    };
}

callee!(homing::object::TurnActor);
callee!(homing::ActorHandle);

/// The caller's part of a segment. A send counts as done when it has been handled: the last
/// question goes behind all of them.
pub(crate) async fn run(call: &Call, target: &impl Callee) -> Result<Outcome> {
    operate(call.op, call.warm_up, target).await?;
    let before = target.take().await?;
    if before.count != call.warm_up {
        let text = format!("{} of {} were handled in the warm-up", before.count, call.warm_up);
        return Err(Error::internal(text));
    }
    let own_before = allocations();
    let (samples, hash) = operate(call.op, call.ops, target).await?;
    let after = target.take().await?;
    let mut outcome = samples.finish(hash.unwrap_or(after.hash));
    outcome.allocations = allocations() - own_before;
    outcome.target_allocations = after.allocations - before.allocations;
    if after.count != call.ops {
        let text = format!("{} of {} were handled", after.count, call.ops);
        return Err(Error::internal(text));
    }
    Ok(outcome)
}

/// Carries `ops` operations out. The hash of the answers, where there are any.
async fn operate(op: Op, ops: u64, target: &impl Callee) -> Result<(Samples, Option<u64>)> {
    let mut hash = 0;
    let mut samples = Samples::start(if op == Op::Send { BATCH } else { 1 });
    match op {
        Op::Send => {
            for first in (0..ops).step_by(BATCH as usize) {
                samples.begin();
                for number in first..first + BATCH - 1 {
                    target.send_detached(Ping::new(number));
                }
                target.send(Ping::new(first + BATCH - 1)).await?;
                samples.end();
            }
            return Ok((samples, None));
        }
        Op::Request => {
            for number in 0..ops {
                samples.begin();
                let pong = target.request(Ping::new(number)).await?;
                samples.end();
                hash = fold(hash, pong.number());
            }
        }
        Op::RawRequest(bytes) => {
            let mut body = vec![1; bytes];
            for number in 0..ops {
                body[..8].copy_from_slice(&number.to_le_bytes());
                samples.begin();
                let raw = Payload::new("bench.raw", "application/octet-stream", &body)?;
                let reply = target.request_raw(raw).await?;
                let seen = reply.bytes().first_chunk().map_or(0, |b| u64::from_le_bytes(*b));
                samples.end();
                hash = fold(hash, answer_to(seen));
            }
        }
    }
    Ok((samples, Some(hash)))
}

/// Runs a future on this thread without ever sleeping.
pub(crate) fn spin_on<F: Future>(future: F) -> F::Output {
    let mut future: Pin<Box<F>> = Box::pin(future);
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    loop {
        match future.as_mut().poll(&mut cx) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::hint::spin_loop(),
        }
    }
}
