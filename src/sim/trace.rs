#![forbid(unsafe_code)]
//! What happened, as a 128-bit rolling hash of everything and as the last lines of text.
//!
//! Every event of a world is mixed into the hash: two runs with the same hash took the same
//! steps at the same virtual times. A record is six words; it becomes text only when somebody
//! prints it.

use std::collections::VecDeque;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::time::Duration;

use crate::env::Failpoint;
use crate::time::Nanos;

/// What kind of step a trace line tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum TraceKind {
    /// A line of the test ([`super::SimWorld::note`]).
    Note,
    /// A core ran one iteration. a = events it got, b = when it parks until.
    Run,
    /// Mail reached a core. a = from core (`u16::MAX`: another thread).
    Mail,
    /// A dial began. a = stream.
    Dial,
    /// A dial got through. a = stream.
    Connected,
    /// A dial failed. a = stream.
    DialFailed,
    /// A listener got a stream. a = stream.
    Accepted,
    /// A stream reached another core. a = stream, b = tag.
    Adopted,
    /// Bytes were written. a = stream and end, b = count.
    Write,
    /// Bytes arrived. a = stream and end, b = digest of the bytes.
    Received,
    /// A stream was closed by its user. a = stream and end.
    Close,
    /// A stream ended by itself. a = stream and end, b = 0 for an orderly end, 1 for a failure.
    Closed,
    /// A core asked the Store. a = token, b = digest.
    StoreAsk,
    /// The Store thread called the provider. a = digest of the call, b = digest of its answer.
    StoreCall,
    /// A Store answer reached a core. a = token, b = digest.
    StoreAnswer,
    /// A Store answer was lost. a = digest of the call.
    StoreLost,
    /// The lease keeper took a step. a = digest of what it wants.
    Keeper,
    /// A lease was published. a = admission deadline, b = 1 when fenced.
    Lease,
    /// A node's process began. a = lifecycle.
    NodeStart,
    /// A node's cores run. a = lifecycle, b = cores.
    NodeUp,
    /// A node could not start.
    NodeStartFailed,
    /// A node ended by itself. a = lifecycle.
    NodeEnd,
    /// A node was killed. a = lifecycle.
    Kill,
    /// A node was stopped for a while. a = until.
    Pause,
    /// A paused node goes on.
    Resume,
    /// A core was stalled. a = until.
    Stall,
    /// A core's clock moved on inside an iteration. a = by.
    Jump,
    /// Traffic from a to b is lost.
    Block,
    /// Traffic from a to b flows again.
    Unblock,
    /// A stream was broken. a = stream.
    Reset,
    /// The Store began to misbehave for a node or all. a = which way, b = until.
    StoreFault,
    /// A node stopped listening.
    StopListening,
    /// A task was polled. a = task.
    Task,
    /// A task's timer is due. a = number of the timer.
    Timer,
    /// A node was stopped at a failpoint. a = which, b = for how long.
    StopAt,
}

/// One step. `node` and `core` are `u16::MAX` where none is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TraceRecord {
    /// Virtual time.
    pub at: Nanos,
    /// What.
    pub kind: TraceKind,
    /// Which node.
    pub node: u16,
    /// Which core.
    pub core: u16,
    /// First detail; see [`TraceKind`].
    pub a: u64,
    /// Second detail; see [`TraceKind`].
    pub b: u64,
}

/// No node, or no core.
pub(crate) const NONE: u16 = u16::MAX;

impl fmt::Display for TraceRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.at)?;
        match (self.node, self.core) {
            (NONE, _) => f.write_str("  -   ")?,
            (n, NONE) => write!(f, "  n{n}  ")?,
            (n, c) => write!(f, "  n{n}.{c}")?,
        }
        write!(f, "  {:?} ", self.kind)?;
        match self.kind {
            TraceKind::Dial
            | TraceKind::Connected
            | TraceKind::DialFailed
            | TraceKind::Accepted
            | TraceKind::Reset => write!(f, "s{}", self.a),
            TraceKind::Adopted => write!(f, "s{} tag {}", self.a, self.b),
            TraceKind::Write => write!(f, "s{}.{} {} bytes", self.a >> 1, self.a & 1, self.b),
            TraceKind::Received | TraceKind::Closed | TraceKind::Close => {
                write!(f, "s{}.{} {:x}", self.a >> 1, self.a & 1, self.b)
            }
            TraceKind::Run => write!(f, "{} events, parks until {}", self.a, Nanos(self.b)),
            TraceKind::Mail if self.a == u64::from(NONE) => f.write_str("from outside"),
            TraceKind::Mail => write!(f, "from core {}", self.a),
            TraceKind::Lease => write!(f, "until {} fenced {}", Nanos(self.a), self.b),
            TraceKind::Pause | TraceKind::Stall => write!(f, "until {}", Nanos(self.a)),
            TraceKind::StopAt => {
                let point = usize::try_from(self.a).ok().and_then(|i| Failpoint::ALL.get(i));
                let name = point.map_or("?", |point| point.name());
                write!(f, "{name} for {:?}", Duration::from_nanos(self.b))
            }
            TraceKind::StoreFault => write!(f, "mode {} until {}", self.a, Nanos(self.b)),
            _ => write!(f, "{:x} {:x}", self.a, self.b),
        }
    }
}

/// The trace of a world: its hash and its tail.
#[derive(Debug)]
pub(crate) struct Trace {
    hash: [u64; 2],
    count: u64,
    tail: VecDeque<TraceRecord>,
    keep: usize,
    notes: VecDeque<(u64, String)>,
}

/// How many records a world keeps unless it is told otherwise.
pub(crate) const DEFAULT_KEEP: usize = 512;

impl Trace {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            hash: [seed ^ 0x243F_6A88_85A3_08D3, seed.rotate_left(32) ^ 0x1319_8A2E_0370_7344],
            count: 0,
            tail: VecDeque::new(),
            keep: DEFAULT_KEEP,
            notes: VecDeque::new(),
        }
    }

    pub(crate) fn keep(&mut self, records: usize) {
        self.keep = records;
        while self.tail.len() > records {
            self.tail.pop_front();
        }
    }

    fn mix(&mut self, word: u64) {
        // Two lanes with different odd multipliers; each also takes the other in.
        let [x, y] = self.hash;
        let x2 = (x ^ word).wrapping_mul(0x9FB2_1C65_1E98_DF25).rotate_left(29) ^ y;
        let y2 = y.wrapping_add(word).wrapping_mul(0xD6E8_FEB8_6659_FD93).rotate_left(37) ^ x;
        self.hash = [x2, y2];
    }

    /// Mixes a record in and keeps it for a failure.
    pub(crate) fn push(&mut self, r: TraceRecord) {
        self.push_quietly(r);
        if self.keep > 0 {
            if self.tail.len() == self.keep {
                self.tail.pop_front();
            }
            self.tail.push_back(r);
        }
    }

    /// Mixes a record in; for steps nobody wants to read.
    pub(crate) fn push_quietly(&mut self, r: TraceRecord) {
        self.count += 1;
        self.mix(r.at.0);
        self.mix((r.kind as u64) << 32 | u64::from(r.node) << 16 | u64::from(r.core));
        self.mix(r.a);
        self.mix(r.b);
    }

    pub(crate) fn note(&mut self, at: Nanos, text: String) {
        let digest = digest_bytes(text.as_bytes());
        self.push(TraceRecord {
            at,
            kind: TraceKind::Note,
            node: NONE,
            core: NONE,
            a: self.count,
            b: digest,
        });
        if self.notes.len() >= self.keep.max(1) {
            self.notes.pop_front();
        }
        self.notes.push_back((self.count - 1, text));
    }

    pub(crate) const fn hash(&self) -> u128 {
        (self.hash[0] as u128) << 64 | self.hash[1] as u128
    }

    pub(crate) const fn count(&self) -> u64 {
        self.count
    }

    pub(crate) fn lines(&self, last: usize) -> Vec<String> {
        let skip = self.tail.len().saturating_sub(last);
        self.tail
            .iter()
            .skip(skip)
            .map(|r| match r.kind {
                TraceKind::Note => {
                    let text = self.notes.iter().find(|(n, _)| *n == r.a).map(|(_, t)| &**t);
                    format!("{}  -     Note {}", r.at, text.unwrap_or("(text no longer kept)"))
                }
                _ => r.to_string(),
            })
            .collect()
    }
}

/// A digest of bytes for the trace.
pub(crate) fn digest_bytes(bytes: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(bytes)
}

/// A digest of anything that can be hashed, the same in every process.
pub(crate) fn digest<T: Hash + ?Sized>(value: &T) -> u64 {
    let mut hasher = xxhash_rust::xxh3::Xxh3::new();
    value.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(a: u64) -> TraceRecord {
        TraceRecord { at: Nanos(1), kind: TraceKind::Dial, node: 0, core: NONE, a, b: 0 }
    }

    #[test]
    fn the_hash_depends_on_every_step_and_their_order() {
        let run = |steps: &[u64]| {
            let mut t = Trace::new(1);
            steps.iter().for_each(|&a| t.push(record(a)));
            t.hash()
        };
        assert_eq!(run(&[1, 2]), run(&[1, 2]));
        assert_ne!(run(&[1, 2]), run(&[2, 1]));
        assert_ne!(run(&[1, 2]), run(&[1, 2, 2]));
    }

    #[test]
    fn the_tail_is_bounded_and_notes_show_their_text() {
        let mut t = Trace::new(1);
        t.keep(2);
        for a in 0..5 {
            t.push(record(a));
        }
        t.note(Nanos(7), "three".into());
        let lines = t.lines(10);
        assert_eq!(lines.len(), 2);
        assert!(lines[0].contains("s4"), "{lines:?}");
        assert!(lines[1].contains("three"), "{lines:?}");
        assert_eq!(t.count(), 6);
    }
}
