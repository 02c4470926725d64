//! Refers to a runtime from any thread.

use crate::core::{Remote, current, with_current};
use crate::task::{Finisher, JoinHandle, Outcome};
use std::future::Future;
use std::panic::Location;
use std::sync::Arc;

/// Refers to the cores of a runtime, from any thread.
#[derive(Clone, Debug)]
pub struct Handle {
    pub(crate) cores: Arc<[Arc<Remote>]>,
}

impl Handle {
    /// Returns the handle of the runtime whose task calls.
    ///
    /// # Panics
    /// Outside of a runtime.
    #[track_caller]
    pub fn current() -> Handle {
        Handle { cores: Arc::clone(&current("Handle::current").shared().cores) }
    }

    /// Returns the handle of the runtime whose task calls; `None` outside of a runtime.
    pub fn try_current() -> Option<Handle> {
        with_current(|core| Handle { cores: Arc::clone(&core.shared().cores) })
    }

    /// Returns the number of cores.
    pub fn cores(&self) -> usize {
        self.cores.len()
    }

    /// Calls the closure on a core and runs the future that it returns there, as a task. The
    /// closure is `Send`; the future need not be. If the runtime has ended, the result is
    /// [`JoinError::Cancelled`](crate::JoinError::Cancelled).
    ///
    /// # Panics
    /// If there is no such core.
    #[track_caller]
    pub fn spawn_on<M, F>(&self, core: usize, make: M) -> JoinHandle<F::Output>
    where
        M: FnOnce() -> F + Send + 'static,
        F: Future + 'static,
        F::Output: Send + 'static,
    {
        let count = self.cores();
        assert!(core < count, "there is no core {core}: this runtime has {count}, from 0 on");
        let outcome = Outcome::new();
        let finisher = Finisher::new(&outcome);
        let location = Location::caller();
        // The closure runs in the task, so that its panic is the task's.
        self.cores[core]
            .run(move |core| core.spawn_at(location, async move { make().await }, finisher));
        JoinHandle::new(outcome)
    }

    /// Requests the graceful shutdown of all cores; returns at once.
    pub fn request_shutdown(&self) {
        self.cores.iter().for_each(|core| {
            core.run(|core| core.stop.request());
        });
    }
}
