#![forbid(unsafe_code)]
//! The frames of operations.

use crate::ids::{Correlation, OperationId};
use crate::node::operation::{Body as OpBody, Operation};
use crate::route::Route;
use crate::time::Nanos;
use crate::wire::{self, ActorSource, Body, FrameParts, MessageForm, ObjectMessage, Record};

/// The frame of an operation for a remote owner.
pub(super) fn remote_frame<'a>(
    operation: &'a Operation,
    route: &'a Route,
    operation_id: OperationId,
    correlation: Option<Correlation>,
    now: Nanos,
) -> FrameParts<'a> {
    // A request is sized before its correlation is taken; the number's size is fixed.
    let correlation = correlation.or(operation.wants_reply().then_some(Correlation::FIRST));
    let (id, fence) = (operation.key.id(), wire::RouteFenceRef::from(&route.fence));
    let record = match (&operation.body, correlation) {
        (OpBody::Destroy { generation }, Some(correlation)) => {
            let fence = wire::RouteFenceRef { object_generation: *generation, ..fence };
            Record::ActorDestroy(wire::ActorDestroy { correlation, id, fence })
        }
        _ => Record::Message(ObjectMessage {
            correlation,
            operation_id,
            hop_count: 0,
            form: MessageForm::Actor {
                source: operation.source.as_ref().map(|(id, generation)| ActorSource {
                    id: id.as_str(),
                    object_generation: *generation,
                }),
                bound_session: None,
            },
            id,
            fence,
        }),
    };
    let mut parts = FrameParts {
        object_hash: operation.key.object_hash().low(),
        ..FrameParts::link(0, Body::Record(record))
    };
    if operation.wants_reply() {
        parts.remaining_ms = operation.deadline.remaining_ms(now);
    }
    if let OpBody::Message { content, metadata, .. } = &operation.body {
        debug_assert!(content.payload().is_some(), "what leaves the node was encoded");
        parts.payload_part = content.payload().map(|p| &p.part()[..]);
        parts.metadata_part = metadata.part().map(|m| &m[..]);
    }
    parts
}
