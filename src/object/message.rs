#![forbid(unsafe_code)]
//! Typed messages and their encoding.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::payload::Payload;
use crate::error::{Error, ErrorKind, Result};

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

impl<M: Message> Packet for M {
    type Reply = M::Reply;

    fn into_packet(self) -> Result<Payload> {
        let mut bytes = Vec::new();
        self.encode(&mut bytes)?;
        Payload::new(M::NAME, M::CONTENT_TYPE, &bytes)
    }

    fn from_packet(payload: Payload) -> Result<Self> {
        M::decode(payload.bytes())
    }

    fn reply_into_packet(reply: M::Reply) -> Result<Payload> {
        let mut bytes = Vec::new();
        M::encode_reply(&reply, &mut bytes)?;
        Payload::new(M::NAME, M::CONTENT_TYPE, &bytes)
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
