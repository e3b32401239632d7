#![forbid(unsafe_code)]
//! What a core asks the Location Store, and what it makes of the answers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::Core;
use crate::env::{Env, StoreAnswer, StoreOp};
use crate::error::{Error, Result};
use crate::ids::{ActorRef, NodeRid, ObjectKey};
use crate::location::{Cursor, ReadAnswer, Record, ScanPage, StoreError};
use crate::node::counters::Counter;
use crate::node::operation::{Mail, NodeSeen};
use crate::protocol::commit::CommitOutcome;
use crate::protocol::peer::{PeerDescriptor, PeerEvent, PeerIdentity};
use crate::protocol::resolve::{
    Effect, Event, OwnerSight, ReadId, Row, SeenLease, decode_owner, decode_row, node_entry,
    owner_keys,
};
use crate::route::Resolution;
use crate::store::records::{self, Authority, AuthorityState, LeaseRecord, NodeDescriptor};
use crate::time::Nanos;

/// Nodes of one page of the background scan.
const NODES_PER_PAGE: usize = 128;

/// What a Store call is for.
pub(super) enum StoreUse {
    /// The authority row of an id, for the resolver.
    Row { key: ObjectKey, read: ReadId },
    /// The owner's lease, descriptor and owner record, for the resolver.
    Owner { key: ObjectKey, read: ReadId, row: Row, sent: Nanos },
    /// The deletion of a dead creator's row.
    Clear { key: ObjectKey, read: ReadId },
    /// The authority row of an id, for an application thread.
    Find { key: ObjectKey, slot: crate::node::oneshot::Settler<Result<Option<ActorRef>>> },
    /// A step of the creation or destruction of an id.
    Creation(super::creation::StoreStep),
    /// A step of the end of an object.
    Destroy(super::destroy::DestroyStep),
    /// A block of generations.
    Generations,
    /// A page of node descriptors, in the background.
    Nodes,
    /// The leases of the nodes of a page.
    Leases { page: Vec<NodeDescriptor>, sent: Nanos, next: Option<Cursor> },
}

/// The background look at who is there. Core 0 only.
#[derive(Default)]
pub(super) struct NodeScan {
    pub(super) due: Nanos,
    is_out: bool,
    /// Seen in the scan that is running, and in the one before.
    seen: BTreeMap<NodeRid, PeerIdentity>,
    before: BTreeMap<NodeRid, PeerIdentity>,
}

/// What a read of one authority row says.
pub(super) fn row_of(key: &ObjectKey, answer: StoreAnswer) -> Result<Option<Row>> {
    let answer = read_answer(answer)?;
    let name = records::authority_key(key.kind(), key.id());
    decode_row(&name, answer.records.first().and_then(Option::as_ref))
}

fn read_answer(answer: StoreAnswer) -> Result<ReadAnswer> {
    match answer {
        StoreAnswer::Read(answer) => Ok(answer),
        StoreAnswer::Failed(e) => Err(store_error(&e)),
        _ => Err(Error::internal("the Store answered another kind of call")),
    }
}

/// The error of a Store call that gave no answer.
pub(super) fn store_error(e: &StoreError) -> Error {
    Error::unavailable(e.to_string())
}

impl<E: Env<Mail = Mail>> Core<E> {
    /// Starts a Store call; its answer comes to `on_store_answer`.
    pub(super) fn store_call(
        &mut self,
        env: &mut E,
        op: StoreOp,
        budget: Duration,
        used: StoreUse,
    ) -> u64 {
        match &op {
            StoreOp::Read(keys) => self.count(Counter::StoreReads, keys.len() as u64),
            StoreOp::Commit(_) => self.count(Counter::StoreCommits, 1),
            StoreOp::Scan { .. } => self.count(Counter::StoreReads, 1),
        }
        self.next_store_token += 1;
        let token = self.next_store_token;
        self.store_uses.insert(token, used);
        env.store(token, op, budget);
        token
    }

    pub(super) fn on_store_answer(&mut self, env: &mut E, token: u64, answer: StoreAnswer) {
        let failed = matches!(answer, StoreAnswer::Failed(_));
        if failed {
            self.count(Counter::StoreFailures, 1);
        } else if self.is_store_failing {
            // R2.2-4: the Store answers again; what was cached before may be out of date.
            self.broadcast(env, || Mail::StoreRecovered);
        }
        self.is_store_failing = failed;
        match self.store_uses.remove(&token) {
            None => {}
            Some(StoreUse::Row { key, read }) => self.on_row(env, key, read, answer),
            Some(StoreUse::Owner { key, read, row, sent }) => {
                let owner = self.owner_sight(&row, sent, answer);
                self.step_resolver(env, Event::OwnerAnswered { key, read, owner });
            }
            Some(StoreUse::Clear { key, read }) => {
                let outcome = CommitOutcome::of(&answer);
                self.step_resolver(env, Event::Cleared { key, read, outcome });
            }
            Some(StoreUse::Find { key, slot }) => {
                slot.settle(found(&key, answer));
            }
            Some(StoreUse::Creation(step)) => self.on_creation_store(env, step, answer),
            Some(StoreUse::Destroy(step)) => self.on_destroy_store(env, step, answer),
            Some(StoreUse::Generations) => {
                if let Err(e) = self.generations.on_answer(answer) {
                    tracing::warn!(error = %e, "no block of generations");
                }
                self.refill_generations(env);
                self.on_generations(env);
            }
            Some(StoreUse::Nodes) => self.on_nodes_page(env, answer),
            Some(StoreUse::Leases { page, sent, next }) => {
                self.on_leases_page(env, page, sent, next, answer);
            }
        }
    }

    /// Fetches the next block of generations when it is time.
    pub(super) fn refill_generations(&mut self, env: &mut E) {
        if let Some(op) = self.generations.store_op() {
            let budget = self.shared.settings.store_timeout;
            let token = self.store_call(env, op, budget, StoreUse::Generations);
            self.set_timer(self.now + budget, super::Timer::Store(token));
        }
    }

    /// Gives the resolver an event and carries out what it wants.
    pub(super) fn step_resolver(&mut self, env: &mut E, event: Event) {
        let mut effects = Vec::new();
        self.resolver.handle(event, self.now, &mut effects);
        for effect in effects {
            self.do_resolve_effect(env, effect);
        }
    }

    fn do_resolve_effect(&mut self, env: &mut E, effect: Effect) {
        match effect {
            Effect::Read { key, read, until } => {
                let op = StoreOp::Read(vec![records::authority_key(key.kind(), key.id())]);
                self.store_call(env, op, until.since(self.now), StoreUse::Row { key, read });
            }
            Effect::ReadOwner { key, read, row, until } => {
                let op = StoreOp::Read(owner_keys(&row.authority.rid));
                let used = StoreUse::Owner { key, read, row, sent: self.now };
                self.store_call(env, op, until.since(self.now), used);
            }
            Effect::Clear { key, read, row, dead, until } => {
                let name = records::authority_key(key.kind(), key.id());
                let batch = records::clear_dead_creating(name, &row.authority, row.version, dead);
                let used = StoreUse::Clear { key, read };
                self.store_call(env, StoreOp::Commit(batch), until.since(self.now), used);
            }
            Effect::Insert(route) => {
                self.routes.insert(route, self.now);
            }
            Effect::Resolved { key, waiters, answer } => {
                let mut parked = Vec::with_capacity(waiters.len());
                for waiter in waiters {
                    match self.resolve_calls.remove(&waiter) {
                        Some(slot) => {
                            slot.settle(answer.resolution());
                        }
                        None => parked.push(waiter),
                    }
                }
                if !parked.is_empty() {
                    self.on_resolved(env, &key, &parked, &answer);
                }
            }
            Effect::Ended { key, waiter, error } => match self.resolve_calls.remove(&waiter) {
                Some(slot) => {
                    slot.settle(Resolution::StoreFailure(error));
                }
                None => self.on_resolve_ended(env, &key, waiter, error),
            },
        }
    }

    fn on_row(&mut self, env: &mut E, key: ObjectKey, read: ReadId, answer: StoreAnswer) {
        let row = row_of(&key, answer);
        let mut owner = None;
        if let Ok(Some(row)) = &row {
            self.routes.see_version(&key, row.version);
            owner = self.known_owner(&row.authority);
        }
        self.step_resolver(env, Event::RowAnswered { key, read, row, owner });
    }

    /// What this node knows about an owner without asking the Store.
    pub(super) fn known_owner(&self, row: &Authority) -> Option<OwnerSight> {
        let identity = &self.shared.identity;
        if row.rid != self.shared.settings.rid {
            return OwnerSight::of_known(row, self.routes.nodes(), self.now);
        }
        let is_own = row.node_generation == identity.node_generation
            && row.owner_lease_generation == identity.lease_generation;
        (is_own && self.is_alive).then_some(OwnerSight {
            dead: None,
            lease: Some(SeenLease {
                lease_generation: identity.lease_generation,
                admission_deadline: Nanos::MAX,
            }),
            descriptor: Some(identity.node_generation),
        })
    }

    /// What one read of [`owner_keys`] says about the owner of `row`.
    pub(super) fn owner_sight(
        &mut self,
        row: &Row,
        sent: Nanos,
        answer: StoreAnswer,
    ) -> Result<OwnerSight> {
        let answer = read_answer(answer)?;
        let (sight, entry) = decode_owner(row, &answer.records, sent)?;
        if let Some(entry) = entry {
            self.routes.see_node(entry);
        }
        Ok(sight)
    }

    /// Reads an authority row for an application thread.
    pub(super) fn start_find(
        &mut self,
        env: &mut E,
        key: ObjectKey,
        timeout: Duration,
        slot: crate::node::oneshot::Settler<Result<Option<ActorRef>>>,
    ) {
        let op = StoreOp::Read(vec![records::authority_key(key.kind(), key.id())]);
        let budget = timeout.min(self.shared.settings.store_timeout);
        let token = self.store_call(env, op, budget, StoreUse::Find { key, slot });
        self.set_timer(self.now + budget, super::Timer::Store(token));
    }

    /// A Store call that has its own timer took too long.
    pub(super) fn expire_store(&mut self, env: &mut E, token: u64) {
        match self.store_uses.remove(&token) {
            Some(StoreUse::Find { key, slot }) => {
                let text = format!("{key}: the Location Store did not answer in time");
                slot.settle(Err(Error::unavailable(text)));
            }
            Some(StoreUse::Generations) => {
                self.generations.on_timeout();
                self.on_generations(env);
            }
            Some(StoreUse::Nodes | StoreUse::Leases { .. }) => self.end_node_scan(env, false),
            Some(other) => {
                self.store_uses.insert(token, other);
            }
            None => {}
        }
    }

    /// Looks in the background who is there. Core 0, every renewal interval.
    pub(super) fn start_node_scan(&mut self, env: &mut E) {
        self.scan.due = self.now + self.shared.settings.lease_renew_interval;
        if self.scan.is_out {
            return;
        }
        self.scan.is_out = true;
        self.next_nodes_page(env, None);
    }

    fn next_nodes_page(&mut self, env: &mut E, cursor: Option<Cursor>) {
        let prefix = records::NODE_PREFIX.as_bytes().to_vec();
        let op = StoreOp::Scan { prefix, cursor, limit: NODES_PER_PAGE };
        self.background_call(env, op, StoreUse::Nodes);
    }

    fn background_call(&mut self, env: &mut E, op: StoreOp, used: StoreUse) {
        let budget = self.shared.settings.store_timeout;
        let token = self.store_call(env, op, budget, used);
        self.set_timer(self.now + budget, super::Timer::Store(token));
    }

    fn on_nodes_page(&mut self, env: &mut E, answer: StoreAnswer) {
        let StoreAnswer::Scan(ScanPage { records: page, next, .. }) = answer else {
            self.end_node_scan(env, false);
            return;
        };
        let page: Vec<NodeDescriptor> = page
            .iter()
            .filter_map(|(key, record)| match NodeDescriptor::decode(key, &record.value) {
                Ok(descriptor) => Some(descriptor),
                Err(e) => {
                    tracing::warn!(error = %e, "a node descriptor was passed over");
                    None
                }
            })
            .filter(|d| d.rid != self.shared.settings.rid)
            .collect();
        let keys: Vec<_> = page.iter().map(|d| records::lease_key(&d.rid)).collect();
        if keys.is_empty() {
            self.after_nodes_page(env, next);
            return;
        }
        let used = StoreUse::Leases { page, sent: self.now, next };
        self.background_call(env, StoreOp::Read(keys), used);
    }

    fn on_leases_page(
        &mut self,
        env: &mut E,
        page: Vec<NodeDescriptor>,
        sent: Nanos,
        next: Option<Cursor>,
        answer: StoreAnswer,
    ) {
        let StoreAnswer::Read(ReadAnswer { records: leases, .. }) = answer else {
            self.end_node_scan(env, false);
            return;
        };
        let mut seen = Vec::new();
        for (descriptor, lease) in page.into_iter().zip(&leases) {
            let lease = lease.as_ref().and_then(|r| read_lease(&descriptor.rid, r, sent).ok());
            let Some(entry) = node_entry(lease, Some(descriptor.clone())) else { continue };
            let identity = PeerIdentity {
                rid: descriptor.rid.clone(),
                node_generation: descriptor.node_generation,
                key_id: descriptor.key_id.to_be_bytes(),
            };
            self.scan.seen.insert(descriptor.rid.clone(), identity.clone());
            let endpoint = descriptor.endpoint.clone();
            let descriptor_event =
                PeerEvent::Descriptor { descriptor: PeerDescriptor { identity, endpoint } };
            self.step_peers(env, descriptor_event);
            seen.push(NodeSeen { entry, actor_types: descriptor.actor_types.into() });
        }
        let seen: Arc<[NodeSeen]> = seen.into();
        self.broadcast(env, || Mail::Nodes(seen.clone()));
        self.after_nodes_page(env, next);
    }

    fn after_nodes_page(&mut self, env: &mut E, next: Option<Cursor>) {
        match next {
            Some(cursor) => self.next_nodes_page(env, Some(cursor)),
            None => self.end_node_scan(env, true),
        }
    }

    fn end_node_scan(&mut self, env: &mut E, is_complete: bool) {
        self.scan.is_out = false;
        let seen = std::mem::take(&mut self.scan.seen);
        if !is_complete {
            return;
        }
        let before = std::mem::replace(&mut self.scan.before, seen);
        for (rid, identity) in before {
            if self.scan.before.get(&rid) != Some(&identity) {
                self.broadcast(env, || Mail::NodeGone { rid: identity.rid.clone() });
                self.step_peers(env, PeerEvent::DescriptorGone { identity });
            }
        }
    }
}

fn read_lease(rid: &NodeRid, record: &Record, sent: Nanos) -> Result<(LeaseRecord, Nanos)> {
    let lease = LeaseRecord::decode(&records::lease_key(rid), &record.value)?;
    let left = record.expires_in.unwrap_or(Duration::ZERO);
    Ok((lease, LeaseRecord::admission_deadline(sent, left)))
}

fn found(key: &ObjectKey, answer: StoreAnswer) -> Result<Option<ActorRef>> {
    let row = row_of(key, answer)?.map(|row| row.authority);
    let Some(row) = row.filter(|row| row.state == AuthorityState::Ready) else { return Ok(None) };
    let id = key.actor_id().ok_or_else(|| Error::invalid(format!("{key} is no Actor")))?;
    Ok(Some(ActorRef { id, generation: row.object_generation, mesh: row.mesh, rid: row.rid }))
}
