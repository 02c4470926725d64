//! Transport over TLS 1.3 (RFC 8446), for paths between hosts, with authentication of both ends.
//!
//! The keys come from the daemons, which derive those of both ends from one secret. The handshake
//! happens in `flush`, `acquire_read` and waiting, without blocking; messages that are committed
//! before its end are sent after it.
//!
//! An attacker on the network who cuts the connection looks like a peer that died: a flow has ended
//! only when its end record has arrived.

#[cfg(test)]
#[path = "../../../tests/common/keys.rs"]
mod fitting;
mod keys;
mod link;

use std::os::fd::{OwnedFd, RawFd};

use socket2::Socket;

pub use keys::TlsKeys;

use super::Transport;
use super::framing::{Framed, Link, Need};
use super::stream::{self, SocketLink};
use crate::error::TransportResult;
use crate::kind::Kind;
use link::TlsLink;

/// Makes the end that starts the handshake, on a connected TCP socket, and owns it. Exactly one of
/// the two ends must be this one, no matter which one opened the connection.
///
/// # Errors
/// [`crate::TransportError::BadOffer`] if the socket is not a connected TCP socket,
/// [`crate::TransportError::Handshake`] if the keys are not valid,
/// [`crate::TransportError::System`] if the kernel refuses. If the peer is not the expected one,
/// later calls fail with `Handshake`.
pub fn connect(socket: OwnedFd, keys: &TlsKeys) -> TransportResult<Box<dyn Transport>> {
    framed(socket, keys.client()?)
}

/// Makes the end that answers the handshake.
///
/// # Errors
/// Those of [`connect`].
pub fn accept(socket: OwnedFd, keys: &TlsKeys) -> TransportResult<Box<dyn Transport>> {
    framed(socket, keys.server()?)
}

fn framed(socket: OwnedFd, connection: rustls::Connection) -> TransportResult<Box<dyn Transport>> {
    Handshake::new(socket, connection)?.into_transport()
}

/// A connection during the handshake, for a caller that needs the result before it uses the
/// transport.
pub(crate) struct Handshake {
    link: TlsLink,
}

impl Handshake {
    /// Starts the handshake, with the arguments and errors of [`connect`].
    pub(crate) fn connect(socket: OwnedFd, keys: &TlsKeys) -> TransportResult<Handshake> {
        Handshake::new(socket, keys.client()?)
    }

    /// Answers the handshake, with the arguments and errors of [`accept`].
    pub(crate) fn accept(socket: OwnedFd, keys: &TlsKeys) -> TransportResult<Handshake> {
        Handshake::new(socket, keys.server()?)
    }

    fn new(socket: OwnedFd, connection: rustls::Connection) -> TransportResult<Handshake> {
        let socket = Socket::from(socket);
        stream::check(&socket, Kind::Tcp)?;
        stream::tune(&socket, true)?;
        Ok(Handshake { link: TlsLink::new(SocketLink::new(socket, Kind::Tls), connection) })
    }

    /// Continues the handshake as far as possible without waiting. Returns true if both ends are
    /// authenticated.
    pub(crate) fn go_on(&mut self) -> TransportResult<bool> {
        Ok(self.link.shake_hands()? && self.link.flush()?)
    }

    /// Returns the descriptor and events to poll until `go_on` can continue.
    pub(crate) fn readiness(&self) -> (RawFd, i16) {
        self.link.readiness(Need::Arrival)
    }

    /// Returns the transport over this connection.
    pub(crate) fn into_transport(self) -> TransportResult<Box<dyn Transport>> {
        Ok(Box::new(Framed::new(Kind::Tls, self.link)?))
    }
}

#[cfg(test)]
mod tests;
