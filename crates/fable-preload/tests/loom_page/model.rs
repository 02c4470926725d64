//! The atomics of the page in a model.
//!
//! loom gives accesses with `SeqCst` no more order than `AcqRel`. So a fence follows each store
//! with `SeqCst`, as compilers for x86-64 do it: a later load does not overtake it.

pub(crate) use loom::sync::atomic::{Ordering, fence};

fn stored<R>(order: Ordering, result: R) -> R {
    if order == Ordering::SeqCst {
        fence(Ordering::SeqCst);
    }
    result
}

macro_rules! atomic {
    ($name:ident, $value:ty) => {
        #[derive(Default)]
        pub(crate) struct $name(loom::sync::atomic::$name);

        // The page does not use each operation on words of each size.
        #[allow(dead_code)]
        impl $name {
            pub(crate) fn load(&self, order: Ordering) -> $value {
                self.0.load(order)
            }

            pub(crate) fn store(&self, value: $value, order: Ordering) {
                stored(order, self.0.store(value, order));
            }

            pub(crate) fn swap(&self, value: $value, order: Ordering) -> $value {
                stored(order, self.0.swap(value, order))
            }

            pub(crate) fn compare_exchange(
                &self,
                from: $value,
                to: $value,
                order: Ordering,
                failed: Ordering,
            ) -> Result<$value, $value> {
                stored(order, self.0.compare_exchange(from, to, order, failed))
            }
        }
    };
}

atomic!(AtomicU32, u32);
atomic!(AtomicU64, u64);
