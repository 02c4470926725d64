//! A datagram that arrived.

use crate::net::received::Received;
use megapipe::{Buffer, Ecn, Message, PacketInfo};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::ops::Deref;

/// A datagram that arrived, or with [`UdpSocket::enable_gro`](crate::UdpSocket::enable_gro) several
/// joined ones; dereferences to `[u8]`.
///
/// Its bytes are in a buffer of the channel, see [`Received`].
pub struct Datagram {
    bytes: Received,
    address: SocketAddr,
    packet_info: Option<PacketInfo>,
    ecn: Option<Ecn>,
    segment_size: Option<u16>,
    truncated: bool,
}

impl Datagram {
    /// Takes a datagram of the channel.
    pub(super) fn new(datagram: megapipe::Datagram) -> io::Result<Datagram> {
        let address = datagram.address()?.inet();
        let address = address.ok_or_else(|| io::Error::from_raw_os_error(libc::EAFNOSUPPORT))?;
        Ok(Datagram {
            address,
            packet_info: datagram.packet_info(),
            ecn: datagram.ecn(),
            segment_size: datagram.segment_size(),
            truncated: datagram.is_truncated(),
            bytes: Received::new(datagram.into_lease()),
        })
    }

    /// Returns the sender's address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the address and the interface of this host on which the datagram arrived, on a
    /// socket with [`enable_packet_info`](crate::UdpSocket::enable_packet_info).
    pub fn packet_info(&self) -> Option<PacketInfo> {
        self.packet_info
    }

    /// Returns the ECN mark, on a socket with [`enable_ecn`](crate::UdpSocket::enable_ecn).
    pub fn ecn(&self) -> Option<Ecn> {
        self.ecn
    }

    /// Returns the size of the joined datagrams, on a socket with
    /// [`enable_gro`](crate::UdpSocket::enable_gro); `None` for a single one.
    pub fn segment_size(&self) -> Option<u16> {
        self.segment_size
    }

    /// Returns the datagrams, of which the kernel has joined these bytes; one for a single datagram.
    pub fn segments(&self) -> impl Iterator<Item = &[u8]> {
        let size = self.segment_size.map_or(self.len(), usize::from).max(1);
        let empty = self.is_empty().then_some(&[][..]);
        empty.into_iter().chain(self.chunks(size))
    }

    /// Returns whether the datagram was longer than a buffer of the channel and lost its end.
    pub fn is_truncated(&self) -> bool {
        self.truncated
    }

    /// Creates an answer: to the sender and, if it is known, from the address to which this
    /// datagram was sent.
    pub fn reply(&self, bytes: impl Into<Buffer>) -> Message {
        let reply = Message::new(bytes).to(self.address);
        match self.packet_info {
            Some(info) => reply.with_packet_info(PacketInfo { interface: 0, ..info }),
            None => reply,
        }
    }

    /// Returns the bytes.
    pub fn into_bytes(self) -> Received {
        self.bytes
    }
}

impl Deref for Datagram {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl From<Datagram> for Buffer {
    fn from(datagram: Datagram) -> Buffer {
        datagram.bytes.into()
    }
}

impl fmt::Debug for Datagram {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Datagram({} bytes from {})", self.len(), self.address)
    }
}
