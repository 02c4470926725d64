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
    Filter::new(&permitted, &[calls::READ_ONLY, calls::NO_NEW_CODE].concat())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use testkit::{CallOutcome, try_call};

    #[test]
    fn forbidden_calls_fail() {
        let filter = filter().expect("a filter");
        let outcome =
            |number, arguments| try_call(|| filter.enter(Scope::Thread).is_ok(), number, arguments);
        let null = c"/dev/null".as_ptr() as c_long;
        let directory = c_long::from(libc::AT_FDCWD);
        let open = |flags| outcome(libc::SYS_openat, [directory, null, c_long::from(flags), 0]);
        assert_eq!(open(libc::O_RDONLY), CallOutcome::Succeeded);
        assert_eq!(open(libc::O_RDWR), CallOutcome::Failed(libc::EPERM));
        let unknown = CallOutcome::Failed(libc::ENOSYS);
        assert_eq!(outcome(libc::SYS_socket, [libc::AF_INET.into(), 1, 0, 0]), unknown);
        assert_eq!(outcome(libc::SYS_connect, [0; 4]), unknown);
        assert_eq!(outcome(libc::SYS_clone, [0; 4]), unknown);
        assert_eq!(outcome(libc::SYS_kill, [1, 0, 0, 0]), unknown);
        assert_eq!(outcome(libc::SYS_bpf, [0; 4]), unknown);
        let user = rustix::process::getuid().as_raw();
        assert_eq!(outcome(libc::SYS_setuid, [user.into(), 0, 0, 0]), CallOutcome::Succeeded);
        for fatal in [libc::SYS_execve, libc::SYS_ptrace, libc::SYS_setns] {
            assert_eq!(outcome(fatal, [null, 0, 0, 0]), CallOutcome::Killed(libc::SIGSYS));
        }
    }
}
