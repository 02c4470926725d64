//! Connected pairs of sockets within one kernel.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use crate::error::{TransportError, TransportResult};
use crate::random::random_bytes;

/// How many connections of strangers to our listener are dismissed before we give up.
const STRANGERS_MAX: usize = 64;

/// The token and the connection itself are in this kernel, so they are there at once.
const PATIENCE: Duration = Duration::from_secs(5);

pub(super) fn unix() -> TransportResult<(OwnedFd, OwnedFd)> {
    let (own, peer) = UnixStream::pair().map_err(TransportError::system("socketpair"))?;
    Ok((own.into(), peer.into()))
}

/// Two ends of a connection over the loopback device. Anybody on this host can connect to a
/// listener there, so the end that is accepted must have the address of the end that connected, and
/// know its token.
pub(super) fn tcp(protocol: Protocol) -> TransportResult<(OwnedFd, OwnedFd)> {
    let listener = socket(protocol)?;
    let any_port = SockAddr::from(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0));
    listener.bind(&any_port).map_err(TransportError::system("bind to the loopback address"))?;
    listener.listen(16).map_err(TransportError::system("listen on the loopback address"))?;
    let address = listener.local_addr().map_err(TransportError::system("getsockname"))?;
    let mut peer = socket(protocol)?;
    peer.connect_timeout(&address, PATIENCE)
        .map_err(TransportError::system("connect over loopback"))?;
    let token = random_bytes().map_err(TransportError::system("getrandom"))?;
    peer.write_all(&token).map_err(TransportError::system("send over loopback"))?;
    let peer_address = peer.local_addr().map_err(TransportError::system("getsockname"))?;
    listener
        .set_read_timeout(Some(PATIENCE))
        .map_err(TransportError::system("setsockopt SO_RCVTIMEO"))?;
    for _ in 0..STRANGERS_MAX {
        let (own, address) =
            listener.accept().map_err(TransportError::system("accept over loopback"))?;
        if address.as_socket() == peer_address.as_socket() && knows(&own, token)? {
            return Ok((own.into(), peer.into()));
        }
    }
    Err(TransportError::BadOffer("strangers keep connecting to the listener of a loopback path"))
}

fn socket(protocol: Protocol) -> TransportResult<Socket> {
    let call = match protocol {
        Protocol::MPTCP => {
            "socket for Multipath TCP (needs CONFIG_MPTCP and sysctl net.mptcp.enabled=1; \
             take tcp where there is none)"
        }
        _ => "socket",
    };
    Socket::new(Domain::IPV4, Type::STREAM, Some(protocol)).map_err(TransportError::system(call))
}

fn knows(mut socket: &Socket, token: [u8; 16]) -> TransportResult<bool> {
    socket
        .set_read_timeout(Some(PATIENCE))
        .map_err(TransportError::system("setsockopt SO_RCVTIMEO"))?;
    let mut theirs = [0; 16];
    socket.read_exact(&mut theirs).map_err(TransportError::system("recv over loopback"))?;
    socket.set_read_timeout(None).map_err(TransportError::system("setsockopt SO_RCVTIMEO"))?;
    Ok(theirs == token)
}
