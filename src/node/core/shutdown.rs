#![forbid(unsafe_code)]
//! The end of a core: in order, at once, or because the node was fenced.
//!
//! In order: nothing new is taken in; what is queued and running goes on until the deadline; then
//! every object is closed and its authority row deleted, what is still pending ends with
//! ShuttingDown, and the core says that it is done. The links stay until all cores are done.

use std::sync::Arc;
use std::time::Duration;

use super::Core;
use super::objects::State;
use crate::env::Env;
use crate::error::{Error, ErrorKind};
use crate::node::counters::Counter;
use crate::node::oneshot::Settler;
use crate::node::operation::Mail;
use crate::protocol::peer::PeerEvent;
use crate::protocol::resolve::Event as ResolveEvent;
use crate::route::RouteLifetimes;
use crate::time::Nanos;
use crate::wire::{Body, FrameParts, Record, Update};

/// How far the end is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Not at all.
    Running,
    /// Queued work goes on until `until`; objects are closed as they become idle.
    Draining { until: Nanos },
    /// Everything has ended; the core only keeps its lanes until it is told to stop.
    Done,
    /// The loop ends.
    Ended,
}

impl Phase {
    pub(super) fn next_deadline(self) -> Nanos {
        match self {
            Self::Draining { until } => until,
            _ => Nanos::MAX,
        }
    }
}

impl<E: Env<Mail = Mail>> Core<E> {
    pub(super) fn is_stopping(&self) -> bool {
        self.phase != Phase::Running
    }

    /// What callers are told from now on.
    pub(super) fn shutting_down(&self) -> Error {
        let rid = &self.shared.settings.rid;
        let text = match &self.fenced {
            None => format!("node {rid} is shutting down"),
            Some(reason) => format!("node {rid} is fenced: {reason}"),
        };
        Error::new(ErrorKind::ShuttingDown, text)
    }

    pub(super) fn begin_shutdown(&mut self, env: &mut E, deadline_in: Duration, slot: Settler<()>) {
        self.stopped.push(slot);
        if self.is_stopping() {
            return;
        }
        if self.index == 0 {
            env.stop_listening();
        }
        self.phase = Phase::Draining { until: self.now + deadline_in };
        // What waits for a route or a link has not been submitted: it can end at once. Creations
        // that are under way end by themselves, so that no row is left behind.
        let error = self.shutting_down();
        self.fail_parked(env, &error);
    }

    /// Goes on with the end, once per round.
    pub(super) fn step_shutdown(&mut self, env: &mut E) {
        let Phase::Draining { until } = self.phase else { return };
        let is_late = until <= self.now;
        let idle: Vec<usize> = self
            .objects
            .objects
            .iter()
            .filter(|(_, o)| {
                o.state == State::Ready && (is_late || (o.turn.is_none() && o.queue.is_empty()))
            })
            .map(|(index, _)| index)
            .take(limits_per_round())
            .collect();
        for index in idle {
            self.end_object(env, index);
        }
        let is_done = self.objects.len() == 0
            && self.creations.is_empty()
            && self.destroys.is_empty()
            && !self.objects.is_busy();
        if is_done || is_late {
            self.finish(env);
        }
    }

    /// Ends what is still pending and says so.
    fn finish(&mut self, env: &mut E) {
        let error = self.shutting_down();
        // First, because they discard the objects they were opening.
        self.fail_creations(env, &error);
        self.abandon_objects(env);
        self.fail_parked(env, &error);
        self.step_resolver(env, ResolveEvent::Shutdown);
        let mut ended = Vec::new();
        self.requests.shutdown(&mut ended);
        self.end_requests(env, ended, "");
        self.phase = Phase::Done;
        self.stopped.drain(..).for_each(|slot| {
            slot.settle(());
        });
    }

    /// Drops objects that did not end in time. Their rows stand: the ids stay Unavailable until
    /// they are released (R5-13). Their requesters are told.
    fn abandon_objects(&mut self, env: &mut E) {
        let left: Vec<usize> = self.objects.objects.iter().map(|(index, _)| index).collect();
        for index in left {
            let object = self.remove_object(env, index);
            tracing::warn!(object = %object.key, "the object did not end before the shutdown deadline");
        }
        if self.is_alive {
            self.let_out(env);
        }
    }

    /// Ends the core now: requests of others get no answer, their links break.
    pub(super) fn stop_at_once(&mut self, env: &mut E) {
        if self.phase != Phase::Done {
            self.finish(env);
        }
        self.announce(env, self.shared.lifetimes(), true);
        self.flush_lanes(env, self.is_alive);
        self.step_peers(env, PeerEvent::Shutdown);
        self.phase = Phase::Ended;
    }

    /// R5-16: the lease is lost for good. What was withheld is dropped, objects are closed without
    /// a word to the Store, and the node takes nothing in any more. Its links are closed, so that
    /// whoever waits for an answer learns that none comes.
    pub(super) fn on_fenced(&mut self, env: &mut E, reason: &Arc<str>) {
        tracing::error!(rid = %self.shared.settings.rid, reason = %reason, "the node is fenced: its lifecycle is over");
        self.count(Counter::Fenced, u64::from(self.index == 0));
        self.fenced = Some(reason.clone());
        (self.is_alive, self.acts_until) = (false, Nanos::ZERO);
        self.phase = Phase::Draining { until: self.now };
        let mut dropped = self.objects.drop_withheld() as u64;
        dropped += self.held_inbound.len() as u64;
        self.held_inbound.clear();
        self.links.drop_withheld();
        self.count(Counter::DroppedStale, dropped);
        let error = self.shutting_down();
        self.fail_creations(env, &error);
        let left: Vec<usize> = self.objects.objects.iter().map(|(index, _)| index).collect();
        for index in left {
            self.remove_object(env, index);
        }
        self.objects.drop_withheld();
        self.finish(env);
        if self.index == 0 {
            env.stop_listening();
        }
        self.step_peers(env, PeerEvent::Shutdown);
    }

    /// Tells the peers the two durations (R0-7), and whether this lifecycle ends, so that they
    /// forget their routes to it. Core 0 sends.
    pub(super) fn announce(&mut self, env: &mut E, lifetimes: RouteLifetimes, ends: bool) {
        if self.zero.is_none() {
            return;
        }
        let RouteLifetimes { max_age, follow_duration } = lifetimes;
        let event = PeerEvent::Settings {
            route_cache_max_age: max_age,
            message_follow_duration: follow_duration,
        };
        self.step_peers(env, event);
        let ms = |d: Duration| u64::try_from(d.as_millis()).unwrap_or(u64::MAX);
        let update = Update {
            owner_lease_generation: self.shared.identity.lease_generation,
            route_cache_max_age_ms: ms(max_age),
            message_follow_duration_ms: ms(follow_duration),
            draining: ends,
        };
        for link in self.links.up() {
            self.send_frame(env, link, FrameParts::link(0, Body::Record(Record::Update(update))));
        }
    }
}

/// Objects whose close is begun in one round.
fn limits_per_round() -> usize {
    1024
}
