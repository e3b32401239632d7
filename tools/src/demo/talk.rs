#![forbid(unsafe_code)]
//! What the demo and its node processes say to each other: one JSON value per line, orders on the
//! node's standard input, reports on its standard output.

use std::collections::BTreeMap;
use std::io::{self, BufRead, Write};
use std::path::PathBuf;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::actor::Sabotage;
use super::ledger::Verdict;

/// What a node process is told first.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Config {
    pub(crate) rid: String,
    /// The number of the node; the one that asks afterwards has the number after the last.
    pub(crate) node: u32,
    /// Nodes that host Actors.
    pub(crate) nodes: u32,
    pub(crate) listen: String,
    /// As the library names it.
    pub(crate) driver: String,
    pub(crate) cores: u16,
    pub(crate) store: PathBuf,
    /// Where senders' logs are written.
    pub(crate) logs: PathBuf,
    pub(crate) actors: u32,
    pub(crate) senders: u32,
    pub(crate) window: usize,
    pub(crate) payload_bytes: usize,
    pub(crate) sabotage: Option<Sabotage>,
}

impl Config {
    /// The file of a sender's log.
    pub(crate) fn log_file(&self, sender: u32) -> PathBuf {
        self.logs.join(format!("sender-{sender}.log"))
    }
}

/// To a node process.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Order {
    /// Start the node.
    Start(Config),
    /// Create its share of the Actors.
    Create,
    /// Send and request for this time.
    Drive { milliseconds: u64 },
    /// Send every Actor one last message and one last request, and write the logs.
    Settle,
    /// Ask every Actor what it handled, and compare with the logs.
    Ask,
    /// Shut the node down.
    Stop,
}

/// From a node process.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Report {
    /// Where the node is dialled, and the driver it uses.
    Started { endpoint: String, driver: String },
    /// How far it is, at least once a second; the last one of an order comes before its end.
    Tick(Tick),
    /// An order was carried out.
    Done,
    /// The logs are written. The first error of each kind.
    Settled { errors: BTreeMap<String, String> },
    /// What the comparison found.
    Asked(Box<Verdict>),
    /// An order could not be carried out; the process ends.
    Failed { why: String },
}

/// Sums since the process started, but for the latencies.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Tick {
    /// Steps of the running order.
    pub(crate) progress: u64,
    pub(crate) sends: u64,
    pub(crate) requests: u64,
    pub(crate) errors: u64,
    /// Requests since the last tick: nanoseconds and how many took as long.
    pub(crate) latencies: Vec<(u64, u64)>,
    pub(crate) cache_hits: u64,
    pub(crate) cache_misses: u64,
    pub(crate) store_reads: u64,
    pub(crate) store_commits: u64,
    pub(crate) frames: u64,
    pub(crate) credit_waits: u64,
}

/// Writes one line.
pub(crate) fn say<T: Serialize>(to: &mut impl Write, value: &T) -> io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    to.write_all(&line)?;
    to.flush()
}

/// Reads one line; `None` at the end.
pub(crate) fn hear<T: DeserializeOwned>(from: &mut impl BufRead) -> io::Result<Option<T>> {
    let mut line = String::new();
    if from.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    serde_json::from_str(&line).map(Some).map_err(|e| {
        let shown: String = line.trim_end().chars().take(200).collect();
        io::Error::new(io::ErrorKind::InvalidData, format!("{e} in the line {shown:?}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_heard() {
        let mut pipe = Vec::new();
        say(&mut pipe, &Order::Drive { milliseconds: 5 }).unwrap();
        say(&mut pipe, &Order::Stop).unwrap();
        let mut from = pipe.as_slice();
        assert!(matches!(hear(&mut from), Ok(Some(Order::Drive { milliseconds: 5 }))));
        assert!(matches!(hear(&mut from), Ok(Some(Order::Stop))));
        assert!(matches!(hear::<Order>(&mut from), Ok(None)));
    }

    #[test]
    fn a_line_that_is_no_order_is_shown() {
        let e = hear::<Order>(&mut "thread 'main' panicked\n".as_bytes()).unwrap_err();
        assert!(e.to_string().contains("thread 'main' panicked"), "{e}");
    }
}
