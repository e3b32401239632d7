#![forbid(unsafe_code)]
//! Mail from one core to one other: a ring that belongs to the two of them.
//!
//! # Words
//! The ring holds [`RING_SLOTS`] mails. What finds no room waits in the sender's **spill**, behind
//! which everything later goes too, so that nothing is lost and nothing overtakes. A sender with a
//! spill is **starved**.
//!
//! # What a starved sender does
//! It tries again in each round of its loop. Before it sleeps it says so on a
//! [`Doorbell`] of its own: the receiver, after it has taken something out, looks at that and
//! wakes the sender. It is the sleeping flag the other way round: there is room, or there is a
//! wake-up.
//!
//! # The end
//! A receiver that ends takes out what is there and drops it. A sender whose mail that missed (the
//! receiver's mailbox says that it is closed) lets go of the ring: what is in it is dropped when
//! both have.

use std::collections::VecDeque;
use std::sync::Arc;

use rtrb::{Consumer, Producer, PushError, RingBuffer};

use super::doorbell::{Doorbell, Rung};

/// Mails a ring holds.
pub const RING_SLOTS: usize = 128;

/// The end that puts in. One per core and other core.
pub struct PairSender<T> {
    /// `None` when the receiver has ended.
    ring: Option<Producer<T>>,
    spill: VecDeque<T>,
    starved: Arc<Doorbell>,
}

/// The end that takes out.
pub struct PairReceiver<T> {
    ring: Consumer<T>,
    starved: Arc<Doorbell>,
}

/// Makes the two ends.
///
/// ```
/// let (mut to, mut from) = homing::exec::pair::pair();
/// to.send(7);
/// assert_eq!(from.take(), Some(7));
/// assert_eq!(from.take(), None);
/// ```
#[must_use]
pub fn pair<T>() -> (PairSender<T>, PairReceiver<T>) {
    let (producer, consumer) = RingBuffer::new(RING_SLOTS);
    let starved = Arc::new(Doorbell::new());
    let sender =
        PairSender { ring: Some(producer), spill: VecDeque::new(), starved: starved.clone() };
    (sender, PairReceiver { ring: consumer, starved })
}

impl<T> PairSender<T> {
    /// Puts `mail` in, behind all that was put in before. Whoever calls it rings the receiver's
    /// doorbell next.
    pub fn send(&mut self, mail: T) {
        let Some(ring) = &mut self.ring else { return };
        if self.spill.is_empty() {
            match ring.push(mail) {
                Ok(()) => {}
                Err(PushError::Full(mail)) => self.spill.push_back(mail),
            }
        } else {
            self.spill.push_back(mail);
            self.flush();
        }
    }

    /// Puts what waits in the spill into the ring, as far as there is room. Whether anything went.
    pub fn flush(&mut self) -> bool {
        let Some(ring) = &mut self.ring else { return false };
        self.starved.awake();
        let before = self.spill.len();
        while let Some(mail) = self.spill.pop_front() {
            if let Err(PushError::Full(mail)) = ring.push(mail) {
                self.spill.push_front(mail);
                break;
            }
        }
        self.spill.len() < before
    }

    /// What waits for room, for a sender that ends.
    pub fn take_spill(&mut self) -> VecDeque<T> {
        std::mem::take(&mut self.spill)
    }

    /// Whether something waits for room.
    #[must_use]
    pub fn is_starved(&self) -> bool {
        !self.spill.is_empty()
    }

    /// Announces that the sender is going to sleep. `true`: nothing waits for room, or the receiver
    /// wakes the sender when there is some. `false`: there is room now; flush, and do not sleep.
    #[must_use]
    pub fn prepare_sleep(&mut self) -> bool {
        let Some(ring) = self.ring.as_ref().filter(|_| !self.spill.is_empty()) else {
            return true;
        };
        self.starved.announce();
        if ring.is_full() {
            return true;
        }
        self.starved.awake();
        false
    }

    /// The receiver has ended: everything on its way to it is dropped, now or with its end of the
    /// ring.
    pub fn abandon(&mut self) {
        self.ring = None;
        self.spill.clear();
    }
}

impl<T> PairReceiver<T> {
    /// The oldest mail.
    pub fn take(&mut self) -> Option<T> {
        self.ring.pop().ok()
    }

    /// Whether there is no mail now.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ring.is_empty()
    }

    /// To be asked after some were taken: whether the sender sleeps until there is room and has to
    /// be woken.
    #[must_use]
    pub fn has_to_wake_sender(&self) -> bool {
        self.starved.ring() == Rung::Wake
    }
}

impl<T> Drop for PairReceiver<T> {
    fn drop(&mut self) {
        while self.ring.pop().is_ok() {}
    }
}

impl<T> std::fmt::Debug for PairSender<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PairSender").field("spilled", &self.spill.len()).finish_non_exhaustive()
    }
}

impl<T> std::fmt::Debug for PairReceiver<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PairReceiver").field("is_empty", &self.is_empty()).finish_non_exhaustive()
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)] // the two cores are threads
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Send(u16),
        Take(u16),
        Flush,
    }

    proptest! {
        /// Nothing is lost, nothing overtakes, however often the ring is full.
        #[test]
        fn a_pair_is_a_queue(steps in prop::collection::vec(prop_oneof![
            (1..600u16).prop_map(Step::Send),
            (1..600u16).prop_map(Step::Take),
            Just(Step::Flush),
        ], 0..40)) {
            let (mut to, mut from) = pair();
            let (mut sent, mut taken) = (0u64, 0u64);
            for step in steps {
                match step {
                    Step::Send(n) => (0..n).for_each(|_| { to.send(sent); sent += 1; }),
                    Step::Take(n) => for _ in 0..n {
                        let Some(mail) = from.take() else { break };
                        prop_assert_eq!(mail, taken);
                        taken += 1;
                    },
                    Step::Flush => { to.flush(); }
                }
                prop_assert_eq!(to.is_starved(), !to.spill.is_empty());
            }
            while taken < sent {
                to.flush();
                while let Some(mail) = from.take() {
                    prop_assert_eq!(mail, taken);
                    taken += 1;
                }
            }
            prop_assert!(from.is_empty() && !to.is_starved());
        }
    }

    /// A starved sender that sleeps is woken when there is room: a lost wake-up hangs this test.
    #[test]
    fn a_starved_sender_that_sleeps_is_woken() {
        const MAILS: u64 = 200_000;
        let (mut to, mut from) = pair();
        let (wake, woken) = std::sync::mpsc::channel();
        std::thread::scope(|s| {
            s.spawn(move || {
                for n in 0..MAILS {
                    to.send(n);
                    while to.is_starved() {
                        if to.prepare_sleep() {
                            woken.recv().unwrap();
                            to.starved.awake();
                        }
                        to.flush();
                    }
                }
            });
            let mut next = 0;
            while next < MAILS {
                let mut took = false;
                while let Some(n) = from.take() {
                    assert_eq!(n, next);
                    (next, took) = (next + 1, true);
                }
                if took && from.has_to_wake_sender() {
                    wake.send(()).unwrap();
                }
                if !took {
                    std::thread::yield_now();
                }
            }
        });
    }

    #[test]
    fn what_is_on_its_way_to_a_receiver_that_ends_is_dropped() {
        let alive = Arc::new(());
        let (mut to, mut from) = pair();
        (0..2 * RING_SLOTS).for_each(|_| to.send(alive.clone()));
        drop(from.take());
        drop(from);
        to.send(alive.clone());
        to.abandon();
        to.send(alive.clone());
        assert_eq!(Arc::strong_count(&alive), 1);
    }
}
