//! Defines completions, the results of requests as the application receives them, and handles.

use crate::address::{Address, RawAddress};
use crate::buffer::Buffer;
use crate::control;
use crate::driver::{CONTROL_BYTES, DATAGRAM_CONTROL, NAME_BYTES, datagram_payload};
use crate::message::{Arrival, Ecn, Message, PacketInfo};
use crate::pool::Lease;
use crate::raw::Transferred;
use crate::source::Socket;
use std::io;
use std::ops::Deref;

/// A member of a channel, returned by [`Channel::register`](crate::Channel::register).
///
/// It stays valid until `unregister` or `close`. Then every call with it fails with
/// [`Error::UnknownHandle`](crate::Error::UnknownHandle), even after its index has been reused, and
/// so does every call on another channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Handle {
    pub(crate) index: u32,
    pub(crate) generation: u32,
    pub(crate) channel: u32,
}

impl Handle {
    /// Returns the index of the handle in its channel: at most
    /// [`Config::max_handles`](crate::Config::max_handles), and reused after the handle has ended.
    pub fn index(self) -> u32 {
        self.index
    }

    /// Returns the generation, which distinguishes the handle from earlier ones with its index. It
    /// counts from 1 for each index.
    pub fn generation(self) -> u32 {
        self.generation
    }
}

/// One completed request, or one of the results of a repeating one.
#[derive(Debug)]
pub struct Completion {
    /// The handle of the request.
    pub handle: Handle,
    /// Whether more completions of the same request follow.
    pub more: bool,
    /// The command and its result.
    pub event: Event,
    /// The number of bytes that the kernel has taken of a write, of a message on a stream or of a
    /// part of a file, also if the request has failed or was cancelled; 0 for all else. The peer
    /// may not have got all of them.
    pub written: usize,
}

/// A command and its result; failures carry the kernel's `errno`.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// A new connection. After an error with `more` true, such as `EMFILE`, the channel accepts
    /// again by itself when a descriptor has been closed or some time has passed.
    Accept(io::Result<Accepted>),
    /// The socket is connected.
    Connect(io::Result<()>),
    /// Bytes were appended to the vector; 0 is the end of the stream or file. If a datagram or
    /// packet was longer than the spare capacity the result is `EMSGSIZE`, and its beginning is in
    /// the vector.
    Read(io::Result<usize>, Vec<u8>),
    /// Bytes from this offset of a file were appended to the vector; 0 at the end of the file.
    ReadAt(io::Result<usize>, Vec<u8>, u64),
    /// Bytes that a socket has received were appended to the vector; they can be read again.
    /// Otherwise as with `Read`.
    Peek(io::Result<usize>, Vec<u8>),
    /// Bytes were appended to the vectors, in order.
    ReadVectored(io::Result<usize>, Vec<Vec<u8>>),
    /// Bytes arrived in a buffer of the channel; an empty lease is the end of the stream. A packet
    /// socket delivers one message, which may be empty ([`Lease::is_end`] distinguishes it from the
    /// end), or `EMSGSIZE` if it was longer than a buffer of [`Config::large_buffers`].
    ///
    /// [`Config::large_buffers`]: crate::Config::large_buffers
    Receive(io::Result<Lease>),
    /// A datagram arrived.
    ReceiveFrom(io::Result<Datagram>),
    /// All bytes were written; fewer only if the write was cancelled half-way. A write that fails
    /// half-way is an error, such as `ECONNRESET`; [`Completion::written`] has the number of bytes.
    Write(io::Result<usize>, Buffer),
    /// The bytes were written to a file at this offset.
    WriteAt(io::Result<usize>, Buffer, u64),
    /// All bytes of several buffers were written, as with `Write`.
    WriteVectored(io::Result<usize>, Vec<Buffer>),
    /// A datagram was sent.
    SendTo(io::Result<usize>, Buffer),
    /// All bytes of a message were sent, with its ancillary data: its descriptors are returned and
    /// may be closed. On a stream, fewer bytes only if the request was cancelled half-way; the
    /// descriptors were sent with the first byte.
    SendMessage(io::Result<usize>, Message),
    /// A message arrived: its bytes and descriptors were appended to those of the message; 0 is the
    /// end of a stream. `EMSGSIZE`: a datagram or packet was longer than the spare capacity; its
    /// beginning and all else are in the message. [`DescriptorsLost`]: descriptors were lost; the
    /// bytes and the other descriptors are in the message.
    ///
    /// [`DescriptorsLost`]: crate::DescriptorsLost
    ReceiveMessage(io::Result<usize>, Message),
    /// All bytes of a part of a file were sent; fewer only if the request was cancelled half-way.
    /// `ENODATA`: the file ended early, and its bytes were sent. `EBADF`: the file's handle was
    /// closed or unregistered.
    SendFile(io::Result<usize>),
    /// The connection is shut down.
    Disconnect(io::Result<()>),
    /// The file's data is on the disk.
    Sync(io::Result<()>),
    /// A signal arrived.
    Signal(io::Result<SignalInfo>),
    /// The number of expirations of the timer since the last report.
    Timer(io::Result<u64>),
    /// The number of wake-ups by other threads since the last report.
    Wake(io::Result<u64>),
    /// Events of poll(2) (`libc::POLLIN`, …) that are pending.
    Poll(io::Result<u32>),
    /// The address of the other side.
    PeerAddress(io::Result<Address>),
    /// A transfer from or to memory of the application is complete.
    Transfer(Transferred),
    /// The handle is closed: the last event after [`Channel::close`](crate::Channel::close) or
    /// [`Channel::abort`](crate::Channel::abort). The error is that of the first queued write that
    /// failed, `ETIMEDOUT` if the peer took nothing for too long, or that of close(2).
    Close(io::Result<()>),
}

/// A new connection.
#[derive(Debug)]
pub struct Accepted {
    /// The connection. Register it with this channel or, if it is a descriptor, use it otherwise.
    /// To refuse it, drop it, or reset it by [`Channel::refuse`](crate::Channel::refuse).
    pub socket: Socket,
    /// How many further connections were waiting when this one was delivered.
    pub pending: u32,
    /// The address of the peer, if [`Accept::with_peer_address`] was requested, even if the peer
    /// has already reset the connection. `None` if the driver does not report it.
    ///
    /// [`Accept::with_peer_address`]: crate::Accept::with_peer_address
    pub peer: Option<Address>,
}

/// A datagram in a buffer of the channel; dereferences to its payload.
#[derive(Debug)]
pub struct Datagram {
    /// The whole buffer: header, sender's name, ancillary data, payload.
    lease: Lease,
    name_bytes: usize,
    control_bytes: usize,
    /// Offset of the payload.
    payload: usize,
    truncated: bool,
}

impl Datagram {
    /// Parses the buffer, in which room for ancillary data is reserved or not. Fails with `EBADMSG`
    /// if its lengths contradict each other.
    pub(crate) fn parse(mut lease: Lease, ancillary: bool) -> io::Result<Datagram> {
        let bad = || io::Error::from_raw_os_error(libc::EBADMSG);
        let payload = datagram_payload(ancillary);
        if lease.len() < payload {
            return Err(bad());
        }
        let number = |at: usize| {
            u32::from_ne_bytes([lease[at], lease[at + 1], lease[at + 2], lease[at + 3]]) as usize
        };
        let (name_bytes, control_bytes) = (number(0).min(NAME_BYTES), number(4));
        let (payload_bytes, flags) = (number(8), number(12));
        let control_bytes = if ancillary { control_bytes.min(CONTROL_BYTES) } else { 0 };
        let truncated = flags & libc::MSG_TRUNC as usize != 0;
        lease.truncate(payload.saturating_add(payload_bytes));
        Ok(Datagram { lease, name_bytes, control_bytes, payload, truncated })
    }

    /// Returns the sender's address. Fails with `EAFNOSUPPORT` for a family that the crate does not
    /// support.
    pub fn address(&self) -> io::Result<Address> {
        let start = DATAGRAM_CONTROL - NAME_BYTES;
        RawAddress::parse(&self.lease[start..start + self.name_bytes])
    }

    /// Returns whether the datagram was longer than the buffer and lost its end.
    pub fn is_truncated(&self) -> bool {
        self.truncated
    }

    fn arrival(&self) -> Arrival {
        control::arrival(&self.lease[DATAGRAM_CONTROL..DATAGRAM_CONTROL + self.control_bytes])
    }

    /// Returns the address and the interface of this host on which the datagram arrived, on a
    /// socket with [`Channel::enable_packet_info`](crate::Channel::enable_packet_info).
    pub fn packet_info(&self) -> Option<PacketInfo> {
        self.arrival().packet_info
    }

    /// Returns the ECN mark, on a socket with
    /// [`Channel::enable_ecn`](crate::Channel::enable_ecn).
    pub fn ecn(&self) -> Option<Ecn> {
        self.arrival().ecn
    }

    /// Returns the size of the datagrams that the kernel has joined into this one, on a socket with
    /// [`Channel::enable_gro`](crate::Channel::enable_gro); `None` for a single datagram. The last
    /// one may be shorter.
    pub fn segment_size(&self) -> Option<u16> {
        self.arrival().segment_size
    }

    /// Returns the payload as a lease, to keep or to send without a copy.
    pub fn into_lease(mut self) -> Lease {
        self.lease.cut_front(self.payload);
        self.lease
    }
}

impl Deref for Datagram {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.lease[self.payload..]
    }
}

/// A signal that arrived, see signalfd(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignalInfo {
    /// The signal's number.
    pub signal: i32,
    /// The sender's process id, or 0.
    pub process: u32,
    /// The sender's user id.
    pub user: u32,
}
