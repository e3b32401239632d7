#![forbid(unsafe_code)]
//! The objects that live on a core, their queues and their turns.
//!
//! An object runs one turn at a time. What a turn answers and sends is not let out when the turn
//! ends but after the batch of turns, when the clock has been read once more and the lease still
//! stands (R5-16): a node that was stopped in the middle keeps it back.

use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use slab::Slab;

use super::Core;
use crate::env::{Env, Failpoint, Planted};
use crate::error::{Error, ErrorKind, Result};
use crate::exec::cell::Blocks;
use crate::exec::cells::{Cells, Polled};
use crate::ids::{AuthorityOwnerGeneration, FixedMap, ObjectGeneration, ObjectKey, StoreVersion};
use crate::limits;
use crate::node::counters::Counter;
use crate::node::operation::{Body as OpBody, CreditOf, Mail, Operation, Queued, ReplyTo, Waiter};
use crate::object::{
    Body, CellFuture, CellOutput, Content, ErasedType, Outbox, OutboxItem, Payload, ReplyAs,
    TurnFacts, TurnInput, Want,
};
use crate::protocol::create::CallId;
use crate::time::Nanos;
use crate::wire::{FailureCode, Status};

/// Turns started or resumed in one round of the loop; the rest waits for the next.
const TURNS_PER_ROUND: usize = 256;

/// How far an object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Made, its Ready row on its way to the Store: messages wait in the queue, because others may
    /// see the row before this node learns of it.
    Opening,
    /// Runs turns.
    Ready,
    /// Being destroyed: runs its last turn or `on_closing`, takes nothing in.
    Closing,
}

/// One object.
pub(super) struct Object {
    pub(super) key: ObjectKey,
    pub(super) ty: Arc<ErasedType>,
    pub(super) generation: ObjectGeneration,
    pub(super) tenure: AuthorityOwnerGeneration,
    /// The version of its authority row.
    pub(super) version: StoreVersion,
    pub(super) state: State,
    /// `None` while a turn has it, or after a panic.
    pub(super) body: Option<Body>,
    pub(super) queue: VecDeque<Queued>,
    /// The cell of the running turn.
    pub(super) turn: Option<u64>,
    /// Stands in the list of objects to run.
    scheduled: bool,
}

/// What a cell is for.
pub(super) enum CellUse {
    Turn { object: usize, reply: Option<ReplyTo>, generation: ObjectGeneration },
    Factory { key: ObjectKey, call: CallId },
    Closing { object: usize },
}

/// An answer that waits for the end of the batch of turns.
struct Answer {
    key: ObjectKey,
    to: ReplyTo,
    end: Answered,
}

/// How a request was answered.
type Answered = std::result::Result<Option<Content>, (Status, Error)>;

/// All objects of a core and what runs them.
pub(super) struct Objects {
    pub(super) objects: Slab<Object>,
    by_key: FixedMap<ObjectKey, usize>,
    runnable: VecDeque<usize>,
    cells: Cells<CellOutput, CellUse>,
    ready_cells: VecDeque<u64>,
    /// Factories that have not begun.
    unbegun: BTreeSet<u64>,
    outbox: Rc<Outbox>,
    answers: VecDeque<Answer>,
    /// Bytes of payload among them.
    answer_bytes: usize,
    operations: VecDeque<Operation>,
    scratch: Vec<OutboxItem>,
}

impl Objects {
    pub(super) fn new(cells: Cells<CellOutput, CellUse>, outbox: Outbox) -> Self {
        Self {
            objects: Slab::new(),
            by_key: FixedMap::default(),
            runnable: VecDeque::new(),
            cells,
            ready_cells: VecDeque::new(),
            unbegun: BTreeSet::new(),
            outbox: Rc::new(outbox),
            answers: VecDeque::new(),
            answer_bytes: 0,
            operations: VecDeque::new(),
            scratch: Vec::new(),
        }
    }

    pub(super) fn index(&self, key: &ObjectKey) -> Option<usize> {
        self.by_key.get(key).copied()
    }

    pub(super) fn len(&self) -> usize {
        self.objects.len()
    }

    /// Whether a turn could be started or resumed now.
    fn has_turns(&self) -> bool {
        !self.runnable.is_empty() || !self.ready_cells.is_empty()
    }

    /// Whether a turn could be started or resumed now, or something let out.
    pub(super) fn has_work(&self) -> bool {
        self.has_turns() || !self.answers.is_empty() || !self.operations.is_empty()
    }

    /// Whether anything runs, waits or has not been let out.
    pub(super) fn is_busy(&self) -> bool {
        self.has_work() || self.cells.len() > 0
    }

    /// Puts a made object in; it takes messages and runs nothing until it is Ready.
    pub(super) fn insert(
        &mut self,
        key: ObjectKey,
        ty: Arc<ErasedType>,
        generation: ObjectGeneration,
        version: StoreVersion,
        body: Body,
    ) -> usize {
        let object = Object {
            key: key.clone(),
            ty,
            generation,
            tenure: AuthorityOwnerGeneration::FIRST,
            version,
            state: State::Opening,
            body: Some(body),
            queue: VecDeque::new(),
            turn: None,
            scheduled: false,
        };
        let index = self.objects.insert(object);
        let before = self.by_key.insert(key, index);
        assert!(before.is_none(), "an id has one object on its home core");
        index
    }

    /// Makes an object run what is queued.
    pub(super) fn schedule(&mut self, index: usize) {
        let object = &mut self.objects[index];
        let idle = object.state == State::Ready && object.turn.is_none() && !object.scheduled;
        if idle && !object.queue.is_empty() {
            object.scheduled = true;
            self.runnable.push_back(index);
        }
    }

    pub(super) fn wake(&mut self, cell: u64) {
        self.ready_cells.push_back(cell);
    }

    /// Starts a factory; it ends in `on_factory_made`. Returns its cell.
    pub(super) fn start_factory(
        &mut self,
        key: ObjectKey,
        call: CallId,
        put: impl FnOnce(&mut Blocks) -> CellFuture,
    ) -> u64 {
        let cell = self.cells.insert(CellUse::Factory { key, call }, put);
        self.unbegun.insert(cell);
        self.wake(cell);
        cell
    }

    /// Drops a factory that has not begun; whether it was one.
    pub(super) fn cancel_unbegun(&mut self, cell: u64) -> bool {
        let is_unbegun = self.unbegun.remove(&cell);
        if is_unbegun {
            self.cancel_cell(cell);
        }
        is_unbegun
    }

    /// Drops a cell before its end.
    pub(super) fn cancel_cell(&mut self, cell: u64) {
        self.unbegun.remove(&cell);
        self.cells.cancel(cell);
    }

    /// Puts the end of a turn's operation where the turn looks for it.
    pub(super) fn settle_wait(&mut self, token: u64, end: Result<Option<Content>>) {
        if let Some(cell) = self.outbox.settle(token as usize, end) {
            self.ready_cells.push_back(cell);
        }
    }

    /// Forgets what was not let out; a fenced node does this (R5-16).
    pub(super) fn drop_withheld(&mut self) -> usize {
        let dropped = self.answers.len() + self.operations.len();
        self.answers.clear();
        self.answer_bytes = 0;
        self.operations.clear();
        dropped
    }
}

#[cfg(feature = "sim")]
impl Objects {
    /// What is held beside the objects themselves, for tests that look for what was left behind.
    pub(super) fn held(&self) -> [(&'static str, u64); 5] {
        [
            ("queued messages", self.objects.iter().map(|(_, o)| o.queue.len() as u64).sum()),
            ("cells", self.cells.len() as u64),
            ("turns that wait", self.outbox.waits() as u64),
            ("answers not let out", self.answers.len() as u64),
            ("operations not let out", self.operations.len() as u64),
        ]
    }
}

impl<E: Env<Mail = Mail>> Core<E> {
    /// Puts a message into an object's queue.
    pub(super) fn enqueue(&mut self, index: usize, queued: Queued) {
        self.objects.objects[index].queue.push_back(queued);
        self.objects.schedule(index);
    }

    /// Runs turns: first those that were woken, then new ones, bounded, by what they answer too: what
    /// waits for a peer is looked at once in a round. The clock is read before each: a stop in any of
    /// them may outlast the lease, and then the next does not begin (R5-16).
    pub(super) fn run_turns(&mut self, env: &mut E) {
        for _ in 0..TURNS_PER_ROUND {
            if self.objects.answer_bytes >= limits::ROUND_ANSWER_BYTES
                || !self.objects.has_turns()
                || !self.may_act(env)
            {
                break;
            }
            if let Some(cell) = self.objects.ready_cells.pop_front() {
                self.poll_cell(env, cell);
            } else if let Some(index) = self.objects.runnable.pop_front() {
                self.start_turn(env, index);
            } else {
                break;
            }
        }
    }

    fn start_turn(&mut self, env: &mut E, index: usize) {
        let Some(object) = self.objects.objects.get_mut(index) else { return };
        object.scheduled = false;
        if object.state != State::Ready || object.turn.is_some() {
            return;
        }
        let Some(queued) = object.queue.pop_front() else { return };
        let (hash, generation) = (object.key.object_hash().low(), object.generation);
        self.free_credit(env, hash, queued.credit);
        if queued.deadline <= self.now {
            let key = self.objects.objects[index].key.clone();
            self.count(Counter::ExpiredInQueue, 1);
            let text = "the request's time was over before its turn";
            self.refuse(
                &key,
                queued.reply,
                Status::of_kind(ErrorKind::DeadlineExceeded, key.kind()),
                text,
            );
            self.objects.schedule(index);
            return;
        }
        let object = &mut self.objects.objects[index];
        let Some(handler) = object.ty.handler(queued.content.name()) else {
            let text = format!(
                "actor type {:?} does not handle {:?}",
                object.ty.name,
                queued.content.name()
            );
            let key = object.key.clone();
            self.count(Counter::TurnsFailed, 1);
            self.refuse(&key, queued.reply, Status::of_code(FailureCode::HandlerNotFound), &text);
            self.objects.schedule(index);
            return;
        };
        let Some(body) = object.body.take() else {
            unreachable!("a Ready object without a turn has its body");
        };
        let Some(id) = object.key.actor_id() else { unreachable!("only Actors live here") };
        let facts = TurnFacts {
            id,
            generation,
            operation: queued.operation,
            metadata: queued.metadata,
            remaining: (queued.deadline != Nanos::MAX).then(|| queued.deadline.since(self.now)),
        };
        let outbox = self.objects.outbox.clone();
        let reply_as = match queued.reply {
            None => ReplyAs::Nothing,
            Some(ReplyTo::Local(_)) if !self.shared.settings.messages_through_bytes => {
                ReplyAs::Value
            }
            Some(_) => ReplyAs::Bytes,
        };
        let input = TurnInput { content: queued.content, facts, outbox, reply_as };
        let used = CellUse::Turn { object: index, reply: queued.reply, generation };
        let cell = self.objects.cells.insert(used, |blocks| handler(blocks, body, input));
        self.objects.objects[index].turn = Some(cell);
        self.poll_cell(env, cell);
    }

    fn poll_cell(&mut self, env: &mut E, cell: u64) {
        self.objects.unbegun.remove(&cell);
        let polled = self.objects.cells.poll(cell);
        let (output, used) = match polled {
            Polled::Gone => return,
            Polled::Pending => {
                self.collect_outbox(cell, None);
                return;
            }
            Polled::Ready(output, used) => (Ok(output), used),
            Polled::Panicked(text, used) => (Err(text), used),
        };
        self.collect_outbox(cell, Some(&used));
        match used {
            CellUse::Turn { object, reply, generation } => {
                self.end_turn(env, object, reply, generation, output);
                env.reached(Failpoint::TurnDone);
            }
            CellUse::Factory { key, call } => {
                let made = match output {
                    Ok(CellOutput::Made(made)) => made,
                    Ok(_) => unreachable!("a factory makes"),
                    Err(text) => Err(Error::internal(format!("the factory panicked: {text}"))),
                };
                self.on_factory_made(env, &key, call, made);
            }
            CellUse::Closing { object } => self.on_closed(env, object),
        }
    }

    fn end_turn(
        &mut self,
        env: &mut E,
        index: usize,
        reply: Option<ReplyTo>,
        generation: ObjectGeneration,
        output: std::result::Result<CellOutput, String>,
    ) {
        let object = &mut self.objects.objects[index];
        assert_eq!(object.generation, generation, "a turn ends in its own incarnation");
        object.turn = None;
        match output {
            Ok(CellOutput::Turn { body, reply: end }) => {
                object.body = Some(body);
                self.answer_turn(index, reply, end);
                if self.objects.objects[index].state == State::Closing {
                    self.close_body(env, index);
                } else {
                    self.objects.schedule(index);
                }
            }
            Ok(_) => unreachable!("a turn ends as a turn"),
            Err(text) => {
                let key = object.key.clone();
                tracing::error!(object = %key, panic = %text, "a turn panicked; the object is closed");
                self.count(Counter::TurnsPanicked, 1);
                let text = format!("the handler panicked: {text}");
                self.refuse(
                    &key,
                    reply,
                    Status::of_kind(ErrorKind::InternalFailure, key.kind()),
                    &text,
                );
                self.close_after_panic(env, index);
            }
        }
    }

    fn answer_turn(&mut self, index: usize, reply: Option<ReplyTo>, end: Result<Content>) {
        self.count(Counter::TurnsHandled, 1);
        if end.is_err() {
            self.count(Counter::TurnsFailed, 1);
        }
        let key = &self.objects.objects[index].key;
        match (reply, end) {
            (Some(to), Ok(content)) => self.push_answer(&key.clone(), to, Ok(Some(content))),
            (Some(to), Err(e)) => {
                let status = Status::of_kind(e.kind(), key.kind());
                self.push_answer(&key.clone(), to, Err((status, e)));
            }
            (None, Err(e)) => {
                tracing::warn!(object = %key, error = %e, "a one-way message failed");
                self.count(Counter::OneWayFailed, 1);
            }
            (None, Ok(_)) => {}
        }
    }

    /// Answers a request with an error, or counts a one-way message nobody can be told about.
    pub(super) fn refuse(
        &mut self,
        key: &ObjectKey,
        reply: Option<ReplyTo>,
        status: Status,
        text: &str,
    ) {
        match reply {
            Some(to) => {
                let kind = status.error_kind().unwrap_or(ErrorKind::InternalFailure);
                self.push_answer(key, to, Err((status, Error::new(kind, text))));
            }
            None => {
                tracing::debug!(object = %key, text, "a one-way message was dropped");
                self.count(Counter::OneWayFailed, 1);
            }
        }
    }

    /// Answers a request that has no payload to give.
    pub(super) fn answer_empty(&mut self, key: &ObjectKey, to: ReplyTo) {
        self.push_answer(key, to, Ok(None));
    }

    fn push_answer(&mut self, key: &ObjectKey, to: ReplyTo, end: Answered) {
        let content = end.as_ref().ok().and_then(Option::as_ref);
        self.objects.answer_bytes += content.map_or(0, Content::part_len);
        self.objects.answers.push_back(Answer { key: key.clone(), to, end });
    }

    /// Lets out what turns answered and sent. The caller has just seen the lease alive.
    pub(super) fn let_out(&mut self, env: &mut E) {
        self.objects.answer_bytes = 0;
        while let Some(Answer { key, to, end }) = self.objects.answers.pop_front() {
            env.reached(Failpoint::ReplyLetOut);
            if env.planted(Planted::DoubleReply) {
                let end = in_bytes(&key, end);
                self.send_answer(env, &key, to.clone(), end.clone().map(in_content));
                self.send_answer(env, &key, to, end.map(in_content));
                continue;
            }
            self.send_answer(env, &key, to, end);
        }
        while let Some(operation) = self.objects.operations.pop_front() {
            self.route_operation(env, operation);
        }
    }

    /// Turns what a poll left in the outbox into operations.
    /// `ended` is what the cell was for when it is gone already.
    fn collect_outbox(&mut self, cell: u64, ended: Option<&CellUse>) {
        if self.objects.outbox.is_empty() {
            return;
        }
        let mut items = std::mem::take(&mut self.objects.scratch);
        self.objects.outbox.drain(&mut items);
        let source = match ended.or_else(|| self.objects.cells.of(cell)) {
            Some(CellUse::Turn { object, .. }) => {
                let object = &self.objects.objects[*object];
                object.key.actor_id().map(|id| (id, object.generation))
            }
            _ => None,
        };
        for item in items.drain(..) {
            let key = item.target;
            let (is_request, timeout) = match item.want {
                Want::Admission => (false, self.shared.settings.send_timeout),
                Want::Reply(timeout) => {
                    (true, timeout.unwrap_or(self.shared.settings.request_timeout))
                }
            };
            let (token, core) = (item.slot as u64, self.index);
            let waiter = if self.objects.outbox.claim(item.slot, cell) {
                Waiter::Turn { core, token }
            } else {
                Waiter::Nobody
            };
            if is_request && source.as_ref().is_some_and(|(id, _)| id.as_str() == key.id()) {
                let error = Error::invalid(format!(
                    "{key} asked itself inside its own turn; that turn holds the gate the request \
                     would wait for"
                ));
                if matches!(waiter, Waiter::Turn { .. }) {
                    self.objects.settle_wait(token, Err(error));
                }
                continue;
            }
            self.objects.operations.push_back(Operation {
                key,
                body: OpBody::Message {
                    content: item.content,
                    metadata: item.metadata,
                    is_request,
                },
                waiter,
                timeout,
                // Counted from here, also when the lease lapses before it is let out.
                deadline: self.now + timeout,
                ticket: 0,
                source: source.clone(),
            });
        }
        self.objects.scratch = items;
    }

    /// Begins the end of an object: nothing more is taken in; `on_closing` runs after the running
    /// turn; then [`Core::on_closed`].
    pub(super) fn begin_close(&mut self, env: &mut E, index: usize) {
        let object = &mut self.objects.objects[index];
        object.state = State::Closing;
        let key = object.key.clone();
        let queue = std::mem::take(&mut object.queue);
        self.refuse_queue(env, &key, queue);
        if self.objects.objects[index].turn.is_none() {
            self.close_body(env, index);
        }
    }

    /// A turn panicked: nothing of the object's state is used again.
    fn close_after_panic(&mut self, env: &mut E, index: usize) {
        if self.objects.objects[index].state == State::Closing {
            self.on_closed(env, index);
        } else {
            self.end_object(env, index);
        }
    }

    fn refuse_queue(&mut self, env: &mut E, key: &ObjectKey, queue: VecDeque<Queued>) {
        for queued in queue {
            self.free_credit(env, key.object_hash().low(), queued.credit);
            if queued.reply.is_none() {
                self.count(Counter::DroppedClosed, 1);
            }
            let status = Status::of_code(FailureCode::ActorLocationStale);
            self.refuse(
                key,
                queued.reply,
                status,
                "the object was closed before the message's turn",
            );
        }
    }

    fn close_body(&mut self, env: &mut E, index: usize) {
        let object = &mut self.objects.objects[index];
        match object.body.take() {
            None => self.on_closed(env, index),
            Some(body) => {
                let close = object.ty.close;
                let used = CellUse::Closing { object: index };
                let cell = self.objects.cells.insert(used, |blocks| close(blocks, body));
                object.turn = Some(cell);
                self.objects.wake(cell);
            }
        }
    }

    /// Takes an object out; what is still queued (an object that never opened) is refused.
    pub(super) fn remove_object(&mut self, env: &mut E, index: usize) -> Object {
        let mut object = self.objects.objects.remove(index);
        self.objects.by_key.remove(&object.key);
        if let Some(cell) = object.turn.take() {
            self.objects.cells.cancel(cell);
        }
        let queue = std::mem::take(&mut object.queue);
        let key = object.key.clone();
        self.refuse_queue(env, &key, queue);
        object
    }

    fn send_answer(&mut self, env: &mut E, key: &ObjectKey, to: ReplyTo, end: Answered) {
        match to {
            ReplyTo::Local(correlation) => {
                self.settle_request(env, correlation, end.map_err(|(_, e)| e));
            }
            ReplyTo::Remote { rid, node_generation, correlation } => {
                let end = in_bytes(key, end);
                self.send_reply(env, key, &rid, node_generation, correlation, end);
            }
        }
    }

    /// Gives the credit of a message whose turn starts, or that is refused, back.
    pub(super) fn free_credit(&mut self, env: &mut E, object: u64, credit: CreditOf) {
        match credit {
            CreditOf::Local { bytes } => self.local_credit_freed(object, bytes),
            CreditOf::Lane { link, lane, bytes } => {
                self.lane_credit_freed(env, link, lane, object, bytes);
            }
        }
    }
}

/// An answer as it leaves the node. One that cannot be encoded is an error for the requester.
fn in_bytes(
    key: &ObjectKey,
    end: Answered,
) -> std::result::Result<Option<Payload>, (Status, Error)> {
    end?.map(Content::into_payload)
        .transpose()
        .map_err(|e| (Status::of_kind(e.kind(), key.kind()), e))
}

fn in_content(payload: Option<Payload>) -> Option<Content> {
    payload.map(Content::Bytes)
}
