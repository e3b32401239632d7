#![forbid(unsafe_code)]
//! Intents: configured endpoints that are kept connected (R2.3-1, R2.3-3), and the descriptors
//! that say who must answer at them (R2.3-2).

use super::event::{
    DialToken, IntentId, LinkId, PeerCloseReason as R, PeerDescriptor, PeerEffect, PeerIdentity,
    check_endpoint_secrecy,
};
use super::handshake::{Target, wrong_identity};
use super::reconnect::longest_pause;
use super::{Peers, Timer, Turn};
use crate::env::Endpoint;
use crate::ids::NodeRid;
use crate::time::Nanos;

/// How far an intent is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum IntentState {
    /// A dial is under way.
    Dialing(DialToken),
    /// The link that was dialled for it stands, or is being closed.
    Linked(LinkId),
    /// Its node has a link that was made another way.
    Attached(NodeRid),
    /// The next dial comes at this time.
    Waiting {
        /// When.
        until: Nanos,
    },
    /// A dial was given up and its stream is not yet seen closed.
    Closing,
    /// It will not be dialled: see [`IntentView::last_failure`].
    Refused,
}

/// What is known of an intent: endpoint, actual peer and close state together (R2.3-3).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct IntentView<'a> {
    /// Its id.
    pub intent: IntentId,
    /// Where it points.
    pub endpoint: &'a Endpoint,
    /// Where it will point once the old connection is closed.
    pub next_endpoint: Option<&'a Endpoint>,
    /// Whether it ends once its connection is closed.
    pub is_ending: bool,
    /// Who answered there last and proved it.
    pub peer: Option<&'a NodeRid>,
    /// How far it is.
    pub state: &'a IntentState,
    /// Why the last connection failed; empty when none did.
    pub last_failure: &'a str,
}

/// What happens once the old connection is closed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Then {
    Stay,
    Move(Endpoint),
    End,
}

/// A configured endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Intent {
    endpoint: Endpoint,
    state: IntentState,
    then: Then,
    peer: Option<NodeRid>,
    failures: u32,
    last_failure: String,
}

impl Peers {
    /// All intents, in the order of their ids.
    pub fn intents(&self) -> impl Iterator<Item = IntentView<'_>> {
        self.intents.iter().map(|(id, i)| IntentView {
            intent: *id,
            endpoint: &i.endpoint,
            next_endpoint: match &i.then {
                Then::Move(endpoint) => Some(endpoint),
                Then::Stay | Then::End => None,
            },
            is_ending: i.then == Then::End,
            peer: i.peer.as_ref(),
            state: &i.state,
            last_failure: &i.last_failure,
        })
    }

    /// Installs, moves or (`None`) ends an intent. The old connection is closed first, and the
    /// new one begins when that was seen (R2.3-3).
    pub(super) fn set_intent(
        &mut self,
        id: IntentId,
        endpoint: Option<Endpoint>,
        turn: &mut Turn<'_>,
    ) {
        if self.shutting_down {
            return;
        }
        let Some(intent) = self.intents.get_mut(&id) else {
            if let Some(endpoint) = endpoint {
                self.install_intent(id, endpoint, turn);
            }
            return;
        };
        intent.then = endpoint.map_or(Then::End, Then::Move);
        let detail = match &intent.then {
            Then::Move(to) => format!("the intent for {} points to {to} now", intent.endpoint),
            Then::Stay | Then::End => format!("the intent for {} was removed", intent.endpoint),
        };
        match intent.state {
            IntentState::Dialing(dial) => {
                intent.state = IntentState::Closing;
                let removed = self.remove_attempt(dial, R::IntentReplaced, detail, turn);
                let proven = removed.as_ref().and_then(|a| a.proven()).map(|p| p.rid.clone());
                // A stream with a name was closed by us just now, which is seen at once.
                if removed.is_none_or(|attempt| attempt.conn.is_some()) {
                    self.intent_closed(id, turn);
                }
                if let Some(rid) = proven {
                    self.settle(&rid, turn);
                }
            }
            IntentState::Linked(link) => self.close_link(link, R::IntentReplaced, detail, turn),
            IntentState::Waiting { until } => {
                self.disarm(until, Timer::Intent(id));
                self.intent_closed(id, turn);
            }
            IntentState::Attached(_) | IntentState::Refused => self.intent_closed(id, turn),
            IntentState::Closing => {}
        }
    }

    fn install_intent(&mut self, id: IntentId, endpoint: Endpoint, turn: &mut Turn<'_>) {
        let intent = Intent {
            endpoint,
            state: IntentState::Closing,
            then: Then::Stay,
            peer: None,
            failures: 0,
            last_failure: String::new(),
        };
        self.intents.insert(id, intent);
        self.dial_intent(id, turn);
        turn.out.push(PeerEffect::IntentInstalled { intent: id });
    }

    /// The old connection of an intent was seen closed: what was to come next comes.
    pub(super) fn intent_closed(&mut self, id: IntentId, turn: &mut Turn<'_>) {
        let Some(intent) = self.intents.get_mut(&id) else { return };
        match std::mem::replace(&mut intent.then, Then::Stay) {
            Then::Stay => self.pause_intent(id, turn),
            Then::Move(endpoint) => self.install_intent(id, endpoint, turn),
            Then::End => {
                self.intents.remove(&id);
                turn.out.push(PeerEffect::IntentRemoved { intent: id });
            }
        }
    }

    fn dial_intent(&mut self, id: IntentId, turn: &mut Turn<'_>) {
        let Some(intent) = self.intents.get_mut(&id) else { return };
        let endpoint = intent.endpoint.clone();
        if let Err(e) =
            check_endpoint_secrecy("peer endpoint", &endpoint, self.config.secret.as_ref())
        {
            intent.last_failure = e.text().to_owned();
            intent.state = IntentState::Refused;
            return;
        }
        if self.config.advertised.as_deref() == Some(endpoint.to_string().as_str()) {
            intent.last_failure = format!("{endpoint} is this node's own endpoint");
            intent.state = IntentState::Refused;
            return;
        }
        let expected = self.expected_at(&endpoint);
        let dial = self.start_attempt(Target::Intent(id), endpoint, expected, turn);
        if let Some(intent) = self.intents.get_mut(&id) {
            intent.state = IntentState::Dialing(dial);
        }
    }

    /// Waits before the next dial, longer after more failures.
    fn pause_intent(&mut self, id: IntentId, turn: &mut Turn<'_>) {
        let Some(intent) = self.intents.get_mut(&id) else { return };
        let until = turn.now + self.chance.jitter(longest_pause(intent.failures));
        intent.state = IntentState::Waiting { until };
        self.arm(until, Timer::Intent(id));
    }

    pub(super) fn intent_pause_over(&mut self, id: IntentId, turn: &mut Turn<'_>) {
        self.dial_intent(id, turn);
    }

    pub(super) fn intent_failed(&mut self, id: IntentId, detail: String, turn: &mut Turn<'_>) {
        let Some(intent) = self.intents.get_mut(&id) else { return };
        intent.last_failure = detail;
        intent.failures = intent.failures.saturating_add(1);
        self.intent_closed(id, turn);
    }

    /// Somebody answered at the endpoint and proved who it is.
    pub(super) fn intent_met(&mut self, id: IntentId, rid: &NodeRid) {
        if let Some(intent) = self.intents.get_mut(&id) {
            intent.peer = Some(rid.clone());
        }
    }

    /// The dial was not needed: its node is linked another way.
    pub(super) fn intent_attached(&mut self, id: IntentId, rid: &NodeRid) {
        if let Some(intent) = self.intents.get_mut(&id) {
            intent.state = IntentState::Attached(rid.clone());
        }
    }

    /// A link stands: the intent it was dialled for has it, others of its node rely on it.
    pub(super) fn attach_intents(&mut self, rid: &NodeRid, link: LinkId, by: Option<IntentId>) {
        let mut ended = Vec::new();
        for (id, intent) in &mut self.intents {
            if Some(*id) == by {
                intent.state = IntentState::Linked(link);
            } else if intent.peer.as_ref() == Some(rid)
                && let IntentState::Waiting { until } = intent.state
            {
                intent.state = IntentState::Attached(rid.clone());
                ended.push((until, Timer::Intent(*id)));
            }
        }
        for (until, timer) in ended {
            self.disarm(until, timer);
        }
    }

    /// A node has no link any more: intents that relied on it dial after a pause.
    pub(super) fn detach_intents(&mut self, rid: &NodeRid, turn: &mut Turn<'_>) {
        let relied = self.intents.iter().filter(
            |(_, i)| matches!(&i.state, IntentState::Attached(attached) if attached == rid),
        );
        for id in relied.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.intent_closed(id, turn);
        }
    }

    /// The link that was dialled for an intent is down.
    pub(super) fn intent_link_down(&mut self, link: LinkId, sound: bool, turn: &mut Turn<'_>) {
        let had = self.intents.iter().find(|(_, i)| i.state == IntentState::Linked(link));
        let Some(id) = had.map(|(id, _)| *id) else { return };
        if let Some(intent) = self.intents.get_mut(&id) {
            intent.failures = if sound { 0 } else { intent.failures.saturating_add(1) };
        }
        self.intent_closed(id, turn);
    }

    fn expected_at(&self, endpoint: &Endpoint) -> Option<PeerIdentity> {
        let descriptor = self.peers.get(self.described.get(endpoint)?)?.descriptor.as_ref()?;
        (descriptor.endpoint == *endpoint).then(|| descriptor.identity.clone())
    }

    /// Takes a descriptor in: raises the newest lifecycle known, and holds whoever was reached
    /// at its endpoint without one to it.
    pub(super) fn learn(&mut self, descriptor: &PeerDescriptor, turn: &mut Turn<'_>) {
        let identity = &descriptor.identity;
        if self.shutting_down
            || identity.rid == self.config.identity.rid
            || self.know(identity, turn).is_err()
        {
            return;
        }
        let newest = self
            .expected_at(&descriptor.endpoint)
            .is_none_or(|at| at.node_generation <= identity.node_generation);
        let Some(peer) = self.peers.get_mut(&identity.rid) else { return };
        let before = peer.descriptor.replace(descriptor.clone());
        if let Some(before) = before
            && before.endpoint != descriptor.endpoint
        {
            self.undescribe(&before);
        }
        if newest {
            self.described.insert(descriptor.endpoint.clone(), identity.rid.clone());
            self.hold_intents_to(descriptor, turn);
        }
    }

    /// Attempts and links made for an intent with this endpoint must lead to this lifecycle.
    fn hold_intents_to(&mut self, descriptor: &PeerDescriptor, turn: &mut Turn<'_>) {
        let there = self.intents.values().filter(|i| i.endpoint == descriptor.endpoint);
        for state in there.map(|i| i.state.clone()).collect::<Vec<_>>() {
            match state {
                IntentState::Dialing(dial) => {
                    let Some(attempt) = self.attempts.get_mut(&dial) else { continue };
                    attempt.expected = Some(descriptor.identity.clone());
                    if let Some(who) = attempt.proven()
                        && *who != descriptor.identity
                    {
                        let refusal =
                            wrong_identity(&descriptor.endpoint, who, &descriptor.identity);
                        self.attempt_failed(dial, refusal.reason, refusal.detail, turn);
                    }
                }
                IntentState::Linked(link) => {
                    let Some(who) = self.links.get(&link).map(|l| &l.info.peer) else { continue };
                    // A link to a later lifecycle than the descriptor's proves that one old.
                    if *who != descriptor.identity
                        && who.node_generation <= descriptor.identity.node_generation
                    {
                        let refusal =
                            wrong_identity(&descriptor.endpoint, who, &descriptor.identity);
                        self.close_link(link, refusal.reason, refusal.detail, turn);
                    }
                }
                _ => {}
            }
        }
    }

    /// A descriptor is no longer there.
    pub(super) fn unlearn(&mut self, identity: &PeerIdentity) {
        if let Some(peer) = self.peers.get_mut(&identity.rid)
            && peer.descriptor.as_ref().is_some_and(|d| d.identity == *identity)
            && let Some(descriptor) = peer.descriptor.take()
        {
            self.undescribe(&descriptor);
        }
    }

    /// Its endpoint says no longer who must answer there, unless another descriptor does.
    pub(super) fn undescribe(&mut self, descriptor: &PeerDescriptor) {
        if self.described.get(&descriptor.endpoint) == Some(&descriptor.identity.rid) {
            self.described.remove(&descriptor.endpoint);
        }
    }
}
