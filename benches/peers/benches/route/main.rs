#![forbid(unsafe_code)]
//! Look-ups of routes beside concurrent maps and a cache that hold the same. See BENCHMARKS.md.
#![allow(clippy::disallowed_methods)] // starts threads and reads the clock

#[path = "../common/mod.rs"]
mod common;
mod ids;
mod maps;
mod node;
mod segment;
mod side;
#[path = "../../../support/mod.rs"]
mod support;

use ids::Ids;
use node::Shared;
use segment::{Notes, Setting};
use side::{Map, Side};
use support::args::Args;
use support::rounds::Compared;
use support::table::{Per, Table};

/// Look-ups of a segment whose time together is measured.
const OPS: u64 = 512_000;

const ABOUT: &str = "\n\nSubject: a reader of the route cache in shared memory. Baselines: an \
    immutable HashMap (the floor),\nparking_lot's RwLock around one, dashmap, papaya, scc's \
    HashMap and HashIndex, moka; all hold the same\nnumbers under the same hash.";

fn main() {
    let args = Args::parse_of(&common::command("peers_route"), ABOUT);
    println!("{}\n", common::versions(&["dashmap", "moka", "papaya", "parking_lot", "scc"]));
    let table = Table::begin("peers_route", args.tiny);
    let mut bench = Bench { args, table, notes: Notes::default() };
    let sizes: &[usize] = if bench.args.tiny { &[2_000] } else { &[2_000, 16_000, 1_000_000] };
    for &size in sizes {
        bench.size(size);
    }
    bench.notes.print();
    bench.table.end();
}

struct Bench {
    args: Args,
    table: Table,
    notes: Notes,
}

fn case(size: usize, setting: Setting, baseline: &str) -> String {
    format!("{size} entries, {}, {baseline}", setting.name())
}

impl Bench {
    fn size(&mut self, size: usize) {
        let (mut shared, ids) = Shared::fill(size);
        self.against::<maps::Floor>(&mut shared, &ids, size, &Setting::ALL);
        self.against::<maps::Locked>(&mut shared, &ids, size, &Setting::ALL);
        self.against::<maps::Dashmap>(&mut shared, &ids, size, &Setting::ALL);
        self.against::<maps::Papaya>(&mut shared, &ids, size, &Setting::ALL);
        self.against::<maps::Scc>(&mut shared, &ids, size, &Setting::ALL);
        self.against::<maps::SccIndex>(&mut shared, &ids, size, &Setting::ALL);
        self.against::<maps::Moka>(&mut shared, &ids, size, &Setting::ALL);
        self.against::<maps::DashmapAsUsual>(&mut shared, &ids, size, &[Setting::Alone]);
    }

    /// The subject against one baseline, which is filled once for all settings.
    fn against<M: Map>(
        &mut self,
        shared: &mut Shared,
        ids: &Ids,
        size: usize,
        settings: &[Setting],
    ) {
        let mut map = None;
        for &setting in settings {
            let name = case(size, setting, M::NAME);
            if self.args.wants(&name) {
                let map = map.get_or_insert_with(|| M::fill(ids));
                self.row(&name, shared, map, ids, setting);
            }
        }
    }

    fn row(
        &mut self,
        name: &str,
        subject: &mut Shared,
        baseline: &mut impl Side,
        ids: &Ids,
        setting: Setting,
    ) {
        let ops = self.args.operations(OPS);
        let notes = &self.notes;
        let compared = Compared::run(
            self.args.rounds,
            || segment::run(subject, ids, setting, ops, notes),
            || segment::run(baseline, ids, setting, ops, notes),
        );
        self.table.row(name, Per::Throughput, &compared);
    }
}
