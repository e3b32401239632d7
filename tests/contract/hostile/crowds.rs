#![forbid(unsafe_code)]
//! Very many who connect and never say hello.

use homing::Counter;
use rustix::process::{Resource, getrlimit, setrlimit};

use super::{Net, Stage};

/// Lets this process open as many descriptors as it may: a crowd is larger than the usual number.
fn many_descriptors() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).expect("the soft limit may be raised to the hard one");
}

/// More streams without a proof than a node keeps: the oldest go, one for one, and whoever comes and
/// does prove itself gets in.
///
/// Proves R2.3-5.
#[test]
fn streams_without_a_proof_are_bounded_and_others_get_in() {
    const KEPT: usize = 64;
    const CROWD: usize = 1_500;
    many_descriptors();
    Stage::each(
        |setup| {
            setup.half_open = Some(KEPT);
            setup.handshake_ms = Some(600_000);
        },
        |stage| {
            // Each announces the largest frame there is for it, and sends all but its end.
            let mut announced = 8_192u32.to_be_bytes().to_vec();
            announced.extend(stage.hello(&super::rogue::Rogue::new("rogue", 5))[4..40].iter());
            announced.resize(8_191, 0);
            let announced = super::rogue::bent(announced, |h| {
                h[24..28].copy_from_slice(&(8_192u32 - 40).to_be_bytes());
            });
            let mut crowd = Vec::new();
            let allowed = KEPT as u64 * 2 * 8_192;
            stage.bounded("a crowd", allowed, |look| {
                stage.attack(
                    "a crowd",
                    &[("peer_handshake_crowded", (CROWD - KEPT) as u64)],
                    || {
                        for _ in 0..CROWD {
                            let mut stream = stage.connect();
                            stream.say(&announced);
                            crowd.push(stream);
                            look();
                        }
                    },
                );
            });
            // One more is in the way of nobody.
            let late = Stage::well_behaved(&stage.world, "late");
            assert_eq!(late.counter(Counter::LinksUp), 1);
            assert_eq!(late.counter(Counter::LinksDown), 0);
        },
    );
}

/// A process that may open few descriptors gives a quarter of them to strangers, so that a crowd does
/// not keep it from taking in its peers.
///
/// Proves R2.3-5.
#[test]
fn a_crowd_leaves_descriptors_for_others() {
    const CROWD: usize = 500;
    many_descriptors();
    let few = ["sh", "-c", "ulimit -n 160; exec \"$0\" \"$@\""];
    for net in [Net::Tcp, Net::Unix] {
        let stage = Stage::new(net, |setup| setup.handshake_ms = Some(600_000), &few);
        let mut crowd = Vec::new();
        stage.attack("a crowd", &[("peer_handshake_crowded", (CROWD - 40) as u64)], || {
            (0..CROWD).for_each(|_| crowd.push(stage.connect()));
        });
        let late = Stage::well_behaved(&stage.world, "late");
        assert_eq!((late.counter(Counter::LinksUp), late.counter(Counter::LinksDown)), (1, 0));
        stage.good_is_well();
    }
}
