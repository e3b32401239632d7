#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods)] // threads of the tests
//! The cells by themselves, and against the boxed form under random futures.

use std::collections::BTreeMap;
use std::future::{pending, poll_fn};
use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;

use proptest::prelude::*;

use super::*;
use crate::exec::boxed;

type Woken = Arc<Mutex<Vec<u64>>>;

fn log() -> (WakeFn, Woken) {
    let woken = Woken::default();
    let post = woken.clone();
    (Arc::new(move |id| post.lock().unwrap().push(id)), woken)
}

fn cells<O>() -> (Cells<O, ()>, Woken) {
    let (post, woken) = log();
    (Cells::new(post), woken)
}

fn insert<O, F: Future<Output = O> + 'static>(cells: &mut Cells<O, ()>, future: F) -> u64 {
    cells.insert((), |blocks| blocks.put(future))
}

type Kept = Arc<Mutex<Vec<Waker>>>;

/// Keeps a clone of its waker at every poll and never ends.
fn keeper(kept: &Kept) -> impl Future<Output = i32> + use<> {
    let kept = kept.clone();
    poll_fn(move |cx| {
        kept.lock().unwrap().push(cx.waker().clone());
        Poll::Pending
    })
}

#[test]
fn a_wake_is_posted_once_until_the_next_poll() {
    let (mut cells, woken) = cells();
    let kept = Kept::default();
    let id = insert(&mut cells, keeper(&kept));
    assert!(matches!(cells.poll(id), Polled::Pending));
    let waker = kept.lock().unwrap().pop().unwrap();
    std::thread::scope(|s| {
        for _ in 0..4 {
            s.spawn(|| waker.wake_by_ref());
        }
    });
    assert_eq!(*woken.lock().unwrap(), vec![id]);
    assert!(matches!(cells.poll(id), Polled::Pending));
    waker.wake_by_ref();
    assert_eq!(woken.lock().unwrap().len(), 2);
}

#[test]
fn a_late_wake_of_an_ended_turn_reaches_nobody() {
    let (mut cells, woken) = cells();
    let kept = Kept::default();
    let first = insert(&mut cells, keeper(&kept));
    assert!(matches!(cells.poll(first), Polled::Pending));
    cells.cancel(first);
    // The same slot, the same memory, another turn.
    let second = insert(&mut cells, keeper(&Kept::default()));
    assert_eq!(first & 0xffff_ffff, second & 0xffff_ffff);
    let late = kept.lock().unwrap().pop().unwrap();
    std::thread::scope(|s| {
        s.spawn(|| late.wake());
    });
    assert_eq!(*woken.lock().unwrap(), vec![first], "it names the turn it was of");
    assert!(matches!(cells.poll(first), Polled::Gone));
    assert!(cells.of(first).is_none() && cells.of(second).is_some());
    assert!(matches!(cells.poll(second), Polled::Pending));
    cells.cancel(second);
    assert_eq!(cells.len(), 0);
}

#[test]
fn a_panic_is_told_and_its_cell_freed() {
    let (mut cells, _) = cells::<i32>();
    let id = insert(&mut cells, async { panic!("boom {}", 7) });
    match cells.poll(id) {
        Polled::Panicked(text, ()) => assert_eq!(text, "boom 7"),
        _ => panic!("not told"),
    }
    assert_eq!(cells.len(), 0);
}

#[test]
fn a_warm_cell_takes_no_memory_at_all() {
    let (mut cells, _) = cells::<u64>();
    let mut turn = |n: u64| {
        let large = [n; 40];
        let id = insert(&mut cells, async move {
            // Suspended once, awake again with its own clone.
            let mut first = true;
            poll_fn(|cx| {
                let waker = cx.waker().clone();
                if std::mem::take(&mut first) {
                    waker.wake();
                    return Poll::Pending;
                }
                Poll::Ready(())
            })
            .await;
            large.iter().sum()
        });
        assert!(matches!(cells.poll(id), Polled::Pending));
        assert!(matches!(cells.poll(id), Polled::Ready(sum, ()) if sum == 40 * n));
    };
    // The log of wakes grows in the warm-up.
    (0..1_100).for_each(&mut turn);
    let taken = allocation_counter::measure(|| (0..900).for_each(&mut turn));
    assert_eq!(taken.count_total, 0);
}

/// A suspended future goes before what was moved into it first, as its object is.
#[test]
fn a_suspended_future_drops_before_its_object() {
    struct Object(Arc<Mutex<Vec<&'static str>>>);
    impl Drop for Object {
        fn drop(&mut self) {
            self.0.lock().unwrap().push("object");
        }
    }
    struct Borrows<'a>(&'a Object);
    impl Drop for Borrows<'_> {
        fn drop(&mut self) {
            self.0.0.lock().unwrap().push("turn");
        }
    }
    let (mut cells, _) = cells::<()>();
    let order = Arc::new(Mutex::new(Vec::new()));
    let body: Box<dyn Any> = Box::new(Object(order.clone()));
    let id = insert(&mut cells, async move {
        let Ok(object) = body.downcast::<Object>() else { return };
        async {
            let held = Borrows(&object);
            pending::<()>().await;
            drop(held);
        }
        .await;
    });
    assert!(matches!(cells.poll(id), Polled::Pending));
    cells.cancel(id);
    assert_eq!(*order.lock().unwrap(), ["turn", "object"]);
}

/// Threads wake turns that end and begin all the time. For the sanitizers; and no wake is lost:
/// a turn ends only when it was polled after each of its wakes.
#[test]
fn turns_that_are_woken_from_threads_all_end() {
    const TURNS: u64 = 2_000;
    let (mut cells, woken) = cells::<u64>();
    let (give, take) = std::sync::mpsc::channel::<(Waker, Arc<AtomicUsize>)>();
    let take = Mutex::new(take);
    std::thread::scope(|s| {
        for _ in 0..3 {
            s.spawn(|| {
                while let Ok((waker, step)) = { take.lock().unwrap().recv() } {
                    // Relaxed: the wake itself has to carry it over.
                    step.fetch_add(1, Ordering::Relaxed);
                    let again = waker.clone();
                    waker.wake();
                    again.wake();
                }
            });
        }
        let (mut ended, mut started) = (0, 0);
        let mut ids = Vec::new();
        while ended < TURNS {
            while started < TURNS && cells.len() < 8 {
                let (step, give) = (Arc::new(AtomicUsize::new(0)), give.clone());
                let mut asked = 0;
                let id = insert(
                    &mut cells,
                    poll_fn(move |cx| {
                        if step.load(Ordering::Relaxed) < asked {
                            return Poll::Pending;
                        }
                        if asked == 3 {
                            return Poll::Ready(1);
                        }
                        asked += 1;
                        give.send((cx.waker().clone(), step.clone())).unwrap();
                        Poll::Pending
                    }),
                );
                started += 1;
                ids.push(id);
            }
            ids.append(&mut woken.lock().unwrap());
            for id in ids.drain(..) {
                if let Polled::Ready(one, ()) = cells.poll(id) {
                    ended += one;
                }
            }
            std::thread::yield_now();
        }
        drop(give);
    });
    assert_eq!(cells.len(), 0);
}

/// What a future of the comparison does at one poll.
#[derive(Clone, Copy, Debug)]
enum Act {
    Pend,
    /// Keeps a clone of the waker.
    Keep,
    WakeItself,
    /// Wakes from another thread and waits for that.
    WakeFromThread,
    End,
    Panic,
}

#[derive(Clone, Debug)]
enum Step {
    /// A turn that does this, with this many words in it.
    Insert(Vec<Act>, u8),
    Poll(prop::sample::Index),
    Cancel(prop::sample::Index),
    Wake(prop::sample::Index),
    DropWaker(prop::sample::Index),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let act = prop_oneof![
        3 => Just(Act::Pend), 2 => Just(Act::Keep), 1 => Just(Act::WakeItself),
        1 => Just(Act::WakeFromThread), 3 => Just(Act::End), 1 => Just(Act::Panic)
    ];
    let index = any::<prop::sample::Index>;
    let step = prop_oneof![
        3 => (prop::collection::vec(act, 0..5), 0..3u8).prop_map(|(a, n)| Step::Insert(a, n)),
        5 => index().prop_map(Step::Poll),
        1 => index().prop_map(Step::Cancel),
        2 => index().prop_map(Step::Wake),
        1 => index().prop_map(Step::DropWaker),
    ];
    prop::collection::vec(step, 0..60)
}

/// Counts itself down when it goes; its destructor panics when told to.
struct Alive(Arc<AtomicUsize>, bool);

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
        assert!(!self.1 || std::thread::panicking(), "a destructor that panics");
    }
}

/// One of the two forms, as far as the comparison sees it.
trait Form {
    fn insert<F: Future<Output = u64> + 'static>(&mut self, future: F) -> u64;
    fn poll(&mut self, id: u64) -> String;
    fn cancel(&mut self, id: u64);
    fn len(&self) -> usize;
}

impl Form for Cells<u64, ()> {
    fn insert<F: Future<Output = u64> + 'static>(&mut self, future: F) -> u64 {
        insert(self, future)
    }
    fn poll(&mut self, id: u64) -> String {
        match Cells::poll(self, id) {
            Polled::Ready(value, ()) => format!("ready {value}"),
            Polled::Pending => "pending".into(),
            Polled::Panicked(text, ()) => format!("panicked {text}"),
            Polled::Gone => "gone".into(),
        }
    }
    fn cancel(&mut self, id: u64) {
        Cells::cancel(self, id);
    }
    fn len(&self) -> usize {
        Cells::len(self)
    }
}

impl Form for boxed::Cells<u64> {
    fn insert<F: Future<Output = u64> + 'static>(&mut self, future: F) -> u64 {
        boxed::Cells::insert(self, Box::pin(future))
    }
    fn poll(&mut self, id: u64) -> String {
        match boxed::Cells::poll(self, id) {
            boxed::Polled::Ready(value) => format!("ready {value}"),
            boxed::Polled::Pending => "pending".into(),
            boxed::Polled::Panicked(text) => format!("panicked {text}"),
            boxed::Polled::Gone => "gone".into(),
        }
    }
    fn cancel(&mut self, id: u64) {
        boxed::Cells::cancel(self, id);
    }
    fn len(&self) -> usize {
        boxed::Cells::len(self)
    }
}

/// A future of `acts`, with `words` in it so that sizes differ.
fn acting<const N: usize>(
    acts: Vec<Act>,
    kept: Kept,
    alive: Arc<AtomicUsize>,
) -> impl Future<Output = u64> {
    alive.fetch_add(1, Ordering::Relaxed);
    let held = Alive(alive, acts.len() % 4 == 3);
    async move {
        let words = [acts.len() as u64; N];
        for act in acts {
            let mut acted = false;
            poll_fn(|cx| {
                if std::mem::replace(&mut acted, true) {
                    return Poll::Ready(());
                }
                match act {
                    Act::Pend => {}
                    Act::Keep => kept.lock().unwrap().push(cx.waker().clone()),
                    Act::WakeItself => cx.waker().wake_by_ref(),
                    Act::WakeFromThread => {
                        let waker = cx.waker().clone();
                        std::thread::scope(|s| drop(s.spawn(|| waker.wake())));
                    }
                    Act::End => return Poll::Ready(()),
                    Act::Panic => panic!("planted"),
                }
                Poll::Pending
            })
            .await;
        }
        drop(held);
        words.iter().sum()
    }
}

/// What a run of the steps showed, line by line.
fn run<T: Form>(form: &mut T, woken: &Woken, steps: &[Step]) -> Vec<String> {
    let (kept, alive) = (Kept::default(), Arc::new(AtomicUsize::new(0)));
    let mut ids = Vec::new();
    let mut turn_of = BTreeMap::new();
    let mut seen = Vec::new();
    for step in steps {
        let mut line = match step {
            Step::Insert(acts, size) => {
                let (acts, kept, alive) = (acts.clone(), kept.clone(), alive.clone());
                let id = match size {
                    0 => form.insert(acting::<0>(acts, kept, alive)),
                    1 => form.insert(acting::<40>(acts, kept, alive)),
                    _ => form.insert(acting::<9_000>(acts, kept, alive)),
                };
                turn_of.insert(id, ids.len());
                ids.push(id);
                format!("inserted, {}", turn_of.len() == ids.len())
            }
            Step::Poll(at) if !ids.is_empty() => form.poll(*at.get(&ids)),
            Step::Cancel(at) if !ids.is_empty() => {
                form.cancel(*at.get(&ids));
                "cancelled".into()
            }
            Step::Wake(at) if !kept.lock().unwrap().is_empty() => {
                let waker = at.get(&kept.lock().unwrap()[..]).clone();
                std::thread::scope(|s| drop(s.spawn(|| waker.wake())));
                "woken".into()
            }
            Step::DropWaker(at) if !kept.lock().unwrap().is_empty() => {
                let mut kept = kept.lock().unwrap();
                let at = at.index(kept.len());
                drop(kept.swap_remove(at));
                "dropped".into()
            }
            _ => "nothing".into(),
        };
        let posted: Vec<_> = woken.lock().unwrap().drain(..).map(|id| turn_of[&id]).collect();
        line += &format!(
            "; {} cells, {} alive, posted {posted:?}",
            form.len(),
            alive.load(Ordering::Relaxed)
        );
        seen.push(line);
    }
    ids.into_iter().for_each(|id| form.cancel(id));
    kept.lock().unwrap().clear();
    seen.push(format!("at the end {} cells, {} alive", form.len(), alive.load(Ordering::Relaxed)));
    seen
}

/// The panics that are planted say nothing on the way.
fn quiet_panics() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let text = info.payload().downcast_ref::<&str>().copied().unwrap_or_default();
            if !matches!(text, "planted" | "a destructor that panics") {
                before(info);
            }
        }));
    });
}

proptest! {
    #[test]
    fn the_cells_do_what_boxed_futures_do(steps in steps()) {
        quiet_panics();
        let (mut fast, fast_woken) = cells::<u64>();
        let (post, safe_woken) = log();
        let mut safe = boxed::Cells::new(post);
        let seen = run(&mut fast, &fast_woken, &steps);
        let expected = run(&mut safe, &safe_woken, &steps);
        prop_assert_eq!(seen, expected);
    }
}
