#![forbid(unsafe_code)]
//! The one closed set of errors a caller sees (R0-5).

use std::fmt;

/// What kind of end an operation met. The set is closed; no kind carries a retry hint.
///
/// ```
/// use homing::{Error, ErrorKind};
/// let e = Error::new(ErrorKind::NotFound, "actor \"x\" does not exist");
/// assert_eq!(e.kind() as u8, 0);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ErrorKind {
    /// No such object, handler or target.
    NotFound = 0,
    /// The object exists already.
    AlreadyExists = 1,
    /// The object is of another type.
    TypeMismatch = 2,
    /// A setting is missing, or two settings contradict each other.
    NotConfigured = 3,
    /// The application refused.
    Rejected = 4,
    /// The owner cannot be used now. Says nothing about whether the operation ran.
    Unavailable = 5,
    /// The operation's time ran out. Says nothing about whether it ran.
    DeadlineExceeded = 6,
    /// The node is shutting down.
    ShuttingDown = 7,
    /// Bytes that do not follow the protocol, or a payload that cannot be decoded.
    ProtocolError = 8,
    /// The call makes no sense in this state: bad argument, stale incarnation, own gate.
    InvalidOperation = 9,
    /// State that was promised is gone.
    DataLost = 10,
    /// A handler, a factory or Homing itself failed.
    InternalFailure = 11,
}

impl ErrorKind {
    /// All kinds in the order of their wire values.
    pub const ALL: [Self; 12] = [
        Self::NotFound,
        Self::AlreadyExists,
        Self::TypeMismatch,
        Self::NotConfigured,
        Self::Rejected,
        Self::Unavailable,
        Self::DeadlineExceeded,
        Self::ShuttingDown,
        Self::ProtocolError,
        Self::InvalidOperation,
        Self::DataLost,
        Self::InternalFailure,
    ];

    /// The kind of a wire value.
    #[must_use]
    pub fn from_wire(value: u8) -> Option<Self> {
        Self::ALL.get(usize::from(value)).copied()
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// An error: its kind, and one sentence that says what was wrong.
///
/// ```
/// use homing::{Error, ErrorKind};
/// let e = Error::rejected("the room is full");
/// assert_eq!(e.kind(), ErrorKind::Rejected);
/// assert_eq!(e.to_string(), "Rejected: the room is full");
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Error {
    kind: ErrorKind,
    text: Box<str>,
}

/// `Result` with [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error of any kind.
    #[must_use]
    pub fn new(kind: ErrorKind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into().into_boxed_str() }
    }

    /// A bad argument or a call that makes no sense now.
    #[must_use]
    pub fn invalid(text: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidOperation, text)
    }

    /// A refusal by the application.
    #[must_use]
    pub fn rejected(text: impl Into<String>) -> Self {
        Self::new(ErrorKind::Rejected, text)
    }

    /// The owner cannot be used now.
    #[must_use]
    pub fn unavailable(text: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unavailable, text)
    }

    /// A missing or contradictory setting.
    #[must_use]
    pub fn not_configured(text: impl Into<String>) -> Self {
        Self::new(ErrorKind::NotConfigured, text)
    }

    /// A failure of a handler or of Homing itself.
    #[must_use]
    pub fn internal(text: impl Into<String>) -> Self {
        Self::new(ErrorKind::InternalFailure, text)
    }

    /// What kind of error this is.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The sentence.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.text.is_empty() {
            return fmt::Display::fmt(&self.kind, f);
        }
        write!(f, "{}: {}", self.kind, self.text)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Error {}

impl From<std::io::Error> for Error {
    fn from(e: std::io::Error) -> Self {
        Self::internal(e.to_string())
    }
}
