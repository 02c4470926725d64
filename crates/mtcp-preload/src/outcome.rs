//! Between results and what C expects: a number, and errno.

use core::ffi::c_int;
use preload::errno::set_errno;
use std::io;

/// What system calls and hooks pass on.
pub(crate) type Outcome<T> = io::Result<T>;

pub(crate) fn failure<T>(number: c_int) -> Outcome<T> {
    Err(io::Error::from_raw_os_error(number))
}

/// Whether the call has to wait.
pub(crate) fn would_block(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EAGAIN)
}

/// A length or a number as C has it.
pub(crate) fn long(outcome: Outcome<usize>) -> isize {
    match outcome {
        Ok(value) => value as isize,
        Err(error) => {
            set_errno(error.raw_os_error().unwrap_or(libc::EIO));
            -1
        }
    }
}

/// A descriptor, a count or nothing (0) as C has it.
pub(crate) fn number(outcome: Outcome<c_int>) -> c_int {
    long(outcome.map(|value| value as usize)) as c_int
}

/// What a function of the C library gave.
pub(crate) fn check(result: c_int) -> Outcome<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
