#![forbid(unsafe_code)]
//! The Actor of the runs: it records what it handles, and asks others.

use std::time::Duration;

use homing::prelude::*;
use homing::sim::{Life, ObjectIx, OpKey, OpKind, SimRng};

use super::stage::stage;

/// A turn asks another Actor for this long at most, so that a turn whose neighbour is in trouble
/// does not keep its own senders waiting for long.
const ASK_TIMEOUT: Duration = Duration::from_millis(150);

/// What a turn does beside recording.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub(crate) enum Extra {
    Nothing,
    /// Sleeps.
    Sleep(u64),
    /// Asks this Actor and waits for the answer.
    Ask(String),
    /// Sends this Actor something and does not wait.
    Tell(String),
}

/// A numbered message.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct Note {
    pub(crate) sender: u32,
    pub(crate) object: u32,
    pub(crate) seq: u64,
    pub(crate) extra: Extra,
    pub(crate) padding: String,
}

impl Note {
    pub(crate) fn new(key: OpKey, extra: Extra, padding: usize) -> Self {
        let OpKey { sender, object, seq } = key;
        Self { sender, object: object.0, seq, extra, padding: "7".repeat(padding) }
    }

    pub(crate) fn key(&self) -> OpKey {
        OpKey { sender: self.sender, object: ObjectIx(self.object), seq: self.seq }
    }
}

impl Message for Note {
    const NAME: &'static str = "sim.note";
    type Reply = Done;
}

/// The answer: what was done.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct Done {
    sender: u32,
    object: u32,
    seq: u64,
    padding: String,
}

impl Done {
    pub(crate) fn key(&self) -> OpKey {
        OpKey { sender: self.sender, object: ObjectIx(self.object), seq: self.seq }
    }
}

/// How a factory shall end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) enum Wish {
    Make,
    Refuse,
    Fail,
}

/// What a creation is asked with.
#[derive(serde::Serialize, serde::Deserialize)]
pub(crate) struct Birth(pub(crate) Wish);

impl Message for Birth {
    const NAME: &'static str = "sim.birth";
    type Reply = ();
}

/// See the module's head.
pub(crate) struct Ledger {
    life: Life,
    object: ObjectIx,
    generation: u64,
    sender: u32,
    rng: SimRng,
}

impl Actor for Ledger {
    const TYPE: &'static str = "ledger";

    async fn create(cx: &CreateContext, request: Payload) -> Result<Self> {
        let stage = stage();
        let life = stage.life(&cx.rid().to_string());
        let (object, generation) = (stage.history.object(cx.id().as_str()), cx.generation().get());
        stage.history.factory(object, generation, life);
        let mut rng = SimRng::new(generation ^ 0xAC7);
        // A factory that takes its time meets the other creators.
        let longest = stage.shape.factory;
        stage.time.sleep(rng.duration((Duration::ZERO, longest))).await;
        let wish = Birth::decode(request.bytes()).map_or(Wish::Make, |birth| birth.0);
        match wish {
            Wish::Make => {}
            Wish::Refuse => return Err(Error::rejected("not today")),
            Wish::Fail => return Err(Error::internal("the factory broke")),
        }
        let sender = stage.turn_sender(object, generation);
        Ok(Self { life, object, generation, sender, rng })
    }

    async fn on_closing(&mut self) {
        let stage = stage();
        let pause = self.rng.duration((Duration::ZERO, Duration::from_millis(3)));
        stage.time.sleep(pause).await;
    }
}

impl Handler<Note> for Ledger {
    async fn handle(&mut self, note: Note, cx: &mut Context<'_, Self>) -> Result<Done> {
        let stage = stage();
        let key = note.key();
        if key.object != self.object {
            stage.history.complain(format!("{:?} got a message for {:?}", self.object, key));
        }
        let execution = stage.history.begin(key, self.generation, 1, self.life);
        match &note.extra {
            Extra::Nothing => {}
            Extra::Sleep(us) => stage.time.sleep(Duration::from_micros(*us)).await,
            Extra::Ask(target) => {
                let asked = stage.next_key(self.sender, target);
                stage.hasty(asked);
                stage.history.submitted(asked, OpKind::Request, self.life, ASK_TIMEOUT);
                stage.history.in_turn(asked);
                let message = Note::new(asked, Extra::Nothing, 0);
                let end = cx.actor(target)?.request(message).timeout(ASK_TIMEOUT).await;
                stage.ended(asked, self.life, end.map(Some));
            }
            Extra::Tell(target) => {
                let told = stage.next_key(self.sender, target);
                stage.history.submitted(told, OpKind::Send, self.life, ASK_TIMEOUT);
                stage.history.in_turn(told);
                cx.actor(target)?.send(Note::new(told, Extra::Nothing, 0)).detach();
            }
        }
        stage.history.finish(execution);
        let padding =
            if note.padding.len().is_multiple_of(3) { note.padding } else { String::new() };
        Ok(Done { sender: note.sender, object: note.object, seq: note.seq, padding })
    }
}
