#![forbid(unsafe_code)]
//! The real [`Env`]: the kernel's clock, randomness, sockets and threads behind the one door.
//!
//! A [`RealNode`] is made on the thread that starts the node: per core a driver and a mailbox, all
//! of them before any thread runs, so that a failure leaves nothing half started. Each [`RealEnv`]
//! is then moved to its core's thread.
//!
//! # What waits for what
//! A core waits in one place only, its driver's poll. Mail from whatever thread goes to the core's
//! mailbox, which wakes the driver when the core sleeps ([`crate::exec::doorbell`] has the argument
//! why no wake-up is lost). Store answers are mail too. What one core sends another, streams that
//! are handed over included, goes through a ring of the two ([`crate::exec::pair`]), which the
//! sender makes when it has something for that core the first time; so mail of a core to another
//! keeps its order, and takes no memory.
//!
//! # When it ends
//! A core that ends drops its [`RealEnv`]: sockets close, mail in the mailbox and mail that still
//! comes is dropped, and with it the streams that were on their way to this core.

mod rings;
mod sources;
mod threads;

use std::sync::Arc;
use std::time::Duration;

use crate::env::{ConnId, Endpoint, Env, Event, Failpoint, LeaseView, Post, StoreAnswer, StoreOp};
use crate::error::Error;
use crate::exec::idle::{Idle, IdlePolicy};
use crate::exec::mailbox::{MailSender, Mailbox, mailbox};
use crate::exec::pair::{PairReceiver, RING_SLOTS};
use crate::limits::MAX_CORES;
use crate::time::Nanos;
use crate::transport::chosen::Chosen;
use crate::transport::driver::{Driver, StreamParts};
use crate::transport::listen::BoundListener;

pub use crate::store::boottime;
pub(crate) use sources::{max_descriptors, random_words};
pub use threads::spawn_core;

use rings::Rings;
use sources::{LoadReader, RandomSource};

/// Mail taken out of the mailbox in one poll, at most; what is in the rings comes on top.
const MAX_MAIL: usize = 512;
/// How long a core that has work of its own goes on without asking the driver: asking is a system
/// call, and a round of the loop may be shorter than one.
const ASK_INTERVAL: Duration = Duration::from_micros(20);

/// Hands a Store call to the Store threads: core, token, call, deadline. Never blocks.
pub type SubmitStore = Arc<dyn Fn(u16, u64, StoreOp, Nanos) + Send + Sync>;
/// Brings a Store answer to a core: core, token, answer. From any thread; an answer to a core that
/// has ended is dropped.
pub type DeliverStore = Arc<dyn Fn(u16, u64, StoreAnswer) + Send + Sync>;
/// Reads what the lease thread published last.
pub type ReadLease = Arc<dyn Fn() -> LeaseView + Send + Sync>;

/// A step of a protocol was reached, on any thread. Nothing without the feature `failpoints`.
#[inline]
pub(super) fn reached(point: Failpoint) {
    #[cfg(feature = "failpoints")]
    super::failpoints::reached(point);
    #[cfg(not(feature = "failpoints"))]
    let _ = point;
}

/// What a node is made of, for [`RealNode::new`].
pub struct RealParts {
    /// Number of cores.
    pub cores: u16,
    /// Where core 0 accepts, if anywhere.
    pub listener: Option<BoundListener>,
    /// The way to the Store threads.
    pub submit_store: SubmitStore,
    /// The node's lease.
    pub read_lease: ReadLease,
    /// What cores do when they have nothing to do.
    pub idle: Idle,
}

/// The doors of a node's cores, and the ways in for its other threads.
pub struct RealNode<M, D = Chosen> {
    /// One per core, in order; each is moved to its core's thread.
    pub envs: Vec<RealEnv<M, D>>,
    /// Mail from application threads.
    pub poster: Arc<dyn Post<M>>,
    /// Store answers.
    pub deliver_store: DeliverStore,
}

/// The real door of one core. See the module's head.
pub struct RealEnv<M, D = Chosen> {
    core: u16,
    driver: D,
    mailbox: Mailbox<Item<M>>,
    /// Rings from other cores. They go after the mailbox, which says that the core has ended.
    from_cores: Vec<(u16, PairReceiver<Item<M>>)>,
    /// The ways to other cores.
    rings: Rings<M>,
    /// What was taken out of the mailbox and is not given yet; empty between two rounds.
    taken: Vec<Item<M>>,
    mailboxes: Arc<Mailboxes<M>>,
    submit_store: SubmitStore,
    read_lease: ReadLease,
    random: RandomSource,
    policy: IdlePolicy,
    load: LoadReader,
    stores: OutstandingStores,
    /// When the driver was asked last.
    asked_at: Nanos,
    /// The clock as it was read since the last poll, if it was.
    now: Option<Nanos>,
}

/// What comes to a core through its mailbox.
#[allow(clippy::large_enum_variant)] // the large one is the frequent one
enum Item<M> {
    Mail(M),
    Store {
        token: u64,
        answer: StoreAnswer,
    },
    Adopt {
        parts: StreamParts,
        tag: u64,
        unread: Vec<u8>,
    },
    /// Another core's ring to this one.
    Ring {
        from: u16,
        ring: PairReceiver<Item<M>>,
    },
}

/// Store calls without an answer so far.
#[derive(Clone, Copy, Debug, Default)]
struct OutstandingStores {
    calls: u32,
    /// The latest deadline: from then on nobody waits for those that are left.
    until: Nanos,
}

/// The mailboxes of all cores.
struct Mailboxes<M> {
    senders: Box<[MailSender<Item<M>>]>,
}

impl<M> Mailboxes<M> {
    fn send(&self, to: u16, item: Item<M>) {
        // A core that does not exist is like one that has ended.
        if let Some(sender) = self.senders.get(usize::from(to)) {
            sender.send(item);
        }
    }
}

impl<M: Send + 'static> Post<M> for Mailboxes<M> {
    fn post(&self, to: u16, mail: M) {
        self.send(to, Item::Mail(mail));
    }
}

impl<M: Send + 'static, D: Driver> RealNode<M, D> {
    /// Makes drivers and mailboxes. Core 0 accepts from now on (events wait until it polls).
    ///
    /// # Errors
    /// `NotConfigured` when `cores` is outside `1..=256`; `InternalFailure` when the kernel refuses
    /// what a driver needs.
    pub fn new(parts: RealParts) -> Result<Self, Error> {
        check_cores(parts.cores)?;
        let drivers = (0..parts.cores).map(|_| D::new()).collect::<Result<_, Error>>()?;
        Self::with_drivers(parts, drivers)
    }

    /// As [`RealNode::new`], with drivers that are there already, one per core.
    ///
    /// # Errors
    /// As [`RealNode::new`].
    pub fn with_drivers(parts: RealParts, of_cores: Vec<D>) -> Result<Self, Error> {
        let RealParts { cores, listener, submit_store, read_lease, idle } = parts;
        check_cores(cores)?;
        assert_eq!(of_cores.len(), usize::from(cores), "one driver per core");
        let mut drivers = Vec::new();
        let mut senders = Vec::new();
        for driver in of_cores {
            let waker = driver.waker();
            let (sender, mailbox) = mailbox(move || waker.wake());
            drivers.push((driver, mailbox));
            senders.push(sender);
        }
        if let Some(listener) = listener {
            drivers[0].0.listen(listener)?;
        }
        let mailboxes = Arc::new(Mailboxes { senders: senders.into() });
        let processors = threads::processors();
        let env = |(core, (driver, mailbox))| {
            Ok(RealEnv {
                core,
                driver,
                mailbox,
                from_cores: Vec::new(),
                taken: Vec::new(),
                rings: Rings::new(core, mailboxes.clone()),
                mailboxes: mailboxes.clone(),
                submit_store: submit_store.clone(),
                read_lease: read_lease.clone(),
                random: RandomSource::new()?,
                policy: IdlePolicy::new(idle, processors),
                load: LoadReader::new(),
                stores: OutstandingStores::default(),
                asked_at: Nanos::ZERO,
                now: None,
            })
        };
        let envs = (0..).zip(drivers).map(env).collect::<Result<_, Error>>()?;
        let door = mailboxes.clone();
        let deliver_store: DeliverStore =
            Arc::new(move |core, token, answer| door.send(core, Item::Store { token, answer }));
        Ok(Self { envs, poster: mailboxes, deliver_store })
    }
}

fn check_cores(cores: u16) -> Result<(), Error> {
    if cores == 0 || cores > MAX_CORES {
        return Err(Error::not_configured(format!(
            "cores is {cores}; it must be 1 to {MAX_CORES}"
        )));
    }
    Ok(())
}

impl<M: Send + 'static, D: Driver> Env for RealEnv<M, D> {
    type Mail = M;

    fn core(&self) -> u16 {
        self.core
    }

    fn now(&mut self) -> Nanos {
        *self.now.insert(boottime())
    }

    fn random(&mut self) -> u64 {
        self.random.next()
    }

    fn lease(&self) -> LeaseView {
        (self.read_lease)()
    }

    fn poll(&mut self, events: &mut Vec<Event<M>>, park_until: Nanos) {
        self.rings.flush();
        let before = events.len();
        // A core with work of its own has read the clock at the end of its round, and reads it
        // again after this.
        let read = self.now.take().filter(|_| park_until == Nanos::ZERO);
        let now = read.unwrap_or_else(boottime);
        if now < park_until || self.driver.has_due() || now.since(self.asked_at) >= ASK_INTERVAL {
            self.asked_at = now;
            self.driver.poll(events, now, None);
        }
        self.take_mail(events);
        if events.len() == before && now < park_until {
            self.idle(events, now, park_until);
        }
    }

    fn mail(&mut self, to: u16, mail: M) {
        self.rings.send(to, Item::Mail(mail));
    }

    fn poster(&self) -> Arc<dyn Post<M>> {
        self.mailboxes.clone()
    }

    fn store(&mut self, token: u64, op: StoreOp, budget: Duration) {
        let deadline = boottime() + budget;
        self.stores.calls += 1;
        self.stores.until = self.stores.until.max(deadline);
        (self.submit_store)(self.core, token, op, deadline);
    }

    fn dial(&mut self, endpoint: &Endpoint) -> ConnId {
        self.driver.dial(endpoint)
    }

    fn write(&mut self, conn: ConnId, bytes: &mut Vec<u8>) {
        self.driver.write(conn, bytes);
    }

    fn unsent_bytes(&self, conn: ConnId) -> usize {
        self.driver.unsent_bytes(conn)
    }

    fn close(&mut self, conn: ConnId, flush: bool) {
        self.driver.close(conn, flush);
    }

    fn hand_over(&mut self, conn: ConnId, to: u16, tag: u64, mut unread: Vec<u8>) {
        if let Some(parts) = self.driver.take_out(conn, &mut unread) {
            self.rings.send(to, Item::Adopt { parts, tag, unread });
        }
    }

    fn stop_listening(&mut self) {
        self.driver.stop_listening();
    }

    fn reached(&mut self, point: Failpoint) {
        reached(point);
    }
}

impl<M: Send + 'static, D: Driver> RealEnv<M, D> {
    /// The core's driver.
    #[must_use]
    pub fn driver(&self) -> &D {
        &self.driver
    }

    /// Announces sleep. `true`: whatever comes wakes the driver, room in a full ring included.
    fn prepare_sleep(&mut self) -> bool {
        if !self.mailbox.prepare_sleep() {
            return false;
        }
        let is_quiet =
            self.from_cores.iter().all(|(_, ring)| ring.is_empty()) && self.rings.prepare_sleep();
        if !is_quiet {
            self.mailbox.awake();
            self.rings.flush();
        }
        is_quiet
    }

    /// Takes mail in. The mailbox is looked at first and given last: whatever was in a ring before
    /// something was put into the mailbox is seen by the look at the rings that comes between, and
    /// is not overtaken.
    fn take_mail(&mut self, events: &mut Vec<Event<M>>) {
        for _ in 0..MAX_MAIL {
            match self.mailbox.take() {
                None => break,
                Some(Item::Ring { from, ring }) => self.from_cores.push((from, ring)),
                Some(item) => self.taken.push(item),
            }
        }
        for (from, ring) in &mut self.from_cores {
            let before = events.len();
            while events.len() - before < RING_SLOTS
                && let Some(item) = ring.take()
            {
                events.extend(event_of(item, &mut self.driver, &mut self.stores));
            }
            if events.len() > before && ring.has_to_wake_sender() {
                self.mailboxes.senders[usize::from(*from)].wake();
            }
        }
        for item in self.taken.drain(..) {
            events.extend(event_of(item, &mut self.driver, &mut self.stores));
        }
    }

    /// Nothing happened until `start`: spins, then parks, until something does or `park_until`.
    fn idle(&mut self, events: &mut Vec<Event<M>>, start: Nanos, park_until: Nanos) {
        let before = events.len();
        let budget = self.policy.spin_budget(start, || self.load.runnable());
        let spin_until = budget.map_or(Nanos::MAX, |budget| start + budget);
        let mut now = start;
        while events.len() == before && now < park_until {
            if now < spin_until {
                self.give_way(now);
                self.driver.poll(events, now, None);
            } else if self.prepare_sleep() {
                self.driver.poll(events, now, Some(park_until));
                self.mailbox.awake();
            }
            self.rings.flush();
            self.take_mail(events);
            now = boottime();
        }
        self.policy.idle_ended(now.since(start));
    }

    /// Between two looks of a spinning core. While a Store call is outstanding the Store thread may
    /// need this very processor.
    fn give_way(&mut self, now: Nanos) {
        if self.stores.calls == 0 {
            std::hint::spin_loop();
        } else if now < self.stores.until {
            rustix::thread::sched_yield();
        } else {
            self.stores.calls = 0;
        }
    }
}

/// What the core's loop is told of an item.
fn event_of<M, D: Driver>(
    item: Item<M>,
    driver: &mut D,
    stores: &mut OutstandingStores,
) -> Option<Event<M>> {
    Some(match item {
        Item::Mail(mail) => Event::Mail(mail),
        Item::Store { token, answer } => {
            stores.calls = stores.calls.saturating_sub(1);
            Event::Store { token, answer }
        }
        Item::Adopt { parts, tag, unread } => {
            Event::Adopted { conn: driver.adopt(parts), tag, unread }
        }
        // Rings come through the mailbox, and stay with the core.
        Item::Ring { .. } => return None,
    })
}

impl<M, D> std::fmt::Debug for RealEnv<M, D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RealEnv")
            .field("core", &self.core)
            .field("stores", &self.stores)
            .finish_non_exhaustive()
    }
}
