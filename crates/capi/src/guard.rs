//! Protects the state of calls. Refuses a call from a signal handler that has interrupted another
//! call on the same state, and all calls after one that has panicked.

use crate::failure::Failure;
use std::cell::{Cell, UnsafeCell};
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs code that keeps its own state consistent; converts a panic to an error.
pub(crate) fn contain<T>(body: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(Err(Failure::PANIC))
}

/// The phase of a guarded state.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Idle,
    /// A call is running, in a frame below this one on the stack.
    Inside,
    /// A call has panicked.
    Broken,
}

/// A state that calls use one at a time.
pub(crate) struct Guarded<T> {
    phase: Cell<Phase>,
    state: UnsafeCell<T>,
}

impl<T> Guarded<T> {
    pub(crate) const fn new(state: T) -> Guarded<T> {
        Guarded { phase: Cell::new(Phase::Idle), state: UnsafeCell::new(state) }
    }

    /// Runs a call with the state.
    #[inline]
    pub(crate) fn enter<R>(
        &self,
        body: impl FnOnce(&mut T) -> Result<R, Failure>,
    ) -> Result<R, Failure> {
        match self.phase.replace(Phase::Inside) {
            Phase::Idle => {}
            Phase::Inside => return Err(Failure::WITHIN),
            Phase::Broken => {
                self.phase.set(Phase::Broken);
                return Err(Failure::BROKEN);
            }
        }
        // SAFETY: the phase keeps all other calls out, and the cell is not `Sync`, so the borrow is
        // exclusive.
        let state = unsafe { &mut *self.state.get() };
        match catch_unwind(AssertUnwindSafe(|| body(state))) {
            Ok(result) => {
                self.phase.set(Phase::Idle);
                result
            }
            Err(_) => {
                self.phase.set(Phase::Broken);
                Err(Failure::PANIC)
            }
        }
    }

    /// Returns whether a call is running.
    pub(crate) fn is_inside(&self) -> bool {
        self.phase.get() == Phase::Inside
    }

    /// Returns the state, even after a panic.
    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.state.get_mut()
    }

    /// Returns the state, or `None` if a call has panicked: such a state may be inconsistent, so
    /// its destructor must not run, and the state is leaked.
    pub(crate) fn into_whole(self) -> Option<T> {
        if self.phase.get() == Phase::Broken {
            std::mem::forget(self.state);
            return None;
        }
        Some(self.state.into_inner())
    }
}

/// A guarded state of one thread, which is dropped when the thread ends.
pub(crate) struct OfThread<T>(ManuallyDrop<Guarded<T>>);

impl<T> OfThread<T> {
    pub(crate) const fn new(state: T) -> OfThread<T> {
        OfThread(ManuallyDrop::new(Guarded::new(state)))
    }

    /// Runs a call with the state.
    #[inline]
    pub(crate) fn enter<R>(
        &self,
        body: impl FnOnce(&mut T) -> Result<R, Failure>,
    ) -> Result<R, Failure> {
        self.0.enter(body)
    }
}

impl<T> Drop for OfThread<T> {
    fn drop(&mut self) {
        // SAFETY: it is taken once, when the value that contains it is dropped.
        let guarded = unsafe { ManuallyDrop::take(&mut self.0) };
        // A panic must not propagate out of a thread's end; what is not dropped then is leaked.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(guarded.into_whole())));
    }
}
