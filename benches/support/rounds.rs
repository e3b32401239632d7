#![forbid(unsafe_code)]
//! Rounds of A-B-B-A: the subject and its baseline take turns, so that a slow minute hits both.

use super::samples::{Outcome, median};

/// A figure over all rounds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

impl Spread {
    pub(crate) fn of(values: &[f64]) -> Self {
        Self {
            median: median(values.to_vec()),
            low: values.iter().copied().fold(f64::INFINITY, f64::min),
            high: values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        }
    }
}

/// Both sides of one case.
pub(crate) struct Compared {
    pub(crate) subject: Vec<Outcome>,
    pub(crate) baseline: Vec<Outcome>,
}

impl Compared {
    /// Runs the rounds. Every segment of a side must answer the same: that is checked.
    pub(crate) fn run(
        rounds: usize,
        mut subject: impl FnMut() -> Outcome,
        mut baseline: impl FnMut() -> Outcome,
    ) -> Self {
        let (mut a, mut b) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            a.push(subject());
            b.push(baseline());
            b.push(baseline());
            a.push(subject());
        }
        for side in [&a, &b] {
            assert!(side.iter().all(|s| s.hash == side[0].hash), "a side's work differs");
        }
        Self { subject: a, baseline: b }
    }

    /// A figure of the subject's segments.
    pub(crate) fn subject(&self, of: impl Fn(&Outcome) -> f64) -> Spread {
        Spread::of(&self.subject.iter().map(of).collect::<Vec<_>>())
    }

    /// A figure of the baseline's segments.
    pub(crate) fn baseline(&self, of: impl Fn(&Outcome) -> f64) -> Spread {
        Spread::of(&self.baseline.iter().map(of).collect::<Vec<_>>())
    }

    /// Subject over baseline, one ratio per round.
    pub(crate) fn ratio(&self, of: impl Fn(&Outcome) -> f64) -> Spread {
        let sums = |side: &[Outcome]| -> Vec<f64> {
            side.chunks(2).map(|pair| pair.iter().map(&of).sum()).collect()
        };
        let (a, b) = (sums(&self.subject), sums(&self.baseline));
        Spread::of(&a.iter().zip(&b).map(|(a, b)| a / b).collect::<Vec<_>>())
    }

    /// The hash of all the work, for the end of the bench's output.
    pub(crate) fn hash(&self) -> u64 {
        let segments = self.subject.iter().chain(&self.baseline);
        segments.fold(0, |hash, segment| super::samples::fold(hash, segment.hash))
    }
}
