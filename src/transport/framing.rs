#![forbid(unsafe_code)]
//! Cutting a byte stream into frames.
//!
//! A [`FrameReader`] is given what was received, chunk by chunk, and gives back whole frames. A
//! frame that lies whole in a chunk is given as a slice of it: nothing is copied. Of a frame that
//! does not, the part received so far is kept.
//!
//! The announced length is checked as soon as its four bytes are there. Memory is taken for bytes
//! that came, never for bytes that were announced: a peer that says "1 GiB" and sends 10 bytes
//! costs [`GROW_STEP_BYTES`].

use crate::limits::{FRAME_HEADER_BYTES, MAX_HANDSHAKE_FRAME_BYTES};

/// The least memory taken for a partial frame (or the whole frame, when that is less).
pub const GROW_STEP_BYTES: usize = 64 << 10;
/// A buffer of a finished frame that is larger than this is given back.
const KEEP_BYTES: usize = 4 * GROW_STEP_BYTES;

/// The length in a frame's head breaks the rule. The stream cannot be read any further.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[error("frame_len is {frame_len}; it must be {FRAME_HEADER_BYTES} to {max_bytes}")]
pub struct FrameLengthError {
    /// As announced.
    pub frame_len: u32,
    /// What was allowed.
    pub max_bytes: u32,
}

/// Cuts one stream into frames. See the module's head.
///
/// ```
/// use homing::transport::framing::FrameReader;
///
/// let mut frame = vec![0; 44];
/// frame[..4].copy_from_slice(&44u32.to_be_bytes());
/// let mut reader = FrameReader::new(1024);
/// reader.feed(frame[..10].to_vec());
/// assert_eq!(reader.next_frame(), Ok(None));
/// reader.feed(frame[10..].to_vec());
/// assert_eq!(reader.next_frame(), Ok(Some(&frame[..])));
/// assert_eq!(reader.next_frame(), Ok(None));
/// ```
#[derive(Clone, Debug)]
pub struct FrameReader {
    max_bytes: u32,
    /// What was fed last; used up to `at`.
    chunk: Vec<u8>,
    at: usize,
    /// The first part of a frame whose rest has not come. It precedes `chunk[at..]`.
    partial: Vec<u8>,
    /// `partial` holds a whole frame that was given out: it goes at the next call.
    given: bool,
}

impl Default for FrameReader {
    /// A reader for a peer that has not proved who it is.
    fn default() -> Self {
        Self::new(MAX_HANDSHAKE_FRAME_BYTES)
    }
}

impl FrameReader {
    /// A reader that takes frames of at most `max_bytes`, header included.
    #[must_use]
    pub fn new(max_bytes: u32) -> Self {
        Self { max_bytes, chunk: Vec::new(), at: 0, partial: Vec::new(), given: false }
    }

    /// Changes the largest frame, from the next frame on that has not been given out.
    pub fn set_max_bytes(&mut self, max_bytes: u32) {
        self.max_bytes = max_bytes;
    }

    /// Takes what was received. Best called when [`FrameReader::next_frame`] has said `None`: then
    /// no byte of an earlier chunk is copied but those of a partial frame.
    pub fn feed(&mut self, received: Vec<u8>) {
        self.forget_given();
        if self.at < self.chunk.len() {
            let rest = self.chunk.split_off(self.at);
            self.chunk = rest;
            self.chunk.extend_from_slice(&received);
        } else {
            self.chunk = received;
        }
        self.at = 0;
    }

    /// The next whole frame, or `None` until more is fed.
    ///
    /// # Errors
    /// The announced length is outside `40..=max_bytes`. The same error again if called again:
    /// bytes are never skipped.
    pub fn next_frame(&mut self) -> Result<Option<&[u8]>, FrameLengthError> {
        self.next_checked_frame(|_| Ok(()))
    }

    /// As [`FrameReader::next_frame`], and shows the 40 bytes of the header of a frame that is not
    /// whole to `check_header` as soon as they are there, before the rest of a long frame is
    /// collected. (It may see the same header again while the frame is incomplete, and does not see
    /// that of a frame that lies whole in what was fed.)
    ///
    /// # Errors
    /// As [`FrameReader::next_frame`], and what `check_header` answers.
    pub fn next_checked_frame<E: From<FrameLengthError>>(
        &mut self,
        check_header: impl FnOnce(&[u8]) -> Result<(), E>,
    ) -> Result<Option<&[u8]>, E> {
        self.forget_given();
        if self.partial.is_empty() {
            let rest = &self.chunk[self.at..];
            if let Some(len) = self.announced_len(rest)? {
                if rest.len() >= len {
                    let start = self.at;
                    self.at += len;
                    return Ok(Some(&self.chunk[start..start + len]));
                }
                rest.get(..FRAME_HEADER_BYTES).map_or(Ok(()), check_header)?;
            }
            self.keep_rest();
            return Ok(None);
        }
        // First the header, then, its length known, the rest.
        self.move_to_partial(FRAME_HEADER_BYTES);
        let Some(len) = self.announced_len(&self.partial)? else { return Ok(None) };
        let Some(header) = self.partial.get(..FRAME_HEADER_BYTES) else { return Ok(None) };
        check_header(header)?;
        self.move_to_partial(len);
        if self.partial.len() < len {
            return Ok(None);
        }
        self.given = true;
        Ok(Some(&self.partial))
    }

    /// Everything fed and not given out, in order: what the next reader of the stream must get
    /// first. The reader is as new afterwards.
    #[must_use]
    pub fn take_unread(&mut self) -> Vec<u8> {
        self.forget_given();
        let mut unread = std::mem::take(&mut self.partial);
        if unread.is_empty() && self.at == 0 {
            return std::mem::take(&mut self.chunk);
        }
        unread.extend_from_slice(&self.chunk[self.at..]);
        self.chunk = Vec::new();
        self.at = 0;
        unread
    }

    /// Bytes fed and not given out.
    #[must_use]
    pub fn unread_bytes(&self) -> usize {
        let partial = if self.given { 0 } else { self.partial.len() };
        partial + self.chunk.len() - self.at
    }

    /// The length of the frame that `bytes` begin with; `None` when its four bytes are not there.
    fn announced_len(&self, bytes: &[u8]) -> Result<Option<usize>, FrameLengthError> {
        let Some(head) = bytes.first_chunk::<4>() else { return Ok(None) };
        let frame_len = u32::from_be_bytes(*head);
        if frame_len < FRAME_HEADER_BYTES as u32 || frame_len > self.max_bytes {
            return Err(FrameLengthError { frame_len, max_bytes: self.max_bytes });
        }
        Ok(Some(frame_len as usize))
    }

    /// Moves bytes of the chunk to `partial` until that has `len` or the chunk is used up.
    fn move_to_partial(&mut self, len: usize) {
        let have = self.partial.len();
        let take = len.saturating_sub(have).min(self.chunk.len() - self.at);
        if self.partial.capacity() < have + take {
            // Doubled, so that a long frame is not copied over and over; bounded by what came.
            let room = (2 * (have + take)).max(GROW_STEP_BYTES).min(len.max(have + take));
            self.partial.reserve_exact(room - have);
        }
        self.partial.extend_from_slice(&self.chunk[self.at..self.at + take]);
        self.at += take;
        self.drop_used_chunk();
    }

    /// The chunk ends in the middle of a frame: keeps that part.
    fn keep_rest(&mut self) {
        if self.at < self.chunk.len() {
            self.move_to_partial(self.chunk.len() - self.at);
        }
        self.drop_used_chunk();
    }

    fn drop_used_chunk(&mut self) {
        if self.at == self.chunk.len() {
            self.chunk = Vec::new();
            self.at = 0;
        }
    }

    fn forget_given(&mut self) {
        if self.given {
            self.given = false;
            self.partial.clear();
            self.partial.shrink_to(KEEP_BYTES);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frame(len: u32, fill: u8) -> Vec<u8> {
        let mut bytes = vec![fill; len as usize];
        bytes[..4].copy_from_slice(&len.to_be_bytes());
        bytes
    }

    #[test]
    fn a_frame_that_lies_whole_in_a_chunk_is_not_copied() {
        let mut chunk = frame(40, 1);
        chunk.extend(frame(100, 2));
        let at = chunk.as_ptr() as usize;
        let mut reader = FrameReader::new(100);
        reader.feed(chunk);
        let first = reader.next_frame().unwrap().unwrap();
        assert_eq!((first.as_ptr() as usize, first.len()), (at, 40));
        let second = reader.next_frame().unwrap().unwrap();
        assert_eq!((second.as_ptr() as usize, second.len()), (at + 40, 100));
        assert_eq!(reader.next_frame(), Ok(None));
        assert_eq!(reader.partial.capacity(), 0);
    }

    #[test]
    fn a_length_outside_the_rule_is_refused_before_any_allocation() {
        for len in [0, 39, 101, 1 << 31, u32::MAX] {
            for cut in [4, 7] {
                let mut reader = FrameReader::new(100);
                let mut bytes = len.to_be_bytes().to_vec();
                bytes.extend([0; 3]);
                bytes.truncate(cut);
                reader.feed(bytes);
                let e = reader.next_frame().unwrap_err();
                assert_eq!(e, FrameLengthError { frame_len: len, max_bytes: 100 });
                assert!(e.to_string().contains(&format!("{len}")), "{e}");
                assert_eq!(reader.next_frame(), Err(e), "never skipped");
                assert_eq!(reader.partial.capacity(), 0);
            }
        }
        // Its first bytes came alone.
        let mut reader = FrameReader::new(100);
        reader.feed(vec![255, 255]);
        assert_eq!(reader.next_frame(), Ok(None));
        reader.feed(vec![255, 255]);
        assert!(reader.next_frame().is_err());
        assert!(reader.partial.capacity() <= GROW_STEP_BYTES);
    }

    #[test]
    fn memory_follows_what_came_and_not_what_was_announced() {
        let len = 512 << 20;
        let mut reader = FrameReader::new(len);
        let mut came = 0;
        let mut piece = frame(4096, 0);
        piece[..4].copy_from_slice(&len.to_be_bytes());
        for _ in 0..600 {
            reader.feed(piece.clone());
            came += piece.len();
            assert_eq!(reader.next_frame(), Ok(None));
            let taken = reader.partial.capacity() + reader.chunk.capacity();
            assert!(taken <= GROW_STEP_BYTES.max(2 * came), "{taken} for {came}");
            assert_eq!(reader.unread_bytes(), came);
            piece = vec![3; 4096];
        }
    }

    #[test]
    fn the_memory_of_a_long_frame_is_given_back() {
        let whole = frame(8 << 20, 9);
        let mut reader = FrameReader::new(16 << 20);
        for piece in whole.chunks(100_000) {
            assert_eq!(reader.next_frame(), Ok(None));
            reader.feed(piece.to_vec());
        }
        assert_eq!(reader.next_frame().unwrap().unwrap(), &whole[..]);
        assert_eq!(reader.next_frame(), Ok(None));
        assert!(reader.partial.capacity() <= KEEP_BYTES);
    }

    #[test]
    fn the_header_is_shown_before_a_long_frame_is_collected() {
        #[derive(Debug, PartialEq)]
        struct Refused;
        impl From<FrameLengthError> for Refused {
            fn from(_: FrameLengthError) -> Self {
                Self
            }
        }
        let mut reader = FrameReader::new(1 << 20);
        let mut start = frame(1 << 20, 5)[..41].to_vec();
        reader.feed(start.split_off(20));
        let second = reader.take_unread();
        reader.feed(start);
        let unseen = reader.next_checked_frame(|_| -> Result<(), Refused> { panic!("not whole") });
        assert_eq!(unseen, Ok(None));
        reader.feed(second);
        let mut seen = 0;
        let refused = reader.next_checked_frame(|header| {
            seen = header.len();
            Err(Refused)
        });
        assert_eq!(refused, Err(Refused));
        assert_eq!(seen, FRAME_HEADER_BYTES);
    }

    proptest! {
        /// However a stream is cut, the same frames come out; however often the reader is replaced
        /// in between, nothing is lost; and the largest frame may change between two frames.
        #[test]
        fn cuts_do_not_matter(
            lens in proptest::collection::vec(40u32..400, 0..20),
            cuts in proptest::collection::vec(0usize..300, 0..60),
            replace in proptest::collection::vec(any::<bool>(), 60),
            eager in proptest::collection::vec(any::<bool>(), 60),
        ) {
            let frames: Vec<_> =
                lens.iter().enumerate().map(|(i, len)| frame(*len, i as u8)).collect();
            let stream = frames.concat();
            let mut pieces = Vec::new();
            let mut rest = &stream[..];
            for cut in cuts {
                let (piece, tail) = rest.split_at(cut.min(rest.len()));
                pieces.push(piece.to_vec());
                rest = tail;
            }
            pieces.push(rest.to_vec());
            let mut reader = FrameReader::new(400);
            let mut got = Vec::new();
            for (i, piece) in pieces.into_iter().enumerate() {
                reader.feed(piece);
                if *replace.get(i).unwrap_or(&false) {
                    if let Some(frame) = reader.next_frame().unwrap() {
                        got.push(frame.to_vec());
                    }
                    let unread = reader.take_unread();
                    prop_assert_eq!(reader.unread_bytes(), 0);
                    reader = FrameReader::new(400);
                    reader.feed(unread);
                }
                if *eager.get(i).unwrap_or(&true) {
                    while let Some(frame) = reader.next_frame().unwrap() {
                        got.push(frame.to_vec());
                    }
                }
            }
            while let Some(frame) = reader.next_frame().unwrap() {
                got.push(frame.to_vec());
            }
            prop_assert_eq!(got, frames);
            prop_assert_eq!(reader.unread_bytes(), 0);
        }
    }
}
