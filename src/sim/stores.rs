#![forbid(unsafe_code)]
//! The Store as the nodes of a world meet it: a Store thread per node in front of a provider that
//! is carried out at one instant of virtual time, between a delay on the way there and one on the
//! way back, with faults.
//!
//! A call whose process died while the call was under way is carried out all the same.

use std::time::Duration;

use super::fault::{NodeIx, StoreMode};
use super::state::{Due, State};
use super::trace::{NONE, TraceKind, digest};
use crate::env::{Event, StoreAnswer, StoreOp};
use crate::location::{Batch, BatchOutcome, Cursor, Key, ReadAnswer, ScanPage, StoreError};
use crate::time::Nanos;

/// One call of a core.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) core: u16,
    pub(crate) token: u64,
    pub(crate) op: StoreOp,
    pub(crate) deadline: Nanos,
}

/// A call of the provider.
#[derive(Clone, Debug, Hash)]
pub(crate) enum Call {
    Read(Vec<Key>),
    Commit(Vec<Batch>),
    Scan { prefix: Key, cursor: Option<Cursor>, limit: usize },
}

/// What the provider answered.
#[derive(Clone, Debug, Hash)]
pub(crate) enum CallAnswer {
    Read(Result<ReadAnswer, StoreError>),
    Commit(Result<Vec<BatchOutcome>, StoreError>),
    Scan(Result<ScanPage, StoreError>),
}

/// Who waits for a call.
#[derive(Debug)]
pub(crate) enum Caller {
    /// The Store thread, for these calls of its cores.
    Thread(Vec<Ask>),
    /// The lease keeper, with its own connection.
    Keeper(u64),
}

/// What becomes of a call, decided when it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Fine,
    /// Not carried out.
    Failed,
    /// Carried out; the outcome is unknown to the caller.
    Lost,
    /// Carried out or not; no answer before the budget is over.
    Silent {
        carried_out: bool,
    },
}

/// A call under way.
#[derive(Debug)]
pub(crate) struct UnderWay {
    node: u16,
    life: u32,
    caller: Caller,
    call: Call,
    fate: Fate,
    back: Duration,
    deadline: Nanos,
    answer: Option<CallAnswer>,
}

/// The Store thread of a node.
#[derive(Debug, Default)]
pub(crate) struct StoreThread {
    waiting: Vec<Ask>,
    busy: bool,
}

impl<M> State<M> {
    /// A core asks the Store.
    pub(crate) fn store_ask(&mut self, node: u16, ask: Ask) {
        self.note_step(TraceKind::StoreAsk, node, ask.core, ask.token, digest(&ask.op));
        let thread = &mut self.nodes[usize::from(node)].store;
        thread.waiting.push(ask);
        self.store_next(node);
    }

    /// The Store thread takes what waits, when it is idle.
    fn store_next(&mut self, node: u16) {
        let thread = &mut self.nodes[usize::from(node)].store;
        if thread.busy || thread.waiting.is_empty() {
            return;
        }
        let (call, asks) = join(&mut thread.waiting);
        thread.busy = true;
        let deadline = asks.iter().map(|a| a.deadline).max().unwrap_or(self.local);
        self.store_launch(node, Caller::Thread(asks), call, deadline);
    }

    /// Makes a call of the provider for a node.
    pub(crate) fn store_launch(&mut self, node: u16, caller: Caller, call: Call, deadline: Nanos) {
        let life = self.nodes[usize::from(node)].life;
        let range = self.rates.store;
        let (mut there, back) = (self.rng.duration(range), self.rng.duration(range));
        let mut fate = self.draw_fate();
        if self.rng.chance(self.rates.store_slow_per_million) {
            there += self.rng.duration(self.rates.store_slow);
        }
        let now = self.local;
        self.store_modes.retain(|&(_, _, until)| until > now);
        for &(who, mode, _) in &self.store_modes {
            if who.is_none_or(|n| n == node) {
                match mode {
                    StoreMode::Failing => fate = Fate::Failed,
                    StoreMode::AnswerLost => fate = Fate::Lost,
                    StoreMode::Silent => {
                        fate = Fate::Silent { carried_out: self.rng.below(2) == 0 };
                    }
                    StoreMode::Slow(by) => there += by,
                }
            }
        }
        if fate != Fate::Fine {
            self.history.store_trouble(NodeIx(node), deadline.since(now));
        }
        let seq = self.next_call;
        self.next_call += 1;
        let under_way = UnderWay { node, life, caller, call, fate, back, deadline, answer: None };
        self.calls.insert(seq, under_way);
        self.schedule(now + there, Due::StoreCall { seq });
    }

    fn draw_fate(&mut self) -> Fate {
        if self.rng.chance(self.rates.store_failed_per_million) {
            Fate::Failed
        } else if self.rng.chance(self.rates.store_lost_per_million) {
            Fate::Lost
        } else if self.rng.chance(self.rates.store_silent_per_million) {
            Fate::Silent { carried_out: self.rng.below(2) == 0 }
        } else {
            Fate::Fine
        }
    }

    /// The call reaches the Store.
    pub(crate) fn store_call_due(&mut self, seq: u64) {
        let Some(mut under_way) = self.calls.remove(&seq) else { return };
        let node = under_way.node;
        let carried_out = match under_way.fate {
            Fate::Fine | Fate::Lost => true,
            Fate::Failed => false,
            Fate::Silent { carried_out } => carried_out,
        };
        let answer = if carried_out {
            let answer = self.call_provider(node, &under_way.call);
            self.note_step(
                TraceKind::StoreCall,
                node,
                NONE,
                digest(&under_way.call),
                digest(&answer),
            );
            answer
        } else {
            failed(&under_way.call, "the simulated Store failed")
        };
        let deadline = under_way.deadline.max(self.now);
        let mut at = self.now + under_way.back;
        under_way.answer = Some(match under_way.fate {
            Fate::Fine | Fate::Failed => answer,
            Fate::Lost => lost(&under_way.call, "the simulated answer was lost"),
            Fate::Silent { .. } => {
                at = deadline;
                lost(&under_way.call, "no answer in time")
            }
        });
        if at > deadline {
            // A provider gives up when its time is over; a sloppy one answers late.
            if self.rng.below(2) == 0 {
                at = deadline;
                under_way.answer = Some(lost(&under_way.call, "no answer in time"));
            }
        }
        self.calls.insert(seq, under_way);
        self.schedule(at, Due::StoreAnswer { seq });
    }

    fn call_provider(&mut self, node: u16, call: &Call) -> CallAnswer {
        let Some(store) = self.provider.clone() else {
            return failed(call, "this world has no Store; give it one with set_store");
        };
        let budget = Duration::from_secs(1);
        match call {
            Call::Read(keys) => CallAnswer::Read(store.read(keys, budget)),
            Call::Scan { prefix, cursor, limit } => {
                CallAnswer::Scan(store.scan(prefix, cursor.as_ref(), *limit, budget))
            }
            Call::Commit(batches) => {
                let answer = store.commit(batches, budget);
                if let (Ok(outcomes), Some(watch)) = (&answer, &mut self.commit_watch) {
                    for (batch, outcome) in batches.iter().zip(outcomes) {
                        watch(self.now, NodeIx(node), batch, outcome);
                    }
                }
                CallAnswer::Commit(answer)
            }
        }
    }

    /// The answer reaches the node.
    pub(crate) fn store_answer_due(&mut self, seq: u64) {
        let Some(under_way) = self.calls.remove(&seq) else { return };
        let (node, life) = (under_way.node, under_way.life);
        if self.alive(node, life).is_none() {
            return;
        }
        if let Some(until) = self.paused_until(node) {
            self.calls.insert(seq, under_way);
            self.schedule(until, Due::StoreAnswer { seq });
            return;
        }
        let Some(answer) = under_way.answer else { return };
        match under_way.caller {
            Caller::Keeper(call) => self.keeper_answer(node, call, &under_way.call, answer),
            Caller::Thread(asks) => {
                self.nodes[usize::from(node)].store.busy = false;
                // An answer that came too late is sometimes not even passed on.
                if under_way.fate != (Fate::Silent { carried_out: false }) || self.rng.below(2) == 0
                {
                    self.distribute(node, asks, answer);
                } else {
                    self.note_step(TraceKind::StoreLost, node, NONE, seq, 0);
                }
                self.store_next(node);
            }
        }
    }

    fn distribute(&mut self, node: u16, asks: Vec<Ask>, answer: CallAnswer) {
        for (ask, answer) in split(asks, answer) {
            let (core, token) = (ask.core, ask.token);
            self.note_step(TraceKind::StoreAnswer, node, core, token, digest(&answer));
            self.push_event(node, core, Event::Store { token, answer });
        }
    }
}

/// Joins what waits into one call: all reads, or all commits, or one scan, by what waits first.
fn join(waiting: &mut Vec<Ask>) -> (Call, Vec<Ask>) {
    let first = std::mem::discriminant(&waiting[0].op);
    if let StoreOp::Scan { prefix, cursor, limit } = &waiting[0].op {
        let call = Call::Scan { prefix: prefix.clone(), cursor: cursor.clone(), limit: *limit };
        return (call, vec![waiting.remove(0)]);
    }
    let (asks, rest) =
        std::mem::take(waiting).into_iter().partition(|a| std::mem::discriminant(&a.op) == first);
    *waiting = rest;
    let asks: Vec<Ask> = asks;
    let (mut keys, mut batches) = (Vec::new(), Vec::new());
    for ask in &asks {
        match &ask.op {
            StoreOp::Read(some) => keys.extend(some.iter().cloned()),
            StoreOp::Commit(batch) => batches.push(batch.clone()),
            StoreOp::Scan { .. } => {}
        }
    }
    (if batches.is_empty() { Call::Read(keys) } else { Call::Commit(batches) }, asks)
}

/// Gives each core its part of a joined answer.
fn split(asks: Vec<Ask>, answer: CallAnswer) -> Vec<(Ask, StoreAnswer)> {
    match answer {
        CallAnswer::Read(Err(e)) | CallAnswer::Commit(Err(e)) | CallAnswer::Scan(Err(e)) => {
            asks.into_iter().map(|a| (a, StoreAnswer::Failed(e.clone()))).collect()
        }
        CallAnswer::Scan(Ok(page)) => {
            asks.into_iter().map(|a| (a, StoreAnswer::Scan(page.clone()))).collect()
        }
        CallAnswer::Commit(Ok(outcomes)) => asks
            .into_iter()
            .zip(outcomes)
            .map(|(a, outcome)| (a, StoreAnswer::Commit(outcome)))
            .collect(),
        CallAnswer::Read(Ok(answer)) => {
            let store_now_ms = answer.store_now_ms;
            let mut records = answer.records.into_iter();
            asks.into_iter()
                .map(|a| {
                    let count = if let StoreOp::Read(keys) = &a.op { keys.len() } else { 0 };
                    let records = records.by_ref().take(count).collect();
                    (a, StoreAnswer::Read(ReadAnswer { records, store_now_ms }))
                })
                .collect()
        }
    }
}

fn failed(call: &Call, text: &str) -> CallAnswer {
    let error = StoreError::Failed(text.to_owned());
    match call {
        Call::Read(_) => CallAnswer::Read(Err(error)),
        Call::Commit(_) => CallAnswer::Commit(Err(error)),
        Call::Scan { .. } => CallAnswer::Scan(Err(error)),
    }
}

fn lost(call: &Call, text: &str) -> CallAnswer {
    match call {
        Call::Commit(_) => CallAnswer::Commit(Err(StoreError::Unknown(text.to_owned()))),
        other => failed(other, text),
    }
}

/// The number of a mode in the trace.
pub(crate) fn mode_number(mode: StoreMode) -> u8 {
    match mode {
        StoreMode::Failing => 0,
        StoreMode::AnswerLost => 1,
        StoreMode::Silent => 2,
        StoreMode::Slow(_) => 3,
    }
}
