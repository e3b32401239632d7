#![forbid(unsafe_code)]
//! The arguments of `homing demo`.

use clap::ValueEnum;
use clap::builder::RangedU64ValueParser;

use super::actor::Sabotage;

const EXAMPLES: &str = "\
Examples:
  homing demo                          three nodes, 10,000 Actors, about 20 seconds
  homing demo --listen unix            the same over Unix sockets
  homing demo --nodes 5 --seconds 60   more nodes, for longer
  homing demo --payload 16384          larger messages
  homing demo --window 1               one operation at a time: latency without queues
  homing demo --json | tail -n 1 | jq  the figures for a program

Exit codes:
  0  the verdict is good
  1  a message was lost, doubled, swapped, ...
  2  the demo could not be carried out
  128 + the signal that ended it: 130 for Ctrl-C";

/// What the links between the nodes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Listen {
    /// TCP over loopback.
    Tcp,
    /// Unix sockets.
    Unix,
}

impl Listen {
    /// Its name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Unix => "unix",
        }
    }
}

/// Arguments of `homing demo`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Node processes
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = range::<u32>(1, 64))]
    pub(crate) nodes: u32,

    /// Actors, spread over the nodes
    #[arg(long, value_name = "N", default_value_t = 10_000,
          value_parser = range::<u32>(1, 1_000_000))]
    pub(crate) actors: u32,

    /// Seconds of load
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = range::<u64>(1, 3600))]
    pub(crate) seconds: u64,

    /// Bytes each message carries beside its number
    #[arg(long, value_name = "BYTES", default_value_t = 64,
          value_parser = range::<u32>(0, 1 << 20))]
    pub(crate) payload: u32,

    /// Core threads per node
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = range::<u16>(1, 256))]
    pub(crate) cores: u16,

    /// Sending threads per node; each is a sender with an order of its own
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = range::<u32>(1, 64))]
    pub(crate) senders: u32,

    /// Operations each sender has on their way at once
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = range::<u32>(1, 65_536))]
    pub(crate) window: u32,

    /// What the links are made of
    #[arg(long, value_enum, default_value_t = Listen::Tcp)]
    pub(crate) listen: Listen,

    /// Print the summary as one JSON object on the last line, too
    #[arg(long)]
    pub(crate) json: bool,

    /// Seconds after which a process that says nothing has failed
    #[arg(long, hide = true, value_name = "N", default_value_t = 30,
          value_parser = range::<u64>(1, 3600))]
    pub(crate) patience: u64,

    /// Tamper with a delivery: the verdict has to notice
    #[arg(long, hide = true, value_enum)]
    pub(crate) sabotage: Option<Sabotage>,
}

fn range<T: TryFrom<u64> + Clone + Send + Sync + 'static>(
    least: u64,
    most: u64,
) -> RangedU64ValueParser<T> {
    RangedU64ValueParser::new().range(least..=most)
}
