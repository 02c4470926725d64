//! Writes until the kernel has taken all bytes.

use super::calls::{Calls, TRANSFER_MAX, family, message};
use super::objects::{Entry, Rest, Task};
use super::step::Step;
use super::vector::{consume, rest, total};
use crate::driver::Operation;
use crate::source::Kind;

/// Maximum number of consecutive calls for one write, and bytes after which no further call is
/// made. With a reader as fast as the writer, a write of gigabytes would otherwise take seconds.
const TURN_CALLS: usize = 16;
pub(super) const TURN_BYTES: usize = 1 << 20;

/// The calls and bytes of a write in its current turn.
#[derive(Default)]
struct Turn {
    calls: usize,
    bytes: usize,
}

impl Turn {
    /// Whether a write whose last call transferred `bytes` bytes stops, so that others are served.
    fn is_over(&mut self, bytes: usize) -> bool {
        self.calls += 1;
        self.bytes += bytes;
        self.calls >= TURN_CALLS || self.bytes >= TURN_BYTES
    }
}

pub(super) fn write(
    calls: &Calls,
    entry: &mut Entry,
    task: &mut Task,
    address: *const u8,
    bytes: usize,
) -> Step {
    let bytes = bytes.min(TRANSFER_MAX);
    let more = matches!(task.operation, Operation::WriteMore { .. });
    let flags = if more { libc::MSG_MORE } else { 0 };
    let mut turn = Turn::default();
    loop {
        let start = address.wrapping_add(task.done as usize);
        let left = bytes - task.done as usize;
        let written = if entry.is_socket() {
            calls.send(entry.fd(), start, left, flags)
        } else {
            let part = libc::iovec { iov_base: start.cast_mut().cast(), iov_len: left };
            write_pipe(calls, entry, &[part])
        };
        match written {
            Ok(written) => {
                task.done += written as u32;
                if is_over(entry, written, left) {
                    return Step::Ended(task.done as i32);
                }
                if turn.is_over(written) {
                    return Step::Paused;
                }
            }
            Err(libc::EAGAIN) => return Step::Blocked,
            Err(errno) => return Step::Ended(-errno),
        }
    }
}

pub(super) fn write_vectored(
    calls: &Calls,
    entry: &mut Entry,
    task: &mut Task,
    vector: &[libc::iovec],
) -> Step {
    let mut turn = Turn::default();
    loop {
        let parts = task.rest.as_deref().map_or(vector, |rest| &rest.0);
        let left = total(parts);
        let written = if entry.is_socket() {
            let mut header = message();
            header.msg_iov = parts.as_ptr().cast_mut();
            header.msg_iovlen = parts.len() as _;
            calls.send_message(entry.fd(), &header)
        } else {
            write_pipe(calls, entry, parts)
        };
        match written {
            Ok(written) => {
                task.done += written as u32;
                if is_over(entry, written, left) {
                    return Step::Ended(task.done as i32);
                }
                // Only a write that is taken in part needs a copy of the array to record its
                // progress.
                match &mut task.rest {
                    Some(rest) => consume(&mut rest.0, written),
                    None => {
                        let left = rest(vector, written, TRANSFER_MAX - written);
                        task.rest = Some(Box::new(Rest(left)));
                    }
                }
                if turn.is_over(written) {
                    return Step::Paused;
                }
            }
            Err(libc::EAGAIN) => return Step::Blocked,
            Err(errno) => return Step::Ended(-errno),
        }
    }
}

/// Returns whether a write of `left` bytes that wrote `written` is complete. For a datagram it
/// always is: its lost end cannot be sent after it.
fn is_over(entry: &Entry, written: usize, left: usize) -> bool {
    written >= left || written == 0 || entry.kind == Kind::Datagram
}

/// Writes to a pipe, without a `SIGPIPE` if the kernel and the file support that; otherwise a
/// process that does not ignore the signal gets it, as with write(2).
fn write_pipe(calls: &Calls, entry: &mut Entry, vector: &[libc::iovec]) -> Result<usize, i32> {
    if entry.quiet {
        match calls.writev(entry.fd(), vector, true) {
            Err(errno) if errno == libc::EOPNOTSUPP || sys::is_refusal(errno) => {
                entry.quiet = false;
            }
            result => return result,
        }
    }
    calls.writev(entry.fd(), vector, false)
}

pub(super) fn send_to(calls: &Calls, entry: &Entry, message: *const libc::msghdr) -> Step {
    match calls.send_message(entry.fd(), message) {
        Ok(sent) => Step::Ended(sent as i32),
        // The queue of a UNIX socket that this one is not connected to is full; only its peer gets
        // an event.
        Err(libc::EAGAIN) if is_to_unix(message) => Step::Later,
        Err(errno) => Step::failed(errno),
    }
}

fn is_to_unix(message: *const libc::msghdr) -> bool {
    // SAFETY: the header stays in place and readable until the operation's outcome.
    let (name, bytes) = unsafe { ((*message).msg_name, (*message).msg_namelen) };
    family(name.cast(), bytes) == Some(libc::AF_UNIX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_ends_after_many_calls_or_bytes() {
        let calls_of = |bytes| {
            let mut turn = Turn::default();
            (1..100).find(|_| turn.is_over(bytes))
        };
        assert_eq!(calls_of(1), Some(16));
        assert_eq!(calls_of(300 << 10), Some(4));
        assert_eq!(calls_of(4 << 20), Some(1));
    }
}
