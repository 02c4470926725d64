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

/// Sets `errno` and returns -1, as a failed function does.
pub fn failed(number: c_int) -> c_int {
    set_errno(number);
    -1
}
