#![forbid(unsafe_code)]
//! Carries out what the creation machine wants: Store calls, factories, questions to other nodes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::Core;
use super::callers::Callers;
use super::inbound::Purpose;
use super::objects::State;
use super::store_calls::{StoreUse, row_of};
use crate::env::{Env, Failpoint, StoreAnswer, StoreOp};
use crate::error::{Error, ErrorKind, Result};
use crate::ids::{
    ActorRef, AuthorityOwnerGeneration, Correlation, FixedMap, MeshName, NodeGeneration, NodeRid,
    ObjectGeneration, ObjectKey, StoreVersion,
};
use crate::limits;
use crate::location::Batch;
use crate::node::counters::Counter;
use crate::node::operation::{CreateCall, CreateOutcome, CreateWaiter, Mail, ReplyTo};
use crate::object::{Body, CreateContext, Payload};
use crate::protocol::commit::CommitOutcome;
use crate::protocol::create::{
    AttemptEnd, CallId, CreateAnswer, Creator, Effect, Event, FactoryOutcome, Incarnation,
    JoinReply, LocalSight,
};
use crate::protocol::resolve::{Row, owner_keys};
use crate::store::records::{self, Authority, AuthorityState};
use crate::time::Nanos;
use crate::wire::{
    ActorCreate, Body as FrameBody, CreateMode, CreateTail, CreatedActor, FrameParts, Record,
    Status,
};

/// What a Store call of a creation is for.
pub(super) enum StoreStep {
    Row { key: ObjectKey, call: CallId },
    Owner { key: ObjectKey, call: CallId, row: Row, sent: Nanos },
    Commit { key: ObjectKey, call: CallId },
}

/// A question to another node about a creation.
pub(super) enum Asked {
    /// To make the object there.
    Make(CreateWaiter),
    /// To tell how its attempt ends.
    Join(CallId),
}

/// A question that waits for its link.
struct Ask {
    key: ObjectKey,
    asked: Asked,
    type_name: Arc<str>,
    attempt: u128,
    request: Option<Payload>,
    deadline: Nanos,
}

/// The creations of a core.
pub(super) struct Creations {
    creator: Creator,
    callers: Callers,
    /// Running factories, and what they built until it is installed.
    factories: FixedMap<CallId, (ObjectKey, u64)>,
    built: FixedMap<CallId, (ObjectKey, Body)>,
    opening: FixedMap<CallId, usize>,
    for_generation: Vec<(ObjectKey, CallId)>,
    for_link: BTreeMap<(NodeRid, NodeGeneration), Vec<Ask>>,
}

impl Creations {
    pub(super) fn new(creator: Creator) -> Self {
        Self {
            creator,
            callers: Callers::default(),
            factories: FixedMap::default(),
            built: FixedMap::default(),
            opening: FixedMap::default(),
            for_generation: Vec::new(),
            for_link: BTreeMap::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.creator.is_empty()
    }

    pub(super) fn next_deadline(&self) -> Nanos {
        self.creator.next_deadline().unwrap_or(Nanos::MAX)
    }
}

#[cfg(feature = "sim")]
impl Creations {
    /// What is held, for tests that look for what was left behind.
    pub(super) fn held(&self) -> [(&'static str, u64); 7] {
        [
            ("creations", self.creator.len() as u64),
            ("creators' callers", self.callers.len() as u64),
            ("factories", self.factories.len() as u64),
            ("built objects", self.built.len() as u64),
            ("opening objects", self.opening.len() as u64),
            ("creations without a generation", self.for_generation.len() as u64),
            ("creations without a link", self.for_link.len() as u64),
        ]
    }
}

fn creation_frame<'a>(
    key: &ObjectKey,
    record: ActorCreate<'a>,
    request: Option<&'a Payload>,
    remaining_ms: u32,
) -> FrameParts<'a> {
    FrameParts {
        object_hash: key.object_hash().low(),
        remaining_ms,
        payload_part: request.map(|r| &r.part()[..]),
        ..FrameParts::link(0, FrameBody::Record(Record::ActorCreate(record)))
    }
}

impl<E: Env<Mail = Mail>> Core<E> {
    /// Whether other nodes have as many creations and destructions under way here as they may.
    pub(super) fn is_remote_control_full(&self) -> bool {
        self.creations.callers.is_full_of_remote()
            || self.destroys.callers() >= limits::MAX_REMOTE_CONTROL
    }

    /// A call to create, at the home core of its id.
    pub(super) fn on_create(&mut self, env: &mut E, call: CreateCall) {
        if self.is_stopping() {
            let error = self.shutting_down();
            self.answer_create(env, &call.key, call.waiter, Err(error));
            return;
        }
        if let Some(text) = self.creation_fits_no_frame(&call) {
            self.answer_create(env, &call.key, call.waiter, Err(Error::invalid(text)));
            return;
        }
        let here = &self.shared.settings.rid;
        let hosts_it = self.shared.registry.get(&call.type_name).is_some();
        let target = match &call.target {
            Some(rid) if rid != here => Some(rid.clone()),
            Some(_) => None,
            None if hosts_it => None,
            None => match self.some_host(&call.type_name) {
                Some(rid) => Some(rid),
                None => {
                    let text = format!(
                        "{}: no live node of mesh {} hosts actor type {:?}",
                        call.key, self.shared.settings.mesh, call.type_name
                    );
                    self.answer_create(env, &call.key, call.waiter, Err(Error::unavailable(text)));
                    return;
                }
            },
        };
        match target {
            None => self.create_here(env, call),
            Some(rid) => self.create_there(env, call, rid),
        }
    }

    /// A live node that hosts the type, chosen by the id's place in the order of rids.
    fn some_host(&self, type_name: &str) -> Option<NodeRid> {
        let is_live = |rid: &&NodeRid| {
            self.routes.nodes().get(rid).is_some_and(|node| {
                node.is_alive(self.now) && node.mesh == self.shared.settings.mesh
            })
        };
        let hosts = self.hosts.iter().filter(|(_, types)| types.iter().any(|t| t == type_name));
        hosts.map(|(rid, _)| rid).find(is_live).cloned()
    }

    /// Why another node could not be asked for this creation, if so. Near and far have one rule
    /// (R2.1-5), as for messages.
    fn creation_fits_no_frame(&self, call: &CreateCall) -> Option<String> {
        let max = self.shared.settings.max_frame_bytes as usize;
        if call.request.part().len() <= max / 2 {
            return None;
        }
        let record = ActorCreate {
            correlation: Correlation::FIRST,
            mode: CreateMode::Here,
            type_name: &call.type_name,
            id: call.key.id(),
            attempt_id: 1,
        };
        let parts = creation_frame(&call.key, record, Some(&call.request), 0);
        match parts.encoded_len() {
            Ok(len) if len <= max => None,
            Ok(len) => Some(format!(
                "{}: the creation request makes a frame of {len} bytes; this node carries at most \
                 {max} (max_frame_bytes)",
                call.key
            )),
            Err(_) => Some(format!("{}: the creation request cannot be a frame", call.key)),
        }
    }

    fn create_here(&mut self, env: &mut E, call: CreateCall) {
        let CreateCall { key, type_name, request, timeout, waiter, .. } = call;
        if self.shared.registry.get(&type_name).is_none() {
            let text = format!(
                "{key}: node {} does not host actor type {type_name:?}; it hosts {:?}",
                self.shared.settings.rid,
                self.shared.registry.names()
            );
            self.answer_create(env, &key, waiter, Err(Error::not_configured(text)));
            return;
        }
        let local = match self.objects.index(&key).map(|index| &self.objects.objects[index]) {
            None => LocalSight::Absent,
            Some(object) => match object.state {
                // The creation that made it is still under way; the machine joins it.
                State::Opening => LocalSight::Absent,
                State::Closing => LocalSight::Closing,
                State::Ready => LocalSight::Ready {
                    object_generation: object.generation,
                    type_name: object.ty.name.into(),
                },
            },
        };
        let caller = self.creations.callers.insert(waiter, request);
        let attempt = self.random_u128(env);
        let deadline = self.now + timeout;
        let type_name = type_name.into();
        let event = Event::Create { key, caller, type_name, deadline, attempt, local };
        self.step_creator(env, event);
    }

    fn create_there(&mut self, env: &mut E, call: CreateCall, rid: NodeRid) {
        let CreateCall { key, type_name, request, timeout, waiter, .. } = call;
        let Some(node) = self.routes.nodes().get(&rid).map(|node| node.node_generation) else {
            let text = format!("{key}: node {rid} is not known to this node");
            self.answer_create(env, &key, waiter, Err(Error::unavailable(text)));
            return;
        };
        let ask = Ask {
            key,
            asked: Asked::Make(waiter),
            type_name: type_name.into(),
            attempt: self.random_u128(env),
            request: Some(request),
            deadline: self.now + timeout,
        };
        self.ask(env, ask, rid, node);
    }

    fn random_u128(&mut self, env: &mut E) -> u128 {
        (u128::from(env.random()) << 64 | u128::from(env.random())).max(1)
    }

    /// Sends a question, or keeps it until there is a link.
    fn ask(&mut self, env: &mut E, ask: Ask, rid: NodeRid, node_generation: NodeGeneration) {
        let Some((link, _)) = self.links.to_node(&rid, node_generation) else {
            if let Some(text) = self.need_has_failed(&rid, node_generation) {
                let text = format!("{}: node {rid} is not connected: {text}", ask.key);
                let Ask { key, asked, .. } = ask;
                self.on_create_reply(
                    env,
                    &key,
                    asked,
                    Err((false, Error::unavailable(text))),
                    None,
                );
                return;
            }
            self.creations.for_link.entry((rid.clone(), node_generation)).or_default().push(ask);
            self.need_link(env, rid, node_generation);
            return;
        };
        let Ask { key, asked, type_name, attempt, request, deadline } = ask;
        let mode = match asked {
            Asked::Make(_) => CreateMode::Here,
            Asked::Join(_) => CreateMode::Join,
        };
        let purpose = Purpose::Creation(asked);
        let correlation = self.register_purpose(&key, purpose, deadline, Some(link));
        let record = ActorCreate {
            correlation,
            mode,
            type_name: &type_name,
            id: key.id(),
            attempt_id: attempt,
        };
        let remaining_ms = deadline.remaining_ms(self.now);
        let parts = creation_frame(&key, record, request.as_ref(), remaining_ms);
        if self.send_frame(env, link, parts).is_none() {
            let text = format!("{key}: the creation request fits no frame of the link to {rid}");
            self.fail_asked(env, correlation, Error::invalid(text));
        }
    }

    fn fail_asked(&mut self, env: &mut E, correlation: Correlation, error: Error) {
        let Some(token) = self.requests.settle_error(correlation) else { return };
        if let Some(pending) = self.take_pending(token)
            && let Purpose::Creation(asked) = pending.purpose
        {
            self.on_create_reply(env, &pending.key, asked, Err((false, error)), None);
        }
    }

    /// Asks again what waited for this link, which is up or will not be.
    pub(super) fn pump_asks(&mut self, env: &mut E, rid: &NodeRid, generation: NodeGeneration) {
        let waiting = self.creations.for_link.remove(&(rid.clone(), generation));
        for ask in waiting.into_iter().flatten() {
            self.ask(env, ask, rid.clone(), generation);
        }
    }

    /// Another node asks with record 49.
    pub(super) fn on_remote_create(
        &mut self,
        env: &mut E,
        key: ObjectKey,
        create: &ActorCreate<'_>,
        request: Payload,
        remaining: Duration,
        to: ReplyTo,
    ) {
        let ReplyTo::Remote { rid, node_generation, correlation } = to else { return };
        let waiter = CreateWaiter::Remote { rid, node_generation, correlation };
        match create.mode {
            CreateMode::Here => {
                let call = CreateCall {
                    key,
                    type_name: create.type_name.to_owned(),
                    request,
                    target: Some(self.shared.settings.rid.clone()),
                    timeout: remaining,
                    waiter,
                };
                self.on_create(env, call);
            }
            CreateMode::Join => {
                let caller = self.creations.callers.insert(waiter, request);
                let deadline = self.now + remaining;
                let attempt = create.attempt_id;
                self.step_creator(env, Event::Join { key, caller, attempt, deadline });
            }
        }
    }

    /// What another node said about a creation; an error with `true` is its answer, with `false`
    /// the lack of one.
    pub(super) fn on_create_reply(
        &mut self,
        env: &mut E,
        key: &ObjectKey,
        asked: Asked,
        reply: std::result::Result<CreateTail<'_>, (bool, Error)>,
        payload: Option<Payload>,
    ) {
        match asked {
            Asked::Make(waiter) => {
                let outcome = match reply {
                    Ok(CreateTail::Created(at)) => incarnation_of(&at)
                        .and_then(|at| actor_ref(key, &at))
                        .map(CreateOutcome::Created),
                    Ok(CreateTail::Existing(at)) => incarnation_of(&at)
                        .and_then(|at| actor_ref(key, &at))
                        .map(CreateOutcome::Existing),
                    Ok(CreateTail::Rejected) => Ok(CreateOutcome::Rejected(text_of(payload))),
                    Ok(CreateTail::NoSuchAttempt) => Err(Error::new(
                        ErrorKind::ProtocolError,
                        format!("{key}: the node answered a creation as if it were a join"),
                    )),
                    Err((_, e)) => Err(e),
                };
                self.answer_create(env, key, waiter, outcome);
            }
            Asked::Join(call) => {
                let answer = match reply {
                    Ok(CreateTail::Created(at) | CreateTail::Existing(at)) => {
                        incarnation_of(&at).map(|at| JoinReply::Ended(AttemptEnd::Made(at)))
                    }
                    Ok(CreateTail::Rejected) => {
                        let error = Error::rejected(text_of(payload));
                        Ok(JoinReply::Ended(AttemptEnd::Rejected(error)))
                    }
                    Ok(CreateTail::NoSuchAttempt) => Ok(JoinReply::NoSuchAttempt),
                    Err((true, e))
                        if !matches!(
                            e.kind(),
                            ErrorKind::ShuttingDown | ErrorKind::Unavailable
                        ) =>
                    {
                        Ok(JoinReply::Ended(AttemptEnd::Failed(e)))
                    }
                    Err((_, e)) => Err(e),
                };
                self.step_creator(env, Event::JoinAnswered { key: key.clone(), call, answer });
            }
        }
    }

    /// Gives the machine an event and carries out what it wants.
    pub(super) fn step_creator(&mut self, env: &mut E, event: Event) {
        let mut effects = Vec::new();
        self.creations.creator.handle(event, self.now, &mut effects);
        for effect in effects {
            self.do_create_effect(env, effect);
        }
    }

    fn do_create_effect(&mut self, env: &mut E, effect: Effect) {
        match effect {
            Effect::ReadRow { key, call, until } => {
                let op = StoreOp::Read(vec![records::authority_key(key.kind(), key.id())]);
                self.creation_call(env, op, until, StoreStep::Row { key, call });
            }
            Effect::ReadOwner { key, call, row, until } => {
                let op = StoreOp::Read(owner_keys(&row.authority.rid));
                let step = StoreStep::Owner { key, call, row, sent: self.now };
                self.creation_call(env, op, until, step);
            }
            Effect::Clear { key, call, row, dead, until } => {
                let name = records::authority_key(key.kind(), key.id());
                let batch = records::clear_dead_creating(name, &row.authority, row.version, dead);
                self.creation_commit(env, key, call, batch, until);
            }
            Effect::JoinRemote { key, call, rid, node_generation, attempt, type_name, until } => {
                let asked = Asked::Join(call);
                let ask = Ask { key, asked, type_name, attempt, request: None, deadline: until };
                self.ask(env, ask, rid, node_generation);
            }
            Effect::TakeGeneration { key, call, .. } => {
                self.creations.for_generation.push((key, call));
                self.on_generations(env);
            }
            Effect::Reserve { key, call, object_generation, attempt, type_name, until } => {
                env.reached(Failpoint::CreateReserve);
                let state = AuthorityState::Creating { attempt };
                let row = self.own_row(state, &type_name, object_generation);
                let name = records::authority_key(key.kind(), key.id());
                let batch = records::reserve_creating(name, &row, &self.shared.identity.owner);
                self.creation_commit(env, key, call, batch, until);
            }
            Effect::CommitReady { key, call, object_generation, type_name, creating, until } => {
                env.reached(Failpoint::CreateCommit);
                self.open(&key, object_generation, creating, &type_name);
                let row = self.own_row(AuthorityState::Ready, &type_name, object_generation);
                let name = records::authority_key(key.kind(), key.id());
                let owner = &self.shared.identity.owner;
                let batch = records::commit_ready(name, creating, &row, owner);
                self.creation_commit(env, key, call, batch, until);
            }
            Effect::Delete { key, call, version, until } => {
                let name = records::authority_key(key.kind(), key.id());
                let batch = records::delete_row(name, version, &self.shared.identity.owner);
                self.creation_commit(env, key, call, batch, until);
            }
            Effect::RunFactory { key, call, caller, object_generation, type_name, .. } => {
                env.reached(Failpoint::CreateFactory);
                self.run_factory(env, key, call, caller, object_generation, &type_name);
            }
            Effect::StopFactory { factory: call, .. } => {
                if let Some((_, cell)) = self.creations.factories.remove(&call) {
                    self.objects.cancel_cell(cell);
                }
            }
            Effect::Install { key, factory, version, .. } => {
                env.reached(Failpoint::CreateInstall);
                self.install(&key, factory, version);
            }
            Effect::Discard { factory, .. } => {
                self.creations.built.remove(&factory);
                if let Some(index) = self.creations.opening.remove(&factory) {
                    self.remove_object(env, index);
                }
            }
            Effect::Answered { key, caller, answer } => {
                let Some(waiter) = self.creations.callers.take(caller) else { return };
                let outcome = match answer {
                    CreateAnswer::Created(at) => actor_ref(&key, &at).map(CreateOutcome::Created),
                    CreateAnswer::Existing(at) => actor_ref(&key, &at).map(CreateOutcome::Existing),
                    CreateAnswer::Rejected(e) => Ok(CreateOutcome::Rejected(e.text().to_owned())),
                    CreateAnswer::Failed(e) => Err(e),
                };
                env.reached(Failpoint::CreateAnswer);
                self.answer_create(env, &key, waiter, outcome);
            }
            Effect::Joined { key, caller, reply } => {
                let Some(waiter) = self.creations.callers.take(caller) else { return };
                self.answer_join(env, &key, waiter, reply);
            }
        }
    }

    fn creation_call(&mut self, env: &mut E, op: StoreOp, until: Nanos, step: StoreStep) {
        let budget = until.since(self.now);
        self.store_call(env, op, budget, StoreUse::Creation(step));
    }

    fn creation_commit(
        &mut self,
        env: &mut E,
        key: ObjectKey,
        call: CallId,
        batch: Batch,
        until: Nanos,
    ) {
        self.creation_call(env, StoreOp::Commit(batch), until, StoreStep::Commit { key, call });
    }

    pub(super) fn on_creation_store(&mut self, env: &mut E, step: StoreStep, answer: StoreAnswer) {
        let event = match step {
            StoreStep::Row { key, call } => {
                let row = row_of(&key, answer);
                let known = row.as_ref().ok().and_then(Option::as_ref);
                let owner = known.and_then(|row| self.known_owner(&row.authority));
                Event::RowAnswered { key, call, row, owner }
            }
            StoreStep::Owner { key, call, row, sent } => {
                let owner = self.owner_sight(&row, sent, answer);
                Event::OwnerAnswered { key, call, owner }
            }
            StoreStep::Commit { key, call } => {
                Event::Committed { key, call, outcome: CommitOutcome::of(&answer) }
            }
        };
        self.step_creator(env, event);
    }

    /// A row of this node's own.
    fn own_row(
        &self,
        state: AuthorityState,
        type_name: &str,
        object_generation: ObjectGeneration,
    ) -> Authority {
        Authority {
            state,
            type_name: type_name.to_owned(),
            object_generation,
            authority_owner_generation: AuthorityOwnerGeneration::FIRST,
            mesh: self.shared.settings.mesh.clone(),
            rid: self.shared.settings.rid.clone(),
            node_generation: self.shared.identity.node_generation,
            owner_lease_generation: self.shared.identity.lease_generation,
            spot: None,
        }
    }

    /// Gives out generations as long as there are any; asks for more otherwise.
    pub(super) fn on_generations(&mut self, env: &mut E) {
        while !self.creations.for_generation.is_empty() {
            let Some(number) = self.generations.take() else { break };
            let (key, call) = self.creations.for_generation.remove(0);
            let generation = ObjectGeneration::new(number)
                .ok_or_else(|| Error::internal("object generations have run out (2^63-1 used)"));
            self.step_creator(env, Event::GenerationTaken { key, call, generation });
        }
        self.refill_generations(env);
    }

    fn run_factory(
        &mut self,
        env: &mut E,
        key: ObjectKey,
        call: CallId,
        caller: u64,
        generation: ObjectGeneration,
        type_name: &str,
    ) {
        let ty = self.shared.registry.get(type_name).cloned();
        let (Some(ty), Some(id)) = (ty, key.actor_id()) else {
            let error =
                Error::not_configured(format!("{key}: type {type_name:?} is not hosted here"));
            let outcome = FactoryOutcome::Failed(error);
            self.step_creator(env, Event::FactoryEnded { key, call, outcome });
            return;
        };
        let request = self.creations.callers.request(caller).cloned();
        let cx = CreateContext {
            id,
            generation,
            mesh: self.shared.settings.mesh.clone(),
            rid: self.shared.settings.rid.clone(),
        };
        let request = request.unwrap_or_else(Payload::empty);
        let cell = self
            .objects
            .start_factory(key.clone(), call, |blocks| (ty.create)(blocks, cx, request));
        self.creations.factories.insert(call, (key, cell));
    }

    /// A factory ended.
    pub(super) fn on_factory_made(
        &mut self,
        env: &mut E,
        key: &ObjectKey,
        call: CallId,
        made: Result<Body>,
    ) {
        self.creations.factories.remove(&call);
        let outcome = match made {
            Ok(body) => {
                self.creations.built.insert(call, (key.clone(), body));
                FactoryOutcome::Made
            }
            Err(e) if e.kind() == ErrorKind::Rejected => FactoryOutcome::Rejected(e),
            Err(e) => {
                let text = format!("{key}: the factory failed: {e}");
                FactoryOutcome::Failed(Error::internal(text))
            }
        };
        self.step_creator(env, Event::FactoryEnded { key: key.clone(), call, outcome });
    }

    /// The lease stands again. Meanwhile others may have cleared the rows of creations that were
    /// under way here: a factory that has not begun does not begin, so that it runs on one node.
    pub(super) fn drop_unbegun_factories(&mut self, env: &mut E) {
        let all: Vec<(CallId, u64)> =
            self.creations.factories.iter().map(|(call, (_, cell))| (*call, *cell)).collect();
        for (call, cell) in all {
            if !self.objects.cancel_unbegun(cell) {
                continue;
            }
            let Some((key, _)) = self.creations.factories.remove(&call) else { continue };
            let text = format!("{key}: the node's lease lapsed before its factory began");
            let outcome = FactoryOutcome::Failed(Error::unavailable(text));
            self.step_creator(env, Event::FactoryEnded { key, call, outcome });
        }
    }

    /// The Ready row is about to be written: from now on messages wait in the object's queue.
    fn open(
        &mut self,
        key: &ObjectKey,
        generation: ObjectGeneration,
        version: StoreVersion,
        type_name: &str,
    ) {
        let Some(call) = self.creations.built_for(key) else { return };
        let Some(ty) = self.shared.registry.get(type_name).cloned() else { return };
        let Some((_, body)) = self.creations.built.remove(&call) else { return };
        let index = self.objects.insert(key.clone(), ty, generation, version, body);
        self.creations.opening.insert(call, index);
    }

    fn install(&mut self, key: &ObjectKey, factory: CallId, version: StoreVersion) {
        let Some(index) = self.creations.opening.remove(&factory) else {
            debug_assert!(false, "{key} was opened before it is installed");
            return;
        };
        let object = &mut self.objects.objects[index];
        object.version = version;
        object.state = State::Ready;
        self.count(Counter::ObjectsCreated, 1);
        self.objects.schedule(index);
    }

    /// Ends every creation that is under way.
    pub(super) fn fail_creations(&mut self, env: &mut E, error: &Error) {
        self.step_creator(env, Event::Shutdown);
        for ask in std::mem::take(&mut self.creations.for_link).into_values().flatten() {
            let Ask { key, asked, .. } = ask;
            self.on_create_reply(env, &key, asked, Err((false, error.clone())), None);
        }
        self.creations.for_generation.clear();
    }

    fn answer_create(
        &mut self,
        env: &mut E,
        key: &ObjectKey,
        waiter: CreateWaiter,
        outcome: Result<CreateOutcome>,
    ) {
        match waiter {
            CreateWaiter::App(settler) => {
                settler.settle(outcome);
            }
            CreateWaiter::Remote { rid, node_generation, correlation } => {
                let to = (&rid, node_generation, correlation);
                match &outcome {
                    Ok(CreateOutcome::Created(at)) => {
                        self.reply_create(env, key, to, CreateTail::Created(created(at)), None);
                    }
                    Ok(CreateOutcome::Existing(at)) => {
                        self.reply_create(env, key, to, CreateTail::Existing(created(at)), None);
                    }
                    Ok(CreateOutcome::Rejected(why)) => {
                        self.reply_create(env, key, to, CreateTail::Rejected, Some(why));
                    }
                    Err(e) => {
                        let end = Err((Status::of_kind(e.kind(), key.kind()), e.clone()));
                        self.send_reply(env, key, &rid, node_generation, correlation, end);
                    }
                }
            }
        }
    }

    fn answer_join(
        &mut self,
        env: &mut E,
        key: &ObjectKey,
        waiter: CreateWaiter,
        reply: JoinReply,
    ) {
        let outcome = match reply {
            JoinReply::Ended(AttemptEnd::Made(at)) => {
                actor_ref(key, &at).map(CreateOutcome::Existing)
            }
            JoinReply::Ended(AttemptEnd::Rejected(e)) => {
                Ok(CreateOutcome::Rejected(e.text().to_owned()))
            }
            JoinReply::Ended(AttemptEnd::Failed(e)) => Err(e),
            JoinReply::NoSuchAttempt => {
                if let CreateWaiter::Remote { rid, node_generation, correlation } = &waiter {
                    let to = (rid, *node_generation, *correlation);
                    self.reply_create(env, key, to, CreateTail::NoSuchAttempt, None);
                }
                return;
            }
        };
        self.answer_create(env, key, waiter, outcome);
    }

    fn reply_create(
        &mut self,
        env: &mut E,
        key: &ObjectKey,
        to: (&NodeRid, NodeGeneration, Correlation),
        tail: CreateTail<'_>,
        why: Option<&str>,
    ) {
        let mut bytes = Vec::new();
        if tail.encode(&mut bytes).is_err() {
            debug_assert!(false, "a creation's tail is made of checked ids");
            return;
        }
        let payload = why.and_then(super::inbound::text_payload);
        self.send_reply_record(env, key, to, Status::OK, &bytes, payload);
    }
}

impl Creations {
    /// The built object of the id that has not been opened.
    fn built_for(&self, key: &ObjectKey) -> Option<CallId> {
        self.built.iter().find(|(_, (of, _))| of == key).map(|(call, _)| *call)
    }
}

fn created(at: &ActorRef) -> CreatedActor<'_> {
    CreatedActor {
        object_generation: at.generation,
        mesh: at.mesh.as_str(),
        rid: at.rid.as_bytes(),
    }
}

/// An incarnation as another node names it; its names were checked when they were decoded.
fn incarnation_of(at: &CreatedActor<'_>) -> Result<Incarnation> {
    Ok(Incarnation {
        object_generation: at.object_generation,
        mesh: MeshName::new(at.mesh)?,
        rid: NodeRid::new(at.rid)?,
    })
}

fn actor_ref(key: &ObjectKey, at: &Incarnation) -> Result<ActorRef> {
    let id = key.actor_id().ok_or_else(|| Error::invalid(format!("{key} is no Actor")))?;
    Ok(ActorRef {
        id,
        generation: at.object_generation,
        mesh: at.mesh.clone(),
        rid: at.rid.clone(),
    })
}

fn text_of(payload: Option<Payload>) -> String {
    payload.map_or_else(String::new, |p| String::from_utf8_lossy(p.bytes()).into_owned())
}
