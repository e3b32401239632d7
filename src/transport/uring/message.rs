#![forbid(unsafe_code)]
//! The bytes of one send, and how the kernel is told of them.

use std::fmt;

use crate::transport::send_queue::{MAX_SLICES, SendQueue};

/// The kernel takes a length of 32 bits; it never takes nearly as much at once.
const MAX_SEND_BYTES: usize = 1 << 30;

/// Bytes that belong to the kernel until their send has ended.
pub(crate) struct Batch {
    queue: SendQueue,
    /// Set when there is more than one slice.
    message: Option<Box<Message>>,
}

/// Points into the queue beside it, whose chunks stay where they are.
struct Message {
    header: libc::msghdr,
    _slices: Vec<libc::iovec>,
}

impl Batch {
    /// The first bytes of the queue.
    pub(super) fn take(queue: &mut SendQueue) -> Self {
        let queue = queue.take_front(MAX_SLICES);
        let mut slices = queue.slices();
        let is_one = (slices.next(), slices.next()).1.is_none();
        drop(slices);
        let message = (!is_one).then(|| {
            let slice = |bytes: &[u8]| libc::iovec {
                iov_base: bytes.as_ptr().cast_mut().cast(),
                iov_len: bytes.len(),
            };
            let mut slices: Vec<_> = queue.slices().map(slice).collect();
            let mut header = super::empty_header();
            header.msg_iov = slices.as_mut_ptr();
            header.msg_iovlen = slices.len() as _;
            Box::new(Message { header, _slices: slices })
        });
        Self { queue, message }
    }

    pub(super) fn unsent_bytes(&self) -> usize {
        self.queue.unsent_bytes()
    }

    /// The queue again.
    pub(super) fn into_queue(self) -> SendQueue {
        self.queue
    }

    /// The first slice.
    pub(super) fn first(&self) -> (*const u8, u32) {
        let bytes = self.queue.slices().next().unwrap_or_default();
        (bytes.as_ptr(), bytes.len().min(MAX_SEND_BYTES) as u32)
    }

    /// All slices, when there are several.
    pub(super) fn message(&self) -> Option<*const libc::msghdr> {
        self.message.as_ref().map(|message| &raw const message.header)
    }
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("unsent_bytes", &self.unsent_bytes()).finish_non_exhaustive()
    }
}
