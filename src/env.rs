#![forbid(unsafe_code)]
//! The one door (DESIGN §1.3): everything a core gets from outside comes through [`Env`].
//!
//! The real one is the kernel (`node::real`), the simulated one is `sim`. The same core loop runs
//! over both, with static dispatch. Nothing else reads a clock, draws a random number, touches a
//! socket, starts a thread or calls a Store.
//!
//! A core's loop asks [`Env::poll`] for what happened, handles it, and hands back writes, mail and
//! Store calls. `Env` methods never block except `poll`, and never call back.

mod failpoint;

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;
use crate::location::{Batch, BatchOutcome, Cursor, Key, ReadAnswer, ScanPage, StoreError};
use crate::time::Nanos;

pub use failpoint::Failpoint;

/// Where a node listens or is dialled.
///
/// ```
/// use homing::env::Endpoint;
/// let tcp: Endpoint = "tcp://127.0.0.1:7000".parse()?;
/// let unix: Endpoint = "unix:///run/game/a.sock".parse()?;
/// assert!(tcp.is_local() && unix.is_local());
/// assert_eq!(unix.to_string(), "unix:///run/game/a.sock");
/// # Ok::<(), homing::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Endpoint {
    /// `tcp://address:port`
    Tcp(SocketAddr),
    /// `unix:///path`
    Unix(PathBuf),
}

/// Longest path of a Unix socket (the kernel's `sun_path` less its NUL).
pub const MAX_UNIX_PATH_BYTES: usize = 107;

impl Endpoint {
    /// Whether only processes of this machine can reach it: loopback or a Unix socket.
    #[must_use]
    pub fn is_local(&self) -> bool {
        match self {
            Self::Tcp(addr) => addr.ip().is_loopback(),
            Self::Unix(_) => true,
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(addr) => write!(f, "tcp://{addr}"),
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
        }
    }
}

impl std::str::FromStr for Endpoint {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        if let Some(addr) = text.strip_prefix("tcp://") {
            let addr = if let Some(port) = addr.strip_prefix("localhost:") {
                format!("127.0.0.1:{port}").parse()
            } else {
                addr.parse()
            };
            return addr.map(Self::Tcp).map_err(|_| {
                Error::not_configured(format!(
                    "endpoint {text:?} has no IP address and port after tcp://; write for example \
                     tcp://127.0.0.1:7000 (port 0 takes a free one)"
                ))
            });
        }
        if let Some(path) = text.strip_prefix("unix://") {
            if !path.starts_with('/') || path.len() > MAX_UNIX_PATH_BYTES || path.contains('\0') {
                return Err(Error::not_configured(format!(
                    "endpoint {text:?} needs an absolute path of at most {MAX_UNIX_PATH_BYTES} \
                     bytes after unix://; write for example unix:///run/game/a.sock"
                )));
            }
            return Ok(Self::Unix(PathBuf::from(path)));
        }
        Err(Error::not_configured(format!(
            "endpoint {text:?} starts with neither tcp:// nor unix://"
        )))
    }
}

/// A byte stream, as one core knows it. Never used again once the stream is closed or handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(pub u64);

/// Why a byte stream ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CloseReason {
    /// The dial did not get through.
    DialFailed(String),
    /// The peer closed in an orderly way.
    Eof,
    /// The kernel reported an error.
    Failed(String),
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DialFailed(text) => write!(f, "dial failed: {text}"),
            Self::Eof => f.write_str("closed by the peer"),
            Self::Failed(text) => f.write_str(text),
        }
    }
}

/// A call to the Location Store.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum StoreOp {
    /// Read records. Reads waiting together are joined into one call of the provider.
    Read(Vec<Key>),
    /// Commit one batch.
    Commit(Batch),
    /// One page of a scan.
    Scan {
        /// What the keys start with.
        prefix: Key,
        /// Where to go on.
        cursor: Option<Cursor>,
        /// Records at most.
        limit: usize,
    },
}

/// The answer to a [`StoreOp`] of the same shape.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum StoreAnswer {
    /// To `Read`.
    Read(ReadAnswer),
    /// To `Commit`.
    Commit(BatchOutcome),
    /// To `Scan`.
    Scan(ScanPage),
    /// No answer.
    Failed(StoreError),
}

/// One thing that happened.
#[derive(Debug)]
pub enum Event<M> {
    /// Mail from a core of this node or from an application thread.
    Mail(M),
    /// A Store call ended. A call whose core stopped waiting may still answer.
    Store {
        /// From [`Env::store`].
        token: u64,
        /// How it ended.
        answer: StoreAnswer,
    },
    /// Somebody connected to the endpoint this core listens on.
    Accepted {
        /// The new stream.
        conn: ConnId,
    },
    /// A dial got through.
    Connected {
        /// The stream that [`Env::dial`] named.
        conn: ConnId,
    },
    /// Another core handed a stream over.
    Adopted {
        /// The stream, under its id here.
        conn: ConnId,
        /// From [`Env::hand_over`].
        tag: u64,
        /// What the other core had read and not used. Everything received later follows it.
        unread: Vec<u8>,
    },
    /// Bytes came in, in order.
    Received {
        /// From which stream.
        conn: ConnId,
        /// At least one byte.
        bytes: Vec<u8>,
    },
    /// The stream ended by itself; its id is gone. Not reported after [`Env::close`].
    Closed {
        /// Which stream.
        conn: ConnId,
        /// Why.
        reason: CloseReason,
    },
}

/// What the node knows about its own lease at an instant, published by the lease thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeaseView {
    /// The end of the lease less the admission margin, on this node's clock. Nothing is
    /// admitted, run or answered from here on until a renewal moves it.
    pub admission_deadline: Nanos,
    /// Released or taken by somebody else: it will never be held again by this lifecycle.
    pub fenced: bool,
}

impl LeaseView {
    /// Whether the node may act as an owner at `now`.
    #[must_use]
    pub fn is_alive(&self, now: Nanos) -> bool {
        !self.fenced && now < self.admission_deadline
    }
}

/// Mail from any thread to a core. Linearizable: one thread's mails to one core keep their order.
pub trait Post<M>: Send + Sync {
    /// Puts `mail` into the mailbox of core `to` and wakes it when it sleeps. Mail to a core that
    /// has ended is dropped.
    fn post(&self, to: u16, mail: M);
}

/// Faults planted by the simulator's own tests (DESIGN: the simulator can fail on purpose). In
/// the real `Env` the answer is a constant `false`, which the compiler removes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Planted {
    /// Admission does not look at the carried fences.
    SkipAdmissionFence,
    /// A reply is sent twice, the second under the next operation's nose.
    DoubleReply,
    /// Messages that arrive while the id resolves go past those that wait.
    DropFifoWhileResolving,
    /// A correlation is used again while a late reply can still come.
    ReuseCorrelation,
    /// A read that began before an invalidation inserts its route.
    InsertAfterInvalidation,
    /// Turns run and replies leave after the lease lapsed.
    AnswerAfterLease,
    /// An `Unavailable` is kept and given to later calls.
    CacheUnavailable,
    /// A creator that lost the race runs its factory all the same.
    RunTwoFactories,
    /// A message that had to wait for credit is dropped.
    LoseMessageOnCredit,
    /// A one-way message is submitted again when its link broke.
    ResubmitAfterLinkLoss,
    /// A commit whose answer was lost is taken for committed without a read.
    GuessLostCommit,
    /// A request is settled a second time by its deadline.
    SettleTwice,
}

/// Everything one core gets from outside. See the module's head.
pub trait Env {
    /// What cores and application threads send each other.
    type Mail: Send + 'static;

    /// This core's index.
    fn core(&self) -> u16;

    /// The clock, read afresh.
    fn now(&mut self) -> Nanos;

    /// 64 random bits.
    fn random(&mut self) -> u64;

    /// The node's own lease, as the lease thread published it last.
    fn lease(&self) -> LeaseView;

    /// Appends what happened to `events`. When nothing did, waits until something does or the
    /// clock reaches `park_until` ([`Nanos::ZERO`]: does not wait). Bounded work per call.
    fn poll(&mut self, events: &mut Vec<Event<Self::Mail>>, park_until: Nanos);

    /// Sends mail to a core of this node (itself included). In order per pair of cores.
    fn mail(&mut self, to: u16, mail: Self::Mail);

    /// The door for other threads.
    fn poster(&self) -> Arc<dyn Post<Self::Mail>>;

    /// Starts a Store call. It answers with [`Event::Store`] on this core, usually once; a caller
    /// keeps its own timer and must live with no answer at all. `budget` is the time it has left.
    fn store(&mut self, token: u64, op: StoreOp, budget: Duration);

    /// Starts a dial. Ends in `Connected` or `Closed`.
    fn dial(&mut self, endpoint: &Endpoint) -> ConnId;

    /// Queues bytes for a stream and leaves `bytes` empty. Bytes leave in order, in this call or in
    /// the next [`Env::poll`]; what the kernel does not take then is sent as it does. Nothing happens for a stream that is gone.
    fn write(&mut self, conn: ConnId, bytes: &mut Vec<u8>);

    /// Bytes queued for the stream that the kernel has not taken; 0 for a stream that is gone.
    fn unsent_bytes(&self, conn: ConnId) -> usize;

    /// Closes a stream. Bytes queued that the kernel has not taken are lost unless `flush`, which
    /// gives the kernel one more chance without waiting. No event follows.
    fn close(&mut self, conn: ConnId, flush: bool);

    /// Moves a stream to another core, with bytes this core read and did not use, and with bytes
    /// queued and not sent. The other core gets `Adopted` with `tag`. Handing over to this core
    /// itself is allowed.
    fn hand_over(&mut self, conn: ConnId, to: u16, tag: u64, unread: Vec<u8>);

    /// Stops listening (a node that shuts down). Only on core 0.
    fn stop_listening(&mut self);

    /// A named step of a protocol was reached. Nothing happens unless a test armed it (feature
    /// `failpoints`, or the simulator): then the node may have been stopped when this returns.
    fn reached(&mut self, point: Failpoint) {
        let _ = point;
    }

    /// Whether this fault is planted. See [`Planted`].
    fn planted(&self, fault: Planted) -> bool {
        let _ = fault;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_read_back() {
        for good in ["tcp://127.0.0.1:0", "tcp://[::1]:80", "unix:///a/b"] {
            assert_eq!(good.parse::<Endpoint>().unwrap().to_string(), good);
        }
        for bad in ["", "127.0.0.1:1", "tcp://", "tcp://host", "unix://rel", "udp://1.1.1.1:1"] {
            let e = bad.parse::<Endpoint>().unwrap_err();
            assert!(e.text().contains(&format!("{bad:?}")), "{e}");
        }
        assert!(!"tcp://10.0.0.1:1".parse::<Endpoint>().unwrap().is_local());
    }
}
