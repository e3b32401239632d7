#![forbid(unsafe_code)]
//! What a side of the comparison is.

use homing::time::Nanos;

use crate::ids::Ids;

/// When all of it happens; on both sides the time of the loop, not a reading of the clock.
pub(crate) const NOW: Nanos = Nanos(1_000_000_000);
/// When entries and leases end.
pub(crate) const LATER: Nanos = Nanos(3_600_000_000_000);

/// What a look-up comes to: the numbers that a message to the object carries.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) object_generation: u64,
    pub(crate) authority_owner_generation: u64,
    pub(crate) store_version: u64,
    pub(crate) node_generation: u64,
    pub(crate) owner_lease_generation: u64,
    /// Which node, for its name and its connection.
    pub(crate) node: u64,
}

/// An entry of a map: what is seen, and both deadlines.
#[derive(Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) seen: Seen,
    pub(crate) expires_at: Nanos,
    pub(crate) admission_deadline: Nanos,
}

impl Entry {
    /// The entry of an id's number.
    pub(crate) fn of(number: usize, store_version: u64) -> Self {
        let node = number as u64 % NODES;
        Self {
            seen: Seen {
                object_generation: number as u64 + 1,
                authority_owner_generation: 1,
                store_version,
                node_generation: node + 1,
                owner_lease_generation: node + 1,
                node,
            },
            expires_at: LATER,
            admission_deadline: LATER,
        }
    }

    /// What is seen of it, while both deadlines hold.
    #[inline]
    pub(crate) fn usable(&self, now: Nanos) -> Option<Seen> {
        (now < self.expires_at && now < self.admission_deadline).then_some(self.seen)
    }
}

/// Owners that the entries are of.
pub(crate) const NODES: u64 = 4;

/// A thread's way to look routes up.
pub(crate) trait Reader {
    fn look_up(&mut self, id: &str, now: Nanos) -> Option<Seen>;
}

/// The one thread that writes.
pub(crate) trait Writer {
    /// Writes the entry of an id again, with a greater version.
    fn renew(&mut self, id: &str, number: usize, version: u64);
}

/// What the threads of a segment work with.
pub(crate) struct Threads<R, W> {
    pub(crate) reader: R,
    /// For the reader beside it.
    pub(crate) second: R,
    pub(crate) writer: W,
}

/// What holds routes.
pub(crate) trait Side {
    type Reader<'a>: Reader + Send
    where
        Self: 'a;
    type Writer<'a>: Writer + Send
    where
        Self: 'a;

    fn open(&mut self) -> Threads<Self::Reader<'_>, Self::Writer<'_>>;
}

/// A baseline.
pub(crate) trait Map: Side {
    const NAME: &'static str;

    /// One that holds the routes of these ids.
    fn fill(ids: &Ids) -> Self;
}
