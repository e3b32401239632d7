#![forbid(unsafe_code)]
//! The doorbell under the model checker: no wake-up is lost, no mail outlives its reader, and
//! without either fence both happen. `cargo test --features loom --test loom_doorbell`.

use homing::exec::doorbell::{Doorbell, Rung};
use homing::sync::flag::Flag;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use loom::thread;

/// A queue of the two ends, as far as the doorbell needs one: how many were put in. The ring's
/// indices are such words, with these orderings.
#[derive(Default)]
struct Ring {
    tail: AtomicUsize,
}

impl Ring {
    fn push(&self) {
        let tail = self.tail.load(Ordering::Relaxed);
        // SYNC: pairs with the load in `taken`: who sees the index sees the mail.
        self.tail.store(tail + 1, Ordering::Release);
    }

    fn taken(&self) -> usize {
        // SYNC: pairs with the store in `push`.
        self.tail.load(Ordering::Acquire)
    }
}

/// The word of the model checker, with one of the fences left out.
struct Without<const SLEEPER: bool>(AtomicBool);

impl<const SLEEPER: bool> Flag for Without<SLEEPER> {
    fn of(value: bool) -> Self {
        Self(AtomicBool::of(value))
    }
    fn load_relaxed(&self) -> bool {
        self.0.load_relaxed()
    }
    fn store_relaxed(&self, value: bool) {
        self.0.store_relaxed(value);
    }
    fn swap_relaxed(&self, value: bool) -> bool {
        self.0.swap_relaxed(value)
    }
    fn fence_sleeper() {
        if !SLEEPER {
            AtomicBool::fence();
        }
    }
    fn fence_poster() {
        if SLEEPER {
            AtomicBool::fence();
        }
    }
    fn fence() {}
}

/// One sleeper, `POSTERS` rings with a poster each: the sleeper must not sleep without a wake while
/// there is mail.
fn sleeps_with_mail<F: Flag + Send + Sync + 'static, const POSTERS: usize>() {
    let mut model = loom::model::Builder::new();
    // With two posters all interleavings take many minutes; three switches find what two can do.
    model.preemption_bound = (POSTERS > 1).then_some(3);
    model.check(|| {
        let bell = Arc::new(Doorbell::<F>::new());
        let rings: [Arc<Ring>; POSTERS] = std::array::from_fn(|_| Arc::default());
        let wakes = Arc::new(AtomicUsize::new(0));
        let posters = rings.each_ref().map(|ring| {
            let (bell, ring, wakes) = (bell.clone(), ring.clone(), wakes.clone());
            thread::spawn(move || {
                ring.push();
                if bell.ring() == Rung::Wake {
                    wakes.fetch_add(1, Ordering::Relaxed);
                }
            })
        });
        bell.announce();
        let sleeps = rings.iter().all(|ring| ring.taken() == 0);
        if !sleeps {
            bell.awake();
        }
        posters.into_iter().for_each(|poster| poster.join().unwrap());
        let wakes = wakes.load(Ordering::Relaxed);
        assert!(!sleeps || wakes > 0, "asleep with mail, and nobody wakes");
        assert!(wakes <= 1, "one announcement is paid for once");
    });
}

/// The sleeper ends while somebody posts: one of the two sees to the mail.
fn leaves_mail<F: Flag + Send + Sync + 'static>() {
    loom::model(|| {
        let (bell, ring) = (Arc::new(Doorbell::<F>::new()), Arc::new(Ring::default()));
        let poster = {
            let (bell, ring) = (bell.clone(), ring.clone());
            thread::spawn(move || {
                ring.push();
                bell.ring() == Rung::Closed
            })
        };
        bell.close();
        let emptied = ring.taken() == 1;
        let abandoned = poster.join().unwrap();
        assert!(emptied || abandoned, "mail is left behind");
    });
}

#[test]
fn no_wake_up_is_lost() {
    sleeps_with_mail::<AtomicBool, 1>();
    sleeps_with_mail::<AtomicBool, 2>();
}

#[test]
fn no_mail_is_left_behind() {
    leaves_mail::<AtomicBool>();
}

#[test]
#[should_panic = "asleep with mail"]
fn the_sleepers_fence_is_needed_to_sleep() {
    sleeps_with_mail::<Without<true>, 1>();
}

#[test]
#[should_panic = "asleep with mail"]
fn the_posters_fence_is_needed_to_sleep() {
    sleeps_with_mail::<Without<false>, 1>();
}

#[test]
#[should_panic = "mail is left behind"]
fn the_sleepers_fence_is_needed_to_end() {
    leaves_mail::<Without<true>>();
}

#[test]
#[should_panic = "mail is left behind"]
fn the_posters_fence_is_needed_to_end() {
    leaves_mail::<Without<false>>();
}

/// A starved sender and a receiver that takes: the same flag, the other way round.
#[test]
fn a_sender_without_room_is_woken_when_there_is_some() {
    loom::model(|| {
        let (starved, taken) = (Arc::new(Doorbell::<AtomicBool>::new()), Arc::new(Ring::default()));
        let receiver = {
            let (starved, taken) = (starved.clone(), taken.clone());
            thread::spawn(move || {
                taken.push();
                starved.ring() == Rung::Wake
            })
        };
        starved.announce();
        let sleeps = taken.taken() == 0;
        let woken = receiver.join().unwrap();
        assert!(!sleeps || woken, "asleep although there is room");
    });
}
