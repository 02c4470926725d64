//! Sockets.

mod halves;
mod listener;
mod receiver;
mod stream;
mod udp;
pub mod unix;
mod unix_datagram;

pub use listener::{TcpListener, UnixListener};
pub use std::net::ToSocketAddrs;
pub use stream::{TcpStream, UnixStream};
pub use udp::UdpSocket;
pub use unix_datagram::UnixDatagram;

/// The halves of TCP connections.
pub mod tcp {
    pub use super::halves::ReuniteError;
    use super::halves::{OwnedRead, OwnedWrite, Read, Write};
    use megapipe_rt::Tcp;

    /// The reading direction of a borrowed stream.
    pub type ReadHalf<'a> = Read<'a, Tcp>;
    /// The writing direction of a borrowed stream.
    pub type WriteHalf<'a> = Write<'a, Tcp>;
    /// The reading direction.
    pub type OwnedReadHalf = OwnedRead<Tcp>;
    /// The writing direction.
    pub type OwnedWriteHalf = OwnedWrite<Tcp>;
}

use std::io;
use std::net::SocketAddr;

/// Resolves names and returns the addresses.
pub async fn lookup_host(host: impl ToSocketAddrs) -> io::Result<impl Iterator<Item = SocketAddr>> {
    host.to_socket_addrs()
}
