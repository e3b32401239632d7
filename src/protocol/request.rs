#![forbid(unsafe_code)]
//! Requests and their one end (R4-6).
//!
//! One [`Requests`] per home core. It knows of a request only its correlation, the waiter's token,
//! the deadline and the link the frame went out on; payloads never enter.
//!
//! **States of a request.** `Pending → Ended`, by the first of: a reply or an error that settles
//! it, its deadline, its waiter's cancellation, the loss of the link it went out on, shutdown.
//! Whatever comes later under its correlation is late: counted and dropped (R4-6). Nothing is
//! ever submitted again, so a request that ended by anything but a reply says nothing about
//! whether it ran (R4-7).
//!
//! **Correlations** rise and are never given twice by a core, so a late reply meets nobody else's
//! request (R0-4). `counter × cores + core + 1`: the core that waits is read off the number by
//! [`core_of`], on whichever core the reply arrives.
//!
//! **Replies** are taken by correlation alone: after a relay they come from a node the request
//! was not sent to.
//!
//! **Crash.** Nothing here survives, and need not: a new process lifecycle is another node
//! generation, and no reply to the old one reaches it.

#[cfg(feature = "protocol-coverage")]
mod coverage;

#[cfg(feature = "protocol-coverage")]
pub use coverage::MACHINE;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::env::Planted;
use crate::error::{Error, ErrorKind, Result};
use crate::ids::Correlation;
use crate::limits::LATE_REPLY_MEMORY;
use crate::time::Nanos;

/// The core of a node with `cores` cores that waits for the reply to `correlation`.
#[must_use]
pub fn core_of(correlation: Correlation, cores: u16) -> u16 {
    ((correlation.get() - 1) % u64::from(cores.max(1))) as u16
}

/// How a request ended when not by a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum End {
    /// Its deadline passed.
    TimedOut,
    /// Its waiter gave it up.
    Cancelled,
    /// The link it went out on broke; whether it ran is unknown.
    LinkLost,
    /// The node shuts down.
    ShutDown,
}

impl End {
    /// The error a caller sees.
    #[must_use]
    pub fn error(self) -> Error {
        match self {
            Self::TimedOut => Error::new(
                ErrorKind::DeadlineExceeded,
                "no reply before the request's deadline; it may have run",
            ),
            Self::Cancelled => Error::invalid("the caller gave the request up"),
            Self::LinkLost => {
                Error::unavailable("the link broke before a reply came; the request may have run")
            }
            Self::ShutDown => {
                Error::new(ErrorKind::ShuttingDown, "the node shuts down; the request may have run")
            }
        }
    }
}

/// A request that ended without a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ended {
    /// Which request.
    pub correlation: Correlation,
    /// Who waits for it.
    pub waiter: u64,
    /// How it ended.
    pub end: End,
}

/// What was counted. Every reply that settled nothing is in exactly one of the `late_` counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RequestCounters {
    /// Requests submitted.
    pub submitted: u64,
    /// Settled by a reply or by an error of the target or of this node.
    pub settled: u64,
    /// Ended by their deadline.
    pub timed_out: u64,
    /// Given up by their waiter.
    pub cancelled: u64,
    /// Ended with their link.
    pub links_lost: u64,
    /// Ended by shutdown.
    pub shut_down: u64,
    /// Replies after the deadline.
    pub late_timed_out: u64,
    /// Replies after a cancellation.
    pub late_cancelled: u64,
    /// Replies after the link was lost.
    pub late_link_lost: u64,
    /// Replies after shutdown.
    pub late_shut_down: u64,
    /// Replies to a request that was settled before, or that ended too long ago to know how.
    pub late_other: u64,
    /// Replies under a correlation this core never gave.
    pub never_given: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Pending {
    waiter: u64,
    deadline: Nanos,
    link: Option<u64>,
}

/// The pending requests of one home core. See the module's head.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Requests {
    core: u16,
    cores: u16,
    next: u64,
    pending: BTreeMap<Correlation, Pending>,
    deadlines: BTreeSet<(Nanos, Correlation)>,
    /// How the latest requests without a reply ended, oldest first.
    ended: BTreeMap<Correlation, End>,
    ended_order: VecDeque<Correlation>,
    counters: RequestCounters,
    reuses_correlation: bool,
    settles_twice: bool,
}

impl Requests {
    /// The table of core `core` of `cores`.
    ///
    /// # Panics
    /// When `core` is not below `cores`: a bug in the composition of the node.
    #[must_use]
    pub fn new(core: u16, cores: u16) -> Self {
        assert!(core < cores, "core {core} of {cores}");
        Self {
            core,
            cores,
            next: 0,
            pending: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            ended: BTreeMap::new(),
            ended_order: VecDeque::new(),
            counters: RequestCounters::default(),
            reuses_correlation: false,
            settles_twice: false,
        }
    }

    /// Plants a fault for the simulator's own tests.
    #[doc(hidden)]
    pub fn plant(&mut self, fault: Planted) {
        self.reuses_correlation |= fault == Planted::ReuseCorrelation;
        self.settles_twice |= fault == Planted::SettleTwice;
    }

    /// Requests pending.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pending.len()
    }

    /// Whether nothing is pending.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// What was counted.
    #[must_use]
    pub fn counters(&self) -> RequestCounters {
        self.counters
    }

    /// When [`Requests::expire`] is due next.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Nanos> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// Registers a request (R4-1). A deadline that has passed already ends it at the next
    /// [`Requests::expire`]. O(log pending).
    ///
    /// # Errors
    /// `InternalFailure` when this core's correlations have run out; nothing is registered then.
    pub fn submit(&mut self, waiter: u64, deadline: Nanos) -> Result<Correlation> {
        let correlation = self.next_correlation()?;
        #[cfg(feature = "protocol-coverage")]
        Self::note_submit();
        self.pending.insert(correlation, Pending { waiter, deadline, link: None });
        self.deadlines.insert((deadline, correlation));
        self.counters.submitted += 1;
        Ok(correlation)
    }

    fn next_correlation(&mut self) -> Result<Correlation> {
        if self.reuses_correlation
            && let Some(old) = self.ended_order.back()
            && !self.pending.contains_key(old)
        {
            return Ok(*old);
        }
        let number = self.next.checked_mul(u64::from(self.cores));
        let correlation = number
            .and_then(|n| n.checked_add(u64::from(self.core) + 1))
            .and_then(Correlation::new)
            .ok_or_else(|| {
                Error::internal("correlation numbers of this core have run out (2^63-1 used)")
            })?;
        self.next += 1;
        Ok(correlation)
    }

    /// Says on which link the request's frame went out. Without it the request does not end with
    /// any link. Says whether the request is still pending.
    pub fn bind_link(&mut self, correlation: Correlation, link: u64) -> bool {
        #[cfg(feature = "protocol-coverage")]
        self.note(correlation, coverage::Happens::BindLink);
        match self.pending.get_mut(&correlation) {
            Some(pending) => {
                pending.link = Some(link);
                true
            }
            None => false,
        }
    }

    /// The waiter of a pending request, without settling it.
    #[must_use]
    pub fn waiter_of(&self, correlation: Correlation) -> Option<u64> {
        self.pending.get(&correlation).map(|p| p.waiter)
    }

    /// A reply came, from whichever node: settles the request and gives its waiter. `None` when it
    /// ended before: the reply is late, counted by how the request ended, and to be dropped.
    pub fn settle_reply(&mut self, correlation: Correlation) -> Option<u64> {
        #[cfg(feature = "protocol-coverage")]
        self.note(correlation, coverage::Happens::Reply);
        let settled = self.settle(correlation);
        if settled.is_none() {
            self.count_late(correlation);
        }
        settled
    }

    /// This node itself ends the request with an error, which is no reply that could be late.
    pub fn settle_error(&mut self, correlation: Correlation) -> Option<u64> {
        #[cfg(feature = "protocol-coverage")]
        self.note(correlation, coverage::Happens::Error);
        self.settle(correlation)
    }

    fn settle(&mut self, correlation: Correlation) -> Option<u64> {
        let pending = if self.settles_twice {
            self.pending.get(&correlation).copied()?
        } else {
            self.take(correlation)?
        };
        self.counters.settled += 1;
        Some(pending.waiter)
    }

    /// The waiter gave up. Says which waiter that was, when the request was pending.
    pub fn cancel(&mut self, correlation: Correlation) -> Option<u64> {
        #[cfg(feature = "protocol-coverage")]
        self.note(correlation, coverage::Happens::Cancel);
        let pending = self.take(correlation)?;
        self.counters.cancelled += 1;
        self.remember(correlation, End::Cancelled);
        Some(pending.waiter)
    }

    /// Ends what is due at `now`, earliest deadline first.
    pub fn expire(&mut self, now: Nanos, out: &mut Vec<Ended>) {
        while let Some(&(at, correlation)) = self.deadlines.first() {
            if at > now {
                return;
            }
            self.end(correlation, End::TimedOut, out);
        }
    }

    /// Ends what went out on `link`, in the order of submission. O(pending): links break seldom.
    pub fn link_lost(&mut self, link: u64, out: &mut Vec<Ended>) {
        self.end_where(|p| p.link == Some(link), End::LinkLost, out);
    }

    /// Ends everything, in the order of submission.
    pub fn shutdown(&mut self, out: &mut Vec<Ended>) {
        self.end_where(|_| true, End::ShutDown, out);
    }

    fn end_where(&mut self, which: impl Fn(&Pending) -> bool, end: End, out: &mut Vec<Ended>) {
        let found: Vec<Correlation> =
            self.pending.iter().filter(|(_, p)| which(p)).map(|(c, _)| *c).collect();
        for correlation in found {
            self.end(correlation, end, out);
        }
    }

    fn end(&mut self, correlation: Correlation, end: End, out: &mut Vec<Ended>) {
        #[cfg(feature = "protocol-coverage")]
        self.note(correlation, coverage::Happens::Ends(end));
        let Some(pending) = self.take(correlation) else { return };
        match end {
            End::TimedOut => self.counters.timed_out += 1,
            End::Cancelled => self.counters.cancelled += 1,
            End::LinkLost => self.counters.links_lost += 1,
            End::ShutDown => self.counters.shut_down += 1,
        }
        self.remember(correlation, end);
        out.push(Ended { correlation, waiter: pending.waiter, end });
    }

    fn take(&mut self, correlation: Correlation) -> Option<Pending> {
        let pending = self.pending.remove(&correlation)?;
        let had_deadline = self.deadlines.remove(&(pending.deadline, correlation));
        debug_assert!(had_deadline, "every pending request has its deadline");
        Some(pending)
    }

    fn remember(&mut self, correlation: Correlation, end: End) {
        if self.ended.insert(correlation, end).is_none() {
            self.ended_order.push_back(correlation);
        }
        if self.ended_order.len() > LATE_REPLY_MEMORY
            && let Some(oldest) = self.ended_order.pop_front()
        {
            self.ended.remove(&oldest);
        }
    }

    fn count_late(&mut self, correlation: Correlation) {
        let given = (correlation.get() - 1) / u64::from(self.cores);
        if core_of(correlation, self.cores) != self.core || given >= self.next {
            self.counters.never_given += 1;
            return;
        }
        // What ended is forgotten with its first late reply: another one is a second copy.
        match self.ended.remove(&correlation) {
            Some(end) => {
                self.ended_order.retain(|c| *c != correlation);
                match end {
                    End::TimedOut => self.counters.late_timed_out += 1,
                    End::Cancelled => self.counters.late_cancelled += 1,
                    End::LinkLost => self.counters.late_link_lost += 1,
                    End::ShutDown => self.counters.late_shut_down += 1,
                }
            }
            None => self.counters.late_other += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ended(
        table: &mut Requests,
        f: impl FnOnce(&mut Requests, &mut Vec<Ended>),
    ) -> Vec<(u64, End)> {
        let mut out = Vec::new();
        f(table, &mut out);
        out.iter().map(|e| (e.waiter, e.end)).collect()
    }

    /// Proves R0-4, R4-1.
    #[test]
    fn correlations_rise_name_their_core_and_are_never_zero() {
        for cores in [1u16, 3, 256] {
            for core in [0, cores / 2, cores - 1] {
                let mut table = Requests::new(core, cores);
                let mut last = 0;
                for waiter in 0..5 {
                    let c = table.submit(waiter, Nanos(9)).unwrap();
                    assert!(c.get() > last);
                    assert_eq!(core_of(c, cores), core);
                    last = c.get();
                    table.settle_reply(c);
                }
            }
        }
    }

    /// Proves R0-3.
    #[test]
    fn correlations_run_out_with_an_error_and_never_wrap() {
        let mut table = Requests::new(1, 2);
        table.next = (1 << 62) - 2;
        assert_eq!(table.submit(1, Nanos(9)).unwrap().get(), (1 << 63) - 2);
        for _ in 0..2 {
            let e = table.submit(2, Nanos(9)).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::InternalFailure);
        }
        assert_eq!(table.len(), 1);
        table.next = u64::MAX;
        assert!(table.submit(2, Nanos(9)).is_err());
    }

    /// Proves R4-6.
    #[test]
    fn the_first_end_wins_and_what_comes_later_is_counted_by_kind() {
        let mut t = Requests::new(0, 1);
        let by_reply = t.submit(1, Nanos(10)).unwrap();
        let by_time = t.submit(2, Nanos(5)).unwrap();
        let by_cancel = t.submit(3, Nanos(10)).unwrap();
        let by_link = t.submit(4, Nanos(10)).unwrap();
        let by_shutdown = t.submit(5, Nanos(10)).unwrap();
        t.bind_link(by_link, 7);
        t.bind_link(by_shutdown, 8);
        assert_eq!(t.next_deadline(), Some(Nanos(5)));
        assert_eq!(t.settle_reply(by_reply), Some(1));
        assert_eq!(ended(&mut t, |t, o| t.expire(Nanos(4), o)), []);
        assert_eq!(ended(&mut t, |t, o| t.expire(Nanos(5), o)), [(2, End::TimedOut)]);
        assert_eq!(t.cancel(by_cancel), Some(3));
        assert_eq!(ended(&mut t, |t, o| t.link_lost(7, o)), [(4, End::LinkLost)]);
        assert_eq!(ended(&mut t, |t, o| t.shutdown(o)), [(5, End::ShutDown)]);
        for c in [by_reply, by_time, by_cancel, by_link, by_shutdown] {
            assert_eq!(t.settle_reply(c), None);
            assert_eq!(t.cancel(c), None);
            assert!(!t.bind_link(c, 7));
        }
        t.settle_reply(by_time);
        t.settle_reply(Correlation::new(6).unwrap());
        assert_eq!(
            t.counters(),
            RequestCounters {
                submitted: 5,
                settled: 1,
                timed_out: 1,
                cancelled: 1,
                links_lost: 1,
                shut_down: 1,
                late_timed_out: 1,
                late_cancelled: 1,
                late_link_lost: 1,
                late_shut_down: 1,
                late_other: 2,
                never_given: 1,
            }
        );
        assert!(t.is_empty() && t.next_deadline().is_none());
    }

    /// Proves R4-4, R4-7.
    #[test]
    fn a_lost_link_ends_what_went_out_on_it_and_a_relayed_reply_may_come_by_another() {
        let mut t = Requests::new(0, 1);
        let a = t.submit(1, Nanos(10)).unwrap();
        let b = t.submit(2, Nanos(10)).unwrap();
        let unsent = t.submit(3, Nanos(10)).unwrap();
        t.bind_link(a, 1);
        t.bind_link(b, 2);
        assert_eq!(t.settle_reply(b), Some(2), "whichever node the reply came from");
        assert_eq!(ended(&mut t, |t, o| t.link_lost(1, o)), [(1, End::LinkLost)]);
        assert_eq!(End::LinkLost.error().kind(), ErrorKind::Unavailable);
        assert_eq!(t.waiter_of(unsent), Some(3));
    }

    #[test]
    fn memory_does_not_grow_with_what_ended() {
        let mut t = Requests::new(0, 1);
        for i in 0..3 * LATE_REPLY_MEMORY as u64 {
            let c = t.submit(i, Nanos(i)).unwrap();
            if i % 3 == 0 {
                t.settle_reply(c);
            } else {
                t.expire(Nanos(i), &mut Vec::new());
            }
        }
        assert_eq!(t.ended.len(), LATE_REPLY_MEMORY);
        assert_eq!(t.ended_order.len(), LATE_REPLY_MEMORY);
        assert!(t.pending.is_empty() && t.deadlines.is_empty());
    }

    /// The planted faults do what they say, so that the simulator has something to find.
    #[test]
    fn planted_faults_are_faults() {
        let mut t = Requests::new(0, 1);
        t.plant(Planted::SettleTwice);
        let c = t.submit(1, Nanos(5)).unwrap();
        assert_eq!(t.settle_reply(c), Some(1));
        assert_eq!(ended(&mut t, |t, o| t.expire(Nanos(5), o)), [(1, End::TimedOut)]);
        let mut t = Requests::new(0, 1);
        t.plant(Planted::ReuseCorrelation);
        let c = t.submit(1, Nanos(5)).unwrap();
        t.expire(Nanos(5), &mut Vec::new());
        assert_eq!(t.submit(2, Nanos(9)).unwrap(), c);
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Submit { wait: u64 },
        Bind { which: usize, link: u64 },
        Reply { which: usize },
        Cancel { which: usize },
        Lost { link: u64 },
        Pass { by: u64 },
        Shutdown,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            8 => (0..20u64).prop_map(|wait| Step::Submit { wait }),
            4 => (0..64usize, 0..3u64).prop_map(|(which, link)| Step::Bind { which, link }),
            6 => (0..64usize).prop_map(|which| Step::Reply { which }),
            2 => (0..64usize).prop_map(|which| Step::Cancel { which }),
            1 => (0..3u64).prop_map(|link| Step::Lost { link }),
            3 => (0..8u64).prop_map(|by| Step::Pass { by }),
            1 => Just(Step::Shutdown),
        ]
    }

    proptest! {
        /// Proves R4-6, R0-4.
        ///
        /// In any order of events every request ends exactly once, nothing is kept of what
        /// ended, and every late reply is counted once.
        #[test]
        fn exactly_one_end(steps in proptest::collection::vec(step(), 1..200)) {
            let mut t = Requests::new(2, 5);
            let mut given: Vec<Correlation> = Vec::new();
            let mut ends: BTreeMap<u64, u32> = BTreeMap::new();
            let (mut now, mut late) = (0u64, 0u64);
            for step in steps {
                let mut out = Vec::new();
                let pick = |which: usize| given.get(which % given.len().max(1)).copied();
                let settled = match step {
                    Step::Submit { wait } => {
                        let c = t.submit(given.len() as u64, Nanos(now + wait)).unwrap();
                        prop_assert!(given.last().is_none_or(|last| *last < c));
                        given.push(c);
                        None
                    }
                    Step::Bind { which, link } => {
                        pick(which).map(|c| t.bind_link(c, link));
                        None
                    }
                    Step::Reply { which } => pick(which).and_then(|c| {
                        let settled = t.settle_reply(c);
                        late += u64::from(settled.is_none());
                        settled
                    }),
                    Step::Cancel { which } => pick(which).and_then(|c| t.cancel(c)),
                    Step::Lost { link } => { t.link_lost(link, &mut out); None }
                    Step::Pass { by } => {
                        now += by;
                        t.expire(Nanos(now), &mut out);
                        prop_assert!(t.next_deadline().is_none_or(|at| at > Nanos(now)));
                        None
                    }
                    Step::Shutdown => { t.shutdown(&mut out); prop_assert!(t.is_empty()); None }
                };
                for waiter in settled.into_iter().chain(out.iter().map(|e| e.waiter)) {
                    *ends.entry(waiter).or_default() += 1;
                }
                prop_assert_eq!(t.pending.len(), t.deadlines.len());
                prop_assert_eq!(t.ended.len(), t.ended_order.len());
                prop_assert_eq!(ends.len() + t.len(), given.len());
            }
            prop_assert!(ends.values().all(|n| *n == 1), "ended twice: {ends:?}");
            let c = t.counters();
            prop_assert_eq!(late, c.late_timed_out + c.late_cancelled + c.late_link_lost
                + c.late_shut_down + c.late_other);
            prop_assert_eq!(ends.len() as u64,
                c.settled + c.timed_out + c.cancelled + c.links_lost + c.shut_down);
        }
    }
}
