//! Calls that register and unregister members of a channel, and their cookies.

use crate::channel_table::{on_channel, on_handle};
use crate::failure::{Failure, status, value};
use crate::state::{Cookie, State};
use crate::types::{MP_LWSOCKET_FIRST, MP_NONE, MP_RESET, mp_channel, mp_handle};
use channel::{CpuSet, Error, Handle, Source};
use libc::{c_int, c_void, cpu_set_t};
use std::net::TcpStream;
use std::os::fd::{BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};

/// Makes a descriptor or an accepted lightweight socket a member of a channel (report, Table 3.1).
///
/// fd is a socket, pipe, FIFO, terminal, disk file, eventfd(2), timerfd_create(2) or signalfd(2);
/// or mp_event.fd of an MP_ACCEPT. Each event of the member has its cookie.
///
/// The channel uses the descriptor until mp_unregister() or mp_destroy(), which return it to the
/// caller; mp_close() and mp_abort() close it. Do not close it meanwhile. If registering fails, for
/// any reason, the descriptor stays open and belongs to the caller, and a lightweight socket can be
/// registered again. While a pipe, terminal or (epoll) listening socket is registered, its
/// O_NONBLOCK is set.
///
/// cpu_mask, for a listening TCP socket: this channel gets an accept queue of its own for the
/// connections whose handshake runs on those CPUs (report, section 3.4.1). Each thread registers
/// the same listener with its CPUs in its own channel. Connections of CPUs that no channel claims
/// wait in the original, which one of the threads may register without a mask. While the masks
/// cover all CPUs that are online, one of the channels accepts from the original as well, in which
/// connections from before the call wait. The original belongs to the caller. NULL for all other
/// descriptors.
///
/// Returns the handle, or -1 and errno.
///
/// Errors:
///   EBADF       fd is not open, or not a lightweight socket that waits to be registered here
///   EISDIR      fd is a directory
///   ENFILE      mp_options.max_handles are registered
///   EINVAL      cpu_mask is empty or names impossible CPUs, or the socket does not listen
///   EBUSY       other channels have claimed some of these CPUs
///   EADDRINUSE  SO_REUSEPORT is set already, by something else
///   EOPNOTSUPP  cpu_mask was given for something other than a TCP socket
///   EACCES      the listener was created under another user id
///
/// # Safety
///
/// cpu_mask must be NULL or point to a whole set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_register(
    channel: *mut mp_channel,
    fd: c_int,
    cookie: *mut c_void,
    cpu_mask: *const cpu_set_t,
) -> mp_handle {
    let cpus = match cpu_mask.is_null() {
        true => None,
        // SAFETY: the caller guarantees that the pointer is valid.
        false => Some(unsafe { &*cpu_mask }),
    };
    let registered = on_channel(channel, |state| {
        let cookie = Cookie { pointer: cookie };
        match cpus {
            Some(cpus) => register_share(state, fd, cookie, cpus),
            None if fd >= MP_LWSOCKET_FIRST => register_lwsocket(state, fd, cookie),
            None => register_descriptor(state, fd, cookie),
        }
    });
    value(registered, MP_NONE)
}

fn register_share(
    state: &mut State,
    fd: c_int,
    cookie: Cookie,
    cpus: &cpu_set_t,
) -> Result<mp_handle, Failure> {
    check_open(fd)?;
    // SAFETY: the descriptor is open, and the caller keeps it open during the call.
    let listener = unsafe { BorrowedFd::borrow_raw(fd) };
    let handle = state.channel.register_listener(listener, set_of(cpus), cookie)?;
    Ok(state.enroll(handle, false))
}

pub(crate) fn set_of(cpus: &cpu_set_t) -> CpuSet {
    (0..CpuSet::CAPACITY)
        // SAFETY: the number is below the capacity of the type.
        .filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, cpus) })
        .collect()
}

fn take_lwsocket(state: &mut State, fd: c_int) -> Result<Source, Failure> {
    state.take_lwsocket(fd).ok_or(Failure::own(
        libc::EBADF,
        "no lightweight socket of this number waits to be registered: register or refuse each \
         mp_event.fd once, in the channel that accepted it",
    ))
}

/// Ends a connection of an MP_ACCEPT without registering it: fd is mp_event.fd, a descriptor or a
/// lightweight socket, and is closed. Ignoring the event would leave the client waiting. It takes
/// no handle, so it also works when mp_options.max_handles are registered.
///
/// flags: 0 to close the connection, of which the client sees the end (or a reset, if it had sent
/// anything); MP_RESET to reset it. Takes effect with the next mp_flush(), or when mp_dispatch()
/// has no event to return at once.
///
/// Errors:
///   EBADF   fd is not open, or not a lightweight socket that waits to be registered here
///   EINVAL  flags are unknown
#[unsafe(no_mangle)]
pub extern "C" fn mp_refuse(channel: *mut mp_channel, fd: c_int, flags: c_int) -> c_int {
    status(on_channel(channel, |state| {
        if flags & !MP_RESET != 0 {
            return Err(Failure::invalid("flags must be 0 or MP_RESET"));
        }
        let connection = match fd >= MP_LWSOCKET_FIRST {
            true => take_lwsocket(state, fd)?,
            false => source_of(fd)?,
        };
        state.take_accepted(fd);
        if flags == MP_RESET {
            state.channel.refuse(connection)?;
        }
        Ok(())
    }))
}

/// Pairs two handles, such as both connections of a proxy: from now on the MP_REPEAT receives of
/// each pause while more than mp_options.output_pause bytes wait to be written to the other, and
/// not while its own output waits. A pair ends when one of its handles is closed, aborted,
/// unregistered or paired with another; a handle that is paired with itself has no partner.
///
/// Errors:
///   EBADF       other is not a handle of the same channel
///   EOPNOTSUPP  one of them is not a stream, a packet or datagram socket, or a pipe
#[unsafe(no_mangle)]
pub extern "C" fn mp_pair(handle: mp_handle, other: mp_handle) -> c_int {
    status(on_handle(handle, |state, handle| {
        let other = state.handle_of(other).ok_or(Failure::own(
            libc::EBADF,
            "the other handle is not one of this channel: register both in one channel",
        ))?;
        Ok(state.channel.pair(handle, other)?)
    }))
}

fn register_lwsocket(state: &mut State, fd: c_int, cookie: Cookie) -> Result<mp_handle, Failure> {
    let socket = take_lwsocket(state, fd)?;
    match state.channel.register_or_return(socket, cookie) {
        Ok(handle) => Ok(state.enroll(handle, false)),
        Err(rejected) => {
            if let Some(socket) = rejected.buffer {
                state.keep_lwsocket(fd, socket);
            }
            Err(rejected.error.into())
        }
    }
}

fn register_descriptor(state: &mut State, fd: c_int, cookie: Cookie) -> Result<mp_handle, Failure> {
    let source = source_of(fd)?;
    let is_accepted = state.take_accepted(fd);
    let source = if is_accepted { Source::accepted(source) } else { source };
    match state.channel.register_or_return(source, cookie) {
        Ok(handle) => Ok(state.enroll(handle, true)),
        Err(rejected) => {
            if is_accepted {
                state.note_accepted(fd);
            }
            // The descriptor still belongs to the caller.
            if let Some(Ok(descriptor)) = rejected.buffer.map(Source::into_descriptor) {
                let _ = descriptor.into_raw_fd();
            }
            Err(match rejected.error {
                Error::System { source, .. } if source.raw_os_error() == Some(libc::EISDIR) => {
                    Failure::own(libc::EISDIR, "the descriptor is a directory: register a file")
                }
                error => error.into(),
            })
        }
    }
}

fn check_open(fd: c_int) -> Result<(), Failure> {
    // SAFETY: the call takes no pointers.
    if unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 { Err(Failure::last("fcntl")) } else { Ok(()) }
}

/// Linux's SIOCOUTQNSD, see tcp(7): bytes that were not sent.
const UNSENT_BYTES: libc::Ioctl = 0x894B;

/// Returns whether a descriptor is a TCP connection, which a server registers for each client. This
/// takes one system call instead of three: only TCP sockets support the request, and only those
/// that do not listen answer it (MPTCP's answer with an error as the number).
fn is_tcp_connection(fd: c_int) -> bool {
    let mut bytes: c_int = 0;
    // SAFETY: the kernel writes one int, for which `bytes` has room.
    let answer = unsafe { libc::ioctl(fd, UNSENT_BYTES, &raw mut bytes) };
    answer == 0 && bytes >= 0
}

/// Converts a descriptor to a source of a channel; asks the kernel which kind it is.
fn source_of(fd: c_int) -> Result<Source, Failure> {
    if is_tcp_connection(fd) {
        // SAFETY: the ioctl above has found it open; it returns to the caller as below.
        return Ok(unsafe { TcpStream::from_raw_fd(fd) }.into());
    }
    check_open(fd)?;
    // SAFETY: it is open. The caller keeps it open, and gets it back, not closed, when registering
    // fails or when the handle or the channel ends.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) }.into())
}

/// Takes a descriptor out of the channel, to use it without the channel (report, Table 3.1): it
/// stays open and belongs to the caller again. Pending requests, writes included, are cancelled and
/// never delivered, except those that an mp_dispatch_batch() has delivered already. To end a
/// connection use mp_close().
///
/// A lightweight socket cannot exist without its channel: it is closed, on every driver, after its
/// queued writes, without an event. Connections that a listener has accepted and not delivered are
/// closed.
///
/// No event reports when the kernel no longer uses the memory of the handle's requests; it is free
/// after mp_destroy() only. To use or free that memory earlier, use mp_close() or mp_abort(), whose
/// MP_CLOSE reports it, or first cancel the requests and await their events.
#[unsafe(no_mangle)]
pub extern "C" fn mp_unregister(handle: mp_handle) -> c_int {
    status(on_handle(handle, |state, handle| {
        let left = state.channel.unregister(handle)?;
        // The descriptor of xio_watch() has no other owner, and is closed.
        if state.dismiss(handle)
            && let Some(descriptor) = left.descriptor
        {
            let _ = descriptor.into_raw_fd();
        }
        Ok(())
    }))
}

/// Closes a handle after all submitted writes are written: the normal way to end a connection.
/// Inbound requests are cancelled and never delivered. The events of the writes come only with
/// mp_options.events_after_close. One MP_CLOSE, with the cookie, is the last event. By then the
/// descriptor or lightweight socket is closed, and the memory of all requests of the handle belongs
/// to the caller.
///
/// If a queued write fails, the event has its error and the handle is aborted; so it is if a write
/// had failed part-way before. If the peer takes nothing for
/// mp_options.close_timeout_ms, the handle is aborted, and the error is ETIMEDOUT. mp_abort() ends
/// the wait at once. A listener's connections that were accepted and not delivered are closed.
///
/// A stream socket that has waited for its output for 5 ms discards what its peer sends. If
/// anything came, it continues after all is written until the peer ends its direction or has sent
/// nothing for 2 s, for 30 s and 64 MiB at most, because unread input would turn the close into a
/// reset. This does not happen if mp_to_fd() was called.
#[unsafe(no_mangle)]
pub extern "C" fn mp_close(handle: mp_handle) -> c_int {
    status(on_handle(handle, |state, handle: Handle| {
        let cookie = state.channel.close(handle)?;
        state.dismiss(handle);
        state.closing.push_back((handle, cookie.pointer));
        Ok(())
    }))
}

/// Closes a handle at once, even one that is in mp_close(), and discards its queued output. A TCP
/// connection is reset, so that the peer does not mistake a part of the data for the whole.
/// Otherwise as mp_close(): exactly one MP_CLOSE is the last event.
#[unsafe(no_mangle)]
pub extern "C" fn mp_abort(handle: mp_handle) -> c_int {
    status(on_handle(handle, |state, handle: Handle| {
        if let Some(cookie) = state.channel.abort(handle)? {
            state.dismiss(handle);
            state.closing.push_back((handle, cookie.pointer));
        }
        Ok(())
    }))
}

/// The cookie of a handle; NULL and errno if it is not registered. On success errno does not
/// change, because the cookie may be NULL, too.
#[unsafe(no_mangle)]
pub extern "C" fn mp_cookie(handle: mp_handle) -> *mut c_void {
    let cookie = on_handle(handle, |state, handle| {
        let cookie = state.channel.cookie(handle).ok_or(Failure::NO_HANDLE)?;
        Ok(cookie.pointer)
    });
    value(cookie, std::ptr::null_mut())
}

/// Changes the cookie of a handle, also for requests that were submitted before.
#[unsafe(no_mangle)]
pub extern "C" fn mp_set_cookie(handle: mp_handle, cookie: *mut c_void) -> c_int {
    status(on_handle(handle, |state, handle| {
        state.channel.cookie_mut(handle).ok_or(Failure::NO_HANDLE)?.pointer = cookie;
        Ok(())
    }))
}
