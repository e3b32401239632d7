#![forbid(unsafe_code)]
//! Faults planted for the simulator's own tests that take more than a line to plant.

use super::Core;
use crate::env::Env;
use crate::node::operation::{Body as OpBody, Mail, Operation, Waiter};
use crate::object::{Content, Metadata};
use crate::protocol::peer::LinkId;
use crate::time::Nanos;

impl<E: Env<Mail = Mail>> Core<E> {
    /// See [`crate::env::Planted::ResubmitAfterLinkLoss`].
    pub(super) fn resubmit_planted(&mut self, env: &mut E, lost: LinkId) {
        for (link, key, payload) in std::mem::take(&mut self.planted_resubmit) {
            if link != lost {
                self.planted_resubmit.push((link, key, payload));
                continue;
            }
            let metadata = Metadata::default();
            let operation = Operation {
                key,
                body: OpBody::Message {
                    content: Content::Bytes(payload),
                    metadata,
                    is_request: false,
                },
                waiter: Waiter::Nobody,
                timeout: self.shared.settings.send_timeout,
                deadline: Nanos::MAX,
                ticket: 0,
                source: None,
            };
            self.accept(env, operation);
        }
    }
}
