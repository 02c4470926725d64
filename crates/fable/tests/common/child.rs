//! Forked processes that end with the test.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// A forked process, killed if the test ends before it.
pub(crate) struct Child(i32);

impl Child {
    pub(crate) fn signal(&self, signal: i32) {
        // SAFETY: a child of ours that was not waited for.
        unsafe { libc::kill(self.0, signal) };
    }

    /// Its status, once it ends; `None` after the patience of the test.
    pub(crate) fn wait(&mut self, patience: Duration) -> Option<i32> {
        let begin = Instant::now();
        let mut status = 0;
        // SAFETY: as in `signal`; the status outlives the call.
        while unsafe { libc::waitpid(self.0, &raw mut status, libc::WNOHANG) } == 0 {
            if begin.elapsed() > patience {
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
            // SAFETY: as in `signal`.
            unsafe { libc::waitpid(self.0, std::ptr::null_mut(), 0) };
        }
    }
}

/// Writes what a panic said past the harness, which keeps a child's output to itself.
fn tell(panic: &(dyn Any + Send)) {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no text");
    let line = format!("child {}: {text}\n", std::process::id());
    // SAFETY: the kernel reads the bytes of the line.
    unsafe { libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len()) };
}

/// Runs `work` in a child, which says by its status whether it went well.
pub(crate) fn fork(work: impl FnOnce()) -> Child {
    // SAFETY: the test has one thread besides the harness's, which holds no lock a child needs.
    match unsafe { libc::fork() } {
        0 => {
            let outcome = catch_unwind(AssertUnwindSafe(work));
            if let Err(panic) = &outcome {
                tell(panic.as_ref());
            }
            // SAFETY: ends the child without running what belongs to the parent.
            unsafe { libc::_exit(i32::from(outcome.is_err())) }
        }
        child => {
            assert!(child > 0, "fork");
            Child(child)
        }
    }
}
