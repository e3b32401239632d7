#![forbid(unsafe_code)]
//! What tasks hold of their world.

use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;

use super::fault::{Fault, NodeIx};
use super::state::{Due, State};
use super::task::{SimTime, Task, Tasks};
use crate::time::Nanos;

/// What a task may do to its world. Clones are of the same world.
pub struct SimHandle<M: Send + 'static> {
    pub(super) state: Rc<RefCell<State<M>>>,
    pub(super) tasks: Rc<RefCell<Tasks>>,
    pub(super) time: SimTime,
}

impl<M: Send + 'static> SimHandle<M> {
    /// The clock.
    #[must_use]
    pub const fn time(&self) -> &SimTime {
        &self.time
    }

    /// Spawns a task; see [`super::SimWorld::spawn`].
    pub fn spawn<F>(&self, node: Option<NodeIx>, future: F) -> Task<F::Output>
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        let life = node.map(|n| (n.0, self.state.borrow().nodes[usize::from(n.0)].life));
        self.tasks.borrow_mut().spawn(life, future)
    }

    /// Schedules one fault; one in the past happens next.
    pub fn schedule(&self, at: Nanos, fault: Fault) {
        let mut state = self.state.borrow_mut();
        let index = state.faults.len() as u32;
        state.faults.push(fault);
        state.schedule(at, Due::Fault { index });
    }

    /// Lets a fault happen next.
    pub fn inject(&self, fault: Fault) {
        self.schedule(Nanos::ZERO, fault);
    }

    /// Writes a line into the trace.
    pub fn note(&self, text: impl Into<String>) {
        let mut state = self.state.borrow_mut();
        let at = state.local;
        state.trace.note(at, text.into());
    }
}

impl<M: Send + 'static> Clone for SimHandle<M> {
    fn clone(&self) -> Self {
        Self { state: self.state.clone(), tasks: self.tasks.clone(), time: self.time.clone() }
    }
}

impl<M: Send + 'static> std::fmt::Debug for SimHandle<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SimHandle").field("now", &self.time.now()).finish_non_exhaustive()
    }
}
