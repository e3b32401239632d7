#![forbid(unsafe_code)]
//! Configured endpoints, changed at run time (R2.3-3). Core 0 only.
//!
//! The endpoint is the name: of an intent on its way to another one, the new endpoint. A call is
//! answered when the machine says that what was there before is closed and the new intent stands,
//! or is gone.

use std::collections::BTreeMap;

use super::Core;
use crate::env::{Endpoint, Env};
use crate::error::{Error, ErrorKind, Result};
use crate::node::oneshot::Settler;
use crate::node::operation::{ConfiguredPeer, Mail, PeerChange, PeerState, PeerWish};
use crate::protocol::peer::{IntentId, IntentState, IntentView, PeerEvent, Peers};

/// What core 0 keeps beside the machine.
#[derive(Default)]
pub(super) struct Intents {
    last: u64,
    /// Calls that wait for their intent to be installed or gone.
    waiting: BTreeMap<IntentId, Vec<Settler<Result<()>>>>,
}

/// The endpoint by which an intent goes; `None` for one that ends.
fn name_of<'a>(intent: &IntentView<'a>) -> Option<&'a Endpoint> {
    (!intent.is_ending).then(|| intent.next_endpoint.unwrap_or(intent.endpoint))
}

/// The event that carries a wish out, and the intent it is about; `None`: a new one.
fn plan(peers: &Peers, wish: PeerWish) -> Result<(Option<IntentId>, PeerWish)> {
    let named = |endpoint: &Endpoint| {
        peers.intents().find(|i| name_of(i) == Some(endpoint)).map(|i| i.intent)
    };
    let missing = |endpoint: &Endpoint| {
        let text =
            format!("peer {endpoint} is not configured; add it, or look at the list of peers");
        Error::new(ErrorKind::NotFound, text)
    };
    let taken = |endpoint: &Endpoint| {
        let text = format!("peer {endpoint} is configured already; each endpoint stands once");
        Error::new(ErrorKind::AlreadyExists, text)
    };
    match &wish {
        PeerWish::Add(endpoint) => {
            if named(endpoint).is_some() {
                return Err(taken(endpoint));
            }
            // One that is being removed comes back when its old connection is closed.
            let ending = |i: &IntentView<'_>| i.is_ending && i.endpoint == endpoint;
            let intent = peers.intents().find(ending).map(|i| i.intent);
            Ok((intent, wish))
        }
        PeerWish::Replace { old, new } => {
            let intent = named(old).ok_or_else(|| missing(old))?;
            if named(new).is_some() {
                return Err(taken(new));
            }
            Ok((Some(intent), wish))
        }
        PeerWish::Remove(endpoint) => {
            let intent = named(endpoint).ok_or_else(|| missing(endpoint))?;
            Ok((Some(intent), wish))
        }
    }
}

impl<E: Env<Mail = Mail>> Core<E> {
    /// Takes a configured endpoint of the builder in.
    pub(super) fn install_intent(&mut self, env: &mut E, endpoint: Endpoint) {
        let Some(zero) = &mut self.zero else { return };
        zero.intents.last += 1;
        let intent = IntentId(zero.intents.last);
        self.step_peers(env, PeerEvent::Intent { intent, endpoint });
    }

    pub(super) fn on_change_peer(&mut self, env: &mut E, change: PeerChange) {
        let PeerChange { wish, slot } = change;
        if self.is_stopping() {
            let text = format!("node {} is shutting down", self.shared.settings.rid);
            slot.settle(Err(Error::new(ErrorKind::ShuttingDown, text)));
            return;
        }
        let Some(zero) = &mut self.zero else { return };
        let (intent, wish) = match plan(&zero.peers, wish) {
            Ok(planned) => planned,
            Err(e) => {
                slot.settle(Err(e));
                return;
            }
        };
        let intent = intent.unwrap_or_else(|| {
            zero.intents.last += 1;
            IntentId(zero.intents.last)
        });
        zero.intents.waiting.entry(intent).or_default().push(slot);
        let event = match wish {
            PeerWish::Add(endpoint) => PeerEvent::Intent { intent, endpoint },
            PeerWish::Replace { new, .. } => PeerEvent::ReplaceIntent { intent, endpoint: new },
            PeerWish::Remove(_) => PeerEvent::RemoveIntent { intent },
        };
        self.step_peers(env, event);
    }

    /// What was there before is closed, and the intent points to its endpoint, or is gone.
    pub(super) fn on_intent_settled(&mut self, intent: IntentId) {
        let Some(zero) = &mut self.zero else { return };
        for slot in zero.intents.waiting.remove(&intent).into_iter().flatten() {
            slot.settle(Ok(()));
        }
    }

    pub(super) fn on_list_peers(&self, slot: &Settler<Result<Vec<ConfiguredPeer>>>) {
        let Some(zero) = &self.zero else { return };
        let peers = &zero.peers;
        let shown = |i: IntentView<'_>| ConfiguredPeer {
            endpoint: i.endpoint.clone(),
            moving_to: i.next_endpoint.cloned(),
            rid: i.peer.cloned(),
            state: state_of(peers, &i),
            last_failure: i.last_failure.to_owned(),
        };
        slot.settle(Ok(peers.intents().map(shown).collect()));
    }
}

fn state_of(peers: &Peers, intent: &IntentView<'_>) -> PeerState {
    if intent.is_ending || intent.next_endpoint.is_some() {
        return PeerState::Closing;
    }
    let is_up = intent.peer.is_some_and(|rid| peers.link_to(rid).is_some());
    match intent.state {
        IntentState::Dialing(_) => PeerState::Connecting,
        IntentState::Linked(_) | IntentState::Attached(_) if is_up => PeerState::Connected,
        IntentState::Linked(_) | IntentState::Attached(_) => PeerState::Connecting,
        IntentState::Waiting { .. } => PeerState::Waiting,
        IntentState::Closing => PeerState::Closing,
        IntentState::Refused => PeerState::Refused,
    }
}
