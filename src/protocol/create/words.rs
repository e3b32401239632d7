#![forbid(unsafe_code)]
//! What goes into the creation coordinator and what comes out of it.

use std::sync::Arc;

use crate::error::Error;
use crate::ids::{MeshName, NodeGeneration, NodeRid, ObjectGeneration, ObjectKey, StoreVersion};
use crate::protocol::commit::CommitOutcome;
use crate::protocol::resolve::{OwnerSight, Row};
use crate::store::records::DeadOwner;
use crate::time::Nanos;

/// Names one call of this machine to the Store, to another node or to a factory; never used
/// twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub u64);

/// What stands at this node under an id when a call comes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LocalSight {
    /// Nothing.
    Absent,
    /// A Ready object.
    Ready {
        /// Its incarnation.
        object_generation: ObjectGeneration,
        /// Its type.
        type_name: Arc<str>,
    },
    /// An object that is being closed.
    Closing,
}

/// One incarnation and where it is: what a reference is made of.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Incarnation {
    /// The incarnation.
    pub object_generation: ObjectGeneration,
    /// The owner's mesh.
    pub mesh: MeshName,
    /// The owner.
    pub rid: NodeRid,
}

/// How a creation attempt ended: the same for everybody who took part in it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum AttemptEnd {
    /// The object is there.
    Made(Incarnation),
    /// The application refused.
    Rejected(Error),
    /// It failed.
    Failed(Error),
}

/// What a caller of create is told.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CreateAnswer {
    /// The factory ran for this caller, and the object is there.
    Created(Incarnation),
    /// The object is there, made for somebody else.
    Existing(Incarnation),
    /// The application refused.
    Rejected(Error),
    /// No object was made for this caller; the error says why. An outcome that is not known to
    /// this node is among these: the next call finds out.
    Failed(Error),
}

/// What a node that asked to join an attempt is told.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum JoinReply {
    /// How the attempt ended.
    Ended(AttemptEnd),
    /// No such attempt runs here, and its row, if there was one, is gone: read again.
    NoSuchAttempt,
}

/// How a factory ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum FactoryOutcome {
    /// The object is built; the node keeps it under the call's id.
    Made,
    /// The application refused.
    Rejected(Error),
    /// It failed, panicked or was stopped; the error is what callers are told.
    Failed(Error),
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// A caller at this node wants the object made here.
    Create {
        /// What.
        key: ObjectKey,
        /// Who.
        caller: u64,
        /// Of which type.
        type_name: Arc<str>,
        /// When the caller stops waiting.
        deadline: Nanos,
        /// A random number other than zero, for an attempt that this call may start.
        attempt: u128,
        /// What stands here now.
        local: LocalSight,
    },
    /// Another node wants to know how this node's attempt ends.
    Join {
        /// What.
        key: ObjectKey,
        /// Who.
        caller: u64,
        /// Which attempt.
        attempt: u128,
        /// When the caller stops waiting.
        deadline: Nanos,
    },
    /// The caller does not wait any more.
    Cancel {
        /// What.
        key: ObjectKey,
        /// Who.
        caller: u64,
    },
    /// An [`Effect::ReadRow`] ended.
    RowAnswered {
        /// What.
        key: ObjectKey,
        /// Which call.
        call: CallId,
        /// The row, or why there is no answer.
        row: Result<Option<Row>, Error>,
        /// The row's owner where it need not be read: see [`OwnerSight::of_known`].
        owner: Option<OwnerSight>,
    },
    /// An [`Effect::ReadOwner`] ended.
    OwnerAnswered {
        /// What.
        key: ObjectKey,
        /// Which call.
        call: CallId,
        /// What was read.
        owner: Result<OwnerSight, Error>,
    },
    /// An [`Effect::JoinRemote`] ended.
    JoinAnswered {
        /// What.
        key: ObjectKey,
        /// Which call.
        call: CallId,
        /// What the owner said, or why there is no answer.
        answer: Result<JoinReply, Error>,
    },
    /// An [`Effect::TakeGeneration`] ended.
    GenerationTaken {
        /// What.
        key: ObjectKey,
        /// Which call.
        call: CallId,
        /// A number nobody used.
        generation: Result<ObjectGeneration, Error>,
    },
    /// An [`Effect::Clear`], [`Effect::Reserve`], [`Effect::CommitReady`] or [`Effect::Delete`]
    /// ended.
    Committed {
        /// What.
        key: ObjectKey,
        /// Which call.
        call: CallId,
        /// How.
        outcome: CommitOutcome,
    },
    /// An [`Effect::RunFactory`] ended.
    FactoryEnded {
        /// What.
        key: ObjectKey,
        /// Which call.
        call: CallId,
        /// How.
        outcome: FactoryOutcome,
    },
    /// Time passed.
    Tick,
    /// The node shuts down: everybody waiting is answered, and no more calls are made.
    Shutdown,
}

/// What is to be done. `until` says after when an answer is not waited for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Read the authority row.
    ReadRow {
        /// What.
        key: ObjectKey,
        /// Under this name.
        call: CallId,
        /// Time limit.
        until: Nanos,
    },
    /// Read owner record, lease and descriptor of the row's owner in one call.
    ReadOwner {
        /// For whom.
        key: ObjectKey,
        /// Under this name.
        call: CallId,
        /// The row, which names the owner.
        row: Row,
        /// Time limit.
        until: Nanos,
    },
    /// Delete the row of a dead creator ([`crate::store::records::clear_dead_creating`]).
    Clear {
        /// What.
        key: ObjectKey,
        /// Under this name.
        call: CallId,
        /// The row.
        row: Row,
        /// Why its creator counts as dead.
        dead: DeadOwner,
        /// Time limit.
        until: Nanos,
    },
    /// Ask the creator at another node how its attempt ends (record `actorCreate`, mode join).
    JoinRemote {
        /// What.
        key: ObjectKey,
        /// Under this name.
        call: CallId,
        /// The creator.
        rid: NodeRid,
        /// Its lifecycle.
        node_generation: NodeGeneration,
        /// Its attempt.
        attempt: u128,
        /// The type that is being made.
        type_name: Arc<str>,
        /// Time limit.
        until: Nanos,
    },
    /// Take an object generation.
    TakeGeneration {
        /// What.
        key: ObjectKey,
        /// Under this name.
        call: CallId,
        /// Time limit.
        until: Nanos,
    },
    /// Write the Creating row of this node ([`crate::store::records::reserve_creating`]).
    Reserve {
        /// What.
        key: ObjectKey,
        /// Under this name.
        call: CallId,
        /// The incarnation.
        object_generation: ObjectGeneration,
        /// The attempt.
        attempt: u128,
        /// The type.
        type_name: Arc<str>,
        /// Time limit.
        until: Nanos,
    },
    /// Run the factory with this caller's request.
    RunFactory {
        /// What.
        key: ObjectKey,
        /// Under this name.
        call: CallId,
        /// Whose request.
        caller: u64,
        /// The incarnation.
        object_generation: ObjectGeneration,
        /// The type.
        type_name: Arc<str>,
        /// Time limit.
        until: Nanos,
    },
    /// The creation's time is over: drop the factory's future. No event follows.
    StopFactory {
        /// What.
        key: ObjectKey,
        /// The call of [`Effect::RunFactory`].
        factory: CallId,
    },
    /// Make the row Ready ([`crate::store::records::commit_ready`]).
    CommitReady {
        /// What.
        key: ObjectKey,
        /// Under this name.
        call: CallId,
        /// The incarnation.
        object_generation: ObjectGeneration,
        /// The type.
        type_name: Arc<str>,
        /// The version of the Creating row.
        creating: StoreVersion,
        /// Time limit.
        until: Nanos,
    },
    /// Delete this node's own row ([`crate::store::records::delete_row`]).
    Delete {
        /// What.
        key: ObjectKey,
        /// Under this name.
        call: CallId,
        /// The row's version.
        version: StoreVersion,
        /// Time limit.
        until: Nanos,
    },
    /// The object that `factory` built is owner now: install it, Ready, before the answers.
    Install {
        /// What.
        key: ObjectKey,
        /// The call that built it.
        factory: CallId,
        /// The incarnation.
        object_generation: ObjectGeneration,
        /// The version of its Ready row.
        version: StoreVersion,
    },
    /// The object that `factory` built is not owner: drop it.
    Discard {
        /// What.
        key: ObjectKey,
        /// The call that built it.
        factory: CallId,
    },
    /// Answer a caller of [`Event::Create`].
    Answered {
        /// What.
        key: ObjectKey,
        /// Who.
        caller: u64,
        /// With what.
        answer: CreateAnswer,
    },
    /// Answer a caller of [`Event::Join`].
    Joined {
        /// What.
        key: ObjectKey,
        /// Who.
        caller: u64,
        /// With what.
        reply: JoinReply,
    },
}
