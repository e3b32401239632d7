#![forbid(unsafe_code)]
//! Liveness of one lane, run by the core that owns it (R0-6).
//!
//! *Words.* A **probe** (record 5) carries a fresh id and is answered by an **ack** (record 6);
//! while the answering node's lease is alive, also by **lease renewed** (link control 9) with the
//! same id. A whole frame is a sign of life, whatever it is, and so is a good piece of one
//! ([`LIVENESS_PIECE_BYTES`]): a large frame on a slow way is no silence, a byte now and then is.
//! **Silence** of a whole timeout loses the lane,
//! and with it the link. So does a peer that **reads** nothing for that long while something is
//! there for it: what it sends meanwhile is no excuse.
//!
//! *Lease deadlines.* The time left that a peer states is counted from when the probe it answers
//! was sent here: the peer read its clock later than that, so the deadline noted here is never
//! later than the peer's own. The time left is that to the peer's admission deadline, its margin
//! already taken off (see [`announced_ms`]); nothing is taken off twice.
//!
//! *Crash.* No state outlives the lane. A core that was stopped handles the bytes that wait
//! before it asks [`LaneLiveness::poll`]; otherwise it would take its own pause for the peer's.

use std::collections::VecDeque;
use std::time::Duration;

use crate::env::LeaseView;
use crate::ids::OwnerLeaseGeneration;
use crate::limits::LIVENESS_PIECE_BYTES;
use crate::time::Nanos;

/// Probes whose send time is kept. Answers to older ones are ignored.
const PROBES_KEPT: usize = 8;

/// What the owner of the lane must do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LivenessAction {
    /// Send record 5 with this probe id.
    Probe(u64),
    /// Nothing was received for this long: report the lane lost. Said once.
    Lost {
        /// How long.
        silence: Duration,
    },
    /// The peer took nothing of what waits for it for this long: report the lane lost. Said once.
    NotRead {
        /// How long.
        stall: Duration,
    },
}

/// What a peer's control record 9 means here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RenewedLease {
    /// Whose lifecycle.
    pub lease_generation: OwnerLeaseGeneration,
    /// Until when routes to it may be used, on this node's clock (R2.2-2, R3.2-2).
    pub admission_deadline: Nanos,
}

/// The state of one lane.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LaneLiveness {
    interval: Duration,
    timeout: Duration,
    heard_at: Nanos,
    /// Bytes since then that made no whole frame and no piece worth counting.
    trickled_bytes: usize,
    next_probe_at: Nanos,
    last_probe: u64,
    /// Probes sent and when, oldest first.
    sent: VecDeque<(u64, Nanos)>,
    /// Bytes the peer's side had taken when it was looked last.
    taken_bytes: u64,
    /// Something waits for the peer, and since when it has taken none of it.
    stalled_since: Option<Nanos>,
    lost: bool,
}

impl LaneLiveness {
    /// A lane attached at `now`, which counts as a sign of life. The first probe is due at once,
    /// so that the peer's lease is known early.
    #[must_use]
    pub fn new(interval: Duration, timeout: Duration, now: Nanos) -> Self {
        Self {
            interval,
            timeout,
            heard_at: now,
            trickled_bytes: 0,
            next_probe_at: now,
            last_probe: 0,
            sent: VecDeque::with_capacity(PROBES_KEPT),
            taken_bytes: 0,
            stalled_since: None,
            lost: false,
        }
    }

    /// A whole frame came in on the lane, whatever it was.
    pub fn on_received(&mut self, now: Nanos) {
        self.heard_at = self.heard_at.max(now);
        self.trickled_bytes = 0;
    }

    /// So many bytes of a frame came in that is not whole yet.
    pub fn on_piece(&mut self, bytes: usize, now: Nanos) {
        self.trickled_bytes = self.trickled_bytes.saturating_add(bytes);
        if self.trickled_bytes >= LIVENESS_PIECE_BYTES {
            self.on_received(now);
        }
    }

    /// Of all that was written to the lane so far the kernel has taken `taken_bytes`, and
    /// `unsent_bytes` wait. Said before every [`LaneLiveness::poll`].
    pub fn on_sent(&mut self, taken_bytes: u64, unsent_bytes: usize, now: Nanos) {
        let moved = std::mem::replace(&mut self.taken_bytes, taken_bytes) != taken_bytes;
        self.stalled_since = match self.stalled_since {
            _ if unsent_bytes == 0 => None,
            Some(since) if !moved => Some(since),
            _ => Some(now),
        };
    }

    /// Control record 9 came in. `None` for a probe this lane did not send or has forgotten, and
    /// for a lease without time left.
    #[must_use]
    pub fn on_lease_renewed(
        &self,
        probe_id: u64,
        lease_generation: OwnerLeaseGeneration,
        left_ms: u32,
    ) -> Option<RenewedLease> {
        let (_, sent_at) = *self.sent.iter().find(|(id, _)| *id == probe_id)?;
        (left_ms > 0).then(|| RenewedLease {
            lease_generation,
            admission_deadline: sent_at + Duration::from_millis(u64::from(left_ms)),
        })
    }

    /// Whether `probe_id` was sent on this lane lately: the check of an ack.
    #[must_use]
    pub fn knows(&self, probe_id: u64) -> bool {
        self.sent.iter().any(|(id, _)| *id == probe_id)
    }

    /// What is due at `now`. Call until it says `None`, after the bytes that wait were read.
    pub fn poll(&mut self, now: Nanos) -> Option<LivenessAction> {
        if self.lost {
            return None;
        }
        let silence = now.since(self.heard_at);
        if silence >= self.timeout {
            self.lost = true;
            return Some(LivenessAction::Lost { silence });
        }
        let stall = self.stalled_since.map_or(Duration::ZERO, |since| now.since(since));
        if stall >= self.timeout {
            self.lost = true;
            return Some(LivenessAction::NotRead { stall });
        }
        if now < self.next_probe_at {
            return None;
        }
        self.last_probe += 1;
        if self.sent.len() == PROBES_KEPT {
            self.sent.pop_front();
        }
        self.sent.push_back((self.last_probe, now));
        self.next_probe_at = now + self.interval.max(Duration::from_millis(1));
        Some(LivenessAction::Probe(self.last_probe))
    }

    /// When [`LaneLiveness::poll`] has something to do next, unless bytes come in.
    #[must_use]
    pub fn next_deadline(&self) -> Nanos {
        if self.lost {
            return Nanos::MAX;
        }
        let stalled = self.stalled_since.map_or(Nanos::MAX, |since| since + self.timeout);
        self.next_probe_at.min(self.heard_at + self.timeout).min(stalled)
    }
}

/// The milliseconds of lease this node states in control record 9, rounded down; `None` when it
/// states nothing because its lease is not alive (R5-16).
#[must_use]
pub fn announced_ms(lease: &LeaseView, now: Nanos) -> Option<u32> {
    if !lease.is_alive(now) {
        return None;
    }
    let ms = lease.admission_deadline.since(now).as_millis();
    (ms > 0).then(|| u32::try_from(ms).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(5);
    const TIMEOUT: Duration = Duration::from_secs(15);
    const LEASE: OwnerLeaseGeneration = OwnerLeaseGeneration::FIRST;

    fn at(ms: u64) -> Nanos {
        Nanos(ms * 1_000_000)
    }

    /// Proves R0-6.
    #[test]
    fn probes_go_out_every_interval_with_fresh_ids() {
        let mut lane = LaneLiveness::new(INTERVAL, TIMEOUT, at(0));
        let mut ids = Vec::new();
        for second in 0..=60 {
            lane.on_received(at(second * 1000));
            while let Some(action) = lane.poll(at(second * 1000)) {
                let LivenessAction::Probe(id) = action else { panic!("{action:?}") };
                ids.push((second, id));
            }
        }
        let expected: Vec<_> = (0..=12).map(|n| (n * 5, n + 1)).collect();
        assert_eq!(ids, expected);
    }

    /// Proves R0-6.
    #[test]
    fn silence_loses_the_lane_once_and_any_byte_keeps_it() {
        let mut lane = LaneLiveness::new(INTERVAL, TIMEOUT, at(0));
        lane.on_received(at(1));
        for ms in [0, 5_000, 10_000] {
            assert!(matches!(lane.poll(at(ms)), Some(LivenessAction::Probe(_))));
        }
        assert_eq!(lane.next_deadline(), at(15_000));
        assert!(matches!(lane.poll(at(15_000)), Some(LivenessAction::Probe(_))));
        assert_eq!(lane.next_deadline(), at(15_001));
        assert_eq!(lane.poll(at(15_001)), Some(LivenessAction::Lost { silence: TIMEOUT }));
        assert_eq!(lane.poll(at(15_002)), None);
        assert_eq!(lane.next_deadline(), Nanos::MAX);
    }

    /// One byte a second is silence; a large frame that makes its way is not.
    #[test]
    fn a_trickle_is_no_sign_of_life() {
        let life = |bytes_per_second| {
            let mut lane = LaneLiveness::new(INTERVAL, TIMEOUT, at(0));
            (1..=120).find(|second| {
                lane.on_piece(bytes_per_second, at(second * 1000));
                let mut actions = std::iter::from_fn(|| lane.poll(at(second * 1000)));
                actions.any(|action| matches!(action, LivenessAction::Lost { .. }))
            })
        };
        assert_eq!(life(1), Some(15));
        assert_eq!(life(LIVENESS_PIECE_BYTES / 20), Some(15));
        assert_eq!(life(LIVENESS_PIECE_BYTES / 10), None);
    }

    /// A lane that is not read is lost, however much comes in; taking any byte is enough.
    #[test]
    fn a_peer_that_reads_nothing_is_lost_though_it_talks() {
        let mut lane = LaneLiveness::new(INTERVAL, TIMEOUT, at(0));
        let mut look = |ms, taken, unsent| {
            lane.on_received(at(ms));
            lane.on_sent(taken, unsent, at(ms));
            let mut last = None;
            while let Some(action) = lane.poll(at(ms)) {
                last = Some(action);
            }
            (last, lane.next_deadline())
        };
        for (ms, taken, unsent) in [(0, 0, 0), (5_000, 10, 0), (10_000, 10, 400), (15_000, 11, 900)]
        {
            assert!(matches!(look(ms, taken, unsent).0, Some(LivenessAction::Probe(_))), "{ms}");
        }
        let (_, next) = look(29_999, 11, 2_000);
        assert_eq!(next, at(30_000));
        let stall = TIMEOUT;
        assert_eq!(look(30_000, 11, 2_000), (Some(LivenessAction::NotRead { stall }), Nanos::MAX));
        assert_eq!(look(30_001, 11, 2_000).0, None);
    }

    /// A core that was stopped past the timeout and reads first finds the lane alive.
    #[test]
    fn reading_before_polling_survives_a_pause() {
        let mut lane = LaneLiveness::new(INTERVAL, TIMEOUT, at(0));
        assert!(lane.poll(at(0)).is_some());
        lane.on_received(at(60_000));
        assert_eq!(lane.poll(at(60_000)), Some(LivenessAction::Probe(2)));
        assert_eq!(lane.poll(at(60_000)), None);
    }

    /// Proves R0-6, R3.2-2.
    #[test]
    fn a_renewal_counts_from_when_its_probe_was_sent() {
        let mut lane = LaneLiveness::new(INTERVAL, TIMEOUT, at(100));
        assert_eq!(lane.poll(at(100)), Some(LivenessAction::Probe(1)));
        lane.on_received(at(2_000));
        let renewed = lane.on_lease_renewed(1, LEASE, 9_000).unwrap();
        assert_eq!(renewed.admission_deadline, at(9_100));
        assert_eq!(lane.on_lease_renewed(2, LEASE, 9_000), None);
        assert_eq!(lane.on_lease_renewed(0, LEASE, 9_000), None);
        assert_eq!(lane.on_lease_renewed(1, LEASE, 0), None);
        assert!(lane.knows(1) && !lane.knows(2));
    }

    #[test]
    fn only_the_last_probes_are_known() {
        let mut lane = LaneLiveness::new(Duration::from_millis(1), TIMEOUT, at(0));
        for ms in 0..20 {
            assert_eq!(lane.poll(at(ms)), Some(LivenessAction::Probe(ms + 1)));
        }
        assert!(!lane.knows(12) && lane.knows(13) && lane.knows(20));
    }

    /// Proves R5-16.
    #[test]
    fn a_lapsed_or_fenced_lease_is_not_announced() {
        let lease = |fenced| LeaseView { admission_deadline: at(1_000), fenced };
        assert_eq!(announced_ms(&lease(false), Nanos(1)), Some(999));
        assert_eq!(announced_ms(&lease(false), Nanos(999_999_999)), None);
        assert_eq!(announced_ms(&lease(false), at(1_000)), None);
        assert_eq!(announced_ms(&lease(true), at(0)), None);
    }

    /// With any delay on the way, the deadline noted here is never later than the peer's own.
    #[test]
    fn the_noted_deadline_never_exceeds_the_announced_one() {
        for there in [0u64, 1, 700, 4_999] {
            let mut lane = LaneLiveness::new(INTERVAL, TIMEOUT, at(50));
            assert!(lane.poll(at(50)).is_some());
            let view = LeaseView { admission_deadline: at(9_050), fenced: false };
            let left_ms = announced_ms(&view, at(50 + there)).unwrap();
            let noted = lane.on_lease_renewed(1, LEASE, left_ms).unwrap();
            assert!(noted.admission_deadline <= view.admission_deadline);
        }
    }
}
