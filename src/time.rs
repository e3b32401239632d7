#![forbid(unsafe_code)]
//! Time as a value. Nothing here reads a clock; `Env` does (DESIGN §1.3).

use std::fmt;
use std::ops::{Add, AddAssign};
use std::time::Duration;

/// Nanoseconds since boot (CLOCK_BOOTTIME, which goes on during suspend), or since the start
/// of a simulated world.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(pub u64);

impl Nanos {
    /// Before everything.
    pub const ZERO: Self = Self(0);
    /// After everything: a deadline that never comes.
    pub const MAX: Self = Self(u64::MAX);

    /// Time from `earlier` to here; zero when `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// The instant `by` earlier, not before zero.
    #[must_use]
    pub const fn minus(self, by: Duration) -> Self {
        Self(self.0.saturating_sub(duration_ns(by)))
    }

    /// Milliseconds left until `self` as a frame carries them: at least 1 while any time is
    /// left, 0 only when the deadline has passed.
    #[must_use]
    pub fn remaining_ms(self, now: Self) -> u32 {
        let ns = self.0.saturating_sub(now.0);
        u32::try_from(ns.div_ceil(1_000_000)).unwrap_or(u32::MAX)
    }
}

/// A duration in nanoseconds, saturating.
#[must_use]
pub const fn duration_ns(d: Duration) -> u64 {
    let ns = d.as_nanos();
    if ns > u64::MAX as u128 { u64::MAX } else { ns as u64 }
}

impl Add<Duration> for Nanos {
    type Output = Self;
    fn add(self, by: Duration) -> Self {
        Self(self.0.saturating_add(duration_ns(by)))
    }
}

impl AddAssign<Duration> for Nanos {
    fn add_assign(&mut self, by: Duration) {
        *self = *self + by;
    }
}

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}s", self.0 / 1_000_000_000, self.0 % 1_000_000_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remaining_rounds_up_and_ends_at_zero() {
        let deadline = Nanos(5_000_001);
        assert_eq!(deadline.remaining_ms(Nanos(0)), 6);
        assert_eq!(deadline.remaining_ms(Nanos(5_000_000)), 1);
        assert_eq!(deadline.remaining_ms(Nanos(5_000_001)), 0);
        assert_eq!(Nanos::MAX.remaining_ms(Nanos(0)), u32::MAX);
    }

    #[test]
    fn sums_saturate() {
        assert_eq!(Nanos::MAX + Duration::from_secs(1), Nanos::MAX);
        assert_eq!(Nanos(5).since(Nanos(9)), Duration::ZERO);
    }
}
