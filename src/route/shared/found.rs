#![forbid(unsafe_code)]
//! What a look-up of the home core answers: numbers, without the names.

use super::super::{NodeEntry, NodeSlot, Route};
use crate::ids::{AuthorityOwnerGeneration, ObjectGeneration, ObjectKey, RouteFence, StoreVersion};

/// A usable route, as the home core's look-up found it. Numbers only, so that finding it touches
/// no reference count; [`SharedRouteCache::whole`](super::SharedRouteCache::whole) adds the names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FoundRoute {
    /// The incarnation.
    pub object_generation: ObjectGeneration,
    /// The tenure.
    pub authority_owner_generation: AuthorityOwnerGeneration,
    /// The version of the authority row.
    pub store_version: StoreVersion,
    /// The owner, as the cache's node table names it.
    pub owner: NodeSlot,
}

impl FoundRoute {
    /// The route with the names of its owner, which is `node`.
    pub(super) fn at(self, key: &ObjectKey, node: &NodeEntry) -> Route {
        Route {
            key: key.clone(),
            mesh: node.mesh.clone(),
            fence: RouteFence {
                object_generation: self.object_generation,
                rid: node.rid.clone(),
                node_generation: node.node_generation,
                authority_owner_generation: self.authority_owner_generation,
                owner_lease_generation: node.lease_generation,
            },
            store_version: self.store_version,
        }
    }
}
