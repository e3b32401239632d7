#![forbid(unsafe_code)]
//! Very much of what is legal and of what is not, and answers that nobody reads.

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use homing::Counter;
use homing::ids::Correlation;
use homing::wire::{ActorCreate, Body, CreateMode, FrameParts, Record, Reply, Status};

use super::super::command::{Command, Fence, Setup};
use super::super::eventually::eventually;
use super::super::probe::{Fill, Hold, Make};
use super::rogue::{Joined, Rogue, Stream, encode, probe};
use super::{Net, Stage};
use homing::Message;

const MILLION: u64 = 1_000_000;
/// The smallest settings there are.
const WINDOW: u32 = 64 << 10;
const FRAME: u32 = 64 << 10;
const UNSENT: u64 = 1 << 20;
/// A frame with record 6.
const ACK_BYTES: u64 = 53;

fn small(setup: &mut Setup) {
    setup.window = Some(WINDOW);
    setup.max_frame = Some(FRAME);
    setup.unsent = Some(UNSENT);
    // A flood of one lane may last longer than the usual patience with the others.
    setup.liveness_ms = Some((20_000, 600_000));
}

fn bytes_of<M: Message>(message: &M) -> Vec<u8> {
    let mut bytes = Vec::new();
    message.encode(&mut bytes).expect("a message is encoded");
    bytes
}

/// Says a thousand frames at a time, as long as the node listens; how many thousand were said.
fn pour(stream: &mut Stream, thousands: u64, mut thousand: impl FnMut(u64) -> Vec<u8>) -> u64 {
    (0..thousands).find(|n| !stream.say(&thousand(*n))).unwrap_or(thousands)
}

/// Reads and throws away, on a thread of its own, until the stream ends; what was read so far.
fn drain(mut stream: Stream) -> (std::thread::JoinHandle<()>, Arc<AtomicU64>) {
    let read = Arc::new(AtomicU64::new(0));
    let counted = read.clone();
    let thread = std::thread::spawn(move || {
        let mut bytes = vec![0; 1 << 18];
        while let Ok(len @ 1..) = stream.read(&mut bytes) {
            counted.fetch_add(len as u64, Ordering::Relaxed);
        }
    });
    (thread, read)
}

/// A million probes are answered, a million late replies counted, as fast as they come; they keep
/// nothing here and hold up nobody.
///
/// Proves R4-6, R0-6.
#[test]
fn a_million_tiny_legal_frames_are_handled_and_keep_nothing() {
    Stage::each(small, |stage| {
        let mut joined = stage.join(&Rogue::new("rogue", 5));
        let (drained, read) = drain(joined.lane(0).another());
        let before = stage.victim.counter(Counter::FramesIn);
        let cores = if stage.net == Net::Tcp { 1 } else { 2 };
        let late = |n: u64| {
            // They go to core 0, by their hash and by their number.
            let correlation = Correlation::new(n * cores + 1).unwrap();
            let record = Record::Reply(Reply { correlation, status: Status::OK, tail: &[] });
            encode(&FrameParts::link(0, Body::Record(record)))
        };
        let late: Vec<u8> = (0..1_000).flat_map(late).collect();
        let probes: Vec<u8> = (1..=1_000).flat_map(|n| probe(0, n)).collect();
        // What is read and not answered yet, once as what came and once as what leaves.
        stage.bounded("a million probes and replies", UNSENT * 2, |look| {
            stage.meanwhile(|| {
                for part in [&probes, &late] {
                    let is_answered = std::ptr::eq(part, &probes);
                    let said = pour(joined.lane(0), MILLION / 1_000, |n| {
                        if n % 50 == 0 {
                            look();
                        }
                        if is_answered {
                            // It reads what it asks for: of all but the last thousand, the acks.
                            eventually("probes to be answered", || {
                                let acks = n.saturating_sub(1) * 1_000 * ACK_BYTES;
                                (read.load(Ordering::Relaxed) >= acks).then_some(())
                            });
                        }
                        part.clone()
                    });
                    assert_eq!(said, MILLION / 1_000, "the node stopped listening");
                }
                eventually("all of them to be handled", || {
                    let handled = stage.victim.counter(Counter::FramesIn) - before;
                    (handled >= 2 * MILLION).then_some(())
                });
            });
        });
        assert!(stage.victim.counter(Counter::RepliesLate) >= MILLION / 2);
        let ends = [("peer_lane_lost", 1)];
        stage.attack("leaving", &ends, || joined.lanes.values().for_each(Stream::end));
        drained.join().unwrap();
        let answered = read.load(Ordering::Relaxed);
        assert!(answered >= MILLION * ACK_BYTES, "{answered} bytes came back");
    });
}

/// Of a million frames that break a rule the first closes the link, and is counted once.
///
/// Proves R5-4.
#[test]
fn a_million_illegal_frames_are_one_broken_rule() {
    Stage::each(small, |stage| {
        let ends = [("hash-not-zero", 1), ("peer_rule_broken", 1)];
        stage.bounded("a million illegal frames", UNSENT, |look| {
            stage.attack("a flood", &ends, || {
                let mut joined = stage.join(&Rogue::new("rogue", 5));
                let bad = super::rogue::bent(probe(0, 1), |h| h[15] = 1).repeat(1_000);
                pour(joined.lane(0), MILLION / 1_000, |n| {
                    if n % 50 == 0 {
                        look();
                    }
                    bad.clone()
                });
            });
        });
    });
}

/// Credit is no courtesy: what is sent without it closes the link, so that whoever fills the queue of a
/// slow Actor fills it to its share and no further.
///
/// Proves R5-4.
#[test]
fn messages_without_credit_close_the_link() {
    Stage::each(small, |stage| {
        let gate = stage.world.gate("slow");
        let hold =
            stage.good.begin(Command::Hold("a".into(), Hold { number: 0, gate: gate.clone() }));
        stage.victim.await_waiting(&gate, 1);
        let fence: Fence = stage.good.ask(Command::Fence { id: "a".into() });
        let ends = [("credit-overspent", 1), ("peer_rule_broken", 1)];
        stage.bounded("messages without credit", u64::from(WINDOW + FRAME), |look| {
            stage.attack("messages without credit", &ends, || {
                let mut joined = stage.join(&Rogue::new("rogue", 5));
                let (_, lane) = joined.place("a");
                let packet = ("probe.raw", &[7; 1_000][..]);
                let thousand = joined.message("a", &fence, None, packet).repeat(1_000);
                pour(joined.lane(lane), 200, |_| {
                    look();
                    thousand.clone()
                });
            });
        });
        stage.victim.open_gate(&gate);
        hold.end::<u64>().unwrap();
    });
}

/// Asks four Actors for answers of 60 KB each, within the credit there is. Nobody reads them.
fn ask_for_much(stage: &Stage, joined: &mut Joined) {
    let fill = bytes_of(&Fill { bytes: 60_000 });
    let mut correlation = 0;
    for id in ["m0", "m1", "m2", "m3"] {
        let fence: Fence = stage.good.ask(Command::Fence { id: id.into() });
        let (_, lane) = joined.place(id);
        let mut spent = 0;
        loop {
            correlation += 2;
            let frame = joined.message(id, &fence, Some(correlation), (Fill::NAME, &fill));
            spent += frame.len();
            if spent > WINDOW as usize / 4 {
                break;
            }
            if !joined.lane(lane).say(&frame) {
                // It was cut off already.
                return;
            }
        }
    }
}

fn with_actors(stage: &Stage) {
    ["m0", "m1", "m2", "m3"].iter().for_each(|id| drop(stage.victim.create(id)));
}

/// A peer asks and never reads: what waits for it has a bound, whether answers to requests or to
/// probes; at the bound it is cut off.
///
/// Proves R5-4, R0-6.
#[test]
fn what_waits_for_a_peer_that_never_reads_is_bounded() {
    Stage::each(small, |stage| {
        with_actors(stage);
        // Twice: as the answer it is, and as the frame it becomes.
        let round = homing::limits::ROUND_ANSWER_BYTES as u64 + u64::from(FRAME);
        let allowed = 2 * (UNSENT + round);
        stage.bounded("answers nobody reads", allowed, |look| {
            stage.attack("answers nobody reads", &[("peer_lane_unsent", 1)], || {
                let mut joined = stage.join(&Rogue::new("rogue", 5));
                ask_for_much(stage, &mut joined);
                eventually("the link to be closed", || {
                    look();
                    stage.victim.closes().contains_key("peer_lane_unsent").then_some(())
                });
            });
        });
        stage.bounded("probes nobody hears answered", allowed, |look| {
            stage.attack("probes nobody hears answered", &[("peer_lane_unsent", 1)], || {
                let mut joined = stage.join(&Rogue::new("rogue", 5));
                let probes: Vec<u8> = (1..=1_000).flat_map(|n| probe(0, n)).collect();
                let said = pour(joined.lane(0), MILLION / 1_000, |n| {
                    if n % 50 == 0 {
                        look();
                    }
                    probes.clone()
                });
                assert!(said < MILLION / 1_000, "the node listened to the end");
            });
        });
    });
}

/// A peer that reads nothing and talks is as lost as one that says nothing.
///
/// Proves R0-6.
#[test]
fn a_peer_that_talks_and_never_reads_is_lost() {
    let settings = |setup: &mut Setup| {
        small(setup);
        setup.unsent = None;
        setup.liveness_ms = Some((500, 4_000));
    };
    Stage::each(settings, |stage| {
        with_actors(stage);
        stage.attack("talk", &[("peer_lane_not_read", 1)], || {
            let mut joined = stage.join(&Rogue::new("rogue", 5));
            ask_for_much(stage, &mut joined);
            let lanes: Vec<u16> = joined.lanes.keys().copied().collect();
            eventually("the node to stop listening", || {
                let listens = lanes.iter().all(|lane| joined.lane(*lane).say(&probe(*lane, 1)));
                (!listens).then_some(())
            });
        });
    });
}

/// Creations spend no credit and have a bound of their own: beyond it they are refused, not kept.
///
/// Proves R5-4.
#[test]
fn creations_of_a_peer_are_bounded() {
    const SENT: u64 = 3_000;
    Stage::each(small, |stage| {
        let gate = stage.world.gate("factory");
        let make = bytes_of(&Make { gate: gate.clone(), ..Make::default() });
        let mut joined = stage.join(&Rogue::new("rogue", 5));
        let (object_hash, lane) = joined.place("slow");
        let drained: Vec<_> = joined.lanes.values().map(|s| drain(s.another())).collect();
        let mut payload = Vec::new();
        homing::wire::encode_payload_part(&mut payload, Make::NAME, "application/postcard", &make)
            .unwrap();
        let mut filler = Vec::new();
        homing::wire::encode_payload_part(&mut filler, "filler", "-", &[7; 60_000]).unwrap();
        let create = |number: u64, payload_part: &[u8]| {
            let record = Record::ActorCreate(ActorCreate {
                correlation: Correlation::new(number * 2 + 2).unwrap(),
                mode: CreateMode::Here,
                type_name: "probe",
                id: "slow",
                attempt_id: u128::from(number) + 1,
            });
            encode(&FrameParts {
                object_hash,
                remaining_ms: 600_000,
                payload_part: Some(payload_part),
                ..FrameParts::link(lane, Body::Record(record))
            })
        };
        assert!(joined.lane(lane).say(&create(0, &payload)));
        stage.victim.await_waiting(&gate, 1);
        // A request is kept as it came, and once more where it was copied from.
        let allowed = homing::limits::REMOTE_CONTROL_BYTES + u64::from(FRAME);
        stage.bounded("creations", allowed, |look| {
            stage.meanwhile(|| {
                for number in 1..=SENT {
                    assert!(joined.lane(lane).say(&create(number, &filler)));
                    if number % 100 == 0 {
                        look();
                    }
                }
                eventually("creations to be refused", || {
                    let refused = stage.victim.counter(Counter::RemoteControlRefused);
                    let held = homing::limits::REMOTE_CONTROL_BYTES / 60_000;
                    (refused + held + 2 >= SENT).then_some(())
                });
            });
        });
        stage.victim.open_gate(&gate);
        stage.attack("leaving", &[("peer_lane_lost", 1)], || {
            joined.lanes.values().for_each(Stream::end);
        });
        let read: u64 = drained
            .into_iter()
            .map(|(thread, read)| {
                thread.join().unwrap();
                read.load(Ordering::Relaxed)
            })
            .sum();
        assert!(read > 0, "the refusals came back");
    });
}
