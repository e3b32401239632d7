#![forbid(unsafe_code)]
//! Faults that were found, each with the run that shows it.

use std::future::IntoFuture;
use std::time::Duration;

use homing::prelude::*;
use homing::sim::{Fault, StoreMode};

use super::cluster::Cluster;
use super::ledger::{Birth, Ledger, Wish};
use super::shape::Shape;

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Three nodes that are up, without clients.
fn cluster(seed: u64) -> Cluster {
    let mut cluster = Cluster::new(seed, &Shape::calm());
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
