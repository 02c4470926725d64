//! What locks are made of: atomics, a cell, and how a waiting thread spends its time. The tests of
//! all interleavings replace these by loom's.

#[cfg(not(all(test, loom)))]
pub(super) use native::*;

#[cfg(all(test, loom))]
pub(super) use super::loom_tests::primitives::*;

#[cfg(not(all(test, loom)))]
mod native {
    use core::ffi::c_int;
    pub(in crate::lock) use core::sync::atomic::{AtomicU64, Ordering};

    use crate::errno::{errno, set_errno};
    use crate::real;

    /// Attempts that spin, and attempts that spin or yield; later ones sleep.
    const SPINS: u32 = 64;
    pub(in crate::lock) const YIELDS: u32 = 1024;
    /// How long an attempt sleeps, in milliseconds.
    const NAP_MS: c_int = 1;
    /// After so many sleeping attempts the owner is looked at again.
    pub(in crate::lock) const NAPS_PER_LOOK: u32 = 16;

    /// Gives access through closures, as loom's cell does.
    #[derive(Debug)]
    pub(in crate::lock) struct UnsafeCell<T>(core::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        pub(in crate::lock) const fn new(value: T) -> UnsafeCell<T> {
            UnsafeCell(core::cell::UnsafeCell::new(value))
        }

        #[inline]
        pub(in crate::lock) fn with<R>(&self, borrow: impl FnOnce(*const T) -> R) -> R {
            borrow(self.0.get())
        }

        #[inline]
        pub(in crate::lock) fn with_mut<R>(&self, borrow: impl FnOnce(*mut T) -> R) -> R {
            borrow(self.0.get())
        }
    }

    pub(in crate::lock) fn wait_a_turn(attempts: u32) {
        if attempts < SPINS {
            core::hint::spin_loop();
        } else if attempts < YIELDS {
            // SAFETY: no arguments.
            unsafe { libc::sched_yield() };
        } else {
            let before = errno();
            // SAFETY: no entries are announced.
            unsafe { real::poll(core::ptr::null_mut(), 0, NAP_MS) };
            set_errno(before);
        }
    }
}
