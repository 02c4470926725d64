//! Objects that descriptors name, found without a lock and never freed while somebody looks.
//!
//! Their memory is kept for ever and used again, so a thread that read an address from the table
//! just before another closed the descriptor finds an object there in any case: it only has to
//! raise a count that is not zero, and to look into the table again.

use core::ops::Deref;
use core::sync::atomic::{AtomicUsize, Ordering};

/// An object with a count of its users.
pub(crate) trait Counted: Sized + 'static {
    /// How many descriptors and threads use it.
    fn users(&self) -> &AtomicUsize;

    /// The last user has gone: gives back what it owns and keeps its memory for the next.
    fn retire(&'static self);
}

/// One use of an object.
pub(crate) struct Held<T: Counted>(&'static T);

impl<T: Counted> Held<T> {
    /// The first use of a fresh object, which nobody else knows.
    pub(crate) fn first(object: &'static T) -> Self {
        object.users().store(1, Ordering::Release);
        Held(object)
    }

    /// Another use, if there still is one.
    pub(crate) fn try_new(object: &'static T) -> Option<Self> {
        let mut users = object.users().load(Ordering::Relaxed);
        while users != 0 {
            let raised = users + 1;
            let order = (Ordering::Acquire, Ordering::Relaxed);
            match object.users().compare_exchange_weak(users, raised, order.0, order.1) {
                Ok(_) => return Some(Held(object)),
                Err(now) => users = now,
            }
        }
        None
    }

    /// The address, and the use with it.
    pub(crate) fn into_address(self) -> usize {
        let address = self.0 as *const T as usize;
        core::mem::forget(self);
        address
    }

    /// Takes the use back that [`Held::into_address`] gave away.
    ///
    /// # Safety
    /// The address comes from there, and only once.
    pub(crate) unsafe fn from_address(address: usize) -> Self {
        // SAFETY: promised by the caller; objects live for ever.
        Held(unsafe { &*(address as *const T) })
    }

    /// The object itself, for comparisons.
    pub(crate) fn object(&self) -> &'static T {
        self.0
    }
}

impl<T: Counted> Clone for Held<T> {
    fn clone(&self) -> Self {
        self.0.users().fetch_add(1, Ordering::Relaxed);
        Held(self.0)
    }
}

impl<T: Counted> Deref for Held<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0
    }
}

impl<T: Counted> Drop for Held<T> {
    fn drop(&mut self) {
        if self.0.users().fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.retire();
        }
    }
}
