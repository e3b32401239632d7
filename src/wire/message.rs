#![forbid(unsafe_code)]
//! The records of the message path: sends, requests, replies, and the follow notice.

use super::field::{Codec, Reader, Sink, encodes};
use super::rule::{Rule, WireError};
use super::status::{FailureCode, Status, Terminal};
use crate::ids::{
    AuthorityOwnerGeneration, BindingGeneration, Correlation, NodeGeneration, NodeRid,
    ObjectGeneration, ObjectKind, OperationId, OwnerLeaseGeneration, RouteFence,
};
use crate::limits::MAX_FOLLOW_HOPS;

/// The fences of a route as they stand in a record, after the id.
///
/// | name | layout |
/// |---|---|
/// | route-fence | text8 id (kept beside it), gen object generation, rid target node, gen node, gen authority owner, gen owner lease |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RouteFenceRef<'a> {
    /// The incarnation that was resolved.
    pub object_generation: ObjectGeneration,
    /// The owner that was resolved.
    pub rid: &'a [u8],
    /// The lifecycle of the owner's node.
    pub node_generation: NodeGeneration,
    /// The tenure.
    pub authority_owner_generation: AuthorityOwnerGeneration,
    /// The owner's process lifecycle.
    pub owner_lease_generation: OwnerLeaseGeneration,
}

impl<'a> From<&'a RouteFence> for RouteFenceRef<'a> {
    fn from(fence: &'a RouteFence) -> Self {
        Self {
            object_generation: fence.object_generation,
            rid: fence.rid.as_bytes(),
            node_generation: fence.node_generation,
            authority_owner_generation: fence.authority_owner_generation,
            owner_lease_generation: fence.owner_lease_generation,
        }
    }
}

impl TryFrom<RouteFenceRef<'_>> for RouteFence {
    type Error = crate::Error;

    /// Copies the fences; fails only for a rid that was not decoded and breaks R0-2.
    fn try_from(fence: RouteFenceRef<'_>) -> Result<Self, crate::Error> {
        Ok(Self {
            object_generation: fence.object_generation,
            rid: NodeRid::new(fence.rid)?,
            node_generation: fence.node_generation,
            authority_owner_generation: fence.authority_owner_generation,
            owner_lease_generation: fence.owner_lease_generation,
        })
    }
}

impl RouteFenceRef<'_> {
    /// Whether the fences are those of `fence`, compared without copying.
    #[must_use]
    pub fn matches(&self, fence: &RouteFence) -> bool {
        *self == RouteFenceRef::from(fence)
    }
}

impl<'a> Codec<'a> for RouteFenceRef<'a> {
    fn get(r: &mut Reader<'a>) -> Result<Self, WireError> {
        Ok(Self {
            object_generation: r.fence(ObjectGeneration::new)?,
            rid: r.rid()?,
            node_generation: r.fence(NodeGeneration::new)?,
            authority_owner_generation: r.fence(AuthorityOwnerGeneration::new)?,
            owner_lease_generation: r.fence(OwnerLeaseGeneration::new)?,
        })
    }

    fn put<S: Sink>(&self, s: &mut S) {
        s.u64(self.object_generation.get());
        s.rid(self.rid);
        s.u64(self.node_generation.get());
        s.u64(self.authority_owner_generation.get());
        s.u64(self.owner_lease_generation.get());
    }
}

/// An Actor that sends: its id and incarnation (opt-actor-ref).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ActorSource<'a> {
    /// The id.
    pub id: &'a str,
    /// The incarnation.
    pub object_generation: ObjectGeneration,
}

/// The tail of a message that a session relays to the Actor it is bound to. In the record
/// head the flags 02 and 04 stand for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BoundSession<'a> {
    /// The session.
    pub session: &'a [u8],
    /// The binding.
    pub binding_generation: BindingGeneration,
    /// The place in the session's order.
    pub sequence: SessionSequence,
}

/// The number of a session's message: a gen, so 1..=2^63-1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionSequence(u64);

impl SessionSequence {
    /// Makes the number; `None` outside 1..=2^63-1.
    #[must_use]
    pub const fn new(value: u64) -> Option<Self> {
        if value == 0 || value > crate::limits::MAX_FENCE { None } else { Some(Self(value)) }
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// What differs between a message to a Spot and one to an Actor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MessageForm<'a> {
    /// To a Spot (21, 22).
    Spot {
        /// The Spot that sends; the node's Entry Spot when no other does.
        source_spot: &'a str,
    },
    /// To an Actor (24, 25).
    Actor {
        /// The Actor that sends, if one does.
        source: Option<ActorSource<'a>>,
        /// Present when a session relays the message over its binding.
        bound_session: Option<BoundSession<'a>>,
    },
}

/// Records 21 `spotSend`, 22 `spotRequest`, 24 `actorSend` and 25 `actorRequest`.
///
/// | | body, in order |
/// |---|---|
/// | 21 spotSend | operation-id, u8 hop count 0..=8, text8 source spot, spot route-fence |
/// | 22 spotRequest | gen correlation, then as 21 |
/// | 24 actorSend | operation-id, u8 hop count 0..=8, opt-actor-ref source, actor route-fence, bound-session tail if the flags say so |
/// | 25 actorRequest | gen correlation, then as 24 |
///
/// A payload part is required, a metadata part optional.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ObjectMessage<'a> {
    /// The request's correlation; `None` for a one-way message.
    pub correlation: Option<Correlation>,
    /// The operation, the same across relays.
    pub operation_id: OperationId,
    /// Follow relays so far, at most 8 (R2.5-2).
    pub hop_count: u8,
    /// Spot or Actor, and what only that one has.
    pub form: MessageForm<'a>,
    /// The addressed object.
    pub id: &'a str,
    /// The route the sender believes in.
    pub fence: RouteFenceRef<'a>,
}

impl<'a> ObjectMessage<'a> {
    /// What the message is addressed to.
    #[must_use]
    pub const fn kind(&self) -> ObjectKind {
        match self.form {
            MessageForm::Spot { .. } => ObjectKind::Spot,
            MessageForm::Actor { .. } => ObjectKind::Actor,
        }
    }

    /// Whether a reply is expected.
    #[must_use]
    pub const fn is_request(&self) -> bool {
        self.correlation.is_some()
    }

    /// The bound-session tail, if there is one.
    #[must_use]
    pub const fn bound_session(&self) -> Option<BoundSession<'a>> {
        match self.form {
            MessageForm::Spot { .. } => None,
            MessageForm::Actor { bound_session, .. } => bound_session,
        }
    }

    pub(super) fn get(
        r: &mut Reader<'a>,
        kind: ObjectKind,
        request: bool,
        bound: bool,
    ) -> Result<Self, WireError> {
        let correlation = if request { Some(r.fence(Correlation::new)?) } else { None };
        let operation_id = r.wide(OperationId::new, Rule::OperationIdZero)?;
        let hops = |n| (n <= MAX_FOLLOW_HOPS).then_some(n);
        let hop_count = r.choice(Reader::u8, hops, Rule::HopCount)?;
        let mut form = match kind {
            ObjectKind::Spot => MessageForm::Spot { source_spot: r.text8()? },
            ObjectKind::Actor => {
                let source = match r.opt_text8()? {
                    None => None,
                    Some(id) => {
                        Some(ActorSource { id, object_generation: r.fence(ObjectGeneration::new)? })
                    }
                };
                MessageForm::Actor { source, bound_session: None }
            }
        };
        let id = r.text8()?;
        let fence = RouteFenceRef::get(r)?;
        if let (true, MessageForm::Actor { bound_session, .. }) = (bound, &mut form) {
            *bound_session = Some(BoundSession {
                session: r.rid()?,
                binding_generation: r.fence(BindingGeneration::new)?,
                sequence: r.fence(SessionSequence::new)?,
            });
        }
        Ok(Self { correlation, operation_id, hop_count, form, id, fence })
    }

    pub(super) fn put<S: Sink>(&self, s: &mut S) {
        if let Some(correlation) = self.correlation {
            s.u64(correlation.get());
        }
        s.wide(self.operation_id.get());
        s.require(self.hop_count <= MAX_FOLLOW_HOPS, Rule::HopCount);
        s.u8(self.hop_count);
        match self.form {
            MessageForm::Spot { source_spot } => s.text8(source_spot),
            MessageForm::Actor { source, .. } => {
                s.opt_text8(source.map(|source| source.id));
                if let Some(source) = source {
                    s.u64(source.object_generation.get());
                }
            }
        }
        s.text8(self.id);
        self.fence.put(s);
        if let Some(bound) = self.bound_session() {
            s.rid(bound.session);
            s.u64(bound.binding_generation.get());
            s.u64(bound.sequence.get());
        }
    }
}

/// Record 20 `reply`.
///
/// | | body, in order |
/// |---|---|
/// | 20 reply | gen correlation, u32 terminal result, u32 failure code, tail by operation kind |
///
/// A payload part is optional, metadata is refused (R4-2). Only a reply that is ok can have
/// a tail; what the tail is, only the pending operation knows: nothing for a request to an
/// object ([`Reply::no_tail`]), [`BindTail`] for a bind, [`CreateTail`](super::CreateTail) for
/// a creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Reply<'a> {
    /// The request it answers.
    pub correlation: Correlation,
    /// How it ended.
    pub status: Status,
    /// The undecoded tail.
    pub tail: &'a [u8],
}

/// Where the tail of a reply begins in its record.
pub(super) const REPLY_TAIL_OFFSET: usize = crate::limits::RECORD_HEAD_BYTES + 16;

impl<'a> Reply<'a> {
    /// The reply of an operation that has no tail.
    ///
    /// # Errors
    /// When there is one.
    pub const fn no_tail(&self) -> Result<(), WireError> {
        if self.tail.is_empty() {
            return Ok(());
        }
        Err(WireError::new(Rule::TailNotAllowed, REPLY_TAIL_OFFSET))
    }

    /// The tail of a bind that went well. Offsets of errors count from the start of the record.
    ///
    /// # Errors
    /// The rule that the tail breaks.
    pub fn bind_tail(&self) -> Result<BindTail, WireError> {
        tail(self.tail)
    }

    /// The tail of a creation that was decided. Offsets count from the start of the record.
    ///
    /// # Errors
    /// The rule that the tail breaks.
    pub fn create_tail(&self) -> Result<super::CreateTail<'a>, WireError> {
        tail(self.tail)
    }
}

fn tail<'a, T: Codec<'a>>(bytes: &'a [u8]) -> Result<T, WireError> {
    let mut r = Reader::new(bytes, REPLY_TAIL_OFFSET);
    let value = T::get(&mut r)?;
    r.finish()?;
    Ok(value)
}

impl<'a> Codec<'a> for Reply<'a> {
    fn get(r: &mut Reader<'a>) -> Result<Self, WireError> {
        let correlation = r.fence(Correlation::new)?;
        let terminal = r.choice(Reader::u32, Terminal::from_number, Rule::TerminalUnknown)?;
        let code_at = r.offset();
        let failure_code = r.choice(Reader::u32, FailureCode::from_number, Rule::FailureUnknown)?;
        if terminal == Terminal::Ok && failure_code != FailureCode::None {
            return Err(WireError::new(Rule::OkWithFailure, code_at));
        }
        let tail_at = r.offset();
        let tail = r.rest();
        if terminal != Terminal::Ok && !tail.is_empty() {
            return Err(WireError::new(Rule::TailNotAllowed, tail_at));
        }
        Ok(Self { correlation, status: Status { terminal, failure_code }, tail })
    }

    fn put<S: Sink>(&self, s: &mut S) {
        let ok = self.status.terminal == Terminal::Ok;
        s.u64(self.correlation.get());
        s.u32(self.status.terminal.number());
        s.require(!ok || self.status.failure_code == FailureCode::None, Rule::OkWithFailure);
        s.u32(self.status.failure_code.number());
        s.require(ok || self.tail.is_empty(), Rule::TailNotAllowed);
        s.raw(self.tail);
    }
}

/// The tail of the reply to a bind that went well: gen binding, gen authority owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BindTail {
    /// The binding that stands now.
    pub binding_generation: BindingGeneration,
    /// The tenure in which it was made.
    pub authority_owner_generation: AuthorityOwnerGeneration,
}

encodes!(BindTail);

impl<'a> Codec<'a> for BindTail {
    fn get(r: &mut Reader<'a>) -> Result<Self, WireError> {
        Ok(Self {
            binding_generation: r.fence(BindingGeneration::new)?,
            authority_owner_generation: r.fence(AuthorityOwnerGeneration::new)?,
        })
    }

    fn put<S: Sink>(&self, s: &mut S) {
        s.u64(self.binding_generation.get());
        s.u64(self.authority_owner_generation.get());
    }
}

/// One route of a [`MessageFollow`], without the kind and id that both share.
struct FollowRoute<'a> {
    kind: ObjectKind,
    id: &'a str,
    fence: RouteFenceRef<'a>,
}

impl<'a> Codec<'a> for FollowRoute<'a> {
    fn get(r: &mut Reader<'a>) -> Result<Self, WireError> {
        let kind = |n| match n {
            1 => Some(ObjectKind::Actor),
            2 => Some(ObjectKind::Spot),
            _ => None,
        };
        let kind = r.choice(Reader::u8, kind, Rule::ObjectKindUnknown)?;
        let (id, fence) = r.body(Reader::u16, |r| Ok((r.text8()?, RouteFenceRef::get(r)?)))?;
        Ok(Self { kind, id, fence })
    }

    fn put<S: Sink>(&self, s: &mut S) {
        s.u8(self.kind as u8);
        s.body16(|s| {
            s.text8(self.id);
            self.fence.put(s);
        });
    }
}

/// Record 50 `messageFollow`: a node that relayed a message tells its origin (R2.5-9).
///
/// | | body, in order |
/// |---|---|
/// | 50 messageFollow | u8 version 1, u32 body length, then: source route, target route, u8 hop count 1..=8, u32 queued messages, u32 queued bytes, operation-id, u64 reply route id (0 one-way). A route is u8 kind (1 actor, 2 spot), u16 body length, route-fence |
///
/// Both routes name the same kind, id and object generation, and the target's authority
/// owner generation is the greater: so the struct has the first two once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MessageFollow<'a> {
    /// Kind of the object.
    pub kind: ObjectKind,
    /// Its id.
    pub id: &'a str,
    /// The route the message came by.
    pub source: RouteFenceRef<'a>,
    /// The route it was relayed to.
    pub target: RouteFenceRef<'a>,
    /// The message's hop count after the relay.
    pub hop_count: u8,
    /// Messages queued for the object when it was relayed; saturating, for diagnosis only.
    pub queued_messages: u32,
    /// Their bytes; saturating, for diagnosis only.
    pub queued_bytes: u32,
    /// The operation that was relayed.
    pub operation_id: OperationId,
    /// Its reply route; `None` for a one-way message.
    pub reply_route: Option<Correlation>,
}

impl MessageFollow<'_> {
    const fn broken_rule(source: &RouteFenceRef<'_>, target: &RouteFenceRef<'_>) -> Option<Rule> {
        if source.object_generation.get() != target.object_generation.get() {
            return Some(Rule::FollowRoutes);
        }
        if source.authority_owner_generation.get() >= target.authority_owner_generation.get() {
            return Some(Rule::FollowOrder);
        }
        None
    }
}

impl<'a> Codec<'a> for MessageFollow<'a> {
    fn get(r: &mut Reader<'a>) -> Result<Self, WireError> {
        r.choice(Reader::u8, |n| (n == 1).then_some(n), Rule::FollowVersion)?;
        r.body(Reader::u32, |r| {
            let source = FollowRoute::get(r)?;
            let target_at = r.offset();
            let target = FollowRoute::get(r)?;
            if source.kind != target.kind || source.id != target.id {
                return Err(WireError::new(Rule::FollowRoutes, target_at));
            }
            if let Some(rule) = Self::broken_rule(&source.fence, &target.fence) {
                return Err(WireError::new(rule, target_at));
            }
            let hops = |n| (1..=MAX_FOLLOW_HOPS).contains(&n).then_some(n);
            Ok(Self {
                kind: source.kind,
                id: source.id,
                source: source.fence,
                target: target.fence,
                hop_count: r.choice(Reader::u8, hops, Rule::HopCount)?,
                queued_messages: r.u32()?,
                queued_bytes: r.u32()?,
                operation_id: r.wide(OperationId::new, Rule::OperationIdZero)?,
                reply_route: r.opt_fence(Correlation::new)?,
            })
        })
    }

    fn put<S: Sink>(&self, s: &mut S) {
        s.u8(1);
        s.body32(|s| {
            FollowRoute { kind: self.kind, id: self.id, fence: self.source }.put(s);
            if let Some(rule) = Self::broken_rule(&self.source, &self.target) {
                s.broken(rule);
            }
            FollowRoute { kind: self.kind, id: self.id, fence: self.target }.put(s);
            s.require((1..=MAX_FOLLOW_HOPS).contains(&self.hop_count), Rule::HopCount);
            s.u8(self.hop_count);
            s.u32(self.queued_messages);
            s.u32(self.queued_bytes);
            s.wide(self.operation_id.get());
            s.u64(self.reply_route.map_or(0, Correlation::get));
        });
    }
}
