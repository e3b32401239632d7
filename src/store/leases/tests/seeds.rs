#![forbid(unsafe_code)]
//! Many keepers, every fate, by seeds.

use super::*;

/// Keepers of two rids start, stop, die and meet every fate of a Store call, by seeds. Two
/// lifecycles of one rid never hold a live lease at the same instant, and no generation is given
/// twice.
///
/// Proves R0-3, R5-2.
#[test]
fn no_two_lifecycles_of_one_rid_are_alive_at_once() {
    for seed in 1..=200u64 {
        let mut random = Random(seed);
        let world = World::new();
        let mut nodes: Vec<Driven> = Vec::new();
        let mut given = std::collections::BTreeSet::new();
        let mut starts = 0;
        for step in 1..600u128 {
            if nodes.len() < 4 && random.one_in(10) {
                let rid = if random.one_in(2) { "a" } else { "b" };
                nodes.push(Driven::new(rid, step));
                nodes.last_mut().unwrap().step(&world, KeeperEvent::Start);
            }
            if nodes.is_empty() {
                continue;
            }
            let at = random.below(nodes.len() as u64) as usize;
            let node = &mut nodes[at];
            match random.below(12) {
                0 => world.pass(Duration::from_millis(random.below(4000))),
                1 if random.one_in(4) => {
                    let deadline = world.now() + Duration::from_secs(3);
                    node.step(&world, KeeperEvent::Release { deadline });
                }
                2 if random.one_in(6) => {
                    nodes.remove(at); // its process dies
                    continue;
                }
                3 | 4 => {
                    world.go_to(node.wait_until.min(world.now() + Duration::from_secs(2)));
                    node.step(&world, KeeperEvent::Timer);
                }
                5 if !node.late.is_empty() => {
                    let (token, op) = node.late.remove(0);
                    let answer = world.carry_out(op);
                    node.step(&world, KeeperEvent::Answer { token, answer });
                }
                _ if node.call.is_some() => {
                    let fate = match random.below(8) {
                        0 => Fate::Failed,
                        1 => Fate::Lost,
                        2 => Fate::AnswerLost,
                        _ => Fate::Answered,
                    };
                    node.answer(&world, fate);
                }
                _ => {}
            }
            for node in &mut nodes {
                for effect in node.told.drain(..) {
                    let KeeperEffect::Started(started) = effect else { continue };
                    starts += 1;
                    assert!(given.insert(started.node_generation.get()), "seed {seed}");
                    assert!(given.insert(started.owner_lease_generation.get()), "seed {seed}");
                }
            }
            for rid in ["a", "b"] {
                let alive = nodes
                    .iter()
                    .filter(|n| n.keeper.config.rid.as_bytes() == rid.as_bytes())
                    .filter(|n| n.view.is_alive(world.now()))
                    .count();
                assert!(alive <= 1, "seed {seed}, step {step}: {alive} live leases of {rid}");
            }
            nodes.retain(|node| !node.keeper.has_ended());
        }
        assert!(starts > 0, "seed {seed} started nothing");
    }
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % end
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}
