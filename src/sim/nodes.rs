#![forbid(unsafe_code)]
//! Nodes of a world: what they are, how a lifecycle begins and ends.
//!
//! A lifecycle takes its lease, then its factory builds the cores, then they run. It ends when it
//! is killed, or when all its cores and its lease thread have ended.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::core_env::{SimCore, SimEnv};
use super::fault::{Death, NodeIx};
use super::history::{Life, Recorder};
use super::keepers::Reports;
use super::state::{CoreState, Phase, SimPost, State};
use super::stores::StoreThread;
use super::task::SimTime;
use super::trace::{NONE, TraceKind};
use super::world::SimWorld;
use crate::env::{Endpoint, LeaseView, Post};
use crate::error::Error;
use crate::node::store_threads::LeaseControl;
use crate::store::leases::Started;
use crate::time::Nanos;

/// What a node of a world is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSpec {
    /// Its name in messages, and its rid.
    pub name: String,
    /// How many cores.
    pub cores: u16,
    /// Where it listens; every lifecycle at the same place.
    pub endpoint: Endpoint,
    /// How long its lease lasts and how often it is renewed; `None`: a lease that never ends,
    /// for which no Store is asked.
    pub lease: Option<(Duration, Duration)>,
}

impl NodeSpec {
    /// A node of this name and core count that listens on a loopback address of its own.
    ///
    /// # Panics
    /// When `cores` is 0.
    #[must_use]
    pub fn new(name: &str, cores: u16) -> Self {
        assert!(cores > 0, "a node has at least one core");
        let sum = super::trace::digest_bytes(name.as_bytes());
        let octet = |shift: u32| (sum >> shift) as u8;
        let ip = std::net::Ipv4Addr::new(127, octet(0), octet(8), octet(16));
        let port = 1024 + ((sum >> 24) % 60_000) as u16;
        Self {
            name: name.to_owned(),
            cores,
            endpoint: Endpoint::Tcp(std::net::SocketAddr::from((ip, port))),
            lease: None,
        }
    }

    /// The same node with a lease that its lease thread takes in the Store, before the node's
    /// cores are built, and renews.
    #[must_use]
    pub const fn with_lease(mut self, duration: Duration, renew_every: Duration) -> Self {
        self.lease = Some((duration, renew_every));
        self
    }
}

/// What the builder of a node's cores is given when a lifecycle of the node begins.
pub struct NodeStart<M: Send + 'static> {
    /// Which node.
    pub node: NodeIx,
    /// Which lifecycle, from 1.
    pub life: u32,
    /// What it is.
    pub spec: NodeSpec,
    /// The door for handles and wakers.
    pub poster: Arc<dyn Post<M>>,
    /// The clock.
    pub time: SimTime,
    /// The recorder of the world's history.
    pub history: Recorder,
    /// The lease as first published.
    pub lease: LeaseView,
    /// What the lease thread learned when it took the lease; `None` for a node without one.
    pub started: Option<Box<Started>>,
    /// What the node tells its lease thread.
    pub(crate) lease_control: Option<flume::Sender<LeaseControl>>,
    /// A random number for what a real node draws at its start (keys, a generated rid).
    pub seed: u64,
}

/// A node lifecycle as its factory built it.
pub struct Built<M: Send + 'static> {
    cores: Vec<Box<dyn SimCore<M>>>,
    reports: Option<Reports>,
}

impl<M: Send + 'static> Built<M> {
    /// A node of these cores.
    #[must_use]
    pub fn new(cores: Vec<Box<dyn SimCore<M>>>) -> Self {
        Self { cores, reports: None }
    }

    /// Takes what the lease thread reports from now on. `reports` may post mail; it must not call
    /// the world.
    #[must_use]
    pub(crate) fn with_reports(mut self, reports: Reports) -> Self {
        self.reports = Some(reports);
        self
    }
}

pub(super) type Factory<M> = Box<dyn FnMut(NodeStart<M>) -> Result<Built<M>, Error>>;

pub(super) struct Running<M: Send + 'static> {
    pub(super) env: SimEnv<M>,
    pub(super) core: Box<dyn SimCore<M>>,
}

pub(super) struct Host<M: Send + 'static> {
    pub(super) spec: NodeSpec,
    pub(super) factory: Factory<M>,
    pub(super) cores: Vec<Running<M>>,
}

impl<M: Send + 'static> SimWorld<M> {
    pub(super) fn start_node(&mut self, node: u16) {
        let mut state = self.state.borrow_mut();
        let n = &mut state.nodes[usize::from(node)];
        if n.phase != Phase::Down {
            return;
        }
        n.life += 1;
        n.phase = Phase::Starting;
        n.host_down = false;
        n.paused_until = None;
        n.store = StoreThread::default();
        let life = n.life;
        state.note_step(TraceKind::NodeStart, node, NONE, u64::from(life), 0);
        state.host_is_back(node);
        state.keeper_start(node);
    }

    /// The lease is held: the cores are built and run.
    pub(super) fn bring_up(&mut self, node: u16, life: u32) {
        let start = {
            let mut state = self.state.borrow_mut();
            let cores = self.hosts[usize::from(node)].spec.cores;
            let made: Vec<CoreState<M>> =
                (0..cores).map(|core| new_core(&mut state, cores, core)).collect();
            let seed = state.rng.next_u64();
            let outside = state.outside.clone();
            let Some(n) = state.alive(node, life) else { return };
            if n.phase != Phase::Starting {
                return;
            }
            n.cores = made;
            NodeStart {
                node: NodeIx(node),
                life,
                spec: self.hosts[usize::from(node)].spec.clone(),
                poster: Arc::new(SimPost { outside, node, life }),
                time: self.time.clone(),
                history: self.history.clone(),
                lease: n.lease,
                started: n.keeper.as_mut().and_then(|k| k.started.take()),
                lease_control: n.keeper.as_mut().and_then(|k| k.sender.take()),
                seed,
            }
        };
        let built = (self.hosts[usize::from(node)].factory)(start);
        match built {
            Ok(built) => self.install(node, life, built),
            Err(error) => {
                self.note(format!("n{node} did not start: {error}"));
                self.end_node(node, TraceKind::NodeStartFailed, Death::Eof);
            }
        }
    }

    fn install(&mut self, node: u16, life: u32, built: Built<M>) {
        let Built { cores, reports } = built;
        let host = &mut self.hosts[usize::from(node)];
        assert_eq!(
            cores.len(),
            usize::from(host.spec.cores),
            "the factory of {} must build as many cores as its spec says",
            host.spec.name
        );
        host.cores = cores
            .into_iter()
            .zip(0u16..)
            .map(|(built, core)| Running {
                env: SimEnv { state: self.state.clone(), node, life, core },
                core: built,
            })
            .collect();
        let count = host.cores.len();
        let mut state = self.state.borrow_mut();
        let n = &mut state.nodes[usize::from(node)];
        n.phase = Phase::Up;
        n.listening = true;
        if let Some(keeper) = &mut n.keeper {
            keeper.reports = reports;
        }
        state.note_step(TraceKind::NodeUp, node, NONE, u64::from(life), count as u64);
        self.history.came_up(NodeIx(node));
        let now = state.now;
        for core in 0..count {
            state.wake_core(node, core as u16, now);
        }
    }

    /// The process of a node ends: everything in it vanishes.
    pub(super) fn end_node(&mut self, node: u16, kind: TraceKind, death: Death) {
        let (life, tasks) = {
            let mut state = self.state.borrow_mut();
            let n = &mut state.nodes[usize::from(node)];
            if n.phase == Phase::Down {
                return;
            }
            n.phase = Phase::Down;
            n.listening = false;
            n.host_down = death == Death::Silent;
            n.paused_until = None;
            n.lease = LeaseView { admission_deadline: Nanos::ZERO, fenced: true };
            let life = n.life;
            state.note_step(kind, node, NONE, u64::from(life), death as u64);
            self.history.died(Life { node: NodeIx(node), life });
            state.drop_node_streams(node, life, death);
            let keeper = state.nodes[usize::from(node)].keeper.take();
            let tasks = self.tasks.borrow_mut().of_node((node, life));
            (life, (tasks, keeper))
        };
        // Clients in the process go first; they are not told anything. None of this may find the
        // world borrowed, since it drops what users wrote.
        drop(tasks);
        let cores = std::mem::take(&mut self.hosts[usize::from(node)].cores);
        drop(cores);
        let dead = std::mem::take(&mut self.state.borrow_mut().nodes[usize::from(node)].cores);
        drop(dead);
        debug_assert_eq!(self.state.borrow().nodes[usize::from(node)].life, life);
    }
}

fn new_core<M>(state: &mut State<M>, cores: u16, core: u16) -> CoreState<M> {
    let senders = usize::from(cores) + 1;
    CoreState {
        inbox: VecDeque::new(),
        run_at: None,
        park_until: Nanos::ZERO,
        busy_until: Nanos::ZERO,
        polls: 0,
        polled: 0,
        rng: state.rng.fork(u64::from(core)),
        ended: false,
        mail: (0..senders).map(|_| VecDeque::new()).collect(),
        mail_last: vec![Nanos::ZERO; senders],
    }
}
