//! Makes connected pairs of TCP sockets within one kernel.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use crate::error::{TransportError, TransportResult};

/// The most connections of other processes that are closed before the attempt fails.
const STRANGERS_MAX: usize = 64;

/// Time-out for the connection and its token, which stay within this kernel and so need no time.
const TIME_LIMIT: Duration = Duration::from_secs(5);

/// Makes a connected pair of UNIX sockets.
pub(super) fn unix() -> TransportResult<(OwnedFd, OwnedFd)> {
    let (own, peer) = UnixStream::pair().map_err(TransportError::system("socketpair"))?;
    Ok((own.into(), peer.into()))
}

/// Makes the two ends of a connection over the loopback device. Every process on this host can
/// connect to a listener there, so the accepted end must have the address of the end that
/// connected, and must have received its token.
pub(super) fn tcp(protocol: Protocol) -> TransportResult<(OwnedFd, OwnedFd)> {
    let listener = socket(protocol)?;
    let any_port = SockAddr::from(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0));
    listener.bind(&any_port).map_err(TransportError::system("bind to the loopback address"))?;
    listener.listen(16).map_err(TransportError::system("listen on the loopback address"))?;
    let address = listener.local_addr().map_err(TransportError::system("getsockname"))?;
    let mut peer = socket(protocol)?;
    peer.connect_timeout(&address, TIME_LIMIT)
        .map_err(TransportError::system("connect over loopback"))?;
    let token = sys::random::bytes().map_err(TransportError::system("getrandom"))?;
    peer.write_all(&token).map_err(TransportError::system("send over loopback"))?;
    let peer_address = peer.local_addr().map_err(TransportError::system("getsockname"))?;
    listener
        .set_read_timeout(Some(TIME_LIMIT))
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
        .set_read_timeout(Some(TIME_LIMIT))
        .map_err(TransportError::system("setsockopt SO_RCVTIMEO"))?;
    let mut theirs = [0; 16];
    socket.read_exact(&mut theirs).map_err(TransportError::system("recv over loopback"))?;
    socket.set_read_timeout(None).map_err(TransportError::system("setsockopt SO_RCVTIMEO"))?;
    Ok(theirs == token)
}
