#![forbid(unsafe_code)]
//! The secrets of a handshake: proofs, link keys and the machine's own chance (R2.3-5).
//!
//! Every MAC is HMAC-SHA-256 over a label that says what it is for, and over its parts, each
//! behind its length; so no two uses can be taken for each other, and none can be reflected.

use std::fmt;
use std::time::Duration;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::time::duration_ns;

/// What a MAC is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Label {
    /// The accepting side proves the mesh secret.
    AcceptorProof,
    /// The dialling side proves the mesh secret.
    DialerProof,
    /// The accepting side stands by the link it grants.
    Grant,
    /// Derives the key of a link's lanes.
    LinkKey,
    /// The dialling side attaches a lane.
    DialerLane,
    /// The accepting side confirms a lane.
    AcceptorLane,
    /// The machine's own chance.
    Chance,
}

impl Label {
    const fn bytes(self) -> &'static [u8] {
        match self {
            Self::AcceptorProof => b"homing 1 acceptor proof",
            Self::DialerProof => b"homing 1 dialer proof",
            Self::Grant => b"homing 1 grant",
            Self::LinkKey => b"homing 1 link key",
            Self::DialerLane => b"homing 1 dialer lane",
            Self::AcceptorLane => b"homing 1 acceptor lane",
            Self::Chance => b"homing 1 chance",
        }
    }
}

fn state(key: &[u8], label: Label, parts: &[&[u8]]) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes a key of any length");
    for part in std::iter::once(&label.bytes()).chain(parts) {
        mac.update(&(part.len() as u64).to_be_bytes());
        mac.update(part);
    }
    mac
}

/// The MAC of `parts` under `key` for the purpose `label`.
pub(super) fn mac(key: &[u8], label: Label, parts: &[&[u8]]) -> [u8; 32] {
    state(key, label, parts).finalize().into_bytes().into()
}

/// Whether `tag` is that MAC. Takes the same time wherever they differ.
pub(super) fn verify(key: &[u8], label: Label, parts: &[&[u8]], tag: &[u8; 32]) -> bool {
    state(key, label, parts).verify_slice(tag).is_ok()
}

/// The key of one link's lanes: derived from the secret and both hellos, so from both nonces.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct LinkKey([u8; 32]);

impl LinkKey {
    pub(super) fn derive(secret: &[u8], dialer_hello: &[u8], acceptor_hello: &[u8]) -> Self {
        Self(mac(secret, Label::LinkKey, &[dialer_hello, acceptor_hello]))
    }

    pub(super) fn lane(&self, label: Label, link: u64, lane: u16) -> [u8; 32] {
        mac(&self.0, label, &[&link.to_be_bytes(), &lane.to_be_bytes()])
    }

    pub(super) fn verify_lane(&self, label: Label, link: u64, lane: u16, tag: &[u8; 32]) -> bool {
        verify(&self.0, label, &[&link.to_be_bytes(), &lane.to_be_bytes()], tag)
    }
}

impl fmt::Debug for LinkKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LinkKey(..)")
    }
}

/// Numbers nobody can guess, drawn from one seed that comes in at the start: a pure machine has
/// no randomness of its own.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Chance {
    seed: [u8; 32],
    drawn: u64,
}

impl Chance {
    pub(super) const fn new(seed: [u8; 32]) -> Self {
        Self { seed, drawn: 0 }
    }

    /// 32 fresh bytes: a nonce.
    pub(super) fn draw(&mut self) -> [u8; 32] {
        self.drawn += 1;
        mac(&self.seed, Label::Chance, &[&self.drawn.to_be_bytes()])
    }

    /// A time between half of `longest` and `longest`.
    pub(super) fn jitter(&mut self, longest: Duration) -> Duration {
        let drawn = self.draw();
        let random = u64::from_be_bytes([
            drawn[0], drawn[1], drawn[2], drawn[3], drawn[4], drawn[5], drawn[6], drawn[7],
        ]);
        let half_ns = duration_ns(longest) / 2;
        Duration::from_nanos(duration_ns(longest) - half_ns + random % (half_ns + 1)).min(longest)
    }
}

impl fmt::Debug for Chance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Chance(drawn {})", self.drawn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|b| format!("{b:02x}")).collect()
    }

    /// The primitive underneath is HMAC-SHA-256: RFC 4231, case 2.
    #[test]
    fn hmac_sha_256_matches_the_published_vector() {
        let mut m = Hmac::<Sha256>::new_from_slice(b"Jefe").unwrap();
        m.update(b"what do ya want for nothing?");
        let tag: [u8; 32] = m.finalize().into_bytes().into();
        assert_eq!(hex(&tag), "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    }

    /// Proves R2.3-5.
    #[test]
    fn labels_keys_and_cuts_all_change_the_mac() {
        let labels = [
            Label::AcceptorProof,
            Label::DialerProof,
            Label::Grant,
            Label::LinkKey,
            Label::DialerLane,
            Label::AcceptorLane,
            Label::Chance,
        ];
        let mut all: Vec<[u8; 32]> = Vec::new();
        for key in [&b""[..], b"k", b"other"] {
            for label in labels {
                for parts in [[&b"ab"[..], b"c"], [b"a", b"bc"], [b"abc", b""], [b"", b"abc"]] {
                    all.push(mac(key, label, &parts));
                    assert!(verify(key, label, &parts, all.last().unwrap()));
                    assert!(!verify(b"wrong", label, &parts, all.last().unwrap()));
                }
            }
        }
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
    }

    #[test]
    fn jitter_keeps_its_bounds_and_spreads() {
        let mut chance = Chance::new([7; 32]);
        let longest = Duration::from_millis(100);
        let drawn: Vec<_> = (0..500).map(|_| chance.jitter(longest)).collect();
        assert!(drawn.iter().all(|d| *d >= longest / 2 && *d <= longest));
        assert!(drawn.iter().any(|d| *d < Duration::from_millis(60)));
        assert!(drawn.iter().any(|d| *d > Duration::from_millis(90)));
        assert_eq!(chance.jitter(Duration::ZERO), Duration::ZERO);
    }

    #[test]
    fn secrets_are_never_shown() {
        let shown = format!("{:?} {:?}", Chance::new([255; 32]), LinkKey([255; 32]));
        assert!(!shown.contains("255"), "{shown}");
    }
}
