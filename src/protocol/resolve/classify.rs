#![forbid(unsafe_code)]
//! What rows of the Store say about an id: a pure function of what was read.

use crate::error::Error;
use crate::ids::{NodeGeneration, ObjectKey, OwnerLeaseGeneration, StoreVersion};
use crate::route::{NodeTable, Resolution, Route};
use crate::store::records::{Authority, AuthorityState, DeadOwner};
use crate::time::Nanos;

/// An authority row as it was read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Row {
    /// What it says.
    pub authority: Authority,
    /// Its version.
    pub version: StoreVersion,
}

impl Row {
    /// The route the row describes.
    #[must_use]
    pub fn route(&self, key: ObjectKey) -> Route {
        Route {
            key,
            mesh: self.authority.mesh.clone(),
            fence: self.authority.fence(),
            store_version: self.version,
        }
    }

    /// The creation attempt that wrote the row, while it is Creating.
    #[must_use]
    pub fn attempt(&self) -> Option<u128> {
        match self.authority.state {
            AuthorityState::Creating { attempt } => Some(attempt),
            AuthorityState::Ready => None,
        }
    }
}

/// A live lease as it was read, or as a peer announced it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SeenLease {
    /// Whose it is.
    pub lease_generation: OwnerLeaseGeneration,
    /// Its local admission deadline, counted from before the read or the probe.
    pub admission_deadline: Nanos,
}

/// What is known about the owner a row names: from the node table while the deadline of exactly
/// that lifecycle stands, from this node itself for its own rows, else read in one call (owner
/// record, lease, descriptor).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OwnerSight {
    /// Why the owner counts as dead, as [`DeadOwner::of`] says from what was read; `None` while
    /// its lease stands.
    pub dead: Option<DeadOwner>,
    /// The live lease under the owner's rid.
    pub lease: Option<SeenLease>,
    /// The lifecycle its descriptor names; `None` when there is no descriptor.
    pub descriptor: Option<NodeGeneration>,
}

impl OwnerSight {
    /// What a node table's entry says about the owner of `row`: `None` unless the entry is of
    /// that lifecycle and its lease stands, so that the owner must be read.
    #[must_use]
    pub fn of_known(row: &Authority, nodes: &NodeTable, now: Nanos) -> Option<Self> {
        let node = nodes.at(nodes.slot_of(&row.fence())?).filter(|node| node.is_alive(now))?;
        Some(Self {
            dead: None,
            lease: Some(SeenLease {
                lease_generation: node.lease_generation,
                admission_deadline: node.admission_deadline,
            }),
            descriptor: Some(node.node_generation),
        })
    }
}

/// What the rows of an id say.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Classified {
    /// A Ready object whose owner can be used.
    Ready(Route),
    /// A creation.
    Creating {
        /// Why its creator counts as dead, so that the row may be cleared; `None` while it lives.
        dead: Option<DeadOwner>,
    },
    /// No row.
    Missing,
    /// The row stands and the owner cannot be used; the text says why.
    Unavailable(Box<str>),
}

/// Says what the rows of `key` mean at `now` (R2.2b-1).
///
/// `owner` is what is known about the owner the row names; it is not looked at without a row.
#[must_use]
pub fn classify(key: &ObjectKey, row: Option<&Row>, owner: &OwnerSight, now: Nanos) -> Classified {
    let Some(row) = row else { return Classified::Missing };
    let who = &row.authority;
    if row.attempt().is_some() {
        return Classified::Creating { dead: owner.dead };
    }
    let unavailable = |why: String| {
        let generation = who.node_generation;
        let text = format!("{key} belongs to node {}, generation {generation}, {why}", who.rid);
        Classified::Unavailable(text.into_boxed_str())
    };
    match (owner.dead, owner.lease, owner.descriptor) {
        (Some(DeadOwner::OwnerAbsent | DeadOwner::OwnerChanged(_)), ..) => {
            unavailable("which has ended; release the object to free its id".into())
        }
        (Some(DeadOwner::LeaseAbsent), ..) | (None, None, _) => {
            unavailable("whose lease does not stand".into())
        }
        (None, Some(lease), _) if lease.lease_generation != who.owner_lease_generation => {
            unavailable(format!(
                "with lease {}, but the lease that stands is {}",
                who.owner_lease_generation, lease.lease_generation
            ))
        }
        (None, Some(lease), _) if lease.admission_deadline <= now => {
            unavailable("whose lease is about to end".into())
        }
        (None, Some(_), Some(generation)) if generation == who.node_generation => {
            Classified::Ready(row.route(key.clone()))
        }
        (None, Some(_), Some(generation)) => {
            unavailable(format!("but the node's descriptor is of generation {generation}"))
        }
        (None, Some(_), None) => unavailable("which has no descriptor".into()),
    }
}

/// The answer to a waiter: the four of R2.2b-1, with what the node needs to act on them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    /// Go there.
    Ready(Route),
    /// For the creation coordinator alone.
    Missing,
    /// The authority stands, the owner cannot be used; the text says why.
    Unavailable(Box<str>),
    /// The Store did not answer.
    StoreFailure(Error),
}

impl Answer {
    /// What a user of the resolver sees.
    #[must_use]
    pub fn resolution(&self) -> Resolution {
        match self {
            Self::Ready(route) => Resolution::ReadyRoute(route.info()),
            Self::Missing => Resolution::Missing,
            Self::Unavailable(_) => Resolution::Unavailable,
            Self::StoreFailure(e) => Resolution::StoreFailure(e.clone()),
        }
    }

    /// How a message ends that got this answer; `None` for Ready, which is no end, and for
    /// Missing, which only the creation coordinator ends.
    #[must_use]
    pub fn terminal_error(&self) -> Option<Error> {
        match self {
            Self::Ready(_) | Self::Missing => None,
            Self::Unavailable(text) => Some(Error::unavailable(&**text)),
            Self::StoreFailure(e) => {
                Some(Error::unavailable(format!("the Location Store did not answer: {}", e.text())))
            }
        }
    }
}
