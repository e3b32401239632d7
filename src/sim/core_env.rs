#![forbid(unsafe_code)]
//! The simulated door: [`Env`] for one core of one node of a world.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::fault::NodeIx;
use super::state::{SimPost, State};
use super::trace::TraceKind;
use crate::env::{ConnId, Endpoint, Env, Event, Failpoint, LeaseView, Planted, Post, StoreOp};
use crate::time::Nanos;

/// A core that a world can run: one turn of the loop of DESIGN §4.
///
/// A real thread does `loop { park = core.run_once(&mut env, park) }`; the world calls `run_once`
/// when something is due for the core or its time to park is over.
pub trait SimCore<M: Send + 'static> {
    /// Polls `env` with `park_until`, handles what happened, and says until when it would park:
    /// [`Nanos::ZERO`] when it has more to do at once, [`Nanos::MAX`] when only an event can wake
    /// it.
    fn run_once(&mut self, env: &mut SimEnv<M>, park_until: Nanos) -> Nanos;

    /// Whether the core has ended by itself. It is not run again then.
    fn has_ended(&self) -> bool {
        false
    }
}

/// [`Env`] in a world.
pub struct SimEnv<M: Send + 'static> {
    pub(crate) state: Rc<RefCell<State<M>>>,
    pub(crate) node: u16,
    pub(crate) life: u32,
    pub(crate) core: u16,
}

impl<M: Send + 'static> SimEnv<M> {
    /// The node this core belongs to.
    #[must_use]
    pub const fn node(&self) -> NodeIx {
        NodeIx(self.node)
    }

    /// The lifecycle of the node, from 1.
    #[must_use]
    pub const fn life(&self) -> u32 {
        self.life
    }
}

impl<M: Send + 'static> Env for SimEnv<M> {
    type Mail = M;

    fn core(&self) -> u16 {
        self.core
    }

    fn now(&mut self) -> Nanos {
        let mut state = self.state.borrow_mut();
        let (rate, range) = (state.rates.jump_per_million, state.rates.stall);
        if rate > 0 {
            let rng = &mut state.nodes[usize::from(self.node)].cores[usize::from(self.core)].rng;
            if rng.chance(rate) {
                let by = rng.duration(range);
                state.lose_time(self.node, self.core, by);
            }
        }
        state.local
    }

    fn random(&mut self) -> u64 {
        let mut state = self.state.borrow_mut();
        state.nodes[usize::from(self.node)].cores[usize::from(self.core)].rng.next_u64()
    }

    fn lease(&self) -> LeaseView {
        self.state.borrow().nodes[usize::from(self.node)].lease
    }

    fn poll(&mut self, events: &mut Vec<Event<M>>, _park_until: Nanos) {
        self.state.borrow_mut().poll(self.node, self.core, events);
    }

    fn mail(&mut self, to: u16, mail: M) {
        self.state.borrow_mut().send_mail(self.node, self.life, to, self.core, mail);
    }

    fn poster(&self) -> Arc<dyn Post<M>> {
        let outside = self.state.borrow().outside.clone();
        Arc::new(SimPost { outside, node: self.node, life: self.life })
    }

    fn store(&mut self, token: u64, op: StoreOp, budget: Duration) {
        self.state.borrow_mut().store_ask(self.node, self.core, token, op, budget);
    }

    fn dial(&mut self, endpoint: &Endpoint) -> ConnId {
        self.state.borrow_mut().dial(self.node, self.core, endpoint)
    }

    fn write(&mut self, conn: ConnId, bytes: &mut Vec<u8>) {
        let mut state = self.state.borrow_mut();
        state.assert_own(conn, self.node, self.core);
        state.write(conn, bytes);
    }

    fn unsent_bytes(&self, conn: ConnId) -> usize {
        let state = self.state.borrow();
        state.assert_own(conn, self.node, self.core);
        state.unsent_bytes(conn)
    }

    fn close(&mut self, conn: ConnId, flush: bool) {
        let mut state = self.state.borrow_mut();
        state.assert_own(conn, self.node, self.core);
        state.close(conn, flush);
    }

    fn hand_over(&mut self, conn: ConnId, to: u16, tag: u64, unread: Vec<u8>) {
        let mut state = self.state.borrow_mut();
        state.assert_own(conn, self.node, self.core);
        assert!(to < state.nodes[usize::from(self.node)].core_count, "core {to} does not exist");
        state.hand_over(conn, to, tag, unread);
    }

    fn stop_listening(&mut self) {
        let mut state = self.state.borrow_mut();
        state.nodes[usize::from(self.node)].listening = false;
        state.note_step(TraceKind::StopListening, self.node, self.core, 0, 0);
    }

    fn reached(&mut self, point: Failpoint) {
        let mut state = self.state.borrow_mut();
        let (rate, range) = (state.rates.failpoint_per_million, state.rates.failpoint);
        if rate == 0 {
            return;
        }
        let rng = &mut state.nodes[usize::from(self.node)].cores[usize::from(self.core)].rng;
        if rng.chance(rate) {
            let by = rng.duration(range);
            state.stop_at(point, self.node, self.core, by);
        }
    }

    fn planted(&self, fault: Planted) -> bool {
        let state = self.state.borrow();
        !state.planted.is_empty() && state.planted.contains(&fault)
    }
}

impl<M: Send + 'static> std::fmt::Debug for SimEnv<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SimEnv(n{}.{} life {})", self.node, self.core, self.life)
    }
}
