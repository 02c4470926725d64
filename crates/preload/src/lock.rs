//! Locks that are held briefly and never while sleeping.
//!
//! A lock word holds its [`Owner`]: the owning thread and when it was first seen. So a signal
//! handler that interrupted the owner gets an error instead of a deadlock, and a lock whose owner
//! died is taken over, also if the owner is a zombie or its number belongs to another thread by
//! now. Locks lie in memory that forked processes share: a process may be killed while it holds
//! one.
//!
//! Whoever finds a lock taken spins first, then yields the CPU, then sleeps between its attempts,
//! because the owner may have been stopped. [`Lock::take_within`] bounds that time.

#[cfg(not(all(test, loom)))]
mod owner;
mod primitives;

use core::ops::{Deref, DerefMut};

#[cfg(all(test, loom))]
use loom_tests::owner;
pub use owner::{Owner, forget_thread};
use primitives::{AtomicU64, NAPS_PER_LOOK, Ordering, UnsafeCell, YIELDS, wait_a_turn};

/// The word of a lock; 0 is free.
#[derive(Debug, Default)]
pub struct Lock(AtomicU64);

/// Releases the lock when dropped.
#[derive(Debug)]
pub struct Guard<'a>(&'a Lock);

/// Why a lock was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotTaken {
    /// This thread holds it: a signal handler interrupted its owner.
    Interrupted,
    /// Another thread held it for all the time.
    Busy,
}

impl Lock {
    /// Makes a lock that is free.
    #[cfg(not(all(test, loom)))]
    pub const fn new() -> Self {
        Lock(AtomicU64::new(0))
    }

    /// Takes the lock; `None` if this thread already holds it.
    pub fn take(&self) -> Option<Guard<'_>> {
        self.attempt(None).ok()
    }

    /// Takes the lock if it becomes free within about `naps` milliseconds.
    ///
    /// # Errors
    /// [`NotTaken`].
    pub fn take_within(&self, naps: u32) -> Result<Guard<'_>, NotTaken> {
        self.attempt(Some(naps))
    }

    #[inline]
    fn attempt(&self, naps: Option<u32>) -> Result<Guard<'_>, NotTaken> {
        let me = Owner::this_thread();
        match self.0.compare_exchange(0, me.word(), Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => Ok(Guard(self)),
            Err(owner) if owner == me.word() => Err(NotTaken::Interrupted),
            Err(_) => self.contend(me, naps),
        }
    }

    #[cold]
    fn contend(&self, me: Owner, naps: Option<u32>) -> Result<Guard<'_>, NotTaken> {
        let attempts_max = naps.map(|naps| YIELDS.saturating_add(naps));
        let mut attempts = 0_u32;
        while attempts_max.is_none_or(|most| attempts < most) {
            wait_a_turn(attempts);
            let mut expected = 0;
            if attempts >= YIELDS && (attempts - YIELDS).is_multiple_of(NAPS_PER_LOOK) {
                let owner = self.0.load(Ordering::Relaxed);
                if owner != 0 && Owner::from_word(owner).is_dead() {
                    expected = owner;
                }
            }
            if self
                .0
                .compare_exchange(expected, me.word(), Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
            {
                return Ok(Guard(self));
            }
            // Without a bound this goes on for ever; the counter need not.
            attempts = attempts.checked_add(1).unwrap_or(YIELDS);
        }
        Err(NotTaken::Busy)
    }

    fn give_back(&self) {
        self.0.store(0, Ordering::Release);
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.0.give_back();
    }
}

/// A value behind a [`Lock`], for this process alone.
#[derive(Debug)]
pub struct Locked<T> {
    lock: Lock,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only through the lock.
unsafe impl<T: Send> Sync for Locked<T> {}

/// Gives access to the value while the lock is held.
#[derive(Debug)]
pub struct LockedGuard<'a, T> {
    _guard: Guard<'a>,
    value: &'a UnsafeCell<T>,
}

impl<T> Locked<T> {
    /// Makes a value whose lock is free.
    #[cfg(not(all(test, loom)))]
    pub const fn new(value: T) -> Self {
        Locked { lock: Lock::new(), value: UnsafeCell::new(value) }
    }

    /// Takes the lock; `None` if this thread already holds it.
    pub fn take(&self) -> Option<LockedGuard<'_, T>> {
        self.lock.take().map(|guard| LockedGuard { _guard: guard, value: &self.value })
    }

    /// Takes the lock and keeps it beyond this call, during a fork.
    pub fn hold(&self) {
        if let Some(guard) = self.lock.take() {
            core::mem::forget(guard);
        }
    }

    /// Returns the value without taking the lock.
    ///
    /// # Safety
    /// This thread holds the lock by [`Locked::hold`].
    pub unsafe fn peek(&self) -> &T {
        // SAFETY: promised by the caller.
        self.value.with(|value| unsafe { &*value })
    }

    /// Ends [`Locked::hold`], in the parent and in the child.
    pub fn let_go(&self) {
        self.lock.give_back();
    }
}

impl<T> Deref for LockedGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the lock is held.
        self.value.with(|value| unsafe { &*value })
    }
}

impl<T> DerefMut for LockedGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the lock is held, and this guard is borrowed mutably.
        self.value.with_mut(|value| unsafe { &mut *value })
    }
}

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;
