#![forbid(unsafe_code)]
//! What a stream has to send and the kernel has not taken.

use std::collections::VecDeque;
use std::io::IoSlice;

/// Writes are joined into chunks up to this size; a larger write is a chunk of its own and is
/// never copied.
const JOIN_BYTES: usize = 64 << 10;
/// Chunks given to the kernel at once.
pub(super) const MAX_SLICES: usize = 16;

/// Bytes in order, with their exact count.
#[derive(Debug, Default)]
pub(super) struct SendQueue {
    chunks: VecDeque<Vec<u8>>,
    /// Bytes of the first chunk that are gone.
    sent_of_first: usize,
    unsent_bytes: usize,
}

impl SendQueue {
    pub(super) fn unsent_bytes(&self) -> usize {
        self.unsent_bytes
    }

    pub(super) fn is_empty(&self) -> bool {
        self.unsent_bytes == 0
    }

    /// Appends `bytes[from..]` and leaves `bytes` empty. Takes the buffer itself when it can.
    pub(super) fn push(&mut self, bytes: &mut Vec<u8>, from: usize) {
        let len = bytes.len() - from;
        if len == 0 {
            bytes.clear();
            return;
        }
        self.unsent_bytes += len;
        match self.chunks.back_mut() {
            Some(last) if last.len() + len <= JOIN_BYTES => {
                last.extend_from_slice(&bytes[from..]);
                bytes.clear();
            }
            None => {
                self.chunks.push_back(std::mem::take(bytes));
                self.sent_of_first = from;
            }
            Some(_) if from == 0 => self.chunks.push_back(std::mem::take(bytes)),
            Some(_) => {
                self.chunks.push_back(bytes[from..].to_vec());
                bytes.clear();
            }
        }
    }

    /// The first chunks, for one gathered write; gives how many of `slices` are set.
    pub(super) fn fill<'a>(&'a self, slices: &mut [IoSlice<'a>; MAX_SLICES]) -> usize {
        let mut count = 0;
        for (slice, chunk) in slices.iter_mut().zip(&self.chunks) {
            let from = if count == 0 { self.sent_of_first } else { 0 };
            *slice = IoSlice::new(&chunk[from..]);
            count += 1;
        }
        count
    }

    /// The kernel took `taken` bytes.
    pub(super) fn advance(&mut self, taken: usize) {
        self.advance_into(taken, drop);
    }

    /// As [`SendQueue::advance`]; gives away the buffers that are free now.
    pub(super) fn advance_into(&mut self, taken: usize, mut free: impl FnMut(Vec<u8>)) {
        self.unsent_bytes -= taken;
        self.sent_of_first += taken;
        while let Some(first) = self.chunks.front()
            && self.sent_of_first >= first.len()
        {
            self.sent_of_first -= first.len();
            self.chunks.pop_front().into_iter().for_each(&mut free);
        }
    }

    /// Takes the first chunks out, at most so many, as a queue of their own.
    pub(super) fn take_front(&mut self, chunks: usize) -> Self {
        if chunks == 0 {
            return Self::default();
        }
        if self.chunks.len() <= chunks {
            return std::mem::take(self);
        }
        let rest = self.chunks.split_off(chunks);
        let rest_bytes = rest.iter().map(Vec::len).sum();
        let front = Self {
            chunks: std::mem::replace(&mut self.chunks, rest),
            sent_of_first: std::mem::take(&mut self.sent_of_first),
            unsent_bytes: self.unsent_bytes - rest_bytes,
        };
        self.unsent_bytes = rest_bytes;
        front
    }

    /// The reverse of [`SendQueue::take_front`]: puts `front` before what is here.
    pub(super) fn put_front(&mut self, mut front: Self) {
        if front.is_empty() {
            return;
        }
        if self.is_empty() {
            *self = front;
            return;
        }
        debug_assert_eq!(self.sent_of_first, 0, "nothing was sent before its turn");
        front.chunks.append(&mut self.chunks);
        front.unsent_bytes += self.unsent_bytes;
        *self = front;
    }

    /// The chunks, the first one without what is gone of it.
    pub(super) fn slices(&self) -> impl Iterator<Item = &[u8]> {
        let skip = |i: usize| if i == 0 { self.sent_of_first } else { 0 };
        self.chunks.iter().enumerate().map(move |(i, chunk)| &chunk[skip(i)..])
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// The bytes in order, as chunks.
    pub(super) fn into_chunks(mut self) -> VecDeque<Vec<u8>> {
        if let Some(first) = self.chunks.front_mut() {
            first.drain(..self.sent_of_first);
        }
        self.chunks
    }

    /// The reverse of [`SendQueue::into_chunks`].
    pub(super) fn from_chunks(mut chunks: VecDeque<Vec<u8>>) -> Self {
        chunks.retain(|chunk| !chunk.is_empty());
        let unsent_bytes = chunks.iter().map(Vec::len).sum();
        Self { chunks, sent_of_first: 0, unsent_bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// The queue is a byte queue: whatever is pushed, taken and moved to another driver, bytes
        /// come out once and in order, and the count is exact.
        #[test]
        fn is_a_byte_queue(
            steps in proptest::collection::vec((0usize..4, 0usize..90_000, 0usize..50), 1..40),
        ) {
            let mut queue = SendQueue::default();
            let mut pushed: Vec<u8> = Vec::new();
            let mut gone = 0;
            for (kind, amount, from) in steps {
                match kind {
                    0 => {
                        let start = pushed.len();
                        let mut bytes: Vec<u8> =
                            (start..start + amount).map(|i| (i ^ (i >> 8)) as u8).collect();
                        let from = from.min(bytes.len());
                        pushed.extend_from_slice(&bytes[from..]);
                        queue.push(&mut bytes, from);
                        prop_assert!(bytes.is_empty());
                    }
                    1 => {
                        let mut slices = [IoSlice::new(&[]); MAX_SLICES];
                        let count = queue.fill(&mut slices);
                        prop_assert_eq!(count == 0, gone == pushed.len());
                        let mut taken = 0;
                        for slice in &slices[..count] {
                            let part = slice.len().min(amount - taken);
                            prop_assert_eq!(&slice[..part], &pushed[gone..gone + part]);
                            gone += part;
                            taken += part;
                        }
                        queue.advance(taken);
                    }
                    2 => {
                        // A part leaves, some of it is taken, the rest comes back.
                        let mut front = queue.take_front(from % 4);
                        let both = front.unsent_bytes() + queue.unsent_bytes();
                        prop_assert_eq!(both, pushed.len() - gone);
                        let joined: Vec<u8> = front.slices().flatten().copied().collect();
                        prop_assert_eq!(&joined[..], &pushed[gone..gone + joined.len()]);
                        let taken = amount.min(front.unsent_bytes());
                        let mut free = 0;
                        front.advance_into(taken, |chunk| free += chunk.len());
                        prop_assert!(free >= taken || front.unsent_bytes() > 0);
                        gone += taken;
                        queue.put_front(front);
                    }
                    _ => queue = SendQueue::from_chunks(queue.into_chunks()),
                }
                prop_assert_eq!(queue.unsent_bytes(), pushed.len() - gone);
                prop_assert_eq!(queue.is_empty(), pushed.len() == gone);
            }
            let rest = Vec::from(queue.into_chunks()).concat();
            prop_assert_eq!(&rest[..], &pushed[gone..]);
        }
    }
}
