#![forbid(unsafe_code)]
//! What a node counts. One block per core, written by that core alone, read by anyone.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident = $label:literal,)*) => {
        /// One thing that is counted. The label is stable.
        ///
        /// ```
        /// assert_eq!(homing::Counter::CacheHits.label(), "cache_hits");
        /// ```
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(usize)]
        pub enum Counter { $($(#[$doc])* $name,)* }

        impl Counter {
            /// Every counter, in order.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The name under which it is shown.
            #[must_use]
            pub const fn label(self) -> &'static str {
                match self { $(Self::$name => $label,)* }
            }
        }
    };
}

counters! {
    /// Messages submitted to an owner on another node.
    SubmittedRemote = "submitted_remote",
    /// Messages put into the queue of an object on this node by a caller of this node.
    SubmittedLocal = "submitted_local",
    /// Messages from other nodes that were admitted.
    AdmittedRemote = "admitted_remote",
    /// Turns that ran to their end.
    TurnsHandled = "turns_handled",
    /// Turns that ended with an error of the handler or of decoding.
    TurnsFailed = "turns_failed",
    /// Turns that panicked.
    TurnsPanicked = "turns_panicked",
    /// One-way messages whose handler or decoding failed: nobody was told (R4-5).
    OneWayFailed = "one_way_failed",
    /// Direct messages whose route was in the cache.
    CacheHits = "cache_hits",
    /// Direct messages whose route had to be resolved.
    CacheMisses = "cache_misses",
    /// Keys read from the Location Store.
    StoreReads = "store_reads",
    /// Batches given to the Location Store.
    StoreCommits = "store_commits",
    /// Store calls without an answer.
    StoreFailures = "store_failures",
    /// Messages refused because a carried fence was stale (R2.1-3).
    RefusedStale = "refused_stale",
    /// One-way messages dropped because a carried fence was stale.
    DroppedStale = "dropped_stale",
    /// One-way messages dropped because their object was closed under them.
    DroppedClosed = "dropped_closed",
    /// Frames dropped because their link broke before they left, or before they were admitted.
    DroppedLinkLost = "dropped_link_lost",
    /// Replies sent to other nodes.
    RepliesSent = "replies_sent",
    /// Replies that could not be sent: no link to the origin (R4-5).
    RepliesUnroutable = "replies_unroutable",
    /// Replies that came after their request had ended (R4-6).
    RepliesLate = "replies_late",
    /// Requests that ended by their deadline.
    RequestsTimedOut = "requests_timed_out",
    /// Requests given up by their caller.
    RequestsCancelled = "requests_cancelled",
    /// Requests whose link broke: it is not known whether they ran.
    RequestsLinkLost = "requests_link_lost",
    /// Queued requests whose time was over before their turn.
    ExpiredInQueue = "expired_in_queue",
    /// Sends that waited for credit.
    CreditWaits = "credit_waits",
    /// Messages that went from one core of this node to another.
    CoreHops = "core_hops",
    /// Frames received.
    FramesIn = "frames_in",
    /// Frames sent.
    FramesOut = "frames_out",
    /// Links closed because the peer broke the protocol.
    ProtocolViolations = "protocol_violations",
    /// Links that came up.
    LinksUp = "links_up",
    /// Links that went down.
    LinksDown = "links_down",
    /// Objects created here.
    ObjectsCreated = "objects_created",
    /// Objects destroyed here.
    ObjectsDestroyed = "objects_destroyed",
    /// Times the node's own lease was found lapsed.
    LeaseLapses = "lease_lapses",
    /// 1 when the lifecycle is over for good: the node was released or replaced while its lease had
    /// lapsed.
    Fenced = "fenced",
    /// Messages of others held back because the lease was lapsed when they came.
    HeldWhileLapsed = "held_while_lapsed",
}

/// The counters of one core.
pub(crate) struct CoreCounters([AtomicU64; Counter::ALL.len()]);

impl Default for CoreCounters {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl CoreCounters {
    /// Adds; only the owning core calls this, so no read-modify-write is needed.
    pub(crate) fn add(&self, counter: Counter, by: u64) {
        let cell = &self.0[counter as usize];
        cell.store(cell.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
    }

    pub(crate) fn get(&self, counter: Counter) -> u64 {
        self.0[counter as usize].load(Ordering::Relaxed)
    }
}

/// The sums of a node's counters at an instant.
///
/// ```
/// # fn show(node: &homing::Node) {
/// use homing::Counter;
/// let c = node.counters();
/// println!("{} hits, {} misses", c.get(Counter::CacheHits), c.get(Counter::CacheMisses));
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counters(pub(crate) Vec<u64>);

impl Counters {
    pub(crate) fn sum<'a>(cores: impl Iterator<Item = &'a CoreCounters>) -> Self {
        let mut sums = vec![0; Counter::ALL.len()];
        for core in cores {
            for (sum, counter) in sums.iter_mut().zip(Counter::ALL) {
                *sum += core.get(*counter);
            }
        }
        Self(sums)
    }

    /// One counter.
    #[must_use]
    pub fn get(&self, counter: Counter) -> u64 {
        self.0[counter as usize]
    }

    /// All of them, with their labels.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        Counter::ALL.iter().map(|c| (c.label(), self.get(*c)))
    }
}
