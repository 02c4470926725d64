//! Transport over a stream socket of a foreign program (`tcp://`, `unix://`): bytes without
//! boundaries. A message that is read contains the bytes that have arrived; a committed message is
//! sent as its bytes, without a header.

mod blocks;

use std::collections::VecDeque;
use std::io::{self, IoSlice, Read};
use std::net::Shutdown;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use socket2::Socket;

use super::delivery::{Deliveries, HalfClose, unacknowledged};
use super::slot::Owner;
use super::wait::wait_by_poll;
use super::{
    Direction, ReadSlot, Record, Remainder, Transport, Undelivered, Wait, WaitMethod, WriteSlot,
};
use crate::error::{TransportError, TransportResult};
use crate::kind::Kind;
use blocks::{Block, Blocks};

/// The most bytes of one read or write.
const MESSAGE_BYTES_MAX: usize = 64 * 1024;

/// The most unsent bytes at which there is still room to write.
const UNSENT_BYTES_MAX: usize = 64 * 1024;

/// The most pieces of one send.
const PIECES_MAX: usize = 64;

/// Bytes over a connected stream socket.
#[derive(Debug)]
pub(crate) struct Raw {
    socket: Socket,
    kind: Kind,
    owner: Owner,
    reads: Blocks,
    writes: Blocks,
    unsent: VecDeque<(Block, Range<usize>)>,
    unsent_bytes: usize,
    batch: u32,
    committed: u32,
    /// The application's last record is committed; the direction ends after the unsent bytes.
    finished: bool,
    shut: bool,
    ended: bool,
    /// Whether a message has found no room, and its writer has not been notified of room since.
    was_full: bool,
    deliveries: Deliveries,
    /// The number of bytes that the kernel has taken since the beginning.
    sent_bytes: u64,
}

impl Raw {
    /// Takes over a connected socket; `kind` is the transport's name.
    ///
    /// # Errors
    /// [`TransportError::System`] if it cannot be made non-blocking.
    pub(crate) fn new(socket: OwnedFd, kind: Kind) -> TransportResult<Raw> {
        let socket = Socket::from(socket);
        socket.set_nonblocking(true).map_err(|source| failed("fcntl(O_NONBLOCK)", source))?;
        Ok(Raw {
            socket,
            kind,
            owner: Owner::new(),
            reads: Blocks::new(MESSAGE_BYTES_MAX),
            writes: Blocks::new(MESSAGE_BYTES_MAX),
            unsent: VecDeque::new(),
            unsent_bytes: 0,
            batch: 1,
            committed: 0,
            finished: false,
            shut: false,
            ended: false,
            was_full: false,
            deliveries: Deliveries::new(),
            sent_bytes: 0,
        })
    }

    /// Sends as much as the socket takes.
    fn send_some(&mut self) -> TransportResult<usize> {
        let pieces: Vec<IoSlice<'_>> = self
            .unsent
            .iter()
            .take(PIECES_MAX)
            .map(|(block, range)| IoSlice::new(&block.bytes()[range.clone()]))
            .collect();
        match self.socket.send_vectored_with_flags(&pieces, libc::MSG_NOSIGNAL) {
            Ok(count) => Ok(count),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
            Err(error) => Err(failed("sendmsg", error)),
        }
    }

    fn sent(&mut self, mut count: usize) {
        self.unsent_bytes -= count;
        self.sent_bytes += count as u64;
        while let Some((_, range)) = self.unsent.front_mut() {
            let piece = range.len().min(count);
            range.start += piece;
            count -= piece;
            if range.start < range.end {
                return;
            }
            if let Some((block, _)) = self.unsent.pop_front() {
                self.writes.give(block);
            }
        }
    }

    fn is_network(&self) -> bool {
        self.kind != Kind::Unix
    }

    fn is_open(&self) -> bool {
        self.unsent_bytes <= UNSENT_BYTES_MAX && self.unsent.len() < PIECES_MAX
    }
}

impl Transport for Raw {
    fn kind(&self) -> Kind {
        self.kind
    }

    fn message_bytes_max(&self) -> usize {
        MESSAGE_BYTES_MAX
    }

    /// Does nothing: messages are what this end reads at once.
    fn limit_reads(&mut self, _bytes_max: usize) {}

    fn acquire_write(&mut self, bytes: usize) -> TransportResult<Option<WriteSlot>> {
        if bytes > MESSAGE_BYTES_MAX {
            let transport = self.kind.base_name();
            return Err(TransportError::TooLong { bytes, bytes_max: MESSAGE_BYTES_MAX, transport });
        }
        if self.writes.is_full() {
            return Err(TransportError::TooManySlots { held: self.writes.held() });
        }
        if !self.is_open() {
            self.flush()?;
        }
        self.was_full = !self.is_open();
        if self.was_full {
            return Ok(None);
        }
        let block = self.writes.take();
        let (pointer, token) = self.writes.hold(block);
        // SAFETY: the block has `MESSAGE_BYTES_MAX` bytes and is kept until the slot is returned,
        // and no other slot points into it.
        Ok(Some(unsafe { WriteSlot::new(pointer, bytes, self.owner, token) }))
    }

    fn commit(&mut self, slot: WriteSlot, bytes: usize, record: Record) -> TransportResult<()> {
        if slot.owner != self.owner {
            return Err(TransportError::Foreign);
        }
        let bytes = bytes.min(slot.len());
        let block = self.writes.retake(slot.token).ok_or(TransportError::Foreign)?;
        match record {
            Record::Data if bytes > 0 => {
                self.unsent.push_back((block, 0..bytes));
                self.unsent_bytes += bytes;
                let end = self.sent_bytes + self.unsent_bytes as u64;
                self.deliveries.committed(end, bytes);
            }
            // Only bytes of the application may appear in a stream without boundaries.
            _ => self.writes.give(block),
        }
        self.finished |= record == Record::EndOfFlow;
        self.committed += 1;
        if self.committed >= self.batch || self.finished {
            self.flush()?;
        }
        if self.deliveries.is_long() {
            self.undelivered();
        }
        Ok(())
    }

    fn abandon(&mut self, slot: WriteSlot) {
        if slot.owner == self.owner
            && let Some(block) = self.writes.retake(slot.token)
        {
            self.writes.give(block);
        }
    }

    fn set_batch(&mut self, commits: u32) {
        self.batch = commits.clamp(1, PIECES_MAX as u32);
    }

    fn flush(&mut self) -> TransportResult<bool> {
        self.committed = 0;
        while !self.unsent.is_empty() {
            match self.send_some() {
                Ok(count) => self.sent(count),
                Err(TransportError::System { source, .. })
                    if source.kind() == io::ErrorKind::WouldBlock =>
                {
                    return Ok(false);
                }
                Err(error) => return Err(error),
            }
        }
        if self.finished && !self.shut {
            self.shut = true;
            // Fails only for a peer that is gone, which reading reports.
            let _ = self.socket.shutdown(Shutdown::Write);
        }
        Ok(true)
    }

    fn undelivered(&mut self) -> Undelivered {
        let missing = if self.is_network() { unacknowledged(&self.socket) } else { 0 };
        self.deliveries.undelivered(self.sent_bytes.saturating_sub(missing))
    }

    fn end(&mut self) -> Option<Remainder> {
        if !self.is_network() {
            return None;
        }
        let socket = self.socket.try_clone().ok()?;
        let deliveries = std::mem::replace(&mut self.deliveries, Deliveries::new());
        Some(Remainder::new(socket, deliveries, self.sent_bytes, HalfClose::Possible))
    }

    fn acquire_read(&mut self) -> TransportResult<Option<ReadSlot>> {
        if self.ended {
            return Err(TransportError::Closed);
        }
        if self.reads.is_full() {
            return Err(TransportError::TooManySlots { held: self.reads.held() });
        }
        let mut block = self.reads.take();
        let count = match (&self.socket).read(block.bytes_mut()) {
            Ok(count) => count,
            Err(error) => {
                self.reads.give(block);
                return match error.kind() {
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
                    _ => Err(failed("recv", error)),
                };
            }
        };
        self.ended = count == 0;
        let record = if self.ended { Record::EndOfFlow } else { Record::Data };
        let (pointer, token) = self.reads.hold(block);
        // SAFETY: the block has `count` bytes, is kept until the slot is returned, and is not
        // written to meanwhile.
        Ok(Some(unsafe { ReadSlot::new(pointer, count, record, self.owner, token) }))
    }

    fn release(&mut self, slot: ReadSlot) {
        if slot.owner == self.owner
            && let Some(block) = self.reads.retake(slot.token)
        {
            self.reads.give(block);
        }
    }

    fn has_room(&mut self) -> bool {
        self.is_open()
    }

    fn prepare_wait(&mut self, direction: Direction, _manner: WaitMethod) -> TransportResult<Wait> {
        let events = match direction {
            Direction::Read => libc::POLLIN,
            Direction::Write if self.flush()? => return Ok(Wait::Ready),
            Direction::Write if self.was_full && self.is_open() => {
                self.was_full = false;
                return Ok(Wait::Ready);
            }
            Direction::Write => libc::POLLOUT,
        };
        Ok(Wait::Descriptor { descriptor: self.socket.as_raw_fd(), events })
    }

    fn end_wait(&mut self, _direction: Direction) {}

    fn wait(&mut self, direction: Direction, timeout: Option<Duration>) -> TransportResult<bool> {
        wait_by_poll(self.prepare_wait(direction, WaitMethod::Descriptor)?, timeout)
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // No slot points into blocks that wait to be sent.
        for (block, _) in self.unsent.drain(..) {
            self.writes.give(block);
        }
    }
}

fn failed(call: &'static str, source: io::Error) -> TransportError {
    match source.kind() {
        io::ErrorKind::BrokenPipe
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::ConnectionAborted => TransportError::Closed,
        _ => TransportError::System { call, source },
    }
}

#[cfg(test)]
mod tests;
