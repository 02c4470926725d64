//! What the driver knows of the endpoints that it has taken over.

use super::calls::Calls;
use crate::driver::{NO_OFFSET, Object, Operation, nonblocking};
use crate::source::Kind;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

/// The two ways an endpoint can be waited for; each has at most one operation under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Inbound,
    Outbound,
}

impl Direction {
    pub(super) fn of(operation: &Operation) -> Direction {
        match operation {
            Operation::Accept { .. }
            | Operation::Read { .. }
            | Operation::ReadVectored { .. }
            | Operation::Peek { .. }
            | Operation::ReadMessage { .. }
            | Operation::Receive { .. }
            | Operation::ReceiveFrom { .. }
            | Operation::Poll { .. } => Direction::Inbound,
            Operation::Connect { .. }
            | Operation::Write { .. }
            | Operation::WriteMore { .. }
            | Operation::WriteVectored { .. }
            | Operation::SendTo { .. }
            | Operation::Shutdown { .. }
            | Operation::Sync { .. }
            | Operation::PeerName { .. } => Direction::Outbound,
        }
    }
}

/// The buffers of a vectored write that are not written yet, the first of them perhaps in part.
pub(super) struct Rest(pub(super) Vec<libc::iovec>);

/// An operation under way.
pub(super) struct Task {
    pub(super) tag: u64,
    pub(super) operation: Operation,
    /// Bytes already moved by a write that was taken in part: at most `TRANSFER_MAX`.
    pub(super) done: u32,
    /// What such a write has left, if it is vectored.
    pub(super) rest: Option<Box<Rest>>,
    /// Whether the kernel already works on the connection.
    pub(super) begun: bool,
    /// How often it was tried in vain without an edge to wait for; such a task never has one.
    pub(super) retries: u8,
}

impl Task {
    pub(super) fn new(tag: u64, operation: Operation) -> Task {
        Task { tag, operation, done: 0, rest: None, begun: false, retries: 0 }
    }

    /// Whether the operation goes on after an outcome.
    pub(super) fn repeats(&self) -> bool {
        match self.operation {
            Operation::Accept { repeat, .. }
            | Operation::Receive { repeat, .. }
            | Operation::ReceiveFrom { repeat } => repeat,
            _ => false,
        }
    }

    /// The result of an operation that is cancelled or cannot be waited for: bytes that have left
    /// must be told.
    pub(super) fn result_after(&self, errno: i32) -> i32 {
        if self.done > 0 { self.done as i32 } else { -errno }
    }
}

/// One direction of an endpoint.
pub(super) struct Side {
    pub(super) task: Option<Task>,
    /// False once the kernel has said "not now", until the next edge. While it is true, a task
    /// must be on the ready list or else be tried at once: no edge will announce it again.
    pub(super) ready: bool,
    /// Whether it is on the ready list.
    pub(super) listed: bool,
}

impl Side {
    const fn new() -> Side {
        Side { task: None, ready: true, listed: false }
    }
}

/// Whether a receive that comes back short has emptied the socket, so that another try would be
/// a wasted call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ShortReads {
    /// Nothing was short yet: a connection for a single request is not worth asking about.
    Unseen,
    Seen,
    MeanEmpty,
    MeanNothing,
}

/// A poll under way, beside the operations of both directions.
#[derive(Clone, Copy)]
pub(super) struct Poll {
    pub(super) tag: u64,
    pub(super) events: u32,
    pub(super) repeat: bool,
}

/// An endpoint.
pub(super) struct Entry {
    pub(super) descriptor: OwnedFd,
    pub(super) kind: Kind,
    /// Whether epoll watches it.
    pub(super) registered: bool,
    /// Whether it is closed when it is let go of.
    pub(super) lightweight: bool,
    /// Whether it is kept non-blocking.
    made_nonblocking: bool,
    /// Whether writes can be asked not to raise `SIGPIPE`.
    pub(super) quiet: bool,
    short_reads: ShortReads,
    inbound: Side,
    outbound: Side,
    pub(super) poll: Option<Poll>,
    /// The duplicate that helper threads work on, so that a descriptor that is given back or
    /// closed, and its number reused, is never the one they read from.
    shared: Option<Arc<OwnedFd>>,
}

impl Entry {
    /// Prepares a descriptor that is to be taken over. What can neither be told call by call not
    /// to block (`MSG_DONTWAIT`) nor be left to a helper thread is made non-blocking until it is
    /// given back, which is said; what this crate has made itself, for good.
    pub(super) fn prepare(fd: RawFd, kind: Kind) -> io::Result<bool> {
        match kind {
            Kind::Stream | Kind::Datagram | Kind::Packet | Kind::File => Ok(false),
            Kind::Signal | Kind::Timer | Kind::Wake => nonblocking::set(fd).map(|_| false),
            Kind::Listener | Kind::Pipe => nonblocking::keep(fd).map(|()| true),
        }
    }

    /// Takes over a descriptor that was prepared.
    pub(super) fn new(descriptor: OwnedFd, kind: Kind, made_nonblocking: bool) -> Entry {
        Entry {
            descriptor,
            kind,
            registered: false,
            lightweight: false,
            made_nonblocking,
            quiet: true,
            short_reads: ShortReads::Unseen,
            inbound: Side::new(),
            outbound: Side::new(),
            poll: None,
            shared: None,
        }
    }

    pub(super) fn fd(&self) -> RawFd {
        self.descriptor.as_raw_fd()
    }

    pub(super) fn is_socket(&self) -> bool {
        !matches!(self.kind, Kind::Pipe | Kind::File | Kind::Signal | Kind::Timer | Kind::Wake)
    }

    pub(super) fn side(&mut self, direction: Direction) -> &mut Side {
        match direction {
            Direction::Inbound => &mut self.inbound,
            Direction::Outbound => &mut self.outbound,
        }
    }

    /// Undoes what `new` did to the file description.
    pub(super) fn restore(&mut self) {
        if std::mem::take(&mut self.made_nonblocking) {
            nonblocking::release(self.fd());
        }
    }

    /// The descriptor for helper threads.
    pub(super) fn share(&mut self) -> io::Result<Arc<OwnedFd>> {
        if let Some(shared) = &self.shared {
            return Ok(Arc::clone(shared));
        }
        let shared = Arc::new(self.descriptor.try_clone()?);
        self.shared = Some(Arc::clone(&shared));
        Ok(shared)
    }

    /// Whether helper threads have work for this file.
    pub(super) fn is_shared(&self) -> bool {
        self.shared.as_ref().is_some_and(|shared| Arc::strong_count(shared) > 1)
    }

    /// From now on a short read tells nothing: the connection has ended, failed or brought urgent
    /// data, at any of which a read stops although the kernel has no further edge to show.
    pub(super) fn distrust_short_reads(&mut self) {
        self.short_reads = ShortReads::MeanNothing;
    }

    /// Whether reading `read` bytes when `asked` were asked for has left nothing to read, so that
    /// an edge will tell of more.
    ///
    /// For TCP that holds as epoll(7) says, until one of the conditions of
    /// [`Entry::distrust_short_reads`], all of which come with an edge. UNIX sockets stop at every
    /// message with descriptors, and upper-layer protocols (`TCP_ULP`, such as TLS) at their own
    /// records, so one that is no TCP socket, or more than one, does not count.
    pub(super) fn is_drained(&mut self, calls: &Calls, read: usize, asked: usize) -> bool {
        if !self.registered || read >= asked || self.kind != Kind::Stream {
            // Reading a timer or our own wake-ups takes all there is.
            return self.registered && matches!(self.kind, Kind::Timer | Kind::Wake);
        }
        if self.short_reads == ShortReads::Unseen {
            self.short_reads = ShortReads::Seen;
        } else if self.short_reads == ShortReads::Seen {
            let layer = calls.option(self.fd(), libc::IPPROTO_TCP, libc::TCP_ULP);
            let plain = matches!(layer, Ok((_, 0)));
            self.short_reads = if plain { ShortReads::MeanEmpty } else { ShortReads::MeanNothing };
        }
        self.short_reads == ShortReads::MeanEmpty
    }

    /// The `errno` of an operation that this endpoint does not have. Letting the kernel judge
    /// might block, or put the operation on the wrong road.
    pub(super) fn misfit(&self, operation: &Operation) -> Option<i32> {
        let file = self.kind == Kind::File;
        match *operation {
            Operation::Accept { .. } if self.kind != Kind::Listener => Some(libc::EINVAL),
            Operation::Sync { .. } if !file => Some(libc::EINVAL),
            Operation::Receive { .. } | Operation::Poll { .. } if file => Some(libc::EINVAL),
            Operation::Connect { .. }
            | Operation::ReceiveFrom { .. }
            | Operation::ReadMessage { .. }
            | Operation::Peek { .. }
            | Operation::WriteMore { .. }
            | Operation::SendTo { .. }
            | Operation::Shutdown { .. }
            | Operation::PeerName { .. }
                if !self.is_socket() =>
            {
                Some(libc::ENOTSOCK)
            }
            Operation::Read { offset, .. }
            | Operation::ReadVectored { offset, .. }
            | Operation::Write { offset, .. }
            | Operation::WriteVectored { offset, .. }
                if !file && offset != NO_OFFSET =>
            {
                Some(libc::ESPIPE)
            }
            _ => None,
        }
    }
}

/// A server may have very many connections that do nothing.
const _: () = assert!(size_of::<Option<Entry>>() <= 152);

/// The table of endpoints. An [`Object`] is an index; the channel above never uses a stale one, and
/// whatever the driver itself remembers by index does no harm to a later tenant.
#[derive(Default)]
pub(super) struct Objects {
    entries: Vec<Option<Entry>>,
    free: Vec<u32>,
}

impl Objects {
    pub(super) fn insert(&mut self, entry: Entry) -> Object {
        if let Some(index) = self.free.pop() {
            self.entries[index as usize] = Some(entry);
            return Object(index);
        }
        self.entries.push(Some(entry));
        // Each entry has a descriptor, of which a process never has that many.
        Object(self.entries.len() as u32 - 1)
    }

    pub(super) fn get_mut(&mut self, object: Object) -> Option<&mut Entry> {
        self.entries.get_mut(object.0 as usize)?.as_mut()
    }

    pub(super) fn remove(&mut self, object: Object) -> Option<Entry> {
        let entry = self.entries.get_mut(object.0 as usize)?.take()?;
        self.free.push(object.0);
        Some(entry)
    }

    /// The names of all endpoints there could be.
    pub(super) fn all(&self) -> impl Iterator<Item = Object> + use<> {
        (0..self.entries.len() as u32).map(Object)
    }
}
