#![forbid(unsafe_code)]
//! What a run did, as the checkers of [`super::check`] read it.
//!
//! Clients record what they submitted and how it ended, handlers what they executed, factories
//! that they ran; the world adds what happened to nodes, leases, links and the Store. A
//! [`Recorder`] is `Send` and may be kept inside an actor. Nothing here depends on a node.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::fault::NodeIx;
use super::task::SimTime;
use crate::env::LeaseView;
use crate::error::ErrorKind;
use crate::time::Nanos;

/// An object of a history, by the order of its first mention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectIx(pub u32);

/// One lifecycle of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Life {
    /// The node.
    pub node: NodeIx,
    /// Which of its lifecycles, from 1.
    pub life: u32,
}

impl Life {
    /// Before all others in order.
    pub(crate) const FIRST: Self = Self { node: NodeIx(0), life: 0 };
    /// After all others in order.
    pub(crate) const LAST: Self = Self { node: NodeIx(u16::MAX), life: u32::MAX };
}

impl std::fmt::Display for Life {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "n{} life {}", self.node.0, self.life)
    }
}

/// One operation: it travels in the payload, so that a handler can say what it executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpKey {
    /// The sender: one happens-before chain of calls.
    pub sender: u32,
    /// The object addressed.
    pub object: ObjectIx,
    /// Numbered by the sender per object, in the order of submission.
    pub seq: u64,
}

/// What kind of operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OpKind {
    /// One-way: its end is local admission or an error.
    Send,
    /// Its end is a reply or an error.
    Request,
}

/// An end the sender saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// A one-way message was admitted.
    Admitted,
    /// A reply; the handler said which operation it answers.
    Replied(OpKey),
    /// An error.
    Failed(ErrorKind),
}

/// One operation as its sender saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Send or request.
    pub kind: OpKind,
    /// Where it was submitted.
    pub source: Life,
    /// When.
    pub submitted: Nanos,
    /// Its deadline.
    pub deadline: Nanos,
    /// Every end, with its time. There must be one.
    pub endings: Vec<(Nanos, Ending)>,
    /// A turn made it: it learns of the end only when it runs, which it does not while its node's
    /// lease is lapsed (R5-16).
    pub in_turn: bool,
}

/// One run of a handler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Execution {
    /// What it executed.
    pub key: OpKey,
    /// The object's incarnation.
    pub generation: u64,
    /// The tenure.
    pub owner_generation: u64,
    /// Where.
    pub at: Life,
    /// When the handler began.
    pub from: Nanos,
    /// When it ended; `None` when it never did.
    pub to: Option<Nanos>,
}

/// One run of a factory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FactoryRun {
    /// Of which object.
    pub object: ObjectIx,
    /// For which incarnation.
    pub generation: u64,
    /// Where.
    pub at: Life,
    /// When.
    pub when: Nanos,
}

/// A change of an object's authority in the Store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Authority {
    /// Of which object.
    pub object: ObjectIx,
    /// When the commit was applied.
    pub when: Nanos,
    /// Incarnation, tenure and owner; `None` when the authority was removed.
    pub owner: Option<(u64, u64, Life)>,
}

/// A lease as it was published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseChange {
    /// Whose.
    pub of: Life,
    /// When.
    pub when: Nanos,
    /// What.
    pub view: LeaseView,
}

/// What trouble concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Concerns {
    /// Everybody.
    All,
    /// What a node does.
    Node(NodeIx),
    /// What passes between two nodes.
    Link(NodeIx, NodeIx),
    /// What a node asks the Store.
    Store(NodeIx),
}

/// Trouble: what may excuse an operation that did not end well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// Which.
    pub kind: TroubleKind,
    /// Whom.
    pub concerns: Concerns,
    /// From when.
    pub from: Nanos,
    /// Until when.
    pub to: Nanos,
}

/// Kinds of trouble.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TroubleKind {
    /// A stream of a link ended: R5-4's "a link broke". `to` is when both ends knew.
    LinkLost,
    /// A partition or a delayed link; nothing is lost by it alone.
    LinkSlow,
    /// A node or core stood still; nothing is lost by it alone.
    Paused,
    /// A Store call failed, was lost or was slow.
    Store,
    /// A process ended: R5-4's "a process died". `to` is when it came back.
    Died,
}

/// A recorded run. See the module's head.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// Names of objects.
    pub objects: Vec<String>,
    /// What was submitted.
    pub operations: BTreeMap<OpKey, Operation>,
    /// Endings of operations that were never submitted: always a violation.
    pub stray_endings: Vec<(OpKey, Nanos, Ending)>,
    /// What was executed, in order.
    pub executions: Vec<Execution>,
    /// Factories that ran, in order.
    pub factories: Vec<FactoryRun>,
    /// Incarnations that creators reserved in the Store, in order.
    pub reservations: Vec<(ObjectIx, u64, Nanos)>,
    /// Authority changes, in order.
    pub authorities: Vec<Authority>,
    /// Objects destroyed, closed or released: from here on their messages may be lost.
    pub removals: Vec<(ObjectIx, Nanos)>,
    /// Operations whose frame reached a node with fences that are not that node's own.
    pub stale_arrivals: Vec<(OpKey, Life, Nanos)>,
    /// Leases as published, in order.
    pub leases: Vec<LeaseChange>,
    /// When lifecycles ended by being killed or by themselves.
    pub deaths: Vec<(Life, Nanos)>,
    /// What went wrong around.
    pub troubles: Vec<Trouble>,
    /// What the test itself found wrong.
    pub complaints: Vec<(Nanos, String)>,
    /// When the run was over.
    pub end: Nanos,
    names: BTreeMap<String, u32>,
}

impl History {
    /// The object of this name.
    pub fn object(&mut self, name: &str) -> ObjectIx {
        if let Some(&ix) = self.names.get(name) {
            return ObjectIx(ix);
        }
        let ix = self.objects.len() as u32;
        self.objects.push(name.to_owned());
        self.names.insert(name.to_owned(), ix);
        ObjectIx(ix)
    }

    /// The name of an object.
    #[must_use]
    pub fn name(&self, object: ObjectIx) -> &str {
        self.objects.get(object.0 as usize).map_or("(unnamed)", |n| n)
    }
}

/// Records a history under the world's clock. Clones record into the same history.
#[derive(Clone, Debug)]
pub struct Recorder {
    time: SimTime,
    history: Arc<Mutex<History>>,
}

/// Names a running execution for [`Recorder::finish`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExecutionIx(usize);

impl Recorder {
    pub(crate) fn new(time: SimTime) -> Self {
        Self { time, history: Arc::default() }
    }

    fn lock(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A copy of what was recorded so far, ended now.
    #[must_use]
    pub fn snapshot(&self) -> History {
        let mut history = self.lock().clone();
        history.end = self.time.now();
        history
    }

    /// Looks at what was recorded so far without a copy. `look` must not record.
    pub fn with<T>(&self, look: impl FnOnce(&History) -> T) -> T {
        look(&self.lock())
    }

    /// The object of this name.
    #[must_use]
    pub fn object(&self, name: &str) -> ObjectIx {
        self.lock().object(name)
    }

    /// A sender submits. Call it just before the call that submits.
    pub fn submitted(&self, key: OpKey, kind: OpKind, source: Life, timeout: Duration) {
        let submitted = self.time.now();
        let operation = Operation {
            kind,
            source,
            submitted,
            deadline: submitted + timeout,
            endings: Vec::new(),
            in_turn: false,
        };
        if self.lock().operations.insert(key, operation).is_some() {
            self.complain(format!("the test submitted {key:?} twice"));
        }
    }

    /// Says that a submitted operation was made by a turn. See [`Operation::in_turn`].
    pub fn in_turn(&self, key: OpKey) {
        if let Some(operation) = self.lock().operations.get_mut(&key) {
            operation.in_turn = true;
        }
    }

    /// A sender saw an end.
    pub fn ended(&self, key: OpKey, ending: Ending) {
        let now = self.time.now();
        let mut history = self.lock();
        match history.operations.get_mut(&key) {
            Some(operation) => operation.endings.push((now, ending)),
            None => history.stray_endings.push((key, now, ending)),
        }
    }

    /// A handler begins.
    #[must_use = "give it to `finish` when the handler ends"]
    pub fn begin(
        &self,
        key: OpKey,
        generation: u64,
        owner_generation: u64,
        at: Life,
    ) -> ExecutionIx {
        let from = self.time.now();
        let mut history = self.lock();
        history.executions.push(Execution {
            key,
            generation,
            owner_generation,
            at,
            from,
            to: None,
        });
        ExecutionIx(history.executions.len() - 1)
    }

    /// A handler ends.
    pub fn finish(&self, execution: ExecutionIx) {
        let now = self.time.now();
        if let Some(e) = self.lock().executions.get_mut(execution.0) {
            e.to = Some(now);
        }
    }

    /// A handler that ends as it begins.
    pub fn executed(&self, key: OpKey, generation: u64, owner_generation: u64, at: Life) {
        let execution = self.begin(key, generation, owner_generation, at);
        self.finish(execution);
    }

    /// A factory runs.
    pub fn factory(&self, object: ObjectIx, generation: u64, at: Life) {
        let when = self.time.now();
        self.lock().factories.push(FactoryRun { object, generation, at, when });
    }

    /// A creator reserved an incarnation in the Store.
    pub fn reserved(&self, object: ObjectIx, generation: u64) {
        let when = self.time.now();
        self.lock().reservations.push((object, generation, when));
    }

    /// The authority of an object changed in the Store.
    pub fn authority(&self, object: ObjectIx, owner: Option<(u64, u64, Life)>) {
        let when = self.time.now();
        self.lock().authorities.push(Authority { object, when, owner });
    }

    /// An object is destroyed, closed or released from here on.
    pub fn removed(&self, object: ObjectIx) {
        let when = self.time.now();
        self.lock().removals.push((object, when));
    }

    /// The frame of an operation reached a node with fences that are not the node's own.
    pub fn stale_arrival(&self, key: OpKey, at: Life) {
        let when = self.time.now();
        self.lock().stale_arrivals.push((key, at, when));
    }

    /// Something is wrong that no checker looks for.
    pub fn complain(&self, text: impl Into<String>) {
        let when = self.time.now();
        self.lock().complaints.push((when, text.into()));
    }

    /// Something went wrong around, from now on for a while.
    pub fn trouble(&self, kind: TroubleKind, concerns: Concerns, lasts: Duration) {
        let from = self.time.now();
        self.lock().troubles.push(Trouble { kind, concerns, from, to: from + lasts });
    }

    pub(crate) fn store_trouble(&self, node: NodeIx, lasts: Duration) {
        self.trouble(TroubleKind::Store, Concerns::Store(node), lasts);
    }

    /// A link broke; it is over when [`Self::over`] is told the number.
    pub(crate) fn link_lost(&self, a: NodeIx, b: NodeIx) -> usize {
        let from = self.time.now();
        let mut history = self.lock();
        history.troubles.push(Trouble {
            kind: TroubleKind::LinkLost,
            concerns: Concerns::Link(a, b),
            from,
            to: Nanos::MAX,
        });
        history.troubles.len() - 1
    }

    pub(crate) fn over(&self, trouble: usize) {
        let now = self.time.now();
        if let Some(t) = self.lock().troubles.get_mut(trouble) {
            t.to = now.max(t.from);
        }
    }

    pub(crate) fn lease(&self, of: Life, view: LeaseView) {
        let when = self.time.now();
        self.lock().leases.push(LeaseChange { of, when, view });
    }

    pub(crate) fn died(&self, life: Life) {
        let when = self.time.now();
        let mut history = self.lock();
        history.deaths.push((life, when));
        history.troubles.push(Trouble {
            kind: TroubleKind::Died,
            concerns: Concerns::Node(life.node),
            from: when,
            to: Nanos::MAX,
        });
    }

    pub(crate) fn came_up(&self, node: NodeIx) {
        let now = self.time.now();
        for t in &mut self.lock().troubles {
            if t.kind == TroubleKind::Died && t.concerns == Concerns::Node(node) {
                t.to = t.to.min(now);
            }
        }
    }
}
