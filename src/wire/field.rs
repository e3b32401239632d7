#![forbid(unsafe_code)]
//! The primitive layouts: reading them out of borrowed bytes, and writing them.
//!
//! A type says once how it is written (`Codec::put`); run over [`Measure`] that description
//! yields the length and the first broken rule, run over a `Vec` it yields the bytes. So the
//! length that was announced and the bytes that follow cannot disagree.

use super::rule::{Rule, WireError};
use crate::limits::{MAX_FENCE, MAX_ID_BYTES};

/// A layout that can be read and written.
pub(super) trait Codec<'a>: Sized {
    /// Reads the fields in order and leaves the reader behind the last one.
    fn get(r: &mut Reader<'a>) -> Result<Self, WireError>;
    /// Writes the fields in order and names what could not be read back.
    fn put<S: Sink>(&self, s: &mut S);
}

/// A place in borrowed bytes.
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    base: usize,
}

impl<'a> Reader<'a> {
    /// Reads `bytes`; offsets of errors count from `base` before it.
    pub(super) const fn new(bytes: &'a [u8], base: usize) -> Self {
        Self { bytes, at: 0, base }
    }

    /// Where the next field begins.
    pub(super) const fn offset(&self) -> usize {
        self.base + self.at
    }

    /// What has not been read.
    pub(super) fn rest(&mut self) -> &'a [u8] {
        let rest = &self.bytes[self.at..];
        self.at = self.bytes.len();
        rest
    }

    /// How much has not been read.
    pub(super) const fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// `n` bytes of the field that began at `field`.
    pub(super) fn take(&mut self, n: usize, field: usize) -> Result<&'a [u8], WireError> {
        let end = self.at.checked_add(n).filter(|end| *end <= self.bytes.len());
        let Some(end) = end else {
            return Err(WireError::new(Rule::Truncated, field));
        };
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let field = self.offset();
        let mut out = [0; N];
        out.copy_from_slice(self.take(N, field)?);
        Ok(out)
    }

    pub(super) fn u8(&mut self) -> Result<u8, WireError> {
        Ok(u8::from_be_bytes(self.array()?))
    }

    pub(super) fn u16(&mut self) -> Result<u16, WireError> {
        Ok(u16::from_be_bytes(self.array()?))
    }

    pub(super) fn u32(&mut self) -> Result<u32, WireError> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    pub(super) fn u64(&mut self) -> Result<u64, WireError> {
        Ok(u64::from_be_bytes(self.array()?))
    }

    /// Two u64, high and low, not both zero.
    pub(super) fn wide<T>(
        &mut self,
        make: impl FnOnce(u128) -> Option<T>,
        zero: Rule,
    ) -> Result<T, WireError> {
        let field = self.offset();
        make(u128::from_be_bytes(self.array()?)).ok_or(WireError::new(zero, field))
    }

    /// A u64 that is not zero.
    pub(super) fn non_zero(&mut self, zero: Rule) -> Result<u64, WireError> {
        let field = self.offset();
        match self.u64()? {
            0 => Err(WireError::new(zero, field)),
            value => Ok(value),
        }
    }

    /// A gen: u64, 1..=2^63-1.
    pub(super) fn fence<T>(&mut self, make: impl FnOnce(u64) -> Option<T>) -> Result<T, WireError> {
        let field = self.offset();
        let value = self.u64()?;
        let rule = if value == 0 { Rule::GenerationZero } else { Rule::GenerationRange };
        make(value).ok_or(WireError::new(rule, field))
    }

    /// A gen, or 0 for none.
    pub(super) fn opt_fence<T>(
        &mut self,
        make: impl FnOnce(u64) -> Option<T>,
    ) -> Result<Option<T>, WireError> {
        let field = self.offset();
        match self.u64()? {
            0 => Ok(None),
            value => make(value).map(Some).ok_or(WireError::new(Rule::GenerationRange, field)),
        }
    }

    /// A number of a closed set.
    pub(super) fn choice<N, T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<N, WireError>,
        choose: impl FnOnce(N) -> Option<T>,
        unknown: Rule,
    ) -> Result<T, WireError> {
        let field = self.offset();
        choose(read(self)?).ok_or(WireError::new(unknown, field))
    }

    /// A byte that is 0 or 1.
    pub(super) fn flag(&mut self) -> Result<bool, WireError> {
        let choose = |byte| match byte {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        };
        self.choice(Self::u8, choose, Rule::PresenceByte)
    }

    fn text(&mut self, len: usize, field: usize) -> Result<&'a str, WireError> {
        if len == 0 {
            return Err(WireError::new(Rule::TextEmpty, field));
        }
        let start = self.offset();
        let bytes = self.take(len, field)?;
        let text = std::str::from_utf8(bytes)
            .map_err(|e| WireError::new(Rule::TextUtf8, start + e.valid_up_to()))?;
        match bytes.iter().position(|b| *b == 0) {
            Some(at) => Err(WireError::new(Rule::TextNul, start + at)),
            None => Ok(text),
        }
    }

    pub(super) fn text8(&mut self) -> Result<&'a str, WireError> {
        let field = self.offset();
        let len = self.u8()?;
        self.text(usize::from(len), field)
    }

    pub(super) fn opt_text8(&mut self) -> Result<Option<&'a str>, WireError> {
        let field = self.offset();
        match self.u8()? {
            0 => Ok(None),
            len => self.text(usize::from(len), field).map(Some),
        }
    }

    pub(super) fn text16(&mut self) -> Result<&'a str, WireError> {
        let field = self.offset();
        let len = self.u16()?;
        self.text(usize::from(len), field)
    }

    pub(super) fn rid(&mut self) -> Result<&'a [u8], WireError> {
        let field = self.offset();
        match self.u8()? {
            0 => Err(WireError::new(Rule::RidEmpty, field)),
            len => self.take(usize::from(len), field),
        }
    }

    /// A u16 length and that many bytes.
    pub(super) fn bytes16(&mut self) -> Result<&'a [u8], WireError> {
        let field = self.offset();
        let len = self.u16()?;
        self.take(usize::from(len), field)
    }

    /// A u32 length and that many bytes.
    pub(super) fn bytes32(&mut self) -> Result<&'a [u8], WireError> {
        let field = self.offset();
        let len = self.u32()?;
        let len = usize::try_from(len).map_err(|_| WireError::new(Rule::Truncated, field))?;
        self.take(len, field)
    }

    /// A body whose length stands before it.
    pub(super) fn body<N: Into<u64>, T>(
        &mut self,
        length: impl FnOnce(&mut Self) -> Result<N, WireError>,
        read: impl FnOnce(&mut Self) -> Result<T, WireError>,
    ) -> Result<T, WireError> {
        let field = self.offset();
        let length: u64 = length(self)?.into();
        let start = self.at;
        let value = read(self)?;
        if (self.at - start) as u64 != length {
            return Err(WireError::new(Rule::BodyLength, field));
        }
        Ok(value)
    }

    /// Nothing may follow.
    pub(super) fn finish(&self) -> Result<(), WireError> {
        if self.left() == 0 {
            return Ok(());
        }
        Err(WireError::new(Rule::TrailingBytes, self.offset()))
    }
}

/// Where fields are written to.
pub(super) trait Sink {
    fn raw(&mut self, bytes: &[u8]);

    /// How much has been written.
    fn mark(&self) -> usize;

    /// Writes over what stands at `mark`.
    fn patch(&mut self, mark: usize, bytes: &[u8]);

    /// Notes that the next field would break a rule.
    fn broken(&mut self, rule: Rule);

    fn require(&mut self, holds: bool, rule: Rule) {
        if !holds {
            self.broken(rule);
        }
    }

    fn u8(&mut self, value: u8) {
        self.raw(&[value]);
    }

    fn u16(&mut self, value: u16) {
        self.raw(&value.to_be_bytes());
    }

    fn u32(&mut self, value: u32) {
        self.raw(&value.to_be_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.raw(&value.to_be_bytes());
    }

    fn wide(&mut self, value: u128) {
        self.raw(&value.to_be_bytes());
    }

    fn flag(&mut self, value: bool) {
        self.u8(u8::from(value));
    }

    fn text8(&mut self, text: &str) {
        self.check_text(text, MAX_ID_BYTES);
        self.u8(text.len() as u8);
        self.raw(text.as_bytes());
    }

    fn opt_text8(&mut self, text: Option<&str>) {
        match text {
            Some(text) => self.text8(text),
            None => self.u8(0),
        }
    }

    fn text16(&mut self, text: &str) {
        self.check_text(text, usize::from(u16::MAX));
        self.u16(text.len() as u16);
        self.raw(text.as_bytes());
    }

    fn check_text(&mut self, text: &str, longest: usize) {
        self.require(!text.is_empty(), Rule::TextEmpty);
        self.require(text.len() <= longest, Rule::TextTooLong);
        self.require(!text.as_bytes().contains(&0), Rule::TextNul);
    }

    fn rid(&mut self, rid: &[u8]) {
        self.require(!rid.is_empty(), Rule::RidEmpty);
        self.require(rid.len() <= MAX_ID_BYTES, Rule::RidTooLong);
        self.u8(rid.len() as u8);
        self.raw(rid);
    }

    /// A u16 length and then the body that `put` writes.
    fn body16(&mut self, put: impl FnOnce(&mut Self))
    where
        Self: Sized,
    {
        let field = self.mark();
        self.u16(0);
        put(self);
        let len = self.mark() - field - 2;
        self.require(u16::try_from(len).is_ok(), Rule::BodyLength);
        self.patch(field, &(len as u16).to_be_bytes());
    }

    /// A u32 length and then the body that `put` writes.
    fn body32(&mut self, put: impl FnOnce(&mut Self))
    where
        Self: Sized,
    {
        let field = self.mark();
        self.u32(0);
        put(self);
        let len = self.mark() - field - 4;
        self.require(u32::try_from(len).is_ok(), Rule::BodyLength);
        self.patch(field, &(len as u32).to_be_bytes());
    }
}

/// Counts, and keeps the first broken rule.
pub(super) struct Measure {
    base: usize,
    len: usize,
    broken: Option<WireError>,
}

impl Measure {
    pub(super) const fn new(base: usize) -> Self {
        Self { base, len: 0, broken: None }
    }

    /// The length, or the first rule that the bytes would break.
    pub(super) fn end(self) -> Result<usize, WireError> {
        match self.broken {
            None => Ok(self.len),
            Some(e) => Err(e),
        }
    }
}

impl Sink for Measure {
    fn raw(&mut self, bytes: &[u8]) {
        self.len += bytes.len();
    }

    fn mark(&self) -> usize {
        self.len
    }

    fn patch(&mut self, _: usize, _: &[u8]) {}

    fn broken(&mut self, rule: Rule) {
        let at = WireError::new(rule, self.base + self.len);
        self.broken.get_or_insert(at);
    }
}

/// Writes what was measured before: a broken rule here is a defect of the caller.
impl Sink for Vec<u8> {
    fn raw(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }

    fn mark(&self) -> usize {
        self.len()
    }

    fn patch(&mut self, mark: usize, bytes: &[u8]) {
        self[mark..mark + bytes.len()].copy_from_slice(bytes);
    }

    fn broken(&mut self, rule: Rule) {
        debug_assert!(false, "bytes were written that {rule} forbids; measure first");
    }
}

/// Length of what `put` would write, or the rule it would break.
pub(super) fn measure<'a>(value: &impl Codec<'a>) -> Result<usize, WireError> {
    let mut measure = Measure::new(0);
    value.put(&mut measure);
    measure.end()
}

/// Appends the bytes of `value`; on an error `out` is as it was.
pub(super) fn append<'a>(value: &impl Codec<'a>, out: &mut Vec<u8>) -> Result<(), WireError> {
    let len = measure(value)?;
    out.reserve(len);
    let before = out.len();
    value.put(out);
    debug_assert_eq!(out.len() - before, len);
    Ok(())
}

const _: () = assert!(MAX_ID_BYTES == u8::MAX as usize && MAX_FENCE == i64::MAX as u64);

/// Gives a type its public pair: the length known beforehand, and the bytes.
macro_rules! encodes {
    ($name:ident $(<$life:lifetime>)?) => {
        impl $name $(<$life>)? {
            /// How many bytes [`encode`](Self::encode) appends.
            ///
            /// # Errors
            /// The rule that the bytes would break.
            pub fn encoded_len(&self) -> Result<usize, WireError> {
                super::field::measure(self)
            }

            /// Appends exactly [`encoded_len`](Self::encoded_len) bytes, reserved at once.
            ///
            /// # Errors
            /// As `encoded_len`; `out` is then as it was.
            pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), WireError> {
                super::field::append(self, out)
            }
        }
    };
}
pub(super) use encodes;

/// Gives a closed set of numbers its enum and both directions.
macro_rules! numbers {
    (
        $(#[$doc:meta])* $name:ident: $repr:ty { $($(#[$vdoc:meta])* $variant:ident = $value:literal,)* }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr($repr)]
        pub enum $name {
            $($(#[$vdoc])* $variant = $value,)*
        }

        impl $name {
            /// All of them, in the order of their numbers.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The number on the wire.
            #[must_use]
            pub const fn number(self) -> $repr {
                self as $repr
            }

            /// Which one a number of the wire is; `None` when it is none of them.
            #[must_use]
            pub const fn from_number(number: $repr) -> Option<Self> {
                match number {
                    $($value => Some(Self::$variant),)*
                    _ => None,
                }
            }
        }
    };
}
pub(super) use numbers;
