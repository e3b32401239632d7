#![forbid(unsafe_code)]
//! The metadata part and the payload part, as they stand beside a record.

use super::field::{Codec, Measure, Reader, Sink};
use super::rule::{Rule, WireError};
use crate::limits::MAX_METADATA_BYTES;

/// A metadata part that keeps all rules.
///
/// | name | layout |
/// |---|---|
/// | metadata part | u8 version 1, u8 count, then per entry text8 key, u16 length + bytes value; keys unique; at most 1024 bytes |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MetadataPart<'a> {
    /// The part as encoded.
    pub part: &'a [u8],
}

/// Where the entries begin.
const ENTRIES_OFFSET: usize = 2;

impl<'a> MetadataPart<'a> {
    /// Checks an encoded part; offsets count from its start.
    ///
    /// # Errors
    /// The rule that is broken.
    pub fn decode(part: &'a [u8]) -> Result<Self, WireError> {
        Self::decode_at(part, 0)
    }

    pub(super) fn decode_at(part: &'a [u8], base: usize) -> Result<Self, WireError> {
        if part.len() > MAX_METADATA_BYTES {
            return Err(WireError::new(Rule::MetadataTooLarge, base));
        }
        let mut r = Reader::new(part, base);
        r.choice(Reader::u8, |v| (v == 1).then_some(()), Rule::MetadataVersion)?;
        let count = usize::from(r.u8()?);
        let mut keys = [""; u8::MAX as usize];
        for i in 0..count {
            let key_at = r.offset();
            let key = r.text8()?;
            if keys[..i].contains(&key) {
                return Err(WireError::new(Rule::MetadataDuplicateKey, key_at));
            }
            keys[i] = key;
            r.bytes16()?;
        }
        r.finish()?;
        Ok(Self { part })
    }

    /// The entries in their order.
    pub fn entries(&self) -> impl Iterator<Item = (&'a str, &'a [u8])> + use<'a> {
        let mut r = Reader::new(self.part.get(ENTRIES_OFFSET..).unwrap_or_default(), 0);
        std::iter::from_fn(move || {
            if r.left() == 0 {
                return None;
            }
            // Checked when the part was decoded; nothing can fail here.
            Some((r.text8().ok()?, r.bytes16().ok()?))
        })
    }

    /// The value of a key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&'a [u8]> {
        self.entries().find(|(k, _)| *k == key).map(|(_, value)| value)
    }

    /// How many entries there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.part.get(1).map_or(0, |count| usize::from(*count))
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

fn put_metadata<S: Sink>(s: &mut S, entries: &[(&str, &[u8])]) {
    let start = s.mark();
    s.u8(1);
    s.require(entries.len() <= usize::from(u8::MAX), Rule::MetadataTooLarge);
    s.u8(entries.len() as u8);
    for (i, (key, value)) in entries.iter().enumerate() {
        s.require(entries[..i].iter().all(|(k, _)| k != key), Rule::MetadataDuplicateKey);
        s.text8(key);
        let whole = s.mark() - start + 2 + value.len();
        s.require(whole <= MAX_METADATA_BYTES, Rule::MetadataTooLarge);
        s.u16(value.len() as u16);
        s.raw(value);
    }
}

/// Appends a metadata part.
///
/// # Errors
/// A key that is empty, too long, has a NUL or stands there twice; more than 255 entries;
/// more than 1024 bytes. `out` is then as it was.
pub fn encode_metadata_part(out: &mut Vec<u8>, entries: &[(&str, &[u8])]) -> Result<(), WireError> {
    let mut measure = Measure::new(0);
    put_metadata(&mut measure, entries);
    out.reserve(measure.end()?);
    put_metadata(out, entries);
    Ok(())
}

/// A payload part that keeps all rules.
///
/// | name | layout |
/// |---|---|
/// | payload part | u8 version 1, u32 body length, body = text8 packet name, text8 content type, u32 length + payload bytes; nothing after |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PayloadPart<'a> {
    /// What the packet is.
    pub packet_name: &'a str,
    /// How its bytes are to be read.
    pub content_type: &'a str,
    /// Its bytes.
    pub bytes: &'a [u8],
    /// The part as encoded, so that it can be kept and relayed as it is.
    pub part: &'a [u8],
}

impl<'a> PayloadPart<'a> {
    /// Decodes a part; offsets count from its start.
    ///
    /// # Errors
    /// The rule that is broken.
    pub fn decode(part: &'a [u8]) -> Result<Self, WireError> {
        Self::decode_at(part, 0)
    }

    pub(super) fn decode_at(part: &'a [u8], base: usize) -> Result<Self, WireError> {
        let mut r = Reader::new(part, base);
        r.choice(Reader::u8, |v| (v == 1).then_some(()), Rule::PayloadVersion)?;
        let field = r.offset();
        let body = u64::from(r.u32()?);
        if body != r.left() as u64 {
            return Err(WireError::new(Rule::BodyLength, field));
        }
        let packet_name = r.text8()?;
        let content_type = r.text8()?;
        let bytes = r.bytes32()?;
        r.finish()?;
        Ok(Self { packet_name, content_type, bytes, part })
    }
}

fn put_payload_head<S: Sink>(s: &mut S, packet_name: &str, content_type: &str, len: usize) {
    let body = 1 + packet_name.len() + 1 + content_type.len() + 4 + len;
    s.u8(1);
    s.require(u32::try_from(body).is_ok(), Rule::FrameTooLarge);
    s.u32(body as u32);
    s.text8(packet_name);
    s.text8(content_type);
    s.u32(len as u32);
}

/// Length of the payload part that [`encode_payload_part`] would append.
///
/// # Errors
/// A name or content type that breaks the rules of text8, or more than 4 GiB in all.
pub fn payload_part_len(
    packet_name: &str,
    content_type: &str,
    len: usize,
) -> Result<usize, WireError> {
    let mut measure = Measure::new(0);
    put_payload_head(&mut measure, packet_name, content_type, len);
    Ok(measure.end()? + len)
}

/// Appends a payload part.
///
/// # Errors
/// As [`payload_part_len`]; `out` is then as it was.
///
/// ```
/// let mut part = Vec::new();
/// homing::wire::encode_payload_part(&mut part, "counter.add", "application/postcard", &[2])?;
/// let decoded = homing::wire::PayloadPart::decode(&part)?;
/// assert_eq!((decoded.packet_name, decoded.bytes), ("counter.add", &[2][..]));
/// # Ok::<(), homing::wire::WireError>(())
/// ```
pub fn encode_payload_part(
    out: &mut Vec<u8>,
    packet_name: &str,
    content_type: &str,
    bytes: &[u8],
) -> Result<(), WireError> {
    out.reserve(payload_part_len(packet_name, content_type, bytes.len())?);
    put_payload_head(out, packet_name, content_type, bytes.len());
    out.extend_from_slice(bytes);
    Ok(())
}

/// The origin part of a relayed frame: where its reply and its notices go.
///
/// | name | layout |
/// |---|---|
/// | origin part | rid origin node, gen node generation, u64 reply route id (the request's correlation; 0 one-way) |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Origin<'a> {
    /// The node where the operation started.
    pub rid: &'a [u8],
    /// Its lifecycle.
    pub node_generation: crate::ids::NodeGeneration,
    /// The request's correlation; `None` for a one-way message.
    pub reply_route: Option<crate::ids::Correlation>,
}

impl<'a> Codec<'a> for Origin<'a> {
    fn get(r: &mut Reader<'a>) -> Result<Self, WireError> {
        Ok(Self {
            rid: r.rid()?,
            node_generation: r.fence(crate::ids::NodeGeneration::new)?,
            reply_route: r.opt_fence(crate::ids::Correlation::new)?,
        })
    }

    fn put<S: Sink>(&self, s: &mut S) {
        s.rid(self.rid);
        s.u64(self.node_generation.get());
        s.u64(self.reply_route.map_or(0, crate::ids::Correlation::get));
    }
}
