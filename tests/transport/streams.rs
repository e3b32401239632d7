#![forbid(unsafe_code)]
//! One stream, from its beginning to its end.

use std::io::{Read, Write};

use homing::env::{CloseReason, ConnId, Endpoint, Env};
use homing::time::Nanos;
use homing::transport::driver::Driver;
use homing::transport::framing::FrameReader;

use crate::world::{Net, Place, Raw, RawListener, Side, assert_bytes, pattern, pump};

const MIB: usize = 1 << 20;

/// Two nodes write pieces of all sizes to each other at once.
pub(crate) fn bytes_arrive_whole_and_in_order_both_ways<D: Driver>(net: Net) {
    let place = Place::new(net);
    let ((mut a, a_conn), (mut b, b_conn)) = place.pair::<D>();
    let stream = pattern(8 * MIB);
    let (mut a_at, mut b_at) = (0, 0);
    let piece = |at: usize| 1 + (at.wrapping_mul(2_654_435_761) >> 7) % 100_000;
    pump(&mut [&mut a, &mut b], |sides| {
        for (side, conn, at) in [(0, a_conn, &mut a_at), (1, b_conn, &mut b_at)] {
            let to = stream.len().min(*at + piece(*at));
            sides[side].write(conn, &stream[*at..to]);
            *at = to;
        }
        sides[0].received(a_conn).len() == stream.len()
            && sides[1].received(b_conn).len() == stream.len()
    });
    assert_bytes(a.received(a_conn), &stream);
    assert_bytes(b.received(b_conn), &stream);
    assert_eq!((a.env.unsent_bytes(a_conn), b.env.unsent_bytes(b_conn)), (0, 0));
}

/// What the peer can read after the stream was closed is what was written less what was unsent.
pub(crate) fn unsent_bytes_are_exactly_what_the_kernel_did_not_take<D: Driver>(net: Net) {
    let place = Place::new(net);
    let (mut side, conn, mut raw) = place.dialled::<D>();
    let stream = pattern(16 * MIB);
    let (first, second) = stream.split_at(9 * MIB);
    assert_eq!(side.env.unsent_bytes(conn), 0);
    side.write(conn, first);
    side.settle();
    let unsent = side.env.unsent_bytes(conn);
    assert!(unsent > 0 && unsent < first.len(), "{unsent}");
    for piece in second.chunks(10_000) {
        side.write(conn, piece);
    }
    side.settle();
    let unsent = side.env.unsent_bytes(conn);
    assert!(unsent >= second.len() && unsent < stream.len(), "{unsent}");
    side.env.close(conn, false);
    assert_eq!(side.env.unsent_bytes(conn), 0, "a stream that is gone");
    assert_bytes(&raw.read_to_end(), &stream[..stream.len() - unsent]);
}

/// A peer with tiny buffers that reads slowly gets everything, and then nothing is unsent.
pub(crate) fn a_long_write_to_a_slow_reader_ends_with_nothing_unsent<D: Driver>(net: Net) {
    let place = Place::new(net);
    let (mut side, conn, mut raw) = place.dialled::<D>();
    let stream = pattern(16 * MIB);
    side.write(conn, &stream);
    let expected = stream.clone();
    let reader = std::thread::spawn(move || {
        let mut got = Vec::new();
        let mut room = [0; 3000];
        while got.len() < expected.len() {
            let len = raw.read(&mut room).unwrap();
            got.extend(&room[..len]);
        }
        assert_bytes(&got, &expected);
        raw.write_all(b"!").unwrap();
        raw
    });
    let mut last = stream.len();
    side.wait(|side| {
        let unsent = side.env.unsent_bytes(conn);
        assert!(unsent <= last);
        last = unsent;
        side.received(conn) == b"!"
    });
    assert_eq!(side.env.unsent_bytes(conn), 0);
    // Interest in writing is gone with the rest.
    side.assert_sleeps();
    drop(reader.join().unwrap());
    assert_eq!(side.wait_closed(conn), CloseReason::Eof);
}

/// Frames come out whole of a stream that comes in and leaves byte by byte.
pub(crate) fn frames_survive_a_peer_that_moves_one_byte_at_a_time<D: Driver>(net: Net) {
    let place = Place::new(net);
    let (mut side, conn, mut raw) = place.dialled::<D>();
    let mut stream = Vec::new();
    let frames: Vec<Vec<u8>> = [40, 41, 999, 40, 2000]
        .iter()
        .map(|len| {
            let mut frame = pattern(*len);
            frame[..4].copy_from_slice(&(*len as u32).to_be_bytes());
            stream.extend(&frame);
            frame
        })
        .collect();
    let peer = std::thread::spawn(move || {
        for byte in &stream {
            raw.write_all(&[*byte]).unwrap();
        }
        let mut back = vec![0; stream.len()];
        for byte in &mut back {
            raw.read_exact(std::slice::from_mut(byte)).unwrap();
        }
        assert_bytes(&back, &stream);
    });
    let mut reader = FrameReader::new(2000);
    let mut got = Vec::new();
    let mut fed = 0;
    side.wait(|side| {
        reader.feed(side.received(conn)[fed..].to_vec());
        fed = side.received(conn).len();
        while let Some(frame) = reader.next_frame().unwrap() {
            got.push(frame.to_vec());
        }
        got.len() == frames.len()
    });
    assert_eq!(got, frames);
    for frame in &frames {
        side.write(conn, frame);
    }
    assert_eq!(side.wait_closed(conn), CloseReason::Eof);
    peer.join().unwrap();
}

/// A peer that resets after half a frame is reported closed once, and its id stays dead.
pub(crate) fn a_reset_in_the_middle_of_a_frame_closes_once<D: Driver>(net: Net) {
    let place = Place::new(net);
    let (mut side, conn, mut raw) = place.accepted::<D>();
    side.write(conn, b"unread by the peer");
    raw.write_all(&[0, 0, 0, 99, 1, 0]).unwrap();
    side.wait(|side| side.received(conn).len() == 6);
    raw.reset();
    let reason = side.wait_closed(conn);
    assert!(matches!(&reason, CloseReason::Failed(text) if text.contains("reset")), "{reason}");
    is_dead(&mut side, conn);
}

/// What a peer sent before it left is reported before its end, even when a write found out first.
pub(crate) fn writing_to_a_peer_that_left_closes_once_after_what_it_sent<D: Driver>(net: Net) {
    let place = Place::new(net);
    let (mut side, conn, mut raw) = place.accepted::<D>();
    // On the Unix socket more than one poll takes.
    let expected = pattern(if let Net::Unix = net { 100_000 } else { 20_000 });
    raw.write_all(&expected).unwrap();
    drop(raw);
    // The first write to a TCP peer that left is answered by a reset, which may take what is
    // unread with it; on a Unix socket nothing is lost.
    side.write(conn, b"are you there?");
    side.write(conn, b"hello?");
    side.wait_closed(conn);
    assert_eq!(side.env.unsent_bytes(conn), 0);
    match net {
        Net::Unix => assert_bytes(side.received(conn), &expected),
        Net::Tcp => {
            let got = side.received(conn);
            assert_bytes(got, &expected[..got.len()]);
        }
    }
    is_dead(&mut side, conn);
}

/// Calls with the id of a stream that is gone do nothing, and nothing is reported of it.
fn is_dead<D: Driver>(side: &mut Side<D>, conn: ConnId) {
    let events = side.story(conn).closed.len();
    side.write(conn, b"x");
    assert_eq!(side.env.unsent_bytes(conn), 0);
    side.env.hand_over(conn, 0, 1, vec![1]);
    side.env.close(conn, true);
    side.settle();
    assert_eq!(side.story(conn).closed.len(), events);
    assert!(side.stories.values().all(|story| story.adopted.is_none()));
}

/// After `close` the core hears nothing of the stream, although bytes and the peer's end come.
pub(crate) fn nothing_follows_a_close<D: Driver>(net: Net) {
    let place = Place::new(net);
    for flush in [false, true] {
        let ((mut a, a_conn), (mut b, b_conn)) = place.pair::<D>();
        b.write(b_conn, &pattern(8 * MIB));
        b.settle();
        a.wait(|side| !side.received(a_conn).is_empty());
        let got = a.received(a_conn).len();
        a.env.close(a_conn, flush);
        pump(&mut [&mut b, &mut a], |sides| sides[0].is_closed(b_conn));
        a.settle();
        assert_eq!(a.received(a_conn).len(), got);
        assert!(!a.is_closed(a_conn));
        is_dead(&mut a, a_conn);
    }
}

/// A dial that was closed is not reported, whether it would have failed or not.
pub(crate) fn nothing_follows_a_close_while_dialling<D: Driver>(net: Net) {
    let place = Place::new(net);
    let (mut a, _) = place.side::<D>("a");
    let (mut b, endpoint) = place.side::<D>("b");
    let good = a.env.dial(&endpoint);
    a.env.close(good, true);
    let bad = a.env.dial(&place.dead_endpoint());
    a.env.close(bad, false);
    assert_ne!(good, bad);
    // The peer may have seen it come; then it sees it go.
    let last = a.env.dial(&endpoint);
    a.wait_connected(last);
    let seen = b.wait_accepted();
    pump(&mut [&mut b, &mut a], |sides| {
        sides[0].stories.iter().all(|(conn, _)| sides[0].is_closed(*conn) || *conn == seen)
    });
    a.settle();
    assert_eq!(a.stories.keys().copied().collect::<Vec<_>>(), [last]);
}

/// A refusal written just before a close with `flush` reaches the peer, although bytes of the peer
/// are unread (which alone would make the kernel reset the connection).
pub(crate) fn a_flush_brings_the_last_bytes_over<D: Driver>(net: Net) {
    let place = Place::new(net);
    for _ in 0..50 {
        let (mut side, conn, mut raw) = place.accepted::<D>();
        raw.write_all(&pattern(5000)).unwrap();
        side.write(conn, b"go away");
        side.env.close(conn, true);
        assert_eq!(raw.read_to_end(), b"go away");
    }
}

/// A dial that cannot get through ends in one `Closed` that names the endpoint.
pub(crate) fn a_dial_that_fails_says_so_once<D: Driver>(net: Net) {
    let place = Place::new(net);
    let (mut side, _) = place.side::<D>("a");
    let mut endpoints = vec![place.dead_endpoint()];
    if let Net::Unix = net {
        let Endpoint::Unix(path) = place.endpoint("file") else { panic!() };
        std::fs::write(&path, "").unwrap();
        endpoints.push(Endpoint::Unix(path));
        endpoints.push(Endpoint::Unix("/".repeat(200).into()));
    }
    for endpoint in endpoints {
        let conn = side.env.dial(&endpoint);
        side.write(conn, b"never sent");
        let reason = side.wait_closed(conn);
        let CloseReason::DialFailed(text) = &reason else { panic!("{reason:?}") };
        assert!(text.contains(&endpoint.to_string()), "{text}");
        assert_eq!(side.story(conn).connected, 0);
        is_dead(&mut side, conn);
    }
}

/// What is written before the dial got through is sent then, in order with what comes after.
pub(crate) fn writes_while_dialling_wait<D: Driver>(net: Net) {
    let place = Place::new(net);
    let listener = RawListener::bind(&place.endpoint("raw"));
    let (mut side, _) = place.side::<D>("a");
    let stream = pattern(3 * MIB);
    let conn = side.env.dial(&listener.endpoint);
    side.write(conn, &stream[..10]);
    side.write(conn, &stream[10..2 * MIB]);
    assert_eq!(side.env.unsent_bytes(conn), 2 * MIB);
    side.wait_connected(conn);
    side.write(conn, &stream[2 * MIB..]);
    let mut raw = listener.accept();
    let reader = std::thread::spawn(move || {
        let mut got = vec![0; 3 * MIB];
        raw.read_exact(&mut got).unwrap();
        got
    });
    assert_eq!(side.wait_closed(conn), CloseReason::Eof);
    assert_bytes(&reader.join().unwrap(), &stream);
}

/// A stream with endless bytes does not keep others from being heard in the same poll, and one poll
/// reads a bounded amount of it.
pub(crate) fn one_poll_gives_one_event_per_stream_and_is_fair<D: Driver>(net: Net) {
    const QUIET: usize = 40;
    let place = Place::new(net);
    let (mut side, endpoint) = place.side::<D>("a");
    let mut busy_raw = Raw::dial(&endpoint);
    let busy = side.wait_accepted();
    let mut quiet = Vec::new();
    for _ in 0..QUIET {
        let raw = Raw::dial(&endpoint);
        quiet.push((side.wait_accepted(), raw));
    }
    let flood = std::thread::spawn(move || while busy_raw.write_all(&[7; 100_000]).is_ok() {});
    for round in 1..=20 {
        side.wait(|side| side.received(busy).len() > round);
        for (_, raw) in &mut quiet {
            raw.write_all(&[1]).unwrap();
        }
        // A quiet stream that is not heard beside the busy one hangs this.
        while quiet.iter().any(|(conn, _)| side.received(*conn).len() < round) {
            let before = side.received(busy).len();
            side.poll(Nanos::ZERO);
            let read = side.received(busy).len() - before;
            assert!(read <= 64 << 10, "{read} bytes of one stream in one poll");
        }
    }
    side.env.close(busy, false);
    flood.join().unwrap();
}

/// The largest frames there are, several of them, at once in both directions.
pub(crate) fn frames_of_16_mib_pass_both_ways<D: Driver>(net: Net) {
    const FRAMES: usize = 2;
    let place = Place::new(net);
    let ((mut a, a_conn), (mut b, b_conn)) = place.pair::<D>();
    let mut frame = pattern(16 * MIB);
    frame[..4].copy_from_slice(&(16u32 << 20).to_be_bytes());
    for _ in 0..FRAMES {
        a.write(a_conn, &frame);
        b.write(b_conn, &frame);
    }
    let conns = [a_conn, b_conn];
    let mut readers = [(); 2].map(|()| FrameReader::new(16 << 20));
    let mut fed = [0; 2];
    let mut whole = [0; 2];
    pump(&mut [&mut a, &mut b], |sides| {
        for at in 0..2 {
            let received = sides[at].received(conns[at]);
            readers[at].feed(received[fed[at]..].to_vec());
            fed[at] = received.len();
            while let Some(got) = readers[at].next_frame().unwrap() {
                assert_bytes(got, &frame);
                whole[at] += 1;
            }
        }
        whole == [FRAMES; 2]
    });
}

/// A stream ends while a write to it is under way; the next one gets its place and its descriptor,
/// and nothing of what belonged to the first.
pub(crate) fn a_descriptor_used_again_brings_nothing_of_its_old_stream<D: Driver>(net: Net) {
    let place = Place::new(net);
    let (mut side, endpoint) = place.side::<D>("a");
    let old_bytes = pattern(8 * MIB);
    for _ in 0..20 {
        let mut old_raw = Raw::dial(&endpoint);
        let old = side.wait_accepted();
        side.write(old, &old_bytes);
        side.settle();
        assert!(side.env.unsent_bytes(old) > 0);
        // Its end is heard of; the write stays where it is until somebody ends it.
        rustix::net::shutdown(old_raw.fd(), rustix::net::Shutdown::Write).unwrap();
        assert_eq!(side.wait_closed(old), CloseReason::Eof);
        let mut raw = Raw::dial(&endpoint);
        raw.write_all(b"new here").unwrap();
        let conn = side.wait_accepted();
        side.wait(|side| side.received(conn).len() == 8);
        side.write(conn, b"welcome");
        side.settle();
        assert_eq!(side.env.unsent_bytes(conn), 0);
        side.env.close(conn, true);
        assert_eq!(raw.read_to_end(), b"welcome");
        assert_eq!(side.received(conn), b"new here");
        let got = old_raw.read_to_end();
        assert!(got.len() < old_bytes.len());
        assert_bytes(&got, &old_bytes[..got.len()]);
    }
}

/// A node that stops listening refuses newcomers, removes its socket file and keeps its streams.
pub(crate) fn stop_listening_keeps_streams<D: Driver>(net: Net) {
    let place = Place::new(net);
    let ((mut a, a_conn), (mut b, b_conn)) = place.pair::<D>();
    let (mut c, endpoint) = place.side::<D>("c");
    let a_to_c = a.env.dial(&endpoint);
    a.wait_connected(a_to_c);
    let c_conn = c.wait_accepted();
    c.env.stop_listening();
    c.env.stop_listening();
    if let Endpoint::Unix(path) = &endpoint {
        assert!(!path.exists());
    }
    let late = a.env.dial(&endpoint);
    assert!(matches!(a.wait_closed(late), CloseReason::DialFailed(_)));
    still_works((&mut a, a_to_c), (&mut c, c_conn));
    still_works((&mut b, b_conn), (&mut a, a_conn));
}

fn still_works<D: Driver>(from: (&mut Side<D>, ConnId), to: (&mut Side<D>, ConnId)) {
    from.0.write(from.1, b"still here");
    from.0.settle();
    to.0.wait(|side| side.received(to.1) == b"still here");
}

/// A core that is dropped closes its streams: the peers hear of it.
pub(crate) fn the_end_of_a_core_closes_its_streams<D: Driver>(net: Net) {
    let place = Place::new(net);
    let ((a, _), (mut b, b_conn)) = place.pair::<D>();
    let (c, conn, mut raw) = place.dialled::<D>();
    assert!(!c.is_closed(conn));
    drop(c);
    assert_eq!(raw.read_to_end(), b"");
    drop(a);
    assert_eq!(b.wait_closed(b_conn), CloseReason::Eof);
}
