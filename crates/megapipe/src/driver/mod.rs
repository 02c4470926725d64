//! Defines the interface between a channel and its driver: the trait `Driver`, its operations and
//! their outcomes.
//!
//! The channel engine manages handles, order and ownership; a driver executes operations. After an
//! endpoint is attached, the trait uses no file descriptor for it but an [`Object`], a number of
//! the driver's own. So a TCP stack in user space or a shared-memory flow can implement the trait
//! as well.

use crate::config::Config;
use crate::counters::Counters;
use crate::pool::{Lease, Pool, Room};
use crate::source::{Endpoint, Kind, Socket};
use crate::sys::open_socket;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::rc::Rc;
use std::time::Duration;

mod cached_file;
mod datagram;
pub(crate) mod epoll;
mod nonblocking;
pub(crate) mod uring;

/// A driver's own number for an endpoint that it has taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object(
    /// The number: below [`Object::INSTALLED`] for the kernel drivers, from there on for the
    /// objects of an installed driver.
    pub u32,
);

impl Object {
    /// The first number of an installed driver's own objects.
    pub const INSTALLED: u32 = 1 << 31;
}

/// The offset of an operation that continues at the file's position, or on an endpoint without
/// positions.
pub const NO_OFFSET: u64 = u64::MAX;

/// Bytes reserved for a sender's address in front of a received datagram.
pub(crate) const NAME_BYTES: usize = 128;

/// Bytes reserved for the ancillary data of a received datagram, if any is expected. Packet
/// information, an ECN mark and a segment size take 88; the others leave room for what the
/// application has enabled itself, such as timestamps.
pub(crate) const CONTROL_BYTES: usize = 256;

/// The smallest buffers in which room for ancillary data is reserved.
pub(crate) const ANCILLARY_BUFFER_BYTES: u32 = 1024;

/// One operation. Its submitter keeps the memory that it points to alive, in place and otherwise
/// unused until the operation's last outcome. Operations of one direction on a stream are submitted
/// one at a time.
#[derive(Clone, Copy, Debug)]
pub enum Operation {
    /// Accepts connections; each has an outcome with an `Output::Socket`.
    Accept {
        /// Whether lightweight sockets are requested; a driver without them ignores it.
        lightweight: bool,
        /// Continues until it is cancelled or fails.
        repeat: bool,
    },
    /// Connects to an address, which must stay in place.
    Connect {
        /// The address.
        address: *const libc::sockaddr,
        /// Its length.
        bytes: libc::socklen_t,
    },
    /// Reads at most `bytes` bytes; 0 is the end. From a socket of datagrams or packets it reads
    /// one message, and the result is the message's length, which may exceed `bytes`.
    Read {
        /// Destination.
        address: *mut u8,
        /// Maximum number of bytes to read.
        bytes: u32,
        /// The offset in a file, or [`NO_OFFSET`].
        offset: u64,
    },
    /// Reads into several buffers, one after the other.
    ReadVectored {
        /// The buffers.
        vector: *const libc::iovec,
        /// The number of buffers.
        count: u32,
        /// The offset in a file, or [`NO_OFFSET`].
        offset: u64,
    },
    /// Receives into a buffer of the channel.
    Receive {
        /// The class of the buffer.
        large: bool,
        /// Continues until the end, an error or a lack of buffers ([`Output::Starved`]), or until
        /// the driver has to restart it, which `more` shows.
        repeat: bool,
    },
    /// Receives datagrams into large buffers, each of which begins with a header as of recvmsg(2).
    ReceiveFrom {
        /// As with `Receive`.
        repeat: bool,
        /// Whether the buffer has room for ancillary data. Only internet sockets have that, so
        /// there are no descriptors in it.
        ancillary: bool,
    },
    /// Writes some or all of the bytes; the channel submits a further operation for the rest.
    Write {
        /// Source.
        address: *const u8,
        /// Number of bytes.
        bytes: u32,
        /// The offset in a file, or [`NO_OFFSET`].
        offset: u64,
    },
    /// Reads from a socket as `Read` does, but does not remove the bytes or the message.
    Peek {
        /// Destination.
        address: *mut u8,
        /// Maximum number of bytes to read.
        bytes: u32,
    },
    /// Writes to a stream socket as `Write` does, and hints that another write follows at once:
    /// `MSG_MORE`, which a driver may ignore.
    WriteMore {
        /// Source.
        address: *const u8,
        /// Number of bytes.
        bytes: u32,
    },
    /// Reads from a socket as recvmsg(2) does, and fills in the header's name, ancillary data and
    /// flags; execve(2) closes the received descriptors. The result is that of `Read`.
    ReadMessage {
        /// The header. It and all that it points to must stay in place.
        message: *mut libc::msghdr,
    },
    /// Writes from several buffers.
    WriteVectored {
        /// The buffers.
        vector: *const libc::iovec,
        /// The number of buffers.
        count: u32,
        /// The offset in a file, or [`NO_OFFSET`].
        offset: u64,
    },
    /// Writes as sendmsg(2) does: a datagram or packet, or some or all of the bytes for a stream.
    SendTo {
        /// The header. It and all that it points to must stay in place.
        message: *const libc::msghdr,
    },
    /// Sends bytes of a disk file over a stream socket as sendfile(2) does, as far as neither the
    /// disk nor the socket makes it wait. The result is `-EOPNOTSUPP` if the bytes have to be read
    /// and written instead, `-ENODATA` at the end of the file, and `-EINTR` after a wait for room,
    /// to be submitted again.
    SendFile {
        /// The file, which the driver uses only until `submit` returns.
        file: RawFd,
        /// The offset of the first byte.
        offset: u64,
        /// The number of bytes, at least 1.
        bytes: u32,
    },
    /// Shuts directions down, as shutdown(2).
    Shutdown {
        /// `SHUT_RD`, `SHUT_WR` or `SHUT_RDWR`.
        how: libc::c_int,
    },
    /// Writes a file's data to the disk.
    Sync {
        /// Leaves out metadata that is not needed to read the data back.
        data_only: bool,
    },
    /// Waits for poll(2) events; the outcome has the pending ones.
    Poll {
        /// The requested events; `POLLERR` and `POLLHUP` are always included.
        events: u32,
        /// One outcome at each edge.
        repeat: bool,
    },
    /// Fills exactly `bytes` bytes of the peer's address; fails with `EINVAL` if it has fewer.
    PeerName {
        /// Destination.
        address: *mut u8,
        /// Number of bytes.
        bytes: u32,
    },
}

/// The header of a received datagram in its buffer: the name is at offset 16, then follow
/// [`CONTROL_BYTES`] of ancillary data, if any is expected, and the payload. It is the kernel's
/// `io_uring_recvmsg_out`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct DatagramHeader {
    pub(crate) name_bytes: u32,
    pub(crate) control_bytes: u32,
    pub(crate) payload_bytes: u32,
    pub(crate) flags: u32,
}

/// Offset of the ancillary data of a received datagram in its buffer.
pub(crate) const DATAGRAM_CONTROL: usize = std::mem::size_of::<DatagramHeader>() + NAME_BYTES;

/// Returns the offset of the payload of a received datagram in its buffer.
pub(crate) const fn datagram_payload(ancillary: bool) -> usize {
    DATAGRAM_CONTROL + if ancillary { CONTROL_BYTES } else { 0 }
}

/// The result of an operation, or one of the results of a repeating operation.
#[derive(Debug)]
pub struct Outcome {
    /// The tag of the operation.
    pub tag: u64,
    /// The number of bytes or zero, or a negated `errno`.
    pub result: i32,
    /// Whether further outcomes of the same operation follow.
    pub more: bool,
    /// What the outcome owns.
    pub output: Output,
}

impl Outcome {
    /// Creates the last outcome of an operation, with only a result.
    pub fn plain(tag: u64, result: i32) -> Outcome {
        Outcome { tag, result, more: false, output: Output::None }
    }

    /// Creates the last outcome of a receive that found no free buffer.
    pub fn starved(tag: u64) -> Outcome {
        Outcome { output: Output::Starved, ..Outcome::plain(tag, -libc::ENOBUFS) }
    }
}

/// The reason why [`Driver::collect`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// At least one outcome was appended.
    Outcomes,
    /// The time-out has passed.
    TimeUp,
    /// A signal handler ran.
    Signal,
}

/// The output of an operation besides its result. The outcome owns it: dropping it returns the
/// buffer, or closes the socket.
#[derive(Debug)]
pub enum Output {
    /// Nothing.
    None,
    /// A buffer of the channel with data in it.
    Lease(Lease),
    /// No buffer of the class was free; the result is `-ENOBUFS`.
    Starved,
    /// A datagram is available; [`Driver::fetch_datagram`] fetches it.
    Readable,
    /// An accepted connection.
    Socket {
        /// The connection.
        socket: Socket,
        /// Whether the accept queue may have more connections; if false, it is empty.
        queue_nonempty: bool,
    },
}

/// The buffers of a channel, by class.
#[derive(Clone, Debug)]
pub struct Pools {
    pub(crate) small: Rc<Pool>,
    pub(crate) large: Rc<Pool>,
}

impl Pools {
    pub(crate) fn new(config: &Config) -> io::Result<Pools> {
        let class = |class: crate::config::BufferClass| {
            Pool::new(class.count, class.bytes as usize).map(Rc::new)
        };
        Ok(Pools { small: class(config.small_buffers)?, large: class(config.large_buffers)? })
    }

    /// Takes a free buffer of the large or small class, for an [`Operation::Receive`]; `None` while
    /// the application has leased all.
    pub fn take(&self, large: bool) -> Option<Room> {
        Room::take(self.class(large))
    }

    pub(crate) fn class(&self, large: bool) -> &Rc<Pool> {
        if large { &self.large } else { &self.small }
    }
}

/// The `errno` of an accept or a socket call that finds the ring's file table full. Neither
/// accept(2) nor socket(2) returns it, so it differs from the `ENFILE` of the system's own table.
pub(crate) const TABLE_FULL: i32 = libc::EUSERS;

/// The driver's queue is full and the kernel did not take its entries: back-pressure.
#[derive(Debug)]
pub struct Full;

/// An endpoint that a driver could not take over.
#[derive(Debug)]
pub struct Unattached {
    /// The reason.
    pub error: io::Error,
    /// The endpoint, unless it belongs to another channel or driver, which frees it.
    pub endpoint: Option<Endpoint>,
}

impl From<io::Error> for Unattached {
    /// Reports the error of an endpoint that cannot be returned.
    fn from(error: io::Error) -> Unattached {
        Unattached { error, endpoint: None }
    }
}

impl From<Unattached> for io::Error {
    /// Drops the endpoint and returns the error.
    fn from(unattached: Unattached) -> io::Error {
        unattached.error
    }
}

/// Executes the operations of a channel.
///
/// Contract, in addition to the methods' documentation:
/// - Each accepted [`Operation`] has one outcome with `more` false, and none after it; its tag is
///   not used for another operation before.
/// - Tags of the channel are below [`INSTALLED_TAG`].
/// - The driver sleeps only in `collect`. A driver that polls in user space passes its wake-up
///   conditions (a descriptor, a futex word, a deadline) to the kernel driver, in whose `collect`
///   the channel sleeps.
pub trait Driver {
    /// Takes over an endpoint; returns it if that fails.
    fn attach(&mut self, endpoint: Endpoint, kind: Kind) -> Result<Object, Unattached>;

    /// Creates a socket to connect, see socket(2): a lightweight one, if the driver has them.
    fn open_socket(&mut self, domain: i32, socket_type: i32) -> io::Result<Endpoint> {
        open_socket(domain, socket_type).map(Endpoint::Descriptor)
    }

    /// Releases an endpoint. Returns its descriptor; `None` for a lightweight socket, which is
    /// closed. The operations with the tags `pending`, all that the endpoint has in flight, are
    /// cancelled. After the return none of them takes data from the descriptor, except one that a
    /// disk is already executing; their outcomes follow.
    fn detach(&mut self, object: Object, pending: &[u64]) -> Option<OwnedFd>;

    /// Like `detach`, but closes the endpoint and reports the result as an outcome of `tag`, which
    /// may come before those of the cancelled operations.
    fn close(&mut self, tag: u64, object: Object, pending: &[u64]) -> Result<(), Full>;

    /// Takes connections from the queue of a listener that no other program can reach, because they
    /// would be reset if the listener ended now. Called before a listener is released.
    fn take_waiting(&mut self, _listener: Object) -> Vec<Socket> {
        Vec::new()
    }

    /// Takes an operation; it may start at once or at the next `flush` or `collect`.
    fn submit(&mut self, tag: u64, object: Object, operation: Operation) -> Result<(), Full>;

    /// Cancels one operation, if it is not complete yet; its outcome follows (`-ECANCELED` or its
    /// result).
    fn cancel(&mut self, tag: u64, object: Object);

    /// Fetches the datagram that an outcome with [`Output::Readable`] announced, as the outcome of
    /// the same operation: `-EAGAIN` if it is gone, [`Output::Starved`] without a free buffer.
    /// `ancillary` is the operation's.
    fn fetch_datagram(&mut self, tag: u64, _object: Object, _ancillary: bool) -> Outcome {
        Outcome::plain(tag, -libc::EOPNOTSUPP)
    }

    /// Executes an operation in the calling thread, which may block, after the kernel cancelled it
    /// for lack of a thread to run it in. Returns its result.
    fn run_inline(&mut self, _object: Object, _operation: &Operation) -> i32 {
        -libc::ECANCELED
    }

    /// Returns the number of buffers of the large or small class that receives submitted now could
    /// use; `None` if these are all that are not leased.
    fn offered(&self, _large: bool) -> Option<usize> {
        None
    }

    /// Fills exactly `value` with the peer's address of a connection that has no descriptor and is
    /// not attached yet. Does so synchronously, and fails with `EINVAL` if the address has fewer
    /// bytes.
    fn peer_of(&mut self, _connection: &Endpoint, _value: &mut [u8]) -> io::Result<usize> {
        Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP))
    }

    /// Starts everything that was submitted.
    fn flush(&mut self) -> io::Result<()>;

    /// Appends outcomes to `sink`: first those available without a system call; otherwise flushes
    /// and waits for at least one, for `timeout` at most (`None`: without limit). Returns the
    /// reason for the end of the wait. It does not return a transient error of the kernel
    /// (`EAGAIN`, `EBUSY`), but tries again within `timeout`.
    fn collect(
        &mut self,
        sink: &mut VecDeque<Outcome>,
        timeout: Option<Duration>,
    ) -> io::Result<Wake>;

    /// Returns a duplicate descriptor of the file or socket.
    fn descriptor(&mut self, object: Object) -> io::Result<OwnedFd>;

    /// Returns the descriptor itself, for a call that does not keep it; `None` if there is none.
    fn raw_descriptor(&mut self, object: Object) -> Option<RawFd>;

    /// Sets a socket option, see setsockopt(2).
    fn set_option(&mut self, object: Object, level: i32, name: i32, value: &[u8])
    -> io::Result<()>;

    /// Reads a socket option, see getsockopt(2); returns the number of bytes written into `value`.
    fn get_option(
        &mut self,
        object: Object,
        level: i32,
        name: i32,
        value: &mut [u8],
    ) -> io::Result<usize>;

    /// Adds the driver's own counts to `counters`.
    fn count(&self, counters: &mut Counters);

    /// Cancels everything and waits for the outcomes, for `deadline` at most. Returns true if no
    /// operation is left that could still write into its memory.
    fn shut_down(&mut self, deadline: Duration) -> bool;
}

/// The first of sixteen tags for operations that an installed driver submits to the kernel driver
/// on its own account: plain operations such as [`Operation::Poll`], one at a time for each tag.
pub const INSTALLED_TAG: u64 = INTERNAL_TAG - 16;

/// The first tag of the kernel drivers' own operations.
pub const INTERNAL_TAG: u64 = u64::MAX - 15;
