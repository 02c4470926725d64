//! A datagram that arrived.

use crate::net::received::Received;
use megapipe::{Address, Buffer, Ecn, Message, PacketInfo};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::ops::Deref;
use std::os::unix::net as std_unix;

/// An address of the family of a datagram socket.
pub trait FamilyAddress: Clone + fmt::Debug + 'static {
    /// Converts an address of the channel; fails if it is of another family.
    #[doc(hidden)]
    fn of(address: Address) -> io::Result<Self>;
}

impl FamilyAddress for SocketAddr {
    fn of(address: Address) -> io::Result<SocketAddr> {
        address.inet().ok_or_else(|| io::Error::from_raw_os_error(libc::EAFNOSUPPORT))
    }
}

impl FamilyAddress for std_unix::SocketAddr {
    fn of(address: Address) -> io::Result<std_unix::SocketAddr> {
        crate::net::unix::std_address(address)
    }
}

/// A datagram that arrived, or with [`UdpSocket::enable_gro`](crate::UdpSocket::enable_gro) several
/// joined ones; dereferences to `[u8]`.
///
/// Its bytes are in a buffer of the channel, see [`Received`]. `A` is the type of addresses.
pub struct Datagram<A = SocketAddr> {
    bytes: Received,
    address: A,
    packet_info: Option<PacketInfo>,
    ecn: Option<Ecn>,
    segment_size: Option<u16>,
    truncated: bool,
}

impl<A: FamilyAddress> Datagram<A> {
    /// Takes a datagram of the channel.
    pub(super) fn new(datagram: megapipe::Datagram) -> io::Result<Datagram<A>> {
        Ok(Datagram {
            address: A::of(datagram.address()?)?,
            packet_info: datagram.packet_info(),
            ecn: datagram.ecn(),
            segment_size: datagram.segment_size(),
            truncated: datagram.is_truncated(),
            bytes: Received::new(datagram.into_lease()),
        })
    }

    /// Returns the sender's address. A UNIX socket that is not bound has none: it is unnamed.
    pub fn address(&self) -> A {
        self.address.clone()
    }

    /// Returns whether the datagram was longer than a buffer of the channel and lost its end.
    pub fn is_truncated(&self) -> bool {
        self.truncated
    }

    /// Returns the bytes.
    pub fn into_bytes(self) -> Received {
        self.bytes
    }
}

impl Datagram {
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

    /// Returns the datagrams, of which the kernel has joined these bytes; one for a single
    /// datagram.
    pub fn segments(&self) -> impl Iterator<Item = &[u8]> {
        let size = self.segment_size.map_or(self.len(), usize::from).max(1);
        let empty = self.is_empty().then_some(&[][..]);
        empty.into_iter().chain(self.chunks(size))
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
}

impl<A> Deref for Datagram<A> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl<A> From<Datagram<A>> for Buffer {
    fn from(datagram: Datagram<A>) -> Buffer {
        datagram.bytes.into()
    }
}

impl<A: fmt::Debug> fmt::Debug for Datagram<A> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Datagram({} bytes from {:?})", self.len(), self.address)
    }
}
