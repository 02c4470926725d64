//! From socket(2) to shutdown(2).

use super::descriptors;
use crate::outcome::{Outcome, failure, number, would_block};
use crate::state::{self, Guard, Socket, World};
use crate::table::{self, Handle, Kind};
use crate::wait::{self, Deadline, Interrupted};
use crate::{address, adopt, fork, report};
use core::ffi::c_int;
use libc::{sockaddr, socklen_t};
use mtcp::{Events, Family, OptionName, SocketOption};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn socket(family: c_int, kind: c_int, protocol: c_int) -> c_int {
    // SAFETY: plain numbers.
    let fd = unsafe { real::socket(family, kind, protocol) };
    descriptors::arrived(fd);
    let stream = kind & !(libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) == libc::SOCK_STREAM;
    let internet = matches!(family, libc::AF_INET | libc::AF_INET6);
    let tcp = matches!(protocol, 0 | libc::IPPROTO_TCP);
    let concerns = stream && internet && tcp && crate::settings::config().is_some();
    if fd >= 0 && concerns && fork::is_own_process() {
        table::set(fd, Kind::Fresh);
    }
    fd
}

fn family_of(address: SocketAddr) -> Family {
    if address.is_ipv4() { Family::V4 } else { Family::V6 }
}

/// Whether the stack has an address of the family that a socket is bound to in general, or has the
/// very address.
fn is_of_stack(address: IpAddr) -> bool {
    let mut own = address::of_stack().into_iter();
    if address.is_unspecified() {
        return own.any(|other| other.is_ipv4() == address.is_ipv4());
    }
    own.any(|other| other == address)
}

/// Whether a socket of IPv6, which is not the stack's yet, listens to an IPv4 address of the stack
/// as well.
fn takes_both(fd: c_int) -> bool {
    !adopt::is_ipv6_only(fd) && is_of_stack(Ipv4Addr::UNSPECIFIED.into())
}

fn bind_here(fd: c_int, at: SocketAddr) -> Outcome<Option<c_int>> {
    let (local, mapped) = address::unmapped(at);
    match table::kind(fd) {
        Kind::Socket(socket) => {
            bind_socket(&mut state::lock()?, socket, local)?;
            Ok(Some(0))
        }
        // On all addresses it is not known yet whether the socket will listen or connect, and
        // where to.
        Kind::Fresh
            if !local.ip().is_unspecified()
                && is_of_stack(local.ip())
                && address::suits(fd, at) =>
        {
            let mut guard = state::lock()?;
            let socket = adopt::adopt(&mut guard, fd, family_of(local), mapped)?;
            bind_or_disown(&mut guard, socket, local)?;
            Ok(Some(0))
        }
        _ => Ok(None),
    }
}

fn bind_socket(guard: &mut Guard, socket: Handle, local: SocketAddr) -> Outcome<()> {
    let world = guard.world()?;
    let descriptor = world.check(socket)?;
    world.context.bind(descriptor, local)
}

fn bind_or_disown(guard: &mut Guard, socket: Handle, local: SocketAddr) -> Outcome<()> {
    let outcome = bind_socket(guard, socket, local);
    if outcome.is_err() {
        adopt::disown(guard, socket);
    }
    outcome
}

fn listen_on(guard: &mut Guard, socket: Handle, backlog: u32) -> Outcome<()> {
    let world = guard.world()?;
    let descriptor = world.check(socket)?;
    world.context.listen(descriptor, backlog)
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn bind(
    fd: c_int,
    address: *const sockaddr,
    size: socklen_t,
) -> c_int {
    if matches!(table::kind(fd), Kind::Fresh | Kind::Socket(_))
        // SAFETY: the application's address, as bind(2) asks.
        && let Some(at) = unsafe { address::from_c(address, size) }
        && let Some(done) = bind_here(fd, at).transpose()
    {
        return number(done);
    }
    // SAFETY: as above.
    unsafe { real::bind(fd, address, size) }
}

fn listen_here(fd: c_int, backlog: c_int) -> Outcome<Option<c_int>> {
    let backlog = u32::try_from(backlog).unwrap_or(0);
    match table::kind(fd) {
        Kind::Inherited => failure(libc::ENETDOWN),
        Kind::Socket(socket) => {
            listen_on(&mut state::lock()?, socket, backlog)?;
            Ok(Some(0))
        }
        Kind::Fresh => {
            let Some(local) = address::bound_to(fd) else { return Ok(None) };
            let (local, mapped) = address::unmapped(local);
            let concerns = is_of_stack(local.ip()) || local.is_ipv6() && takes_both(fd);
            if !local.ip().is_unspecified() || !concerns {
                return Ok(None);
            }
            let mut guard = state::lock()?;
            let socket = adopt::adopt(&mut guard, fd, family_of(local), mapped)?;
            bind_or_disown(&mut guard, socket, local)?;
            report::note(format_args!(
                "descriptor {fd} listens on {local} on the stack's addresses, not on the kernel's"
            ));
            let outcome = listen_on(&mut guard, socket, backlog);
            if outcome.is_err() {
                adopt::disown(&mut guard, socket);
            }
            outcome.map(|()| Some(0))
        }
        _ => Ok(None),
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn listen(fd: c_int, backlog: c_int) -> c_int {
    match listen_here(fd, backlog).transpose() {
        Some(done) => number(done),
        // SAFETY: plain numbers.
        None => unsafe { real::listen(fd, backlog) },
    }
}

/// Whether this program listens there on the stack; an address that is shared has the kernel's
/// listeners, too.
fn stack_listens(remote: SocketAddr) -> bool {
    let listens = || -> Outcome<bool> { Ok(state::lock()?.world()?.context.is_listening(remote)) };
    is_of_stack(remote.ip()) && listens().unwrap_or(false)
}

fn connect_here(fd: c_int, to: SocketAddr) -> Outcome<Option<c_int>> {
    let (remote, mapped) = address::unmapped(to);
    let socket = match table::kind(fd) {
        Kind::Socket(socket) => socket,
        Kind::Fresh
            if address::suits(fd, to)
                && (address::leads_through_stack(remote.ip()) || stack_listens(remote)) =>
        {
            let bound = address::bound_to(fd);
            let mut guard = state::lock()?;
            let socket = adopt::adopt(&mut guard, fd, family_of(remote), mapped)?;
            if let Some(port) = bound.map(|local| local.port()).filter(|port| *port != 0) {
                let all: IpAddr = match family_of(remote) {
                    Family::V4 => Ipv4Addr::UNSPECIFIED.into(),
                    Family::V6 => std::net::Ipv6Addr::UNSPECIFIED.into(),
                };
                bind_or_disown(&mut guard, socket, SocketAddr::new(all, port))?;
            }
            socket
        }
        _ => return Ok(None),
    };
    connect_stream(socket, remote).map(|()| Some(0))
}

fn connect_stream(socket: Handle, remote: SocketAddr) -> Outcome<()> {
    let descriptor = socket.descriptor;
    let deadline = {
        let mut guard = state::lock()?;
        let world = guard.world()?;
        world.check(socket)?;
        let begun = world.context.connect(descriptor, remote);
        // A call on a socket that is connected, or about to be, may name another peer.
        let is_new = |error: &io::Error| error.raw_os_error() == Some(libc::EINPROGRESS);
        if begun.as_ref().is_err_and(is_new) {
            world.note_peer(socket, remote);
        }
        let pending = |error: &std::io::Error| {
            matches!(error.raw_os_error(), Some(libc::EINPROGRESS | libc::EALREADY))
        };
        match begun {
            Err(error) if pending(&error) && !world.socket(socket)?.nonblocking => {}
            done => return done,
        }
        match world.context.option(descriptor, OptionName::SendTimeout) {
            Ok(SocketOption::SendTimeout(time)) => Deadline::after(time),
            _ => Deadline::Never,
        }
    };
    let done = wait::until(deadline, Some(socket), &[], Interrupted::of(deadline), |world| {
        world.context.turn()?;
        match world.context.connect(descriptor, remote) {
            Err(error) if error.raw_os_error() == Some(libc::EALREADY) => Ok(None),
            done => done.map(Some),
        }
    })?;
    done.map_or_else(|| failure(libc::EINPROGRESS), Ok)
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn connect(
    fd: c_int,
    address: *const sockaddr,
    size: socklen_t,
) -> c_int {
    if let Kind::Socket(socket) = table::kind(fd)
        // SAFETY: the application's address, as connect(2) asks.
        && unsafe { address::is_none(address, size) }
    {
        let end = || {
            let mut guard = state::lock()?;
            let world = guard.world()?;
            world.check(socket)?;
            world.context.disconnect(socket.descriptor).map(|()| 0)
        };
        return number(end());
    }
    if matches!(table::kind(fd), Kind::Fresh | Kind::Socket(_))
        // SAFETY: the application's address, as connect(2) asks.
        && let Some(to) = unsafe { address::from_c(address, size) }
        && let Some(done) = connect_here(fd, to).transpose()
    {
        return number(done);
    }
    // SAFETY: as above.
    unsafe { real::connect(fd, address, size) }
}

/// A new connection, its number, and its peer.
fn accept_stream(listener: Handle, flags: c_int) -> Outcome<(c_int, SocketAddr)> {
    let deadline = {
        let mut guard = state::lock_quietly()?;
        let world = guard.world()?;
        let nonblocking = world.socket(listener)?.nonblocking;
        match world.context.option(listener.descriptor, OptionName::ReceiveTimeout) {
            _ if nonblocking => Deadline::Now,
            Ok(SocketOption::ReceiveTimeout(time)) => Deadline::after(time),
            _ => Deadline::Never,
        }
    };
    let mut tried = false;
    let interrupted = Interrupted::of(deadline);
    let accepted = wait::until(deadline, Some(listener), &[], interrupted, |world| {
        let waits = !matches!(deadline, Deadline::Now);
        accept_once(world, listener, flags, waits && !std::mem::replace(&mut tried, true))
    })?;
    accepted.map_or_else(|| failure(libc::EAGAIN), Ok)
}

fn has_connection(world: &mut World, listener: Handle) -> Outcome<bool> {
    Ok(world.context.readiness(listener.descriptor)?.intersects(Events::IN))
}

/// The connection's number is made first: if there is none, the connection stays in the queue. A
/// call that will sleep finds that out before (`needs_number`), as in the kernel.
fn accept_once(
    world: &mut World,
    listener: Handle,
    flags: c_int,
    needs_number: bool,
) -> Outcome<Option<(c_int, SocketAddr)>> {
    let socket = *world.socket(listener)?;
    match world.context.option(listener.descriptor, OptionName::AcceptConnections) {
        Ok(SocketOption::AcceptConnections(true)) => {}
        _ => return failure(libc::EINVAL),
    }
    if !has_connection(world, listener)? {
        world.context.turn()?;
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
            let handle = world.enter(number, descriptor, Socket { nonblocking, ..socket });
            world.note_peer(handle, peer);
            let peer = if socket.mapped { address::mapped(peer) } else { peer };
            Ok(Some((number, peer)))
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

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn accept4(
    fd: c_int,
    address: *mut sockaddr,
    size: *mut socklen_t,
    flags: c_int,
) -> c_int {
    let Kind::Socket(listener) = table::kind(fd) else {
        // SAFETY: the application's pointers, as accept(2) asks.
        let new = unsafe { real::accept4(fd, address, size, flags) };
        descriptors::arrived(new);
        return new;
    };
    number(accept_stream(listener, flags).map(|(fd, peer)| {
        // SAFETY: as above.
        unsafe { address::to_c(peer, address, size) };
        fd
    }))
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn accept(
    fd: c_int,
    address: *mut sockaddr,
    size: *mut socklen_t,
) -> c_int {
    // SAFETY: as above.
    unsafe { accept4(fd, address, size, 0) }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn shutdown(fd: c_int, how: c_int) -> c_int {
    let Kind::Socket(socket) = table::kind(fd) else {
        // SAFETY: plain numbers.
        return unsafe { real::shutdown(fd, how) };
    };
    let how = match how {
        libc::SHUT_RD => std::net::Shutdown::Read,
        libc::SHUT_WR => std::net::Shutdown::Write,
        libc::SHUT_RDWR => std::net::Shutdown::Both,
        _ => return number(failure(libc::EINVAL)),
    };
    let shut = || {
        let mut guard = state::lock()?;
        let world = guard.world()?;
        let descriptor = world.check(socket)?;
        world.context.shutdown(descriptor, how).map(|()| 0)
    };
    number(shut())
}

/// # Safety
/// As for [`address::to_c`].
unsafe fn name(
    socket: Handle,
    address: *mut sockaddr,
    size: *mut socklen_t,
    peer: bool,
) -> Outcome<c_int> {
    let mut guard = state::lock_quietly()?;
    let world = guard.world()?;
    let descriptor = world.check(socket)?;
    let found = match peer {
        true => world.context.getpeername(descriptor)?,
        false => world.context.getsockname(descriptor)?,
    };
    let mapped = world.socket(socket)?.mapped;
    let found = if mapped { address::mapped(found) } else { found };
    // SAFETY: promised by the caller.
    unsafe { address::to_c(found, address, size) };
    Ok(0)
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn getsockname(
    fd: c_int,
    address: *mut sockaddr,
    size: *mut socklen_t,
) -> c_int {
    match table::kind(fd) {
        // SAFETY: the application's pointers, as getsockname(2) asks.
        Kind::Socket(socket) => number(unsafe { name(socket, address, size, false) }),
        // SAFETY: as above.
        _ => unsafe { real::getsockname(fd, address, size) },
    }
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn getpeername(
    fd: c_int,
    address: *mut sockaddr,
    size: *mut socklen_t,
) -> c_int {
    match table::kind(fd) {
        // SAFETY: the application's pointers, as getpeername(2) asks.
        Kind::Socket(socket) => number(unsafe { name(socket, address, size, true) }),
        // SAFETY: as above.
        _ => unsafe { real::getpeername(fd, address, size) },
    }
}
