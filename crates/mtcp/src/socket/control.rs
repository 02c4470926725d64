//! Implements non-blocking mode, readiness queries, and the requests of ioctl(2).

use super::errors::{failure, from};
use super::{Context, Descriptor, Events, Object, Phase};
use std::io;

/// The request whether the next byte is the urgent one (asm-generic/sockios.h).
pub const SIOCATMARK: u64 = 0x8905;

impl Context {
    /// Sets whether calls on the socket return instead of blocking (`O_NONBLOCK`). Ends of pipes
    /// never block.
    ///
    /// # Errors
    /// `EBADF`, `EINVAL` (an epoll).
    pub fn set_nonblocking(&mut self, descriptor: Descriptor, on: bool) -> io::Result<()> {
        match &mut self.table.get_mut(descriptor)?.object {
            Object::Socket(socket) => socket.nonblocking = on,
            Object::Pipe(..) => {}
            Object::Epoll(_) => return Err(from(libc::EINVAL)),
        }
        Ok(())
    }

    /// Whether calls on the socket return instead of blocking.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn is_nonblocking(&self, descriptor: Descriptor) -> io::Result<bool> {
        Ok(match &self.table.get(descriptor)?.object {
            Object::Socket(socket) => socket.nonblocking,
            Object::Pipe(..) => true,
            Object::Epoll(_) => false,
        })
    }

    /// The present readiness of the descriptor in the bits of poll(2), without running the stack.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn readiness(&mut self, descriptor: Descriptor) -> io::Result<Events> {
        self.ready(descriptor)
    }

    /// Whether the stream has ended after the readable data, so that reading does not wait.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn has_ended(&mut self, descriptor: Descriptor) -> io::Result<bool> {
        let over = Events::ERROR | Events::HANG_UP | Events::READ_HANG_UP;
        Ok(self.ready(descriptor)?.intersects(over))
    }

    /// Bytes that can be read now (`FIONREAD`).
    ///
    /// # Errors
    /// `EBADF`, `ENOTSOCK`, `EINVAL` (listens).
    pub fn readable_bytes(&mut self, descriptor: Descriptor) -> io::Result<usize> {
        let socket = self.socket_of(descriptor)?;
        match (socket.phase, socket.id) {
            (Phase::Listening, _) => Err(from(libc::EINVAL)),
            (_, Some(id)) => Ok(self.readable_before_mark(id)),
            (_, None) => Ok(0),
        }
    }

    /// Bytes that were written and are not acknowledged (`TIOCOUTQ`).
    ///
    /// # Errors
    /// `EBADF`, `ENOTSOCK`, `EINVAL` (listens).
    pub fn unsent_bytes(&mut self, descriptor: Descriptor) -> io::Result<usize> {
        let socket = self.socket_of(descriptor)?;
        match (socket.phase, socket.id) {
            (Phase::Listening, _) => Err(from(libc::EINVAL)),
            (_, Some(id)) => {
                self.port.info(id).map(|info| info.send_queue as usize).map_err(failure)
            }
            (_, None) => Ok(0),
        }
    }

    /// Handles `FIONREAD`, `TIOCOUTQ`, `SIOCATMARK` and `FIONBIO` in the format of ioctl(2).
    ///
    /// # Errors
    /// `ENOTTY` (another request), and the errors of the calls above.
    pub fn ioctl(
        &mut self,
        descriptor: Descriptor,
        request: u64,
        argument: &mut i32,
    ) -> io::Result<()> {
        let count = match request {
            libc::FIONREAD => self.readable_bytes(descriptor)?,
            libc::TIOCOUTQ => self.unsent_bytes(descriptor)?,
            SIOCATMARK => usize::from(self.is_at_mark(descriptor)?),
            libc::FIONBIO => return self.set_nonblocking(descriptor, *argument != 0),
            _ => {
                self.table.get(descriptor)?;
                return Err(from(libc::ENOTTY));
            }
        };
        *argument = i32::try_from(count).unwrap_or(i32::MAX);
        Ok(())
    }
}
