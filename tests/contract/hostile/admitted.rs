#![forbid(unsafe_code)]
//! After admission: whoever has the secret and keeps no rule.

use std::io::{ErrorKind as Io, Read};
use std::time::Duration;

use homing::Counter;
use homing::wire::{Body, Control, Credit, CreditEntry, FrameParts};

use super::rogue::{Joined, Rogue, bent, encode, probe};
use super::{Net, Stage};

impl Joined {
    /// Waits until the node has closed every lane.
    #[track_caller]
    fn must_be_closed(self) {
        self.lanes.into_values().for_each(super::rogue::Stream::must_be_closed);
    }
}

/// A valid handshake, then nonsense: one frame, and the link is closed for the rule it breaks. A bad
/// header is noticed before the frame behind it has come.
///
/// Proves R2.3-5, R5-4.
#[test]
fn a_link_is_closed_at_the_first_broken_rule() {
    Stage::each(
        |_| {},
        |stage| {
            let rogue = Rogue::new("rogue", 5);
            let fence = stage.good.ask(super::Command::Fence { id: "a".into() });
            let hello = stage.hello(&rogue);
            let credit = [CreditEntry { object_hash: 4, bytes: 1 }];
            let credit = Control::Credit(Credit::new(&credit).unwrap());
            let credit = encode(&FrameParts::link(0, Body::Control(credit)));
            let good = probe(0, 1);
            let long = |h: &mut [u8]| h[..4].copy_from_slice(&(1u32 << 20).to_be_bytes());
            let cases: [(&str, Vec<u8>); 9] = [
                ("frame-length", vec![0xff; 64]),
                ("frame-length", vec![0; 64]),
                ("header-crc", {
                    let mut frame = good.clone();
                    long(&mut frame);
                    frame
                }),
                ("part-lengths", bent(good.clone(), long)),
                ("frame-version", bent(good.clone(), |h| h[4] = 2)),
                ("wrong-lane", bent(good.clone(), |h| h[7] = 9)),
                ("record-magic", {
                    let mut frame = good.clone();
                    frame[40] = 0;
                    frame
                }),
                ("unexpected-record", hello),
                ("credit-not-spent", credit),
            ];
            let ends = |rule: &'static str| [(rule, 1), ("peer_rule_broken", 1)];
            for (rule, frame) in cases {
                stage.attack(rule, &ends(rule), || {
                    let mut joined = stage.join(&rogue);
                    joined.lane(0).say(&frame);
                    joined.must_be_closed();
                });
            }
            // What only the home core can tell. With three lanes on two cores that is, for half of
            // the ids, not the core that reads the lane; and it is told only once.
            let rogue = Rogue { cores: 3, ..rogue };
            for id in ["a", "b", "c", "d", "e", "f"] {
                stage.attack("a hash of another id", &ends("hash-mismatch"), || {
                    let mut joined = stage.join(&rogue);
                    let (_, lane) = joined.place(id);
                    let frame = joined.message(id, &fence, None, ("probe.note", &[1]));
                    // Another hash of the same lane and the same core.
                    let frame = bent(frame, |h| h[8] ^= 0x55);
                    joined.lane(lane).say(&frame.repeat(50));
                    joined.must_be_closed();
                });
            }
            assert_eq!(stage.victim.counter(Counter::ProtocolViolations), 15);
        },
    );
}

/// Half a frame and then nothing, nothing at all, or a byte a second: each is silence, and ends by
/// liveness. So does a link of which a lane never comes, by the handshake timeout.
///
/// Proves R0-6, R2.3-5.
#[test]
fn an_admitted_peer_that_falls_silent_is_lost() {
    Stage::each(
        |setup| setup.liveness_ms = Some((300, 1_500)),
        |stage| {
            let half = &probe(0, 1)[..30];
            for (what, opening) in [("silence", &[][..]), ("half a frame", half)] {
                stage.attack(what, &[("peer_lane_silent", 1)], || {
                    let mut joined = stage.join(&Rogue::new("rogue", 5));
                    joined.lane(0).say(opening);
                    joined.must_be_closed();
                });
            }
            stage.attack("a byte a second", &[("peer_lane_silent", 1)], || {
                let mut joined = stage.join(&Rogue::new("rogue", 5));
                let frame = probe(0, 1);
                let mut trickle = joined.lane(0).another();
                trickle.wait_at_most(Duration::from_secs(1));
                for byte in frame.chunks(1) {
                    trickle.say(byte);
                    // Waits for a second, or until the node says something.
                    match trickle.read(&mut [0; 4096]) {
                        Ok(1..) => {}
                        Err(e) if matches!(e.kind(), Io::WouldBlock | Io::TimedOut) => {}
                        Ok(0) | Err(_) => return joined.must_be_closed(),
                    }
                }
                panic!("a frame came to its end byte by byte");
            });
            if stage.net == Net::Unix {
                stage.attack("a lane that never comes", &[("peer_handshake_timeout", 1)], || {
                    let rogue = Rogue::new("rogue", 5);
                    let mut joined = stage.join_without(&rogue, |lane| lane == 1);
                    // It is received from already, and talks.
                    let mut talk = joined.lane(0).another();
                    talk.wait_at_most(Duration::from_millis(100));
                    loop {
                        talk.say(&probe(0, 1));
                        match talk.read(&mut [0; 4096]) {
                            Ok(1..) => {}
                            Err(e) if matches!(e.kind(), Io::WouldBlock | Io::TimedOut) => {}
                            Ok(0) | Err(_) => break,
                        }
                    }
                    joined.must_be_closed();
                });
            }
        },
    );
}
