//! What the socket layer needs from whatever carries its connections: the engine itself, called
//! inline, or the near end of the rings to an engine's thread.

use super::alarm::Alarm;
use mtcp_proto::{
    ConnectionInfo, Counters, Error, ListenOptions, Manner, Options, Readiness, Shutdown, SocketId,
    Urgent,
};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

/// The local address of a socket, and its peer's if it has one.
pub(crate) type Names = (SocketAddr, Option<SocketAddr>);

/// The calls of [`mtcp_proto::Stack`], whose documentation says what they do, without the time.
pub(crate) trait Port {
    /// Moves what can be moved now, without waiting; true if anything was. An error is the device's
    /// and final.
    fn turn(&mut self) -> io::Result<bool>;

    /// Sleeps until there is something for a turn, at most so long.
    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()>;

    /// Descriptors of the system that become readable when a turn has something to do, once
    /// [`Port::prepare_to_sleep`] has been called.
    fn descriptors(&self) -> Vec<RawFd>;

    /// How long a caller that waits for [`Port::descriptors`] by itself may sleep, at most
    /// `timeout`; zero if there is something to do.
    fn prepare_to_sleep(&mut self, timeout: Option<Duration>) -> Option<Duration>;

    /// Shows the engine what was asked for since the last turn, and wakes it if it sleeps; costs
    /// next to nothing if nothing was. An engine that is called inline has no need of it.
    fn publish(&mut self) {}

    /// Takes what the engine has told, without a system call if it has told nothing; true if it has
    /// told anything. An engine that is called inline tells only in turns.
    fn look(&mut self) -> bool {
        false
    }

    /// Whether what [`Port::prepare_to_sleep`] prepared has been undone by a turn since.
    fn is_disturbed(&self) -> bool;

    /// Wakes whoever sleeps in [`Port::wait`].
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
        self.send_as(socket, data, Manner::default())
    }
    fn send_as(&mut self, socket: SocketId, data: &[u8], manner: Manner) -> Result<usize, Error>;
    fn receive(&mut self, socket: SocketId, room: &mut [u8]) -> Result<usize, Error>;
    /// From `offset` bytes on, which are there.
    fn peek(&mut self, socket: SocketId, offset: usize, room: &mut [u8]) -> Result<usize, Error>;
    /// The local address and the peer's.
    fn names(&mut self, socket: SocketId) -> Result<Names, Error> {
        self.info(socket).map(|info| (info.local, info.remote))
    }
    /// Bytes that can be received at once.
    fn receivable(&mut self, socket: SocketId) -> usize;
    fn shutdown(&mut self, socket: SocketId, how: Shutdown) -> Result<(), Error>;
    fn close(&mut self, socket: SocketId);
    fn abort(&mut self, socket: SocketId);
    fn readiness(&self, socket: SocketId) -> Readiness;
    /// The peer's last urgent byte, and the bytes that were received by now.
    fn urgent(&self, socket: SocketId) -> Option<(Urgent, u64)>;
    fn was_established(&self, socket: SocketId) -> bool;
    fn take_error(&mut self, socket: SocketId) -> Option<Error>;
    fn next_event(&mut self) -> Option<(SocketId, Readiness)> {
        self.next_news().map(|(socket, readiness, _)| (socket, readiness))
    }
    /// What a socket is ready for, and what of that has come since the last time, though it may
    /// have been told before.
    fn next_news(&mut self) -> Option<(SocketId, Readiness, Readiness)>;
    fn options(&mut self, socket: SocketId) -> Result<Options, Error>;
    fn set_options(&mut self, socket: SocketId, options: &Options) -> Result<(), Error>;
    fn info(&mut self, socket: SocketId) -> Result<ConnectionInfo, Error>;
    /// Connections that still have something to do, whether or not anybody holds them.
    fn unfinished(&mut self) -> usize;
    /// Resets all that [`Port::unfinished`] counts.
    fn abort_all(&mut self);
    fn counters(&mut self) -> Counters;
}
