#![forbid(unsafe_code)]
//! R2.3-3: configured endpoints that change at run time.

use homing::{Counter, ErrorKind, block_on};

use super::command::{Command, Configured, OnPeers};
use super::eventually::eventually;
use super::proxy::Proxy;
use super::world::{Asks, Child, World, refused};

impl Child {
    fn on_peers(&self, wish: OnPeers) -> homing::Result<()> {
        self.try_ask(Command::OnPeers(wish))
    }

    #[track_caller]
    fn peers(&self) -> Vec<Configured> {
        self.ask(Command::Peers)
    }

    /// Waits until the only configured endpoint is this one, and connected to this node.
    #[track_caller]
    fn await_peer(&self, endpoint: &str, rid: &str) {
        eventually("the configured peer to be connected", || {
            let peers = self.peers();
            let [peer] = &peers[..] else { panic!("{peers:?}") };
            assert_eq!((&peer.endpoint[..], &peer.moving_to), (endpoint, &None));
            (peer.state == "Connected" && peer.rid.as_deref() == Some(rid)).then_some(())
        });
    }
}

/// The old connection is closed before the call is done, the new one is made then; back and forth, with
/// more than one core on each side. What still comes of the old network changes nothing.
///
/// Proves R2.3-3.
#[test]
fn a_replaced_endpoint_leaves_nothing_of_the_old_connection() {
    let world = World::new();
    let (old_way, new_way) = (Proxy::new(), Proxy::new());
    let node = |rid: &str, way: &Proxy| {
        let mut setup = world.setup(rid);
        setup.cores = Some(2);
        setup.advertise = Some(way.endpoint());
        setup.listen = Some(world.free_tcp());
        way.lead_to(setup.listen.as_ref().unwrap());
        world.child(&setup)
    };
    let (old, new) = (node("old", &old_way), node("new", &new_way));
    new.create("n");
    let mut setup = world.setup("caller");
    setup.cores = Some(3);
    setup.peers = vec![old_way.endpoint()];
    let caller = world.child(&setup);
    caller.await_peer(&old_way.endpoint(), "old");
    let ways = [(&old_way, &old), (&new_way, &new)];
    for turn in 0..4u64 {
        let [(from, left), (to, met)] = [ways[turn as usize % 2], ways[(turn as usize + 1) % 2]];
        assert_eq!(caller.counter(Counter::LinksDown), turn);
        let before = left.counter(Counter::LinksDown);
        caller.on_peers(OnPeers::Replace(from.endpoint(), to.endpoint())).unwrap();
        // Seen closed here, though the peer may not know yet.
        assert_eq!(caller.counter(Counter::LinksDown), turn + 1);
        assert_eq!(caller.closes()["peer_intent_replaced"], turn + 1);
        // Late events of the old connection: its network breaks down.
        from.cut();
        caller.await_peer(&to.endpoint(), &met.rid);
        eventually("the old peer to see it", || {
            (left.counter(Counter::LinksDown) == before + 1).then_some(())
        });
        assert_eq!(caller.counter(Counter::LinksUp), turn + 2);
    }
    assert_eq!(caller.counter(Counter::LinksDown), 4);
    // The link serves messages once the Store confirms who is there; here it is the old peer again.
    caller.on_peers(OnPeers::Replace(old_way.endpoint(), new_way.endpoint())).unwrap();
    caller.await_peer(&new_way.endpoint(), "new");
    assert_eq!(caller.ask::<u64>(Command::Burst { id: "n".into(), count: 20 }), 20);
    assert_eq!(caller.counter(Counter::LinksUp), 6);
    assert_eq!(caller.counter(Counter::ProtocolViolations), 0);
}

/// A dial that hangs in its handshake is given up at once.
///
/// Proves R2.3-3.
#[test]
fn an_endpoint_that_answers_nothing_is_replaced_at_once() {
    let world = World::new();
    let there = world.child(&world.setup("there"));
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent_at = format!("tcp://{}", silent.local_addr().unwrap());
    let mut setup = world.setup("caller");
    setup.peers = vec![silent_at.clone()];
    setup.handshake_ms = Some(600_000);
    let (node, _) = world.node(&setup);
    let (_stream, _) = silent.accept().unwrap();
    block_on(node.peers().replace(&silent_at, &there.endpoint)).unwrap();
    assert_eq!(node.close_reasons()["peer_intent_replaced"], 1);
    eventually("the new endpoint to be linked", || {
        (node.count(Counter::LinksUp) == 1).then_some(())
    });
}

/// Adding and removing, and what is wrong with a call.
///
/// Proves R2.3-1, R2.3-3, R2.3-5.
#[test]
fn endpoints_are_added_and_removed_and_bad_calls_are_told() {
    let world = World::new();
    let there = world.child(&world.setup("there"));
    let mut setup = world.setup("caller");
    setup.secret = None;
    let (node, _) = world.node(&setup);
    let peers = || block_on(node.peers().list()).unwrap();
    assert_eq!(peers(), []);
    for _ in 0..3 {
        let before = node.count(Counter::LinksUp);
        block_on(node.peers().add(&there.endpoint)).unwrap();
        eventually("the added endpoint to be linked", || {
            (node.count(Counter::LinksUp) == before + 1).then_some(())
        });
        assert_eq!(peers().len(), 1);
        block_on(node.peers().remove(&there.endpoint)).unwrap();
        assert_eq!(node.count(Counter::LinksDown), before + 1, "closed when the call is done");
        assert_eq!(peers(), []);
    }
    // A wish proves nothing: there is nobody, and nothing is placed there.
    let vacant = world.free_tcp();
    block_on(node.peers().add(&vacant)).unwrap();
    refused(node.note("a", 1), ErrorKind::NotFound);
    eventually("the failure to be told", || {
        peers()[0].last_failure.contains("refused").then_some(())
    });
    let own = node.endpoint().to_string();
    let bad = |call: homing::Result<()>, kind, words: &[&str]| {
        let text = refused(call, kind);
        words.iter().for_each(|word| assert!(text.contains(word), "{text} does not say {word}"));
    };
    let add = |endpoint: &str| block_on(node.peers().add(endpoint));
    let replace = |old: &str, new: &str| block_on(node.peers().replace(old, new));
    bad(add(&vacant), ErrorKind::AlreadyExists, &[&vacant, "already"]);
    bad(add("tcp://host"), ErrorKind::NotConfigured, &["tcp://host", "write for example"]);
    bad(add("tcp://127.0.0.1:0"), ErrorKind::NotConfigured, &["127.0.0.1:0", "port"]);
    bad(add(&own), ErrorKind::NotConfigured, &[&own, "own endpoint"]);
    bad(add("tcp://192.0.2.7:1"), ErrorKind::NotConfigured, &["192.0.2.7:1", "mesh secret"]);
    bad(replace(&vacant, "udp://x"), ErrorKind::NotConfigured, &["udp://x"]);
    bad(replace(&vacant, &vacant), ErrorKind::AlreadyExists, &[&vacant]);
    bad(replace(&there.endpoint, "tcp://127.0.0.1:9"), ErrorKind::NotFound, &[&there.endpoint]);
    let remove = block_on(node.peers().remove(&there.endpoint));
    bad(remove, ErrorKind::NotFound, &[&there.endpoint, "not configured"]);
    assert_eq!(peers().len(), 1, "none of them changed anything");
    block_on(node.shutdown(std::time::Duration::from_secs(5)));
    bad(add(&there.endpoint), ErrorKind::ShuttingDown, &["stopped"]);
}
