//! Members of a channel: registering, leaving, cookies.

use crate::failure::{Failure, status, value};
use crate::place::{on_channel, on_handle};
use crate::state::{Cookie, State};
use crate::types::{MP_LWSOCKET_FIRST, MP_NONE, mp_channel, mp_handle};
use channel::{CpuSet, Error, Handle, Source};
use libc::{c_int, c_void, cpu_set_t};
use std::fs::File;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};

/// Makes a descriptor or an accepted lightweight socket a member of a channel (report, Table 3.1).
///
/// fd is a socket, pipe, FIFO, terminal, disk file, eventfd(2), timerfd_create(2) or signalfd(2);
/// or what mp_event.fd of an MP_ACCEPT said. The cookie comes back with each of its events.
///
/// A descriptor is lent to the channel until mp_unregister() or mp_destroy(); mp_close() closes
/// it. Do not close it meanwhile. If registering fails it stays the caller's. While a pipe or
/// terminal is registered, its O_NONBLOCK is set (epoll) or cleared (io_uring).
///
/// cpu_mask, for a listening TCP socket: this channel gets an accept queue of its own for the
/// connections whose handshake runs on those CPUs (report, section 3.4.1). Each thread
/// registers the same listener with its CPUs in its own channel; connections of CPUs that nobody
/// claims wait in the original, which one channel may register without mask. The original stays
/// the caller's. NULL otherwise.
///
/// Returns the handle, or -1 and errno.
///
/// Errors:
///   EBADF       fd is not open, or no lightweight socket that waits to be registered here
///   EISDIR      fd is a directory
///   ENFILE      mp_options.max_handles are registered
///   EINVAL      cpu_mask is empty or names impossible CPUs, or the socket does not listen
///   EBUSY       other channels have claimed some of these CPUs
///   EADDRINUSE  SO_REUSEPORT is set already, by somebody else
///   EOPNOTSUPP  cpu_mask was given for something else than a TCP socket
///   EACCES      the listener was made under another user id
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
        // SAFETY: the caller vouches for the pointer.
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
    // SAFETY: the descriptor is open, and the caller lends it for the call.
    let listener = unsafe { BorrowedFd::borrow_raw(fd) };
    let handle = state.channel.register_listener(listener, set_of(cpus), cookie)?;
    Ok(state.enroll(handle, false))
}

pub(crate) fn set_of(cpus: &cpu_set_t) -> CpuSet {
    (0..CpuSet::CAPACITY)
        // SAFETY: the number is below what the type has room for.
        .filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, cpus) })
        .collect()
}

fn register_lwsocket(state: &mut State, fd: c_int, cookie: Cookie) -> Result<mp_handle, Failure> {
    has_room(state)?;
    let Some(socket) = state.take_lwsocket(fd) else {
        return Err(Failure::own(
            libc::EBADF,
            "no lightweight socket of this number waits to be registered: register what \
             mp_event.fd said, once, and in the channel that accepted it",
        ));
    };
    let handle = state.channel.register(socket, cookie)?;
    Ok(state.enroll(handle, false))
}

fn register_descriptor(state: &mut State, fd: c_int, cookie: Cookie) -> Result<mp_handle, Failure> {
    // The channel closes what it cannot register: whatever may fail is found out before.
    has_room(state)?;
    if let Err(Error::Forked) = state.channel.kind(state.channel.handle(0, 0)) {
        return Err(Error::Forked.into());
    }
    let source = source_of(fd)?;
    let handle = state.channel.register(source, cookie)?;
    Ok(state.enroll(handle, true))
}

pub(crate) fn has_room(state: &State) -> Result<(), Failure> {
    let limit = state.max_members;
    if state.members < limit { Ok(()) } else { Err(Error::TooManyHandles { limit }.into()) }
}

fn check_open(fd: c_int) -> Result<(), Failure> {
    // SAFETY: the call takes no pointers.
    if unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 { Err(Failure::last("fcntl")) } else { Ok(()) }
}

/// Linux's SIOCOUTQNSD, see tcp(7): bytes that were not sent.
const UNSENT_BYTES: libc::Ioctl = 0x894B;

/// Whether it is a TCP connection, which a server registers for each client: one system call in
/// place of three. Only TCP sockets know the request, and only those that do not listen answer it.
fn is_tcp_connection(fd: c_int) -> bool {
    let mut bytes: c_int = 0;
    // SAFETY: the kernel writes one int, for which `bytes` has room.
    unsafe { libc::ioctl(fd, UNSENT_BYTES, &raw mut bytes) == 0 }
}

/// What a descriptor is, in the type of the standard library that says so.
fn source_of(fd: c_int) -> Result<Source, Failure> {
    if is_tcp_connection(fd) {
        // SAFETY: the kernel has just found it open. It is lent as below.
        return Ok(unsafe { TcpStream::from_raw_fd(fd) }.into());
    }
    // SAFETY: all-zero bytes are a valid `stat`, which fstat only fills.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `stat` is valid for writing and outlives the call.
    if unsafe { libc::fstat(fd, &mut stat) } < 0 {
        return Err(Failure::last("fstat"));
    }
    let format = stat.st_mode & libc::S_IFMT;
    if format == libc::S_IFDIR {
        return Err(Failure::own(libc::EISDIR, "a directory cannot be read as bytes"));
    }
    let listens = format == libc::S_IFSOCK && socket_number(fd, libc::SO_ACCEPTCONN)? != 0;
    let socket_type = if format == libc::S_IFSOCK { socket_number(fd, libc::SO_TYPE)? } else { 0 };
    // SAFETY: fstat has found it open. The caller lends it, and it is given back, not closed, when
    // the handle or the channel ends.
    let owned = unsafe { OwnedFd::from_raw_fd(fd) };
    Ok(match socket_type {
        0 => File::from(owned).into(),
        _ if listens => TcpListener::from(owned).into(),
        libc::SOCK_STREAM | libc::SOCK_SEQPACKET => TcpStream::from(owned).into(),
        _ => UdpSocket::from(owned).into(),
    })
}

fn socket_number(fd: c_int, option: c_int) -> Result<c_int, Failure> {
    let mut value: c_int = 0;
    let mut bytes = size_of_val(&value) as libc::socklen_t;
    // SAFETY: `value` and `bytes` are valid for writing and describe each other.
    let got = unsafe {
        libc::getsockopt(fd, libc::SOL_SOCKET, option, (&raw mut value).cast(), &mut bytes)
    };
    if got < 0 { Err(Failure::last("getsockopt")) } else { Ok(value) }
}

/// Ends a membership (report, Table 3.1). Nothing that is pending for the handle is delivered any
/// more, except what an mp_dispatch_batch() has delivered already.
///
/// A descriptor stays open and is the caller's again. A lightweight socket is closed. Connections
/// that a listener has accepted and not delivered are closed. Memory of its requests may be in
/// the kernel's hands until mp_destroy(): cancel and await them first where it is to be used again.
#[unsafe(no_mangle)]
pub extern "C" fn mp_unregister(handle: mp_handle) -> c_int {
    status(on_handle(handle, |state, handle| {
        let left = state.channel.unregister(handle)?;
        // What xio_watch() has made is nobody's else, and is closed.
        if state.dismiss(handle)
            && let Some(descriptor) = left.descriptor
        {
            let _ = descriptor.into_raw_fd();
        }
        Ok(())
    }))
}

/// Ends a membership as mp_unregister() does, and closes the descriptor or lightweight socket: one
/// MP_CLOSE, with the cookie and handle -1.
///
/// Errors:
///   EAGAIN  mp_options.max_requests are outstanding: dispatch first
#[unsafe(no_mangle)]
pub extern "C" fn mp_close(handle: mp_handle) -> c_int {
    status(on_handle(handle, |state, handle: Handle| {
        let cookie = state.channel.close(handle)?;
        state.dismiss(handle);
        state.closing.push_back((handle, cookie.pointer));
        Ok(())
    }))
}

/// The cookie of a handle; NULL and errno if it is not registered. errno is left as it is
/// otherwise, as the cookie may be NULL, too.
#[unsafe(no_mangle)]
pub extern "C" fn mp_cookie(handle: mp_handle) -> *mut c_void {
    let cookie = on_handle(handle, |state, handle| {
        let cookie = state.channel.cookie(handle).ok_or(Failure::NO_HANDLE)?;
        Ok(cookie.pointer)
    });
    value(cookie, std::ptr::null_mut())
}

/// Changes the cookie of a handle, also for requests that were filed before.
#[unsafe(no_mangle)]
pub extern "C" fn mp_set_cookie(handle: mp_handle, cookie: *mut c_void) -> c_int {
    status(on_handle(handle, |state, handle| {
        state.channel.cookie_mut(handle).ok_or(Failure::NO_HANDLE)?.pointer = cookie;
        Ok(())
    }))
}
