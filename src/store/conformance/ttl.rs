#![forbid(unsafe_code)]
//! Time to live, by the Store's own clock, without a fixed sleep.

use super::{
    BUDGET, NamedCase, Outcome, PATIENCE_MS, conflict, delete, ensure, key, put, put_ttl, read,
    said, write,
};
use crate::location::{Condition, LocationStore, Record};
use std::sync::Arc;
use std::time::Duration;

type Store = Arc<dyn LocationStore>;

pub(super) const CASES: &[NamedCase] = &[
    ("a record with time to live ends when it is over and not before", ends),
    ("an expired record is absent for conditions, scans and deletes", absent),
    ("a put replaces the time to live of the record before it", replaced),
    ("a record put after one that expired has a greater version", version_grows),
    ("time to live runs for each record by itself", each_by_itself),
    ("the store's clock never goes back", clock),
];

const SHORT: Duration = Duration::from_millis(60);
const LONG: Duration = Duration::from_secs(3600);

fn now_ms(store: &Store) -> Result<u64, String> {
    Ok(store.read(&[], BUDGET).map_err(said)?.store_now_ms)
}

/// Reads the key until it is absent; gives the Store's time of the read that said so.
fn wait_absent(store: &Store, name: &[u8]) -> Result<u64, String> {
    let start_ms = now_ms(store)?;
    loop {
        let answer = store.read(&[name.to_vec()], BUDGET).map_err(said)?;
        if answer.records == [None] {
            return Ok(answer.store_now_ms);
        }
        ensure!(
            answer.store_now_ms.saturating_sub(start_ms) < PATIENCE_MS,
            "a record with a time to live of {SHORT:?} is still there after {PATIENCE_MS} ms"
        );
        #[allow(clippy::disallowed_methods)] // a test of a provider waits for its clock
        std::thread::yield_now();
    }
}

fn ends(store: &Store) -> Outcome {
    let before_ms = now_ms(store)?;
    write(store, &[], &[put_ttl(b"a", b"1", SHORT)])?;
    if let Some(Record { expires_in, .. }) = read(store, b"a")? {
        let left = expires_in.ok_or("a record with time to live does not say what is left")?;
        ensure!(left <= SHORT, "{left:?} are left of {SHORT:?}");
    }
    let absent_ms = wait_absent(store, b"a")?;
    // Both times are rounded down to whole milliseconds.
    let lived_ms = absent_ms + 1 - before_ms;
    ensure!(
        u128::from(lived_ms) >= SHORT.as_millis(),
        "a record with a time to live of {SHORT:?} was absent after {lived_ms} ms"
    );
    ensure!(read(store, b"a")?.is_none(), "an expired record came back");
    Ok(())
}

fn absent(store: &Store) -> Outcome {
    let version = write(store, &[], &[put_ttl(b"p/a", b"1", SHORT), put(b"p/b", b"2")])?[0];
    wait_absent(store, b"p/a")?;
    conflict(store, &[Condition::VersionIs(key("p/a"), version)], &[put(b"x", b"1")], 0)?;
    conflict(store, &[Condition::ValueIs(key("p/a"), b"1".to_vec())], &[put(b"x", b"1")], 0)?;
    let page = store.scan(b"p/", None, 10, BUDGET).map_err(said)?;
    let names: Vec<_> = page.records.iter().map(|(name, _)| name.clone()).collect();
    ensure!(names == [key("p/b")], "a scan with an expired record gave {names:?}");
    ensure!(page.next.is_none(), "a complete scan has a cursor");
    write(store, &[Condition::Absent(key("p/a"))], &[delete(b"p/a")])?;
    write(store, &[Condition::Absent(key("p/a"))], &[put(b"p/a", b"3")])?;
    let record = read(store, b"p/a")?.ok_or("a record put over an expired one is absent")?;
    ensure!(record.value == b"3" && record.expires_in.is_none(), "it came back as {record:?}");
    Ok(())
}

fn replaced(store: &Store) -> Outcome {
    write(store, &[], &[put_ttl(b"a", b"1", SHORT), put_ttl(b"b", b"1", SHORT)])?;
    write(store, &[], &[put(b"a", b"2"), put_ttl(b"b", b"2", LONG), put_ttl(b"end", b"", SHORT)])?;
    // Once this later one is absent, the first times of a and b are over too.
    wait_absent(store, b"end")?;
    write(store, &[], &[put(b"other", b"")])?;
    let a = read(store, b"a")?.ok_or("a put without time to live did not end the one before")?;
    ensure!(a.expires_in.is_none(), "a put without time to live kept the one before");
    let b = read(store, b"b")?.ok_or("a put with a longer time to live did not extend it")?;
    let left = b.expires_in.ok_or("a renewed record does not say what is left")?;
    ensure!(left > LONG / 2 && left <= LONG, "{left:?} are left of {LONG:?}");
    write(store, &[], &[put_ttl(b"a", b"3", SHORT)])?;
    wait_absent(store, b"a")?;
    Ok(())
}

fn version_grows(store: &Store) -> Outcome {
    let first = write(store, &[], &[put_ttl(b"a", b"1", SHORT)])?[0];
    wait_absent(store, b"a")?;
    let second = write(store, &[Condition::Absent(key("a"))], &[put(b"a", b"1")])?[0];
    ensure!(second > first, "version {second} follows {first}");
    conflict(store, &[Condition::VersionIs(key("a"), first)], &[], 0)
}

fn each_by_itself(store: &Store) -> Outcome {
    let names: Vec<Vec<u8>> = (0..100u8).map(|i| vec![b'k', i]).collect();
    for name in &names {
        let ttl = if name[1] % 2 == 0 { SHORT } else { LONG };
        write(store, &[], &[put_ttl(name, b"", ttl)])?;
    }
    wait_absent(store, &names[98])?;
    write(store, &[], &[put(b"other", b"")])?;
    let answer = store.read(&names, BUDGET).map_err(said)?;
    for (name, record) in names.iter().zip(&answer.records) {
        let long = name[1] % 2 == 1;
        ensure!(record.is_some() == long, "key {name:?} came back as {record:?}");
    }
    Ok(())
}

fn clock(store: &Store) -> Outcome {
    let mut last_ms = now_ms(store)?;
    for _ in 0..1000 {
        let read_ms = now_ms(store)?;
        let scan_ms = store.scan(b"", None, 1, BUDGET).map_err(said)?.store_now_ms;
        ensure!(
            last_ms <= read_ms && read_ms <= scan_ms,
            "the clock went from {last_ms} over {read_ms} to {scan_ms}"
        );
        last_ms = scan_ms;
    }
    Ok(())
}
