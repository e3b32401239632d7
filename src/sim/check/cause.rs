#![forbid(unsafe_code)]
//! Why something may have gone wrong: leases and deaths over time, and the troubles that concern
//! an operation.

use std::collections::{BTreeMap, BTreeSet};

use super::CheckConfig;
use crate::env::LeaseView;
use crate::sim::fault::NodeIx;
use crate::sim::history::{
    Concerns, Execution, History, Life, ObjectIx, OpKey, Operation, Trouble, TroubleKind,
};
use crate::time::Nanos;

/// A history's leases and deaths, made quick to ask.
pub(super) struct Timeline<'h> {
    h: &'h History,
    leases: BTreeMap<Life, Vec<(Nanos, LeaseView)>>,
    deaths: BTreeMap<Life, Nanos>,
}

impl<'h> Timeline<'h> {
    pub(super) fn new(h: &'h History) -> Self {
        let mut leases: BTreeMap<Life, Vec<(Nanos, LeaseView)>> = BTreeMap::new();
        for change in &h.leases {
            leases.entry(change.of).or_default().push((change.when, change.view));
        }
        Self { h, leases, deaths: h.deaths.iter().copied().collect() }
    }

    /// Whether the lease was alive at an instant, by the view in force then. A lifecycle whose
    /// lease was never recorded counts as alive.
    pub(super) fn is_alive(&self, life: Life, at: Nanos) -> bool {
        let Some(views) = self.leases.get(&life) else { return true };
        let before = views.partition_point(|(when, _)| *when <= at);
        before.checked_sub(1).is_some_and(|i| views[i].1.is_alive(at))
    }

    /// Whether the lease was alive at any instant of `from..=to`.
    pub(super) fn is_alive_within(&self, life: Life, from: Nanos, to: Nanos) -> bool {
        self.is_alive(life, from)
            || self.leases.get(&life).is_some_and(|views| {
                let within = |when: Nanos| when >= from && when <= to;
                views.iter().any(|&(when, view)| within(when) && view.is_alive(when))
            })
    }

    /// Whether the lease was not alive at some instant of `from..=to`.
    pub(super) fn lapsed_within(&self, life: Life, from: Nanos, to: Nanos) -> bool {
        let Some(views) = self.leases.get(&life) else { return false };
        let ends = views.iter().skip(1).map(|&(when, _)| when).chain([Nanos::MAX]);
        views.iter().zip(ends).any(|(&(when, view), next)| {
            let lapse = if view.fenced { when } else { view.admission_deadline.max(when) };
            lapse < next && lapse <= to && next >= from
        })
    }

    pub(super) fn died_by(&self, life: Life, at: Nanos) -> bool {
        self.deaths.get(&life).is_some_and(|&when| when <= at)
    }

    /// When an execution ended: by itself, with its process, or not before the end of the run.
    pub(super) fn end_of(&self, run: &Execution) -> Nanos {
        let death = self.deaths.get(&run.at).copied().unwrap_or(Nanos::MAX);
        run.to.unwrap_or(Nanos::MAX).min(death)
    }

    /// Lifecycles that owned the object at some instant of `from..=to`, as far as known.
    pub(super) fn owners(&self, object: ObjectIx, from: Nanos, to: Nanos) -> BTreeSet<Life> {
        let mut owners = BTreeSet::new();
        let mut standing: Option<Life> = None;
        for change in self.h.authorities.iter().filter(|a| a.object == object) {
            if change.when > to {
                break;
            }
            if change.when > from {
                owners.extend(standing);
            }
            standing = change.owner.map(|(_, _, life)| life);
        }
        owners.extend(standing);
        let made = self.h.factories.iter().filter(|f| f.object == object && f.when <= to);
        if owners.is_empty() {
            owners.extend(made.map(|f| f.at));
        }
        owners
    }

    /// Whether the object stood at every instant of `from..=to`, as far as the Store's authority
    /// is known; `None` when it is not.
    pub(super) fn stood(&self, object: ObjectIx, from: Nanos, to: Nanos) -> Option<bool> {
        let mut known = false;
        let mut stands = false;
        let mut always = true;
        let mut counted = false;
        for change in self.h.authorities.iter().filter(|a| a.object == object) {
            known = true;
            if change.when > to {
                break;
            }
            if change.when > from && !counted {
                counted = true;
                always = stands;
            }
            stands = change.owner.is_some();
            always &= change.when <= from || stands;
        }
        if !counted {
            always = stands;
        }
        known.then_some(always)
    }
}

/// What may excuse one operation.
pub(super) struct Causes<'h> {
    h: &'h History,
    timeline: Timeline<'h>,
    config: &'h CheckConfig,
}

/// Whom an operation concerns.
struct Parties {
    source: Life,
    /// Owners of the object meanwhile; empty when unknown, and then every node may be one.
    owners: BTreeSet<Life>,
}

impl Parties {
    fn node(&self, node: NodeIx) -> bool {
        self.source.node == node || self.owner(node)
    }

    fn owner(&self, node: NodeIx) -> bool {
        self.owners.is_empty() || self.owners.iter().any(|life| life.node == node)
    }

    fn concerned(&self, concerns: Concerns) -> bool {
        match concerns {
            Concerns::All => true,
            Concerns::Node(n) | Concerns::Store(n) => self.node(n),
            Concerns::Link(a, b) => {
                (self.source.node == a && self.owner(b)) || (self.source.node == b && self.owner(a))
            }
        }
    }
}

impl<'h> Causes<'h> {
    pub(super) fn new(h: &'h History, config: &'h CheckConfig) -> Self {
        Self { h, timeline: Timeline::new(h), config }
    }

    pub(super) fn timeline(&self) -> &Timeline<'h> {
        &self.timeline
    }

    fn parties(&self, key: OpKey, operation: &Operation, to: Nanos) -> Parties {
        let from = operation.submitted.minus(self.config.flight);
        let owners = self.timeline.owners(key.object, from, to);
        Parties { source: operation.source, owners }
    }

    /// Whether the object went away while the operation was under way, or so lately that it may
    /// have gone by a route cached before (R2.6-3).
    fn removed_lately(&self, object: ObjectIx, from: Nanos, to: Nanos) -> bool {
        let from = from.minus(self.config.flight.max(self.config.route_age));
        self.h.removals.iter().any(|&(o, at)| o == object && at >= from && at <= to)
    }

    /// Whether its frame reached a node under foreign fences, and so was refused.
    fn arrived_stale(&self, key: OpKey) -> bool {
        self.h.stale_arrivals.iter().any(|&(stale, _, _)| stale == key)
    }

    fn lives(parties: &Parties) -> impl Iterator<Item = Life> + '_ {
        parties.owners.iter().copied().chain([parties.source])
    }

    /// Whether R5-4's list excuses that an admitted operation was not executed: a process died,
    /// a link broke or a lease lapsed while it was under way, or the object went away.
    pub(super) fn loss(&self, key: OpKey, operation: &Operation) -> bool {
        let from = operation.submitted;
        let to = from + self.config.flight;
        let parties = self.parties(key, operation, to);
        self.removed_lately(key.object, from, to)
            || self.arrived_stale(key)
            || Self::lives(&parties).any(|life| {
                self.timeline.died_by(life, to) || self.timeline.lapsed_within(life, from, to)
            })
            || self.h.troubles.iter().any(|t| {
                let counts = match t.kind {
                    TroubleKind::LinkLost => true,
                    // With its owner unknown, any death may be that of the owner.
                    TroubleKind::Died => parties.owners.is_empty(),
                    TroubleKind::LinkSlow | TroubleKind::Paused | TroubleKind::Store => false,
                };
                counts && t.from <= to && t.to >= from && parties.concerned(t.concerns)
            })
    }

    /// Whether anything explains that an operation ended with an error or was not admitted.
    pub(super) fn error(&self, key: OpKey, operation: &Operation, ended: Nanos) -> bool {
        let from = operation.submitted;
        let parties = self.parties(key, operation, ended);
        let reaches = |t: &Trouble| t.from <= ended && t.to + self.config.grace >= from;
        self.removed_lately(key.object, from, ended)
            || self.arrived_stale(key)
            || self.timeline.stood(key.object, from, ended) == Some(false)
            || Self::lives(&parties).any(|life| {
                self.timeline.died_by(life, ended)
                    || self.timeline.lapsed_within(life, from.minus(self.config.grace), ended)
            })
            || self.h.troubles.iter().any(|t| reaches(t) && parties.concerned(t.concerns))
    }
}
