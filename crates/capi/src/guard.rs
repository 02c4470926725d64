//! Keeps a call from meeting what it works on in the middle of another call: of one that a signal
//! handler interrupts, and of one that has panicked.

use crate::failure::Failure;
use std::cell::{Cell, UnsafeCell};
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs what keeps its own state whole, so that a panic stays inside.
pub(crate) fn contain<T>(body: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(Err(Failure::PANIC))
}

/// What a call may find its state in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Idle,
    /// A call is under way, below us on the stack.
    Inside,
    /// A call has panicked.
    Broken,
}

/// What calls work on, one at a time.
pub(crate) struct Guarded<T> {
    phase: Cell<Phase>,
    state: UnsafeCell<T>,
}

impl<T> Guarded<T> {
    pub(crate) const fn new(state: T) -> Guarded<T> {
        Guarded { phase: Cell::new(Phase::Idle), state: UnsafeCell::new(state) }
    }

    /// Runs a call.
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

    /// Whether a call is under way.
    pub(crate) fn is_inside(&self) -> bool {
        self.phase.get() == Phase::Inside
    }

    /// What calls work on, even after a panic.
    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.state.get_mut()
    }

    /// What calls worked on. Nothing if one has panicked: what it left half done is unknown, so
    /// it must not run again, and is leaked.
    pub(crate) fn into_whole(self) -> Option<T> {
        if self.phase.get() == Phase::Broken {
            std::mem::forget(self.state);
            return None;
        }
        Some(self.state.into_inner())
    }
}

/// What a thread has, which goes with it.
pub(crate) struct OfThread<T>(ManuallyDrop<Guarded<T>>);

impl<T> OfThread<T> {
    pub(crate) const fn new(state: T) -> OfThread<T> {
        OfThread(ManuallyDrop::new(Guarded::new(state)))
    }

    /// Runs a call.
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
        // SAFETY: taken once, in the drop of what it is taken from.
        let guarded = unsafe { ManuallyDrop::take(&mut self.0) };
        // A panic must not leave a thread's end; what it left undone is leaked.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(guarded.into_whole())));
    }
}
