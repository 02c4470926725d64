//! Tracks the endpoints of the driver, with their operations and polls.

use crate::socket::events::{Events, of_readiness};
use crate::socket::settings::Extras;
use megapipe::driver_api::{Object, Operation};
use mtcp_proto::{Readiness, SocketId};

/// The state of an endpoint's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// A socket that may still connect over the stack or the kernel.
    Fresh,
    /// A connection of the kernel.
    Kernel,
    /// A connection of the stack that is not established yet.
    Connecting(SocketId),
    /// An established connection of the stack.
    Connected(SocketId),
    /// A listener in the kernel and in the stack.
    Listening(SocketId),
}

/// An operation in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Task {
    pub(super) tag: u64,
    pub(super) operation: Operation,
}

impl Task {
    pub(super) fn new(tag: u64, operation: Operation) -> Task {
        Task { tag, operation }
    }
}

/// A poll in flight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Poll {
    pub(super) tag: u64,
    pub(super) events: u32,
    pub(super) repeat: bool,
}

/// An endpoint.
pub(super) struct Entry {
    /// The number of the kernel's socket in its driver.
    pub(super) kernel: Option<Object>,
    pub(super) phase: Phase,
    pub(super) inbound: Option<Task>,
    pub(super) outbound: Option<Task>,
    pub(super) poll: Option<Poll>,
    /// Whether the application has shut down receiving or sending.
    pub(super) receive_shut: bool,
    pub(super) send_shut: bool,
    /// Settings that differ from the stack's defaults, and the bound address.
    pub(super) extras: Option<Box<Extras>>,
    /// Whether it is a listener on an IPv6 address, or was accepted from one: addresses of its
    /// peers are reported as IPv6 addresses, with IPv4 mapped.
    pub(super) speaks_v6: bool,
    /// Whether it was never accepted: it waited when its listener was released.
    pub(super) unaccepted: bool,
    /// Whether it is queued to continue receiving.
    pub(super) queued: bool,
    /// Whether it waits for a buffer.
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

    /// The poll(2) events of the stack's connection in this state.
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

    /// The stack's socket, if there is one.
    pub(super) fn socket(&self) -> Option<SocketId> {
        match self.phase {
            Phase::Connecting(socket) | Phase::Connected(socket) => Some(socket),
            _ => None,
        }
    }

    /// Whether this is the stack's socket of the endpoint.
    pub(super) fn is(&self, socket: SocketId) -> bool {
        match self.phase {
            Phase::Connecting(own) | Phase::Connected(own) => own == socket,
            Phase::Listening(own) => own == socket,
            Phase::Fresh | Phase::Kernel => false,
        }
    }
}

/// The endpoints, by their numbers and by the stack's sockets.
#[derive(Default)]
pub(super) struct Entries {
    entries: Vec<Option<Entry>>,
    free: Vec<u32>,
    /// Endpoint numbers by the index of the stack's socket.
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

    /// Assigns the stack's socket to an endpoint.
    pub(super) fn place(&mut self, socket: SocketId, number: u32) {
        let index = socket.index as usize;
        if index >= self.by_socket.len() {
            self.by_socket.resize(index + 1, NOBODY);
        }
        self.by_socket[index] = number;
    }

    /// The endpoint of the stack's socket.
    pub(super) fn whose(&mut self, socket: SocketId) -> Option<u32> {
        let number = *self.by_socket.get(socket.index as usize)?;
        self.get_mut(number)?.is(socket).then_some(number)
    }

    /// Takes an endpoint out temporarily; its number stays reserved.
    pub(super) fn take(&mut self, number: u32) -> Option<Entry> {
        self.entries.get_mut(number as usize)?.take()
    }

    /// Puts back an endpoint that [`Entries::take`] has taken out.
    pub(super) fn put_back(&mut self, number: u32, entry: Entry) {
        if let Some(place) = self.entries.get_mut(number as usize) {
            *place = Some(entry);
        }
    }

    /// The numbers of all endpoints.
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
