//! Defines the hooks for descriptors: closing, duplicating, fcntl(2), fdopen(3); and for the end of
//! the process.

use super::types::*;
use crate::real;

/// The library's implementation of these hooks. `None`: the hook calls the real function.
pub trait Descriptors {
    /// Called before close(2).
    fn close(fd: c_int) -> Option<c_int>;

    /// Called before close_range(2), and before closefrom(3) with the last of all numbers.
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> Option<c_int>;

    /// Called before dup(2).
    fn duplicate(fd: c_int) -> Option<c_int>;

    /// Called before dup2(2) and dup3(2), which may take the number `to` for another descriptor.
    fn replace(fd: c_int, to: c_int) -> Option<c_int>;

    /// Called with a descriptor and its duplicate, or with a negative number if the call failed.
    /// Returns the result of the call.
    fn duplicated(fd: c_int, new: c_int) -> c_int;

    /// fcntl(2), with any command. If the real function makes a duplicate, `duplicated` is called.
    ///
    /// # Safety
    /// As fcntl(2).
    unsafe fn fcntl(fd: c_int, command: c_int, argument: usize) -> Option<c_int>;

    /// fdopen(3).
    ///
    /// # Safety
    /// As fdopen(3).
    unsafe fn fdopen(fd: c_int, mode: *const c_char) -> Option<*mut c_void>;

    /// Called before the process ends at once (_exit(2)).
    fn exiting();
}

family! { $ descriptors L: Descriptors;
    fn close(fd: c_int) -> c_int {
        L::close(fd).unwrap_or_else(|| real::close(fd))
    }

    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
        L::close_range(first, last, flags)
            .unwrap_or_else(|| real::close_range(first, last, flags))
    }

    fn closefrom(first: c_int) -> () {
        if L::close_range(first.max(0) as c_uint, c_uint::MAX, 0).is_none() {
            real::closefrom(first);
        }
    }

    fn dup(fd: c_int) -> c_int {
        L::duplicate(fd).unwrap_or_else(|| L::duplicated(fd, real::dup(fd)))
    }

    fn dup2(fd: c_int, to: c_int) -> c_int {
        if let Some(failure) = L::replace(fd, to) {
            return failure;
        }
        let new = real::dup2(fd, to);
        if fd == to { new } else { L::duplicated(fd, new) }
    }

    fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
        L::replace(fd, to).unwrap_or_else(|| L::duplicated(fd, real::dup3(fd, to, flags)))
    }

    // Of the variadic arguments there is at most one, as large as a register.
    fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
        if let Some(done) = L::fcntl(fd, command, argument) {
            return done;
        }
        let result = real::fcntl(fd, command, argument);
        match command {
            libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => L::duplicated(fd, result),
            _ => result,
        }
    }

    fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int {
        fcntl::<L>(fd, command, argument)
    }

    fn fdopen(fd: c_int, mode: *const c_char) -> *mut c_void {
        L::fdopen(fd, mode).unwrap_or_else(|| real::fdopen(fd, mode))
    }

    fn _exit(status: c_int) -> ! {
        L::exiting();
        loop {
            real::exit_now(status);
        }
    }

    fn _Exit(status: c_int) -> ! {
        _exit::<L>(status)
    }
}
