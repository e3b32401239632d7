#![forbid(unsafe_code)]
//! What every peer is asked to do, and the segment that is made of it.
//!
//! The work is that of the subject: the same message, the same answer, the same checks, by the
//! same caller's code. Only how it travels is the peer's.

use std::cell::Cell;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Sender};

use homing::Result;
use tokio::sync::Notify;

use crate::support::actors::{Call, Callee, Op, Ping, Taken, run};
use crate::support::node_work::Wait;
use crate::support::samples::{Outcome, answer_to, fold, hash_of_answers};

/// Where caller and target are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    SameThread,
    TwoThreads(Wait),
}

impl Place {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::SameThread => "same thread",
            Self::TwoThreads(Wait::Park) => "two threads, park",
            Self::TwoThreads(Wait::Spin) => "two threads, spin",
        }
    }
}

/// A segment of a peer.
#[derive(Clone, Copy)]
pub(crate) struct PeerWork {
    pub(crate) place: Place,
    pub(crate) op: Op,
    pub(crate) warm_up: u64,
    pub(crate) ops: u64,
}

/// What every target keeps and does, as the subject's does it.
#[derive(Default)]
pub(crate) struct Kept {
    count: u64,
    hash: u64,
}

impl Kept {
    pub(crate) fn handle(&mut self, ping: &Ping) -> Ping {
        let answer = answer_to(ping.number());
        self.count += 1;
        self.hash = fold(self.hash, answer);
        Ping::new(answer)
    }

    /// As [`Kept::handle`], at a peer that does not keep the order of what is sent.
    pub(crate) fn handle_in_any_order(&mut self, ping: &Ping) -> Ping {
        let answer = answer_to(ping.number());
        self.count += 1;
        self.hash = self.hash.wrapping_add(fold(0, answer));
        Ping::new(answer)
    }

    pub(crate) fn take(&mut self) -> Taken {
        let Self { count, hash } = std::mem::take(self);
        Taken { count, hash, allocations: 0 }
    }
}

/// A peer's way to a target.
pub(crate) trait Address: Send + 'static {
    /// Sends one way; the mailbox has no bound, or none that this meets.
    fn tell(&self, ping: Ping);
    fn ask(&self, ping: Ping) -> impl Future<Output = Result<Ping>>;
    fn take(&self) -> impl Future<Output = Result<Taken>>;
}

/// A library.
pub(crate) trait Peer {
    type Address: Address;
    /// Whether messages are handled in the order in which they are sent.
    const KEEPS_ORDER: bool = true;

    /// Runs a future, and what is started in it, on this thread. Parks when there is nothing to do.
    fn block_on<F: Future>(future: F) -> F::Output {
        runtime().block_on(future)
    }

    /// Starts a target on this thread.
    fn start() -> impl Future<Output = Self::Address>;

    /// Runs a target on this thread until it is told to stop, without ever sleeping.
    fn spin(address: Sender<Self::Address>, stop: &AtomicBool) {
        Self::block_on(async {
            address.send(Self::start().await).expect("the caller waits for it");
            while !stop.load(Ordering::Relaxed) {
                tokio::task::yield_now().await;
            }
        });
    }
}

/// A runtime of one thread that has nothing to wait for but tasks.
pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().build().expect("a runtime without drivers")
}

/// How many batches a caller sends to another thread before it waits until they are handled.
///
/// A wait for each would stop both threads all the time, and without any the queue would outgrow
/// the cache.
const BATCHES_AHEAD: u64 = 64;

/// An address with the way in which a caller lets its target keep up: what stands for the wait
/// for admission that ends each of the subject's batches.
struct Paced<A> {
    address: A,
    place: Place,
    batches: Cell<u64>,
}

impl<A> Paced<A> {
    fn new(address: A, place: Place) -> Self {
        Self { address, place, batches: Cell::new(0) }
    }
}

impl<A: Address> Callee for Paced<A> {
    fn send_detached(&self, ping: Ping) {
        self.address.tell(ping);
    }

    async fn send(&self, ping: Ping) -> Result<()> {
        self.batches.set(self.batches.get() + 1);
        if self.place == Place::SameThread {
            self.address.tell(ping);
            tokio::task::yield_now().await;
        } else if self.batches.get().is_multiple_of(BATCHES_AHEAD) {
            self.address.ask(ping).await?;
        } else {
            self.address.tell(ping);
        }
        Ok(())
    }

    fn request(&self, ping: Ping) -> impl Future<Output = Result<Ping>> {
        self.address.ask(ping)
    }

    fn take(&self) -> impl Future<Output = Result<Taken>> {
        self.address.take()
    }
}

/// Runs a segment.
pub(crate) fn segment<P: Peer>(work: PeerWork) -> Outcome {
    let call = Call { target: String::new(), op: work.op, warm_up: work.warm_up, ops: work.ops };
    let outcome = match work.place {
        Place::SameThread => P::block_on(async {
            let callee = Paced::new(P::start().await, work.place);
            run(&call, &callee).await
        }),
        Place::TwoThreads(wait) => two_threads::<P>(&call, wait),
    };
    let outcome = outcome.expect("the calls go well");
    let wanted = if P::KEEPS_ORDER || work.op == Op::Request {
        hash_of_answers(work.ops)
    } else {
        (0..work.ops).fold(0, |sum: u64, number| sum.wrapping_add(fold(0, answer_to(number))))
    };
    assert_eq!(outcome.hash, wanted, "what was answered is wrong");
    outcome
}

fn two_threads<P: Peer>(call: &Call, wait: Wait) -> Result<Outcome> {
    let (give, get) = mpsc::channel();
    let (stop, parked) = (AtomicBool::new(false), Notify::new());
    std::thread::scope(|scope| {
        scope.spawn(|| match wait {
            Wait::Spin => P::spin(give, &stop),
            Wait::Park => P::block_on(async {
                give.send(P::start().await).expect("the caller waits for it");
                parked.notified().await;
            }),
        });
        let address = get.recv().expect("the target starts");
        let callee = Paced::new(address, Place::TwoThreads(wait));
        let outcome = wait.on(run(call, &callee));
        stop.store(true, Ordering::Relaxed);
        parked.notify_one();
        outcome
    })
}
