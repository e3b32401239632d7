#![forbid(unsafe_code)]
//! Mail, waking and waiting.

use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use homing::env::{Env, Event, Post, StoreAnswer, StoreOp};
use homing::exec::idle::Idle;
use homing::location::StoreError;
use homing::node::real::{RealNode, boottime, spawn_core};
use homing::time::Nanos;
use homing::transport::driver::Driver;

use crate::world::{Side, parts};

/// Every post to a core that waits for ever wakes it. A lost one hangs the test.
fn no_wake_up_is_lost<D: Driver>(idle: Idle, rounds: u64) {
    let mut node = RealNode::<u64, D>::new(parts(1, None, idle)).unwrap();
    let mut env = node.envs.pop().unwrap();
    let (answer, answers) = mpsc::channel();
    let core = spawn_core("core", None, move || {
        let mut events = Vec::new();
        loop {
            env.poll(&mut events, Nanos::MAX);
            for event in events.drain(..) {
                let Event::Mail(n) = event else { panic!("{event:?}") };
                answer.send(n).unwrap();
                if n == rounds {
                    return;
                }
            }
        }
    });
    for n in 1..=rounds {
        node.poster.post(0, n);
        assert_eq!(answers.recv(), Ok(n));
    }
    core.unwrap().join().unwrap();
}

pub(crate) fn no_wake_up_is_lost_parking<D: Driver>((): ()) {
    no_wake_up_is_lost::<D>(Idle::Park, 10_000);
}

pub(crate) fn no_wake_up_is_lost_adaptive<D: Driver>((): ()) {
    no_wake_up_is_lost::<D>(Idle::Adaptive, 10_000);
}

pub(crate) fn no_wake_up_is_lost_spinning<D: Driver>((): ()) {
    // A spinning core is never asleep, and waits for a processor when there are too few.
    no_wake_up_is_lost::<D>(Idle::Spin, 500);
}

/// Cores and threads send to a core at once: each one's mail comes in its order, none is lost.
pub(crate) fn mail_keeps_its_order_per_pair<D: Driver>((): ()) {
    const EACH: u64 = 30_000;
    let mut node = RealNode::<u64, D>::new(parts(3, None, Idle::Adaptive)).unwrap();
    let mut target = node.envs.remove(0);
    let mut threads = Vec::new();
    for mut env in node.envs {
        threads.push(spawn_core("core", None, move || {
            for n in 0..EACH {
                let source = u64::from(env.core()) << 32;
                env.mail(0, source | n);
            }
        }));
    }
    for source in [3u64, 4] {
        let poster = node.poster.clone();
        threads.push(spawn_core("poster", None, move || {
            for n in 0..EACH {
                poster.post(0, source << 32 | n);
            }
        }));
    }
    let mut next = [0u64; 5];
    let mut to_itself = 0;
    let mut events = Vec::new();
    while next.iter().sum::<u64>() < 5 * EACH {
        // Mail to itself as well.
        if to_itself < EACH {
            target.mail(0, to_itself);
            to_itself += 1;
        }
        target.poll(&mut events, Nanos::MAX);
        assert!(events.len() <= 1024, "bounded work per poll");
        for event in events.drain(..) {
            let Event::Mail(mail) = event else { panic!("{event:?}") };
            let source = (mail >> 32) as usize;
            assert_eq!(mail & 0xFFFF_FFFF, next[source]);
            next[source] += 1;
        }
    }
    for thread in threads {
        thread.unwrap().join().unwrap();
    }
}

/// Without anything to do, poll comes back at `park_until`, never before; with `ZERO` it does not
/// wait; with an instant that has passed neither.
pub(crate) fn poll_waits_until_the_instant_and_no_less<D: Driver>((): ()) {
    for idle in [Idle::Park, Idle::Adaptive, Idle::Spin] {
        let mut node = RealNode::<u64, D>::new(parts(1, None, idle)).unwrap();
        let mut side = Side::new(node.envs.remove(0));
        assert_eq!(side.poll(Nanos::ZERO), 0);
        let past = side.env.now();
        assert_eq!(side.poll(past), 0);
        for wait_us in [1, 10, 49, 51, 200, 1500, 999, 20_000] {
            let until = side.env.now() + Duration::from_micros(wait_us);
            assert_eq!(side.poll(until), 0);
            assert!(side.env.now() >= until, "{idle:?} came back too early of {wait_us} µs");
            // The same instant again, now in the past.
            assert_eq!(side.poll(until), 0);
        }
        // A far instant and then a near one: the near one counts.
        node.poster.post(0, 1);
        assert_eq!(side.poll(Nanos::MAX), 1);
        let until = side.env.now() + Duration::from_millis(3);
        assert_eq!(side.poll(until), 0);
        assert!(side.env.now() >= until);
    }
}

/// A driver asked twice to wait until the same instant comes back both times.
pub(crate) fn one_instant_ends_every_wait_for_it<D: Driver>((): ()) {
    let mut driver = D::new().unwrap();
    let mut events: Vec<Event<u64>> = Vec::new();
    let start = boottime();
    let until = start + Duration::from_millis(2);
    while boottime() < until {
        driver.poll(&mut events, start, Some(until));
    }
    for _ in 0..3 {
        driver.poll(&mut events, start, None);
        driver.poll(&mut events, start, Some(until));
    }
    assert!(events.is_empty());
}

/// A Store call reaches the Store side with core, token and deadline, and its answer comes back,
/// from another thread, to a core that waits. A call that is never answered disturbs nothing.
pub(crate) fn store_answers_come_back<D: Driver>((): ()) {
    for idle in [Idle::Park, Idle::Spin, Idle::Adaptive] {
        let (jobs, calls) = mpsc::channel();
        let mut made_of = parts(2, None, idle);
        let jobs = std::sync::Mutex::new(jobs);
        made_of.submit_store = Arc::new(move |core, token, op, deadline| {
            jobs.lock().unwrap().send((core, token, op, deadline)).unwrap();
        });
        let mut node = RealNode::<u64, D>::new(made_of).unwrap();
        let mut env = node.envs.remove(1);
        let deliver = node.deliver_store.clone();
        let store = spawn_core("store", None, move || {
            for (core, token, op, deadline) in calls {
                let StoreOp::Read(keys) = op else { panic!() };
                let text = format!("{} of {core} until {}", keys[0][0], deadline.0);
                if token % 2 == 0 {
                    deliver(core, token, StoreAnswer::Failed(StoreError::Failed(text)));
                }
            }
            // Late answers, and answers for cores that are not there, go nowhere.
            deliver(1, 0, StoreAnswer::Failed(StoreError::Failed(String::new())));
            deliver(99, 0, StoreAnswer::Failed(StoreError::Failed(String::new())));
        });
        let budget = Duration::from_millis(5);
        let mut events = Vec::new();
        for token in (0..20u64).step_by(2) {
            let before = boottime();
            env.store(token, StoreOp::Read(vec![vec![token as u8]]), budget);
            env.store(token + 1, StoreOp::Read(vec![vec![0]]), budget);
            let after = boottime();
            env.poll(&mut events, Nanos::MAX);
            let Some(Event::Store { token: got, answer }) = events.pop() else { panic!() };
            assert_eq!((got, events.len()), (token, 0));
            let StoreAnswer::Failed(StoreError::Failed(text)) = answer else { panic!() };
            let deadline = text.strip_prefix(&format!("{token} of 1 until ")).unwrap();
            let deadline = Nanos(deadline.parse().unwrap());
            assert!(before + budget <= deadline && deadline <= after + budget, "{deadline}");
        }
        let until = env.now() + Duration::from_millis(10);
        env.poll(&mut events, until);
        assert!(events.is_empty() && env.now() >= until);
        drop((env, node));
        store.unwrap().join().unwrap();
    }
}

/// Mail to a core that has ended is dropped: what had come, and what comes.
pub(crate) fn mail_of_a_core_that_ended_is_dropped<D: Driver>((): ()) {
    let mail = Arc::new(());
    let mut node = RealNode::<Arc<()>, D>::new(parts(2, None, Idle::Park)).unwrap();
    let gone = node.envs.pop().unwrap();
    let poster: Arc<dyn Post<Arc<()>>> = gone.poster();
    for _ in 0..5 {
        poster.post(1, mail.clone());
    }
    assert_eq!(Arc::strong_count(&mail), 6);
    drop(gone);
    assert_eq!(Arc::strong_count(&mail), 1);
    poster.post(1, mail.clone());
    node.envs[0].mail(1, mail.clone());
    poster.post(7, mail.clone());
    assert_eq!(Arc::strong_count(&mail), 1);
    poster.post(0, mail.clone());
    let mut events = Vec::new();
    node.envs[0].poll(&mut events, Nanos::MAX);
    assert!(matches!(&events[..], [Event::Mail(_)]));
}

pub(crate) fn bad_numbers_of_cores_are_refused<D: Driver>((): ()) {
    for cores in [0, 257, u16::MAX] {
        let Err(e) = RealNode::<u64, D>::new(parts(cores, None, Idle::Park)) else {
            panic!("{cores} cores")
        };
        assert_eq!(e.kind(), homing::ErrorKind::NotConfigured);
        assert!(e.text().contains(&format!("cores is {cores}")), "{e}");
    }
}
