//! UDP sockets.

use super::socket::DatagramSocket;
use crate::core::{CoreChannel, current};
use megapipe::Buffer;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};

/// A UDP socket of the calling core; from [`UdpSocket::bind`], or for all cores from
/// [`BoundUdp::open`](crate::BoundUdp::open).
///
/// ```
/// use megapipe_rt::{Runtime, UdpSocket};
/// let runtime = Runtime::builder().cores(1).build()?;
/// runtime.block_on(async {
///     let server = UdpSocket::bind("127.0.0.1:0")?;
///     let client = UdpSocket::bind("127.0.0.1:0")?;
///     client.send_to("hello", server.local_addr()?).await?;
///     let question = server.recv_from().await?;
///     assert_eq!(&*question, b"hello");
///     // The answer has the bytes of the question, which nothing copies.
///     let address = question.address();
///     server.send_to(question, address).await?;
///     assert_eq!(&*client.recv_from().await?, b"hello");
///     Ok::<(), std::io::Error>(())
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub type UdpSocket = DatagramSocket<SocketAddr>;

impl UdpSocket {
    /// Binds the first of the addresses that can be bound. For one port on all cores use
    /// [`Bound::udp`](crate::Bound::udp).
    ///
    /// # Panics
    /// Outside of a runtime.
    #[track_caller]
    pub fn bind(address: impl ToSocketAddrs) -> io::Result<UdpSocket> {
        UdpSocket::register(current("UdpSocket::bind"), std::net::UdpSocket::bind(address)?)
    }

    /// Takes over a socket of the standard library, for example one with special options.
    ///
    /// # Panics
    /// Outside of a runtime.
    #[track_caller]
    pub fn from_std(socket: std::net::UdpSocket) -> io::Result<UdpSocket> {
        UdpSocket::register(current("UdpSocket::from_std"), socket)
    }

    /// Connects the socket, as connect(2) does: from now on it receives from this address only, and
    /// [`send`](UdpSocket::send) needs none. Nothing is sent, and no call waits. What arrived
    /// before stays.
    pub fn connect(&self, address: SocketAddr) -> io::Result<()> {
        self.std()?.connect(address)
    }

    /// Submits a datagram to an address. The buffer is a `Vec<u8>`, `&'static [u8]`, `Arc<[u8]>`,
    /// or a [`Datagram`](crate::Datagram) that arrived; none of them is copied.
    pub async fn send_to(&self, buffer: impl Into<Buffer>, address: SocketAddr) -> io::Result<()> {
        let buffer = buffer.into();
        let bytes = buffer.len();
        self.submit(buffer, bytes, |channel, handle, buffer| {
            channel.send_to(handle, buffer, address)
        })
        .await
    }

    /// Makes datagrams have [`Datagram::packet_info`](crate::Datagram::packet_info), as
    /// [`megapipe::Channel::enable_packet_info`] describes. Those that have arrived already do not.
    pub fn enable_packet_info(&self) -> io::Result<()> {
        self.enable(CoreChannel::enable_packet_info)
    }

    /// Makes datagrams have [`Datagram::ecn`](crate::Datagram::ecn), as
    /// [`megapipe::Channel::enable_ecn`] describes.
    pub fn enable_ecn(&self) -> io::Result<()> {
        self.enable(CoreChannel::enable_ecn)
    }

    /// Lets the kernel join datagrams that arrive together, as [`megapipe::Channel::enable_gro`]
    /// describes; see [`Datagram::segments`](crate::Datagram::segments).
    pub fn enable_gro(&self) -> io::Result<()> {
        self.enable(CoreChannel::enable_gro)
    }

    /// Returns the local address. It costs three system calls.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.std()?.local_addr()
    }

    fn std(&self) -> io::Result<std::net::UdpSocket> {
        Ok(self.duplicate()?.into())
    }
}
