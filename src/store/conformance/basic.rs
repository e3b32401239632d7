#![forbid(unsafe_code)]
//! Conditions, atomicity, order, versions, limits.

use super::{
    BUDGET, NamedCase, Outcome, batch, conflict, delete, ensure, key, put, read, refused, said,
    value_of, write,
};
use crate::location::{
    BatchOutcome, Condition, LocationStore, MAX_KEY_BYTES, MAX_VALUE_BYTES, Write,
};
use std::sync::Arc;

type Store = Arc<dyn LocationStore>;

pub(super) const CASES: &[NamedCase] = &[
    ("an empty store has nothing, and empty calls work", empty),
    ("what was put is read back with its version", read_back),
    ("Absent holds for a key without a record only", absent),
    ("VersionIs holds for that version only", version_is),
    ("ValueIs holds for that value only", value_is),
    ("a conflict names the first condition that failed and writes nothing", conflicts),
    ("the batches of a call apply in order, and a conflict stops none", order),
    ("versions grow with every write, across keys, deletes and recreations", versions),
    ("the change stamp moves with every commit and only forward", change_stamp),
    ("keys and values of the largest size work, and bytes are kept as they are", largest),
    ("calls that break a limit are refused and write nothing", limits),
    ("10,000 keys are read in one call, in order, repeated and missing ones included", many_keys),
    ("1,000 batches are committed in one call", many_batches),
];

fn empty(store: &Store) -> Outcome {
    ensure!(read(store, b"k")?.is_none(), "a fresh store has a record; give every case its own");
    let none = store.read(&[], BUDGET).map_err(said)?;
    ensure!(none.records.is_empty(), "a read of no keys gave records");
    let none = store.commit(&[], BUDGET).map_err(said)?;
    ensure!(none.is_empty(), "a commit of no batches gave outcomes");
    let page = store.scan(b"", None, 10, BUDGET).map_err(said)?;
    ensure!(page.records.is_empty() && page.next.is_none(), "a scan of a fresh store gave records");
    write(store, &[Condition::Absent(key("k"))], &[])?;
    conflict(store, &[Condition::ValueIs(key("k"), vec![])], &[], 0)
}

fn read_back(store: &Store) -> Outcome {
    let versions = write(store, &[], &[put(b"a", b"1"), put(b"b", b"")])?;
    for (name, value, version) in [(b"a", &b"1"[..], versions[0]), (b"b", &b""[..], versions[1])] {
        let record = read(store, name)?.ok_or("a record that was put is absent")?;
        ensure!(record.value == value, "read {:?}, put {value:?}", record.value);
        ensure!(record.version == version, "read version {}, got {version}", record.version);
        ensure!(record.expires_in.is_none(), "a record without time to live expires");
    }
    Ok(())
}

fn absent(store: &Store) -> Outcome {
    let is_absent = [Condition::Absent(key("a"))];
    write(store, &is_absent, &[put(b"a", b"1")])?;
    conflict(store, &is_absent, &[put(b"a", b"2")], 0)?;
    write(store, &[], &[delete(b"a")])?;
    write(store, &is_absent, &[put(b"a", b"3")])?;
    ensure!(value_of(store, b"a")? == Some(b"3".to_vec()), "the last put is not what is read");
    Ok(())
}

fn version_is(store: &Store) -> Outcome {
    let first = write(store, &[], &[put(b"a", b"1")])?[0];
    let is_first = [Condition::VersionIs(key("a"), first)];
    let second = write(store, &is_first, &[put(b"a", b"1")])?[0];
    conflict(store, &is_first, &[put(b"a", b"3")], 0)?;
    let removed = write(store, &[Condition::VersionIs(key("a"), second)], &[delete(b"a")])?[0];
    for version in [first, second, removed] {
        let old = [Condition::VersionIs(key("a"), version)];
        conflict(store, &old, &[put(b"a", b"4")], 0)?;
    }
    write(store, &[], &[put(b"a", b"1")])?;
    conflict(store, &is_first, &[], 0)
}

fn value_is(store: &Store) -> Outcome {
    let is_one = [Condition::ValueIs(key("a"), b"1".to_vec())];
    conflict(store, &is_one, &[], 0)?;
    write(store, &[], &[put(b"a", b"1")])?;
    write(store, &is_one, &[put(b"b", b"x")])?;
    for other in [&b""[..], b"11", b"2"] {
        conflict(store, &[Condition::ValueIs(key("a"), other.to_vec())], &[], 0)?;
    }
    write(store, &is_one, &[put(b"a", b"2")])?;
    conflict(store, &is_one, &[], 0)
}

fn conflicts(store: &Store) -> Outcome {
    let version = write(store, &[], &[put(b"a", b"1")])?[0];
    let holds = Condition::VersionIs(key("a"), version);
    let fails = Condition::Absent(key("a"));
    let writes = [put(b"a", b"2"), put(b"b", b"2"), delete(b"a")];
    let writes = &writes[..2];
    conflict(store, &[holds.clone(), fails.clone(), fails.clone()], writes, 1)?;
    conflict(store, &[holds.clone(), holds.clone(), fails.clone()], writes, 2)?;
    conflict(store, &[fails, holds], &[delete(b"a")], 0)?;
    let record = read(store, b"a")?.ok_or("a conflict deleted a record")?;
    ensure!(record.version == version, "a conflict wrote a record");
    ensure!(read(store, b"b")?.is_none(), "a conflict wrote one of its records");
    Ok(())
}

fn order(store: &Store) -> Outcome {
    let outcomes = store
        .commit(
            &[
                batch(&[Condition::Absent(key("a"))], &[put(b"a", b"1")]),
                batch(&[Condition::Absent(key("a"))], &[put(b"b", b"1")]),
                batch(&[Condition::ValueIs(key("a"), b"1".to_vec())], &[put(b"a", b"2")]),
                batch(&[Condition::ValueIs(key("a"), b"2".to_vec())], &[delete(b"a")]),
                batch(&[Condition::Absent(key("a"))], &[put(b"c", b"1")]),
            ],
            BUDGET,
        )
        .map_err(said)?;
    let committed: Vec<bool> =
        outcomes.iter().map(|o| matches!(o, BatchOutcome::Committed(_))).collect();
    ensure!(
        committed == [true, false, true, true, true],
        "each batch must see what the ones before it wrote; got {outcomes:?}"
    );
    let left = [value_of(store, b"a")?, value_of(store, b"b")?, value_of(store, b"c")?];
    ensure!(left == [None, None, Some(b"1".to_vec())], "the call left a, b, c = {left:?}");
    Ok(())
}

fn versions(store: &Store) -> Outcome {
    let mut all = Vec::new();
    for round in 0..3u8 {
        all.extend(write(store, &[], &[put(b"a", &[round]), put(b"b", &[round])])?);
        all.extend(write(store, &[], &[put(b"a", &[round])])?);
        all.extend(write(store, &[], &[delete(b"a"), delete(b"never")])?);
    }
    ensure!(
        all.is_sorted_by(|a, b| a < b),
        "versions must grow with every write, a delete of an absent key included: {all:?}"
    );
    Ok(())
}

fn change_stamp(store: &Store) -> Outcome {
    let stamp = || store.change_stamp(BUDGET).map_err(said);
    let mut last = stamp()?;
    ensure!(stamp()? == last, "the change stamp moved without a commit");
    for writes in [vec![put(b"a", b"1")], vec![put(b"a", b"1")], vec![delete(b"a")]] {
        write(store, &[], &writes)?;
        let now = stamp()?;
        ensure!(now > last, "the change stamp is {now} after a commit and was {last} before it");
        last = now;
    }
    Ok(())
}

fn largest(store: &Store) -> Outcome {
    let long = [&[0u8, 0xff][..], &[b'x'; MAX_KEY_BYTES - 2]].concat();
    let big: Vec<u8> = (0..MAX_VALUE_BYTES).map(|i| (i % 251) as u8).collect();
    write(store, &[Condition::Absent(long.clone())], &[put(&long, &big)])?;
    ensure!(value_of(store, &long)? == Some(big.clone()), "the largest record came back changed");
    write(store, &[Condition::ValueIs(long.clone(), big)], &[delete(&long)])?;
    for odd in [&[0u8][..], &[0, 0], &[0xff], &[0xff, 0xff], b"a\nb"] {
        write(store, &[Condition::Absent(odd.to_vec())], &[put(odd, odd)])?;
        ensure!(value_of(store, odd)?.as_deref() == Some(odd), "key {odd:?} came back changed");
    }
    Ok(())
}

fn limits(store: &Store) -> Outcome {
    let long = vec![b'x'; MAX_KEY_BYTES + 1];
    let big = vec![0; MAX_VALUE_BYTES + 1];
    let good = batch(&[], &[put(b"good", b"1")]);
    let bad = [
        ("a put of an empty key", batch(&[], &[put(b"", b"1")])),
        ("a put of a key that is too long", batch(&[], &[put(&long, b"1")])),
        ("a delete of a key that is too long", batch(&[], &[delete(&long)])),
        ("a condition on an empty key", batch(&[Condition::Absent(vec![])], &[])),
        ("a condition on a key that is too long", batch(&[Condition::Absent(long.clone())], &[])),
        ("a value that is too long", batch(&[], &[put(b"a", &big)])),
        ("a key put twice", batch(&[], &[put(b"a", b"1"), put(b"a", b"2")])),
        ("a key put and deleted", batch(&[], &[put(b"a", b"1"), delete(b"a")])),
    ];
    for (what, bad) in bad {
        refused(what, store.commit(&[good.clone(), bad], BUDGET))?;
    }
    ensure!(read(store, b"good")?.is_none(), "a refused call wrote its good batch");
    refused("a read of an empty key", store.read(&[key("a"), vec![]], BUDGET))?;
    refused("a read of a key that is too long", store.read(&[long], BUDGET))
}

fn many_keys(store: &Store) -> Outcome {
    let name = |i: usize| key(&format!("key-{i:05}"));
    let present: Vec<Write> =
        (0..10_000).filter(|i| i % 3 != 0).map(|i| put(&name(i), &i.to_be_bytes())).collect();
    for part in present.chunks(1000) {
        write(store, &[], part)?;
    }
    // Neither ascending nor descending; the first key is asked for twice.
    let asked: Vec<usize> = (0..10_000).map(|i| (i * 7919) % 10_000).chain([0, 1]).collect();
    let keys: Vec<_> = asked.iter().map(|&i| name(i)).collect();
    let answer = store.read(&keys, BUDGET).map_err(said)?;
    ensure!(answer.records.len() == keys.len(), "{} records came back", answer.records.len());
    for (&i, record) in asked.iter().zip(&answer.records) {
        let wanted = (i % 3 != 0).then(|| i.to_be_bytes().to_vec());
        let got = record.as_ref().map(|r| r.value.clone());
        ensure!(got == wanted, "key {i} came back as {got:?}");
    }
    Ok(())
}

fn many_batches(store: &Store) -> Outcome {
    let batches: Vec<_> = (0..1000u32)
        .map(|i| {
            let name = format!("n-{}", i / 2);
            batch(&[Condition::Absent(key(&name))], &[put(name.as_bytes(), &i.to_be_bytes())])
        })
        .collect();
    let outcomes = store.commit(&batches, BUDGET).map_err(said)?;
    ensure!(outcomes.len() == 1000, "{} outcomes for 1000 batches", outcomes.len());
    for (i, outcome) in outcomes.iter().enumerate() {
        let first = i % 2 == 0;
        let committed = matches!(outcome, BatchOutcome::Committed(_));
        ensure!(committed == first, "batch {i} gave {outcome:?}");
    }
    Ok(())
}
