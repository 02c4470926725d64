//! Models descriptors, connections and their bytes for the controller.

use crate::run_mode::RunMode;
use crate::script::{PROCESSES, SLOTS};
use fuzzkit::{Failure, mix, pattern};
use std::collections::{BTreeMap, VecDeque};

/// With more unread bytes than this in a direction, the number of bytes that a call moves depends
/// on the room in buffers.
const ROOM_BYTES: u64 = 48 << 10;

pub(crate) type Checked<T = ()> = Result<T, Failure>;

/// The kind of an open file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A socket that is not connected.
    Fresh,
    /// A listening socket: its port, and the connections that wait.
    Listener { port: i64, queue: VecDeque<usize> },
    /// An end of a connection.
    End { connection: usize, side: usize },
    /// An epoll set: its members by their files.
    Set(BTreeMap<usize, Member>),
}

/// A member of an epoll set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) events: u32,
    /// The number by which it was added.
    pub(crate) fd: i64,
    /// Events that were reported of it after its sending side was shut down.
    pub(crate) told: i64,
}

/// An open file.
#[derive(Clone, Debug)]
pub(crate) struct Open {
    pub(crate) kind: Kind,
    pub(crate) is_nonblocking: bool,
}

/// A descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    pub(crate) fd: i64,
    pub(crate) file: usize,
    pub(crate) closes_on_exec: bool,
}

/// A process and its descriptors.
#[derive(Clone, Debug, Default)]
pub(crate) struct Process {
    pub(crate) is_live: bool,
    /// It starts a program, at a moment that varies: the program inherits descriptors opened
    /// meanwhile.
    pub(crate) is_executing: bool,
    pub(crate) slots: [Option<Slot>; SLOTS],
}

/// One direction of a connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct Direction {
    stream: u64,
    pub(crate) written: u64,
    pub(crate) read: u64,
    /// More bytes may have been written than the model has.
    pub(crate) is_uncertain: bool,
    /// Bytes may have been read that the model does not have.
    pub(crate) is_unchecked: bool,
    /// The reader has shut down reading, so an end has no meaning.
    pub(crate) is_shut: bool,
    /// The reader got a reset: the kernel reports it once, and then the stream ends.
    pub(crate) was_reset: bool,
    /// The writer has shut down writing.
    pub(crate) is_ended: bool,
    pub(crate) has_writer: bool,
    pub(crate) has_reader: bool,
    /// It had a reader when the check for returned calls began.
    pub(crate) had_reader: bool,
    /// Some bytes may be held back (MSG_MORE, TCP_CORK), until all are read.
    pub(crate) is_held: bool,
    /// Bytes were written behind unread bytes, and may wait for their acknowledgement (Nagle's
    /// algorithm), until all are read.
    pub(crate) may_lag: bool,
    /// Positions before which an urgent byte was sent.
    urgent: Vec<u64>,
}

impl Direction {
    fn byte(&self, at: u64) -> u8 {
        pattern::bytes(self.stream, at, 1)[0]
    }

    /// Returns the next bytes to write.
    pub(crate) fn next(&self, count: usize) -> Vec<u8> {
        pattern::bytes(self.stream, self.written, count)
    }

    /// Returns an urgent byte, which differs from the stream's byte at this position.
    pub(crate) fn urgent_byte(&self) -> u8 {
        !self.byte(self.written)
    }

    /// Returns whether an urgent byte may still arrive.
    pub(crate) fn has_urgent(&self) -> bool {
        !self.urgent.is_empty()
    }

    /// Records that an urgent byte may arrive.
    pub(crate) fn send_urgent(&mut self) {
        self.urgent.push(self.written);
    }

    /// Checks bytes that were read; removes them unless the call peeked.
    pub(crate) fn take(&mut self, bytes: &[u8], peeks: bool) -> Checked {
        if self.is_unchecked {
            return Ok(());
        }
        let (mut at, mut urgent) = (self.read, self.urgent.clone());
        if urgent.is_empty() {
            if let Some(wrong) = pattern::mismatch(self.stream, at, bytes) {
                return Err(self.wrong(wrong, bytes.get((wrong - at) as usize..)));
            }
            at += bytes.len() as u64;
        } else {
            for (index, found) in bytes.iter().enumerate() {
                if *found == self.byte(at) {
                    at += 1;
                } else if let Some(sent) = urgent.iter().position(|sent| *sent == at)
                    && *found == !self.byte(at)
                {
                    urgent.remove(sent);
                } else {
                    return Err(self.wrong(at, bytes.get(index..)));
                }
            }
        }
        if at > self.written && !self.has_writer && !self.is_uncertain {
            let text = format!("{at} bytes were read, {} written", self.written);
            return Err(Failure::new("integrity: more bytes than were written", text));
        }
        if !peeks {
            (self.read, self.urgent) = (at, urgent);
        }
        Ok(())
    }

    /// Records dropped bytes.
    pub(crate) fn skip(&mut self, count: u64) {
        self.read += count;
        // Whether urgent bytes were among them is not known.
        self.is_unchecked |= !self.urgent.is_empty();
    }

    fn wrong(&self, at: u64, found: Option<&[u8]>) -> Failure {
        let found = found.unwrap_or_default();
        let found = &found[..found.len().min(8)];
        // The position of these bytes, if they were repeated or others are missing.
        let place = (0..self.written + 8)
            .find(|place| found.len() == 8 && pattern::bytes(self.stream, *place, 8) == found);
        let text = match place {
            Some(place) => format!("at position {at} come the bytes of position {place}"),
            None => format!("at position {at} come wrong bytes: {found:02x?}"),
        };
        Failure::new("integrity: wrong bytes", text)
    }

    /// Checks that all bytes were read before a normal end.
    pub(crate) fn end(&self) -> Checked {
        let Direction { written, read, .. } = self;
        let is_missing = if self.is_uncertain { read < written } else { read != written };
        if self.is_shut || self.was_reset || self.is_unchecked || !is_missing {
            return Ok(());
        }
        let text = format!("a good end after {read} of {written} bytes");
        Err(Failure::new("integrity: a good end after missing bytes", text))
    }
}

/// A connection; side 0 has connected, side 1 accepts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Connection {
    /// The bytes that each side writes.
    pub(crate) directions: [Direction; 2],
    /// After an allowed difference it is no longer compared.
    pub(crate) has_diverged: bool,
    /// Buffers were full.
    pub(crate) is_crowded: bool,
    /// Whether the side holds its bytes back (TCP_CORK).
    pub(crate) is_corked: [bool; 2],
    /// A call waited for a peer that did not react.
    pub(crate) has_waited: bool,
    /// An end was passed to another program or process.
    pub(crate) was_given: bool,
    /// Whether the side was passed to another program or process with unread bytes, and the peer
    /// has made no call since.
    pub(crate) is_owed: [bool; 2],
    /// The peer of such a side was killed.
    pub(crate) lacks_killed: bool,
    /// A side was passed on after it was shut down in both directions with unread bytes.
    pub(crate) lacks_shut: bool,
    /// Whether a process that had the side was killed.
    pub(crate) killed: [bool; 2],
    /// A side was written to after its peer was killed.
    pub(crate) has_late_bytes: bool,
    /// The process on the stack has ended, and the stack with it.
    pub(crate) lacks_stack: bool,
}

/// The state of all processes, files and connections.
#[derive(Clone, Debug, Default)]
pub(crate) struct Model {
    pub(crate) processes: [Process; PROCESSES],
    pub(crate) files: Vec<Open>,
    pub(crate) connections: Vec<Connection>,
    seed: u64,
    /// No connection goes through memory.
    pub(crate) is_plain: bool,
    /// The processes have addresses of their own.
    pub(crate) has_hosts: bool,
    /// The process that has a user-level stack.
    pub(crate) tested: Option<usize>,
    /// Sets and other files that pending calls wait on for events, once per call.
    pub(crate) awaited: Vec<usize>,
    /// Listeners on which a call waits for a connection.
    pub(crate) accepting: Vec<usize>,
    /// Listeners on which a call waited when the check for returned calls began.
    pub(crate) had_accepting: Vec<usize>,
    /// Listeners whose connections were accepted in another order: their events are no longer
    /// compared.
    pub(crate) raced: Vec<usize>,
}

impl Model {
    pub(crate) fn new(seed: u64, mode: &RunMode) -> Model {
        let (has_hosts, tested) = (mode.has_hosts(), mode.tested());
        let is_plain = mode.is_plain() || has_hosts;
        Model { seed, is_plain, has_hosts, tested, ..Model::default() }
    }

    /// Returns the number of a process's host, which is zero for the loopback device.
    pub(crate) fn host(&self, process: usize) -> i64 {
        if self.has_hosts { process as i64 % 2 + 1 } else { 0 }
    }

    pub(crate) fn slot(&self, process: usize, slot: usize) -> Option<Slot> {
        self.processes[process].slots[slot]
    }

    pub(crate) fn open(&self, slot: Slot) -> &Open {
        &self.files[slot.file]
    }

    /// Returns connection and side of a file.
    pub(crate) fn end(&self, file: usize) -> Option<(usize, usize)> {
        match self.files.get(file)?.kind {
            Kind::End { connection, side } => Some((connection, side)),
            _ => None,
        }
    }

    /// Stores a new descriptor in a slot.
    pub(crate) fn place(&mut self, process: usize, slot: usize, fd: i64, open: Open) -> usize {
        self.files.push(open);
        let file = self.files.len() - 1;
        self.processes[process].slots[slot] = Some(Slot { fd, file, closes_on_exec: false });
        file
    }

    /// Adds a new connection, which waits in the queue of a listener.
    pub(crate) fn connect(&mut self, file: usize, listener: usize) {
        let number = self.connections.len();
        let mut connection = Connection::default();
        for (side, direction) in connection.directions.iter_mut().enumerate() {
            direction.stream = mix(self.seed ^ (2 * number + side) as u64);
        }
        self.connections.push(connection);
        self.files[file].kind = Kind::End { connection: number, side: 0 };
        if let Kind::Listener { queue, .. } = &mut self.files[listener].kind {
            queue.push_back(number);
        }
    }

    /// Returns the direction that a side writes.
    pub(crate) fn outgoing(&mut self, end: (usize, usize)) -> &mut Direction {
        &mut self.connections[end.0].directions[end.1]
    }

    /// Returns the direction that a side reads.
    pub(crate) fn incoming(&mut self, end: (usize, usize)) -> &mut Direction {
        &mut self.connections[end.0].directions[1 - end.1]
    }

    /// Records bytes in transit: the buffers may be full.
    pub(crate) fn note_room(&mut self, connection: usize, more: u64) {
        let connection = &mut self.connections[connection];
        let unread = |direction: &Direction| direction.written.saturating_sub(direction.read);
        let most = connection.directions.iter().map(unread).max().unwrap_or(0);
        connection.is_crowded |= most + more > ROOM_BYTES;
    }

    /// Returns whether an end is closed to which data may be held back.
    pub(crate) fn holds_at_end(&self, connection: usize) -> bool {
        let directions = &self.connections[connection].directions;
        let ends = self.ends(connection);
        (0..2).any(|side| ends[side].is_none() && directions[1 - side].is_held)
    }

    /// Returns whether an end is closed or shut down in both directions, and bytes for it may have
    /// been in transit then, which the kernel answers with a reset.
    pub(crate) fn lags_at_shut(&self, connection: usize) -> bool {
        let directions = &self.connections[connection].directions;
        let ends = self.ends(connection);
        (0..2).any(|side| {
            let (incoming, outgoing) = (&directions[1 - side], &directions[side]);
            let is_shut = incoming.is_shut && outgoing.is_ended;
            (is_shut || ends[side].is_none()) && (incoming.may_lag || incoming.is_held)
        })
    }

    /// Returns whether the bytes of a side wait for the acknowledgement of earlier bytes (Nagle's
    /// algorithm). The stack acknowledges bytes that were read up to 40 ms later, unless it sends
    /// data.
    pub(crate) fn may_lag(&self, (connection, side): (usize, usize)) -> bool {
        let direction = &self.connections[connection].directions[side];
        let reader = self.ends(connection)[1 - side].map(|(process, _)| process);
        let is_stack = reader.is_some() && reader == self.tested;
        direction.read < direction.written || (is_stack && direction.written > 0)
    }

    /// Returns whether a call waits, or waited just now, on the listener for a connection.
    pub(crate) fn has_accept(&self, file: usize) -> bool {
        self.accepting.contains(&file) || self.had_accepting.contains(&file)
    }

    /// Records the listeners among those of a call for events whose connections another call has
    /// accepted.
    pub(crate) fn note_raced(&mut self, asked: &[usize]) {
        let members = asked.iter().flat_map(|file| match &self.files[*file].kind {
            Kind::Set(members) => members.keys().copied().collect(),
            _ => vec![*file],
        });
        let raced: Vec<usize> = members.filter(|file| self.has_accept(*file)).collect();
        self.raced.extend(raced);
    }

    /// Returns whether an end of a connection got a reset and one of its ends was passed on.
    pub(crate) fn is_told_and_given(&self, connection: usize) -> bool {
        let connection = &self.connections[connection];
        connection.was_given && connection.directions.iter().any(|of| of.was_reset)
    }

    /// Returns whether a process that had the side of the connection was killed.
    pub(crate) fn was_killed(&self, connection: usize, side: usize) -> bool {
        self.connections[connection].killed[side]
    }

    /// Records that a process is killed.
    pub(crate) fn note_killed(&mut self, process: usize) {
        for slot in self.processes[process].slots.iter().flatten() {
            if let Kind::End { connection, side } = self.files[slot.file].kind {
                let connection = &mut self.connections[connection];
                connection.killed[side] = true;
                connection.lacks_killed |= connection.is_owed[1 - side];
            }
        }
    }

    /// Records that an end is passed to another program or process.
    pub(crate) fn note_given(&mut self, (connection, side): (usize, usize)) {
        let connection = &mut self.connections[connection];
        connection.was_given = true;
        let [incoming, outgoing] = [1 - side, side].map(|of| &connection.directions[of]);
        let may_have_more = incoming.has_writer || incoming.is_uncertain || incoming.is_unchecked;
        if incoming.read == incoming.written && !may_have_more {
            return;
        }
        connection.lacks_shut |= incoming.is_shut && outgoing.is_ended;
        connection.lacks_killed |= connection.killed[1 - side];
        connection.is_owed[side] = true;
    }

    /// Records that a process ends, and all connections of its stack with it.
    pub(crate) fn note_ended(&mut self, process: usize) {
        if self.tested == Some(process) {
            self.connections.iter_mut().for_each(|connection| connection.lacks_stack = true);
        }
    }

    /// Records which directions have readers, and which listeners an accept, while the run checks
    /// which calls have returned.
    pub(crate) fn note_readers(&mut self, is_looking: bool) {
        let directions = self.connections.iter_mut().flat_map(|of| &mut of.directions);
        directions.for_each(|of| of.had_reader = is_looking && of.has_reader);
        self.had_accepting = if is_looking { self.accepting.clone() } else { Vec::new() };
    }

    /// Returns whether the connection has full buffers, and an end that waits behind unread bytes:
    /// whether the end has arrived depends on the room.
    pub(crate) fn crowds_out_end(&self, connection: usize, side: usize) -> bool {
        let of = &self.connections[connection];
        let direction = &of.directions[side];
        let is_ended = direction.is_ended || self.ends(connection)[side].is_none();
        of.is_crowded && is_ended && direction.read < direction.written
    }

    /// Returns every place of a file: process and slot.
    pub(crate) fn places(&self, file: usize) -> Vec<(usize, usize)> {
        let mut places = Vec::new();
        for (process, of) in self.processes.iter().enumerate() {
            for (slot, at) in of.slots.iter().enumerate() {
                if at.is_some_and(|at| at.file == file) && of.is_live {
                    places.push((process, slot));
                }
            }
        }
        places
    }

    /// Returns a descriptor of each end of a connection, side by side.
    pub(crate) fn ends(&self, connection: usize) -> [Option<(usize, usize)>; 2] {
        [0, 1].map(|side| {
            let kind = Kind::End { connection, side };
            let files = (0..self.files.len()).filter(|file| self.files[*file].kind == kind);
            files.flat_map(|file| self.places(file)).next()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_repeated_and_invented_bytes_are_found() {
        let mut direction = Direction { stream: 3, written: 100, ..Direction::default() };
        let bytes = pattern::bytes(3, 0, 120);
        assert_eq!(direction.take(&bytes[..20], true), Ok(()));
        assert_eq!(direction.take(&bytes[..20], false), Ok(()));
        let class = |result: Checked| result.unwrap_err().class;
        assert!(class(direction.take(&bytes[..20], false)).contains("wrong bytes"));
        assert!(class(direction.take(&bytes[30..40], false)).contains("wrong bytes"));
        assert!(class(direction.take(&bytes[20..], false)).contains("more bytes"));
        assert!(class(direction.end()).contains("good end"));
        assert_eq!(direction.take(&bytes[20..100], false), Ok(()));
        assert_eq!(direction.end(), Ok(()));
    }

    #[test]
    fn an_urgent_byte_comes_at_its_place_or_not_at_all() {
        let mut direction = Direction { stream: 3, written: 10, ..Direction::default() };
        let urgent = direction.urgent_byte();
        direction.send_urgent();
        direction.written = 20;
        let bytes = pattern::bytes(3, 0, 20);
        let inline = [&bytes[..10], &[urgent], &bytes[10..]].concat();
        assert_eq!(direction.clone().take(&inline, false), Ok(()));
        assert_eq!(direction.clone().take(&bytes, false), Ok(()));
        let elsewhere = [&bytes[..9], &[urgent], &bytes[9..]].concat();
        assert!(direction.take(&elsewhere, false).is_err());
    }
}
