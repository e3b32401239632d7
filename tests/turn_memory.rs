#![forbid(unsafe_code)]
//! Warm turns take no memory: this program's allocator counts.
#![allow(clippy::disallowed_methods)] // drives a node from outside

use std::alloc::System;
use std::time::Duration;

use homing::exec::idle::Idle;
use homing::object::TurnActor;
use homing::prelude::*;
use homing::store::memory::MemoryStore;
use serde::{Deserialize, Serialize};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Turns in a window.
const TURNS: u64 = 10_000;
/// Sends of which the last is awaited.
const BATCH: u64 = 100;
/// Windows that are tried. The node's other threads take memory now and then (a lease is renewed,
/// nodes are looked for), and the counter sees the whole process; what a turn takes is in every
/// window. So one clean window proves it.
const WINDOWS: u64 = 20;

#[derive(Serialize, Deserialize)]
struct Ping {
    numbers: [u64; 8],
}
impl Message for Ping {
    const NAME: &'static str = "ping";
    type Reply = [u64; 8];
}

/// Asks how many pings of whatever kind have come.
#[derive(Serialize, Deserialize)]
struct Count;
impl Message for Count {
    const NAME: &'static str = "count";
    type Reply = u64;
}

#[derive(Default)]
struct Target {
    handled: u64,
}
impl Actor for Target {
    const TYPE: &'static str = "target";
    async fn create(_: &CreateContext, _: Payload) -> Result<Self> {
        Ok(Self::default())
    }
}
impl Handler<Ping> for Target {
    async fn handle(&mut self, ping: Ping, _: &mut Context<'_, Self>) -> Result<[u64; 8]> {
        self.handled += 1;
        Ok(ping.numbers.map(|n| n + 1))
    }
}
impl Handler<Payload> for Target {
    async fn handle(&mut self, raw: Payload, _: &mut Context<'_, Self>) -> Result<Payload> {
        self.handled += 1;
        Ok(raw)
    }
}
impl Handler<Count> for Target {
    async fn handle(&mut self, _: Count, _: &mut Context<'_, Self>) -> Result<u64> {
        Ok(self.handled)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
enum Way {
    Send,
    Request,
    SendRaw,
    RequestRaw,
}

/// Makes a window of turns after a warm-up of the same kind; answered with the allocations of the
/// best one.
#[derive(Serialize, Deserialize)]
struct Drive(Way);
impl Message for Drive {
    const NAME: &'static str = "drive";
    type Reply = usize;
}

struct Driver;
impl Actor for Driver {
    const TYPE: &'static str = "driver";
    async fn create(_: &CreateContext, _: Payload) -> Result<Self> {
        Ok(Self)
    }
}
impl Handler<Drive> for Driver {
    async fn handle(&mut self, Drive(way): Drive, cx: &mut Context<'_, Self>) -> Result<usize> {
        let target = cx.actor("target")?;
        let raw = Payload::new("raw", "application/octet-stream", &[7; 64])?;
        window(way, &target, &raw).await?;
        let mut least = usize::MAX;
        for _ in 0..WINDOWS {
            let before = target.request(Count).await?;
            // Twice: what the question itself took is not of the window.
            let start = ALLOCATOR.stats();
            window(way, &target, &raw).await?;
            let end = ALLOCATOR.stats();
            let taken =
                (end.allocations + end.reallocations) - (start.allocations + start.reallocations);
            let handled = target.request(Count).await? - before;
            if handled != TURNS {
                return Err(Error::internal(format!("{handled} turns in a window")));
            }
            least = least.min(taken);
            if least == 0 {
                break;
            }
        }
        Ok(least)
    }
}

async fn window(way: Way, target: &TurnActor, raw: &Payload) -> Result<()> {
    let ping = |n| Ping { numbers: [n; 8] };
    for n in 0..TURNS {
        let is_last = n % BATCH == BATCH - 1;
        match way {
            Way::Send if is_last => target.send(ping(n)).await?,
            Way::Send => target.send(ping(n)).detach(),
            Way::SendRaw if is_last => target.send(raw.clone()).await?,
            Way::SendRaw => target.send(raw.clone()).detach(),
            Way::Request => {
                let answer = target.request(ping(n)).await?;
                assert_eq!(answer, [n + 1; 8]);
            }
            Way::RequestRaw => {
                let answer = target.request(raw.clone()).await?;
                assert_eq!(answer.bytes(), [7; 64]);
            }
        }
    }
    Ok(())
}

/// Ten thousand warm turns of each kind, sent by a turn to an Actor of the same core, take no
/// memory: no payload, no future, no waker, no place for an end.
#[test]
fn warm_turns_take_no_memory() {
    let node = Node::builder("memory")
        .store(MemoryStore::new())
        .idle(Idle::Park)
        .lease_duration(Duration::from_secs(600))
        .lease_renew_interval(Duration::from_secs(200))
        .actor::<Target>(|a| a.handles::<Ping>().handles::<Count>().handles_packet("raw"))
        .actor::<Driver>(|a| a.handles::<Drive>())
        .start()
        .expect("the node starts");
    node.actors().create::<Target>("target", ()).wait().expect("a target");
    node.actors().create::<Driver>("driver", ()).wait().expect("a driver");
    let driver = node.actor("driver");
    for way in [Way::Send, Way::Request, Way::SendRaw, Way::RequestRaw] {
        let asked = driver.request(Drive(way)).timeout(Duration::from_secs(300));
        let taken = asked.wait().expect("every turn ran");
        assert_eq!(taken, 0, "{way:?}: allocations in {TURNS} warm turns");
    }
    homing::block_on(node.shutdown(Duration::from_secs(5)));
}
