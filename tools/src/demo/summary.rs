#![forbid(unsafe_code)]
//! What a run came to: a page for people, one JSON object for programs.

use std::fmt::Write;
use std::time::Duration;

use serde_json::{Value, json};

use super::args::Args;
use super::figures::{Figures, Latency, grouped, per_second};
use super::ledger::Verdict;

/// Nodes up to which the table of who talked to whom is shown.
const MAX_MATRIX: usize = 5;
/// Columns of a row's text, on a page of 80.
const ROW_COLUMNS: usize = 67;

/// The load, as its senders saw it.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    pub(crate) create_time: Duration,
    pub(crate) drive_time: Duration,
    pub(crate) sends: u64,
    pub(crate) requests: u64,
    pub(crate) latency: Latency,
    pub(crate) cache_hits: u64,
    pub(crate) cache_misses: u64,
    pub(crate) store_reads: u64,
    pub(crate) store_commits: u64,
    pub(crate) frames: u64,
    pub(crate) credit_waits: u64,
}

impl Load {
    pub(crate) fn new(figures: &Figures, create_time: Duration, drive_time: Duration) -> Self {
        Self {
            create_time,
            drive_time,
            sends: figures.sends(),
            requests: figures.requests(),
            latency: figures.latency(),
            cache_hits: figures.cache_hits(),
            cache_misses: figures.cache_misses(),
            store_reads: figures.store_reads(),
            store_commits: figures.store_commits(),
            frames: figures.frames(),
            credit_waits: figures.credit_waits(),
        }
    }

    fn messages(&self) -> u64 {
        self.sends + self.requests
    }
}

/// A run that went to its end.
#[derive(Clone, Debug)]
pub(crate) struct Summary {
    pub(crate) load: Load,
    pub(crate) verdict: Verdict,
    /// Sentences of errors that senders saw.
    pub(crate) errors: Vec<String>,
    /// What moved the nodes' bytes.
    pub(crate) driver: String,
    pub(crate) whole_time: Duration,
}

/// How the demo ended.
pub(crate) enum Outcome {
    Ended(Box<Summary>),
    /// It could not be carried out.
    Failed(String),
    /// A signal ended it.
    Signal(i32),
}

/// Colours, or none.
#[derive(Clone, Copy)]
pub(crate) struct Colours(pub(crate) bool);

impl Colours {
    fn paint(self, code: &str, text: &str) -> String {
        if self.0 { format!("\x1b[1;{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    fn good(self, text: &str) -> String {
        self.paint("32", text)
    }

    fn bad(self, text: &str) -> String {
        self.paint("31", text)
    }
}

impl Summary {
    /// The page.
    pub(crate) fn page(&self, args: &Args, colours: Colours) -> String {
        let mut rows = Vec::new();
        self.load_rows(args, &mut rows);
        self.error_rows(&mut rows);
        self.comparison_rows(&mut rows);
        let mut page = format!("\n{}\n", headline(args));
        if let Some(sabotage) = args.sabotage {
            let _ = writeln!(page, "one delivery was tampered with: {sabotage:?}");
        }
        page.push('\n');
        for (name, text) in rows {
            let _ = writeln!(page, "  {name:<10} {text}");
        }
        page.push_str(&matrix(&self.verdict.matrix));
        page.push('\n');
        page.push_str(&self.judgement(colours));
        page
    }

    fn load_rows(&self, args: &Args, rows: &mut Vec<(&'static str, String)>) {
        let load = &self.load;
        rows.push((
            "created",
            format!(
                "{} Actors in {:.1} s: {} per second",
                grouped(u64::from(args.actors)),
                load.create_time.as_secs_f64(),
                grouped(per_second(u64::from(args.actors), load.create_time) as u64)
            ),
        ));
        rows.push((
            "messages",
            format!(
                "{} in {:.1} s: {} per second",
                grouped(load.messages()),
                load.drive_time.as_secs_f64(),
                grouped(per_second(load.messages(), load.drive_time) as u64)
            ),
        ));
        rows.push((
            "",
            format!(
                "{} sends admitted, {} requests answered",
                grouped(load.sends),
                grouped(load.requests)
            ),
        ));
        let Latency { p50, p99, p999, max } = load.latency;
        let [p50, p99, p999, max] = [p50, p99, p999, max].map(grouped);
        rows.push(("requests", format!("p50 {p50}   p99 {p99}   p99.9 {p999}   max {max} µs")));
        rows.push((
            "routes",
            format!(
                "{} cache hits, {} misses; {} Store reads, {} commits",
                grouped(load.cache_hits),
                grouped(load.cache_misses),
                grouped(load.store_reads),
                grouped(load.store_commits)
            ),
        ));
        rows.push((
            "links",
            format!(
                "{} frames sent with {}; {} sends waited for credit",
                grouped(load.frames),
                self.driver,
                grouped(load.credit_waits)
            ),
        ));
    }

    fn error_rows(&self, rows: &mut Vec<(&'static str, String)>) {
        let verdict = &self.verdict;
        if verdict.errors.is_empty() {
            rows.push(("errors", "none".to_owned()));
            return;
        }
        let kinds: Vec<String> =
            verdict.errors.iter().map(|(kind, n)| format!("{kind} {}", grouped(*n))).collect();
        rows.push(("errors", kinds.join(", ")));
        rows.push((
            "",
            format!(
                "of these {} were not handled and are excused; {} were",
                grouped(verdict.excused),
                grouped(verdict.failed_but_handled)
            ),
        ));
        for text in &self.errors {
            rows.extend(wrapped(text).map(|line| ("", line)));
        }
    }

    fn comparison_rows(&self, rows: &mut Vec<(&'static str, String)>) {
        let verdict = &self.verdict;
        rows.push((
            "compared",
            format!(
                "{} numbered messages with what {} Actors handled",
                grouped(verdict.sent),
                grouped(verdict.actors)
            ),
        ));
        let defects = verdict.defects();
        let show = |defects: &[(&str, u64)]| {
            let texts: Vec<String> =
                defects.iter().map(|(name, n)| format!("{name} {}", grouped(*n))).collect();
            texts.join("   ")
        };
        rows.push(("", show(&defects[..3])));
        rows.push(("", show(&defects[3..])));
        for text in &verdict.examples {
            rows.extend(wrapped(text).map(|line| ("", line)));
        }
    }

    fn judgement(&self, colours: Colours) -> String {
        match self.verdict.reason() {
            None => format!(
                "{}  A fresh process asked all {} Actors: none of {} messages was lost,\n        \
                 none doubled, every sender's order kept. ({:.0} s in all)\n",
                colours.good("PASSED"),
                grouped(self.verdict.actors),
                grouped(self.verdict.handled),
                self.whole_time.as_secs_f64()
            ),
            Some(reason) => format!("{}  {reason}\n", colours.bad("FAILED")),
        }
    }

    fn json(&self) -> Value {
        let Self { load, verdict, errors, driver, whole_time } = self;
        let defects: serde_json::Map<String, Value> =
            verdict.defects().iter().map(|(name, n)| (name.replace(' ', "_"), json!(n))).collect();
        json!({
            "verdict": if verdict.reason().is_none() { "passed" } else { "failed" },
            "reason": verdict.reason(),
            "driver": driver,
            "whole_seconds": whole_time.as_secs_f64(),
            "create_seconds": load.create_time.as_secs_f64(),
            "drive_seconds": load.drive_time.as_secs_f64(),
            "sends": load.sends,
            "requests": load.requests,
            "messages_per_second": per_second(load.messages(), load.drive_time),
            "request_us": {
                "p50": load.latency.p50,
                "p99": load.latency.p99,
                "p99_9": load.latency.p999,
                "max": load.latency.max,
            },
            "cache_hits": load.cache_hits,
            "cache_misses": load.cache_misses,
            "store_reads": load.store_reads,
            "store_commits": load.store_commits,
            "frames_sent": load.frames,
            "credit_waits": load.credit_waits,
            "errors": verdict.errors,
            "error_examples": errors,
            "excused": verdict.excused,
            "failed_but_handled": verdict.failed_but_handled,
            "sent": verdict.sent,
            "handled": verdict.handled,
            "actors_asked": verdict.actors,
            "defects": defects,
            "defect_examples": verdict.examples,
            "handled_from_node_to_node": verdict.matrix,
        })
    }
}

/// The outcome as one JSON object on one line.
pub(crate) fn json_line(args: &Args, outcome: &Outcome) -> String {
    let mut value = match outcome {
        Outcome::Ended(summary) => summary.json(),
        Outcome::Failed(why) => json!({ "verdict": "none", "reason": why }),
        Outcome::Signal(n) => json!({ "verdict": "none", "reason": format!("signal {n}") }),
    };
    value["settings"] = json!({
        "nodes": args.nodes,
        "actors": args.actors,
        "seconds": args.seconds,
        "payload_bytes": args.payload,
        "cores": args.cores,
        "senders": args.senders,
        "window": args.window(),
        "listen": args.listen.name(),
        "driver": args.driver.name(),
    });
    value.to_string()
}

/// What is run.
fn headline(args: &Args) -> String {
    format!(
        "{} over {}, {}, {} payload",
        counted(args.nodes, "node"),
        if args.listen.name() == "unix" { "Unix sockets" } else { "TCP" },
        counted(args.actors, "Actor"),
        counted(args.payload, "byte"),
    )
}

/// A number and its noun.
fn counted(number: u32, noun: &str) -> String {
    format!("{} {noun}{}", grouped(u64::from(number)), if number == 1 { "" } else { "s" })
}

/// Messages handled, by the sender's node (rows) and the Actor's node (columns).
fn matrix(cells: &[Vec<u64>]) -> String {
    let mut text = String::new();
    if !(2..=MAX_MATRIX).contains(&cells.len()) {
        return text;
    }
    text.push_str("\n  handled    ");
    for to in 0..cells.len() {
        let _ = write!(text, "{:>13}", format!("on node-{to}"));
    }
    for (from, row) in cells.iter().enumerate() {
        let _ = write!(text, "\n  from node-{from}");
        row.iter().for_each(|n| {
            let _ = write!(text, "{:>13}", grouped(*n));
        });
    }
    text.push('\n');
    text
}

/// A sentence as lines of a row.
fn wrapped(text: &str) -> impl Iterator<Item = String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= ROW_COLUMNS => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_are_wrapped_between_words() {
        let text = "word ".repeat(40);
        let lines: Vec<String> = wrapped(&text).collect();
        assert_eq!(lines.join(" "), text.trim());
        assert!(lines.iter().all(|line| line.len() <= ROW_COLUMNS), "{lines:?}");
        assert_eq!(lines.len(), 4);
    }

    #[test]
    fn who_talked_to_whom_is_shown_for_a_few_nodes() {
        let table = matrix(&[vec![1, 2], vec![3, 4_000]]);
        assert!(table.contains("from node-1            3        4,000"), "{table}");
        assert!(matrix(&vec![vec![1; 6]; 6]).is_empty());
    }
}
