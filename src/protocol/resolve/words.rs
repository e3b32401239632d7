#![forbid(unsafe_code)]
//! What goes into the resolver and what comes out of it.

use super::{Answer, OwnerSight, Row};
use crate::error::Error;
use crate::ids::ObjectKey;
use crate::protocol::commit::CommitOutcome;
use crate::route::Route;
use crate::store::records::DeadOwner;
use crate::time::Nanos;

/// Names one Store call of this machine; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReadId(pub u64);

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// Somebody wants to know where `key` is and found nothing usable in the cache.
    Lookup {
        /// What.
        key: ObjectKey,
        /// Who.
        waiter: u64,
        /// When the waiter stops waiting.
        deadline: Nanos,
        /// Only a read issued after this call will do.
        fresh: bool,
    },
    /// The waiter does not wait any more.
    Cancel {
        /// What.
        key: ObjectKey,
        /// Who.
        waiter: u64,
    },
    /// An [`Effect::Read`] ended.
    RowAnswered {
        /// What.
        key: ObjectKey,
        /// Which read.
        read: ReadId,
        /// The row, or why there is no answer.
        row: Result<Option<Row>, Error>,
        /// The row's owner where it need not be read: see [`OwnerSight::of_known`].
        owner: Option<OwnerSight>,
    },
    /// An [`Effect::ReadOwner`] ended.
    OwnerAnswered {
        /// What.
        key: ObjectKey,
        /// Which read.
        read: ReadId,
        /// What was read.
        owner: Result<OwnerSight, Error>,
    },
    /// An [`Effect::Clear`] ended.
    Cleared {
        /// What.
        key: ObjectKey,
        /// Which clear.
        read: ReadId,
        /// How.
        outcome: CommitOutcome,
    },
    /// What was read about `key` before now is doubtful.
    Invalidated {
        /// What.
        key: ObjectKey,
    },
    /// What was read about anything before now is doubtful: the Store recovered.
    AllInvalidated,
    /// Time passed.
    Tick,
    /// The node shuts down: everybody waiting is answered.
    Shutdown,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Read the authority row; answer with [`Event::RowAnswered`].
    Read {
        /// What.
        key: ObjectKey,
        /// Under this name.
        read: ReadId,
        /// After this the answer is not waited for.
        until: Nanos,
    },
    /// Read owner record, lease and descriptor of the row's owner in one call; answer with
    /// [`Event::OwnerAnswered`].
    ReadOwner {
        /// For whom.
        key: ObjectKey,
        /// Under this name.
        read: ReadId,
        /// The row, which names the owner.
        row: Row,
        /// After this the answer is not waited for.
        until: Nanos,
    },
    /// Delete this Creating row while its creator is dead
    /// ([`crate::store::records::clear_dead_creating`]); answer with [`Event::Cleared`].
    Clear {
        /// What.
        key: ObjectKey,
        /// Under this name.
        read: ReadId,
        /// The row as it was read.
        row: Row,
        /// Why its creator counts as dead.
        dead: DeadOwner,
        /// After this the answer is not waited for.
        until: Nanos,
    },
    /// Put the route into the cache. Comes before the answers that use it.
    Insert(Route),
    /// Answer these waiters, in the order in which they called.
    Resolved {
        /// What.
        key: ObjectKey,
        /// Who.
        waiters: Vec<u64>,
        /// With what.
        answer: Answer,
    },
    /// The waiter's time ran out, or the node shuts down.
    Ended {
        /// What.
        key: ObjectKey,
        /// Who.
        waiter: u64,
        /// With what.
        error: Error,
    },
}

/// What a resolver counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ResolveCounters {
    /// Calls.
    pub lookups: u64,
    /// Row reads issued.
    pub reads: u64,
    /// Owner reads issued.
    pub owner_reads: u64,
    /// Reads that failed or were given up.
    pub failed_reads: u64,
    /// Answers of reads that began before an invalidation; they inserted nothing.
    pub outdated_reads: u64,
    /// Answers that came after they were given up.
    pub late_answers: u64,
    /// Rows of dead creators that were to be cleared.
    pub clears: u64,
    /// Waiters whose time ran out.
    pub expired: u64,
}
