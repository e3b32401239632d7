#![forbid(unsafe_code)]
//! Who asked for the creations of a core. Creations of other nodes spend no credit, so what is kept of
//! them has a bound of its own.

use slab::Slab;

use crate::limits;
use crate::node::operation::CreateWaiter;
use crate::object::Payload;

/// Who asked for a creation here.
struct Caller {
    waiter: CreateWaiter,
    request: Payload,
}

/// The callers of a core's creations.
#[derive(Default)]
pub(super) struct Callers {
    callers: Slab<Caller>,
    /// Callers of other nodes among them, and the bytes of their requests.
    remote: usize,
    remote_bytes: u64,
}

impl Callers {
    pub(super) fn insert(&mut self, waiter: CreateWaiter, request: Payload) -> u64 {
        if matches!(waiter, CreateWaiter::Remote { .. }) {
            self.remote += 1;
            self.remote_bytes += request.part().len() as u64;
        }
        self.callers.insert(Caller { waiter, request }) as u64
    }

    pub(super) fn take(&mut self, caller: u64) -> Option<CreateWaiter> {
        let Caller { waiter, request } = self.callers.try_remove(caller as usize)?;
        if matches!(waiter, CreateWaiter::Remote { .. }) {
            self.remote -= 1;
            self.remote_bytes -= request.part().len() as u64;
        }
        Some(waiter)
    }

    pub(super) fn request(&self, caller: u64) -> Option<&Payload> {
        self.callers.get(caller as usize).map(|caller| &caller.request)
    }

    /// Whether other nodes have as much under way as they may.
    pub(super) fn is_full_of_remote(&self) -> bool {
        self.remote >= limits::MAX_REMOTE_CONTROL
            || self.remote_bytes >= limits::REMOTE_CONTROL_BYTES
    }

    #[cfg(feature = "sim")]
    pub(super) fn len(&self) -> usize {
        self.callers.len()
    }
}
