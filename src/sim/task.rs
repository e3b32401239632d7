#![forbid(unsafe_code)]
//! Virtual time for everybody, and the executor of test clients.
//!
//! [`SimTime`] is the one clock of a world, readable from handlers, clients and providers alike
//! (it is `Send`, because actors are). Tasks are ordinary futures: they await the handles of real
//! nodes, [`SimTime::sleep`] and each other. Whoever wakes a task puts it at the end of one queue;
//! the world polls from its front, so a seed decides everything.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use crate::time::Nanos;

#[derive(Debug, Default)]
struct Sleepers {
    next: u64,
    due: BTreeMap<(Nanos, u64), Waker>,
}

#[derive(Debug, Default)]
struct TimeShared {
    now_ns: AtomicU64,
    sleepers: Mutex<Sleepers>,
}

/// The clock of a world. Clones share it.
///
/// ```
/// use homing::sim::SimWorld;
/// use std::time::Duration;
/// let mut world = SimWorld::<()>::new(1);
/// let time = world.time();
/// world.block_on(async move { time.sleep(Duration::from_secs(3)).await });
/// assert_eq!(world.now(), homing::time::Nanos(3_000_000_000));
/// ```
#[derive(Clone, Debug, Default)]
pub struct SimTime {
    shared: Arc<TimeShared>,
}

impl SimTime {
    /// The time now.
    #[must_use]
    pub fn now(&self) -> Nanos {
        Nanos(self.shared.now_ns.load(Ordering::Relaxed))
    }

    /// Ends when `by` has passed in virtual time. Dropping it forgets the timer.
    #[must_use]
    pub fn sleep(&self, by: Duration) -> Sleep {
        self.sleep_until(self.now() + by)
    }

    /// Ends at `until`.
    #[must_use]
    pub fn sleep_until(&self, until: Nanos) -> Sleep {
        Sleep { time: self.clone(), until, key: None }
    }

    pub(crate) fn set(&self, now: Nanos) {
        self.shared.now_ns.store(now.0, Ordering::Relaxed);
    }

    fn sleepers(&self) -> std::sync::MutexGuard<'_, Sleepers> {
        self.shared.sleepers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// When the next sleeper is due.
    pub(crate) fn next_due(&self) -> Option<Nanos> {
        self.sleepers().due.first_key_value().map(|(&(at, _), _)| at)
    }

    /// Wakes the first sleeper that is due at `now` and says which it was.
    pub(crate) fn wake_one(&self, now: Nanos) -> Option<u64> {
        let mut sleepers = self.sleepers();
        let entry = sleepers.due.first_entry()?;
        let (at, number) = *entry.key();
        if at > now {
            return None;
        }
        let waker = entry.remove();
        drop(sleepers);
        waker.wake();
        Some(number)
    }
}

/// A timer in virtual time; see [`SimTime::sleep`].
#[derive(Debug)]
pub struct Sleep {
    time: SimTime,
    until: Nanos,
    key: Option<u64>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.time.now() >= self.until {
            return Poll::Ready(());
        }
        let until = self.until;
        let mut sleepers = self.time.sleepers();
        let key = self.key.unwrap_or_else(|| {
            sleepers.next += 1;
            sleepers.next
        });
        let before = sleepers.due.insert((until, key), cx.waker().clone());
        drop(sleepers);
        drop(before); // outside the lock, as in `drop`
        self.key = Some(key);
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            // The waker is dropped outside the lock: dropping it may drop a task.
            let waker = self.time.sleepers().due.remove(&(self.until, key));
            drop(waker);
        }
    }
}

/// Tasks that were woken, in the order of their wakes.
#[derive(Debug, Default)]
struct Ready {
    queue: Mutex<VecDeque<u64>>,
}

#[derive(Debug)]
struct TaskWaker {
    id: u64,
    queued: AtomicBool,
    ready: Arc<Ready>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        if !self.queued.swap(true, Ordering::Relaxed) {
            let mut queue = self.ready.queue.lock().unwrap_or_else(PoisonError::into_inner);
            queue.push_back(self.id);
        }
    }
}

pub(crate) type BoxedTask = Pin<Box<dyn Future<Output = ()>>>;

struct Slot {
    /// Taken out while it is polled.
    future: Option<BoxedTask>,
    waker: Arc<TaskWaker>,
    /// The node lifecycle the task lives in, when it lives in one.
    node: Option<(u16, u32)>,
}

/// The executor.
#[derive(Default)]
pub(crate) struct Tasks {
    next: u64,
    slots: BTreeMap<u64, Slot>,
    ready: Arc<Ready>,
}

impl Tasks {
    pub(crate) fn spawn<F>(&mut self, node: Option<(u16, u32)>, future: F) -> Task<F::Output>
    where
        F: Future + 'static,
        F::Output: 'static,
    {
        let state = Rc::new(RefCell::new(TaskState { end: None, waker: None }));
        let finish = Finish { state: state.clone() };
        let wrapped = async move {
            let value = future.await;
            finish.settle(TaskEnd::Value(value));
        };
        self.next += 1;
        let id = self.next;
        let waker =
            Arc::new(TaskWaker { id, queued: AtomicBool::new(false), ready: self.ready.clone() });
        waker.clone().wake();
        self.slots.insert(id, Slot { future: Some(Box::pin(wrapped)), waker, node });
        Task { state }
    }

    /// The next woken task, in the order of the wakes, with the node lifecycle it lives in.
    pub(crate) fn pop_ready(&mut self) -> Option<(u64, Option<(u16, u32)>)> {
        loop {
            let id = {
                let mut queue = self.ready.queue.lock().unwrap_or_else(PoisonError::into_inner);
                queue.pop_front()?
            };
            if let Some(slot) = self.slots.get(&id) {
                slot.waker.queued.store(false, Ordering::Relaxed);
                return Some((id, slot.node));
            }
        }
    }

    /// Puts a task back to the end of the queue.
    pub(crate) fn requeue(&self, id: u64) {
        if let Some(slot) = self.slots.get(&id) {
            slot.waker.clone().wake();
        }
    }

    /// The task's future, taken out to be polled while nothing of the executor is borrowed.
    pub(crate) fn take(&mut self, id: u64) -> Option<(BoxedTask, Waker)> {
        let slot = self.slots.get_mut(&id)?;
        Some((slot.future.take()?, Waker::from(slot.waker.clone())))
    }

    /// After a poll: puts the future back, or forgets the task when it has ended.
    pub(crate) fn put_back(&mut self, id: u64, future: Option<BoxedTask>) -> Option<BoxedTask> {
        match (future, self.slots.get_mut(&id)) {
            (Some(future), Some(slot)) => {
                slot.future = Some(future);
                None
            }
            (None, _) => {
                self.slots.remove(&id);
                None
            }
            // Its node died while it was polled.
            (future, None) => future,
        }
    }

    /// Takes the tasks of a node lifecycle out; the caller drops them.
    pub(crate) fn of_node(&mut self, node: (u16, u32)) -> Vec<BoxedTask> {
        let ids: Vec<u64> =
            self.slots.iter().filter(|(_, s)| s.node == Some(node)).map(|(&id, _)| id).collect();
        ids.into_iter().filter_map(|id| self.slots.remove(&id)?.future).collect()
    }

    /// Takes all tasks out; the caller drops them.
    pub(crate) fn clear(&mut self) -> Vec<BoxedTask> {
        std::mem::take(&mut self.slots).into_values().filter_map(|s| s.future).collect()
    }

    /// How many tasks have not ended.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }
}

enum TaskEnd<T> {
    Value(T),
    Dropped,
    Taken,
}

struct TaskState<T> {
    end: Option<TaskEnd<T>>,
    waker: Option<Waker>,
}

struct Finish<T> {
    state: Rc<RefCell<TaskState<T>>>,
}

impl<T> Finish<T> {
    fn settle(&self, end: TaskEnd<T>) {
        let mut state = self.state.borrow_mut();
        if state.end.is_none() {
            state.end = Some(end);
            if let Some(waker) = state.waker.take() {
                waker.wake();
            }
        }
    }
}

impl<T> Drop for Finish<T> {
    fn drop(&mut self) {
        self.settle(TaskEnd::Dropped);
    }
}

/// A spawned task. Await it from another task, or look at it from the test. Dropping it lets the
/// task run on.
pub struct Task<T> {
    state: Rc<RefCell<TaskState<T>>>,
}

impl<T> Task<T> {
    /// Whether it ended: with a value, or because its node was killed.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.state.borrow().end.is_some()
    }

    /// Its value, once; `None` while it runs, when its node was killed under it, or when the value
    /// was taken already.
    #[must_use]
    pub fn take(&self) -> Option<T> {
        let mut state = self.state.borrow_mut();
        match state.end.take()? {
            TaskEnd::Value(value) => {
                state.end = Some(TaskEnd::Taken);
                Some(value)
            }
            other => {
                state.end = Some(other);
                None
            }
        }
    }
}

impl<T> std::fmt::Debug for Task<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Task").field("is_done", &self.is_done()).finish()
    }
}

impl<T> Future for Task<T> {
    /// `None` when the task's node was killed under it.
    type Output = Option<T>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        if self.is_done() {
            return Poll::Ready(self.take());
        }
        self.state.borrow_mut().waker = Some(cx.waker().clone());
        Poll::Pending
    }
}
