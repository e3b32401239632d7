#![forbid(unsafe_code)]
//! Payloads and metadata in memory: the encoded wire part, so that nothing is copied or encoded
//! again on the way.

use std::fmt;

use bytes::Bytes;

use crate::error::{Error, Result};
use crate::wire;

/// A packet name, a content type and bytes: what a message is on the wire.
///
/// Cloning is cheap (the bytes are shared). Raw payloads are accepted wherever a
/// [`Message`](crate::Message) is.
///
/// ```
/// use homing::Payload;
/// let p = Payload::new("chat.line", "text/plain", b"hello")?;
/// assert_eq!(p.name(), "chat.line");
/// assert_eq!(p.bytes(), b"hello");
/// # Ok::<(), homing::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Payload {
    /// The payload part as WIRE lays it out; checked when it was made.
    part: Bytes,
}

// Offsets inside the part: u8 version, u32 body length, u8 name length, name, u8 type length, type,
// u32 byte length, bytes.
const NAME_AT: usize = 6;

impl Payload {
    /// Makes a payload. Copies `bytes` once.
    ///
    /// # Errors
    /// `InvalidOperation` when the name or the content type is not 1..=255 bytes without NUL, or
    /// the bytes are more than a frame could ever carry.
    pub fn new(name: &str, content_type: &str, bytes: &[u8]) -> Result<Self> {
        let mut part = Vec::new();
        wire::encode_payload_part(&mut part, name, content_type, bytes)
            .map_err(|e| refused(name, content_type, bytes.len(), &e))?;
        Ok(Self { part: part.into() })
    }

    /// A payload with nothing in it, for a creation without a request.
    #[must_use]
    pub fn empty() -> Self {
        Self { part: Bytes::from_static(b"\x01\0\0\0\x0f\x01-\x08no/bytes\0\0\0\0") }
    }

    /// Takes over an encoded payload part that the wire module has checked.
    pub(crate) fn from_checked_part(part: Bytes) -> Self {
        debug_assert!(wire::PayloadPart::decode(&part).is_ok());
        Self { part }
    }

    /// The encoded part.
    pub(crate) fn part(&self) -> &Bytes {
        &self.part
    }

    fn name_len(&self) -> usize {
        usize::from(self.part[NAME_AT - 1])
    }

    fn type_at(&self) -> usize {
        NAME_AT + self.name_len() + 1
    }

    fn type_len(&self) -> usize {
        usize::from(self.part[self.type_at() - 1])
    }

    /// The packet name: which handler it is for.
    #[must_use]
    pub fn name(&self) -> &str {
        std::str::from_utf8(&self.part[NAME_AT..NAME_AT + self.name_len()]).unwrap_or_default()
    }

    /// The content type: how the bytes are encoded.
    #[must_use]
    pub fn content_type(&self) -> &str {
        let at = self.type_at();
        std::str::from_utf8(&self.part[at..at + self.type_len()]).unwrap_or_default()
    }

    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.part[self.type_at() + self.type_len() + 4..]
    }
}

/// Why a payload cannot be.
pub(super) fn refused(name: &str, content_type: &str, len: usize, why: &wire::WireError) -> Error {
    Error::invalid(format!("payload {name:?} of type {content_type:?} with {len} bytes: {why}"))
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Payload")
            .field("name", &self.name())
            .field("content_type", &self.content_type())
            .field("bytes", &self.bytes().len())
            .finish()
    }
}

/// Key-value pairs that travel beside a payload: for the application, never for routing (R4-2).
///
/// At most 1024 bytes as encoded; keys are unique.
///
/// ```
/// use homing::Metadata;
/// let m = Metadata::new([("trace", b"abc".as_slice())])?;
/// assert_eq!(m.get("trace"), Some(b"abc".as_slice()));
/// # Ok::<(), homing::Error>(())
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Metadata {
    /// The metadata part as WIRE lays it out, or empty.
    part: Bytes,
}

impl Metadata {
    /// Makes metadata from entries.
    ///
    /// # Errors
    /// `InvalidOperation` when a key is not 1..=255 bytes without NUL or comes twice, or the whole
    /// is over 1024 bytes.
    pub fn new<'a>(entries: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> Result<Self> {
        let entries: Vec<(&str, &[u8])> = entries.into_iter().collect();
        let mut part = Vec::new();
        wire::encode_metadata_part(&mut part, &entries)
            .map_err(|e| Error::invalid(format!("metadata with {} entries: {e}", entries.len())))?;
        Ok(Self { part: part.into() })
    }

    pub(crate) fn from_checked_part(part: Bytes) -> Self {
        Self { part }
    }

    /// The encoded part; `None` when there is no metadata.
    pub(crate) fn part(&self) -> Option<&Bytes> {
        (!self.part.is_empty()).then_some(&self.part)
    }

    /// The entries, in the order they were given.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.part()
            .and_then(|part| wire::MetadataPart::decode(part).ok())
            .into_iter()
            .flat_map(|part| part.entries())
    }

    /// The value of `key`.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&[u8]> {
        self.iter().find(|(k, _)| *k == key).map(|(_, v)| v)
    }
}

impl fmt::Debug for Metadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}
