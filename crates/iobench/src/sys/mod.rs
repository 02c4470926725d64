//! The kernel's side: thin, checked wrappers over raw calls. Most of the crate's `unsafe` is here.

pub(crate) mod affinity;
pub(crate) mod clock;
pub(crate) mod cpuclock;
pub(crate) mod descriptors;
pub(crate) mod epoll;
pub(crate) mod limits;
pub(crate) mod process_tree;
pub(crate) mod procstat;
pub(crate) mod signals;
pub(crate) mod socket;
pub(crate) mod tsc;
pub(crate) mod turns;

use std::io;

/// Turns the kernel's -1 into the errno it left behind.
pub(crate) fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// The calling thread's errno after a failed raw call.
pub(crate) fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}
