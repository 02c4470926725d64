//! Forked child processes that are killed when the test ends.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A forked process, killed if the test ends before it.
pub(crate) struct Child(i32);

impl Child {
    /// Sends a signal to the child.
    pub(crate) fn signal(&self, signal: i32) {
        // SAFETY: the number is that of a child of this process that was not waited for.
        unsafe { libc::kill(self.0, signal) };
    }

    /// Waits for the child and returns its status; `None` if it has not ended after `time_limit`.
    pub(crate) fn wait(&mut self, time_limit: Duration) -> Option<i32> {
        let begin = Instant::now();
        let mut status = 0;
        // SAFETY: a child of this process that was not waited for; the status outlives the call.
        while unsafe { libc::waitpid(self.0, &raw mut status, libc::WNOHANG) } == 0 {
            if begin.elapsed() > time_limit {
                return None;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        self.0 = 0;
        Some(status)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if self.0 > 0 {
            self.signal(libc::SIGKILL);
            // SAFETY: a child of this process that was not waited for.
            unsafe { libc::waitpid(self.0, std::ptr::null_mut(), 0) };
        }
    }
}

/// Writes the panic's message to the standard error, which the harness does not capture in a child.
fn tell(panic: &(dyn Any + Send)) {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no text");
    let line = format!("child {}: {text}\n", std::process::id());
    // SAFETY: the kernel reads the bytes of the line.
    unsafe { libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len()) };
}

/// Runs `work` in a child, whose exit status shows whether it succeeded.
pub(crate) fn fork(work: impl FnOnce()) -> Child {
    // SAFETY: besides the test's thread there is only the harness's, which holds no lock that a
    // child needs.
    match unsafe { libc::fork() } {
        0 => {
            let outcome = catch_unwind(AssertUnwindSafe(work));
            if let Err(panic) = &outcome {
                tell(panic.as_ref());
            }
            // SAFETY: ends the child without running destructors that belong to the parent.
            unsafe { libc::_exit(i32::from(outcome.is_err())) }
        }
        child => {
            assert!(child > 0, "fork");
            Child(child)
        }
    }
}

/// Lets one test run at a time: a child has copies of all descriptors that its parent had open, so
/// another test would not see the end of its peer.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
