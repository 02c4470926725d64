//! Listeners on all addresses: the kernel's socket behind the number listens beside the stack's, so
//! that connections to loopback and to the kernel's addresses are accepted as well.
//!
//! The stack's socket knows the kernel's by a descriptor of this library's own: calls that sleep on
//! it find the same listener whatever becomes of the application's numbers.

use crate::outcome::{Outcome, check, failure, would_block};
use crate::state::{Guard, World};
use crate::table::{self, Handle};
use crate::wait::Held;
use crate::{address, report, state};
use core::ffi::c_int;
use libc::{pollfd, sockaddr, socklen_t};
use mtcp::{Events, OptionName, SocketOption};
use preload::real;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether there ever was one in this process.
static ANY: AtomicBool = AtomicBool::new(false);

/// Where accept(2) puts the peer's address.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) address: *mut sockaddr,
    pub(crate) size: *mut socklen_t,
}

/// A new connection.
pub(crate) enum Accepted {
    /// The kernel's, whose peer's address is in its place.
    Kernel(c_int),
    Stack(c_int, SocketAddr),
}

/// Lets the kernel's socket listen, which binds it if it is not bound; its address then.
///
/// # Errors
/// As listen(2).
pub(crate) fn listen(fd: c_int, backlog: c_int) -> Outcome<SocketAddr> {
    // SAFETY: plain numbers.
    check(unsafe { real::listen(fd, backlog) })?;
    address::bound_to(fd).ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))
}

/// The kernel's socket does not listen any more.
pub(crate) fn stop(fd: c_int) {
    // SAFETY: plain numbers. What does not listen needs no end.
    unsafe { real::shutdown(fd, libc::SHUT_RDWR) };
}

/// The library's own descriptor of a kernel's socket that listens, until [`table::close_hidden`].
///
/// # Errors
/// `EMFILE`.
pub(crate) fn own_descriptor(fd: c_int) -> Outcome<c_int> {
    // SAFETY: plain numbers.
    let own = check(unsafe { real::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) })?;
    ANY.store(true, Ordering::Release);
    Ok(table::hide(own))
}

/// Listens again, with another queue. The kernel's socket takes another port if it was shut down
/// and bound to any; it is of no use then.
pub(crate) fn listen_again(kernel: c_int, backlog: c_int, port: u16) -> Outcome<()> {
    if listen(kernel, backlog)?.port() != port {
        report::note(format_args!("port {port} is listened to on the stack's addresses only"));
        stop(kernel);
    }
    Ok(())
}

/// The kernel's socket blocks or not, as the application wants it.
pub(crate) fn set_nonblocking(kernel: c_int, on: bool) {
    let flags = if on { libc::O_NONBLOCK } else { 0 };
    // SAFETY: plain numbers; it cannot fail on a socket.
    unsafe { real::fcntl(kernel, libc::F_SETFL, flags as usize) };
}

/// Whether it makes sense to ask for [`beside`].
pub(crate) fn are_any() -> bool {
    ANY.load(Ordering::Acquire)
}

/// The kernel's listener beside a socket of the stack, and what keeps it.
pub(crate) fn beside(guard: &mut Guard, socket: Handle) -> Option<(c_int, Held)> {
    let world = guard.world().ok()?;
    let kernel = world.socket(socket).ok()?.kernel?;
    let mut held = Held::default();
    held.hold(world, socket).ok()?;
    Some((kernel, held))
}

/// What poll(2) has to ask the kernel of a listener.
pub(crate) fn question(kernel: c_int) -> pollfd {
    pollfd { fd: kernel, events: libc::POLLIN | libc::POLLRDNORM, revents: 0 }
}

fn has_connection(world: &mut World, listener: Handle) -> Outcome<bool> {
    Ok(world.context.readiness(listener.descriptor)?.intersects(Events::IN))
}

/// A connection of either side. Which one comes first changes each time.
///
/// # Errors
/// As accept4(2); `EINVAL`: it does not listen.
///
/// # Safety
/// The place is as accept(2) asks.
pub(crate) unsafe fn accept(
    world: &mut World,
    listener: Handle,
    flags: c_int,
    needs_number: bool,
    place: Place,
) -> Outcome<Option<Accepted>> {
    match world.context.option(listener.descriptor, OptionName::AcceptConnections) {
        Ok(SocketOption::AcceptConnections(true)) => {}
        _ => return failure(libc::EINVAL),
    }
    let state::Socket { kernel: Some(kernel), nonblocking, .. } = *world.socket(listener)? else {
        return of_stack(world, listener, flags, needs_number);
    };
    let kernel_first = world.asks_kernel_first(listener);
    for asks_kernel in [kernel_first, !kernel_first] {
        let accepted = match asks_kernel {
            // SAFETY: promised by the caller.
            true => unsafe { of_kernel(kernel, nonblocking, flags, place) }?,
            false => of_stack(world, listener, flags, needs_number)?,
        };
        if accepted.is_some() {
            return Ok(accepted);
        }
    }
    Ok(None)
}

/// Never blocks, because the stack's lock is held, also if another process has changed the listener
/// meanwhile. One that blocks is changed for the call only: a program that inherits it by exec(2)
/// finds it as it was.
///
/// # Safety
/// The place is as accept(2) asks.
unsafe fn of_kernel(
    kernel: c_int,
    nonblocking: bool,
    flags: c_int,
    place: Place,
) -> Outcome<Option<Accepted>> {
    let mut question = question(kernel);
    // SAFETY: one entry.
    if check(unsafe { real::poll(&raw mut question, 1, 0) })? == 0 {
        return Ok(None);
    }
    if !nonblocking {
        set_nonblocking(kernel, true);
    }
    // SAFETY: promised by the caller.
    let new = check(unsafe { real::accept4(kernel, place.address, place.size, flags) });
    if !nonblocking {
        set_nonblocking(kernel, false);
    }
    match new {
        Err(error) if would_block(&error) => Ok(None),
        new => Ok(Some(Accepted::Kernel(new?))),
    }
}

/// The connection's number is made first: if there is none, the connection stays in the queue. A
/// call that will sleep finds that out before (`needs_number`), as in the kernel.
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
            let handle = world.enter(number, descriptor, connection);
            world.note_peer(handle, peer);
            let peer = if socket.mapped { address::mapped(peer) } else { peer };
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
