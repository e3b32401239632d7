#![forbid(unsafe_code)]
//! What a message or a reply is on its way: bytes, or a value that has not been encoded.
//!
//! A typed message moves as a value as long as it stays on its node, and is encoded when it
//! leaves it. Its size counts as if it were encoded: it is measured when the message is sent, so
//! that limits and credit treat near and far alike (R2.1-5).

use std::cell::Cell;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};

use serde::Serialize;

use super::message::{Message, POSTCARD};
use super::payload::Payload;
use crate::error::{Error, Result};
use crate::exec::cells::panic_text;
use crate::exec::value::{Kind, Value};
use crate::wire;

/// Bytes a thread keeps for encoding messages, at most.
pub(super) const KEEP_BYTES: usize = 64 << 10;

/// A message or a reply on its way. Public only as a name in hidden functions.
#[allow(unreachable_pub)]
pub enum Content {
    /// Encoded.
    Bytes(Payload),
    /// Not encoded.
    Value(Typed),
}

/// A value with what its encoding would take.
#[allow(unreachable_pub)]
pub struct Typed {
    value: Value<Coding>,
    part_len: usize,
}

/// What is known of a value whose type is not.
pub(super) struct Coding {
    name: &'static str,
    content_type: &'static str,
    encode: fn(&Value<Coding>, &mut Vec<u8>) -> Result<()>,
}

/// A message of type `M`.
pub(super) struct Whole<M>(PhantomData<M>);

impl<M: Message> Kind<Coding> for Whole<M> {
    type Held = M;
    const TABLE: &'static Coding = &Coding {
        name: M::NAME,
        content_type: M::CONTENT_TYPE,
        encode: |value, out| match value.get::<Self>() {
            Some(message) => message.encode(out),
            None => Err(Error::internal("a message is of another type than its table")),
        },
    };
}

/// The reply to a message of type `M`.
pub(super) struct Answer<M>(PhantomData<M>);

impl<M: Message> Kind<Coding> for Answer<M> {
    type Held = M::Reply;
    const TABLE: &'static Coding = &Coding {
        name: M::NAME,
        content_type: M::CONTENT_TYPE,
        encode: |value, out| match value.get::<Self>() {
            Some(reply) => M::encode_reply(reply, out),
            None => Err(Error::internal("a reply is of another type than its table")),
        },
    };
}

impl Content {
    /// A message as a value.
    pub(super) fn message<M: Message>(message: M) -> Result<Self> {
        let len = measured::<M, M>(&message, |out| message.encode(out))?;
        Self::typed::<Whole<M>, M>(message, len)
    }

    /// A reply as a value.
    pub(super) fn reply<M: Message>(reply: M::Reply) -> Result<Self> {
        let len = measured::<M, M::Reply>(&reply, |out| M::encode_reply(&reply, out))?;
        Self::typed::<Answer<M>, M>(reply, len)
    }

    fn typed<K: Kind<Coding>, M: Message>(held: K::Held, len: usize) -> Result<Self> {
        let part_len = wire::payload_part_len(M::NAME, M::CONTENT_TYPE, len)
            .map_err(|e| super::payload::refused(M::NAME, M::CONTENT_TYPE, len, &e))?;
        Ok(Self::Value(Typed { value: Value::new::<K>(held), part_len }))
    }

    /// The value, when it is of this kind; else what it would be as bytes.
    pub(super) fn take<K: Kind<Coding>>(self) -> Result<std::result::Result<K::Held, Payload>> {
        match self {
            Self::Bytes(payload) => Ok(Err(payload)),
            Self::Value(Typed { value, part_len }) => match value.take::<K>() {
                Ok(held) => Ok(Ok(held)),
                Err(value) => Self::Value(Typed { value, part_len }).into_payload().map(Err),
            },
        }
    }

    /// The packet name.
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Bytes(payload) => payload.name(),
            Self::Value(typed) => typed.value.table().name,
        }
    }

    /// The size of the payload part it makes on the wire.
    pub(crate) fn part_len(&self) -> usize {
        match self {
            Self::Bytes(payload) => payload.part().len(),
            Self::Value(typed) => typed.part_len,
        }
    }

    /// The bytes, when it is encoded.
    pub(crate) fn payload(&self) -> Option<&Payload> {
        match self {
            Self::Bytes(payload) => Some(payload),
            Self::Value(_) => None,
        }
    }

    /// Encodes it where it stands, if it is not.
    ///
    /// # Errors
    /// `InvalidOperation` when it cannot be encoded; it is as it was then.
    pub(crate) fn encode(&mut self) -> Result<()> {
        if let Self::Value(typed) = self {
            *self = Self::Bytes(typed.encoded()?);
        }
        Ok(())
    }

    /// The bytes.
    ///
    /// # Errors
    /// As [`Content::encode`].
    pub(crate) fn into_payload(mut self) -> Result<Payload> {
        self.encode()?;
        match self {
            Self::Bytes(payload) => Ok(payload),
            Self::Value(_) => unreachable!("encoded above"),
        }
    }
}

impl Typed {
    fn encoded(&self) -> Result<Payload> {
        let Coding { name, content_type, encode } = *self.value.table();
        // On a core, outside of a turn: a panic of the type's code ends here.
        let tried = catch_unwind(AssertUnwindSafe(|| {
            encoded(name, content_type, |out| encode(&self.value, out))
        }));
        tried.unwrap_or_else(|panic| {
            let text = panic_text(&*panic);
            Err(Error::invalid(format!("message {name:?} cannot be encoded: it panicked: {text}")))
        })
    }
}

/// The bytes an encoding takes. For `postcard` they are added up without being written.
fn measured<M: Message, T: Serialize>(
    value: &T,
    encode: impl FnOnce(&mut Vec<u8>) -> Result<()>,
) -> Result<usize> {
    if M::CONTENT_TYPE == POSTCARD {
        return postcard::serialize_with_flavor(value, postcard::ser_flavors::Size::default())
            .map_err(|e| Error::invalid(format!("message {:?} cannot be encoded: {e}", M::NAME)));
    }
    with_kept(|bytes| encode(bytes).map(|()| bytes.len()))
}

/// The payload of what `encode` writes. It writes into memory that the thread keeps for that, so
/// that the payload's own, of its exact size, is the only allocation.
pub(super) fn encoded(
    name: &str,
    content_type: &str,
    encode: impl FnOnce(&mut Vec<u8>) -> Result<()>,
) -> Result<Payload> {
    with_kept(|bytes| encode(bytes).and_then(|()| Payload::new(name, content_type, bytes)))
}

/// Lends the memory the thread keeps for encoding, empty.
fn with_kept<T>(work: impl FnOnce(&mut Vec<u8>) -> T) -> T {
    thread_local! {
        static KEPT: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
    }
    // Taken out for the time of the call: an encoding that encodes another message finds none.
    // So does one on a thread that is ending.
    let mut bytes = KEPT.try_with(Cell::take).unwrap_or_default();
    let done = work(&mut bytes);
    bytes.clear();
    bytes.shrink_to(KEEP_BYTES);
    let _ = KEPT.try_with(|kept| kept.set(bytes));
    done
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::Packet;

    #[derive(serde::Serialize, serde::Deserialize, Clone, Debug, PartialEq)]
    struct Mixed {
        text: String,
        numbers: Vec<u64>,
        point: (f64, i16),
        maybe: Option<Box<Mixed>>,
    }
    impl Message for Mixed {
        const NAME: &'static str = "mixed";
        type Reply = Vec<String>;
    }

    /// Under the same name, another type.
    #[derive(serde::Serialize, serde::Deserialize, Debug, PartialEq)]
    struct Twin {
        text: String,
        numbers: Vec<u64>,
        point: (f64, i16),
        maybe: Option<Box<Mixed>>,
    }
    impl Message for Twin {
        const NAME: &'static str = "mixed";
        type Reply = Vec<String>;
    }

    /// Encoded in a way of its own.
    #[derive(serde::Serialize, serde::Deserialize)]
    struct Own(u8);
    impl Message for Own {
        const NAME: &'static str = "own";
        const CONTENT_TYPE: &'static str = "text/plain";
        type Reply = ();
        fn encode(&self, out: &mut Vec<u8>) -> Result<()> {
            match self.0 {
                0 => return Err(Error::invalid("nothing to say")),
                1 => panic!("not this one"),
                n => out.extend(std::iter::repeat_n(b'x', n.into())),
            }
            Ok(())
        }
    }

    fn mixed(n: u64) -> Mixed {
        let inner = (n > 3).then(|| Box::new(mixed(n / 2)));
        Mixed {
            text: "ü".repeat(n as usize),
            numbers: (0..n).map(|i| i << (i % 64)).collect(),
            point: (n as f64, -(n as i16)),
            maybe: inner,
        }
    }

    /// The size that is checked is the one it has when it leaves (R2.1-5).
    #[test]
    fn a_value_has_the_size_of_its_encoding() {
        for n in [0, 1, 5, 63, 64, 200, 3_000] {
            let content = Content::message(mixed(n)).unwrap();
            let (name, len) = (content.name().to_owned(), content.part_len());
            let payload = content.into_payload().unwrap();
            assert_eq!((payload.name(), payload.part().len()), (&*name, len), "{n}");
            assert_eq!(payload, mixed(n).into_packet().unwrap());
            let reply = vec!["r".repeat(n as usize)];
            let content = Content::reply::<Mixed>(reply.clone()).unwrap();
            let len = content.part_len();
            assert_eq!(content.into_payload().unwrap().part().len(), len);
        }
        assert_eq!(Content::message(Own(9)).unwrap().part_len(), {
            Content::message(Own(9)).unwrap().into_payload().unwrap().part().len()
        });
    }

    #[test]
    fn a_value_is_given_as_it_is_and_decoded_for_another_type_of_its_name() {
        let content = Content::message(mixed(9)).unwrap();
        assert_eq!(Mixed::from_content(content).unwrap(), mixed(9));
        let content = Content::message(mixed(9)).unwrap();
        let twin = Twin::from_content(content).unwrap();
        assert_eq!((twin.text, twin.maybe), (mixed(9).text, mixed(9).maybe));
        let content = Content::message(mixed(9)).unwrap();
        let raw = Payload::from_content(content).unwrap();
        assert_eq!(Mixed::from_packet(raw).unwrap(), mixed(9));
        let reply = Content::reply::<Mixed>(vec!["a".into()]).unwrap();
        assert_eq!(Twin::reply_from_content(reply).unwrap(), ["a"]);
    }

    #[test]
    fn what_cannot_be_encoded_is_refused_at_once_and_a_panic_later_ends_there() {
        assert!(Content::message(Own(0)).is_err());
        let mut value = Content::message(Own(5)).unwrap();
        if let Content::Value(typed) = &mut value {
            typed.value = Value::new::<Whole<Own>>(Own(1));
        }
        let error = value.encode().unwrap_err();
        assert!(error.text().contains("not this one"), "{error}");
        assert!(value.payload().is_none());
    }

    #[test]
    fn a_small_message_takes_no_memory_as_a_value() {
        #[derive(serde::Serialize, serde::Deserialize)]
        struct Eight([f64; 8]);
        impl Message for Eight {
            const NAME: &'static str = "eight";
            type Reply = f64;
        }
        let taken = allocation_counter::measure(|| {
            let content = Content::message(Eight([1.0; 8])).unwrap();
            assert_eq!(Eight::from_content(content).unwrap().0[7], 1.0);
            let reply = Content::reply::<Eight>(2.0).unwrap();
            assert_eq!(Eight::reply_from_content(reply).unwrap(), 2.0);
        });
        assert_eq!(taken.count_total, 0);
    }
}
