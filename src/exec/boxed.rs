#![forbid(unsafe_code)]
//! Task cells in their simple form: each future in a box of its own, each with a waker of its own.
//! What the cells that are used ([`super::cells`]) are compared with in tests.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use slab::Slab;

use super::cells::{WakeFn, panic_text};

struct CellWaker {
    id: u64,
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
            (self.post)(self.id);
        }
    }
}

struct Cell<O> {
    generation: u32,
    future: Pin<Box<dyn Future<Output = O>>>,
    waker: Arc<CellWaker>,
}

/// What a poll came to.
pub(crate) enum Polled<O> {
    /// The turn ended; its cell is gone.
    Ready(O),
    /// The turn waits.
    Pending,
    /// The turn panicked with this text; its cell, with everything in it, is gone.
    Panicked(String),
    /// There is no such turn any more.
    Gone,
}

/// The cells of a core.
pub(crate) struct Cells<O> {
    cells: Slab<Cell<O>>,
    next_generation: u32,
    post: WakeFn,
}

impl<O> Cells<O> {
    pub(crate) fn new(post: WakeFn) -> Self {
        Self { cells: Slab::new(), next_generation: 0, post }
    }

    /// Cells in use.
    pub(crate) fn len(&self) -> usize {
        self.cells.len()
    }

    /// Takes a future in; it is polled by [`Cells::poll`].
    pub(crate) fn insert(&mut self, future: Pin<Box<dyn Future<Output = O>>>) -> u64 {
        self.next_generation = self.next_generation.wrapping_add(1);
        let generation = self.next_generation;
        let entry = self.cells.vacant_entry();
        let id = u64::from(generation) << 32 | entry.key() as u64;
        let waker =
            Arc::new(CellWaker { id, posted: AtomicBool::new(false), post: self.post.clone() });
        entry.insert(Cell { generation, future, waker });
        id
    }

    fn index(&self, id: u64) -> Option<usize> {
        let index = (id & 0xffff_ffff) as usize;
        let cell = self.cells.get(index)?;
        (u64::from(cell.generation) == id >> 32).then_some(index)
    }

    /// Polls a cell once. A panic is caught and the cell dropped.
    pub(crate) fn poll(&mut self, id: u64) -> Polled<O> {
        let Some(index) = self.index(id) else { return Polled::Gone };
        let cell = &mut self.cells[index];
        // SYNC: pairs with the swap in `wake_by_ref`; a wake after this posts again.
        cell.waker.posted.swap(false, Ordering::AcqRel);
        let waker = Waker::from(cell.waker.clone());
        let mut cx = Context::from_waker(&waker);
        // A future that panicked is dropped and never polled again, so no torn state is seen.
        let polled = catch_unwind(AssertUnwindSafe(|| cell.future.as_mut().poll(&mut cx)));
        match polled {
            Ok(Poll::Pending) => Polled::Pending,
            Ok(Poll::Ready(value)) => {
                self.remove(index);
                Polled::Ready(value)
            }
            Err(panic) => {
                self.remove(index);
                Polled::Panicked(panic_text(&*panic))
            }
        }
    }

    /// Drops a cell before its end. A panic of its destructors is caught.
    pub(crate) fn cancel(&mut self, id: u64) {
        if let Some(index) = self.index(id) {
            self.remove(index);
        }
    }

    fn remove(&mut self, index: usize) {
        let cell = self.cells.remove(index);
        let _ = catch_unwind(AssertUnwindSafe(|| drop(cell)));
    }
}
