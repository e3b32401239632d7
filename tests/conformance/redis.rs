#![forbid(unsafe_code)]
//! What concerns the store in Redis alone: its servers forget, stop, fail over and refuse.

mod server;

use std::cell::Cell;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use homing::ErrorKind;
use homing::location::{Batch, BatchOutcome, Condition, Key, LocationStore, StoreError, Write};
use homing::store::conformance;
use homing::store::redis::RedisStore;

use crate::eventually::eventually;
use server::{Door, Server, Way, free_port};

const BUDGET: Duration = Duration::from_secs(20);

fn key(text: &str) -> Key {
    text.as_bytes().to_vec()
}

fn put(name: &str, value: &str) -> Batch {
    let write = Write::Put { key: key(name), value: value.as_bytes().to_vec(), ttl: None };
    Batch { conditions: vec![], writes: vec![write] }
}

fn commit(store: &RedisStore, batch: Batch) -> Result<BatchOutcome, StoreError> {
    store.commit(&[batch], BUDGET).map(|mut outcomes| outcomes.remove(0))
}

#[track_caller]
fn committed(store: &RedisStore, batch: Batch) -> u64 {
    match commit(store, batch) {
        Ok(BatchOutcome::Committed(versions)) => versions[0].get(),
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn value(store: &RedisStore, name: &str) -> Option<String> {
    let answer = store.read(&[key(name)], BUDGET).unwrap();
    answer.records[0].as_ref().map(|r| String::from_utf8(r.value.clone()).unwrap())
}

#[test]
fn redis_conforms() {
    let server = Server::start(&[]);
    let made = Cell::new(0);
    conformance::run(&|| {
        made.set(made.get() + 1);
        let prefix = format!("{{case-{}}}:", made.get());
        Arc::new(server.options().prefix(prefix).open().unwrap()) as Arc<dyn LocationStore>
    });
}

#[test]
fn scripts_that_the_server_forgot_are_sent_again() {
    let server = Server::start(&[]);
    let store = server.store();
    let first = committed(&store, put("a", "1"));
    for number in 0..3 {
        server.ask(&["SCRIPT", "FLUSH"]);
        assert_eq!(committed(&store, put("a", "2")), first + 1 + number);
        server.ask(&["SCRIPT", "FLUSH"]);
        assert_eq!(value(&store, "a").as_deref(), Some("2"));
        server.ask(&["SCRIPT", "FLUSH"]);
        assert_eq!(store.scan(b"", None, 10, BUDGET).unwrap().records.len(), 1);
    }
}

/// The answer that came too late belongs to nobody: the next call gets its own.
#[test]
fn a_late_answer_reaches_nobody() {
    let server = Server::start(&[]);
    let store = server.store();
    for name in ["a", "b", "c"] {
        committed(&store, put(name, name));
    }
    let short = Duration::from_millis(50);
    server.ask(&["CLIENT", "PAUSE", "1000", "ALL"]);
    let late = store.read(&[key("a")], short).unwrap_err();
    assert!(matches!(&late, StoreError::Failed(text) if text.contains("in time")), "{late}");
    let late = store.commit(&[put("d", "d")], short).unwrap_err();
    assert!(matches!(&late, StoreError::Unknown(text) if text.contains("in time")), "{late}");
    // Whoever was paused is answered now, and on which connection makes no difference.
    for _ in 0..3 {
        for name in ["b", "c", "a"] {
            assert_eq!(value(&store, name).as_deref(), Some(name));
        }
    }
    // What was unknown is what a read says; the server may have dropped it with its connection.
    let told = value(&store, "d");
    assert!(told.is_none() || told.as_deref() == Some("d"), "{told:?}");
}

/// A commit whose answer was lost is unknown, ran at most once, and is not sent again.
#[test]
fn a_lost_connection_makes_a_commit_unknown_and_repeats_nothing() {
    let server = Server::start(&[]);
    let door = Door::to(&server);
    let store = RedisStore::open(door.url()).unwrap();
    let before = committed(&store, put("a", "0"));
    // From here on the server knows each script by its name.
    store.change_stamp(BUDGET).unwrap();
    for (way, runs) in [(Way::SwallowAnswer, 1), (Way::SwallowQuestion, 0)] {
        let (called, stamp) = (server.scripts_called(), store.change_stamp(BUDGET).unwrap());
        let called = called + 1;
        door.set(way);
        let batches = [put("a", "1"), put("b", "1")];
        let lost = store.commit(&batches, BUDGET).unwrap_err();
        assert!(matches!(lost, StoreError::Unknown(_)), "{lost}");
        eventually("the server to have run it", || {
            (server.scripts_called() == called + runs).then_some(())
        });
        assert_eq!(store.change_stamp(BUDGET).unwrap(), stamp + 2 * runs);
    }
    // Reading again decides, under the version that is known.
    let row = store.read(&[key("a")], BUDGET).unwrap().records.remove(0).unwrap();
    assert_eq!(row.value, b"1");
    let again =
        Batch { conditions: vec![Condition::VersionIs(key("a"), row.version)], ..put("a", "2") };
    assert!(committed(&store, again) > before);
    // A read that lost its answer is asked again.
    door.set(Way::SwallowAnswer);
    assert_eq!(value(&store, "a").as_deref(), Some("2"));
}

#[test]
fn a_server_that_is_not_there_writes_nothing_for_certain() {
    let server = Server::start(&[]);
    let store = server.store();
    let url = server.url();
    drop(server);
    let gone = commit(&store, put("a", "1")).unwrap_err();
    assert!(matches!(gone, StoreError::Unknown(_) | StoreError::Failed(_)), "{gone}");
    // Nothing is left of the old connection.
    let gone = commit(&store, put("a", "1")).unwrap_err();
    assert!(matches!(&gone, StoreError::Failed(text) if text.contains("reached")), "{gone}");
    let gone = store.read(&[key("a")], BUDGET).unwrap_err();
    assert!(matches!(gone, StoreError::Failed(_)), "{gone}");
    let refused = RedisStore::open(url).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
}

#[test]
fn a_master_that_became_a_replica_is_read_and_written_no_more() {
    let (old, new) = (Server::start_tcp(&[]), Server::start_tcp(&[]));
    let store = old.store();
    committed(&store, put("a", "1"));
    old.ask(&["REPLICAOF", "127.0.0.1", &new.port.to_string()]);
    for end in [
        commit(&store, put("a", "2")).map(|_| ()),
        store.read(&[key("a")], BUDGET).map(|_| ()),
        store.scan(b"", None, 1, BUDGET).map(|_| ()),
    ] {
        let refused = end.unwrap_err();
        assert!(matches!(&refused, StoreError::Failed(t) if t.contains("READONLY")), "{refused}");
    }
    let refused = RedisStore::open(old.url()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NotConfigured);
    assert!(refused.text().contains("role is slave"), "{refused}");
}

#[test]
fn sentinels_lead_to_the_master_of_the_moment() {
    let first = Server::start_tcp(&[]);
    let second = Server::start_tcp(&["--replicaof", "127.0.0.1", &first.port.to_string()]);
    eventually("the replica to follow", || {
        second.ask(&["INFO", "replication"]).contains("master_link_status:up").then_some(())
    });
    let sentinel = Server::sentinel(&first);
    eventually("the sentinel to know the replica", || {
        let known = sentinel.ask_tcp(&["SENTINEL", "REPLICAS", "main"])?;
        known.contains(&second.port.to_string()).then_some(())
    });
    let nobody = format!("redis://127.0.0.1:{}", free_port());
    let store = RedisStore::sentinels([nobody, sentinel.tcp_url()], "main").open().unwrap();
    let before = committed(&store, put("a", "1"));
    eventually("the replica to have it", || {
        second.ask(&["GET", "{homing}:r:a"]).contains(":1").then_some(())
    });
    eventually("the sentinel to find the replica good enough", || {
        sentinel.ask_tcp(&["SENTINEL", "FAILOVER", "main"])
    });
    eventually("the replica to be promoted", || {
        second.ask(&["ROLE"]).contains("master").then_some(())
    });
    eventually("the old master to follow", || {
        first.ask(&["INFO", "replication"]).contains("role:slave").then_some(())
    });
    // The connection that is there leads to the old one, which refuses; the sentinel knows better.
    let after = eventually("the store to find the new master", || {
        match commit(&store, put("a", "2")) {
            Ok(BatchOutcome::Committed(versions)) => Some(versions[0].get()),
            Ok(other) => panic!("{other:?}"),
            Err(StoreError::Failed(_)) => None,
            // The sentinel disconnects the clients of a master it demotes.
            Err(StoreError::Unknown(_)) => None,
        }
    });
    assert!(after > before);
    assert_eq!(value(&store, "a").as_deref(), Some("2"));
    assert!(second.ask(&["GET", "{homing}:r:a"]).ends_with(":2"));
    let stranger = RedisStore::sentinels([sentinel.tcp_url()], "other").open().unwrap_err();
    assert_eq!(stranger.kind(), ErrorKind::Unavailable);
    assert!(stranger.text().contains("does not know a master \"other\""), "{stranger}");
}

#[test]
fn passwords_and_users_are_checked_and_never_shown() {
    let server = Server::start(&["--requirepass", "general-secret"]);
    let with = |user: &str, pass: &str| format!("{}?user={user}&pass={pass}", server.url());
    let root = RedisStore::open(with("default", "general-secret")).unwrap();
    committed(&root, put("a", "1"));
    let mut admin =
        redis::Client::open(with("default", "general-secret")).unwrap().get_connection().unwrap();
    let rules = ["SETUSER", "homing", "on", ">narrow-secret", "~{homing}:*", "+@all", "-@admin"];
    redis::cmd("ACL").arg(&rules[..]).exec(&mut admin).unwrap();
    let store = RedisStore::open(with("homing", "narrow-secret")).unwrap();
    assert_eq!(value(&store, "a").as_deref(), Some("1"));
    committed(&store, put("b", "2"));
    assert_eq!(store.scan(b"", None, 10, BUDGET).unwrap().records.len(), 2);
    for (user, pass) in [("homing", "guessed-secret"), ("nobody", "narrow-secret")] {
        let refused = RedisStore::open(with(user, pass)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NotConfigured, "{refused}");
        assert!(!refused.text().contains("secret"), "{refused}");
    }
    let refused = RedisStore::open(server.url()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NotConfigured, "{refused}");
    let shown = format!("{store:?} {:?}", RedisStore::options(with("homing", "narrow-secret")));
    assert!(!shown.contains("secret"), "{shown}");
    // Outside its keys the user may do nothing, and the store says so.
    let refused =
        RedisStore::options(with("homing", "narrow-secret")).prefix("other:").open().unwrap_err();
    assert!(refused.text().contains("NOPERM"), "{refused}");
}

#[test]
fn a_store_over_tls_trusts_the_roots_it_is_given() {
    let dir = tempfile::tempdir().unwrap();
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"])
        .args(["-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"])
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .args(["-keyout", "key.pem", "-out", "cert.pem"])
        .current_dir(dir.path())
        .output()
        .expect("openssl makes the certificate; install it, or run ./tools/test as root");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let path = |name: &str| dir.path().join(name).display().to_string();
    let port = free_port();
    let _server = Server::start(&[
        "--tls-port",
        &port.to_string(),
        "--tls-cert-file",
        &path("cert.pem"),
        "--tls-key-file",
        &path("key.pem"),
        "--tls-ca-cert-file",
        &path("cert.pem"),
        "--tls-auth-clients",
        "no",
    ]);
    let url = format!("rediss://localhost:{port}");
    let pem = std::fs::read(dir.path().join("cert.pem")).unwrap();
    let store = RedisStore::options(url.clone()).tls_roots(pem).open().unwrap();
    committed(&store, put("a", "1"));
    assert_eq!(value(&store, "a").as_deref(), Some("1"));
    let refused = RedisStore::open(url).unwrap_err();
    assert!(refused.text().contains("certificate"), "{refused}");
}

#[test]
fn a_server_that_cannot_serve_is_refused_by_one_sentence() {
    let server = Server::start(&[]);
    let refused = |store: Result<RedisStore, homing::Error>| {
        let e = store.map(|_| ()).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::NotConfigured, "{e}");
        e.text().to_owned()
    };
    server.ask(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    let text = refused(RedisStore::open(server.url()));
    assert!(text.contains("allkeys-lru") && text.contains("noeviction"), "{text}");
    server.ask(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    server.ask(&["SET", "{homing}:layout", "homing 99"]);
    let text = refused(RedisStore::open(server.url()));
    assert!(text.contains("homing 99") && text.contains("another prefix"), "{text}");
    for prefix in ["", "a\nb", &"x".repeat(65)] {
        assert!(refused(server.options().prefix(prefix).open()).contains("prefix"));
    }
    for url in ["", "http://host", "redis://host:port", "host:6379"] {
        assert!(refused(RedisStore::open(url)).contains("redis://"), "{url}");
    }
    let none: [&str; 0] = [];
    assert!(refused(RedisStore::sentinels(none, "main").open()).contains("names none"));
}

#[test]
fn stores_of_different_prefixes_know_nothing_of_each_other() {
    let server = Server::start(&[]);
    let a = server.options().prefix("{a}:").open().unwrap();
    let b = server.options().prefix("{b}:").open().unwrap();
    committed(&a, put("x", "1"));
    assert_eq!(value(&b, "x"), None);
    assert!(b.scan(b"", None, 10, BUDGET).unwrap().records.is_empty());
    assert_eq!(b.change_stamp(BUDGET), Ok(0));
    for key in server.ask(&["KEYS", "*"]).split('"').filter(|word| word.len() > 1) {
        assert!(!key.contains(':') || key.contains("{a}:") || key.contains("{b}:"), "{key}");
    }
}

/// What lives for a time leaves the index too, so it does not grow with what came and went.
#[test]
fn expired_records_leave_the_index() {
    let server = Server::start(&[]);
    let store = server.store();
    for number in 0..200 {
        let write = Write::Put {
            key: key(&format!("lease/{number}")),
            value: vec![],
            ttl: Some(Duration::from_millis(1)),
        };
        store.commit(&[Batch { conditions: vec![], writes: vec![write] }], BUDGET).unwrap();
    }
    eventually("the index to hold only what lives", || {
        committed(&store, put("stays", "1"));
        (server.ask(&["ZCARD", "{homing}:index"]) == "int(1)"
            && server.ask(&["ZCARD", "{homing}:ends"]) == "int(0)")
            .then_some(())
    });
}
