//! Transport of messages over any stream of bytes: a socket or TLS.
//!
//! Between flows a header precedes each message. A foreign program's stream has none: what is read
//! at once is a message, and a committed message is sent as its bytes.

mod blocks;
mod header;
mod inbox;
mod outbox;

use std::io::IoSlice;
use std::os::fd::RawFd;
use std::time::Duration;

use socket2::Socket;

pub(super) use inbox::Received;

use header::HEADER_BYTES;
use inbox::Inbox;
use outbox::Outbox;

use super::delivery::HalfClose;
use super::slot::Owner;
use super::wait::wait_by_poll;
use super::{
    Direction, ReadSlot, Record, Remainder, Transport, Undelivered, Wait, WaitMethod, WriteSlot,
};
use crate::error::{TransportError, TransportResult};
use crate::kind::Kind;

/// A non-blocking stream of bytes in each direction.
pub(super) trait Link: Send {
    /// Sends some of the bytes and returns how many; 0 if the link can take none now.
    fn send(&mut self, pieces: &[IoSlice<'_>]) -> TransportResult<usize>;

    /// Sends the bytes that the link has taken. Returns false if some have to wait.
    fn flush(&mut self) -> TransportResult<bool> {
        Ok(true)
    }

    /// Receives what has arrived.
    fn receive(&mut self, room: &mut [u8]) -> TransportResult<Received>;

    /// Returns whether `receive` returns bytes without a system call.
    fn has_more(&self) -> bool {
        false
    }

    /// Returns an upper bound of the bytes that were taken and have not reached the peer's host.
    fn unacknowledged(&self) -> u64 {
        0
    }

    /// Returns the socket if closing it could discard what was sent. Nothing is sent after this
    /// call.
    fn end(&mut self) -> Option<LinkEnd<'_>> {
        None
    }

    /// Ends the sending direction, so that the peer reads the end of the stream.
    fn shut_down(&mut self) {}

    /// Returns the descriptor and the events for poll(2).
    fn readiness(&self, need: Need) -> (RawFd, i16);
}

/// The state of a link at its end, besides the bytes of the stream.
pub(super) struct LinkEnd<'a> {
    pub(super) socket: &'a Socket,
    /// The most bytes of the stream that the link has and the socket does not.
    pub(super) unsent_bytes: u64,
}

/// The event that an end waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// Input has arrived.
    Arrival,
    /// More can be sent.
    Room,
}

/// The message transport over a link, with headers of this size: 8 bytes, or 0 for a foreign
/// program's stream.
pub(super) struct Framed<L, const HEADER: usize = HEADER_BYTES> {
    kind: Kind,
    link: L,
    inbox: Inbox<HEADER>,
    outbox: Outbox<HEADER>,
    /// Without headers: whether the flow's last record is committed, and nothing follows.
    is_finished: bool,
    /// Whether a message has found no room, and its writer has not been notified of room since.
    was_full: bool,
}

impl<L: Link> Framed<L> {
    /// Makes a transport over this link.
    pub(super) fn new(kind: Kind, link: L) -> TransportResult<Framed<L>> {
        Framed::over(kind, link)
    }
}

impl<L: Link> Framed<L, 0> {
    /// Makes a transport over a link to a foreign program.
    pub(super) fn without_headers(kind: Kind, link: L) -> TransportResult<Framed<L, 0>> {
        Framed::over(kind, link)
    }
}

impl<L: Link, const HEADER: usize> Framed<L, HEADER> {
    fn over(kind: Kind, link: L) -> TransportResult<Self> {
        let (name, owner) = (kind.base_name(), Owner::new());
        let (inbox, outbox) = (Inbox::new(name, owner)?, Outbox::new(name, owner)?);
        Ok(Framed { kind, link, inbox, outbox, is_finished: false, was_full: false })
    }

    /// Returns whether the peer, which has ended its direction, reads no more. A foreign program
    /// may go on reading.
    fn is_left(&self) -> bool {
        HEADER > 0 && self.inbox.has_ended()
    }

    /// Flushes the queue if it is full. Returns whether there is room for a message then.
    fn make_room(&mut self) -> TransportResult<bool> {
        if self.outbox.is_full() {
            self.flush()?;
        }
        Ok(!self.outbox.is_full())
    }
}

impl<L: Link, const HEADER: usize> Transport for Framed<L, HEADER> {
    fn kind(&self) -> Kind {
        self.kind
    }

    fn message_bytes_max(&self) -> usize {
        header::message_bytes_max(HEADER)
    }

    fn limit_reads(&mut self, bytes_max: usize) {
        self.inbox.limit(bytes_max);
    }

    fn acquire_write(&mut self, bytes: usize) -> TransportResult<Option<WriteSlot>> {
        // Multipath TCP accepts bytes for a peer that is gone.
        if self.is_left() {
            return Err(TransportError::Closed);
        }
        self.was_full = !self.make_room()?;
        if self.was_full {
            return Ok(None);
        }
        self.outbox.acquire(bytes).map(Some)
    }

    fn commit(&mut self, slot: WriteSlot, bytes: usize, record: Record) -> TransportResult<()> {
        let is_due = self.outbox.commit(slot, bytes, record)?;
        self.is_finished |= HEADER == 0 && record == Record::EndOfFlow;
        if is_due || self.is_finished {
            self.flush()?;
        }
        if self.outbox.has_many_undelivered() {
            self.undelivered();
        }
        Ok(())
    }

    fn forward(&mut self, message: &[u8]) -> TransportResult<bool> {
        if self.is_left() {
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
        let is_flushed = self.link.flush()? && all_taken;
        if is_flushed && std::mem::take(&mut self.is_finished) {
            self.link.shut_down();
        }
        Ok(is_flushed)
    }

    fn undelivered(&mut self) -> Undelivered {
        self.outbox.undelivered(self.link.unacknowledged())
    }

    fn end(&mut self) -> Option<Remainder> {
        let LinkEnd { socket, unsent_bytes } = self.link.end()?;
        let socket = socket.try_clone().ok()?;
        let (deliveries, sent) = self.outbox.end();
        let sent = sent.saturating_sub(unsent_bytes);
        let half_close = if HEADER > 0 { HalfClose::Never } else { HalfClose::Possible };
        Some(Remainder::new(socket, deliveries, sent, half_close))
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

    fn prepare_wait(&mut self, direction: Direction, _manner: WaitMethod) -> TransportResult<Wait> {
        let flushed = match self.flush() {
            // A peer that is gone takes nothing, but its messages can still be read.
            Err(TransportError::Closed) if direction == Direction::Read => false,
            flushed => flushed?,
        };
        let need = match direction {
            Direction::Read if self.inbox.has_more() || self.link.has_more() => None,
            Direction::Read => Some(Need::Arrival),
            // There is room again, though the kernel has not taken everything: the peer may wait
            // for exactly this message.
            Direction::Write if self.was_full && self.make_room()? => {
                self.was_full = false;
                None
            }
            Direction::Write if !flushed => Some(Need::Room),
            Direction::Write => None,
        };
        Ok(need.map_or(Wait::Ready, |need| {
            let (descriptor, events) = self.link.readiness(need);
            Wait::Descriptor { descriptor, events }
        }))
    }

    fn end_wait(&mut self, _direction: Direction) {}

    fn wait(&mut self, direction: Direction, timeout: Option<Duration>) -> TransportResult<bool> {
        let wait = self.prepare_wait(direction, WaitMethod::Descriptor)?;
        wait_by_poll(wait, timeout)
    }
}
