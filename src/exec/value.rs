#![allow(unsafe_code)]
//! Values that move through queues with their type forgotten.
//!
//! # Words
//! A [`Kind`] names a type that is held and, in a static table, what can be done with it by
//! whoever does not know the type (its name, how it is encoded). A [`Value`] holds one value of
//! some kind: in itself when it has at most [`INLINE_BYTES`], else in a box.
//!
//! # What holds
//! - `data` holds a valid value of the kind that `vtable` was made for, until it is taken out or
//!   dropped, each at most once.
//! - What a kind holds is `Send`, so a `Value` is; it is not `Sync`, as what it holds may not be.
//!
//! A destructor that panics ends there: a queue is emptied by its core, not by who filled it.

use std::any::TypeId;
use std::marker::PhantomData;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Bytes a value may have to be held without a box: eight words.
const INLINE_BYTES: usize = 64;

type Data = [MaybeUninit<u64>; INLINE_BYTES / 8];

/// A type that is held, and the table that goes with it.
pub(crate) trait Kind<T: 'static>: 'static {
    /// What is held.
    type Held: Send + 'static;
    /// What can be done with it.
    const TABLE: &'static T;
}

struct VTable<T: 'static> {
    /// Of the kind, not of what it holds: two kinds may hold one type.
    kind: fn() -> TypeId,
    drop: unsafe fn(&mut Data),
    table: &'static T,
}

/// Makes the vtable of a kind, and knows where its values are.
struct Erased<T, K>(PhantomData<(T, K)>);

impl<T: 'static, K: Kind<T>> Erased<T, K> {
    const VTABLE: VTable<T> = VTable { kind: TypeId::of::<K>, drop: Self::drop, table: K::TABLE };
    const IS_INLINE: bool =
        size_of::<K::Held>() <= INLINE_BYTES && align_of::<K::Held>() <= align_of::<Data>();

    /// # Safety
    /// `data` was made by `Value::new::<K>` and holds its value.
    unsafe fn at(data: &Data) -> *const K::Held {
        if Self::IS_INLINE {
            data.as_ptr().cast()
        } else {
            // SAFETY: `new` put the pointer of a box there.
            unsafe { data.as_ptr().cast::<*const K::Held>().read() }
        }
    }

    /// # Safety
    /// As for `at`; the value is gone afterwards.
    unsafe fn take(data: &Data) -> K::Held {
        if Self::IS_INLINE {
            // SAFETY: the value is there, and the caller never looks at it again.
            unsafe { data.as_ptr().cast::<K::Held>().read() }
        } else {
            // SAFETY: the pointer is that of the box made by `new`, which nobody frees but here.
            *unsafe { Box::from_raw(data.as_ptr().cast::<*mut K::Held>().read()) }
        }
    }

    /// # Safety
    /// As for `take`.
    unsafe fn drop(data: &mut Data) {
        if Self::IS_INLINE {
            // SAFETY: the value is there, and the caller never looks at it again.
            unsafe { data.as_mut_ptr().cast::<K::Held>().drop_in_place() }
        } else {
            // SAFETY: as in `take`.
            drop(unsafe { Box::from_raw(data.as_ptr().cast::<*mut K::Held>().read()) });
        }
    }
}

/// One value of a kind that is not known here, with the kind's table `T`.
pub(crate) struct Value<T: 'static> {
    data: Data,
    vtable: &'static VTable<T>,
    /// Neither `Send` nor `Sync` by itself.
    of: PhantomData<*mut ()>,
}

// SAFETY: what a kind holds is `Send`, and a table is only read, by shared reference.
unsafe impl<T: Sync> Send for Value<T> {}

impl<T: 'static> Value<T> {
    /// Holds a value. Allocates when it has more than [`INLINE_BYTES`].
    pub(crate) fn new<K: Kind<T>>(held: K::Held) -> Self {
        let mut data: Data = [MaybeUninit::uninit(); INLINE_BYTES / 8];
        if Erased::<T, K>::IS_INLINE {
            // SAFETY: `IS_INLINE` says that it fits, in size and alignment.
            unsafe { data.as_mut_ptr().cast::<K::Held>().write(held) };
        } else {
            let boxed = Box::into_raw(Box::new(held));
            // SAFETY: a pointer fits into the first word.
            unsafe { data.as_mut_ptr().cast::<*mut K::Held>().write(boxed) };
        }
        Self { data, vtable: &Erased::<T, K>::VTABLE, of: PhantomData }
    }

    /// The table of its kind.
    pub(crate) fn table(&self) -> &'static T {
        self.vtable.table
    }

    fn is<K: Kind<T>>(&self) -> bool {
        (self.vtable.kind)() == TypeId::of::<K>()
    }

    /// The value, when it is of this kind.
    pub(crate) fn get<K: Kind<T>>(&self) -> Option<&K::Held> {
        if !self.is::<K>() {
            return None;
        }
        // SAFETY: it is of the kind `K`, and is there for as long as `self`.
        Some(unsafe { &*Erased::<T, K>::at(&self.data) })
    }

    /// Takes the value out when it is of this kind.
    pub(crate) fn take<K: Kind<T>>(self) -> Result<K::Held, Self> {
        if !self.is::<K>() {
            return Err(self);
        }
        let this = ManuallyDrop::new(self);
        // SAFETY: it is of the kind `K`, and as `self` is not dropped it is not used again.
        Ok(unsafe { Erased::<T, K>::take(&this.data) })
    }
}

impl<T: 'static> Drop for Value<T> {
    fn drop(&mut self) {
        let (drop, data) = (self.vtable.drop, &mut self.data);
        // SAFETY: the value is there: `take` forgets `self`. It is not used after this, also when
        // its destructor panics.
        let _ = catch_unwind(AssertUnwindSafe(|| unsafe { drop(data) }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    struct Table(&'static str);

    struct Plain<V>(PhantomData<V>);
    impl<V: Send + 'static> Kind<Table> for Plain<V> {
        type Held = V;
        const TABLE: &'static Table = &Table("plain");
    }

    struct Other<V>(PhantomData<V>);
    impl<V: Send + 'static> Kind<Table> for Other<V> {
        type Held = V;
        const TABLE: &'static Table = &Table("other");
    }

    fn round_trip<V: Send + Clone + PartialEq + std::fmt::Debug + 'static>(value: V) {
        let held = Value::<Table>::new::<Plain<V>>(value.clone());
        assert_eq!(held.table().0, "plain");
        assert!(held.get::<Other<V>>().is_none(), "a kind is more than its type");
        assert_eq!(held.get::<Plain<V>>(), Some(&value));
        let Err(held) = held.take::<Other<V>>() else { panic!("of another kind") };
        // Moved about, through a queue and a thread.
        let mut queue = std::collections::VecDeque::from([held]);
        queue.reserve(100);
        let held = queue.pop_front().unwrap();
        #[allow(clippy::disallowed_methods)] // a thread of the test
        let held = std::thread::scope(|s| s.spawn(move || held).join().unwrap());
        assert_eq!(held.take::<Plain<V>>().ok(), Some(value));
    }

    #[test]
    fn a_value_comes_out_as_it_went_in() {
        #[repr(align(128))]
        #[derive(Clone, Debug, PartialEq)]
        struct Strict(u8);
        round_trip(());
        round_trip(7u8);
        round_trip([1.5f64; 8]);
        round_trip([9u64; 9]);
        round_trip([3u8; 10_000]);
        round_trip(u128::MAX);
        round_trip(Strict(4));
        round_trip(String::from("text"));
        round_trip(vec![Some(Arc::new(1)), None]);
    }

    #[test]
    fn a_value_is_dropped_exactly_once() {
        fn count<V: Send + 'static>(make: impl Fn(Arc<()>) -> V) {
            let alive = Arc::new(());
            drop(Value::<Table>::new::<Plain<V>>(make(alive.clone())));
            assert_eq!(Arc::strong_count(&alive), 1);
            let held = Value::<Table>::new::<Plain<V>>(make(alive.clone()));
            assert_eq!(Arc::strong_count(&alive), 2);
            let taken = held.take::<Plain<V>>();
            assert_eq!(Arc::strong_count(&alive), 2, "taken, not dropped");
            drop(taken);
            assert_eq!(Arc::strong_count(&alive), 1);
        }
        count(|alive| alive);
        count(|alive| (alive, [0u8; 500]));
    }

    #[test]
    fn small_values_take_no_memory_and_large_ones_one_piece() {
        let made = |n: fn()| allocation_counter::measure(n).count_total;
        assert_eq!(made(|| drop(Value::<Table>::new::<Plain<_>>([1.0f64; 8]))), 0);
        assert_eq!(made(|| drop(Value::<Table>::new::<Plain<_>>([1.0f64; 9]))), 1);
    }

    #[test]
    fn a_destructor_that_panics_ends_there() {
        struct Bomb;
        impl Drop for Bomb {
            fn drop(&mut self) {
                panic!("planted");
            }
        }
        drop(Value::<Table>::new::<Plain<_>>(Bomb));
    }
}
