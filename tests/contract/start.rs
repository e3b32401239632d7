#![forbid(unsafe_code)]
//! Everything a user can get wrong: it fails at `start` or at the call, with one sentence that names
//! setting, value and rule, and nothing is half started.

use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::time::Duration;

use homing::location::LocationStore;
use homing::store::lmdb::LmdbStore;
use homing::store::memory::MemoryStore;
use homing::{ErrorKind, Metadata, Node, NodeBuilder, Payload, block_on};

use super::command::{Command, Setup, Vain};
use super::eventually::eventually;
use super::probe::{Fill, Make, Note, Other, Probe, RAW, raw};
use super::watched::Watched;
use super::world::{Asks, Child, World, refused};

/// Fails unless the start fails with all these words, and the process is as it was before.
#[track_caller]
fn in_vain(child: &Child, setup: &Setup, kind: ErrorKind, words: &[&str]) -> String {
    let vain: Vain = child.ask(Command::StartInVain(setup.clone()));
    let text = vain.error.text;
    assert_eq!(ErrorKind::from_wire(vain.error.kind), Some(kind), "{text}");
    for word in words {
        assert!(text.contains(word), "{text:?} does not say {word:?}");
    }
    assert_eq!(vain.left, [""; 0], "half started after: {text}");
    text
}

/// Fails when a node of this rid left anything in the Store.
#[track_caller]
fn left_nothing(store: &Watched, rid: &str) {
    let keys: Vec<_> =
        ["lease", "node", "owner"].iter().map(|k| format!("{k}/{rid}").into_bytes()).collect();
    let read = store.read(&keys, Duration::from_secs(5)).unwrap();
    for (key, record) in keys.iter().zip(read.records) {
        assert!(record.is_none(), "{} stands", key.escape_ascii());
    }
}

/// Each setting with a value that breaks its rule: the sentence names both, and descriptors, threads
/// and the Store are as they were.
///
/// Proves R0-6, R0-7, R2.3-5.
#[test]
fn a_bad_setting_is_named_with_its_value() {
    type Spoil = fn(&mut Setup);
    let cases: Vec<(Spoil, &[&str])> = vec![
        (|s| s.mesh.clear(), &["mesh", "0 bytes", "1 to 255"]),
        (|s| s.rid = "r".repeat(256), &["rid", "256 bytes", "1 to 255"]),
        (|s| s.listen = Some("127.0.0.1:7000".into()), &["listen", "127.0.0.1:7000", "tcp://"]),
        (|s| s.listen = Some("http://127.0.0.1:1".into()), &["listen", "http://127.0.0.1:1"]),
        (|s| s.listen = Some("tcp://127.0.0.1".into()), &["listen", "tcp://127.0.0.1", "port"]),
        (|s| s.listen = Some("tcp://127.0.0.1:70000".into()), &["listen", ":70000"]),
        (|s| s.listen = Some("tcp://some-host:1".into()), &["listen", "some-host", "IP address"]),
        (|s| s.listen = Some(String::new()), &["listen", "\"\""]),
        (|s| s.listen = Some("unix://relative".into()), &["listen", "relative", "absolute"]),
        (|s| s.listen = Some(format!("unix:///{}", "x".repeat(107))), &["listen", "107"]),
        (|s| s.advertise = Some("tcp://".into()), &["advertise", "tcp://"]),
        (|s| s.peers = vec!["tcp://127.0.0.1:1".into(), "nowhere".into()], &["peer", "nowhere"]),
        (|s| s.listen = Some("tcp://0.0.0.0:0".into()), &["listen", "0.0.0.0", "mesh secret"]),
        (|s| s.secret = Some(String::new()), &["secret"]),
        (|s| s.cores = Some(0), &["cores is 0", "1 to 256"]),
        (|s| s.cores = Some(257), &["cores is 257", "1 to 256"]),
        (|s| s.max_frame = Some(65_535), &["max_frame_bytes is 65535", "65536"]),
        (|s| s.max_frame = Some(u32::MAX), &["max_frame_bytes is 4294967295", "1073741824"]),
        (|s| s.request_ms = Some(0), &["request_timeout is 0 ms", "1 to"]),
        (|s| s.send_ms = Some(0), &["send_timeout is 0 ms"]),
        (|s| s.create_ms = Some(0), &["create_timeout is 0 ms"]),
        (|s| s.store_ms = Some(0), &["store_timeout is 0 ms"]),
        (|s| s.cache_ms = Some(90_000_000), &["route_cache_max_age"]),
        (
            |s| s.lease_ms = Some((1_000, 600)),
            &["lease_renew_interval", "600ms", "lease_duration", "1s"],
        ),
        (
            |s| s.liveness_ms = Some((500, 900)),
            &["liveness_interval", "500ms", "liveness_timeout", "900ms"],
        ),
        (
            |s| (s.cache_ms, s.follow_ms) = (Some(10_000), Some(14_999)),
            &["route_cache_max_age", "10s", "message_follow_duration", "14.999s", "5s"],
        ),
    ];
    let world = World::new();
    let child = world.bare_child("child");
    for (spoil, words) in cases {
        let mut setup = world.setup("n");
        spoil(&mut setup);
        let text = in_vain(&child, &setup, ErrorKind::NotConfigured, words);
        assert!(!text.contains('\n') && !text.ends_with('.'), "not one sentence: {text:?}");
    }
    left_nothing(&world.store(), "n");
    // After all that the same process starts a node.
    child.ask::<String>(Command::Start(world.setup("n")));
}

/// An address that cannot be had: taken, or of another machine, or a path that is something else. The
/// lease that was taken before is given back at once, and what was there stays.
///
/// Proves R2.3-5.
#[test]
fn an_address_that_cannot_be_had_leaves_no_lease() {
    let world = World::new();
    let child = world.bare_child("child");
    let store = world.store();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let file = world.file("precious");
    std::fs::write(&file, "precious").unwrap();
    let socket = world.file("live.sock");
    let live = UnixListener::bind(&socket).unwrap();
    let mut cases = vec![
        (format!("tcp://{address}"), address.clone()),
        (format!("unix://{file}"), file.clone()),
        (format!("unix://{socket}"), socket.clone()),
        (format!("unix://{}/x.sock", world.file("no-such-dir")), "no-such-dir".to_owned()),
        (format!("unix://{}", world.dir()), world.dir()),
    ];
    for (listen, word) in cases.drain(..) {
        let setup = Setup { listen: Some(listen), ..world.setup("n") };
        in_vain(&child, &setup, ErrorKind::NotConfigured, &["listen", &word]);
        left_nothing(&store, "n");
    }
    let mut setup = world.setup("n");
    (setup.listen, setup.secret) =
        (Some("tcp://192.0.2.1:0".into()), Some("long enough secret".into()));
    in_vain(&child, &setup, ErrorKind::NotConfigured, &["listen", "192.0.2.1"]);
    left_nothing(&store, "n");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
    assert!(
        std::os::unix::net::UnixStream::connect(&socket).is_ok(),
        "the live socket still serves"
    );
    drop((taken, live));
    // The address is free, and so is the rid; a socket's file that nobody serves is no hindrance.
    let stale = Setup { listen: Some(format!("unix://{socket}")), ..world.setup("n") };
    let endpoint: String = child.ask(Command::Start(stale));
    assert_eq!(endpoint, format!("unix://{socket}"));
    let second = Setup { listen: Some(format!("tcp://{address}")), ..world.setup("m") };
    assert_eq!(world.child(&second).endpoint, format!("tcp://{address}"));
}

/// A refused start has not even bound the port it names.
///
/// Proves R0-7.
#[test]
fn a_refused_start_leaves_its_port_free() {
    let world = World::new();
    let child = world.bare_child("child");
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut setup = world.setup("n");
    setup.listen = Some(format!("tcp://{address}"));
    (setup.cache_ms, setup.follow_ms) = (Some(30_000), Some(30_000));
    in_vain(&child, &setup, ErrorKind::NotConfigured, &["route_cache_max_age"]);
    // It could be taken by anybody while the start is refused again and again.
    let own = TcpListener::bind(address).unwrap();
    in_vain(&child, &setup, ErrorKind::NotConfigured, &["route_cache_max_age"]);
    drop(own);
    (setup.cache_ms, setup.follow_ms) = (None, None);
    assert_eq!(child.ask::<String>(Command::Start(setup)), format!("tcp://{address}"));
}

/// Two live nodes with one rid, in two processes and in one: the second is refused, the first goes
/// on; when it has ended in order, or its lease has lapsed, the rid is free.
///
/// Proves R0-3, R2.3-4.
#[test]
fn two_live_nodes_cannot_share_a_rid() {
    let world = World::new();
    let (node, store) = world.node(&world.setup("caller"));
    let first = world.child(&world.setup("n"));
    first.create("a");
    node.note("a", 1).unwrap();
    let second = world.bare_child("second");
    for _ in 0..3 {
        in_vain(
            &second,
            &world.setup("n"),
            ErrorKind::NotConfigured,
            &["rid", "\"n\"", "live node"],
        );
        let e = world.setup("n").builder().store(world.store()).start().err().unwrap();
        assert_eq!(e.kind(), ErrorKind::NotConfigured, "{e}");
    }
    assert_eq!(node.note("a", 2), Ok(2), "the first goes on");
    first.ask::<()>(Command::Shutdown { deadline_ms: 5_000 });
    left_nothing(&store, "n");
    second.ask::<String>(Command::Start(world.setup("n")));
    // A rid that is left out is one of its own.
    let generated = |_| Node::builder("contract").store(world.store()).start().unwrap();
    let nodes: Vec<Node> = (0..3).map(generated).collect();
    assert!(nodes[0].rid() != nodes[1].rid() && nodes[1].rid() != nodes[2].rid());
}

/// The Store directory: no directory, not writable, laid out by another version.
///
/// Proves R2.3-4.
#[test]
fn a_store_directory_that_cannot_serve_is_named() {
    let world = World::new();
    let open = |dir: &str| match LmdbStore::open(dir) {
        Ok(_) => panic!("{dir} opens"),
        Err(e) => {
            assert_eq!(e.kind(), ErrorKind::NotConfigured, "{e}");
            assert!(e.text().contains("store directory") && e.text().contains(dir), "{e}");
            e.text().to_owned()
        }
    };
    let file = world.file("file");
    std::fs::write(&file, "no store").unwrap();
    open(&file);
    open(&format!("{file}/below"));
    // Nobody can write there, whoever runs the tests.
    open("/proc/homing");
    open("/sys/homing");
    open("");
    let other = world.file("other");
    std::fs::create_dir(&other).unwrap();
    std::fs::write(format!("{other}/homing-store.layout"), "homing lmdb 999\n").unwrap();
    let text = open(&other);
    assert!(text.contains("homing lmdb 999") && text.contains("homing lmdb 1"), "{text}");
    // What was there is as it was.
    assert_eq!(std::fs::read_dir(&other).unwrap().count(), 1);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "no store");
    // A node without a Store at all.
    let e = Node::builder("m").start().err().unwrap();
    assert_eq!(e.kind(), ErrorKind::NotConfigured);
    assert!(e.text().contains("store is not set"), "{e}");
}

/// A Store that fails, from the first call on or half way through the start: the start ends with an
/// error and leaves neither threads nor sockets.
///
/// Proves R2.2b-1.
#[test]
fn a_store_that_fails_ends_the_start() {
    let world = World::new();
    // In its own process each, all at once: a start is patient.
    let starting: Vec<_> = (0..5)
        .map(|commits| {
            let mut setup = world.setup(&format!("n{commits}"));
            setup.fail_after_commits = Some(commits);
            setup.store_ms = Some(500);
            let rid = setup.rid.clone();
            let child = world.bare_child(&rid);
            let answer = child.begin(Command::StartInVain(setup));
            (commits, child, answer)
        })
        .collect();
    for (commits, _child, answer) in starting {
        match answer.end::<Vain>() {
            Ok(vain) => {
                let text = vain.error.text;
                let kind = ErrorKind::from_wire(vain.error.kind);
                assert_eq!(kind, Some(ErrorKind::Unavailable), "{text}");
                assert!(
                    text.contains("Location Store") && text.contains("store setting"),
                    "{text}"
                );
                assert_eq!(vain.left, [""; 0], "half started after: {text}");
            }
            // It took fewer commits than were let through.
            Err(e) => assert!(commits > 0 && e.text().contains("the node started"), "{e}"),
        }
    }
}

/// A type or handler registered twice, and names that are none: told at start, with the names.
///
/// Proves R0-6.
#[test]
fn a_registration_that_cannot_be_is_named() {
    struct Nameless;
    impl homing::Actor for Nameless {
        const TYPE: &'static str = "";
        async fn create(_: &homing::CreateContext, _: Payload) -> homing::Result<Self> {
            Ok(Self)
        }
    }
    let store = MemoryStore::new();
    let fails = |builder: NodeBuilder, words: &[&str]| {
        let e = builder.rid("n").store(store.clone()).start().err().expect("it is refused");
        assert_eq!(e.kind(), ErrorKind::NotConfigured);
        assert!(words.iter().all(|word| e.text().contains(word)), "{e}");
    };
    let b = || Node::builder("m");
    fails(
        b().actor::<Probe>(|a| a).actor::<Other>(|a| a).actor::<Probe>(|a| a),
        &["\"probe\"", "twice"],
    );
    fails(
        b().actor::<Probe>(|a| a.handles::<Note>().handles::<Note>()),
        &["\"probe\"", "\"probe.note\"", "twice"],
    );
    fails(b().actor::<Probe>(|a| a.handles_packet(RAW).handles_packet(RAW)), &["\"probe\"", RAW]);
    fails(b().actor::<Probe>(|a| a.handles_packet("")), &["\"probe\"", "0 bytes", "1 to 255"]);
    fails(b().actor::<Nameless>(|a| a), &["actor type name", "0 bytes"]);
    let keys = vec![b"lease/n".to_vec(), b"owner/n".to_vec(), b"node/n".to_vec()];
    let read = store.read(&keys, Duration::from_secs(1)).unwrap();
    assert!(read.records.iter().all(Option::is_none));
}

/// What a call cannot carry fails at the call, the same near and far, and the Actor never sees it.
///
/// Proves R2.1-5, R0-1.
#[test]
fn what_fits_no_frame_is_refused_at_the_call() {
    let world = World::new();
    let frame = 64 << 10;
    let owner = world.child(&Setup { max_frame: Some(frame), ..world.setup("owner") });
    let (node, _) = world.node(&Setup { max_frame: Some(frame), ..world.setup("caller") });
    owner.create("there");
    node.make("here", None).unwrap();
    let fits = raw(&vec![1; 60 << 10]);
    let too_large = raw(&vec![1; frame as usize]);
    for id in ["there", "here"] {
        assert_eq!(node.actor(id).request(fits.clone()).wait().as_ref(), Ok(&fits), "{id}");
        for end in [
            node.actor(id).request(too_large.clone()).wait().map(|_| ()),
            node.actor(id).send(too_large.clone()).wait(),
        ] {
            let text = refused(end, ErrorKind::InvalidOperation);
            assert!(text.contains(id) && text.contains("max_frame_bytes"), "{text}");
            assert!(text.contains(&frame.to_string()), "{text}");
        }
        assert_eq!(node.note(id, 1), Ok(1));
    }
    // The smaller of the two nodes' values counts, whichever side has it.
    let (wide, _) = world.node(&world.setup("wide"));
    refused(wide.actor("there").request(too_large.clone()).wait(), ErrorKind::InvalidOperation);
    // A reply that fits no frame is an error for the requester, and the Actor goes on.
    let text = refused(
        wide.actor("there").request(Fill { bytes: frame.into() }).wait(),
        ErrorKind::InternalFailure,
    );
    assert!(text.contains("reply") && text.contains("max_frame_bytes"), "{text}");
    let reply = wide.actor("there").request(Fill { bytes: 60 << 10 }).wait().unwrap();
    assert_eq!(reply.len(), 60 << 10);
    // A creation's request too.
    let large = || Make { runs: "x".repeat(frame as usize), ..Make::default() };
    let creating = wide.actors().create_type("probe", "b", large()).on(&owner.node_rid());
    refused(creating.wait(), ErrorKind::InvalidOperation);
    // Near as far, and nothing is left of it: the id is free.
    let creating = node.actors().create_type("probe", "b", large());
    let text = refused(creating.wait(), ErrorKind::InvalidOperation);
    assert!(text.contains("creation request") && text.contains("max_frame_bytes"), "{text}");
    assert_eq!(block_on(node.actors().find("b")), Ok(None));
    assert_eq!(eventually("the link to stand", || node.note("there", 2).ok()), 2);
}

/// Names, types and metadata that the wire does not have.
///
/// Proves R0-1, R4-2.
#[test]
fn what_the_wire_does_not_have_cannot_be_made() {
    let too_long = "x".repeat(256);
    for (name, kind) in
        [("", "t"), ("n", ""), (too_long.as_str(), "t"), ("n", &too_long), ("a\0", "t")]
    {
        let e = Payload::new(name, kind, b"").unwrap_err();
        assert_eq!(e.kind(), ErrorKind::InvalidOperation, "{e}");
    }
    let long = vec![0; 1_024];
    let bad: [&[(&str, &[u8])]; 4] =
        [&[("", b"v")], &[("k", b"1"), ("k", b"2")], &[("k", &long)], &[(&too_long, b"")]];
    for entries in bad {
        let e = Metadata::new(entries.iter().copied()).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::InvalidOperation, "{e}");
        assert!(e.text().contains("metadata"), "{e}");
    }
    let world = World::new();
    let (node, _) = world.node(&world.setup("n"));
    for type_name in ["", too_long.as_str(), "a\0b"] {
        let text = refused(
            node.actors().create_type(type_name, "a", ()).wait(),
            ErrorKind::InvalidOperation,
        );
        assert!(text.contains("type name"), "{text}");
    }
    // A node that is dropped without a word gives everything back as well.
    let handle = node.actor("a");
    drop(node);
    let e = eventually("the dropped node to end", || {
        handle
            .request(Note { number: 1 })
            .wait()
            .err()
            .filter(|e| e.kind() == ErrorKind::ShuttingDown)
    });
    assert!(!e.text().is_empty());
    let again = eventually("its rid to be free", || {
        world.setup("n").builder().store(world.store()).start().ok()
    });
    block_on(again.shutdown(Duration::from_secs(5)));
}
