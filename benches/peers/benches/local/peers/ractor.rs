#![forbid(unsafe_code)]
//! ractor: `cast`, and `call` without a timeout; its mailboxes have no bound.

use homing::Result;
use ractor::rpc::CallResult;
use ractor::{Actor, ActorProcessingErr, ActorRef, RpcReplyPort};

use super::failed;
use crate::peer::{Address, Kept, Peer};
use crate::support::actors::{Ping, Taken};

pub(crate) struct Ractor;

pub(crate) struct Target;

pub(crate) enum Message {
    Tell(Ping),
    Ask(Ping, RpcReplyPort<Ping>),
    Take(RpcReplyPort<Taken>),
}

impl Actor for Target {
    type Msg = Message;
    type State = Kept;
    type Arguments = ();

    async fn pre_start(
        &self,
        _: ActorRef<Message>,
        (): (),
    ) -> std::result::Result<Kept, ActorProcessingErr> {
        Ok(Kept::default())
    }

    async fn handle(
        &self,
        _: ActorRef<Message>,
        message: Message,
        kept: &mut Kept,
    ) -> std::result::Result<(), ActorProcessingErr> {
        match message {
            Message::Tell(ping) => {
                kept.handle(&ping);
            }
            Message::Ask(ping, port) => port.send(kept.handle(&ping))?,
            Message::Take(port) => port.send(kept.take())?,
        }
        Ok(())
    }
}

async fn answer<T: Send + 'static>(
    target: &ActorRef<Message>,
    message: impl FnOnce(RpcReplyPort<T>) -> Message,
) -> Result<T> {
    match target.call(message, None).await.map_err(failed)? {
        CallResult::Success(answer) => Ok(answer),
        CallResult::Timeout | CallResult::SenderError => Err(failed("no answer")),
    }
}

impl Address for ActorRef<Message> {
    fn tell(&self, ping: Ping) {
        self.cast(Message::Tell(ping)).expect("the target is there");
    }

    async fn ask(&self, ping: Ping) -> Result<Ping> {
        answer(self, |port| Message::Ask(ping, port)).await
    }

    async fn take(&self) -> Result<Taken> {
        answer(self, Message::Take).await
    }
}

impl Peer for Ractor {
    type Address = ActorRef<Message>;

    async fn start() -> Self::Address {
        Target::spawn(None, Target, ()).await.expect("the target starts").0
    }
}
