#![forbid(unsafe_code)]
//! Named steps of the protocols at which a test can stop, end or hold a node (DESIGN §4).

use std::fmt;

macro_rules! failpoints {
    ($($(#[$doc:meta])+ $variant:ident = $name:literal,)*) => {
        /// A step of a protocol, as [`super::Env::reached`] is told of it.
        ///
        /// ```
        /// use homing::env::Failpoint;
        /// let point = Failpoint::from_name("turn-done");
        /// assert_eq!(point, Some(Failpoint::TurnDone));
        /// assert_eq!(Failpoint::TurnDone.to_string(), "turn-done");
        /// ```
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Failpoint {
            $($(#[$doc])+ $variant,)*
        }

        impl Failpoint {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The name that tests arm it by.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
}

failpoints! {
    /// A message of another node is in its object's queue; its turn has not begun.
    Admitted = "admitted",
    /// A turn has ended; its answer, if it has one, is not let out.
    TurnDone = "turn-done",
    /// An answer is about to become a frame, or to reach its waiter here.
    ReplyLetOut = "reply-let-out",
    /// Frames are about to be handed to the kernel; the lease has not been looked at for it.
    FramesReady = "frames-ready",
    /// The generation of a new object is chosen; its reservation is about to be sent.
    CreateReserve = "create-reserve",
    /// The reservation stands; the factory is about to run.
    CreateFactory = "create-factory",
    /// The factory has made the object; its Ready row is about to be sent.
    CreateCommit = "create-commit",
    /// The Ready row stands; the object is about to take turns.
    CreateInstall = "create-install",
    /// The object runs; whoever asked for it is about to be told.
    CreateAnswer = "create-answer",
    /// An object is about to be closed; its row stands.
    DestroyClose = "destroy-close",
    /// The object is closed; the deletion of its row is about to be sent.
    DestroyDelete = "destroy-delete",
    /// The row is gone; the object is about to be forgotten.
    DestroyReleased = "destroy-released",
    /// A commit is about to be given to the Store's provider.
    CommitSent = "commit-sent",
    /// The provider has answered a commit; no core knows.
    CommitAnswered = "commit-answered",
    /// A renewal of the lease is about to be given to the provider.
    RenewalSent = "renewal-sent",
    /// The provider has answered a renewal; the lease is not published.
    RenewalAnswered = "renewal-answered",
    /// A dial has got through; hello is not sent.
    HandshakeConnected = "handshake-connected",
    /// A stream was accepted; nothing is read from it.
    HandshakeAccepted = "handshake-accepted",
    /// A frame of the handshake is about to be sent.
    HandshakeSend = "handshake-send",
    /// The peer is admitted; its lanes are not up.
    LinkAdmitted = "link-admitted",
    /// All lanes are attached; the link is about to be used.
    LinkUp = "link-up",
}

impl Failpoint {
    /// The point of a name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|point| point.name() == name)
    }
}

impl fmt::Display for Failpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
