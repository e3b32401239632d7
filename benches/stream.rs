#![forbid(unsafe_code)]
//! Pipelined messages between two node processes against a bare stream of the same frames. See
//! BENCHMARKS.md.
#![allow(clippy::disallowed_methods)] // drives nodes from outside

mod support;

use std::path::PathBuf;

use support::actors::{BATCH, Op};
use support::args::Args;
use support::bare::{BareWork, Link};
use support::frames::{PayloadForm, message_bytes, reply_bytes};
use support::node_work::{Driver, From, RemoteWork, Wait};
use support::role;
use support::rounds::Compared;
use support::table::{Per, Table};

/// Batches the bare stream has under way: 1024 frames, about what the credit of one object allows.
const WINDOW: u64 = 16;
/// Bytes that acknowledge a batch of the bare stream: a credit frame with one entry.
const ACK_BYTES: usize = 60;
/// Requests under way, each of its own caller to its own target.
const CALLERS: u64 = 64;

fn main() {
    if role::played() {
        return;
    }
    let args = Args::parse();
    println!(
        "payload of 64 bytes: frames of {} bytes",
        message_bytes(From::Turn, false, PayloadForm::PING)
    );
    let mut table = Table::begin("stream", args.tiny);
    for wait in Wait::BOTH {
        for link in Link::BOTH {
            let name = format!("send, pipelined, 64 B, {}, {}", link.name(), wait.name());
            if args.wants(&name) {
                table.row(&name, Per::Throughput, &sends(link, wait, &args));
            }
            let name = format!("request, 64 under way, 64 B, {}, {}", link.name(), wait.name());
            if args.wants(&name) {
                table.row(&name, Per::Throughput, &requests(link, wait, &args));
            }
        }
    }
    table.end();
}

fn node(driver: Driver, link: Link, wait: Wait, callers: u64, op: Op, ops: u64) -> RemoteWork {
    let (dir, from) = (PathBuf::new(), From::Turn);
    let warm_up = if op == Op::Send { (ops / 4).next_multiple_of(BATCH) } else { 64 };
    RemoteWork { dir, link, driver, from, callers, op, wait, warm_up, ops }
}

fn sends(link: Link, wait: Wait, args: &Args) -> Compared {
    let ops = args.operations(128_000);
    let subject = node(args.driver, link, wait, 1, Op::Send, ops);
    let baseline = BareWork {
        dir: PathBuf::new(),
        link,
        wait,
        request_bytes: message_bytes(From::Turn, false, PayloadForm::PING),
        reply_bytes: ACK_BYTES,
        batch: BATCH,
        window: WINDOW,
        warm_up: subject.warm_up,
        ops,
    };
    Compared::run(args.rounds, || role::remote(&subject, None), || role::bare_pair(&baseline))
}

/// The baseline has the same number of requests under way, each in a write of its own.
fn requests(link: Link, wait: Wait, args: &Args) -> Compared {
    let ops = if args.tiny { CALLERS * 4 } else { CALLERS * 500 };
    let subject = node(args.driver, link, wait, CALLERS, Op::Request, ops);
    let baseline = BareWork {
        dir: PathBuf::new(),
        link,
        wait,
        request_bytes: message_bytes(From::Turn, true, PayloadForm::PING),
        reply_bytes: reply_bytes(PayloadForm::PING),
        batch: 1,
        window: CALLERS,
        warm_up: subject.warm_up,
        ops,
    };
    Compared::run(args.rounds, || role::remote(&subject, None), || role::bare_pair(&baseline))
}
