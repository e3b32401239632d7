#![forbid(unsafe_code)]
//! A core's mailbox: many threads put mail in, one core takes it out, and whoever puts mail in
//! wakes the core exactly when it sleeps.
//!
//! # Words
//! The **core** is the one reader. A **poster** is any thread with a [`MailSender`]. **Waking** is
//! a call of the function the mailbox was made with (one system call of the driver).
//!
//! Beside the mailbox a core may have other queues, which others fill and then call
//! [`MailSender::notify`]: the rings of [`super::pair`].
//!
//! # The sleeping flag
//! [`super::doorbell`] has it, with the argument why no wake-up is lost and why no mail is left
//! behind when the core ends. Mail to a core that has ended is dropped at once, so that whoever
//! waits on something inside it learns of it.
//!
//! # Order
//! The queue is linearizable: mail of one poster comes out in its order, and if one post ended
//! before another began, on whatever threads, it comes out first.

use std::sync::Arc;

use crossbeam_queue::SegQueue;

use super::doorbell::{Doorbell, Rung};

/// The reading end. Dropping it closes the mailbox and drops the mail in it.
pub struct Mailbox<T> {
    shared: Arc<Shared<T>>,
}

/// The writing end; clone it freely.
pub struct MailSender<T> {
    shared: Arc<Shared<T>>,
}

struct Shared<T> {
    queue: SegQueue<T>,
    bell: Doorbell,
    wake: Box<dyn Fn() + Send + Sync>,
}

/// Makes a mailbox whose core is woken by `wake`, which may be called from any thread and must
/// stick when the core is not asleep yet.
///
/// ```
/// use homing::exec::mailbox::mailbox;
/// let (sender, mailbox) = mailbox(|| {});
/// sender.send(7);
/// assert!(!mailbox.prepare_sleep(), "there is mail");
/// assert_eq!(mailbox.take(), Some(7));
/// assert!(mailbox.prepare_sleep());
/// mailbox.awake();
/// ```
pub fn mailbox<T>(wake: impl Fn() + Send + Sync + 'static) -> (MailSender<T>, Mailbox<T>) {
    let shared =
        Arc::new(Shared { queue: SegQueue::new(), bell: Doorbell::new(), wake: Box::new(wake) });
    (MailSender { shared: shared.clone() }, Mailbox { shared })
}

impl<T> MailSender<T> {
    /// Puts `mail` in and wakes the core when it sleeps. Drops it when the core has ended.
    pub fn send(&self, mail: T) {
        self.shared.queue.push(mail);
        if !self.notify() {
            self.shared.drop_mail();
        }
    }

    /// Wakes the core when it sleeps: something was put where it looks. `false`: it has ended and
    /// never looks again.
    #[must_use]
    pub fn notify(&self) -> bool {
        let rung = self.shared.bell.ring();
        if rung == Rung::Wake {
            self.wake();
        }
        rung != Rung::Closed
    }

    /// Wakes the core, whether it sleeps or not.
    pub fn wake(&self) {
        (self.shared.wake)();
    }

    /// Whether the core has ended, so that mail would only be dropped.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.shared.bell.is_closed()
    }
}

impl<T> Clone for MailSender<T> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone() }
    }
}

impl<T> Mailbox<T> {
    /// The oldest mail.
    #[must_use]
    pub fn take(&self) -> Option<T> {
        self.shared.queue.pop()
    }

    /// Whether there is no mail now.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.shared.queue.is_empty()
    }

    /// Announces sleep. `true`: every mail from here on calls the wake function, until
    /// [`Mailbox::awake`]; a core with other queues looks at those before it sleeps. `false`:
    /// there is mail, do not sleep.
    #[must_use]
    pub fn prepare_sleep(&self) -> bool {
        self.shared.bell.announce();
        if self.shared.queue.is_empty() {
            return true;
        }
        self.awake();
        false
    }

    /// Ends the sleep: from here on mail wakes nobody.
    pub fn awake(&self) {
        self.shared.bell.awake();
    }
}

impl<T> Drop for Mailbox<T> {
    fn drop(&mut self) {
        self.shared.bell.close();
        self.shared.drop_mail();
    }
}

impl<T> Shared<T> {
    fn drop_mail(&self) {
        while let Some(mail) = self.queue.pop() {
            drop(mail);
        }
    }
}

impl<T> std::fmt::Debug for MailSender<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MailSender").field("closed", &self.is_closed()).finish_non_exhaustive()
    }
}

impl<T> std::fmt::Debug for Mailbox<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mailbox").field("is_empty", &self.is_empty()).finish_non_exhaustive()
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)] // posters are threads
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Condvar, Mutex};

    /// A wake-up that sticks, as an eventfd does.
    #[derive(Default)]
    struct Bell {
        rung: Mutex<bool>,
        heard: Condvar,
        rings: AtomicUsize,
    }

    impl Bell {
        fn ring(&self) {
            self.rings.fetch_add(1, Ordering::Relaxed);
            *self.rung.lock().unwrap() = true;
            self.heard.notify_one();
        }

        fn wait(&self) {
            let mut rung = self.rung.lock().unwrap();
            while !*rung {
                rung = self.heard.wait(rung).unwrap();
            }
            *rung = false;
        }
    }

    fn bell_mailbox<T>() -> (MailSender<T>, Mailbox<T>, Arc<Bell>) {
        let bell = Arc::new(Bell::default());
        let ringer = bell.clone();
        let (sender, mailbox) = mailbox(move || ringer.ring());
        (sender, mailbox, bell)
    }

    #[test]
    fn an_awake_core_costs_its_posters_no_wake() {
        let (sender, mailbox, bell) = bell_mailbox();
        for i in 0..100 {
            sender.send(i);
        }
        assert_eq!(bell.rings.load(Ordering::Relaxed), 0);
        assert!((0..100).all(|i| mailbox.take() == Some(i)));
        assert!(mailbox.prepare_sleep());
        for i in 0..100 {
            sender.send(i);
        }
        assert_eq!(bell.rings.load(Ordering::Relaxed), 1, "only the first poster pays");
        mailbox.awake();
        sender.send(1);
        assert_eq!(bell.rings.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_core_that_slept_and_woke_by_itself_is_awake() {
        let (sender, mailbox, bell) = bell_mailbox();
        assert!(mailbox.prepare_sleep());
        mailbox.awake();
        sender.send(());
        assert_eq!(bell.rings.load(Ordering::Relaxed), 0);
        assert!(!mailbox.prepare_sleep());
        let _ = mailbox.take();
        assert!(mailbox.prepare_sleep());
    }

    /// A lost wake-up hangs this test.
    #[test]
    fn no_wake_up_is_lost_and_order_is_kept_between_many_posters() {
        const POSTERS: usize = 4;
        const EACH: u64 = 20_000;
        let (sender, mailbox, bell) = bell_mailbox();
        std::thread::scope(|scope| {
            for poster in 0..POSTERS {
                let sender = sender.clone();
                scope.spawn(move || {
                    for n in 0..EACH {
                        sender.send((poster, n));
                        if n % 64 == 0 {
                            std::thread::yield_now();
                        }
                    }
                });
            }
            let mut next = [0; POSTERS];
            let mut announced = 0;
            while next.iter().sum::<u64>() < POSTERS as u64 * EACH {
                while let Some((poster, n)) = mailbox.take() {
                    assert_eq!(n, next[poster]);
                    next[poster] += 1;
                }
                if next.iter().sum::<u64>() == POSTERS as u64 * EACH {
                    break;
                }
                announced += 1;
                if mailbox.prepare_sleep() {
                    bell.wait();
                    mailbox.awake();
                }
            }
            assert!(bell.rings.load(Ordering::Relaxed) <= announced);
        });
    }

    /// One mail at a time, the poster waiting for the answer: every round can lose a wake-up.
    #[test]
    fn ping_pong_between_two_sleepers() {
        const ROUNDS: u64 = 20_000;
        let (to_a, a, bell_a) = bell_mailbox::<u64>();
        let (to_b, b, bell_b) = bell_mailbox::<u64>();
        fn next(mailbox: &Mailbox<u64>, bell: &Bell) -> u64 {
            loop {
                if let Some(n) = mailbox.take() {
                    return n;
                }
                if mailbox.prepare_sleep() {
                    bell.wait();
                    mailbox.awake();
                }
            }
        }
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for _ in 0..ROUNDS {
                    let n = next(&b, &bell_b);
                    to_a.send(n + 1);
                }
            });
            for round in 0..ROUNDS {
                to_b.send(round);
                assert_eq!(next(&a, &bell_a), round + 1);
            }
        });
    }

    struct Counted(Arc<AtomicUsize>);

    impl Counted {
        fn new(count: &Arc<AtomicUsize>) -> Self {
            count.fetch_add(1, Ordering::Relaxed);
            Self(count.clone())
        }
    }

    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn the_end_of_the_core_drops_its_mail_whoever_is_posting() {
        let alive = Arc::new(AtomicUsize::new(0));
        for _ in 0..200 {
            let (sender, mailbox, _) = bell_mailbox();
            let started = std::sync::Barrier::new(3);
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    let (sender, alive, started) = (&sender, &alive, &started);
                    scope.spawn(move || {
                        started.wait();
                        while !sender.is_closed() {
                            sender.send(Counted::new(alive));
                        }
                        sender.send(Counted::new(alive));
                    });
                }
                started.wait();
                drop(mailbox.take());
                drop(mailbox);
            });
            // The sender, and with it the queue, is still there: nothing may be left in it.
            assert_eq!(alive.load(Ordering::Relaxed), 0);
            drop(sender);
        }
    }
}
