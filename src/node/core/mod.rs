#![forbid(unsafe_code)]
//! One core of a node: its loop, and the state its parts share.
//!
//! The loop: what happened (completions, mail, frames) → turns → what turns answered and sent →
//! timers → submit. The clock is read before the turns and once more before anything leaves.

mod creation;
mod destroy;
mod directory;
mod inbound;
mod links;
mod objects;
mod planted;
mod shutdown;
mod store_calls;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use slab::Slab;

use super::Shared;
use super::counters::Counter;
use super::operation::{Mail, NodeSeen};
use crate::env::{Env, Event, Planted};
use crate::exec::cells::Cells;
use crate::exec::wheel::{TimerHandle, Wheel};
use crate::ids::{
    AuthorityOwnerGeneration, Correlation, FixedMap, NodeGeneration, NodeRid, ObjectGeneration,
    ObjectKey, OwnerLeaseGeneration,
};
use crate::limits;
use crate::object::Payload;
use crate::protocol::create;
use crate::protocol::credit::CreditWindow;
use crate::protocol::peer::{IntentId, LinkId, PeerEvent, Peers};
use crate::protocol::request::Requests;
use crate::protocol::resolve::{Event as ResolveEvent, Resolver};
use crate::route::{Resolution, RouteLifetimes, SharedRouteCache};
use crate::shm::CounterBlock;
use crate::store::generations::Allocator;
use crate::store::records::Block;
use crate::time::Nanos;

use directory::Directory;
use inbound::Pending;
use links::{Links, Zero};
use objects::Objects;
use shutdown::Phase;
use store_calls::{NodeScan, StoreUse};

/// What a timer of the wheel is for.
#[derive(Clone, Debug)]
enum Timer {
    /// Something parked for the id is due.
    Parked(ObjectKey),
    /// A Store call is due.
    Store(u64),
}

/// A timer that was set, to cancel it by.
#[derive(Clone, Copy)]
struct TimerRef {
    handle: TimerHandle,
    token: usize,
}

/// The fences of this node and of an object on it, for admission.
struct OwnFence<'a> {
    rid: &'a NodeRid,
    node_generation: NodeGeneration,
    lease_generation: OwnerLeaseGeneration,
    object: Option<(ObjectGeneration, AuthorityOwnerGeneration)>,
}

/// One core.
pub(crate) struct Core<E: Env<Mail = Mail>> {
    shared: Arc<Shared>,
    index: u16,
    /// The clock as the loop read it last.
    now: Nanos,
    /// Whether the lease stood then.
    is_alive: bool,
    events: Vec<Event<Mail>>,

    counters: CounterBlock,
    routes: SharedRouteCache,
    hosts: BTreeMap<NodeRid, Arc<[String]>>,
    resolver: Resolver,
    resolve_calls: FixedMap<u64, super::oneshot::Settler<Resolution>>,
    directory: Directory,

    requests: Requests,
    pending: Slab<Pending>,
    tickets: FixedMap<u64, Correlation>,

    objects: Objects,
    creations: creation::Creations,
    destroys: destroy::Destroys,
    generations: Allocator,
    local_credit: CreditWindow,
    local_credit_returned: bool,

    links: Links,
    held_inbound: VecDeque<(LinkId, u16, Vec<u8>)>,
    zero: Option<Zero>,
    scan: NodeScan,
    has_intents: bool,

    store_uses: FixedMap<u64, StoreUse>,
    next_store_token: u64,
    is_store_failing: bool,

    wheel: Wheel,
    timers: Slab<Timer>,
    phase: Phase,
    stopped: Vec<super::oneshot::Settler<()>>,
    planted_unavailable: BTreeSet<ObjectKey>,
    planted_resubmit: Vec<(LinkId, ObjectKey, Payload)>,
    of: std::marker::PhantomData<fn(E)>,
}

impl<E: Env<Mail = Mail>> Core<E> {
    /// Makes core `index`; `peers` on core 0.
    pub(crate) fn new(
        shared: Arc<Shared>,
        env: &mut E,
        peers: Option<Peers>,
        generations: Block,
    ) -> Self {
        let settings = &shared.settings;
        let now = env.now();
        let poster = env.poster();
        let index = env.core();
        let (shard, counters) = shared.take_part(index);
        let wake = move |cell| poster.post(index, Mail::Wake { cell });
        let mut resolver = Resolver::new(settings.store_timeout);
        resolver.set_caching(!settings.lifetimes.max_age.is_zero());
        let mut requests = Requests::new(index, settings.cores);
        for fault in [Planted::ReuseCorrelation, Planted::SettleTwice] {
            if env.planted(fault) {
                requests.plant(fault);
            }
        }
        let me = create::Identity {
            rid: settings.rid.clone(),
            mesh: settings.mesh.clone(),
            node_generation: shared.identity.node_generation,
            lease_generation: shared.identity.lease_generation,
        };
        let times =
            create::CreateTimes { attempt: settings.create_timeout, store: settings.store_timeout };
        let mut creator = create::Creator::new(me.clone(), times);
        for fault in [Planted::RunTwoFactories, Planted::GuessLostCommit] {
            if env.planted(fault) {
                creator.plant(fault);
            }
        }
        if env.planted(Planted::InsertAfterInvalidation) {
            resolver.plant(Planted::InsertAfterInvalidation);
        }
        Self {
            index,
            now,
            is_alive: env.lease().is_alive(now),
            events: Vec::new(),
            counters,
            routes: SharedRouteCache::over(shard, settings.lifetimes),
            hosts: BTreeMap::new(),
            resolver,
            resolve_calls: FixedMap::default(),
            directory: Directory::default(),
            requests,
            pending: Slab::new(),
            tickets: FixedMap::default(),
            objects: Objects::new(Cells::new(Arc::new(wake))),
            creations: creation::Creations::new(creator),
            destroys: destroy::Destroys::new(me, settings.store_timeout),
            generations: Allocator::new(generations),
            local_credit: CreditWindow::new(limits::LOCAL_BUDGET_BYTES),
            local_credit_returned: false,
            links: Links::default(),
            held_inbound: VecDeque::new(),
            zero: peers.map(Zero::new),
            scan: NodeScan::default(),
            has_intents: false,
            store_uses: FixedMap::default(),
            next_store_token: 0,
            is_store_failing: false,
            wheel: Wheel::new(now),
            timers: Slab::new(),
            phase: Phase::Running,
            stopped: Vec::new(),
            planted_unavailable: BTreeSet::new(),
            planted_resubmit: Vec::new(),
            of: std::marker::PhantomData,
            shared,
        }
    }

    /// One round of the loop. Returns until when the core has nothing to do; `None` when it ended.
    pub(crate) fn run_once(&mut self, env: &mut E, park_until: Nanos) -> Option<Nanos> {
        let mut events = std::mem::take(&mut self.events);
        env.poll(&mut events, park_until);
        self.look_at_lease(env);
        self.register_intents(env);
        for event in events.drain(..) {
            self.on_event(env, event);
        }
        self.events = events;
        self.run_timers(env);
        if self.is_alive || env.planted(Planted::AnswerAfterLease) {
            self.run_turns(env);
        }
        self.pump_waiting_for_local_credit(env);
        // R5-16: a stop anywhere above may have outlasted the lease; what leaves from here on is
        // decided by a clock that was read after it.
        self.look_at_lease(env);
        let lets_out = self.is_alive || env.planted(Planted::AnswerAfterLease);
        if lets_out {
            self.let_out(env);
        }
        self.step_shutdown(env);
        self.flush_lanes(env, lets_out);
        if self.phase == Phase::Ended {
            return None;
        }
        Some(self.next_deadline(lets_out))
    }

    /// What the core holds for work under way: nothing of it is left when all work has ended. For
    /// tests that look for what was left behind.
    #[cfg(feature = "sim")]
    pub(crate) fn held(&self) -> Vec<(&'static str, u64)> {
        let own = [
            ("ids being resolved", self.resolver.len() as u64),
            ("resolver calls", self.resolve_calls.len() as u64),
            ("pending requests", self.requests.len() as u64),
            ("pending purposes", self.pending.len() as u64),
            ("tickets", self.tickets.len() as u64),
            ("local credit bytes", self.local_credit.outstanding_bytes()),
            ("held inbound frames", self.held_inbound.len() as u64),
        ];
        let parts: [&[_]; 6] = [
            &own,
            &self.directory.held(),
            &self.objects.held(),
            &self.creations.held(),
            &self.destroys.held(),
            &self.links.held(),
        ];
        parts.concat()
    }

    /// Gives the peers machine the configured endpoints, in the first round (R2.3-3).
    fn register_intents(&mut self, env: &mut E) {
        if self.zero.is_none() || std::mem::replace(&mut self.has_intents, true) {
            return;
        }
        let endpoints = self.shared.settings.peers.clone();
        for (intent, endpoint) in (0..).map(IntentId).zip(endpoints) {
            self.step_peers(env, PeerEvent::Intent { intent, endpoint });
        }
    }

    fn next_deadline(&self, lets_out: bool) -> Nanos {
        if lets_out && (self.objects.has_work() || self.local_credit_returned) {
            return Nanos::ZERO;
        }
        let mut next = self.wheel.next_deadline().min(self.links.next_deadline());
        next = next.min(self.creations.next_deadline()).min(self.destroys.next_deadline());
        next = next.min(self.requests.next_deadline().unwrap_or(Nanos::MAX));
        next = next.min(self.resolver.next_deadline().unwrap_or(Nanos::MAX));
        if let Some(zero) = &self.zero {
            next = next.min(zero.peers.next_deadline()).min(self.scan.due);
        }
        if !lets_out {
            // The lease thread publishes a renewal without mail.
            next = next.min(self.now + limits::LAPSED_POLL_INTERVAL);
        }
        next.min(self.phase.next_deadline())
    }

    /// Reads the clock and the lease; goes on with what was held back when it stands again.
    fn look_at_lease(&mut self, env: &mut E) {
        self.now = env.now();
        self.routes.beat(self.now);
        let is_alive = env.lease().is_alive(self.now);
        let was_alive = std::mem::replace(&mut self.is_alive, is_alive);
        if was_alive && !is_alive {
            tracing::warn!(rid = %self.shared.settings.rid, "the own lease has lapsed; nothing is admitted, run or answered");
            self.count(Counter::LeaseLapses, 1);
        } else if !was_alive && is_alive {
            self.drop_unbegun_factories(env);
            self.resume_inbound(env);
            self.pump_waiting_for_lease(env);
        }
    }

    fn on_event(&mut self, env: &mut E, event: Event<Mail>) {
        match event {
            Event::Mail(mail) => self.on_mail(env, mail),
            Event::Store { token, answer } => self.on_store_answer(env, token, answer),
            Event::Accepted { conn } => self.step_peers(env, PeerEvent::Accepted { conn }),
            Event::Connected { conn } => self.step_peers(env, PeerEvent::Connected { conn }),
            Event::Adopted { conn, tag, unread } => self.on_adopted(env, conn, tag, unread),
            Event::Received { conn, bytes } => match self.lane_of(conn) {
                Some((link, lane)) => self.on_lane_bytes(env, link, lane, bytes),
                None => self.step_peers(env, PeerEvent::Received { conn, bytes }),
            },
            Event::Closed { conn, reason } => match self.lane_of(conn) {
                Some((link, lane)) => self.lose_lane(env, link, lane, reason.to_string()),
                None => self.step_peers(env, PeerEvent::Closed { conn, reason }),
            },
        }
    }

    fn on_mail(&mut self, env: &mut E, mail: Mail) {
        match mail {
            Mail::Submit(operation) => self.accept(env, *operation),
            Mail::Cancel { key, ticket } => self.on_cancel(env, &key, ticket),
            Mail::TurnSettled { token, end } => self.objects.settle_wait(token, end),
            Mail::Wake { cell } => self.objects.wake(cell),
            Mail::Frame { link, lane, bytes } => self.on_frame_mail(link, lane, &bytes),
            Mail::Inbound { link, lane, bytes } => self.on_inbound(env, link, lane, &bytes),
            Mail::CreditReturned { link, lane, object, bytes } => {
                if let Err(text) = self.on_credit_returned(link, lane, object, bytes) {
                    self.mail_core_zero(env, Mail::LaneLost { link, lane, reason: text });
                }
                self.pump_waiting_for_credit(env, link, lane);
            }
            Mail::CreditFreed { link, lane, object, bytes } => {
                self.lane_credit_freed(env, link, lane, object, bytes);
            }
            Mail::Need(descriptor) => {
                self.step_peers(env, PeerEvent::Need { descriptor: *descriptor });
            }
            Mail::NeedFailed { rid, node_generation, text } => {
                self.on_need_failed(env, &rid, node_generation, &text);
            }
            Mail::LinkAdmitted { link, info } => self.on_link_admitted(env, link, info),
            Mail::LinkUp { link } => self.on_link_up(env, link),
            Mail::LinkClose { link, reason } => self.on_link_close(env, link, &reason),
            Mail::LaneLost { link, lane, reason } => {
                self.step_peers(env, PeerEvent::LaneLost { link, lane, reason });
            }
            Mail::LaneClosed { link, lane } => {
                self.step_peers(env, PeerEvent::LaneClosed { link, lane });
            }
            Mail::Nodes(seen) => self.on_nodes(&seen),
            Mail::NodeGone { rid } => {
                self.hosts.remove(&rid);
            }
            Mail::LeaseRenewed { rid, lease_generation, deadline } => {
                self.routes.nodes_mut().renew(&rid, lease_generation, deadline);
            }
            Mail::PeerFollow { rid, node_generation, duration } => {
                self.routes.nodes_mut().set_follow_duration(&rid, node_generation, duration);
            }
            Mail::PeerEnds { rid, lease_generation } => {
                self.routes.invalidate_lease(&rid, lease_generation);
            }
            Mail::StoreRecovered => {
                self.routes.clear();
                self.step_resolver(env, ResolveEvent::AllInvalidated);
            }
            Mail::Fenced(reason) => self.on_fenced(env, &reason),
            Mail::Create(call) => self.on_create(env, *call),
            Mail::Resolve { key, timeout, slot } => self.on_resolve(env, key, timeout, slot),
            Mail::Find { key, timeout, slot } => self.start_find(env, key, timeout, slot),
            Mail::Configure(lifetimes) => self.on_configure(env, lifetimes),
            Mail::Shutdown { deadline_in, slot } => self.begin_shutdown(env, deadline_in, slot),
            Mail::Stop => self.stop_at_once(env),
        }
    }

    fn on_nodes(&mut self, seen: &[NodeSeen]) {
        for NodeSeen { entry, actor_types } in seen {
            self.routes.see_node(entry.clone());
            self.hosts.insert(entry.rid.clone(), actor_types.clone());
        }
    }

    fn on_resolve(
        &mut self,
        env: &mut E,
        key: ObjectKey,
        timeout: std::time::Duration,
        slot: super::oneshot::Settler<Resolution>,
    ) {
        let here = self.objects.index(&key).map(|index| self.objects.objects[index].state);
        if here == Some(objects::State::Closing) {
            // R2.2b-2: its row stands until the cleaning up is over.
            slot.settle(Resolution::Unavailable);
            return;
        }
        if let Some(route) = self.routes.lookup(&key, self.now) {
            slot.settle(Resolution::ReadyRoute(route.info()));
            self.count(Counter::CacheHits, 1);
            return;
        }
        self.count(Counter::CacheMisses, 1);
        let waiter = self.directory.new_waiter();
        self.resolve_calls.insert(waiter, slot);
        let deadline = self.now + timeout;
        self.step_resolver(env, ResolveEvent::Lookup { key, waiter, deadline, fresh: false });
    }

    /// Takes over a changed pair of durations, which the handle has checked as a pair (R0-7).
    fn on_configure(&mut self, env: &mut E, lifetimes: RouteLifetimes) {
        let changed = self.routes.set_lifetimes(lifetimes, self.now);
        debug_assert!(changed.is_ok(), "the pair was checked: {changed:?}");
        self.resolver.set_caching(!lifetimes.max_age.is_zero());
        self.announce(env, lifetimes, false);
    }

    /// Sets a timer of the wheel.
    fn set_timer(&mut self, at: Nanos, timer: Timer) -> TimerRef {
        let token = self.timers.insert(timer);
        TimerRef { handle: self.wheel.insert(at, token as u64), token }
    }

    /// Cancels a timer; one that has fired is left alone.
    fn cancel_timer(&mut self, timer: TimerRef) {
        if self.wheel.cancel(timer.handle) {
            self.timers.remove(timer.token);
        }
    }

    fn run_timers(&mut self, env: &mut E) {
        while let Some(token) = self.wheel.pop_due(self.now) {
            match self.timers.remove(token as usize) {
                Timer::Parked(key) => self.expire_parked(env, &key),
                Timer::Store(token) => self.expire_store(env, token),
            }
        }
        if self.requests.next_deadline().is_some_and(|at| at <= self.now) {
            let mut ended = Vec::new();
            self.requests.expire(self.now, &mut ended);
            self.end_requests(env, ended, "");
        }
        if self.resolver.next_deadline().is_some_and(|at| at <= self.now) {
            self.step_resolver(env, ResolveEvent::Tick);
        }
        if self.creations.next_deadline() <= self.now {
            self.step_creator(env, crate::protocol::create::Event::Tick);
        }
        if self.destroys.next_deadline() <= self.now {
            self.step_destroyer(env, crate::protocol::destroy::Event::Tick);
        }
        if self.links.next_deadline() <= self.now {
            self.poll_liveness(env);
        }
        if self.zero.as_ref().is_some_and(|zero| zero.peers.next_deadline() <= self.now) {
            self.step_peers(env, PeerEvent::Tick);
        }
        if self.zero.is_some() && self.scan.due <= self.now {
            self.start_node_scan(env);
        }
    }

    /// The fences admission compares, for the object at `index` when it can take messages.
    fn own_fence(&self, index: Option<usize>) -> OwnFence<'_> {
        OwnFence {
            rid: &self.shared.settings.rid,
            node_generation: self.shared.identity.node_generation,
            lease_generation: self.shared.identity.lease_generation,
            object: index.map(|index| {
                let object = &self.objects.objects[index];
                (object.generation, object.tenure)
            }),
        }
    }

    fn count(&self, counter: Counter, by: u64) {
        self.counters.add(counter as usize, by);
    }
}
