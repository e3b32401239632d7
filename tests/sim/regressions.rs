#![forbid(unsafe_code)]
//! Faults that were found, each with the run that shows it.

use std::future::IntoFuture;
use std::time::Duration;

use homing::Counter;
use homing::prelude::*;
use homing::sim::{Death, Fault, StoreMode};

use super::cluster::Cluster;
use super::ledger::{Birth, Extra, Ledger, Note, Wish};
use super::shape::Shape;

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Three nodes that are up, without clients.
fn cluster(seed: u64) -> Cluster {
    cluster_of(seed, &Shape::calm())
}

fn cluster_of(seed: u64, shape: &Shape) -> Cluster {
    let mut cluster = Cluster::new(seed, shape);
    let nodes: Vec<_> = cluster.nodes.clone();
    cluster.world.run_until_up(&nodes.iter().collect::<Vec<_>>());
    cluster
}

/// A shutdown whose deadline passes while an object is being opened (its Ready row is on its way to
/// the Store) took the object out twice: the core failed, or another object went with it.
///
/// Proves R4-6.
#[test]
fn a_shutdown_while_an_object_opens() {
    let mut cluster = cluster(1);
    let node = cluster.nodes[0].clone();
    let handle = node.node().expect("the node is up");
    let slow = StoreMode::Slow(ms(500));
    cluster.world.inject(Fault::Store { node: Some(node.ix()), mode: slow, lasts: ms(20_000) });
    let creating = handle.actors().create::<Ledger>("o00-0", Birth(Wish::Make)).into_future();
    let creating = cluster.world.spawn(None, creating);
    let made = |h: &homing::sim::History| h.factories.len();
    let opens = cluster.world.now() + ms(5_000);
    let history = cluster.world.history();
    assert!(cluster.world.run_until(opens, |_| history.with(made) == 1), "the factory ran");
    cluster.world.run_for(ms(100));
    assert!(cluster.world.history().with(|h| h.authorities.is_empty()), "no Ready row stands yet");
    cluster.world.block_on(async move { handle.shutdown(ms(1)).await });
    cluster.world.run_for(ms(5_000));
    let end = creating.take().expect("the creation has ended");
    assert!(matches!(&end, Err(e) if e.kind() == ErrorKind::ShuttingDown), "{end:?}");
    assert!(!cluster.world.is_up(node.ix()), "the node has ended");
}

/// Without a cache, an operation that waited for a link to a dead owner asked the Store over and
/// over, as fast as that answered, until its deadline.
///
/// Proves R1-1, R2.6-3.
#[test]
fn an_owner_that_cannot_be_reached_costs_no_loop_of_reads() {
    let mut cluster = cluster_of(2, &Shape { cache_max_age: ms(0), ..Shape::calm() });
    let owner = cluster.nodes[0].clone();
    let make = owner.node().expect("the node is up");
    let made = cluster.world.block_on(make.actors().create::<Ledger>("a", ()).into_future());
    assert!(matches!(made, Ok(CreateOutcome::Created(_))), "{made:?}");
    cluster.world.run_for(ms(1_500));
    cluster.world.inject(Fault::Kill(owner.ix(), Death::Reset));
    cluster.world.run_for(ms(100));
    let node = cluster.nodes[1].node().expect("the node is up");
    let reads = |node: &Node| node.counters().get(Counter::StoreReads);
    let before = reads(&node);
    for seq in 1..=3 {
        let key = cluster.stage.next_key(1, "a");
        assert_eq!(key.seq, seq);
        let asked = node.actor("a").request(Note::new(key, Extra::Nothing, 0)).into_future();
        let end = cluster.world.block_on(asked);
        assert!(matches!(&end, Err(e) if e.kind() == ErrorKind::Unavailable), "{end:?}");
    }
    let spent = reads(&node) - before;
    assert!(spent < 40, "{spent} keys were read for three requests");
}
