#![forbid(unsafe_code)]
//! Link control records: a u16 type, then the body. They exist between two ends of a link
//! only and are never relayed.

use super::field::{Codec, Reader, Sink, encodes};
use super::rule::{Rule, WireError};
use crate::ids::OwnerLeaseGeneration;
use crate::limits::MAX_LANES;

/// A link control record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Control<'a> {
    /// 1: a lane joins the link.
    LaneAttach(LaneAttach),
    /// 2: bytes of credit come back.
    Credit(Credit<'a>),
    /// 9: the owner lease stands.
    LeaseRenewed(LeaseRenewed),
}

impl<'a> Control<'a> {
    /// Decodes one record; offsets count from its start.
    ///
    /// # Errors
    /// The rule that is broken; unknown types among them.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, WireError> {
        Self::decode_at(bytes, 0)
    }

    pub(super) fn decode_at(bytes: &'a [u8], base: usize) -> Result<Self, WireError> {
        let mut r = Reader::new(bytes, base);
        let control = Self::get(&mut r)?;
        r.finish()?;
        Ok(control)
    }

    /// The type number.
    #[must_use]
    pub const fn type_number(&self) -> u16 {
        match self {
            Self::LaneAttach(_) => 1,
            Self::Credit(_) => 2,
            Self::LeaseRenewed(_) => 9,
        }
    }
}

encodes!(Control<'_>);

impl<'a> Codec<'a> for Control<'a> {
    fn get(r: &mut Reader<'a>) -> Result<Self, WireError> {
        let field = r.offset();
        match r.u16()? {
            1 => LaneAttach::get(r).map(Self::LaneAttach),
            2 => Credit::get(r).map(Self::Credit),
            9 => LeaseRenewed::get(r).map(Self::LeaseRenewed),
            _ => Err(WireError::new(Rule::ControlUnknown, field)),
        }
    }

    fn put<S: Sink>(&self, s: &mut S) {
        s.u16(self.type_number());
        match self {
            Self::LaneAttach(c) => c.put(s),
            Self::Credit(c) => c.put(s),
            Self::LeaseRenewed(c) => c.put(s),
        }
    }
}

/// Link control 1, lane attach: the dialer's first on every lane but lane 0; the acceptor
/// answers with its own.
///
/// | | body, in order |
/// |---|---|
/// | 1 lane attach | u64 link id (not 0), u16 lane (1..=15), 32 bytes HMAC over the link's nonces and the lane |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LaneAttach {
    /// The link, as the acceptor's admit named it.
    pub link_id: u64,
    /// The lane.
    pub lane: u16,
    /// HMAC-SHA-256 under the mesh secret.
    pub mac: [u8; 32],
}

impl<'a> Codec<'a> for LaneAttach {
    fn get(r: &mut Reader<'a>) -> Result<Self, WireError> {
        let lane = |n| (1..MAX_LANES).contains(&n).then_some(n);
        Ok(Self {
            link_id: r.non_zero(Rule::LinkIdZero)?,
            lane: r.choice(Reader::u16, lane, Rule::LaneNumber)?,
            mac: r.array()?,
        })
    }

    fn put<S: Sink>(&self, s: &mut S) {
        s.require(self.link_id != 0, Rule::LinkIdZero);
        s.u64(self.link_id);
        s.require((1..MAX_LANES).contains(&self.lane), Rule::LaneNumber);
        s.u16(self.lane);
        s.raw(&self.mac);
    }
}

/// Link control 9, lease renewed: the ack of a liveness probe that also says how long the
/// owner lease lasts, counted from when that probe was sent.
///
/// | | body, in order |
/// |---|---|
/// | 9 lease renewed | u64 probe id it answers (not 0), gen owner lease, u32 ms left |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeaseRenewed {
    /// The probe it answers.
    pub probe_id: u64,
    /// The lease.
    pub owner_lease_generation: OwnerLeaseGeneration,
    /// Milliseconds left; 0 when it has lapsed.
    pub remaining_ms: u32,
}

impl<'a> Codec<'a> for LeaseRenewed {
    fn get(r: &mut Reader<'a>) -> Result<Self, WireError> {
        Ok(Self {
            probe_id: r.non_zero(Rule::ProbeIdZero)?,
            owner_lease_generation: r.fence(OwnerLeaseGeneration::new)?,
            remaining_ms: r.u32()?,
        })
    }

    fn put<S: Sink>(&self, s: &mut S) {
        s.require(self.probe_id != 0, Rule::ProbeIdZero);
        s.u64(self.probe_id);
        s.u64(self.owner_lease_generation.get());
        s.u32(self.remaining_ms);
    }
}

/// Bytes of credit returned for one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CreditEntry {
    /// The object hash of the frames whose credit returns.
    pub object_hash: u64,
    /// Bytes; not 0.
    pub bytes: u32,
}

/// Size of one entry.
const ENTRY_BYTES: usize = 12;

/// Link control 2, credit: the receiver of a lane gives back what frames had spent.
///
/// | | body, in order |
/// |---|---|
/// | 2 credit | u32 total bytes, u16 count (not 0), then per entry: u64 object hash, u32 bytes (not 0); the entries add up to the total |
#[derive(Clone, Copy)]
pub struct Credit<'a> {
    total_bytes: u32,
    entries: Entries<'a>,
}

/// Entries as they are handed in, or as they stand in a record.
#[derive(Clone, Copy)]
enum Entries<'a> {
    Given(&'a [CreditEntry]),
    Encoded(&'a [u8]),
}

impl<'a> Credit<'a> {
    /// Makes the record of some entries.
    ///
    /// # Errors
    /// When there are none or more than 65,535, when one returns no bytes, or when the total
    /// does not fit in 32 bits.
    pub fn new(entries: &'a [CreditEntry]) -> Result<Self, WireError> {
        let zero = entries.iter().any(|entry| entry.bytes == 0);
        if zero || entries.is_empty() || u16::try_from(entries.len()).is_err() {
            return Err(WireError::new(Rule::CreditEmpty, 6));
        }
        let sum: u64 = entries.iter().map(|entry| u64::from(entry.bytes)).sum();
        let total_bytes = u32::try_from(sum).map_err(|_| WireError::new(Rule::CreditSum, 2))?;
        Ok(Self { total_bytes, entries: Entries::Given(entries) })
    }

    /// The sum of all entries, in bytes.
    #[must_use]
    pub const fn total_bytes(&self) -> u32 {
        self.total_bytes
    }

    /// How many entries there are.
    #[must_use]
    pub const fn count(&self) -> usize {
        match self.entries {
            Entries::Given(entries) => entries.len(),
            Entries::Encoded(bytes) => bytes.len() / ENTRY_BYTES,
        }
    }

    /// The entries in their order.
    pub fn entries(&self) -> impl Iterator<Item = CreditEntry> + use<'a> {
        let (given, encoded): (&'a [CreditEntry], &'a [u8]) = match self.entries {
            Entries::Given(entries) => (entries, &[]),
            Entries::Encoded(bytes) => (&[], bytes),
        };
        let decoded = encoded.chunks_exact(ENTRY_BYTES).map(|entry| {
            let mut hash = [0; 8];
            let mut bytes = [0; 4];
            hash.copy_from_slice(&entry[..8]);
            bytes.copy_from_slice(&entry[8..]);
            CreditEntry { object_hash: u64::from_be_bytes(hash), bytes: u32::from_be_bytes(bytes) }
        });
        given.iter().copied().chain(decoded)
    }
}

impl PartialEq for Credit<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.total_bytes == other.total_bytes && self.entries().eq(other.entries())
    }
}

impl Eq for Credit<'_> {}

impl std::hash::Hash for Credit<'_> {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        state.write_u32(self.total_bytes);
        self.entries().for_each(|entry| entry.hash(state));
    }
}

impl std::fmt::Debug for Credit<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Credit ")?;
        f.debug_list().entries(self.entries()).finish()
    }
}

impl<'a> Codec<'a> for Credit<'a> {
    fn get(r: &mut Reader<'a>) -> Result<Self, WireError> {
        let total_at = r.offset();
        let total_bytes = r.u32()?;
        let count_at = r.offset();
        let count = usize::from(r.u16()?);
        if count == 0 {
            return Err(WireError::new(Rule::CreditEmpty, count_at));
        }
        let entries_at = r.offset();
        let bytes = r.take(count * ENTRY_BYTES, entries_at)?;
        let credit = Self { total_bytes, entries: Entries::Encoded(bytes) };
        if let Some(i) = credit.entries().position(|entry| entry.bytes == 0) {
            return Err(WireError::new(Rule::CreditEmpty, entries_at + i * ENTRY_BYTES + 8));
        }
        let sum: u64 = credit.entries().map(|entry| u64::from(entry.bytes)).sum();
        if sum != u64::from(total_bytes) {
            return Err(WireError::new(Rule::CreditSum, total_at));
        }
        Ok(credit)
    }

    fn put<S: Sink>(&self, s: &mut S) {
        s.u32(self.total_bytes);
        s.u16(self.count() as u16);
        for entry in self.entries() {
            s.u64(entry.object_hash);
            s.u32(entry.bytes);
        }
    }
}
