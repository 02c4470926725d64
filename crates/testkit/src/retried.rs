//! Repeats calls that signals interrupt.

use std::io::{self, ErrorKind};

/// Repeats a call that fails with EINTR, because the kernel does not restart calls with a time-out
/// (signal(7)). Signals arrive although no handler is installed: posix_spawn(3) blocks them in its
/// thread until that has the CPU again, and if the command has ended by then, the kernel no longer
/// ignores its SIGCHLD, but wakes another thread for it.
pub fn retried<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}
