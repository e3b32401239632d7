#![forbid(unsafe_code)]
//! What a segment measured.

use std::time::Instant;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// What one segment came to. Times are of one operation.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// Operations measured.
    pub(crate) ops: u64,
    /// From the start of the first to the end of the last.
    pub(crate) elapsed_ns: u64,
    pub(crate) p50_ns: f64,
    pub(crate) p99_ns: f64,
    pub(crate) p999_ns: f64,
    pub(crate) max_ns: f64,
    /// Of everything that was answered, in order.
    pub(crate) hash: u64,
    /// Allocations of the measuring process meanwhile, when they are counted.
    pub(crate) allocations: u64,
    /// Allocations of the target's process meanwhile, when it is another one and they are counted.
    pub(crate) target_allocations: u64,
}

impl Outcome {
    /// Mean time of an operation, in a closed loop or pipelined: what throughput is made of.
    pub(crate) fn mean_ns(&self) -> f64 {
        self.elapsed_ns as f64 / self.ops.max(1) as f64
    }
}

/// Collects the samples of a segment.
pub(crate) struct Samples {
    histogram: Histogram<u64>,
    /// Operations one sample stands for.
    batch: u64,
    started: Instant,
    at: Instant,
}

impl Samples {
    /// Starts the clock. Each sample will stand for `batch` operations.
    pub(crate) fn start(batch: u64) -> Self {
        let histogram = Histogram::new_with_bounds(1, 60_000_000_000, 3);
        let now = Instant::now();
        Self { histogram: histogram.expect("fixed bounds"), batch, started: now, at: now }
    }

    /// An operation, or a batch of them, begins.
    pub(crate) fn begin(&mut self) {
        self.at = Instant::now();
    }

    /// It has ended.
    pub(crate) fn end(&mut self) {
        self.histogram.saturating_record(self.at.elapsed().as_nanos() as u64);
    }

    /// Stops the clock.
    pub(crate) fn finish(self, hash: u64) -> Outcome {
        let elapsed_ns = self.started.elapsed().as_nanos() as u64;
        let batch = self.batch as f64;
        let at = |quantile| self.histogram.value_at_quantile(quantile) as f64 / batch;
        Outcome {
            ops: self.histogram.len() * self.batch,
            elapsed_ns,
            p50_ns: at(0.5),
            p99_ns: at(0.99),
            p999_ns: at(0.999),
            max_ns: self.histogram.max() as f64 / batch,
            hash,
            ..Outcome::default()
        }
    }
}

/// What a target answers to a number.
pub(crate) fn answer_to(number: u64) -> u64 {
    (number ^ 0x51_7c_c1_b7_27_22_0a_95).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29)
}

/// Takes one more number into a hash; the order counts.
pub(crate) fn fold(hash: u64, number: u64) -> u64 {
    (hash.rotate_left(5) ^ number).wrapping_mul(0x2545_F491_4F6C_DD1D)
}

/// The hash of the answers to the numbers `0..ops`.
pub(crate) fn hash_of_answers(ops: u64) -> u64 {
    (0..ops).fold(0, |hash, number| fold(hash, answer_to(number)))
}

/// The median of some figures; 0 of none.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => 0.0,
        n if n % 2 == 1 => values[middle],
        _ => (values[middle - 1] + values[middle]) / 2.0,
    }
}
