#![forbid(unsafe_code)]
//! How a reply says how an operation ended: terminal result, failure code, and the public
//! error kind that the two stand for (R0-5).

use super::field::numbers;
use crate::error::ErrorKind;
use crate::ids::ObjectKind;

numbers! {
    /// The terminal result of an operation.
    Terminal: u32 {
        /// It went well.
        Ok = 0,
        /// Its time ran out.
        TimedOut = 101,
        /// What it names does not exist.
        NotFound = 102,
        /// It ended because the node shuts down.
        Terminated = 103,
        /// Its bytes break the protocol.
        ProtocolError = 104,
        /// Something failed inside.
        InternalError = 105,
        /// The application refused it.
        Rejected = 106,
        /// It collides with what is there.
        Conflict = 107,
        /// The target is busy.
        Busy = 108,
        /// The target cannot be reached.
        NotConnected = 109,
        /// An argument is wrong.
        InvalidArgument = 110,
        /// The state does not allow it.
        InvalidState = 111,
        /// The target does not do this.
        NotSupported = 112,
        /// The target has no room.
        Backpressured = 113,
    }
}

numbers! {
    /// What exactly failed; refines a [`Terminal`] other than `Ok`.
    FailureCode: u32 {
        /// Nothing more is said.
        None = 0,
        /// No such Actor.
        ActorRouteNotFound = 1,
        /// The Actor's factory failed.
        ActorCreateFailed = 2,
        /// The Actor exists.
        ActorAlreadyExists = 3,
        /// The Actor is of another type.
        ActorTypeMismatch = 4,
        /// The Spot's factory failed.
        SpotCreateFailed = 5,
        /// No such Spot.
        SpotRouteNotFound = 6,
        /// The Spot is of another type.
        SpotTypeMismatch = 7,
        /// The session is not bound to the Actor.
        ActorSessionNotBound = 8,
        /// The object has no handler for the packet.
        HandlerNotFound = 9,
        /// The route has no handler.
        RouteHandlerNotFound = 10,
        /// The Actor has no dispatch handler.
        ActorDispatchHandlerNotFound = 11,
        /// The payload cannot be decoded.
        PayloadDecodeFailed = 12,
        /// The owner cannot be reached.
        RouteNotConnected = 13,
        /// The target of the request does not exist.
        RequestTargetNotFound = 14,
        /// The request was refused.
        RequestRejected = 15,
        /// The request breaks the protocol.
        RequestProtocolError = 16,
        /// The request failed.
        RequestFailed = 17,
        /// A queue is full.
        WorkerQueueFull = 18,
        /// The execution ran out of time.
        WorkerTimedOut = 19,
        /// The execution failed.
        WorkerFailed = 20,
        /// The Actor is not at this node any more, and no follow route leads on.
        ActorLocationStale = 21,
        /// The creation of the Actor was refused.
        ActorCreateRejected = 22,
        /// Another incarnation of the Spot was meant.
        SpotGenerationStale = 33,
        /// The Spot is moving.
        SpotMoving = 34,
        /// State was lost in a move.
        RelocationDataLost = 35,
    }
}

impl FailureCode {
    /// The public kind the code stands for; `None` for [`FailureCode::None`].
    #[must_use]
    pub const fn error_kind(self) -> Option<ErrorKind> {
        Some(match self {
            Self::None => return None,
            Self::ActorRouteNotFound
            | Self::SpotRouteNotFound
            | Self::HandlerNotFound
            | Self::RouteHandlerNotFound
            | Self::ActorDispatchHandlerNotFound
            | Self::RequestTargetNotFound => ErrorKind::NotFound,
            Self::ActorAlreadyExists => ErrorKind::AlreadyExists,
            Self::ActorTypeMismatch | Self::SpotTypeMismatch => ErrorKind::TypeMismatch,
            Self::RequestRejected | Self::ActorCreateRejected => ErrorKind::Rejected,
            Self::RouteNotConnected
            | Self::WorkerQueueFull
            | Self::ActorLocationStale
            | Self::SpotMoving => ErrorKind::Unavailable,
            Self::WorkerTimedOut => ErrorKind::DeadlineExceeded,
            Self::PayloadDecodeFailed | Self::RequestProtocolError => ErrorKind::ProtocolError,
            Self::ActorSessionNotBound | Self::SpotGenerationStale => ErrorKind::InvalidOperation,
            Self::RelocationDataLost => ErrorKind::DataLost,
            Self::ActorCreateFailed
            | Self::SpotCreateFailed
            | Self::RequestFailed
            | Self::WorkerFailed => ErrorKind::InternalFailure,
        })
    }

    /// The terminal result we send together with the code.
    #[must_use]
    pub const fn terminal(self) -> Terminal {
        match self {
            Self::SpotMoving => Terminal::Busy,
            Self::WorkerQueueFull => Terminal::Backpressured,
            _ => match self.error_kind() {
                None => Terminal::Ok,
                Some(kind) => terminal_of(kind),
            },
        }
    }
}

impl Terminal {
    /// The public kind a terminal result stands for when no code refines it; `None` for
    /// [`Terminal::Ok`].
    #[must_use]
    pub const fn error_kind(self) -> Option<ErrorKind> {
        Some(match self {
            Self::Ok => return None,
            Self::TimedOut => ErrorKind::DeadlineExceeded,
            Self::NotFound => ErrorKind::NotFound,
            Self::Terminated => ErrorKind::ShuttingDown,
            Self::ProtocolError => ErrorKind::ProtocolError,
            Self::InternalError => ErrorKind::InternalFailure,
            Self::Rejected => ErrorKind::Rejected,
            Self::Conflict => ErrorKind::AlreadyExists,
            Self::Busy | Self::NotConnected | Self::Backpressured => ErrorKind::Unavailable,
            Self::InvalidArgument | Self::InvalidState => ErrorKind::InvalidOperation,
            Self::NotSupported => ErrorKind::NotConfigured,
        })
    }
}

const fn terminal_of(kind: ErrorKind) -> Terminal {
    match kind {
        ErrorKind::NotFound => Terminal::NotFound,
        ErrorKind::AlreadyExists | ErrorKind::TypeMismatch => Terminal::Conflict,
        ErrorKind::NotConfigured => Terminal::NotSupported,
        ErrorKind::Rejected => Terminal::Rejected,
        ErrorKind::Unavailable => Terminal::NotConnected,
        ErrorKind::DeadlineExceeded => Terminal::TimedOut,
        ErrorKind::ShuttingDown => Terminal::Terminated,
        ErrorKind::ProtocolError => Terminal::ProtocolError,
        ErrorKind::InvalidOperation => Terminal::InvalidState,
        ErrorKind::DataLost | ErrorKind::InternalFailure => Terminal::InternalError,
    }
}

/// How an operation ended, as a reply says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Status {
    /// The result.
    pub terminal: Terminal,
    /// The refinement; [`FailureCode::None`] when the result is ok.
    pub failure_code: FailureCode,
}

impl Status {
    /// It went well.
    pub const OK: Self = Self { terminal: Terminal::Ok, failure_code: FailureCode::None };

    /// A failure with exactly this code and the terminal result that goes with it.
    #[must_use]
    pub const fn of_code(code: FailureCode) -> Self {
        Self { terminal: code.terminal(), failure_code: code }
    }

    /// The canonical status of an error kind for an operation on an object of `object`'s
    /// kind. [`Status::error_kind`] of it gives the kind back.
    ///
    /// ```
    /// use homing::ErrorKind;
    /// use homing::ids::ObjectKind;
    /// use homing::wire::{FailureCode, Status};
    /// let status = Status::of_kind(ErrorKind::NotFound, ObjectKind::Actor);
    /// assert_eq!(status.failure_code, FailureCode::ActorRouteNotFound);
    /// assert_eq!(status.error_kind(), Some(ErrorKind::NotFound));
    /// ```
    #[must_use]
    pub const fn of_kind(kind: ErrorKind, object: ObjectKind) -> Self {
        let failure_code = match (kind, object) {
            (ErrorKind::NotFound, ObjectKind::Actor) => FailureCode::ActorRouteNotFound,
            (ErrorKind::NotFound, ObjectKind::Spot) => FailureCode::SpotRouteNotFound,
            (ErrorKind::AlreadyExists, ObjectKind::Actor) => FailureCode::ActorAlreadyExists,
            (ErrorKind::TypeMismatch, ObjectKind::Actor) => FailureCode::ActorTypeMismatch,
            (ErrorKind::TypeMismatch, ObjectKind::Spot) => FailureCode::SpotTypeMismatch,
            (ErrorKind::Rejected, _) => FailureCode::RequestRejected,
            (ErrorKind::Unavailable, _) => FailureCode::RouteNotConnected,
            (ErrorKind::ProtocolError, _) => FailureCode::RequestProtocolError,
            (ErrorKind::DataLost, _) => FailureCode::RelocationDataLost,
            (ErrorKind::InternalFailure, _) => FailureCode::RequestFailed,
            (
                ErrorKind::AlreadyExists
                | ErrorKind::NotConfigured
                | ErrorKind::DeadlineExceeded
                | ErrorKind::ShuttingDown
                | ErrorKind::InvalidOperation,
                _,
            ) => FailureCode::None,
        };
        Self { terminal: terminal_of(kind), failure_code }
    }

    /// The public kind; `None` when it went well. The code decides, and the terminal result
    /// where there is none.
    #[must_use]
    pub const fn error_kind(self) -> Option<ErrorKind> {
        match self.failure_code.error_kind() {
            Some(kind) => Some(kind),
            None => self.terminal.error_kind(),
        }
    }
}
