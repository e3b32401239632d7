#![forbid(unsafe_code)]
//! Session binding and the seal of a bound Actor's move.

use super::field::{Codec, Reader, Sink, numbers};
use super::message::RouteFenceRef;
use super::rule::{Rule, WireError};
use crate::ids::{
    AuthorityOwnerGeneration, BindingGeneration, Correlation, NodeGeneration, ObjectGeneration,
    OwnerLeaseGeneration, RelocationId,
};

numbers! {
    /// What a bind asks for.
    BindState: u8 {
        /// Register the binding.
        Active = 1,
        /// Retire it.
        Tombstone = 2,
    }
}

/// Record 38 `boundSessionBind`.
///
/// | | body, in order |
/// |---|---|
/// | 38 boundSessionBind | gen correlation, actor route-fence, rid session, u8 state (1 active, 2 tombstone), u16 body length, gen binding |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SessionBind<'a> {
    /// Of the reply.
    pub correlation: Correlation,
    /// The Actor.
    pub id: &'a str,
    /// The route of the Actor.
    pub fence: RouteFenceRef<'a>,
    /// The session.
    pub session: &'a [u8],
    /// Register or retire.
    pub state: BindState,
    /// The binding, or the one that is retired.
    pub binding_generation: BindingGeneration,
}

impl<'a> Codec<'a> for SessionBind<'a> {
    fn get(r: &mut Reader<'a>) -> Result<Self, WireError> {
        Ok(Self {
            correlation: r.fence(Correlation::new)?,
            id: r.text8()?,
            fence: RouteFenceRef::get(r)?,
            session: r.rid()?,
            state: r.choice(Reader::u8, BindState::from_number, Rule::BindState)?,
            binding_generation: r.body(Reader::u16, |r| r.fence(BindingGeneration::new))?,
        })
    }

    fn put<S: Sink>(&self, s: &mut S) {
        s.u64(self.correlation.get());
        s.text8(self.id);
        self.fence.put(s);
        s.rid(self.session);
        s.u8(self.state.number());
        s.body16(|s| s.u64(self.binding_generation.get()));
    }
}

/// Who coordinates a relocation, and the store version it started from.
///
/// | name | layout |
/// |---|---|
/// | coordinator fence | text8 owner id, gen owner lease, rid node, gen node, text16 expected store version |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CoordinatorFence<'a> {
    /// The owner.
    pub owner_id: &'a str,
    /// Its lease.
    pub owner_lease_generation: OwnerLeaseGeneration,
    /// Its node.
    pub rid: &'a [u8],
    /// The node's lifecycle.
    pub node_generation: NodeGeneration,
    /// The store version that the commit expects, as text.
    pub expected_store_version: &'a str,
}

impl<'a> Codec<'a> for CoordinatorFence<'a> {
    fn get(r: &mut Reader<'a>) -> Result<Self, WireError> {
        Ok(Self {
            owner_id: r.text8()?,
            owner_lease_generation: r.fence(OwnerLeaseGeneration::new)?,
            rid: r.rid()?,
            node_generation: r.fence(NodeGeneration::new)?,
            expected_store_version: r.text16()?,
        })
    }

    fn put<S: Sink>(&self, s: &mut S) {
        s.text8(self.owner_id);
        s.u64(self.owner_lease_generation.get());
        s.rid(self.rid);
        s.u64(self.node_generation.get());
        s.text16(self.expected_store_version);
    }
}

/// The node that holds a session, and the binding.
///
/// | name | layout |
/// |---|---|
/// | session owner fence | rid node, gen node, text8 owner id, gen owner lease, rid session, gen binding |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SessionOwnerFence<'a> {
    /// The node.
    pub rid: &'a [u8],
    /// Its lifecycle.
    pub node_generation: NodeGeneration,
    /// The owner.
    pub owner_id: &'a str,
    /// Its lease.
    pub owner_lease_generation: OwnerLeaseGeneration,
    /// The session.
    pub session: &'a [u8],
    /// The binding.
    pub binding_generation: BindingGeneration,
}

impl<'a> Codec<'a> for SessionOwnerFence<'a> {
    fn get(r: &mut Reader<'a>) -> Result<Self, WireError> {
        Ok(Self {
            rid: r.rid()?,
            node_generation: r.fence(NodeGeneration::new)?,
            owner_id: r.text8()?,
            owner_lease_generation: r.fence(OwnerLeaseGeneration::new)?,
            session: r.rid()?,
            binding_generation: r.fence(BindingGeneration::new)?,
        })
    }

    fn put<S: Sink>(&self, s: &mut S) {
        s.rid(self.rid);
        s.u64(self.node_generation.get());
        s.text8(self.owner_id);
        s.u64(self.owner_lease_generation.get());
        s.rid(self.session);
        s.u64(self.binding_generation.get());
    }
}

numbers! {
    /// The part a node plays in a relocation.
    RelocationRole: u8 {
        /// The old owner.
        Source = 1,
        /// The new owner.
        Target = 2,
        /// Whoever decides.
        Coordinator = 3,
    }
}

fn relocation_id(r: &mut Reader<'_>) -> Result<RelocationId, WireError> {
    r.wide(RelocationId::new, Rule::RelocationIdZero)
}

fn role(r: &mut Reader<'_>) -> Result<RelocationRole, WireError> {
    r.choice(Reader::u8, RelocationRole::from_number, Rule::RelocationRole)
}

/// Record 42 `sessionRelocationSeal`: asks the session owner to hold its relays (R3.3-2).
///
/// | | body, in order |
/// |---|---|
/// | 42 sessionRelocationSeal | relocation-id, coordinator fence, role, actor route-fence, session owner fence |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RelocationSeal<'a> {
    /// The move.
    pub relocation_id: RelocationId,
    /// Who coordinates it.
    pub coordinator: CoordinatorFence<'a>,
    /// Who sends this.
    pub role: RelocationRole,
    /// The Actor.
    pub id: &'a str,
    /// Its route.
    pub fence: RouteFenceRef<'a>,
    /// The session and its binding.
    pub session_owner: SessionOwnerFence<'a>,
}

impl<'a> Codec<'a> for RelocationSeal<'a> {
    fn get(r: &mut Reader<'a>) -> Result<Self, WireError> {
        Ok(Self {
            relocation_id: relocation_id(r)?,
            coordinator: CoordinatorFence::get(r)?,
            role: role(r)?,
            id: r.text8()?,
            fence: RouteFenceRef::get(r)?,
            session_owner: SessionOwnerFence::get(r)?,
        })
    }

    fn put<S: Sink>(&self, s: &mut S) {
        s.wide(self.relocation_id.get());
        self.coordinator.put(s);
        s.u8(self.role.number());
        s.text8(self.id);
        self.fence.put(s);
        self.session_owner.put(s);
    }
}

/// Record 43 `sessionRelocationSealed`: the seal is installed (R3.3-2).
///
/// | | body, in order |
/// |---|---|
/// | 43 sessionRelocationSealed | relocation-id, coordinator fence, actor route-fence, session owner fence |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RelocationSealed<'a> {
    /// The move.
    pub relocation_id: RelocationId,
    /// Who coordinates it.
    pub coordinator: CoordinatorFence<'a>,
    /// The Actor.
    pub id: &'a str,
    /// Its route.
    pub fence: RouteFenceRef<'a>,
    /// The session and its binding.
    pub session_owner: SessionOwnerFence<'a>,
}

impl<'a> Codec<'a> for RelocationSealed<'a> {
    fn get(r: &mut Reader<'a>) -> Result<Self, WireError> {
        Ok(Self {
            relocation_id: relocation_id(r)?,
            coordinator: CoordinatorFence::get(r)?,
            id: r.text8()?,
            fence: RouteFenceRef::get(r)?,
            session_owner: SessionOwnerFence::get(r)?,
        })
    }

    fn put<S: Sink>(&self, s: &mut S) {
        s.wide(self.relocation_id.get());
        self.coordinator.put(s);
        s.text8(self.id);
        self.fence.put(s);
        self.session_owner.put(s);
    }
}

/// How a move ended for a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RouteAction<'a> {
    /// 1: the Actor runs at the target.
    Commit {
        /// The tenure before; information only, never a reason to refuse.
        previous_owner_generation: AuthorityOwnerGeneration,
        /// The tenure now.
        target_owner_generation: AuthorityOwnerGeneration,
        /// The new owner.
        rid: &'a [u8],
        /// The lifecycle of its node.
        node_generation: NodeGeneration,
        /// Its lease.
        owner_lease_generation: OwnerLeaseGeneration,
    },
    /// 2: the Actor stays at the source.
    Abort {
        /// The tenure that goes on.
        current_owner_generation: AuthorityOwnerGeneration,
    },
}

/// Record 44 `sessionRelocationRoute`: the session's new route, or the old one again
/// (R3.3-7, R3.3-10).
///
/// | | body, in order |
/// |---|---|
/// | 44 sessionRelocationRoute | relocation-id, coordinator fence, role, actor-ref, session owner fence, u8 action, u16 body length, body. Action 1 commit: gen previous owner generation, gen target owner generation, rid target node, gen target node, gen target owner lease. Action 2 abort (role source): gen current owner generation |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RelocationRoute<'a> {
    /// The move.
    pub relocation_id: RelocationId,
    /// Who coordinates it.
    pub coordinator: CoordinatorFence<'a>,
    /// Who sends this.
    pub role: RelocationRole,
    /// The Actor.
    pub id: &'a str,
    /// Its incarnation.
    pub object_generation: ObjectGeneration,
    /// The session and its binding.
    pub session_owner: SessionOwnerFence<'a>,
    /// Commit or abort.
    pub action: RouteAction<'a>,
}

impl<'a> RouteAction<'a> {
    fn get(r: &mut Reader<'a>, role: RelocationRole, role_at: usize) -> Result<Self, WireError> {
        let field = r.offset();
        match r.u8()? {
            1 => r.body(Reader::u16, |r| {
                Ok(Self::Commit {
                    previous_owner_generation: r.fence(AuthorityOwnerGeneration::new)?,
                    target_owner_generation: r.fence(AuthorityOwnerGeneration::new)?,
                    rid: r.rid()?,
                    node_generation: r.fence(NodeGeneration::new)?,
                    owner_lease_generation: r.fence(OwnerLeaseGeneration::new)?,
                })
            }),
            2 if role != RelocationRole::Source => Err(WireError::new(Rule::AbortRole, role_at)),
            2 => r.body(Reader::u16, |r| {
                let current_owner_generation = r.fence(AuthorityOwnerGeneration::new)?;
                Ok(Self::Abort { current_owner_generation })
            }),
            _ => Err(WireError::new(Rule::RouteAction, field)),
        }
    }

    fn put<S: Sink>(&self, s: &mut S) {
        match self {
            Self::Commit {
                previous_owner_generation,
                target_owner_generation,
                rid,
                node_generation,
                owner_lease_generation,
            } => {
                s.u8(1);
                s.body16(|s| {
                    s.u64(previous_owner_generation.get());
                    s.u64(target_owner_generation.get());
                    s.rid(rid);
                    s.u64(node_generation.get());
                    s.u64(owner_lease_generation.get());
                });
            }
            Self::Abort { current_owner_generation } => {
                s.u8(2);
                s.body16(|s| s.u64(current_owner_generation.get()));
            }
        }
    }
}

impl<'a> Codec<'a> for RelocationRoute<'a> {
    fn get(r: &mut Reader<'a>) -> Result<Self, WireError> {
        let relocation_id = relocation_id(r)?;
        let coordinator = CoordinatorFence::get(r)?;
        let role_at = r.offset();
        let role = role(r)?;
        Ok(Self {
            relocation_id,
            coordinator,
            role,
            id: r.text8()?,
            object_generation: r.fence(ObjectGeneration::new)?,
            session_owner: SessionOwnerFence::get(r)?,
            action: RouteAction::get(r, role, role_at)?,
        })
    }

    fn put<S: Sink>(&self, s: &mut S) {
        s.wide(self.relocation_id.get());
        self.coordinator.put(s);
        let aborts = matches!(self.action, RouteAction::Abort { .. });
        s.require(!aborts || self.role == RelocationRole::Source, Rule::AbortRole);
        s.u8(self.role.number());
        s.text8(self.id);
        s.u64(self.object_generation.get());
        self.session_owner.put(s);
        self.action.put(s);
    }
}
