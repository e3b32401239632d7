#![forbid(unsafe_code)]
//! Two nodes of one process over a shared Store: the first thing that must work.

use std::time::Duration;

use homing::prelude::*;
use homing::store::memory::MemoryStore;
use homing::{Counter, CreateOutcome};

#[derive(serde::Serialize, serde::Deserialize)]
struct Add(i64);
impl Message for Add {
    const NAME: &'static str = "counter.add";
    type Reply = i64;
}

#[derive(Default)]
struct Tally {
    total: i64,
}
impl Actor for Tally {
    const TYPE: &'static str = "tally";
    async fn create(_: &CreateContext, _request: Payload) -> Result<Self> {
        Ok(Self::default())
    }
}
impl Handler<Add> for Tally {
    async fn handle(&mut self, add: Add, _cx: &mut Context<'_, Self>) -> Result<i64> {
        self.total += add.0;
        Ok(self.total)
    }
}

fn node(store: &MemoryStore, rid: &str, cores: u16) -> Node {
    Node::builder("game")
        .rid(rid)
        .cores(cores)
        .store(store.clone())
        .actor::<Tally>(|a| a.handles::<Add>())
        .start()
        .unwrap()
}

/// Proves R2.1-2, R2.1-5.
#[test]
fn an_actor_is_found_by_id_from_another_node() {
    for (cores_a, cores_b) in [(1, 1), (1, 2), (3, 2)] {
        let store = MemoryStore::new();
        let a = node(&store, "a", cores_a);
        let b = node(&store, "b", cores_b);
        homing::block_on(async {
            for n in 0..20 {
                let id = format!("t{n}");
                let outcome = a.actors().create::<Tally>(&id, ()).await.unwrap();
                assert!(matches!(outcome, CreateOutcome::Created(_)));
                let outcome = b.actors().create::<Tally>(&id, ()).await.unwrap();
                assert!(matches!(outcome, CreateOutcome::Existing(_)), "{outcome:?}");
                let here = a.actor(&id);
                let there = b.actor(&id);
                there.send(Add(1)).await.unwrap();
                assert_eq!(there.request(Add(2)).await.unwrap(), 3);
                here.send(Add(1)).await.unwrap();
                assert_eq!(here.request(Add(2)).await.unwrap(), 6);
            }
            let found = b.actors().find("t0").await.unwrap().unwrap();
            b.actors().destroy(&found).await.unwrap();
            let e = b.actor("t0").request(Add(1)).await.unwrap_err();
            assert!(matches!(e.kind(), ErrorKind::NotFound | ErrorKind::Unavailable), "{e}");
            let e = b.actor("t0").request(Add(1)).await.unwrap_err();
            assert_eq!(e.kind(), ErrorKind::NotFound, "{e}");
            assert!(b.counters().get(Counter::CacheHits) > 0);
            a.shutdown(Duration::from_secs(5)).await;
            b.shutdown(Duration::from_secs(5)).await;
        });
    }
}

/// Sends to an id that nobody has and does not wait for it.
#[derive(serde::Serialize, serde::Deserialize)]
struct Shout;
impl Message for Shout {
    const NAME: &'static str = "shout";
    type Reply = ();
}
impl Handler<Shout> for Tally {
    async fn handle(&mut self, _: Shout, cx: &mut Context<'_, Self>) -> Result<()> {
        cx.actor("nobody")?.send(Add(1)).detach();
        Ok(())
    }
}

/// A detached send of a turn that fails is counted, as one of an application thread is.
#[test]
fn a_detached_send_of_a_turn_that_fails_is_counted() {
    let node = Node::builder("game")
        .store(MemoryStore::new())
        .actor::<Tally>(|a| a.handles::<Add>().handles::<Shout>())
        .start()
        .unwrap();
    node.actors().create::<Tally>("t", ()).wait().unwrap();
    node.actor("t").request(Shout).wait().unwrap();
    // It is read from the Store behind this: an id is looked up on its own, in order of asking.
    let e = node.actor("nobody").request(Add(1)).wait().unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NotFound);
    homing::block_on(node.shutdown(Duration::from_secs(5)));
    assert_eq!(node.counters().get(Counter::OneWayFailed), 1);
}
