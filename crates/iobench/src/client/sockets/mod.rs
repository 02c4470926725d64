//! Sockets as the client's connections use them, whoever's they are.

pub(crate) mod kernel;
pub(crate) mod stack;

use std::net::SocketAddr;

use clap::ValueEnum;

/// How a client ends its connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Ending {
    /// By FIN, with a new socket for the next connection
    Fin,
    /// By RST, so that no port waits in TIME_WAIT; the kernel's sockets are kept for the next one
    Reset,
}

/// An event of one socket.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Event {
    /// What `Sockets::watch` was told.
    pub(crate) token: u64,
    /// There may be something to receive.
    pub(crate) readable: bool,
    /// No further event may come.
    pub(crate) ended: bool,
}

/// Sockets of whoever has them. Errors are errnos, `EAGAIN` where nothing can be done for now.
pub(crate) trait Sockets {
    type Socket: Copy;
    /// Whether sending is worth a try right after `connect`, because the handshake may be over.
    const SENDS_AFTER_CONNECT: bool;
    /// Whether `skip` takes more than there is room for.
    const SKIPS_WITHOUT_ROOM: bool;

    /// Where connections go from now on.
    fn direct(&mut self, server: SocketAddr);
    /// A new socket with all its settings.
    fn open(&mut self) -> Result<Self::Socket, i32>;
    /// Begins to connect.
    fn connect(&mut self, socket: Self::Socket) -> Result<(), i32>;
    /// Ends a connection, as the sockets' `Ending` says, and gives a socket for the next one, and
    /// whether that is watched already. The old socket is gone even after an error.
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
    /// Bytes received, 0 at the end of the stream.
    fn receive(&mut self, socket: Self::Socket, room: &mut [u8]) -> Result<usize, i32>;
    /// The same for up to `most` bytes that nobody looks at; `room` may be used for them.
    fn skip(&mut self, socket: Self::Socket, most: usize, room: &mut [u8]) -> Result<usize, i32>;
    /// Ends a connection for good.
    fn close(&mut self, socket: Self::Socket);
    /// Goes on for a moment with what was closed; true if it is to be called again.
    fn settle(&mut self) -> bool;
    /// Waits for events; returns how many there are.
    fn wait(&mut self, timeout_ms: i32) -> usize;
    /// An event of the last wait.
    fn event(&self, position: usize) -> Event;
    /// Why none of the sockets will ever work again.
    fn failure(&self) -> Option<String>;
}
