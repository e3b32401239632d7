#![forbid(unsafe_code)]
//! Scans: order, pages, prefixes, what a scan sees of changes.

use super::{BUDGET, NamedCase, Outcome, delete, ensure, key, put, read, refused, said, write};
use crate::location::{Cursor, Key, LocationStore, MAX_KEY_BYTES};
use std::collections::BTreeMap;
use std::sync::Arc;

type Store = Arc<dyn LocationStore>;

pub(super) const CASES: &[NamedCase] = &[
    ("a scan lists every record once, in key order, whatever the page size", pages),
    ("a scan gives the same records as reads do", same_as_read),
    ("a prefix is compared byte by byte, at both ends", prefixes),
    ("a scan goes on when the record its cursor stands at is gone", cursor_gone),
    ("records that stand are listed once while others come and go", while_changing),
    ("a scan with a limit of 0 or a cursor of another kind is refused", bad_arguments),
];

/// The keys of a whole scan, with pages of `limit`.
fn keys(store: &Store, prefix: &[u8], limit: usize) -> Result<Vec<Key>, String> {
    let mut all = Vec::new();
    let mut cursor = None;
    loop {
        let page = store.scan(prefix, cursor.as_ref(), limit, BUDGET).map_err(said)?;
        ensure!(page.records.len() <= limit, "{} records for {limit}", page.records.len());
        ensure!(
            !page.records.is_empty() || page.next.is_none(),
            "an empty page has a cursor, so a scan need not end"
        );
        all.extend(page.records.into_iter().map(|(name, _)| name));
        match page.next {
            Some(next) => cursor = Some(next),
            None => return Ok(all),
        }
    }
}

fn pages(store: &Store) -> Outcome {
    let names: Vec<Key> = (0..57).map(|i| key(&format!("s/{:02}", (i * 31) % 57))).collect();
    for name in &names {
        write(store, &[], &[put(name, b"")])?;
    }
    write(store, &[], &[put(b"r/zz", b""), put(b"t/00", b"")])?;
    let mut sorted = names;
    sorted.sort();
    for limit in [1, 2, 7, 19, 56, 57, 58, 1000] {
        let got = keys(store, b"s/", limit)?;
        ensure!(got == sorted, "pages of {limit} gave {} keys: {got:?}", got.len());
    }
    Ok(())
}

fn same_as_read(store: &Store) -> Outcome {
    let versions = write(store, &[], &[put(b"a", b"1"), put(b"b", &[0xff; 3000])])?;
    let page = store.scan(b"", None, 10, BUDGET).map_err(said)?;
    ensure!(page.records.len() == 2, "{} records were listed", page.records.len());
    for ((name, record), version) in page.records.iter().zip(versions) {
        ensure!(record.version == version, "{name:?} is listed with version {}", record.version);
        ensure!(read(store, name)?.as_ref() == Some(record), "{name:?} is listed differently");
    }
    Ok(())
}

fn prefixes(store: &Store) -> Outcome {
    let names: &[&[u8]] = &[
        &[0],
        &[0, 0],
        b"a",
        b"a\0",
        b"a/",
        b"a/b",
        b"a\xff",
        b"a\xff\xff",
        b"a\xff\xff\0",
        b"b",
        &[0xfe, 0xff],
        &[0xff],
        &[0xff, 0],
        &[0xff, 0xff],
        &[0xff, 0xff, 0xff],
    ];
    for name in names {
        write(store, &[], &[put(name, name)])?;
    }
    let asked: &[&[u8]] = &[
        b"",
        &[0],
        b"a",
        b"a/",
        b"a\xff",
        b"a\xff\xff",
        b"a/b",
        b"a/bc",
        b"b",
        b"c",
        &[0xfe],
        &[0xff],
        &[0xff, 0xff],
        &[0xff, 0xff, 0xff, 0xff],
    ];
    for prefix in asked {
        let wanted: Vec<Key> =
            names.iter().filter(|n| n.starts_with(prefix)).map(|n| n.to_vec()).collect();
        for limit in [1, 3, 100] {
            let got = keys(store, prefix, limit)?;
            ensure!(got == wanted, "prefix {prefix:?}, pages of {limit}: {got:?}");
        }
    }
    let long = vec![0xff; MAX_KEY_BYTES];
    write(store, &[], &[put(&long, b"")])?;
    ensure!(keys(store, &long, 1)? == [long.clone()], "the longest key as a prefix finds nothing");
    Ok(())
}

fn cursor_gone(store: &Store) -> Outcome {
    for name in ["a", "b", "c", "d"] {
        write(store, &[], &[put(name.as_bytes(), b"")])?;
    }
    let page = store.scan(b"", None, 2, BUDGET).map_err(said)?;
    write(store, &[], &[delete(b"a"), delete(b"b"), put(b"bb", b"")])?;
    let rest = store.scan(b"", page.next.as_ref(), 10, BUDGET).map_err(said)?;
    let rest: Vec<_> = rest.records.into_iter().map(|(name, _)| name).collect();
    ensure!(
        rest == [key("c"), key("d")] || rest == [key("bb"), key("c"), key("d")],
        "the second page is {rest:?}"
    );
    Ok(())
}

fn while_changing(store: &Store) -> Outcome {
    let stands: Vec<Key> = (0..40).map(|i| key(&format!("{i:02}-stands"))).collect();
    for name in &stands {
        write(store, &[], &[put(name, b"")])?;
    }
    let mut seen: BTreeMap<Key, u32> = BTreeMap::new();
    let mut cursor: Option<Cursor> = None;
    for round in 0.. {
        let page = store.scan(b"", cursor.as_ref(), 3, BUDGET).map_err(said)?;
        for (name, _) in page.records {
            *seen.entry(name).or_default() += 1;
        }
        let Some(next) = page.next else { break };
        cursor = Some(next);
        // Before, at and behind the cursor.
        for i in 0..40 {
            let name = format!("{i:02}-{}", if round % 2 == 0 { "comes" } else { "zoes" });
            let change =
                if round % 3 == 0 { delete(name.as_bytes()) } else { put(name.as_bytes(), b"") };
            write(store, &[], &[change])?;
        }
        ensure!(round < 1000, "the scan does not end");
    }
    for name in &stands {
        let times = seen.get(name).copied().unwrap_or(0);
        ensure!(times == 1, "a record that stood was listed {times} times");
    }
    Ok(())
}

fn bad_arguments(store: &Store) -> Outcome {
    write(store, &[], &[put(b"a", b"")])?;
    refused("a scan with a limit of 0", store.scan(b"", None, 0, BUDGET))?;
    for bytes in [vec![], b"never made by a store".to_vec()] {
        let cursor = Cursor(bytes);
        refused("a cursor of another kind", store.scan(b"", Some(&cursor), 1, BUDGET))?;
    }
    Ok(())
}
