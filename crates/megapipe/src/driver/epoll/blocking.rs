//! Runs operations on disk files, which can only block, in helper threads.
//!
//! Sockets never use this module. Only files need its locks: the kernel reports no readiness for
//! files, and io_uring uses threads of its own for the same purpose.

use super::calls::Calls;
use super::job::Job;
use super::poller::Bell;
use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Number of helper threads: enough to keep a disk busy without displacing the channels' own
/// threads.
const THREADS: usize = 4;

/// Most jobs that wait or run.
const JOBS: usize = 1024;

/// A job that a helper has completed.
pub(super) struct Finished {
    pub(super) tag: u64,
    pub(super) result: i32,
    /// The number of system calls that the job made.
    pub(super) calls: u64,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Job>,
    finished: VecDeque<Finished>,
    running: usize,
    /// The number of threads that wait for a job.
    idle: usize,
    stop: bool,
}

struct Shared {
    state: Mutex<State>,
    work: Condvar,
    quiet: Condvar,
    bell: Bell,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // No holder of the lock can panic half-way through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The helper threads, which end when this value is dropped.
pub(super) struct Helpers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Helpers {
    /// Creates a pool without threads.
    pub(super) fn new() -> io::Result<Helpers> {
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            work: Condvar::new(),
            quiet: Condvar::new(),
            bell: Bell::new()?,
        });
        Ok(Helpers { shared, threads: Vec::new() })
    }

    /// The descriptor that becomes readable when a job is complete.
    pub(super) fn fd(&self) -> RawFd {
        self.shared.bell.fd()
    }

    /// Returns whether the queue has no room for a further job.
    pub(super) fn is_full(&self) -> bool {
        let state = self.shared.lock();
        state.queue.len() + state.running + state.finished.len() >= JOBS
    }

    /// Ensures that a helper exists for a further job. Fails if there is none and none can be
    /// created.
    pub(super) fn recruit(&mut self) -> io::Result<()> {
        let short = {
            let state = self.shared.lock();
            state.queue.len() >= state.idle && self.threads.len() < THREADS
        };
        if short && let Err(error) = self.spawn() {
            if self.threads.is_empty() {
                return Err(error);
            }
            tracing::debug!(%error, "no further helper thread for files");
        }
        Ok(())
    }

    /// Hands a job to the helpers.
    pub(super) fn push(&self, job: Job) {
        self.shared.lock().queue.push_back(job);
        self.shared.work.notify_one();
    }

    fn spawn(&mut self) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        let builder = std::thread::Builder::new().name("megapipe-file".into());
        let thread = without_signals(|| builder.spawn(move || work(&shared)))?;
        self.threads.push(thread);
        Ok(())
    }

    /// Takes the next finished job.
    pub(super) fn take_finished(&self) -> Option<Finished> {
        self.shared.lock().finished.pop_front()
    }

    /// Removes and returns the jobs for which `wanted` is true and that no helper has started.
    pub(super) fn remove(&self, wanted: impl Fn(&Job) -> bool) -> Vec<Job> {
        let queue = &mut self.shared.lock().queue;
        let (removed, kept) = queue.drain(..).partition(wanted);
        *queue = kept;
        removed.into()
    }

    /// Returns the number of jobs that no helper has started.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.shared.lock().queue.len()
    }

    /// Waits until no helper is working, for `deadline` at most; returns false if one still is.
    pub(super) fn wait_until_quiet(&self, deadline: Duration) -> bool {
        let busy = |state: &mut State| state.running > 0 || !state.queue.is_empty();
        let state = self.shared.lock();
        let waited = self.shared.quiet.wait_timeout_while(state, deadline, busy);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        !busy(&mut state)
    }
}

impl Drop for Helpers {
    fn drop(&mut self) {
        let running = {
            let mut state = self.shared.lock();
            state.queue.clear();
            state.stop = true;
            state.running
        };
        self.shared.work.notify_all();
        // A helper that still runs a job may take long: then the threads are not joined.
        if running == 0 {
            for thread in self.threads.drain(..) {
                let _ = thread.join();
            }
        }
    }
}

/// The main function of a helper thread.
fn work(shared: &Shared) {
    let mut state = shared.lock();
    while !state.stop {
        let Some(job) = state.queue.pop_front() else {
            state.idle += 1;
            state = shared.work.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
            continue;
        };
        state.running += 1;
        drop(state);
        let calls = Calls::default();
        let tag = job.tag;
        // The job ends here and drops its reference to the file before its result becomes visible.
        let result = job.run(&calls);
        state = shared.lock();
        state.running -= 1;
        // One notification is enough: who takes the first result takes the later ones, too.
        let first = state.finished.is_empty();
        let calls = calls.made() + u64::from(first);
        state.finished.push_back(Finished { tag, result, calls });
        if state.running == 0 && state.queue.is_empty() {
            shared.quiet.notify_all();
        }
        if first {
            shared.bell.ring();
        }
    }
}

/// Runs `spawn` with all signals blocked, which a new thread inherits: the application's handlers
/// run in its own threads.
fn without_signals<T>(spawn: impl FnOnce() -> T) -> T {
    // SAFETY: `sigset_t` is plain data, which the calls below fill.
    let (mut all, mut old): (libc::sigset_t, libc::sigset_t) = unsafe { std::mem::zeroed() };
    // SAFETY: both sets are valid for the calls.
    unsafe {
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut old);
    }
    let result = spawn();
    // SAFETY: `old` is the mask that was just replaced.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &old, std::ptr::null_mut()) };
    result
}
