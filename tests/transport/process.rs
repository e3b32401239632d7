#![forbid(unsafe_code)]
//! What needs a process of its own: descriptors, their limit, and sudden death.
//!
//! Such a test starts this very program again for itself alone, with a word in its environment that
//! makes it do its part.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use homing::env::{Endpoint, Env};
use homing::exec::idle::Idle;
use homing::node::real::RealNode;
use homing::transport::driver::Driver;
use homing::transport::listen::BoundListener;
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};

use crate::world::{Net, Place, Raw, Side, assert_bytes, parts, pattern, pump};

const PART: &str = "HOMING_TRANSPORT_TEST_PART";

/// This program, set to run the test `name` of the suite alone, as the other part.
fn other_part(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", test, "--nocapture", "--test-threads", "1"])
        .env(PART, "1")
        .stdin(Stdio::piped());
    command
}

fn is_other_part() -> bool {
    std::env::var_os(PART).is_some()
}

/// The name of the test that runs on this thread.
fn this_test() -> String {
    std::thread::current().name().expect("tests run on threads named after them").to_string()
}

/// Runs `body` in a process of its own.
pub(crate) fn alone(body: impl FnOnce()) {
    if is_other_part() {
        body();
        println!("body done");
        return;
    }
    let output = other_part(&this_test()).stdin(Stdio::null()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("body done"), "{text}\n{errors}");
}

fn descriptors() -> impl Iterator<Item = u64> {
    let entries = std::fs::read_dir("/proc/self/fd").unwrap();
    entries.map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap())
}

/// A thousand streams, closed in every way there is, leave no descriptor behind.
pub(crate) fn descriptors_are_back_at_the_baseline<D: Driver>((): ()) {
    alone(|| {
        let baseline = descriptors().count();
        for net in [Net::Tcp, Net::Unix] {
            let place = Place::new(net);
            let (mut cores, endpoint) = place.node::<D>("n", 2);
            let (mut a, _) = place.side::<D>("a");
            let mut one = cores.pop().unwrap();
            let mut zero = cores.pop().unwrap();
            let before = descriptors().count();
            for n in 0..500u64 {
                let conn = a.env.dial(&endpoint);
                a.wait_connected(conn);
                let there = zero.wait_accepted();
                zero.stories.clear();
                match n % 5 {
                    0 => a.env.close(conn, n % 2 == 0),
                    1 => zero.env.close(there, n % 2 == 0),
                    2 => {
                        zero.env.hand_over(there, 1, n, Vec::new());
                        let moved = one.wait_adopted(n);
                        one.env.close(moved, true);
                    }
                    3 => zero.env.hand_over(there, 9, n, Vec::new()),
                    _ => {
                        a.env.dial(&place.dead_endpoint());
                        a.env.close(conn, false);
                    }
                }
                pump(&mut [&mut a, &mut zero], |sides| match n % 5 {
                    0 | 4 => sides[1].is_closed(there),
                    _ => sides[0].is_closed(conn),
                });
            }
            a.settle();
            assert_eq!(descriptors().count(), before);
        }
        assert_eq!(descriptors().count(), baseline);
    });
}

/// A process out of descriptors goes on: those who wait in the backlog are accepted when there are
/// some again, what stands works, and the core does not spin on the error meanwhile.
pub(crate) fn running_out_of_descriptors<D: Driver>((): ()) {
    alone(|| {
        for net in [Net::Tcp, Net::Unix] {
            // The limit is on the number of a descriptor. It stands before anything is accepted:
            // an accept that is under way in the kernel goes by the limit it began with.
            let old = getrlimit(Resource::Nofile);
            let highest = descriptors().max().unwrap();
            let few = Rlimit { current: Some(highest + 64), ..old };
            setrlimit(Resource::Nofile, few).unwrap();
            let place = Place::new(net);
            let (mut side, endpoint) = place.side::<D>("a");
            let mut first_raw = Raw::dial(&endpoint);
            let first = side.wait_accepted();
            let mut waiting: Vec<Raw> = (0..5).map(|_| Raw::dial(&endpoint)).collect();

            let mut filler = Vec::new();
            while let Ok(file) = std::fs::File::open("/dev/null") {
                filler.push(file);
            }
            assert!(filler.len() > waiting.len());
            side.assert_sleeps();
            first_raw.write_all(b"works").unwrap();
            side.wait(|side| side.received(first) == b"works");
            let failed = side.env.dial(&endpoint);
            side.wait_closed(failed);

            drop(filler);
            side.wait(|side| side.stories.len() == 2 + waiting.len());
            setrlimit(Resource::Nofile, old).unwrap();
            for raw in &mut waiting {
                raw.write_all(b"hello").unwrap();
            }
            side.wait(|side| side.stories.values().filter(|s| s.received == b"hello").count() == 5);
        }
    });
}

/// Stopping and continuing a process interrupts the calls its cores wait in: hundreds of times here,
/// while bytes flow, and while a core sleeps and is woken.
pub(crate) fn stops_and_continues_lose_nothing<D: Driver>((): ()) {
    if is_other_part() {
        println!("\nready");
        interrupted_traffic::<D>();
        interrupted_waits::<D>();
        println!("body done");
        return;
    }
    let mut other = other_part(&this_test())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = BufReader::new(other.stdout.take().unwrap());
    let mut line = String::new();
    while !line.ends_with("ready\n") {
        line.clear();
        assert_ne!(out.read_line(&mut line).unwrap(), 0, "{:?}", other.wait_with_output());
    }
    let pid = Pid::from_child(&other);
    let (to_end, end) = mpsc::channel();
    let reading = std::thread::spawn(move || {
        let mut text = String::new();
        out.read_to_string(&mut text).unwrap();
        to_end.send(text).unwrap();
    });
    let text = loop {
        match end.recv_timeout(Duration::from_micros(300)) {
            Ok(text) => break text,
            Err(_) => {
                for signal in [Signal::STOP, Signal::CONT] {
                    kill_process(pid, signal).unwrap();
                }
            }
        }
    };
    reading.join().unwrap();
    let end = other.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&end.stderr);
    assert!(end.status.success() && text.contains("body done"), "{text}\n{errors}");
}

fn interrupted_traffic<D: Driver>() {
    for net in [Net::Tcp, Net::Unix] {
        let place = Place::new(net);
        let ((mut a, a_conn), (mut b, b_conn)) = place.pair::<D>();
        let stream = pattern(16 << 20);
        for piece in stream.chunks(300_000) {
            a.write(a_conn, piece);
            b.write(b_conn, piece);
        }
        pump(&mut [&mut a, &mut b], |sides| {
            sides[0].received(a_conn).len() == stream.len()
                && sides[1].received(b_conn).len() == stream.len()
        });
        assert_bytes(a.received(a_conn), &stream);
        assert_bytes(b.received(b_conn), &stream);
    }
}

fn interrupted_waits<D: Driver>() {
    const MAILS: u64 = 3_000;
    let mut node = RealNode::<u64, D>::new(parts(1, None, Idle::Park)).unwrap();
    let mut side = Side::new(node.envs.remove(0));
    let poster = node.poster.clone();
    let (answer, answers) = mpsc::channel();
    let posting = std::thread::spawn(move || {
        for n in 0..MAILS {
            poster.post(0, n);
            // The core has nothing to do until the next one, so it sleeps.
            assert_eq!(answers.recv(), Ok(n));
        }
    });
    for n in 0..MAILS {
        side.wait(|side| side.mail.len() as u64 > n);
        answer.send(side.mail[n as usize]).unwrap();
    }
    posting.join().unwrap();
    let until = side.env.now() + Duration::from_millis(50);
    assert_eq!(side.poll(until), 0);
    assert!(side.env.now() >= until);
}

/// A listener that answers is left alone; one whose process was killed leaves a file that is
/// replaced.
pub(crate) fn a_killed_listener_leaves_a_path_that_can_be_used_again<D: Driver>((): ()) {
    const PATH: &str = "HOMING_TRANSPORT_TEST_PATH";
    if is_other_part() {
        let endpoint = Endpoint::Unix(std::env::var_os(PATH).unwrap().into());
        let _listener = BoundListener::bind(&endpoint).unwrap();
        println!("bound");
        // Until it is killed.
        let _ = std::io::stdin().read(&mut [0]);
        return;
    }
    let place = Place::new(Net::Unix);
    let endpoint = place.endpoint("s");
    let Endpoint::Unix(path) = &endpoint else { panic!() };
    let mut other =
        other_part(&this_test()).env(PATH, path).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(other.stdout.take().unwrap()).lines();
    let bound = lines.map_while(Result::ok).any(|line| line.ends_with("bound"));
    assert!(bound, "{:?}", other.wait());
    let refused = BoundListener::bind(&endpoint).unwrap_err();
    assert!(refused.text().contains("another process listens on it"), "{refused}");
    other.kill().unwrap();
    other.wait().unwrap();
    assert!(path.exists(), "a killed process removes nothing");

    let (mut side, _) = place.side::<D>("s");
    let mut raw = Raw::dial(&endpoint);
    let conn = side.wait_accepted();
    side.write(conn, b"mine now");
    side.settle();
    let mut got = [0; 8];
    raw.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"mine now");
    drop(side);
    assert!(!path.exists());
}
