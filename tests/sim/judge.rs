#![forbid(unsafe_code)]
//! What a run is judged by: the library's checkers, and what only this load can know.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use homing::sim::{
    CheckConfig, Ending, History, Life, ObjectIx, OpKind, Rule, Violation, at_most_once,
    complaints, deadlines_kept, errors_have_causes, exactly_once, honest_endings, lapsed_owner,
    one_factory, one_terminal, sender_order, single_owner, stale_fences,
};
use homing::{Counter, ErrorKind};

use super::cluster::Cluster;
use super::stage::Facts;

/// Everything that is wrong with a run.
pub(crate) fn judge(h: &History, cluster: &Cluster) -> Vec<Violation> {
    let facts = cluster.stage.facts.borrow();
    let config = CheckConfig {
        // A lease that has to be taken again, and the longest pause between two dials.
        grace: cluster.stage.shape.lease.0 + Duration::from_secs(7),
        flight: Duration::from_secs(10),
        route_age: cluster.stage.shape.cache_max_age,
        ..CheckConfig::default()
    };
    [
        complaints(h),
        single_owner(h),
        at_most_once(h),
        exactly_once(h, &config),
        sender_order(h),
        one_terminal(h, &config),
        deadlines_kept(h, &config),
        lapsed_owner(h),
        honest_endings(h),
        errors_have_causes(&without_hasty(h, &facts), &config),
        stale_fences(h),
        one_factory(h),
        stale_once(h, &facts),
        creations(h, &facts),
        destructions(h, &facts),
        counters(h, &facts, cluster),
    ]
    .concat()
}

fn wrong(rule: Rule, text: String) -> Violation {
    Violation { rule, text }
}

/// The history without the requests that ran out of a time that was too short.
fn without_hasty(h: &History, facts: &Facts) -> History {
    let mut h = h.clone();
    for key in &facts.hasty {
        if let Some(operation) = h.operations.get_mut(key) {
            operation
                .endings
                .retain(|(_, end)| *end != Ending::Failed(ErrorKind::DeadlineExceeded));
        }
    }
    h
}

/// A node that was told that an Actor is not at a node, after it was removed there, does not send
/// it there again (R2.2-4), also not by what a read said that began before (R2.2-8).
fn stale_once(h: &History, facts: &Facts) -> Vec<Violation> {
    let mut found = Vec::new();
    // When the Actor stood at a node, in the order of changes.
    let changes = |object: ObjectIx| h.authorities.iter().filter(move |a| a.object == object);
    for (at, first) in facts.stale_ends.iter().enumerate() {
        let owner = |life: Life| format!("n{}", life.node.0) == first.rid;
        let within: Vec<_> = changes(first.key.object)
            .filter(|a| a.when >= first.submitted && a.when <= first.ended)
            .collect();
        // It was told after the removal only if nothing else happened there meanwhile.
        let standing = changes(first.key.object).rfind(|a| a.when <= first.ended);
        let is_there = |a: &homing::sim::Authority| a.owner.is_some_and(|(_, _, l)| owner(l));
        if standing.is_some_and(is_there) || within.iter().any(|a| is_there(a)) {
            continue;
        }
        let again = facts.stale_ends[at + 1..].iter().find(|second| {
            second.key.object == first.key.object
                && second.source == first.source
                && second.rid == first.rid
                && second.submitted > first.ended
                && !changes(first.key.object)
                    .any(|a| a.when > first.ended && a.when <= second.ended && is_there(a))
        });
        if let Some(second) = again {
            found.push(wrong(
                Rule::Cause,
                format!(
                    "{} was told at {} that {:?} is not at {} (by {:?}), and sent it there again \
                     at {} ({:?})",
                    first.source,
                    first.ended,
                    h.name(first.key.object),
                    first.rid,
                    first.key,
                    second.submitted,
                    second.key
                ),
            ));
        }
    }
    found
}

/// One creator was told Created, and everyone who was told of an incarnation was told of one that
/// stood.
fn creations(h: &History, facts: &Facts) -> Vec<Violation> {
    let stood: BTreeSet<(ObjectIx, u64)> = h
        .authorities
        .iter()
        .filter_map(|a| a.owner.map(|(generation, _, _)| (a.object, generation)))
        .collect();
    let mut found = Vec::new();
    let mut created = BTreeSet::new();
    for &(object, generation) in &facts.created {
        if !created.insert((object, generation)) {
            let text = format!("two creators made {:?} generation {generation}", h.name(object));
            found.push(wrong(Rule::OneFactory, text));
        }
    }
    for told in facts.created.iter().chain(&facts.existing) {
        if !stood.contains(told) {
            let text = format!("{:?} generation {} never stood", h.name(told.0), told.1);
            found.push(wrong(Rule::OneFactory, text));
        }
    }
    found
}

/// Only the incarnation that was named goes (R2.6-2), or all of a node that shuts down.
fn destructions(h: &History, facts: &Facts) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut standing = BTreeMap::new();
    for change in &h.authorities {
        match change.owner {
            Some((generation, _, life)) => {
                standing.insert(change.object, (generation, life));
            }
            None => {
                let Some((generation, life)) = standing.remove(&change.object) else { continue };
                let asked = facts.destroyed.contains(&(change.object, generation))
                    || facts.shut_down.contains(&life);
                if !asked {
                    let text = format!(
                        "{:?} generation {generation} on {life} was removed at {}, and nobody asked",
                        h.name(change.object),
                        change.when
                    );
                    found.push(wrong(Rule::SingleOwner, text));
                }
            }
        }
    }
    found
}

/// What the nodes counted fits to what their clients saw.
fn counters(h: &History, facts: &Facts, cluster: &Cluster) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut unanswered: BTreeMap<Life, u64> = BTreeMap::new();
    for operation in h.operations.values().filter(|o| o.kind == OpKind::Request) {
        let answered = matches!(operation.endings.first(), Some((_, Ending::Replied(_))));
        *unanswered.entry(operation.source).or_default() += u64::from(!answered);
    }
    let mut submitted: BTreeMap<Life, u64> = BTreeMap::new();
    for operation in h.operations.values() {
        *submitted.entry(operation.source).or_default() += 1;
    }
    for (life, node) in &cluster.lives {
        let counters = node.counters();
        let of = |map: &BTreeMap<Life, u64>| map.get(life).copied().unwrap_or(0);
        // A request has one reply, which is late when the request ended before. A creation may ask
        // others how theirs ends, some times.
        let late = of(&unanswered) + of(&facts.cancelled) + 3 * of(&facts.creations);
        if counters.get(Counter::RepliesLate) > late {
            let text = format!(
                "{life} had {} late replies, and {late} requests could have one",
                counters.get(Counter::RepliesLate)
            );
            found.push(wrong(Rule::OneTerminal, text));
        }
        // Beside operations there are creations and the background look at who is there.
        let reads = 1_000 + 20 * (of(&submitted) + of(&facts.creations) + of(&facts.cancelled));
        if counters.get(Counter::StoreReads) > reads {
            let read = counters.get(Counter::StoreReads);
            let text = format!("{life} read {read} keys; its operations explain at most {reads}");
            found.push(wrong(Rule::Complaint, text));
        }
        for never in [Counter::ProtocolViolations, Counter::TurnsPanicked] {
            if counters.get(never) > 0 {
                let text = format!(
                    "{life} counted {} {}: {:?}",
                    counters.get(never),
                    never.label(),
                    node.close_reasons()
                );
                found.push(wrong(Rule::Complaint, text));
            }
        }
    }
    found
}
