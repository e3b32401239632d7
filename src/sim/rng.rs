#![forbid(unsafe_code)]
//! The simulator's random numbers: xoshiro256** filled by splitmix64.
//!
//! Both are small, published generators with known good statistics. They are written here so
//! that a seed means the same run on every machine and with every version of a dependency.
//! Every core, stream, fault plan and Store thread draws from a stream of its own
//! ([`SimRng::fork`]), so that one more draw in one place does not shift all others.

use std::time::Duration;

use crate::time::{Nanos, duration_ns};

/// One step of splitmix64: turns any number into a well mixed one.
pub(crate) const fn splitmix64(state: u64) -> u64 {
    let mut z = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// A seeded generator (xoshiro256**).
///
/// ```
/// use homing::sim::SimRng;
/// let mut a = SimRng::new(7);
/// let mut b = SimRng::new(7);
/// assert_eq!(a.next_u64(), b.next_u64());
/// assert!(a.below(10) < 10);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimRng {
    state: [u64; 4],
}

impl SimRng {
    /// A generator for `seed`; every seed is good, zero included.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        // Four outputs of splitmix64 are never all zero, which xoshiro could not leave.
        let a = splitmix64(seed);
        let b = splitmix64(a ^ seed);
        let c = splitmix64(b ^ seed.rotate_left(17));
        let d = splitmix64(c ^ seed.rotate_left(41));
        Self { state: [a, b, c, d | 1] }
    }

    /// A generator that depends on this one's seed position and on `label`, and on nothing drawn
    /// later from either.
    #[must_use]
    pub fn fork(&mut self, label: u64) -> Self {
        Self::new(self.next_u64() ^ splitmix64(label))
    }

    /// 64 random bits.
    pub const fn next_u64(&mut self) -> u64 {
        let s = &mut self.state;
        let out = s[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        out
    }

    /// A number below `bound`; 0 when `bound` is 0. The bias is below 2^-32 for the small bounds
    /// of a simulation.
    pub const fn below(&mut self, bound: u64) -> u64 {
        ((self.next_u64() as u128 * bound as u128) >> 64) as u64
    }

    /// Whether something that happens `per_million` times in a million happens now. Draws
    /// nothing when it never can, so that a fault class switched off costs nothing.
    pub const fn chance(&mut self, per_million: u32) -> bool {
        per_million > 0 && self.below(1_000_000) < per_million as u64
    }

    /// A duration of `range`, both ends included.
    pub fn duration(&mut self, range: (Duration, Duration)) -> Duration {
        let low = duration_ns(range.0);
        let span = duration_ns(range.1).saturating_sub(low);
        Duration::from_nanos(low + self.below(span.saturating_add(1)))
    }

    /// An instant of `range`, the end excluded.
    pub fn instant(&mut self, from: Nanos, to: Nanos) -> Nanos {
        Nanos(from.0 + self.below(to.0.saturating_sub(from.0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_repeat_and_differ() {
        let draw = |seed| {
            let mut r = SimRng::new(seed);
            (0..8).map(|_| r.next_u64()).collect::<Vec<_>>()
        };
        assert_eq!(draw(0), draw(0));
        assert_ne!(draw(0), draw(1));
        let mut base = SimRng::new(3);
        let (mut a, mut b) = (base.clone().fork(1), base.fork(2));
        assert_ne!(a.next_u64(), b.next_u64());
    }

    #[test]
    fn bounds_are_kept() {
        let mut r = SimRng::new(9);
        let mut seen = [false; 5];
        for _ in 0..1000 {
            seen[r.below(5) as usize] = true;
            let d = r.duration((Duration::from_nanos(3), Duration::from_nanos(5)));
            assert!((3..=5).contains(&d.as_nanos()));
        }
        assert_eq!(seen, [true; 5]);
        assert_eq!(r.below(0), 0);
        assert_eq!(r.instant(Nanos(4), Nanos(4)), Nanos(4));
        assert!(!r.chance(0));
        assert!(r.chance(1_000_000));
    }
}
