#![forbid(unsafe_code)]
//! The figures of a run, from the ticks of its processes.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::driver::{MAX_LATENCY_NS, latencies};
use super::talk::Tick;

/// Latencies in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Latency {
    pub(crate) p50: u64,
    pub(crate) p99: u64,
    pub(crate) p999: u64,
    pub(crate) max: u64,
}

impl Latency {
    fn of(histogram: &Histogram<u64>) -> Self {
        let us = |quantile| histogram.value_at_quantile(quantile).div_ceil(1000);
        Self { p50: us(0.5), p99: us(0.99), p999: us(0.999), max: us(1.0) }
    }
}

/// Sums over all processes, and what happened lately.
pub(crate) struct Figures {
    nodes: Vec<Tick>,
    whole: Histogram<u64>,
    lately: Histogram<u64>,
    lately_since: Instant,
    lately_messages: u64,
}

impl Figures {
    pub(crate) fn new(nodes: usize) -> Self {
        Self {
            nodes: vec![Tick::default(); nodes],
            whole: latencies(),
            lately: latencies(),
            lately_since: Instant::now(),
            lately_messages: 0,
        }
    }

    pub(crate) fn tick(&mut self, at: usize, tick: Tick) {
        for (ns, count) in &tick.latencies {
            let ns = (*ns).min(MAX_LATENCY_NS);
            self.whole.saturating_record_n(ns, *count);
            self.lately.saturating_record_n(ns, *count);
        }
        self.nodes[at] = tick;
    }

    fn sum(&self, of: impl Fn(&Tick) -> u64) -> u64 {
        self.nodes.iter().map(of).sum()
    }

    /// Steps of the running order.
    pub(crate) fn progress(&self) -> u64 {
        self.sum(|t| t.progress)
    }

    /// A new order begins.
    pub(crate) fn begin(&mut self) {
        self.nodes.iter_mut().for_each(|t| t.progress = 0);
        let _ = self.take_lately();
    }

    pub(crate) fn sends(&self) -> u64 {
        self.sum(|t| t.sends)
    }

    pub(crate) fn requests(&self) -> u64 {
        self.sum(|t| t.requests)
    }

    pub(crate) fn errors(&self) -> u64 {
        self.sum(|t| t.errors)
    }

    pub(crate) fn cache_hits(&self) -> u64 {
        self.sum(|t| t.cache_hits)
    }

    pub(crate) fn cache_misses(&self) -> u64 {
        self.sum(|t| t.cache_misses)
    }

    pub(crate) fn store_reads(&self) -> u64 {
        self.sum(|t| t.store_reads)
    }

    pub(crate) fn store_commits(&self) -> u64 {
        self.sum(|t| t.store_commits)
    }

    pub(crate) fn frames(&self) -> u64 {
        self.sum(|t| t.frames)
    }

    pub(crate) fn credit_waits(&self) -> u64 {
        self.sum(|t| t.credit_waits)
    }

    /// Latencies of the whole run so far.
    pub(crate) fn latency(&self) -> Latency {
        Latency::of(&self.whole)
    }

    /// Messages per second and latencies since the last call.
    pub(crate) fn take_lately(&mut self) -> (f64, Latency) {
        let messages = self.sends() + self.requests();
        let ended = messages.saturating_sub(self.lately_messages);
        let rate = per_second(ended, self.lately_since.elapsed());
        let latency = Latency::of(&self.lately);
        self.lately.reset();
        self.lately_since = Instant::now();
        self.lately_messages = messages;
        (rate, latency)
    }
}

/// A rate; 0 for no time at all.
pub(crate) fn per_second(count: u64, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { count as f64 / time.as_secs_f64() }
}

/// A number with separators: 12,345.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped() {
        let all = [0, 999, 1000, 12_345, 100_000, 1_234_567].map(grouped);
        assert_eq!(all, ["0", "999", "1,000", "12,345", "100,000", "1,234,567"]);
    }

    #[test]
    fn ticks_are_summed_over_nodes_and_replace_their_own() {
        let mut figures = Figures::new(2);
        let tick = |sends, latencies| Tick { sends, latencies, progress: 1, ..Tick::default() };
        figures.tick(0, tick(5, vec![(1_000_000, 98)]));
        figures.tick(1, tick(7, vec![(5_000_000, 1)]));
        figures.tick(0, tick(9, vec![(5_000_000, 1)]));
        assert_eq!((figures.sends(), figures.progress()), (16, 2));
        let near = |us: u64, wanted: u64| us.abs_diff(wanted) * 500 <= wanted;
        let latency = figures.latency();
        assert!(near(latency.p50, 1000) && near(latency.p999, 5000), "{latency:?}");
        let (_, lately) = figures.take_lately();
        assert_eq!(lately, latency);
        assert_eq!(figures.take_lately().1.max, 0);
        figures.begin();
        assert_eq!((figures.sends(), figures.progress()), (16, 0));
    }
}
