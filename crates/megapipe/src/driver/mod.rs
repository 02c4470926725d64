//! What a channel needs from the system below it.
//!
//! The channel above knows handles, order and ownership; a driver knows how to get an operation
//! done. Nothing in the trait is a file descriptor once an endpoint is attached: an [`Object`] is a
//! number of the driver's own, so that a TCP stack in user space or a shared-memory flow can stand
//! behind it as well.

use crate::config::Config;
use crate::counters::Counters;
use crate::pool::{Lease, Pool};
use crate::source::{Endpoint, Kind, Socket};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

mod datagram;
pub(crate) mod epoll;
pub(crate) mod uring;

/// A driver's own name for an endpoint that it has taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Object(pub(crate) u32);

/// The offset of an operation that goes on where the last one stopped, or knows no position.
pub(crate) const NO_OFFSET: u64 = u64::MAX;

/// Room for a sender's address in front of a received datagram.
pub(crate) const NAME_BYTES: usize = 128;

/// One operation. Whoever submits it keeps the memory it points to alive, in place and otherwise
/// unused until the operation's last outcome; operations of one direction on a stream come one at a
/// time.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operation {
    /// An outcome with an `Output::Socket` per connection; with `repeat`, until cancelled.
    Accept {
        lightweight: bool,
        repeat: bool,
    },
    /// The address must stay in place.
    Connect {
        address: *const libc::sockaddr,
        bytes: libc::socklen_t,
    },
    /// Reads at most `bytes` bytes; 0 is the end.
    Read {
        address: *mut u8,
        bytes: u32,
        offset: u64,
    },
    ReadVectored {
        vector: *const libc::iovec,
        count: u32,
        offset: u64,
    },
    /// Receives into a buffer of the channel; with `repeat`, until the end, an error, a lack of
    /// buffers (`ENOBUFS`) or the driver's own whim ends it, which `more` tells.
    Receive {
        large: bool,
        repeat: bool,
    },
    /// The same for datagrams, in a large buffer that begins with [`DatagramHeader`].
    ReceiveFrom {
        repeat: bool,
    },
    Write {
        address: *const u8,
        bytes: u32,
        offset: u64,
    },
    WriteVectored {
        vector: *const libc::iovec,
        count: u32,
        offset: u64,
    },
    /// The header and all that it points to must stay in place.
    SendTo {
        message: *const libc::msghdr,
    },
    Shutdown {
        how: libc::c_int,
    },
    Sync {
        data_only: bool,
    },
    /// An outcome with the poll(2) events that are there; with `repeat`, one at each edge.
    Poll {
        events: u32,
        repeat: bool,
    },
    /// Fills exactly `bytes` bytes of the peer's address; `EINVAL` if it has fewer.
    PeerName {
        address: *mut u8,
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
pub(crate) struct Outcome {
    pub(crate) tag: u64,
    /// Bytes or zero; a negated `errno`.
    pub(crate) result: i32,
    /// Whether further outcomes of the same operation follow.
    pub(crate) more: bool,
    pub(crate) output: Output,
}

impl Outcome {
    pub(crate) fn plain(tag: u64, result: i32) -> Outcome {
        Outcome { tag, result, more: false, output: Output::None }
    }
}

/// What an operation brought besides its result. It is owned by the outcome: one that is dropped
/// returns its buffer, or closes its socket.
#[derive(Debug)]
pub(crate) enum Output {
    None,
    Lease(Lease),
    /// A connection, and whether more are known to wait in the queue.
    Socket {
        socket: Socket,
        queue_nonempty: bool,
    },
}

/// The buffers of a channel, by class.
#[derive(Clone)]
pub(crate) struct Pools {
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

    pub(crate) fn class(&self, large: bool) -> &Rc<Pool> {
        if large { &self.large } else { &self.small }
    }
}

/// A lightweight socket: an entry in a ring's own file table, freed on drop unless attached.
#[derive(Debug)]
pub(crate) struct DirectSocket {
    pub(crate) index: u32,
    /// Where the driver finds the entries that nobody wants any more; also the ring's identity.
    pub(crate) discarded: Rc<RefCell<Vec<u32>>>,
    pub(crate) armed: bool,
}

impl Drop for DirectSocket {
    fn drop(&mut self) {
        if self.armed {
            self.discarded.borrow_mut().push(self.index);
        }
    }
}

/// The driver's queue is full and could not be emptied into the kernel: back-pressure.
#[derive(Debug)]
pub(crate) struct Full;

/// The system below a channel.
///
/// Contract, on top of what the methods say:
/// - Each accepted [`Operation`] has one outcome with `more` false, and none after it; its tag is
///   not used for another operation before.
/// - Outcomes carry `u64` tags below [`INTERNAL_TAG`].
/// - The driver sleeps only in `collect`. A driver that polls in user space hands what wakes it (a
///   descriptor, a futex word, a deadline) to the kernel driver, in whose `collect` the channel
///   sleeps.
pub(crate) trait Driver {
    /// Takes over an endpoint.
    fn attach(&mut self, endpoint: Endpoint, kind: Kind) -> io::Result<Object>;

    /// Lets go of an endpoint and gives its descriptor back, if it is one. Operations that are
    /// still `busy` are cancelled; by the return, none of them will take data from the descriptor
    /// any more (but one that a disk already works on), and their outcomes follow.
    fn detach(&mut self, object: Object, busy: bool) -> Option<OwnedFd>;

    /// Like `detach`, but closes the endpoint and tells how that went as an outcome of `tag`.
    fn close(&mut self, tag: u64, object: Object, busy: bool) -> Result<(), Full>;

    /// Takes an operation; it may start at once or at the next `flush` or `collect`.
    fn submit(&mut self, tag: u64, object: Object, operation: Operation) -> Result<(), Full>;

    /// Cancels one operation, if it is not done yet; its outcome follows (`-ECANCELED` or its
    /// result).
    fn cancel(&mut self, tag: u64, object: Object);

    /// Cancels all operations of an endpoint.
    fn cancel_all(&mut self, object: Object);

    /// Starts everything that was submitted.
    fn flush(&mut self) -> io::Result<()>;

    /// Appends outcomes to `sink`: first those that are there without asking the kernel; else
    /// flushes and waits for at least one, no longer than `timeout` (`None`: for ever). Nothing
    /// appended means that the time is up or a signal handler ran.
    fn collect(
        &mut self,
        sink: &mut VecDeque<Outcome>,
        timeout: Option<Duration>,
    ) -> io::Result<()>;

    /// Another descriptor for the same file or socket.
    fn descriptor(&mut self, object: Object) -> io::Result<OwnedFd>;

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

/// Tags from here on are the drivers' own.
pub(crate) const INTERNAL_TAG: u64 = u64::MAX - 15;
