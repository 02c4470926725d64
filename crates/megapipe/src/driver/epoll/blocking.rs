//! Helper threads for what can only block: disks.
//!
//! Nothing here is on the path of a socket. Files are why the locks exist: the kernel has no
//! readiness for them, and io_uring does the same with threads of its own.

use super::calls::Calls;
use super::job::Job;
use super::poller::Bell;
use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// As many as a disk keeps busy without crowding out the channels' own threads.
const THREADS: usize = 4;

/// Jobs that may wait or be worked on.
const JOBS: usize = 1024;

/// A job that a helper has done.
pub(super) struct Finished {
    pub(super) tag: u64,
    pub(super) result: i32,
    /// System calls it took.
    pub(super) calls: u64,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Job>,
    finished: VecDeque<Finished>,
    running: usize,
    /// Threads that wait for a job.
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

/// The threads, which end when this is dropped.
pub(super) struct Helpers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Helpers {
    pub(super) fn new() -> io::Result<Helpers> {
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            work: Condvar::new(),
            quiet: Condvar::new(),
            bell: Bell::new()?,
        });
        Ok(Helpers { shared, threads: Vec::new() })
    }

    /// What becomes readable when a job is done.
    pub(super) fn fd(&self) -> RawFd {
        self.shared.bell.fd()
    }

    pub(super) fn is_full(&self) -> bool {
        let state = self.shared.lock();
        state.queue.len() + state.running + state.finished.len() >= JOBS
    }

    /// Makes sure that there is a helper for a further job; fails if there are none and none can be
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

    /// Removes the jobs of which `wanted` is true and that no helper works on yet, and gives them.
    pub(super) fn remove(&self, wanted: impl Fn(&Job) -> bool) -> Vec<Job> {
        let queue = &mut self.shared.lock().queue;
        let (removed, kept) = queue.drain(..).partition(wanted);
        *queue = kept;
        removed.into()
    }

    /// Jobs that no helper works on yet.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.shared.lock().queue.len()
    }

    /// Waits until no helper works on anything, `deadline` at most; false if one still does.
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
        // One that hangs in a call ends after it; waiting for it could take for ever.
        if running == 0 {
            for thread in self.threads.drain(..) {
                let _ = thread.join();
            }
        }
    }
}

/// The life of a helper.
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
        // The job ends here, and with it the hold on its file, before anyone learns of it.
        let result = job.run(&calls);
        state = shared.lock();
        state.running -= 1;
        // The taker of the first result takes the others with it.
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
