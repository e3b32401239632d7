#![forbid(unsafe_code)]
//! R2.3: who is admitted as a peer.

use std::net::TcpListener;
use std::time::Duration;

use homing::{Counter, ErrorKind, block_on};

use super::command::{Command, Sight};
use super::eventually::eventually;
use super::proxy::Proxy;
use super::world::{Asks, Child, World, refused};

/// Peers named by hand: one where nobody listens, one where somebody listens who is no node, one
/// that is a node of another Store. The node starts, and none of them is a place for anything.
///
/// Proves R2.3-1.
#[test]
fn a_configured_endpoint_proves_nothing() {
    let (world, elsewhere) = (World::new(), World::new());
    let foreign = elsewhere.child(&elsewhere.setup("foreign"));
    foreign.create("a");
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let vacant = {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap()
    };
    let mut setup = world.setup("caller");
    setup.hosts_nothing = true;
    setup.peers = vec![
        foreign.endpoint.clone(),
        format!("tcp://{}", silent.local_addr().unwrap()),
        format!("tcp://{vacant}"),
    ];
    let (node, _) = world.node(&setup);
    // It does dial what it was told.
    let (_stream, _) = silent.accept().unwrap();
    // The foreign node hosts the type and has the id; neither counts.
    assert_eq!(node.sight("a"), Sight::Missing);
    refused(node.note("a", 1), ErrorKind::NotFound);
    let text = refused(node.make("b", None), ErrorKind::Unavailable);
    assert!(text.contains("no live node") && text.contains("probe"), "{text}");
    assert_eq!(foreign.counter(Counter::AdmittedRemote), 0);
    assert_eq!(foreign.counter(Counter::ObjectsCreated), 1);
}

/// A peer named by hand that the Store confirms is simply a peer.
///
/// Proves R2.3-1, R2.3-2.
#[test]
fn a_configured_endpoint_that_the_store_confirms_is_linked() {
    let world = World::new();
    let owner = world.child(&world.setup("owner"));
    let mut setup = world.setup("caller");
    setup.peers = vec![owner.endpoint.clone()];
    let (node, _) = world.node(&setup);
    eventually("the link to come up by itself", || {
        (node.count(Counter::LinksUp) == 1).then_some(())
    });
    owner.create("a");
    node.note("a", 1).unwrap();
    assert_eq!(node.count(Counter::LinksUp), 1, "one link serves both");
}

/// The process that listens where the descriptor says is another one than the descriptor says: it
/// gets no message.
///
/// Proves R2.3-2, R2.6-3.
#[test]
fn a_peer_must_be_the_one_its_descriptor_names() {
    let world = World::new();
    let proxy = Proxy::new();
    let mut setup = world.setup("owner");
    setup.advertise = Some(proxy.endpoint());
    setup.listen = Some(world.free_tcp());
    let behind = setup.listen.clone().unwrap();
    let owner = world.child(&setup);
    let imposter = world.child(&world.setup("imposter"));
    owner.create("a");
    // Whoever dials the owner reaches the other one.
    proxy.lead_to(&imposter.endpoint);
    let mut setup = world.setup("caller");
    setup.request_ms = Some(1_500);
    let (node, _) = world.node(&setup);
    for _ in 0..3 {
        let e = node.note("a", 1).unwrap_err();
        assert!(matches!(e.kind(), ErrorKind::Unavailable | ErrorKind::DeadlineExceeded), "{e}");
    }
    assert_eq!(imposter.counter(Counter::AdmittedRemote), 0);
    assert_eq!(node.count(Counter::SubmittedRemote), 0);
    let reasons = node.close_reasons();
    assert!(!reasons.is_empty(), "the refusal is counted");
    // The right one is admitted as soon as it answers there.
    proxy.lead_to(&behind);
    proxy.cut();
    eventually("the owner to be linked", || node.note("a", 2).ok());
    assert!(owner.notes("a").contains(&2));
    assert_eq!(imposter.counter(Counter::AdmittedRemote), 0);
}

fn with_secret(world: &World, rid: &str, secret: &str) -> super::command::Setup {
    let mut setup = world.setup(rid);
    setup.secret = Some(secret.into());
    setup.request_ms = Some(1_500);
    setup
}

fn must_not_reach(owner: &Child, node: &homing::Node) {
    for _ in 0..3 {
        let e = node.note("a", 1).unwrap_err();
        assert!(matches!(e.kind(), ErrorKind::Unavailable | ErrorKind::DeadlineExceeded), "{e}");
    }
    assert_eq!(node.count(Counter::LinksUp), 0);
    assert_eq!(owner.counter(Counter::LinksUp), 0);
    assert_eq!(owner.counter(Counter::AdmittedRemote), 0);
    assert_eq!(owner.notes("a"), [0; 0]);
}

/// Proves R2.3-5.
#[test]
fn the_mesh_secret_is_proved_by_both_sides() {
    let world = World::new();
    let owner = world.child(&with_secret(&world, "owner", "correct horse battery"));
    owner.create("a");
    let (wrong, _) = world.node(&with_secret(&world, "wrong", "correct horse batterz"));
    must_not_reach(&owner, &wrong);
    let mut none = with_secret(&world, "none", "");
    none.secret = None;
    let (none, _) = world.node(&none);
    must_not_reach(&owner, &none);
    let closes: std::collections::BTreeMap<String, u64> = owner.ask(Command::Closes);
    assert!(!closes.is_empty(), "the refusals are counted");
    let (right, _) = world.node(&with_secret(&world, "right", "correct horse battery"));
    assert_eq!(right.note("a", 1), Ok(1));
}

/// Without a secret: loopback and Unix sockets, and nothing else, at start.
///
/// Proves R2.3-5.
#[test]
fn without_a_secret_a_node_stays_at_home() {
    let world = World::new();
    type Spoil = fn(&mut super::command::Setup);
    let cases: [(Spoil, &str, &str); 3] = [
        (|s| s.listen = Some("tcp://0.0.0.0:0".into()), "listen", "tcp://0.0.0.0:0"),
        (|s| s.advertise = Some("tcp://192.0.2.7:7000".into()), "advertise", "192.0.2.7:7000"),
        (|s| s.peers = vec!["tcp://192.0.2.9:7000".into()], "peer", "192.0.2.9:7000"),
    ];
    for (spoil, setting, value) in cases {
        let mut setup = world.setup("n");
        spoil(&mut setup);
        let e = setup.builder().store(world.store()).start().err().expect("it is refused");
        assert_eq!(e.kind(), ErrorKind::NotConfigured);
        for word in [setting, value, "mesh secret"] {
            assert!(e.text().contains(word), "{e} does not say {word}");
        }
    }
    // A Unix socket needs none, and carries the same messages.
    let mut setup = world.setup("owner");
    setup.listen = Some(format!("unix://{}", world.file("n.sock")));
    let owner = world.child_named(&setup, "owner-process");
    owner.create("a");
    let (node, _) = world.node(&world.setup("caller"));
    assert_eq!(node.note("a", 1), Ok(1));
    // And leaves nothing behind when it ends in order.
    block_on(node.shutdown(Duration::from_secs(5)));
    owner.ask::<()>(Command::Shutdown { deadline_ms: 5_000 });
    assert!(!world.path("n.sock").exists(), "the socket's file is gone");
}
