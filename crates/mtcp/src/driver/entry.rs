//! What the driver keeps of each of its endpoints.

use crate::socket::events::{Events, of_readiness};
use crate::socket::settings::Extras;
use megapipe::road::{Object, Operation};
use mtcp_proto::{Readiness, SocketId};

/// Where an endpoint's connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// A socket that may still connect on either road.
    Fresh,
    /// A connection of the kernel's.
    Kernel,
    /// The stack's, on its way.
    Connecting(SocketId),
    /// The stack's.
    Connected(SocketId),
    /// Listens on both roads; in the stack for each family.
    Listening(SocketId),
}

/// An operation under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Task {
    pub(super) tag: u64,
    pub(super) operation: Operation,
    /// Bytes that are written.
    pub(super) done: usize,
}

impl Task {
    pub(super) fn new(tag: u64, operation: Operation) -> Task {
        Task { tag, operation, done: 0 }
    }

    /// What the operation gives if it is cancelled: bytes that are written count.
    pub(super) fn result_of_cancelling(&self) -> i32 {
        if self.done > 0 { self.done as i32 } else { -libc::ECANCELED }
    }
}

/// A poll under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Poll {
    pub(super) tag: u64,
    pub(super) events: u32,
    pub(super) repeat: bool,
}

/// An endpoint.
pub(super) struct Entry {
    /// The kernel's socket, as its driver calls it.
    pub(super) kernel: Option<Object>,
    pub(super) phase: Phase,
    pub(super) inbound: Option<Task>,
    pub(super) outbound: Option<Task>,
    pub(super) poll: Option<Poll>,
    /// The application has shut down receiving or sending.
    pub(super) receive_shut: bool,
    pub(super) send_shut: bool,
    /// Settings that differ from the stack's defaults, and where it was bound.
    pub(super) extras: Option<Box<Extras>>,
    /// It is a listener on an address of IPv6, or comes from one: its peers' addresses are told as
    /// IPv6's, those of IPv4 mapped.
    pub(super) speaks_v6: bool,
    /// No accept has taken it: it waited when its listener went.
    pub(super) unaccepted: bool,
    /// Waits for its turn to go on receiving.
    pub(super) queued: bool,
    /// Waits for a buffer.
    pub(super) hungry: bool,
}

impl Entry {
    pub(super) fn new(kernel: Option<Object>, phase: Phase) -> Entry {
        Entry {
            kernel,
            phase,
            inbound: None,
            outbound: None,
            poll: None,
            receive_shut: false,
            send_shut: false,
            extras: None,
            speaks_v6: false,
            unaccepted: false,
            queued: false,
            hungry: false,
        }
    }

    /// What poll(2) would say of the stack's connection in this state.
    pub(super) fn events(&self, readiness: Readiness) -> u32 {
        let mut events = of_readiness(readiness);
        if self.receive_shut {
            events |= Events::IN | Events::READ_HANG_UP;
        }
        if self.send_shut {
            events |= Events::OUT;
        }
        if self.send_shut && (self.receive_shut || readiness.intersects(Readiness::PEER_CLOSED)) {
            events |= Events::HANG_UP;
        }
        events.0
    }

    /// The stack's connection, if there is one.
    pub(super) fn socket(&self) -> Option<SocketId> {
        match self.phase {
            Phase::Connecting(socket) | Phase::Connected(socket) => Some(socket),
            _ => None,
        }
    }

    pub(super) fn is(&self, socket: SocketId) -> bool {
        match self.phase {
            Phase::Connecting(own) | Phase::Connected(own) => own == socket,
            Phase::Listening(own) => own == socket,
            Phase::Fresh | Phase::Kernel => false,
        }
    }
}

/// The endpoints by their numbers, and by the stack's.
#[derive(Default)]
pub(super) struct Entries {
    entries: Vec<Option<Entry>>,
    free: Vec<u32>,
    /// By the index of the stack's socket.
    by_socket: Vec<u32>,
}

const NOBODY: u32 = u32::MAX;

impl Entries {
    pub(super) fn insert(&mut self, entry: Entry) -> u32 {
        match self.free.pop() {
            Some(number) => {
                self.entries[number as usize] = Some(entry);
                number
            }
            None => {
                self.entries.push(Some(entry));
                self.entries.len() as u32 - 1
            }
        }
    }

    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut Entry> {
        self.entries.get_mut(number as usize)?.as_mut()
    }

    pub(super) fn remove(&mut self, number: u32) -> Option<Entry> {
        let entry = self.entries.get_mut(number as usize)?.take()?;
        self.free.push(number);
        Some(entry)
    }

    /// Ties the stack's socket to its endpoint.
    pub(super) fn place(&mut self, socket: SocketId, number: u32) {
        let index = socket.index as usize;
        if index >= self.by_socket.len() {
            self.by_socket.resize(index + 1, NOBODY);
        }
        self.by_socket[index] = number;
    }

    /// Whose socket of the stack it is.
    pub(super) fn whose(&mut self, socket: SocketId) -> Option<u32> {
        let number = *self.by_socket.get(socket.index as usize)?;
        self.get_mut(number)?.is(socket).then_some(number)
    }

    /// Takes an endpoint out for a moment; its number stays its own.
    pub(super) fn take(&mut self, number: u32) -> Option<Entry> {
        self.entries.get_mut(number as usize)?.take()
    }

    /// Puts back what [`Entries::take`] has taken out.
    pub(super) fn put_back(&mut self, number: u32, entry: Entry) {
        if let Some(place) = self.entries.get_mut(number as usize) {
            *place = Some(entry);
        }
    }

    pub(super) fn numbers(&self) -> Vec<u32> {
        let taken = self.entries.iter().enumerate().filter(|(_, entry)| entry.is_some());
        taken.map(|(number, _)| number as u32).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_used_again_and_sockets_found() {
        let mut entries = Entries::default();
        let socket = |index, generation| SocketId { index, generation };
        let first = entries.insert(Entry::new(None, Phase::Connected(socket(5, 1))));
        let second = entries.insert(Entry::new(None, Phase::Fresh));
        entries.place(socket(5, 1), first);
        assert_eq!(entries.whose(socket(5, 1)), Some(first));
        assert_eq!(entries.whose(socket(5, 2)), None, "another one at the same place");
        assert_eq!(entries.whose(socket(9, 1)), None);
        assert!(entries.remove(first).is_some() && entries.remove(first).is_none());
        assert_eq!(entries.whose(socket(5, 1)), None);
        assert_eq!(entries.insert(Entry::new(None, Phase::Fresh)), first);
        assert_eq!(entries.numbers(), [first, second]);
    }
}
