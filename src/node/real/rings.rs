#![forbid(unsafe_code)]
//! The rings by which a core sends to the others.

use std::sync::Arc;

use super::{Item, Mailboxes};
use crate::exec::pair::{PairSender, pair};

/// The sending ends of one core, made when they are first needed.
pub(super) struct Rings<M> {
    core: u16,
    to: Vec<Option<PairSender<Item<M>>>>,
    /// A ring may have had no room.
    is_starved: bool,
    doors: Arc<Mailboxes<M>>,
}

impl<M> Rings<M> {
    /// Of core `core`.
    pub(super) fn new(core: u16, doors: Arc<Mailboxes<M>>) -> Self {
        let to = doors.senders.iter().map(|_| None).collect();
        Self { core, to, is_starved: false, doors }
    }

    /// Sends something to a core, behind all that this core sent it before.
    pub(super) fn send(&mut self, to: u16, item: Item<M>) {
        // A core that does not exist is like one that has ended.
        let Some(door) = self.doors.senders.get(usize::from(to)) else { return };
        let ring = self.to[usize::from(to)].get_or_insert_with(|| {
            let (sender, receiver) = pair();
            door.send(Item::Ring { from: self.core, ring: receiver });
            sender
        });
        ring.send(item);
        self.is_starved |= ring.is_starved();
        if !door.notify() {
            ring.abandon();
        }
    }

    /// Sends what found no room before, as far as there is some now.
    pub(super) fn flush(&mut self) {
        if !self.is_starved {
            return;
        }
        self.is_starved = false;
        for (ring, door) in self.to.iter_mut().zip(&self.doors.senders) {
            let Some(ring) = ring.as_mut().filter(|ring| ring.is_starved()) else { continue };
            if ring.flush() && !door.notify() {
                ring.abandon();
            }
            self.is_starved |= ring.is_starved();
        }
    }

    /// Announces sleep. `true`: nothing waits for room, or whoever makes some wakes this core.
    pub(super) fn prepare_sleep(&mut self) -> bool {
        !self.is_starved || self.to.iter_mut().flatten().all(PairSender::prepare_sleep)
    }
}

/// What a core sent before it ended arrives: what is in a ring stays there, and what found no room
/// goes through the mailbox, where it is given after what is in the ring.
impl<M> Drop for Rings<M> {
    fn drop(&mut self) {
        for (ring, door) in self.to.iter_mut().zip(&self.doors.senders) {
            for item in ring.iter_mut().flat_map(PairSender::take_spill) {
                door.send(item);
            }
        }
    }
}
