#![forbid(unsafe_code)]
//! Tests of the peer machine. `net` joins machines by in-memory streams.

mod admission;
mod intents;
mod net;
mod reconnection;
mod refusals;
mod rogue;
mod simultaneous;

use std::time::Duration;

use super::*;
use crate::ids::{MeshName, NodeGeneration, OwnerLeaseGeneration};
use crate::limits::{HANDSHAKE_TIMEOUT, MAX_HALF_OPEN_HANDSHAKES};

pub(super) fn rid(name: &str) -> NodeRid {
    NodeRid::new(name).unwrap()
}

pub(super) fn identity(name: &str, generation: u64) -> PeerIdentity {
    let mut key_id = [0; 16];
    key_id[..8].copy_from_slice(&generation.to_be_bytes());
    key_id[8..8 + name.len().min(8)].copy_from_slice(&name.as_bytes()[..name.len().min(8)]);
    PeerIdentity {
        rid: rid(name),
        node_generation: NodeGeneration::new(generation).unwrap(),
        key_id,
    }
}

pub(super) fn endpoint(name: &str) -> Endpoint {
    format!("unix:///run/{name}").parse().unwrap()
}

pub(super) fn descriptor(name: &str, generation: u64) -> PeerDescriptor {
    PeerDescriptor { identity: identity(name, generation), endpoint: endpoint(name) }
}

pub(super) fn config(name: &str, generation: u64, cores: u16) -> PeerConfig {
    PeerConfig {
        mesh: MeshName::new("game").unwrap(),
        identity: identity(name, generation),
        lease_generation: OwnerLeaseGeneration::new(generation + 100).unwrap(),
        secret: Some(MeshSecret::new("s3cret").unwrap()),
        cores,
        max_frame_bytes: 1 << 20,
        lane_window_bytes: 1 << 16,
        hash_seed_check: 99,
        route_cache_max_age: Duration::from_secs(15),
        message_follow_duration: Duration::from_secs(30),
        advertised: Some(endpoint(name).to_string()),
        handshake_timeout: HANDSHAKE_TIMEOUT,
        half_open_limit: MAX_HALF_OPEN_HANDSHAKES,
    }
}

pub(super) fn peers(config: PeerConfig) -> Peers {
    let mut seed = [0; 32];
    let name = config.identity.rid.as_bytes();
    seed[..name.len()].copy_from_slice(name);
    seed[31] = config.identity.node_generation.get() as u8;
    Peers::new(config, seed).unwrap()
}
