#![forbid(unsafe_code)]
//! Creation and destruction of Actors.

use super::field::{Codec, Reader, Sink, encodes, numbers};
use super::message::RouteFenceRef;
use super::rule::{Rule, WireError};
use crate::ids::{Correlation, ObjectGeneration};

numbers! {
    /// What the receiver of an [`ActorCreate`] is asked to do.
    CreateMode: u8 {
        /// Create the Actor here, under the attempt that the creator registered.
        Here = 1,
        /// Wait for the attempt that runs here and learn its result.
        Join = 2,
    }
}

/// Record 49 `actorCreate`.
///
/// | | body, in order |
/// |---|---|
/// | 49 actorCreate | gen correlation, u8 mode (1 create here, 2 join the running attempt), text8 type name, text8 id, u64 high and u64 low of the attempt id (not both 0) |
///
/// A payload part (the creation request) is optional, metadata is refused. The reply, if ok,
/// has a [`CreateTail`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ActorCreate<'a> {
    /// Of the reply.
    pub correlation: Correlation,
    /// Create or join.
    pub mode: CreateMode,
    /// The registered type name.
    pub type_name: &'a str,
    /// The Actor.
    pub id: &'a str,
    /// The creation attempt; not zero.
    pub attempt_id: u128,
}

impl<'a> Codec<'a> for ActorCreate<'a> {
    fn get(r: &mut Reader<'a>) -> Result<Self, WireError> {
        let attempt = |n| (n != 0).then_some(n);
        Ok(Self {
            correlation: r.fence(Correlation::new)?,
            mode: r.choice(Reader::u8, CreateMode::from_number, Rule::CreateMode)?,
            type_name: r.text8()?,
            id: r.text8()?,
            attempt_id: r.wide(attempt, Rule::AttemptIdZero)?,
        })
    }

    fn put<S: Sink>(&self, s: &mut S) {
        s.u64(self.correlation.get());
        s.u8(self.mode.number());
        s.text8(self.type_name);
        s.text8(self.id);
        s.require(self.attempt_id != 0, Rule::AttemptIdZero);
        s.wide(self.attempt_id);
    }
}

/// The incarnation that a creation found or made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CreatedActor<'a> {
    /// The incarnation.
    pub object_generation: ObjectGeneration,
    /// The owner's mesh.
    pub mesh: &'a str,
    /// The owner.
    pub rid: &'a [u8],
}

impl<'a> Codec<'a> for CreatedActor<'a> {
    fn get(r: &mut Reader<'a>) -> Result<Self, WireError> {
        Ok(Self {
            object_generation: r.fence(ObjectGeneration::new)?,
            mesh: r.text8()?,
            rid: r.rid()?,
        })
    }

    fn put<S: Sink>(&self, s: &mut S) {
        s.u64(self.object_generation.get());
        s.text8(self.mesh);
        s.rid(self.rid);
    }
}

/// The tail of the reply to an [`ActorCreate`].
///
/// | | in order |
/// |---|---|
/// | tail | u8 outcome (1 created, 2 existing, 3 rejected, 4 no such attempt), and for 1 and 2: gen object generation, text8 mesh, rid owner |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CreateTail<'a> {
    /// This attempt created it.
    Created(CreatedActor<'a>),
    /// It was there.
    Existing(CreatedActor<'a>),
    /// The factory refused.
    Rejected,
    /// No such attempt runs at this node.
    NoSuchAttempt,
}

encodes!(CreateTail<'_>);

impl<'a> Codec<'a> for CreateTail<'a> {
    fn get(r: &mut Reader<'a>) -> Result<Self, WireError> {
        let field = r.offset();
        match r.u8()? {
            1 => CreatedActor::get(r).map(Self::Created),
            2 => CreatedActor::get(r).map(Self::Existing),
            3 => Ok(Self::Rejected),
            4 => Ok(Self::NoSuchAttempt),
            _ => Err(WireError::new(Rule::CreateOutcome, field)),
        }
    }

    fn put<S: Sink>(&self, s: &mut S) {
        match self {
            Self::Created(actor) => {
                s.u8(1);
                actor.put(s);
            }
            Self::Existing(actor) => {
                s.u8(2);
                actor.put(s);
            }
            Self::Rejected => s.u8(3),
            Self::NoSuchAttempt => s.u8(4),
        }
    }
}

/// Record 27 `actorDestroy`: ends exactly the incarnation that it names (R2.6-2).
///
/// | | body, in order |
/// |---|---|
/// | 27 actorDestroy | gen correlation, actor route-fence |
///
/// No parts. The reply has no tail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ActorDestroy<'a> {
    /// Of the reply.
    pub correlation: Correlation,
    /// The Actor.
    pub id: &'a str,
    /// Its incarnation, and the owner that is believed to run it.
    pub fence: RouteFenceRef<'a>,
}

impl<'a> Codec<'a> for ActorDestroy<'a> {
    fn get(r: &mut Reader<'a>) -> Result<Self, WireError> {
        Ok(Self {
            correlation: r.fence(Correlation::new)?,
            id: r.text8()?,
            fence: RouteFenceRef::get(r)?,
        })
    }

    fn put<S: Sink>(&self, s: &mut S) {
        s.u64(self.correlation.get());
        s.text8(self.id);
        self.fence.put(s);
    }
}
