#![forbid(unsafe_code)]
//! The place where a core puts what an application thread waits for.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use crate::error::{Error, ErrorKind, Result};

struct State<T> {
    value: Option<T>,
    waker: Option<Waker>,
    settled: bool,
}

/// A value for a waiter whose core ended without an answer.
pub(crate) trait Abandoned {
    fn abandoned() -> Self;
}

impl<T> Abandoned for Result<T> {
    fn abandoned() -> Self {
        Err(Error::new(ErrorKind::ShuttingDown, "the node has stopped"))
    }
}

impl Abandoned for () {
    fn abandoned() -> Self {}
}

/// Makes the two ends. Cheap; for any executor.
pub(crate) fn oneshot<T: Abandoned>() -> (Settler<T>, Taken<T>) {
    let state = Arc::new(Mutex::new(State { value: None, waker: None, settled: false }));
    (Settler(state.clone()), Taken(state))
}

/// The end of the core: settled once. Dropped unsettled, it tells its waiter so: whatever becomes
/// of a mail on its way, nobody waits for ever.
pub(crate) struct Settler<T: Abandoned>(Arc<Mutex<State<T>>>);

impl<T: Abandoned> Settler<T> {
    /// Puts the value and wakes the waiter; whether this was the first.
    pub(crate) fn settle(&self, value: T) -> bool {
        self.settle_with(|| value)
    }

    fn settle_with(&self, value: impl FnOnce() -> T) -> bool {
        let waker = {
            let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if state.settled {
                return false;
            }
            state.settled = true;
            state.value = Some(value());
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        true
    }
}

impl<T: Abandoned> Drop for Settler<T> {
    fn drop(&mut self) {
        self.settle_with(T::abandoned);
    }
}

/// The end of the waiter.
pub(crate) struct Taken<T>(Arc<Mutex<State<T>>>);

impl<T> Taken<T> {
    pub(crate) fn is_settled(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).settled
    }
}

impl<T> Future for Taken<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match state.value.take() {
            Some(value) => Poll::Ready(value),
            None => {
                match &mut state.waker {
                    Some(waker) => waker.clone_from(cx.waker()),
                    none => *none = Some(cx.waker().clone()),
                }
                Poll::Pending
            }
        }
    }
}

struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future on this thread until it is ready.
///
/// For programs without an async runtime. Must not be called from a turn.
///
/// ```
/// assert_eq!(homing::block_on(async { 1 + 1 }), 2);
/// ```
#[allow(clippy::disallowed_methods)] // parks a thread of the application, never a core
pub fn block_on<F: std::future::IntoFuture>(future: F) -> F::Output {
    let mut future = std::pin::pin!(future.into_future());
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut cx = Context::from_waker(&waker);
    loop {
        match future.as_mut().poll(&mut cx) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::park(),
        }
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)] // threads of the tests
mod tests {
    use super::*;

    #[test]
    fn only_the_first_settle_counts() {
        let (settler, taken) = oneshot::<Result<i32>>();
        assert!(settler.settle(Ok(1)));
        assert!(!settler.settle(Ok(2)));
        drop(settler);
        assert_eq!(block_on(taken), Ok(1));
    }

    #[test]
    fn a_waiter_on_another_thread_is_woken() {
        let (settler, taken) = oneshot::<Result<i32>>();
        std::thread::scope(|s| {
            s.spawn(move || settler.settle(Ok(7)));
            assert_eq!(block_on(taken), Ok(7));
        });
    }

    #[test]
    fn a_dropped_settler_tells_its_waiter() {
        let (settler, taken) = oneshot::<Result<i32>>();
        drop(settler);
        assert_eq!(block_on(taken).unwrap_err().kind(), ErrorKind::ShuttingDown);
    }
}
