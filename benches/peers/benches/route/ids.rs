#![forbid(unsafe_code)]
//! The ids that are looked up.

use homing::ids::{ObjectHash, ObjectKind};

use crate::support::samples::fold;

/// The seed of the hash on every side.
pub(crate) const SEED: u64 = 0x5eed;
pub(crate) const KIND: ObjectKind = ObjectKind::Actor;

/// An id of 16 to 32 bytes, in every length.
pub(crate) fn id(number: usize) -> String {
    let digits = 9 + number % 17;
    format!("player-{number:0digits$}")
}

/// The hash that every side goes by. Of its 128 bits maps use 64 to find the place, and all to
/// tell ids apart.
pub(crate) fn hash_of(id: &str) -> ObjectHash {
    ObjectHash::of(SEED, KIND, id)
}

/// Ids in an order that no cache foresees. Their bytes lie one behind the other in that order, as
/// those of a message that was just read do: reading them costs no miss.
pub(crate) struct Ids {
    text: String,
    /// Where each ends, and its number.
    ends: Vec<(u32, u32)>,
}

impl Ids {
    /// Of these numbers, shuffled.
    pub(crate) fn shuffled(mut numbers: Vec<usize>) -> Self {
        let mut state = SEED;
        for last in (1..numbers.len()).rev() {
            state = fold(state, last as u64);
            numbers.swap(last, (state % (last as u64 + 1)) as usize);
        }
        let mut ids = Self { text: String::new(), ends: Vec::new() };
        for number in numbers {
            ids.text.push_str(&id(number));
            ids.ends.push((ids.text.len() as u32, number as u32));
        }
        ids
    }

    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Each id with its number.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, usize)> {
        (0..self.len()).map(|at| (self.get(at), self.ends[at].1 as usize))
    }

    fn get(&self, at: usize) -> &str {
        let start = if at == 0 { 0 } else { self.ends[at - 1].0 };
        &self.text[start as usize..self.ends[at].0 as usize]
    }

    /// All of them again and again, from somewhere on.
    pub(crate) fn walk(&self, from: usize) -> Walk<'_> {
        Walk { ids: self, at: from % self.len() }
    }
}

/// A walk over ids that does not end.
pub(crate) struct Walk<'a> {
    ids: &'a Ids,
    at: usize,
}

impl<'a> Walk<'a> {
    pub(crate) fn next(&mut self) -> &'a str {
        let id = self.ids.get(self.at);
        self.at += 1;
        if self.at == self.ids.len() {
            self.at = 0;
        }
        id
    }

    /// The next one with its number.
    pub(crate) fn next_numbered(&mut self) -> (&'a str, usize) {
        let number = self.ids.ends[self.at].1 as usize;
        (self.next(), number)
    }
}
