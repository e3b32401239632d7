#![forbid(unsafe_code)]
//! A network between two nodes that can be cut, or go silent: a TCP relay on loopback.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// When bytes toward the target stop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Cut {
    #[default]
    Never,
    /// After so many more bytes; then everything is cut.
    Bytes(usize),
}

#[derive(Default)]
struct State {
    streams: Mutex<Vec<TcpStream>>,
    /// Where connections lead; taken in and not relayed while unknown.
    target: Mutex<Option<String>>,
    is_silent: AtomicBool,
    cut: Mutex<Cut>,
    /// What the target said on each connection, in order.
    said: Mutex<Vec<Vec<u8>>>,
    /// Bytes from the target wait on every connection but the first.
    is_holding: Mutex<bool>,
    let_go: Condvar,
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

    /// Lets so many more bytes through toward the target, and then cuts every connection.
    pub(crate) fn cut_toward_target_after(&self, cut: Cut) {
        *self.state.cut.lock().unwrap_or_else(PoisonError::into_inner) = cut;
    }

    /// Cuts every connection that stands.
    pub(crate) fn cut(&self) {
        self.state.cut_all();
    }

    /// Keeps back what the target says on every connection but the first; or lets it go.
    pub(crate) fn hold_later_connections(&self, is_holding: bool) {
        *self.state.is_holding.lock().unwrap_or_else(PoisonError::into_inner) = is_holding;
        self.state.let_go.notify_all();
    }

    /// Every whole frame the target has said, connection by connection.
    pub(crate) fn frames_said(&self) -> Vec<Vec<u8>> {
        let said = self.state.said.lock().unwrap_or_else(PoisonError::into_inner);
        let mut frames = Vec::new();
        for mut bytes in said.iter().map(Vec::as_slice) {
            while let Some((len, _)) = bytes.split_first_chunk::<4>() {
                let len = u32::from_be_bytes(*len) as usize;
                let Some((frame, rest)) = bytes.split_at_checked(len) else { break };
                frames.push(frame.to_vec());
                bytes = rest;
            }
        }
        frames
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
        let is_later = !self.streams().is_empty();
        let number = {
            let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
            said.push(Vec::new());
            said.len() - 1
        };
        for (from, to, is_toward_target) in [(&near, &far, true), (&far, &near, false)] {
            let (Ok(from), Ok(to)) = (from.try_clone(), to.try_clone()) else { return };
            let state = self.clone();
            let may_wait = is_later && !is_toward_target;
            let record = (!is_toward_target).then_some(number);
            std::thread::spawn(move || state.relay(from, to, record, may_wait));
        }
        self.streams().extend([near, far]);
    }

    fn cut_all(&self) {
        for stream in self.streams().drain(..) {
            // One that is gone is cut.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// How many of these bytes pass toward the target.
    fn passing(&self, len: usize) -> usize {
        match &mut *self.cut.lock().unwrap_or_else(PoisonError::into_inner) {
            Cut::Never => len,
            Cut::Bytes(left) => {
                let passing = len.min(*left);
                *left -= passing;
                passing
            }
        }
    }

    /// Waits while the connections but the first are held.
    fn wait_to_be_let_go(&self) {
        let holding = self.is_holding.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.let_go.wait_while(holding, |is_holding| *is_holding);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// `record`: the connection whose target speaks; `None` toward the target.
    fn relay(&self, mut from: TcpStream, mut to: TcpStream, record: Option<usize>, may_wait: bool) {
        let mut bytes = [0; 16 << 10];
        while let Ok(len @ 1..) = from.read(&mut bytes) {
            if let Some(number) = record {
                let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
                said[number].extend_from_slice(&bytes[..len]);
            }
            if self.is_silent.load(Ordering::Relaxed) {
                continue;
            }
            if may_wait {
                self.wait_to_be_let_go();
            }
            let passing = if record.is_none() { self.passing(len) } else { len };
            if to.write_all(&bytes[..passing]).is_err() {
                break;
            }
            if passing < len {
                self.cut_all();
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
        let _ = from.shutdown(Shutdown::Both);
    }
}
