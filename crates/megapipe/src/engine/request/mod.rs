//! Defines one request of the application, with the memory that the kernel may use meanwhile.

mod envelope;
mod file_part;
mod vector;

pub(crate) use self::envelope::Envelope;
pub(crate) use self::file_part::{FilePart, FileStep};
pub(crate) use self::vector::{AddressedBuffer, Vector};

use crate::address::RawAddress;
use crate::buffer::Buffer;
use crate::driver::{NO_OFFSET, Operation};
use crate::raw::RawCommand;
use crate::slab::Key;
use crate::source::Kind;
use std::cell::Cell;
use std::ffi::c_void;
use std::mem;
use std::rc::Rc;

/// The command of a request, with the memory that belongs to the request until it is complete. The
/// command determines the event of the completion.
///
/// All of the memory is on the heap (or static), so that moving the request does not move memory
/// that the kernel uses.
pub(crate) enum Command {
    Accept,
    Connect(Box<RawAddress>),
    Read(Vec<u8>),
    ReadAt(Vec<u8>),
    Peek(Vec<u8>),
    ReadVectored(Box<Vector>),
    Receive,
    ReceiveFrom {
        /// Whether room for ancillary data is reserved.
        ancillary: bool,
    },
    Write(Buffer),
    WriteAt(Buffer),
    WriteMore(Buffer),
    WriteVectored(Box<Vector>),
    SendTo(Box<AddressedBuffer>),
    SendMessage(Box<Envelope>),
    ReceiveMessage(Box<Envelope>),
    SendFile(Box<FilePart>),
    Disconnect {
        how: libc::c_int,
    },
    Sync {
        data_only: bool,
    },
    /// Reads a signal's description or a counter.
    Watch(Box<[u64; 16]>),
    Poll {
        events: u32,
    },
    PeerAddress(Box<RawAddress>),
    Raw(RawCommand, RawMemory),
    Close,
    /// A request of the channel itself: reads input to discard it.
    Discard(Sink),
}

/// Memory of the application, which guarantees not to use it meanwhile.
pub(crate) enum RawMemory {
    Bytes { address: *mut u8, bytes: usize },
    Vector(Box<Vector>),
    Message(Box<Envelope>),
    Datagram { datagram: Box<AddressedBuffer>, receiver: *const c_void },
}

/// The lanes of a handle. The requests of one lane are executed one after the other, in the order
/// of submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Lane {
    /// Inbound requests: reads, receives, watches.
    Inbound,
    /// Outbound requests: connects, writes, shutdowns.
    Outbound,
    /// Polls.
    Readiness,
    /// Requests without order: disk files at an offset, accepts, closes.
    None,
}

impl Lane {
    /// The number of lanes of a handle, without `None`.
    pub(crate) const COUNT: usize = Lane::None as usize;
}

/// Memory for discarded input, shared by all members of a channel. Its content is never read, so
/// several operations may write to it at a time.
pub(crate) type Sink = Rc<[Cell<u8>]>;

/// A request between its submission and its last completion.
pub(crate) struct Request {
    /// `Key::NONE` until it is submitted.
    pub(crate) handle: Key,
    pub(crate) command: Command,
    pub(crate) lane: Lane,
    pub(crate) repeat: bool,
    /// Whether the driver has an operation of the request.
    pub(crate) in_flight: bool,
    /// Whether the engine has cancelled it in the driver to restart it: with larger buffers, or
    /// later.
    pub(crate) recalled: bool,
    /// Whether the request starts only after its handle has less queued output.
    pub(crate) parked: bool,
    /// Whether the driver announces the data. The channel then fetches it into a buffer that the
    /// kernel does not hold.
    pub(crate) fetches: bool,
    /// Whether a poll for one event waits for an edge, because the driver reported an event that
    /// was not requested.
    pub(crate) edges: bool,
    /// Whether the driver only polls for readiness, to retry it.
    pub(crate) polling: bool,
    /// Whether the request was cancelled: it ends with its current result, and is not restarted.
    pub(crate) cancelled: bool,
    /// Whether it was cancelled because of its time limit.
    pub(crate) overdue: bool,
    /// The next request of the lane.
    pub(crate) next: Option<Key>,
    /// The offset in a file; the queue of an accept.
    pub(crate) offset: u64,
    /// The events of a repeating poll's last completion before the kernel ended it.
    pub(crate) told: i32,
    /// How often in a row the kernel has rejected the poll as invalid.
    pub(crate) invalid: u8,
    /// How often the socket had no room for the message, or its listener for the connection.
    pub(crate) refusals: u32,
    /// Bytes written so far.
    pub(crate) progress: usize,
}

impl Request {
    pub(crate) fn new(command: Command, lane: Lane) -> Request {
        Request {
            handle: Key::NONE,
            command,
            lane,
            repeat: false,
            in_flight: false,
            recalled: false,
            parked: false,
            fetches: false,
            edges: false,
            polling: false,
            cancelled: false,
            overdue: false,
            next: None,
            offset: NO_OFFSET,
            told: 0,
            invalid: 0,
            refusals: 0,
            progress: 0,
        }
    }

    pub(crate) fn repeating(mut self, repeat: bool) -> Request {
        self.repeat = repeat;
        self
    }

    pub(crate) fn at(mut self, offset: u64) -> Request {
        self.offset = offset;
        self
    }

    /// Returns whether it writes bytes, all of which must be sent.
    pub(crate) fn writes(&self) -> bool {
        match self.command {
            Command::Write(_) | Command::WriteAt(_) | Command::WriteMore(_) => true,
            Command::WriteVectored(_) | Command::SendFile(_) | Command::SendMessage(_) => true,
            Command::Raw(command, _) => command.writes(),
            _ => false,
        }
    }

    /// Returns whether it sends anything.
    pub(crate) fn is_output(&self) -> bool {
        let datagrams =
            matches!(self.command, Command::SendTo(_) | Command::Raw(RawCommand::SendTo, _));
        datagrams || self.writes()
    }

    /// Whether output on a stream failed when a part of it may have been written: the peer would
    /// take what comes behind it for the rest. The application itself has cancelled the others, and
    /// on an ended connection all that follows fails anyway.
    pub(crate) fn ends_part_way(&self, result: i32) -> bool {
        let others = [libc::ECANCELED, libc::ECONNRESET, libc::EPIPE];
        let is_failed = result < 0 && !others.contains(&-result);
        let has_begun = self.progress > 0 || matches!(self.command, Command::SendFile(_));
        is_failed && self.lane == Lane::Outbound && self.writes() && has_begun
    }

    /// Whether it reads bytes until the end of a stream.
    pub(crate) fn reads(&self) -> bool {
        match self.command {
            Command::Read(_) | Command::Peek(_) | Command::ReadVectored(_) => true,
            Command::ReceiveMessage(_) => true,
            Command::Raw(command, _) => command.reads(),
            _ => false,
        }
    }

    /// Returns whether its next operation takes bytes of a file.
    pub(crate) fn takes_of_file(&self) -> bool {
        matches!(&self.command, Command::SendFile(part) if part.step() != FileStep::Write)
    }

    /// Whether all other requests of its handle wait for it.
    pub(crate) fn connects(&self) -> bool {
        matches!(self.command, Command::Connect(_))
    }

    /// Whether it can run in the calling thread, which then blocks.
    pub(crate) fn may_run_inline(&self, kind: Kind) -> bool {
        let waits = matches!(self.command, Command::Disconnect { .. } | Command::Sync { .. });
        waits || kind == Kind::File
    }

    /// Whether `EAGAIN` means to wait until the endpoint is ready.
    pub(crate) fn can_wait(&self, kind: Kind) -> bool {
        match &self.command {
            // The backlog of the listening socket is full.
            Command::Connect(address) => i32::from(address.storage.ss_family) == libc::AF_UNIX,
            _ => kind != Kind::File,
        }
    }

    /// Whether it pauses while its handle has too much queued output.
    pub(crate) fn is_pausable(&self) -> bool {
        self.repeat && matches!(self.command, Command::Receive | Command::ReceiveFrom { .. })
    }

    /// Returns the number of bytes that it still has to write.
    pub(crate) fn unwritten_bytes(&self) -> usize {
        match &self.command {
            _ if self.lane != Lane::Outbound => 0,
            Command::Write(buffer) | Command::WriteMore(buffer) => {
                buffer.len().saturating_sub(self.progress)
            }
            Command::Raw(_, RawMemory::Bytes { bytes, .. }) => bytes.saturating_sub(self.progress),
            Command::WriteVectored(vector) | Command::Raw(_, RawMemory::Vector(vector)) => {
                vector.bytes_left()
            }
            Command::SendTo(datagram) | Command::Raw(_, RawMemory::Datagram { datagram, .. }) => {
                datagram.bytes()
            }
            Command::SendMessage(envelope) | Command::Raw(_, RawMemory::Message(envelope)) => {
                envelope.bytes_left()
            }
            Command::SendFile(part) => part.unsent(),
            _ => 0,
        }
    }

    /// Returns the number of bytes that it can read.
    pub(crate) fn room(&self) -> usize {
        match &self.command {
            Command::Read(bytes) | Command::ReadAt(bytes) | Command::Peek(bytes) => {
                bytes.capacity() - bytes.len()
            }
            Command::Raw(_, RawMemory::Bytes { bytes, .. }) => *bytes,
            Command::ReadVectored(vector) | Command::Raw(_, RawMemory::Vector(vector)) => {
                vector.bytes_left()
            }
            Command::ReceiveMessage(envelope) | Command::Raw(_, RawMemory::Message(envelope)) => {
                envelope.bytes_left()
            }
            _ => usize::MAX,
        }
    }

    /// Returns the position of the next byte in a file.
    fn position(&self) -> u64 {
        if self.offset == NO_OFFSET { NO_OFFSET } else { self.offset + self.progress as u64 }
    }

    /// Returns the driver's next operation for the request.
    pub(crate) fn operation(&mut self, kind: Kind, large: bool) -> Operation {
        let offset = self.position();
        let (repeat, edges) = (self.repeat, self.edges);
        let writes = self.writes();
        match &mut self.command {
            Command::Raw(command, RawMemory::Bytes { address, bytes }) => {
                let done = self.progress.min(*bytes);
                let rest = (address.wrapping_add(done), clamp(*bytes - done));
                raw_operation(*command, rest, kind, writes, offset)
            }
            Command::PeerAddress(address) => {
                let bytes = peer_address_bytes(address);
                let address = (&raw mut address.storage).cast();
                Operation::PeerName { address, bytes }
            }
            Command::Peek(bytes) => {
                let (address, bytes) = spare_room(bytes);
                Operation::Peek { address, bytes }
            }
            Command::Read(bytes) | Command::ReadAt(bytes) => {
                let (address, bytes) = spare_room(bytes);
                Operation::Read { address, bytes, offset }
            }
            Command::Watch(words) => {
                let bytes = if kind == Kind::Signal { mem::size_of_val(&**words) } else { 8 };
                let address = words.as_mut_ptr().cast();
                Operation::Read { address, bytes: bytes as u32, offset: NO_OFFSET }
            }
            Command::WriteMore(buffer) if kind == Kind::Stream => {
                let (address, bytes) = rest_of(buffer, self.progress);
                Operation::WriteMore { address, bytes }
            }
            Command::Write(buffer) | Command::WriteAt(buffer) | Command::WriteMore(buffer) => {
                let (address, bytes) = rest_of(buffer, self.progress);
                Operation::Write { address, bytes, offset }
            }
            Command::Discard(sink) => {
                let (address, bytes) = (sink.as_ptr().cast_mut().cast(), clamp(sink.len()));
                Operation::Read { address, bytes, offset: NO_OFFSET }
            }
            Command::ReadVectored(vector)
            | Command::WriteVectored(vector)
            | Command::Raw(_, RawMemory::Vector(vector)) => vector.operation(kind, writes, offset),
            Command::SendFile(part) => part.operation(),
            Command::SendTo(datagram) | Command::Raw(_, RawMemory::Datagram { datagram, .. }) => {
                datagram.operation()
            }
            Command::SendMessage(envelope)
            | Command::ReceiveMessage(envelope)
            | Command::Raw(_, RawMemory::Message(envelope)) => envelope.operation(),
            Command::Connect(address) => {
                let (storage, bytes) = (&raw const address.storage, address.bytes);
                Operation::Connect { address: storage.cast(), bytes }
            }
            Command::Receive if kind == Kind::Packet => {
                Operation::ReceiveFrom { repeat, ancillary: false }
            }
            Command::ReceiveFrom { ancillary } => {
                Operation::ReceiveFrom { repeat, ancillary: *ancillary }
            }
            Command::Disconnect { how } => Operation::Shutdown { how: *how },
            Command::Sync { data_only } => Operation::Sync { data_only: *data_only },
            Command::Poll { events } => {
                Operation::Poll { events: *events, repeat: repeat || edges }
            }
            // The engine submits accepts and closes itself.
            Command::Receive | Command::Accept | Command::Close => {
                Operation::Receive { large, repeat }
            }
        }
    }

    /// Returns the result for the application: a cancelled operation that would be retried ends.
    pub(crate) fn result_to_tell(&self, result: i32) -> i32 {
        match -result {
            libc::EAGAIN | libc::EINTR | libc::ECANCELED if self.overdue => -libc::ETIMEDOUT,
            libc::EAGAIN | libc::EINTR if self.cancelled => -libc::ECANCELED,
            _ => result,
        }
    }

    /// Counts `bytes` more bytes as written. Returns true if some are left and must be written,
    /// too, because the handle is a stream of bytes.
    pub(crate) fn has_rest(&mut self, bytes: usize, kind: Kind) -> bool {
        if let Command::SendFile(part) = &mut self.command {
            return part.advance(bytes, &mut self.progress);
        }
        self.progress += bytes;
        if bytes == 0 || kind.keeps_bounds() {
            return false;
        }
        match &mut self.command {
            Command::Write(buffer) | Command::WriteAt(buffer) | Command::WriteMore(buffer) => {
                self.progress < buffer.len()
            }
            Command::Raw(_, RawMemory::Bytes { bytes, .. }) => self.progress < *bytes,
            Command::WriteVectored(vector) | Command::Raw(_, RawMemory::Vector(vector)) => {
                vector.advance(bytes);
                vector.bytes_left() > 0
            }
            Command::SendMessage(envelope) | Command::Raw(_, RawMemory::Message(envelope)) => {
                envelope.advance(bytes)
            }
            _ => false,
        }
    }

    /// Extends the application's buffers by `bytes` bytes that the kernel has read.
    pub(crate) fn commit(&mut self, bytes: usize) {
        match &mut self.command {
            Command::Read(vector) | Command::ReadAt(vector) | Command::Peek(vector) => {
                let bytes = bytes.min(vector.capacity() - vector.len());
                // SAFETY: the kernel has filled that many bytes of the spare capacity.
                unsafe { vector.set_len(vector.len() + bytes) };
            }
            Command::ReadVectored(vector) => vector.commit_reads(bytes),
            Command::ReceiveMessage(envelope) | Command::Raw(_, RawMemory::Message(envelope)) => {
                envelope.commit(bytes)
            }
            _ => {}
        }
    }
}

/// Returns the operation for memory of the application, of which this number of bytes is left.
fn raw_operation(
    command: RawCommand,
    (address, bytes): (*mut u8, u32),
    kind: Kind,
    writes: bool,
    offset: u64,
) -> Operation {
    match command {
        RawCommand::Peek => Operation::Peek { address, bytes },
        // The flag would join datagrams into one, and other sources do not support it.
        RawCommand::WriteMore if kind == Kind::Stream => Operation::WriteMore { address, bytes },
        _ if writes => Operation::Write { address, bytes, offset },
        _ => Operation::Read { address, bytes, offset },
    }
}

/// Returns the address and length of a vector's spare capacity.
fn spare_room(bytes: &mut Vec<u8>) -> (*mut u8, u32) {
    let room = bytes.spare_capacity_mut();
    (room.as_mut_ptr().cast(), clamp(room.len()))
}

/// Returns the rest of a buffer that is to be written.
fn rest_of(buffer: &Buffer, progress: usize) -> (*const u8, u32) {
    let rest = &buffer[progress.min(buffer.len())..];
    (rest.as_ptr(), clamp(rest.len()))
}

/// Returns how many bytes of a peer's address to request, which depends on its family: the kernel
/// refuses to fill more bytes than the address has.
pub(crate) fn peer_address_bytes(address: &RawAddress) -> u32 {
    let bytes = match i32::from(address.storage.ss_family) {
        libc::AF_INET6 => mem::size_of::<libc::sockaddr_in6>(),
        _ => mem::size_of::<libc::sockaddr_in>(),
    };
    bytes as u32
}

/// Limits the bytes of one operation to 2 GiB, as read(2) does; further operations move the rest.
fn clamp(bytes: usize) -> u32 {
    bytes.min(0x7fff_f000) as u32
}
