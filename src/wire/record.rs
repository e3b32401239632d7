#![forbid(unsafe_code)]
//! The record: a head of five bytes, then the body of its command.

use super::create::{ActorCreate, ActorDestroy};
use super::field::{Codec, Measure, Reader, Sink, numbers};
use super::message::{MessageFollow, ObjectMessage, Reply};
use super::peer::{Admit, Hello, Liveness, Reject, Update};
use super::rule::{Rule, WireError};
use super::session::{RelocationRoute, RelocationSeal, RelocationSealed, SessionBind};
use crate::ids::{Correlation, ObjectKind};

numbers! {
    /// The commands this version speaks.
    Command: u8 {
        /// 1
        Hello = 1,
        /// 2
        Admit = 2,
        /// 3
        Reject = 3,
        /// 4
        Update = 4,
        /// 5
        LivenessProbe = 5,
        /// 6
        LivenessAck = 6,
        /// 20
        Reply = 20,
        /// 21
        SpotSend = 21,
        /// 22
        SpotRequest = 22,
        /// 24
        ActorSend = 24,
        /// 25
        ActorRequest = 25,
        /// 27
        ActorDestroy = 27,
        /// 38
        BoundSessionBind = 38,
        /// 42
        SessionRelocationSeal = 42,
        /// 43
        SessionRelocationSealed = 43,
        /// 44
        SessionRelocationRoute = 44,
        /// 49
        ActorCreate = 49,
        /// 50
        MessageFollow = 50,
    }
}

/// Whether a command has a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PartRule {
    /// Always.
    Required,
    /// As the sender likes.
    Optional,
    /// Never.
    Refused,
}

/// Record flag: a metadata part follows.
pub(super) const FLAG_METADATA: u8 = 0x01;
const FLAG_BOUND_SESSION: u8 = 0x02;
const FLAG_SOURCE_SPOT: u8 = 0x04;
const FLAG_EXTENSION: u8 = 0x08;
const FLAGS_BOUND: u8 = FLAG_BOUND_SESSION | FLAG_SOURCE_SPOT;
/// Where the flags stand in a record.
pub(super) const FLAGS_OFFSET: usize = 4;

impl Command {
    /// The command of a number.
    ///
    /// # Errors
    /// [`Rule::CommandReserved`] for the reserved and invalid numbers,
    /// [`Rule::CommandUnsupported`] for the published ones that this version does not speak.
    pub const fn of(number: u8) -> Result<Self, Rule> {
        match Self::from_number(number) {
            Some(command) => Ok(command),
            None => Err(match number {
                0 | 7..=15 | 32 | 35 | 41 | 45 | 54..=255 => Rule::CommandReserved,
                _ => Rule::CommandUnsupported,
            }),
        }
    }

    /// The published name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hello => "hello",
            Self::Admit => "admit",
            Self::Reject => "reject",
            Self::Update => "update",
            Self::LivenessProbe => "livenessProbe",
            Self::LivenessAck => "livenessAck",
            Self::Reply => "reply",
            Self::SpotSend => "spotSend",
            Self::SpotRequest => "spotRequest",
            Self::ActorSend => "actorSend",
            Self::ActorRequest => "actorRequest",
            Self::ActorDestroy => "actorDestroy",
            Self::BoundSessionBind => "boundSessionBind",
            Self::SessionRelocationSeal => "sessionRelocationSeal",
            Self::SessionRelocationSealed => "sessionRelocationSealed",
            Self::SessionRelocationRoute => "sessionRelocationRoute",
            Self::ActorCreate => "actorCreate",
            Self::MessageFollow => "messageFollow",
        }
    }

    /// Whether it is a message to an object (21, 22, 24, 25).
    #[must_use]
    pub const fn is_message(self) -> bool {
        matches!(self, Self::SpotSend | Self::SpotRequest | Self::ActorSend | Self::ActorRequest)
    }

    /// Whether it spends credit of its lane.
    #[must_use]
    pub const fn spends_credit(self) -> bool {
        self.is_message()
    }

    /// Whether it can have a metadata part.
    #[must_use]
    pub const fn metadata(self) -> PartRule {
        if self.is_message() { PartRule::Optional } else { PartRule::Refused }
    }

    /// Whether it has a payload part.
    #[must_use]
    pub const fn payload(self) -> PartRule {
        match self {
            Self::Reply | Self::ActorCreate => PartRule::Optional,
            _ if self.is_message() => PartRule::Required,
            _ => PartRule::Refused,
        }
    }

    /// Whether it can be relayed, so that an origin part makes sense.
    #[must_use]
    pub const fn can_be_relayed(self) -> bool {
        self.is_message() || matches!(self, Self::BoundSessionBind)
    }

    /// Whether it concerns a link or a lane, not an object or an operation: its object hash
    /// is 0.
    #[must_use]
    pub const fn is_link_scoped(self) -> bool {
        matches!(
            self,
            Self::Hello
                | Self::Admit
                | Self::Reject
                | Self::Update
                | Self::LivenessProbe
                | Self::LivenessAck
        )
    }

    const fn allowed_flags(self) -> u8 {
        match self {
            Self::ActorSend | Self::ActorRequest => FLAG_METADATA | FLAGS_BOUND,
            Self::SpotSend | Self::SpotRequest => FLAG_METADATA,
            _ => 0,
        }
    }

    /// Checks the flags of a record head.
    fn check_flags(self, flags: u8) -> Result<(), Rule> {
        if flags & FLAG_EXTENSION != 0 {
            return Err(Rule::FlagExtension);
        }
        if flags & !(FLAG_METADATA | FLAGS_BOUND | FLAG_EXTENSION) != 0 {
            return Err(Rule::FlagUnknown);
        }
        if flags & !self.allowed_flags() != 0 {
            return Err(Rule::FlagNotAllowed);
        }
        if !matches!(flags & FLAGS_BOUND, 0 | FLAGS_BOUND) {
            return Err(Rule::FlagPair);
        }
        Ok(())
    }
}

/// A record of the service wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Record<'a> {
    /// 1
    Hello(Hello<'a>),
    /// 2
    Admit(Admit),
    /// 3
    Reject(Reject<'a>),
    /// 4
    Update(Update),
    /// 5
    LivenessProbe(Liveness),
    /// 6
    LivenessAck(Liveness),
    /// 20
    Reply(Reply<'a>),
    /// 21, 22, 24, 25
    Message(ObjectMessage<'a>),
    /// 27
    ActorDestroy(ActorDestroy<'a>),
    /// 38
    SessionBind(SessionBind<'a>),
    /// 42
    RelocationSeal(RelocationSeal<'a>),
    /// 43
    RelocationSealed(RelocationSealed<'a>),
    /// 44
    RelocationRoute(RelocationRoute<'a>),
    /// 49
    ActorCreate(ActorCreate<'a>),
    /// 50
    MessageFollow(MessageFollow<'a>),
}

/// A record and what its head says about the parts beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DecodedRecord<'a> {
    /// The record.
    pub record: Record<'a>,
    /// Whether a metadata part follows (flag 01).
    pub has_metadata: bool,
}

impl<'a> Record<'a> {
    /// Decodes one record; offsets count from its start.
    ///
    /// # Errors
    /// The rule that is broken.
    ///
    /// # Cost
    /// One pass, no allocation; what is returned borrows from `bytes`.
    pub fn decode(bytes: &'a [u8]) -> Result<DecodedRecord<'a>, WireError> {
        Self::decode_at(bytes, 0)
    }

    pub(super) fn decode_at(bytes: &'a [u8], base: usize) -> Result<DecodedRecord<'a>, WireError> {
        let mut r = Reader::new(bytes, base);
        let (command, flags) = head(&mut r)?;
        let record = Self::body(&mut r, command, flags)?;
        r.finish()?;
        Ok(DecodedRecord { record, has_metadata: flags & FLAG_METADATA != 0 })
    }

    fn body(r: &mut Reader<'a>, command: Command, flags: u8) -> Result<Self, WireError> {
        let message = |r: &mut Reader<'a>, kind, request| {
            ObjectMessage::get(r, kind, request, flags & FLAGS_BOUND != 0).map(Self::Message)
        };
        match command {
            Command::Hello => Hello::get(r).map(Self::Hello),
            Command::Admit => Admit::get(r).map(Self::Admit),
            Command::Reject => Reject::get(r).map(Self::Reject),
            Command::Update => Update::get(r).map(Self::Update),
            Command::LivenessProbe => Liveness::get(r).map(Self::LivenessProbe),
            Command::LivenessAck => Liveness::get(r).map(Self::LivenessAck),
            Command::Reply => Reply::get(r).map(Self::Reply),
            Command::SpotSend => message(r, ObjectKind::Spot, false),
            Command::SpotRequest => message(r, ObjectKind::Spot, true),
            Command::ActorSend => message(r, ObjectKind::Actor, false),
            Command::ActorRequest => message(r, ObjectKind::Actor, true),
            Command::ActorDestroy => ActorDestroy::get(r).map(Self::ActorDestroy),
            Command::BoundSessionBind => SessionBind::get(r).map(Self::SessionBind),
            Command::SessionRelocationSeal => RelocationSeal::get(r).map(Self::RelocationSeal),
            Command::SessionRelocationSealed => {
                RelocationSealed::get(r).map(Self::RelocationSealed)
            }
            Command::SessionRelocationRoute => RelocationRoute::get(r).map(Self::RelocationRoute),
            Command::ActorCreate => ActorCreate::get(r).map(Self::ActorCreate),
            Command::MessageFollow => MessageFollow::get(r).map(Self::MessageFollow),
        }
    }

    /// The command.
    #[must_use]
    pub const fn command(&self) -> Command {
        match self {
            Self::Hello(_) => Command::Hello,
            Self::Admit(_) => Command::Admit,
            Self::Reject(_) => Command::Reject,
            Self::Update(_) => Command::Update,
            Self::LivenessProbe(_) => Command::LivenessProbe,
            Self::LivenessAck(_) => Command::LivenessAck,
            Self::Reply(_) => Command::Reply,
            Self::Message(m) => match (m.kind(), m.is_request()) {
                (ObjectKind::Spot, false) => Command::SpotSend,
                (ObjectKind::Spot, true) => Command::SpotRequest,
                (ObjectKind::Actor, false) => Command::ActorSend,
                (ObjectKind::Actor, true) => Command::ActorRequest,
            },
            Self::ActorDestroy(_) => Command::ActorDestroy,
            Self::SessionBind(_) => Command::BoundSessionBind,
            Self::RelocationSeal(_) => Command::SessionRelocationSeal,
            Self::RelocationSealed(_) => Command::SessionRelocationSealed,
            Self::RelocationRoute(_) => Command::SessionRelocationRoute,
            Self::ActorCreate(_) => Command::ActorCreate,
            Self::MessageFollow(_) => Command::MessageFollow,
        }
    }

    /// The object that the record names: what its object hash is made of. `None` for records
    /// that name none, such as replies.
    #[must_use]
    pub const fn object(&self) -> Option<(ObjectKind, &'a str)> {
        match self {
            Self::Message(m) => Some((m.kind(), m.id)),
            Self::ActorDestroy(m) => Some((ObjectKind::Actor, m.id)),
            Self::SessionBind(m) => Some((ObjectKind::Actor, m.id)),
            Self::RelocationSeal(m) => Some((ObjectKind::Actor, m.id)),
            Self::RelocationSealed(m) => Some((ObjectKind::Actor, m.id)),
            Self::RelocationRoute(m) => Some((ObjectKind::Actor, m.id)),
            Self::ActorCreate(m) => Some((ObjectKind::Actor, m.id)),
            Self::MessageFollow(m) => Some((m.kind, m.id)),
            Self::Hello(_)
            | Self::Admit(_)
            | Self::Reject(_)
            | Self::Update(_)
            | Self::LivenessProbe(_)
            | Self::LivenessAck(_)
            | Self::Reply(_) => None,
        }
    }

    /// The correlation that a reply to this record carries; `None` for what is not answered.
    #[must_use]
    pub const fn awaited_reply(&self) -> Option<Correlation> {
        match self {
            Self::Message(m) => m.correlation,
            Self::ActorDestroy(m) => Some(m.correlation),
            Self::SessionBind(m) => Some(m.correlation),
            Self::ActorCreate(m) => Some(m.correlation),
            _ => None,
        }
    }

    const fn bound_flags(&self) -> u8 {
        match self {
            Self::Message(m) if m.bound_session().is_some() => FLAGS_BOUND,
            _ => 0,
        }
    }

    /// How many bytes [`encode`](Self::encode) appends.
    ///
    /// # Errors
    /// The rule that the bytes would break.
    pub fn encoded_len(&self, has_metadata: bool) -> Result<usize, WireError> {
        let mut measure = Measure::new(0);
        self.put(has_metadata, &mut measure);
        measure.end()
    }

    /// Appends exactly [`encoded_len`](Self::encoded_len) bytes, reserved at once.
    ///
    /// # Errors
    /// As `encoded_len`; `out` is then as it was.
    pub fn encode(&self, has_metadata: bool, out: &mut Vec<u8>) -> Result<(), WireError> {
        let len = self.encoded_len(has_metadata)?;
        out.reserve(len);
        self.put(has_metadata, out);
        Ok(())
    }

    pub(super) fn put<S: Sink>(&self, has_metadata: bool, s: &mut S) {
        let command = self.command();
        let flags = self.bound_flags() | if has_metadata { FLAG_METADATA } else { 0 };
        s.raw(&[0x5A, 0x4D, 1, command.number()]);
        s.require(command.check_flags(flags).is_ok(), Rule::FlagNotAllowed);
        s.u8(flags);
        match self {
            Self::Hello(m) => m.put(s),
            Self::Admit(m) => m.put(s),
            Self::Reject(m) => m.put(s),
            Self::Update(m) => m.put(s),
            Self::LivenessProbe(m) | Self::LivenessAck(m) => m.put(s),
            Self::Reply(m) => m.put(s),
            Self::Message(m) => m.put(s),
            Self::ActorDestroy(m) => m.put(s),
            Self::SessionBind(m) => m.put(s),
            Self::RelocationSeal(m) => m.put(s),
            Self::RelocationSealed(m) => m.put(s),
            Self::RelocationRoute(m) => m.put(s),
            Self::ActorCreate(m) => m.put(s),
            Self::MessageFollow(m) => m.put(s),
        }
    }
}

fn head(r: &mut Reader<'_>) -> Result<(Command, u8), WireError> {
    let start = r.offset();
    if r.array()? != [0x5A, 0x4D] {
        return Err(WireError::new(Rule::RecordMagic, start));
    }
    r.choice(Reader::u8, |major| (major == 1).then_some(()), Rule::RecordMajor)?;
    let command_at = r.offset();
    let command = Command::of(r.u8()?).map_err(|rule| WireError::new(rule, command_at))?;
    let flags_at = r.offset();
    let flags = r.u8()?;
    command.check_flags(flags).map_err(|rule| WireError::new(rule, flags_at))?;
    Ok((command, flags))
}
