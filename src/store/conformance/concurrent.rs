#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods)] // threads are what these cases are about
//! Several threads at one store.

use super::{
    BUDGET, NamedCase, Outcome, batch, commit, ensure, key, put, read, said, value_of, write,
};
use crate::location::{BatchOutcome, Condition, LocationStore};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};

type Store = Arc<dyn LocationStore>;

pub(super) const CASES: &[NamedCase] = &[
    ("of many creators of a key exactly one commits", one_creator),
    ("counters under VersionIs lose no step and double none", counters),
    ("a read never sees half of a batch", no_half_batch),
    ("a read that begins after a commit was answered sees it", read_after_commit),
    ("versions are unique and grow for each thread", unique_versions),
];

const THREADS: u64 = 6;

/// Runs `body` on several threads that start together; gives the results, or the first failure.
fn together<T: Send>(body: impl Fn(u64) -> Result<T, String> + Sync) -> Result<Vec<T>, String> {
    let start = Barrier::new(THREADS as usize);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|i| {
                let (start, body) = (&start, &body);
                scope.spawn(move || {
                    start.wait();
                    body(i)
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().map_err(|_| "a thread panicked".to_owned())?).collect()
    })
}

fn one_creator(store: &Store) -> Outcome {
    for round in 0..30 {
        let name = format!("id-{round}");
        let wins = together(|i| {
            let try_create =
                batch(&[Condition::Absent(key(&name))], &[put(name.as_bytes(), &[i as u8])]);
            Ok(match commit(store, try_create)? {
                BatchOutcome::Committed(_) => Some(i as u8),
                BatchOutcome::Conflict { .. } => None,
            })
        })?;
        let winners: Vec<u8> = wins.into_iter().flatten().collect();
        ensure!(winners.len() == 1, "{} of {THREADS} creators committed", winners.len());
        ensure!(
            value_of(store, name.as_bytes())? == Some(vec![winners[0]]),
            "the record is not the winner's"
        );
    }
    Ok(())
}

fn counters(store: &Store) -> Outcome {
    const STEPS: u64 = 100;
    let names = [key("n-0"), key("n-1")];
    for name in &names {
        write(store, &[], &[put(name, &0u64.to_be_bytes())])?;
    }
    together(|i| {
        let name = &names[(i % 2) as usize];
        for _ in 0..STEPS {
            loop {
                let record = read(store, name)?.ok_or("a counter is absent")?;
                let bytes = record.value.try_into().map_err(|_| "a counter has no 8 bytes")?;
                let next = (u64::from_be_bytes(bytes) + 1).to_be_bytes();
                let step = batch(
                    &[Condition::VersionIs(name.clone(), record.version)],
                    &[put(name, &next)],
                );
                if matches!(commit(store, step)?, BatchOutcome::Committed(_)) {
                    break;
                }
            }
        }
        Ok(())
    })?;
    for name in &names {
        let wanted = (STEPS * THREADS / 2).to_be_bytes().to_vec();
        let got = value_of(store, name)?;
        ensure!(
            got == Some(wanted),
            "a counter of {} steps stands at {got:?}",
            STEPS * THREADS / 2
        );
    }
    Ok(())
}

fn no_half_batch(store: &Store) -> Outcome {
    let names = [key("left"), key("middle"), key("right")];
    let write_all = |value: u64| -> Outcome {
        let puts: Vec<_> = names.iter().map(|name| put(name, &value.to_be_bytes())).collect();
        write(store, &[], &puts).map(drop)
    };
    write_all(0)?;
    together(|i| {
        for step in 0..200 {
            if i % 2 == 0 {
                write_all(i * 1000 + step)?;
                continue;
            }
            let answer = store.read(&names, BUDGET).map_err(said)?;
            let values: Vec<_> =
                answer.records.iter().map(|r| r.as_ref().map(|r| &r.value)).collect();
            ensure!(
                values[0].is_some() && values.iter().all(|v| *v == values[0]),
                "one read saw {values:?} of records that are always written together"
            );
        }
        Ok(())
    })
    .map(drop)
}

fn read_after_commit(store: &Store) -> Outcome {
    let announced = AtomicU64::new(0);
    write(store, &[], &[put(b"a", &0u64.to_be_bytes())])?;
    together(|i| {
        for step in 1..=200u64 {
            if i == 0 {
                write(store, &[], &[put(b"a", &step.to_be_bytes())])?;
                // SYNC: pairs with the Acquire load below: what is announced was answered.
                announced.store(step, Ordering::Release);
                continue;
            }
            // SYNC: pairs with the Release store above.
            let known = announced.load(Ordering::Acquire);
            let bytes = value_of(store, b"a")?.ok_or("a record is absent")?;
            let got = u64::from_be_bytes(bytes.try_into().map_err(|_| "a value has no 8 bytes")?);
            ensure!(got >= known, "step {known} was answered as committed, a later read saw {got}");
        }
        Ok(())
    })
    .map(drop)
}

fn unique_versions(store: &Store) -> Outcome {
    let by_thread = together(|i| {
        let name = [b'k', i as u8];
        (0..100)
            .map(|_| Ok(write(store, &[], &[put(&name, b"")])?[0]))
            .collect::<Result<Vec<_>, String>>()
    })?;
    for versions in &by_thread {
        ensure!(versions.is_sorted_by(|a, b| a < b), "a thread's versions do not grow");
    }
    let mut all = by_thread.concat();
    all.sort();
    let count = all.len();
    all.dedup();
    ensure!(all.len() == count, "{} versions were given twice", count - all.len());
    Ok(())
}
