#![forbid(unsafe_code)]
//! What a core does when it has nothing to do: look again and again (spin), or sleep (park).
//!
//! Waking a sleeping core costs 20 to 50 µs, so a core that expects work within that time had
//! better look for it. A core that looks takes a processor from whoever could use it. The adaptive
//! policy decides by two observations:
//!
//! - **How long idle times were.** An idle time short enough that spinning pays sets the budget to
//!   its most, [`MAX_SPIN`]; a longer one halves it. A quiet node soon parks at once, and the first
//!   two messages of a burst make it spin again.
//! - **Whether others want the processor.** While more threads of the machine are runnable than
//!   there are processors, it does not spin at all. That number is read from the system, so it is
//!   read rarely ([`LOAD_SAMPLE_INTERVAL`]) and only by a core that is about to spin.
//!
//! Nothing here reads a clock or the system; the caller passes both in.

use std::time::Duration;

use crate::time::Nanos;

/// Longest time an adaptive core spins before it parks.
pub const MAX_SPIN: Duration = Duration::from_micros(50);
/// An idle time up to this long would have been worth spinning through: [`MAX_SPIN`] and what a
/// wake-up costs.
const WORTH_SPINNING: Duration = Duration::from_micros(100);
/// Below this a budget counts as nothing.
const MIN_SPIN: Duration = Duration::from_micros(2);
/// How often an adaptive core asks how many threads are runnable, at most.
pub const LOAD_SAMPLE_INTERVAL: Duration = Duration::from_millis(10);

/// What a core does when it has nothing to do.
///
/// ```
/// use homing::exec::idle::Idle;
/// assert_eq!("park".parse::<Idle>(), Ok(Idle::Park));
/// assert_eq!(Idle::default(), Idle::Adaptive);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Idle {
    /// Spins up to 50 µs when that pays and no other thread wants the processor, then parks.
    #[default]
    Adaptive,
    /// Always spins: the least latency, a whole processor per core. It gives way to other threads
    /// only while a Store call is outstanding. For machines with processors to spare.
    Spin,
    /// Always parks at once: the least use of the processor, one wake-up (20 to 50 µs) per pause.
    Park,
}

impl std::str::FromStr for Idle {
    type Err = crate::Error;

    fn from_str(text: &str) -> Result<Self, crate::Error> {
        match text {
            "adaptive" => Ok(Self::Adaptive),
            "spin" => Ok(Self::Spin),
            "park" => Ok(Self::Park),
            _ => Err(crate::Error::not_configured(format!(
                "idle policy {text:?} is none of adaptive, spin, park"
            ))),
        }
    }
}

/// The state of one core's idle policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdlePolicy {
    idle: Idle,
    processors: u32,
    budget: Duration,
    crowded: bool,
    sampled_at: Option<Nanos>,
}

impl IdlePolicy {
    /// A policy on a machine with `processors` processors for this process.
    #[must_use]
    pub fn new(idle: Idle, processors: u32) -> Self {
        Self { idle, processors, budget: MAX_SPIN, crowded: false, sampled_at: None }
    }

    /// How long to spin from `now` on before parking; `None` spins for ever.
    ///
    /// `runnable` gives the number of threads of the machine that run or could, the caller
    /// included; it is called rarely. `None` (not known) counts as few.
    pub fn spin_budget(
        &mut self,
        now: Nanos,
        runnable: impl FnOnce() -> Option<u32>,
    ) -> Option<Duration> {
        match self.idle {
            Idle::Spin => None,
            Idle::Park => Some(Duration::ZERO),
            Idle::Adaptive if self.budget < MIN_SPIN => Some(Duration::ZERO),
            Idle::Adaptive => {
                if self.sampled_at.is_none_or(|at| now >= at + LOAD_SAMPLE_INTERVAL) {
                    self.sampled_at = Some(now);
                    self.crowded = runnable().is_some_and(|n| n > self.processors);
                }
                Some(if self.crowded { Duration::ZERO } else { self.budget })
            }
        }
    }

    /// Reports how long the core was idle, from the last thing it had to do to the next.
    pub fn idle_ended(&mut self, waited: Duration) {
        if waited <= WORTH_SPINNING {
            self.budget = MAX_SPIN;
        } else {
            self.budget /= 2;
        }
    }
}

/// The runnable threads in the text of `/proc/loadavg`: the number before the `/`.
///
/// ```
/// use homing::exec::idle::runnable_threads;
/// assert_eq!(runnable_threads("0.20 0.18 0.12 3/80 11206\n"), Some(3));
/// assert_eq!(runnable_threads("0.20"), None);
/// ```
#[must_use]
pub fn runnable_threads(loadavg: &str) -> Option<u32> {
    loadavg.split_whitespace().nth(3)?.split_once('/')?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: u64 = 1_000;

    #[test]
    fn spin_and_park_never_ask_for_the_load() {
        let ask = || panic!("asked");
        assert_eq!(IdlePolicy::new(Idle::Spin, 2).spin_budget(Nanos(1), ask), None);
        let parked = IdlePolicy::new(Idle::Park, 2).spin_budget(Nanos(1), ask);
        assert_eq!(parked, Some(Duration::ZERO));
    }

    #[test]
    fn adaptive_does_not_spin_while_the_machine_is_crowded() {
        let mut policy = IdlePolicy::new(Idle::Adaptive, 2);
        let interval = LOAD_SAMPLE_INTERVAL.as_nanos() as u64;
        assert_eq!(policy.spin_budget(Nanos(5), || Some(3)), Some(Duration::ZERO));
        let unasked = policy.spin_budget(Nanos(4 + interval), || panic!("asked too soon"));
        assert_eq!(unasked, Some(Duration::ZERO));
        assert_eq!(policy.spin_budget(Nanos(5 + interval), || Some(2)), Some(MAX_SPIN));
        assert_eq!(policy.spin_budget(Nanos(5 + 2 * interval), || None), Some(MAX_SPIN));
    }

    #[test]
    fn long_idle_times_end_spinning_and_a_short_one_brings_it_back() {
        let mut policy = IdlePolicy::new(Idle::Adaptive, 2);
        for _ in 0..5 {
            policy.idle_ended(Duration::from_millis(1));
        }
        let unasked = policy.spin_budget(Nanos(9), || panic!("a core that parks need not know"));
        assert_eq!(unasked, Some(Duration::ZERO));
        policy.idle_ended(Duration::from_nanos(30 * US));
        assert_eq!(policy.spin_budget(Nanos(9), || Some(1)), Some(MAX_SPIN));
    }

    #[test]
    fn never_more_than_fifty_microseconds() {
        assert_eq!(MAX_SPIN, Duration::from_micros(50));
        let mut policy = IdlePolicy::new(Idle::Adaptive, 2);
        for i in 0..1000u64 {
            policy.idle_ended(Duration::from_nanos(i * US));
            assert!(policy.spin_budget(Nanos(i), || None).unwrap() <= MAX_SPIN);
        }
    }

    #[test]
    fn the_load_text_is_read_or_refused() {
        for bad in ["", "1 2 3", "1 2 3 4", "1 2 3 x/4", "1 2 3 /4", "1 2 3 -1/4"] {
            assert_eq!(runnable_threads(bad), None, "{bad:?}");
        }
        assert!("sleep".parse::<Idle>().unwrap_err().text().contains("\"sleep\""));
    }
}
