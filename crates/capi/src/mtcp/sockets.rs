//! Implements the calls that create, connect, accept and close sockets, and read their addresses.

use super::types::{MTCP_SOCK_STREAM, mctx_t};
use super::{ThreadContext, descriptor_of, on_context, on_socket, registry, sockid_of};
use crate::address;
use crate::failure::{Failure, status, value};
use channel::Address;
use libc::{c_int, in_addr_t, sockaddr, socklen_t};
use stack::{Context, Descriptor, Family};
use std::io;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, SocketAddrV4};

/// Creates a socket, as socket(2) does (paper, Table 1).
///
/// domain: AF_INET, or AF_INET6, which then is IPv6 only. type: SOCK_STREAM, or MTCP_SOCK_STREAM,
/// which is the same. With SOCK_NONBLOCK the socket's calls do not block; SOCK_CLOEXEC has no
/// effect, because its meaning always holds. protocol: 0 or IPPROTO_TCP.
///
/// Returns its number, the lowest that is free in the context, from 0; or -1 and errno. It is not a
/// file descriptor.
///
/// Errors:
///   EAFNOSUPPORT     the domain is another one
///   ESOCKTNOSUPPORT  the type is another one
///   EPROTONOSUPPORT  the protocol is another one
///   EMFILE           socket.max_descriptors are open
#[unsafe(no_mangle)]
pub extern "C" fn mtcp_socket(
    mctx: mctx_t,
    domain: c_int,
    r#type: c_int,
    protocol: c_int,
) -> c_int {
    let created = on_context(mctx, |held| {
        let family = match domain {
            libc::AF_INET => Family::V4,
            libc::AF_INET6 => Family::V6,
            _ => {
                let text = "domain must be AF_INET or AF_INET6";
                return Err(Failure::own(libc::EAFNOSUPPORT, text));
            }
        };
        if r#type & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) != MTCP_SOCK_STREAM {
            return Err(Failure::own(libc::ESOCKTNOSUPPORT, "type must be SOCK_STREAM"));
        }
        if ![0, libc::IPPROTO_TCP].contains(&protocol) {
            return Err(Failure::own(libc::EPROTONOSUPPORT, "protocol must be 0 or IPPROTO_TCP"));
        }
        let socket = held.context.socket(family)?;
        if r#type & libc::SOCK_NONBLOCK != 0 {
            held.context.set_nonblocking(socket, true)?;
        }
        Ok(sockid_of(socket))
    });
    value(created, -1)
}

/// # Safety
///
/// `addr` must be null or point to that many bytes.
unsafe fn address_of(addr: *const sockaddr, addrlen: socklen_t) -> Result<SocketAddr, Failure> {
    if addr.is_null() {
        return Err(Failure::NULL);
    }
    let bytes = addrlen as usize;
    if bytes > size_of::<libc::sockaddr_storage>() {
        return Err(Failure::invalid(
            "addrlen exceeds the largest address: pass sizeof of its struct sockaddr",
        ));
    }
    // SAFETY: the caller guarantees readable memory of that size.
    let raw = unsafe { std::slice::from_raw_parts(addr.cast::<u8>(), bytes) };
    const FAMILY: Failure =
        Failure::own(libc::EAFNOSUPPORT, "the address must be of AF_INET or AF_INET6");
    match address::parse(raw) {
        Ok(Address::Inet(address)) => Ok(address),
        Err(failure) if failure.errno() != libc::EAFNOSUPPORT => Err(failure),
        _ => Err(FAMILY),
    }
}

/// Binds a socket to a local address, as bind(2) does (paper, Table 1). Port 0 selects a free one.
///
/// Errors:
///   EINVAL         it is bound or connected already, or addrlen does not fit the family
///   EAFNOSUPPORT   the family of the address is not that of the socket
///   EADDRNOTAVAIL  the stack does not have the address
///   EADDRINUSE     another socket has it
///
/// # Safety
///
/// addr must point to that many bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mtcp_bind(
    mctx: mctx_t,
    sockid: c_int,
    addr: *const sockaddr,
    addrlen: socklen_t,
) -> c_int {
    status(on_socket(mctx, sockid, |context, socket| {
        // SAFETY: the caller guarantees that the address is readable.
        let address = unsafe { address_of(addr, addrlen) }?;
        Ok(context.bind(socket, address)?)
    }))
}

/// Starts to listen, as listen(2) does (paper, Table 1); a socket that is not bound gets a free
/// port. Each core listens for itself: connections that steer to a core without a listener are
/// refused.
///
/// backlog: how many connections may wait for mtcp_accept(); below 0 the maximum.
///
/// Errors:
///   EINVAL           it is connected
///   EADDRINUSE       another socket listens there
///   EADDRNOTAVAIL    the stack no longer has the address
///   ENFILE           tcp.max_sockets exist
#[unsafe(no_mangle)]
pub extern "C" fn mtcp_listen(mctx: mctx_t, sockid: c_int, backlog: c_int) -> c_int {
    status(on_socket(mctx, sockid, |context, socket| {
        Ok(context.listen(socket, u32::try_from(backlog).unwrap_or(u32::MAX))?)
    }))
}

/// Accepts a connection, as accept(2) does (paper, Table 1). Calls on the new socket block, whether
/// or not those of the listener do; it has the listener's options.
///
/// addr may be NULL. Else the peer's address is written there, with *addrlen as in
/// mtcp_getpeername().
///
/// Returns the number of the new socket, or -1 and errno.
///
/// Errors:
///   EINVAL           it does not listen
///   EAGAIN           no connection waits, and the listener does not block, or SO_RCVTIMEO is over
///   EMFILE           socket.max_descriptors are open; the connection stays in the queue
///
/// # Safety
///
/// addrlen must point to the number of writable bytes at addr, unless that is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mtcp_accept(
    mctx: mctx_t,
    sockid: c_int,
    addr: *mut sockaddr,
    addrlen: *mut socklen_t,
) -> c_int {
    let accepted = on_socket(mctx, sockid, |context, listener| {
        if !addr.is_null() && addrlen.is_null() {
            return Err(Failure::NULL);
        }
        let accepted = context.accept(listener)?;
        if !addr.is_null() {
            match context.getpeername(accepted) {
                // SAFETY: the caller guarantees that the pointers are valid.
                Ok(peer) => unsafe { address::put(&peer.into(), addr, addrlen) }?,
                // The connection has ended already, which its first use reports.
                // SAFETY: the caller guarantees that the pointers are valid.
                Err(_) => unsafe { addrlen.write(0) },
            }
        }
        Ok(sockid_of(accepted))
    });
    value(accepted, -1)
}

/// Connects a socket, as connect(2) does (paper, Table 1). A blocking socket waits for the result,
/// for its SO_SNDTIMEO at most. For a non-blocking one MTCP_EPOLLOUT reports success, and
/// MTCP_EPOLLERR with SO_ERROR a failure.
///
/// Errors:
///   EINPROGRESS      it does not block and has begun, or SO_SNDTIMEO is over
///   EALREADY         it does not block and has not ended
///   EISCONN          it is connected
///   EINVAL           it listens, or addrlen does not fit the family
///   ECONNREFUSED, ETIMEDOUT, EHOSTUNREACH  the attempt has failed; you may try again
///   EADDRNOTAVAIL, EADDRINUSE  no port is free for this destination
///   EAFNOSUPPORT     the family of the address is not that of the socket
///   ENFILE           tcp.max_sockets exist
///
/// # Safety
///
/// addr must point to that many bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mtcp_connect(
    mctx: mctx_t,
    sockid: c_int,
    addr: *const sockaddr,
    addrlen: socklen_t,
) -> c_int {
    status(on_socket(mctx, sockid, |context, socket| {
        // SAFETY: the caller guarantees that the address is readable.
        let address = unsafe { address_of(addr, addrlen) }?;
        Ok(context.connect(socket, address)?)
    }))
}

/// Chooses the local addresses of connecting sockets that are not bound (paper, Table 1): num_addr
/// addresses from saddr_base on, in turn. INADDR_ANY for saddr_base leaves the choice to the stack.
///
/// daddr and dport: only for connections to that address; INADDR_ANY for all. All are in network
/// byte order. The stack always chooses a port such that the answers arrive on this core, with or
/// without this call. The call adds addresses, and with them more ports to one destination.
///
/// Errors:
///   EINVAL         num_addr is not 1 to 65536, or dport is not a port
///   EADDRNOTAVAIL  the stack does not have one of the addresses
#[unsafe(no_mangle)]
pub extern "C" fn mtcp_init_rss(
    mctx: mctx_t,
    saddr_base: in_addr_t,
    num_addr: c_int,
    daddr: in_addr_t,
    dport: in_addr_t,
) -> c_int {
    status(on_context(mctx, |held| {
        let count = match u32::try_from(num_addr) {
            Ok(count @ 1..=65_536) => count,
            _ => return Err(Failure::invalid("num_addr must be 1 to 65536")),
        };
        let port = u16::try_from(dport)
            .map_err(|_| Failure::invalid("dport must be a port in network byte order"))?;
        let address = |raw: in_addr_t| Ipv4Addr::from(raw.to_ne_bytes());
        if saddr_base == libc::INADDR_ANY {
            return Ok(());
        }
        let remote = (daddr != libc::INADDR_ANY)
            .then(|| SocketAddrV4::new(address(daddr), u16::from_be(port)).into());
        Ok(held.context.init_rss(address(saddr_base).into(), count, remote)?)
    }))
}

/// Closes a socket, an epoll instance or an end of a pipe, as close(2) does (paper, Table 1). Data
/// that was written is still sent, unless received data was not read: then the peer sees a reset.
/// With SO_LINGER the call waits as long as that says.
///
/// Errors:
///   EAGAIN  SO_LINGER was not long enough; sockid is closed nevertheless
#[unsafe(no_mangle)]
pub extern "C" fn mtcp_close(mctx: mctx_t, sockid: c_int) -> c_int {
    status(on_context(mctx, |held| {
        let descriptor = descriptor_of(sockid)?;
        held.forget_writer(descriptor);
        Ok(held.context.close(descriptor)?)
    }))
}

impl ThreadContext {
    /// Removes the writing end of a pipe from the registry, if it is one.
    fn forget_writer(&mut self, descriptor: Descriptor) {
        if let Some(at) = self.writers.iter().position(|writer| *writer == descriptor) {
            self.writers.swap_remove(at);
            drop(registry::remove_writer(self.number, descriptor));
        }
    }
}

/// Closes a socket with a reset; data that was written and not sent is lost.
#[unsafe(no_mangle)]
pub extern "C" fn mtcp_abort(mctx: mctx_t, sockid: c_int) -> c_int {
    status(on_socket(mctx, sockid, |context, socket| Ok(context.abort(socket)?)))
}

/// Ends one or both directions of a connection, as shutdown(2) does: SHUT_RD, SHUT_WR, SHUT_RDWR.
///
/// Errors:
///   ENOTCONN         it is not connected
///   EINVAL           how is not one of the three
#[unsafe(no_mangle)]
pub extern "C" fn mtcp_shutdown(mctx: mctx_t, sockid: c_int, how: c_int) -> c_int {
    status(on_socket(mctx, sockid, |context, socket| {
        let how = match how {
            libc::SHUT_RD => Shutdown::Read,
            libc::SHUT_WR => Shutdown::Write,
            libc::SHUT_RDWR => Shutdown::Both,
            _ => return Err(Failure::invalid("how must be SHUT_RD, SHUT_WR or SHUT_RDWR")),
        };
        Ok(context.shutdown(socket, how)?)
    }))
}

/// Writes an address of a socket.
///
/// # Safety
///
/// As [`mtcp_getsockname`].
unsafe fn name(
    mctx: mctx_t,
    sockid: c_int,
    addr: *mut sockaddr,
    addrlen: *mut socklen_t,
    ask: fn(&mut Context, Descriptor) -> io::Result<SocketAddr>,
) -> c_int {
    status(on_socket(mctx, sockid, |context, socket| {
        let address = ask(context, socket)?;
        // SAFETY: the caller guarantees that the pointers are valid.
        unsafe { address::put(&address.into(), addr, addrlen) }
    }))
}

/// The local address of a socket, as getsockname(2) returns it; unspecified if it has none yet.
/// *addrlen: before the call the room at addr, after it the size of the address, of which no more
/// than the room was filled.
///
/// # Safety
///
/// addrlen must point to the number of writable bytes at addr.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mtcp_getsockname(
    mctx: mctx_t,
    sockid: c_int,
    addr: *mut sockaddr,
    addrlen: *mut socklen_t,
) -> c_int {
    // SAFETY: the caller guarantees that the pointers are valid.
    unsafe { name(mctx, sockid, addr, addrlen, Context::getsockname) }
}

/// The address of the other side of a connection, as getpeername(2) returns it. *addrlen as in
/// mtcp_getsockname().
///
/// Errors:
///   ENOTCONN         it is not connected
///
/// # Safety
///
/// As mtcp_getsockname().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mtcp_getpeername(
    mctx: mctx_t,
    sockid: c_int,
    addr: *mut sockaddr,
    addrlen: *mut socklen_t,
) -> c_int {
    // SAFETY: the caller guarantees that the pointers are valid.
    unsafe { name(mctx, sockid, addr, addrlen, Context::getpeername) }
}
