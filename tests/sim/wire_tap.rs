#![forbid(unsafe_code)]
//! A look into the frames that arrive: no operation is ever submitted twice (R2.5-8, R4-7). Some
//! frames are made to arrive under fences that are not the receiver's, as from a peer with an
//! outdated view: they must not be executed (R2.1-3).

use std::collections::{BTreeMap, BTreeSet};

use homing::Message;
use homing::sim::{NodeIx, OpKey, SimRng, Tap};
use homing::wire::{Body, Frame, Record};

use super::ledger::Note;
use super::stage::Stage;

const HEADER: usize = 40;

struct Looker {
    stage: Stage,
    rng: SimRng,
    /// What each stream has brought of a frame that is not whole.
    streams: BTreeMap<u64, Vec<u8>>,
    arrived: BTreeSet<OpKey>,
    rids: Vec<String>,
}

/// The tap of a run.
pub(crate) fn tap(stage: Stage, seed: u64, rids: Vec<String>) -> Tap {
    let rng = SimRng::new(seed ^ 0x7A9);
    let mut looker =
        Looker { stage, rng, streams: BTreeMap::new(), arrived: BTreeSet::new(), rids };
    Box::new(move |_, _, to, stream, bytes| looker.look(to, stream, bytes))
}

impl Looker {
    fn look(&mut self, to: NodeIx, stream: u64, bytes: &mut [u8]) {
        let mut buffer = self.streams.remove(&stream).unwrap_or_default();
        let known = buffer.len();
        buffer.extend_from_slice(bytes);
        let mut at = 0;
        while let Some(len) = buffer[at..].first_chunk::<4>() {
            let len = u32::from_be_bytes(*len) as usize;
            let Some(frame) = buffer.get(at..at + len).filter(|_| len >= HEADER) else { break };
            if let Some((key, record_end)) = self.operation(frame) {
                if !self.arrived.insert(key) {
                    self.stage.history.complain(format!("{key:?} arrived twice: submitted again"));
                }
                // Only what has not been given to the node yet can be changed.
                if at + record_end >= known + 24 {
                    self.spoil(to, key, &mut bytes[at + record_end - 24 - known..]);
                }
            }
            at += len;
        }
        buffer.drain(..at);
        self.streams.insert(stream, buffer);
    }

    /// The operation a frame carries and where its record ends.
    fn operation(&self, bytes: &[u8]) -> Option<(OpKey, usize)> {
        let frame = Frame::decode(bytes, 1 << 24).ok()?;
        let Body::Record(Record::Message(_)) = &frame.body else { return None };
        let payload = frame.payload.as_ref()?;
        let note = Note::decode(payload.bytes).ok()?;
        let u16_at = |at: usize| usize::from(u16::from_be_bytes([bytes[at], bytes[at + 1]]));
        let record = bytes.get(24..28)?.try_into().ok().map(u32::from_be_bytes)? as usize;
        Some((note.key(), HEADER + u16_at(20) + record))
    }

    /// Changes a fence at the end of a record: node generation, tenure, lease generation.
    fn spoil(&mut self, to: NodeIx, key: OpKey, tail: &mut [u8]) {
        // The last look at a run is at nodes that do nothing wrong any more.
        let is_probe = key.sender >> 30 == 1;
        if is_probe || self.rng.below(1_000_000) >= self.stage.shape.stale_frames {
            return;
        }
        let at = if self.rng.below(2) == 0 { 0 } else { 16 };
        let Some(fence) = tail[at..].first_chunk_mut::<8>() else { return };
        *fence = (u64::from_be_bytes(*fence) + 1).to_be_bytes();
        let life = self.stage.life(&self.rids[usize::from(to.0)]);
        self.stage.history.stale_arrival(key, life);
    }
}
