#![forbid(unsafe_code)]
//! What goes wrong in a world, and when.
//!
//! A [`FaultPlan`] has two halves. **Rates** act on single steps all the time: a chunk is split or
//! late, a Store call fails or its answer is lost, a core loses its processor for a moment.
//! **Scheduled faults** happen at stated times: a node is killed, a partition opens. A plan is
//! either drawn from a seed ([`FaultPlan::seeded`]) or written down for a regression test
//! ([`FaultPlan::none`] and [`FaultPlan::at`]).
//!
//! Links are TCP-like: bytes inside a live stream are never dropped, reordered or doubled. What a
//! network loses shows as delay, and what it breaks as a stream that ends early.

use std::time::Duration;

use super::rng::SimRng;
use crate::time::{Nanos, duration_ns};

/// A node of a world, by the order in which they were added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeIx(pub u16);

/// What the peers of a killed node see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Death {
    /// Streams fail; bytes under way are lost from a random point on. Dials are refused.
    Reset,
    /// Streams end in an orderly way after what was sent. Dials are refused.
    Eof,
    /// Nothing at all, as when the host loses power. Dials time out. When the node comes back, its
    /// old streams fail at the peers.
    Silent,
}

/// How the Store misbehaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StoreMode {
    /// Calls fail, and nothing is written.
    Failing,
    /// Commits are applied and answered with an unknown outcome; other calls fail.
    AnswerLost,
    /// Calls are carried out (or not, by chance) and never answered: only the budget ends them.
    Silent,
    /// Calls take this much longer.
    Slow(Duration),
}

/// One fault of a schedule.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// Breaks one stream between two nodes, chosen at random.
    ResetOne(NodeIx, NodeIx),
    /// Breaks all streams between two nodes at once: a link flap.
    ResetAll(NodeIx, NodeIx),
    /// Nothing from `from` reaches `to`, and the other way round when `both`. Streams stay open;
    /// what was sent arrives after the end.
    Partition {
        /// One side.
        from: Vec<NodeIx>,
        /// The other side.
        to: Vec<NodeIx>,
        /// Both directions.
        both: bool,
        /// How long.
        lasts: Duration,
    },
    /// Adds a delay to what is sent between two nodes.
    Delay {
        /// One node.
        a: NodeIx,
        /// The other.
        b: NodeIx,
        /// How much later.
        by: Duration,
        /// How long.
        lasts: Duration,
    },
    /// Ends a node's process: its state is gone.
    Kill(NodeIx, Death),
    /// Starts a node that is down, as a new lifecycle. Nothing happens when it is up.
    Start(NodeIx),
    /// Stops a node (all cores, its Store and lease threads, its tasks) while time goes on.
    Pause(NodeIx, Duration),
    /// Stops one core.
    Stall(NodeIx, u16, Duration),
    /// Lets the Store misbehave, for one node or for all, its lease thread included.
    Store {
        /// For whom; `None` for all.
        node: Option<NodeIx>,
        /// How.
        mode: StoreMode,
        /// How long.
        lasts: Duration,
    },
}

/// Rates of what happens to single steps, in a million, and how large it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultRates {
    /// Delay of a chunk of bytes without a fault.
    pub latency: (Duration, Duration),
    /// Chunks that are split at a random byte.
    pub split_per_million: u32,
    /// Chunks that are late.
    pub spike_per_million: u32,
    /// How late.
    pub spike: (Duration, Duration),
    /// Bytes a stream takes before its writer's bytes wait, smallest and largest.
    pub window_bytes: (u32, u32),
    /// Delay of mail between cores.
    pub mail: (Duration, Duration),
    /// Time one iteration of a core takes.
    pub iteration: (Duration, Duration),
    /// Time of a Store call without a fault, each way.
    pub store: (Duration, Duration),
    /// Store calls that fail with nothing written.
    pub store_failed_per_million: u32,
    /// Store calls that are carried out but whose outcome is unknown to the caller.
    pub store_lost_per_million: u32,
    /// Store calls that never answer.
    pub store_silent_per_million: u32,
    /// Store calls that are slow.
    pub store_slow_per_million: u32,
    /// How slow.
    pub store_slow: (Duration, Duration),
    /// Iterations in which the core loses its processor right after it took its events.
    pub stall_per_million: u32,
    /// For how long.
    pub stall: (Duration, Duration),
    /// Steps ([`Failpoint`](crate::env::Failpoint)) at which the whole node is stopped. Off in
    /// every seeded plan; tests of R5-16 turn it on.
    pub failpoint_per_million: u32,
    /// For how long.
    pub failpoint: (Duration, Duration),
    /// Readings of the clock before which the core loses its processor. Off in every seeded plan:
    /// no code can act on a clock it has not read yet.
    pub jump_per_million: u32,
}

const fn us(n: u64) -> Duration {
    Duration::from_micros(n)
}

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

impl Default for FaultRates {
    /// A healthy machine: small random delays, now and then a split chunk, no fault.
    fn default() -> Self {
        Self {
            latency: (us(20), us(300)),
            split_per_million: 60_000,
            spike_per_million: 0,
            spike: (ms(5), ms(400)),
            window_bytes: (32 << 10, 512 << 10),
            mail: (Duration::from_nanos(200), us(8)),
            iteration: (Duration::from_nanos(300), us(4)),
            store: (us(20), us(400)),
            store_failed_per_million: 0,
            store_lost_per_million: 0,
            store_silent_per_million: 0,
            store_slow_per_million: 0,
            store_slow: (ms(20), ms(1500)),
            stall_per_million: 0,
            stall: (us(50), ms(60)),
            failpoint_per_million: 0,
            failpoint: (ms(1), ms(20_000)),
            jump_per_million: 0,
        }
    }
}

/// Which classes of faults a seeded plan may use. Each can be switched off by itself.
///
/// ```
/// use homing::sim::FaultClasses;
/// let no_kills = FaultClasses { kill: false, ..FaultClasses::all() };
/// assert!(no_kills.partition && !no_kills.kill);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultClasses {
    /// Late chunks and delayed links.
    pub delay: bool,
    /// Streams that break.
    pub reset: bool,
    /// Partitions.
    pub partition: bool,
    /// Nodes killed and started again.
    pub kill: bool,
    /// Nodes paused, beyond their lease too.
    pub pause: bool,
    /// Cores stalled.
    pub stall: bool,
    /// Store calls that fail.
    pub store_failed: bool,
    /// Store answers that are lost.
    pub store_lost: bool,
    /// A slow Store.
    pub store_slow: bool,
    /// Store outages, longer than a lease too.
    pub store_outage: bool,
    /// Draw for each seed which of these classes it uses, so that some seeds meet one class alone
    /// and some none.
    pub swarm: bool,
}

impl FaultClasses {
    /// Everything, drawn anew for each seed.
    #[must_use]
    pub const fn all() -> Self {
        Self {
            delay: true,
            reset: true,
            partition: true,
            kill: true,
            pause: true,
            stall: true,
            store_failed: true,
            store_lost: true,
            store_slow: true,
            store_outage: true,
            swarm: true,
        }
    }

    /// Nothing.
    #[must_use]
    pub const fn none() -> Self {
        Self {
            delay: false,
            reset: false,
            partition: false,
            kill: false,
            pause: false,
            stall: false,
            store_failed: false,
            store_lost: false,
            store_slow: false,
            store_outage: false,
            swarm: false,
        }
    }

    fn draw(mut self, rng: &mut SimRng) -> Self {
        if self.swarm {
            for class in [
                &mut self.delay,
                &mut self.reset,
                &mut self.partition,
                &mut self.kill,
                &mut self.pause,
                &mut self.stall,
                &mut self.store_failed,
                &mut self.store_lost,
                &mut self.store_slow,
                &mut self.store_outage,
            ] {
                // Two of five: most seeds mix a few classes, few seeds mix all.
                *class &= rng.below(5) < 2;
            }
        }
        self
    }
}

/// What a seeded plan is drawn for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultScope {
    /// Core count of each node.
    pub cores: Vec<u16>,
    /// First instant of a fault.
    pub from: Nanos,
    /// From here on no new fault; those that last are over by here too.
    pub to: Nanos,
    /// The length of a lease, so that some pauses and outages outlast it.
    pub lease: Duration,
    /// Mean time between two faults of a class.
    pub every: Duration,
}

/// What goes wrong. See the module's head.
///
/// ```
/// use homing::sim::{Death, Fault, FaultPlan, NodeIx};
/// use homing::time::Nanos;
/// let plan = FaultPlan::none().at(Nanos(5_000_000_000), Fault::Kill(NodeIx(1), Death::Silent));
/// assert_eq!(plan.schedule.len(), 1);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultPlan {
    /// What happens to single steps.
    pub rates: FaultRates,
    /// What happens when; in any order.
    pub schedule: Vec<(Nanos, Fault)>,
}

impl FaultPlan {
    /// No fault: a healthy machine with random small delays.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// The same plan with one more scheduled fault.
    #[must_use]
    pub fn at(mut self, at: Nanos, fault: Fault) -> Self {
        self.schedule.push((at, fault));
        self
    }

    /// Draws a plan from a seed.
    #[must_use]
    pub fn seeded(seed: u64, classes: FaultClasses, scope: &FaultScope) -> Self {
        let mut rng = SimRng::new(seed ^ 0xFA17);
        let classes = classes.draw(&mut rng);
        let mut plan = Self { rates: seeded_rates(classes, &mut rng), schedule: Vec::new() };
        Draw { rng, scope, plan: &mut plan }.all(classes);
        plan.schedule.sort_by_key(|&(at, _)| at);
        plan
    }
}

fn seeded_rates(classes: FaultClasses, rng: &mut SimRng) -> FaultRates {
    let mut rates = FaultRates {
        split_per_million: 20_000 + rng.below(300_000) as u32,
        latency: (us(10), us(30 + rng.below(2000))),
        ..FaultRates::default()
    };
    let mut rate = |on: bool, upto: u64| if on { rng.below(upto) as u32 + 1 } else { 0 };
    rates.spike_per_million = rate(classes.delay, 3000);
    rates.store_failed_per_million = rate(classes.store_failed, 60_000);
    rates.store_lost_per_million = rate(classes.store_lost, 60_000);
    rates.store_silent_per_million = rate(classes.store_lost, 10_000);
    rates.store_slow_per_million = rate(classes.store_slow, 60_000);
    rates.stall_per_million = rate(classes.stall, 800);
    rates
}

struct Draw<'a> {
    rng: SimRng,
    scope: &'a FaultScope,
    plan: &'a mut FaultPlan,
}

impl Draw<'_> {
    fn all(&mut self, classes: FaultClasses) {
        type Make<'d> = fn(&mut Draw<'d>, Nanos);
        let kinds: [(bool, Make<'_>); 8] = [
            (classes.delay, Self::delay),
            (classes.reset, Self::reset),
            (classes.partition, Self::partition),
            (classes.kill, Self::kill),
            (classes.pause, Self::pause),
            (classes.stall, Self::stall),
            (classes.store_slow, Self::store_slow),
            (classes.store_outage, Self::store_outage),
        ];
        for (on, make) in kinds {
            if on {
                self.repeat(make);
            }
        }
    }

    fn repeat(&mut self, make: fn(&mut Self, Nanos)) {
        let mean = duration_ns(self.scope.every).max(1);
        let mut at = self.scope.from;
        loop {
            at += Duration::from_nanos(mean / 4 + self.rng.below(mean * 3 / 2));
            if at >= self.scope.to {
                return;
            }
            make(self, at);
        }
    }

    fn node(&mut self) -> NodeIx {
        NodeIx(self.rng.below(self.scope.cores.len() as u64) as u16)
    }

    fn pair(&mut self) -> Option<(NodeIx, NodeIx)> {
        let n = self.scope.cores.len() as u64;
        if n < 2 {
            return None;
        }
        let a = self.rng.below(n);
        let b = (a + 1 + self.rng.below(n - 1)) % n;
        Some((NodeIx(a as u16), NodeIx(b as u16)))
    }

    /// A length between two bounds that ends before the scope does.
    fn lasts(&mut self, at: Nanos, low: Duration, high: Duration) -> Duration {
        self.rng.duration((low, high.max(low))).min(self.scope.to.since(at))
    }

    fn push(&mut self, at: Nanos, fault: Fault) {
        self.plan.schedule.push((at, fault));
    }

    fn delay(&mut self, at: Nanos) {
        if let Some((a, b)) = self.pair() {
            let by = self.rng.duration((ms(1), ms(300)));
            let lasts = self.lasts(at, ms(100), ms(5000));
            self.push(at, Fault::Delay { a, b, by, lasts });
        }
    }

    fn reset(&mut self, at: Nanos) {
        if let Some((a, b)) = self.pair() {
            let one = self.rng.below(2) == 0;
            self.push(at, if one { Fault::ResetOne(a, b) } else { Fault::ResetAll(a, b) });
        }
    }

    fn partition(&mut self, at: Nanos) {
        let n = self.scope.cores.len() as u16;
        let (mut from, mut to) = (Vec::new(), Vec::new());
        for i in 0..n {
            if self.rng.below(2) == 0 { &mut from } else { &mut to }.push(NodeIx(i));
        }
        let both = self.rng.below(4) != 0;
        let lasts = self.lasts(at, ms(50), Duration::from_secs(20));
        if !from.is_empty() && !to.is_empty() {
            self.push(at, Fault::Partition { from, to, both, lasts });
        }
    }

    fn kill(&mut self, at: Nanos) {
        let node = self.node();
        let death = match self.rng.below(3) {
            0 => Death::Reset,
            1 => Death::Eof,
            _ => Death::Silent,
        };
        let down = self.lasts(at, ms(20), self.scope.lease * 3 / 2);
        self.push(at, Fault::Kill(node, death));
        self.push(at + down, Fault::Start(node));
    }

    fn pause(&mut self, at: Nanos) {
        let node = self.node();
        let long = self.rng.below(2) == 0;
        let (low, high) =
            if long { (self.scope.lease, self.scope.lease * 2) } else { (ms(5), ms(2500)) };
        let lasts = self.lasts(at, low, high);
        self.push(at, Fault::Pause(node, lasts));
    }

    fn stall(&mut self, at: Nanos) {
        let node = self.node();
        let core = self.rng.below(u64::from(self.scope.cores[usize::from(node.0)])) as u16;
        let lasts = self.lasts(at, ms(1), ms(3000));
        self.push(at, Fault::Stall(node, core, lasts));
    }

    fn store_slow(&mut self, at: Nanos) {
        let by = self.rng.duration((ms(5), ms(1500)));
        let lasts = self.lasts(at, ms(100), ms(6000));
        let node = self.some_node();
        self.push(at, Fault::Store { node, mode: StoreMode::Slow(by), lasts });
    }

    fn store_outage(&mut self, at: Nanos) {
        let mode = match self.rng.below(3) {
            0 => StoreMode::Failing,
            1 => StoreMode::AnswerLost,
            _ => StoreMode::Silent,
        };
        let lasts = self.lasts(at, ms(100), self.scope.lease * 2);
        let node = self.some_node();
        self.push(at, Fault::Store { node, mode, lasts });
    }

    fn some_node(&mut self) -> Option<NodeIx> {
        (self.rng.below(2) == 0).then(|| self.node())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope() -> FaultScope {
        FaultScope {
            cores: vec![1, 2, 3],
            from: Nanos(1_000_000_000),
            to: Nanos(120_000_000_000),
            lease: Duration::from_secs(10),
            every: Duration::from_secs(10),
        }
    }

    #[test]
    fn a_seed_gives_one_plan_and_ends_in_time() {
        for seed in 0..50 {
            let plan = FaultPlan::seeded(seed, FaultClasses::all(), &scope());
            assert_eq!(plan, FaultPlan::seeded(seed, FaultClasses::all(), &scope()));
            for (at, fault) in &plan.schedule {
                let lasts = match fault {
                    Fault::Partition { lasts, .. }
                    | Fault::Delay { lasts, .. }
                    | Fault::Pause(_, lasts)
                    | Fault::Stall(_, _, lasts)
                    | Fault::Store { lasts, .. } => *lasts,
                    _ => Duration::ZERO,
                };
                assert!(*at + lasts <= scope().to, "{at} {fault:?}");
            }
        }
    }

    #[test]
    fn classes_switch_by_themselves() {
        let off = FaultPlan::seeded(3, FaultClasses::none(), &scope());
        assert!(off.schedule.is_empty());
        assert_eq!(off.rates.store_lost_per_million, 0);
        let kills = FaultClasses { kill: true, ..FaultClasses::none() };
        let plan = FaultPlan::seeded(3, kills, &scope());
        assert!(!plan.schedule.is_empty());
        assert!(
            plan.schedule.iter().all(|(_, f)| matches!(f, Fault::Kill(..) | Fault::Start(_))),
            "{plan:?}"
        );
    }
}
