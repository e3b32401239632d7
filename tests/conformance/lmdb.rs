#![forbid(unsafe_code)]
//! What concerns the embedded store alone: several processes, processes that die or stop in a
//! write, directories that cannot be used.
//!
//! A test that needs other processes starts this test binary again, with the test
//! [`other_process`] alone and its part in the environment.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use homing::ErrorKind;
use homing::location::{Batch, BatchOutcome, Condition, LocationStore, Record, StoreError, Write};
use homing::store::lmdb::LmdbStore;

const BUDGET: Duration = Duration::from_secs(20);
const PART: &str = "HOMING_STORE_TEST_PART";
const DIR: &str = "HOMING_STORE_TEST_DIR";

/// A process that plays a part; killed when the test is over.
struct Other(Child);

impl Other {
    fn start(part: &str, dir: &Path) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["lmdb::other_process", "--exact", "--nocapture", "--test-threads=1"])
            .env(PART, part)
            .env(DIR, dir)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Self(child)
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    fn finish(&mut self) {
        assert!(self.0.wait().unwrap().success(), "the other process failed");
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn put(key: &[u8], value: &[u8]) -> Write {
    Write::Put { key: key.to_vec(), value: value.to_vec(), ttl: None }
}

#[track_caller]
fn commit(store: &LmdbStore, conditions: &[Condition], writes: &[Write]) -> BatchOutcome {
    let batch = Batch { conditions: conditions.to_vec(), writes: writes.to_vec() };
    store.commit(&[batch], BUDGET).unwrap().remove(0)
}

fn read(store: &LmdbStore, key: &[u8]) -> Option<Record> {
    store.read(&[key.to_vec()], BUDGET).unwrap().records.remove(0)
}

fn number(store: &LmdbStore, key: &[u8]) -> u64 {
    read(store, key).map_or(0, |r| u64::from_be_bytes(r.value.try_into().unwrap()))
}

/// Adds one to a counter, `times` times, against all others who do the same.
fn count(store: &LmdbStore, key: &[u8], times: u64) {
    for _ in 0..times {
        loop {
            let (condition, value) = match read(store, key) {
                None => (Condition::Absent(key.to_vec()), 0),
                Some(r) => (
                    Condition::VersionIs(key.to_vec(), r.version),
                    u64::from_be_bytes(r.value.try_into().unwrap()),
                ),
            };
            let write = put(key, &(value + 1).to_be_bytes());
            if matches!(commit(store, &[condition], &[write]), BatchOutcome::Committed(_)) {
                break;
            }
        }
    }
}

/// Waits until the other process has written `key`.
fn wait_for(store: &LmdbStore, key: &[u8]) {
    while read(store, key).is_none() {
        std::thread::yield_now();
    }
}

const STEPS: u64 = 300;

/// Not a test by itself: the part another test gives this process.
#[test]
fn other_process() {
    let (Ok(part), Ok(dir)) = (std::env::var(PART), std::env::var(DIR)) else { return };
    let store = LmdbStore::open(dir).unwrap();
    match part.as_str() {
        "count" => count(&store, b"counter", STEPS),
        "write for ever" => {
            // Large values and several keys, so that a kill lands inside a commit often.
            let value = vec![7; 60_000];
            for step in 0u64.. {
                let step = step.to_be_bytes();
                let writes = [put(b"left", &step), put(b"big", &value), put(b"right", &step)];
                commit(&store, &[], &writes);
            }
        }
        other => panic!("no part {other:?}"),
    }
}

/// Several processes count in one record: no step is lost, none is doubled.
#[test]
fn processes_share_one_store() {
    let dir = tempfile::tempdir().unwrap();
    let mut others: Vec<_> = (0..3).map(|_| Other::start("count", dir.path())).collect();
    let store = LmdbStore::open(dir.path()).unwrap();
    count(&store, b"counter", STEPS);
    others.iter_mut().for_each(Other::finish);
    assert_eq!(number(&store, b"counter"), 4 * STEPS);
}

/// A process killed inside a write leaves whole records and lets the others go on.
#[test]
fn a_process_killed_while_it_writes_leaves_the_others_working() {
    let dir = tempfile::tempdir().unwrap();
    let store = LmdbStore::open(dir.path()).unwrap();
    for round in 0u64..12 {
        commit(&store, &[], &["left", "big", "right"].map(|k| Write::Delete { key: k.into() }));
        let mut other = Other::start("write for ever", dir.path());
        wait_for(&store, b"right");
        // Another instant of its loop in every round.
        for _ in 0..round * 7 {
            count(&store, b"mine", 1);
        }
        other.kill();
        let before = number(&store, b"mine");
        count(&store, b"mine", 20);
        assert_eq!(number(&store, b"mine"), before + 20);
        assert_eq!(
            number(&store, b"left"),
            number(&store, b"right"),
            "round {round}: half of a batch is there"
        );
    }
}

/// A process stopped inside a write costs others their call's time; they say why, reads go on,
/// and so do they when the process goes on.
#[test]
fn a_process_stopped_while_it_writes_fails_the_commits_of_others_in_time() {
    use rustix::process::Signal;
    let dir = tempfile::tempdir().unwrap();
    let store = LmdbStore::open(dir.path()).unwrap();
    let other = Other::start("write for ever", dir.path());
    wait_for(&store, b"right");
    let batch = [Batch { conditions: vec![], writes: vec![put(b"mine", &1u64.to_be_bytes())] }];
    // Stops it again and again until one stop falls inside a write.
    let failed = loop {
        other.signal(Signal::STOP);
        let tried = store.commit(&batch, Duration::from_millis(50));
        let readable = read(&store, b"left").is_some();
        other.signal(Signal::CONT);
        assert!(readable, "reads do not wait for a writer");
        if let Err(e) = tried {
            break e;
        }
    };
    let StoreError::Failed(text) = &failed else { panic!("not certain: {failed:?}") };
    assert!(text.contains("another process held the write lock"), "{text}");
    count(&store, b"after", 3);
    assert_eq!(number(&store, b"after"), 3);
}

#[test]
fn a_second_open_in_one_process_shares_the_first() {
    let dir = tempfile::tempdir().unwrap();
    let one = LmdbStore::open(dir.path()).unwrap();
    let same = LmdbStore::open(dir.path().join(".")).unwrap();
    commit(&one, &[], &[put(b"a", b"1")]);
    assert_eq!(read(&same, b"a").unwrap().value, b"1");
    drop(one);
    assert_eq!(read(&same, b"a").unwrap().value, b"1");
    drop(same);
    let again = LmdbStore::open(dir.path()).unwrap();
    assert_eq!(read(&again, b"a").unwrap().value, b"1", "a boot keeps its records");
}

#[test]
fn opens_and_drops_in_many_threads_never_meet_half_open() {
    let dir = tempfile::tempdir().unwrap();
    std::thread::scope(|scope| {
        for i in 0..4u8 {
            let dir = dir.path();
            scope.spawn(move || {
                for _ in 0..50 {
                    let store = LmdbStore::open(dir).unwrap();
                    count(&store, &[b'k', i], 1);
                }
            });
        }
    });
    let store = LmdbStore::open(dir.path()).unwrap();
    assert!((0..4u8).all(|i| number(&store, &[b'k', i]) == 50));
}

#[test]
fn a_directory_of_another_layout_is_refused_by_one_sentence() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("homing-store.layout"), "homing lmdb 999\n").unwrap();
    let e = LmdbStore::open(dir.path()).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NotConfigured);
    for part in [&*dir.path().to_string_lossy(), "homing lmdb 999", "homing lmdb 1"] {
        assert!(e.text().contains(part), "{e} does not say {part}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "something was created");
}

#[test]
fn a_directory_that_cannot_be_written_is_refused_by_one_sentence() {
    let file = tempfile::NamedTempFile::new().unwrap();
    for dir in [file.path().join("store"), file.path().to_owned(), "/proc/self/store".into()] {
        let e = LmdbStore::open(&dir).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::NotConfigured);
        for part in ["store directory", &*dir.to_string_lossy(), "must be a directory"] {
            assert!(e.text().contains(part), "{e} does not say {part}");
        }
    }
}

#[test]
fn a_full_map_refuses_the_call_whole_and_goes_on_when_records_are_deleted() {
    let dir = tempfile::tempdir().unwrap();
    let store = LmdbStore::open_with_map_bytes(dir.path(), 1 << 20).unwrap();
    let value = vec![1; 60_000];
    let mut written: Vec<Vec<u8>> = Vec::new();
    let text = loop {
        let key = format!("k{:03}", written.len()).into_bytes();
        let batch = Batch { conditions: vec![], writes: vec![put(&key, &value)] };
        match store.commit(&[batch], BUDGET) {
            Ok(_) => written.push(key),
            Err(StoreError::Failed(text)) => break text,
            Err(e) => panic!("not certain: {e:?}"),
        }
        assert!(written.len() < 100, "a map of 1 MiB holds 6 MB");
    };
    assert!(text.contains("full") && text.contains("1048576"), "{text}");
    let missing = format!("k{:03}", written.len());
    assert!(read(&store, missing.as_bytes()).is_none());
    let delete = |key: &Vec<u8>| Write::Delete { key: key.clone() };
    commit(&store, &[], &written.iter().take(5).map(delete).collect::<Vec<_>>());
    commit(&store, &[], &[put(b"again", &value)]);
    assert!(read(&store, b"again").is_some());
}

/// Expired records do not pile up: later commits take them out of the file.
#[test]
fn expired_records_are_swept_by_later_commits() {
    let dir = tempfile::tempdir().unwrap();
    let store = LmdbStore::open_with_map_bytes(dir.path(), 1 << 20).unwrap();
    let value = vec![1; 60_000];
    // Ten times what the map holds, in records that live for a moment.
    for i in 0..200u32 {
        let key = format!("k{i}").into_bytes();
        let ttl = Some(Duration::from_millis(1));
        let write = Write::Put { key: key.clone(), value: value.clone(), ttl };
        commit(&store, &[], &[write]);
        while read(&store, &key).is_some() {
            std::thread::yield_now();
        }
    }
}

/// Prints what a commit costs; what is checked is that every one moved the change stamp.
#[test]
fn every_commit_moves_the_change_stamp() {
    let dir = tempfile::tempdir().unwrap();
    let store: Arc<dyn LocationStore> = Arc::new(LmdbStore::open(dir.path()).unwrap());
    let clock = || rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let rounds = 2000;
    let start = clock();
    for i in 0..rounds {
        let batch = Batch {
            conditions: vec![],
            writes: vec![put(format!("k{}", i % 100).as_bytes(), b"v")],
        };
        store.commit(&[batch], BUDGET).unwrap();
    }
    let end = clock();
    let ns = (end.tv_sec - start.tv_sec) * 1_000_000_000 + (end.tv_nsec - start.tv_nsec);
    println!("one commit: {} ns", ns / i64::from(rounds));
    assert_eq!(store.change_stamp(BUDGET).unwrap(), rounds as u64);
}
