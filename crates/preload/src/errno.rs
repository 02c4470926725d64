//! Reads and sets `errno` of the calling thread.

use core::ffi::c_int;

/// Returns `errno` of this thread.
pub fn errno() -> c_int {
    // SAFETY: the C library returns a valid pointer for every thread.
    unsafe { *libc::__errno_location() }
}

/// Sets `errno` of this thread.
pub fn set_errno(number: c_int) {
    // SAFETY: the C library returns a valid pointer for every thread.
    unsafe { *libc::__errno_location() = number };
}

/// Returns whether a system call that some kernels lack is not available: they, and filters that do
/// not know it, refuse it with one of these numbers. The caller falls back to an older call, which
/// reports what is wrong with arguments.
pub fn is_refusal(number: c_int) -> bool {
    matches!(number, libc::ENOSYS | libc::EPERM | libc::EACCES | libc::EINVAL)
}

/// Sets `errno` and returns -1, as a failed function does.
pub fn failed(number: c_int) -> c_int {
    set_errno(number);
    -1
}
