#![forbid(unsafe_code)]
//! How large the frames of a call are, by the library's own encoder.

use homing::ids::{
    AuthorityOwnerGeneration, Correlation, NodeGeneration, ObjectGeneration, OperationId,
    OwnerLeaseGeneration,
};
use homing::wire::{
    ActorSource, Body, FrameParts, MessageForm, ObjectMessage, Record, Reply, RouteFenceRef,
    Status, encode_payload_part,
};

use super::node_work::{From, TARGET_RID};

/// Name, content type and size of the payload of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PayloadForm {
    pub(crate) name: &'static str,
    pub(crate) content_type: &'static str,
    pub(crate) bytes: usize,
}

impl PayloadForm {
    /// Of a [`Ping`](super::actors::Ping).
    pub(crate) const PING: Self =
        Self { name: "bench.ping", content_type: "application/postcard", bytes: 64 };

    /// Of a raw payload.
    pub(crate) const fn raw(bytes: usize) -> Self {
        Self { name: "bench.raw", content_type: "application/octet-stream", bytes }
    }

    fn part(self) -> Vec<u8> {
        let mut part = Vec::new();
        encode_payload_part(&mut part, self.name, self.content_type, &vec![0; self.bytes])
            .expect("a payload");
        part
    }
}

fn len(record: Record<'_>, payload: PayloadForm) -> usize {
    let part = payload.part();
    let link = FrameParts::link(0, Body::Record(record));
    let parts = FrameParts { object_hash: 1, payload_part: Some(&part), ..link };
    parts.encoded_len().expect("a frame")
}

/// Bytes of a message's frame.
pub(crate) fn message_bytes(from: From, is_request: bool, payload: PayloadForm) -> usize {
    let source = ActorSource { id: "caller-0", object_generation: ObjectGeneration::FIRST };
    let record = Record::Message(ObjectMessage {
        correlation: is_request.then_some(Correlation::FIRST),
        operation_id: OperationId::new(1).expect("not zero"),
        hop_count: 0,
        form: MessageForm::Actor {
            source: (from == From::Turn).then_some(source),
            bound_session: None,
        },
        id: "target-0",
        fence: RouteFenceRef {
            object_generation: ObjectGeneration::FIRST,
            rid: TARGET_RID.as_bytes(),
            node_generation: NodeGeneration::FIRST,
            authority_owner_generation: AuthorityOwnerGeneration::FIRST,
            owner_lease_generation: OwnerLeaseGeneration::FIRST,
        },
    });
    len(record, payload)
}

/// Bytes of the frame of its reply.
pub(crate) fn reply_bytes(payload: PayloadForm) -> usize {
    let reply = Reply { correlation: Correlation::FIRST, status: Status::OK, tail: &[] };
    len(Record::Reply(reply), payload)
}
