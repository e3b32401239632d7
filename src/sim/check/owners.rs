#![forbid(unsafe_code)]
//! Who may run an object: owners, tenures, leases, factories, fences.

use std::collections::{BTreeMap, BTreeSet};

use super::cause::Timeline;
use super::{Rule, Violation, in_time, op_name, runs_of};
use crate::sim::history::{Authority, Ending, Execution, History, Life, ObjectIx};
use crate::time::Nanos;

/// At no instant do two nodes run one incarnation, and only the authority's owner runs it (R5-2).
///
/// - No two executions of an incarnation overlap on two nodes, and none of one tenure is on two
///   lifecycles.
/// - An earlier tenure does not run after a later one began, nor an incarnation after another
///   took its place.
/// - Where the Store's authority is known, it names the runner at the instant a handler begins.
#[must_use]
pub fn single_owner(h: &History) -> Vec<Violation> {
    let mut found = Vec::new();
    let timeline = Timeline::new(h);
    let mut objects: BTreeMap<ObjectIx, Vec<&Execution>> = BTreeMap::new();
    for run in in_time(h) {
        objects.entry(run.key.object).or_default().push(run);
    }
    for (object, runs) in objects {
        incarnations(h, object, &runs, &timeline, &mut found);
        let authorities: Vec<&Authority> =
            h.authorities.iter().filter(|a| a.object == object).collect();
        if authorities.is_empty() {
            continue;
        }
        for run in runs {
            let before = authorities.partition_point(|a| a.when <= run.from);
            let owner = before.checked_sub(1).and_then(|i| authorities[i].owner);
            if owner != Some((run.generation, run.owner_generation, run.at)) {
                let said = owner.map_or("has no owner".to_owned(), |(g, t, life)| {
                    format!("names {life} (generation {g}, tenure {t})")
                });
                found.push(Violation::new(
                    Rule::SingleOwner,
                    format!(
                        "{} was executed at {} by {} (generation {}, tenure {}), but the authority {said}",
                        op_name(h, run.key),
                        run.from,
                        run.at,
                        run.generation,
                        run.owner_generation
                    ),
                ));
            }
        }
    }
    found
}

fn incarnations(
    h: &History,
    object: ObjectIx,
    runs: &[&Execution],
    timeline: &Timeline<'_>,
    found: &mut Vec<Violation>,
) {
    let name = h.name(object);
    let mut over: BTreeSet<u64> = BTreeSet::new();
    let mut current: Option<u64> = None;
    let mut tenures: BTreeMap<u64, u64> = BTreeMap::new();
    let mut runners: BTreeMap<(u64, u64), Life> = BTreeMap::new();
    let mut busy: BTreeMap<(u64, Life), Nanos> = BTreeMap::new();
    for run in runs {
        let (g, t) = (run.generation, run.owner_generation);
        let mut wrong = |text: String| found.push(Violation::new(Rule::SingleOwner, text));
        if current != Some(g) {
            if over.contains(&g) {
                wrong(format!(
                    "{name:?} generation {g} ran at {} on {} after another generation had taken \
                     its place",
                    run.from, run.at
                ));
            }
            over.extend(current);
            current = Some(g);
        }
        let latest = tenures.entry(g).or_insert(t);
        if t < *latest {
            wrong(format!(
                "{name:?} generation {g} ran in tenure {t} at {} on {} after tenure {latest} had \
                 begun",
                run.from, run.at
            ));
        }
        *latest = t.max(*latest);
        let runner = *runners.entry((g, t)).or_insert(run.at);
        if runner != run.at {
            wrong(format!(
                "{name:?} generation {g} tenure {t} ran on {runner} and at {} on {}",
                run.from, run.at
            ));
        }
        for (&(_, other), &until) in busy.range((g, Life::FIRST)..=(g, Life::LAST)) {
            if other != run.at && until > run.from {
                wrong(format!(
                    "{name:?} generation {g} began at {} on {} while {other} ran it until {until}",
                    run.from, run.at
                ));
            }
        }
        let end = timeline.end_of(run);
        let slot = busy.entry((g, run.at)).or_insert(end);
        *slot = end.max(*slot);
    }
}

/// A node whose lease lapsed executes nothing and answers nothing (R5-16). What was executed in
/// time and answered after a renewal is right.
#[must_use]
pub fn lapsed_owner(h: &History) -> Vec<Violation> {
    let timeline = Timeline::new(h);
    let mut found = Vec::new();
    for run in in_time(h) {
        if !timeline.is_alive(run.at, run.from) {
            found.push(Violation::new(
                Rule::LapsedOwner,
                format!(
                    "{} was executed at {} by {}, whose lease was not alive",
                    op_name(h, run.key),
                    run.from,
                    run.at
                ),
            ));
        }
    }
    for (key, runs) in runs_of(h) {
        let Some(operation) = h.operations.get(&key) else { continue };
        let replied = operation.endings.iter().find(|(_, e)| matches!(e, Ending::Replied(_)));
        let (Some(&(ended, _)), Some(run)) = (replied, runs.last()) else { continue };
        let since = run.to.unwrap_or(run.from);
        if since <= ended && !timeline.is_alive_within(run.at, since, ended) {
            found.push(Violation::new(
                Rule::LapsedOwner,
                format!(
                    "{} was answered at {ended}; {} finished it at {since} and had no live lease \
                     from then on",
                    op_name(h, key),
                    run.at
                ),
            ));
        }
    }
    found
}

/// What reached a node under fences that are not its own is not executed there (R2.1-3).
#[must_use]
pub fn stale_fences(h: &History) -> Vec<Violation> {
    let runs = runs_of(h);
    let mut found = Vec::new();
    for &(key, life, when) in &h.stale_arrivals {
        let run = runs.get(&key).and_then(|r| r.iter().find(|r| r.at == life && r.from >= when));
        if let Some(run) = run {
            found.push(Violation::new(
                Rule::StaleFence,
                format!(
                    "{} reached {life} at {when} with stale fences and was executed there at {}",
                    op_name(h, key),
                    run.from
                ),
            ));
        }
    }
    found
}

/// Of many creators of an id one runs its factory; another one only after the first one's object
/// or row was removed, or its process died or lapsed. The row may go before the factory runs: a
/// creator whose lease lapsed learns late that it had reserved the id.
#[must_use]
pub fn one_factory(h: &History) -> Vec<Violation> {
    let timeline = Timeline::new(h);
    let mut last = BTreeMap::new();
    let mut found = Vec::new();
    let mut runs: Vec<_> = h.factories.iter().collect();
    runs.sort_by_key(|run| run.when);
    for run in runs {
        let Some(before) = last.insert(run.object, run) else { continue };
        let name = h.name(run.object);
        if before.generation == run.generation {
            found.push(Violation::new(
                Rule::OneFactory,
                format!(
                    "the factory of {name:?} ran twice for generation {}: at {} on {} and at {} \
                     on {}",
                    run.generation, before.when, before.at, run.when, run.at
                ),
            ));
            continue;
        }
        let reserved = h
            .reservations
            .iter()
            .find(|&&(object, generation, _)| {
                (object, generation) == (run.object, before.generation)
            })
            .map_or(before.when, |&(_, _, when)| when.min(before.when));
        let removed = h
            .removals
            .iter()
            .any(|&(object, at)| object == run.object && at >= reserved && at <= run.when);
        let gone = timeline.died_by(before.at, run.when)
            || timeline.lapsed_within(before.at, before.when, run.when);
        if !removed && !gone {
            found.push(Violation::new(
                Rule::OneFactory,
                format!(
                    "the factory of {name:?} ran at {} on {} (generation {}) and again at {} on \
                     {} (generation {}), with nothing removed in between",
                    before.when, before.at, before.generation, run.when, run.at, run.generation
                ),
            ));
        }
    }
    found
}
