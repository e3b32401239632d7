#![forbid(unsafe_code)]
//! What holds for io_uring alone: every operation the ring was given ends.

use std::io::Write;
use std::sync::Arc;

use homing::env::{Endpoint, Env};
use homing::exec::idle::Idle;
use homing::node::real::{RealNode, spawn_core};
use homing::time::Nanos;
use homing::transport::driver::Driver;
use homing::transport::listen::BoundListener;
use homing::transport::uring::{OperationCounts, Sizes, Uring};

use crate::tiny::TINY;
use crate::world::{Net, Place, Raw, RawListener, Side, parts, pattern};

fn side(sizes: Sizes, endpoint: &Endpoint) -> (Side<Uring>, Endpoint, Arc<OperationCounts>) {
    let listener = BoundListener::bind(endpoint).unwrap();
    let endpoint = listener.local_endpoint().clone();
    let driver = Uring::with_sizes(sizes).unwrap();
    let counts = driver.operation_counts();
    let made_of = parts(1, Some(listener), Idle::Park);
    let mut node = RealNode::with_drivers(made_of, vec![driver]).unwrap();
    (Side::new(node.envs.remove(0)), endpoint, counts)
}

fn assert_all_ended(counts: &OperationCounts) {
    assert_eq!(counts.started(), counts.completed());
}

/// A ring that ends with streams in every state has as many operations completed as started.
#[test]
fn what_was_started_is_completed_when_the_driver_ends() {
    for sizes in [Sizes::default(), TINY] {
        for net in [Net::Tcp, Net::Unix] {
            let place = Place::new(net);
            let (mut side, endpoint, counts) = side(sizes, &place.endpoint("a"));
            // One that only listens to its peer, one whose peer has sent more than is reported.
            let _quiet = Raw::dial(&endpoint);
            side.wait_accepted();
            let mut eager = Raw::dial(&endpoint);
            let conn = side.wait_accepted();
            eager.write_all(&pattern(100_000)).unwrap();
            side.wait(|side| !side.received(conn).is_empty());
            // One whose peer reads nothing.
            let listener = RawListener::bind(&place.endpoint("raw"));
            let blocked = side.env.dial(&listener.endpoint);
            side.wait_connected(blocked);
            let _raw = listener.accept();
            side.write(blocked, &pattern(8 << 20));
            side.settle();
            assert!(side.env.unsent_bytes(blocked) > 0);
            assert!(counts.started() > counts.completed(), "some are under way");
            // Dials whose outcome is not known, bytes nobody has been given.
            side.env.dial(&listener.endpoint);
            side.env.dial(&place.dead_endpoint());
            side.write(conn, b"queued");
            drop(side);
            assert!(counts.started() >= 6);
            assert_all_ended(&counts);
        }
    }
}

/// The same for each way a single stream ends, seen when the driver ends after it.
#[test]
fn operations_of_closed_and_moved_streams_end() {
    let place = Place::new(Net::Tcp);
    let (mut side, endpoint, counts) = side(TINY, &place.endpoint("a"));
    for round in 0..40u64 {
        let mut raw = Raw::dial(&endpoint);
        let conn = side.wait_accepted();
        raw.write_all(&pattern(3000)).unwrap();
        side.write(conn, &pattern(if round % 2 == 0 { 10 } else { 6 << 20 }));
        side.poll(Nanos::ZERO);
        match round % 5 {
            0 => side.env.close(conn, true),
            1 => side.env.close(conn, false),
            2 => {
                side.env.hand_over(conn, 0, round, Vec::new());
                side.wait_adopted(round);
            }
            3 => side.env.hand_over(conn, 7, round, Vec::new()),
            _ => {
                raw.reset();
                side.wait_closed(conn);
            }
        }
    }
    side.settle();
    drop(side);
    assert_all_ended(&counts);
}

/// A driver that was never polled has nothing under way, and says so.
#[test]
fn a_driver_that_was_never_polled_ends() {
    let place = Place::new(Net::Unix);
    let (mut never, endpoint, counts) = side(Sizes::default(), &place.endpoint("a"));
    let conn = never.env.dial(&endpoint);
    never.write(conn, b"never sent");
    never.env.close(conn, true);
    never.env.dial(&endpoint);
    never.env.stop_listening();
    drop(never);
    assert_all_ended(&counts);
}

/// Dropped on a thread that is not its own, a driver still closes its streams.
#[test]
fn a_driver_dropped_elsewhere_closes_its_streams() {
    let place = Place::new(Net::Unix);
    let (mut side, endpoint, _) = side(Sizes::default(), &place.endpoint("a"));
    let mut raw = Raw::dial(&endpoint);
    let conn = side.wait_accepted();
    side.write(conn, &pattern(4 << 20));
    side.settle();
    spawn_core("elsewhere", None, move || drop(side)).unwrap().join().unwrap();
    assert!(raw.read_to_end().len() < 4 << 20);
}

/// More rings than a thread can register, one after another and at once.
#[test]
fn a_thread_may_have_many_rings() {
    let drivers: Vec<Uring> = (0..40).map(|_| Uring::new().unwrap()).collect();
    for mut driver in drivers {
        let waker = driver.waker();
        waker.wake();
        let mut events = Vec::new();
        driver.poll::<u64>(&mut events, Nanos::ZERO, Some(Nanos::MAX));
        let counts = driver.operation_counts();
        drop(driver);
        assert_all_ended(&counts);
        assert!(counts.started() > 0);
    }
}
