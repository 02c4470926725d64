//! Implements urgent data (`MSG_OOB`, `SO_OOBINLINE`, `SIOCATMARK`) as Linux does: the last urgent
//! byte is removed from the stream, unless the option keeps it there, and reading stops before it
//! once. See tcp(7).

use super::errors::from;
use super::stream::Flags;
use super::{Context, Descriptor, Events, Object, Phase};
use mtcp_proto::{Error, Readiness, SocketId};
use std::io;

/// The last urgent byte, until reading has passed it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    /// Bytes that can be read before it.
    pub(super) ahead: usize,
    position: u64,
    byte: Option<u8>,
}

impl Context {
    /// The urgent byte of a connection, unless reading has passed it.
    pub(super) fn mark(&self, id: SocketId) -> Option<Mark> {
        let (urgent, taken) = self.port.urgent(id)?;
        let ahead = usize::try_from(urgent.position.checked_sub(taken)?).ok()?;
        Some(Mark { ahead, position: urgent.position, byte: urgent.byte })
    }

    fn is_inline(&self, id: SocketId) -> bool {
        let place = self.places.get(id.index as usize).copied().unwrap_or(super::epoll::NONE);
        match self.table.get(Descriptor(place)).map(|entry| &entry.object) {
            Ok(Object::Socket(socket)) => {
                socket.extras.as_ref().is_some_and(|extras| extras.urgent_inline)
            }
            _ => false,
        }
    }

    /// Whether there are more than `known` bytes, and no urgent byte directly after these.
    ///
    /// # Errors
    /// `EBADF`, `ENOTSOCK`.
    pub fn has_more(&mut self, descriptor: Descriptor, known: usize) -> io::Result<bool> {
        let Some(id) = self.socket_of(descriptor)?.id else { return Ok(false) };
        let marked = self.mark(id).is_some_and(|mark| mark.ahead == known);
        let hole = usize::from(self.begins_with_hole(id));
        Ok(!marked && self.port.receivable(id) > known + hole)
    }

    /// Whether anything has arrived that was not read, even if it is only an urgent byte: a read of
    /// no bytes then does not wait.
    ///
    /// # Errors
    /// `EBADF`, `ENOTSOCK`.
    pub fn has_come(&mut self, descriptor: Descriptor) -> io::Result<bool> {
        let socket = self.socket_of(descriptor)?;
        let id = socket.id.filter(|_| socket.phase != Phase::Listening);
        Ok(id.is_some_and(|id| self.port.receivable(id) > 0))
    }

    /// Whether the next byte is an urgent one that is removed from the stream.
    fn begins_with_hole(&self, id: SocketId) -> bool {
        self.mark(id).is_some_and(|mark| mark.ahead == 0) && !self.is_inline(id)
    }

    /// Whether reading stops after `known` bytes: the stream has ended there, or an urgent byte is
    /// there.
    ///
    /// # Errors
    /// `EBADF`, `ENOTSOCK`.
    pub fn stops_behind(&mut self, descriptor: Descriptor, known: usize) -> io::Result<bool> {
        let over = Events::ERROR | Events::HANG_UP | Events::READ_HANG_UP;
        let id = self.socket_of(descriptor)?.id;
        let mark = id.and_then(|id| self.mark(id));
        let marked = mark.is_some_and(|mark| mark.ahead == known);
        Ok(marked || self.ready(descriptor)?.intersects(over))
    }

    /// Reads, or copies from `offset` on, the data before the urgent byte; if there is none, the
    /// data after it.
    pub(super) fn take_around_mark(
        &mut self,
        id: SocketId,
        offset: usize,
        room: &mut [u8],
        peek: bool,
    ) -> Result<usize, Error> {
        let skips = self.begins_with_hole(id);
        let ahead = self.mark(id).and_then(|mark| mark.ahead.checked_sub(offset));
        let length = match ahead {
            Some(ahead @ 1..) => room.len().min(ahead),
            _ => room.len(),
        };
        let room = &mut room[..length];
        if peek {
            return self.port.peek(id, offset + usize::from(skips), room);
        }
        if skips && self.port.receivable(id) > 0 {
            self.port.receive(id, &mut [0])?;
        }
        self.port.receive(id, room)
    }

    /// The number of bytes that FIONREAD returns: those before the urgent one.
    pub(super) fn readable_before_mark(&mut self, id: SocketId) -> usize {
        let all = self.port.receivable(id);
        match self.mark(id) {
            Some(mark) if mark.ahead < all && !self.is_inline(id) => mark.ahead,
            _ => all,
        }
    }

    /// Adds the effect of an urgent byte to the readiness.
    pub(super) fn ready_with_urgent(&mut self, descriptor: Descriptor, events: Events) -> Events {
        let Ok(socket) = self.socket_of(descriptor) else { return events };
        let Some(id) = socket.id else { return events };
        let shut = socket.ended.receive;
        let read = socket.extras.as_ref().and_then(|extras| extras.urgent_read);
        let Some(mark) = self.mark(id) else { return events };
        let mut events = events;
        if mark.byte.is_some() && read != Some(mark.position) {
            events |= Events::URGENT;
        }
        let over = Readiness::PEER_CLOSED.with(Readiness::CLOSED).with(Readiness::ERROR);
        let alone = mark.ahead == 0 && self.port.receivable(id) == 1 && !self.is_inline(id);
        if alone && !shut && !self.port.readiness(id).intersects(over) {
            events = events.without(Events::IN);
        }
        events
    }

    /// Takes the urgent byte (`MSG_OOB`); never waits.
    ///
    /// # Errors
    /// `EINVAL`: there is none, it was taken, or it stays in the stream; `EAGAIN`: it was announced
    /// and has not arrived.
    pub(super) fn receive_urgent(
        &mut self,
        descriptor: Descriptor,
        id: SocketId,
        room: &mut [u8],
        flags: Flags,
    ) -> io::Result<usize> {
        let mark = self.mark(id).filter(|_| !self.is_inline(id));
        let mark = mark.ok_or_else(|| from(libc::EINVAL))?;
        if self.extras(descriptor)?.urgent_read == Some(mark.position) {
            return Err(from(libc::EINVAL));
        }
        let Some(byte) = mark.byte else {
            let ended = self.ready(descriptor)?.intersects(Events::READ_HANG_UP);
            return if ended { Ok(0) } else { Err(from(libc::EAGAIN)) };
        };
        if !flags.has(Flags::PEEK) {
            self.extras(descriptor)?.urgent_read = Some(mark.position);
        }
        let Some(place) = room.first_mut() else { return Ok(0) };
        *place = byte;
        Ok(1)
    }

    /// Whether the next byte to read is the urgent one, or comes directly after it (`SIOCATMARK`).
    ///
    /// # Errors
    /// `EBADF`, `ENOTSOCK`.
    pub fn is_at_mark(&mut self, descriptor: Descriptor) -> io::Result<bool> {
        let id = self.socket_of(descriptor)?.id;
        Ok(id.and_then(|id| self.mark(id)).is_some_and(|mark| mark.ahead == 0))
    }
}
