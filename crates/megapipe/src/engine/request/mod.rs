//! One request of the application, with the memory that the kernel may use meanwhile.

mod envelope;
mod file_part;
mod vector;

pub(crate) use self::envelope::Envelope;
pub(crate) use self::file_part::FilePart;
pub(crate) use self::vector::{AddressedBuffer, Vector};

use crate::address::RawAddress;
use crate::buffer::Buffer;
use crate::driver::{NO_OFFSET, Operation};
use crate::raw::RawCommand;
use crate::slab::Key;
use crate::source::Kind;
use std::cell::Cell;
use std::mem;
use std::rc::Rc;

/// What was asked for, with the memory that belongs to the request until it is done. It decides
/// which event the completion carries.
///
/// All of the memory is on the heap (or static), so that moving the request does not move what the
/// kernel has been told.
pub(crate) enum Command {
    Accept,
    Connect(Box<RawAddress>),
    Read(Vec<u8>),
    ReadAt(Vec<u8>),
    Peek(Vec<u8>),
    ReadVectored(Box<Vector>),
    Receive,
    ReceiveFrom,
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
    /// The channel's own: reads what is not wanted.
    Discard(Sink),
}

/// Memory of the application's own, which has promised to leave it alone.
pub(crate) enum RawMemory {
    Bytes { address: *mut u8, bytes: usize },
    Vector(Box<Vector>),
    Message(Box<Envelope>),
}

/// Requests of one lane of a handle are carried out one after the other, in the order of filing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Lane {
    /// What comes in: reads, receives, watches.
    Inbound,
    /// What goes out: connects, writes, shutdowns.
    Outbound,
    /// Polls.
    Readiness,
    /// At once, whatever else is under way: disk files at an offset, accepts, closes.
    None,
}

impl Lane {
    /// How many lanes a handle has, `None` being none.
    pub(crate) const COUNT: usize = Lane::None as usize;
}

/// Memory into which input is discarded, the same for all members of a channel. Nothing reads it,
/// so that several operations may write to it at a time.
pub(crate) type Sink = Rc<[Cell<u8>]>;

/// A request between its filing and its last completion.
pub(crate) struct Request {
    /// `Key::NONE` until it is filed.
    pub(crate) handle: Key,
    pub(crate) command: Command,
    pub(crate) lane: Lane,
    pub(crate) repeat: bool,
    /// Whether the driver has it.
    pub(crate) in_flight: bool,
    /// Whether the engine has asked the driver for it back, to begin it anew: with larger buffers,
    /// or later.
    pub(crate) recalled: bool,
    /// Whether it is not begun before its handle has less output waiting.
    pub(crate) parked: bool,
    /// Whether the driver announces what it receives, so that it is fetched into a buffer that the
    /// kernel does not have.
    pub(crate) fetches: bool,
    /// Whether a poll for one event waits for an edge, because the driver told the state of
    /// something that was not asked for.
    pub(crate) edges: bool,
    /// Whether the driver only waits for the moment to try it again.
    pub(crate) polling: bool,
    /// Whether it has been cancelled: it ends with what it has, and is not restarted.
    pub(crate) cancelled: bool,
    /// Whether it was cancelled because its time was over.
    pub(crate) overdue: bool,
    /// The next request of the lane.
    pub(crate) next: Option<Key>,
    /// Where a file is read or written; the queue that an accept serves.
    pub(crate) offset: u64,
    /// What the last completion of a repeating poll told before the kernel ended it.
    pub(crate) told: i32,
    /// How often in a row the kernel has called the poll invalid.
    pub(crate) invalid: u8,
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

    /// Whether it puts bytes out, all of which are to leave.
    pub(crate) fn writes(&self) -> bool {
        match self.command {
            Command::Write(_) | Command::WriteAt(_) | Command::WriteMore(_) => true,
            Command::WriteVectored(_) | Command::SendFile(_) | Command::SendMessage(_) => true,
            Command::Raw(command, _) => command.writes(),
            _ => false,
        }
    }

    /// Whether it reads bytes until the end of a stream.
    pub(crate) fn reads(&self) -> bool {
        match self.command {
            Command::Read(_) | Command::Peek(_) | Command::ReadVectored(_) => true,
            Command::ReceiveMessage(_) => true,
            Command::Raw(command, _) => !command.writes(),
            _ => false,
        }
    }

    /// Whether its next operation is on a file instead of its handle.
    pub(crate) fn reads_file(&self) -> bool {
        matches!(&self.command, Command::SendFile(part) if part.is_read())
    }

    /// Whether everything else of its handle waits for it.
    pub(crate) fn connects(&self) -> bool {
        matches!(self.command, Command::Connect(_))
    }

    /// Whether it can be done in the calling thread at the price of blocking it.
    pub(crate) fn may_run_inline(&self, kind: Kind) -> bool {
        let waits = matches!(self.command, Command::Disconnect { .. } | Command::Sync { .. });
        waits || kind == Kind::File
    }

    /// Whether `EAGAIN` means to wait until the endpoint is ready.
    pub(crate) fn can_wait(&self, kind: Kind) -> bool {
        !self.connects() && kind != Kind::File
    }

    /// Whether it waits while its handle has too much output waiting.
    pub(crate) fn is_pausable(&self) -> bool {
        self.repeat && matches!(self.command, Command::Receive | Command::ReceiveFrom)
    }

    /// Bytes that it is still to write.
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
            Command::SendTo(datagram) => datagram.buffer.len(),
            Command::SendMessage(envelope) | Command::Raw(_, RawMemory::Message(envelope)) => {
                envelope.bytes_left()
            }
            Command::SendFile(part) => part.unsent(),
            _ => 0,
        }
    }

    /// Bytes that it has room to read.
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

    /// The position of the next byte in a file.
    fn position(&self) -> u64 {
        if self.offset == NO_OFFSET { NO_OFFSET } else { self.offset + self.progress as u64 }
    }

    /// What the driver is to do next for the request.
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
            Command::SendTo(datagram) => datagram.operation(),
            Command::SendMessage(envelope)
            | Command::ReceiveMessage(envelope)
            | Command::Raw(_, RawMemory::Message(envelope)) => envelope.operation(),
            Command::Connect(address) => {
                let (storage, bytes) = (&raw const address.storage, address.bytes);
                Operation::Connect { address: storage.cast(), bytes }
            }
            Command::Receive if kind == Kind::Packet => Operation::ReceiveFrom { repeat },
            Command::ReceiveFrom => Operation::ReceiveFrom { repeat },
            Command::Disconnect { how } => Operation::Shutdown { how: *how },
            Command::Sync { data_only } => Operation::Sync { data_only: *data_only },
            Command::Poll { events } => {
                Operation::Poll { events: *events, repeat: repeat || edges }
            }
            // The engine submits accepts and closes by itself.
            Command::Receive | Command::Accept | Command::Close => {
                Operation::Receive { large, repeat }
            }
        }
    }

    /// What a driver's result means to the application: an operation that would be tried again is
    /// over if it has been cancelled.
    pub(crate) fn result_to_tell(&self, result: i32) -> i32 {
        match -result {
            libc::EAGAIN | libc::EINTR | libc::ECANCELED if self.overdue => -libc::ETIMEDOUT,
            libc::EAGAIN | libc::EINTR if self.cancelled => -libc::ECANCELED,
            _ => result,
        }
    }

    /// Notes that `bytes` bytes more are written; true if some are left and the rest should be
    /// written, too, because the handle is a stream of bytes.
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

    /// Makes `bytes` bytes that the kernel has read part of the application's buffers.
    pub(crate) fn commit(&mut self, bytes: usize) {
        match &mut self.command {
            Command::Read(vector) | Command::ReadAt(vector) | Command::Peek(vector) => {
                let bytes = bytes.min(vector.capacity() - vector.len());
                // SAFETY: the kernel has filled that many bytes of the spare room.
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

/// The operation for memory that stays the application's, of which so many bytes are left.
fn raw_operation(
    command: RawCommand,
    (address, bytes): (*mut u8, u32),
    kind: Kind,
    writes: bool,
    offset: u64,
) -> Operation {
    match command {
        RawCommand::Peek => Operation::Peek { address, bytes },
        // Datagrams would become one, and others do not know it.
        RawCommand::WriteMore if kind == Kind::Stream => Operation::WriteMore { address, bytes },
        _ if writes => Operation::Write { address, bytes, offset },
        _ => Operation::Read { address, bytes, offset },
    }
}

/// Where the next bytes go that are read behind what a vector contains, and how many.
fn spare_room(bytes: &mut Vec<u8>) -> (*mut u8, u32) {
    let room = bytes.spare_capacity_mut();
    (room.as_mut_ptr().cast(), clamp(room.len()))
}

/// What is left to be written of a buffer.
fn rest_of(buffer: &Buffer, progress: usize) -> (*const u8, u32) {
    let rest = &buffer[progress.min(buffer.len())..];
    (rest.as_ptr(), clamp(rest.len()))
}

/// How many bytes of a peer's address to ask for: the kernel refuses to fill more than the address
/// has. The family is among the first.
pub(crate) fn peer_address_bytes(address: &RawAddress) -> u32 {
    let bytes = match i32::from(address.storage.ss_family) {
        libc::AF_INET6 => mem::size_of::<libc::sockaddr_in6>(),
        _ => mem::size_of::<libc::sockaddr_in>(),
    };
    bytes as u32
}

/// One operation moves at most 2 GiB, as read(2) does; the rest follows.
fn clamp(bytes: usize) -> u32 {
    bytes.min(0x7fff_f000) as u32
}
