#![forbid(unsafe_code)]
//! What rows of the Store say about an id: a pure function of what was read.

use std::sync::Arc;

use crate::error::Error;
use crate::ids::{
    AuthorityOwnerGeneration, MeshName, NodeGeneration, NodeRid, ObjectGeneration, ObjectKey,
    OperationId, OwnerLeaseGeneration, RouteFence, StoreVersion,
};
use crate::route::{Resolution, Route};
use crate::time::Nanos;

/// One process lifecycle of a node, as an authority row names its owner.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OwnerIdentity {
    /// The node.
    pub rid: NodeRid,
    /// Its lifecycle.
    pub node_generation: NodeGeneration,
    /// Its process lifecycle, as its lease names it.
    pub lease_generation: OwnerLeaseGeneration,
}

/// How far the object of an authority row has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RowState {
    /// Its factory runs, or is about to.
    Creating,
    /// It takes messages.
    Ready,
}

/// What an authority row says.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RowView {
    /// How far the object has come.
    pub state: RowState,
    /// The row's version.
    pub version: StoreVersion,
    /// The incarnation.
    pub object_generation: ObjectGeneration,
    /// The tenure.
    pub authority_owner_generation: AuthorityOwnerGeneration,
    /// Who owns it.
    pub owner: OwnerIdentity,
    /// The owner's mesh.
    pub mesh: MeshName,
    /// The object's type.
    pub type_name: Arc<str>,
    /// The creation attempt that wrote the row first.
    pub attempt: OperationId,
}

impl RowView {
    /// The route the row describes.
    #[must_use]
    pub fn route(&self, key: ObjectKey) -> Route {
        Route {
            key,
            mesh: self.mesh.clone(),
            fence: RouteFence {
                object_generation: self.object_generation,
                rid: self.owner.rid.clone(),
                node_generation: self.owner.node_generation,
                authority_owner_generation: self.authority_owner_generation,
                owner_lease_generation: self.owner.lease_generation,
            },
            store_version: self.version,
        }
    }
}

/// What was read about a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LeaseSight {
    /// No live lease under the owner's rid: it lapsed or was released.
    Absent,
    /// A live lease.
    Held {
        /// Whose.
        lease_generation: OwnerLeaseGeneration,
        /// Its local admission deadline, counted from before the read.
        admission_deadline: Nanos,
    },
}

/// What is known about an owner: from the node table while its deadline stands, else read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OwnerSight {
    /// Its lease.
    pub lease: LeaseSight,
    /// The lifecycle its descriptor names; `None` when there is no descriptor.
    pub descriptor: Option<NodeGeneration>,
}

impl OwnerSight {
    /// Whether the lease `owner` had was seen lapsed: no lease stands under its rid, or one of a
    /// later process lifecycle does.
    #[must_use]
    pub fn is_lapsed(&self, owner: &OwnerIdentity) -> bool {
        match self.lease {
            LeaseSight::Absent => true,
            LeaseSight::Held { lease_generation, .. } => lease_generation > owner.lease_generation,
        }
    }
}

/// What the rows of an id say.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Classified {
    /// A Ready object whose owner can be used.
    Ready(Route),
    /// A creation.
    Creating {
        /// Whether its owner's lease was seen lapsed, so that the row may be cleared.
        owner_dead: bool,
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
pub fn classify(
    key: &ObjectKey,
    row: Option<&RowView>,
    owner: &OwnerSight,
    now: Nanos,
) -> Classified {
    let Some(row) = row else { return Classified::Missing };
    if row.state == RowState::Creating {
        return Classified::Creating { owner_dead: owner.is_lapsed(&row.owner) };
    }
    let who = &row.owner;
    let unavailable = |why: String| {
        let text =
            format!("{key} belongs to node {}, generation {}, {why}", who.rid, who.node_generation);
        Classified::Unavailable(text.into_boxed_str())
    };
    match owner.lease {
        LeaseSight::Absent => unavailable("whose lease does not stand".into()),
        LeaseSight::Held { lease_generation, .. } if lease_generation != who.lease_generation => {
            unavailable(format!(
                "with lease {}, but the lease that stands is {lease_generation}",
                who.lease_generation
            ))
        }
        LeaseSight::Held { admission_deadline, .. } if admission_deadline <= now => {
            unavailable("whose lease is about to end".into())
        }
        LeaseSight::Held { .. } => match owner.descriptor {
            Some(generation) if generation == who.node_generation => {
                Classified::Ready(row.route(key.clone()))
            }
            Some(generation) => {
                unavailable(format!("but the node's descriptor is of generation {generation}"))
            }
            None => unavailable("which has no descriptor".into()),
        },
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
