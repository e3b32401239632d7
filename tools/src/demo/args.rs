#![forbid(unsafe_code)]
//! The arguments of `homing demo`.

use clap::ValueEnum;
use clap::builder::RangedU64ValueParser;

use super::actor::Sabotage;

const EXAMPLES: &str = "\
Examples:
  homing demo                          three nodes, 10,000 Actors, 20 s
  homing demo --listen unix            the same over Unix sockets
  homing demo --nodes 5 --seconds 60   more nodes, for longer
  homing demo --payload 16384          larger messages
  homing demo --window 1               latency without queues
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

/// What moves the nodes' bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Driver {
    /// io_uring where the system allows it, else epoll.
    Auto,
    /// io_uring, or the demo cannot be carried out.
    Uring,
    /// epoll.
    Epoll,
}

impl Driver {
    /// Its name on the command line, which is the library's as well.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Uring => "uring",
            Self::Epoll => "epoll",
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

    /// Operations each sender has on their way at once; fewer when they are so large that a node
    /// would have over 8 MiB on their way
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = range::<u32>(1, 65_536))]
    window: u32,

    /// What the links are made of
    #[arg(long, value_enum, default_value_t = Listen::Tcp)]
    pub(crate) listen: Listen,

    /// What moves the nodes' bytes
    #[arg(long, value_enum, default_value_t = Driver::Auto)]
    pub(crate) driver: Driver,

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

/// Bytes of messages a node's senders have on their way at once. A core refuses more than 64 MiB
/// that wait for credit.
const MAX_FLIGHT_BYTES: u64 = 8 << 20;
/// What a message has beside its payload, at most.
const MESSAGE_BYTES: u64 = 256;

impl Args {
    /// Operations each sender has on their way at once.
    pub(crate) fn window(&self) -> usize {
        let message_bytes = u64::from(self.payload) + MESSAGE_BYTES;
        let most = MAX_FLIGHT_BYTES / (message_bytes * u64::from(self.senders));
        u64::from(self.window).min(most).max(1) as usize
    }
}

fn range<T: TryFrom<u64> + Clone + Send + Sync + 'static>(
    least: u64,
    most: u64,
) -> RangedU64ValueParser<T> {
    RangedU64ValueParser::new().range(least..=most)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    fn window(args: &[&str]) -> usize {
        Cli::parse_from([&["demo"], args].concat()).args.window()
    }

    #[test]
    fn large_messages_narrow_the_window() {
        assert_eq!(window(&[]), 64);
        assert_eq!(window(&["--window", "1000"]), 1000);
        assert_eq!(window(&["--payload", "1048576"]), 7);
        assert_eq!(window(&["--payload", "1048576", "--senders", "64"]), 1);
        assert_eq!(window(&["--payload", "1048576", "--window", "3"]), 3);
    }
}
