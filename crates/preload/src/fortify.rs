//! Checks for the fortified variants of functions (`_FORTIFY_SOURCE`, feature_test_macros(7)).

use crate::real;

/// Ends the process with the C library's message if the program asks for more bytes than a buffer
/// of `room` bytes holds.
#[inline]
pub fn check_room(wanted_bytes: usize, room: usize) {
    if wanted_bytes > room {
        overflow();
    }
}

#[cold]
fn overflow() {
    // SAFETY: the functions have no arguments; the first does not return if this C library has it.
    unsafe {
        real::chk_fail();
        libc::abort();
    }
}
