#![forbid(unsafe_code)]
//! When a sleeper has to be woken: the flags beside a queue.
//!
//! # Words
//! The **sleeper** takes from one or more queues. A **poster** puts into one of them. The queues
//! are not part of this; they only have to show what was put in to a look that comes after it.
//!
//! # Sleeping
//! The sleeper says that it is going to sleep ([`Doorbell::announce`]), looks at its queues once
//! more, and sleeps only if they are empty. A poster puts its mail in, then looks at the flag
//! ([`Doorbell::ring`]). Each side writes one word and reads the other's:
//!
//! ```text
//!   sleeper                       poster
//!   sleeping = true               queue.push(mail)
//!   ---- fence SeqCst ----        ---- fence SeqCst ----
//!   queues empty? -> sleep        sleeping? -> clear it and wake
//! ```
//!
//! Two SeqCst fences are ordered one before the other. If the sleeper's is first, the poster sees
//! the flag and wakes. If the poster's is first, the sleeper sees the mail and does not sleep. Both
//! may happen (a wake too many, harmless), neither cannot: no wake-up is lost. The wake itself must
//! stick when it comes between the last look and the sleep; an eventfd in a poll set does. Posters
//! clear the flag with a swap, so that of many only one pays for the wake, and with a sleeper that
//! is awake none does: its flag is false.
//!
//! # The end
//! The same argument, with `closed` in place of `sleeping`: the sleeper closes, then empties its
//! queues for the last time; a poster whose mail that missed sees `closed` and sees to its mail
//! itself.

use std::sync::atomic::AtomicBool;

use crossbeam_utils::CachePadded;

use crate::sync::flag::Flag;

/// What a poster finds after it has put its mail in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rung {
    /// The sleeper is awake, or somebody else wakes it.
    Awake,
    /// The poster has to wake it.
    Wake,
    /// It will never look again: the poster sees to what it has put in.
    Closed,
}

/// The flags. See the module's head.
///
/// ```
/// use homing::exec::doorbell::{Doorbell, Rung};
/// let bell: Doorbell = Doorbell::new();
/// assert_eq!(bell.ring(), Rung::Awake);
/// bell.announce();
/// assert_eq!((bell.ring(), bell.ring()), (Rung::Wake, Rung::Awake));
/// bell.close();
/// assert_eq!(bell.ring(), Rung::Closed);
/// ```
#[derive(Debug)]
pub struct Doorbell<F = AtomicBool> {
    /// The sleeper sleeps or is about to.
    sleeping: CachePadded<F>,
    /// The sleeper has ended. Written once.
    closed: F,
}

impl<F: Flag> Doorbell<F> {
    /// Of a sleeper that is awake.
    #[must_use]
    pub fn new() -> Self {
        Self { sleeping: CachePadded::new(F::of(false)), closed: F::of(false) }
    }

    /// The sleeper is going to sleep. It looks at its queues after this, and sleeps only if they
    /// are empty; else it says [`Doorbell::awake`].
    pub fn announce(&self) {
        self.sleeping.store_relaxed(true);
        F::fence_sleeper();
    }

    /// The sleeper is awake: from here on nobody wakes it.
    pub fn awake(&self) {
        self.sleeping.store_relaxed(false);
    }

    /// The sleeper ends. It empties its queues once more after this.
    pub fn close(&self) {
        self.closed.store_relaxed(true);
        F::fence_sleeper();
    }

    /// Whether the sleeper has ended, so that mail would only be dropped.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.closed.load_relaxed()
    }

    /// A poster has put something in. What it has to do now.
    #[must_use]
    pub fn ring(&self) -> Rung {
        F::fence_poster();
        if self.closed.load_relaxed() {
            return Rung::Closed;
        }
        // The load first: an awake sleeper's flag stays shared between the posters' caches.
        if self.sleeping.load_relaxed() && self.sleeping.swap_relaxed(false) {
            return Rung::Wake;
        }
        Rung::Awake
    }
}

impl<F: Flag> Default for Doorbell<F> {
    fn default() -> Self {
        Self::new()
    }
}
