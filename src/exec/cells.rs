#![forbid(unsafe_code)]
//! Task cells: the futures of turns, and what wakes them.
//!
//! A future is written into a cell when its turn starts and stays there until it ends; the memory
//! of a cell that is free is used for the next ([`super::cell`]). A waker names the cell with a
//! generation, so that a wake that comes after the turn ended, from whatever thread, does nothing.
//! One that comes from another thread goes through the core's mailbox.
//!
//! A cell keeps its waker for the next turn unless somebody outside still has a clone: then the
//! clone keeps the name of the ended turn, and the cell gets a new waker. So a turn that wakes
//! nobody, or whose clones are gone when it ends, allocates none.
//!
//! [`super::boxed`] is the simple form of the same thing: the two are compared in tests.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::task::{Context, Poll, Wake, Waker};

use super::cell::{Blocks, TaskCell};

/// Called by a foreign wake with the cell's id.
pub(crate) type WakeFn = Arc<dyn Fn(u64) + Send + Sync>;

struct CellWaker {
    /// Changed only while nobody outside the cell has a clone.
    id: AtomicU64,
    /// A wake is on its way; cleared when the cell is polled.
    posted: AtomicBool,
    post: WakeFn,
}

impl Wake for CellWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // SYNC: pairs with the swap in `Cells::poll`: what the waker's thread wrote before this is
        // seen by the poll that clears the flag, or the flag was clear and a mail is posted.
        if !self.posted.swap(true, Ordering::AcqRel) {
            (self.post)(self.id.load(Ordering::Relaxed));
        }
    }
}

/// A cell's waker, in the two forms it is needed in.
struct Wakers {
    own: Arc<CellWaker>,
    waker: Waker,
}

/// References to a waker that its cell has itself.
const OWN_REFERENCES: usize = 2;

impl Wakers {
    fn new(post: &WakeFn) -> Self {
        let (id, posted) = (AtomicU64::new(0), AtomicBool::new(false));
        let own = Arc::new(CellWaker { id, posted, post: post.clone() });
        Self { waker: Waker::from(own.clone()), own }
    }

    /// Makes it the waker of the turn `id`.
    fn rename(&mut self, id: u64, post: &WakeFn) {
        if Arc::strong_count(&self.own) == OWN_REFERENCES {
            // SYNC: pairs with the decrement (Release) by which the last clone outside went: its
            // thread read the old id before that, so it cannot see the new one.
            fence(Ordering::Acquire);
        } else {
            *self = Self::new(post);
        }
        self.own.id.store(id, Ordering::Relaxed);
        self.own.posted.store(false, Ordering::Relaxed);
    }
}

struct Slot<O: 'static, U> {
    generation: u32,
    running: Option<(TaskCell<O>, U)>,
    wakers: Wakers,
}

/// What a poll came to.
pub(crate) enum Polled<O, U> {
    /// The turn ended; its cell is free.
    Ready(O, U),
    /// The turn waits.
    Pending,
    /// The turn panicked with this text; everything in its cell is gone.
    Panicked(String, U),
    /// There is no such turn any more.
    Gone,
}

/// The cells of a core: futures that come to an `O`, each with a `U` that says what it is for.
pub(crate) struct Cells<O: 'static, U> {
    slots: Vec<Slot<O, U>>,
    /// Free slots; the one used last is used next.
    free: Vec<u32>,
    blocks: Blocks,
    next_generation: u32,
    post: WakeFn,
}

impl<O, U> Cells<O, U> {
    pub(crate) fn new(post: WakeFn) -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            blocks: Blocks::default(),
            next_generation: 0,
            post,
        }
    }

    /// Cells in use.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Takes a future in, which `put` writes into a block; it is polled by [`Cells::poll`]. Its id
    /// is never zero.
    pub(crate) fn insert(&mut self, of: U, put: impl FnOnce(&mut Blocks) -> TaskCell<O>) -> u64 {
        // Generation 0 is none: so no id is 0.
        self.next_generation = self.next_generation.checked_add(1).unwrap_or(1);
        let generation = self.next_generation;
        let index = self.free.pop().unwrap_or_else(|| {
            let wakers = Wakers::new(&self.post);
            self.slots.push(Slot { generation: 0, running: None, wakers });
            (self.slots.len() - 1) as u32
        });
        let id = u64::from(generation) << 32 | u64::from(index);
        let slot = &mut self.slots[index as usize];
        slot.generation = generation;
        slot.wakers.rename(id, &self.post);
        slot.running = Some((put(&mut self.blocks), of));
        id
    }

    fn slot(&mut self, id: u64) -> Option<&mut Slot<O, U>> {
        let slot = self.slots.get_mut((id & 0xffff_ffff) as usize)?;
        (u64::from(slot.generation) == id >> 32 && slot.running.is_some()).then_some(slot)
    }

    /// What a cell is for.
    pub(crate) fn of(&self, id: u64) -> Option<&U> {
        let slot = self.slots.get((id & 0xffff_ffff) as usize)?;
        let (_, of) = slot.running.as_ref()?;
        (u64::from(slot.generation) == id >> 32).then_some(of)
    }

    /// Polls a cell once. A panic is caught, and what is in the cell dropped.
    pub(crate) fn poll(&mut self, id: u64) -> Polled<O, U> {
        let Some(slot) = self.slot(id) else { return Polled::Gone };
        let Some((task, _)) = &mut slot.running else { return Polled::Gone };
        // Looked at first: a turn that nobody woke pays for no read-modify-write. A wake that is
        // missed here posts its mail, and the poll that follows from that sees the flag.
        if slot.wakers.own.posted.load(Ordering::Relaxed) {
            // SYNC: pairs with the swap in `wake_by_ref`; a wake after this posts again.
            slot.wakers.own.posted.swap(false, Ordering::AcqRel);
        }
        let mut cx = Context::from_waker(&slot.wakers.waker);
        // A future that panicked is dropped and never polled again, so no torn state is seen.
        match catch_unwind(AssertUnwindSafe(|| task.poll(&mut cx))) {
            Ok(Poll::Pending) => Polled::Pending,
            Ok(Poll::Ready(value)) => match self.remove(id) {
                Some(of) => Polled::Ready(value, of),
                None => Polled::Gone,
            },
            Err(panic) => match self.remove(id) {
                Some(of) => Polled::Panicked(panic_text(&*panic), of),
                None => Polled::Gone,
            },
        }
    }

    /// Drops a cell before its end and says what it was for. A panic of its destructors is caught.
    pub(crate) fn cancel(&mut self, id: u64) -> Option<U> {
        self.remove(id)
    }

    fn remove(&mut self, id: u64) -> Option<U> {
        let (task, of) = self.slot(id)?.running.take()?;
        self.blocks.end(task);
        self.free.push((id & 0xffff_ffff) as u32);
        Some(of)
    }
}

/// The text of a panic.
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|s| (*s).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "panic without a text".to_owned())
}

#[cfg(test)]
mod tests;
