//! Sockets.
//!
//! - `connection`: a connection without its address family, as methods that poll.
//! - `state`: what completions leave for a connection's tasks.
//! - `received`: bytes that arrived. `waiter`: the waker of the one task that waits.
//! - `tcp`, `halves`, `listener`: [`TcpStream`], its halves, [`Bound`] and [`TcpListener`].
//! - `udp`: [`UdpSocket`] and [`BoundUdp`]. `waiters`: the wakers of any number of tasks.
//!
//! # Cancellation
//!
//! A future of this module only looks at the connection's state, and submits requests whose memory
//! the channel owns. Completions go to the state, whether a future waits or not. So dropping a
//! future loses nothing: bytes and connections that arrived wait for the next call.

mod connection;
mod halves;
mod listener;
mod received;
mod state;
mod tcp;
mod udp;
mod waiter;
mod waiters;

pub use halves::{ReadHalf, WriteHalf};
pub use listener::{Bound, TcpListener, is_shutdown};
pub use received::Received;
pub use tcp::TcpStream;
pub use udp::{BoundUdp, Datagram, UdpSocket};
#[cfg(feature = "quinn")]
pub(crate) use waiters::Place;
