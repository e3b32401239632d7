#![forbid(unsafe_code)]
//! The printed form: tables as BENCHMARKS.md holds them.

use std::fs;
use std::process::Command;
use std::time::Instant;

use super::rounds::{Compared, Spread};
use super::samples::{Outcome, fold, median};

/// What `per op` means in a table.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Per {
    /// The time of one operation, from its start to its end.
    Latency,
    /// Elapsed time by operations: the inverse of throughput.
    Throughput,
}

impl Per {
    fn of(self) -> impl Fn(&Outcome) -> f64 {
        move |outcome| match self {
            Self::Latency => outcome.p50_ns,
            Self::Throughput => outcome.mean_ns(),
        }
    }
}

/// Prints a table row by row, and at the end the hash of the work.
pub(crate) struct Table {
    begun: Instant,
    hash: u64,
    rows: usize,
}

impl Table {
    /// Prints the machine and the head of the table.
    pub(crate) fn begin(bench: &str, tiny: bool) -> Self {
        println!("# {bench}\n");
        print_machine();
        if tiny {
            println!("Tiny form: it shows that the bench works; its figures mean nothing.");
        }
        println!();
        println!(
            "| case | per op, median (spread) | baseline | ratio (spread) | p99 | ratio | p99.9 | \
             max | per second |"
        );
        println!("|---|---:|---:|---:|---:|---:|---:|---:|---:|");
        Self { begun: Instant::now(), hash: 0, rows: 0 }
    }

    pub(crate) fn row(&mut self, case: &str, per: Per, compared: &Compared) {
        let of = per.of();
        let ratio = compared.ratio(&of);
        let worst = |of: fn(&Outcome) -> f64| show_ns(compared.subject(of).median);
        println!(
            "| {case} | {} | {} | {:.2} ({:.2}–{:.2}) | {} | {:.2} | {} | {} | {} |",
            show(compared.subject(&of)),
            show(compared.baseline(&of)),
            ratio.median,
            ratio.low,
            ratio.high,
            worst(|o| o.p99_ns),
            compared.ratio(|o| o.p99_ns).median,
            worst(|o| o.p999_ns),
            worst(|o| o.max_ns),
            show_rate(1e9 / compared.subject(Outcome::mean_ns).median),
        );
        self.hash = fold(self.hash, compared.hash());
        self.rows += 1;
    }

    /// Prints the hash of all the work.
    pub(crate) fn end(self) {
        println!();
        println!(
            "{} cases, {:.0} s, result hash {:016x}",
            self.rows,
            self.begun.elapsed().as_secs_f64(),
            self.hash
        );
    }
}

/// Nanoseconds with a unit, three digits.
pub(crate) fn show_ns(ns: f64) -> String {
    match ns {
        ns if ns < 100.0 => format!("{ns:.1} ns"),
        ns if ns < 1_000.0 => format!("{ns:.0} ns"),
        ns if ns < 10_000.0 => format!("{:.2} µs", ns / 1e3),
        ns if ns < 100_000.0 => format!("{:.1} µs", ns / 1e3),
        ns if ns < 1_000_000.0 => format!("{:.0} µs", ns / 1e3),
        ns => format!("{:.1} ms", ns / 1e6),
    }
}

fn show(spread: Spread) -> String {
    let Spread { median, low, high } = spread;
    format!("{} ({}–{})", show_ns(median), show_ns(low), show_ns(high))
}

fn show_rate(per_second: f64) -> String {
    match per_second {
        rate if rate >= 1e6 => format!("{:.2} M", rate / 1e6),
        rate if rate >= 1e3 => format!("{:.1} k", rate / 1e3),
        rate => format!("{rate:.0}"),
    }
}

fn first_word_line(path: &str, key: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.starts_with(key))?;
    line.split_once(':').map(|(_, value)| value.trim().to_owned())
}

fn said_by(program: &str, args: &[&str]) -> String {
    let out = Command::new(program).args(args).output().ok().filter(|out| out.status.success());
    out.map_or("unknown".into(), |out| String::from_utf8_lossy(&out.stdout).trim().to_owned())
}

/// What the figures were measured on.
fn print_machine() {
    let unknown = || "unknown".to_owned();
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let clock = (0..32).map(|_| {
        let began = Instant::now();
        for _ in 0..1_000 {
            std::hint::black_box(Instant::now());
        }
        began.elapsed().as_nanos() as f64 / 1_000.0
    });
    let clock = median(clock.collect());
    println!(
        "processor {}, {cores} cores; kernel {}; {}; commit {}; load before the run {}; one \
         reading of the clock {}",
        first_word_line("/proc/cpuinfo", "model name").unwrap_or_else(unknown),
        fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_else(|_| unknown()).trim(),
        said_by("rustc", &["--version"]),
        said_by("git", &["describe", "--always", "--dirty", "--exclude=*"]),
        load.split(' ').next().unwrap_or_default(),
        show_ns(clock),
    );
}
