#![forbid(unsafe_code)]
//! What a run is judged by: the library's checkers, and what only this load can know.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use homing::sim::{
    Authority, CheckConfig, Ending, History, Life, ObjectIx, OpKind, Rule, Violation, at_most_once,
    complaints, deadlines_kept, errors_have_causes, exactly_once, honest_endings, lapsed_owner,
    one_factory, one_terminal, sender_order, single_owner, stale_fences,
};
use homing::{Counter, ErrorKind};

use super::cluster::Cluster;
use super::stage::{AbsentEnd, Facts};

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
        gone_once(h, &facts),
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

/// A node that learned that an Actor is gone, after it was removed, does not send it there again
/// (R2.2-4), also not by what a read said that began before (R2.2-8).
fn gone_once(h: &History, facts: &Facts) -> Vec<Violation> {
    let mut found = Vec::new();
    for (at, first) in facts.absent_ends.iter().enumerate() {
        let changes: Vec<&Authority> =
            h.authorities.iter().filter(|a| a.object == first.key.object).collect();
        let again = facts.absent_ends[at + 1..]
            .iter()
            .filter(|second| second.key.object == first.key.object)
            .filter(|second| second.source == first.source && second.submitted > first.ended)
            .find(|second| {
                second.rid.as_ref().is_some_and(|r| is_back(first, second, r, &changes))
            });
        if let Some(second) = again {
            found.push(wrong(
                Rule::Cause,
                format!(
                    "{} learned at {} by {:?} that {:?} is gone, and sent {:?} to {:?} at {}",
                    first.source,
                    first.ended,
                    first.key,
                    h.name(first.key.object),
                    second.key,
                    second.rid,
                    second.submitted,
                ),
            ));
        }
    }
    found
}

/// Whether `second` went to node `rid` although `first` had told that nothing is there.
fn is_back(first: &AbsentEnd, second: &AbsentEnd, rid: &str, changes: &[&Authority]) -> bool {
    if first.rid.as_ref().is_some_and(|told| told != rid) {
        return false;
    }
    let is_there = |a: &Authority| a.owner.is_some_and(|(_, _, l)| format!("n{}", l.node.0) == rid);
    // It was told after the removal only if the object came nowhere new there meanwhile.
    let stands = changes.iter().rfind(|a| a.when <= first.ended).is_some_and(|a| is_there(a));
    let came =
        changes.iter().any(|a| a.when >= first.submitted && a.when <= second.ended && is_there(a));
    !stands && !came
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
