#![forbid(unsafe_code)]
//! The 40-byte header of a link frame.

use std::mem::{align_of, offset_of, size_of};

use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::rule::{Rule, WireError};
use crate::limits::FRAME_HEADER_BYTES;

/// The version byte of a frame.
pub const FRAME_VERSION: u8 = 1;

const FLAG_METADATA: u8 = 1 << 0;
const FLAG_PAYLOAD: u8 = 1 << 1;
const FLAG_ORIGIN: u8 = 1 << 2;
const FLAG_CONTROL: u8 = 1 << 3;
const FLAG_BUNDLE: u8 = 1 << 4;
const FLAGS_KNOWN: u8 = FLAG_METADATA | FLAG_PAYLOAD | FLAG_ORIGIN | FLAG_CONTROL | FLAG_BUNDLE;

/// The header as it lies in the bytes.
///
/// ```text
///  0        4   5   6     8              16        20     22     24       28       32       36       40
///  +--------+---+---+-----+--------------+---------+------+------+--------+--------+--------+--------+
///  |frame   |ver|flg|lane | object_hash  |remaining|origin|meta  |record  |payload |reserved|header  |
///  |_len    |   |   |     |              |_ms      |_len  |_len  |_len    |_len    | 0      |_crc32c |
///  +--------+---+---+-----+--------------+---------+------+------+--------+--------+--------+--------+
/// ```
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawHeader {
    frame_len: U32,
    version: u8,
    flags: u8,
    lane: U16,
    object_hash: U64,
    remaining_ms: U32,
    origin_len: U16,
    metadata_len: U16,
    record_len: U32,
    payload_len: U32,
    reserved: U32,
    header_crc32c: U32,
}

const FRAME_LEN_OFFSET: usize = offset_of!(RawHeader, frame_len);
const VERSION_OFFSET: usize = offset_of!(RawHeader, version);
const FLAGS_OFFSET: usize = offset_of!(RawHeader, flags);
/// Where the lane stands.
pub(super) const LANE_OFFSET: usize = offset_of!(RawHeader, lane);
/// Where the object hash stands.
pub(super) const HASH_OFFSET: usize = offset_of!(RawHeader, object_hash);
const RESERVED_OFFSET: usize = offset_of!(RawHeader, reserved);
const CRC_OFFSET: usize = offset_of!(RawHeader, header_crc32c);

const _: () = {
    assert!(size_of::<RawHeader>() == FRAME_HEADER_BYTES && align_of::<RawHeader>() == 1);
    assert!(FRAME_LEN_OFFSET == 0 && VERSION_OFFSET == 4 && FLAGS_OFFSET == 5);
    assert!(LANE_OFFSET == 6 && HASH_OFFSET == 8);
    assert!(offset_of!(RawHeader, remaining_ms) == 16);
    assert!(offset_of!(RawHeader, origin_len) == 20);
    assert!(offset_of!(RawHeader, metadata_len) == 22);
    assert!(offset_of!(RawHeader, record_len) == 24);
    assert!(offset_of!(RawHeader, payload_len) == 28);
    assert!(RESERVED_OFFSET == 32 && CRC_OFFSET == 36);
};

/// The header of a link frame, checked: big-endian, 40 bytes.
///
/// | offset | field |
/// |---:|---|
/// | 0 | u32 frame_len |
/// | 4 | u8 version 1 |
/// | 5 | u8 flags: 1 metadata part, 2 payload part, 4 origin part, 8 link control record, 16 bundle |
/// | 6 | u16 lane |
/// | 8 | u64 object_hash |
/// | 16 | u32 remaining_ms |
/// | 20 | u16 origin_len |
/// | 22 | u16 metadata_len |
/// | 24 | u32 record_len |
/// | 28 | u32 payload_len |
/// | 32 | u32 reserved 0 |
/// | 36 | u32 header_crc32c over bytes 0..36 |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FrameHeader {
    /// Bytes of the whole frame, this header included.
    pub frame_len: u32,
    /// Whether the record is a link control record.
    pub control: bool,
    /// Whether the hash is that of a bundle's Spot, and the record names a member.
    pub bundle: bool,
    /// The lane.
    pub lane: u16,
    /// Low half of the addressed object's hash; 0 for control of the lane.
    pub object_hash: u64,
    /// Time left to the operation's deadline in milliseconds; 0 for none.
    pub remaining_ms: u32,
    /// Bytes of the origin part.
    pub origin_len: u16,
    /// Bytes of the metadata part.
    pub metadata_len: u16,
    /// Bytes of the record.
    pub record_len: u32,
    /// Bytes of the payload part.
    pub payload_len: u32,
}

impl FrameHeader {
    /// Decodes the first 40 bytes of `bytes`, so that framing knows how many more to wait for.
    ///
    /// After this the frame is known to be no longer than `max_frame_bytes` and its parts to
    /// add up to it, so memory for it may be taken.
    ///
    /// # Errors
    /// The rule that is broken; [`Rule::FrameTruncated`] when there are fewer than 40 bytes.
    pub fn decode(bytes: &[u8], max_frame_bytes: u32) -> Result<Self, WireError> {
        let fail = |rule, offset| Err(WireError::new(rule, offset));
        let Ok((raw, _)) = RawHeader::ref_from_prefix(bytes) else {
            return fail(Rule::FrameTruncated, bytes.len());
        };
        if raw.version != FRAME_VERSION {
            return fail(Rule::FrameVersion, VERSION_OFFSET);
        }
        if crc32c::crc32c(&bytes[..CRC_OFFSET]) != raw.header_crc32c.get() {
            return fail(Rule::HeaderCrc, CRC_OFFSET);
        }
        if raw.flags & !FLAGS_KNOWN != 0 {
            return fail(Rule::FrameFlags, FLAGS_OFFSET);
        }
        if raw.reserved.get() != 0 {
            return fail(Rule::FrameReserved, RESERVED_OFFSET);
        }
        let header = Self {
            frame_len: raw.frame_len.get(),
            control: raw.flags & FLAG_CONTROL != 0,
            bundle: raw.flags & FLAG_BUNDLE != 0,
            lane: raw.lane.get(),
            object_hash: raw.object_hash.get(),
            remaining_ms: raw.remaining_ms.get(),
            origin_len: raw.origin_len.get(),
            metadata_len: raw.metadata_len.get(),
            record_len: raw.record_len.get(),
            payload_len: raw.payload_len.get(),
        };
        header.check_lengths(max_frame_bytes)?;
        if raw.flags != header.flags() {
            return fail(Rule::PartFlag, FLAGS_OFFSET);
        }
        Ok(header)
    }

    pub(super) fn check_lengths(&self, max_frame_bytes: u32) -> Result<(), WireError> {
        let rule = if (self.frame_len as usize) < FRAME_HEADER_BYTES {
            Rule::FrameTooShort
        } else if self.frame_len > max_frame_bytes {
            Rule::FrameTooLarge
        } else if self.parts_len() != u64::from(self.frame_len) {
            Rule::PartLengths
        } else {
            return Ok(());
        };
        Err(WireError::new(rule, FRAME_LEN_OFFSET))
    }

    /// The header and the four parts together.
    fn parts_len(&self) -> u64 {
        FRAME_HEADER_BYTES as u64
            + u64::from(self.origin_len)
            + u64::from(self.metadata_len)
            + u64::from(self.record_len)
            + u64::from(self.payload_len)
    }

    const fn flags(&self) -> u8 {
        let mut flags = 0;
        if self.metadata_len != 0 {
            flags |= FLAG_METADATA;
        }
        if self.payload_len != 0 {
            flags |= FLAG_PAYLOAD;
        }
        if self.origin_len != 0 {
            flags |= FLAG_ORIGIN;
        }
        if self.control {
            flags |= FLAG_CONTROL;
        }
        if self.bundle {
            flags |= FLAG_BUNDLE;
        }
        flags
    }

    /// Checks that the frame arrived on the lane it names.
    ///
    /// # Errors
    /// [`Rule::WrongLane`].
    pub const fn check_lane(&self, arrived_on: u16) -> Result<(), WireError> {
        if self.lane == arrived_on {
            return Ok(());
        }
        Err(WireError::new(Rule::WrongLane, LANE_OFFSET))
    }

    /// The 40 bytes. The part flags follow from the lengths.
    ///
    /// # Errors
    /// The rule of the lengths that is broken.
    pub fn encode(&self, max_frame_bytes: u32) -> Result<[u8; FRAME_HEADER_BYTES], WireError> {
        self.check_lengths(max_frame_bytes)?;
        Ok(self.to_bytes())
    }

    pub(super) fn to_bytes(self) -> [u8; FRAME_HEADER_BYTES] {
        let mut raw = RawHeader {
            frame_len: self.frame_len.into(),
            version: FRAME_VERSION,
            flags: self.flags(),
            lane: self.lane.into(),
            object_hash: self.object_hash.into(),
            remaining_ms: self.remaining_ms.into(),
            origin_len: self.origin_len.into(),
            metadata_len: self.metadata_len.into(),
            record_len: self.record_len.into(),
            payload_len: self.payload_len.into(),
            reserved: 0.into(),
            header_crc32c: 0.into(),
        };
        raw.header_crc32c = crc32c::crc32c(&raw.as_bytes()[..CRC_OFFSET]).into();
        let mut bytes = [0; FRAME_HEADER_BYTES];
        bytes.copy_from_slice(raw.as_bytes());
        bytes
    }
}
