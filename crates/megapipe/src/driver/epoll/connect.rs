//! Connects sockets without blocking.

use super::calls::Calls;
use super::objects::{Entry, Task};
use super::step::Step;

/// Starts to connect, or reads the result by a second connect(2). Reading `SO_ERROR` instead would
/// leave the socket in a state in which the next connect returns the result of this one.
///
/// A socket is non-blocking only during the call, because its flags belong to a file description
/// that others may share. A cancelled attempt continues in the kernel, because connect(2) cannot be
/// undone; only closing the socket ends it.
pub(super) fn connect(
    calls: &Calls,
    entry: &Entry,
    task: &mut Task,
    address: *const libc::sockaddr,
    bytes: libc::socklen_t,
) -> Step {
    match try_once(calls, entry, address, bytes) {
        Ok(_) => Step::Ended(0),
        Err(libc::EINPROGRESS | libc::EINTR) => {
            task.begun = true;
            Step::Blocked
        }
        Err(libc::EALREADY) if task.begun => Step::Blocked,
        // For protocols other than TCP the second call is a second connection.
        Err(libc::EISCONN | libc::EBADFD) if task.begun => {
            let error = calls.option(entry.fd(), libc::SOL_SOCKET, libc::SO_ERROR);
            Step::Ended(error.map_or_else(|errno| -errno, |(errno, _)| -errno))
        }
        // After EAGAIN, a full backlog of a listening UNIX socket, no event reports room.
        Err(errno) => Step::Ended(-errno),
    }
}

fn try_once(
    calls: &Calls,
    entry: &Entry,
    address: *const libc::sockaddr,
    bytes: libc::socklen_t,
) -> Result<usize, i32> {
    let fd = entry.fd();
    let flags = calls.flags(fd)?;
    let blocking = flags & libc::O_NONBLOCK == 0;
    if blocking {
        calls.set_flags(fd, flags | libc::O_NONBLOCK)?;
    }
    // SAFETY: `bytes` bytes at `address` are readable until the operation's outcome.
    let begun = calls.once(|| unsafe { libc::connect(fd, address, bytes) as isize });
    if blocking {
        let _ = calls.set_flags(fd, flags);
    }
    begun
}
