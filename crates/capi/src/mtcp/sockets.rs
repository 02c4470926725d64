//! Sockets from their creation to their end, and their addresses.

use super::types::{MTCP_SOCK_STREAM, mctx_t};
use super::{Held, descriptor_of, on_context, on_socket, registry, sockid_of};
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
/// which is the same; with SOCK_NONBLOCK its calls do not block; SOCK_CLOEXEC says what holds
/// anyway. protocol: 0 or IPPROTO_TCP.
///
/// Returns its number, the lowest that is free in the context, from 0; or -1 and errno. It is no
/// file descriptor.
///
/// Errors:
///   EAFNOSUPPORT     the domain is another
///   ESOCKTNOSUPPORT  the type is another
///   EPROTONOSUPPORT  the protocol is another
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
        return Err(Failure::invalid("addrlen is larger than any address"));
    }
    // SAFETY: the caller vouches for that many bytes.
    let raw = unsafe { std::slice::from_raw_parts(addr.cast::<u8>(), bytes) };
    const FAMILY: Failure =
        Failure::own(libc::EAFNOSUPPORT, "the address must be of AF_INET or AF_INET6");
    match address::parse(raw) {
        Ok(Address::Inet(address)) => Ok(address),
        Err(failure) if failure.errno() != libc::EAFNOSUPPORT => Err(failure),
        _ => Err(FAMILY),
    }
}

/// Gives a socket its local address, as bind(2) does (paper, Table 1). Port 0 takes a free one.
///
/// Errors:
///   EINVAL         it is bound or connected already, or addrlen does not suit the family
///   EAFNOSUPPORT   the family of the address is not that of the socket
///   EADDRNOTAVAIL  the address is none of the stack's
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
        // SAFETY: the caller vouches for the address.
        let address = unsafe { address_of(addr, addrlen) }?;
        Ok(context.bind(socket, address)?)
    }))
}

/// Begins to listen, as listen(2) does (paper, Table 1); a socket that is not bound gets a free
/// port. Each core listens for itself: connections that steer to a core on which none listens are
/// refused.
///
/// backlog: how many connections may wait for mtcp_accept(); below 0 as many as can be.
///
/// Errors:
///   EINVAL           it is connected
///   EADDRINUSE       another socket listens there
///   EADDRNOTAVAIL    the address is the stack's no more
///   ENFILE           tcp.max_sockets exist
#[unsafe(no_mangle)]
pub extern "C" fn mtcp_listen(mctx: mctx_t, sockid: c_int, backlog: c_int) -> c_int {
    status(on_socket(mctx, sockid, |context, socket| {
        Ok(context.listen(socket, u32::try_from(backlog).unwrap_or(u32::MAX))?)
    }))
}

/// Takes a connection that has come in, as accept(2) does (paper, Table 1). Its calls block,
/// whether or not those of the listener do; it has the listener's options.
///
/// addr may be NULL. Else the peer's address is written there, with *addrlen as in
/// mtcp_getpeername().
///
/// Returns the number of the new socket, or -1 and errno.
///
/// Errors:
///   EINVAL           it does not listen
///   EAGAIN           there is none, and the listener does not block, or SO_RCVTIMEO is over
///   EMFILE           socket.max_descriptors are open; the connection waits on
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
                // SAFETY: the caller vouches for the pointers.
                Ok(peer) => unsafe { address::put(&peer.into(), addr, addrlen) }?,
                // The connection has gone again, which its first use will tell.
                // SAFETY: as above.
                Err(_) => unsafe { addrlen.write(0) },
            }
        }
        Ok(sockid_of(accepted))
    });
    value(accepted, -1)
}

/// Connects a socket, as connect(2) does (paper, Table 1). A blocking one waits for the outcome, at
/// most its SO_SNDTIMEO. The outcome of another is told by MTCP_EPOLLOUT, or by MTCP_EPOLLERR and
/// SO_ERROR.
///
/// Errors:
///   EINPROGRESS      it does not block and has begun, or SO_SNDTIMEO is over
///   EALREADY         it does not block and has not ended
///   EISCONN          it is connected
///   EINVAL           it listens, or addrlen does not suit the family
///   ECONNREFUSED, ETIMEDOUT, EHOSTUNREACH  the attempt has failed; another one may be made
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
        // SAFETY: the caller vouches for the address.
        let address = unsafe { address_of(addr, addrlen) }?;
        Ok(context.connect(socket, address)?)
    }))
}

/// Chooses from which addresses sockets connect that are bound to none: num_addr from saddr_base
/// on, in turn (paper, Table 1). INADDR_ANY for saddr_base leaves the choice to the stack.
///
/// daddr and dport: for connections to that address only; INADDR_ANY for all. All are in network
/// byte order. Every port is chosen so that the answers come to this core, with this call or
/// without: what it adds is that more addresses give more ports to one destination.
///
/// Errors:
///   EINVAL         num_addr is not 1 to 65536, or dport is no port
///   EADDRNOTAVAIL  one of the addresses is none of the stack's
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

/// Gives a socket, an epoll or an end of a pipe up, as close(2) does (paper, Table 1). What was
/// written is still sent, unless something that came was not read: then the peer sees a reset. With
/// SO_LINGER it waits as long as that says.
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

impl Held {
    /// Takes the writing end of a pipe from the other threads, if it is one.
    fn forget_writer(&mut self, descriptor: Descriptor) {
        if let Some(at) = self.writers.iter().position(|writer| *writer == descriptor) {
            self.writers.swap_remove(at);
            drop(registry::remove_writer(self.number, descriptor));
        }
    }
}

/// Gives a socket up with a reset; what was written and not sent is lost.
#[unsafe(no_mangle)]
pub extern "C" fn mtcp_abort(mctx: mctx_t, sockid: c_int) -> c_int {
    status(on_socket(mctx, sockid, |context, socket| Ok(context.abort(socket)?)))
}

/// Ends one or both directions of a connection, as shutdown(2) does: SHUT_RD, SHUT_WR, SHUT_RDWR.
///
/// Errors:
///   ENOTCONN         it is not connected
///   EINVAL           how is none of the three
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

/// Tells an address of a socket.
///
/// # Safety
///
/// As the functions below.
unsafe fn name(
    mctx: mctx_t,
    sockid: c_int,
    addr: *mut sockaddr,
    addrlen: *mut socklen_t,
    ask: fn(&mut Context, Descriptor) -> io::Result<SocketAddr>,
) -> c_int {
    status(on_socket(mctx, sockid, |context, socket| {
        let address = ask(context, socket)?;
        // SAFETY: the caller vouches for the pointers.
        unsafe { address::put(&address.into(), addr, addrlen) }
    }))
}

/// The local address of a socket, as getsockname(2) gives it; unspecified if there is none yet.
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
    // SAFETY: the caller vouches for the pointers.
    unsafe { name(mctx, sockid, addr, addrlen, Context::getsockname) }
}

/// The address of the other side of a connection, as getpeername(2) gives it. *addrlen as in
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
    // SAFETY: the caller vouches for the pointers.
    unsafe { name(mctx, sockid, addr, addrlen, Context::getpeername) }
}
