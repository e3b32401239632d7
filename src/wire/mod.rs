#![forbid(unsafe_code)]
//! Link frame and records: borrowed decode, sized encode.
//!
//! Two layers. The **link frame** is a fixed header of 40 bytes ([`FrameHeader`]) and up to
//! four parts: origin, record, metadata, payload. The **record** is the service wire: a head
//! of five bytes (`5A 4D`, major 1, command, flags), then big-endian fields in declared order,
//! and nothing after the last. A frame carries a [`Record`] or, under a header flag, a link
//! [`Control`] record, which lives and dies with the link.
//!
//! * Decoding borrows and never allocates. Every rule that bytes can break is a [`Rule`]; a
//!   [`WireError`] says which one, and where. A frame that breaks one closes its link: bytes
//!   are never skipped to find the next frame.
//! * Encoding appends to a caller's buffer, and only what decoding would accept: the length
//!   and all rules are checked before the first byte is written.
//! * What is accepted has one encoding: decoding and encoding again gives the same bytes.
//!
//! # Primitive layouts
//!
//! | name | layout |
//! |---|---|
//! | text8 | u8 length 1..=255, strict UTF-8 without NUL |
//! | opt-text8 | the same with 0 = absent |
//! | text16 | u16 length, not 0, strict UTF-8 without NUL |
//! | rid | u8 length 1..=255, bytes |
//! | gen | u64, 1..=2^63-1 |
//! | operation-id, relocation-id | u64 high, u64 low, not both zero |
//! | actor-ref, spot-ref | text8 id, gen object generation |
//! | opt-actor-ref | opt-text8 id, then gen only if present |
//!
//! # Records
//!
//! | command | type |
//! |---:|---|
//! | 1, 2, 3, 4 | [`Hello`], [`Admit`], [`Reject`], [`Update`] |
//! | 5, 6 | [`Liveness`] |
//! | 20 | [`Reply`] |
//! | 21, 22, 24, 25 | [`ObjectMessage`] |
//! | 27, 49 | [`ActorDestroy`], [`ActorCreate`] |
//! | 38 | [`SessionBind`] |
//! | 42, 43, 44 | [`RelocationSeal`], [`RelocationSealed`], [`RelocationRoute`] |
//! | 50 | [`MessageFollow`] |
//!
//! All other published commands are refused as unsupported, all other numbers as reserved.
//! Link control types: 1 [`LaneAttach`], 2 [`Credit`], 9 [`LeaseRenewed`]; others are refused.

mod control;
mod create;
mod field;
mod frame;
mod header;
mod message;
mod parts;
mod peer;
mod record;
mod rule;
mod session;
mod status;

pub use control::{Control, Credit, CreditEntry, LaneAttach, LeaseRenewed};
pub use create::{ActorCreate, ActorDestroy, CreateMode, CreateTail, CreatedActor};
pub use frame::{Body, Frame, FrameParts};
pub use header::{FRAME_VERSION, FrameHeader};
pub use message::{
    ActorSource, BindTail, BoundSession, MessageFollow, MessageForm, ObjectMessage, Reply,
    RouteFenceRef, SessionSequence,
};
pub use parts::{
    MetadataPart, Origin, PayloadPart, encode_metadata_part, encode_payload_part, payload_part_len,
};
pub use peer::{Admit, Hello, LinkGrant, Liveness, PROTOCOL_VERSION, Reject, RejectReason, Update};
pub use record::{Command, DecodedRecord, PartRule, Record};
pub use rule::{Rule, WireError};
pub use session::{
    BindState, CoordinatorFence, RelocationRole, RelocationRoute, RelocationSeal, RelocationSealed,
    RouteAction, SessionBind, SessionOwnerFence,
};
pub use status::{FailureCode, Status, Terminal};
