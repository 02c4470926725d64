//! Implements listeners on all addresses: the kernel socket behind the number listens beside the
//! stack's, so that connections to loopback and to the kernel's addresses are accepted too.
//!
//! The stack's socket refers to the kernel's by a descriptor of the library itself, so calls that
//! sleep on it find the same listener whatever the application does with its numbers.

use crate::outcome::{Outcome, check, failure, would_block};
use crate::state::{Guard, World};
use crate::table::{self, Handle};
use crate::wait::KeptOpen;
use crate::{address, report, state};
use core::ffi::c_int;
use libc::{pollfd, sockaddr, socklen_t};
use mtcp::Events;
use preload::real;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether there was ever such a listener in this process.
static ANY: AtomicBool = AtomicBool::new(false);

/// The application's memory for the peer's address in accept(2).
#[derive(Clone, Copy)]
pub(crate) struct PeerNameBuffer {
    pub(crate) address: *mut sockaddr,
    pub(crate) size: *mut socklen_t,
}

/// An accepted connection.
pub(crate) enum Accepted {
    /// A connection of the kernel; accept(2) has written the peer's address.
    Kernel(c_int),
    Stack(c_int, SocketAddr),
}

/// Makes the kernel socket listen, which binds it if it is not bound. Returns its address.
///
/// # Errors
/// As listen(2).
pub(crate) fn listen(fd: c_int, backlog: c_int) -> Outcome<SocketAddr> {
    // SAFETY: the call takes only numbers.
    check(unsafe { real::listen(fd, backlog) })?;
    address::bound_to(fd)?.ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))
}

/// Makes the kernel socket stop listening.
pub(crate) fn stop(fd: c_int) {
    // SAFETY: the call takes only numbers. Its error means that the socket does not listen.
    unsafe { real::shutdown(fd, libc::SHUT_RDWR) };
}

/// Returns a descriptor of the library itself for a listening kernel socket, until
/// [`table::close_hidden`].
///
/// # Errors
/// `EMFILE`.
pub(crate) fn own_descriptor(fd: c_int) -> Outcome<c_int> {
    // SAFETY: the call takes only numbers.
    let own = check(unsafe { real::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) })?;
    ANY.store(true, Ordering::Release);
    Ok(table::hide(own))
}

/// Listens again, with another backlog. If the kernel socket was shut down and bound to any port,
/// it takes another port and is of no use.
pub(crate) fn listen_again(kernel: c_int, backlog: c_int, port: u16) -> Outcome<()> {
    if listen(kernel, backlog)?.port() != port {
        report::note(format_args!("port {port} is listened to on the stack's addresses only"));
        stop(kernel);
    }
    Ok(())
}

/// Makes the kernel socket blocking or non-blocking, as the application has requested.
pub(crate) fn set_nonblocking(kernel: c_int, on: bool) {
    let flags = if on { libc::O_NONBLOCK } else { 0 };
    // SAFETY: the call takes only numbers; it cannot fail on a socket.
    unsafe { real::fcntl(kernel, libc::F_SETFL, flags as usize) };
}

/// Returns whether there was ever such a listener, so that [`beside`] can find one.
pub(crate) fn are_any() -> bool {
    ANY.load(Ordering::Acquire)
}

/// Returns the kernel's listener beside a socket of the stack, and the object that keeps it open.
pub(crate) fn beside(guard: &mut Guard, socket: Handle) -> Option<(c_int, KeptOpen)> {
    let world = guard.world().ok()?;
    let kernel = world.socket(socket).ok()?.kernel?;
    let mut held = KeptOpen::default();
    held.hold(world, socket).ok()?;
    Some((kernel, held))
}

/// Returns the poll(2) entry for a listener of the kernel.
pub(crate) fn question(kernel: c_int) -> pollfd {
    pollfd { fd: kernel, events: libc::POLLIN | libc::POLLRDNORM, revents: 0 }
}

fn has_connection(world: &mut World, listener: Handle) -> Outcome<bool> {
    Ok(world.context.readiness(listener.descriptor)?.intersects(Events::IN))
}

/// Accepts a connection from either side. The side that is asked first alternates.
///
/// # Errors
/// As accept4(2); `EINVAL` if the socket does not listen.
///
/// # Safety
/// `place` is valid as accept(2) requires.
pub(crate) unsafe fn accept(
    world: &mut World,
    listener: Handle,
    flags: c_int,
    needs_number: bool,
    place: PeerNameBuffer,
) -> Outcome<Option<Accepted>> {
    if !world.context.accepts_connections(listener.descriptor)? {
        return failure(libc::EINVAL);
    }
    let state::Socket { kernel: Some(kernel), nonblocking, .. } = *world.socket(listener)? else {
        return of_stack(world, listener, flags, needs_number);
    };
    let kernel_first = world.asks_kernel_first(listener);
    for asks_kernel in [kernel_first, !kernel_first] {
        let accepted = match asks_kernel {
            // SAFETY: the caller guarantees this.
            true => unsafe { of_kernel(kernel, nonblocking, flags, place) }?,
            false => of_stack(world, listener, flags, needs_number)?,
        };
        if accepted.is_some() {
            return Ok(accepted);
        }
    }
    Ok(None)
}

/// Accepts from the kernel's listener without blocking, because the stack's lock is held, even if
/// another process has changed the listener in the meantime. A blocking listener is changed for
/// this call only, so that a program that inherits it by exec(2) finds it unchanged.
///
/// # Safety
/// `place` is valid as accept(2) requires.
unsafe fn of_kernel(
    kernel: c_int,
    nonblocking: bool,
    flags: c_int,
    place: PeerNameBuffer,
) -> Outcome<Option<Accepted>> {
    let mut question = question(kernel);
    // SAFETY: the pointer is to one entry.
    if check(unsafe { real::poll(&raw mut question, 1, 0) })? == 0 {
        return Ok(None);
    }
    if !nonblocking {
        set_nonblocking(kernel, true);
    }
    // SAFETY: the caller guarantees this.
    let new = check(unsafe { real::accept4(kernel, place.address, place.size, flags) });
    if !nonblocking {
        set_nonblocking(kernel, false);
    }
    match new {
        Err(error) if would_block(&error) => Ok(None),
        new => Ok(Some(Accepted::Kernel(new?))),
    }
}

/// Accepts from the stack. The connection's number is created first: if there is none, the
/// connection stays in the queue. A call that is going to sleep checks before that there is a
/// number (`needs_number`), as in the kernel.
fn of_stack(
    world: &mut World,
    listener: Handle,
    flags: c_int,
    needs_number: bool,
) -> Outcome<Option<Accepted>> {
    let socket = *world.socket(listener)?;
    if !has_connection(world, listener)? {
        if socket.nonblocking {
            world.context.refresh()?;
        } else {
            world.context.turn()?;
        }
        if !needs_number && !has_connection(world, listener)? {
            return Ok(None);
        }
    }
    let number = world.new_number(socket.family, flags & libc::SOCK_CLOEXEC != 0)?;
    let accepted = world.context.accept(listener.descriptor);
    let peer = accepted.map(|descriptor| {
        let peer = world.context.getpeername(descriptor);
        (descriptor, peer.map_err(|_| io::Error::from_raw_os_error(libc::ECONNABORTED)))
    });
    match peer {
        Ok((descriptor, Ok(peer))) => {
            world.context.set_nonblocking(descriptor, true)?;
            let nonblocking = flags & libc::SOCK_NONBLOCK != 0;
            let connection = state::Socket { nonblocking, kernel: None, ..socket };
            world.enter(number, descriptor, connection);
            let peer = if socket.mapped { sys::socket_address::mapped(peer) } else { peer };
            Ok(Some(Accepted::Stack(number, peer)))
        }
        Ok((descriptor, Err(error))) => {
            world.context.abort(descriptor)?;
            world.give_back(number);
            Err(error)
        }
        Err(error) => {
            world.give_back(number);
            if would_block(&error) { Ok(None) } else { Err(error) }
        }
    }
}
