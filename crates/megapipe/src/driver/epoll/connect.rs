//! Connecting without waiting.

use super::attempt::Step;
use super::calls::Calls;
use super::objects::{Entry, Task};
use super::write::family;

/// Begins to connect, or asks how it went.
///
/// A socket is non-blocking only during the call: its flags belong to a file description that
/// others may share. A cancelled attempt goes on in the kernel, as connect(2) offers no way back;
/// only closing the socket ends it.
pub(super) fn connect(
    calls: &Calls,
    entry: &Entry,
    task: &mut Task,
    address: *const libc::sockaddr,
    bytes: libc::socklen_t,
) -> Step {
    if task.begun {
        let error = calls.option(entry.fd(), libc::SOL_SOCKET, libc::SO_ERROR);
        let errno = error.map_or_else(|errno| errno, |(errno, _)| errno);
        if errno != 0 && family(address, bytes).is_some_and(is_inet) {
            // The failure has to be fetched by a second connect, too: else a later one would
            // meet it again, as ECONNABORTED.
            let _ = try_once(calls, entry, address, bytes);
        }
        return Step::Ended(-errno);
    }
    match try_once(calls, entry, address, bytes) {
        Ok(_) => Step::Ended(0),
        Err(libc::EINPROGRESS | libc::EINTR) => {
            task.begun = true;
            Step::Blocked
        }
        // The backlog of a listening UNIX socket is full; no event tells when it has room.
        Err(libc::EAGAIN) if family(address, bytes) == Some(libc::AF_UNIX) => Step::Later,
        Err(errno) => Step::Ended(-errno),
    }
}

fn is_inet(family: i32) -> bool {
    family == libc::AF_INET || family == libc::AF_INET6
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
