#![forbid(unsafe_code)]
//! How the latest attempts ended, for who asks late.

use std::collections::{BTreeMap, VecDeque};

use super::AttemptEnd;
use crate::limits::CREATION_MEMORY;

/// A bounded memory; the oldest attempt is forgotten first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Memory {
    ends: BTreeMap<u128, AttemptEnd>,
    order: VecDeque<u128>,
}

impl Memory {
    pub(super) fn get(&self, attempt: u128) -> Option<&AttemptEnd> {
        self.ends.get(&attempt)
    }

    pub(super) fn keep(&mut self, attempt: u128, end: AttemptEnd) {
        if self.ends.insert(attempt, end).is_none() {
            self.order.push_back(attempt);
        }
        if self.order.len() > CREATION_MEMORY
            && let Some(oldest) = self.order.pop_front()
        {
            self.ends.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    #[test]
    fn the_oldest_is_forgotten_first() {
        let mut memory = Memory::default();
        let end = AttemptEnd::Rejected(Error::rejected("no"));
        for attempt in 1..=CREATION_MEMORY as u128 + 2 {
            memory.keep(attempt, end.clone());
            memory.keep(attempt, end.clone());
        }
        assert_eq!((memory.ends.len(), memory.order.len()), (CREATION_MEMORY, CREATION_MEMORY));
        assert_eq!((memory.get(2), memory.get(3)), (None, Some(&end)));
    }
}
