//! UDP.
//!
//! - `socket`: [`UdpSocket`]. `bound`: [`BoundUdp`], one port for all cores.
//! - `datagram`: a [`Datagram`] that arrived.
//! - `state`: what completions leave for a socket's tasks.

mod bound;
mod datagram;
mod socket;
mod state;

pub use self::bound::BoundUdp;
pub use self::datagram::Datagram;
pub use self::socket::UdpSocket;
