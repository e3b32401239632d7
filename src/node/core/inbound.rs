#![forbid(unsafe_code)]
//! Records from other nodes at the home core of what they name: admission, replies, control.

use super::Core;
use super::objects::State;
use crate::env::{Env, Failpoint, Planted};
use crate::error::{Error, ErrorKind, Result};
use crate::ids::{Correlation, NodeGeneration, NodeRid, ObjectGeneration, ObjectKey, RouteFence};
use crate::limits;
use crate::node::counters::Counter;
use crate::node::operation::{CreditOf, End, Mail, Queued, ReplyTo, Waiter};
use crate::object::{Content, Metadata, Payload};
use crate::protocol::peer::LinkId;
use crate::protocol::request;
use crate::time::Nanos;
use crate::wire::{
    Body, FailureCode, Frame, FrameParts, MessageFollow, ObjectMessage, Record, Reply,
    RouteFenceRef, Status,
};

/// The packet name under which an error reply carries the error's sentence.
const ERROR_PACKET: &str = "homing.error";
const ERROR_CONTENT_TYPE: &str = "text/plain; charset=utf-8";
/// Longest sentence an error reply carries.
const MAX_ERROR_TEXT_BYTES: usize = 1024;

/// A broken rule and what was wrong.
pub(super) type Broken = (&'static str, String);

/// What a pending request of this core is for.
pub(super) enum Purpose {
    /// An operation on an object: who waits, and the route it was sent by.
    Operation { waiter: Waiter, ticket: u64, sent: Option<RouteFence> },
    /// A creation asked of another node.
    Creation(super::creation::Asked),
}

/// A pending request of this core.
pub(super) struct Pending {
    pub(super) key: ObjectKey,
    pub(super) purpose: Purpose,
}

/// Why a message with these fences is not admitted, in a few words.
fn stale(carried: &RouteFenceRef<'_>, own: &super::OwnFence<'_>) -> Option<&'static str> {
    if carried.rid != own.rid.as_bytes() {
        Some("it names another node")
    } else if carried.node_generation != own.node_generation {
        Some("it names another lifecycle of this node")
    } else if carried.owner_lease_generation != own.lease_generation {
        Some("it names another owner lease of this node")
    } else {
        match own.object {
            None => Some("no such object is here"),
            // R2.1-4: another incarnation is no reason; of the same one, the tenure counts.
            Some((generation, tenure))
                if carried.object_generation == generation
                    && carried.authority_owner_generation != tenure =>
            {
                Some("it names another tenure of the object")
            }
            Some(_) => None,
        }
    }
}

impl<E: Env<Mail = Mail>> Core<E> {
    /// One record for an object or a request of this home core.
    pub(super) fn on_record(
        &mut self,
        env: &mut E,
        link: LinkId,
        lane: u16,
        bytes: &[u8],
        frame: &Frame<'_>,
    ) -> Result<(), Broken> {
        let Body::Record(record) = &frame.body else { return Ok(()) };
        frame
            .check_object_hash(self.shared.identity.hash_seed)
            .map_err(|e| (e.rule.name(), e.to_string()))?;
        match record {
            Record::Reply(reply) => self.on_reply(env, frame, reply),
            Record::MessageFollow(notice) => {
                self.on_follow_notice(env, notice);
                Ok(())
            }
            Record::Message(_) | Record::ActorCreate(_) | Record::ActorDestroy(_) => {
                if !self.is_alive && !env.planted(Planted::AnswerAfterLease) {
                    // R5-16: a node whose lease lapsed admits nothing. It is kept, in order; the
                    // credit it holds bounds it.
                    self.count(Counter::HeldWhileLapsed, 1);
                    if !matches!(record, Record::Message(_)) {
                        self.hold_control(bytes.len())?;
                    }
                    self.held_inbound.push_back((link, lane, bytes.to_vec()));
                    return Ok(());
                }
                self.admit(env, link, lane, bytes.len(), frame, record)
            }
            other => Err((
                "unexpected-record",
                format!(
                    "record {:?} has no place on an admitted lane of this version",
                    other.command()
                ),
            )),
        }
    }

    /// Creations and destructions spend no credit, so what is held of them has a bound of its own.
    fn hold_control(&mut self, bytes: usize) -> Result<(), Broken> {
        self.held_control_bytes += bytes as u64;
        if self.held_control_bytes <= limits::REMOTE_CONTROL_BYTES {
            return Ok(());
        }
        Err((
            "control-held",
            format!(
                "creations and destructions of more than {} bytes came while the lease was lapsed",
                limits::REMOTE_CONTROL_BYTES
            ),
        ))
    }

    /// Goes on with what was held back while the lease was lapsed.
    pub(super) fn resume_inbound(&mut self, env: &mut E) {
        self.held_control_bytes = 0;
        for (link, lane, bytes) in std::mem::take(&mut self.held_inbound) {
            self.on_inbound(env, link, lane, &bytes);
        }
    }

    fn admit(
        &mut self,
        env: &mut E,
        link: LinkId,
        lane: u16,
        len: usize,
        frame: &Frame<'_>,
        record: &Record<'_>,
    ) -> Result<(), Broken> {
        let Some(peer) = self.links.get(link).map(|l| l.info.peer.clone()) else { return Ok(()) };
        let (rid, node_generation) = match &frame.origin {
            None => (peer.rid, peer.node_generation),
            Some(origin) => {
                let rid = NodeRid::new(origin.rid).map_err(|e| ("rid", e.to_string()))?;
                (rid, origin.node_generation)
            }
        };
        let to = |correlation: Correlation| ReplyTo::Remote {
            rid: rid.clone(),
            node_generation,
            correlation,
        };
        match record {
            Record::Message(message) => {
                let key = self.key_of(message.kind(), message.id)?;
                let bytes = len as u32;
                let credit = CreditOf::Lane { link, lane, bytes };
                let reply = message.correlation.map(to);
                self.admit_message(env, &key, message, frame, reply, credit);
            }
            Record::ActorDestroy(_) | Record::ActorCreate(_) if self.is_remote_control_full() => {
                self.refuse_remote_control(record, to)?;
            }
            Record::ActorDestroy(destroy) => {
                let key = self.key_of(crate::ids::ObjectKind::Actor, destroy.id)?;
                let generation = destroy.fence.object_generation;
                let deadline =
                    self.now + std::time::Duration::from_millis(frame.remaining_ms.into());
                let to = to(destroy.correlation);
                self.admit_destroy(env, &key, &destroy.fence, generation, to, deadline);
            }
            Record::ActorCreate(create) => {
                let key = self.key_of(crate::ids::ObjectKind::Actor, create.id)?;
                let request = match &frame.payload {
                    Some(part) => {
                        Payload::from_checked_part(bytes::Bytes::copy_from_slice(part.part))
                    }
                    None => Payload::empty(),
                };
                let remaining =
                    Nanos(0) + std::time::Duration::from_millis(frame.remaining_ms.into());
                self.on_remote_create(
                    env,
                    key,
                    create,
                    request,
                    remaining.since(Nanos::ZERO),
                    to(create.correlation),
                );
            }
            _ => {}
        }
        Ok(())
    }

    /// More creations and destructions of other nodes are under way than this core takes.
    fn refuse_remote_control(
        &mut self,
        record: &Record<'_>,
        to: impl Fn(Correlation) -> ReplyTo,
    ) -> Result<(), Broken> {
        let (id, correlation) = match record {
            Record::ActorCreate(create) => (create.id, create.correlation),
            Record::ActorDestroy(destroy) => (destroy.id, destroy.correlation),
            _ => return Ok(()),
        };
        let key = self.key_of(crate::ids::ObjectKind::Actor, id)?;
        self.count(Counter::RemoteControlRefused, 1);
        let status = Status::of_kind(ErrorKind::Unavailable, key.kind());
        let text = format!(
            "{key}: too many creations and destructions are under way at node {}",
            self.shared.settings.rid
        );
        self.refuse(&key, Some(to(correlation)), status, &text);
        Ok(())
    }

    fn key_of(&self, kind: crate::ids::ObjectKind, id: &str) -> Result<ObjectKey, Broken> {
        ObjectKey::new(self.shared.identity.hash_seed, kind, id)
            .map_err(|e| ("object-id", e.to_string()))
    }

    /// R2.1-3: takes a message in, or ends it.
    fn admit_message(
        &mut self,
        env: &mut E,
        key: &ObjectKey,
        message: &ObjectMessage<'_>,
        frame: &Frame<'_>,
        reply: Option<ReplyTo>,
        credit: CreditOf,
    ) {
        let index = self.objects.index(key);
        let own = self.own_fence(index);
        let why = stale(&message.fence, &own).filter(|_| !env.planted(Planted::SkipAdmissionFence));
        let Some(index) = index.filter(|_| why.is_none()) else {
            self.free_credit(env, key.object_hash().low(), credit);
            self.refuse_stale(key, reply, why.unwrap_or("no such object is here"));
            return;
        };
        if self.objects.objects[index].state == State::Closing {
            self.free_credit(env, key.object_hash().low(), credit);
            self.refuse_stale(key, reply, "the object is being closed");
            return;
        }
        if self.is_stopping() {
            self.free_credit(env, key.object_hash().low(), credit);
            let status = Status::of_kind(ErrorKind::ShuttingDown, key.kind());
            let error = self.shutting_down();
            self.refuse(key, reply, status, error.text());
            return;
        }
        if reply.is_some() && frame.remaining_ms == 0 {
            self.free_credit(env, key.object_hash().low(), credit);
            self.count(Counter::ExpiredInQueue, 1);
            let status = Status::of_kind(ErrorKind::DeadlineExceeded, key.kind());
            self.refuse(key, reply, status, "the request's time was over when it arrived");
            return;
        }
        let Some(part) = &frame.payload else { return };
        let deadline = match frame.remaining_ms {
            0 => Nanos::MAX,
            ms => self.now + std::time::Duration::from_millis(ms.into()),
        };
        self.count(Counter::AdmittedRemote, 1);
        let queued = Queued {
            operation: message.operation_id,
            content: Content::Bytes(Payload::from_checked_part(bytes::Bytes::copy_from_slice(
                part.part,
            ))),
            metadata: frame.metadata.as_ref().map_or_else(Metadata::default, |m| {
                Metadata::from_checked_part(bytes::Bytes::copy_from_slice(m.part))
            }),
            reply,
            deadline,
            credit,
        };
        self.enqueue(index, queued);
        env.reached(Failpoint::Admitted);
    }

    /// R2.5-6: no follow route leads on from here, so a stale message ends.
    fn refuse_stale(&mut self, key: &ObjectKey, reply: Option<ReplyTo>, why: &str) {
        if reply.is_none() {
            self.count(Counter::DroppedStale, 1);
        } else {
            self.count(Counter::RefusedStale, 1);
        }
        let text = format!("{key} is not at node {} any more: {why}", self.shared.settings.rid);
        let status = Status::of_code(FailureCode::ActorLocationStale);
        self.refuse(key, reply, status, &text);
    }

    fn admit_destroy(
        &mut self,
        env: &mut E,
        key: &ObjectKey,
        fence: &RouteFenceRef<'_>,
        generation: ObjectGeneration,
        to: ReplyTo,
        deadline: Nanos,
    ) {
        let index = self.objects.index(key);
        // Which incarnation is meant is looked at by `destroy_here`; here only whether this node
        // is still the one that was meant.
        let own = self.own_fence(index);
        match (index, stale(fence, &own)) {
            (Some(index), None) => self.destroy_here(env, index, generation, to, deadline),
            (_, why) => self.refuse_stale(key, Some(to), why.unwrap_or("no such object is here")),
        }
    }

    fn on_follow_notice(&mut self, env: &mut E, notice: &MessageFollow<'_>) {
        let Ok(key) = self.key_of(notice.kind, notice.id) else { return };
        let Ok(fence) = RouteFence::try_from(notice.source) else { return };
        if self.routes.remove_if_matches(&key, &fence) {
            self.step_resolver(env, crate::protocol::resolve::Event::Invalidated { key });
        }
    }

    fn on_reply(
        &mut self,
        env: &mut E,
        frame: &Frame<'_>,
        reply: &Reply<'_>,
    ) -> Result<(), Broken> {
        let home = request::core_of(reply.correlation, self.shared.settings.cores);
        if home != self.index {
            return Err((
                "reply-core",
                format!("correlation {} waits on another core", reply.correlation),
            ));
        }
        let Some(token) = self.requests.settle_reply(reply.correlation) else {
            self.count(Counter::RepliesLate, 1);
            return Ok(());
        };
        let Some(Pending { key, purpose }) = self.take_pending(token) else { return Ok(()) };
        let payload = frame
            .payload
            .as_ref()
            .map(|part| Payload::from_checked_part(bytes::Bytes::copy_from_slice(part.part)));
        let end = match reply.status.error_kind() {
            None => Ok(payload),
            Some(kind) => Err(error_of(kind, reply.status, payload)),
        };
        match purpose {
            Purpose::Operation { waiter, ticket, sent } => {
                if reply.status.failure_code == FailureCode::ActorLocationStale
                    && let Some(fence) = sent
                {
                    self.routes.remove_stale(&key, &fence);
                    self.step_resolver(env, crate::protocol::resolve::Event::Invalidated { key });
                }
                self.tickets.remove(&ticket);
                let tail = reply.no_tail().map_err(|e| (e.rule.name(), e.to_string()));
                let end: End = if tail.is_ok() {
                    end.map(|payload| payload.map(Content::Bytes))
                } else {
                    Err(protocol_error("a plain reply has a tail"))
                };
                self.settle(env, waiter, end);
                tail
            }
            Purpose::Creation(asked) => {
                let tail = match &end {
                    Err(e) => Err((true, e.clone())),
                    Ok(_) => {
                        reply.create_tail().map_err(|e| (false, protocol_error(&e.to_string())))
                    }
                };
                let broken = matches!(tail, Err((false, _)));
                self.on_create_reply(env, &key, asked, tail, end.ok().flatten());
                if broken {
                    return Err(("create-tail", "the reply to a creation has a bad tail".into()));
                }
                Ok(())
            }
        }
    }

    /// Registers a request of this core; its reply, its deadline or its link ends it (R4-1).
    pub(super) fn register(
        &mut self,
        key: &ObjectKey,
        waiter: Waiter,
        ticket: u64,
        deadline: Nanos,
        sent: Option<(LinkId, RouteFence)>,
    ) -> Correlation {
        let (link, sent) = sent.unzip();
        let purpose = Purpose::Operation { waiter, ticket, sent };
        let correlation = self.register_purpose(key, purpose, deadline, link);
        if ticket != 0 {
            self.tickets.insert(ticket, correlation);
        }
        correlation
    }

    pub(super) fn register_purpose(
        &mut self,
        key: &ObjectKey,
        purpose: Purpose,
        deadline: Nanos,
        link: Option<LinkId>,
    ) -> Correlation {
        let token = self.pending.insert(Pending { key: key.clone(), purpose }) as u64;
        // 2^63 numbers of a core last for longer than a process.
        let correlation =
            self.requests.submit(token, deadline).expect("correlations do not run out");
        if let Some(link) = link {
            self.requests.bind_link(correlation, link.0);
        }
        correlation
    }

    pub(super) fn take_pending(&mut self, token: u64) -> Option<Pending> {
        self.pending.try_remove(token as usize)
    }

    /// A request to an object of this core was answered.
    pub(super) fn settle_request(&mut self, env: &mut E, correlation: Correlation, end: End) {
        let Some(token) = self.requests.settle_reply(correlation) else {
            self.count(Counter::RepliesLate, 1);
            return;
        };
        if let Some(Pending { purpose: Purpose::Operation { waiter, ticket, .. }, .. }) =
            self.take_pending(token)
        {
            self.tickets.remove(&ticket);
            self.settle(env, waiter, end);
        }
    }

    /// Ends requests whose time is over, whose link broke, or all of them.
    pub(super) fn end_requests(&mut self, env: &mut E, ended: Vec<request::Ended>, detail: &str) {
        for request::Ended { waiter: token, end, .. } in ended {
            match end {
                request::End::TimedOut => self.count(Counter::RequestsTimedOut, 1),
                request::End::LinkLost => self.count(Counter::RequestsLinkLost, 1),
                request::End::Cancelled => self.count(Counter::RequestsCancelled, 1),
                request::End::ShutDown => {}
            }
            let Some(Pending { key, purpose }) = self.take_pending(token) else { continue };
            let error = end.error();
            let error = Error::new(error.kind(), format!("{key}: {}{detail}", error.text()));
            match purpose {
                Purpose::Operation { waiter, ticket, .. } => {
                    self.tickets.remove(&ticket);
                    self.settle(env, waiter, Err(error));
                }
                Purpose::Creation(asked) => {
                    self.on_create_reply(env, &key, asked, Err((false, error)), None);
                }
            }
        }
    }

    /// Whatever was sent on this link and not answered has an unknown outcome.
    pub(super) fn settle_link_lost(&mut self, env: &mut E, link: LinkId, reason: &str) {
        let mut ended = Vec::new();
        self.requests.link_lost(link.0, &mut ended);
        self.end_requests(env, ended, &format!(" ({reason})"));
    }

    pub(super) fn on_cancel(&mut self, env: &mut E, key: &ObjectKey, ticket: u64) {
        if self.cancel_parked(env, key, ticket) {
            self.count(Counter::RequestsCancelled, 1);
            return;
        }
        if let Some(correlation) = self.tickets.remove(&ticket)
            && let Some(token) = self.requests.cancel(correlation)
        {
            self.take_pending(token);
            self.count(Counter::RequestsCancelled, 1);
        }
    }

    /// Sends the answer of a request back to its origin (R1-3): never a look-up of the requester.
    pub(super) fn send_reply(
        &mut self,
        env: &mut E,
        key: &ObjectKey,
        rid: &NodeRid,
        node_generation: NodeGeneration,
        correlation: Correlation,
        end: std::result::Result<Option<Payload>, (Status, Error)>,
    ) {
        let (status, payload) = match end {
            Ok(payload) => (Status::OK, payload),
            Err((status, error)) => (status, error_payload(&error)),
        };
        self.send_reply_record(env, key, (rid, node_generation, correlation), status, &[], payload);
    }

    pub(super) fn send_reply_record(
        &mut self,
        env: &mut E,
        key: &ObjectKey,
        (rid, node_generation, correlation): (&NodeRid, NodeGeneration, Correlation),
        status: Status,
        tail: &[u8],
        payload: Option<Payload>,
    ) {
        let Some(link) = self.links.reply_link(rid, node_generation) else {
            tracing::debug!(object = %key, origin = %rid, "a reply has no link to its origin");
            self.count(Counter::RepliesUnroutable, 1);
            return;
        };
        let reply = |status, payload| {
            let record = Record::Reply(Reply { correlation, status, tail });
            FrameParts {
                object_hash: key.object_hash().low(),
                payload_part: payload,
                ..FrameParts::link(0, Body::Record(record))
            }
        };
        let part = payload.as_ref().map(|p| &p.part()[..]);
        if self.send_frame(env, link, reply(status, part)).is_none() {
            // Larger than the link carries: the requester is told so instead of waiting.
            let text =
                format!("{key}: the reply is larger than the link carries (max_frame_bytes)");
            let part = error_payload(&Error::internal(text));
            let status = Status::of_kind(ErrorKind::InternalFailure, key.kind());
            let part = part.as_ref().map(|p| &p.part()[..]);
            if self.send_frame(env, link, reply(status, part)).is_none() {
                self.count(Counter::RepliesUnroutable, 1);
                return;
            }
        }
        self.count(Counter::RepliesSent, 1);
    }
}

fn protocol_error(text: &str) -> Error {
    Error::new(ErrorKind::ProtocolError, text)
}

/// The sentence of an error as a payload; `None` when there is none to say.
fn error_payload(error: &Error) -> Option<Payload> {
    text_payload(error.text())
}

/// A sentence as a payload, cut where it is too long.
pub(super) fn text_payload(text: &str) -> Option<Payload> {
    let mut end = text.len().min(MAX_ERROR_TEXT_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    Payload::new(ERROR_PACKET, ERROR_CONTENT_TYPE, &text.as_bytes()[..end]).ok().filter(|_| end > 0)
}

/// The error an error reply stands for, with the sentence it carries.
fn error_of(kind: ErrorKind, status: Status, payload: Option<Payload>) -> Error {
    let text = payload
        .filter(|p| p.name() == ERROR_PACKET)
        .and_then(|p| String::from_utf8(p.bytes().to_vec()).ok())
        .unwrap_or_else(|| format!("{:?} ({:?})", status.terminal, status.failure_code));
    Error::new(kind, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{AuthorityOwnerGeneration, OwnerLeaseGeneration};
    use crate::node::core::OwnFence;

    /// Proves R2.1-3, R2.1-4.
    #[test]
    fn every_fence_is_looked_at_and_the_incarnation_is_not() {
        let rid = NodeRid::new("here").unwrap();
        let gen5 = ObjectGeneration::new(5).unwrap();
        let tenure = AuthorityOwnerGeneration::new(2).unwrap();
        let own = |object| OwnFence {
            rid: &rid,
            node_generation: NodeGeneration::new(7).unwrap(),
            lease_generation: OwnerLeaseGeneration::new(8).unwrap(),
            object,
        };
        let good = RouteFenceRef {
            object_generation: gen5,
            rid: b"here",
            node_generation: NodeGeneration::new(7).unwrap(),
            authority_owner_generation: tenure,
            owner_lease_generation: OwnerLeaseGeneration::new(8).unwrap(),
        };
        let here = own(Some((gen5, tenure)));
        assert_eq!(stale(&good, &here), None);
        assert!(stale(&RouteFenceRef { rid: b"there", ..good }, &here).is_some());
        let other = NodeGeneration::new(6).unwrap();
        assert!(stale(&RouteFenceRef { node_generation: other, ..good }, &here).is_some());
        let other = OwnerLeaseGeneration::new(9).unwrap();
        assert!(stale(&RouteFenceRef { owner_lease_generation: other, ..good }, &here).is_some());
        let other = AuthorityOwnerGeneration::new(1).unwrap();
        assert!(
            stale(&RouteFenceRef { authority_owner_generation: other, ..good }, &here).is_some()
        );
        // Of another incarnation the tenure means nothing.
        let old = ObjectGeneration::new(4).unwrap();
        let carried =
            RouteFenceRef { object_generation: old, authority_owner_generation: other, ..good };
        assert_eq!(stale(&carried, &here), None);
        assert!(stale(&good, &own(None)).is_some());
    }
}
