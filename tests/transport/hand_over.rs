#![forbid(unsafe_code)]
//! A stream that moves from core to core.

use std::io::{Read, Write};

use homing::env::{CloseReason, Env};
use homing::transport::driver::Driver;

use crate::world::{Net, Place, Raw, RawListener, assert_bytes, pattern};

/// What one core had read and not used, and had queued and not sent, goes first at the other.
pub(crate) fn unread_and_unsent_bytes_move_in_order<D: Driver>(net: Net) {
    let place = Place::new(net);
    let (mut cores, endpoint) = place.node::<D>("n", 2);
    let mut one = cores.pop().unwrap();
    let mut zero = cores.pop().unwrap();
    let mut raw = Raw::dial(&endpoint);
    let conn = zero.wait_accepted();
    let inward = pattern(300_000);
    let outward = pattern(20 << 20);
    raw.write_all(&inward[..1000]).unwrap();
    zero.wait(|zero| zero.received(conn).len() == 1000);
    zero.write(conn, &outward[..16 << 20]);
    let unsent = zero.env.unsent_bytes(conn);
    assert!(unsent > 0, "the peer reads nothing, so something is left");
    raw.write_all(&inward[1000..2000]).unwrap();
    // Core 0 has used 600 of the bytes it got.
    let unread = zero.received(conn)[600..].to_vec();
    zero.env.hand_over(conn, 1, 77, unread);
    assert_eq!(zero.env.unsent_bytes(conn), 0);
    // The socket can be read and has bytes to send, which is no business of this core any more.
    zero.assert_sleeps();
    zero.write(conn, b"a core that has no right to write");
    let moved = one.wait_adopted(77);
    assert_eq!(one.env.unsent_bytes(moved), unsent);
    one.write(moved, &outward[16 << 20..]);
    assert_eq!(one.env.unsent_bytes(moved), unsent + (4 << 20));
    let sent = inward.clone();
    let expected = outward.clone();
    let peer = std::thread::spawn(move || {
        let mut got = vec![0; expected.len()];
        raw.read_exact(&mut got).unwrap();
        assert_bytes(&got, &expected);
        raw.write_all(&sent[2000..]).unwrap();
    });
    assert_eq!(one.wait_closed(moved), CloseReason::Eof);
    peer.join().unwrap();
    assert_bytes(one.received(moved), &inward[600..]);
    zero.settle();
    assert_eq!(zero.received(conn).len(), 1000, "nothing comes to the old core");
    assert!(!zero.is_closed(conn));
}

/// Handing over to the same core gives a new id and loses nothing.
pub(crate) fn to_itself<D: Driver>(net: Net) {
    let place = Place::new(net);
    let (mut side, conn, mut raw) = place.accepted::<D>();
    raw.write_all(b"abc").unwrap();
    side.wait(|side| side.received(conn).len() == 3);
    raw.write_all(b"def").unwrap();
    side.env.hand_over(conn, 0, 5, b"bc".to_vec());
    let moved = side.wait_adopted(5);
    assert_ne!(moved, conn);
    side.wait(|side| side.received(moved).len() == 5);
    assert_eq!(side.received(moved), b"bcdef");
    side.write(moved, b"ok");
    side.env.close(moved, true);
    assert_eq!(raw.read_to_end(), b"ok");
}

/// A dial may go on at another core: what was written waits, and the outcome is told there.
pub(crate) fn while_dialling<D: Driver>(net: Net) {
    let place = Place::new(net);
    let (mut cores, _) = place.node::<D>("n", 2);
    let mut one = cores.pop().unwrap();
    let mut zero = cores.pop().unwrap();
    let listener = RawListener::bind(&place.endpoint("raw"));
    let conn = zero.env.dial(&listener.endpoint);
    zero.write(conn, b"early ");
    zero.env.hand_over(conn, 1, 9, Vec::new());
    let moved = one.wait_adopted(9);
    one.write(moved, b"late");
    one.wait_connected(moved);
    let mut raw = listener.accept();
    one.env.close(moved, true);
    assert_eq!(raw.read_to_end(), b"early late");
    zero.settle();
    assert!(!zero.stories.contains_key(&conn));
}

/// A stream given to a core that is not there, or has ended, is closed.
pub(crate) fn to_a_core_that_is_not_there<D: Driver>(net: Net) {
    let place = Place::new(net);
    for to in [1, 2, u16::MAX] {
        let (mut cores, endpoint) = place.node::<D>("n", 2);
        drop(cores.pop());
        let mut zero = cores.pop().unwrap();
        let mut raw = Raw::dial(&endpoint);
        let conn = zero.wait_accepted();
        zero.env.hand_over(conn, to, 1, b"unread".to_vec());
        assert_eq!(raw.read_to_end(), b"");
        zero.settle();
        assert!(!zero.is_closed(conn), "no event follows a hand-over");
    }
}

/// The other core hears of a peer that left before the hand-over: after what it had sent.
pub(crate) fn of_a_stream_whose_peer_left<D: Driver>(net: Net) {
    let place = Place::new(net);
    let (mut cores, endpoint) = place.node::<D>("n", 2);
    let mut one = cores.pop().unwrap();
    let mut zero = cores.pop().unwrap();
    // Once with the end unnoticed, once after a write has failed on it.
    for (tag, noticed) in [(1, false), (2, true)] {
        let mut raw = Raw::dial(&endpoint);
        let conn = zero.wait_accepted();
        raw.write_all(b"bye").unwrap();
        drop(raw);
        if noticed {
            zero.write(conn, b"x");
            zero.write(conn, b"y");
        }
        zero.env.hand_over(conn, 1, tag, Vec::new());
        let moved = one.wait_adopted(tag);
        let reason = one.wait_closed(moved);
        assert!(noticed || reason == CloseReason::Eof, "{reason}");
        if !noticed || matches!(net, Net::Unix) {
            assert_eq!(one.received(moved), b"bye");
        }
        one.settle();
        assert_eq!(one.story(moved).closed.len(), 1);
    }
}

/// A stream whose peer has ended its side while a write is blocked moves with all that is unsent.
pub(crate) fn of_a_half_closed_stream_that_is_blocked<D: Driver>(net: Net) {
    let place = Place::new(net);
    let (mut cores, endpoint) = place.node::<D>("n", 2);
    let mut one = cores.pop().unwrap();
    let mut zero = cores.pop().unwrap();
    let mut raw = Raw::dial(&endpoint);
    let conn = zero.wait_accepted();
    let outward = pattern(12 << 20);
    zero.write(conn, &outward);
    zero.settle();
    let unsent = zero.env.unsent_bytes(conn);
    assert!(unsent > 0 && unsent < outward.len());
    rustix::net::shutdown(raw.fd(), rustix::net::Shutdown::Write).unwrap();
    zero.env.hand_over(conn, 1, 3, Vec::new());
    let moved = one.wait_adopted(3);
    assert_eq!(one.env.unsent_bytes(moved), unsent);
    assert_eq!(one.wait_closed(moved), CloseReason::Eof);
    let got = raw.read_to_end();
    assert_bytes(&got, &outward[..got.len()]);
    zero.settle();
    assert!(!zero.is_closed(conn));
}

/// A stream that moves between three cores all the time, while bytes flow both ways.
pub(crate) fn again_and_again_under_traffic<D: Driver>(net: Net) {
    let place = Place::new(net);
    let (mut cores, endpoint) = place.node::<D>("n", 3);
    let mut raw = Raw::dial(&endpoint);
    let mut conn = cores[0].wait_accepted();
    let stream = pattern(4 << 20);
    let mut raw_reader = match &raw {
        Raw::Tcp(stream) => Raw::Tcp(stream.try_clone().unwrap()),
        Raw::Unix(stream) => Raw::Unix(stream.try_clone().unwrap()),
    };
    let expected = stream.clone();
    let reader = std::thread::spawn(move || {
        let mut got = vec![0; expected.len()];
        raw_reader.read_exact(&mut got).unwrap();
        assert_bytes(&got, &expected);
    });
    let inward = stream.clone();
    let writer = std::thread::spawn(move || {
        raw.write_all(&inward).unwrap();
        raw
    });
    let mut got = Vec::new();
    let mut written = 0;
    let mut tag = 0;
    let mut at = 0;
    while got.len() < stream.len() {
        let to = stream.len().min(written + 150_000);
        cores[at].write(conn, &stream[written..to]);
        written = to;
        cores[at].wait(|core| !core.received(conn).is_empty());
        // Uses all but the last few bytes.
        let received = cores[at].received(conn);
        let used = received.len().saturating_sub(7).max(usize::from(received.len() < 8));
        got.extend(&received[..used]);
        let unread = received[used..].to_vec();
        tag += 1;
        let next = (at + 1 + tag as usize % 2) % 3;
        cores[at].env.hand_over(conn, next as u16, tag, unread);
        at = next;
        conn = cores[at].wait_adopted(tag);
    }
    assert_bytes(&got, &stream);
    cores[at].write(conn, &stream[written..]);
    let core = &mut cores[at];
    core.wait_sent(conn);
    reader.join().unwrap();
    drop(writer.join().unwrap());
    assert_eq!(core.wait_closed(conn), CloseReason::Eof);
}
