//! Creates and enters network namespaces without a name. Each exists as long as a thread is in it
//! or a descriptor of it is open. See network_namespaces(7).

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

/// The path of the calling thread's network namespace, if /proc is mounted.
pub const OWN_PATH: &str = "/proc/thread-self/ns/net";

/// Moves the calling thread, and threads that it starts later, into a new network namespace, which
/// has only the loopback device, down.
///
/// # Errors
/// `EPERM` without CAP_SYS_ADMIN.
pub fn leave() -> io::Result<()> {
    // SAFETY: the call does not unshare the table of descriptors.
    Ok(unsafe { unshare_unsafe(UnshareFlags::NEWNET) }?)
}

/// Moves the calling thread into new user and network namespaces, for which it needs no privilege
/// but has to be the only thread of its process.
///
/// # Errors
/// `EINVAL` if there are other threads, `EPERM` or `ENOSPC` if the system does not permit it.
pub fn leave_with_user() -> io::Result<()> {
    // SAFETY: the call does not unshare the table of descriptors.
    Ok(unsafe { unshare_unsafe(UnshareFlags::NEWUSER | UnshareFlags::NEWNET) }?)
}

/// A descriptor of the calling thread's network namespace.
///
/// # Errors
/// The errors of open(2): /proc is not mounted, or there are too many open files.
pub fn current() -> io::Result<OwnedFd> {
    Ok(File::open(OWN_PATH)?.into())
}

/// Moves the calling thread into a network namespace.
///
/// # Errors
/// `EPERM` without CAP_SYS_ADMIN, `EINVAL` if the descriptor is not a namespace.
pub fn enter(namespace: impl AsFd) -> io::Result<()> {
    Ok(move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_namespace_is_not_entered() {
        let error = enter(File::open("/dev/null").unwrap()).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
    }

    #[test]
    fn the_own_namespace_can_be_opened() {
        assert!(current().is_ok());
    }
}
