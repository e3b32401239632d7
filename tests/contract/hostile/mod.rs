#![forbid(unsafe_code)]
//! Peers that keep no rule, over TCP and over Unix sockets, while a well-behaved one works.
//!
//! `rogue` is the hostile side: bare sockets, and a handshake made with the library's own machine
//! where one is needed. The node under attack and the well-behaved one are processes of their own.
//! Every attack must end with exactly the counted reasons that are stated, must not make the node
//! larger than its limits say, and must cost the well-behaved peer nothing.

mod admitted;
mod crowds;
mod floods;
mod rogue;
mod strangers;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use homing::Counter;

use super::command::{Command, Setup};
use super::eventually::eventually;
use super::world::{Child, World};

/// Requests of the well-behaved peer during an attack, at least.
const REQUESTS: u64 = 200;
/// What a process may grow by beside what the limits allow: the allocator's slack, and the buffers a
/// driver receives into (io_uring: 4 MiB a core), which are touched for the first time.
const SLACK_BYTES: u64 = 6 << 20;
/// The mesh secret of these nodes.
const SECRET: &str = "correct horse battery";

/// What the node listens on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Net {
    Tcp,
    Unix,
}

/// A node under attack, and a peer of it that behaves.
struct Stage {
    world: World,
    net: Net,
    victim: Child,
    good: Child,
}

impl Stage {
    /// Lets `test` happen over both kinds of socket and on both drivers; `adapt` changes the victim's
    /// settings. Its core counts differ, so that links of one lane and of two are met.
    fn each(adapt: impl Fn(&mut Setup), test: impl Fn(&Self)) {
        // `auto` is io_uring wherever the kernel allows it. A deep run crosses all with all.
        let is_deep = std::env::var("HOMING_TEST_DEEP").is_ok_and(|deep| deep == "1");
        let all =
            [(Net::Tcp, "epoll"), (Net::Unix, "auto"), (Net::Tcp, "auto"), (Net::Unix, "epoll")];
        for (net, driver) in all.into_iter().take(if is_deep { 4 } else { 2 }) {
            let adapt = |setup: &mut Setup| {
                setup.driver = Some(driver.into());
                adapt(setup);
            };
            let stage = Self::new(net, adapt, &[]);
            test(&stage);
            stage.good_is_well();
        }
    }

    fn new(net: Net, adapt: impl Fn(&mut Setup), launcher: &[&str]) -> Self {
        let world = World::new();
        let mut setup = world.setup("victim");
        setup.secret = Some(SECRET.into());
        setup.cores = Some(if net == Net::Tcp { 1 } else { 2 });
        setup.listen = Some(match net {
            Net::Tcp => world.free_tcp(),
            Net::Unix => format!("unix://{}", world.file("v")),
        });
        setup.handshake_ms = Some(1_500);
        adapt(&mut setup);
        let victim = world.child_under(&setup, "victim", launcher);
        ["quiet", "a"].iter().for_each(|id| drop(victim.create(id)));
        let good = Self::well_behaved(&world, "good");
        Self { world, net, victim, good }
    }

    /// A peer that behaves, linked and with its first request answered.
    fn well_behaved(world: &World, rid: &str) -> Child {
        let mut setup = world.setup(rid);
        setup.secret = Some(SECRET.into());
        setup.cores = Some(1);
        setup.request_ms = Some(60_000);
        let good = world.child(&setup);
        good.ask::<u64>(Command::Burst { id: "quiet".into(), count: 1 });
        good
    }

    /// Lets the well-behaved peer work until the attack is over, at least [`REQUESTS`] times.
    fn meanwhile(&self, attack: impl FnOnce()) {
        struct Over<'a>(&'a AtomicBool);
        impl Drop for Over<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let over = AtomicBool::new(false);
        std::thread::scope(|s| {
            let work = s.spawn(|| {
                let mut done = 0;
                while done < REQUESTS || !over.load(Ordering::Relaxed) {
                    let burst = Command::Burst { id: "quiet".into(), count: 20 };
                    done += self.good.try_ask::<u64>(burst).unwrap_or_else(|e| {
                        panic!("{e}; the victim closed for {:?}", self.victim.closes())
                    });
                }
            });
            {
                // Also when the attack fails: else the work would never end.
                let _over = Over(&over);
                attack();
            }
            work.join().expect("every request of the well-behaved peer is answered");
        });
    }

    /// The well-behaved peer has the link it began with.
    fn good_is_well(&self) {
        assert_eq!(self.good.counter(Counter::LinksUp), 1, "{:?}: its link was replaced", self.net);
        assert_eq!(self.good.counter(Counter::LinksDown), 0, "{:?}: its link was lost", self.net);
    }

    /// Runs an attack while the well-behaved peer works, and waits until the victim has counted
    /// exactly these closes and no others.
    #[track_caller]
    fn attack(&self, what: &str, expected: &[(&str, u64)], attack: impl FnOnce()) {
        let before = self.victim.closes();
        self.meanwhile(attack);
        let expected: BTreeMap<String, u64> =
            expected.iter().map(|(reason, times)| ((*reason).to_owned(), *times)).collect();
        let mut last = BTreeMap::new();
        let mut looks = 0;
        eventually(&format!("{:?}: {what} to be closed", self.net), || {
            last = self.victim.closes();
            last.retain(|reason, times| {
                *times -= before.get(reason).copied().unwrap_or(0);
                *times > 0
            });
            looks += 1;
            (last == expected || looks == 2_000).then_some(())
        });
        assert_eq!(last, expected, "{:?}: {what}", self.net);
    }

    /// Runs `attack` and fails when the victim grew, at any look, by more than `allowed` bytes and
    /// the slack.
    fn bounded(&self, what: &str, allowed: u64, attack: impl FnOnce(&dyn Fn())) {
        let before = self.victim.memory_bytes();
        let most = std::cell::Cell::new(before);
        let look = || most.set(most.get().max(self.victim.memory_bytes()));
        attack(&look);
        look();
        let (grown, most) = (most.get() - before, most.get());
        eprintln!("{:?}: {what}: {} KiB, grown by {} KiB", self.net, most >> 10, grown >> 10);
        assert!(
            grown <= allowed + SLACK_BYTES,
            "{:?}: {what}: grown by {grown} bytes; its limits allow {allowed}",
            self.net
        );
    }
}
