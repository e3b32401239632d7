#![forbid(unsafe_code)]
//! actix: `do_send`, which passes the mailbox's bound by, and `send`; handlers that are plain
//! functions; a system whose runtime has no drivers.

use std::future::Future;

use actix::{Actor, Addr, Context, Handler, Message, MessageResult};
use homing::Result;

use super::failed;
use crate::peer::{Address, Kept, Peer, runtime};
use crate::support::actors::{Ping, Take, Taken};

pub(crate) struct Actix;

#[derive(Default)]
pub(crate) struct Target(Kept);

impl Actor for Target {
    type Context = Context<Self>;
}

impl Message for Ping {
    type Result = Ping;
}

impl Message for Take {
    type Result = Taken;
}

impl Handler<Ping> for Target {
    type Result = MessageResult<Ping>;

    fn handle(&mut self, ping: Ping, _: &mut Context<Self>) -> Self::Result {
        MessageResult(self.0.handle(&ping))
    }
}

impl Handler<Take> for Target {
    type Result = MessageResult<Take>;

    fn handle(&mut self, _: Take, _: &mut Context<Self>) -> Self::Result {
        MessageResult(self.0.take())
    }
}

impl Address for Addr<Target> {
    fn tell(&self, ping: Ping) {
        self.do_send(ping);
    }

    async fn ask(&self, ping: Ping) -> Result<Ping> {
        self.send(ping).await.map_err(failed)
    }

    async fn take(&self) -> Result<Taken> {
        self.send(Take).await.map_err(failed)
    }
}

impl Peer for Actix {
    type Address = Addr<Target>;

    fn block_on<F: Future>(future: F) -> F::Output {
        actix_rt::System::with_tokio_rt(runtime).block_on(future)
    }

    async fn start() -> Self::Address {
        Target::default().start()
    }
}
