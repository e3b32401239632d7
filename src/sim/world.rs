#![forbid(unsafe_code)]
//! The world: it advances virtual time, runs cores and tasks one after another, starts and ends
//! nodes, and carries out faults.

use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Context;
use std::time::Duration;

use super::check::{CheckConfig, check_all};
use super::fault::{Death, Fault, FaultPlan, NodeIx};
use super::handle::SimHandle;
use super::history::{Life, Recorder};
use super::nodes::{Built, Host, NodeSpec, NodeStart};
use super::state::{CommitWatch, Due, NodeState, Phase, State, Tap};
use super::stores::StoreThread;
use super::task::{SimTime, Task, Tasks};
use super::trace::{NONE, TraceKind};
use crate::env::{Endpoint, LeaseView, Planted};
use crate::error::Error;
use crate::ids::NodeRid;
use crate::location::LocationStore;
use crate::store::leases::KeeperConfig;
use crate::time::Nanos;

/// A simulated world of nodes. See [`crate::sim`] for how to write a simulation.
pub struct SimWorld<M: Send + 'static> {
    seed: u64,
    pub(super) state: Rc<RefCell<State<M>>>,
    pub(super) tasks: Rc<RefCell<Tasks>>,
    pub(super) hosts: Vec<Host<M>>,
    pub(super) time: SimTime,
    pub(super) history: Recorder,
}

/// How far [`SimWorld::block_on`] lets virtual time go before it calls the future stuck.
const BLOCK_ON_LIMIT: Duration = Duration::from_secs(3600);
/// Trace lines printed when a test fails.
const LINES_ON_FAILURE: usize = 60;

impl<M: Send + 'static> SimWorld<M> {
    /// An empty world. Everything that happens in it follows from the seed and from what the
    /// test does.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let state = State::new(seed);
        let (time, history) = (state.time.clone(), state.history.clone());
        let state = Rc::new(RefCell::new(state));
        Self { seed, state, tasks: Rc::default(), hosts: Vec::new(), time, history }
    }

    /// The seed.
    #[must_use]
    pub const fn seed(&self) -> u64 {
        self.seed
    }

    /// The virtual time now.
    #[must_use]
    pub fn now(&self) -> Nanos {
        self.time.now()
    }

    /// The clock, for tasks, actors and Store providers.
    #[must_use]
    pub fn time(&self) -> SimTime {
        self.time.clone()
    }

    /// A future that ends when `by` has passed in virtual time.
    #[must_use]
    pub fn sleep(&self, by: Duration) -> super::Sleep {
        self.time.sleep(by)
    }

    /// The recorder of this world's history.
    #[must_use]
    pub fn history(&self) -> Recorder {
        self.history.clone()
    }

    /// What tasks may do to the world.
    #[must_use]
    pub fn handle(&self) -> SimHandle<M> {
        SimHandle { state: self.state.clone(), tasks: self.tasks.clone(), time: self.time.clone() }
    }

    // ---- setting up ------------------------------------------------------------------------

    /// Gives the nodes their Store. Without one every Store call fails.
    pub fn set_store(&mut self, store: Arc<dyn LocationStore>) {
        self.state.borrow_mut().provider = Some(store);
    }

    /// Sets the rates of a plan and schedules its faults. Faults scheduled earlier stay.
    pub fn set_plan(&mut self, plan: FaultPlan) {
        self.state.borrow_mut().rates = plan.rates;
        for (at, fault) in plan.schedule {
            self.schedule(at, fault);
        }
    }

    /// Schedules one fault; one in the past happens at once.
    pub fn schedule(&mut self, at: Nanos, fault: Fault) {
        self.handle().schedule(at, fault);
    }

    /// Lets a fault happen next.
    pub fn inject(&mut self, fault: Fault) {
        self.schedule(self.now(), fault);
    }

    /// Plants a fault in the nodes' own code. See [`Planted`].
    pub fn plant(&mut self, fault: Planted) {
        self.state.borrow_mut().planted.insert(fault);
    }

    /// How many trace records are kept for a failure; 0 keeps none and is fastest.
    pub fn keep_trace(&mut self, records: usize) {
        self.state.borrow_mut().trace.keep(records);
    }

    /// Looks at every chunk of bytes that arrives anywhere, and may change it. `tap` must not call
    /// the world.
    pub fn on_bytes(&mut self, tap: Tap) {
        self.state.borrow_mut().tap = Some(tap);
    }

    /// Looks at every batch a node's call brought to the Store. `watch` must not call the world.
    pub fn on_commit(&mut self, watch: CommitWatch) {
        self.state.borrow_mut().commit_watch = Some(watch);
    }

    /// Adds a node and starts it. `factory` builds the cores of each of its lifecycles; when it
    /// fails, the node stays down.
    ///
    /// # Panics
    /// When the endpoint is another node's, or the lease breaks a rule of a node's builder.
    pub fn add_node(
        &mut self,
        spec: NodeSpec,
        factory: impl FnMut(NodeStart<M>) -> Result<Built<M>, Error> + 'static,
    ) -> NodeIx {
        let ix = NodeIx(u16::try_from(self.hosts.len()).expect("fewer than 65536 nodes"));
        let keeper_config = spec.lease.map(|(lease_duration, renew_interval)| {
            let rid = NodeRid::new(&spec.name).expect("a node's name is its rid: 1 to 255 bytes");
            let config = KeeperConfig::new(rid, 0, 0);
            let config = KeeperConfig { lease_duration, renew_interval, ..config };
            config.check().expect("the lease of a node follows the rules of a builder");
            config
        });
        let mut state = self.state.borrow_mut();
        assert!(
            state.nodes.iter().all(|n| n.endpoint != spec.endpoint),
            "endpoint {} is taken by another node of this world",
            spec.endpoint
        );
        state.nodes.push(NodeState {
            endpoint: spec.endpoint.clone(),
            core_count: spec.cores,
            life: 0,
            phase: Phase::Down,
            paused_until: None,
            host_down: false,
            listening: false,
            cores: Vec::new(),
            lease: LeaseView { admission_deadline: Nanos::ZERO, fenced: true },
            store: StoreThread::default(),
            keeper_config,
            keeper: None,
        });
        drop(state);
        self.hosts.push(Host { spec, factory: Box::new(factory), cores: Vec::new() });
        self.schedule(self.now(), Fault::Start(ix));
        ix
    }

    // ---- looking ---------------------------------------------------------------------------

    /// Whether the node's cores run (paused or not).
    #[must_use]
    pub fn is_up(&self, node: NodeIx) -> bool {
        self.state.borrow().nodes[usize::from(node.0)].phase == Phase::Up
    }

    /// The node's current or last lifecycle; 0 before its first.
    #[must_use]
    pub fn life(&self, node: NodeIx) -> Life {
        Life { node, life: self.state.borrow().nodes[usize::from(node.0)].life }
    }

    /// The node's lease as its lease thread published it last.
    #[must_use]
    pub fn lease(&self, node: NodeIx) -> LeaseView {
        self.state.borrow().nodes[usize::from(node.0)].lease
    }

    /// Where the node listens.
    #[must_use]
    pub fn endpoint(&self, node: NodeIx) -> Endpoint {
        self.hosts[usize::from(node.0)].spec.endpoint.clone()
    }

    /// Streams that exist, dials under way included.
    #[must_use]
    pub fn stream_count(&self) -> usize {
        self.state.borrow().streams.len()
    }

    /// A hash of everything that happened so far. The same seed and the same test give the same
    /// hash.
    #[must_use]
    pub fn trace_hash(&self) -> u128 {
        self.state.borrow().trace.hash()
    }

    /// Steps so far.
    #[must_use]
    pub fn step_count(&self) -> u64 {
        self.state.borrow().trace.count()
    }

    /// The last trace lines.
    #[must_use]
    pub fn trace_lines(&self, last: usize) -> Vec<String> {
        self.state.borrow().trace.lines(last)
    }

    /// Writes a line into the trace.
    pub fn note(&mut self, text: impl Into<String>) {
        self.handle().note(text);
    }

    /// Checks the history so far.
    ///
    /// # Panics
    /// When it violates anything: with the seed and the first violations; the last trace lines
    /// follow on standard error.
    pub fn assert_clean(&self, config: &CheckConfig) {
        const SHOWN: usize = 10;
        let violations = check_all(&self.history.snapshot(), config);
        if violations.is_empty() {
            return;
        }
        let shown: Vec<String> =
            violations.iter().take(SHOWN).map(|v| format!("\n  {v}")).collect();
        panic!(
            "seed {}: {} violations, the first of them:{}",
            self.seed,
            violations.len(),
            shown.concat()
        );
    }

    // ---- running ---------------------------------------------------------------------------

    /// Spawns a task. With a node it lives inside that node's current lifecycle: it stands still
    /// while the node is paused and is dropped when the node ends.
    pub fn spawn<F>(&mut self, node: Option<NodeIx>, future: F) -> Task<F::Output>
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        self.handle().spawn(node, future)
    }

    /// Runs everything until `future` ends.
    ///
    /// # Panics
    /// When nothing is left to do and the future has not ended, or after an hour of virtual time.
    pub fn block_on<F>(&mut self, future: F) -> F::Output
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        let task = self.spawn(None, future);
        let limit = self.now() + BLOCK_ON_LIMIT;
        let done = self.run_until(limit, |_| task.is_done());
        match task.take() {
            Some(value) if done => value,
            _ => panic!(
                "seed {}: the future did not end by {}; nothing more was due",
                self.seed,
                self.now()
            ),
        }
    }

    /// Runs until `condition` holds or `deadline` is reached, and says whether it holds. It is
    /// looked at after every step.
    pub fn run_until(&mut self, deadline: Nanos, mut condition: impl FnMut(&Self) -> bool) -> bool {
        loop {
            if condition(self) {
                return true;
            }
            if !self.step(deadline) {
                return false;
            }
        }
    }

    /// Lets virtual time pass.
    pub fn run_for(&mut self, by: Duration) {
        let deadline = self.now() + by;
        while self.step(deadline) {}
    }

    /// One step of what is due by `deadline`. When nothing is, moves the clock there and says
    /// `false`.
    pub fn step(&mut self, deadline: Nanos) -> bool {
        self.state.borrow_mut().drain_outside(); // what the test and the step before posted
        let ready = self.tasks.borrow_mut().pop_ready();
        if let Some((task, node)) = ready {
            self.poll_task(task, node);
            return true;
        }
        let queued = self.state.borrow().next_at();
        let slept = self.time.next_due();
        let next = match (queued, slept) {
            (Some(a), Some(b)) => a.min(b),
            (Some(a), None) | (None, Some(a)) => a,
            (None, None) => Nanos::MAX,
        };
        if next > deadline || next == Nanos::MAX {
            if deadline != Nanos::MAX && deadline > self.now() {
                self.state.borrow_mut().set_now(deadline);
            }
            return false;
        }
        let now = next.max(self.now());
        self.state.borrow_mut().set_now(now);
        if slept.is_some_and(|at| at <= now) {
            if let Some(number) = self.time.wake_one(now) {
                self.state.borrow_mut().note_step(TraceKind::Timer, NONE, NONE, number, 0);
            }
        } else if let Some((at, due)) = { self.state.borrow_mut().pop() } {
            self.happen(at, due);
        }
        true
    }

    fn poll_task(&mut self, task: u64, node: Option<(u16, u32)>) {
        if let Some((node, _)) = node {
            let mut state = self.state.borrow_mut();
            if let Some(until) = state.paused_until(node) {
                state.schedule(until, Due::WakeTask { task });
                return;
            }
        }
        let Some((mut future, waker)) = ({ self.tasks.borrow_mut().take(task) }) else { return };
        let ended = future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready();
        let back = if ended { None } else { Some(future) };
        let orphan = self.tasks.borrow_mut().put_back(task, back);
        drop(orphan);
        let mut state = self.state.borrow_mut();
        state.note_step(TraceKind::Task, node.map_or(NONE, |n| n.0), NONE, task, u64::from(ended));
    }

    fn happen(&mut self, at: Nanos, due: Due) {
        let mut state = self.state.borrow_mut();
        match due {
            Due::Run { node, life, core } => {
                drop(state);
                self.run_core(at, node, life, core);
            }
            Due::Mail { node, life, core, from } => state.mail_arrives(node, life, core, from),
            Due::Adopt { stream, side } => state.adopt(stream, side),
            Due::Deliver { stream, dir } => state.deliver(stream, dir),
            Due::DialArrives { stream } => state.dial_arrives(stream),
            Due::DialAnswered { stream } => state.dial_answered(stream),
            Due::StoreCall { seq } => state.store_call_due(seq),
            Due::StoreAnswer { seq } => state.store_answer_due(seq),
            Due::Resume { node } => state.resume(node),
            Due::Unblock { from, to } => state.unblock(from, to),
            Due::Keeper { node, life } => state.keeper_due(node, life),
            Due::StartAgain { node, life } => {
                let again = state.nodes[usize::from(node)].life == life;
                drop(state);
                if again {
                    self.start_node(node);
                }
            }
            Due::End { node, life, failed } => {
                let current = state.nodes[usize::from(node)].life == life;
                drop(state);
                if current {
                    let kind = if failed { TraceKind::NodeStartFailed } else { TraceKind::NodeEnd };
                    self.end_node(node, kind, Death::Eof);
                }
            }
            Due::BringUp { node, life } => {
                drop(state);
                self.bring_up(node, life);
            }
            Due::Fault { index } => {
                let fault = state.faults[index as usize].clone();
                drop(state);
                self.carry_out(&fault);
            }
            Due::WakeTask { task } => {
                drop(state);
                self.tasks.borrow().requeue(task);
            }
        }
    }

    fn run_core(&mut self, at: Nanos, node: u16, life: u32, core: u16) {
        let park = {
            let mut state = self.state.borrow_mut();
            let paused = state.is_paused(node);
            let now = state.now;
            let Some(c) = state.live_core(node, life, core) else { return };
            if c.run_at != Some(at) {
                return;
            }
            c.run_at = None;
            if paused {
                return; // the end of the pause wakes all cores
            }
            if c.busy_until > now {
                state.wake_core(node, core, now); // stalled meanwhile
                return;
            }
            c.park_until
        };
        let Some(r) = self.hosts[usize::from(node)].cores.get_mut(usize::from(core)) else {
            return;
        };
        let park = r.core.run_once(&mut r.env, park);
        let ended = r.core.has_ended();
        self.after_run(node, core, park, ended);
        if ended {
            self.state.borrow_mut().end_when_idle(node);
        }
    }

    fn after_run(&mut self, node: u16, core: u16, park: Nanos, ended: bool) {
        let mut state = self.state.borrow_mut();
        let (local, range) = (state.local, state.rates.iteration);
        state.drain_outside(); // by the core's own time
        if local > state.now {
            // What this core woke in its own later time happens then.
            let mut tasks = self.tasks.borrow_mut();
            while let Some((task, _)) = tasks.pop_ready() {
                state.schedule(local, Due::WakeTask { task });
            }
        }
        let c = &mut state.nodes[usize::from(node)].cores[usize::from(core)];
        c.busy_until = local + c.rng.duration(range).max(Duration::from_nanos(1));
        c.park_until = park;
        c.ended = ended;
        let busy_until = c.busy_until;
        if !c.inbox.is_empty() || park <= busy_until {
            state.wake_core(node, core, busy_until);
        } else if park != Nanos::MAX {
            state.wake_core(node, core, park);
        }
        state.note_run(node, core, park);
        let now = state.now;
        state.set_now(now);
    }

    // ---- faults ----------------------------------------------------------------------------

    fn carry_out(&mut self, fault: &Fault) {
        match fault {
            Fault::Start(node) => self.start_node(node.0),
            Fault::Kill(node, death) => self.end_node(node.0, TraceKind::Kill, *death),
            other => self.state.borrow_mut().strike(other),
        }
    }
}

impl<M: Send + 'static> Drop for SimWorld<M> {
    /// When a test fails, says how to see it again.
    fn drop(&mut self) {
        if std::thread::panicking()
            && let Ok(state) = self.state.try_borrow()
        {
            for line in state.trace.lines(LINES_ON_FAILURE) {
                eprintln!("  {line}");
            }
            eprintln!(
                "simulated world: seed {} failed at {} after {} steps, trace hash {:032x}",
                self.seed,
                state.now,
                state.trace.count(),
                state.trace.hash()
            );
        }
        // What users wrote is dropped while nothing is borrowed; clients first, as in a kill.
        let tasks = self.tasks.try_borrow_mut().map(|mut tasks| tasks.clear());
        drop(tasks);
        self.hosts.clear();
    }
}

impl<M: Send + 'static> std::fmt::Debug for SimWorld<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SimWorld")
            .field("seed", &self.seed)
            .field("now", &self.now())
            .field("tasks", &self.tasks.borrow().len())
            .finish_non_exhaustive()
    }
}
