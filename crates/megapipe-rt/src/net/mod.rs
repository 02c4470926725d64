//! Sockets and pipes.
//!
//! - `connection`: a connection without its address family, as methods that poll.
//! - `state`: what completions leave for a connection's tasks.
//! - `received`: bytes that arrived. `waiter`: the waker of the one task that waits.
//! - `stream`, `halves`, `family`: [`Stream`], its halves, and the names of families.
//! - `acceptor`: accepting without an address family, and [`Listener`].
//! - `tcp`: [`TcpStream`], [`Bound`] and [`TcpListener`].
//! - `unix`, `unix_messages`: the same for UNIX sockets, and the passing of descriptors.
//! - `pipe`: [`pipe`](pipe()), [`PipeReader`], [`PipeWriter`]. `copy`: copying between connections.
//! - `datagrams`: [`UdpSocket`], [`BoundUdp`] and [`UnixDatagram`]. `waiters`: the wakers of any
//!   number of tasks.
//!
//! # Cancellation
//!
//! A future of this module only looks at the connection's state, and submits requests whose memory
//! the channel owns. Completions go to the state, whether a future waits or not. So dropping a
//! future loses nothing: bytes and connections that arrived wait for the next call.

mod acceptor;
mod connection;
mod copy;
mod datagrams;
mod family;
mod halves;
mod pipe;
#[cfg(feature = "http")]
mod queued;
mod received;
mod state;
mod stream;
mod tcp;
mod unix;
mod unix_messages;
mod waiter;
mod waiters;

pub use acceptor::{Listener, is_shutdown};
pub use copy::{copy, copy_bidirectional};
pub use datagrams::{BoundUdp, Datagram, DatagramSocket, FamilyAddress, UdpSocket, UnixDatagram};
pub use family::{Pipe, Tcp, Unix};
pub use halves::{ReadHalf, WriteHalf};
pub use pipe::{PipeReader, PipeWriter, pipe};
#[cfg(feature = "http")]
pub(crate) use queued::{Queue, queued_by_core};
pub use received::Received;
pub use stream::Stream;
pub use tcp::{Bound, TcpListener, TcpStream};
pub use unix::{BoundUnix, Credentials, UnixListener, UnixStream};
#[cfg(feature = "quinn")]
pub(crate) use waiters::Place;
