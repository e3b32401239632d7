#![forbid(unsafe_code)]
//! What is seen while the demo works, on standard error: a bar and a live line on a terminal,
//! plain lines now and then otherwise.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::figures::{Figures, grouped};

/// How often the figures of the live line are made anew on a terminal, and elsewhere.
const LIVE_EVERY: Duration = Duration::from_millis(500);
const LINE_EVERY: Duration = Duration::from_secs(2);

/// The progress of the whole demo, one phase after another.
pub(crate) struct Progress {
    is_terminal: bool,
    bar: ProgressBar,
    text: String,
    began: Instant,
    live_at: Instant,
}

impl Progress {
    pub(crate) fn new() -> Self {
        Self {
            is_terminal: io::stderr().is_terminal(),
            bar: ProgressBar::hidden(),
            text: String::new(),
            began: Instant::now(),
            live_at: Instant::now(),
        }
    }

    /// A phase of `total` steps begins.
    pub(crate) fn begin(&mut self, text: &str, total: u64) {
        text.clone_into(&mut self.text);
        self.began = Instant::now();
        self.live_at = self.began;
        if !self.is_terminal {
            line(text);
            return;
        }
        self.bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{prefix:28} {bar:40.cyan} {percent:>3} %{msg}")
            .unwrap_or_else(|_| ProgressStyle::default_bar());
        self.bar.set_style(style.progress_chars("━╸─"));
        self.bar.set_prefix(text.to_owned());
        self.bar.tick();
    }

    /// How far the phase is; with the figures of the load when it has some.
    pub(crate) fn step(&mut self, position: u64, figures: &mut Figures, has_load: bool) {
        self.bar.set_position(position);
        let every = if self.is_terminal { LIVE_EVERY } else { LINE_EVERY };
        if !has_load || self.live_at.elapsed() < every {
            return;
        }
        self.live_at = Instant::now();
        let lines = live(figures);
        if self.is_terminal {
            self.bar.set_message(format!("\n  {}\n  {}", lines[0], lines[1]));
        } else {
            line(&format!("{:>4} s  {}", self.began.elapsed().as_secs(), lines[0]));
            line(&format!("        {}", lines[1]));
        }
    }

    /// The phase has ended; how long it took.
    pub(crate) fn end(&mut self) -> Duration {
        let took = self.began.elapsed();
        self.bar.finish_and_clear();
        let took_text = format!("{:.1} s", took.as_secs_f64());
        if self.is_terminal {
            line(&format!("{:60} {took_text:>8}", self.text));
        } else {
            line(&format!("  took {took_text}"));
        }
        took
    }

    /// A line beside the bar.
    pub(crate) fn say(&self, text: &str) {
        self.bar.suspend(|| line(text));
    }

    /// Takes the bar away, when the demo ends before its time.
    pub(crate) fn abandon(&self) {
        self.bar.finish_and_clear();
    }
}

/// A line on standard error; nobody may be reading.
fn line(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// The live lines, at most 78 columns each.
fn live(figures: &mut Figures) -> [String; 2] {
    let (rate, latency) = figures.take_lately();
    let errors = match figures.errors() {
        0 => String::new(),
        errors => format!("   errors {}", grouped(errors)),
    };
    [
        format!(
            "{:>9} msg/s   requests p50 {}  p99 {}  p99.9 {} µs",
            grouped(rate as u64),
            grouped(latency.p50),
            grouped(latency.p99),
            grouped(latency.p999)
        ),
        format!(
            "{:>9} cache hits   {} misses   {} Store reads{errors}",
            grouped(figures.cache_hits()),
            grouped(figures.cache_misses()),
            grouped(figures.store_reads())
        ),
    ]
}
