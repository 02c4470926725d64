//! Calls that submit requests. The top of the header describes what all of them have in common.

use crate::address;
use crate::channel_table::on_handle;
use crate::failure::{Failure, status, value};
use crate::state::State;
use crate::types::{MP_IN, MP_LWSOCKET, MP_OUT, MP_REPEAT, MP_WITH_PEER, mp_handle};
use channel::{Accept, Direction, Handle, Repeat, Transfer};
use libc::{c_int, c_void, iovec, sockaddr, socklen_t};
use std::net::Shutdown;

/// Accepts connections on a listener: one MP_ACCEPT for each (report, Table 3.1).
///
/// count: how many connections; 0 for all until mp_cancel(). Counts of several calls add up. flags:
/// 0, or a combination of these:
///   MP_LWSOCKET   lightweight sockets, which belong to the channel (report, section 3.4.2). They
///                 have numbers from MP_LWSOCKET_FIRST on and behave the same on every driver. With
///                 io_uring (Linux 6.8) they have no descriptor; else each has one, which belongs
///                 to the channel. The value is 1, as the report's is_lwsocket.
///   MP_WITH_PEER  the address of each peer: the event's data is a struct sockaddr of size bytes,
///                 until the next dispatch. NULL if the driver does not report it. It costs one
///                 system call for each connection; if the address is not needed at once,
///                 mp_request_peer_address() costs less.
///
/// The event's fd is for mp_register(), or for mp_refuse() to end the connection. A descriptor may
/// also be used without the channel and is then for the caller to close; it does not block, and
/// execve(2) closes it. ECANCELED is the last completion after mp_cancel().
///
/// A transient error has MP_MORE: EMFILE, ENFILE, ENOMEM, and EUSERS if all lightweight sockets of
/// the channel are in use (mp_options.max_lwsockets). The channel accepts again by itself, when a
/// descriptor is free or some time has passed; do not submit another accept. Connections stay in
/// the accept queue meanwhile. Any other error ends the request.
///
/// Errors:
///   EBUSY   accepts with other flags are outstanding: cancel them first
///   EINVAL  count is negative, or flags are unknown
#[unsafe(no_mangle)]
pub extern "C" fn mp_accept(handle: mp_handle, count: c_int, flags: c_int) -> c_int {
    status(on_handle(handle, |state, handle| {
        let kind = match flags & !MP_WITH_PEER {
            0 => Accept::descriptors(),
            MP_LWSOCKET => Accept::lightweight(),
            _ => {
                return Err(Failure::invalid(
                    "flags must be made of MP_LWSOCKET and MP_WITH_PEER, or 0",
                ));
            }
        };
        let kind = if flags & MP_WITH_PEER == 0 { kind } else { kind.with_peer_address() };
        let accept = match u32::try_from(count) {
            Ok(0) => kind,
            Ok(count) => kind.count(count),
            Err(_) => {
                return Err(Failure::invalid(
                    "count must not be negative: 0 accepts until the request is cancelled",
                ));
            }
        };
        Ok(state.channel.accept(handle, accept)?)
    }))
}

/// Connects a socket: one MP_CONNECT. The address is copied. Later requests on the same handle wait
/// for the connection.
///
/// Errors:
///   EAFNOSUPPORT  the address is not of AF_INET, AF_INET6 or AF_UNIX
///   EINVAL        size does not fit the family
///
/// # Safety
///
/// address must point to that many bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_connect(
    handle: mp_handle,
    address: *const sockaddr,
    size: socklen_t,
) -> c_int {
    status(on_handle(handle, |state, handle| {
        // SAFETY: the caller guarantees that the bytes are readable.
        let address = unsafe { address::read(address, size) }?;
        Ok(state.channel.connect(handle, address)?)
    }))
}

/// Submits a transfer of the caller's memory.
pub(crate) fn transfer(handle: mp_handle, transfer: Transfer<'_>) -> c_int {
    status(on_handle(handle, |state, handle| {
        // SAFETY: the caller of the C functions below guarantees not to use the memory meanwhile.
        Ok(unsafe { state.channel.transfer(handle, transfer) }?)
    }))
}

/// Refuses values of a pointer and length that the caller cannot have intended.
pub(crate) fn check_memory(address: *const c_void, bytes: usize) -> Result<(), Failure> {
    if address.is_null() && bytes > 0 {
        return Err(Failure::NULL);
    }
    if bytes > isize::MAX as usize {
        return Err(Failure::invalid("the size is negative or above SSIZE_MAX"));
    }
    Ok(())
}

fn read(handle: mp_handle, address: *mut c_void, bytes: usize, offset: Option<u64>) -> c_int {
    match check_memory(address, bytes) {
        Ok(()) => transfer(handle, Transfer::Read { address: address.cast(), bytes, offset }),
        Err(failure) => status(Err(failure)),
    }
}

fn write(handle: mp_handle, address: *const c_void, bytes: usize, offset: Option<u64>) -> c_int {
    match check_memory(address, bytes) {
        Ok(()) => transfer(handle, Transfer::Write { address: address.cast(), bytes, offset }),
        Err(failure) => status(Err(failure)),
    }
}

/// Reads at most size bytes: one MP_READ with the available bytes, 0 at the end (report, Table
/// 3.1). From a file: at its position. From a SOCK_SEQPACKET or datagram socket: one message, or
/// EMSGSIZE if it is longer than size. An empty message has size 0, too; mp_recv() distinguishes it
/// from the end. The kernel uses buffer until the event. For connections that are mostly idle
/// mp_recv() needs less memory.
///
/// Errors:
///   EINVAL  size is 0 or above SSIZE_MAX
///
/// # Safety
///
/// buffer must stay valid and untouched until the completion.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_read(handle: mp_handle, buffer: *mut c_void, size: usize) -> c_int {
    read(handle, buffer, size, None)
}

/// Writes all of size bytes: one MP_WRITE (report, Table 3.1). To a file: at its position. To a
/// connected datagram socket: one datagram. buffer must not change until the event.
///
/// The event's size is below the request's only if the write was cancelled half-way, or has failed:
/// then it is what the kernel had taken before the error. A broken socket or pipe is EPIPE and
/// raises no SIGPIPE, whatever the process does about that signal.
///
/// Errors:
///   EAGAIN  mp_options.output_limit bytes wait behind the current write: the peer does not read;
///           await completions, or mp_abort() the handle
///
/// # Safety
///
/// buffer must stay valid and unchanged until the completion.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_write(handle: mp_handle, buffer: *const c_void, size: usize) -> c_int {
    write(handle, buffer, size, None)
}

/// Reads from a disk file at an offset: one MP_PREAD, which repeats the offset, because many such
/// requests of a handle may be in flight, in no order. Moves at most 2 GiB at a time.
///
/// # Safety
///
/// As for mp_read().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_pread(
    handle: mp_handle,
    buffer: *mut c_void,
    size: usize,
    offset: u64,
) -> c_int {
    read(handle, buffer, size, Some(offset))
}

/// Writes all of size bytes to a disk file at an offset: one MP_PWRITE, as with mp_pread().
///
/// # Safety
///
/// As for mp_write().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_pwrite(
    handle: mp_handle,
    buffer: *const c_void,
    size: usize,
    offset: u64,
) -> c_int {
    write(handle, buffer, size, Some(offset))
}

/// Returns the vectors of a call.
///
/// # Safety
///
/// `vector` must be null or point to that many entries.
pub(crate) unsafe fn vectors<'a>(
    vector: *const iovec,
    count: c_int,
) -> Result<&'a [iovec], Failure> {
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    if count > 1024 {
        return Err(Failure::invalid("count must be at most 1024 (IOV_MAX), and not below 0"));
    }
    if count == 0 {
        return Ok(&[]);
    }
    if vector.is_null() {
        return Err(Failure::NULL);
    }
    // SAFETY: the caller guarantees that the pointer is valid.
    let vectors = unsafe { std::slice::from_raw_parts(vector, count) };
    let mut sum: usize = 0;
    for vector in vectors {
        check_memory(vector.iov_base, vector.iov_len)?;
        sum = sum.saturating_add(vector.iov_len);
    }
    check_memory(std::ptr::dangling(), sum)?;
    Ok(vectors)
}

/// Reads into several pieces of memory, filling one after the other: one MP_READV (report, Table
/// 3.1). The array is copied, the memory it describes is not. count: 1 to 1024.
///
/// Errors:
///   EINVAL  count is out of range, or there is no room to read into
///
/// # Safety
///
/// As for mp_read(), of each piece.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_readv(handle: mp_handle, vector: *const iovec, count: c_int) -> c_int {
    // SAFETY: the caller guarantees that the array is valid.
    match unsafe { vectors(vector, count) } {
        Ok([]) => status(Err(Failure::invalid("count must be 1 to 1024 (IOV_MAX)"))),
        Ok(vectors) => transfer(handle, Transfer::ReadVectored(vectors)),
        Err(failure) => status(Err(failure)),
    }
}

/// Writes all of several pieces of memory, in order: one MP_WRITEV (report, Table 3.1). The array
/// is copied, the memory it describes is not. count: 0 to 1024.
///
/// Errors:
///   EINVAL  count is out of range
///
/// # Safety
///
/// As for mp_write(), of each piece.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_writev(handle: mp_handle, vector: *const iovec, count: c_int) -> c_int {
    // SAFETY: the caller guarantees that the array is valid.
    match unsafe { vectors(vector, count) } {
        Ok(vectors) => transfer(handle, Transfer::WriteVectored(vectors)),
        Err(failure) => status(Err(failure)),
    }
}

pub(crate) fn repeat_of(flags: c_int) -> Result<Repeat, Failure> {
    match flags {
        0 => Ok(Repeat::Once),
        MP_REPEAT => Ok(Repeat::UntilCancelled),
        _ => Err(Failure::invalid("flags must be 0 or MP_REPEAT")),
    }
}

/// Receives from a stream or pipe (from a datagram socket: mp_recvfrom()) into a buffer of the
/// channel: MP_RECV, with the bytes at the event's data until mp_release() of its buffer. size 0 is
/// the end, which has no buffer.
///
/// From a SOCK_SEQPACKET socket: one message, or EMSGSIZE if it is longer than
/// mp_options.large_buffer_bytes. An empty message has size 0 and a buffer.
///
/// flags: 0 for one completion; MP_REPEAT for a completion for each result, until the end, an error
/// or mp_cancel(), which costs less than new requests. Idle connections then use no memory. While
/// the caller holds all buffers, receiving waits; nothing is lost.
///
/// Errors:
///   EINVAL  flags are unknown
#[unsafe(no_mangle)]
pub extern "C" fn mp_recv(handle: mp_handle, flags: c_int) -> c_int {
    status(on_handle(handle, |state, handle| {
        Ok(state.channel.receive(handle, repeat_of(flags)?)?)
    }))
}

/// Writes bytes of a buffer of mp_recv(), and releases the buffer after they are sent: one
/// MP_WRITE, whose data is NULL. This sends received bytes back without a copy and without
/// bookkeeping. offset and size select a part of the event's bytes. If the call fails, the buffer
/// still belongs to the caller.
///
/// Errors:
///   EINVAL  the caller does not hold the buffer, or it has fewer bytes
#[unsafe(no_mangle)]
pub extern "C" fn mp_write_buffer(
    handle: mp_handle,
    buffer: i64,
    offset: usize,
    size: usize,
) -> c_int {
    status(on_handle(handle, |state, handle| {
        let lease = state.take_lease(buffer)?;
        write_lease(state, handle, buffer, lease, offset, size)
    }))
}

fn write_lease(
    state: &mut State,
    handle: Handle,
    buffer: i64,
    mut lease: channel::Lease,
    offset: usize,
    size: usize,
) -> Result<(), Failure> {
    if offset.checked_add(size).is_none_or(|end| end > lease.len()) {
        state.leases.put_back(buffer, lease);
        return Err(Failure::invalid("offset and size must lie within the event's size"));
    }
    lease.advance(offset);
    lease.truncate(size);
    state.channel.write(handle, lease).map_err(|rejected| {
        if let channel::Buffer::Lease(mut lease) = rejected.buffer {
            lease.restore();
            state.leases.put_back(buffer, lease);
        }
        rejected.error.into()
    })
}

/// Waits until the data of all completed writes of a file, and its metadata, are on the disk, as
/// fsync(2) does: one MP_FSYNC. It has no order with writes in flight, so submit it after their
/// events. Cancelling it does not interrupt the disk.
///
/// Errors:
///   EOPNOTSUPP  the handle is not a disk file
#[unsafe(no_mangle)]
pub extern "C" fn mp_fsync(handle: mp_handle) -> c_int {
    status(on_handle(handle, |state, handle| Ok(state.channel.sync(handle)?)))
}

/// Does the same as mp_fsync(), without metadata such as the file's times, as fdatasync(2) does:
/// one MP_FSYNC.
#[unsafe(no_mangle)]
pub extern "C" fn mp_fdatasync(handle: mp_handle) -> c_int {
    status(on_handle(handle, |state, handle| Ok(state.channel.sync_data(handle)?)))
}

/// Waits until a socket or pipe is ready for calls that the caller makes itself: MP_POLL with
/// revents.
///
/// events: POLLIN, POLLOUT, POLLPRI and POLLRDHUP of poll(2); POLLERR and POLLHUP are always
/// included. flags: 0 for one completion; MP_REPEAT for the pending events at first and then each
/// new one, as edge-triggered epoll(7) does; an event may be reported twice. A handle has one poll
/// at a time; a second one begins when the first has ended.
///
/// Errors:
///   EINVAL  events or flags are unknown
#[unsafe(no_mangle)]
pub extern "C" fn mp_poll(handle: mp_handle, events: u32, flags: c_int) -> c_int {
    status(on_handle(handle, |state, handle| {
        Ok(state.channel.poll(handle, events, repeat_of(flags)?)?)
    }))
}

/// Shuts a connection down in both directions, after the writes that were submitted before: one
/// MP_DISCONNECT (report, Table 3.1). The handle stays registered.
#[unsafe(no_mangle)]
pub extern "C" fn mp_disconnect(handle: mp_handle) -> c_int {
    mp_shutdown(handle, libc::SHUT_RDWR)
}

/// Shuts a connection down as shutdown(2) does, after the writes that were submitted before: one
/// MP_DISCONNECT. how: SHUT_RD, SHUT_WR or SHUT_RDWR.
///
/// Errors:
///   EINVAL  how is none of these
#[unsafe(no_mangle)]
pub extern "C" fn mp_shutdown(handle: mp_handle, how: c_int) -> c_int {
    status(on_handle(handle, |state, handle| {
        let how = match how {
            libc::SHUT_RD => Shutdown::Read,
            libc::SHUT_WR => Shutdown::Write,
            libc::SHUT_RDWR => Shutdown::Both,
            _ => return Err(Failure::invalid("how must be SHUT_RD, SHUT_WR or SHUT_RDWR")),
        };
        Ok(state.channel.disconnect(handle, how)?)
    }))
}

/// The number of bytes that were submitted to be written to a handle and that the kernel has not
/// taken yet. The current write counts in full until a part of it completes.
///
/// Returns the number of bytes, or -1 and errno.
#[unsafe(no_mangle)]
pub extern "C" fn mp_queued(handle: mp_handle) -> i64 {
    value(on_handle(handle, |state, handle| Ok(state.channel.queued_bytes(handle)? as i64)), -1)
}

/// Requests the address of the other side of a connection: one MP_PEER_ADDRESS, whose data is a
/// struct sockaddr of the event's size, until the next dispatch. For a server with many lightweight
/// sockets: it saves the system call of mp_peer_address().
///
/// The event's errors are those of mp_peer_address().
#[unsafe(no_mangle)]
pub extern "C" fn mp_request_peer_address(handle: mp_handle) -> c_int {
    status(on_handle(handle, |state, handle| Ok(state.channel.request_peer_address(handle)?)))
}

/// Cancels requests of a handle, which stays registered. Each still has its last completion: with
/// ECANCELED, or with its result if that came first. A write in progress ends without an error and
/// with the number of bytes that are written. If these are not all, mp_close() resets the
/// connection, unless a later write goes on.
///
/// what: MP_IN for reads and receives, MP_OUT for connects, writes and shutdowns, 0 for everything,
/// including accepts, polls and transfers at an offset.
///
/// Errors:
///   EINVAL  what is unknown
#[unsafe(no_mangle)]
pub extern "C" fn mp_cancel(handle: mp_handle, what: c_int) -> c_int {
    const BOTH: c_int = MP_IN | MP_OUT;
    status(on_handle(handle, |state, handle| {
        let channel = &mut state.channel;
        match what {
            0 => channel.cancel(handle)?,
            MP_IN => channel.cancel_direction(handle, Direction::Inbound)?,
            MP_OUT => channel.cancel_direction(handle, Direction::Outbound)?,
            BOTH => {
                channel.cancel_direction(handle, Direction::Inbound)?;
                channel.cancel_direction(handle, Direction::Outbound)?;
            }
            _ => return Err(Failure::invalid("what must be made of MP_IN and MP_OUT, or 0")),
        }
        Ok(())
    }))
}
