#![forbid(unsafe_code)]
//! Requests between two node processes against a bare ping-pong of the same bytes. See
//! BENCHMARKS.md.
#![allow(clippy::disallowed_methods)] // drives nodes from outside

mod support;

use std::path::PathBuf;

use support::actors::Op;
use support::args::Args;
use support::bare::{BareWork, Link};
use support::frames::{PayloadForm, message_bytes, reply_bytes};
use support::node_work::{From, RemoteWork, Wait};
use support::role;
use support::rounds::Compared;
use support::table::{Per, Table};

/// Requests of a segment when both sides park, and when both spin.
const OPS: [u64; 2] = [2_000, 16_000];
const KIB: usize = 1024;

fn main() {
    if role::played() {
        return;
    }
    let args = Args::parse();
    for payload in [PayloadForm::PING, PayloadForm::raw(KIB)] {
        println!(
            "payload of {} bytes: frames of {} bytes there and {} back",
            payload.bytes,
            message_bytes(From::Turn, true, payload),
            reply_bytes(payload)
        );
    }
    let mut table = Table::begin("remote", args.tiny);
    for (wait, ops) in Wait::BOTH.into_iter().zip(OPS) {
        for link in Link::BOTH {
            let forms = [("64 B", Op::Request), ("1 KiB", Op::RawRequest(KIB))];
            for (size, op) in forms {
                let name = format!("request, {size}, {}, {}", link.name(), wait.name());
                if args.wants(&name) {
                    let compared = compare(link, op, wait, From::Turn, &args, ops);
                    table.row(&name, Per::Latency, &compared);
                }
            }
        }
        // Spinning, three threads would share two processors.
        let name = format!("request, 64 B, Unix, application thread, {}", wait.name());
        if wait == Wait::Park && args.wants(&name) {
            let compared = compare(Link::Unix, Op::Request, wait, From::Thread, &args, ops);
            table.row(&name, Per::Latency, &compared);
        }
    }
    table.end();
}

fn compare(link: Link, op: Op, wait: Wait, from: From, args: &Args, ops: u64) -> Compared {
    let ops = args.operations(ops);
    let warm_up = ops / 4;
    let payload = match op {
        Op::RawRequest(bytes) => PayloadForm::raw(bytes),
        _ => PayloadForm::PING,
    };
    let dir = PathBuf::new();
    let driver = args.driver;
    let subject =
        RemoteWork { dir: dir.clone(), link, driver, from, callers: 1, op, wait, warm_up, ops };
    let baseline = BareWork {
        dir,
        link,
        wait,
        request_bytes: message_bytes(from, true, payload),
        reply_bytes: reply_bytes(payload),
        batch: 1,
        window: 1,
        warm_up,
        ops,
    };
    Compared::run(args.rounds, || role::remote(&subject, None), || role::bare_pair(&baseline))
}
