#![forbid(unsafe_code)]
//! xtra: a mailbox without a bound; spinning, its loop is polled by hand, without a runtime.
//!
//! Its mailbox is a heap: messages of one priority are handled in no particular order. One-way
//! messages have a higher priority than requests here, so that an answer tells that all before it
//! have been handled, as it does everywhere else.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::task::{Context as TaskContext, Waker};

use homing::Result;
use xtra::{Actor, Context, Handler, Mailbox};

use super::failed;
use crate::peer::{Address, Kept, Peer};
use crate::support::actors::{Ping, Take, Taken};

pub(crate) struct Xtra;

#[derive(Default)]
pub(crate) struct Target(Kept);

impl Actor for Target {
    type Stop = ();

    async fn stopped(self) {}
}

impl Handler<Ping> for Target {
    type Return = Ping;

    async fn handle(&mut self, ping: Ping, _: &mut Context<Self>) -> Ping {
        self.0.handle_in_any_order(&ping)
    }
}

impl Handler<Take> for Target {
    type Return = Taken;

    async fn handle(&mut self, _: Take, _: &mut Context<Self>) -> Taken {
        self.0.take()
    }
}

impl Address for xtra::Address<Target> {
    fn tell(&self, ping: Ping) {
        // It is in the mailbox at the first poll, as that has no bound.
        let sent = pin!(self.send(ping).priority(1).detach())
            .poll(&mut TaskContext::from_waker(Waker::noop()));
        assert!(sent.is_ready(), "a mailbox without a bound is never full");
    }

    async fn ask(&self, ping: Ping) -> Result<Ping> {
        self.send(ping).await.map_err(failed)
    }

    async fn take(&self) -> Result<Taken> {
        self.send(Take).await.map_err(failed)
    }
}

impl Peer for Xtra {
    type Address = xtra::Address<Target>;
    const KEEPS_ORDER: bool = false;

    async fn start() -> Self::Address {
        let (address, mailbox) = Mailbox::unbounded();
        tokio::spawn(xtra::run(mailbox, Target::default()));
        address
    }

    fn spin(give: Sender<Self::Address>, stop: &AtomicBool) {
        let (address, mailbox) = Mailbox::unbounded();
        give.send(address).expect("the caller waits for it");
        let mut run = pin!(xtra::run(mailbox, Target::default()));
        let mut cx = TaskContext::from_waker(Waker::noop());
        while !stop.load(Ordering::Relaxed) && run.as_mut().poll(&mut cx).is_pending() {
            std::hint::spin_loop();
        }
    }
}
