//! Implements the calls that read and write, and that create pipes.

use super::types::mctx_t;
use super::{
    ThreadContext, descriptor_of, on_context, on_context_or, on_socket, registry, sockid_of,
};
use crate::failure::{Failure, status, value};
use crate::requests::{check_memory, vectors};
use libc::{c_int, c_void, iovec, ssize_t};
use stack::Flags;
use std::io::{IoSlice, IoSliceMut};
use std::slice;

/// The maximum number of bytes that one call moves, as in the kernel (read(2), NOTES).
const BYTES_MAX: usize = 0x7fff_f000;

/// Returns the caller's memory for reading into.
///
/// # Safety
///
/// `buf` must be null or point to that many writable bytes, which nothing else uses.
unsafe fn room<'a>(buf: *mut c_void, len: usize) -> Result<&'a mut [u8], Failure> {
    check_memory(buf, len)?;
    if len == 0 {
        return Ok(&mut []);
    }
    // SAFETY: the caller guarantees writable memory of that size; its content does not matter.
    Ok(unsafe { slice::from_raw_parts_mut(buf.cast(), len.min(BYTES_MAX)) })
}

/// Returns the caller's memory for writing from.
///
/// # Safety
///
/// `buf` must be null or point to that many bytes, which nothing changes.
unsafe fn data<'a>(buf: *const c_void, len: usize) -> Result<&'a [u8], Failure> {
    check_memory(buf, len)?;
    if len == 0 {
        return Ok(&[]);
    }
    // SAFETY: the caller guarantees that the bytes are readable.
    Ok(unsafe { slice::from_raw_parts(buf.cast(), len.min(BYTES_MAX)) })
}

fn count(done: Result<usize, Failure>) -> ssize_t {
    value(done.map(|bytes| bytes as ssize_t), -1)
}

/// Reads the available bytes, at most len, as read(2) does (paper, Table 1); also from a pipe. A
/// blocking socket waits for the first byte, for its SO_RCVTIMEO at most.
///
/// Returns the number of bytes, 0 at the end of the stream (and for a len of 0), or -1 and errno.
///
/// Errors:
///   EBADF       it is the writing end of a pipe
///   EAGAIN      no byte is available, and the socket does not block, or SO_RCVTIMEO is over
///   ENOTCONN    it is not connected
///   ECONNRESET, ETIMEDOUT, EHOSTUNREACH  the connection has failed; reported once
///   EINVAL      it is an epoll instance, or len is above SSIZE_MAX
///
/// # Safety
///
/// buf must point to that many writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mtcp_read(
    mctx: mctx_t,
    sockid: c_int,
    buf: *mut c_void,
    len: usize,
) -> ssize_t {
    count(on_socket(mctx, sockid, |context, socket| {
        // SAFETY: the caller guarantees that the memory is valid.
        let room = unsafe { room(buf, len) }?;
        if room.is_empty() {
            return Ok(context.is_nonblocking(socket).map(|_| 0)?);
        }
        Ok(context.read(socket, room)?)
    }))
}

/// Reads like mtcp_read(), with flags as in recv(2). MSG_PEEK leaves the data in the socket,
/// MSG_DONTWAIT does not block, MSG_WAITALL waits until all of len has arrived or the stream ends,
/// MSG_OOB takes the urgent byte (tcp(7)).
///
/// Returns as mtcp_read().
///
/// Errors:
///   EOPNOTSUPP  the flag is another one
///   EINVAL      MSG_OOB: there is no urgent byte, or it was taken
///   EAGAIN, ENOTCONN, ...  as mtcp_read()
///
/// # Safety
///
/// As mtcp_read().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mtcp_recv(
    mctx: mctx_t,
    sockid: c_int,
    buf: *mut c_void,
    len: usize,
    flags: c_int,
) -> ssize_t {
    count(on_socket(mctx, sockid, |context, socket| {
        // SAFETY: the caller guarantees that the memory is valid.
        let room = unsafe { room(buf, len) }?;
        Ok(context.recv(socket, room, Flags(flags))?)
    }))
}

/// Reads into several pieces of memory, filling one after the other, as readv(2) does. num_iov: 0
/// to 1024.
///
/// Returns as mtcp_read().
///
/// Errors:
///   EINVAL  num_iov is out of range, or the lengths are above SSIZE_MAX together
///   EAGAIN, ENOTCONN, ...  as mtcp_read()
///
/// # Safety
///
/// As mtcp_read(), of each piece.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mtcp_readv(
    mctx: mctx_t,
    sockid: c_int,
    iov: *const iovec,
    num_iov: c_int,
) -> ssize_t {
    count(on_socket(mctx, sockid, |context, socket| {
        // SAFETY: the caller guarantees that the array is valid.
        let pieces = unsafe { vectors(iov, num_iov) }?;
        let pieces = pieces.iter().map(|piece| {
            // SAFETY: the caller guarantees that each piece is valid.
            Ok(IoSliceMut::new(unsafe { room(piece.iov_base, piece.iov_len) }?))
        });
        let mut rooms = pieces.collect::<Result<Vec<_>, Failure>>()?;
        Ok(context.readv(socket, &mut rooms)?)
    }))
}

/// Writes, as write(2) does (paper, Table 1); also to a pipe. A blocking socket takes all bytes,
/// within its SO_SNDTIMEO; a non-blocking one takes as many as it has room for. No SIGPIPE is
/// raised.
///
/// Every thread of the process may write to the writing end of a pipe; this wakes the context that
/// owns the pipe. Up to 4096 bytes are written completely or not at all.
///
/// Returns the number of bytes taken, or -1 and errno.
///
/// Errors:
///   EBADF     it is the reading end of a pipe
///   EAGAIN    there is no room, and the socket does not block, or SO_SNDTIMEO is over
///   EPIPE     it is not connected, this side has ended its direction, or the connection has failed
///             and that was reported; of a pipe, the reading end is closed
///   ECONNRESET, ETIMEDOUT, EHOSTUNREACH  the connection has failed; reported once
///   EINVAL    it is an epoll instance, or len is above SSIZE_MAX
///
/// # Safety
///
/// buf must point to that many bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mtcp_write(
    mctx: mctx_t,
    sockid: c_int,
    buf: *const c_void,
    len: usize,
) -> ssize_t {
    // SAFETY: the caller guarantees that the memory is valid.
    let arguments = || Ok::<_, Failure>((descriptor_of(sockid)?, unsafe { data(buf, len) }?));
    let own = |held: &mut ThreadContext| {
        let (socket, data) = arguments()?;
        Ok(held.context.write(socket, data)?)
    };
    count(on_context_or(mctx, own, |number| {
        let (pipe, data) = arguments()?;
        Ok(registry::writer(number, pipe)?.write(data)?)
    }))
}

/// Writes several pieces of memory, in order, as writev(2) does. num_iov: 0 to 1024.
///
/// Returns as mtcp_write().
///
/// Errors:
///   EINVAL  num_iov is out of range, or the lengths are above SSIZE_MAX together
///   EAGAIN, EPIPE, ...  as mtcp_write()
///
/// # Safety
///
/// As mtcp_write(), of each piece.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mtcp_writev(
    mctx: mctx_t,
    sockid: c_int,
    iov: *const iovec,
    num_iov: c_int,
) -> ssize_t {
    count(on_socket(mctx, sockid, |context, socket| {
        // SAFETY: the caller guarantees that the array is valid.
        let pieces = unsafe { vectors(iov, num_iov) }?;
        let pieces = pieces.iter().map(|piece| {
            // SAFETY: the caller guarantees that each piece is valid.
            Ok(IoSlice::new(unsafe { data(piece.iov_base, piece.iov_len) }?))
        });
        let parts = pieces.collect::<Result<Vec<_>, Failure>>()?;
        Ok(context.writev(socket, &parts)?)
    }))
}

/// Creates a pipe within the process, as pipe(2) does: pipeid[0] is the end to read from, pipeid[1]
/// the end to write to. Both belong to the context, never block, and may be watched by an epoll
/// instance. See mtcp_write() for its use by other threads.
///
/// Errors:
///   EMFILE  socket.max_descriptors are open
///
/// # Safety
///
/// pipeid must point to two numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mtcp_pipe(mctx: mctx_t, pipeid: *mut c_int) -> c_int {
    status(on_context(mctx, |held| {
        if pipeid.is_null() {
            return Err(Failure::NULL);
        }
        let (reader, writer) = held.context.pipe()?;
        registry::add_writer(held.number, writer, held.context.pipe_writer(writer)?);
        held.writers.push(writer);
        // SAFETY: the caller guarantees that the array is valid.
        unsafe { pipeid.cast::<[c_int; 2]>().write([sockid_of(reader), sockid_of(writer)]) };
        Ok(())
    }))
}
