#![forbid(unsafe_code)]
//! The cells of streams in their handshake, and of links.

use super::handshake::{AttemptStage, IncomingStage, Role};
use super::link::LinkState;
use super::{PeerEvent, Peers};
use crate::env::ConnId;
use crate::protocol::coverage::{Machine, names};

/// How far a stream is.
#[derive(Clone, Copy)]
enum Stream<'a> {
    Unknown,
    Incoming(&'a IncomingStage),
    Dial(&'a AttemptStage),
    Lane,
}

names! {
    STREAM_STATES, stream_name(stream: Stream<'_>) {
        Stream::Unknown => "Unknown",
        Stream::Incoming(IncomingStage::Silent) => "Silent",
        Stream::Incoming(IncomingStage::Answered { .. }) => "Answered",
        Stream::Incoming(IncomingStage::Held(_)) => "Held",
        Stream::Dial(AttemptStage::Dialing) => "Dialing",
        Stream::Dial(AttemptStage::HelloSent(_)) => "HelloSent",
        Stream::Dial(AttemptStage::Held(_)) => "DialHeld",
        Stream::Dial(AttemptStage::AdmitSent(_)) => "AdmitSent",
        Stream::Lane => "LaneDial",
    }
}

/// What happens to a stream.
#[derive(Clone, Copy)]
enum OnStream {
    Accepted,
    Dialed,
    Connected,
    Received,
    Closed,
    Shutdown,
}

names! {
    STREAM_EVENTS, on_stream_name(event: OnStream) {
        OnStream::Accepted => "Accepted",
        OnStream::Dialed => "Dialed",
        OnStream::Connected => "Connected",
        OnStream::Received => "Received",
        OnStream::Closed => "Closed",
        OnStream::Shutdown => "Shutdown",
    }
}

const NAMED: &str = "the name of a stream is new when it is accepted or dialled";

/// Streams until they are lanes. See [`crate::protocol::coverage`].
pub static MACHINE: Machine = Machine {
    name: "peer stream",
    states: STREAM_STATES,
    events: STREAM_EVENTS,
    impossible: &[
        ("Silent", "Accepted", NAMED),
        ("Answered", "Accepted", NAMED),
        ("Held", "Accepted", NAMED),
        ("Dialing", "Accepted", NAMED),
        ("HelloSent", "Accepted", NAMED),
        ("DialHeld", "Accepted", NAMED),
        ("AdmitSent", "Accepted", NAMED),
        ("LaneDial", "Accepted", NAMED),
        ("Silent", "Dialed", NAMED),
        ("Answered", "Dialed", NAMED),
        ("Held", "Dialed", NAMED),
        ("Dialing", "Dialed", NAMED),
        ("HelloSent", "Dialed", NAMED),
        ("DialHeld", "Dialed", NAMED),
        ("AdmitSent", "Dialed", NAMED),
        ("LaneDial", "Dialed", NAMED),
    ],
};

names! {
    LINK_STATES, link_name(state: Option<&LinkState>) {
        None => "Absent",
        Some(LinkState::Forming { .. }) => "Forming",
        Some(LinkState::Up { .. }) => "Up",
        Some(LinkState::Closing { .. }) => "Closing",
    }
}

/// What happens to a link.
#[derive(Clone, Copy)]
enum OnLink {
    LaneLost,
    LaneClosed,
    Tick,
    Shutdown,
}

names! {
    LINK_EVENTS, on_link_name(event: OnLink) {
        OnLink::LaneLost => "LaneLost",
        OnLink::LaneClosed => "LaneClosed",
        OnLink::Tick => "Tick",
        OnLink::Shutdown => "Shutdown",
    }
}

/// Links. See [`crate::protocol::coverage`].
pub static LINK_MACHINE: Machine =
    Machine { name: "peer link", states: LINK_STATES, events: LINK_EVENTS, impossible: &[] };

impl Peers {
    fn stream(&self, conn: ConnId) -> Stream<'_> {
        let Some(known) = self.conns.get(&conn) else { return Stream::Unknown };
        match &known.role {
            Role::Incoming(incoming) => Stream::Incoming(&incoming.stage),
            Role::Lane(_) => Stream::Lane,
            Role::Attempt(dial) => match self.attempts.get(dial) {
                Some(attempt) => Stream::Dial(&attempt.stage),
                None => Stream::Unknown,
            },
        }
    }

    pub(super) fn note(&self, event: &PeerEvent) {
        let stream = |conn: &ConnId, event| {
            MACHINE.hit(stream_name(self.stream(*conn)), on_stream_name(event));
        };
        let links = |event| {
            for link in self.links.values() {
                LINK_MACHINE.hit(link_name(Some(&link.state)), on_link_name(event));
            }
            if self.links.is_empty() {
                LINK_MACHINE.hit(link_name(None), on_link_name(event));
            }
        };
        let link = |link, event| {
            let state = self.links.get(link).map(|link| &link.state);
            LINK_MACHINE.hit(link_name(state), on_link_name(event));
        };
        match event {
            PeerEvent::Accepted { conn } => stream(conn, OnStream::Accepted),
            PeerEvent::Dialed { conn, .. } => stream(conn, OnStream::Dialed),
            PeerEvent::Connected { conn } => stream(conn, OnStream::Connected),
            PeerEvent::Received { conn, .. } => stream(conn, OnStream::Received),
            PeerEvent::Closed { conn, .. } => stream(conn, OnStream::Closed),
            PeerEvent::LaneLost { link: of, .. } => link(of, OnLink::LaneLost),
            PeerEvent::LaneClosed { link: of, .. } => link(of, OnLink::LaneClosed),
            PeerEvent::Tick => links(OnLink::Tick),
            PeerEvent::Shutdown => {
                self.conns.keys().for_each(|conn| stream(conn, OnStream::Shutdown));
                links(OnLink::Shutdown);
            }
            PeerEvent::Need { .. }
            | PeerEvent::Intent { .. }
            | PeerEvent::ReplaceIntent { .. }
            | PeerEvent::RemoveIntent { .. }
            | PeerEvent::Descriptor { .. }
            | PeerEvent::DescriptorGone { .. }
            | PeerEvent::Settings { .. } => {}
        }
    }
}
