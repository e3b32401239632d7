#![forbid(unsafe_code)]
//! The baselines. Each is keyed by the 128-bit hash of an id, as the subject is, and takes its
//! place in the map from that hash: ids are hashed once and never compared, on every side. One
//! more shows what a map of ids with the library's default hasher costs.

use std::hash::{BuildHasher, Hasher};
use std::time::Duration;

use homing::ids::ObjectHash;
use homing::time::Nanos;

use crate::ids::{Ids, hash_of};
use crate::side::{Entry, Map, Reader, Seen, Side, Threads, Writer};

/// Gives the hash that a key is already.
#[derive(Clone, Copy, Default)]
pub(crate) struct PassOn(u64);

impl BuildHasher for PassOn {
    type Hasher = Self;

    #[inline]
    fn build_hasher(&self) -> Self {
        Self(0)
    }
}

impl Hasher for PassOn {
    #[inline]
    fn write_u128(&mut self, hash: u128) {
        self.0 = hash as u64;
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("only hashes of 128 bits are hashed");
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

#[allow(clippy::disallowed_types)] // its hasher is the one above
pub(crate) type Plain = std::collections::HashMap<ObjectHash, Entry, PassOn>;

/// A map that threads may read and write at once.
pub(crate) trait Concurrent: Sync {
    const NAME: &'static str;

    fn make(capacity: usize) -> Self;
    fn get(&self, id: &str, now: Nanos) -> Option<Seen>;
    fn put(&self, id: &str, entry: Entry);
}

impl<C: Concurrent> Reader for &C {
    #[inline]
    fn look_up(&mut self, id: &str, now: Nanos) -> Option<Seen> {
        self.get(id, now)
    }
}

impl<C: Concurrent> Writer for &C {
    fn renew(&mut self, id: &str, number: usize, version: u64) {
        self.put(id, Entry::of(number, version));
    }
}

impl<C: Concurrent> Side for C {
    type Reader<'a>
        = &'a C
    where
        C: 'a;
    type Writer<'a>
        = &'a C
    where
        C: 'a;

    fn open(&mut self) -> Threads<&C, &C> {
        let shared = &*self;
        Threads { reader: shared, second: shared, writer: shared }
    }
}

impl<C: Concurrent> Map for C {
    const NAME: &'static str = C::NAME;

    fn fill(ids: &Ids) -> Self {
        let map = C::make(ids.len());
        for (id, number) in ids.iter() {
            map.put(id, Entry::of(number, number as u64 + 1));
        }
        map
    }
}

/// The floor: a map that nobody writes. Its writer writes another one of the same size.
pub(crate) struct Floor {
    map: Plain,
    spare: Plain,
}

impl Map for Floor {
    const NAME: &'static str = "HashMap that is only read";

    fn fill(ids: &Ids) -> Self {
        let entry = |(id, number)| (hash_of(id), Entry::of(number, number as u64 + 1));
        Self { map: ids.iter().map(entry).collect(), spare: ids.iter().map(entry).collect() }
    }
}

impl Side for Floor {
    type Reader<'a> = &'a Plain;
    type Writer<'a> = &'a mut Plain;

    fn open(&mut self) -> Threads<&Plain, &mut Plain> {
        Threads { reader: &self.map, second: &self.map, writer: &mut self.spare }
    }
}

impl Reader for &Plain {
    #[inline]
    fn look_up(&mut self, id: &str, now: Nanos) -> Option<Seen> {
        self.get(&hash_of(id))?.usable(now)
    }
}

impl Writer for &mut Plain {
    fn renew(&mut self, id: &str, number: usize, version: u64) {
        self.insert(hash_of(id), Entry::of(number, version));
    }
}

/// The lock around a plain map.
pub(crate) type Locked = parking_lot::RwLock<Plain>;

impl Concurrent for Locked {
    const NAME: &'static str = "parking_lot RwLock<HashMap>";

    fn make(capacity: usize) -> Self {
        Self::new(Plain::with_capacity_and_hasher(capacity, PassOn::default()))
    }

    #[inline]
    fn get(&self, id: &str, now: Nanos) -> Option<Seen> {
        self.read().get(&hash_of(id))?.usable(now)
    }

    fn put(&self, id: &str, entry: Entry) {
        self.write().insert(hash_of(id), entry);
    }
}

pub(crate) type Dashmap = dashmap::DashMap<ObjectHash, Entry, PassOn>;

impl Concurrent for Dashmap {
    const NAME: &'static str = "dashmap";

    fn make(capacity: usize) -> Self {
        Self::with_capacity_and_hasher(capacity, PassOn::default())
    }

    #[inline]
    fn get(&self, id: &str, now: Nanos) -> Option<Seen> {
        self.get(&hash_of(id))?.usable(now)
    }

    fn put(&self, id: &str, entry: Entry) {
        self.insert(hash_of(id), entry);
    }
}

/// As a user would begin: the ids themselves are the keys, the hasher is the default.
#[derive(Default)]
pub(crate) struct DashmapAsUsual(dashmap::DashMap<Box<str>, Entry>);

impl Concurrent for DashmapAsUsual {
    const NAME: &'static str = "dashmap of ids with its default hasher";

    fn make(capacity: usize) -> Self {
        Self(dashmap::DashMap::with_capacity(capacity))
    }

    #[inline]
    fn get(&self, id: &str, now: Nanos) -> Option<Seen> {
        self.0.get(id)?.usable(now)
    }

    fn put(&self, id: &str, entry: Entry) {
        self.0.insert(id.into(), entry);
    }
}

pub(crate) type Papaya = papaya::HashMap<ObjectHash, Entry, PassOn>;

impl Concurrent for Papaya {
    const NAME: &'static str = "papaya";

    fn make(capacity: usize) -> Self {
        Self::with_capacity_and_hasher(capacity, PassOn::default())
    }

    #[inline]
    fn get(&self, id: &str, now: Nanos) -> Option<Seen> {
        self.pin().get(&hash_of(id))?.usable(now)
    }

    fn put(&self, id: &str, entry: Entry) {
        self.pin().insert(hash_of(id), entry);
    }
}

pub(crate) type Scc = scc::HashMap<ObjectHash, Entry, PassOn>;

impl Concurrent for Scc {
    const NAME: &'static str = "scc HashMap";

    fn make(capacity: usize) -> Self {
        Self::with_capacity_and_hasher(capacity, PassOn::default())
    }

    #[inline]
    fn get(&self, id: &str, now: Nanos) -> Option<Seen> {
        self.read_sync(&hash_of(id), |_, entry| entry.usable(now))?
    }

    fn put(&self, id: &str, entry: Entry) {
        self.upsert_sync(hash_of(id), entry);
    }
}

/// Its readers take no lock; a write leaves the old entry behind and puts a new one in.
pub(crate) type SccIndex = scc::HashIndex<ObjectHash, Entry, PassOn>;

impl Concurrent for SccIndex {
    const NAME: &'static str = "scc HashIndex";

    fn make(capacity: usize) -> Self {
        Self::with_capacity_and_hasher(capacity, PassOn::default())
    }

    #[inline]
    fn get(&self, id: &str, now: Nanos) -> Option<Seen> {
        self.peek_with(&hash_of(id), |_, entry| entry.usable(now))?
    }

    fn put(&self, id: &str, entry: Entry) {
        match self.entry_sync(hash_of(id)) {
            scc::hash_index::Entry::Occupied(mut old) => old.update(entry),
            scc::hash_index::Entry::Vacant(none) => drop(none.insert_entry(entry)),
        }
    }
}

/// With a bound, as the subject has one, and a time to live, which it looks at by its own clock.
pub(crate) type Moka = moka::sync::Cache<ObjectHash, Entry, PassOn>;

impl Concurrent for Moka {
    const NAME: &'static str = "moka with a time to live";

    fn make(capacity: usize) -> Self {
        moka::sync::Cache::builder()
            .max_capacity(2 * capacity as u64)
            .initial_capacity(capacity)
            .time_to_live(Duration::from_secs(3_600))
            .build_with_hasher(PassOn::default())
    }

    #[inline]
    fn get(&self, id: &str, now: Nanos) -> Option<Seen> {
        self.get(&hash_of(id))?.usable(now)
    }

    fn put(&self, id: &str, entry: Entry) {
        self.insert(hash_of(id), entry);
    }
}
