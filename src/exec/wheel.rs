#![forbid(unsafe_code)]
//! The timer wheel: very many deadlines of which most are cancelled before they come.
//!
//! # Words
//! A **tick** is 2^16 ns (65.5 µs). A **level** has 64 slots; a slot of level `n` spans `64^n`
//! ticks, so eight levels span all of 64-bit time and no timer is ever put off or clipped.
//! The **cursor** is the tick up to which the wheel was turned.
//!
//! # How it works
//! A timer whose tick differs from the cursor first in the 6-bit group `n` stands in level `n`, in
//! the slot its group names. That slot is always ahead of the cursor's slot of the same level, and
//! everything in a lower level is due before everything in a higher one. So the next slot due is
//! the lowest bit of the lowest level that has any, found with two `trailing_zeros`.
//!
//! Turning the cursor to a slot empties it: its timers go to lower levels, and those whose tick has
//! come go to a small heap ordered by (deadline, insertion). Only the heap fires, so the order is
//! exact although slots are coarse, and it is the same in every run. A timer that is due already
//! when it is set goes straight to the heap.
//!
//! # Costs
//! Setting and cancelling are O(1) (a heap entry is left behind by a cancel and skipped; the heap
//! is swept when such entries are the larger part). A timer takes 40 bytes, its token included, and
//! moves at most seven times in its life. Nothing is allocated for a timer by itself.
//!
//! Each insertion has a serial number that is never used again. A [`TimerHandle`] carries it, so a
//! stale handle cancels nothing, whatever stands in its place now.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::num::NonZeroU64;

use crate::time::Nanos;

/// A tick is `2^TICK_BITS` ns.
const TICK_BITS: u32 = 16;
/// A level has `2^LEVEL_BITS` slots.
const LEVEL_BITS: u32 = 6;
const SLOTS: usize = 1 << LEVEL_BITS;
const LEVELS: usize = 8;
/// No timer: the end of a list.
const NIL: u32 = u32::MAX;
/// In place of a slot: the timer is in the heap.
const IN_HEAP: u16 = u16::MAX;
/// In place of a slot: the entry is free.
const FREE: u16 = u16::MAX - 1;
/// Cancelled heap entries that are left alone however few others there are.
const STALE_ALLOWED: usize = 64;

const _: () = assert!(TICK_BITS as usize + LEVEL_BITS as usize * LEVELS == 64);
const _: () = assert!(size_of::<Entry>() == 40);

/// Names one timer that was set. Good for ever: when the timer has fired or was cancelled, it
/// names nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TimerHandle {
    serial: NonZeroU64,
    index: u32,
}

#[derive(Clone, Debug)]
struct Entry {
    deadline: Nanos,
    /// Serial number of the insertion.
    serial: u64,
    token: u64,
    next: u32,
    prev: u32,
    /// `level * SLOTS + slot`, or [`IN_HEAP`], or [`FREE`] (then `next` chains the free entries).
    slot: u16,
}

/// A heap entry: (deadline, serial, index), least first.
type Due = Reverse<(Nanos, u64, u32)>;

/// A set of deadlines. See the module's head.
///
/// ```
/// use homing::exec::wheel::Wheel;
/// use homing::time::Nanos;
///
/// let mut wheel = Wheel::new(Nanos(0));
/// wheel.insert(Nanos(2_000), 22);
/// let first = wheel.insert(Nanos(1_000), 11);
/// assert_eq!(wheel.pop_due(Nanos(999)), None);
/// assert_eq!(wheel.pop_due(Nanos(1_000)), Some(11));
/// assert!(!wheel.cancel(first), "it has fired");
/// assert_eq!(wheel.pop_due(Nanos(9_000)), Some(22));
/// assert!(wheel.is_empty());
/// ```
#[derive(Clone, Debug)]
pub struct Wheel {
    /// The tick the wheel was turned to. Every listed timer has a later one.
    cursor: u64,
    next_serial: u64,
    len: usize,
    entries: Vec<Entry>,
    free: u32,
    /// Per level, a bit for each slot that has timers.
    occupied: [u64; LEVELS],
    /// Per slot, the first timer of its list.
    heads: Box<[u32; LEVELS * SLOTS]>,
    /// Per slot, no timer in it is due before this. A cancel does not raise it.
    earliest: Box<[Nanos; LEVELS * SLOTS]>,
    heap: BinaryHeap<Due>,
    /// Entries of the heap whose timer was cancelled.
    stale: usize,
}

impl Wheel {
    /// An empty wheel whose cursor stands at `now`.
    #[must_use]
    pub fn new(now: Nanos) -> Self {
        Self {
            cursor: tick_of(now),
            next_serial: 1,
            len: 0,
            entries: Vec::new(),
            free: NIL,
            occupied: [0; LEVELS],
            heads: Box::new([NIL; LEVELS * SLOTS]),
            earliest: Box::new([Nanos::MAX; LEVELS * SLOTS]),
            heap: BinaryHeap::new(),
            stale: 0,
        }
    }

    /// Timers that are set.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no timer is set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Sets a timer that gives `token` once the clock has reached `deadline`. O(1).
    ///
    /// # Panics
    /// With more than 2^32 - 2 timers set at once (160 GiB of them).
    pub fn insert(&mut self, deadline: Nanos, token: u64) -> TimerHandle {
        let serial = self.next_serial;
        self.next_serial += 1;
        self.len += 1;
        let entry = Entry { deadline, serial, token, next: NIL, prev: NIL, slot: FREE };
        let index = if self.free == NIL {
            let index = u32::try_from(self.entries.len()).unwrap_or(NIL);
            assert!(index != NIL, "more than 2^32 - 2 timers are set");
            self.entries.push(entry);
            index
        } else {
            let index = self.free;
            self.free = self.entries[index as usize].next;
            self.entries[index as usize] = entry;
            index
        };
        self.place(index);
        TimerHandle { serial: NonZeroU64::new(serial).expect("serials start at 1"), index }
    }

    /// Takes a timer back. `false` when it has fired or was cancelled before. O(1).
    pub fn cancel(&mut self, timer: TimerHandle) -> bool {
        let Some(entry) = self.entries.get(timer.index as usize) else { return false };
        if entry.serial != timer.serial.get() || entry.slot == FREE {
            return false;
        }
        if entry.slot == IN_HEAP {
            self.stale += 1;
        } else {
            self.unlink(timer.index);
        }
        self.release(timer.index);
        self.sweep_heap();
        true
    }

    /// When a timer fires; `None` when it has fired or was cancelled.
    #[must_use]
    pub fn deadline(&self, timer: TimerHandle) -> Option<Nanos> {
        let entry = self.entries.get(timer.index as usize)?;
        (entry.serial == timer.serial.get() && entry.slot != FREE).then_some(entry.deadline)
    }

    /// No timer is due before this instant; [`Nanos::MAX`] when none is set. It is exact but for
    /// timers cancelled lately, so a core may park until it.
    #[must_use]
    pub fn next_deadline(&self) -> Nanos {
        let listed = self.next_slot().map_or(Nanos::MAX, |slot| self.earliest[slot]);
        self.heap.peek().map_or(listed, |Reverse((deadline, ..))| listed.min(*deadline))
    }

    /// Takes the earliest timer with `deadline <= now` (the first set, when several have the same
    /// deadline) and gives its token. Calling it until `None` fires all that is due, in order.
    pub fn pop_due(&mut self, now: Nanos) -> Option<u64> {
        self.turn_to(now);
        while let Some(&Reverse((deadline, serial, index))) = self.heap.peek() {
            let entry = &self.entries[index as usize];
            if entry.serial != serial || entry.slot == FREE {
                self.heap.pop();
                self.stale -= 1;
                continue;
            }
            if deadline > now {
                return None;
            }
            let token = entry.token;
            self.heap.pop();
            self.release(index);
            return Some(token);
        }
        None
    }

    /// Appends the tokens of all timers with `deadline <= now`, in order of deadline and then of
    /// insertion.
    pub fn expire(&mut self, now: Nanos, tokens: &mut Vec<u64>) {
        while let Some(token) = self.pop_due(now) {
            tokens.push(token);
        }
    }

    /// Moves the cursor to `now`: every slot that starts by then is emptied.
    fn turn_to(&mut self, now: Nanos) {
        let target = tick_of(now);
        while let Some(slot) = self.next_slot() {
            let start = self.start_of(slot);
            if start > target {
                break;
            }
            self.cursor = start;
            self.empty_slot(slot);
        }
        self.cursor = self.cursor.max(target);
    }

    /// The slot that starts first.
    fn next_slot(&self) -> Option<usize> {
        let level = self.occupied.iter().position(|bits| *bits != 0)?;
        Some(level * SLOTS + self.occupied[level].trailing_zeros() as usize)
    }

    /// The tick a slot ahead of the cursor starts at.
    fn start_of(&self, slot: usize) -> u64 {
        let shift = (slot / SLOTS) as u32 * LEVEL_BITS;
        let lower = shift + LEVEL_BITS;
        let above = (self.cursor >> lower) << lower;
        above | ((slot % SLOTS) as u64) << shift
    }

    /// Places the timers of `slot`, at which the cursor stands, anew.
    fn empty_slot(&mut self, slot: usize) {
        let mut index = std::mem::replace(&mut self.heads[slot], NIL);
        self.clear_slot(slot);
        while index != NIL {
            let next = self.entries[index as usize].next;
            self.place(index);
            index = next;
        }
    }

    fn clear_slot(&mut self, slot: usize) {
        self.occupied[slot / SLOTS] &= !(1 << (slot % SLOTS));
        self.earliest[slot] = Nanos::MAX;
    }

    /// Puts an entry into the list or the heap where it belongs, seen from the cursor.
    fn place(&mut self, index: u32) {
        let Entry { deadline, serial, .. } = self.entries[index as usize];
        let tick = tick_of(deadline);
        if tick <= self.cursor {
            self.entries[index as usize].slot = IN_HEAP;
            self.heap.push(Reverse((deadline, serial, index)));
            return;
        }
        let level = (63 - (tick ^ self.cursor).leading_zeros()) / LEVEL_BITS;
        let group = (tick >> (level * LEVEL_BITS)) as usize % SLOTS;
        let slot = level as usize * SLOTS + group;
        let head = std::mem::replace(&mut self.heads[slot], index);
        let entry = &mut self.entries[index as usize];
        (entry.slot, entry.prev, entry.next) = (slot as u16, NIL, head);
        if head != NIL {
            self.entries[head as usize].prev = index;
        }
        self.occupied[level as usize] |= 1 << group;
        self.earliest[slot] = self.earliest[slot].min(deadline);
    }

    fn unlink(&mut self, index: u32) {
        let Entry { next, prev, slot, .. } = self.entries[index as usize];
        if next != NIL {
            self.entries[next as usize].prev = prev;
        }
        if prev != NIL {
            self.entries[prev as usize].next = next;
            return;
        }
        self.heads[usize::from(slot)] = next;
        if next == NIL {
            self.clear_slot(usize::from(slot));
        }
    }

    fn release(&mut self, index: u32) {
        let entry = &mut self.entries[index as usize];
        (entry.slot, entry.next) = (FREE, self.free);
        self.free = index;
        self.len -= 1;
    }

    /// Drops the heap's cancelled entries when they outnumber the others.
    fn sweep_heap(&mut self) {
        if self.stale <= STALE_ALLOWED.max(self.heap.len() / 2) {
            return;
        }
        let entries = &self.entries;
        self.heap.retain(|Reverse((_, serial, index))| {
            let entry = &entries[*index as usize];
            entry.serial == *serial && entry.slot == IN_HEAP
        });
        self.stale = 0;
    }
}

const fn tick_of(at: Nanos) -> u64 {
    at.0 >> TICK_BITS
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn fires_exactly_at_the_deadline_at_every_level() {
        for bit in 0..64 {
            for deadline in [1u64 << bit, (1 << bit) + 1, (1u64 << bit) - 1 + (1 << bit)] {
                let mut wheel = Wheel::new(Nanos::ZERO);
                wheel.insert(Nanos(deadline), 7);
                assert_eq!(wheel.next_deadline(), Nanos(deadline));
                assert_eq!(wheel.pop_due(Nanos(deadline - 1)), None, "{deadline}");
                assert_eq!(wheel.next_deadline(), Nanos(deadline));
                assert_eq!(wheel.pop_due(Nanos(deadline)), Some(7), "{deadline}");
                assert_eq!(wheel.next_deadline(), Nanos::MAX);
            }
        }
    }

    #[test]
    fn a_stale_handle_cancels_nothing_even_when_its_place_is_taken() {
        let mut wheel = Wheel::new(Nanos(5));
        let old = wheel.insert(Nanos(1 << 30), 1);
        assert!(wheel.cancel(old));
        let new = wheel.insert(Nanos(1 << 30), 2);
        assert_eq!(new.index, old.index, "the entry is used again");
        assert!(!wheel.cancel(old));
        assert_eq!(wheel.deadline(old), None);
        assert_eq!(wheel.deadline(new), Some(Nanos(1 << 30)));
        assert_eq!(wheel.pop_due(Nanos::MAX), Some(2));
        assert!(!wheel.cancel(new));
        assert_eq!(wheel.pop_due(Nanos::MAX), None);
    }

    #[test]
    fn a_clock_that_goes_back_fires_nothing_early() {
        let mut wheel = Wheel::new(Nanos(1 << 40));
        wheel.insert(Nanos(5), 1);
        wheel.insert(Nanos((1 << 40) - 1), 2);
        assert_eq!(wheel.pop_due(Nanos(6)), Some(1));
        assert_eq!(wheel.pop_due(Nanos(6)), None);
        assert_eq!(wheel.pop_due(Nanos(1 << 40)), Some(2));
    }

    #[test]
    fn a_million_timers_of_which_most_are_cancelled() {
        let mut wheel = Wheel::new(Nanos::ZERO);
        let handles: Vec<_> = (0..1_000_000u64)
            .map(|i| wheel.insert(Nanos(i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 30), i))
            .collect();
        for (i, handle) in handles.iter().enumerate() {
            if i % 10 != 0 {
                assert!(wheel.cancel(*handle));
            }
        }
        let mut last = 0;
        let mut fired = 0;
        while let Some(token) = wheel.pop_due(Nanos::MAX) {
            let deadline = token.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 30;
            assert!(deadline >= last && token % 10 == 0);
            last = deadline;
            fired += 1;
        }
        assert_eq!((fired, wheel.len()), (100_000, 0));
        assert!(wheel.entries.len() <= 1_000_000, "freed entries are used again");
    }

    #[test]
    fn overdue_timers_set_and_cancelled_leave_no_growing_heap() {
        let mut wheel = Wheel::new(Nanos(1 << 32));
        for i in 0..100_000 {
            let timer = wheel.insert(Nanos(i), i);
            assert!(wheel.cancel(timer));
        }
        assert!(wheel.heap.len() <= 2 * STALE_ALLOWED + 2, "{}", wheel.heap.len());
        assert_eq!(wheel.pop_due(Nanos::MAX), None);
        assert_eq!((wheel.stale, wheel.heap.len()), (0, 0));
    }

    #[derive(Clone, Debug)]
    enum Step {
        Insert { ahead: u64 },
        InsertAt { deadline: u64 },
        Cancel { which: usize },
        Advance { by: u64 },
        PopOne,
    }

    fn span() -> impl Strategy<Value = u64> {
        (0u32..50, any::<u64>()).prop_map(|(bits, raw)| raw & ((1 << bits) - 1))
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => span().prop_map(|ahead| Step::Insert { ahead }),
            1 => any::<u64>().prop_map(|deadline| Step::InsertAt { deadline }),
            3 => any::<usize>().prop_map(|which| Step::Cancel { which }),
            3 => span().prop_map(|by| Step::Advance { by }),
            1 => Just(Step::PopOne),
        ]
    }

    proptest! {
        /// The wheel does what a map ordered by (deadline, insertion) does.
        #[test]
        fn agrees_with_an_ordered_map(
            start in span(),
            steps in proptest::collection::vec(step(), 1..300),
        ) {
            let mut now = start;
            let mut wheel = Wheel::new(Nanos(now));
            let mut model: BTreeMap<(u64, u64), u64> = BTreeMap::new();
            let mut handles: Vec<(TimerHandle, (u64, u64))> = Vec::new();
            for (serial, step) in steps.into_iter().enumerate() {
                let serial = serial as u64;
                match step {
                    Step::Insert { .. } | Step::InsertAt { .. } => {
                        let deadline = match step {
                            Step::Insert { ahead } => now.saturating_add(ahead),
                            Step::InsertAt { deadline } => deadline,
                            _ => unreachable!(),
                        };
                        let handle = wheel.insert(Nanos(deadline), serial);
                        model.insert((deadline, serial), serial);
                        handles.push((handle, (deadline, serial)));
                    }
                    Step::Cancel { which } if !handles.is_empty() => {
                        let (handle, key) = handles[which % handles.len()];
                        prop_assert_eq!(wheel.cancel(handle), model.remove(&key).is_some());
                    }
                    Step::Cancel { .. } => {}
                    Step::Advance { by } => {
                        now = now.saturating_add(by);
                        let mut fired = Vec::new();
                        wheel.expire(Nanos(now), &mut fired);
                        let later = model.split_off(&(now, u64::MAX));
                        let due: Vec<u64> = std::mem::replace(&mut model, later)
                            .into_values()
                            .collect();
                        prop_assert_eq!(fired, due);
                    }
                    Step::PopOne => {
                        let due = model.first_key_value().filter(|(k, _)| k.0 <= now);
                        let due = due.map(|(k, v)| (*k, *v));
                        prop_assert_eq!(wheel.pop_due(Nanos(now)), due.map(|d| d.1));
                        if let Some((key, _)) = due {
                            model.remove(&key);
                        }
                    }
                }
                prop_assert_eq!(wheel.len(), model.len());
                let first = model.first_key_value().map_or(u64::MAX, |(k, _)| k.0);
                prop_assert!(wheel.next_deadline() <= Nanos(first));
            }
            let mut rest = Vec::new();
            wheel.expire(Nanos::MAX, &mut rest);
            prop_assert_eq!(rest, model.into_values().collect::<Vec<_>>());
        }
    }
}
