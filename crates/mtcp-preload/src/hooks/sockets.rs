//! Implements the hooks for sockets: from socket(2) to shutdown(2).

use super::{Library, descriptors};
use crate::listener::{self, Accepted, PeerNameBuffer};
use crate::outcome::{Outcome, check, failure, number};
use crate::state::{self, Guard};
use crate::table::{self, Handle, Kind};
use crate::wait::{self, Interrupted};
use crate::{address, adopt, epoll, options, settings, shutdowns};
use core::ffi::c_int;
use libc::{sockaddr, socklen_t};
use mtcp::Family;
use preload::deadline::Deadline;
use preload::hooks::sockets::Sockets;
use preload::real;
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr};
use sys::socket_address;

fn family_of(address: SocketAddr) -> Family {
    if address.is_ipv4() { Family::V4 } else { Family::V6 }
}

/// Returns whether the stack has this address or, for an unspecified address, any address of its
/// family.
fn is_of_stack(address: IpAddr) -> Outcome<bool> {
    let mut own = address::of_stack()?.into_iter();
    if address.is_unspecified() {
        return Ok(own.any(|other| other.is_ipv4() == address.is_ipv4()));
    }
    Ok(own.any(|other| other == address))
}

/// Returns whether an IPv6 socket, which is not the stack's yet, also listens on an IPv4 address of
/// the stack.
fn takes_both(fd: c_int) -> Outcome<bool> {
    Ok(!options::is_ipv6_only(fd)? && is_of_stack(Ipv4Addr::UNSPECIFIED.into())?)
}

fn bind_here(fd: c_int, at: SocketAddr) -> Outcome<Option<c_int>> {
    let unmapped = socket_address::unmapped(at);
    let (local, mapped) = (unmapped.unwrap_or(at), unmapped.is_some());
    match table::kind(fd) {
        Kind::Socket(socket) => {
            bind_socket(&mut state::lock()?, socket, local)?;
            Ok(Some(0))
        }
        // If the socket is bound to all addresses, it is not known yet whether it will listen or
        // connect, and to which address.
        Kind::Fresh
            if !local.ip().is_unspecified()
                && is_of_stack(local.ip())?
                && address::suits(fd, at)? =>
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
    // SAFETY: the application's address, as bind(2) asks.
    unsafe { real::bind(fd, address, size) }
}

/// Makes a socket of the stack listen, for the first time or with another backlog.
fn listen_again(socket: Handle, backlog: c_int) -> Outcome<()> {
    let mut guard = state::lock()?;
    listen_on(&mut guard, socket, queue(backlog))?;
    let world = guard.world()?;
    match world.socket(socket)?.kernel {
        Some(kernel) => {
            let port = world.context.getsockname(socket.descriptor)?.port();
            listener::listen_again(kernel, backlog, port)
        }
        None => Ok(()),
    }
}

/// Creates a socket of the stack from a kernel socket that listens on all addresses.
fn listen_everywhere(fd: c_int, at: SocketAddr, backlog: c_int) -> Outcome<()> {
    let unmapped = socket_address::unmapped(at);
    let (local, mapped) = (unmapped.unwrap_or(at), unmapped.is_some());
    let mut guard = state::lock()?;
    let watches = epoll::early_watches(&mut guard, fd);
    let socket = adopt::adopt(&mut guard, fd, family_of(local), mapped)?;
    bind_or_disown(&mut guard, socket, local)?;
    let outcome = listen_on(&mut guard, socket, queue(backlog))
        .and_then(|()| adopt::keep_listening(&mut guard, fd, socket, &watches));
    if outcome.is_err() {
        adopt::disown(&mut guard, socket);
    }
    outcome
}

fn queue(backlog: c_int) -> u32 {
    u32::try_from(backlog).unwrap_or(0)
}

fn listen_here(fd: c_int, backlog: c_int) -> Outcome<Option<c_int>> {
    match table::kind(fd) {
        Kind::Inherited => failure(libc::ENETDOWN),
        Kind::Socket(socket) => listen_again(socket, backlog).map(|()| Some(0)),
        Kind::Fresh => {
            let Some(local) = address::bound_to(fd)? else { return Ok(None) };
            let local = socket_address::unmapped(local).unwrap_or(local);
            let concerns = is_of_stack(local.ip())? || local.is_ipv6() && takes_both(fd)?;
            if !local.ip().is_unspecified() || !concerns {
                return Ok(None);
            }
            let local = listener::listen(fd, backlog)?;
            let outcome = listen_everywhere(fd, local, backlog);
            if outcome.is_err() {
                listener::stop(fd);
            }
            outcome.map(|()| Some(0))
        }
        _ => Ok(None),
    }
}

/// Returns whether this program listens at this address on the stack. A shared address can also
/// have listeners of the kernel.
fn stack_listens(remote: SocketAddr) -> Outcome<bool> {
    let listens = || -> Outcome<bool> { Ok(state::lock()?.world()?.context.is_listening(remote)) };
    Ok(is_of_stack(remote.ip())? && listens().unwrap_or(false))
}

fn connect_here(fd: c_int, to: SocketAddr) -> Outcome<Option<c_int>> {
    let unmapped = socket_address::unmapped(to);
    let (remote, mapped) = (unmapped.unwrap_or(to), unmapped.is_some());
    let socket = match table::kind(fd) {
        Kind::Socket(socket) => socket,
        Kind::Fresh
            if address::suits(fd, to)?
                && (address::leads_through_stack(remote.ip())? || stack_listens(remote)?) =>
        {
            let bound = address::bound_to(fd)?;
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
        let pending = |error: &std::io::Error| {
            matches!(error.raw_os_error(), Some(libc::EINPROGRESS | libc::EALREADY))
        };
        match begun {
            Err(error) if pending(&error) && !world.socket(socket)?.nonblocking => {}
            done => return done,
        }
        Deadline::after(world.context.send_timeout(descriptor)?)
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

/// Accepts a new connection.
///
/// # Safety
/// `place` is valid as accept(2) requires.
unsafe fn accept_stream(
    listener: Handle,
    flags: c_int,
    place: PeerNameBuffer,
) -> Outcome<Accepted> {
    let (deadline, kernel) = {
        let mut guard = state::lock_quietly()?;
        let world = guard.world()?;
        let socket = *world.socket(listener)?;
        let deadline = match socket.nonblocking {
            true => Deadline::Now,
            false => Deadline::after(world.context.receive_timeout(listener.descriptor)?),
        };
        (deadline, socket.kernel.map(listener::question))
    };
    let mut tried = false;
    let interrupted = Interrupted::of(deadline);
    let accepted =
        wait::until(deadline, Some(listener), kernel.as_slice(), interrupted, |world| {
            let waits = !matches!(deadline, Deadline::Now);
            let needs_number = waits && !std::mem::replace(&mut tried, true);
            // SAFETY: the caller guarantees this.
            unsafe { listener::accept(world, listener, flags, needs_number, place) }
        })?;
    accepted.map_or_else(|| failure(libc::EAGAIN), Ok)
}

/// Records a shutdown of a socket that is not connected. The call fails as in the kernel, and the
/// direction stays shut when the socket is connected.
fn shut_early(fd: c_int, how: c_int, way: Shutdown) -> Outcome<c_int> {
    // SAFETY: the call takes only numbers.
    let done = check(unsafe { real::shutdown(fd, how) });
    if let Err(error) = &done
        && error.raw_os_error() == Some(libc::ENOTCONN)
    {
        shutdowns::note(fd, way)?;
    }
    done
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
    let found = if mapped { socket_address::mapped(found) } else { found };
    // SAFETY: the caller guarantees this.
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
        // SAFETY: the application's pointers, as getsockname(2) asks.
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
        // SAFETY: the application's pointers, as getpeername(2) asks.
        _ => unsafe { real::getpeername(fd, address, size) },
    }
}

impl Sockets for Library {
    fn opened(fd: c_int, family: c_int, kind: c_int, protocol: c_int) {
        descriptors::arrived(fd);
        let stream = kind & !(libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) == libc::SOCK_STREAM;
        let internet = matches!(family, libc::AF_INET | libc::AF_INET6);
        let tcp = matches!(protocol, 0 | libc::IPPROTO_TCP);
        let concerns = stream && internet && tcp && settings::config().is_some();
        if fd >= 0 && concerns && state::is_own_process() {
            table::set(fd, Kind::Fresh);
        }
    }

    fn listen(fd: c_int, backlog: c_int) -> Option<c_int> {
        listen_here(fd, backlog).transpose().map(number)
    }

    unsafe fn connect(fd: c_int, address: *const sockaddr, size: socklen_t) -> Option<c_int> {
        if let Kind::Socket(socket) = table::kind(fd)
            // SAFETY: the application's address, as connect(2) asks.
            && unsafe { address::is_none(address, size) }
        {
            let end = || {
                let mut guard = state::lock()?;
                let world = guard.world()?;
                world.check(socket)?;
                if let Some(kernel) = world.socket(socket)?.kernel.take() {
                    listener::stop(kernel);
                    table::close_hidden(kernel);
                }
                world.context.disconnect(socket.descriptor).map(|()| 0)
            };
            return Some(number(end()));
        }
        if matches!(table::kind(fd), Kind::Fresh | Kind::Socket(_))
            // SAFETY: the application's address, as connect(2) asks.
            && let Some(to) = unsafe { address::from_c(address, size) }
            && let Some(done) = connect_here(fd, to).transpose()
        {
            return Some(number(done));
        }
        if table::kind(fd) == Kind::Fresh
            && let Ok(mut guard) = state::lock_quietly()
        {
            // A failed connect of the kernel, and AF_UNSPEC, end the recorded shutdowns.
            shutdowns::take(&mut guard, fd);
        }
        None
    }

    unsafe fn accept(
        listener: c_int,
        address: *mut sockaddr,
        size: *mut socklen_t,
        flags: c_int,
    ) -> Option<c_int> {
        let listener = match table::kind(listener) {
            Kind::Socket(listener) => listener,
            Kind::Inherited => return Some(number(failure(libc::EINVAL))),
            _ => return None,
        };
        // SAFETY: the application's pointers, as accept(2) asks.
        let accepted = unsafe { accept_stream(listener, flags, PeerNameBuffer { address, size }) };
        Some(number(accepted.map(|accepted| match accepted {
            Accepted::Kernel(fd) => {
                descriptors::arrived(fd);
                fd
            }
            Accepted::Stack(fd, peer) => {
                // SAFETY: the application's pointers, as accept(2) asks.
                unsafe { address::to_c(peer, address, size) };
                fd
            }
        })))
    }

    fn accepted(_: c_int, fd: c_int) {
        descriptors::arrived(fd);
    }

    fn shutdown(fd: c_int, how: c_int) -> Option<c_int> {
        let way = match how {
            libc::SHUT_RD => Some(Shutdown::Read),
            libc::SHUT_WR => Some(Shutdown::Write),
            libc::SHUT_RDWR => Some(Shutdown::Both),
            _ => None,
        };
        let socket = match (table::kind(fd), way) {
            (Kind::Socket(socket), _) => socket,
            (Kind::Fresh, Some(way)) => return Some(number(shut_early(fd, how, way))),
            _ => return None,
        };
        let Some(way) = way else { return Some(number(failure(libc::EINVAL))) };
        let shut = || {
            let mut guard = state::lock()?;
            let world = guard.world()?;
            let descriptor = world.check(socket)?;
            world.context.shutdown(descriptor, way)?;
            if let Some(kernel) = world.socket(socket)?.kernel {
                // SAFETY: the call takes only numbers.
                unsafe { real::shutdown(kernel, how) };
            }
            Ok(0)
        };
        Some(number(shut()))
    }
}
