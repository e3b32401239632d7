#![forbid(unsafe_code)]
//! Links between nodes: admission, lanes, loss, reconnection (R2.3, R0-7, R5-4).
//!
//! [`Peers`] runs on core 0. [`LaneLiveness`] is the small machine that the owner core of each
//! lane runs. Both are pure.
//!
//! # Words
//! A **stream** is one connection. The **dialer** opened it, the **acceptor** took it. A **link**
//! is what two nodes share once the handshake on its first stream is over: `max(cores)` **lanes**
//! (at most 16), each a stream. An **intent** is a configured endpoint; a **need** is an
//! operation that waits for a link. A **lifecycle** of a node is (rid, node generation, key id);
//! a later lifecycle has the greater generation.
//!
//! # Handshake
//! ```text
//! dialer                                   acceptor
//!   lane 0  hello                 ->
//!                                 <-       hello + proof          (or reject, close)
//!           admit: proof          ->
//!                                 <-       admit: proof + grant   (link id, lanes)
//!   lane k  attach (link, k, MAC) ->
//!                                 <-       attach (link, k, MAC)
//! ```
//! A proof is HMAC-SHA-256 under the mesh secret over both hellos, nonces included, with a label
//! for each use; the grant's proof covers the grant too. Lane MACs are made under a key derived
//! from the same. Nothing but these records is taken before a proof; a frame is at most
//! `MAX_HANDSHAKE_FRAME_BYTES`; the way from dial or accept to the last lane takes at most the
//! handshake timeout, whatever trickles in meanwhile; at most `half_open_limit` accepted streams
//! may be without a proof, then the oldest is closed. What a peer says before its proof changes no state but
//! that of its own stream. A mesh without a secret uses an empty key and stays on one machine.
//!
//! # Who is admitted
//! Once a stream is proven, in this order:
//! 1. A lifecycle older than the newest known of that rid is refused, for ever; one of the same
//!    generation with another key is a second live node with the rid, and refused. A newer one
//!    replaces: the old link is closed first.
//! 2. A dialer also compares with the descriptor it dialled for: rid, generation, key (R2.3-2).
//! 3. A link to the same lifecycle stands. A dialer drops its stream (redundant). An acceptor
//!    takes the newcomer only if the hello was answered while that very link stood: the dialer
//!    then saw the answer and went on, so it has lost the link, which is closed. A hello answered
//!    before the link was made says nothing about it and is refused.
//! 4. Both dialled. The node with the smaller rid decides, the other obeys: the smaller keeps its
//!    own stream once that is proven and refuses the peer's; before that it takes the peer's.
//!    The larger drops its own when the peer's is proven, and when it was refused before that it
//!    waits for the peer's as long as that stream is there. So the link dialled by the smaller
//!    rid stays where both get through, and no interleaving drops both.
//! 5. A link to the same rid is still closing: the stream is held until every lane of the old one
//!    is reported closed, on both sides, so that no byte of the old link is read after the new
//!    one began (R5-4).
//!
//! # Link states
//! Forming (admitted; lane k is received from as soon as it is attached) → Up (all lanes
//! attached; may be sent on) → Closing (a lane lost, replaced, given up; every lane's core closes
//! and confirms) → gone. One lane lost is the link lost.
//!
//! # Reconnection
//! A node is dialled while an intent stands or somebody needs it. After a failure, or after a
//! link that lived less than `RECONNECT_MAX`, the next dial waits: the pause doubles from
//! `RECONNECT_MIN` to `RECONNECT_MAX` and is drawn between its half and its whole. A need during
//! the pause fails at once and says when the next attempt is; that attempt is then made.
//!
//! # Bounds
//! Half-open handshakes, peers known (`MAX_KNOWN_PEERS`; the one heard of longest ago that has
//! no link goes first, and with it the memory of its newest lifecycle), one stream under
//! handshake per peer and side beyond those, lanes per link. A stream buffers less than one
//! handshake frame.
//!
//! # Crash
//! Nothing is kept. A node that comes back is a new lifecycle with a greater generation; the
//! Store tells the others, or its own hello does.

#[cfg(feature = "protocol-coverage")]
mod coverage;

#[cfg(feature = "protocol-coverage")]
pub use coverage::{LINK_MACHINE, MACHINE};
mod admit;
mod event;
mod handshake;
mod hello;
mod intent;
mod link;
mod liveness;
mod proof;
mod reconnect;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

pub use event::{
    DialToken, IntentId, LaneLoss, LinkId, LinkInfo, MeshSecret, PeerCloseReason, PeerConfig,
    PeerDescriptor, PeerEffect, PeerEvent, PeerIdentity, check_endpoint_secrecy,
};
pub use intent::{IntentState, IntentView};
pub use liveness::{LaneLiveness, LivenessAction, RenewedLease, announced_ms};

use crate::env::{ConnId, Endpoint};
use crate::error::Error;
use crate::ids::NodeRid;
use crate::limits::MAX_KNOWN_PEERS;
use crate::time::Nanos;
use admit::Peer;
use handshake::{Attempt, Conn};
use hello::PeerHello;
use intent::Intent;
use link::{LaneDial, Link};
use proof::Chance;

/// What a timer is for. The deadline itself stands in the thing it belongs to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Timer {
    Incoming(ConnId),
    Attempt(DialToken),
    Link(LinkId),
    Peer(NodeRid),
    Intent(IntentId),
}

/// The time and the effects of one step.
struct Turn<'a> {
    now: Nanos,
    out: &'a mut Vec<PeerEffect>,
}

/// The links of one node. See the module's head.
///
/// ```
/// use homing::protocol::peer::{PeerConfig, PeerEvent, Peers};
/// # fn run(config: PeerConfig, seed: [u8; 32], now: homing::time::Nanos) -> homing::Result<()> {
/// let mut peers = Peers::new(config, seed)?;
/// let mut effects = Vec::new();
/// peers.step(PeerEvent::Tick, now, &mut effects);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Peers {
    config: PeerConfig,
    chance: Chance,
    conns: BTreeMap<ConnId, Conn>,
    /// Dials of lane 0 until they became a link or failed.
    attempts: BTreeMap<DialToken, Attempt>,
    /// Dials of further lanes until they are attached.
    lane_dials: BTreeMap<DialToken, LaneDial>,
    /// Dials given up before the node named their stream; with the intent that waits for that.
    given_up: BTreeMap<DialToken, Option<IntentId>>,
    /// Accepted streams without a proof, oldest first.
    half_open: BTreeMap<u64, ConnId>,
    links: BTreeMap<LinkId, Link>,
    peers: BTreeMap<NodeRid, Peer>,
    /// Who must answer at an endpoint, by the newest descriptor.
    described: BTreeMap<Endpoint, NodeRid>,
    intents: BTreeMap<IntentId, Intent>,
    timers: BTreeSet<(Nanos, Timer)>,
    known_peers_limit: usize,
    /// The last number given to a dial, a link or anything else that needs one.
    serial: u64,
    armed: Nanos,
    shutting_down: bool,
}

impl Peers {
    /// A node without links. `seed` is random: nonces and jitter are drawn from it.
    ///
    /// # Errors
    /// `NotConfigured` when a setting cannot be said in a hello.
    pub fn new(config: PeerConfig, seed: [u8; 32]) -> Result<Self, Error> {
        PeerHello::of(&config, [0; 32]).check_own()?;
        Ok(Self {
            config,
            chance: Chance::new(seed),
            conns: BTreeMap::new(),
            attempts: BTreeMap::new(),
            lane_dials: BTreeMap::new(),
            given_up: BTreeMap::new(),
            half_open: BTreeMap::new(),
            links: BTreeMap::new(),
            peers: BTreeMap::new(),
            described: BTreeMap::new(),
            intents: BTreeMap::new(),
            timers: BTreeSet::new(),
            known_peers_limit: MAX_KNOWN_PEERS,
            serial: 0,
            armed: Nanos::MAX,
            shutting_down: false,
        })
    }

    /// Takes one event at `now` and appends what is to be done. What came due before `now` is
    /// done first.
    ///
    /// # Cost
    /// Logarithmic in peers and streams; a descriptor also looks at every intent.
    pub fn step(&mut self, event: PeerEvent, now: Nanos, out: &mut Vec<PeerEffect>) {
        let turn = &mut Turn { now, out };
        #[cfg(feature = "protocol-coverage")]
        self.note(&event);
        self.fire_timers(turn);
        match event {
            PeerEvent::Accepted { conn } => self.on_accepted(conn, turn),
            PeerEvent::Dialed { dial, conn } => self.on_dialed(dial, conn, turn),
            PeerEvent::Connected { conn } => self.on_connected(conn, turn),
            PeerEvent::Received { conn, bytes } => self.on_received(conn, &bytes, turn),
            PeerEvent::Closed { conn, reason } => self.on_closed(conn, &reason, turn),
            PeerEvent::LaneLost { link, lane, loss, reason } => {
                let detail = format!("lane {lane} was lost: {reason}");
                self.close_link(link, loss.reason(), detail, turn);
            }
            PeerEvent::LaneClosed { link, lane } => self.on_lane_closed(link, lane, turn),
            PeerEvent::Need { descriptor } => self.on_need(descriptor, turn),
            PeerEvent::Intent { intent, endpoint }
            | PeerEvent::ReplaceIntent { intent, endpoint } => {
                self.set_intent(intent, Some(endpoint), turn);
            }
            PeerEvent::RemoveIntent { intent } => self.set_intent(intent, None, turn),
            PeerEvent::Descriptor { descriptor } => self.learn(&descriptor, turn),
            PeerEvent::DescriptorGone { identity } => self.unlearn(&identity),
            PeerEvent::Settings { route_cache_max_age, message_follow_duration } => {
                self.config.route_cache_max_age = route_cache_max_age;
                self.config.message_follow_duration = message_follow_duration;
            }
            PeerEvent::Tick => {}
            PeerEvent::Shutdown => self.shut_down(turn),
        }
        let next = self.next_deadline();
        if next != self.armed {
            self.armed = next;
            out.push(PeerEffect::Wake(next));
        }
    }

    /// When the next [`PeerEvent::Tick`] is due; [`Nanos::MAX`] when none is.
    #[must_use]
    pub fn next_deadline(&self) -> Nanos {
        self.timers.first().map_or(Nanos::MAX, |(at, _)| *at)
    }

    /// Whether nothing is open or under way any more: the end of a shutdown.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        self.conns.is_empty()
            && self.attempts.is_empty()
            && self.given_up.is_empty()
            && self.links.is_empty()
    }

    fn next_serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    fn secret(&self) -> &[u8] {
        self.config.secret.as_ref().map_or(&[], MeshSecret::bytes)
    }

    fn arm(&mut self, at: Nanos, timer: Timer) {
        self.timers.insert((at, timer));
    }

    fn disarm(&mut self, at: Nanos, timer: Timer) {
        self.timers.remove(&(at, timer));
    }

    fn fire_timers(&mut self, turn: &mut Turn<'_>) {
        while self.timers.first().is_some_and(|(at, _)| *at <= turn.now) {
            let Some((_, timer)) = self.timers.pop_first() else { return };
            let reason = PeerCloseReason::HandshakeTimeout;
            match timer {
                Timer::Incoming(conn) => self.end_conn(conn, reason, self.late(), true, turn),
                Timer::Attempt(dial) => self.attempt_failed(dial, reason, self.late(), turn),
                Timer::Link(link) => self.close_link(link, reason, self.late(), turn),
                Timer::Peer(rid) => self.peer_pause_over(&rid, turn),
                Timer::Intent(intent) => self.intent_pause_over(intent, turn),
            }
        }
    }

    fn late(&self) -> String {
        format!("the handshake was not over after {:?}", self.config.handshake_timeout)
    }

    fn shut_down(&mut self, turn: &mut Turn<'_>) {
        self.shutting_down = true;
        let reason = PeerCloseReason::ShuttingDown;
        let detail = || "this node is shutting down".to_owned();
        self.intents.clear();
        for dial in self.attempts.keys().copied().collect::<Vec<_>>() {
            self.remove_attempt(dial, reason, detail(), turn);
        }
        for link in self.links.keys().copied().collect::<Vec<_>>() {
            self.close_link(link, reason, detail(), turn);
        }
        for conn in self.conns.keys().copied().collect::<Vec<_>>() {
            self.end_conn(conn, reason, detail(), true, turn);
        }
        for rid in self.peers.keys().cloned().collect::<Vec<_>>() {
            self.drop_need(&rid, "this node is shutting down", turn);
        }
        self.timers.clear();
    }
}
