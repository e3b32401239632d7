#![forbid(unsafe_code)]
//! The load: senders and keepers on every node. They live inside their node's process.

use std::future::{Future, IntoFuture, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use homing::prelude::*;
use homing::sim::{Life, NodeIx, OpKey, OpKind, SimHandle, SimRng};
use homing::time::Nanos;

use super::cluster::{CALM_AT, STRICT_AT};
use super::ledger::{Birth, Extra, Ledger, Note, Wish};
use super::shape::TIMEOUT;
use super::stage::Stage;

/// What a client runs with.
pub(crate) struct Client<M: Send + 'static> {
    pub(crate) node: Node,
    pub(crate) life: Life,
    pub(crate) stage: Stage,
    pub(crate) handle: SimHandle<M>,
    pub(crate) sender: u32,
    pub(crate) rng: SimRng,
    /// When it stops.
    pub(crate) until: Nanos,
}

fn between(rng: &mut SimRng, mean: Duration) -> Duration {
    rng.duration((mean / 4, mean * 7 / 4))
}

impl<M: Send + 'static> Client<M> {
    /// A sender: numbers what it sends to each Actor, in bursts it does not wait between.
    pub(crate) async fn send_on(mut self) {
        while self.stage.time.now() < self.until {
            let now = self.stage.time.now();
            let is_easy = now >= CALM_AT && now < STRICT_AT;
            let pause = self.stage.shape.pause * if is_easy { 4 } else { 1 };
            let pause = between(&mut self.rng, pause);
            self.stage.time.sleep(pause).await;
            let id = self.some_id();
            let burst = 1 + self.rng.below(self.stage.shape.burst);
            let mut last: Option<Pin<Box<dyn Future<Output = ()>>>> = None;
            for _ in 0..burst {
                if let Some(before) = last.replace(self.submit(&id)) {
                    self.in_background(before);
                }
            }
            let Some(last) = last else { continue };
            if self.rng.below(2) == 0 { last.await } else { self.in_background(last) }
        }
    }

    fn in_background(&self, future: Pin<Box<dyn Future<Output = ()>>>) {
        self.handle.spawn(Some(self.life.node), future);
    }

    fn some_id(&mut self) -> String {
        let ids = self.stage.ids.borrow();
        ids[self.rng.below(ids.len() as u64) as usize].clone()
    }

    /// An id behind `id`: two turns that ask each other would wait for their deadlines.
    fn some_later_id(&mut self, id: &str) -> Option<String> {
        let ids = self.stage.ids.borrow();
        let later: Vec<_> = ids.iter().filter(|other| other[..3] > id[..3]).collect();
        let at = self.rng.below(later.len().max(1) as u64) as usize;
        later.get(at).map(|id| (*id).clone())
    }

    fn extra(&mut self, id: &str) -> Extra {
        match self.rng.below(16) {
            0..=2 => Extra::Sleep(self.rng.below(3_000)),
            3 | 4 => self.some_later_id(id).map_or(Extra::Nothing, Extra::Ask),
            5 => self.some_later_id(id).map_or(Extra::Nothing, Extra::Tell),
            _ => Extra::Nothing,
        }
    }

    /// Submits one operation now; the future records its end.
    fn submit(&mut self, id: &str) -> Pin<Box<dyn Future<Output = ()>>> {
        let key = self.stage.next_key(self.sender, id);
        let padding = self.rng.below(self.stage.shape.payload) as usize;
        let message = Note::new(key, self.extra(id), padding);
        match self.rng.below(20) {
            0 => self.hasty_request(key, id, message),
            1 => self.cancelled_request(id, message),
            2 => {
                self.stage.submitted(key, OpKind::Send, self.life, TIMEOUT);
                self.node.actor(id).send(message).detach();
                Box::pin(async {})
            }
            3..=10 => {
                self.stage.submitted(key, OpKind::Send, self.life, TIMEOUT);
                let sending = self.node.actor(id).send(message);
                let (stage, life) = (self.stage.clone(), self.life);
                Box::pin(async move { stage.ended(key, life, sending.await.map(|()| None)) })
            }
            _ => self.request(key, id, message, TIMEOUT),
        }
    }

    fn request(
        &self,
        key: OpKey,
        id: &str,
        message: Note,
        timeout: Duration,
    ) -> Pin<Box<dyn Future<Output = ()>>> {
        self.stage.submitted(key, OpKind::Request, self.life, timeout);
        let requesting = self.node.actor(id).request(message).timeout(timeout).into_future();
        let (stage, life) = (self.stage.clone(), self.life);
        Box::pin(async move { stage.ended(key, life, requesting.await.map(Some)) })
    }

    /// A request whose handler takes about as long as it waits: its reply is often late.
    fn hasty_request(
        &mut self,
        key: OpKey,
        id: &str,
        message: Note,
    ) -> Pin<Box<dyn Future<Output = ()>>> {
        let timeout = Duration::from_millis(10 + self.rng.below(50));
        self.stage.hasty(key);
        let us = timeout.as_micros() as u64;
        let extra = Extra::Sleep(us / 2 + self.rng.below(us));
        self.request(key, id, Note { extra, ..message }, timeout)
    }

    /// A request that its caller gives up: it is in no history but that of executions.
    fn cancelled_request(&mut self, id: &str, message: Note) -> Pin<Box<dyn Future<Output = ()>>> {
        *self.stage.facts.borrow_mut().cancelled.entry(self.life).or_default() += 1;
        let requesting = self.node.actor(id).request(message).into_future();
        let patience = self.stage.time.sleep(Duration::from_micros(self.rng.below(5_000)));
        Box::pin(async move {
            let (mut requesting, mut patience) = (pin!(requesting), pin!(patience));
            poll_fn(|cx| match requesting.as_mut().poll(cx) {
                Poll::Ready(_) => Poll::Ready(()),
                Poll::Pending => patience.as_mut().poll(cx),
            })
            .await;
        })
    }

    /// A keeper: makes the Actors, all nodes at once, and now and then ends one and makes it again.
    pub(crate) async fn keep_on(mut self) {
        let ids = self.stage.ids.borrow().clone();
        for id in ids {
            self.create(&id).await;
        }
        let mut old = Vec::new();
        while self.stage.time.now() < self.until {
            let pause = between(&mut self.rng, self.stage.shape.churn);
            self.stage.time.sleep(pause).await;
            let id = self.some_id();
            if self.rng.below(2) == 0
                && let Ok(Some(found)) = self.node.actors().find(&id).await
            {
                old.push(found.clone());
                self.destroy(&found).await;
                let gap = self.rng.duration((Duration::ZERO, self.stage.shape.gap));
                self.stage.time.sleep(gap).await;
            }
            if self.rng.below(8) == 0 && !old.is_empty() {
                // An incarnation that is gone: the one that stands must not go with it.
                let gone: ActorRef = old[self.rng.below(old.len() as u64) as usize].clone();
                self.destroy(&gone).await;
            }
            self.create(&id).await;
        }
    }

    async fn destroy(&mut self, actor: &ActorRef) {
        let object = self.stage.history.object(actor.id.as_str());
        self.stage.facts.borrow_mut().destroyed.insert((object, actor.generation.get()));
        self.stage.history.removed(object);
        let end = self.node.actors().destroy(actor).await;
        self.stage.history.removed(object);
        if let Err(e) = end {
            self.refused(format!("destruction of {}: {e}", actor.id));
        }
    }

    async fn create(&mut self, id: &str) {
        let wish = match self.rng.below(20) {
            0 => Wish::Refuse,
            1 => Wish::Fail,
            _ => Wish::Make,
        };
        *self.stage.facts.borrow_mut().creations.entry(self.life).or_default() += 1;
        let made = self.node.actors().create::<Ledger>(id, Birth(wish)).await;
        let object = self.stage.history.object(id);
        let mut facts = self.stage.facts.borrow_mut();
        match made {
            Ok(CreateOutcome::Created(at)) => facts.created.push((object, at.generation.get())),
            Ok(CreateOutcome::Existing(at)) => facts.existing.push((object, at.generation.get())),
            Ok(CreateOutcome::Rejected(_)) => {}
            Err(e) => {
                drop(facts);
                let is_gone = e.kind() == ErrorKind::Unavailable && self.rng.below(2) == 0;
                if e.kind() != ErrorKind::InternalFailure {
                    self.refused(format!("creation of {id}: {e}"));
                }
                if is_gone {
                    self.stage.replace_id(id);
                }
            }
        }
    }

    fn refused(&self, text: String) {
        self.stage.facts.borrow_mut().refusals.push((self.stage.time.now(), text));
    }
}

/// The number of a sender.
pub(crate) fn sender_number(life: Life, at: u32) -> u32 {
    let NodeIx(node) = life.node;
    u32::from(node) << 16 | life.life << 8 | at
}
