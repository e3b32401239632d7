#![forbid(unsafe_code)]
//! An outage of the Store of 30 s, under the default lease of 10 s.

use std::future::IntoFuture;
use std::time::Duration;

use homing::Counter;
use homing::prelude::*;
use homing::sim::{Fault, StoreMode};

use super::cluster::Cluster;
use super::ledger::{Extra, Ledger, Note};
use super::shape::Shape;

const OUTAGE: Duration = Duration::from_secs(30);

/// The cluster pauses for the time of the outage and loses nothing: every Actor goes on in its
/// incarnation, on its node; what was waiting with time left is handled.
///
/// Proves R5-16, R5-4.
#[test]
fn an_outage_of_30_s_pauses_and_loses_nothing() {
    for mode in [StoreMode::Failing, StoreMode::Silent, StoreMode::AnswerLost] {
        let lease = (Duration::from_secs(10), Duration::from_secs(3));
        let mut cluster = Cluster::new(7, &Shape { lease, ..Shape::calm() });
        let nodes: Vec<_> = cluster.nodes.clone();
        cluster.world.run_until_up(&nodes.iter().collect::<Vec<_>>());
        let handles: Vec<Node> = nodes.iter().map(|n| n.node().expect("up")).collect();
        let (mut refs, mut generations) = (Vec::new(), Vec::new());
        for (at, handle) in handles.iter().enumerate() {
            let id = format!("o{at}");
            let made = handle.actors().create::<Ledger>(&id, ()).into_future();
            match cluster.world.block_on(made) {
                Ok(CreateOutcome::Created(made)) => generations.push(made.generation),
                other => panic!("{other:?}"),
            }
            refs.push(id);
        }
        let ask = |cluster: &mut Cluster, from: usize, id: &str, timeout: Duration| {
            let key = cluster.stage.next_key(from as u32 + 1, id);
            let asked = handles[from].actor(id).request(Note::new(key, Extra::Nothing, 0));
            cluster.world.spawn(None, asked.timeout(timeout).into_future())
        };
        let within = |cluster: &mut Cluster, timeout: Duration| -> Vec<bool> {
            let mut ends = Vec::new();
            for from in 0..handles.len() {
                for id in &refs {
                    let asked = ask(cluster, from, id, timeout);
                    cluster.world.run_for(timeout + Duration::from_millis(10));
                    ends.push(asked.take().expect("its time is over").is_ok());
                }
            }
            ends
        };
        let second = Duration::from_secs(1);
        assert!(within(&mut cluster, second).iter().all(|ok| *ok), "{mode:?}: before");
        cluster.world.inject(Fault::Store { node: None, mode, lasts: OUTAGE });
        let begun = cluster.world.now();
        // Past every lease, however it was renewed last.
        cluster.world.run_for(Duration::from_secs(12));
        let lapses = |h: &Node| h.counters().get(Counter::LeaseLapses);
        assert!(handles.iter().all(|h| lapses(h) >= 1), "{mode:?}: every lease has lapsed");
        let patient: Vec<_> = refs
            .iter()
            .enumerate()
            .map(|(from, id)| ask(&mut cluster, from, id, Duration::from_secs(60)))
            .collect();
        let during = within(&mut cluster, Duration::from_millis(500));
        assert!(during.iter().all(|ok| !ok), "{mode:?}: nothing is answered: {during:?}");
        assert!(patient.iter().all(|asked| !asked.is_done()), "{mode:?}");
        let end = begun + OUTAGE + lease.0;
        cluster.world.run_until(end, |_| false);
        for asked in &patient {
            let end = asked.take().expect("the Store is back");
            assert!(end.is_ok(), "{mode:?}: {end:?}");
        }
        assert!(within(&mut cluster, second).iter().all(|ok| *ok), "{mode:?}: after");
        for ((handle, id), generation) in handles.iter().zip(&refs).zip(generations) {
            let found = cluster.world.block_on({
                let (handle, id) = (handle.clone(), id.clone());
                async move { handle.actors().find(&id).await }
            });
            let found = found.expect("the Store answers").expect("it stands");
            assert_eq!(found.generation, generation, "{mode:?}");
        }
    }
}
