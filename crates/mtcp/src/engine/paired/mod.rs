//! The engine on a thread of its own, beside the application's (mTCP, section 4.1).
//!
//! Two rings join the threads: commands go one way, events the other, both small, both seen once a
//! batch. Data travels in chunks whose ownership goes with the message, so neither thread ever
//! touches memory of the other and there is no lock. Each side makes the chunks that it sends and
//! gets them back when they are used up: what a connection may have on its way is bounded on both
//! sides, and what does not fit waits in the stack's own buffers, where TCP's window sees it.

mod application;
mod chunk;
mod place;
mod sender;
mod server;
#[cfg(test)]
mod tests;

pub(crate) use self::application::Application;
pub(crate) use self::server::start;

use self::chunk::Chunk;
use super::{Engine, Names};
use mtcp_proto::{Error, Manner, Readiness, Shutdown, SocketId, Urgent};
use std::sync::atomic::{AtomicBool, AtomicI32};

/// Messages that a ring holds; more wait with their sender.
const SLOTS: usize = 1024;
/// Bytes of one connection that may be on their way in one direction.
const WINDOW_BYTES: usize = 64 * 1024;
/// Accepted connections of one listener that may be on their way.
const ACCEPT_WINDOW: u32 = 1024;

/// A call that is made in the engine's thread and waited for: what is rare.
type Call = Box<dyn FnOnce(&mut Engine) + Send>;
/// A call that makes a socket.
type Opening = Box<dyn FnOnce(&mut Engine) -> Result<SocketId, Error> + Send>;

/// What the application asks for.
enum Command {
    /// Data to be sent.
    Send {
        socket: SocketId,
        chunk: Chunk,
        manner: Manner,
    },
    /// Data was read: the chunk goes back, and as much may follow.
    Taken {
        socket: SocketId,
        chunk: Chunk,
    },
    /// A connection was accepted: another may follow.
    Accepted {
        listener: SocketId,
    },
    Shutdown {
        socket: SocketId,
        how: Shutdown,
    },
    /// Gives the socket up, after the data that was sent before.
    Close {
        socket: SocketId,
    },
    Abort {
        socket: SocketId,
    },
    /// How much may be on its way to the application: it waits for so much before it reads.
    Window {
        socket: SocketId,
        bytes: usize,
    },
    Call(Call),
    Open(Opening),
}

/// What the application is told.
enum Event {
    /// A connection came in. Its names come with it: who accepts asks for them.
    Accepted {
        listener: SocketId,
        socket: SocketId,
        names: Option<Box<Names>>,
    },
    Data {
        socket: SocketId,
        chunk: Chunk,
    },
    /// The peer has announced an urgent byte, or it has come; told before the data.
    Urgent {
        socket: SocketId,
        urgent: Urgent,
    },
    /// Data was taken by the stack: the chunk comes back.
    Sent {
        socket: SocketId,
        chunk: Chunk,
    },
    /// No more data will come; `by_peer`: because the peer has ended its direction.
    Ended {
        socket: SocketId,
        by_peer: bool,
    },
    /// The connection has failed. Data that came before may follow, and [`Event::Ended`].
    Failed {
        socket: SocketId,
        error: Error,
    },
    /// The readiness is this now, but for data, errors and room, which the application knows.
    Ready {
        socket: SocketId,
        readiness: Readiness,
        established: bool,
    },
    /// The call was made.
    Called,
    /// Nothing has anything left to do, after [`Fate::finishing`] was set.
    Finished,
    /// A socket was made (or not), before anything is told of it.
    Opened(Result<(SocketId, Option<Box<Names>>), Error>),
}

/// What both threads look at besides the rings.
#[derive(Debug, Default)]
struct Fate {
    /// The application has gone.
    stop: AtomicBool,
    /// The application waits for the end of connections that it has closed, of which it is told
    /// nothing else.
    finishing: AtomicBool,
    /// The errno that ended the engine, or 0.
    failed: AtomicI32,
}
