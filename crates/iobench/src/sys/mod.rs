//! Wrappers over system calls. Most of the crate's `unsafe` is here.

pub(crate) mod affinity;
pub(crate) mod clock;
pub(crate) mod cpu_ticks;
pub(crate) mod descriptors;
pub(crate) mod epoll;
pub(crate) mod interrupts;
pub(crate) mod limits;
pub(crate) mod process_tree;
pub(crate) mod procstat;
pub(crate) mod signals;
pub(crate) mod socket;
pub(crate) mod turns;

/// CPU time as the scheduler accounts it.
pub(crate) mod cpuclock {
    pub(crate) use ::sys::clock::{process_cpu_ns as process_ns, thread_cpu_ns as thread_ns};
}

use std::io;
use std::os::fd::{BorrowedFd, RawFd};

/// Converts the return value -1 into the errno.
pub(crate) fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Returns the calling thread's errno after a failed system call.
pub(crate) fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// Borrows a descriptor for the duration of a call, for code that stores descriptor numbers as C
/// does. The caller keeps it open: a stale number gives EBADF, or the file that has the number by
/// then.
pub(crate) fn borrow<'fd>(descriptor: RawFd) -> BorrowedFd<'fd> {
    // SAFETY: no memory of this process depends on which file a number stands for: what is mapped
    // stays mapped, and every caller uses the descriptor for a single call.
    unsafe { BorrowedFd::borrow_raw(descriptor) }
}

/// Returns the CPU time of an ended process from its rusage.
pub(crate) fn cpu_ns(usage: &libc::rusage) -> u64 {
    let ns = |time: libc::timeval| time.tv_sec as u64 * 1_000_000_000 + time.tv_usec as u64 * 1_000;
    ns(usage.ru_utime) + ns(usage.ru_stime)
}
