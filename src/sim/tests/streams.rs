#![forbid(unsafe_code)]
//! Streams: order, loss, ends.

use std::time::Duration;

use super::*;

fn numbered(count: u32) -> Vec<Vec<u8>> {
    (0..count).map(|n| n.to_be_bytes().repeat(1 + n as usize % 50)).collect()
}

#[test]
fn bytes_arrive_in_order_cut_and_joined_at_random() {
    for seed in 0..20 {
        let mut w = ToyWorld::new(seed, &[1, 1], false);
        let chunks = numbered(400);
        let whole = chunks.concat();
        w.dial(0, 1, chunks.clone(), Some(true));
        w.secs(5);
        let got = w.log.with(|l| l.bytes.remove(&(NodeIx(1), 0)).unwrap());
        // A closing writer may leave bytes that the window did not take; what came is a prefix.
        assert!(whole.starts_with(&got), "seed {seed}: bytes out of order");
        assert!(!got.is_empty());
        let closed = w.log.with(|l| std::mem::take(&mut l.closed));
        assert_eq!(closed, [(NodeIx(1), 0, CloseReason::Eof)], "seed {seed}");
        assert_eq!(w.world.stream_count(), 0, "the stream is forgotten");
        let pieces = w.log.with(|l| {
            l.lines.iter().filter(|(_, n, _, e)| *n == NodeIx(1) && e.contains("Received")).count()
        });
        assert_ne!(pieces, chunks.len(), "seed {seed}: chunk bounds were kept");
    }
}

#[test]
fn nothing_is_lost_while_a_stream_stays_open() {
    for seed in 0..10 {
        let mut w = ToyWorld::new(seed, &[1, 3], true);
        let mut plan = FaultPlan::none();
        plan.rates.window_bytes = (2 << 10, 16 << 10);
        w.world.set_plan(plan);
        // The first byte names the core that adopts the stream: 0, so core 0 keeps handing over
        // to itself; 2 for the second.
        for core in [1u8, 2] {
            let mut chunks = vec![vec![core; 3]];
            chunks.extend(numbered(600));
            w.dial(0, 1, chunks, None);
        }
        w.secs(20);
        let streams = w.log.with(|l| std::mem::take(&mut l.bytes));
        let mut seen: Vec<u8> = Vec::new();
        for bytes in streams.values() {
            let rest = numbered(600).concat();
            assert_eq!(bytes[3..], rest, "seed {seed}: hand-over kept the order");
            seen.push(bytes[0]);
        }
        seen.sort_unstable();
        assert_eq!(seen, [1, 2]);
        assert!(w.log.with(|l| l.most_unsent) > 0, "the window pushes back");
    }
}

#[test]
fn dials_are_refused_where_nobody_listens() {
    let mut w = ToyWorld::new(5, &[1, 1], false);
    let nowhere: Endpoint = "tcp://127.9.9.9:9".parse().unwrap();
    w.post(0, 0, Mail::Dial { to: nowhere, chunks: vec![], close: None });
    w.post(1, 0, Mail::StopListening);
    w.secs(1);
    w.dial(0, 1, vec![], None);
    w.secs(1);
    w.world.handle().inject(Fault::Kill(NodeIx(1), Death::Reset));
    w.dial(0, 1, vec![], None);
    w.secs(1);
    let closed = w.log.with(|l| std::mem::take(&mut l.closed));
    assert_eq!(closed.len(), 3, "{closed:?}");
    for (node, _, reason) in closed {
        assert_eq!(node, NodeIx(0));
        assert_eq!(reason, CloseReason::DialFailed("connection refused".into()));
    }
    assert_eq!(w.world.stream_count(), 0);
}

#[test]
fn a_reset_loses_a_tail_and_ends_both_sides() {
    let mut cut_short = 0;
    for seed in 0..40 {
        let mut w = ToyWorld::new(seed, &[1, 1], false);
        w.dial(0, 1, numbered(300), None);
        let at = w.world.now() + Duration::from_micros(200 + 20 * seed);
        w.world.schedule(at, Fault::ResetAll(NodeIx(0), NodeIx(1)));
        w.secs(5);
        let (got, closed) = w.log.with(|l| {
            (l.bytes.remove(&(NodeIx(1), 0)).unwrap_or_default(), std::mem::take(&mut l.closed))
        });
        let whole = numbered(300).concat();
        assert!(whole.starts_with(&got), "seed {seed}");
        if !closed.is_empty() {
            assert_eq!(closed.len(), 2, "seed {seed}: {closed:?}");
            assert!(closed.iter().all(|(.., r)| matches!(r, CloseReason::Failed(_))));
            assert_eq!(w.world.stream_count(), 0);
            assert!(
                w.world
                    .history()
                    .with(|h| { h.troubles.iter().any(|t| t.kind == TroubleKind::LinkLost) })
            );
            cut_short += u32::from(got.len() < whole.len());
        }
    }
    assert!(cut_short > 5, "resets lose bytes in flight: {cut_short}");
}

#[test]
fn a_partition_holds_bytes_and_loses_none() {
    for both in [true, false] {
        let mut w = ToyWorld::new(8, &[1, 1], false);
        w.world.handle().inject(Fault::Partition {
            from: vec![NodeIx(0)],
            to: vec![NodeIx(1)],
            both,
            lasts: Duration::from_secs(10),
        });
        w.secs(1);
        w.dial(0, 1, numbered(50), None);
        w.secs(8);
        assert!(w.log.with(|l| l.bytes.is_empty()), "nothing passes a partition");
        w.secs(5);
        let got = w.log.with(|l| l.bytes.remove(&(NodeIx(1), 0)).unwrap());
        assert_eq!(got, numbered(50).concat());
    }
}

#[test]
fn an_open_stream_outlives_a_partition() {
    let mut w = ToyWorld::new(9, &[1, 1], false);
    let at = w.world.now() + Duration::from_micros(600);
    w.world.schedule(
        at,
        Fault::Partition {
            from: vec![NodeIx(0)],
            to: vec![NodeIx(1)],
            both: true,
            lasts: Duration::from_secs(10),
        },
    );
    w.dial(0, 1, numbered(2000), None);
    w.secs(5);
    let before = w.log.with(|l| l.bytes.get(&(NodeIx(1), 0)).map_or(0, Vec::len));
    w.secs(20);
    let got = w.log.with(|l| l.bytes.remove(&(NodeIx(1), 0)).unwrap());
    assert!(before < got.len());
    assert_eq!(got, numbered(2000).concat());
}

#[test]
fn a_killed_node_vanishes_as_it_was_told_to() {
    for (death, expected) in [
        (Death::Eof, vec![CloseReason::Eof]),
        (Death::Reset, vec![CloseReason::Failed("connection reset by peer".into())]),
        (Death::Silent, vec![]),
    ] {
        let mut w = ToyWorld::new(3, &[1, 2], false);
        w.dial(0, 1, vec![vec![1; 10]], None);
        w.secs(1);
        w.world.handle().inject(Fault::Kill(NodeIx(1), death));
        let task = w.world.spawn(Some(NodeIx(1)), std::future::pending::<()>());
        w.secs(1);
        assert!(task.is_done() && task.take().is_none(), "its tasks die with it");
        assert!(!w.world.is_up(NodeIx(1)));
        let reasons =
            |w: &ToyWorld| w.log.with(|l| l.closed.drain(..).map(|(.., r)| r).collect::<Vec<_>>());
        assert_eq!(reasons(&w), expected, "{death:?}");
        w.world.handle().inject(Fault::Start(NodeIx(1)));
        w.secs(1);
        assert_eq!(w.world.life(NodeIx(1)).life, 2);
        assert_eq!(reasons(&w).len(), usize::from(death == Death::Silent));
        // Mail to the old lifecycle is dropped.
        let old = w.doors[1].lock().unwrap()[0].clone();
        old.post(0, Mail::Note(1));
        w.secs(1);
        assert!(w.log.with(|l| l.notes.is_empty()));
    }
}

#[test]
fn a_dial_to_a_silent_host_times_out() {
    let mut w = ToyWorld::new(3, &[1, 1], false);
    w.world.handle().inject(Fault::Kill(NodeIx(1), Death::Silent));
    w.secs(1);
    w.dial(0, 1, vec![], None);
    w.secs(10);
    assert!(w.log.with(|l| l.closed.is_empty()));
    w.secs(30);
    let closed = w.log.with(|l| std::mem::take(&mut l.closed));
    assert!(matches!(&closed[..], [(.., CloseReason::DialFailed(t))] if t.contains("timed out")));
}
