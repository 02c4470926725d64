//! From socket(2) to shutdown(2).

use crate::outcome::{Outcome, failure, number, would_block};
use crate::state::{self, Guard};
use crate::table::{self, Kind};
use crate::wait::{self, Deadline, Interrupted};
use crate::{address, adopt, report};
use core::ffi::c_int;
use libc::{sockaddr, socklen_t};
use mtcp::{Descriptor, Family, OptionName, SocketOption};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

#[unsafe(no_mangle)]
unsafe extern "C" fn socket(family: c_int, kind: c_int, protocol: c_int) -> c_int {
    // SAFETY: plain numbers.
    let fd = unsafe { real::socket(family, kind, protocol) };
    let stream = kind & !(libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) == libc::SOCK_STREAM;
    let internet = matches!(family, libc::AF_INET | libc::AF_INET6);
    let tcp = matches!(protocol, 0 | libc::IPPROTO_TCP);
    if fd >= 0 && stream && internet && tcp && crate::settings::config().is_some() {
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
        Kind::Socket(descriptor) => {
            state::lock()?.world()?.context.bind(descriptor, local)?;
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
            let descriptor = adopt::adopt(&mut guard, fd, family_of(local), mapped)?;
            bind_or_disown(&mut guard, fd, descriptor, local)?;
            Ok(Some(0))
        }
        _ => Ok(None),
    }
}

fn bind_or_disown(
    guard: &mut Guard,
    fd: c_int,
    descriptor: Descriptor,
    local: SocketAddr,
) -> Outcome<()> {
    let outcome = guard.world()?.context.bind(descriptor, local);
    if outcome.is_err() {
        adopt::disown(guard, fd, descriptor);
    }
    outcome
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bind(fd: c_int, address: *const sockaddr, size: socklen_t) -> c_int {
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
        Kind::Socket(descriptor) => {
            state::lock()?.world()?.context.listen(descriptor, backlog)?;
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
            let descriptor = adopt::adopt(&mut guard, fd, family_of(local), mapped)?;
            bind_or_disown(&mut guard, fd, descriptor, local)?;
            report::note(format_args!(
                "descriptor {fd} listens on {local} on the stack's addresses, not on the kernel's"
            ));
            let outcome = guard.world()?.context.listen(descriptor, backlog);
            if outcome.is_err() {
                adopt::disown(&mut guard, fd, descriptor);
            }
            outcome.map(|()| Some(0))
        }
        _ => Ok(None),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn listen(fd: c_int, backlog: c_int) -> c_int {
    match listen_here(fd, backlog).transpose() {
        Some(done) => number(done),
        // SAFETY: plain numbers.
        None => unsafe { real::listen(fd, backlog) },
    }
}

fn connect_here(fd: c_int, to: SocketAddr) -> Outcome<Option<c_int>> {
    let (remote, mapped) = address::unmapped(to);
    let descriptor = match table::kind(fd) {
        Kind::Socket(descriptor) => descriptor,
        Kind::Fresh if address::leads_through_stack(remote.ip()) && address::suits(fd, to) => {
            let bound = address::bound_to(fd);
            let mut guard = state::lock()?;
            let descriptor = adopt::adopt(&mut guard, fd, family_of(remote), mapped)?;
            if let Some(port) = bound.map(|local| local.port()).filter(|port| *port != 0) {
                let all: IpAddr = match family_of(remote) {
                    Family::V4 => Ipv4Addr::UNSPECIFIED.into(),
                    Family::V6 => std::net::Ipv6Addr::UNSPECIFIED.into(),
                };
                bind_or_disown(&mut guard, fd, descriptor, SocketAddr::new(all, port))?;
            }
            descriptor
        }
        _ => return Ok(None),
    };
    connect_stream(descriptor, remote).map(|()| Some(0))
}

fn connect_stream(descriptor: Descriptor, remote: SocketAddr) -> Outcome<()> {
    let deadline = {
        let mut guard = state::lock()?;
        let world = guard.world()?;
        let begun = world.context.connect(descriptor, remote);
        let pending = |error: &std::io::Error| {
            matches!(error.raw_os_error(), Some(libc::EINPROGRESS | libc::EALREADY))
        };
        match begun {
            Err(error) if pending(&error) && !world.socket(descriptor)?.nonblocking => {}
            done => return done,
        }
        match world.context.option(descriptor, OptionName::SendTimeout) {
            Ok(SocketOption::SendTimeout(time)) => Deadline::after(time),
            _ => Deadline::Never,
        }
    };
    let done = wait::until(deadline, &[], Interrupted::of(deadline), |world| {
        world.context.turn()?;
        match world.context.connect(descriptor, remote) {
            Err(error) if error.raw_os_error() == Some(libc::EALREADY) => Ok(None),
            done => done.map(Some),
        }
    })?;
    done.map_or_else(|| failure(libc::EINPROGRESS), Ok)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn connect(fd: c_int, address: *const sockaddr, size: socklen_t) -> c_int {
    if let Kind::Socket(descriptor) = table::kind(fd)
        // SAFETY: the application's address, as connect(2) asks.
        && unsafe { address::is_none(address, size) }
    {
        let end = || state::lock()?.world()?.context.disconnect(descriptor).map(|()| 0);
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
fn accept_stream(listener: Descriptor, flags: c_int) -> Outcome<(c_int, SocketAddr)> {
    let nonblocking = state::lock()?.world()?.socket(listener)?.nonblocking;
    let deadline = if nonblocking { Deadline::Now } else { Deadline::Never };
    let accepted = wait::until(deadline, &[], Interrupted::of(deadline), |world| {
        let descriptor = match world.context.accept(listener) {
            Err(error) if would_block(&error) => {
                world.context.turn()?;
                match world.context.accept(listener) {
                    Err(error) if would_block(&error) => return Ok(None),
                    accepted => accepted?,
                }
            }
            accepted => accepted?,
        };
        let socket = *world.socket(listener)?;
        let close_on_exec = flags & libc::SOCK_CLOEXEC != 0;
        let peer = world.context.getpeername(descriptor);
        match world.new_number(socket.family, close_on_exec).and_then(|fd| Ok((fd, peer?))) {
            Ok((fd, peer)) => {
                world.context.set_nonblocking(descriptor, true)?;
                let nonblocking = flags & libc::SOCK_NONBLOCK != 0;
                world.enter(fd, descriptor, (socket.family, nonblocking, socket.mapped));
                let peer = if socket.mapped { address::mapped(peer) } else { peer };
                Ok(Some((fd, peer)))
            }
            Err(error) => {
                world.context.abort(descriptor)?;
                Err(error)
            }
        }
    })?;
    accepted.map_or_else(|| failure(libc::EAGAIN), Ok)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn accept4(
    fd: c_int,
    address: *mut sockaddr,
    size: *mut socklen_t,
    flags: c_int,
) -> c_int {
    let Kind::Socket(listener) = table::kind(fd) else {
        // SAFETY: the application's pointers, as accept(2) asks.
        return unsafe { real::accept4(fd, address, size, flags) };
    };
    number(accept_stream(listener, flags).map(|(fd, peer)| {
        // SAFETY: as above.
        unsafe { address::to_c(peer, address, size) };
        fd
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn accept(fd: c_int, address: *mut sockaddr, size: *mut socklen_t) -> c_int {
    // SAFETY: as above.
    unsafe { accept4(fd, address, size, 0) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn shutdown(fd: c_int, how: c_int) -> c_int {
    let Kind::Socket(descriptor) = table::kind(fd) else {
        // SAFETY: plain numbers.
        return unsafe { real::shutdown(fd, how) };
    };
    let how = match how {
        libc::SHUT_RD => std::net::Shutdown::Read,
        libc::SHUT_WR => std::net::Shutdown::Write,
        libc::SHUT_RDWR => std::net::Shutdown::Both,
        _ => return number(failure(libc::EINVAL)),
    };
    let shut = || state::lock()?.world()?.context.shutdown(descriptor, how).map(|()| 0);
    number(shut())
}

/// # Safety
/// As for [`address::to_c`].
unsafe fn name(
    descriptor: Descriptor,
    address: *mut sockaddr,
    size: *mut socklen_t,
    peer: bool,
) -> Outcome<c_int> {
    let mut guard = state::lock()?;
    let world = guard.world()?;
    let found = match peer {
        true => world.context.getpeername(descriptor)?,
        false => world.context.getsockname(descriptor)?,
    };
    let mapped = world.socket(descriptor)?.mapped;
    let found = if mapped { address::mapped(found) } else { found };
    // SAFETY: promised by the caller.
    unsafe { address::to_c(found, address, size) };
    Ok(0)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn getsockname(fd: c_int, address: *mut sockaddr, size: *mut socklen_t) -> c_int {
    match table::kind(fd) {
        // SAFETY: the application's pointers, as getsockname(2) asks.
        Kind::Socket(descriptor) => number(unsafe { name(descriptor, address, size, false) }),
        // SAFETY: as above.
        _ => unsafe { real::getsockname(fd, address, size) },
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn getpeername(fd: c_int, address: *mut sockaddr, size: *mut socklen_t) -> c_int {
    match table::kind(fd) {
        // SAFETY: the application's pointers, as getpeername(2) asks.
        Kind::Socket(descriptor) => number(unsafe { name(descriptor, address, size, true) }),
        // SAFETY: as above.
        _ => unsafe { real::getpeername(fd, address, size) },
    }
}
