#![forbid(unsafe_code)]
//! The way of an operation from its home core: one FIFO per id, the route, credit, the lane.
//!
//! An id has a FIFO only while something of it waits: for its route, a link, credit or the lease.
//! What comes later for the id goes behind it; so a sender's order has one place and no lock.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use super::objects::State;
use super::{Core, TimerRef};
use crate::env::{Env, Planted};
use crate::error::{Error, ErrorKind};
use crate::ids::{FixedMap, NodeGeneration, NodeRid, ObjectKey, OperationId, RouteFence};
use crate::limits;
use crate::node::counters::Counter;
use crate::node::operation::{
    Body as OpBody, CreditOf, End, Mail, Operation, Queued, ReplyTo, Waiter,
};
use crate::protocol::credit::Take;
use crate::protocol::peer::{LinkId, PeerDescriptor, PeerIdentity};
use crate::protocol::resolve::{Answer, Event as ResolveEvent};
use crate::route::Route;
use crate::time::Nanos;
use crate::wire::{self, ActorSource, Body, FrameParts, MessageForm, ObjectMessage, Record};

/// What an operation at the head of its FIFO waits for.
#[derive(Clone, Debug)]
enum Wait {
    /// Others before it.
    Behind,
    /// The resolver, under this waiter number.
    Route(u64),
    /// Nothing any more: this is what the resolver said.
    Answered(Answer),
    /// A link to this node.
    Link(NodeRid, NodeGeneration),
    /// Credit of this lane.
    LaneCredit(LinkId, u16),
    /// The core's own budget.
    LocalCredit,
    /// The node's lease.
    Lease,
}

/// How an operation comes to be tried.
enum Sight {
    /// For the first time: the cache's hit or miss is counted, once per operation.
    First,
    /// After it waited for something else than a route.
    Again,
    /// With what the resolver found.
    Answered(Route),
}

impl Wait {
    /// What to say when time runs out.
    fn reason(&self) -> String {
        match self {
            Self::Behind => "it waited behind earlier operations to the same id".into(),
            Self::Route(_) | Self::Answered(_) => {
                "the Location Store did not answer in time".into()
            }
            Self::Link(rid, _) => format!("there was no link to its owner {rid} in time"),
            Self::LaneCredit(..) => "its owner gave no credit in time".into(),
            Self::LocalCredit => "the queues of this core stayed full".into(),
            Self::Lease => "this node's lease has lapsed".into(),
        }
    }
}

struct Parked {
    operation: Operation,
    wait: Wait,
    timer: TimerRef,
}

/// What became of an attempt to submit.
#[allow(clippy::large_enum_variant)] // moved once, from the stack into the FIFO
enum Tried {
    /// Submitted or ended.
    Done,
    Wait(Operation, Wait),
}

/// All that waits on a core before submission.
#[derive(Default)]
pub(super) struct Directory {
    fifos: FixedMap<ObjectKey, VecDeque<Parked>>,
    next_waiter: u64,
    /// Bytes of everything parked.
    parked_bytes: u64,
    for_link: FixedMap<(NodeRid, NodeGeneration), BTreeSet<ObjectKey>>,
    for_credit: BTreeMap<(LinkId, u16), VecDeque<ObjectKey>>,
    for_local_credit: VecDeque<ObjectKey>,
    for_lease: VecDeque<ObjectKey>,
    /// Set while a failed need is told to those who wait for it.
    failed_need: Option<(NodeRid, NodeGeneration, Arc<str>)>,
}

impl Directory {
    pub(super) fn new_waiter(&mut self) -> u64 {
        self.next_waiter += 1;
        self.next_waiter
    }
}

#[cfg(feature = "sim")]
impl Directory {
    /// What is held, for tests that look for what was left behind.
    pub(super) fn held(&self) -> [(&'static str, u64); 6] {
        [
            ("fifos", self.fifos.len() as u64),
            ("parked bytes", self.parked_bytes),
            ("nodes whose link is waited for", self.for_link.len() as u64),
            ("lanes whose credit is waited for", self.for_credit.len() as u64),
            ("waiting for local credit", self.for_local_credit.len() as u64),
            ("waiting for the lease", self.for_lease.len() as u64),
        ]
    }
}

fn size_of(operation: &Operation) -> u64 {
    match &operation.body {
        OpBody::Message { payload, metadata, .. } => {
            (payload.part().len() + metadata.part().map_or(0, bytes::Bytes::len)) as u64 + 256
        }
        OpBody::Destroy { .. } => 256,
    }
}

impl<E: Env<Mail = Mail>> Core<E> {
    /// Gives an operation to its home core.
    pub(super) fn route_operation(&mut self, env: &mut E, operation: Operation) {
        let home = self.shared.home_core(&operation.key);
        if home == self.index {
            self.accept(env, operation);
        } else {
            self.count(Counter::CoreHops, 1);
            env.mail(home, Mail::Submit(Box::new(operation)));
        }
    }

    /// Takes an operation in: the id's FIFO begins here.
    pub(super) fn accept(&mut self, env: &mut E, mut operation: Operation) {
        if let Some(error) = self.refusal() {
            self.settle(env, operation.waiter, Err(error));
            return;
        }
        operation.deadline = operation.deadline.min(self.now + operation.timeout);
        let key = operation.key.clone();
        if !self.directory.fifos.contains_key(&key) {
            if let Tried::Wait(operation, wait) = self.attempt(env, operation, Sight::First) {
                self.park(env, operation, wait);
            }
            return;
        }
        // Earlier operations wait. When they wait for the route, so does this one, by itself: an
        // answer that is cached for nobody still has to reach everybody who asked in time.
        let waits_for_route = self.directory.fifos[&key]
            .back()
            .is_some_and(|last| matches!(last.wait, Wait::Route(_)));
        let wait = if waits_for_route {
            self.look_up(env, &key, operation.deadline)
        } else {
            Wait::Behind
        };
        self.park(env, operation, wait);
    }

    fn park(&mut self, env: &mut E, operation: Operation, wait: Wait) {
        let key = operation.key.clone();
        let bytes = size_of(&operation);
        if self.directory.parked_bytes + bytes > limits::WAITING_BUDGET_BYTES {
            let text = format!(
                "{key}: {} bytes of operations wait on this core, and its limit is {}: {}",
                self.directory.parked_bytes,
                limits::WAITING_BUDGET_BYTES,
                wait.reason()
            );
            self.leave_wait(env, &key, &wait);
            self.settle(env, operation.waiter, Err(Error::unavailable(text)));
            return;
        }
        self.directory.parked_bytes += bytes;
        let timer = self.set_timer(operation.deadline, super::Timer::Parked(key.clone()));
        // In the FIFO first: core 0 may answer a need at once, and then looks for who waits.
        let registered = wait.clone();
        let fifo = self.directory.fifos.entry(key.clone()).or_default();
        if env.planted(Planted::DropFifoWhileResolving) {
            fifo.push_front(Parked { operation, wait, timer });
        } else {
            fifo.push_back(Parked { operation, wait, timer });
        }
        self.register_wait(env, &key, &registered);
    }

    /// Puts the id where what it waits for will look for it.
    fn register_wait(&mut self, env: &mut E, key: &ObjectKey, wait: &Wait) {
        let directory = &mut self.directory;
        match wait {
            Wait::Behind | Wait::Route(_) | Wait::Answered(_) => {}
            Wait::Link(rid, generation) => {
                let node = (rid.clone(), *generation);
                let waiting = directory.for_link.entry(node).or_default();
                let is_first = waiting.is_empty();
                waiting.insert(key.clone());
                if is_first {
                    self.need_link(env, rid.clone(), *generation);
                }
            }
            Wait::LaneCredit(link, lane) => {
                self.count(Counter::CreditWaits, 1);
                self.directory.for_credit.entry((*link, *lane)).or_default().push_back(key.clone());
            }
            Wait::LocalCredit => {
                self.count(Counter::CreditWaits, 1);
                self.directory.for_local_credit.push_back(key.clone());
            }
            Wait::Lease => directory.for_lease.push_back(key.clone()),
        }
    }

    /// Why the need of this node has just failed, while that is told to those who wait.
    pub(super) fn need_has_failed(
        &self,
        rid: &NodeRid,
        generation: NodeGeneration,
    ) -> Option<Arc<str>> {
        let (of, of_generation, text) = self.directory.failed_need.as_ref()?;
        (of == rid && *of_generation == generation).then(|| text.clone())
    }

    pub(super) fn need_link(&mut self, env: &mut E, rid: NodeRid, node_generation: NodeGeneration) {
        let Some(entry) = self.routes.nodes().get_exact(&rid, node_generation) else { return };
        let descriptor = PeerDescriptor {
            identity: PeerIdentity { rid, node_generation, key_id: entry.key_id.to_be_bytes() },
            endpoint: entry.endpoint.clone(),
        };
        self.mail_core_zero(env, Mail::Need(Box::new(descriptor)));
    }

    /// Asks the resolver; the answer comes to the FIFO under the waiter's number.
    fn look_up(&mut self, env: &mut E, key: &ObjectKey, deadline: Nanos) -> Wait {
        let waiter = self.directory.new_waiter();
        let event = ResolveEvent::Lookup { key: key.clone(), waiter, deadline, fresh: false };
        self.step_resolver(env, event);
        Wait::Route(waiter)
    }

    /// Submits what the FIFO of `key` holds, from its head, as far as it goes.
    pub(super) fn pump(&mut self, env: &mut E, key: &ObjectKey) {
        while let Some(fifo) = self.directory.fifos.get_mut(key) {
            match fifo.front() {
                None => {
                    self.directory.fifos.remove(key);
                    return;
                }
                Some(Parked { wait: Wait::Route(_), .. }) => return,
                Some(_) => {}
            }
            let Some(Parked { operation, wait, timer }) = fifo.pop_front() else { return };
            let bytes = size_of(&operation);
            let tried = if operation.deadline <= self.now {
                self.settle_expired(env, operation, &wait);
                Tried::Done
            } else if let Wait::Answered(answer) = wait {
                self.use_answer(env, operation, answer)
            } else if let Wait::Link(rid, generation) = &wait
                && let Some(text) = self.need_has_failed(rid, *generation)
            {
                self.end_unlinked(env, operation, rid, &text);
                Tried::Done
            } else {
                let sight = if matches!(wait, Wait::Behind) { Sight::First } else { Sight::Again };
                self.attempt(env, operation, sight)
            };
            match tried {
                Tried::Done => {
                    self.directory.parked_bytes -= bytes;
                    self.cancel_timer(timer);
                }
                Tried::Wait(operation, wait) => {
                    // As in `park`: in the FIFO before anybody can answer.
                    let registered = wait.clone();
                    let fifo = self.directory.fifos.entry(key.clone()).or_default();
                    fifo.push_front(Parked { operation, wait, timer });
                    self.register_wait(env, key, &registered);
                    return;
                }
            }
        }
    }

    /// Acts on what the resolver said: this is the one place where Missing becomes NotFound
    /// (R2.2b-1, R2.4-1).
    fn use_answer(&mut self, env: &mut E, operation: Operation, answer: Answer) -> Tried {
        if let Answer::Ready(route) = answer {
            return self.attempt(env, operation, Sight::Answered(route));
        }
        let error = answer.terminal_error().unwrap_or_else(|| {
            Error::new(ErrorKind::NotFound, format!("{} does not exist", operation.key))
        });
        if env.planted(Planted::CacheUnavailable) && error.kind() == ErrorKind::Unavailable {
            self.planted_unavailable.insert(operation.key.clone());
        }
        self.settle(env, operation.waiter, Err(error));
        Tried::Done
    }

    /// What the resolver answered these waiters, whose numbers rise.
    pub(super) fn on_resolved(
        &mut self,
        env: &mut E,
        key: &ObjectKey,
        waiters: &[u64],
        answer: &Answer,
    ) {
        debug_assert!(waiters.is_sorted(), "waiters are answered in the order of their calls");
        for parked in self.directory.fifos.get_mut(key).into_iter().flatten() {
            if let Wait::Route(waiter) = &parked.wait
                && waiters.binary_search(waiter).is_ok()
            {
                parked.wait = Wait::Answered(answer.clone());
            }
        }
        self.pump(env, key);
    }

    /// The resolver gave a waiter up.
    pub(super) fn on_resolve_ended(
        &mut self,
        env: &mut E,
        key: &ObjectKey,
        waiter: u64,
        error: Error,
    ) {
        if let Some(fifo) = self.directory.fifos.get_mut(key)
            && let Some(at) =
                fifo.iter().position(|p| matches!(p.wait, Wait::Route(w) if w == waiter))
            && let Some(parked) = fifo.remove(at)
        {
            self.cancel_timer(parked.timer);
            self.directory.parked_bytes -= size_of(&parked.operation);
            self.settle(env, parked.operation.waiter, Err(error));
            self.pump(env, key);
        }
    }

    /// Ends what waited too long for `key`, wherever it stands.
    pub(super) fn expire_parked(&mut self, env: &mut E, key: &ObjectKey) {
        let now = self.now;
        let Some(fifo) = self.directory.fifos.get_mut(key) else { return };
        let mut expired = Vec::new();
        let mut kept = VecDeque::with_capacity(fifo.len());
        for parked in fifo.drain(..) {
            if parked.operation.deadline <= now {
                expired.push(parked)
            } else {
                kept.push_back(parked)
            }
        }
        *fifo = kept;
        for Parked { operation, wait, timer } in expired {
            self.cancel_timer(timer);
            self.directory.parked_bytes -= size_of(&operation);
            self.leave_wait(env, key, &wait);
            self.settle_expired(env, operation, &wait);
        }
        self.pump(env, key);
    }

    /// An operation does not wait any more: whoever it waited for is told.
    fn leave_wait(&mut self, env: &mut E, key: &ObjectKey, wait: &Wait) {
        let object = key.object_hash().low();
        match wait {
            Wait::Route(waiter) => {
                let event = ResolveEvent::Cancel { key: key.clone(), waiter: *waiter };
                self.step_resolver(env, event);
            }
            Wait::LaneCredit(link, lane) => {
                if let Some(window) = self.links.window(*link, *lane) {
                    window.withdraw(object);
                }
                self.pump_waiting_for_credit(env, *link, *lane);
            }
            Wait::LocalCredit => {
                self.local_credit.withdraw(object);
                self.local_credit_returned = true;
            }
            Wait::Behind | Wait::Answered(_) | Wait::Link(..) | Wait::Lease => {}
        }
    }

    fn settle_expired(&mut self, env: &mut E, operation: Operation, wait: &Wait) {
        if operation.wants_reply() {
            self.count(Counter::RequestsTimedOut, 1);
        }
        let text = format!("{} after {:?}: {}", operation.key, operation.timeout, wait.reason());
        self.settle(env, operation.waiter, Err(Error::new(ErrorKind::DeadlineExceeded, text)));
    }

    /// The caller gave up an operation that has not been submitted. Whether it was found here.
    pub(super) fn cancel_parked(&mut self, env: &mut E, key: &ObjectKey, ticket: u64) -> bool {
        let Some(fifo) = self.directory.fifos.get_mut(key) else { return false };
        let Some(at) = fifo.iter().position(|p| p.operation.ticket == ticket) else { return false };
        let Some(Parked { operation, wait, timer }) = fifo.remove(at) else { return false };
        self.cancel_timer(timer);
        self.directory.parked_bytes -= size_of(&operation);
        self.leave_wait(env, key, &wait);
        drop(operation);
        self.pump(env, key);
        true
    }

    /// Ends everything that waits.
    pub(super) fn fail_parked(&mut self, env: &mut E, error: &Error) {
        let mut fifos: Vec<_> = std::mem::take(&mut self.directory.fifos).into_iter().collect();
        fifos.sort_by(|a, b| a.0.cmp(&b.0));
        for (_, fifo) in fifos {
            for parked in fifo {
                self.cancel_timer(parked.timer);
                self.settle(env, parked.operation.waiter, Err(error.clone()));
            }
        }
        self.directory.parked_bytes = 0;
    }

    pub(super) fn pump_waiting_for_link(
        &mut self,
        env: &mut E,
        rid: &NodeRid,
        generation: NodeGeneration,
    ) {
        let waiting = self.directory.for_link.remove(&(rid.clone(), generation));
        for key in waiting.into_iter().flatten() {
            self.pump(env, &key);
        }
        self.pump_asks(env, rid, generation);
    }

    /// There is no link to this node: what waits for it ends, truthfully and at once (R2.6-3).
    pub(super) fn on_need_failed(
        &mut self,
        env: &mut E,
        rid: &NodeRid,
        generation: NodeGeneration,
        text: &Arc<str>,
    ) {
        if self.links.to_node(rid, generation).is_none() {
            self.directory.failed_need = Some((rid.clone(), generation, text.clone()));
        }
        self.pump_waiting_for_link(env, rid, generation);
        self.directory.failed_need = None;
    }

    pub(super) fn pump_waiting_for_credit(&mut self, env: &mut E, link: LinkId, lane: u16) {
        let waiting = self.directory.for_credit.remove(&(link, lane));
        for key in waiting.into_iter().flatten() {
            self.pump(env, &key);
        }
    }

    pub(super) fn pump_waiting_for_lease(&mut self, env: &mut E) {
        for key in std::mem::take(&mut self.directory.for_lease) {
            self.pump(env, &key);
        }
    }

    pub(super) fn local_credit_freed(&mut self, env: &mut E, key: &ObjectKey, bytes: u32) {
        let _ = env;
        let returned = self.local_credit.give_back(key.object_hash().low(), bytes.into());
        debug_assert!(returned.is_ok(), "local credit is returned once");
        self.local_credit_returned = true;
    }

    /// Lets senders go on that wait for the core's own budget; once per round.
    pub(super) fn pump_waiting_for_local_credit(&mut self, env: &mut E) {
        if std::mem::take(&mut self.local_credit_returned) {
            for key in std::mem::take(&mut self.directory.for_local_credit) {
                self.pump(env, &key);
            }
        }
    }

    /// Tries to submit one operation.
    fn attempt(&mut self, env: &mut E, operation: Operation, sight: Sight) -> Tried {
        if let Some(index) = self.objects.index(&operation.key) {
            return self.attempt_local(env, operation, index);
        }
        if env.planted(Planted::CacheUnavailable)
            && self.planted_unavailable.contains(&operation.key)
        {
            let error = Error::unavailable(format!("{} was unavailable", operation.key));
            self.settle(env, operation.waiter, Err(error));
            return Tried::Done;
        }
        let counts = u64::from(matches!(sight, Sight::First));
        let cached = match sight {
            Sight::Answered(route) => return self.attempt_remote(env, operation, &route),
            Sight::First | Sight::Again => self.routes.lookup(&operation.key, self.now),
        };
        let Some(route) = cached else {
            self.count(Counter::CacheMisses, counts);
            let wait = self.look_up(env, &operation.key, operation.deadline);
            return Tried::Wait(operation, wait);
        };
        self.count(Counter::CacheHits, counts);
        self.attempt_remote(env, operation, &route)
    }

    fn attempt_local(&mut self, env: &mut E, operation: Operation, index: usize) -> Tried {
        if !self.is_alive {
            return Tried::Wait(operation, Wait::Lease);
        }
        let key = operation.key.clone();
        if self.objects.objects[index].state == State::Closing {
            let error = Error::unavailable(format!("{key} is being closed"));
            self.settle(env, operation.waiter, Err(error));
            return Tried::Done;
        }
        if let Some(text) = self.fits_no_frame(env, &operation, index) {
            self.settle(env, operation.waiter, Err(Error::invalid(text)));
            return Tried::Done;
        }
        let wants_reply = operation.wants_reply();
        let (payload, metadata) = match operation.body {
            OpBody::Destroy { generation } => {
                let correlation = self.register(
                    &key,
                    operation.waiter,
                    operation.ticket,
                    operation.deadline,
                    None,
                );
                let to = ReplyTo::Local(correlation);
                self.destroy_here(env, index, generation, to, operation.deadline);
                return Tried::Done;
            }
            OpBody::Message { payload, metadata, is_request } => {
                let bytes = payload.part().len() as u32;
                let object = key.object_hash().low();
                if self.local_credit.try_take(object, bytes.into()) != Take::Taken {
                    if env.planted(Planted::LoseMessageOnCredit) {
                        self.settle(env, operation.waiter, Ok(None));
                        return Tried::Done;
                    }
                    let body = OpBody::Message { payload, metadata, is_request };
                    return Tried::Wait(Operation { body, ..operation }, Wait::LocalCredit);
                }
                (payload, metadata)
            }
        };
        let credit = CreditOf::Local { bytes: payload.part().len() as u32 };
        let (reply, deadline) = if wants_reply {
            let correlation =
                self.register(&key, operation.waiter, operation.ticket, operation.deadline, None);
            (Some(ReplyTo::Local(correlation)), operation.deadline)
        } else {
            self.settle(env, operation.waiter, Ok(None));
            (None, Nanos::MAX)
        };
        self.count(Counter::SubmittedLocal, 1);
        let operation = self.new_operation_id(env);
        self.enqueue(index, Queued { operation, payload, metadata, reply, deadline, credit });
        Tried::Done
    }

    /// Why a message to an object of this node could not leave it, if so. Near and far have one
    /// rule (R2.1-5): a caller does not learn where an Actor lives by what it can be sent.
    fn fits_no_frame(&self, env: &mut E, operation: &Operation, index: usize) -> Option<String> {
        let max = self.shared.settings.max_frame_bytes as usize;
        if size_of(operation) <= max as u64 / 2 {
            return None;
        }
        let object = &self.objects.objects[index];
        let identity = &self.shared.identity;
        let route = Route {
            key: operation.key.clone(),
            mesh: self.shared.settings.mesh.clone(),
            fence: RouteFence {
                object_generation: object.generation,
                rid: self.shared.settings.rid.clone(),
                node_generation: identity.node_generation,
                authority_owner_generation: object.tenure,
                owner_lease_generation: identity.lease_generation,
            },
            store_version: object.version,
        };
        let operation_id = self.new_operation_id(env);
        let parts = remote_frame(operation, &route, operation_id, None, self.now);
        match parts.encoded_len() {
            Ok(len) if len <= max => None,
            Ok(len) => Some(format!(
                "{}: the message makes a frame of {len} bytes; this node carries at most {max} \
                 (max_frame_bytes)",
                operation.key
            )),
            Err(_) => Some(format!("{}: the message cannot be a frame", operation.key)),
        }
    }

    fn attempt_remote(&mut self, env: &mut E, operation: Operation, route: &Route) -> Tried {
        let key = operation.key.clone();
        let fence = &route.fence;
        let settings = &self.shared.settings;
        if fence.rid == settings.rid || route.mesh != settings.mesh {
            let why = if route.mesh == settings.mesh {
                self.forget_route(env, &key, route);
                format!("{key} is said to be here (owner {}), but it is not", fence.rid)
            } else {
                format!("{key} is in mesh {}, this node is in mesh {}", route.mesh, settings.mesh)
            };
            self.settle(env, operation.waiter, Err(Error::unavailable(why)));
            return Tried::Done;
        }
        let Some(entry) = self.routes.nodes().get_exact(&fence.rid, fence.node_generation) else {
            let why = format!("{key} belongs to a lifecycle of node {} that is gone", fence.rid);
            self.forget_route(env, &key, route);
            self.settle(env, operation.waiter, Err(Error::unavailable(why)));
            return Tried::Done;
        };
        let key_id = entry.key_id.to_be_bytes();
        let Some((link, state)) = self.links.to_node(&fence.rid, fence.node_generation) else {
            if let Some(text) = self.need_has_failed(&fence.rid, fence.node_generation) {
                self.end_unlinked(env, operation, &fence.rid, &text);
                return Tried::Done;
            }
            let wait = Wait::Link(fence.rid.clone(), fence.node_generation);
            return Tried::Wait(operation, wait);
        };
        if state.info.peer.key_id != key_id {
            let why = format!(
                "{key}: the peer linked as {} has another security identity than its descriptor",
                fence.rid
            );
            self.settle(env, operation.waiter, Err(Error::unavailable(why)));
            return Tried::Done;
        }
        let lane = (key.object_hash().low() % u64::from(state.info.lanes)) as u16;
        self.submit_remote(env, operation, route, link, lane)
    }

    /// Ends an operation whose owner cannot be reached. It is not looked up once more: without a
    /// cache, or with one that forgets quickly, it would ask the Store as fast as that answers.
    fn end_unlinked(&mut self, env: &mut E, operation: Operation, owner: &NodeRid, text: &str) {
        let key = &operation.key;
        let why = format!("{key}: its owner {owner} is not connected: {text}");
        // The next call asks the Store who owns it now.
        if let Some(route) = self.routes.lookup(key, self.now) {
            self.forget_route(env, key, &route);
        }
        self.settle(env, operation.waiter, Err(Error::unavailable(why)));
    }

    /// Takes credit and puts the frame into its lane.
    fn submit_remote(
        &mut self,
        env: &mut E,
        operation: Operation,
        route: &Route,
        link: LinkId,
        lane: u16,
    ) -> Tried {
        let key = operation.key.clone();
        let operation_id = self.new_operation_id(env);
        let is_message = matches!(operation.body, OpBody::Message { .. });
        let mut parts = remote_frame(&operation, route, operation_id, None, self.now);
        let Ok(len) = parts.encoded_len() else {
            let text = format!("{key}: the message cannot be a frame");
            self.settle(env, operation.waiter, Err(Error::invalid(text)));
            return Tried::Done;
        };
        let max = self.links.get(link).map_or(0, |l| l.info.max_frame_bytes);
        if len > max as usize {
            let text = format!(
                "{key}: the message makes a frame of {len} bytes; the link to {} carries at most \
                 {max} (max_frame_bytes of both nodes)",
                route.fence.rid
            );
            self.settle(env, operation.waiter, Err(Error::invalid(text)));
            return Tried::Done;
        }
        if is_message {
            let object = key.object_hash().low();
            let window = self.links.window(link, lane);
            if window.is_none_or(|w| w.try_take(object, len as u64) != Take::Taken) {
                if env.planted(Planted::LoseMessageOnCredit) {
                    self.settle(env, operation.waiter, Ok(None));
                    return Tried::Done;
                }
                return Tried::Wait(operation, Wait::LaneCredit(link, lane));
            }
            self.count(Counter::SubmittedRemote, 1);
        }
        if env.planted(Planted::ResubmitAfterLinkLoss)
            && let OpBody::Message { payload, is_request: false, .. } = &operation.body
        {
            self.planted_resubmit.push((link, key.clone(), payload.clone()));
            self.planted_resubmit.drain(..self.planted_resubmit.len().saturating_sub(8));
        }
        if operation.wants_reply() {
            let sent = Some((link, route.fence.clone()));
            let Operation { waiter, ticket, deadline, .. } = operation;
            let correlation = self.register(&key, waiter, ticket, deadline, sent);
            let operation = Operation { waiter: Waiter::Nobody, ..operation };
            parts = remote_frame(&operation, route, operation_id, Some(correlation), self.now);
            self.send_frame(env, link, parts);
        } else {
            self.send_frame(env, link, parts);
            self.settle(env, operation.waiter, Ok(None));
        }
        Tried::Done
    }

    fn new_operation_id(&self, env: &mut E) -> OperationId {
        loop {
            let value = u128::from(env.random()) << 64 | u128::from(env.random());
            if let Some(id) = OperationId::new(value) {
                return id;
            }
        }
    }

    /// A route turned out to be of no use: the entry goes, and a read that is out inserts nothing.
    pub(super) fn forget_route(&mut self, env: &mut E, key: &ObjectKey, route: &Route) {
        self.routes.remove_stale(key, &route.fence);
        self.step_resolver(env, ResolveEvent::Invalidated { key: key.clone() });
    }

    /// Tells an operation's waiter how it ended. The only place that does.
    pub(super) fn settle(&mut self, env: &mut E, waiter: Waiter, end: End) {
        match waiter {
            Waiter::Nobody => {
                if let Err(error) = end {
                    tracing::debug!(%error, "a detached message was not submitted");
                    self.count(Counter::OneWayFailed, 1);
                }
            }
            Waiter::App(settler) => {
                settler.settle(end);
            }
            Waiter::Turn { core, token } if core == self.index => {
                self.objects.settle_wait(token, end)
            }
            Waiter::Turn { core, token } => env.mail(core, Mail::TurnSettled { token, end }),
        }
    }

    /// Why nothing is taken in any more, if so.
    fn refusal(&self) -> Option<Error> {
        self.is_stopping().then(|| {
            Error::new(
                ErrorKind::ShuttingDown,
                format!("node {} is shutting down", self.shared.settings.rid),
            )
        })
    }
}

/// The frame of an operation for a remote owner.
fn remote_frame<'a>(
    operation: &'a Operation,
    route: &'a Route,
    operation_id: OperationId,
    correlation: Option<crate::ids::Correlation>,
    now: Nanos,
) -> FrameParts<'a> {
    // A request is sized before its correlation is taken; the number's size is fixed.
    let correlation =
        correlation.or(operation.wants_reply().then_some(crate::ids::Correlation::FIRST));
    let (id, fence) = (operation.key.id(), wire::RouteFenceRef::from(&route.fence));
    let record = match (&operation.body, correlation) {
        (OpBody::Destroy { generation }, Some(correlation)) => {
            let fence = wire::RouteFenceRef { object_generation: *generation, ..fence };
            Record::ActorDestroy(wire::ActorDestroy { correlation, id, fence })
        }
        _ => Record::Message(ObjectMessage {
            correlation,
            operation_id,
            hop_count: 0,
            form: MessageForm::Actor {
                source: operation.source.as_ref().map(|(id, generation)| ActorSource {
                    id: id.as_str(),
                    object_generation: *generation,
                }),
                bound_session: None,
            },
            id,
            fence,
        }),
    };
    let mut parts = FrameParts {
        object_hash: operation.key.object_hash().low(),
        ..FrameParts::link(0, Body::Record(record))
    };
    if operation.wants_reply() {
        parts.remaining_ms = operation.deadline.remaining_ms(now);
    }
    if let OpBody::Message { payload, metadata, .. } = &operation.body {
        parts.payload_part = Some(payload.part());
        parts.metadata_part = metadata.part().map(|m| &m[..]);
    }
    parts
}
