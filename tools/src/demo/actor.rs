#![forbid(unsafe_code)]
//! The demo's Actor: it writes down what it handles, and can be told to tamper with it.

use clap::ValueEnum;
use homing::prelude::*;
use serde::de::Visitor;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::ledger::Handled;

/// How deliveries are tampered with, to show that the verdict notices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Sabotage {
    /// One message never reaches its Actor.
    Lose,
    /// One message reaches its Actor twice.
    Double,
    /// Two messages of one sender reach their Actor in the wrong order.
    Swap,
}

/// The id of an Actor of the demo.
pub(crate) fn actor_id(actor: u32) -> String {
    format!("demo-actor-{actor}")
}

/// Bytes that make a message as large as was asked for. All are the same, so that a byte that
/// changed on the way is seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Padding(pub(crate) Vec<u8>);

impl Serialize for Padding {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Padding {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Bytes;
        impl Visitor<'_> for Bytes {
            type Value = Padding;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("bytes")
            }
            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Padding, E> {
                Ok(Padding(bytes.to_vec()))
            }
        }
        deserializer.deserialize_bytes(Bytes)
    }
}

/// A numbered message. Sent one way, or as a request.
#[derive(Serialize, Deserialize)]
pub(crate) struct Note {
    pub(crate) sender: u32,
    pub(crate) number: u64,
    pub(crate) padding: Padding,
}

impl Note {
    pub(crate) fn new(sender: u32, number: u64, payload_bytes: usize) -> Self {
        Self { sender, number, padding: Padding(vec![number as u8; payload_bytes]) }
    }
}

impl Message for Note {
    const NAME: &'static str = "demo.note";
    /// Sender and number of the message that is answered.
    type Reply = (u32, u64);
}

/// Asks what an Actor handled.
#[derive(Serialize, Deserialize)]
pub(crate) struct Ask;

impl Message for Ask {
    const NAME: &'static str = "demo.ask";
    type Reply = Handled;
}

/// What a creation of the demo is asked with.
#[derive(Serialize, Deserialize)]
pub(crate) struct Begin {
    /// What happens to one message of sender 0 to this Actor.
    pub(crate) sabotage: Option<Sabotage>,
}

impl Message for Begin {
    const NAME: &'static str = "demo.begin";
    type Reply = ();
}

/// An Actor that writes down what it handles.
pub(crate) struct Scribe {
    handled: Handled,
    sabotage: Option<Sabotage>,
    /// A delivery that is held back until the next one (sabotage).
    held: Option<(u32, u64)>,
}

impl Scribe {
    /// Where sabotage stands between the delivery and the Actor. Without it: writes down.
    fn deliver(&mut self, sender: u32, number: u64) {
        match self.sabotage {
            Some(sabotage) if sender == 0 && number == 1 => match sabotage {
                Sabotage::Lose => {}
                Sabotage::Double => {
                    self.handled.push(sender, number);
                    self.handled.push(sender, number);
                }
                Sabotage::Swap => self.held = Some((sender, number)),
            },
            _ => {
                self.handled.push(sender, number);
                if sender == 0
                    && let Some((sender, number)) = self.held.take()
                {
                    self.handled.push(sender, number);
                }
            }
        }
    }
}

impl Actor for Scribe {
    const TYPE: &'static str = "demo.scribe";

    async fn create(_: &CreateContext, request: Payload) -> Result<Self> {
        let Begin { sabotage } = Begin::decode(request.bytes())?;
        Ok(Self { handled: Handled::default(), sabotage, held: None })
    }
}

impl Handler<Note> for Scribe {
    async fn handle(&mut self, note: Note, _: &mut Context<'_, Self>) -> Result<(u32, u64)> {
        let Note { sender, number, padding } = note;
        if padding.0.iter().any(|b| *b != number as u8) {
            return Err(Error::new(
                ErrorKind::ProtocolError,
                format!("number {number} of sender {sender} has bytes that were not sent"),
            ));
        }
        self.deliver(sender, number);
        Ok((sender, number))
    }
}

impl Handler<Ask> for Scribe {
    async fn handle(&mut self, _: Ask, _: &mut Context<'_, Self>) -> Result<Handled> {
        Ok(self.handled.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(sabotage: Option<Sabotage>) -> Vec<u64> {
        let mut scribe = Scribe { handled: Handled::default(), sabotage, held: None };
        (1..=3).for_each(|n| scribe.deliver(0, n));
        scribe.deliver(1, 1);
        assert_eq!(scribe.handled.of(1).map(|r| r.iter().collect()), Some(vec![1]));
        scribe.handled.of(0).map(|r| r.iter().collect()).unwrap_or_default()
    }

    #[test]
    fn sabotage_touches_one_message_of_sender_0() {
        assert_eq!(numbers(None), [1, 2, 3]);
        assert_eq!(numbers(Some(Sabotage::Lose)), [2, 3]);
        assert_eq!(numbers(Some(Sabotage::Double)), [1, 1, 2, 3]);
        assert_eq!(numbers(Some(Sabotage::Swap)), [2, 1, 3]);
    }

    #[test]
    fn a_note_is_as_large_as_asked_for() {
        for payload_bytes in [0, 1, 64, 100_000] {
            let mut bytes = Vec::new();
            Note::new(3, 300, payload_bytes).encode(&mut bytes).unwrap();
            assert!((payload_bytes..payload_bytes + 10).contains(&bytes.len()), "{}", bytes.len());
            let back = Note::decode(&bytes).unwrap();
            assert_eq!((back.sender, back.number), (3, 300));
            assert_eq!(back.padding.0, vec![44; payload_bytes]);
        }
    }
}
