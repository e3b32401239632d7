#![forbid(unsafe_code)]
//! Sends and requests within one node. See BENCHMARKS.md.
#![allow(clippy::disallowed_methods)] // drives nodes from outside

mod support;

use support::actors::Op;
use support::args::Args;
use support::bare::{self, LocalBareWork};
use support::node_work::{self, From, LocalWork, Wait};
use support::rounds::Compared;
use support::table::{Per, Table};

/// A case: who calls whom, and how often in a segment when cores park and when they spin.
struct Case {
    name: &'static str,
    from: From,
    other_core: bool,
    op: Op,
    ops: [u64; 2],
}

const CASES: &[Case] = &[
    Case {
        name: "send, turn to the same core",
        from: From::Turn,
        other_core: false,
        op: Op::Send,
        ops: [256_000, 256_000],
    },
    Case {
        name: "send, turn to another core",
        from: From::Turn,
        other_core: true,
        op: Op::Send,
        ops: [64_000, 128_000],
    },
    Case {
        name: "send, application thread",
        from: From::Thread,
        other_core: false,
        op: Op::Send,
        ops: [64_000, 128_000],
    },
    Case {
        name: "request, turn to the same core",
        from: From::Turn,
        other_core: false,
        op: Op::Request,
        ops: [128_000, 128_000],
    },
    Case {
        name: "request, turn to another core",
        from: From::Turn,
        other_core: true,
        op: Op::Request,
        ops: [4_000, 64_000],
    },
    Case {
        name: "request, application thread",
        from: From::Thread,
        other_core: false,
        op: Op::Request,
        ops: [4_000, 64_000],
    },
];

fn main() {
    let args = Args::parse();
    let mut table = Table::begin("local", args.tiny);
    for case in CASES {
        for (wait, ops) in Wait::BOTH.into_iter().zip(case.ops) {
            let name = format!("{}, {}", case.name, wait.name());
            if args.wants(&name) {
                let per = if case.op == Op::Send { Per::Throughput } else { Per::Latency };
                table.row(&name, per, &compare(case, wait, &args, ops));
            }
        }
    }
    table.end();
}

fn compare(case: &Case, wait: Wait, args: &Args, ops: u64) -> Compared {
    let ops = args.operations(ops);
    let warm_up = (ops / 4).next_multiple_of(support::actors::BATCH);
    let Case { from, other_core, op, .. } = *case;
    let subject = LocalWork { from, other_core, op, wait, warm_up, ops };
    let baseline = LocalBareWork { op, wait, warm_up, ops };
    let one_thread = from == From::Turn && !other_core;
    Compared::run(
        args.rounds,
        || node_work::local(&subject),
        || if one_thread { bare::one_thread(baseline) } else { bare::two_threads(baseline) },
    )
}
