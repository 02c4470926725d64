//! The interface of sockets as the client's connections use them, over the kernel or a stack.

pub(crate) mod kernel;
pub(crate) mod stack;

use std::net::SocketAddr;

use clap::ValueEnum;

/// How a client ends its connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Ending {
    /// By FIN, with a new socket for the next connection
    Fin,
    /// By RST, so that no port waits in TIME_WAIT; the kernel's sockets are used for the next one
    Reset,
}

/// An event of one socket.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Event {
    /// The token given to `Sockets::watch`.
    pub(crate) token: u64,
    /// There may be bytes to receive.
    pub(crate) readable: bool,
    /// No further event follows.
    pub(crate) ended: bool,
}

/// Sockets of the kernel or of a stack. Errors are errnos, `EAGAIN` if the call would block.
pub(crate) trait Sockets {
    type Socket: Copy;
    /// Whether to try sending right after `connect`, because the handshake may be complete.
    const SENDS_AFTER_CONNECT: bool;
    /// Whether `skip` can take more bytes than `room` has.
    const SKIPS_WITHOUT_ROOM: bool;

    /// Sets the address of later connections.
    fn direct(&mut self, server: SocketAddr);
    /// Creates a socket with all its options.
    fn open(&mut self) -> Result<Self::Socket, i32>;
    /// Starts to connect.
    fn connect(&mut self, socket: Self::Socket) -> Result<(), i32>;
    /// Ends a connection as the sockets' `Ending` demands; returns a socket for the next one, and
    /// whether it is watched already. The old socket is closed even after an error.
    fn renew(&mut self, socket: Self::Socket) -> Result<(Self::Socket, bool), i32>;
    /// Watches a socket for input, and for room for output if `output`, edge-triggered; `again` if
    /// it is watched already.
    fn watch(
        &mut self,
        socket: Self::Socket,
        token: u64,
        output: bool,
        again: bool,
    ) -> Result<(), i32>;
    fn send(&mut self, socket: Self::Socket, bytes: &[u8]) -> Result<usize, i32>;
    /// Receives bytes; returns their number, 0 at the end of the stream.
    fn receive(&mut self, socket: Self::Socket, room: &mut [u8]) -> Result<usize, i32>;
    /// Discards up to `most` bytes without examining them; `room` may be used for them.
    fn skip(&mut self, socket: Self::Socket, most: usize, room: &mut [u8]) -> Result<usize, i32>;
    /// Closes a socket that is not used again.
    fn close(&mut self, socket: Self::Socket);
    /// Continues closing for a moment; true if it is to be called again.
    fn progress_closes(&mut self) -> bool;
    /// Waits for events; returns their number.
    fn wait(&mut self, timeout_ms: i32) -> usize;
    /// Returns an event of the last wait.
    fn event(&self, position: usize) -> Event;
    /// Returns why none of the sockets can work any more.
    fn failure(&self) -> Option<String>;
}
