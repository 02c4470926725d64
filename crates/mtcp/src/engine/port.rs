//! Defines what the socket layer needs of an engine. It is either the engine itself, called inline,
//! or the application's side of the rings to an engine's thread.

use super::EngineFailure;
use super::alarm::Alarm;
use crate::shared_connections::SharedConnections;
use mtcp_proto::{
    ConnectionInfo, Counters, Error, ListenOptions, Options, Readiness, SendFlags, Shutdown,
    SocketId, Urgent,
};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

/// The local address of a socket, and its peer's if it has one.
pub(crate) type Names = (SocketAddr, Option<SocketAddr>);

/// The calls of [`mtcp_proto::Stack`], which documents them, without the time argument.
pub(crate) trait Port {
    /// Makes all progress that is possible now, without waiting; true if there was any. An error is
    /// the device's and permanent.
    fn turn(&mut self) -> io::Result<bool>;

    /// The reason why the engine has failed for good, if it has.
    fn failure(&self) -> Option<EngineFailure>;

    /// Sleeps until there is work for a turn, at most `timeout`.
    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()>;

    /// Descriptors that become readable when there is work for a turn, once
    /// [`Port::prepare_to_sleep`] has been called.
    fn descriptors(&self) -> Vec<RawFd>;

    /// How long a caller that waits for [`Port::descriptors`] by itself may sleep, at most
    /// `timeout`; zero if there is work to do.
    fn prepare_to_sleep(&mut self, timeout: Option<Duration>) -> Option<Duration>;

    /// Publishes the commands since the last turn to the engine. The engine executes them within a
    /// fraction of a millisecond, or in the next turn if that is sooner. Without commands the cost
    /// is negligible. An engine that is called inline does not need it.
    fn publish(&mut self) {}

    /// Takes the engine's events, without a system call if there are none; true if there were any.
    /// An engine that is called inline has events only in turns.
    fn look(&mut self) -> bool {
        false
    }

    /// Takes new events before a call reports that there is nothing, if there may be any. True if
    /// there were any; errors as of [`Port::turn`].
    fn refresh(&mut self) -> io::Result<bool>;

    /// Whether a turn has ended the preparation of [`Port::prepare_to_sleep`] since.
    fn is_disturbed(&self) -> bool;

    /// The alarm that wakes a thread in [`Port::wait`].
    fn alarm(&self) -> &Arc<Alarm>;

    /// The stack's own addresses.
    fn addresses(&self) -> &[IpAddr];
    fn listen(&mut self, local: SocketAddr, options: &ListenOptions) -> Result<SocketId, Error>;
    fn accept(&mut self, listener: SocketId) -> Result<SocketId, Error>;
    fn connect(
        &mut self,
        local: Option<SocketAddr>,
        remote: SocketAddr,
        options: &Options,
    ) -> Result<SocketId, Error>;
    fn send(&mut self, socket: SocketId, data: &[u8]) -> Result<usize, Error> {
        self.send_as(socket, data, SendFlags::default())
    }
    fn send_as(
        &mut self,
        socket: SocketId,
        data: &[u8],
        send_flags: SendFlags,
    ) -> Result<usize, Error>;
    fn receive(&mut self, socket: SocketId, room: &mut [u8]) -> Result<usize, Error>;
    /// Copies data from `offset` on, where data exists, without taking it.
    fn peek(&mut self, socket: SocketId, offset: usize, room: &mut [u8]) -> Result<usize, Error>;
    /// Returns the local address and the peer's.
    fn names(&mut self, socket: SocketId) -> Result<Names, Error> {
        self.info(socket).map(|info| (info.local, info.remote))
    }
    /// Bytes that can be received now.
    fn receivable(&mut self, socket: SocketId) -> usize;
    fn shutdown(&mut self, socket: SocketId, how: Shutdown) -> Result<(), Error>;
    fn close(&mut self, socket: SocketId);
    fn abort(&mut self, socket: SocketId);
    fn readiness(&self, socket: SocketId) -> Readiness;
    /// The peer's last urgent byte, and the number of bytes that were received.
    fn urgent(&self, socket: SocketId) -> Option<(Urgent, u64)>;
    fn was_established(&self, socket: SocketId) -> bool;
    fn take_error(&mut self, socket: SocketId) -> Option<Error>;
    fn next_event(&mut self) -> Option<(SocketId, Readiness)> {
        self.next_news().map(|(socket, readiness, _)| (socket, readiness))
    }
    /// The next socket with new events: its readiness, and the part of it that is new since the
    /// last time, even if it was reported before.
    fn next_news(&mut self) -> Option<(SocketId, Readiness, Readiness)>;
    fn options(&mut self, socket: SocketId) -> Result<Options, Error>;
    fn set_options(&mut self, socket: SocketId, options: &Options) -> Result<(), Error>;
    fn info(&mut self, socket: SocketId) -> Result<ConnectionInfo, Error>;
    /// Number of connections that are not finished, with or without an owner.
    fn unfinished(&mut self) -> usize;
    /// Resets all connections that [`Port::unfinished`] counts.
    fn abort_all(&mut self);
    /// Records all connections in shared memory from now on, each until it has ended.
    fn record_connections(&mut self, shared: Arc<SharedConnections>);
    fn counters(&mut self) -> Counters;
}
