//! Messages on a stream of bytes, whatever carries it: a socket, a pair of pipes, TLS.

mod blocks;
mod header;
mod inbox;
mod outbox;

use std::io::IoSlice;
use std::os::fd::RawFd;
use std::time::Duration;

use socket2::Socket;

pub(super) use blocks::{Pile, Place};
pub(super) use inbox::Received;
pub(super) use outbox::Keeping;

use inbox::Inbox;
use outbox::Outbox;

use super::delivery::HalfClose;
use super::slot::Owner;
use super::wait::wait_by_poll;
use super::{
    Direction, Manner, ReadSlot, Record, Remainder, Transport, Undelivered, Wait, WriteSlot,
};
use crate::error::{TransportError, TransportResult};
use crate::kind::Kind;

/// A stream of bytes each way that never blocks.
pub(super) trait Link: Send {
    /// Takes some of the bytes, and says how many; 0 if it takes none now.
    fn send(&mut self, pieces: &[IoSlice<'_>]) -> TransportResult<usize>;

    /// Brings what it took on its way; false if that must wait.
    fn flush(&mut self) -> TransportResult<bool> {
        Ok(true)
    }

    /// Gives what has arrived.
    fn receive(&mut self, room: &mut [u8]) -> TransportResult<Received>;

    /// Whether `receive` has something without asking the system.
    fn has_more(&self) -> bool {
        false
    }

    /// How many bytes the peer has read since the beginning, where it tells.
    fn acknowledged(&mut self) -> TransportResult<Option<u64>> {
        Ok(None)
    }

    /// How many of the bytes that it took have not reached the peer's host, at most.
    fn unacknowledged(&self) -> u64 {
        0
    }

    /// Gives the socket if closing it could throw away what was sent. Nothing is sent any more.
    fn end(&mut self) -> Option<LinkEnd<'_>> {
        None
    }

    /// The descriptor and the events of `poll` to sleep on.
    fn readiness(&self, need: Need) -> (RawFd, i16);
}

/// What a link has besides the stream's bytes when it ends.
pub(super) struct LinkEnd<'a> {
    pub(super) socket: &'a Socket,
    /// Of the stream's bytes, at most so many are with the link and not with the socket.
    pub(super) unsent_bytes: u64,
}

/// What an end sleeps for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// That there is something to receive.
    Arrival,
    /// That more can be sent.
    Room,
    /// That the peer says what it has read.
    Acknowledgement,
}

/// The transport over a link.
pub(super) struct Framed<L> {
    kind: Kind,
    link: L,
    inbox: Inbox,
    outbox: Outbox,
    /// Whether a message has found no room, and its writer was not told yet that there is some.
    was_full: bool,
}

impl<L: Link> Framed<L> {
    pub(super) fn new(kind: Kind, link: L, keeping: Keeping) -> TransportResult<Framed<L>> {
        let (name, owner) = (kind.base_name(), Owner::new());
        let (inbox, outbox) = (Inbox::new(name, owner)?, Outbox::new(name, owner, keeping)?);
        Ok(Framed { kind, link, inbox, outbox, was_full: false })
    }

    /// Whether there is room for a message, when everything is done for it that can be done now.
    fn make_room(&mut self) -> TransportResult<bool> {
        if self.outbox.is_full() {
            self.flush()?;
            if let Some(position) = self.link.acknowledged()? {
                self.outbox.acknowledge(position)?;
            }
        }
        Ok(!self.outbox.is_full())
    }
}

impl<L: Link> Transport for Framed<L> {
    fn kind(&self) -> Kind {
        self.kind
    }

    fn message_bytes_max(&self) -> usize {
        header::MESSAGE_BYTES_MAX
    }

    fn acquire_write(&mut self, bytes: usize) -> TransportResult<Option<WriteSlot>> {
        // Multipath TCP takes bytes for a peer that is gone.
        if self.inbox.has_ended() {
            return Err(TransportError::Closed);
        }
        self.was_full = !self.make_room()?;
        if self.was_full {
            return Ok(None);
        }
        self.outbox.acquire(bytes).map(Some)
    }

    fn commit(&mut self, slot: WriteSlot, bytes: usize, record: Record) -> TransportResult<()> {
        if self.outbox.commit(slot, bytes, record)? {
            self.flush()?;
        }
        if self.outbox.has_many_undelivered() {
            self.undelivered();
        }
        Ok(())
    }

    fn forward(&mut self, message: &[u8]) -> TransportResult<bool> {
        if self.inbox.has_ended() {
            return Err(TransportError::Closed);
        }
        let sent = self.outbox.forward(message, |pieces| self.link.send(pieces))?;
        if sent {
            self.link.flush()?;
            if self.outbox.has_many_undelivered() {
                self.undelivered();
            }
        }
        Ok(sent)
    }

    fn abandon(&mut self, slot: WriteSlot) {
        self.outbox.abandon(slot);
    }

    fn set_batch(&mut self, commits: u32) {
        self.outbox.set_batch(commits);
    }

    fn flush(&mut self) -> TransportResult<bool> {
        let all_taken = self.outbox.send(|pieces| self.link.send(pieces))?;
        Ok(self.link.flush()? && all_taken)
    }

    fn undelivered(&mut self) -> Undelivered {
        self.outbox.undelivered(self.link.unacknowledged())
    }

    fn end(&mut self) -> Option<Remainder> {
        let LinkEnd { socket, unsent_bytes } = self.link.end()?;
        let socket = socket.try_clone().ok()?;
        let (deliveries, sent) = self.outbox.end();
        let sent = sent.saturating_sub(unsent_bytes);
        Some(Remainder::new(socket, deliveries, sent, HalfClose::Never))
    }

    fn acquire_read(&mut self) -> TransportResult<Option<ReadSlot>> {
        self.inbox.acquire(|room| self.link.receive(room))
    }

    fn release(&mut self, slot: ReadSlot) {
        self.inbox.release(slot);
    }

    fn has_room(&mut self) -> bool {
        !self.outbox.is_full()
    }

    fn prepare_wait(&mut self, direction: Direction, _manner: Manner) -> TransportResult<Wait> {
        let flushed = match self.flush() {
            // A peer that is gone takes nothing, but what it sent can still be read.
            Err(TransportError::Closed) if direction == Direction::Read => false,
            flushed => flushed?,
        };
        let need = match direction {
            Direction::Read if self.inbox.has_more() || self.link.has_more() => None,
            Direction::Read => Some(Need::Arrival),
            // There is room again, though the kernel has not taken all: the peer may wait for just
            // this message.
            Direction::Write if self.was_full && self.make_room()? => {
                self.was_full = false;
                None
            }
            Direction::Write if !flushed => Some(Need::Room),
            Direction::Write if !self.make_room()? => Some(Need::Acknowledgement),
            Direction::Write => None,
        };
        Ok(need.map_or(Wait::Ready, |need| {
            let (descriptor, events) = self.link.readiness(need);
            Wait::Descriptor { descriptor, events }
        }))
    }

    fn end_wait(&mut self, _direction: Direction) {}

    fn wait(&mut self, direction: Direction, timeout: Option<Duration>) -> TransportResult<bool> {
        let wait = self.prepare_wait(direction, Manner::Descriptor)?;
        wait_by_poll(wait, timeout)
    }
}
