//! Locks that are held briefly and never while sleeping.
//!
//! The word holds the thread that has the lock. So a signal handler that comes upon a lock of the
//! very thread it interrupted is refused instead of waiting for ever, and a lock whose owner died
//! (they lie in memory that forked processes share) is taken over.

use core::cell::{Cell, UnsafeCell};
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU32, Ordering};

thread_local! {
    static THREAD: Cell<u32> = const { Cell::new(0) };
}

/// The number of this thread in the system.
pub(crate) fn thread_number() -> u32 {
    THREAD.with(|cell| {
        if cell.get() == 0 {
            // SAFETY: no arguments.
            cell.set(unsafe { libc::gettid() } as u32);
        }
        cell.get()
    })
}

/// A forked child's thread has another number than the thread it was copied from.
pub(crate) fn forget_thread_number() {
    THREAD.with(|cell| cell.set(0));
}

/// The word of a lock; 0 is free.
#[derive(Default)]
pub(crate) struct Lock(AtomicU32);

/// Gives the lock back.
pub(crate) struct Guard<'a>(&'a Lock);

impl Lock {
    pub(crate) const fn new() -> Self {
        Lock(AtomicU32::new(0))
    }

    /// Takes the lock; `None` if this very thread has it already.
    pub(crate) fn take(&self) -> Option<Guard<'_>> {
        let me = thread_number();
        let mut turns = 0_u32;
        loop {
            match self.0.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Some(Guard(self)),
                Err(owner) if owner == me => return None,
                Err(owner) => {
                    turns += 1;
                    if turns.is_multiple_of(1024) && is_dead(owner) && self.inherit(owner, me) {
                        return Some(Guard(self));
                    }
                    wait_a_turn(turns);
                }
            }
        }
    }

    fn inherit(&self, owner: u32, me: u32) -> bool {
        self.0.compare_exchange(owner, me, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    fn give_back(&self) {
        self.0.store(0, Ordering::Release);
    }
}

fn wait_a_turn(turns: u32) {
    if turns < 64 {
        core::hint::spin_loop();
    } else {
        // SAFETY: no arguments.
        unsafe { libc::sched_yield() };
    }
}

fn is_dead(thread: u32) -> bool {
    let _keep = crate::sys::KeepErrno::new();
    // SAFETY: signal 0 only asks whether the thread exists.
    unsafe { libc::kill(thread as i32, 0) != 0 && crate::sys::errno() == libc::ESRCH }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.0.give_back();
    }
}

/// A value behind a [`Lock`], for this process alone.
pub(crate) struct Locked<T> {
    lock: Lock,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only through the lock.
unsafe impl<T: Send> Sync for Locked<T> {}

/// The value, as long as the lock is held.
pub(crate) struct LockedGuard<'a, T> {
    _guard: Guard<'a>,
    value: &'a UnsafeCell<T>,
}

impl<T> Locked<T> {
    pub(crate) const fn new(value: T) -> Self {
        Locked { lock: Lock::new(), value: UnsafeCell::new(value) }
    }

    /// Takes the lock; `None` if this very thread has it already.
    pub(crate) fn take(&self) -> Option<LockedGuard<'_, T>> {
        self.lock.take().map(|guard| LockedGuard { _guard: guard, value: &self.value })
    }

    /// Holds the lock beyond this call, over a fork.
    pub(crate) fn hold(&self) {
        if let Some(guard) = self.lock.take() {
            core::mem::forget(guard);
        }
    }

    /// Looks at the value without the lock.
    ///
    /// # Safety
    /// This thread holds the lock by [`Locked::hold`].
    pub(crate) unsafe fn peek(&self) -> &T {
        // SAFETY: promised by the caller.
        unsafe { &*self.value.get() }
    }

    /// Ends [`Locked::hold`], in the parent and in the child.
    pub(crate) fn let_go(&self) {
        self.lock.give_back();
    }
}

impl<T> Deref for LockedGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the lock is held.
        unsafe { &*self.value.get() }
    }
}

impl<T> DerefMut for LockedGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the lock is held, and this guard is borrowed mutably.
        unsafe { &mut *self.value.get() }
    }
}
