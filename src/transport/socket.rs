#![forbid(unsafe_code)]
//! What the drivers do with a socket by ordinary calls, and how they name streams.

use std::io::IoSlice;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::io::Errno;
use rustix::net::{self, SendFlags, sockopt};

use crate::env::{CloseReason, ConnId, Endpoint};
use crate::transport::listen::{os_text, stream_socket, unix_addr};
use crate::transport::send_queue::{MAX_SLICES, SendQueue};

/// Bytes of one stream reported in one poll, at most.
pub const READ_CHUNK_BYTES: usize = 64 << 10;
/// How long accepting pauses when the process has run out of descriptors or memory.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Gathered writes for one stream in one go, at most.
const MAX_FLUSH_WRITES: usize = 16;
/// Unread bytes thrown away when a flushed stream is closed, at most.
const MAX_DISCARD_BYTES: usize = 256 << 10;

/// Bits of a [`ConnId`] that are the index of the stream; the others are a serial, never used
/// again and never 0.
const INDEX_BITS: u32 = 24;
const MAX_STREAMS: usize = 1 << INDEX_BITS;

/// The id of a stream.
pub(super) fn conn_id(serial: u64, index: usize) -> ConnId {
    assert!(index < MAX_STREAMS, "more than 2^24 streams on one core");
    ConnId(serial << INDEX_BITS | index as u64)
}

/// The index in an id.
pub(super) fn index_of(conn: ConnId) -> usize {
    (conn.0 & (MAX_STREAMS as u64 - 1)) as usize
}

/// What reading a stream gave.
pub(super) enum ReadOutcome {
    Bytes(Vec<u8>),
    Nothing,
    Ended(CloseReason),
}

/// Reads one chunk, without waiting. `scratch` has room for [`READ_CHUNK_BYTES`].
pub(super) fn read_chunk(socket: &OwnedFd, scratch: &mut Vec<u8>) -> ReadOutcome {
    scratch.clear();
    match rustix::io::retry_on_intr(|| rustix::io::read(socket, spare_capacity(scratch))) {
        Ok(0) => ReadOutcome::Ended(CloseReason::Eof),
        Err(Errno::AGAIN) => ReadOutcome::Nothing,
        Err(e) => ReadOutcome::Ended(reading_failed(e)),
        // A chunk that fills most of the scratch buffer is given away with it, others are copied.
        Ok(_) if scratch.len() > READ_CHUNK_BYTES / 2 => {
            let next = Vec::with_capacity(READ_CHUNK_BYTES);
            ReadOutcome::Bytes(std::mem::replace(scratch, next))
        }
        Ok(_) => ReadOutcome::Bytes(scratch.clone()),
    }
}

/// Reads what is there and throws it away, within bounds.
pub(super) fn discard_unread(socket: &OwnedFd, scratch: &mut Vec<u8>) {
    let mut discarded = 0;
    while discarded < MAX_DISCARD_BYTES {
        scratch.clear();
        match rustix::io::read(socket, spare_capacity(scratch)) {
            Ok(0) | Err(_) => return,
            Ok(count) => discarded += count,
        }
    }
}

/// Sends of the queue what the kernel takes.
pub(super) fn flush(socket: &OwnedFd, queue: &mut SendQueue) -> Result<(), String> {
    for _ in 0..MAX_FLUSH_WRITES {
        let mut slices = [IoSlice::new(&[]); MAX_SLICES];
        let count = queue.fill(&mut slices);
        if count == 0 {
            break;
        }
        let sent = send_now(socket, &slices[..count])?;
        if sent == 0 {
            break;
        }
        queue.advance(sent);
    }
    Ok(())
}

/// One write; 0 when the kernel takes nothing now.
pub(super) fn send_now(socket: &OwnedFd, slices: &[IoSlice<'_>]) -> Result<usize, String> {
    let result = rustix::io::retry_on_intr(|| match slices {
        [slice] => net::send(socket, slice, SendFlags::NOSIGNAL),
        slices => {
            let mut control = net::SendAncillaryBuffer::default();
            net::sendmsg(socket, slices, &mut control, SendFlags::NOSIGNAL)
        }
    });
    match result {
        Ok(sent) => Ok(sent),
        Err(Errno::AGAIN) => Ok(0),
        Err(e) => Err(writing_failed(e)),
    }
}

pub(super) fn writing_failed(e: Errno) -> String {
    format!("writing failed: {}", os_text(e))
}

pub(super) fn reading_failed(e: Errno) -> CloseReason {
    CloseReason::Failed(format!("reading failed: {}", os_text(e)))
}

/// Begins to connect.
pub(super) fn start_dial(endpoint: &Endpoint) -> Result<OwnedFd, String> {
    let socket = stream_socket(endpoint).map_err(os_text)?;
    let result = match endpoint {
        Endpoint::Tcp(addr) => net::connect(&socket, addr),
        Endpoint::Unix(path) => net::connect(&socket, &unix_addr(path)?),
    };
    match result {
        // Interrupted, it goes on in the background.
        Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => Ok(socket),
        Err(Errno::AGAIN) if matches!(endpoint, Endpoint::Unix(_)) => {
            Err("too many wait to be accepted there".into())
        }
        Err(e) => Err(os_text(e)),
    }
}

/// How the attempt to connect ended.
pub(super) fn dial_result(socket: &OwnedFd) -> Result<(), String> {
    match sockopt::socket_error(socket) {
        Ok(Ok(())) => {}
        Ok(Err(e)) | Err(e) => return Err(os_text(e)),
    }
    let peer = net::getpeername(socket.as_fd()).map_err(os_text)?;
    let local = net::getsockname(socket.as_fd()).map_err(os_text)?;
    // TCP lets a socket connect to itself when nobody listens on a port of the dynamic range.
    if local.address_family() != net::AddressFamily::UNIX && peer.is_some_and(|p| p == local) {
        return Err("nobody listens there (the socket met itself)".into());
    }
    Ok(())
}
