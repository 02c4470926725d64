//! Reference-counted objects behind descriptors, found without a lock and never freed while a
//! thread may read them.
//!
//! Their memory is never returned and is reused for objects of the same type. A thread that read an
//! address from the table just before another thread closed the descriptor therefore still finds an
//! object there: it only has to raise a count that is not zero, and to check the table again.

use core::ops::Deref;
use core::sync::atomic::{AtomicUsize, Ordering};

/// An object with a count of its users.
pub(crate) trait Counted: Sized + 'static {
    /// Marks the words of the table that are addresses of this type. Each type has its own tag.
    const TAG: usize;

    /// Returns the counter of the descriptors and threads that use it.
    fn users(&self) -> &AtomicUsize;

    /// Called when the last user is gone: releases the resources of the object and keeps its memory
    /// for the next object.
    fn retire(&'static self);

    /// Called when a further descriptor refers to it.
    fn added(&self) {}

    /// Called when a descriptor no longer refers to it.
    fn removed(&self) {}
}

/// A counted reference to an object.
pub(crate) struct CountedRef<T: Counted>(&'static T);

impl<T: Counted> CountedRef<T> {
    /// Makes the first reference to a new object, which no other thread knows.
    pub(crate) fn first(object: &'static T) -> Self {
        object.users().store(1, Ordering::Release);
        CountedRef(object)
    }

    /// Makes another reference, if the object still has one.
    pub(crate) fn try_new(object: &'static T) -> Option<Self> {
        let mut users = object.users().load(Ordering::Relaxed);
        while users != 0 {
            let raised = users + 1;
            let order = (Ordering::Acquire, Ordering::Relaxed);
            match object.users().compare_exchange_weak(users, raised, order.0, order.1) {
                Ok(_) => return Some(CountedRef(object)),
                Err(now) => users = now,
            }
        }
        None
    }

    /// Converts the reference to an address; the count stays.
    pub(crate) fn into_address(self) -> usize {
        let address = self.0 as *const T as usize;
        core::mem::forget(self);
        address
    }

    /// Takes back a reference that [`CountedRef::into_address`] has converted.
    ///
    /// # Safety
    /// The address must come from that function, and be used only once.
    pub(crate) unsafe fn from_address(address: usize) -> Self {
        // SAFETY: the caller guarantees that the address is that of an object; objects live for
        // ever.
        CountedRef(unsafe { &*(address as *const T) })
    }

    /// Returns the object itself, for comparisons.
    pub(crate) fn object(&self) -> &'static T {
        self.0
    }
}

impl<T: Counted> Clone for CountedRef<T> {
    fn clone(&self) -> Self {
        self.0.users().fetch_add(1, Ordering::Relaxed);
        CountedRef(self.0)
    }
}

impl<T: Counted> Deref for CountedRef<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0
    }
}

impl<T: Counted> Drop for CountedRef<T> {
    fn drop(&mut self) {
        if self.0.users().fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.retire();
        }
    }
}
