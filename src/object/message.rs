#![forbid(unsafe_code)]
//! Typed messages and their encoding.

use std::cell::Cell;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::payload::Payload;
use crate::error::{Error, ErrorKind, Result};

/// Bytes a thread keeps for encoding messages, at most.
const KEEP_BYTES: usize = 64 << 10;

/// A typed message: a name, a reply type and an encoding.
///
/// The encoding is `postcard` unless the type overrides the four functions and the content type.
///
/// ```
/// use homing::prelude::*;
/// #[derive(serde::Serialize, serde::Deserialize)]
/// struct Add(i64);
/// impl Message for Add {
///     const NAME: &'static str = "counter.add";
///     type Reply = i64;
/// }
/// ```
pub trait Message: Serialize + DeserializeOwned + Send + 'static {
    /// The packet name, 1..=255 bytes. Handlers are found by it.
    const NAME: &'static str;
    /// How the bytes are encoded, as told to the receiver.
    const CONTENT_TYPE: &'static str = "application/postcard";
    /// What a request for this message is answered with.
    type Reply: Serialize + DeserializeOwned + Send + 'static;

    /// Appends the message's bytes to `out`.
    ///
    /// # Errors
    /// `InvalidOperation` when the value cannot be encoded.
    fn encode(&self, out: &mut Vec<u8>) -> Result<()> {
        encode_postcard(self, Self::NAME, out)
    }

    /// Reads a message back.
    ///
    /// # Errors
    /// `ProtocolError` when the bytes are not one whole message.
    fn decode(bytes: &[u8]) -> Result<Self> {
        decode_postcard(bytes, Self::NAME)
    }

    /// Appends a reply's bytes to `out`.
    ///
    /// # Errors
    /// `InvalidOperation` when the value cannot be encoded.
    fn encode_reply(reply: &Self::Reply, out: &mut Vec<u8>) -> Result<()> {
        encode_postcard(reply, Self::NAME, out)
    }

    /// Reads a reply back.
    ///
    /// # Errors
    /// `ProtocolError` when the bytes are not one whole reply.
    fn decode_reply(bytes: &[u8]) -> Result<Self::Reply> {
        decode_postcard(bytes, Self::NAME)
    }
}

fn encode_postcard<T: Serialize>(value: &T, name: &str, out: &mut Vec<u8>) -> Result<()> {
    struct Append<'a>(&'a mut Vec<u8>);
    impl postcard::ser_flavors::Flavor for Append<'_> {
        type Output = ();
        fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
            self.0.push(byte);
            Ok(())
        }
        fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
            self.0.extend_from_slice(bytes);
            Ok(())
        }
        fn finalize(self) -> postcard::Result<()> {
            Ok(())
        }
    }
    postcard::serialize_with_flavor(value, Append(out))
        .map_err(|e| Error::invalid(format!("message {name:?} cannot be encoded: {e}")))
}

fn decode_postcard<T: DeserializeOwned>(bytes: &[u8], name: &str) -> Result<T> {
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Ok(value),
        Ok((_, rest)) => Err(Error::new(
            ErrorKind::ProtocolError,
            format!("payload {name:?} has {} bytes after its end", rest.len()),
        )),
        Err(e) => Err(Error::new(
            ErrorKind::ProtocolError,
            format!("payload {name:?} of {} bytes cannot be decoded: {e}", bytes.len()),
        )),
    }
}

/// What can be sent: every [`Message`], and [`Payload`] as it is. Not implemented by users.
///
/// ```
/// use homing::{Packet, Payload};
/// fn name_of<P: Packet>(p: P) -> String {
///     p.into_packet().unwrap().name().to_owned()
/// }
/// assert_eq!(name_of(Payload::new("a", "b", b"").unwrap()), "a");
/// ```
pub trait Packet: Sized + Send + 'static {
    /// What a request is answered with.
    type Reply: Send + 'static;

    /// The payload to send.
    ///
    /// # Errors
    /// `InvalidOperation` when it cannot be encoded.
    fn into_packet(self) -> Result<Payload>;

    /// The value a handler is given.
    ///
    /// # Errors
    /// `ProtocolError` when the bytes cannot be decoded.
    fn from_packet(payload: Payload) -> Result<Self>;

    /// The payload of a reply.
    ///
    /// # Errors
    /// `InvalidOperation` when it cannot be encoded.
    fn reply_into_packet(reply: Self::Reply) -> Result<Payload>;

    /// The reply a caller is given.
    ///
    /// # Errors
    /// `ProtocolError` when the bytes cannot be decoded.
    fn reply_from_packet(payload: Payload) -> Result<Self::Reply>;
}

/// The payload of what `encode` writes. It writes into memory that the thread keeps for that, so
/// that the payload's own, of its exact size, is the only allocation.
fn encoded<M: Message>(encode: impl FnOnce(&mut Vec<u8>) -> Result<()>) -> Result<Payload> {
    thread_local! {
        static KEPT: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
    }
    // Taken out for the time of the call: an encoding that encodes another message finds none.
    // So does one on a thread that is ending.
    let mut bytes = KEPT.try_with(Cell::take).unwrap_or_default();
    let payload = encode(&mut bytes).and_then(|()| Payload::new(M::NAME, M::CONTENT_TYPE, &bytes));
    bytes.clear();
    bytes.shrink_to(KEEP_BYTES);
    let _ = KEPT.try_with(|kept| kept.set(bytes));
    payload
}

impl<M: Message> Packet for M {
    type Reply = M::Reply;

    fn into_packet(self) -> Result<Payload> {
        encoded::<M>(|bytes| self.encode(bytes))
    }

    fn from_packet(payload: Payload) -> Result<Self> {
        M::decode(payload.bytes())
    }

    fn reply_into_packet(reply: M::Reply) -> Result<Payload> {
        encoded::<M>(|bytes| M::encode_reply(&reply, bytes))
    }

    fn reply_from_packet(payload: Payload) -> Result<M::Reply> {
        M::decode_reply(payload.bytes())
    }
}

impl Packet for Payload {
    type Reply = Payload;

    fn into_packet(self) -> Result<Payload> {
        Ok(self)
    }

    fn from_packet(payload: Payload) -> Result<Self> {
        Ok(payload)
    }

    fn reply_into_packet(reply: Payload) -> Result<Payload> {
        Ok(reply)
    }

    fn reply_from_packet(payload: Payload) -> Result<Payload> {
        Ok(payload)
    }
}

/// What a creation request may be: nothing, a [`Payload`] or a [`Message`].
///
/// ```
/// use homing::IntoPayload;
/// assert_eq!(().into_payload().unwrap().bytes(), b"");
/// ```
pub trait IntoPayload {
    /// The payload.
    ///
    /// # Errors
    /// `InvalidOperation` when it cannot be encoded.
    fn into_payload(self) -> Result<Payload>;
}

impl IntoPayload for () {
    fn into_payload(self) -> Result<Payload> {
        Ok(Payload::empty())
    }
}

impl<P: Packet> IntoPayload for P {
    fn into_payload(self) -> Result<Payload> {
        self.into_packet()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(serde::Serialize, serde::Deserialize, Debug, PartialEq)]
    struct Text(String);
    impl Message for Text {
        const NAME: &'static str = "text";
        type Reply = ();
    }

    /// Its encoding holds the payload of another message.
    #[derive(serde::Serialize, serde::Deserialize)]
    struct Nested;
    impl Message for Nested {
        const NAME: &'static str = "nested";
        type Reply = ();
        fn encode(&self, out: &mut Vec<u8>) -> Result<()> {
            out.extend_from_slice(b"before");
            out.extend_from_slice(Text("inside".into()).into_packet()?.bytes());
            Ok(())
        }
    }

    /// Its encoding fails half way.
    #[derive(serde::Serialize, serde::Deserialize)]
    struct Torn;
    impl Message for Torn {
        const NAME: &'static str = "torn";
        type Reply = ();
        fn encode(&self, out: &mut Vec<u8>) -> Result<()> {
            out.extend_from_slice(b"torn");
            Err(Error::invalid("not this one"))
        }
    }

    #[test]
    fn encodings_leave_nothing_to_each_other() {
        assert_eq!(Nested.into_packet().unwrap().bytes(), b"before\x06inside");
        assert!(Torn.into_packet().is_err());
        let payload = Text("after".into()).into_packet().unwrap();
        assert_eq!((payload.name(), payload.bytes()), ("text", &b"\x05after"[..]));
        assert_eq!(Text::from_packet(payload).unwrap(), Text("after".into()));
        assert_eq!(Nested.into_packet().unwrap().bytes(), b"before\x06inside");
    }

    #[test]
    fn a_message_takes_one_allocation_however_long_it_is() {
        let long = || Text("x".repeat(10_000));
        long().into_packet().unwrap();
        let message = long();
        let mut payload = None;
        let taken = allocation_counter::measure(|| payload = message.into_packet().ok());
        assert_eq!(taken.count_total, 1);
        assert_eq!(payload.unwrap().bytes().len(), 10_002);
        let huge = Text("x".repeat(2 * KEEP_BYTES));
        let kept = allocation_counter::measure(|| drop(huge.into_packet().unwrap())).bytes_current;
        assert!(kept <= KEEP_BYTES as i64, "{kept} bytes are kept");
    }
}
