//! Implements the calls on sockets that are not requests.

use crate::address;
use crate::channel_table::on_handle;
use crate::failure::{Failure, errno_in, status, value};
use crate::members::set_of;
use crate::types::mp_handle;
use channel::CpuSet;
use libc::{c_int, c_void, cpu_set_t, sockaddr, socklen_t};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::slice;

/// Opens a TCP socket with SO_REUSEADDR, binds it and listens; needs no channel. address is of
/// AF_INET or AF_INET6. backlog is the length of the accept queue, at most the sysctl
/// net.core.somaxconn; 0 stands for that maximum.
///
/// If the address is in use, the call tries again for up to one second, and blocks the thread
/// meanwhile: after a process with an io_uring channel was killed, the kernel closes the sockets
/// in its ring up to 0.2 s later. With epoll there is no delay. The address of a listener of this
/// process is free as soon as mp_close() or mp_abort() of it returns; connections that wait in its
/// accept queue are reset.
///
/// Returns a blocking descriptor with close-on-exec, which belongs to the caller; or -1 and errno,
/// and mp_error() names the address, the cause and the remedy.
///
/// Errors:
///   EADDRINUSE      a socket listens there, and still does after one second
///   EADDRNOTAVAIL   no interface has the address
///   EACCES          the port needs CAP_NET_BIND_SERVICE
///   EAFNOSUPPORT    the address is of another family
///   EINVAL          size does not fit the family, or backlog is below 0
///   EMFILE, ENFILE  there is no descriptor left
///
/// # Safety
///
/// address must point to size readable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_listen(
    address: *const sockaddr,
    size: socklen_t,
    backlog: c_int,
) -> c_int {
    if address.is_null() {
        return value(Err(Failure::NULL), -1);
    }
    // SAFETY: the caller guarantees that the bytes are readable.
    let raw = unsafe { slice::from_raw_parts(address.cast::<u8>(), size as usize) };
    let made = catch_unwind(AssertUnwindSafe(|| listen(raw, backlog)));
    value(made.unwrap_or(Err(Failure::PANIC)), -1)
}

fn listen(raw: &[u8], backlog: c_int) -> Result<c_int, Failure> {
    let Some(address) = address::parse(raw)?.inet() else {
        return Err(Failure::own(
            libc::EAFNOSUPPORT,
            "mp_listen takes AF_INET and AF_INET6 only: call bind and listen for other families",
        ));
    };
    if backlog < 0 {
        return Err(Failure::invalid("backlog must be at least 0"));
    }
    let listener = channel::listen(address)?;
    // A further listen(2) changes the length of the queue.
    // SAFETY: the call takes no pointers.
    if backlog > 0 && unsafe { libc::listen(listener.as_raw_fd(), backlog) } < 0 {
        return Err(Failure::last("listen"));
    }
    Ok(listener.into_raw_fd())
}

/// Opens another descriptor for the same socket or file; for a lightweight socket it makes a
/// regular descriptor. The caller closes it. The handle stays registered.
///
/// Returns the descriptor, or -1 and errno.
///
/// Errors:
///   EMFILE, ENFILE  there is no descriptor left
#[unsafe(no_mangle)]
pub extern "C" fn mp_to_fd(handle: mp_handle) -> c_int {
    let descriptor =
        on_handle(handle, |state, handle| Ok(state.channel.descriptor(handle)?.into_raw_fd()));
    value(descriptor, -1)
}

/// The largest value that any option needs.
const OPTION_BYTES_MAX: usize = 1 << 16;

/// Sets an option of a socket as setsockopt(2) does; of a lightweight socket those at the levels
/// SOL_SOCKET and IPPROTO_TCP. Takes effect at once, not in the order of requests.
///
/// Errors:
///   EOPNOTSUPP, ENOPROTOOPT, EINVAL, ...  as setsockopt(2)
///
/// # Safety
///
/// option must point to that many bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_sockopt(
    handle: mp_handle,
    level: c_int,
    name: c_int,
    option: *const c_void,
    size: socklen_t,
) -> c_int {
    status(on_handle(handle, |state, handle| {
        if option.is_null() {
            return Err(Failure::NULL);
        }
        if size as usize > OPTION_BYTES_MAX {
            return Err(Failure::invalid("the value of an option has at most 65536 bytes"));
        }
        // SAFETY: the caller guarantees that the bytes are readable.
        let option = unsafe { slice::from_raw_parts(option.cast::<u8>(), size as usize) };
        Ok(state.channel.set_socket_option(handle, level, name, option)?)
    }))
}

/// Reads an option of a socket as getsockopt(2) does; of a lightweight socket those at the level
/// SOL_SOCKET. *size: before the call the room at option, after it the length of the value.
///
/// Errors:
///   EOPNOTSUPP, ENOPROTOOPT, EINVAL, ...  as getsockopt(2)
///
/// # Safety
///
/// size must point to the number of writable bytes at option.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_sockopt_get(
    handle: mp_handle,
    level: c_int,
    name: c_int,
    option: *mut c_void,
    size: *mut socklen_t,
) -> c_int {
    status(on_handle(handle, |state, handle| {
        if option.is_null() || size.is_null() {
            return Err(Failure::NULL);
        }
        // SAFETY: the caller guarantees that the pointer is valid.
        let room = unsafe { *size } as usize;
        if room > OPTION_BYTES_MAX {
            return Err(Failure::invalid("the value of an option has at most 65536 bytes"));
        }
        // SAFETY: the caller guarantees writable memory of that size.
        let option = unsafe { slice::from_raw_parts_mut(option.cast::<u8>(), room) };
        let bytes = state.channel.socket_option(handle, level, name, option)?;
        // SAFETY: the caller guarantees that the pointer is valid.
        unsafe { *size = bytes as socklen_t };
        Ok(())
    }))
}

/// The address of the other side of a connection, as getpeername(2) returns it, also of a
/// lightweight socket. *size: before the call the room at address, after it the size of the
/// address, of which no more than the room was filled.
///
/// Errors:
///   ENOTCONN      it is not connected
///   EAFNOSUPPORT  the address is not of AF_INET, AF_INET6 or AF_UNIX
///
/// # Safety
///
/// size must point to the number of writable bytes at address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_peer_address(
    handle: mp_handle,
    address: *mut sockaddr,
    size: *mut socklen_t,
) -> c_int {
    status(on_handle(handle, |state, handle| {
        let peer = state.channel.peer_address(handle)?;
        // SAFETY: the caller guarantees that the pointers are valid.
        unsafe { address::put(&peer, address, size) }
    }))
}

/// Creates accept queues of a listening TCP socket for processes that are about to be forked: one
/// socket for each set of CPUs, which listens on the same address and gets the connections whose
/// handshake runs on those CPUs (report, section 3.4.1). The listener keeps the other CPUs.
///
/// fds[i] is -1 to create a socket for masks[i], or a socket of an earlier call: those come first,
/// in the same order, with their new masks. Each process registers its own socket, as any listener.
/// The parent should keep all of them open: then a worker that ends loses no connection. A mask may
/// be empty; a process must still accept the connections that wait in its socket. Threads of one
/// process do not need this call: see mp_register(). Connections of a CPU in several masks go to
/// their sockets at random, so that more processes than CPUs can share them.
///
/// Errors:
///   EINVAL      count is not 1 to 1024, a known socket follows a new one, or the socket does not
///               listen
///   E2BIG       masks overlap in more ways than the kernel's program has room for
///   EADDRINUSE  SO_REUSEPORT is set already, by something else
///   EOPNOTSUPP  it is not a TCP socket
///   EACCES      the listener was created under another user id
///
/// # Safety
///
/// masks and fds must point to count entries.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mp_partition(
    listen_fd: c_int,
    masks: *const cpu_set_t,
    count: c_int,
    fds: *mut c_int,
) -> c_int {
    if masks.is_null() || fds.is_null() {
        return status(Err(Failure::NULL));
    }
    let count = match usize::try_from(count) {
        Ok(count @ 1..=1024) => count,
        _ => return status(Err(Failure::invalid("count must be 1 to 1024"))),
    };
    // SAFETY: the caller guarantees that both arrays are valid.
    let (masks, fds) =
        unsafe { (slice::from_raw_parts(masks, count), slice::from_raw_parts_mut(fds, count)) };
    let made = catch_unwind(AssertUnwindSafe(|| partition(listen_fd, masks, fds)));
    status(made.unwrap_or(Err(Failure::PANIC)))
}

fn partition(listen_fd: c_int, masks: &[cpu_set_t], fds: &mut [c_int]) -> Result<(), Failure> {
    let known = fds.iter().take_while(|fd| **fd != -1).count();
    if fds[known..].iter().any(|fd| *fd != -1) {
        return Err(Failure::invalid(
            "sockets of earlier calls must come first, then -1 for new ones",
        ));
    }
    for fd in fds[..known].iter().chain([&listen_fd]) {
        // SAFETY: the call takes no pointers.
        if unsafe { libc::fcntl(*fd, libc::F_GETFD) } < 0 {
            let errno = errno_in(&io::Error::last_os_error());
            return Err(Failure::own(
                errno,
                "a descriptor of the sockets is not open: pass open listeners, or -1 for new ones",
            ));
        }
    }
    // SAFETY: all are open, and the caller keeps them open during the call.
    let borrow = |fd: &c_int| unsafe { BorrowedFd::borrow_raw(*fd) };
    let listener = borrow(&listen_fd);
    let known_fds: Vec<BorrowedFd<'_>> = fds[..known].iter().map(borrow).collect();
    let sets: Vec<CpuSet> = masks.iter().map(set_of).collect();
    let made = channel::partition(listener, &sets, &known_fds).map_err(channel::Error::from)?;
    for (fd, made) in fds[known..].iter_mut().zip(made) {
        *fd = made.into_raw_fd();
    }
    Ok(())
}
