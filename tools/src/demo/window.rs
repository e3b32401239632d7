#![forbid(unsafe_code)]
//! Many operations on their way at once on one thread, without an async runtime.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

/// Places whose operation wants to be polled, and who polls.
struct Woken {
    places: Mutex<Vec<usize>>,
    thread: Thread,
}

/// Wakes one place. A wake-up for what stood there before is harmless: one poll too many.
struct WakePlace {
    place: usize,
    woken: Arc<Woken>,
}

impl Wake for WakePlace {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.places.lock().unwrap_or_else(PoisonError::into_inner).push(self.place);
        self.woken.thread.unpark();
    }
}

struct Place<T, F> {
    waker: Waker,
    operation: Option<(T, F)>,
}

/// A bounded set of operations, each with a tag. Belongs to the thread that made it.
pub(crate) struct Window<T, F> {
    places: Vec<Place<T, F>>,
    free: Vec<usize>,
    /// Places to poll now; taken from the end.
    due: Vec<usize>,
    woken: Arc<Woken>,
}

impl<T, F: Future + Unpin> Window<T, F> {
    pub(crate) fn new(size: usize) -> Self {
        let woken = Arc::new(Woken { places: Mutex::default(), thread: std::thread::current() });
        let place = |place| Place {
            waker: Waker::from(Arc::new(WakePlace { place, woken: woken.clone() })),
            operation: None,
        };
        Self {
            places: (0..size).map(place).collect(),
            free: (0..size).rev().collect(),
            due: Vec::new(),
            woken,
        }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.free.len() == self.places.len()
    }

    /// Adds an operation; it is submitted before this returns.
    ///
    /// # Panics
    /// When the window is full.
    pub(crate) fn push(&mut self, tag: T, operation: F) -> Option<(T, F::Output)> {
        let place = self.free.pop().expect("the caller looks whether the window is full");
        self.places[place].operation = Some((tag, operation));
        self.poll(place)
    }

    fn poll(&mut self, at: usize) -> Option<(T, F::Output)> {
        let place = &mut self.places[at];
        let (_, operation) = place.operation.as_mut()?;
        match Pin::new(operation).poll(&mut Context::from_waker(&place.waker)) {
            Poll::Pending => None,
            Poll::Ready(output) => {
                self.free.push(at);
                place.operation.take().map(|(tag, _)| (tag, output))
            }
        }
    }

    /// An operation that has ended, if there is one.
    pub(crate) fn try_next(&mut self) -> Option<(T, F::Output)> {
        loop {
            while let Some(place) = self.due.pop() {
                if let Some(ended) = self.poll(place) {
                    return Some(ended);
                }
            }
            let mut woken = self.woken.places.lock().unwrap_or_else(PoisonError::into_inner);
            if woken.is_empty() {
                return None;
            }
            std::mem::swap(&mut *woken, &mut self.due);
        }
    }

    /// The next operation to end; waits for it. `None` when there is none on its way.
    pub(crate) fn next(&mut self) -> Option<(T, F::Output)> {
        while !self.is_empty() {
            if let Some(ended) = self.try_next() {
                return Some(ended);
            }
            // A wake-up between the look and here makes this return at once.
            std::thread::park();
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Ready when its sender has sent.
    struct Awaited {
        waker: Arc<Mutex<(Option<u32>, Option<Waker>)>>,
    }

    impl Future for Awaited {
        type Output = u32;
        fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<u32> {
            let mut state = self.waker.lock().unwrap();
            match state.0.take() {
                Some(value) => Poll::Ready(value),
                None => {
                    state.1 = Some(cx.waker().clone());
                    Poll::Pending
                }
            }
        }
    }

    #[test]
    fn every_operation_ends_once_whoever_ends_it() {
        let (to_end, ends) = mpsc::channel::<(u32, Arc<Mutex<(Option<u32>, Option<Waker>)>>)>();
        let ender = std::thread::spawn(move || {
            for (value, state) in ends {
                let waker = {
                    let mut state = state.lock().unwrap();
                    state.0 = Some(value);
                    state.1.take()
                };
                waker.into_iter().for_each(Waker::wake);
            }
        });
        let mut window = Window::new(7);
        let mut ended = Vec::new();
        for value in 0..1000 {
            while window.is_full() {
                ended.extend(window.next());
            }
            let waker = Arc::new(Mutex::new((None, None)));
            ended.extend(window.push(value, Awaited { waker: waker.clone() }));
            to_end.send((value, waker)).unwrap();
        }
        while let Some(end) = window.next() {
            ended.push(end);
        }
        drop(to_end);
        ender.join().unwrap();
        assert!(window.is_empty());
        assert!(ended.iter().all(|(tag, value)| tag == value));
        ended.sort_unstable();
        assert_eq!(ended, (0..1000).map(|v| (v, v)).collect::<Vec<_>>());
    }

    #[test]
    fn what_is_ready_at_once_takes_no_place() {
        let mut window = Window::new(1);
        for tag in 0..3 {
            assert_eq!(window.push(tag, std::future::ready(tag * 2)), Some((tag, tag * 2)));
        }
        assert_eq!(window.next(), None);
    }
}
