//! Threads for calls that block, which must not run on a core.
//!
//! All cores of a runtime share one pool. It starts a thread for a call if none is idle and there
//! are fewer than the limit; others wait in a queue. A thread ends after [`IDLE_TIME`].

use crate::task::{Finisher, JoinError};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// How long a thread waits for the next call.
const IDLE_TIME: Duration = Duration::from_secs(10);
/// Most calls that wait for a thread.
const QUEUE_MAX: usize = 1 << 16;

type Call = Box<dyn FnOnce() + Send>;

/// See the module.
pub(crate) struct Pool {
    state: Mutex<State>,
    changed: Condvar,
    threads_max: usize,
    /// The CPUs that its threads may use. The cores that start them are bound to one.
    cpus: Vec<usize>,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Call>,
    threads: usize,
    idle: usize,
    closed: bool,
}

impl Pool {
    pub(crate) fn new(threads_max: usize, cpus: Vec<usize>) -> Arc<Pool> {
        Arc::new(Pool { state: Mutex::default(), changed: Condvar::new(), threads_max, cpus })
    }

    /// Locks the state. No foreign code runs under the lock, so it is whole even if poisoned.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `call` on a thread of the pool.
    pub(crate) fn run<T: Send + 'static>(
        self: &Arc<Pool>,
        call: impl FnOnce() -> T + Send + 'static,
        finisher: Finisher<T>,
    ) {
        let job: Call = Box::new(move || {
            if !finisher.outcome().is_aborted() {
                // What the call owns is dropped by the unwinding, so nobody sees it afterwards.
                let result = catch_unwind(AssertUnwindSafe(call));
                finisher.finish(result.map_err(JoinError::panicked));
            }
        });
        let mut state = self.lock();
        if state.closed || state.queue.len() >= QUEUE_MAX {
            drop(state);
            // The job reports its end when it is dropped.
            return drop(job);
        }
        state.queue.push_back(job);
        if state.idle >= state.queue.len() || state.threads >= self.threads_max {
            drop(state);
            return self.changed.notify_one();
        }
        state.threads += 1;
        drop(state);
        let pool = Arc::clone(self);
        let started = thread::Builder::new().name("megapipe-rt-blocking".into()).spawn(move || {
            // A failure leaves the thread on the CPU of its core, which is slower, but right.
            let _ = sys::cpus::restrict_to(&sys::cpus::set_of(&pool.cpus));
            pool.work();
        });
        if let Err(error) = started {
            self.give_up_thread(&error);
        }
    }

    /// Takes back the count of a thread that could not be started. Without any thread the queued
    /// calls would wait for ever, so they end.
    fn give_up_thread(&self, error: &std::io::Error) {
        let mut state = self.lock();
        state.threads -= 1;
        let stranded =
            if state.threads == 0 { std::mem::take(&mut state.queue) } else { VecDeque::new() };
        drop(state);
        tracing::error!("cannot start a thread for blocking calls: {error}; raise `ulimit -u`");
        drop(stranded);
    }

    /// Runs calls until none comes for [`IDLE_TIME`], or the pool is closed.
    fn work(&self) {
        let mut state = self.lock();
        loop {
            if let Some(job) = state.queue.pop_front() {
                drop(state);
                // A result that no handle takes, or a call that was aborted, is dropped here. The
                // message of a panic in its destructor is all that is left of it.
                drop(catch_unwind(AssertUnwindSafe(job)));
                state = self.lock();
                continue;
            }
            if state.closed {
                break;
            }
            state.idle += 1;
            let waited = self.changed.wait_timeout(state, IDLE_TIME);
            let (locked, end) = waited.unwrap_or_else(PoisonError::into_inner);
            state = locked;
            state.idle -= 1;
            if end.timed_out() && state.queue.is_empty() {
                break;
            }
        }
        state.threads -= 1;
    }

    /// Drops the calls that have not begun, and ends the threads after their present calls.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        let queue = std::mem::take(&mut state.queue);
        drop(state);
        self.changed.notify_all();
        drop(queue);
    }
}
