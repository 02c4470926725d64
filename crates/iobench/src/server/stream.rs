//! A connection of the servers that read and write sockets themselves, blocking or non-blocking.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use rustix::io::Errno;
use rustix::net::SocketFlags;

use crate::error::{Context, Result};
use crate::server::framing::{Answers, Flow, Sink};
use crate::server::response::Responder;
use crate::server::shared::Counters;
use crate::sys::{borrow, socket};

/// What a connection waits for next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// More to read.
    Read(Rest),
    /// Room in the socket. Nothing is read until then, which bounds the buffered answers of a peer
    /// that does not read.
    Write,
    /// The connection has to be closed.
    End,
}

/// What the last read shows about the remaining bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rest {
    /// There may be more.
    Unknown,
    /// The read filled only a part of the buffer: no bytes were left then, but perhaps the end of
    /// the stream.
    Short,
    /// There was nothing to read.
    Nothing,
}

/// A connection and its outstanding answers.
pub(crate) struct Stream {
    socket: OwnedFd,
    answers: Answers,
}

struct Socket(RawFd);

impl Sink for Socket {
    fn send(&mut self, bytes: &[u8], counters: &mut Counters) -> Result<usize, i32> {
        counters.system_calls += 1;
        let sent = socket::send(self.0, bytes)?;
        counters.bytes_sent += sent as u64;
        Ok(sent)
    }
}

impl Stream {
    pub(crate) fn new(socket: OwnedFd) -> Stream {
        Stream { socket, answers: Answers::default() }
    }

    pub(crate) fn raw(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Returns whether answers wait for room in the socket.
    pub(crate) fn is_blocked(&self) -> bool {
        self.answers.are_blocked()
    }

    /// Reads once into `buffer` and answers the complete requests.
    pub(crate) fn read(
        &mut self,
        buffer: &mut [u8],
        responder: &Responder,
        counters: &mut Counters,
    ) -> Next {
        counters.system_calls += 1;
        let received = match socket::receive(self.raw(), buffer) {
            Ok(0) => return Next::End,
            Ok(count) => count,
            Err(libc::EAGAIN) => return Next::Read(Rest::Nothing),
            Err(libc::EINTR) => return Next::Read(Rest::Unknown),
            Err(error) => return failed(error, counters),
        };
        counters.bytes_received += received as u64;
        let mut sink = Socket(self.raw());
        let flow = self.answers.feed(&buffer[..received], responder, &mut sink, counters);
        let rest = if received < buffer.len() { Rest::Short } else { Rest::Unknown };
        next(flow, rest, counters)
    }

    /// Continues answering after `Next::Write`.
    pub(crate) fn write(&mut self, responder: &Responder, counters: &mut Counters) -> Next {
        let mut sink = Socket(self.raw());
        let flow = self.answers.resume(responder, &mut sink, counters);
        // Reading stopped while the socket was full, so there may be more to read.
        next(flow, Rest::Unknown, counters)
    }

    /// Serves a blocking socket until its end; `report` is called before every read.
    pub(crate) fn serve(
        &mut self,
        buffer: &mut [u8],
        responder: &Responder,
        counters: &mut Counters,
        mut report: impl FnMut(&Counters),
    ) {
        loop {
            report(counters);
            match self.read(buffer, responder, counters) {
                Next::Read(_) => {}
                // A blocking socket is never full.
                Next::Write | Next::End => return,
            }
        }
    }

    pub(crate) fn close(self, counters: &mut Counters) {
        counters.system_calls += 1;
        counters.closed += 1;
    }
}

fn next(flow: Result<Flow, i32>, rest: Rest, counters: &mut Counters) -> Next {
    match flow {
        Ok(Flow::Done) => Next::Read(rest),
        Ok(Flow::Blocked) => Next::Write,
        Ok(Flow::Stopping) => Next::End,
        Err(error) => failed(error, counters),
    }
}

fn failed(error: i32, counters: &mut Counters) -> Next {
    // The benchmark's clients end every connection with RST.
    if !matches!(error, libc::ECONNRESET | libc::EPIPE) {
        counters.errors += 1;
    }
    Next::End
}

/// What to do when accept(2) is refused.
pub(crate) const ACCEPT_REMEDY: &str =
    "permit accept4(2) in the sandbox around iobench, and its connections in the firewall";

/// Returns whether accept(2) is refused to the process, or a firewall refuses a connection: a
/// server that tried again could use up its CPU without a connection.
pub(crate) fn is_refused(errno: i32) -> bool {
    matches!(errno, libc::EPERM | libc::EACCES | libc::ENOSYS)
}

/// Accepts the next connection of the accept queue, if there is one, with the flags of accept4(2).
///
/// # Errors
/// That of a call that is refused.
pub(crate) fn accept(
    listener: RawFd,
    flags: SocketFlags,
    counters: &mut Counters,
) -> Result<Option<Stream>> {
    loop {
        counters.system_calls += 1;
        match rustix::net::accept_with(borrow(listener), flags | SocketFlags::CLOEXEC) {
            Ok(socket) => {
                counters.accepted += 1;
                return Ok(Some(Stream::new(socket)));
            }
            Err(Errno::AGAIN) => return Ok(None),
            Err(Errno::INTR | Errno::CONNABORTED) => {}
            Err(error) if is_refused(error.raw_os_error()) => {
                return Err(error).context("accept", ACCEPT_REMEDY);
            }
            // Out of descriptors or memory: counted, and tried again at the next wake-up.
            Err(_) => {
                counters.errors += 1;
                return Ok(None);
            }
        }
    }
}

/// Connections by index, for servers to which the kernel reports indices.
#[derive(Default)]
pub(crate) struct Table {
    places: Vec<Option<Stream>>,
    free: Vec<usize>,
}

impl Table {
    pub(crate) fn insert(&mut self, stream: Stream) -> usize {
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() - 1
        });
        self.places[index] = Some(stream);
        index
    }

    pub(crate) fn get(&mut self, index: usize) -> Option<&mut Stream> {
        self.places.get_mut(index)?.as_mut()
    }

    /// Removes a connection temporarily; its index stays reserved until `give_back` or `release`.
    pub(crate) fn lend(&mut self, index: usize) -> Option<Stream> {
        self.places.get_mut(index)?.take()
    }

    /// Ends a removal by `lend`: the connection is in the table again.
    pub(crate) fn give_back(&mut self, index: usize, stream: Stream) {
        self.places[index] = Some(stream);
    }

    /// Ends a removal by `lend`: the index is free.
    pub(crate) fn release(&mut self, index: usize) {
        self.free.push(index);
    }

    /// Removes a connection and frees its index.
    pub(crate) fn take(&mut self, index: usize) -> Option<Stream> {
        let stream = self.lend(index)?;
        self.release(index);
        Some(stream)
    }

    pub(crate) fn close(&mut self, index: usize, counters: &mut Counters) {
        if let Some(stream) = self.take(index) {
            stream.close(counters);
        }
    }
}
