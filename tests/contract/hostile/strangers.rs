#![forbid(unsafe_code)]
//! Before admission: whoever has not proved the mesh secret.

use std::io::{ErrorKind as Io, Read};
use std::time::Duration;

use homing::Counter;
use homing::wire::{Admit, Body, FrameParts, Record};

use super::super::eventually::eventually;
use super::Stage;
use super::rogue::{Rogue, bent, encode, probe};

fn nonsense(len: u32) -> Vec<u8> {
    (0..len).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8 | 0x80).collect()
}

fn admit(proof: [u8; 32]) -> Vec<u8> {
    encode(&FrameParts::link(0, Body::Record(Record::Admit(Admit { proof, grant: None }))))
}

/// Case: 4 GiB length header ⇒ refused before allocation.
///
/// What a stranger says, and the one reason each is closed for.
///
/// Proves R2.3-5.
#[test]
fn what_strangers_say_closes_their_stream_for_its_own_reason() {
    Stage::each(
        |_| {},
        |stage| {
            let hello = stage.hello(&Rogue::new("rogue", 5));
            let long = |len: u32| {
                let mut bytes = len.to_be_bytes().to_vec();
                bytes.extend(nonsense(8_000));
                bytes
            };
            let mut spoiled = hello.clone();
            spoiled[20] ^= 1;
            let cases: [(&str, &str, Vec<u8>); 9] = [
                ("nonsense", "peer_handshake_frame_too_large", nonsense(100_000)),
                (
                    "another protocol",
                    "peer_handshake_frame_too_large",
                    b"GET / HTTP/1.1\r\n".repeat(9),
                ),
                ("4 GiB", "peer_handshake_frame_too_large", long(u32::MAX)),
                ("one byte too long", "peer_handshake_frame_too_large", long(8_193)),
                ("a frame of nonsense", "peer_bad_frame", long(8_000)),
                ("zeros", "peer_bad_frame", vec![0; 4_000]),
                ("a header that is not its checksum's", "peer_bad_frame", spoiled),
                ("a wrong lane", "peer_bad_frame", bent(hello.clone(), |h| h[7] = 1)),
                ("a record before its time", "peer_unexpected_record", probe(0, 1).repeat(1_000)),
            ];
            for (what, reason, bytes) in cases {
                stage.attack(what, &[(reason, 1)], || {
                    let mut stream = stage.connect();
                    stream.say(&bytes);
                    stream.must_be_closed();
                });
            }
            let after: [(&str, &str, Vec<u8>); 5] = [
                ("nonsense", "peer_handshake_frame_too_large", nonsense(100_000)),
                ("zeros", "peer_bad_frame", vec![0; 4_000]),
                ("a second hello", "peer_unexpected_record", hello.clone()),
                ("a probe", "peer_unexpected_record", probe(0, 1).repeat(1_000)),
                ("a wrong proof", "peer_wrong_proof", admit([7; 32])),
            ];
            for (what, reason, bytes) in after {
                let what = format!("a valid hello, then {what}");
                stage.attack(&what, &[(reason, 1)], || {
                    let mut stream = stage.connect();
                    assert!(stream.say(&hello));
                    stream.frame();
                    stream.say(&bytes);
                    stream.must_be_closed();
                });
            }
            assert_eq!(
                stage.victim.counter(Counter::LinksUp),
                1,
                "only the good peer was admitted"
            );
        },
    );
}

/// A stranger has the handshake timeout for everything: saying nothing, half a frame, all but the
/// proof, or a byte a second makes no difference.
///
/// Proves R2.3-5.
#[test]
fn strangers_that_take_their_time_are_closed_by_the_handshake_timeout() {
    Stage::each(
        |_| {},
        |stage| {
            let hello = stage.hello(&Rogue::new("rogue", 5));
            let half = hello.len() / 2;
            let openings: [(&str, &[u8]); 5] = [
                ("silence", b""),
                ("half a length", &hello[..2]),
                ("half a header", &hello[..20]),
                ("half a frame", &hello[..half]),
                ("a hello and no proof", &hello),
            ];
            let count = openings.len() as u64 + 1;
            stage.attack("taking time", &[("peer_handshake_timeout", count)], || {
                std::thread::scope(|s| {
                    for (_, opening) in openings {
                        s.spawn(move || {
                            let mut stream = stage.connect();
                            assert!(stream.say(opening));
                            stream.must_be_closed();
                        });
                    }
                    let hello = &hello;
                    s.spawn(move || {
                        let mut stream = stage.connect();
                        stream.wait_at_most(Duration::from_secs(1));
                        for byte in hello.chunks(1) {
                            stream.say(byte);
                            match stream.read(&mut [0; 64]) {
                                Err(e) if matches!(e.kind(), Io::WouldBlock | Io::TimedOut) => {}
                                Ok(0) | Err(_) => return,
                                Ok(_) => panic!("a hello that is not whole was answered"),
                            }
                        }
                        panic!("a hello took {} s", hello.len());
                    });
                });
            });
        },
    );
}

/// A peer that proves the secret under a name of an earlier life is refused: older than what was
/// admitted, older than what the Store describes, or a second one of the same generation. The link of
/// the node whose name it takes is not touched.
///
/// Proves R2.3-2, R2.3-5.
#[test]
fn an_old_incarnation_is_refused() {
    Stage::each(
        |_| {},
        |stage| {
            let refused = |what: &str, rogue: &Rogue, reason: &str| {
                let hello = stage.hello(rogue);
                stage.attack(what, &[(reason, 1)], || {
                    let mut stream = stage.connect();
                    assert!(stream.say(&hello));
                    stream.must_be_closed();
                });
            };
            // Admitted once, and gone.
            stage.attack("a rogue that leaves", &[("peer_lane_lost", 1)], || {
                drop(stage.join(&Rogue::new("rogue", 5)));
            });
            refused("older than the last", &Rogue::new("rogue", 4), "peer_stale_incarnation");
            let twin = Rogue { key: 2, ..Rogue::new("rogue", 5) };
            refused("another key", &twin, "peer_duplicate_rid");
            // A node that is linked.
            let good = stage.descriptor("good").identity.node_generation.get();
            refused("older than a peer", &Rogue::new("good", good - 1), "peer_stale_incarnation");
            refused("a peer's twin", &Rogue::new("good", good), "peer_duplicate_rid");
            // A node that was never linked: only its descriptor says so.
            let mut setup = stage.world.setup("described");
            setup.secret = Some(super::SECRET.into());
            let _described = stage.world.child(&setup);
            let known = stage.descriptor("described").identity.node_generation.get();
            let hello = stage.hello(&Rogue::new("described", known - 1));
            let before = stage.victim.closes().get("peer_stale_incarnation").copied();
            eventually("the descriptor to be read", || {
                let mut stream = stage.connect();
                stream.say(&hello);
                let first = stream.frame();
                // A reject is record 3; until the descriptor is known the hello is answered.
                stream.end();
                (first[43] == 3).then_some(())
            });
            eventually("the refusal to be counted", || {
                let now = stage.victim.closes().get("peer_stale_incarnation").copied();
                (now > before).then_some(())
            });
            // The newest life of a name is admitted.
            stage.join(&Rogue::new("rogue", 6)).lane(0).end();
        },
    );
}
