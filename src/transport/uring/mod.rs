#![allow(unsafe_code)]
//! The driver on io_uring ([`Uring`]), and here its lowest part: a ring whose face is safe.
//!
//! # What makes it safe
//! An operation (`Op`) owns all that the kernel touches while it is under way: the descriptor,
//! the bytes to send, the headers that describe them. A `Ring` keeps it from `Ring::start`
//! until its last completion was taken, whatever has become of the stream meanwhile; only then
//! `Completion::done` gives it back. Bytes received lie in buffers of the ring's own, which the
//! kernel may write from the moment they are given to it until a completion names them.
//!
//! A completion carries the index of its operation in the ring's table and a serial number, never a
//! descriptor: a descriptor that is used again while an old operation is alive confuses nothing.
//!
//! # Whose thread
//! A ring is made on one thread and used on another, so it begins disabled, and the first thread
//! that enters the kernel through it becomes its only one. Entered from any other thread it does
//! nothing and says so.
//!
//! # When it ends
//! Dropping a ring cancels what is under way and waits for the last completion of each operation.
//! On a thread that is not its own it cannot; then the memory of those operations is never given
//! back, because the kernel may still write there.

mod counts;
mod driver;
mod message;
mod probe;
mod streams;

pub use counts::OperationCounts;
pub use driver::{Sizes, Uring};

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread::ThreadId;

use io_uring::types::{BufRingEntry, CancelBuilder, Fd};
use io_uring::{EnterFlags, IoUring, cqueue, opcode, squeue};
use rustix::io::Errno;
use slab::Slab;

use crate::store::boottime;
use crate::time::Nanos;
use crate::transport::listen::BoundListener;
use message::Batch;

/// The only buffer group.
const GROUP: u16 = 0;
/// Buffers and their ring begin at a page, however large pages are.
const ALIGN: usize = 64 << 10;
/// The longest wait where the kernel cannot wait by the node's clock: a suspend of the machine
/// makes a wait too long by at most this.
const LONGEST_OTHER_WAIT_NS: u64 = 1_000_000_000;
/// `IORING_REGISTER_CLOCK` and `IORING_ENTER_ABS_TIMER`, Linux 6.12.
const REGISTER_CLOCK: u32 = 29;
const ENTER_ABS_TIMER: u32 = 1 << 5;

/// What the kernel is asked to do.
#[derive(Debug)]
pub(crate) enum Op {
    /// Accept streams until it is cancelled or fails.
    Accept(Arc<BoundListener>),
    /// Receive into the ring's buffers until it is cancelled, fails or the peer ends.
    Receive(Arc<OwnedFd>),
    /// Send what the kernel takes of these bytes, at least one; waits until it takes one.
    Send(Arc<OwnedFd>, Batch),
    /// Wait until it can be written, once.
    PollOut(Arc<OwnedFd>),
    /// Tell whenever it can be read anew.
    PollIn(Arc<OwnedFd>),
    /// End another operation early.
    Cancel(OpId),
    /// End all operations early.
    CancelAll,
}

/// Names an operation under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OpId(u64);

/// One thing the kernel tells about an operation.
#[derive(Debug)]
pub(crate) struct Completion {
    /// From [`Ring::start`].
    pub(crate) token: u64,
    pub(crate) outcome: Outcome,
    /// The operation, when this was the last completion of it.
    pub(crate) done: Option<Op>,
}

#[derive(Debug)]
pub(crate) enum Outcome {
    Accepted(OwnedFd),
    /// Bytes; to be taken with [`Ring::take_bytes`].
    Received(Filled),
    /// What the call gave: bytes sent, bits that are ready; 0 for a stream that has ended.
    Number(u32),
    Failed(Errno),
}

/// A buffer with received bytes.
#[derive(Debug)]
#[must_use = "the buffer is lost to the ring until its bytes are taken"]
pub(crate) struct Filled {
    buffer: u16,
    bytes: u32,
}

/// See the module's head.
pub(crate) struct Ring {
    io: IoUring,
    buffers: Buffers,
    ops: Slab<Entry>,
    serial: u32,
    /// What found no room in the submission queue.
    backlog: VecDeque<squeue::Entry>,
    owner: Option<Owner>,
    /// The kernel has taken operations.
    has_entered: bool,
    /// The kernel waits by the node's clock.
    has_boottime: bool,
    /// Flags of every enter.
    flags: u32,
    started: u64,
    completed: u64,
    counts: Arc<OperationCounts>,
}

#[derive(Debug)]
struct Entry {
    serial: u32,
    token: u64,
    op: Op,
}

#[derive(Clone, Copy, Debug)]
struct Owner {
    thread: ThreadId,
    /// The ring's place among the registered rings of the thread.
    index: Option<u32>,
}

// SAFETY: the pointers inside lead to memory that belongs to the ring and its operations alone, and
// no part of it is tied to a thread; the kernel's rule of one submitting thread is kept by `enter`.
unsafe impl Send for Ring {}

impl Filled {
    pub(crate) fn len(&self) -> usize {
        self.bytes as usize
    }
}

impl Ring {
    /// Makes a ring that is not in use yet. In the error: which call failed, and why.
    pub(crate) fn new(sizes: Sizes) -> Result<Self, (&'static str, Errno)> {
        let io = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .setup_submit_all()
            .setup_r_disabled()
            .setup_cqsize(sizes.completions)
            .build(sizes.submissions)
            .map_err(|e| ("io_uring_setup", errno(&e)))?;
        if !io.params().is_feature_nodrop() || !io.params().is_feature_ext_arg() {
            return Err(("io_uring_setup", Errno::OPNOTSUPP));
        }
        let buffers = Buffers::new(sizes.buffers, sizes.buffer_bytes);
        // SAFETY: the memory is as long as said and lives until the ring is closed: `Ring` drops
        // `io` first, or never drops the buffers.
        unsafe {
            let address = buffers.ring.as_ptr() as u64;
            io.submitter().register_buf_ring_with_flags(address, sizes.buffers, GROUP, 0)
        }
        .map_err(|e| ("io_uring_register of a buffer ring", errno(&e)))?;
        let mut clock = [libc::CLOCK_BOOTTIME as u32, 0, 0, 0];
        let has_boottime = register(io.as_raw_fd(), REGISTER_CLOCK, &mut clock, 0).is_ok();
        let counts = Arc::default();
        let mut flags = EnterFlags::GETEVENTS | EnterFlags::EXT_ARG;
        if io.params().is_feature_no_iowait() {
            // A core that waits for its peers waits for no disk.
            flags |= EnterFlags::NO_IOWAIT;
        }
        Ok(Self {
            io,
            buffers,
            ops: Slab::new(),
            serial: 0,
            backlog: VecDeque::new(),
            owner: None,
            has_entered: false,
            has_boottime,
            flags: flags.bits(),
            started: 0,
            completed: 0,
            counts,
        })
    }

    /// Starts an operation; the kernel hears of it at the next [`Ring::enter`].
    pub(crate) fn start(&mut self, token: u64, op: Op) -> OpId {
        self.serial = self.serial.wrapping_add(1);
        let serial = self.serial;
        let slot = self.ops.insert(Entry { serial, token, op });
        let id = OpId(u64::from(serial) << 32 | slot as u64);
        let call = describe(&self.ops[slot].op).user_data(id.0);
        self.started += 1;
        if !self.backlog.is_empty() || !self.push(&call) {
            self.backlog.push_back(call);
        }
        id
    }

    fn push(&mut self, call: &squeue::Entry) -> bool {
        // SAFETY: what the entry points to belongs to an operation that `ops` holds until its last
        // completion was taken.
        unsafe { self.io.submission().push(call).is_ok() }
    }

    /// Whether entering the kernel would do something: there are operations to start, or the
    /// kernel has work to finish on this thread. Costs no system call.
    pub(crate) fn wants_enter(&mut self) -> bool {
        let queue = self.io.submission();
        !queue.is_empty() || queue.taskrun() || queue.cq_overflow() || !self.backlog.is_empty()
    }

    /// Whether the kernel holds completions back because the queue was full.
    pub(crate) fn has_overflow(&mut self) -> bool {
        self.io.submission().cq_overflow()
    }

    /// Whether completions can be taken.
    pub(crate) fn has_completions(&mut self) -> bool {
        !self.io.completion().is_empty()
    }

    /// Gives the kernel what was started and lets it finish what it can. Waits for a completion
    /// until that instant, if one is given; may come back earlier.
    pub(crate) fn enter(&mut self, wait_until: Option<Nanos>) -> Result<(), Errno> {
        let owner = self.owner()?;
        loop {
            while let Some(call) = self.backlog.pop_front() {
                if !self.push(&call) {
                    self.backlog.push_front(call);
                    break;
                }
            }
            let queued = self.io.submission().len() as u32;
            let wait_until = wait_until.filter(|_| self.backlog.is_empty());
            let result = self.enter_once(owner, queued, wait_until);
            self.has_entered |= result.is_ok();
            match result {
                Ok(()) if !self.backlog.is_empty() => {}
                // Time has run out, a signal came, or completions have to be taken first.
                Ok(()) | Err(Errno::TIME | Errno::INTR | Errno::AGAIN | Errno::BUSY) => {
                    return Ok(());
                }
                Err(e) => return Err(e),
            }
        }
    }

    /// The thread this ring belongs to: this one, or there is an error.
    fn owner(&mut self) -> Result<Owner, Errno> {
        let thread = std::thread::current().id();
        match self.owner {
            Some(owner) if owner.thread == thread => return Ok(owner),
            Some(_) => return Err(Errno::EXIST),
            None => {}
        }
        self.io.submitter().register_enable_rings().map_err(|e| errno(&e))?;
        // A thread has few such places; without one the descriptor itself serves.
        let mut place = RingPlace { offset: u32::MAX, resv: 0, data: self.io.as_raw_fd() as u64 };
        let opcode = 20; // IORING_REGISTER_RING_FDS
        let index = register(self.io.as_raw_fd(), opcode, &mut place, 1).is_ok();
        let owner = Owner { thread, index: index.then_some(place.offset) };
        self.owner = Some(owner);
        Ok(owner)
    }

    fn enter_once(
        &self,
        owner: Owner,
        queued: u32,
        wait_until: Option<Nanos>,
    ) -> Result<(), Errno> {
        let mut flags = self.flags;
        let fd = match owner.index {
            Some(index) => {
                flags |= EnterFlags::REGISTERED_RING.bits();
                index as i32
            }
            None => self.io.as_raw_fd(),
        };
        let mut time = KernelTime { seconds: 0, nanoseconds: 0 };
        let mut arg = EnterArg { sigmask: 0, sigmask_bytes: 0, min_wait_us: 0, time: 0 };
        if let Some(until) = wait_until {
            let mut ns = i64::try_from(until.0).unwrap_or(i64::MAX);
            if self.has_boottime {
                flags |= ENTER_ABS_TIMER;
            } else {
                let left = until.0.saturating_sub(boottime().0);
                ns = left.min(LONGEST_OTHER_WAIT_NS) as i64;
            }
            time = KernelTime { seconds: ns / 1_000_000_000, nanoseconds: ns % 1_000_000_000 };
            arg.time = (&raw const time) as u64;
        }
        let least = u32::from(wait_until.is_some());
        // SAFETY: `arg` and `time` live through the call, and the entries queued point to memory of
        // operations that live on in `ops`.
        let result = unsafe {
            let size = size_of::<EnterArg>();
            libc::syscall(libc::SYS_io_uring_enter, fd, queued, least, flags, &raw const arg, size)
        };
        let _ = time;
        if result < 0 { Err(errno(&io::Error::last_os_error())) } else { Ok(()) }
    }

    /// The next completion.
    pub(crate) fn next(&mut self) -> Option<Completion> {
        loop {
            let told = self.io.completion().next()?;
            let (slot, serial) =
                (told.user_data() as u32 as usize, (told.user_data() >> 32) as u32);
            let entry = self.ops.get(slot).filter(|entry| entry.serial == serial);
            let Some(entry) = entry else {
                debug_assert!(false, "a completion of an operation that has ended");
                continue;
            };
            let token = entry.token;
            let buffer = cqueue::buffer_select(told.flags());
            let outcome = match (u32::try_from(told.result()), &entry.op, buffer) {
                (Err(_), ..) => Outcome::Failed(Errno::from_raw_os_error(-told.result())),
                (Ok(fd), Op::Accept(_), _) => {
                    // SAFETY: the kernel made this descriptor for us and nobody else knows it.
                    let socket = unsafe { OwnedFd::from_raw_fd(fd as i32) };
                    Outcome::Accepted(socket)
                }
                (Ok(bytes @ 1..), _, Some(buffer)) => Outcome::Received(Filled { buffer, bytes }),
                (Ok(number), _, buffer) => {
                    if let Some(buffer) = buffer {
                        self.buffers.give(buffer);
                    }
                    Outcome::Number(number)
                }
            };
            let is_last = !cqueue::more(told.flags());
            let done = is_last.then(|| {
                self.completed += 1;
                self.ops.remove(slot).op
            });
            if let (Some(Op::Cancel(target)), Outcome::Failed(_)) = (&done, &outcome) {
                self.cancel_again(*target, token);
            }
            return Some(Completion { token, outcome, done });
        }
    }

    /// A cancellation found nothing to cancel. When its target is alive all the same, the kernel is
    /// just about to try it once more: a send that cannot go on does so again and again on a stream
    /// whose peer has ended its side. After a bounded number of tries it can be found.
    fn cancel_again(&mut self, target: OpId, token: u64) {
        let (slot, serial) = (target.0 as u32 as usize, (target.0 >> 32) as u32);
        if self.ops.get(slot).is_some_and(|entry| entry.serial == serial) {
            self.start(token, Op::Cancel(target));
        }
    }

    /// Appends the bytes to `to`, and gives the buffer to the kernel again.
    pub(crate) fn take_bytes(&mut self, filled: Filled, to: &mut Vec<u8>) {
        let len = filled.bytes.min(self.buffers.buffer_bytes) as usize;
        let at = self.buffers.address(filled.buffer);
        // SAFETY: a completion named this buffer and nobody has given it back since (`Filled` is
        // not Clone), so the kernel does not write it; the kernel has written its first `len` bytes,
        // and all memory of the buffers was zeroed when it was made.
        to.extend_from_slice(unsafe { std::slice::from_raw_parts(at.as_ptr(), len) });
        self.buffers.give(filled.buffer);
    }

    /// Operations under way, one ended early included until its completion was taken.
    pub(crate) fn under_way(&self) -> usize {
        self.ops.len()
    }

    /// Makes the numbers in [`OperationCounts`] those of now.
    pub(crate) fn publish_counts(&self) {
        self.counts.set(self.started, self.completed);
    }

    pub(crate) fn counts(&self) -> Arc<OperationCounts> {
        self.counts.clone()
    }

    /// Ends all operations and waits for them. An error when that cannot be.
    fn finish(&mut self) -> Result<(), Errno> {
        if !self.has_entered {
            // The kernel has not heard of any.
            self.completed += self.ops.len() as u64;
            self.ops.clear();
            self.backlog.clear();
        }
        let mut room = Vec::new();
        let mut is_cancelled = false;
        while self.under_way() > 0 {
            if !is_cancelled {
                self.start(0, Op::CancelAll);
            }
            // What has been cancelled comes without waiting.
            self.enter(None)?;
            is_cancelled = true;
            while let Some(completion) = self.next() {
                if let Outcome::Received(filled) = completion.outcome {
                    room.clear();
                    self.take_bytes(filled, &mut room);
                }
                // It may have run before an operation that came after it in the queue.
                is_cancelled &= !matches!(completion.done, Some(Op::CancelAll));
            }
        }
        Ok(())
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        if let Err(error) = self.finish() {
            tracing::error!(%error, "an io_uring ring cannot be ended; its memory is not given back");
            for (_, entry) in std::mem::take(&mut self.ops) {
                match entry.op {
                    Op::Send(socket, batch) => {
                        end_socket(&socket);
                        std::mem::forget(batch);
                    }
                    Op::Receive(socket) | Op::PollOut(socket) => end_socket(&socket),
                    Op::Accept(_) | Op::PollIn(_) | Op::Cancel(_) | Op::CancelAll => {}
                }
            }
            self.buffers.keep = true;
        }
        self.publish_counts();
        if let Some(Owner { thread, index: Some(index) }) = self.owner
            && thread == std::thread::current().id()
        {
            // The place holds the ring alive.
            let mut place = RingPlace { offset: index, resv: 0, data: 0 };
            let opcode = 21; // IORING_UNREGISTER_RING_FDS
            let _ = register(self.io.as_raw_fd(), opcode, &mut place, 1);
        }
    }
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ring")
            .field("under_way", &self.ops.len())
            .field("owner", &self.owner)
            .finish_non_exhaustive()
    }
}

/// What the kernel is told of an operation.
fn describe(op: &Op) -> squeue::Entry {
    let fd = |fd: BorrowedFd<'_>| Fd(fd.as_raw_fd());
    match op {
        Op::Accept(listener) => opcode::AcceptMulti::new(fd(listener.socket()))
            .flags(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC)
            .build(),
        Op::Receive(socket) => opcode::RecvMulti::new(fd(socket.as_fd()), GROUP).build(),
        Op::Send(socket, batch) => match batch.message() {
            None => {
                let (bytes, len) = batch.first();
                opcode::Send::new(fd(socket.as_fd()), bytes, len).flags(libc::MSG_NOSIGNAL).build()
            }
            Some(message) => opcode::SendMsg::new(fd(socket.as_fd()), message)
                .flags(libc::MSG_NOSIGNAL as u32)
                .build(),
        },
        Op::PollOut(socket) => {
            opcode::PollAdd::new(fd(socket.as_fd()), libc::POLLOUT as u32).build()
        }
        Op::PollIn(socket) => {
            opcode::PollAdd::new(fd(socket.as_fd()), libc::POLLIN as u32).multi(true).build()
        }
        Op::Cancel(target) => opcode::AsyncCancel::new(target.0).build(),
        Op::CancelAll => opcode::AsyncCancel2::new(CancelBuilder::any().all()).build(),
    }
}

/// The buffers the kernel receives into, and the ring by which it is given them.
struct Buffers {
    ring: NonNull<BufRingEntry>,
    bytes: NonNull<u8>,
    layout: Layout,
    mask: u16,
    buffer_bytes: u32,
    /// Buffers given so far, wrapping.
    tail: u16,
    /// The kernel may write in them for ever.
    keep: bool,
}

impl Buffers {
    /// `count` is a power of two.
    fn new(count: u16, buffer_bytes: u32) -> Self {
        assert!(count.is_power_of_two() && count <= 1 << 15 && buffer_bytes > 0);
        let ring_bytes = (usize::from(count) * size_of::<BufRingEntry>()).next_multiple_of(4096);
        let all_bytes = usize::from(count) * buffer_bytes as usize;
        let layout = Layout::from_size_align(ring_bytes + all_bytes, ALIGN)
            .expect("at most 2^15 buffers of less than 2^32 bytes");
        // SAFETY: the layout is not empty.
        let Some(start) = NonNull::new(unsafe { alloc_zeroed(layout) }) else {
            handle_alloc_error(layout)
        };
        // SAFETY: `ring_bytes` is inside of the allocation.
        let bytes = unsafe { start.add(ring_bytes) };
        let ring = start.cast();
        let mask = count - 1;
        let mut buffers = Self { ring, bytes, layout, mask, buffer_bytes, tail: 0, keep: false };
        (0..count).for_each(|buffer| buffers.give(buffer));
        buffers
    }

    /// Where a buffer begins.
    fn address(&self, buffer: u16) -> NonNull<u8> {
        let buffer = usize::from(buffer & self.mask);
        // SAFETY: the index is less than the number of buffers.
        unsafe { self.bytes.add(buffer * self.buffer_bytes as usize) }
    }

    /// Gives a buffer to the kernel.
    fn give(&mut self, buffer: u16) {
        let address = self.address(buffer).as_ptr() as u64;
        // SAFETY: the index is inside of the ring. The kernel reads this entry only after the tail
        // below has told of it, and every buffer is given at most once at a time, so the ring never
        // holds more than it has entries.
        unsafe {
            let entry = self.ring.add(usize::from(self.tail & self.mask)).as_mut();
            entry.set_addr(address);
            entry.set_len(self.buffer_bytes);
            entry.set_bid(buffer);
        }
        self.tail = self.tail.wrapping_add(1);
        // SAFETY: the tail lies in the first entry, where only this thread writes and the kernel
        // reads it; it is aligned as a `u16` is.
        let tail = unsafe { &*BufRingEntry::tail(self.ring.as_ptr()).cast::<AtomicU16>() };
        // SYNC: pairs with the kernel's acquiring load of the tail: it sees the entry whole.
        tail.store(self.tail, Ordering::Release);
    }
}

impl Drop for Buffers {
    fn drop(&mut self) {
        if !self.keep {
            // SAFETY: allocated with this layout. The ring (declared before the buffers, so dropped
            // before them) is closed and no operation is under way.
            unsafe { dealloc(self.ring.as_ptr().cast(), self.layout) }
        }
    }
}

/// `struct __kernel_timespec`.
#[repr(C)]
struct KernelTime {
    seconds: i64,
    nanoseconds: i64,
}

/// `struct io_uring_getevents_arg`.
#[repr(C)]
struct EnterArg {
    sigmask: u64,
    sigmask_bytes: u32,
    min_wait_us: u32,
    time: u64,
}

/// `struct io_uring_rsrc_update`.
#[repr(C)]
struct RingPlace {
    offset: u32,
    resv: u32,
    data: u64,
}

/// `io_uring_register` with a structure the kernel reads and may write.
fn register<T>(fd: i32, opcode: u32, argument: &mut T, count: u32) -> Result<(), Errno> {
    // SAFETY: the callers above pass the structure that belongs to the opcode, and it outlives the
    // call; none of these opcodes remembers its address.
    let result = unsafe {
        libc::syscall(libc::SYS_io_uring_register, fd, opcode, &raw mut *argument, count)
    };
    if result < 0 { Err(errno(&io::Error::last_os_error())) } else { Ok(()) }
}

/// Tells the peer of the end while the kernel still holds the socket for an operation.
fn end_socket(socket: &OwnedFd) {
    let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
}

/// A message header that names nothing.
fn empty_header() -> libc::msghdr {
    // SAFETY: integers and null pointers are valid, and mean "none".
    unsafe { std::mem::zeroed() }
}

fn errno(e: &io::Error) -> Errno {
    Errno::from_io_error(e).unwrap_or(Errno::IO)
}
