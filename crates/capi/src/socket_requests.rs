//! Implements the calls that submit requests for sockets: peeking, writes that are followed by
//! others, files, and connections with lightweight sockets.

use crate::address;
use crate::channel_table::{on_channel, on_handle};
use crate::failure::{Failure, status, value};
use crate::requests::{check_memory, transfer};
use crate::state::Cookie;
use crate::types::{MP_NONE, mp_channel, mp_handle};
use channel::Transfer;
use libc::{c_int, c_void, sockaddr, socklen_t};

/// Registers a new stream socket of the channel and connects it: one MP_CONNECT with this cookie.
/// The socket is TCP or UNIX, according to the address, which is copied. Later requests wait for
/// the connection.
///
/// It is a lightweight socket, like those of mp_accept(): with io_uring it has no descriptor, with
/// epoll it has one, which belongs to the channel. If the connect fails, the handle stays, for
/// mp_connect() or mp_close(). To bind a socket or set options before it connects, use
/// mp_register() and mp_connect().
///
/// Returns the handle, or -1 and errno.
///
/// Errors:
///   EAFNOSUPPORT    the address is not of AF_INET, AF_INET6 or AF_UNIX
///   EINVAL          size does not fit the family
///   EUSERS          mp_options.max_lwsockets are in use
///   ENFILE          mp_options.max_handles are registered
///   EMFILE, ENFILE  there is no descriptor left
///
/// # Safety
///
/// address must point to that many bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_connect_to(
    channel: *mut mp_channel,
    address: *const sockaddr,
    size: socklen_t,
    cookie: *mut c_void,
) -> mp_handle {
    let made = on_channel(channel, |state| {
        // SAFETY: the caller guarantees that the bytes are readable.
        let address = unsafe { address::read(address, size) }?;
        let handle = state.channel.connect_to(address, Cookie { pointer: cookie })?;
        // The socket does not belong to the caller, and is closed with the handle.
        Ok(state.enroll(handle, false))
    });
    value(made, MP_NONE)
}

/// Copies at most size bytes that wait in a socket and leaves them there: one MP_PEEK with the
/// available bytes, 0 at the end. The next mp_read(), mp_recv() or mp_peek() finds the same bytes.
/// The kernel uses buffer until the event.
///
/// The peek waits for the earlier reads of the handle, and completes as soon as any bytes are
/// there; to wait for more, read. From a SOCK_SEQPACKET or datagram socket: one message, or
/// EMSGSIZE, with its beginning in buffer, if it is longer than size.
///
/// Errors:
///   EINVAL      size is 0 or above SSIZE_MAX
///   EOPNOTSUPP  the handle is not a socket
///
/// # Safety
///
/// As for mp_read().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_peek(handle: mp_handle, buffer: *mut c_void, size: usize) -> c_int {
    match check_memory(buffer, size) {
        Ok(()) => transfer(handle, Transfer::Peek { address: buffer.cast(), bytes: size }),
        Err(failure) => status(Err(failure)),
    }
}

/// Writes all of size bytes as mp_write() does, one MP_WRITE, and tells the kernel that a further
/// write follows at once (MSG_MORE of send(2)). buffer must not change until the event.
///
/// TCP delays a segment that is not full until that write, but for 200 ms at most: so a head and a
/// body share one even with TCP_NODELAY. End with mp_write(), mp_send_file(), mp_shutdown() or
/// mp_close(), each of which sends all. For sources other than stream sockets, and with
/// MP_DRIVER_MTCP, this is the same as mp_write(); datagrams are not joined.
///
/// Errors:
///   EAGAIN  as with mp_write()
///
/// # Safety
///
/// As for mp_write().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_write_more(
    handle: mp_handle,
    buffer: *const c_void,
    size: usize,
) -> c_int {
    match check_memory(buffer, size) {
        Ok(()) => transfer(handle, Transfer::WriteMore { address: buffer.cast(), bytes: size }),
        Err(failure) => status(Err(failure)),
    }
}

/// Sends size bytes of a disk file, from offset on, over a stream socket, after the earlier writes
/// of the handle: one MP_SEND_FILE. It reports that all were sent, or an error; fewer bytes only if
/// it was cancelled half-way.
///
/// file is the handle of the file in the same channel. The file's position does not matter and does
/// not change; the file may be sent to any number of handles at once. It must stay registered: the
/// channel does not send what it has not taken when the file's handle ends. mp_queued() counts all
/// of size.
///
/// What is in the page cache is sent by sendfile(2), without a copy, if the socket is non-blocking,
/// as connections of mp_accept() and mp_connect_to() are: set O_NONBLOCK of others before you
/// register them. Otherwise the channel alternates reading and sending in pieces of 128 KiB. No
/// disk blocks the thread, and there is no SIGPIPE.
///
/// The event's errors:
///   ENODATA  the file ends before offset + size; all its bytes were sent
///   EBADF    the file's handle has ended
///
/// Errors:
///   EBADF       file is not a handle of the same channel
///   EOPNOTSUPP  handle is not a stream socket, or file not a disk file
///   EINVAL      offset + size is above 2^63 - 1
///   EAGAIN      as with mp_write()
#[unsafe(no_mangle)]
pub extern "C" fn mp_send_file(
    handle: mp_handle,
    file: mp_handle,
    offset: u64,
    size: usize,
) -> c_int {
    status(on_handle(handle, |state, handle| {
        let Some(file) = state.handle_of(file) else {
            return Err(Failure::own(
                libc::EBADF,
                "the file is not registered with the channel of the connection: register it there",
            ));
        };
        Ok(state.channel.send_file(handle, file, offset, size)?)
    }))
}
