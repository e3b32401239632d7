#![forbid(unsafe_code)]
//! Sends and requests within one process, beside other actor libraries. See BENCHMARKS.md.
#![allow(clippy::disallowed_methods)] // starts threads and reads the clock

#[path = "../common/mod.rs"]
mod common;
mod peer;
mod peers;
#[path = "../../../support/mod.rs"]
mod support;

use peer::{PeerWork, Place};
use support::actors::{BATCH, Op};
use support::args::Args;
use support::node_work::{self, From, LocalWork, Wait};
use support::rounds::Compared;
use support::samples::Outcome;
use support::table::{Per, Table};

/// Where caller and target are, and how often a segment sends and asks.
struct Setting {
    place: Place,
    sends: u64,
    requests: u64,
}

const SETTINGS: &[Setting] = &[
    Setting { place: Place::SameThread, sends: 256_000, requests: 128_000 },
    Setting { place: Place::TwoThreads(Wait::Park), sends: 64_000, requests: 4_000 },
    Setting { place: Place::TwoThreads(Wait::Spin), sends: 128_000, requests: 64_000 },
];

/// A peer's segment.
type Run = fn(PeerWork) -> Outcome;

const PEERS: &[(&str, Run)] = &[
    ("actix", peer::segment::<peers::actix::Actix>),
    ("xtra", peer::segment::<peers::xtra::Xtra>),
    ("ractor", peer::segment::<peers::ractor::Ractor>),
    ("kameo", peer::segment::<peers::kameo::Kameo>),
];

const ABOUT: &str = "\n\nSubject: turns of a node. Baselines: actix, xtra, ractor, kameo, each in \
    the set-up in which it is\nfastest. Caller and target are on one thread (core), or on two of \
    which each parks or spins.";

fn main() {
    let args = Args::parse_of(&common::command("peers_local"), ABOUT);
    println!("{}\n", common::versions(&["actix", "xtra", "ractor", "kameo", "tokio"]));
    let mut table = Table::begin("peers_local", args.tiny);
    for op in [Op::Send, Op::Request] {
        for setting in SETTINGS {
            for (peer, run) in PEERS {
                let (verb, ops, per) = match op {
                    Op::Send => ("send", setting.sends, Per::Throughput),
                    _ => ("request", setting.requests, Per::Latency),
                };
                let name = format!("{verb}, {}, {peer}", setting.place.name());
                if args.wants(&name) {
                    table.row(&name, per, &compare(op, setting.place, *run, &args, ops));
                }
            }
        }
    }
    table.end();
}

fn compare(op: Op, place: Place, peer: Run, args: &Args, ops: u64) -> Compared {
    let ops = args.operations(ops);
    let warm_up = (ops / 4).next_multiple_of(BATCH);
    let (other_core, wait) = match place {
        // Nobody has to wait: there is always something to do.
        Place::SameThread => (false, Wait::Spin),
        Place::TwoThreads(wait) => (true, wait),
    };
    let subject = LocalWork { from: From::Turn, other_core, op, wait, warm_up, ops };
    let baseline = PeerWork { place, op, warm_up, ops };
    Compared::run(args.rounds, || node_work::local(&subject), || peer(baseline))
}
