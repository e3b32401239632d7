#![forbid(unsafe_code)]
//! What one operation costs that does not depend on the machine's mood: allocations, and system
//! calls. See BENCHMARKS.md.
//!
//! Allocations are counted by the allocator of the whole process, on all its threads. System calls
//! are counted by a tracer in two runs, one with twice the operations of the other; their
//! difference belongs to the operations alone. Counts per time (probes, credit that is returned
//! after a millisecond) are in them: the tracer makes everything slower, so those are too high.
#![allow(clippy::disallowed_methods)] // drives nodes from outside

mod support;

use std::alloc::System;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use support::actors::{COUNT_ALLOCATIONS, Op};
use support::args::Args;
use support::bare::Link;
use support::node_work::{Driver, From, LocalWork, RemoteWork, Wait};
use support::role;
use support::samples::{Outcome, fold};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

fn allocations_so_far() -> u64 {
    let stats = ALLOCATOR.stats();
    (stats.allocations + stats.reallocations) as u64
}

/// Where caller and target are.
#[derive(Clone, Copy)]
enum Place {
    OneCore,
    TwoCores,
    TwoNodes,
}

struct Case {
    name: &'static str,
    place: Place,
    from: From,
    op: Op,
}

const CASES: &[Case] = &[
    Case {
        name: "send, turn to the same core",
        place: Place::OneCore,
        from: From::Turn,
        op: Op::Send,
    },
    Case {
        name: "send, turn to another core",
        place: Place::TwoCores,
        from: From::Turn,
        op: Op::Send,
    },
    Case {
        name: "send, application thread",
        place: Place::OneCore,
        from: From::Thread,
        op: Op::Send,
    },
    Case { name: "send, remote", place: Place::TwoNodes, from: From::Turn, op: Op::Send },
    Case {
        name: "request, turn to the same core",
        place: Place::OneCore,
        from: From::Turn,
        op: Op::Request,
    },
    Case {
        name: "request, turn to another core",
        place: Place::TwoCores,
        from: From::Turn,
        op: Op::Request,
    },
    Case {
        name: "request, application thread",
        place: Place::OneCore,
        from: From::Thread,
        op: Op::Request,
    },
    Case { name: "request, remote", place: Place::TwoNodes, from: From::Turn, op: Op::Request },
    Case {
        name: "request, raw payload, remote",
        place: Place::TwoNodes,
        from: From::Turn,
        op: Op::RawRequest(64),
    },
];

/// System calls by name.
type Calls = BTreeMap<String, f64>;

fn main() {
    COUNT_ALLOCATIONS.get_or_init(|| allocations_so_far);
    if role::played() {
        return;
    }
    let args = Args::parse();
    let can_trace = can_trace();
    if !can_trace {
        println!("strace is not there, or may not trace: system calls are not counted.");
    }
    println!(
        "| case | allocations per op, caller's process | target's process | system calls per op, \
         parked, caller's process | target's process |"
    );
    println!("|---|---:|---:|---|---|");
    let mut hash = 0;
    for case in CASES.iter().filter(|case| args.wants(case.name)) {
        let ops = args.operations(2_048);
        let outcome = run(case, ops, None);
        hash = fold(hash, outcome.hash);
        let per_op = |count: u64| format!("{:.2}", count as f64 / ops as f64);
        let is_remote = matches!(case.place, Place::TwoNodes);
        let target = if is_remote { per_op(outcome.target_allocations) } else { "–".into() };
        let [caller_calls, target_calls] =
            if can_trace { trace(case, ops / 2) } else { [String::new(), String::new()] };
        println!(
            "| {} | {} | {target} | {caller_calls} | {target_calls} |",
            case.name,
            per_op(outcome.allocations),
        );
    }
    println!("\nresult hash {hash:016x}");
}

/// One run of a case, cores parked; traced into two files when given.
fn run(case: &Case, ops: u64, traced: Option<(&Path, &Path)>) -> Outcome {
    let Case { from, op, place, .. } = *case;
    let (wait, warm_up) = (Wait::Park, 256);
    if matches!(place, Place::TwoNodes) {
        let (dir, link) = (PathBuf::new(), Link::Unix);
        let driver = Driver::Auto;
        let work = RemoteWork { dir, link, driver, from, callers: 1, op, wait, warm_up, ops };
        return role::remote(&work, traced);
    }
    let other_core = matches!(place, Place::TwoCores);
    let work = LocalWork { from, other_core, op, wait, warm_up, ops };
    match traced {
        Some((caller, _)) => role::local_traced(&work, caller),
        None => support::node_work::local(&work),
    }
}

/// System calls per operation of the caller's and of the target's process.
fn trace(case: &Case, ops: u64) -> [String; 2] {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let files = ["caller", "target"].map(|name| dir.path().join(name));
    let counted = |ops| {
        run(case, ops, Some((&files[0], &files[1])));
        files.each_ref().map(|file| read_counts(file))
    };
    let (once, twice) = (counted(ops), counted(2 * ops));
    let mut shown = twice.iter().zip(&once).map(|(twice, once)| {
        let per_op = |(name, calls): (&String, &f64)| {
            let more = calls - once.get(name).copied().unwrap_or_default();
            (more / ops as f64, name.clone())
        };
        let mut calls: Vec<_> = twice.iter().map(per_op).filter(|(n, _)| *n >= 0.02).collect();
        calls.sort_by(|a, b| b.0.total_cmp(&a.0));
        let calls: Vec<_> = calls.iter().map(|(n, name)| format!("{name} {n:.2}")).collect();
        calls.join(", ")
    });
    [shown.next().unwrap_or_default(), shown.next().unwrap_or_default()]
}

/// Reads the tracer's table: lines of a count and a name.
fn read_counts(file: &Path) -> Calls {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let calls = words.next()?.parse().ok()?;
            Some((words.next()?.to_owned(), calls))
        })
        // The last line is the sum; a name that is none is a slip of the tracer.
        .filter(|(name, _)| {
            name != "total" && name.chars().all(|c| c.is_alphanumeric() || c == '_')
        })
        .collect()
}

fn can_trace() -> bool {
    let tried = Command::new("strace").args(["-f", "-c", "-U", "calls,name", "true"]).output();
    tried.is_ok_and(|out| out.status.success())
}
