#![allow(unsafe_code)]
//! The memory of a task cell: a future is written into a block that is used again and again, and
//! polled in place.
//!
//! # Words
//! A **block** is memory of one of a few sizes (powers of two). [`Blocks`] keeps those that are
//! free. A [`TaskCell`] owns a future in a block, as `Pin<Box<dyn Future>>` would: whoever has it
//! may poll it and drop it, and its type is not known any more.
//!
//! # What holds
//! - The future never moves between [`Blocks::put`] and its drop: only the pointer to it does.
//! - It is dropped exactly once, with the cell at the latest; then its block is free again.
//! - Nothing here is `Send`: futures of turns need not be, and stay on their core.
//!
//! A future that is larger than the largest size, or wants a stricter alignment than blocks have,
//! gets memory of its own, which is not kept.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::future::Future;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::ptr::NonNull;
use std::task::{Context, Poll};

/// Alignment of every block: a cache line.
const ALIGN: usize = 64;
/// Size of the smallest blocks.
const MIN_BLOCK_BYTES: usize = 128;
/// Sizes of blocks: 128 B, doubled up to 64 KiB.
const SIZES: usize = 10;
/// Bytes of free blocks of one size that are kept: 2.5 MiB of all sizes at most.
const KEEP_BYTES: usize = 256 << 10;

/// The size class of a layout, if blocks fit it.
fn class_of(layout: Layout) -> Option<usize> {
    if layout.align() > ALIGN {
        return None;
    }
    let size = layout.size().max(MIN_BLOCK_BYTES).next_power_of_two();
    let class = (size / MIN_BLOCK_BYTES).trailing_zeros() as usize;
    (class < SIZES).then_some(class)
}

const fn block_bytes(class: usize) -> usize {
    MIN_BLOCK_BYTES << class
}

/// Memory of `layout`, owned.
struct Block {
    at: NonNull<u8>,
    layout: Layout,
}

impl Block {
    /// Memory of this layout, whose size is not zero.
    fn new(layout: Layout) -> Self {
        assert!(layout.size() > 0, "a block has a size");
        // SAFETY: the size is not zero.
        let at = unsafe { alloc(layout) };
        let Some(at) = NonNull::new(at) else { handle_alloc_error(layout) };
        Self { at, layout }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: `new` allocated it with this layout, and a block is dropped once.
        unsafe { dealloc(self.at.as_ptr(), self.layout) }
    }
}

/// The free blocks of a core.
#[derive(Default)]
pub(crate) struct Blocks {
    free: [Vec<Block>; SIZES],
}

impl Blocks {
    /// Writes a future into a block. Allocates nothing when one of its size is free.
    pub(crate) fn put<O, F: Future<Output = O> + 'static>(&mut self, future: F) -> TaskCell<O> {
        let block = self.take(Layout::new::<F>());
        // SAFETY: the block is owned, free, and at least as large and as strictly aligned as `F`.
        unsafe { block.at.as_ptr().cast::<F>().write(future) };
        TaskCell { block: ManuallyDrop::new(block), vtable: &Erased::<F>::VTABLE, of: PhantomData }
    }

    fn take(&mut self, layout: Layout) -> Block {
        let Some(class) = class_of(layout) else { return Block::new(layout) };
        self.free[class].pop().unwrap_or_else(|| {
            let layout = Layout::from_size_align(block_bytes(class), ALIGN);
            Block::new(layout.expect("sizes and alignment are small powers of two"))
        })
    }

    /// Drops the future of a cell and keeps its block. A panic of a destructor is caught.
    pub(crate) fn end<O>(&mut self, cell: TaskCell<O>) {
        let block = cell.drop_future();
        // A block of its own has another layout than those of its class.
        if let Some(class) = class_of(block.layout)
            && block.layout.align() == ALIGN
            && block.layout.size() == block_bytes(class)
            && self.free[class].len() < KEEP_BYTES / block_bytes(class)
        {
            self.free[class].push(block);
        }
    }

    /// Free blocks that are kept.
    #[cfg(test)]
    pub(crate) fn kept(&self) -> usize {
        self.free.iter().map(Vec::len).sum()
    }
}

/// What can be done with a future whose type is not known any more.
struct VTable<O> {
    /// Polls the future at the pointer.
    poll: unsafe fn(NonNull<u8>, &mut Context<'_>) -> Poll<O>,
    /// Drops it in place.
    drop: unsafe fn(NonNull<u8>),
}

/// Makes the table of a future's type.
struct Erased<F>(PhantomData<F>);

impl<F: Future + 'static> Erased<F> {
    const VTABLE: VTable<F::Output> = VTable { poll: Self::poll, drop: Self::drop };

    /// # Safety
    /// `at` points to a future of type `F` that is pinned and has not been dropped, and nobody
    /// else uses it during the call.
    unsafe fn poll(at: NonNull<u8>, cx: &mut Context<'_>) -> Poll<F::Output> {
        // SAFETY: as the caller promises; the future does not move before it is dropped in place.
        unsafe { Pin::new_unchecked(at.cast::<F>().as_mut()) }.poll(cx)
    }

    /// # Safety
    /// As for `poll`; nothing uses the future afterwards.
    unsafe fn drop(at: NonNull<u8>) {
        // SAFETY: as the caller promises.
        unsafe { at.cast::<F>().as_ptr().drop_in_place() }
    }
}

/// A pinned future in a block.
pub(crate) struct TaskCell<O: 'static> {
    /// Holds a future that has not been dropped, of the type `vtable` was made for.
    block: ManuallyDrop<Block>,
    vtable: &'static VTable<O>,
    /// Not `Send`, not `Sync`: the future may be neither.
    of: PhantomData<*mut ()>,
}

impl<O> TaskCell<O> {
    /// Polls the future. One that is ready or has panicked is not polled again, by the rules of
    /// futures, but dropped.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<O> {
        // SAFETY: the block holds the future of the table until the cell is gone, it has not moved
        // since `put`, and `&mut self` is the only way to it.
        unsafe { (self.vtable.poll)(self.block.at, cx) }
    }

    /// Drops the future and gives its block.
    fn drop_future(self) -> Block {
        let mut cell = ManuallyDrop::new(self);
        let (at, vtable) = (cell.block.at, cell.vtable);
        // SAFETY: the future is there, and as the cell is not dropped it is not used again; also
        // when its destructor panics.
        let _ = catch_unwind(AssertUnwindSafe(|| unsafe { (vtable.drop)(at) }));
        // SAFETY: the cell is never used again, so the block has one owner.
        unsafe { ManuallyDrop::take(&mut cell.block) }
    }
}

impl<O> Drop for TaskCell<O> {
    fn drop(&mut self) {
        let (at, vtable) = (self.block.at, self.vtable);
        // SAFETY: as in `drop_future`, which does not come here.
        let _ = catch_unwind(AssertUnwindSafe(|| unsafe { (vtable.drop)(at) }));
        // SAFETY: the cell is going; nothing else drops its block.
        unsafe { ManuallyDrop::drop(&mut self.block) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::future::{pending, poll_fn, ready};
    use std::rc::Rc;
    use std::task::Waker;

    fn poll<O>(cell: &mut TaskCell<O>) -> Poll<O> {
        cell.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn a_block_is_used_again_and_sizes_do_not_mix() {
        let mut blocks = Blocks::default();
        for _ in 0..100 {
            let mut small = blocks.put(ready(1u8));
            let large = [7u8; 5_000];
            let mut second = blocks.put(async move { usize::from(large[4_999]) + large.len() });
            assert_eq!((poll(&mut small), poll(&mut second)), (Poll::Ready(1), Poll::Ready(5_007)));
            blocks.end(small);
            blocks.end(second);
            assert_eq!(blocks.kept(), 2);
        }
        let taken = allocation_counter::measure(|| {
            let cell = blocks.put(ready(2u8));
            blocks.end(cell);
        });
        assert_eq!(taken.count_total, 0);
    }

    #[test]
    fn a_future_does_not_move_between_its_polls() {
        let mut blocks = Blocks::default();
        let mut cells: Vec<_> = (0..50)
            .map(|n| {
                let mut at = None;
                // The future holds itself in place: its own address is part of its state.
                let mut inner = Box::pin(ready(n));
                blocks.put(async move {
                    let here = Cell::new(0);
                    poll_fn(|_| {
                        let now = std::ptr::from_ref(&here).addr();
                        let first = *at.get_or_insert(now);
                        assert_eq!(first, now);
                        here.set(here.get() + 1);
                        if here.get() < 4 { Poll::Pending } else { Poll::Ready(()) }
                    })
                    .await;
                    poll_fn(|cx| inner.as_mut().poll(cx)).await
                })
            })
            .collect();
        for round in 0..3 {
            // The cells themselves move.
            cells.rotate_left(round + 1);
            assert!(cells.iter_mut().all(|c| poll(c).is_pending()));
        }
        let mut ends: Vec<i32> = cells
            .iter_mut()
            .map(|c| match poll(c) {
                Poll::Ready(n) => n,
                Poll::Pending => panic!("pending"),
            })
            .collect();
        ends.sort_unstable();
        assert_eq!(ends, (0..50).collect::<Vec<_>>());
    }

    /// Counts drops.
    struct Dropped(Rc<Cell<u32>>);

    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
        }
    }

    #[test]
    fn what_a_future_holds_is_dropped_exactly_once() {
        let count = Rc::new(Cell::new(0));
        let mut blocks = Blocks::default();
        let holding = |blocks: &mut Blocks| {
            let held = Dropped(count.clone());
            blocks.put(async move {
                pending::<()>().await;
                drop(held);
            })
        };
        let mut polled = holding(&mut blocks);
        assert!(poll(&mut polled).is_pending());
        blocks.end(polled);
        assert_eq!(count.get(), 1, "suspended, then ended");
        let unpolled = holding(&mut blocks);
        blocks.end(unpolled);
        assert_eq!(count.get(), 2, "never polled");
        drop(holding(&mut blocks));
        assert_eq!(count.get(), 3, "dropped with its cell");
        let held = Dropped(count.clone());
        let mut ended = blocks.put(async move { drop(held) });
        assert!(poll(&mut ended).is_ready());
        assert_eq!(count.get(), 4);
        blocks.end(ended);
        assert_eq!(count.get(), 4, "ended by itself");
    }

    #[test]
    fn a_panic_of_a_destructor_ends_there() {
        struct Bomb;
        impl Drop for Bomb {
            fn drop(&mut self) {
                panic!("of the destructor");
            }
        }
        let mut blocks = Blocks::default();
        let bomb = Bomb;
        let cell = blocks.put(async move {
            pending::<()>().await;
            drop(bomb);
        });
        blocks.end(cell);
        assert_eq!(blocks.kept(), 1, "the block is free again");
        let bomb = Bomb;
        drop(blocks.put(async move {
            pending::<()>().await;
            drop(bomb);
        }));
    }

    #[test]
    fn what_fits_no_block_has_memory_of_its_own() {
        #[repr(align(256))]
        struct Strict(u8);
        let mut blocks = Blocks::default();
        let strict = Strict(9);
        let mut cell = blocks.put(async move {
            let held = &strict;
            std::future::ready(()).await;
            assert_eq!(std::ptr::from_ref(held).addr() % 256, 0);
            held.0
        });
        assert_eq!(poll(&mut cell), Poll::Ready(9));
        blocks.end(cell);
        let huge = [1u8; 100_000];
        let mut cell = blocks.put(async move {
            std::future::ready(()).await;
            huge.iter().map(|b| u32::from(*b)).sum::<u32>()
        });
        assert_eq!(poll(&mut cell), Poll::Ready(100_000));
        blocks.end(cell);
        assert_eq!(blocks.kept(), 0);
        // Nothing at all, either.
        let mut cell = blocks.put(poll_fn(|_| Poll::Ready(())));
        assert!(poll(&mut cell).is_ready());
        blocks.end(cell);
    }

    #[test]
    fn free_blocks_are_bounded() {
        let mut blocks = Blocks::default();
        let cells: Vec<_> = (0..1_000).map(|_| blocks.put(async move { [0u8; 40_000] })).collect();
        cells.into_iter().for_each(|cell| blocks.end(cell));
        let bytes: usize = blocks.free.iter().flatten().map(|b| b.layout.size()).sum();
        assert!(bytes <= KEEP_BYTES, "{bytes}");
    }
}
