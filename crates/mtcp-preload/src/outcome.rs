//! Converts results to C's return values and errno, and back.

use core::ffi::c_int;
use preload::errno::set_errno;
use std::io;

/// The result of system calls and hooks.
pub(crate) type Outcome<T> = io::Result<T>;

pub(crate) fn failure<T>(number: c_int) -> Outcome<T> {
    Err(io::Error::from_raw_os_error(number))
}

/// Returns whether the call has to wait.
pub(crate) fn would_block(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EAGAIN)
}

/// Converts a length or count to C's return value; sets errno on failure.
pub(crate) fn long(outcome: Outcome<usize>) -> isize {
    match outcome {
        Ok(value) => value as isize,
        Err(error) => {
            set_errno(error.raw_os_error().unwrap_or(libc::EIO));
            -1
        }
    }
}

/// Converts a descriptor, count or 0 to C's return value; sets errno on failure.
pub(crate) fn number(outcome: Outcome<c_int>) -> c_int {
    long(outcome.map(|value| value as usize)) as c_int
}

/// Converts the return value of a C function to a result.
pub(crate) fn check(result: c_int) -> Outcome<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
