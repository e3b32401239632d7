#![forbid(unsafe_code)]
//! The Store as the nodes of a world meet it: a Store thread per node, which batches by
//! [`StoreQueue`] as the real one does, in front of a provider that is carried out at one instant
//! of virtual time, between a delay on the way there and one on the way back, with faults.
//!
//! A call whose process died while it was under way is carried out all the same.

use std::time::Duration;

use super::fault::{NodeIx, StoreMode};
use super::history::TroubleKind;
use super::state::{Due, State};
use super::trace::{NONE, TraceKind, digest};
use crate::env::{Event, StoreAnswer, StoreOp};
use crate::ids::ObjectKind;
use crate::location::{Batch, BatchOutcome, StoreError, Write};
use crate::protocol::batch::{Call, CallResult, StoreQueue};
use crate::store::records::{Authority, AuthorityState, authority_key};
use crate::time::Nanos;

/// Who waits for a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Caller {
    /// The Store thread.
    Thread,
    /// The lease thread, with a connection of its own.
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
    answer: Option<CallResult>,
}

/// The Store thread of a node.
#[derive(Debug, Default)]
pub(crate) struct StoreThread {
    queue: StoreQueue<(u16, u64)>,
}

impl<M> State<M> {
    /// A core asks the Store.
    pub(crate) fn store_ask(
        &mut self,
        node: u16,
        core: u16,
        token: u64,
        op: StoreOp,
        budget: Duration,
    ) {
        self.note_step(TraceKind::StoreAsk, node, core, token, digest(&op));
        let deadline = self.local + budget;
        let mut answers = Vec::new();
        let thread = &mut self.nodes[usize::from(node)].store;
        thread.queue.push((core, token), op, deadline, &mut answers);
        self.distribute(node, answers);
        self.store_next(node);
    }

    /// The Store thread takes what waits, when it is idle.
    fn store_next(&mut self, node: u16) {
        let mut answers = Vec::new();
        let local = self.local;
        let thread = &mut self.nodes[usize::from(node)].store;
        let call = thread.queue.next_call(local, &mut answers);
        self.distribute(node, answers);
        if let Some(call) = call {
            self.store_launch(node, Caller::Thread, call);
        }
    }

    fn distribute(&mut self, node: u16, answers: Vec<((u16, u64), StoreAnswer)>) {
        for ((core, token), answer) in answers {
            self.note_step(TraceKind::StoreAnswer, node, core, token, digest(&answer));
            self.push_event(node, core, Event::Store { token, answer });
        }
    }

    /// Makes a call of the provider for a node.
    pub(crate) fn store_launch(&mut self, node: u16, caller: Caller, call: Call) {
        let life = self.nodes[usize::from(node)].life;
        let range = self.rates.store;
        let (mut there, mut back) = (self.rng.duration(range), self.rng.duration(range));
        let mut fate = self.draw_fate();
        let mut troubled = fate != Fate::Fine;
        if self.rng.chance(self.rates.store_slow_per_million) {
            // Slow to be carried out, or slow to answer: then the answer is out of date.
            let late = if self.rng.below(2) == 0 { &mut there } else { &mut back };
            *late += self.rng.duration(self.rates.store_slow);
            troubled = true;
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
                    StoreMode::Slow(by) => {
                        let late = if self.rng.below(2) == 0 { &mut there } else { &mut back };
                        *late += by;
                    }
                }
            }
        }
        let budget = budget_of(&call);
        if troubled {
            self.history.store_trouble(NodeIx(node), budget);
        }
        let seq = self.next_call;
        self.next_call += 1;
        let deadline = now + budget;
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
            self.call_provider(node, &under_way.call)
        } else {
            failed(&under_way.call, "the simulated Store failed")
        };
        let what = digest(&under_way.call);
        self.note_step(TraceKind::StoreCall, node, NONE, what, u64::from(carried_out));
        let deadline = under_way.deadline.max(self.now);
        let mut at = self.now + under_way.back;
        let mut answer = match under_way.fate {
            Fate::Fine | Fate::Failed => answer,
            Fate::Lost => lost(&under_way.call, "the simulated answer was lost"),
            Fate::Silent { .. } => {
                at = Nanos::MAX;
                answer
            }
        };
        // A provider gives up when its time is over; a sloppy one answers late.
        if at > deadline && (at == Nanos::MAX || self.rng.below(2) == 0) {
            at = deadline;
            answer = lost(&under_way.call, "no answer in time");
        }
        under_way.answer = Some(answer);
        self.calls.insert(seq, under_way);
        self.schedule(at, Due::StoreAnswer { seq });
    }

    fn call_provider(&mut self, node: u16, call: &Call) -> CallResult {
        let Some(store) = self.provider.clone() else {
            return failed(call, "this world has no Store; give it one with set_store");
        };
        match call {
            Call::Read { keys, budget } => CallResult::Read(store.read(keys, *budget)),
            Call::Scan { prefix, cursor, limit, budget } => {
                CallResult::Scan(store.scan(prefix, cursor.as_ref(), *limit, *budget))
            }
            Call::Commit { batches, budget } => {
                let answer = store.commit(batches, *budget);
                if let Ok(outcomes) = &answer {
                    for (batch, outcome) in batches.iter().zip(outcomes) {
                        self.committed(node, batch, outcome);
                    }
                }
                CallResult::Commit(answer)
            }
        }
    }

    /// Tells the history and the watch of a batch that reached the Store.
    fn committed(&mut self, node: u16, batch: &Batch, outcome: &BatchOutcome) {
        if let Some(watch) = &mut self.commit_watch {
            watch(self.now, NodeIx(node), batch, outcome);
        }
        if !matches!(outcome, BatchOutcome::Committed(_)) {
            return;
        }
        for write in &batch.writes {
            let key = match write {
                Write::Put { key, .. } | Write::Delete { key } => key,
            };
            let Some(name) = object_name(key) else { continue };
            let object = self.history.object(&name);
            match write {
                Write::Delete { .. } => {
                    self.history.authority(object, None);
                    self.history.removed(object);
                }
                Write::Put { value, .. } => match Authority::decode(key, value) {
                    Ok(row) if row.state == AuthorityState::Ready => {
                        let life = self.lives.get(&row.node_generation.get()).copied();
                        let numbers =
                            (row.object_generation.get(), row.authority_owner_generation.get());
                        if let Some(life) = life {
                            self.history.authority(object, Some((numbers.0, numbers.1, life)));
                        }
                    }
                    Ok(row) if matches!(row.state, AuthorityState::Creating { .. }) => {
                        self.history.reserved(object, row.object_generation.get());
                    }
                    Ok(_) => {}
                    Err(e) => self.history.complain(format!("an authority row is bad: {e}")),
                },
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
        let silent = matches!(under_way.fate, Fate::Silent { .. });
        match under_way.caller {
            Caller::Keeper(token) => {
                // It has a timer of its own for an answer that never comes.
                if !silent || self.rng.below(2) == 0 {
                    self.keeper_answer(node, token, answer);
                }
            }
            Caller::Thread => {
                let mut answers = Vec::new();
                let thread = &mut self.nodes[usize::from(node)].store;
                thread.queue.on_result(answer, &mut answers);
                // Such an answer is sometimes not even passed on.
                if silent && self.rng.below(2) == 0 {
                    self.note_step(TraceKind::StoreLost, node, NONE, seq, answers.len() as u64);
                } else {
                    self.distribute(node, answers);
                }
                self.store_next(node);
            }
        }
    }

    /// Records that the Store misbehaves for a while.
    pub(crate) fn store_mode(&mut self, node: Option<NodeIx>, mode: StoreMode, lasts: Duration) {
        use super::history::Concerns;
        let until = self.now + lasts;
        self.store_modes.push((node.map(|n| n.0), mode, until));
        let who = node.map_or(NONE, |n| n.0);
        self.note_step(TraceKind::StoreFault, who, NONE, digest(&mode), until.0);
        let concerns = node.map_or(Concerns::All, Concerns::Store);
        self.history.trouble(TroubleKind::Store, concerns, lasts);
    }
}

/// The name a history has for the object of an authority key: an Actor's id as it is, a Spot's
/// after `spot/`; `None` for other keys.
fn object_name(key: &[u8]) -> Option<String> {
    let actors = authority_key(ObjectKind::Actor, "");
    let spots = authority_key(ObjectKind::Spot, "");
    if let Some(id) = key.strip_prefix(&*actors) {
        return Some(String::from_utf8_lossy(id).into_owned());
    }
    let id = key.strip_prefix(&*spots)?;
    Some(format!("spot/{}", String::from_utf8_lossy(id)))
}

fn budget_of(call: &Call) -> Duration {
    match call {
        Call::Read { budget, .. } | Call::Commit { budget, .. } | Call::Scan { budget, .. } => {
            *budget
        }
    }
}

fn failed(call: &Call, text: &str) -> CallResult {
    let error = StoreError::Failed(text.to_owned());
    match call {
        Call::Read { .. } => CallResult::Read(Err(error)),
        Call::Commit { .. } => CallResult::Commit(Err(error)),
        Call::Scan { .. } => CallResult::Scan(Err(error)),
    }
}

fn lost(call: &Call, text: &str) -> CallResult {
    match call {
        Call::Commit { .. } => CallResult::Commit(Err(StoreError::Unknown(text.to_owned()))),
        other => failed(other, text),
    }
}
