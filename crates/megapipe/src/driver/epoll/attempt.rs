//! Tries an operation once, without blocking.

use super::calls::{Calls, message};
use super::connect::connect;
use super::objects::{Entry, Task};
use super::step::Step;
use super::vector::{total, view};
use super::write::{send_to, write, write_vectored};
use crate::driver::datagram::fetch;
use crate::driver::{Operation, Outcome, Output, Pools, cached_file};
use crate::source::Endpoint;
use std::os::fd::{FromRawFd, OwnedFd};

/// Tries the operation of a task: the whole of it, or for a repeating one, its next outcome.
pub(super) fn attempt(calls: &Calls, pools: &Pools, entry: &mut Entry, task: &mut Task) -> Step {
    match task.operation {
        Operation::Accept { repeat, lightweight } => accept(calls, entry, repeat, lightweight),
        Operation::Connect { address, bytes } => connect(calls, entry, task, address, bytes),
        Operation::Read { address, bytes, .. } => {
            let asked = bytes as usize;
            let read = read_into(calls, entry, address, asked, 0);
            finish_read(calls, entry, read, asked)
        }
        Operation::Peek { address, bytes } => {
            match read_into(calls, entry, address, bytes as usize, libc::MSG_PEEK) {
                Ok(bytes) => Step::Ended(bytes as i32),
                Err(errno) => Step::failed(errno),
            }
        }
        Operation::ReadVectored { vector, count, .. } => {
            read_vectored(calls, entry, view(vector, count))
        }
        Operation::ReadMessage { message } => read_message(calls, entry, message),
        Operation::Receive { large, .. } => receive(calls, pools, entry, large),
        Operation::ReceiveFrom { ancillary, .. } => {
            receive_from(calls, pools, entry, task.tag, ancillary)
        }
        Operation::Write { address, bytes, .. } => write(calls, entry, address, bytes as usize, 0),
        Operation::WriteMore { address, bytes } => {
            write(calls, entry, address, bytes as usize, libc::MSG_MORE)
        }
        Operation::WriteVectored { vector, count, .. } => {
            write_vectored(calls, entry, view(vector, count))
        }
        Operation::SendTo { message } => send_to(calls, entry, message),
        // The file may have been released since the driver tried the operation.
        Operation::SendFile { .. } if task.begun => Step::Ended(-libc::EINTR),
        Operation::SendFile { file, offset, bytes } => {
            task.begun = true;
            let (result, made) = cached_file::send(entry.fd(), file, offset, bytes);
            calls.add(made);
            if result == -libc::EAGAIN { Step::Blocked } else { Step::Ended(result) }
        }
        Operation::Shutdown { how } => {
            let fd = entry.fd();
            // SAFETY: the call takes no pointers.
            let shut = calls.once(|| unsafe { libc::shutdown(fd, how) as isize });
            Step::Ended(shut.map_or_else(|errno| -errno, |_| 0))
        }
        // `submit` handles polls, names of peers and disk files itself.
        Operation::Sync { .. } | Operation::Poll { .. } | Operation::PeerName { .. } => {
            Step::Ended(-libc::EINVAL)
        }
    }
}

fn accept(calls: &Calls, entry: &Entry, repeat: bool, lightweight: bool) -> Step {
    loop {
        match calls.accept(entry.fd()) {
            Ok(fd) => {
                // SAFETY: accept4 has just returned this descriptor, which has no other owner.
                let descriptor = unsafe { OwnedFd::from_raw_fd(fd) };
                let endpoint = match lightweight {
                    true => Endpoint::Lightweight(descriptor),
                    false => Endpoint::Descriptor(descriptor),
                };
                // A repeating accept finds out with its next attempt.
                let queue_nonempty = !repeat && calls.is_readable(entry.fd());
                let output = Output::Socket { socket: endpoint.into(), queue_nonempty };
                return Step::Brought { result: 0, output, drained: false };
            }
            // The connection ended while it was queued; the next one may be intact.
            Err(libc::ECONNABORTED) => continue,
            Err(errno) => return Step::failed(errno),
        }
    }
}

/// Reads at most `bytes` bytes; `flags` are those of recv(2), for a socket.
fn read_into(
    calls: &Calls,
    entry: &Entry,
    address: *mut u8,
    bytes: usize,
    flags: libc::c_int,
) -> Result<usize, i32> {
    if entry.is_socket() {
        calls.receive(entry.fd(), address, bytes, flags | length_flag(entry))
    } else {
        calls.read(entry.fd(), address, bytes)
    }
}

/// The flag with which receives return the length of a message that is longer than the buffer. On a
/// TCP socket it would discard bytes.
fn length_flag(entry: &Entry) -> libc::c_int {
    if entry.kind.keeps_bounds() { libc::MSG_TRUNC } else { 0 }
}

fn read_vectored(calls: &Calls, entry: &mut Entry, vector: &[libc::iovec]) -> Step {
    let read = if entry.is_socket() {
        let mut header = message();
        header.msg_iov = vector.as_ptr().cast_mut();
        header.msg_iovlen = vector.len() as _;
        calls.receive_message(entry.fd(), &mut header, 0)
    } else {
        calls.readv(entry.fd(), vector)
    };
    finish_read(calls, entry, read, total(vector))
}

fn read_message(calls: &Calls, entry: &mut Entry, message: *mut libc::msghdr) -> Step {
    // SAFETY: the header stays in place until the operation's outcome.
    let (vector, count) = unsafe { ((*message).msg_iov, (*message).msg_iovlen) };
    let asked = total(view(vector, count as u32));
    let flags = length_flag(entry) | libc::MSG_CMSG_CLOEXEC;
    let read = calls.receive_message(entry.fd(), message, flags);
    finish_read(calls, entry, read, asked)
}

fn finish_read(calls: &Calls, entry: &mut Entry, read: Result<usize, i32>, asked: usize) -> Step {
    match read {
        Ok(0) => Step::Ended(0),
        Ok(bytes) => {
            let drained = entry.is_drained(calls, bytes, asked);
            Step::Brought { result: bytes as i32, output: Output::None, drained }
        }
        Err(errno) => Step::failed(errno),
    }
}

fn receive(calls: &Calls, pools: &Pools, entry: &mut Entry, large: bool) -> Step {
    let pool = pools.class(large);
    let Some(index) = pool.take() else { return Step::Starved };
    let asked = pool.buffer_bytes();
    match read_into(calls, entry, pool.address(index), asked, 0) {
        Ok(bytes) if bytes > 0 => {
            let output = Output::Lease(pool.lease(index, bytes));
            let drained = entry.is_drained(calls, bytes, asked);
            Step::Brought { result: bytes as i32, output, drained }
        }
        Ok(_) => {
            pool.give_back(index);
            Step::Ended(0)
        }
        Err(errno) => {
            pool.give_back(index);
            Step::failed(errno)
        }
    }
}

fn receive_from(calls: &Calls, pools: &Pools, entry: &Entry, tag: u64, ancillary: bool) -> Step {
    let pool = pools.class(true);
    let Outcome { result, output, .. } = fetch(tag, entry.fd(), pool, ancillary);
    calls.add(u64::from(!matches!(output, Output::Starved)));
    match (result, output) {
        (_, Output::Starved) => Step::Starved,
        (0.., output) => Step::Brought { result, output, drained: false },
        (..0, _) => Step::failed(-result),
    }
}

/// Returns the maximum number of consecutive outcomes of one operation before others are served. A
/// full buffer of a stream is as much work as several connections or datagrams.
pub(super) fn burst(operation: &Operation) -> usize {
    match operation {
        Operation::Accept { .. } | Operation::ReceiveFrom { .. } => 16,
        _ => 1,
    }
}
