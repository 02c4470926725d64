//! Writes once: what the kernel does not take comes as a further operation of the engine, which so
//! knows how much was written whenever a write ends.

use super::calls::{Calls, TRANSFER_MAX, family, message};
use super::objects::Entry;
use super::step::Step;
use sys::signals::QuietPipe;

/// Writes bytes; `flags` are those of send(2), for a socket.
pub(super) fn write(
    calls: &Calls,
    entry: &mut Entry,
    address: *const u8,
    bytes: usize,
    flags: libc::c_int,
) -> Step {
    let bytes = bytes.min(TRANSFER_MAX);
    if entry.is_socket() {
        return Step::moved(calls.send(entry.fd(), address, bytes, flags));
    }
    let part = libc::iovec { iov_base: address.cast_mut().cast(), iov_len: bytes };
    Step::moved(write_pipe(calls, entry, &[part]))
}

pub(super) fn write_vectored(calls: &Calls, entry: &mut Entry, vector: &[libc::iovec]) -> Step {
    if !entry.is_socket() {
        return Step::moved(write_pipe(calls, entry, vector));
    }
    let mut header = message();
    header.msg_iov = vector.as_ptr().cast_mut();
    header.msg_iovlen = vector.len() as _;
    Step::moved(calls.send_message(entry.fd(), &header))
}

/// Writes to a pipe without a `SIGPIPE`, which is blocked meanwhile if the kernel or the file does
/// not support such a write.
fn write_pipe(calls: &Calls, entry: &mut Entry, vector: &[libc::iovec]) -> Result<usize, i32> {
    if entry.quiet {
        match calls.writev(entry.fd(), vector, true) {
            Err(errno) if errno == libc::EOPNOTSUPP || sys::is_refusal(errno) => {
                entry.quiet = false;
            }
            result => return result,
        }
    }
    let _quiet = QuietPipe::enter();
    calls.writev(entry.fd(), vector, false)
}

pub(super) fn send_to(calls: &Calls, entry: &Entry, message: *const libc::msghdr) -> Step {
    match calls.send_message(entry.fd(), message) {
        // The queue of a UNIX socket that this one is not connected to is full; only its peer gets
        // an event.
        Err(libc::EAGAIN) if is_to_unix(message) => Step::Ended(-libc::EAGAIN),
        sent => Step::moved(sent),
    }
}

fn is_to_unix(message: *const libc::msghdr) -> bool {
    // SAFETY: the header stays in place and readable until the operation's outcome.
    let (name, bytes) = unsafe { ((*message).msg_name, (*message).msg_namelen) };
    family(name.cast(), bytes) == Some(libc::AF_UNIX)
}
