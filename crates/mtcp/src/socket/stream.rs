//! Reads from connections and writes to them.

use super::errors::{failure, from};
use super::{Context, Descriptor, Events, FRUITLESS_CALLS, Object, Phase};
use mtcp_proto::{Error, Readiness, SendFlags, SocketId};
use std::io::{self, IoSlice, IoSliceMut};
use std::ops::BitOr;
use std::time::Duration;

/// Flags of [`Context::recv`] and [`Context::send`], with the values of recv(2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(pub i32);

impl Flags {
    /// `MSG_PEEK`: leaves the data in the buffer.
    pub const PEEK: Flags = Flags(libc::MSG_PEEK);
    /// `MSG_DONTWAIT`: this call does not block.
    pub const DONT_WAIT: Flags = Flags(libc::MSG_DONTWAIT);
    /// `MSG_WAITALL`: waits until the buffer is full, or the stream ends.
    pub const WAIT_ALL: Flags = Flags(libc::MSG_WAITALL);

    /// `MSG_OOB`: receives the urgent byte; when sending, the last byte is urgent.
    pub const OUT_OF_BAND: Flags = Flags(libc::MSG_OOB);
    /// `MSG_MORE`: more data follows soon, for which a partial segment waits.
    pub const MORE: Flags = Flags(libc::MSG_MORE);

    pub(super) const fn has(self, other: Flags) -> bool {
        self.0 & other.0 != 0
    }
}

/// A socket without a connection fails like one that was shut down.
fn cannot_send(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(libc::ENOTCONN) => from(libc::EPIPE),
        _ => error,
    }
}

impl BitOr for Flags {
    type Output = Flags;

    fn bitor(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

/// Flags that have no effect here, or may be ignored.
const HARMLESS: i32 = libc::MSG_NOSIGNAL | libc::MSG_CMSG_CLOEXEC | libc::MSG_MORE;

impl Context {
    /// Takes received data; 0 is the end of the stream. See read(2).
    ///
    /// # Errors
    /// `EAGAIN`, `ENOTCONN`, `ECONNRESET`, `ETIMEDOUT`, `EHOSTUNREACH`, `EBADF`, `EINVAL` (an
    /// epoll).
    pub fn read(&mut self, descriptor: Descriptor, room: &mut [u8]) -> io::Result<usize> {
        self.recv(descriptor, room, Flags(0))
    }

    /// Like [`Context::read`], with flags. See recv(2).
    ///
    /// # Errors
    /// Also `EOPNOTSUPP`: a flag that is not supported.
    pub fn recv(
        &mut self,
        descriptor: Descriptor,
        room: &mut [u8],
        flags: Flags,
    ) -> io::Result<usize> {
        let known = Flags::PEEK | Flags::DONT_WAIT | Flags::WAIT_ALL | Flags::OUT_OF_BAND;
        let known = known | Flags(HARMLESS);
        if flags.0 & !known.0 != 0 {
            return Err(from(libc::EOPNOTSUPP));
        }
        // As in the kernel, which does not check whether there is a connection.
        if flags.has(Flags::OUT_OF_BAND)
            && let Object::Socket(socket) = &self.table.get(descriptor)?.object
            && socket.id.is_none()
        {
            return Err(from(libc::EINVAL));
        }
        let Some((id, nonblocking)) = self.stream(descriptor)? else {
            return self.read_pipe(descriptor, room)?.ok_or_else(|| from(libc::EINVAL));
        };
        if flags.has(Flags::OUT_OF_BAND) {
            return self.receive_urgent(descriptor, id, room, flags);
        }
        let shut = self.socket_of(descriptor)?.ended.receive;
        let nonblocking = nonblocking || shut || flags.has(Flags::DONT_WAIT);
        let taken = self.take(id, 0, room, flags)?;
        match taken {
            Some(bytes) if bytes == room.len() || nonblocking || !flags.has(Flags::WAIT_ALL) => {
                self.spend(1)?;
                return Ok(bytes);
            }
            None if shut => return Ok(0),
            None if nonblocking => {
                self.spend(FRUITLESS_CALLS)?;
                return Err(from(libc::EAGAIN));
            }
            _ => {}
        }
        let timeout = self.receive_timeout(descriptor)?;
        let wanted = if flags.has(Flags::WAIT_ALL) { room.len() } else { 1 };
        self.read_blocking(id, room, flags, taken, wanted, timeout)
    }

    /// Reads until there are `wanted` bytes, the stream ends or the time is over. An error after
    /// data is left to the next call.
    fn read_blocking(
        &mut self,
        id: SocketId,
        room: &mut [u8],
        flags: Flags,
        begun: Option<usize>,
        wanted: usize,
        timeout: Option<Duration>,
    ) -> io::Result<usize> {
        let peek = flags.has(Flags::PEEK);
        let mut done = begun.unwrap_or(0);
        if begun == Some(0) {
            return Ok(0);
        }
        let outcome = self.block(timeout, |context| {
            let known = if peek { done } else { 0 };
            let marked = context.mark(id).is_some_and(|mark| mark.ahead == known);
            if done > 0 && (marked || context.port.receivable(id) <= known) {
                return Ok((marked || context.is_ended(id)).then_some(()));
            }
            let from = if peek { 0 } else { done };
            match context.take(id, 0, &mut room[from..], flags)? {
                Some(0) => Ok(Some(())),
                Some(bytes) => {
                    done = from + bytes;
                    Ok((done >= wanted).then_some(()))
                }
                None => Ok(None),
            }
        });
        match outcome {
            Err(error) if done == 0 => Err(error),
            _ => Ok(done),
        }
    }

    fn is_ended(&self, id: SocketId) -> bool {
        let over = Readiness::PEER_CLOSED.with(Readiness::CLOSED).with(Readiness::ERROR);
        self.port.readiness(id).intersects(over)
    }

    fn has_failed(&self, id: SocketId) -> bool {
        self.port.readiness(id).intersects(Readiness::ERROR)
    }

    /// Reads once; `None` if there is no data yet.
    fn take(
        &mut self,
        id: SocketId,
        offset: usize,
        room: &mut [u8],
        flags: Flags,
    ) -> io::Result<Option<usize>> {
        match self.take_around_mark(id, offset, room, flags.has(Flags::PEEK)) {
            Ok(bytes) => Ok(Some(bytes)),
            // The socket is not connected yet.
            Err(Error::WouldBlock | Error::NotConnected) => Ok(None),
            Err(error) => {
                // Peeking reports an error only once, too.
                self.port.take_error(id);
                Err(failure(error))
            }
        }
    }

    /// Copies data from `offset` bytes on, where data exists, without taking it (`MSG_PEEK` into
    /// several buffers). Does not wait.
    ///
    /// # Errors
    /// As [`Context::recv`].
    pub fn peek_at(
        &mut self,
        descriptor: Descriptor,
        offset: usize,
        room: &mut [u8],
    ) -> io::Result<usize> {
        let (id, _) = self.stream(descriptor)?.ok_or_else(|| from(libc::EINVAL))?;
        self.take(id, offset, room, Flags::PEEK)?.ok_or_else(|| from(libc::EAGAIN))
    }

    /// Sends data; a blocking socket sends all of it. See write(2).
    ///
    /// # Errors
    /// `EAGAIN`, `EPIPE` (also for a socket that is not connected), `ECONNRESET`, `ETIMEDOUT`,
    /// `EHOSTUNREACH`, `EBADF`, `EINVAL` (an epoll).
    pub fn write(&mut self, descriptor: Descriptor, data: &[u8]) -> io::Result<usize> {
        self.send(descriptor, data, Flags(0))
    }

    /// Like [`Context::write`], with flags. See send(2).
    ///
    /// # Errors
    /// Also `EOPNOTSUPP`: a flag that is not supported.
    pub fn send(&mut self, descriptor: Descriptor, data: &[u8], flags: Flags) -> io::Result<usize> {
        let known = Flags::DONT_WAIT | Flags::OUT_OF_BAND | Flags(HARMLESS);
        if flags.0 & !known.0 != 0 {
            return Err(from(libc::EOPNOTSUPP));
        }
        let Some((id, nonblocking)) = self.stream(descriptor).map_err(cannot_send)? else {
            return self.write_pipe(descriptor, data)?.ok_or_else(|| from(libc::EINVAL));
        };
        let send_flags =
            SendFlags { more: flags.has(Flags::MORE), urgent: flags.has(Flags::OUT_OF_BAND) };
        let shut = self.socket_of(descriptor)?.ended.send;
        let (sent, waits) = match self.try_send((id, shut), data, send_flags) {
            Ok(sent) => (sent, false),
            Err(Error::WouldBlock | Error::NotConnected) => (0, true),
            Err(error) => return Err(failure(error)),
        };
        // A writer that has found no room gets an event when there is room again.
        if (sent < data.len() || !self.port.readiness(id).intersects(Readiness::WRITABLE))
            && let Object::Socket(socket) = &mut self.table.get_mut(descriptor)?.object
        {
            socket.seen = socket.seen.without(Readiness::WRITABLE);
        }
        if sent == data.len() && !waits {
            self.spend(1)?;
            return Ok(sent);
        }
        if nonblocking || flags.has(Flags::DONT_WAIT) {
            self.spend(FRUITLESS_CALLS)?;
            return if sent > 0 { Ok(sent) } else { Err(from(libc::EAGAIN)) };
        }
        let timeout = self.send_timeout(descriptor)?;
        self.write_blocking((id, shut), data, sent, send_flags, timeout)
    }

    /// Sends as much as possible. Before there is a connection the call has to wait, even with no
    /// data, and even if sending was shut down before.
    fn try_send(
        &mut self,
        (id, shut): (SocketId, bool),
        data: &[u8],
        send_flags: SendFlags,
    ) -> Result<usize, Error> {
        if !self.is_decided(id) {
            return Err(Error::WouldBlock);
        }
        if shut && !self.has_failed(id) {
            return Err(Error::Shutdown);
        }
        self.port.send_as(id, data, send_flags)
    }

    fn write_blocking(
        &mut self,
        (id, shut): (SocketId, bool),
        data: &[u8],
        mut sent: usize,
        send_flags: SendFlags,
        timeout: Option<Duration>,
    ) -> io::Result<usize> {
        let outcome = self.block(timeout, |context| {
            if sent > 0 && context.has_failed(id) {
                return Ok(Some(()));
            }
            match context.try_send((id, shut), &data[sent..], send_flags) {
                Ok(bytes) => {
                    sent += bytes;
                    Ok((sent == data.len()).then_some(()))
                }
                Err(Error::WouldBlock | Error::NotConnected) => Ok(None),
                Err(error) => Err(failure(error)),
            }
        });
        match outcome {
            Err(error) if sent == 0 => Err(error),
            _ => Ok(sent),
        }
    }

    /// Reads into several buffers, one after the other. See readv(2).
    ///
    /// # Errors
    /// As [`Context::read`], if nothing was read.
    pub fn readv(
        &mut self,
        descriptor: Descriptor,
        rooms: &mut [IoSliceMut<'_>],
    ) -> io::Result<usize> {
        let mut total = 0;
        for room in rooms.iter_mut().filter(|room| !room.is_empty()) {
            // The end, or an error, after data is left to the next call.
            if total > 0 && !self.has_more(descriptor, 0)? {
                break;
            }
            let bytes = self.read(descriptor, room)?;
            total += bytes;
            if bytes < room.len() {
                break;
            }
        }
        Ok(total)
    }

    /// Writes several buffers, one after the other. See writev(2).
    ///
    /// # Errors
    /// As [`Context::write`], if nothing was written.
    pub fn writev(&mut self, descriptor: Descriptor, data: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut total = 0;
        for part in data.iter().filter(|part| !part.is_empty()) {
            // An error after data is left to the next call.
            if total > 0 && self.readiness(descriptor)?.intersects(Events::ERROR) {
                break;
            }
            match self.write(descriptor, part) {
                Ok(bytes) => {
                    total += bytes;
                    if bytes < part.len() {
                        break;
                    }
                }
                Err(error) if total == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(total)
    }

    /// The connection of a socket and whether it blocks; `None` if the descriptor is not a socket.
    fn stream(&mut self, descriptor: Descriptor) -> io::Result<Option<(SocketId, bool)>> {
        let Object::Socket(socket) = &mut self.table.get_mut(descriptor)?.object else {
            return Ok(None);
        };
        match (socket.phase, socket.id) {
            (Phase::Connected | Phase::Connecting | Phase::Disconnecting, Some(id)) => {
                Ok(Some((id, socket.nonblocking)))
            }
            _ if socket.error != 0 => Err(from(std::mem::take(&mut socket.error))),
            _ => Err(from(libc::ENOTCONN)),
        }
    }

    /// How long reading and accepting block before they fail with `EAGAIN` (`SO_RCVTIMEO`).
    ///
    /// # Errors
    /// `EBADF`, `ENOTSOCK`.
    pub fn receive_timeout(&mut self, descriptor: Descriptor) -> io::Result<Option<Duration>> {
        let extras = self.socket_of(descriptor)?.extras.as_ref();
        Ok(extras.and_then(|extras| extras.receive_timeout))
    }

    /// How long writing blocks before it fails with `EAGAIN`, and connecting before it fails with
    /// `EINPROGRESS` (`SO_SNDTIMEO`).
    ///
    /// # Errors
    /// `EBADF`, `ENOTSOCK`.
    pub fn send_timeout(&mut self, descriptor: Descriptor) -> io::Result<Option<Duration>> {
        let extras = self.socket_of(descriptor)?.extras.as_ref();
        Ok(extras.and_then(|extras| extras.send_timeout))
    }
}
