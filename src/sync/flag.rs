#![forbid(unsafe_code)]
//! The flags of [`Doorbell`](crate::exec::doorbell::Doorbell), for the atomics of `std` and, with
//! the feature `loom`, for those of the model checker, from one text.

use std::sync::atomic::Ordering;

/// An atomic flag as the doorbell uses it.
pub trait Flag {
    /// A flag of this value.
    fn of(value: bool) -> Self;
    /// Reads; orders nothing.
    fn load_relaxed(&self) -> bool;
    /// Writes; orders nothing.
    fn store_relaxed(&self, value: bool);
    /// Writes and gives what was there; orders nothing.
    fn swap_relaxed(&self, value: bool) -> bool;
    /// The fence of the sleeper, between its flag and its last look.
    fn fence_sleeper() {
        Self::fence();
    }
    /// The fence of a poster, between its mail and its look at the flags.
    fn fence_poster() {
        Self::fence();
    }
    /// A fence that all threads see in one order.
    fn fence();
}

macro_rules! flag {
    ($atomic:ty, $fence:path) => {
        impl Flag for $atomic {
            fn of(value: bool) -> Self {
                Self::new(value)
            }
            fn load_relaxed(&self) -> bool {
                self.load(Ordering::Relaxed)
            }
            fn store_relaxed(&self, value: bool) {
                self.store(value, Ordering::Relaxed);
            }
            fn swap_relaxed(&self, value: bool) -> bool {
                self.swap(value, Ordering::Relaxed)
            }
            fn fence() {
                // SYNC: the sleeper's pairs with each poster's; the doorbell's head has the proof.
                $fence(Ordering::SeqCst);
            }
        }
    };
}

flag!(std::sync::atomic::AtomicBool, std::sync::atomic::fence);

#[cfg(feature = "loom")]
flag!(loom::sync::atomic::AtomicBool, loom::sync::atomic::fence);
