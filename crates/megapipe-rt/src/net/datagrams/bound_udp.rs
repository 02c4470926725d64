//! One UDP port for all cores.

use super::udp::UdpSocket;
use crate::core::current;
use crate::net::tcp::Bound;
use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex, PoisonError};

/// A bound UDP address that all cores of a runtime share; from [`Bound::udp`], cheap to clone and
/// to send.
///
/// It has a socket for each core, and each core calls [`open`](BoundUdp::open) once. The kernel
/// chooses a socket for each datagram by a hash of both addresses (`SO_REUSEPORT`), so all
/// datagrams of a client go to one core as long as the number of sockets stays the same. What
/// arrives before a core opens its socket waits there. A QUIC client that changes its address may
/// come to another core, which does not know its connection.
#[derive(Clone, Debug)]
pub struct BoundUdp(Arc<BoundSocket>);

#[derive(Debug)]
struct BoundSocket {
    address: SocketAddr,
    /// Those that no core has taken.
    sockets: Mutex<Vec<std::net::UdpSocket>>,
}

impl Bound {
    /// Binds the first of the addresses that can be bound to this number of UDP sockets, one for
    /// each core (at least one). May be called anywhere, before the runtime is built too. The error
    /// names address, cause and remedy.
    ///
    /// ```
    /// use megapipe_rt::{Bound, Runtime};
    /// let runtime = Runtime::builder().cores(2).build()?;
    /// let port = Bound::udp("127.0.0.1:0", runtime.handle().cores())?;
    /// let address = port.local_addr();
    /// for core in 0..2 {
    ///     let port = port.clone();
    ///     runtime.handle().spawn_on(core, move || async move {
    ///         let socket = port.open()?;
    ///         loop {
    ///             let datagram = socket.recv_from().await?;
    ///             let answer = format!("core {}", megapipe_rt::core_index());
    ///             socket.send_message(datagram.reply(answer.into_bytes())).await?;
    ///         }
    ///         # #[allow(unreachable_code)]
    ///         Ok::<(), std::io::Error>(())
    ///     });
    /// }
    /// runtime.block_on(async {
    ///     let client = megapipe_rt::UdpSocket::bind("127.0.0.1:0")?;
    ///     client.send_to("which?", address).await?;
    ///     assert!(client.recv_from().await?.starts_with(b"core "));
    ///     Ok::<(), std::io::Error>(())
    /// })?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn udp(address: impl ToSocketAddrs, sockets: usize) -> io::Result<BoundUdp> {
        let mut failure = None;
        for address in address.to_socket_addrs()? {
            match bind(address) {
                Ok(first) => {
                    let address = first.local_addr()?;
                    let others = (1..sockets).map(|_| bind(address));
                    let sockets =
                        std::iter::once(Ok(first)).chain(others).collect::<Result<_, _>>();
                    let sockets = Mutex::new(sockets?);
                    return Ok(BoundUdp(Arc::new(BoundSocket { address, sockets })));
                }
                Err(error) => failure = Some(error),
            }
        }
        Err(failure.unwrap_or_else(|| {
            let text = "cannot bind: the list of addresses is empty; name at least one";
            io::Error::new(io::ErrorKind::InvalidInput, text)
        }))
    }
}

impl BoundUdp {
    /// Returns the address.
    pub fn local_addr(&self) -> SocketAddr {
        self.0.address
    }

    /// Opens a socket of the calling core. After so many calls as there are sockets, it binds a
    /// further one, and then the datagrams of some clients come to another core than before.
    ///
    /// # Panics
    /// Outside of a runtime.
    #[track_caller]
    pub fn open(&self) -> io::Result<UdpSocket> {
        let core = current("BoundUdp::open");
        let bound = self.0.sockets.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let socket = match bound {
            Some(socket) => socket,
            None => bind(self.0.address)?,
        };
        UdpSocket::register(core, socket)
    }
}

/// Binds a socket whose address others of this user may share.
fn bind(address: SocketAddr) -> io::Result<std::net::UdpSocket> {
    let bound = || {
        let domain = Domain::for_address(address);
        let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
        socket.set_reuse_port(true)?;
        socket.bind(&address.into())?;
        Ok::<Socket, io::Error>(socket)
    };
    bound().map(Into::into).map_err(|error| {
        let remedy = match error.kind() {
            io::ErrorKind::AddrInUse => {
                "another process has it without SO_REUSEPORT, or is of \
                                         another user: end that, or choose another port"
            }
            io::ErrorKind::PermissionDenied => {
                "ports below 1024 need CAP_NET_BIND_SERVICE, or \
                                                `sysctl net.ipv4.ip_unprivileged_port_start`"
            }
            _ => "bind to an address of this host",
        };
        io::Error::new(error.kind(), format!("cannot bind UDP {address}: {error}; {remedy}"))
    })
}
