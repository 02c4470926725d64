//! What a channel needs from the system below it.
//!
//! The channel above knows handles, order and ownership; a driver knows how to get an operation
//! done. Nothing in the trait is a file descriptor once an endpoint is attached: an [`Object`] is a
//! number of the driver's own, so that a TCP stack in user space or a shared-memory flow can stand
//! behind it as well.

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

mod datagram;
pub(crate) mod epoll;
mod nonblocking;
pub(crate) mod uring;

/// A driver's own name for an endpoint that it has taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object(
    /// The number: the kernel drivers' are below [`Object::INSTALLED`], an installed driver's own
    /// are not.
    pub u32,
);

impl Object {
    /// The least number of an installed driver's own objects.
    pub const INSTALLED: u32 = 1 << 31;
}

/// The offset of an operation that goes on where the last one stopped, or knows no position.
pub const NO_OFFSET: u64 = u64::MAX;

/// Room for a sender's address in front of a received datagram.
pub(crate) const NAME_BYTES: usize = 128;

/// One operation. Its submitter keeps the memory it points to alive, in place and otherwise
/// unused until the operation's last outcome; operations of one direction on a stream come one at a
/// time.
#[derive(Clone, Copy, Debug)]
pub enum Operation {
    /// An outcome with an `Output::Socket` per connection.
    Accept {
        /// Whether lightweight sockets are wished for; a driver without them ignores it.
        lightweight: bool,
        /// Goes on until it is cancelled or fails.
        repeat: bool,
    },
    /// Connects to an address, which must stay in place.
    Connect {
        /// The address.
        address: *const libc::sockaddr,
        /// Its length.
        bytes: libc::socklen_t,
    },
    /// Reads at most `bytes` bytes; 0 is the end. From a socket of datagrams or packets: one, and
    /// the result is its length, which may be more than there was room for.
    Read {
        /// Where to.
        address: *mut u8,
        /// At most.
        bytes: u32,
        /// In a file, or [`NO_OFFSET`].
        offset: u64,
    },
    /// The same into several pieces, one after the other.
    ReadVectored {
        /// The pieces.
        vector: *const libc::iovec,
        /// How many.
        count: u32,
        /// In a file, or [`NO_OFFSET`].
        offset: u64,
    },
    /// Receives into a buffer of the channel.
    Receive {
        /// The class of the buffer.
        large: bool,
        /// Goes on until the end, an error or a lack of buffers ([`Output::Starved`]) ends it, or
        /// until the driver has to begin anew, which `more` tells.
        repeat: bool,
    },
    /// The same for datagrams, in a large buffer that begins with what recvmsg(2) tells of it.
    ReceiveFrom {
        /// As with `Receive`.
        repeat: bool,
    },
    /// Writes some or all of the bytes; what is left over comes in a further operation.
    Write {
        /// Where from.
        address: *const u8,
        /// How many.
        bytes: u32,
        /// In a file, or [`NO_OFFSET`].
        offset: u64,
    },
    /// Reads from a socket as `Read` does, but leaves the bytes or the message where they are.
    Peek {
        /// Where to.
        address: *mut u8,
        /// At most.
        bytes: u32,
    },
    /// Writes to a stream socket as `Write` does, and tells that more follows at once: `MSG_MORE`,
    /// which a driver may ignore.
    WriteMore {
        /// Where from.
        address: *const u8,
        /// How many.
        bytes: u32,
    },
    /// Reads from a socket as recvmsg(2) does, and fills in the header's name, control data and
    /// flags; descriptors are closed by execve(2). The result is that of `Read`.
    ReadMessage {
        /// It and all that it points to must stay in place.
        message: *mut libc::msghdr,
    },
    /// The same from several pieces.
    WriteVectored {
        /// The pieces.
        vector: *const libc::iovec,
        /// How many.
        count: u32,
        /// In a file, or [`NO_OFFSET`].
        offset: u64,
    },
    /// Writes as sendmsg(2) does: a datagram or packet, or some or all of the bytes for a stream.
    SendTo {
        /// It and all that it points to must stay in place.
        message: *const libc::msghdr,
    },
    /// Ends directions, as shutdown(2).
    Shutdown {
        /// `SHUT_RD`, `SHUT_WR` or `SHUT_RDWR`.
        how: libc::c_int,
    },
    /// Brings a file to the disk.
    Sync {
        /// Without what is not needed to read the data back.
        data_only: bool,
    },
    /// An outcome with the poll(2) events that are there.
    Poll {
        /// Those asked for; `POLLERR` and `POLLHUP` always are.
        events: u32,
        /// One outcome at each edge.
        repeat: bool,
    },
    /// Fills exactly `bytes` bytes of the peer's address; `EINVAL` if it has fewer.
    PeerName {
        /// Where to.
        address: *mut u8,
        /// How many.
        bytes: u32,
    },
}

/// What stands in front of a received datagram in its buffer: the name at offset 16, the payload at
/// 16 + [`NAME_BYTES`]. It is the kernel's `io_uring_recvmsg_out`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct DatagramHeader {
    pub(crate) name_bytes: u32,
    pub(crate) control_bytes: u32,
    pub(crate) payload_bytes: u32,
    pub(crate) flags: u32,
}

/// Where the payload of a received datagram begins in its buffer.
pub(crate) const DATAGRAM_PAYLOAD: usize = std::mem::size_of::<DatagramHeader>() + NAME_BYTES;

/// What came of an operation.
#[derive(Debug)]
pub struct Outcome {
    /// The operation's.
    pub tag: u64,
    /// Bytes or zero; a negated `errno`.
    pub result: i32,
    /// Whether further outcomes of the same operation follow.
    pub more: bool,
    /// What came with it.
    pub output: Output,
}

impl Outcome {
    /// The last outcome of an operation, with nothing but a result.
    pub fn plain(tag: u64, result: i32) -> Outcome {
        Outcome { tag, result, more: false, output: Output::None }
    }

    /// The last outcome of a receive for which no buffer was free.
    pub fn starved(tag: u64) -> Outcome {
        Outcome { output: Output::Starved, ..Outcome::plain(tag, -libc::ENOBUFS) }
    }
}

/// What ended a wait in [`Driver::collect`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// At least one outcome was appended.
    Outcomes,
    /// The time is up.
    TimeUp,
    /// A signal handler ran.
    Signal,
}

/// What an operation brought besides its result. It is owned by the outcome: one that is dropped
/// returns its buffer, or closes its socket.
#[derive(Debug)]
pub enum Output {
    /// Nothing.
    None,
    /// A buffer of the channel with data in it.
    Lease(Lease),
    /// No buffer of the class was free; the result is `-ENOBUFS`.
    Starved,
    /// A datagram waits, to be taken by [`Driver::fetch_datagram`].
    Readable,
    /// A connection that was accepted.
    Socket {
        /// The connection.
        socket: Socket,
        /// Whether more may wait in the queue: if not, none do.
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

    /// A free buffer of the class of large or small ones, for a [`Operation::Receive`]; `None`
    /// while the application holds leases of all.
    pub fn take(&self, large: bool) -> Option<Room> {
        Room::take(self.class(large))
    }

    pub(crate) fn class(&self, large: bool) -> &Rc<Pool> {
        if large { &self.large } else { &self.small }
    }
}

/// The `errno` of an accept or of a new socket for which the ring's file table has no room. Neither
/// accept(2) nor socket(2) gives it, so that it is told apart from the `ENFILE` of the system's own
/// table.
pub(crate) const TABLE_FULL: i32 = libc::EUSERS;

/// The driver's queue is full and could not be emptied into the kernel: back-pressure.
#[derive(Debug)]
pub struct Full;

/// An endpoint that a driver could not take over.
#[derive(Debug)]
pub struct Unattached {
    /// Why.
    pub error: io::Error,
    /// What was to be attached, unless it belongs to another channel or driver, which frees it.
    pub endpoint: Option<Endpoint>,
}

impl From<io::Error> for Unattached {
    /// Of an endpoint that cannot be given back.
    fn from(error: io::Error) -> Unattached {
        Unattached { error, endpoint: None }
    }
}

impl From<Unattached> for io::Error {
    /// Drops the endpoint.
    fn from(unattached: Unattached) -> io::Error {
        unattached.error
    }
}

/// The system below a channel.
///
/// Contract, on top of what the methods say:
/// - Each accepted [`Operation`] has one outcome with `more` false, and none after it; its tag is
///   not used for another operation before.
/// - Tags of the channel's are below [`INSTALLED_TAG`].
/// - The driver sleeps only in `collect`. A driver that polls in user space hands what wakes it (a
///   descriptor, a futex word, a deadline) to the kernel driver, in whose `collect` the channel
///   sleeps.
pub trait Driver {
    /// Takes over an endpoint; gives it back if that fails.
    fn attach(&mut self, endpoint: Endpoint, kind: Kind) -> Result<Object, Unattached>;

    /// A new socket to connect, see socket(2): a lightweight one, if the driver has them.
    fn open_socket(&mut self, domain: i32, socket_type: i32) -> io::Result<Endpoint> {
        open_socket(domain, socket_type).map(Endpoint::Descriptor)
    }

    /// Lets go of an endpoint. Gives its descriptor back; `None` for a lightweight socket, which is
    /// closed. The operations with the tags `pending`, all that the endpoint has under way, are
    /// cancelled: by the return none of them will take data from the descriptor any more (but one
    /// that a disk already works on), and their outcomes follow.
    fn detach(&mut self, object: Object, pending: &[u64]) -> Option<OwnedFd>;

    /// Like `detach`, but closes the endpoint and reports the result as an outcome of `tag`, which
    /// may come before those of the cancelled operations.
    fn close(&mut self, tag: u64, object: Object, pending: &[u64]) -> Result<(), Full>;

    /// Connections that wait in a listener's queue out of reach of any other program, which would
    /// be reset if it ended now. Asked before a listener is let go of.
    fn take_waiting(&mut self, _listener: Object) -> Vec<Socket> {
        Vec::new()
    }

    /// Takes an operation; it may start at once or at the next `flush` or `collect`.
    fn submit(&mut self, tag: u64, object: Object, operation: Operation) -> Result<(), Full>;

    /// Cancels one operation, if it is not done yet; its outcome follows (`-ECANCELED` or its
    /// result).
    fn cancel(&mut self, tag: u64, object: Object);

    /// Fetches the datagram that an outcome with [`Output::Readable`] announced, as the outcome of
    /// the same operation: `-EAGAIN` if it is gone, [`Output::Starved`] without a free buffer.
    fn fetch_datagram(&mut self, tag: u64, _object: Object) -> Outcome {
        Outcome::plain(tag, -libc::EOPNOTSUPP)
    }

    /// Does an operation in the calling thread, which may block, because the kernel cancelled it by
    /// itself for lack of a thread to run it in. Gives its result.
    fn run_inline(&mut self, _object: Object, _operation: &Operation) -> i32 {
        -libc::ECANCELED
    }

    /// Bytes that the outbound operation under way of an endpoint has moved so far, if the driver
    /// does not report each part as an outcome.
    fn moved(&mut self, _object: Object) -> usize {
        0
    }

    /// Buffers of the class of large or small ones that receives submitted now could take; `None`
    /// if those are all that are not leased.
    fn offered(&self, _large: bool) -> Option<usize> {
        None
    }

    /// Fills exactly `value` with the address of the peer of a connection that has no descriptor
    /// and is not attached yet, at once: `EINVAL` if it has fewer bytes.
    fn peer_of(&mut self, _connection: &Endpoint, _value: &mut [u8]) -> io::Result<usize> {
        Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP))
    }

    /// Starts everything that was submitted.
    fn flush(&mut self) -> io::Result<()>;

    /// Appends outcomes to `sink`: first those that are there without asking the kernel; else
    /// flushes and waits for at least one, no longer than `timeout` (`None`: for ever). Tells what
    /// ended the wait. An error of the kernel that passes (`EAGAIN`, `EBUSY`) is not returned: the
    /// driver tries again within `timeout`.
    fn collect(
        &mut self,
        sink: &mut VecDeque<Outcome>,
        timeout: Option<Duration>,
    ) -> io::Result<Wake>;

    /// Another descriptor for the same file or socket.
    fn descriptor(&mut self, object: Object) -> io::Result<OwnedFd>;

    /// The descriptor itself, for a call that does not keep it; `None` if there is none.
    fn raw_descriptor(&mut self, object: Object) -> Option<RawFd>;

    /// setsockopt(2).
    fn set_option(&mut self, object: Object, level: i32, name: i32, value: &[u8])
    -> io::Result<()>;

    /// getsockopt(2); gives the number of bytes written into `value`.
    fn get_option(
        &mut self,
        object: Object,
        level: i32,
        name: i32,
        value: &mut [u8],
    ) -> io::Result<usize>;

    /// Adds the driver's own counts.
    fn count(&self, counters: &mut Counters);

    /// Cancels everything and waits for the outcomes, `deadline` at most. True if nothing is left
    /// that could still write into the memory of an operation.
    fn shut_down(&mut self, deadline: Duration) -> bool;
}

/// The sixteen tags from here on are for what an installed driver submits to the kernel's on its
/// own behalf: plain operations such as [`Operation::Poll`], one at a time for each tag.
pub const INSTALLED_TAG: u64 = INTERNAL_TAG - 16;

/// Tags from here on are the kernel drivers' own.
pub const INTERNAL_TAG: u64 = u64::MAX - 15;
