#![forbid(unsafe_code)]
//! The Actors of the tests, what they are asked, and gates that hold a turn or a factory until the
//! test opens them.

use std::collections::BTreeMap;
use std::future::Future;
use std::io::Write;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::Duration;

use homing::prelude::*;
use homing::{IntoPayload, Packet};
use serde::{Deserialize, Serialize};

/// A gate: what passes it waits until it is opened. Closed until then; opened for ever.
#[derive(Default)]
struct Gate {
    is_open: bool,
    waiting: usize,
    wakers: Vec<Waker>,
}

static GATES: Mutex<BTreeMap<String, Gate>> = Mutex::new(BTreeMap::new());

fn gates<T>(look: impl FnOnce(&mut BTreeMap<String, Gate>) -> T) -> T {
    look(&mut GATES.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Opens a gate of this process.
pub(crate) fn open_gate(name: &str) {
    let wakers = gates(|gates| {
        let gate = gates.entry(name.to_owned()).or_default();
        gate.is_open = true;
        std::mem::take(&mut gate.wakers)
    });
    wakers.into_iter().for_each(Waker::wake);
}

/// How many wait at a gate of this process.
pub(crate) fn waiting_at(name: &str) -> usize {
    gates(|gates| gates.get(name).map_or(0, |gate| gate.waiting))
}

/// Waits at a gate; an empty name is no gate.
pub(crate) struct Pass {
    name: String,
    is_counted: bool,
}

pub(crate) fn pass(name: &str) -> Pass {
    Pass { name: name.to_owned(), is_counted: false }
}

impl Future for Pass {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<()> {
        if self.name.is_empty() {
            return Poll::Ready(());
        }
        let count = !std::mem::replace(&mut self.is_counted, true);
        gates(|gates| {
            let gate = gates.entry(self.name.clone()).or_default();
            gate.waiting += usize::from(count);
            if gate.is_open {
                return Poll::Ready(());
            }
            gate.wakers.push(cx.waker().clone());
            Poll::Pending
        })
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        if self.is_counted {
            gates(|gates| {
                if let Some(gate) = gates.get_mut(&self.name) {
                    gate.waiting -= 1;
                }
            });
        }
    }
}

/// How a factory ends.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) enum Outcome {
    #[default]
    Made,
    Reject(String),
    Fail(String),
    Panic,
}

/// What a factory is asked.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Make {
    /// A file to which each run of the factory appends a line; none when empty.
    pub(crate) runs: String,
    /// A gate the factory waits at.
    pub(crate) gate: String,
    /// A gate `on_closing` waits at.
    pub(crate) closing_gate: String,
    pub(crate) outcome: Outcome,
}

impl Message for Make {
    const NAME: &'static str = "probe.make";
    type Reply = ();
}

macro_rules! message {
    ($(#[$doc:meta])* $name:ident { $($field:ident: $ty:ty),* } -> $reply:ty, $text:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Serialize, Deserialize)]
        pub(crate) struct $name { $(pub(crate) $field: $ty),* }
        impl Message for $name {
            const NAME: &'static str = $text;
            type Reply = $reply;
        }
    };
}

message!(
    /// Is noted; answers how many notes there are.
    Note { number: u64 } -> u64, "probe.note"
);
message!(
    /// Answers what the turn sees.
    Show {} -> Shown, "probe.show"
);
message!(
    /// Fails with an error of this kind.
    Fail { kind: u8, text: String } -> (), "probe.fail"
);
message!(
    /// Panics.
    Explode {} -> (), "probe.explode"
);
message!(
    /// Is noted, waits at the gate, answers its number.
    Hold { number: u64, gate: String } -> u64, "probe.hold"
);
message!(
    /// Is noted, asks `target` inside the turn to hold, is noted again (plus 1000).
    Ask { number: u64, target: String, gate: String, timeout_ms: u64 } -> Asked, "probe.ask"
);
message!(
    /// Answers so many bytes.
    Fill { bytes: u64 } -> Vec<u8>, "probe.fill"
);
message!(
    /// Is handled by nobody.
    Unknown {} -> (), "probe.unknown"
);

/// What a turn sees.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Shown {
    pub(crate) id: String,
    pub(crate) generation: u64,
    pub(crate) rid: String,
    /// 128 bits in hex.
    pub(crate) operation: String,
    pub(crate) metadata: Vec<(String, Vec<u8>)>,
    pub(crate) remaining_ms: Option<u64>,
    pub(crate) notes: Vec<u64>,
}

/// What a request inside a turn came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Asked {
    pub(crate) generation_before: u64,
    pub(crate) generation_after: u64,
    /// The reply, or the kind and sentence of the error.
    pub(crate) reply: std::result::Result<u64, (u8, String)>,
}

/// The packet that [`Probe`] answers as it came.
pub(crate) const RAW: &str = "probe.raw";

/// The Actor of the tests.
#[derive(Default)]
pub(crate) struct Probe {
    notes: Vec<u64>,
    closing_gate: String,
}

impl Actor for Probe {
    const TYPE: &'static str = "probe";

    async fn create(cx: &CreateContext, request: Payload) -> Result<Self> {
        if request.name() != Make::NAME {
            return Ok(Self::default());
        }
        let make = <Make as Message>::decode(request.bytes())?;
        if !make.runs.is_empty() {
            let line = format!("{} {}\n", cx.rid(), cx.generation());
            let mut runs =
                std::fs::OpenOptions::new().append(true).create(true).open(&make.runs)?;
            runs.write_all(line.as_bytes())?;
        }
        pass(&make.gate).await;
        match make.outcome {
            Outcome::Made => Ok(Self { notes: Vec::new(), closing_gate: make.closing_gate }),
            Outcome::Reject(text) => Err(Error::rejected(text)),
            Outcome::Fail(text) => Err(Error::unavailable(text)),
            Outcome::Panic => panic!("the factory was told to panic"),
        }
    }

    async fn on_closing(&mut self) {
        pass(&self.closing_gate).await;
    }
}

impl Handler<Note> for Probe {
    async fn handle(&mut self, note: Note, _: &mut Context<'_, Self>) -> Result<u64> {
        self.notes.push(note.number);
        Ok(self.notes.len() as u64)
    }
}

impl Handler<Show> for Probe {
    async fn handle(&mut self, _: Show, cx: &mut Context<'_, Self>) -> Result<Shown> {
        Ok(Shown {
            id: cx.id().to_string(),
            generation: cx.generation().get(),
            rid: cx.rid().to_string(),
            operation: cx.operation_id().to_string(),
            metadata: cx.metadata().iter().map(|(k, v)| (k.to_owned(), v.to_vec())).collect(),
            remaining_ms: cx.remaining().map(|left| left.as_millis() as u64),
            notes: self.notes.clone(),
        })
    }
}

impl Handler<Fail> for Probe {
    async fn handle(&mut self, fail: Fail, _: &mut Context<'_, Self>) -> Result<()> {
        let kind = ErrorKind::from_wire(fail.kind).expect("the test names a kind");
        Err(Error::new(kind, fail.text))
    }
}

impl Handler<Explode> for Probe {
    async fn handle(&mut self, _: Explode, _: &mut Context<'_, Self>) -> Result<()> {
        panic!("the handler was told to panic");
    }
}

impl Handler<Hold> for Probe {
    async fn handle(&mut self, hold: Hold, _: &mut Context<'_, Self>) -> Result<u64> {
        self.notes.push(hold.number);
        pass(&hold.gate).await;
        Ok(hold.number)
    }
}

impl Handler<Ask> for Probe {
    async fn handle(&mut self, ask: Ask, cx: &mut Context<'_, Self>) -> Result<Asked> {
        self.notes.push(ask.number);
        let generation_before = cx.generation().get();
        let hold = Hold { number: ask.number, gate: ask.gate };
        let timeout = Duration::from_millis(ask.timeout_ms);
        let reply = cx.actor(&ask.target)?.request(hold).timeout(timeout).await;
        self.notes.push(ask.number + 1000);
        Ok(Asked {
            generation_before,
            generation_after: cx.generation().get(),
            reply: reply.map_err(|e| (e.kind() as u8, e.text().to_owned())),
        })
    }
}

impl Handler<Fill> for Probe {
    async fn handle(&mut self, fill: Fill, _: &mut Context<'_, Self>) -> Result<Vec<u8>> {
        Ok(vec![7; fill.bytes as usize])
    }
}

impl Handler<Payload> for Probe {
    async fn handle(&mut self, packet: Payload, _: &mut Context<'_, Self>) -> Result<Payload> {
        Ok(packet)
    }
}

/// An Actor of another type.
pub(crate) struct Other;

impl Actor for Other {
    const TYPE: &'static str = "other";
    async fn create(_: &CreateContext, _: Payload) -> Result<Self> {
        Ok(Self)
    }
}

/// A raw packet for [`Probe`].
pub(crate) fn raw(bytes: &[u8]) -> Payload {
    Payload::new(RAW, "application/octet-stream", bytes).expect("a good payload")
}

/// A packet under a typed message's name whose bytes are not that message.
pub(crate) fn garbage(name: &str) -> Payload {
    Payload::new(name, "application/postcard", &[0xff; 32]).expect("a good payload")
}

/// Either no request for the factory or one.
pub(crate) fn payload_of(make: Option<&Make>) -> Payload {
    match make {
        None => ().into_payload().expect("nothing can be sent"),
        Some(make) => make.clone().into_packet().expect("a request can be sent"),
    }
}
