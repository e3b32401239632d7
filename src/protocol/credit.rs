#![forbid(unsafe_code)]
//! Byte credit: what a sender may have on its way before the receiver has begun its turns.
//!
//! **Words.** A *window* is the credit of one home core on one lane of a link, or of all local
//! senders of a core. *Outstanding* bytes were taken and have not come back. Credit comes back
//! when the message's turn starts.
//!
//! **Sender** ([`CreditWindow`]). A frame goes when the window has room for it, and when its object
//! holds at most a quarter of the window with it, so that a slow object does not starve its
//! neighbours. A frame that is larger than the quarter goes when its object has nothing
//! outstanding; one that is larger than the window goes on a full window.
//!
//! Nobody is starved by smaller frames: the first sender the *window* had no room for has the next
//! room; until it has gone or withdrawn, others are refused too. A sender that only its *object's*
//! share holds back holds back nobody else. The node keeps its waiters in the order in which they
//! were refused and tries them in that order whenever credit comes back, before anybody new.
//!
//! **Receiver** ([`CreditReturn`]). Returns are collected and sent in one record when they are worth
//! one, when the sender may be waiting, and in any case [`CREDIT_RETURN_DELAY`] after the first of
//! them. So what the sender takes for outstanding becomes what the receiver really holds, at the
//! latest by that delay; with the order above, every waiting sender goes once the receiver has
//! drained what was before it. No sender waits for ever.
//!
//! **A sender that keeps no rule.** The receiver knows what it has granted, so a frame that no credit
//! stands behind is the peer's fault ([`OverSpent`]) and closes its link. Therefore a lane holds, per
//! home core of the peer, at most the core's share or one largest frame, whoever the peer is.
//!
//! **Crash.** A link that breaks takes its windows with it; a new link starts with full ones.

#[cfg(feature = "protocol-coverage")]
mod coverage;

#[cfg(feature = "protocol-coverage")]
pub use coverage::MACHINE;
use std::collections::BTreeMap;

use crate::limits::{CREDIT_RETURN_DELAY, CREDIT_RETURN_DIVISOR, OBJECT_SHARE_DIVISOR};
use crate::time::Nanos;

/// The share of a lane's window one home core has, when a node with `cores` cores sends over
/// `lanes` lanes: objects of one lane live on `cores / gcd(cores, lanes)` of its cores.
#[must_use]
pub fn lane_share_bytes(window_bytes: u32, cores: u16, lanes: u16) -> u64 {
    let (mut a, mut b) = (cores.max(1), lanes.max(1));
    while b != 0 {
        (a, b) = (b, a % b);
    }
    u64::from(window_bytes / u32::from(cores.max(1) / a)).max(1)
}

/// What [`CreditWindow::try_take`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Take {
    /// The bytes are outstanding now; the frame goes.
    Taken,
    /// The window has no room, or somebody waits for room already.
    WindowFull,
    /// The object holds its share.
    ObjectFull,
}

/// More credit came back for an object than was outstanding: the peer's fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OverReturned {
    /// For which object.
    pub object_hash: u64,
    /// What came back.
    pub returned_bytes: u64,
    /// What was outstanding.
    pub outstanding_bytes: u64,
}

/// A frame came for which its sender had no credit: the peer's fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OverSpent {
    /// For which object.
    pub object_hash: u64,
    /// The frame.
    pub bytes: u64,
    /// What was held of the object already, or of all objects of its home core.
    pub held_bytes: u64,
    /// What may be held.
    pub limit_bytes: u64,
}

impl std::fmt::Display for OverSpent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "a frame of {} bytes came for object {:016x} with {} bytes held of {} granted",
            self.bytes, self.object_hash, self.held_bytes, self.limit_bytes
        )
    }
}

/// The sender's side of a window. See the module's head.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CreditWindow {
    window_bytes: u64,
    outstanding_bytes: u64,
    objects: BTreeMap<u64, u64>,
    /// The first sender the window had no room for: its object and its frame.
    first_waiter: Option<(u64, u64)>,
}

impl CreditWindow {
    /// A full window of at least one byte.
    #[must_use]
    pub fn new(window_bytes: u64) -> Self {
        Self {
            window_bytes: window_bytes.max(1),
            outstanding_bytes: 0,
            objects: BTreeMap::new(),
            first_waiter: None,
        }
    }

    /// The size of the window.
    #[must_use]
    pub fn window_bytes(&self) -> u64 {
        self.window_bytes
    }

    /// What can be taken before something comes back; zero while a larger frame than the window
    /// is outstanding.
    #[must_use]
    pub fn available_bytes(&self) -> u64 {
        self.window_bytes.saturating_sub(self.outstanding_bytes)
    }

    /// What was taken and has not come back.
    #[must_use]
    pub fn outstanding_bytes(&self) -> u64 {
        self.outstanding_bytes
    }

    /// What one object has outstanding.
    #[must_use]
    pub fn object_bytes(&self, object_hash: u64) -> u64 {
        self.objects.get(&object_hash).copied().unwrap_or(0)
    }

    /// Whether nothing is outstanding.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.outstanding_bytes == 0
    }

    /// Takes credit for a frame to an object. O(log objects outstanding).
    ///
    /// After a refusal the caller keeps the frame and tries again, in the order of refusals, when
    /// credit comes back; a caller that gives up says so with [`CreditWindow::withdraw`].
    pub fn try_take(&mut self, object_hash: u64, bytes: u64) -> Take {
        #[cfg(feature = "protocol-coverage")]
        self.note(coverage::Happens::Take);
        let object_bytes = self.object_bytes(object_hash);
        let share = self.window_bytes / u64::from(OBJECT_SHARE_DIVISOR);
        if object_bytes > 0 && object_bytes.saturating_add(bytes) > share {
            // Another frame of the first waiter's object went meanwhile: it waits for its object
            // now, and the next one may have the room.
            self.forget_waiter(object_hash);
            return Take::ObjectFull;
        }
        match self.first_waiter {
            Some((first, _)) if first == object_hash => {}
            // The first waiter could go and did not come: nobody waits for it.
            Some((_, first_bytes)) if self.has_room(first_bytes) => {}
            Some(_) => return Take::WindowFull,
            None => {}
        }
        if !self.has_room(bytes) {
            self.first_waiter = Some((object_hash, bytes));
            return Take::WindowFull;
        }
        self.first_waiter = None;
        self.outstanding_bytes += bytes;
        if bytes > 0 {
            *self.objects.entry(object_hash).or_default() += bytes;
        }
        self.check();
        Take::Taken
    }

    fn has_room(&self, bytes: u64) -> bool {
        self.is_full() || self.outstanding_bytes.saturating_add(bytes) <= self.window_bytes
    }

    /// The object's sender does not wait for room any more.
    pub fn withdraw(&mut self, object_hash: u64) {
        #[cfg(feature = "protocol-coverage")]
        self.note(coverage::Happens::Withdraw);
        self.forget_waiter(object_hash);
    }

    fn forget_waiter(&mut self, object_hash: u64) {
        self.first_waiter.take_if(|(first, _)| *first == object_hash);
    }

    /// Credit came back. The caller tries its waiters next, in the order of their refusals.
    ///
    /// # Errors
    /// [`OverReturned`] when the object had less outstanding; nothing changes then, and the peer
    /// that sent it broke the protocol.
    pub fn give_back(&mut self, object_hash: u64, bytes: u64) -> Result<(), OverReturned> {
        #[cfg(feature = "protocol-coverage")]
        self.note(coverage::Happens::GiveBack);
        let outstanding_bytes = self.object_bytes(object_hash);
        if bytes > outstanding_bytes {
            return Err(OverReturned { object_hash, returned_bytes: bytes, outstanding_bytes });
        }
        if bytes == outstanding_bytes {
            self.objects.remove(&object_hash);
        } else {
            self.objects.insert(object_hash, outstanding_bytes - bytes);
        }
        self.outstanding_bytes -= bytes;
        self.check();
        Ok(())
    }

    fn check(&self) {
        debug_assert_eq!(self.objects.values().sum::<u64>(), self.outstanding_bytes);
        debug_assert!(self.objects.values().all(|b| *b > 0));
    }
}

/// The receiver's side of a lane: which credit goes back, and when. See the module's head.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CreditReturn {
    share_bytes: u64,
    /// Home cores of the sender.
    cores: u64,
    /// Per home core of the sender: received and not returned yet.
    held_by_core: BTreeMap<u64, u64>,
    /// Per object: received and not returned yet, those in `free` included.
    held: BTreeMap<u64, u64>,
    held_bytes: u64,
    /// Per object: to be returned with the next record.
    free: BTreeMap<u64, u64>,
    free_bytes: u64,
    free_since: Option<Nanos>,
    is_urgent: bool,
}

impl CreditReturn {
    /// The receiver of a lane on which each of the sender's `cores` home cores has `share_bytes`
    /// ([`lane_share_bytes`] of that core count).
    #[must_use]
    pub fn new(share_bytes: u64, cores: u16) -> Self {
        Self {
            share_bytes: share_bytes.max(1),
            cores: cores.max(1).into(),
            held_by_core: BTreeMap::new(),
            held: BTreeMap::new(),
            held_bytes: 0,
            free: BTreeMap::new(),
            free_bytes: 0,
            free_since: None,
            is_urgent: false,
        }
    }

    /// A frame that spends credit came in.
    ///
    /// What is held here was never more than what the sender has outstanding, so the sender's own
    /// rules ([`CreditWindow::try_take`]) can be held against it.
    ///
    /// # Errors
    /// [`OverSpent`] when no sender that keeps the rules could have sent it; nothing changes then.
    pub fn received(&mut self, object_hash: u64, bytes: u64) -> Result<(), OverSpent> {
        if bytes == 0 {
            return Ok(());
        }
        let over = |held_bytes: u64, limit_bytes: u64| {
            (held_bytes > 0 && held_bytes + bytes > limit_bytes).then_some(OverSpent {
                object_hash,
                bytes,
                held_bytes,
                limit_bytes,
            })
        };
        let core = object_hash % self.cores;
        let of_object = self.held.get(&object_hash).copied().unwrap_or(0);
        let of_core = self.held_by_core.get(&core).copied().unwrap_or(0);
        let object_share = self.share_bytes / u64::from(OBJECT_SHARE_DIVISOR);
        if let Some(e) = over(of_object, object_share).or(over(of_core, self.share_bytes)) {
            return Err(e);
        }
        self.held.insert(object_hash, of_object + bytes);
        self.held_by_core.insert(core, of_core + bytes);
        self.held_bytes += bytes;
        Ok(())
    }

    /// Received and not returned yet.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        self.held_bytes
    }

    /// The turn of a message of `bytes` starts, or the message ended without one. More than the
    /// object holds is a bug of the caller; what it holds is returned then.
    pub fn turned(&mut self, object_hash: u64, bytes: u64, now: Nanos) {
        let held = self.held.get(&object_hash).copied().unwrap_or(0);
        let free = self.free.get(&object_hash).copied().unwrap_or(0);
        debug_assert!(free + bytes <= held, "{bytes} turned, {free} free of {held} held");
        let bytes = bytes.min(held.saturating_sub(free));
        if bytes == 0 {
            return;
        }
        self.free.insert(object_hash, free + bytes);
        self.free_bytes += bytes;
        self.free_since.get_or_insert(now);
        let object_share = self.share_bytes / u64::from(OBJECT_SHARE_DIVISOR);
        self.is_urgent |= self.free_bytes >= self.share_bytes / u64::from(CREDIT_RETURN_DIVISOR)
            || self.held_bytes >= self.share_bytes / 2
            || held >= object_share / 2;
    }

    /// Whether a record is due: a sixteenth of the share came free; the lane or an object that
    /// returns something holds half of what it may, so that the sender may be waiting; or the
    /// oldest return is [`CREDIT_RETURN_DELAY`] old.
    #[must_use]
    pub fn is_due(&self, now: Nanos) -> bool {
        self.next_deadline().is_some_and(|at| at <= now)
    }

    /// When a record is due, if nothing else happens: [`Nanos::ZERO`] for at once.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Nanos> {
        let since = self.free_since?;
        Some(if self.is_urgent { Nanos::ZERO } else { since + CREDIT_RETURN_DELAY })
    }

    /// Takes what the next record returns, in the order of the hashes; it is not held any more.
    /// At most `limit` objects; what is left stays due. A record may be sent before it is due,
    /// for example when a frame goes out on the lane anyway.
    pub fn take(&mut self, limit: usize, out: &mut Vec<(u64, u64)>) {
        for _ in 0..limit {
            let Some((object_hash, bytes)) = self.free.pop_first() else { break };
            self.free_bytes -= bytes;
            self.held_bytes -= bytes;
            match self.held.get_mut(&object_hash) {
                Some(held) if *held > bytes => *held -= bytes,
                _ => drop(self.held.remove(&object_hash)),
            }
            let core = object_hash % self.cores;
            match self.held_by_core.get_mut(&core) {
                Some(held) if *held > bytes => *held -= bytes,
                _ => drop(self.held_by_core.remove(&core)),
            }
            out.push((object_hash, bytes));
        }
        if self.free.is_empty() {
            (self.free_since, self.is_urgent) = (None, false);
        }
        debug_assert_eq!(self.held.values().sum::<u64>(), self.held_bytes);
        debug_assert_eq!(self.free.values().sum::<u64>(), self.free_bytes);
        debug_assert_eq!(self.held_by_core.values().sum::<u64>(), self.held_bytes);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_lanes_window_is_shared_by_the_cores_whose_objects_use_it() {
        for (cores, lanes, share) in
            [(1, 1, 1024), (2, 4, 1024), (4, 4, 1024), (4, 2, 512), (3, 4, 341), (256, 16, 64)]
        {
            assert_eq!(lane_share_bytes(1024, cores, lanes), share, "{cores} cores {lanes} lanes");
            // The cores that really occur on one lane.
            let on_lane = |lane: u16| {
                let homes: std::collections::BTreeSet<u32> = (0..u32::from(cores)
                    * u32::from(lanes))
                    .filter(|h| h % u32::from(lanes) == u32::from(lane))
                    .map(|h| h % u32::from(cores))
                    .collect();
                homes.len() as u64
            };
            assert!((0..lanes).all(|lane| on_lane(lane) * share <= 1024));
        }
    }

    #[test]
    fn an_object_holds_at_most_a_quarter() {
        let mut w = CreditWindow::new(100);
        assert_eq!(w.try_take(1, 20), Take::Taken);
        assert_eq!(w.try_take(1, 6), Take::ObjectFull);
        assert_eq!(w.try_take(1, 5), Take::Taken);
        assert_eq!(w.try_take(2, 25), Take::Taken, "its neighbour is not held back");
        w.give_back(1, 20).unwrap();
        assert_eq!(w.try_take(1, 20), Take::Taken);
    }

    #[test]
    fn a_frame_larger_than_the_share_goes_alone_and_one_larger_than_the_window_on_a_full_one() {
        let mut w = CreditWindow::new(100);
        assert_eq!(w.try_take(1, 60), Take::Taken);
        assert_eq!(w.try_take(1, 1), Take::ObjectFull);
        assert_eq!(w.try_take(2, 1000), Take::WindowFull);
        w.give_back(1, 60).unwrap();
        assert_eq!(w.try_take(2, 1000), Take::Taken);
        assert_eq!(w.available_bytes(), 0);
        assert_eq!(w.try_take(3, 1), Take::WindowFull);
        w.give_back(2, 1000).unwrap();
        assert!(w.is_full());
        assert_eq!(w.available_bytes(), 100);
    }

    #[test]
    fn smaller_frames_do_not_go_past_the_first_that_found_no_room() {
        let mut w = CreditWindow::new(100);
        for object in 1..=4 {
            assert_eq!(w.try_take(object, 20), Take::Taken);
        }
        assert_eq!(w.try_take(9, 50), Take::WindowFull);
        assert_eq!(w.try_take(5, 1), Take::WindowFull, "9 has the next room");
        w.give_back(1, 20).unwrap();
        assert_eq!(w.try_take(5, 1), Take::WindowFull);
        w.give_back(2, 20).unwrap();
        assert_eq!(w.try_take(9, 50), Take::Taken);
        assert_eq!(w.try_take(5, 1), Take::Taken);
    }

    #[test]
    fn a_waiter_that_left_holds_nobody_back() {
        let mut w = CreditWindow::new(100);
        assert_eq!(w.try_take(1, 80), Take::Taken);
        assert_eq!(w.try_take(9, 50), Take::WindowFull);
        w.withdraw(9);
        assert_eq!(w.try_take(5, 1), Take::Taken);
        assert_eq!(w.try_take(8, 50), Take::WindowFull);
        w.give_back(1, 80).unwrap();
        assert_eq!(w.try_take(5, 1), Take::Taken, "8 could have gone and did not come");
    }

    #[test]
    fn more_credit_than_was_spent_is_the_peers_fault_and_changes_nothing() {
        let mut w = CreditWindow::new(100);
        w.try_take(1, 10);
        let before = w.clone();
        let e = w.give_back(1, 11).unwrap_err();
        assert_eq!((e.object_hash, e.returned_bytes, e.outstanding_bytes), (1, 11, 10));
        assert!(w.give_back(2, 1).is_err());
        assert_eq!(w, before);
    }

    #[test]
    fn a_return_is_due_when_it_is_worth_it_or_old_or_somebody_may_wait() {
        let mut out = Vec::new();
        let mut r = CreditReturn::new(1600, 1);
        r.received(1, 10).unwrap();
        r.received(2, 10).unwrap();
        assert_eq!(r.next_deadline(), None);
        r.turned(1, 10, Nanos(5));
        assert!(!r.is_due(Nanos(5)));
        let due = Nanos(5) + CREDIT_RETURN_DELAY;
        assert_eq!(r.next_deadline(), Some(due));
        r.turned(2, 4, Nanos(9));
        assert!(r.is_due(due), "counted from the first return");
        r.take(10, &mut out);
        assert_eq!(out, [(1, 10), (2, 4)]);
        assert_eq!((r.held_bytes(), r.next_deadline()), (6, None));

        r.received(3, 100).unwrap();
        r.turned(3, 100, Nanos(9));
        assert!(r.is_due(Nanos(9)), "a sixteenth of the window");

        let mut r = CreditReturn::new(1600, 1);
        (0..8).for_each(|object| r.received(object, 100).unwrap());
        r.turned(1, 1, Nanos(9));
        assert!(r.is_due(Nanos(9)), "half of the lane is spent");

        let mut r = CreditReturn::new(1600, 1);
        r.received(1, 200).unwrap();
        r.turned(1, 1, Nanos(9));
        assert!(r.is_due(Nanos(9)), "half of the object's share is spent");
        (10..20).for_each(|object| r.received(object, 1).unwrap());
        (10..20).for_each(|object| r.turned(object, 1, Nanos(9)));
        out.clear();
        r.take(4, &mut out);
        assert_eq!(out.len(), 4);
        assert!(r.is_due(Nanos(9)), "what did not fit into the record stays due");
    }

    /// What no sender that keeps the rules could send is refused, by object and by home core of the
    /// sender, and changes nothing.
    #[test]
    fn a_frame_without_credit_is_the_peers_fault() {
        let mut r = CreditReturn::new(100, 2);
        // One frame may be larger than everything, when nothing is held before it.
        r.received(1, 5_000).unwrap();
        assert_eq!(r.received(1, 1).unwrap_err().held_bytes, 5_000);
        assert_eq!(r.received(3, 1).unwrap_err().limit_bytes, 100, "the same home core");
        // The other core's objects: a quarter each.
        r.received(2, 20).unwrap();
        let before = r.clone();
        let e = r.received(2, 6).unwrap_err();
        assert_eq!((e.object_hash, e.bytes, e.held_bytes, e.limit_bytes), (2, 6, 20, 25));
        assert_eq!(r, before);
        for object in [4, 6, 8] {
            r.received(object, 25).unwrap();
        }
        r.received(10, 5).unwrap();
        assert_eq!(r.received(12, 1).unwrap_err().held_bytes, 100);
        // Returned, it may be spent again.
        r.turned(1, 5_000, Nanos(0));
        r.take(1, &mut Vec::new());
        r.received(3, 25).unwrap();
    }

    /// One window over one lane: a FIFO of waiting frames per refusal, a lane, and a receiver.
    struct Lane {
        window: CreditWindow,
        waiting: VecDeque<(u64, u64)>,
        /// Received messages whose turn has not started.
        queued: Vec<(u64, u64)>,
        returns: CreditReturn,
        now: Nanos,
        sent: u64,
    }

    impl Lane {
        fn new(window: u64) -> Self {
            Self {
                window: CreditWindow::new(window),
                waiting: VecDeque::new(),
                queued: Vec::new(),
                returns: CreditReturn::new(window, 1),
                now: Nanos(0),
                sent: 0,
            }
        }

        /// The node's rule: in the order of refusals, and never past an earlier frame of the same
        /// object.
        fn retry(&mut self) {
            let mut held_back = std::collections::BTreeSet::new();
            for (object, bytes) in std::mem::take(&mut self.waiting) {
                if held_back.contains(&object) || self.window.try_take(object, bytes) != Take::Taken
                {
                    held_back.insert(object);
                    self.waiting.push_back((object, bytes));
                    continue;
                }
                self.sent += 1;
                self.returns.received(object, bytes).expect("a sender with credit");
                self.queued.push((object, bytes));
            }
        }

        fn send(&mut self, object: u64, bytes: u64) {
            self.waiting.push_back((object, bytes));
            if !self.waiting.iter().rev().skip(1).any(|(o, _)| *o == object) {
                self.retry();
            }
        }

        fn turn(&mut self, which: usize) {
            if self.queued.is_empty() {
                return;
            }
            // An object's messages start in order.
            let object = self.queued[which % self.queued.len()].0;
            let at = self.queued.iter().position(|(o, _)| *o == object).unwrap();
            let (object, bytes) = self.queued.remove(at);
            self.returns.turned(object, bytes, self.now);
        }

        fn pass(&mut self, by: u64) {
            self.now = Nanos(self.now.0 + by);
            if self.returns.is_due(self.now) {
                let mut out = Vec::new();
                self.returns.take(3, &mut out);
                for (object, bytes) in out {
                    self.window.give_back(object, bytes).unwrap();
                }
                self.retry();
            }
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Send { object: u64, bytes: u64 },
        Turn { which: usize },
        Pass { ns: u64 },
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            5 => (0..5u64, prop_oneof![8 => 0..40u64, 1 => 100..900u64])
                .prop_map(|(object, bytes)| Step::Send { object, bytes }),
            4 => (0..20usize).prop_map(|which| Step::Turn { which }),
            4 => (0..1_500_000u64).prop_map(|ns| Step::Pass { ns }),
        ]
    }

    proptest! {
        /// Credit is never negative and never more than the window; once everything has been
        /// turned and returned the window is full.
        #[test]
        fn all_returned_is_full(
            window in 16..500u64,
            steps in proptest::collection::vec(step(), 1..150),
        ) {
            let mut lane = Lane::new(window);
            for step in steps {
                match step {
                    Step::Send { object, bytes } => lane.send(object, bytes),
                    Step::Turn { which } => lane.turn(which),
                    Step::Pass { ns } => lane.pass(ns),
                }
                let w = &lane.window;
                prop_assert!(w.available_bytes() <= w.window_bytes());
                let single = w.objects.len() == 1;
                prop_assert!(w.outstanding_bytes() <= w.window_bytes() || single);
                prop_assert_eq!(w.outstanding_bytes(), lane.returns.held_bytes());
            }
            while !lane.queued.is_empty() || !lane.waiting.is_empty()
                || lane.returns.next_deadline().is_some()
            {
                lane.turn(0);
                lane.pass(1_000_000);
            }
            prop_assert!(lane.window.is_full());
        }

        /// However the waiting frames look, and although others keep coming, each goes after at
        /// most as many drained messages as were before it in the node's order, or on their way.
        #[test]
        fn every_waiting_sender_goes_once_the_receiver_drains(
            window in 16..300u64,
            large in 17..900u64,
            small in 1..16u64,
            objects in 1..6u64,
        ) {
            let mut lane = Lane::new(window);
            for i in 0..40 {
                lane.send(i % objects, small);
            }
            let before = lane.sent + lane.waiting.len() as u64;
            lane.send(99, large);
            // As fast as the receiver drains, new small frames arrive.
            let mut rounds = 0;
            while lane.waiting.iter().any(|(object, _)| *object == 99) {
                lane.send(rounds % objects, small);
                lane.turn(rounds as usize);
                lane.pass(1_000_000);
                rounds += 1;
                prop_assert!(rounds <= 4 * before + 40, "99 is starved");
            }
        }

        /// A slow object that never starts a turn holds a quarter at most, and everybody else
        /// goes on for ever.
        #[test]
        fn a_slow_object_stops_itself_only(small in 1..10u64) {
            let mut lane = Lane::new(200);
            for _ in 0..100 {
                lane.send(7, small);
            }
            let stuck = lane.window.object_bytes(7);
            prop_assert!(stuck <= 50);
            for round in 0..200u64 {
                lane.send(round % 3, small);
                let at = lane.queued.iter().position(|(o, _)| *o != 7);
                prop_assert!(at.is_some(), "a neighbour waits in round {round}");
                lane.turn(at.unwrap());
                lane.pass(1_000_000);
            }
            prop_assert_eq!(lane.window.object_bytes(7), stuck);
        }
    }
}
