#![forbid(unsafe_code)]
//! What differs between two runs beside the seed.

use std::time::Duration;

use homing::env::Planted;
use homing::sim::{FaultClasses, SimRng};

/// Core counts of the nodes: unequal, so that home cores and lanes do not line up.
pub(crate) const CORES: [u16; 3] = [1, 2, 3];

/// How long a request or send waits when nothing else is said.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(2);

/// See the module's head.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    /// What goes wrong.
    pub(crate) classes: FaultClasses,
    /// Lease and renewal.
    pub(crate) lease: (Duration, Duration),
    /// Ids that are addressed at a time.
    pub(crate) objects: u64,
    /// Largest padding of a message.
    pub(crate) payload: u64,
    /// Credit per lane.
    pub(crate) window: u32,
    /// Cache age.
    pub(crate) cache_max_age: Duration,
    /// Mean pause of a sender between two bursts.
    pub(crate) pause: Duration,
    /// Longest burst.
    pub(crate) burst: u64,
    /// Mean pause between two creations or destructions of a node.
    pub(crate) churn: Duration,
    /// Longest time between the end of an Actor and its next creation by the same keeper.
    pub(crate) gap: Duration,
    /// Longest run of a factory.
    pub(crate) factory: Duration,
    /// Frames in a million that arrive under fences that are not the receiver's.
    pub(crate) stale_frames: u64,
    /// Nodes that are shut down in order, and started again.
    pub(crate) shutdowns: bool,
    /// Every message of a node is encoded, also those it keeps.
    pub(crate) through_bytes: bool,
    /// The fault in the nodes' own code.
    pub(crate) planted: Option<Planted>,
}

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

impl Shape {
    /// Nothing goes wrong by itself, and everything is as by default.
    pub(crate) fn calm() -> Self {
        Self {
            classes: FaultClasses::none(),
            lease: (ms(4_000), ms(1_000)),
            objects: 1,
            payload: 40,
            window: 1 << 20,
            cache_max_age: ms(15_000),
            pause: ms(100),
            burst: 4,
            churn: ms(3_000),
            gap: ms(0),
            factory: ms(4),
            stale_frames: 0,
            shutdowns: false,
            through_bytes: false,
            planted: None,
        }
    }

    /// The shape of a seed. All dimensions are drawn by themselves, but for every fourth seed,
    /// which is one of those that were made for something.
    pub(crate) fn of(seed: u64) -> Self {
        let mut rng = SimRng::new(seed ^ 0x5AA5);
        let mut pick = |n: u64| rng.below(n) as usize;
        let drawn = Self {
            classes: FaultClasses::all(),
            lease: [(ms(2_000), ms(600)), (ms(4_000), ms(1_000)), (ms(4_000), ms(1_500))][pick(3)],
            objects: [1, 4, 12][pick(3)],
            payload: [40, 40, 3_000, 40_000][pick(4)],
            window: [65_536, 65_536, 1 << 20][pick(3)],
            cache_max_age: [ms(0), ms(100), ms(15_000), ms(15_000)][pick(4)],
            pause: [ms(100), ms(250)][pick(2)],
            burst: [1, 4, 8][pick(3)],
            churn: [ms(400), ms(3_000)][pick(2)],
            gap: [ms(0), ms(300)][pick(2)],
            factory: [ms(4), ms(4), ms(300)][pick(3)],
            stale_frames: [0, 0, 10_000][pick(3)],
            shutdowns: pick(4) == 0,
            through_bytes: seed % 2 == 1,
            planted: None,
        };
        match seed % 16 {
            // Nothing goes wrong: nothing may fail.
            3 => Self { classes: FaultClasses::none(), shutdowns: false, stale_frames: 0, ..drawn },
            // Routes go stale while reads are slow.
            7 => Self {
                classes: FaultClasses {
                    delay: true,
                    store_slow: true,
                    store_failed: true,
                    stall: true,
                    ..FaultClasses::none()
                },
                objects: 2,
                payload: 40,
                cache_max_age: ms(30),
                pause: ms(30),
                burst: 2,
                churn: ms(150),
                gap: ms(400),
                factory: ms(1),
                ..drawn
            },
            // Credit is scarce on links that break.
            11 => Self {
                classes: FaultClasses { delay: true, reset: true, ..FaultClasses::none() },
                payload: 40_000,
                window: 65_536,
                ..drawn
            },
            // Creators meet while answers of the Store are lost.
            15 => Self {
                classes: FaultClasses {
                    store_lost: true,
                    store_failed: true,
                    store_outage: true,
                    kill: true,
                    swarm: true,
                    ..FaultClasses::none()
                },
                objects: 12,
                churn: ms(150),
                ..drawn
            },
            _ => drawn,
        }
    }
}
