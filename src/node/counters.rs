#![forbid(unsafe_code)]
//! What a node counts. One block per core in the node's region, written by that core alone, read
//! by anyone.

use crate::shm::{CounterSpec, ReadWords};

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

            /// The number under which the region has it: it follows from the label, and so stays
            /// with the counter across versions.
            #[must_use]
            pub const fn id(self) -> u32 {
                let label = self.label().as_bytes();
                let (mut id, mut at) = (0x811c_9dc5_u32, 0);
                while at < label.len() {
                    id = (id ^ label[at] as u32).wrapping_mul(0x0100_0193);
                    at += 1;
                }
                id
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
    /// Messages of others held back because the lease was lapsed when they came.
    HeldWhileLapsed = "held_while_lapsed",
}

/// The counters of a node's region.
pub(super) fn specs() -> Vec<CounterSpec> {
    let spec = |c: &Counter| CounterSpec { id: c.id(), label: c.label(), unit: "" };
    Counter::ALL.iter().map(spec).collect()
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
    pub(crate) fn sum(cores: &[ReadWords]) -> Self {
        let of_all = |at| cores.iter().fold(0u64, |sum, core| sum.wrapping_add(core.load(at)));
        Self((0..Counter::ALL.len()).map(of_all).collect())
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_two_counters_have_one_name_or_number_and_every_label_fits() {
        let specs = specs();
        assert_eq!(specs.iter().map(|s| s.id).collect::<BTreeSet<_>>().len(), specs.len());
        assert_eq!(specs.iter().map(|s| s.label).collect::<BTreeSet<_>>().len(), specs.len());
        assert!(specs.iter().all(|s| s.label.len() < 104 && s.id != 0));
        assert_eq!(Counter::CacheHits.id(), 0x5c84_1d08, "it stays with the label");
    }
}
