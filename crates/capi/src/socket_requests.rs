//! Filing requests that are meant for sockets: looking without taking, writing in parts, files,
//! connections with sockets of the channel's own.

use crate::address;
use crate::failure::{Failure, status, value};
use crate::place::{on_channel, on_handle};
use crate::requests::{check_memory, transfer};
use crate::state::Cookie;
use crate::types::{MP_NONE, mp_channel, mp_handle};
use channel::Transfer;
use libc::{c_int, c_void, sockaddr, socklen_t};

/// Registers a new stream socket of the channel's own and connects it: one MP_CONNECT with this
/// cookie. TCP or UNIX, according to the address, which is copied. Requests that are filed
/// meanwhile wait for the connection.
///
/// It is a lightweight socket, as those of mp_accept(): with io_uring it has no descriptor, with
/// epoll there is one below, which is the channel's. A connect that fails leaves the handle, for
/// mp_connect() or mp_close(). For a socket that is bound or has options before it connects, use
/// mp_register() and mp_connect().
///
/// Returns the handle, or -1 and errno.
///
/// Errors:
///   EAFNOSUPPORT    the address is none of AF_INET, AF_INET6 and AF_UNIX
///   EINVAL          size does not suit the family
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
        // SAFETY: the caller vouches for the bytes.
        let address = unsafe { address::read(address, size) }?;
        let handle = state.channel.connect_to(address, Cookie { pointer: cookie })?;
        // Its socket is not the caller's, and is closed with it.
        Ok(state.enroll(handle, false))
    });
    value(made, MP_NONE)
}

/// Reads at most size bytes of what waits in a socket and leaves them there: one MP_PEEK with what
/// is there, 0 at the end. The next mp_read(), mp_recv() or mp_peek() finds the same. buffer is the
/// kernel's until the event.
///
/// It has its turn among the reads of the handle, and completes as soon as something is there: to
/// wait for more than that, read. From a SOCK_SEQPACKET or datagram socket: one message, or
/// EMSGSIZE, with its beginning in buffer, if it is longer than size.
///
/// Errors:
///   EINVAL      size is 0 or above SSIZE_MAX
///   EOPNOTSUPP  the handle is no socket
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
/// TCP holds a segment that is not full back until then, but for 200 ms at most: so a head and a
/// body share one also with TCP_NODELAY. End with mp_write(), mp_send_file(), mp_shutdown() or
/// mp_close(), each of which sends all. Everything but a stream socket takes it for mp_write(), as
/// does MP_DRIVER_MTCP; datagrams are not joined.
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

/// Sends size bytes of a disk file, from offset on, over a stream socket, in its turn among the
/// writes of the handle: one MP_SEND_FILE. All of them, or an error; less only if it was cancelled
/// half-way.
///
/// file is the handle of the file in the same channel, whose position does not matter and does not
/// change; it may be sent to any number of handles at once. It must stay registered: what is not
/// read of it when its handle ends is not sent. The file is read and sent in turns of 128 KiB;
/// mp_queued() counts all of size.
///
/// The event's errors:
///   ENODATA  the file ends before offset + size; what it has was sent
///   EBADF    the file's handle has ended
///
/// Errors:
///   EBADF       file is no handle of the same channel
///   EOPNOTSUPP  handle is no stream socket, or file no disk file
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
