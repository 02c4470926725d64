//! Messages over TLS 1.3 (RFC 8446), for paths that leave the host: both ends prove who they are.
//!
//! The keys come from the daemons, which have agreed on whose authority is to be trusted. The
//! handshake happens as part of `flush`, `acquire_read` and waiting, without blocking; what is
//! committed before its end is sent after it.
//!
//! An attacker on the path who cuts the connection looks like a peer that died: a flow has ended
//! only when its last record says so.

#[cfg(test)]
#[path = "../../../tests/common/authority.rs"]
mod authority;
mod keys;
mod link;

use std::os::fd::{OwnedFd, RawFd};

use socket2::Socket;

pub use keys::TlsKeys;

use super::Transport;
use super::framing::{Framed, Keeping, Link, Need};
use super::stream::{self, SocketLink};
use crate::error::TransportResult;
use crate::kind::Kind;
use link::TlsLink;

/// The end that begins the handshake, on a connected TCP socket of which it becomes the owner. One
/// of the two ends must, whichever has opened the connection.
///
/// # Errors
/// [`crate::TransportError::BadOffer`] if the socket is no connected TCP socket,
/// [`crate::TransportError::Handshake`] if the keys make no sense,
/// [`crate::TransportError::System`] if the kernel refuses. That the peer is not who it should be
/// comes as `Handshake` from later calls.
pub fn connect(socket: OwnedFd, keys: &TlsKeys) -> TransportResult<Box<dyn Transport>> {
    framed(socket, keys.client()?)
}

/// The end that answers the handshake.
///
/// # Errors
/// As [`connect`].
pub fn accept(socket: OwnedFd, keys: &TlsKeys) -> TransportResult<Box<dyn Transport>> {
    framed(socket, keys.server()?)
}

fn framed(socket: OwnedFd, connection: rustls::Connection) -> TransportResult<Box<dyn Transport>> {
    Handshake::new(socket, connection)?.into_transport()
}

/// A connection whose ends do not know each other yet: for who wants to know the outcome before
/// the transport is used.
pub(crate) struct Handshake {
    link: TlsLink,
}

impl Handshake {
    /// As [`connect`].
    pub(crate) fn connect(socket: OwnedFd, keys: &TlsKeys) -> TransportResult<Handshake> {
        Handshake::new(socket, keys.client()?)
    }

    /// As [`accept`].
    pub(crate) fn accept(socket: OwnedFd, keys: &TlsKeys) -> TransportResult<Handshake> {
        Handshake::new(socket, keys.server()?)
    }

    fn new(socket: OwnedFd, connection: rustls::Connection) -> TransportResult<Handshake> {
        let socket = Socket::from(socket);
        stream::check(&socket, Kind::Tcp)?;
        stream::tune(&socket, true)?;
        Ok(Handshake { link: TlsLink::new(SocketLink::new(socket, Kind::Tls), connection) })
    }

    /// Goes on as far as it goes without waiting; true if both ends are who they should be.
    pub(crate) fn go_on(&mut self) -> TransportResult<bool> {
        Ok(self.link.shake_hands()? && self.link.flush()?)
    }

    /// What to poll until it can go on.
    pub(crate) fn readiness(&self) -> (RawFd, i16) {
        self.link.readiness(Need::Arrival)
    }

    pub(crate) fn into_transport(self) -> TransportResult<Box<dyn Transport>> {
        Ok(Box::new(Framed::new(Kind::Tls, self.link, Keeping::UntilSent)?))
    }
}

#[cfg(test)]
mod tests;
