#![forbid(unsafe_code)]
//! The suite, on every provider.

use homing::location::LocationStore;
use homing::store::conformance;
use homing::store::memory::MemoryStore;
use std::sync::Arc;

#[test]
fn memory_conforms() {
    conformance::run(&|| Arc::new(MemoryStore::new()) as Arc<dyn LocationStore>);
}

#[cfg(feature = "lmdb")]
#[test]
fn lmdb_conforms() {
    use homing::store::lmdb::LmdbStore;
    let dirs = std::cell::RefCell::new(Vec::new());
    conformance::run(&|| {
        let dir = tempfile::tempdir().unwrap();
        let store = LmdbStore::open(dir.path()).unwrap();
        dirs.borrow_mut().push(dir);
        Arc::new(store) as Arc<dyn LocationStore>
    });
}
