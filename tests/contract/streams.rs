#![forbid(unsafe_code)]
//! What a node does with bytes that no peer would send: it closes the stream with a counted reason,
//! and nothing else is touched.

use std::io::{ErrorKind as Io, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use homing::{Counter, ErrorKind, Node};

use super::eventually::eventually;
use super::proxy::{Cut, Proxy};
use super::world::{Asks, World, refused};

/// Longest time a node may take to close a stream: far longer than its handshake timeout.
const PATIENCE: Duration = Duration::from_secs(60);

fn connect(node: &Node) -> TcpStream {
    let endpoint = node.endpoint().to_string();
    let stream = TcpStream::connect(endpoint.strip_prefix("tcp://").unwrap()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Reads until the node closes the stream.
#[track_caller]
fn must_be_closed(mut stream: TcpStream) {
    let mut rest = Vec::new();
    match stream.read_to_end(&mut rest) {
        Ok(_) => {}
        Err(e) => assert!(matches!(e.kind(), Io::ConnectionReset | Io::BrokenPipe), "{e}"),
    }
}

/// Case: 4 GiB length header ⇒ refused before allocation.
///
/// Rubbish, a length over every bound, a version that is none, a record before the handshake, half a
/// header and then nothing: each stream is closed by itself.
///
/// Proves R2.3-5.
#[test]
fn a_stream_that_breaks_the_rules_is_closed() {
    let world = World::new();
    let (node, _) = world.node(&world.setup("n"));
    node.make("a", None).unwrap();
    let mut huge = vec![0xff; 4];
    huge.extend([1, 0, 0, 0]);
    huge.extend([0; 32]);
    // Actor `a` generation 1 at node `n`: a message, of a stranger.
    let record = "5a4d01180000000000000000010000000000000001000001610000000000000001016e000000000000\
                  000100000000000000010000000000000001";
    let record: Vec<u8> = (0..record.len())
        .step_by(2)
        .filter_map(|at| u8::from_str_radix(record.get(at..at + 2)?, 16).ok())
        .collect();
    let openings: [(&str, Vec<u8>); 5] = [
        ("a request of another protocol", b"GET / HTTP/1.1\r\nHost: n\r\n\r\n".repeat(4)),
        ("a length of four gigabytes", huge),
        ("zeros", vec![0; 400]),
        ("a record without a frame", record.repeat(3)),
        (
            "bytes at random",
            (0..1_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect(),
        ),
    ];
    for (what, bytes) in openings {
        let before: u64 = node.close_reasons().values().sum();
        let mut stream = connect(&node);
        // The node may close before everything is written.
        let _ = stream.write_all(&bytes);
        must_be_closed(stream);
        eventually(what, || (node.close_reasons().values().sum::<u64>() > before).then_some(()));
    }
    // One that says half a word and waits is closed when its time is over.
    let before: u64 = node.close_reasons().values().sum();
    let mut stream = connect(&node);
    stream.write_all(&[0, 0, 0]).unwrap();
    must_be_closed(stream);
    assert!(node.close_reasons().values().sum::<u64>() > before);
    assert_eq!(node.count(Counter::LinksUp), 0);
    assert_eq!(node.count(Counter::AdmittedRemote), 0);
    assert_eq!(node.note("a", 1), Ok(1), "the node goes on");
}

/// Case: Timeout mid-frame ⇒ intact or closed, never shifted.
///
/// The network ends in the middle of a frame, at every distance; the next link begins with a frame,
/// and what was cut ran at most once.
///
/// Proves R5-4, R4-7.
#[test]
fn a_frame_cut_in_the_middle_shifts_nothing() {
    let world = World::new();
    let proxy = Proxy::new();
    let mut setup = world.setup("owner");
    setup.advertise = Some(proxy.endpoint());
    setup.listen = Some(world.free_tcp());
    let owner = world.child(&setup);
    proxy.lead_to(setup.listen.as_ref().unwrap());
    owner.create("a");
    let (node, _) = world.node(&world.setup("caller"));
    node.note("a", 0).unwrap();
    for (number, after) in (1..).zip([1, 20, 39, 40, 41, 60, 100, 130]) {
        proxy.cut_toward_target_after(Cut::Bytes(after));
        refused(node.note("a", number), ErrorKind::Unavailable);
        proxy.cut_toward_target_after(Cut::Never);
        eventually("the link to come back", || node.note("a", 1_000 + number).ok());
    }
    let notes = owner.notes("a");
    for number in 0..=8u64 {
        let times = notes.iter().filter(|n| **n == number).count();
        assert!(times <= 1, "{number} ran {times} times: {notes:?}");
    }
    assert!(notes.contains(&0) && notes.contains(&1_008), "{notes:?}");
    assert_eq!(owner.counter(Counter::ProtocolViolations), 0, "a cut is no violation");
}
