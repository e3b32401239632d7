#![forbid(unsafe_code)]
//! kameo: a mailbox without a bound, `tell` that does not wait, `ask`; spinning, its loop is polled
//! by hand within a runtime.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::task::{Context as TaskContext, Waker};

use homing::Result;
use kameo::actor::{Actor, ActorRef, PreparedActor};
use kameo::error::Infallible;
use kameo::mailbox;
use kameo::message::{Context, Message};

use super::failed;
use crate::peer::{Address, Kept, Peer, runtime};
use crate::support::actors::{Ping, Take, Taken};

pub(crate) struct Kameo;

pub(crate) struct Target(Kept);

impl Actor for Target {
    type Args = ();
    type Error = Infallible;

    async fn on_start((): (), _: ActorRef<Self>) -> std::result::Result<Self, Infallible> {
        Ok(Self(Kept::default()))
    }
}

impl kameo::Reply for Ping {
    type Ok = Self;
    type Error = Infallible;
    type Value = Self;

    fn to_result(self) -> std::result::Result<Self, Infallible> {
        Ok(self)
    }

    fn into_any_err(self) -> Option<Box<dyn kameo::reply::ReplyError>> {
        None
    }

    fn into_value(self) -> Self {
        self
    }
}

impl kameo::Reply for Taken {
    type Ok = Self;
    type Error = Infallible;
    type Value = Self;

    fn to_result(self) -> std::result::Result<Self, Infallible> {
        Ok(self)
    }

    fn into_any_err(self) -> Option<Box<dyn kameo::reply::ReplyError>> {
        None
    }

    fn into_value(self) -> Self {
        self
    }
}

impl Message<Ping> for Target {
    type Reply = Ping;

    async fn handle(&mut self, ping: Ping, _: &mut Context<Self, Ping>) -> Ping {
        self.0.handle(&ping)
    }
}

impl Message<Take> for Target {
    type Reply = Taken;

    async fn handle(&mut self, _: Take, _: &mut Context<Self, Taken>) -> Taken {
        self.0.take()
    }
}

impl Address for ActorRef<Target> {
    fn tell(&self, ping: Ping) {
        ActorRef::tell(self, ping).try_send().expect("a mailbox without a bound is never full");
    }

    async fn ask(&self, ping: Ping) -> Result<Ping> {
        ActorRef::ask(self, ping).send().await.map_err(failed)
    }

    async fn take(&self) -> Result<Taken> {
        ActorRef::ask(self, Take).send().await.map_err(failed)
    }
}

impl Peer for Kameo {
    type Address = ActorRef<Target>;

    async fn start() -> Self::Address {
        let prepared = PreparedActor::new(mailbox::unbounded());
        let address = prepared.actor_ref().clone();
        prepared.spawn(());
        address
    }

    fn spin(give: Sender<Self::Address>, stop: &AtomicBool) {
        let runtime = runtime();
        let _within = runtime.enter();
        let prepared = PreparedActor::new(mailbox::unbounded());
        give.send(prepared.actor_ref().clone()).expect("the caller waits for it");
        let mut run = pin!(prepared.run(()));
        let mut cx = TaskContext::from_waker(Waker::noop());
        while !stop.load(Ordering::Relaxed) && run.as_mut().poll(&mut cx).is_pending() {
            std::hint::spin_loop();
        }
    }
}
