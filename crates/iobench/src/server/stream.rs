//! A connection of the servers that read and write sockets themselves, blocking or not.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use crate::server::framing::{Answers, Flow, Sink};
use crate::server::response::Responder;
use crate::server::shared::Counters;
use crate::sys::{errno, socket};

/// What a connection waits for next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// More to read.
    Read(Rest),
    /// Room in the socket. Nothing is read until then, so a peer that does not read is not
    /// buffered for without limit.
    Write,
    /// The end.
    End,
}

/// What the last read tells about what is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rest {
    /// There may be more.
    Unknown,
    /// It filled only a part of the buffer: no bytes were left then, but perhaps the end.
    Short,
    /// There was nothing to read.
    Nothing,
}

/// A connection and what it is owed.
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

    /// Whether answers wait for room in the socket.
    pub(crate) fn is_blocked(&self) -> bool {
        self.answers.are_blocked()
    }

    /// Reads once into `buffer` and answers what is complete.
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

    /// Goes on answering after `Next::Write`.
    pub(crate) fn write(&mut self, responder: &Responder, counters: &mut Counters) -> Next {
        let mut sink = Socket(self.raw());
        let flow = self.answers.resume(responder, &mut sink, counters);
        // Reading stopped for this, so there may be more to read by now.
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

/// Takes the next connection from the queue, if there is one, with the flags of accept4(2).
pub(crate) fn accept(listener: RawFd, flags: i32, counters: &mut Counters) -> Option<Stream> {
    loop {
        counters.system_calls += 1;
        // SAFETY: accept4 without an address needs only a descriptor.
        let fd = unsafe {
            libc::accept4(
                listener,
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                flags | libc::SOCK_CLOEXEC,
            )
        };
        if fd >= 0 {
            counters.accepted += 1;
            // SAFETY: the descriptor was just accepted and nobody else owns it.
            return Some(Stream::new(unsafe { OwnedFd::from_raw_fd(fd) }));
        }
        match errno() {
            libc::EAGAIN => return None,
            libc::EINTR | libc::ECONNABORTED => {}
            // Out of descriptors or memory: counted, and tried again at the next wake-up.
            _ => {
                counters.errors += 1;
                return None;
            }
        }
    }
}

/// Connections by number, for servers that are told numbers by the kernel.
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

    /// Takes a connection out for a while; its place stays taken until `give_back` or `release`.
    pub(crate) fn lend(&mut self, index: usize) -> Option<Stream> {
        self.places.get_mut(index)?.take()
    }

    pub(crate) fn give_back(&mut self, index: usize, stream: Stream) {
        self.places[index] = Some(stream);
    }

    pub(crate) fn release(&mut self, index: usize) {
        self.free.push(index);
    }

    /// Takes a connection out for good.
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
