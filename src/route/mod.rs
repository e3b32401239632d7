#![forbid(unsafe_code)]
//! Routes: where an object was when the Location Store was read last.
//!
//! A [`Route`] is a snapshot, never an authority (R2.2-4): the target decides whether it admits a
//! message (R2.1-3). The home core of an id keeps its route in a [`RouteCache`], which also holds
//! the [`NodeTable`]: what a core knows about every other node, its lease's deadline above all, so
//! that a deadline is kept once per node and not once per route.
//!
//! [`SharedRouteCache`] is the same cache in shared memory, where a [`RouteReader`] of any thread or
//! process can look things up too; [`RouteCache`] is what its tests compare it with.
//!
//! [`Resolution`] is the closed set of answers a resolver gives (R2.2b-1).

mod cache;
mod nodes;
mod shared;

pub use cache::{CacheCounters, InsertOutcome, RouteCache, RouteLifetimes};
pub use nodes::{NodeEntry, NodeSlot, NodeTable, Sighting};
pub use shared::{
    FoundRoute, InspectedRoute, NodesMut, RouteReader, SeenNode, SeenRoute, SharedRouteCache,
};

use crate::error::Error;
use crate::ids::{
    AuthorityOwnerGeneration, MeshName, NodeGeneration, NodeRid, ObjectGeneration, ObjectKey,
    OwnerLeaseGeneration, RouteFence, StoreVersion,
};

/// Where an object is, and the fences its owner checks (R2.2-1).
///
/// Rid, node generation and owner lease generation are in the fence; the lease's deadline,
/// endpoint and key id stand once per node in the [`NodeTable`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Route {
    /// Which object.
    pub key: ObjectKey,
    /// The mesh of the owner.
    pub mesh: MeshName,
    /// What the owner compares at admission.
    pub fence: RouteFence,
    /// The version of the authority row this was read from.
    pub store_version: StoreVersion,
}

impl Route {
    /// What a user sees of the route.
    #[must_use]
    pub fn info(&self) -> RouteInfo {
        RouteInfo {
            mesh: self.mesh.clone(),
            rid: self.fence.rid.clone(),
            object_generation: self.fence.object_generation,
            authority_owner_generation: self.fence.authority_owner_generation,
            node_generation: self.fence.node_generation,
            owner_lease_generation: self.fence.owner_lease_generation,
            store_version: self.store_version,
        }
    }
}

/// A route as a resolver shows it: where the object is, and under which fences (R2.2b-1).
///
/// It is information. No public call takes it as the target of a message (R2.1-1).
///
/// ```
/// # fn show(route: &homing::route::RouteInfo) {
/// println!("at {} in mesh {}", route.rid, route.mesh);
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RouteInfo {
    /// The owner's mesh.
    pub mesh: MeshName,
    /// The owner.
    pub rid: NodeRid,
    /// The incarnation.
    pub object_generation: ObjectGeneration,
    /// The tenure.
    pub authority_owner_generation: AuthorityOwnerGeneration,
    /// The lifecycle of the owner's node.
    pub node_generation: NodeGeneration,
    /// The owner's process lifecycle.
    pub owner_lease_generation: OwnerLeaseGeneration,
    /// The version of the authority row.
    pub store_version: StoreVersion,
}

/// What resolving an id answered. There are these four answers and no others (R2.2b-1).
///
/// ```
/// use homing::route::Resolution;
/// fn word(r: &Resolution) -> &'static str {
///     match r {
///         Resolution::ReadyRoute(_) => "there",
///         Resolution::Missing => "not there",
///         Resolution::Unavailable => "there, and not usable now",
///         Resolution::StoreFailure(_) => "nobody knows",
///     }
/// }
/// assert_eq!(word(&Resolution::Missing), "not there");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Resolution {
    /// A Ready object stands there, and its owner can be used.
    ReadyRoute(RouteInfo),
    /// No authority row: the id is free. Only the creation coordinator turns this into an end.
    Missing,
    /// The authority stands, but its owner cannot be used now: an object that is being made, one
    /// that is being cleaned up (R2.2b-2), or one whose owner's lease does not stand.
    Unavailable,
    /// The Store did not answer, so nothing is known.
    StoreFailure(Error),
}
