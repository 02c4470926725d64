//! Tracks the endpoints that the driver has taken over.

use super::calls::Calls;
use crate::driver::{NO_OFFSET, Object, Operation, nonblocking};
use crate::source::Kind;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

/// The two directions of an endpoint's readiness; each has at most one operation in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Inbound,
    Outbound,
}

impl Direction {
    /// Returns the direction in which the operation waits for readiness.
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
            | Operation::SendFile { .. }
            | Operation::Shutdown { .. }
            | Operation::Sync { .. }
            | Operation::PeerName { .. } => Direction::Outbound,
        }
    }
}

/// An operation in flight.
pub(super) struct Task {
    pub(super) tag: u64,
    pub(super) operation: Operation,
    /// Whether the kernel is already connecting, or a part of a file waits for room.
    pub(super) begun: bool,
}

impl Task {
    pub(super) fn new(tag: u64, operation: Operation) -> Task {
        Task { tag, operation, begun: false }
    }

    /// Whether the operation continues after an outcome.
    pub(super) fn repeats(&self) -> bool {
        match self.operation {
            Operation::Accept { repeat, .. }
            | Operation::Receive { repeat, .. }
            | Operation::ReceiveFrom { repeat, .. } => repeat,
            _ => false,
        }
    }
}

/// One direction of an endpoint.
pub(super) struct Side {
    pub(super) task: Option<Task>,
    /// False from EAGAIN until the next edge. While it is true, a task must be on the ready list or
    /// else be tried at once, because no further edge will report it.
    pub(super) ready: bool,
    /// Whether it is on the ready list.
    pub(super) listed: bool,
}

impl Side {
    const fn new() -> Side {
        Side { task: None, ready: true, listed: false }
    }
}

/// Whether a short receive means that the socket is empty, so that another attempt would be a
/// wasted call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ShortReads {
    /// No receive was short yet. For a connection with a single request the test is not worth a
    /// call.
    Unseen,
    Seen,
    MeanEmpty,
    MeanNothing,
}

/// A poll in flight, in addition to the operations of both directions.
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
    /// Whether the endpoint is registered with epoll.
    pub(super) registered: bool,
    /// Whether releasing the endpoint closes it.
    pub(super) lightweight: bool,
    /// Whether the driver keeps the endpoint non-blocking.
    made_nonblocking: bool,
    /// Whether writes can be made without `SIGPIPE`.
    pub(super) quiet: bool,
    short_reads: ShortReads,
    inbound: Side,
    outbound: Side,
    pub(super) poll: Option<Poll>,
    /// The duplicate on which helper threads work, so that they never use a descriptor number that
    /// was returned or closed and reused.
    shared: Option<Arc<OwnedFd>>,
}

impl Entry {
    /// Prepares a descriptor to be taken over. The driver makes it non-blocking until it is
    /// returned, and returns true, if its calls can neither be made non-blocking one by one
    /// (`MSG_DONTWAIT`) nor run in a helper thread. Descriptors that this crate created become
    /// non-blocking permanently.
    pub(super) fn prepare(fd: RawFd, kind: Kind) -> io::Result<bool> {
        match kind {
            Kind::Stream | Kind::Datagram | Kind::Packet | Kind::File => Ok(false),
            Kind::Signal | Kind::Timer | Kind::Wake => nonblocking::set(fd).map(|_| false),
            Kind::Listener | Kind::Pipe => nonblocking::keep(fd).map(|()| true),
        }
    }

    /// Takes over a prepared descriptor.
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

    /// Returns the descriptor for helper threads.
    pub(super) fn share(&mut self) -> io::Result<Arc<OwnedFd>> {
        if let Some(shared) = &self.shared {
            return Ok(Arc::clone(shared));
        }
        let shared = Arc::new(self.descriptor.try_clone()?);
        self.shared = Some(Arc::clone(&shared));
        Ok(shared)
    }

    /// Returns whether helper threads have work for this file.
    pub(super) fn is_shared(&self) -> bool {
        self.shared.as_ref().is_some_and(|shared| Arc::strong_count(shared) > 1)
    }

    /// Stops drawing the conclusion from short reads, because the connection has ended, failed or
    /// received urgent data. In each of these states a read stops without a further edge.
    pub(super) fn distrust_short_reads(&mut self) {
        self.short_reads = ShortReads::MeanNothing;
    }

    /// Returns whether reading `read` of `asked` bytes has emptied the socket, so that an edge will
    /// report further bytes.
    ///
    /// For TCP that holds as epoll(7) says, until one of the conditions of
    /// [`Entry::distrust_short_reads`] occurs; each of them comes with an edge. UNIX sockets stop
    /// at every message with descriptors, and upper-layer protocols (`TCP_ULP`, such as TLS) at
    /// their own records. So short reads count only for plain TCP sockets.
    pub(super) fn is_drained(&mut self, calls: &Calls, read: usize, asked: usize) -> bool {
        if !self.registered || read >= asked || self.kind != Kind::Stream {
            // Reading a timer or the channel's own wake-ups takes all of them.
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

    /// Returns the `errno` of an operation that this endpoint does not support. Passing the
    /// operation to the kernel might block, or start it with a wrong call.
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
            | Operation::SendFile { .. }
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

/// Limits the size, because a server may have very many idle connections.
const _: () = assert!(size_of::<Option<Entry>>() <= 152);

/// The table of endpoints. An [`Object`] is an index; the channel engine never uses a stale one,
/// and what the driver still stores under an index does no harm to a later endpoint.
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
        // Each entry has a descriptor, and no process has that many.
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

    /// All possible objects.
    pub(super) fn all(&self) -> impl Iterator<Item = Object> + use<> {
        (0..self.entries.len() as u32).map(Object)
    }
}
