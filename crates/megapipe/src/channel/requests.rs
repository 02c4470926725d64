//! Submits requests: one method of `Channel` for each kind of request.
//!
//! Each method submits one request and returns at once; an [`Event`](crate::Event) of the same name
//! has its result. Requests are handed to the kernel in batches: when
//! [`Config::batch`](crate::Config::batch) of them have collected, when `dispatch` has nothing to
//! deliver, or on `flush`.

use super::Channel;
use crate::address::{Address, RawAddress};
use crate::buffer::Buffer;
use crate::completion::Handle;
use crate::engine::{AcceptWish, AddressedBuffer, Command, Lane, RawMemory, Request, Vector};
use crate::error::{Error, Result};
use crate::raw::{RawCommand, Transfer};
use crate::slab::Key;
use crate::source::Kind;
use std::fmt;
use std::net::Shutdown;

/// Whether a request completes once or until it is cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    /// One completion.
    Once,
    /// A completion for each result, until the end of the stream, an error, or [`Channel::cancel`].
    /// This costs less than one request for each result.
    UntilCancelled,
}

/// One of the two directions of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Reads, receives and watches.
    Inbound,
    /// Connects, writes and disconnects.
    Outbound,
}

impl Direction {
    /// Returns the lane of the direction's requests.
    pub(super) fn lane(self) -> Lane {
        match self {
            Direction::Inbound => Lane::Inbound,
            Direction::Outbound => Lane::Outbound,
        }
    }
}

/// The parameters of [`Channel::accept`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accept {
    count: Option<u32>,
    lightweight: bool,
    peer: bool,
}

impl Accept {
    /// Accepts connections as lightweight sockets, which belong to the channel and have no file
    /// descriptor (report, section 3.4.2). The epoll driver uses descriptors instead.
    pub fn lightweight() -> Accept {
        Accept { count: None, lightweight: true, peer: false }
    }

    /// Accepts connections as regular descriptors, non-blocking and close-on-exec on every driver.
    /// To use one as a blocking stream of `std`, call
    /// [`set_nonblocking(false)`](std::net::TcpStream::set_nonblocking) first; otherwise its reads
    /// and writes fail with `WouldBlock`. The same holds for descriptors of
    /// [`Channel::descriptor`](crate::Channel::descriptor) for an accepted connection.
    pub fn descriptors() -> Accept {
        Accept { count: None, lightweight: false, peer: false }
    }

    /// Accepts `count` connections; without it, all until [`Channel::cancel`]. The channel may
    /// accept more connections at once and keep them for the next accept; a poll of the listener
    /// does not report the kept ones.
    pub fn count(self, count: u32) -> Accept {
        Accept { count: Some(count), ..self }
    }

    /// Delivers each connection with the address of its peer:
    /// [`Accepted::peer`](crate::Accepted::peer).
    ///
    /// It costs one system call for each connection when the connection is delivered:
    /// getpeername(2), or io_uring_enter(2) for a lightweight socket of io_uring, which also hands
    /// over the collected requests (one more call for IPv6, and about nine for UNIX sockets). If
    /// the address is not needed at once, [`Channel::request_peer_address`] costs less, because it
    /// travels in a batch with other requests.
    ///
    /// ```
    /// use megapipe::{Accept, Channel, Event};
    /// use std::net::{TcpListener, TcpStream};
    /// let mut channel = Channel::new()?;
    /// let listener = TcpListener::bind("127.0.0.1:0")?;
    /// let address = listener.local_addr()?;
    /// let listening = channel.register(listener, ())?;
    /// channel.accept(listening, Accept::lightweight().with_peer_address())?;
    /// let client = TcpStream::connect(address)?;
    /// let done = channel.dispatch(None)?.expect("a connection");
    /// let Event::Accept(Ok(accepted)) = done.event else { panic!() };
    /// assert_eq!(accepted.peer, Some(client.local_addr()?.into()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn with_peer_address(self) -> Accept {
        Accept { peer: true, ..self }
    }
}

/// A request that was refused, with its buffer.
///
/// Converts into the [`Error`] by `?`.
pub struct Rejected<B> {
    /// The reason.
    pub error: Error,
    /// The buffer of the request.
    pub buffer: B,
}

impl<B> fmt::Debug for Rejected<B> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.error, out)
    }
}

impl<B> fmt::Display for Rejected<B> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.error, out)
    }
}

/// Combines the result of a check with the buffer of the request; an error contains the buffer,
/// too.
pub(super) fn with_buffer<T, B>(checked: Result<T>, buffer: B) -> Result<(T, B), Rejected<B>> {
    match checked {
        Ok(value) => Ok((value, buffer)),
        Err(error) => Err(Rejected { error, buffer }),
    }
}

impl<B> std::error::Error for Rejected<B> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

impl<B> From<Rejected<B>> for Error {
    fn from(rejected: Rejected<B>) -> Error {
        rejected.error
    }
}

const STREAMS: &[Kind] = &[Kind::Stream, Kind::Packet, Kind::Pipe];
/// Kinds of sources for requests that read or write bytes.
pub(super) const BYTES: &[Kind] =
    &[Kind::Stream, Kind::Packet, Kind::Pipe, Kind::Datagram, Kind::File];
/// Kinds of sources that are sockets.
pub(super) const SOCKETS: &[Kind] = &[Kind::Stream, Kind::Packet, Kind::Datagram];
const POLLED: &[Kind] = &[Kind::Stream, Kind::Packet, Kind::Datagram, Kind::Listener, Kind::Pipe];
const WATCHED: &[Kind] = &[Kind::Signal, Kind::Timer, Kind::Wake];

impl<C> Channel<C> {
    /// Returns the key of a handle; fails if the request does not fit its kind.
    pub(super) fn check(
        &self,
        handle: Handle,
        request: &'static str,
        kinds: &[Kind],
    ) -> Result<Key> {
        let key = self.engine.key(handle)?;
        let kind = self.engine.member(key)?.kind;
        if kinds.contains(&kind) {
            return Ok(key);
        }
        Err(Error::WrongKind { request, kind: kind.name() })
    }

    /// Accepts connections on a listener: one [`Event::Accept`](crate::Event::Accept) for each.
    ///
    /// Counts of several calls add up. A transient error, such as `EMFILE`, has
    /// [`Completion::more`](crate::Completion::more) and does not end the request: connections stay
    /// in the accept queue, and the channel accepts again by itself, when a descriptor is closed or
    /// after a pause, of 20 ms at first and 1 s at most. Any other error ends it. `ECANCELED` is
    /// the last completion after [`Channel::cancel`].
    pub fn accept(&mut self, handle: Handle, accept: Accept) -> Result<()> {
        let key = self.check(handle, "an accept", &[Kind::Listener])?;
        if accept.count == Some(0) {
            return Err(Error::Invalid("an accept of no connections would never complete"));
        }
        let Accept { count, lightweight, peer } = accept;
        self.engine.accept(key, AcceptWish { count, lightweight, peer })
    }

    /// Connects a socket: [`Event::Connect`](crate::Event::Connect). Later requests on the same
    /// handle wait for the connection.
    pub fn connect(&mut self, handle: Handle, address: impl Into<Address>) -> Result<()> {
        let key = self.check(handle, "a connect", SOCKETS)?;
        let address = RawAddress::new(&address.into()).map_err(Error::system("connect"))?;
        self.file(key, Request::new(Command::Connect(Box::new(address)), Lane::Outbound))
    }

    /// Reads into the spare capacity of `buffer`, after its content.
    /// [`Event::Read`](crate::Event::Read) has the number of bytes, 0 at the end. Completes with
    /// the available bytes, which may be fewer than the capacity. Reads a file at its current
    /// position.
    pub fn read(&mut self, handle: Handle, buffer: Vec<u8>) -> Result<(), Rejected<Vec<u8>>> {
        let (key, buffer) = with_buffer(self.check(handle, "a read", BYTES), buffer)?;
        self.file_read(key, buffer, |buffer| Request::new(Command::Read(buffer), Lane::Inbound))
    }

    /// Reads from a disk file at an offset. [`Event::ReadAt`](crate::Event::ReadAt) repeats the
    /// offset, because many such requests may be in flight on one handle. Otherwise as
    /// [`Channel::read`].
    pub fn read_at(
        &mut self,
        handle: Handle,
        buffer: Vec<u8>,
        offset: u64,
    ) -> Result<(), Rejected<Vec<u8>>> {
        let checked = self.check_offset(handle, "a read at an offset", offset);
        let (key, buffer) = with_buffer(checked, buffer)?;
        self.file_read(key, buffer, |buffer| {
            Request::new(Command::ReadAt(buffer), Lane::None).at(offset)
        })
    }

    /// Fails for an offset that does not fit into the kernel's signed type.
    fn check_offset(&self, handle: Handle, request: &'static str, offset: u64) -> Result<Key> {
        if offset > i64::MAX as u64 {
            return Err(Error::Invalid("an offset is at most 2⁶³ - 1"));
        }
        self.check(handle, request, &[Kind::File])
    }

    /// Submits the request that the closure `request` makes of the buffer to read into.
    pub(super) fn file_read(
        &mut self,
        key: Key,
        buffer: Vec<u8>,
        request: impl FnOnce(Vec<u8>) -> Request,
    ) -> Result<(), Rejected<Vec<u8>>> {
        if buffer.capacity() == buffer.len() {
            let error = Error::Invalid("the buffer has no spare capacity to read into");
            return Err(Rejected { error, buffer });
        }
        self.engine.file(key, request(buffer)).map_err(|(error, command)| match command {
            Command::Read(buffer) | Command::ReadAt(buffer) | Command::Peek(buffer) => {
                Rejected { error, buffer }
            }
            _ => Rejected { error, buffer: Vec::new() },
        })
    }

    /// Reads into the spare capacity of several buffers, filling one after the other:
    /// [`Event::ReadVectored`](crate::Event::ReadVectored). At most 1,024 buffers.
    pub fn read_vectored(
        &mut self,
        handle: Handle,
        buffers: Vec<Vec<u8>>,
    ) -> Result<(), Rejected<Vec<Vec<u8>>>> {
        let (key, buffers) = with_buffer(self.check(handle, "a vectored read", BYTES), buffers)?;
        let vector = Vector::reading(buffers);
        let error = if vector.rest().len() > MOST_VECTORS {
            TOO_MANY_VECTORS
        } else if vector.bytes_left() == 0 {
            Error::Invalid("the buffers have no spare capacity to read into")
        } else {
            let request = Request::new(Command::ReadVectored(vector), Lane::Inbound);
            return self.engine.file(key, request).map_err(|(error, command)| match command {
                Command::ReadVectored(vector) => Rejected { error, buffer: vector.reads },
                _ => Rejected { error, buffer: Vec::new() },
            });
        };
        Err(Rejected { error, buffer: vector.reads })
    }

    /// Receives from a stream or pipe into a buffer that belongs to the channel:
    /// [`Event::Receive`](crate::Event::Receive) with a lease of it, empty at the end.
    ///
    /// While all buffers are leased, the request waits; nothing is lost.
    pub fn receive(&mut self, handle: Handle, repeat: Repeat) -> Result<()> {
        let key = self.check(handle, "a receive", STREAMS)?;
        self.file_repeating(key, Command::Receive, repeat)
    }

    /// Receives datagrams with the addresses of their senders:
    /// [`Event::ReceiveFrom`](crate::Event::ReceiveFrom). They also have what
    /// [`Channel::enable_packet_info`], [`Channel::enable_ecn`] and [`Channel::enable_gro`] make
    /// the kernel report.
    pub fn receive_from(&mut self, handle: Handle, repeat: Repeat) -> Result<()> {
        let key = self.check(handle, "a receive of datagrams", &[Kind::Datagram])?;
        let ancillary = self.engine.expects_ancillary(key);
        self.file_repeating(key, Command::ReceiveFrom { ancillary }, repeat)
    }

    /// Waits for the next signal, expiry or wake-up of a [`Signals`](crate::Signals),
    /// [`Timer`](crate::Timer) or [`WakeSource`](crate::WakeSource).
    pub fn watch(&mut self, handle: Handle, repeat: Repeat) -> Result<()> {
        let key = self.check(handle, "a watch", WATCHED)?;
        self.file_repeating(key, Command::Watch(Box::default()), repeat)
    }

    fn file_repeating(&mut self, key: Key, command: Command, repeat: Repeat) -> Result<()> {
        let request = Request::new(command, Lane::Inbound);
        self.file(key, request.repeating(repeat == Repeat::UntilCancelled))
    }

    pub(super) fn file(&mut self, key: Key, request: Request) -> Result<()> {
        self.engine.file(key, request).map_err(|(error, _)| error)
    }

    /// Writes all of a buffer; [`Event::Write`](crate::Event::Write) returns it. Writes to a file
    /// at its current position. To a connected datagram socket it sends one datagram.
    ///
    /// A write to a pipe without a reader, or to a broken socket, fails with `EPIPE` and raises no
    /// `SIGPIPE`, whatever the process does about that signal. Before Linux 6.18 the channel blocks
    /// the signal in its thread while it writes to a pipe.
    pub fn write(
        &mut self,
        handle: Handle,
        buffer: impl Into<Buffer>,
    ) -> Result<(), Rejected<Buffer>> {
        let (key, buffer) = with_buffer(self.check(handle, "a write", BYTES), buffer.into())?;
        self.file_write(key, buffer, |buffer| Request::new(Command::Write(buffer), Lane::Outbound))
    }

    /// Writes all of a buffer to a disk file at an offset:
    /// [`Event::WriteAt`](crate::Event::WriteAt), which repeats the offset.
    pub fn write_at(
        &mut self,
        handle: Handle,
        buffer: impl Into<Buffer>,
        offset: u64,
    ) -> Result<(), Rejected<Buffer>> {
        let checked = self.check_offset(handle, "a write at an offset", offset);
        let (key, buffer) = with_buffer(checked, buffer.into())?;
        self.file_write(key, buffer, |buffer| {
            Request::new(Command::WriteAt(buffer), Lane::None).at(offset)
        })
    }

    /// Submits the request that the closure `request` makes of the buffer to write.
    pub(super) fn file_write(
        &mut self,
        key: Key,
        buffer: Buffer,
        request: impl FnOnce(Buffer) -> Request,
    ) -> Result<(), Rejected<Buffer>> {
        let mut buffer = buffer;
        self.engine.spare_lease(key, &mut buffer);
        self.engine.file(key, request(buffer)).map_err(|(error, command)| match command {
            Command::Write(buffer) | Command::WriteAt(buffer) | Command::WriteMore(buffer) => {
                Rejected { error, buffer }
            }
            _ => Rejected { error, buffer: Buffer::Static(&[]) },
        })
    }

    /// Writes all of several buffers in order, for example a header and a body:
    /// [`Event::WriteVectored`](crate::Event::WriteVectored). At most 1,024 buffers.
    pub fn write_vectored(
        &mut self,
        handle: Handle,
        buffers: Vec<Buffer>,
    ) -> Result<(), Rejected<Vec<Buffer>>> {
        let checked = self.check(handle, "a vectored write", BYTES);
        let (key, mut buffers) = with_buffer(checked, buffers)?;
        if buffers.len() > MOST_VECTORS {
            return Err(Rejected { error: TOO_MANY_VECTORS, buffer: buffers });
        }
        buffers.iter_mut().for_each(|buffer| self.engine.spare_lease(key, buffer));
        let command = Command::WriteVectored(Vector::writing(buffers));
        let request = Request::new(command, Lane::Outbound);
        self.engine.file(key, request).map_err(|(error, command)| match command {
            Command::WriteVectored(vector) => Rejected { error, buffer: vector.writes },
            _ => Rejected { error, buffer: Vec::new() },
        })
    }

    /// Sends a datagram to an address: [`Event::SendTo`](crate::Event::SendTo).
    pub fn send_to(
        &mut self,
        handle: Handle,
        buffer: impl Into<Buffer>,
        address: impl Into<Address>,
    ) -> Result<(), Rejected<Buffer>> {
        let key = self.check(handle, "a send of datagrams", &[Kind::Datagram]);
        let address = RawAddress::new(&address.into()).map_err(Error::system("sendto"));
        let checked = key.and_then(|key| Ok((key, address?)));
        let ((key, address), mut buffer) = with_buffer(checked, buffer.into())?;
        self.engine.spare_lease(key, &mut buffer);
        let command = Command::SendTo(AddressedBuffer::new(buffer, address));
        let request = Request::new(command, Lane::Outbound);
        self.engine.file(key, request).map_err(|(error, command)| match command {
            Command::SendTo(datagram) => Rejected { error, buffer: datagram.buffer },
            _ => Rejected { error, buffer: Buffer::Static(&[]) },
        })
    }

    /// Shuts a connection down, as shutdown(2) does, after the writes that were submitted before:
    /// [`Event::Disconnect`](crate::Event::Disconnect). The handle stays registered.
    pub fn disconnect(&mut self, handle: Handle, how: Shutdown) -> Result<()> {
        let key = self.check(handle, "a disconnect", SOCKETS)?;
        let how = match how {
            Shutdown::Read => libc::SHUT_RD,
            Shutdown::Write => libc::SHUT_WR,
            Shutdown::Both => libc::SHUT_RDWR,
        };
        self.file(key, Request::new(Command::Disconnect { how }, Lane::Outbound))
    }

    /// Waits until the data of a file's complete writes is on its disk, as fsync(2) does:
    /// [`Event::Sync`](crate::Event::Sync).
    pub fn sync(&mut self, handle: Handle) -> Result<()> {
        let key = self.check(handle, "a sync", &[Kind::File])?;
        let command = Command::Sync { data_only: false };
        self.file(key, Request::new(command, Lane::None))
    }

    /// Does the same without metadata such as the file's times, as fdatasync(2) does.
    pub fn sync_data(&mut self, handle: Handle) -> Result<()> {
        let key = self.check(handle, "a sync", &[Kind::File])?;
        let command = Command::Sync { data_only: true };
        self.file(key, Request::new(command, Lane::None))
    }

    /// Waits until a socket or pipe is ready for calls that the application makes itself.
    /// [`Event::Poll`](crate::Event::Poll) has the pending events of poll(2), among the requested
    /// ones (`libc::POLLIN`, `POLLOUT`, `POLLRDHUP`, `POLLPRI`) and `POLLERR` and `POLLHUP`.
    ///
    /// With [`Repeat::UntilCancelled`] it completes with the pending events at first and then at
    /// each new event, as edge-triggered epoll(7) does; an event may be reported twice. A handle
    /// has one poll at a time; a second one begins when the first has ended. Registration makes
    /// pipes non-blocking, and on the epoll driver also listeners.
    pub fn poll(&mut self, handle: Handle, events: u32, repeat: Repeat) -> Result<()> {
        let key = self.check(handle, "a poll", POLLED)?;
        let allowed = libc::POLLIN | libc::POLLOUT | libc::POLLPRI | libc::POLLRDHUP;
        if events & !(allowed as u32 | (libc::POLLERR | libc::POLLHUP) as u32) != 0 {
            return Err(Error::Invalid("a poll is for POLLIN, POLLOUT, POLLPRI and POLLRDHUP"));
        }
        let request = Request::new(Command::Poll { events }, Lane::Readiness);
        self.file(key, request.repeating(repeat == Repeat::UntilCancelled))
    }

    /// Requests the address of the peer of a connection:
    /// [`Event::PeerAddress`](crate::Event::PeerAddress).
    pub fn request_peer_address(&mut self, handle: Handle) -> Result<()> {
        let key = self.check(handle, "a question for the peer's address", SOCKETS)?;
        let command = Command::PeerAddress(Box::new(RawAddress::room()));
        self.file(key, Request::new(command, Lane::None))
    }

    /// Reads or writes memory that the application keeps:
    /// [`Event::Transfer`](crate::Event::Transfer). Otherwise as the method of the same command,
    /// such as [`Channel::read`] or [`Channel::write`].
    ///
    /// # Safety
    ///
    /// The memory that `transfer` describes must stay valid until the request's completion. If the
    /// handle is unregistered or closed before that, it must stay valid until the channel has been
    /// dropped without a warning about leaked memory. Meanwhile nothing else may write to the
    /// memory, nor read it if the request reads into it. Excepted are the array of a vectored
    /// transfer, and everything but the bytes of a datagram or message that is sent.
    pub unsafe fn transfer(&mut self, handle: Handle, transfer: Transfer<'_>) -> Result<()> {
        let (command, lane, memory, offset) = match transfer {
            Transfer::Read { address, bytes, offset } => {
                let memory = RawMemory::Bytes { address, bytes };
                (RawCommand::Read, Lane::Inbound, memory, offset)
            }
            Transfer::Write { address, bytes, offset } => {
                let memory = RawMemory::Bytes { address: address.cast_mut(), bytes };
                (RawCommand::Write, Lane::Outbound, memory, offset)
            }
            Transfer::Peek { address, bytes } => {
                (RawCommand::Peek, Lane::Inbound, RawMemory::Bytes { address, bytes }, None)
            }
            Transfer::WriteMore { address, bytes } => {
                let memory = RawMemory::Bytes { address: address.cast_mut(), bytes };
                (RawCommand::WriteMore, Lane::Outbound, memory, None)
            }
            Transfer::ReadVectored(vector) => {
                let memory = RawMemory::Vector(Vector::raw(vector.to_vec()));
                (RawCommand::ReadVectored, Lane::Inbound, memory, None)
            }
            Transfer::WriteVectored(vector) => {
                let memory = RawMemory::Vector(Vector::raw(vector.to_vec()));
                (RawCommand::WriteVectored, Lane::Outbound, memory, None)
            }
            Transfer::SendTo { address, bytes, to, receiver } => {
                let key = self.check(handle, "a send of datagrams", &[Kind::Datagram])?;
                let to = RawAddress::new(to).map_err(Error::system("sendto"))?;
                let datagram = AddressedBuffer::raw(address, bytes, to);
                let memory = RawMemory::Datagram { datagram, receiver };
                let command = Command::Raw(RawCommand::SendTo, memory);
                return self.file(key, Request::new(command, Lane::Outbound));
            }
            Transfer::SendMessage(message) => {
                let (command, message) = (RawCommand::SendMessage, message.cast_mut());
                // SAFETY: this method's caller guarantees that the message's memory stays valid.
                return unsafe { self.transfer_message(handle, command, message) };
            }
            Transfer::ReceiveMessage(message) => {
                // SAFETY: this method's caller guarantees that the memory stays valid.
                return unsafe {
                    self.transfer_message(handle, RawCommand::ReceiveMessage, message)
                };
            }
        };
        let key = match offset {
            Some(offset) => self.check_offset(handle, "a transfer at an offset", offset)?,
            None if command == RawCommand::Peek => self.check(handle, "a peek", SOCKETS)?,
            None => self.check(handle, "a transfer", BYTES)?,
        };
        check_room(command, &memory)?;
        let lane = if offset.is_some() { Lane::None } else { lane };
        let request = Request::new(Command::Raw(command, memory), lane);
        self.file(key, offset.into_iter().fold(request, Request::at))
    }

    /// Cancels the requests of one direction of a handle, as [`Channel::cancel`] does for both.
    /// Accepts, polls, and requests at an offset of a file belong to neither direction.
    pub fn cancel_direction(&mut self, handle: Handle, direction: Direction) -> Result<()> {
        let key = self.engine.key(handle)?;
        self.engine.cancel_lane(key, direction.lane())
    }

    /// Cancels all requests of a handle. Each still has its last completion: with `ECANCELED`, or
    /// with its result if that came first; for a write in progress this is the number of bytes that
    /// are written. If these are not all, [`Channel::close`] resets the connection, unless a later
    /// write goes on: the peer must not take a part for the whole. The handle stays registered.
    pub fn cancel(&mut self, handle: Handle) -> Result<()> {
        let key = self.engine.key(handle)?;
        self.engine.cancel(key)
    }
}

/// Fails for a transfer whose result would look like the end of the stream, or that is too long.
pub(super) fn check_room(command: RawCommand, memory: &RawMemory) -> Result<()> {
    let bytes = match memory {
        RawMemory::Vector(vector) if vector.rest().len() > MOST_VECTORS => {
            return Err(TOO_MANY_VECTORS);
        }
        RawMemory::Vector(vector) => vector.bytes_left(),
        RawMemory::Bytes { bytes, .. } => *bytes,
        RawMemory::Message(envelope) => envelope.bytes_left(),
        RawMemory::Datagram { datagram, .. } => datagram.bytes(),
    };
    if bytes == 0 && command.reads() {
        return Err(Error::Invalid("there is no room to read into"));
    }
    Ok(())
}

/// Maximum number of buffers of a vectored request: the kernel's `IOV_MAX`.
pub(super) const MOST_VECTORS: usize = 1024;
pub(super) const TOO_MANY_VECTORS: Error =
    Error::Invalid("a vectored request takes at most 1024 buffers");
