#![forbid(unsafe_code)]
//! Typed messages and their encoding.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::content::{Answer, Content, Whole, encoded};
use super::payload::Payload;
use crate::error::{Error, ErrorKind, Result};

/// The content type of messages that do not say how they are encoded.
pub(super) const POSTCARD: &str = "application/postcard";

/// A typed message: a name, a reply type and an encoding.
///
/// The encoding is `postcard` unless the type overrides the four functions and the content type.
///
/// A message to an object of the same node is moved as a value: it is encoded only if it leaves the
/// node, so what its serde form leaves out (`#[serde(skip)]`) is still there then, and is not when
/// the object lives elsewhere. A type whose serde form says everything behaves the same near and far
/// (R2.1-5); [`NodeBuilder::messages_through_bytes`](crate::NodeBuilder::messages_through_bytes)
/// shows one that does not. Its encoded size is checked in any case when it is sent, for which its
/// `Serialize` runs once without writing anything.
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
    const CONTENT_TYPE: &'static str = POSTCARD;
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

    /// What is put into the queue of an object.
    #[doc(hidden)]
    fn into_content(self) -> Result<Content> {
        self.into_packet().map(Content::Bytes)
    }

    /// The value a handler is given.
    #[doc(hidden)]
    fn from_content(content: Content) -> Result<Self> {
        Self::from_packet(content.into_payload()?)
    }

    /// What a caller of this node is answered with.
    #[doc(hidden)]
    fn reply_into_content(reply: Self::Reply) -> Result<Content> {
        Self::reply_into_packet(reply).map(Content::Bytes)
    }

    /// The reply a caller is given.
    #[doc(hidden)]
    fn reply_from_content(content: Content) -> Result<Self::Reply> {
        Self::reply_from_packet(content.into_payload()?)
    }
}

impl<M: Message> Packet for M {
    type Reply = M::Reply;

    fn into_packet(self) -> Result<Payload> {
        encoded(M::NAME, M::CONTENT_TYPE, |bytes| self.encode(bytes))
    }

    fn from_packet(payload: Payload) -> Result<Self> {
        M::decode(payload.bytes())
    }

    fn reply_into_packet(reply: M::Reply) -> Result<Payload> {
        encoded(M::NAME, M::CONTENT_TYPE, |bytes| M::encode_reply(&reply, bytes))
    }

    fn reply_from_packet(payload: Payload) -> Result<M::Reply> {
        M::decode_reply(payload.bytes())
    }

    fn into_content(self) -> Result<Content> {
        Content::message(self)
    }

    fn from_content(content: Content) -> Result<Self> {
        content.take::<Whole<M>>()?.or_else(Self::from_packet)
    }

    fn reply_into_content(reply: M::Reply) -> Result<Content> {
        Content::reply::<M>(reply)
    }

    fn reply_from_content(content: Content) -> Result<M::Reply> {
        content.take::<Answer<M>>()?.or_else(Self::reply_from_packet)
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
    use super::super::content::KEEP_BYTES;
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
