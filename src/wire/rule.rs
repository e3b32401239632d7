#![forbid(unsafe_code)]
//! The rules of the wire, one variant each, and the error that names the broken one.

use std::fmt;

macro_rules! rules {
    ($($(#[$extra:meta])* $name:ident $kebab:literal $text:literal;)*) => {
        /// One rule of the wire. The set is closed; each rule has a stable name for counters
        /// and tools, and one sentence for people.
        ///
        /// ```
        /// use homing::wire::Rule;
        /// assert_eq!(Rule::HeaderCrc.name(), "header-crc");
        /// assert_eq!(Rule::from_name("header-crc"), Some(Rule::HeaderCrc));
        /// ```
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Rule {
            $(#[doc = $text] $(#[$extra])* $name,)*
        }

        impl Rule {
            /// Every rule, in the order of the documentation; `ALL[rule as usize] == rule`.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The stable name, in kebab case.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $kebab,)* }
            }

            /// The rule as one sentence.
            #[must_use]
            pub const fn text(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

rules! {
    // The link frame.
    FrameTruncated "frame-truncated" "A frame has 40 bytes of header and as many bytes as its frame_len says.";
    FrameVersion "frame-version" "The version of a frame is 1.";
    HeaderCrc "header-crc" "The header ends with the CRC-32C of its first 36 bytes.";
    FrameTooShort "frame-too-short" "The frame_len counts the header, so it is 40 or more.";
    FrameTooLarge "frame-too-large" "A frame is no longer than the largest frame of the link.";
    FrameFlags "frame-flags" "Only the flag bits 0 to 4 of a frame may be set.";
    FrameReserved "frame-reserved" "The reserved field of a frame is 0.";
    PartFlag "part-flag" "A part has a length other than 0 if, and only if, its flag bit is set.";
    PartLengths "part-lengths" "The lengths of the parts and 40 add up to frame_len.";
    FrameTrailing "frame-trailing" "Nothing follows the last part of a frame.";
    WrongLane "wrong-lane" "The lane of a frame is the lane it arrives on.";
    HashNotZero "hash-not-zero" "The object hash of a record that concerns the link or the lane is 0.";
    HashMismatch "hash-mismatch" "The object hash is that of the object the record names.";
    BundleNotAllowed "bundle-not-allowed" "The bundle flag stands only on a record that names an object.";
    OriginNotAllowed "origin-not-allowed" "An origin part stands only on a record that can be relayed.";
    OriginMissing "origin-missing" "A relayed message (hop count above 0) has an origin part.";
    OriginReplyRoute "origin-reply-route" "The reply route of the origin is the correlation of the request, and 0 for a one-way message.";
    // The record head.
    RecordMagic "record-magic" "A record starts with 5A 4D.";
    RecordMajor "record-major" "The major version of a record is 1.";
    CommandReserved "command-reserved" "The command is not one of the reserved or invalid numbers.";
    CommandUnsupported "command-unsupported" "The command is one that this version speaks.";
    FlagExtension "flag-extension" "The extension flag (08) is refused.";
    FlagUnknown "flag-unknown" "Only the flag bits 0 to 3 of a record are known.";
    FlagNotAllowed "flag-not-allowed" "A record carries only the flags that its command allows.";
    FlagPair "flag-pair" "The flags boundSession (02) and sourceSpotId (04) are set both or neither.";
    MetadataMissing "metadata-missing" "A record with the metadata flag has a metadata part.";
    MetadataNotAllowed "metadata-not-allowed" "A record without the metadata flag has no metadata part.";
    PayloadMissing "payload-missing" "A message has a payload part.";
    PayloadNotAllowed "payload-not-allowed" "A payload part stands only on a command that can have one.";
    ControlUnknown "control-unknown" "The type of a link control record is one that this version speaks.";
    // Fields.
    Truncated "truncated" "Every field is there in full.";
    TrailingBytes "trailing-bytes" "Nothing follows the last field.";
    BodyLength "body-length" "A body has as many bytes as the length before it says.";
    TextEmpty "text-empty" "A text has at least one byte.";
    TextTooLong "text-too-long" "A text has at most 255 bytes (65,535 for a store version).";
    TextUtf8 "text-utf8" "A text is strict UTF-8.";
    TextNul "text-nul" "A text has no NUL byte.";
    RidEmpty "rid-empty" "A routing id has at least one byte.";
    RidTooLong "rid-too-long" "A routing id has at most 255 bytes.";
    GenerationZero "generation-zero" "A generation or correlation is not 0.";
    GenerationRange "generation-range" "A generation or correlation is at most 2^63-1.";
    OperationIdZero "operation-id-zero" "The two halves of an operation id are not both 0.";
    RelocationIdZero "relocation-id-zero" "The two halves of a relocation id are not both 0.";
    ProbeIdZero "probe-id-zero" "A probe id is not 0.";
    HopCount "hop-count" "A hop count is at most 8, and at least 1 in messageFollow.";
    ObjectKindUnknown "object-kind-unknown" "The kind of a route is 1 (actor) or 2 (spot).";
    PresenceByte "presence-byte" "A byte that says yes or no is 1 or 0.";
    // The metadata and payload parts.
    MetadataVersion "metadata-version" "The version of a metadata part is 1.";
    MetadataTooLarge "metadata-too-large" "A metadata part has at most 1024 bytes and 255 entries.";
    MetadataDuplicateKey "metadata-duplicate-key" "The keys of a metadata part are unique.";
    PayloadVersion "payload-version" "The version of a payload part is 1.";
    // Replies.
    TerminalUnknown "terminal-unknown" "The terminal result of a reply is one of the published numbers.";
    FailureUnknown "failure-unknown" "The failure code of a reply is one of the published numbers.";
    OkWithFailure "ok-with-failure" "A reply that is ok has no failure code.";
    TailNotAllowed "tail-not-allowed" "A reply has a tail only if it is ok and its operation has one.";
    CreateOutcome "create-outcome" "The outcome of a creation is 1, 2, 3 or 4.";
    // Sessions and relocation.
    BindState "bind-state" "The state of a bind is 1 (active) or 2 (tombstone).";
    RelocationRole "relocation-role" "A relocation role is 1 (source), 2 (target) or 3 (coordinator).";
    RouteAction "route-action" "The action of a relocation route is 1 (commit) or 2 (abort).";
    AbortRole "abort-role" "A relocation route that aborts has the role source.";
    FollowVersion "follow-version" "The version of messageFollow is 1.";
    FollowRoutes "follow-routes" "Both routes of messageFollow name the same kind, id and object generation.";
    FollowOrder "follow-order" "The target of messageFollow has the greater authority owner generation.";
    // Creation, links.
    CreateMode "create-mode" "The mode of a creation is 1 (create here) or 2 (join the running attempt).";
    AttemptIdZero "attempt-id-zero" "The id of a creation attempt is not 0.";
    CoreCount "core-count" "A node has 1 to 256 cores.";
    MaxFrameRange "max-frame-range" "A node's largest frame is between 64 KiB and 1 GiB.";
    LaneWindow "lane-window" "A node's lane window is not 0.";
    LinkIdZero "link-id-zero" "A link id is not 0.";
    LaneCount "lane-count" "A link has 1 to 16 lanes.";
    LaneNumber "lane-number" "A lane that is attached has a number of 1 to 15.";
    RejectReason "reject-reason" "The reason of a reject is one of the documented numbers.";
    CreditEmpty "credit-empty" "A credit record has an entry, and no entry returns 0 bytes.";
    CreditSum "credit-sum" "The entries of a credit record add up to its total.";
}

impl Rule {
    /// The rule of a stable name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|rule| rule.name() == name)
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Bytes that break a rule: which one, and where.
///
/// When decoding, `offset` counts from the start of what was handed in; it is the first byte
/// of the field that is wrong (for a text, the very byte), or the place where a missing field
/// or part should begin. When encoding, it is the place the field would have had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WireError {
    /// The rule that is broken.
    pub rule: Rule,
    /// Where, in bytes.
    pub offset: usize,
}

impl WireError {
    /// An error at an offset.
    #[must_use]
    pub const fn new(rule: Rule, offset: usize) -> Self {
        Self { rule, offset }
    }
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at offset {}: {}", self.rule, self.offset, self.rule.text())
    }
}

impl std::error::Error for WireError {}

impl From<WireError> for crate::Error {
    fn from(e: WireError) -> Self {
        Self::new(crate::ErrorKind::ProtocolError, e.to_string())
    }
}
