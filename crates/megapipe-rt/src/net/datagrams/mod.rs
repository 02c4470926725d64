//! Datagram sockets.
//!
//! - `socket`: [`DatagramSocket`]. `datagram`: a [`Datagram`] that arrived.
//! - `udp`: [`UdpSocket`]. `bound_udp`: [`BoundUdp`], one port for all cores.
//! - `unix`: [`UnixDatagram`].
//! - `state`: what completions leave for a socket's tasks.

mod bound_udp;
mod datagram;
mod socket;
mod state;
mod udp;
mod unix;

pub use self::bound_udp::BoundUdp;
pub use self::datagram::{Datagram, FamilyAddress};
pub use self::socket::DatagramSocket;
pub use self::udp::UdpSocket;
pub use self::unix::UnixDatagram;
