#![forbid(unsafe_code)]
//! The io_uring driver against the epoll driver, under the same two node processes. See
//! BENCHMARKS.md.
#![allow(clippy::disallowed_methods)] // drives nodes from outside

mod support;

use std::path::PathBuf;

use homing::transport::uring::Uring;
use support::actors::{BATCH, Op};
use support::args::Args;
use support::bare::Link;
use support::node_work::{Driver, From, RemoteWork, Wait};
use support::role;
use support::rounds::Compared;
use support::table::{Per, Table};

/// Requests under way, each of its own caller to its own target.
const CALLERS: u64 = 64;
const KIB: usize = 1024;

/// A case: its name, what is called, by how many, how many operations in each way of waiting, and
/// what is compared.
type Case = (&'static str, Op, u64, [u64; 2], Per);

fn main() {
    if role::played() {
        return;
    }
    let args = Args::parse();
    if let Err(reason) = Uring::probe() {
        println!("nothing to compare: the system refuses io_uring ({reason})");
        return;
    }
    println!("The baseline is the epoll driver.");
    let cases: [Case; 4] = [
        ("request, 64 B", Op::Request, 1, [2_000, 16_000], Per::Latency),
        ("request, 64 KiB", Op::RawRequest(64 * KIB), 1, [1_000, 4_000], Per::Latency),
        ("request, 64 under way, 64 B", Op::Request, CALLERS, [32_000; 2], Per::Throughput),
        ("send, pipelined, 64 B", Op::Send, 1, [128_000; 2], Per::Throughput),
    ];
    let mut table = Table::begin("drivers", args.tiny);
    for (at, wait) in Wait::BOTH.into_iter().enumerate() {
        for link in Link::BOTH {
            for (what, op, callers, ops, per) in cases {
                let name = format!("{what}, {}, {}", link.name(), wait.name());
                if args.wants(&name) {
                    let work = |driver| work(driver, link, wait, op, callers, ops[at], &args);
                    let (uring, epoll) = (work(Driver::Uring), work(Driver::Epoll));
                    let run = |work: &RemoteWork| role::remote(work, None);
                    let compared = Compared::run(args.rounds, || run(&uring), || run(&epoll));
                    table.row(&name, per, &compared);
                }
            }
        }
    }
    table.end();
}

fn work(
    driver: Driver,
    link: Link,
    wait: Wait,
    op: Op,
    callers: u64,
    ops: u64,
    args: &Args,
) -> RemoteWork {
    let ops = if callers > 1 && args.tiny { callers * 4 } else { args.operations(ops) };
    let warm_up = if op == Op::Send { (ops / 4).next_multiple_of(BATCH) } else { 64 };
    let (dir, from) = (PathBuf::new(), From::Turn);
    RemoteWork { dir, link, driver, from, callers, op, wait, warm_up, ops }
}
