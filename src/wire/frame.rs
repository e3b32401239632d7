#![forbid(unsafe_code)]
//! A whole link frame: header, origin part, record or link control record, metadata part,
//! payload part.

use super::control::Control;
use super::field::{Codec, Measure, Reader, measure};
use super::header::{FrameHeader, HASH_OFFSET};
use super::message::ObjectMessage;
use super::parts::{MetadataPart, Origin, PayloadPart};
use super::record::{FLAGS_OFFSET, PartRule, Record};
use super::rule::{Rule, WireError};
use crate::ids::ObjectHash;
use crate::limits::{FRAME_HEADER_BYTES, MAX_METADATA_BYTES};

/// What a frame carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(clippy::large_enum_variant)] // Borrowed and short-lived; a box would allocate.
pub enum Body<'a> {
    /// A record of the service wire.
    Record(Record<'a>),
    /// A link control record.
    Control(Control<'a>),
}

/// A decoded frame. It borrows everything from the bytes it was decoded from.
///
/// | part | when |
/// |---|---|
/// | header | always, 40 bytes |
/// | origin | on a relayed message or bind |
/// | record | always |
/// | metadata | on a message, if its record says so |
/// | payload | as the command says |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Frame<'a> {
    /// Lane of the link.
    pub lane: u16,
    /// Low half of the object's hash; 0 for control of the lane.
    pub object_hash: u64,
    /// Time left in milliseconds; 0 for none.
    pub remaining_ms: u32,
    /// Whether the hash is that of a bundle's Spot.
    pub bundle: bool,
    /// Where the operation started; `None` when it started at the link's peer.
    pub origin: Option<Origin<'a>>,
    /// The record.
    pub body: Body<'a>,
    /// The metadata of a message.
    pub metadata: Option<MetadataPart<'a>>,
    /// The payload.
    pub payload: Option<PayloadPart<'a>>,
}

/// The parts of a frame as they lie in its bytes.
struct Slices<'a> {
    origin: &'a [u8],
    record: &'a [u8],
    metadata: &'a [u8],
    payload: &'a [u8],
    origin_at: usize,
    record_at: usize,
    metadata_at: usize,
    payload_at: usize,
}

impl<'a> Slices<'a> {
    fn cut(bytes: &'a [u8], h: &FrameHeader) -> Result<Self, WireError> {
        let frame_len = h.frame_len as usize;
        if bytes.len() < frame_len {
            return Err(WireError::new(Rule::FrameTruncated, bytes.len()));
        }
        if bytes.len() > frame_len {
            return Err(WireError::new(Rule::FrameTrailing, frame_len));
        }
        let origin_at = FRAME_HEADER_BYTES;
        let record_at = origin_at + usize::from(h.origin_len);
        let metadata_at = record_at + h.record_len as usize;
        let payload_at = metadata_at + usize::from(h.metadata_len);
        Ok(Self {
            origin: &bytes[origin_at..record_at],
            record: &bytes[record_at..metadata_at],
            metadata: &bytes[metadata_at..payload_at],
            payload: &bytes[payload_at..],
            origin_at,
            record_at,
            metadata_at,
            payload_at,
        })
    }
}

impl<'a> Frame<'a> {
    /// Decodes exactly one whole frame; offsets count from its start.
    ///
    /// # Errors
    /// The first rule that is broken; the link then closes.
    ///
    /// # Cost
    /// One pass over all but the payload's bytes, no allocation.
    pub fn decode(bytes: &'a [u8], max_frame_bytes: u32) -> Result<Self, WireError> {
        let header = FrameHeader::decode(bytes, max_frame_bytes)?;
        let s = Slices::cut(bytes, &header)?;
        let (body, has_metadata) = if header.control {
            (Body::Control(Control::decode_at(s.record, s.record_at)?), false)
        } else {
            let decoded = Record::decode_at(s.record, s.record_at)?;
            (Body::Record(decoded.record), decoded.has_metadata)
        };
        let shape = Shape {
            body: &body,
            object_hash: header.object_hash,
            bundle: header.bundle,
            has_origin: !s.origin.is_empty(),
            has_payload: !s.payload.is_empty(),
        };
        shape.check(&s)?;
        let origin = match s.origin {
            [] => None,
            part => Some(decode_origin(part, s.origin_at, &body)?),
        };
        let metadata = match s.metadata {
            [] if has_metadata => {
                return Err(WireError::new(Rule::MetadataMissing, s.record_at + FLAGS_OFFSET));
            }
            [] => None,
            _ if !has_metadata => {
                return Err(WireError::new(Rule::MetadataNotAllowed, s.metadata_at));
            }
            part => Some(MetadataPart::decode_at(part, s.metadata_at)?),
        };
        let payload = match s.payload {
            [] => None,
            part => Some(PayloadPart::decode_at(part, s.payload_at)?),
        };
        Ok(Self {
            lane: header.lane,
            object_hash: header.object_hash,
            remaining_ms: header.remaining_ms,
            bundle: header.bundle,
            origin,
            body,
            metadata,
            payload,
        })
    }

    /// The record, if it is not link control.
    #[must_use]
    pub const fn record(&self) -> Option<&Record<'a>> {
        match &self.body {
            Body::Record(record) => Some(record),
            Body::Control(_) => None,
        }
    }

    /// Checks the object hash against the id that the record names. Records that name no
    /// object are exempt, and so are bundles, whose hash is that of a Spot the record does
    /// not name.
    ///
    /// # Errors
    /// [`Rule::HashMismatch`].
    ///
    /// # Cost
    /// Hashes the id; called only when the id was not found under the hash that was carried.
    pub fn check_object_hash(&self, hash_seed: u64) -> Result<(), WireError> {
        let object = if self.bundle { None } else { self.record().and_then(Record::object) };
        match object {
            Some((kind, id)) if ObjectHash::of(hash_seed, kind, id).low() != self.object_hash => {
                Err(WireError::new(Rule::HashMismatch, HASH_OFFSET))
            }
            _ => Ok(()),
        }
    }

    /// The parts to encode this frame again.
    #[must_use]
    pub fn parts(&self) -> FrameParts<'a> {
        FrameParts {
            lane: self.lane,
            object_hash: self.object_hash,
            remaining_ms: self.remaining_ms,
            bundle: self.bundle,
            origin: self.origin,
            body: self.body,
            metadata_part: self.metadata.map(|metadata| metadata.part),
            payload_part: self.payload.map(|payload| payload.part),
        }
    }
}

/// What of a frame hangs together: one place for both directions.
struct Shape<'s, 'a> {
    body: &'s Body<'a>,
    object_hash: u64,
    bundle: bool,
    has_origin: bool,
    has_payload: bool,
}

/// Offset of the header's flags.
const FRAME_FLAGS_OFFSET: usize = 5;

impl Shape<'_, '_> {
    fn check(&self, s: &Slices<'_>) -> Result<(), WireError> {
        let (link_scoped, names_object, can_be_relayed, payload) = match self.body {
            Body::Control(_) => (true, false, false, PartRule::Refused),
            Body::Record(record) => {
                let command = record.command();
                (
                    command.is_link_scoped(),
                    record.object().is_some(),
                    command.can_be_relayed(),
                    command.payload(),
                )
            }
        };
        let fail = |rule, offset| Err(WireError::new(rule, offset));
        if link_scoped && self.object_hash != 0 {
            return fail(Rule::HashNotZero, HASH_OFFSET);
        }
        if self.bundle && !names_object {
            return fail(Rule::BundleNotAllowed, FRAME_FLAGS_OFFSET);
        }
        if self.has_origin && !can_be_relayed {
            return fail(Rule::OriginNotAllowed, s.origin_at);
        }
        if let (false, Body::Record(Record::Message(ObjectMessage { hop_count: 1.., .. }))) =
            (self.has_origin, self.body)
        {
            return fail(Rule::OriginMissing, s.origin_at);
        }
        match (payload, self.has_payload) {
            (PartRule::Required, false) => fail(Rule::PayloadMissing, s.payload_at),
            (PartRule::Refused, true) => fail(Rule::PayloadNotAllowed, s.payload_at),
            _ => Ok(()),
        }
    }
}

fn decode_origin<'a>(
    part: &'a [u8],
    origin_at: usize,
    body: &Body<'_>,
) -> Result<Origin<'a>, WireError> {
    let mut r = Reader::new(part, origin_at);
    let origin = Origin::get(&mut r)?;
    r.finish()?;
    check_reply_route(&origin, body, r.offset() - 8)?;
    Ok(origin)
}

fn check_reply_route(origin: &Origin<'_>, body: &Body<'_>, at: usize) -> Result<(), WireError> {
    let awaited = match body {
        Body::Record(record) => record.awaited_reply(),
        Body::Control(_) => None,
    };
    if origin.reply_route != awaited {
        return Err(WireError::new(Rule::OriginReplyRoute, at));
    }
    Ok(())
}

/// What a frame is made of. The metadata and payload parts are encoded already; they are
/// taken as they are, so a relay copies nothing but the head.
///
/// ```
/// use homing::wire::{Body, Frame, FrameParts, Liveness, Record};
/// let parts = FrameParts::link(3, Body::Record(Record::LivenessProbe(Liveness { probe_id: 7 })));
/// let mut out = Vec::new();
/// parts.encode(&mut out, 1 << 20)?;
/// assert_eq!(Frame::decode(&out, 1 << 20)?.parts(), parts);
/// # Ok::<(), homing::wire::WireError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FrameParts<'a> {
    /// Lane of the link.
    pub lane: u16,
    /// Low half of the object's hash; 0 for control of the lane.
    pub object_hash: u64,
    /// Time left in milliseconds; 0 for none.
    pub remaining_ms: u32,
    /// Whether the hash is that of a bundle's Spot.
    pub bundle: bool,
    /// Where the operation started, on a relayed frame.
    pub origin: Option<Origin<'a>>,
    /// The record.
    pub body: Body<'a>,
    /// An encoded metadata part.
    pub metadata_part: Option<&'a [u8]>,
    /// An encoded payload part.
    pub payload_part: Option<&'a [u8]>,
}

impl<'a> FrameParts<'a> {
    /// A frame that concerns the link or the lane: no object, no deadline, no parts.
    #[must_use]
    pub const fn link(lane: u16, body: Body<'a>) -> Self {
        Self {
            lane,
            object_hash: 0,
            remaining_ms: 0,
            bundle: false,
            origin: None,
            body,
            metadata_part: None,
            payload_part: None,
        }
    }

    /// Checks everything but the inside of the encoded parts, and computes the header.
    ///
    /// # Errors
    /// The rule that the frame would break, [`Rule::FrameTooLarge`] among them.
    pub fn header(&self, max_frame_bytes: u32) -> Result<FrameHeader, WireError> {
        let too_large = WireError::new(Rule::FrameTooLarge, 0);
        let origin_at = FRAME_HEADER_BYTES;
        let origin_len = match &self.origin {
            None => 0,
            Some(origin) => measure(origin).map_err(|e| moved(e, origin_at))?,
        };
        let record_at = origin_at + origin_len;
        let record_len = self.measure_body(record_at)?;
        let metadata_at = record_at + record_len;
        let metadata_len = self.metadata_part.map_or(0, <[u8]>::len);
        let payload_at = metadata_at + metadata_len;
        let payload_len = self.payload_part.map_or(0, <[u8]>::len);
        if metadata_len > MAX_METADATA_BYTES {
            return Err(WireError::new(Rule::MetadataTooLarge, metadata_at));
        }
        if self.metadata_part.is_some_and(<[u8]>::is_empty)
            || self.payload_part.is_some_and(<[u8]>::is_empty)
        {
            return Err(WireError::new(Rule::PartFlag, FRAME_FLAGS_OFFSET));
        }
        let empty: &[u8] = &[];
        let slices = Slices {
            origin: empty,
            record: empty,
            metadata: empty,
            payload: empty,
            origin_at,
            record_at,
            metadata_at,
            payload_at,
        };
        let shape = Shape {
            body: &self.body,
            object_hash: self.object_hash,
            bundle: self.bundle,
            has_origin: self.origin.is_some(),
            has_payload: payload_len != 0,
        };
        shape.check(&slices)?;
        if let Some(origin) = &self.origin {
            check_reply_route(origin, &self.body, record_at - 8)?;
        }
        let header = FrameHeader {
            frame_len: u32::try_from(payload_at + payload_len).map_err(|_| too_large)?,
            control: matches!(self.body, Body::Control(_)),
            bundle: self.bundle,
            lane: self.lane,
            object_hash: self.object_hash,
            remaining_ms: self.remaining_ms,
            origin_len: origin_len as u16,
            metadata_len: metadata_len as u16,
            record_len: record_len as u32,
            payload_len: payload_len as u32,
        };
        header.check_lengths(max_frame_bytes)?;
        Ok(header)
    }

    fn measure_body(&self, record_at: usize) -> Result<usize, WireError> {
        let mut m = Measure::new(record_at);
        match &self.body {
            Body::Record(record) => record.put(self.metadata_part.is_some(), &mut m),
            Body::Control(control) if self.metadata_part.is_none() => control.put(&mut m),
            Body::Control(_) => return Err(WireError::new(Rule::MetadataNotAllowed, record_at)),
        }
        m.end()
    }

    /// How many bytes [`encode`](Self::encode) appends.
    ///
    /// # Errors
    /// The rule that the frame would break, other than its largest size.
    pub fn encoded_len(&self) -> Result<usize, WireError> {
        Ok(self.header(u32::MAX)?.frame_len as usize)
    }

    /// Appends the whole frame, reserved at once.
    ///
    /// # Errors
    /// The rule that the frame would break; `out` is then as it was.
    pub fn encode(&self, out: &mut Vec<u8>, max_frame_bytes: u32) -> Result<(), WireError> {
        let header = self.header(max_frame_bytes)?;
        out.reserve(header.frame_len as usize);
        self.put_head(&header, out);
        out.extend_from_slice(self.payload_part.unwrap_or_default());
        Ok(())
    }

    /// Appends all but the payload part, which ends the frame: the caller sends it from where
    /// it lies. Returns the length of the whole frame.
    ///
    /// # Errors
    /// The rule that the frame would break; `out` is then as it was.
    pub fn encode_head(&self, out: &mut Vec<u8>, max_frame_bytes: u32) -> Result<usize, WireError> {
        let header = self.header(max_frame_bytes)?;
        out.reserve((header.frame_len - header.payload_len) as usize);
        self.put_head(&header, out);
        Ok(header.frame_len as usize)
    }

    fn put_head(&self, header: &FrameHeader, out: &mut Vec<u8>) {
        out.extend_from_slice(&header.to_bytes());
        if let Some(origin) = &self.origin {
            origin.put(out);
        }
        match &self.body {
            Body::Record(record) => record.put(self.metadata_part.is_some(), out),
            Body::Control(control) => control.put(out),
        }
        out.extend_from_slice(self.metadata_part.unwrap_or_default());
    }
}

const fn moved(e: WireError, by: usize) -> WireError {
    WireError::new(e.rule, e.offset + by)
}
