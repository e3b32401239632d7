#![forbid(unsafe_code)]
//! A network between two nodes that can be cut, or go silent: a TCP relay on loopback.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

#[derive(Default)]
struct State {
    streams: Mutex<Vec<TcpStream>>,
    /// Where connections lead; taken in and not relayed while unknown.
    target: Mutex<Option<String>>,
    is_silent: AtomicBool,
}

/// The relay. Dropping it cuts everything.
pub(crate) struct Proxy {
    address: String,
    state: Arc<State>,
}

impl Proxy {
    pub(crate) fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address").to_string();
        let state = Arc::new(State::default());
        let shared = Arc::downgrade(&state);
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let Some(state) = shared.upgrade() else { return };
                state.take_in(near);
            }
        });
        Self { address, state }
    }

    /// Where to connect instead of the target.
    pub(crate) fn endpoint(&self) -> String {
        format!("tcp://{}", self.address)
    }

    /// Leads connections to this endpoint from now on.
    pub(crate) fn lead_to(&self, endpoint: &str) {
        let address = endpoint.strip_prefix("tcp://").expect("a TCP endpoint").to_owned();
        *self.state.target.lock().unwrap_or_else(PoisonError::into_inner) = Some(address);
    }

    /// Cuts every connection that stands.
    pub(crate) fn cut(&self) {
        for stream in self.state.streams().drain(..) {
            // One that is gone is cut.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Lets bytes vanish, both ways, without closing anything; or no longer.
    pub(crate) fn silence(&self, is_silent: bool) {
        self.state.is_silent.store(is_silent, Ordering::Relaxed);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.cut();
        *self.state.target.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl State {
    fn streams(&self) -> std::sync::MutexGuard<'_, Vec<TcpStream>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_in(self: &Arc<Self>, near: TcpStream) {
        let target = self.target.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(far) = target.and_then(|target| TcpStream::connect(target).ok()) else { return };
        for (from, to) in [(&near, &far), (&far, &near)] {
            let (Ok(from), Ok(to)) = (from.try_clone(), to.try_clone()) else { return };
            let state = self.clone();
            std::thread::spawn(move || state.relay(from, to));
        }
        self.streams().extend([near, far]);
    }

    fn relay(&self, mut from: TcpStream, mut to: TcpStream) {
        let mut bytes = [0; 16 << 10];
        while let Ok(len @ 1..) = from.read(&mut bytes) {
            if !self.is_silent.load(Ordering::Relaxed) && to.write_all(&bytes[..len]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
        let _ = from.shutdown(Shutdown::Both);
    }
}
