//! UNIX datagram sockets.

use super::socket::DatagramSocket;
use crate::core::current;
use crate::net::unix::channel_address;
use megapipe::{Address, Buffer};
use std::io;
use std::os::unix::net::{self as std_unix, SocketAddr};
use std::path::Path;

/// A UNIX datagram socket of the calling core: messages between processes of one host, which keep
/// their bounds and order and are not lost. While the queue of the receiver is full
/// (`net.unix.max_dgram_qlen`), datagrams wait in the channel.
///
/// ```
/// use megapipe_rt::{Runtime, UnixDatagram};
/// let directory = tempfile::tempdir()?;
/// let path = directory.path().join("log");
/// let runtime = Runtime::builder().cores(1).build()?;
/// runtime.block_on(async {
///     let server = UnixDatagram::bind(&path)?;
///     let client = UnixDatagram::unbound()?;
///     client.send_to_path("started", &path).await?;
///     assert_eq!(&*server.recv_from().await?, b"started");
///     Ok::<(), std::io::Error>(())
/// })?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub type UnixDatagram = DatagramSocket<SocketAddr>;

impl UnixDatagram {
    /// Creates a socket at a path, which must not exist. The file stays when the socket is closed.
    ///
    /// # Panics
    /// Outside of a runtime.
    #[track_caller]
    pub fn bind(path: impl AsRef<Path>) -> io::Result<UnixDatagram> {
        let socket = std_unix::UnixDatagram::bind(path)?;
        UnixDatagram::register(current("UnixDatagram::bind"), socket)
    }

    /// Creates a socket at an address, for example an abstract one.
    ///
    /// # Panics
    /// Outside of a runtime.
    #[track_caller]
    pub fn bind_addr(address: &SocketAddr) -> io::Result<UnixDatagram> {
        let socket = std_unix::UnixDatagram::bind_addr(address)?;
        UnixDatagram::register(current("UnixDatagram::bind_addr"), socket)
    }

    /// Creates a socket without an address: it can send, and nobody can answer unless it is
    /// [connected](UnixDatagram::connect_addr) by both sides.
    ///
    /// # Panics
    /// Outside of a runtime.
    #[track_caller]
    pub fn unbound() -> io::Result<UnixDatagram> {
        let socket = std_unix::UnixDatagram::unbound()?;
        UnixDatagram::register(current("UnixDatagram::unbound"), socket)
    }

    /// Creates two sockets of the calling core that are connected to each other.
    ///
    /// # Panics
    /// Outside of a runtime.
    #[track_caller]
    pub fn pair() -> io::Result<(UnixDatagram, UnixDatagram)> {
        let (left, right) = std_unix::UnixDatagram::pair()?;
        Ok((UnixDatagram::from_std(left)?, UnixDatagram::from_std(right)?))
    }

    /// Takes over a socket of the standard library.
    ///
    /// # Panics
    /// Outside of a runtime.
    #[track_caller]
    pub fn from_std(socket: std_unix::UnixDatagram) -> io::Result<UnixDatagram> {
        UnixDatagram::register(current("UnixDatagram::from_std"), socket)
    }

    /// Connects the socket to the one at a path, as connect(2) does: from now on it receives from
    /// this one only, and [`send`](DatagramSocket::send) needs no address. No call waits.
    pub fn connect(&self, path: impl AsRef<Path>) -> io::Result<()> {
        self.std()?.connect(path)
    }

    /// The same for an address.
    pub fn connect_addr(&self, address: &SocketAddr) -> io::Result<()> {
        self.std()?.connect_addr(address)
    }

    /// Submits a datagram to the socket at a path. The buffer is a `Vec<u8>`, `&'static [u8]`,
    /// `Arc<[u8]>`, or a [`Datagram`](crate::Datagram) that arrived; none of them is copied.
    pub async fn send_to_path(
        &self,
        buffer: impl Into<Buffer>,
        path: impl AsRef<Path>,
    ) -> io::Result<()> {
        self.send_to(buffer, &SocketAddr::from_pathname(path)?).await
    }

    /// Submits a datagram to an address, for example to that of a
    /// [`Datagram`](crate::Datagram::address). Fails with `EDESTADDRREQ` if it is unnamed.
    pub async fn send_to(&self, buffer: impl Into<Buffer>, address: &SocketAddr) -> io::Result<()> {
        let address = channel_address(address);
        if address == Address::Unnamed {
            return Err(io::Error::from_raw_os_error(libc::EDESTADDRREQ));
        }
        let buffer = buffer.into();
        let bytes = buffer.len();
        self.submit(buffer, bytes, |channel, handle, buffer| {
            channel.send_to(handle, buffer, address.clone())
        })
        .await
    }

    /// Returns the local address. It costs three system calls.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.std()?.local_addr()
    }

    fn std(&self) -> io::Result<std_unix::UnixDatagram> {
        Ok(self.duplicate()?.into())
    }
}
