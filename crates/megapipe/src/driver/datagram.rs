//! Receives one datagram into a buffer of the channel.

use super::{DATAGRAM_CONTROL, DatagramHeader, NAME_BYTES, Outcome, Output, datagram_payload};
use crate::pool::Pool;
use std::io;
use std::mem;
use std::rc::Rc;

/// Receives an available datagram, in the layout of io_uring's multishot receive. The outcome is
/// [`Output::Starved`] without a free buffer and `-EAGAIN` without a datagram.
pub(crate) fn fetch(tag: u64, fd: i32, pool: &Rc<Pool>, ancillary: bool) -> Outcome {
    let Some(index) = pool.take() else { return Outcome::starved(tag) };
    let buffer = pool.address(index);
    let payload = datagram_payload(ancillary);
    let room = pool.buffer_bytes().saturating_sub(payload);
    let mut vector = libc::iovec { iov_base: buffer.wrapping_add(payload).cast(), iov_len: room };
    // SAFETY: all-zero bytes are a valid `msghdr` without name, data and control.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_name = buffer.wrapping_add(mem::size_of::<DatagramHeader>()).cast();
    message.msg_namelen = NAME_BYTES as libc::socklen_t;
    message.msg_iov = &raw mut vector;
    message.msg_iovlen = 1;
    if ancillary {
        message.msg_control = buffer.wrapping_add(DATAGRAM_CONTROL).cast();
        message.msg_controllen = (payload - DATAGRAM_CONTROL) as _;
    }
    // SAFETY: name, ancillary data (with buffers of at least 1,024 bytes) and data lie within a
    // buffer of at least 256 bytes that nothing else uses.
    let received = unsafe { libc::recvmsg(fd, &mut message, libc::MSG_DONTWAIT) };
    if received < 0 {
        let errno = io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
        pool.give_back(index);
        return Outcome::plain(tag, -errno);
    }
    let header = DatagramHeader {
        name_bytes: message.msg_namelen,
        control_bytes: message.msg_controllen as u32,
        payload_bytes: received as u32,
        flags: message.msg_flags as u32,
    };
    // SAFETY: this function owns the buffer, which is larger than the header; the write does not
    // need alignment.
    unsafe { buffer.cast::<DatagramHeader>().write_unaligned(header) };
    let bytes = payload + received as usize;
    let output = Output::Lease(pool.lease(index, bytes));
    Outcome { tag, result: bytes as i32, more: false, output }
}
