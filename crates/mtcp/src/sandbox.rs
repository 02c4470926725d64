//! Restricts threads that belong to the stack, in a process that belongs to a program: the threads
//! of paired engines, and the one that answers `mtcp stat`. The program's threads stay as they are.
//!
//! The threads share the program's memory. Whoever executes code in one of them can therefore make
//! another thread do what these are refused; the filter makes that harder, and no more.

use std::ffi::c_long;
use std::io;
use sys::capabilities::{self, CapabilitySet};
use sys::seccomp::{Filter, Scope, SeccompError, calls};

/// What libraries for capabilities call in each thread of a program (libpsx).
const CAPABILITIES: &[c_long] = &[libc::SYS_capget, libc::SYS_capset];

/// Drops the capabilities of the calling thread. It keeps what it needs to ask the kernel for
/// neighbours, and to follow the program when that changes its user.
///
/// # Errors
/// The errors of [`capabilities::retain`].
pub(crate) fn drop_capabilities() -> io::Result<()> {
    let kept = CapabilitySet::NET_ADMIN | capabilities::CHANGE_USER;
    Ok(capabilities::retain(kept)?)
}

/// Restricts the system calls of the calling thread to those of an engine whose device is open.
/// Files can be read, because allocators and backtraces do.
///
/// # Errors
/// [`SeccompError`].
pub(crate) fn enter() -> Result<(), SeccompError> {
    filter()?.enter(Scope::Thread)
}

fn filter() -> Result<Filter, SeccompError> {
    let permitted = [
        calls::RUNTIME,
        calls::READ_FILES,
        calls::USE_SOCKETS,
        calls::WAIT,
        calls::CHANGE_USER,
        CAPABILITIES,
    ];
    Filter::new(&permitted, calls::READ_ONLY)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_filter_answers_attacks_as_the_threat_model_says() {
        let filter = filter().expect("a filter");
        testkit::assert_attacks("`mtcp run`", || filter.enter(Scope::Thread).is_ok());
    }
}
