//! Transport over connected stream sockets: TCP with and without Nagle's algorithm, UNIX sockets,
//! and Multipath TCP (section 2.1.1 of the paper, RFC 8684).
//!
//! A message costs the two copies of the kernel and no other, except where a block ends in the
//! middle of it. If a TCP end is closed while it has unread input, the connection is reset, and the
//! kernel discards what that end sent last. A flow therefore sends an end record before it closes,
//! and keeps the socket until the peer has ended too (`delivery`).

mod loopback;

use std::io::{self, IoSlice};
use std::net::Shutdown;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use socket2::{Domain, Protocol, Socket, Type};

use super::delivery::unacknowledged;
use super::framing::{Framed, Link, LinkEnd, Need, Received};
use super::{Offer, Transport};
use crate::error::{TransportError, TransportResult};
use crate::kind::Kind;
use crate::socket;

/// Makes a connected pair in this kernel.
pub(super) fn create(kind: Kind) -> TransportResult<(Box<dyn Transport>, Offer)> {
    let (own, peer) = match kind {
        Kind::Unix => loopback::unix()?,
        Kind::Mptcp => loopback::tcp(Protocol::MPTCP)?,
        _ => loopback::tcp(Protocol::TCP)?,
    };
    Ok((from_socket(own, kind)?, Offer { kind, descriptors: vec![peer] }))
}

/// Makes the two ends of a TCP connection in this kernel.
pub(crate) fn tcp_pair() -> TransportResult<(OwnedFd, OwnedFd)> {
    loopback::tcp(Protocol::TCP)
}

/// Opens the other end of a path.
pub(super) fn open(offer: Offer) -> TransportResult<Box<dyn Transport>> {
    let [socket] = <[_; 1]>::try_from(offer.descriptors)
        .map_err(|_| TransportError::BadOffer("a stream comes as one descriptor"))?;
    from_socket(socket, offer.kind)
}

/// Makes one end of a path over a connected stream socket, and owns it. Sets Nagle's algorithm as
/// the kind says, and the congestion control to cubic if the kernel has it: an algorithm that
/// paces, such as bbr, makes the loopback device slow. The socket may be blocking or not.
///
/// # Errors
/// [`TransportError::BadOffer`] if the kind is none of [`Kind::Tcp`], [`Kind::TcpNodelay`],
/// [`Kind::Unix`] and [`Kind::Mptcp`], or the socket is not of that kind, or not connected;
/// [`TransportError::System`] if the kernel refuses.
pub fn from_socket(socket: OwnedFd, kind: Kind) -> TransportResult<Box<dyn Transport>> {
    from_reached(socket, kind, None)
}

/// Makes one end as `from_socket` does, and keeps the listener of a Multipath TCP connection as
/// long as the connection.
pub(crate) fn from_reached(
    socket: OwnedFd,
    kind: Kind,
    joins: Option<Arc<Socket>>,
) -> TransportResult<Box<dyn Transport>> {
    let is_no_delay = match kind {
        Kind::Tcp => Some(false),
        Kind::TcpNodelay | Kind::Mptcp => Some(true),
        Kind::Unix => None,
        _ => return Err(TransportError::BadOffer("this transport is none on a plain socket")),
    };
    let socket = Socket::from(socket);
    check(&socket, kind)?;
    if let Some(is_no_delay) = is_no_delay {
        tune(&socket, is_no_delay)?;
    }
    let link = SocketLink { _joins: joins, ..SocketLink::new(socket, kind) };
    Ok(Box::new(Framed::new(kind, link)?))
}

/// Makes an end over a connected stream socket of a foreign program.
///
/// # Errors
/// [`TransportError::System`] if there is no memory.
pub(crate) fn foreign(socket: Socket, kind: Kind) -> TransportResult<Box<dyn Transport>> {
    Ok(Box::new(Framed::without_headers(kind, SocketLink::new(socket, kind))?))
}

/// Refuses a socket that is not a connected stream socket of this kind.
pub(super) fn check(socket: &Socket, kind: Kind) -> TransportResult<()> {
    let failed = TransportError::of_offered_socket("the descriptor is no socket");
    if socket.r#type().map_err(&failed)? != Type::STREAM {
        return Err(TransportError::BadOffer("the socket is no stream"));
    }
    let domain = socket.domain().map_err(&failed)?;
    let protocol = socket.protocol().map_err(&failed)?;
    let is_internet = domain == Domain::IPV4 || domain == Domain::IPV6;
    let is_of_kind = match kind {
        Kind::Unix => domain == Domain::UNIX,
        Kind::Mptcp => is_internet && protocol == Some(Protocol::MPTCP),
        _ => is_internet && protocol == Some(Protocol::TCP),
    };
    if !is_of_kind {
        return Err(TransportError::BadOffer("the socket is of another protocol"));
    }
    // An end whose peer has closed is no longer connected, but may have messages.
    match socket.peer_addr() {
        Ok(_) => Ok(()),
        Err(_) if matches!(socket.take_error(), Ok(Some(_))) => Ok(()),
        Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => {
            Err(TransportError::BadOffer("the socket is not connected"))
        }
        Err(error) => Err(TransportError::system("getpeername of an offered socket")(error)),
    }
}

/// Sets the socket options for messages.
pub(super) fn tune(socket: &Socket, is_no_delay: bool) -> TransportResult<()> {
    socket
        .set_tcp_nodelay(is_no_delay)
        .map_err(TransportError::system("setsockopt TCP_NODELAY"))?;
    // Without cubic the kernel keeps its default algorithm.
    let _ = socket.set_tcp_congestion(b"cubic");
    Ok(())
}

/// A socket as a stream of bytes. The calls do not block, whatever the descriptor's flags: a peer
/// may share these flags and change them.
pub(super) struct SocketLink {
    socket: Socket,
    /// Whether sent bytes stay in this kernel until the peer's kernel acknowledges them.
    is_network: bool,
    /// Held for its drop: the kernel refuses further subflows where nothing listens.
    _joins: Option<Arc<Socket>>,
}

impl SocketLink {
    /// Wraps a socket, which [`check`] has accepted.
    pub(super) fn new(socket: Socket, kind: Kind) -> SocketLink {
        SocketLink { socket, is_network: kind != Kind::Unix, _joins: None }
    }
}

/// Returns whether the error means that the peer, or its host, is gone.
fn is_gone(kind: io::ErrorKind) -> bool {
    matches!(
        kind,
        io::ErrorKind::ConnectionReset
            | io::ErrorKind::TimedOut
            | io::ErrorKind::HostUnreachable
            | io::ErrorKind::NetworkUnreachable
    )
}

impl Link for SocketLink {
    fn send(&mut self, pieces: &[IoSlice<'_>]) -> TransportResult<usize> {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        loop {
            let sent = socket::persist(|| match pieces {
                [piece] => self.socket.send_with_flags(piece, flags),
                pieces => self.socket.send_vectored_with_flags(pieces, flags),
            });
            match sent {
                Ok(bytes) => return Ok(bytes),
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return Ok(0),
                    io::ErrorKind::Interrupted => {}
                    io::ErrorKind::BrokenPipe => return Err(TransportError::Closed),
                    kind if is_gone(kind) => return Err(TransportError::Closed),
                    _ => return Err(TransportError::System { call: "send", source: error }),
                },
            }
        }
    }

    fn receive(&mut self, room: &mut [u8]) -> TransportResult<Received> {
        loop {
            match socket::receive(&self.socket, room) {
                Ok(0) => return Ok(Received::End),
                Ok(bytes) => return Ok(Received::Bytes(bytes)),
                Err(source) => match source.kind() {
                    io::ErrorKind::WouldBlock => return Ok(Received::Nothing),
                    io::ErrorKind::Interrupted => {}
                    kind if is_gone(kind) => return Ok(Received::Failed),
                    _ => return Err(TransportError::System { call: "recv", source }),
                },
            }
        }
    }

    fn unacknowledged(&self) -> u64 {
        if self.is_network { unacknowledged(&self.socket) } else { 0 }
    }

    fn end(&mut self) -> Option<LinkEnd<'_>> {
        let last = LinkEnd { socket: &self.socket, unsent_bytes: 0 };
        self.is_network.then_some(last)
    }

    fn shut_down(&mut self) {
        // Fails only for a peer that is gone, which reading reports.
        let _ = self.socket.shutdown(Shutdown::Write);
    }

    fn readiness(&self, need: Need) -> (RawFd, i16) {
        let events = match need {
            Need::Arrival => libc::POLLIN,
            Need::Room => libc::POLLOUT,
        };
        (self.socket.as_raw_fd(), events)
    }
}

#[cfg(test)]
mod foreign_tests;
