//! `errno` of the calling thread.

use core::ffi::c_int;

/// `errno` of this thread.
pub fn errno() -> c_int {
    // SAFETY: the C library gives a valid pointer for every thread.
    unsafe { *libc::__errno_location() }
}

/// Sets `errno` of this thread.
pub fn set_errno(number: c_int) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = number };
}

/// What a function gives that fails with this number.
pub fn failed(number: c_int) -> c_int {
    set_errno(number);
    -1
}
