//! Runs the engine on a thread of its own beside the application's thread (mTCP, pairwise
//! threading).
//!
//! Two rings connect the threads: commands in one direction, events in the other. Messages are
//! small and are published once per batch. Data travels in chunks whose ownership moves with the
//! message, so the threads need no lock and never access each other's memory. Each side allocates
//! the chunks that it sends and gets them back when they are used up. Both sides limit the data in
//! flight of a connection; the rest waits in the stack's own buffers, where TCP's window accounts
//! for it.

mod application;
mod calls;
mod chunk;
mod sender;
mod server;
mod socket_state;
#[cfg(test)]
mod tests;

pub(crate) use self::application::Application;
pub(crate) use self::server::{PairedError, start};

use self::chunk::Chunk;
use super::{Engine, EngineFailure, Names};
use mtcp_proto::{Error, Options, Readiness, SendFlags, Shutdown, SocketId, Urgent};
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;

/// Messages that a ring holds; further ones wait at the sender.
const SLOTS: usize = 1024;
/// Most bytes of one connection in flight between the threads, per direction.
const WINDOW_BYTES: usize = 64 * 1024;
/// Most accepted connections of one listener in flight between the threads.
const ACCEPT_WINDOW: u32 = 1024;

/// A rare call, which the engine's thread executes while the application waits.
type Call = Box<dyn FnOnce(&mut Engine) + Send>;
/// A call that makes a socket.
type Opening = Box<dyn FnOnce(&mut Engine) -> Result<SocketId, Error> + Send>;

/// A command of the application.
enum Command {
    /// Send this data.
    Send {
        socket: SocketId,
        chunk: Chunk,
        send_flags: SendFlags,
    },
    /// Data was read: returns the chunk, and permits as many bytes to follow.
    Taken {
        socket: SocketId,
        chunk: Chunk,
    },
    /// A connection was accepted; permits another one to follow.
    Accepted {
        listener: SocketId,
    },
    Shutdown {
        socket: SocketId,
        how: Shutdown,
    },
    /// Close the socket, after the data that was sent before.
    Close {
        socket: SocketId,
    },
    Abort {
        socket: SocketId,
    },
    /// Sets the number of bytes in flight to the application, which waits for that many before it
    /// reads.
    Window {
        socket: SocketId,
        bytes: usize,
    },
    Options {
        socket: SocketId,
        options: Box<Options>,
    },
    Call(Call),
    Open(Opening),
}

/// State from which the application's side answers without asking the engine.
#[derive(Clone, Copy)]
struct CachedAnswers {
    names: Names,
    /// The options as the stack has them.
    options: Options,
}

/// An event for the application.
enum Event {
    /// A connection has arrived, with the state that an accept returns.
    Accepted {
        listener: SocketId,
        socket: SocketId,
        known: Option<Box<CachedAnswers>>,
    },
    Data {
        socket: SocketId,
        chunk: Chunk,
    },
    /// The peer has announced an urgent byte, or the byte has arrived; precedes the data.
    Urgent {
        socket: SocketId,
        urgent: Urgent,
    },
    /// The stack has taken the data; returns the chunk.
    Sent {
        socket: SocketId,
        chunk: Chunk,
    },
    /// No more data will arrive; `by_peer`: because the peer has ended its direction.
    Ended {
        socket: SocketId,
        by_peer: bool,
    },
    /// The connection has failed. Data that arrived before may follow, and [`Event::Ended`].
    Failed {
        socket: SocketId,
        error: Error,
    },
    /// The present readiness, except for data, errors and room, which the application knows itself.
    Ready {
        socket: SocketId,
        readiness: Readiness,
        established: bool,
    },
    /// The call was executed.
    Called,
    /// No connection is unfinished, after [`EngineStatus::finishing`] was set.
    Finished,
    /// The result of making a socket; precedes all events of that socket.
    Opened(Result<(SocketId, Option<Box<CachedAnswers>>), Error>),
}

/// State that both threads read, besides the rings.
#[derive(Debug, Default)]
struct EngineStatus {
    /// Whether the application has ended.
    stop: AtomicBool,
    /// Whether the application waits for the end of connections that it has closed, of which it
    /// gets no other event.
    finishing: AtomicBool,
    /// The reason why the engine has ended.
    failure: OnceLock<EngineFailure>,
}
