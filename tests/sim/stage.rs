#![forbid(unsafe_code)]
//! What the Actors and clients of a run share. A run lives on one thread, and Actors are made by
//! the node: they find the stage there.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use homing::prelude::*;
use homing::sim::{Ending, Life, ObjectIx, OpKey, OpKind, Recorder, SimNode, SimTime};
use homing::time::Nanos;

use super::ledger::Done;
use super::shape::Shape;

/// A request whose end says that an Actor is not where it was.
#[derive(Clone, Debug)]
pub(crate) struct AbsentEnd {
    pub(crate) key: OpKey,
    pub(crate) source: Life,
    /// Where it was sent and is not; `None` when the Store had no owner.
    pub(crate) rid: Option<String>,
    pub(crate) submitted: Nanos,
    pub(crate) ended: Nanos,
}

/// What is known beside the history.
#[derive(Default)]
pub(crate) struct Facts {
    seqs: BTreeMap<(u32, ObjectIx), u64>,
    turn_senders: BTreeMap<(ObjectIx, u64), u32>,
    /// Operations that may run out of time without anything going wrong.
    pub(crate) hasty: BTreeSet<OpKey>,
    /// Requests whose callers gave them up, and creations, by lifecycle.
    pub(crate) cancelled: BTreeMap<Life, u64>,
    pub(crate) creations: BTreeMap<Life, u64>,
    pub(crate) absent_ends: Vec<AbsentEnd>,
    /// Incarnations somebody was told to have created, and to exist.
    pub(crate) created: Vec<(ObjectIx, u64)>,
    pub(crate) existing: Vec<(ObjectIx, u64)>,
    /// Incarnations somebody asked to end.
    pub(crate) destroyed: BTreeSet<(ObjectIx, u64)>,
    /// Nodes that were shut down in order.
    pub(crate) shut_down: BTreeSet<Life>,
    /// Creations and destructions that failed: whose, when and how.
    pub(crate) refusals: Vec<(Nanos, String)>,
}

/// See the module's head.
#[derive(Clone)]
pub(crate) struct Stage {
    pub(crate) history: Recorder,
    pub(crate) time: SimTime,
    pub(crate) shape: Rc<Shape>,
    /// The ids that are addressed now, by slot, and all there ever were.
    pub(crate) ids: Rc<RefCell<Vec<String>>>,
    pub(crate) all_ids: Rc<RefCell<Vec<String>>>,
    pub(crate) nodes: Rc<RefCell<BTreeMap<String, SimNode>>>,
    pub(crate) facts: Rc<RefCell<Facts>>,
}

thread_local! {
    static STAGE: RefCell<Option<Stage>> = const { RefCell::new(None) };
}

/// The stage of the run on this thread.
pub(crate) fn stage() -> Stage {
    STAGE.with(|s| s.borrow().clone()).expect("a run is on its way on this thread")
}

impl Stage {
    pub(crate) fn new(history: Recorder, time: SimTime, shape: &Shape) -> Self {
        let ids: Vec<String> = (0..shape.objects).map(|slot| id_of(slot, 0)).collect();
        let stage = Self {
            history,
            time,
            shape: Rc::new(shape.clone()),
            all_ids: Rc::new(RefCell::new(ids.clone())),
            ids: Rc::new(RefCell::new(ids)),
            nodes: Rc::default(),
            facts: Rc::default(),
        };
        STAGE.with(|s| *s.borrow_mut() = Some(stage.clone()));
        stage
    }

    /// The current lifecycle of a node.
    pub(crate) fn life(&self, rid: &str) -> Life {
        self.nodes.borrow()[rid].life()
    }

    /// The id of a slot is given up, because its owner is gone for good; another takes its place.
    pub(crate) fn replace_id(&self, gone: &str) {
        let mut ids = self.ids.borrow_mut();
        let Some(at) = ids.iter().position(|id| id == gone) else { return };
        let mut all = self.all_ids.borrow_mut();
        let id = id_of(at as u64, all.len() as u64);
        all.push(id.clone());
        ids[at] = id;
    }

    /// The next operation of a sender to an object.
    pub(crate) fn next_key(&self, sender: u32, id: &str) -> OpKey {
        let object = self.history.object(id);
        let mut facts = self.facts.borrow_mut();
        let seq = facts.seqs.entry((sender, object)).or_default();
        *seq += 1;
        OpKey { sender, object, seq: *seq }
    }

    /// The number under which an incarnation sends.
    pub(crate) fn turn_sender(&self, object: ObjectIx, generation: u64) -> u32 {
        let mut facts = self.facts.borrow_mut();
        let next = 0x8000_0000 | facts.turn_senders.len() as u32;
        *facts.turn_senders.entry((object, generation)).or_insert(next)
    }

    /// Records that a request was submitted; `Some` of a shorter time is a hasty one.
    pub(crate) fn hasty(&self, key: OpKey) {
        self.facts.borrow_mut().hasty.insert(key);
    }

    /// Records the end of an operation.
    pub(crate) fn ended(&self, key: OpKey, source: Life, end: Result<Option<Done>>) {
        let ending = match end {
            Ok(None) => Ending::Admitted,
            Ok(Some(done)) => Ending::Replied(done.key()),
            Err(e) => {
                self.note_absent(key, source, &e);
                Ending::Failed(e.kind())
            }
        };
        self.history.ended(key, ending);
    }

    fn note_absent(&self, key: OpKey, source: Life, e: &Error) {
        let sent = e.text().split_once(" any more: no such object is here");
        let sent = sent.and_then(|(before, _)| before.split_once(" is not at node "));
        let rid = sent.map(|(_, rid)| rid.to_owned());
        if rid.is_none() && e.kind() != ErrorKind::NotFound {
            return;
        }
        let submitted = self.history.with(|h| h.operations.get(&key).map(|o| o.submitted));
        let (Some(submitted), ended) = (submitted, self.time.now()) else { return };
        let end = AbsentEnd { key, source, rid, submitted, ended };
        self.facts.borrow_mut().absent_ends.push(end);
    }

    /// Submits one operation to the history.
    pub(crate) fn submitted(&self, key: OpKey, kind: OpKind, source: Life, timeout: Duration) {
        self.history.submitted(key, kind, source, timeout);
    }
}

fn id_of(slot: u64, epoch: u64) -> String {
    format!("o{slot:02}-{epoch}")
}
