//! Closes sockets that linger, and shuts down listeners.

use super::errors::from;
use super::events::Events;
use super::{Context, Descriptor, Object, Phase};
use mtcp_proto::{Shutdown, SocketId};
use std::io;
use std::time::{Duration, Instant};

/// Computes how long a lingering caller sleeps until its next check: acknowledgements cause no
/// event.
#[derive(Debug, Default)]
pub struct Linger {
    last: Duration,
}

impl Linger {
    const LONGEST: Duration = Duration::from_millis(16);

    /// The next sleep, at most the time that is left.
    pub fn next(&mut self, left: Duration) -> Duration {
        self.last = (2 * self.last).clamp(Duration::from_millis(1), Linger::LONGEST);
        self.last.min(left)
    }
}

impl Context {
    /// Ends sending on a socket whose SO_LINGER makes [`Context::close`] wait, and returns for how
    /// long. The caller can then wait by itself until [`Context::has_lingered`], and close
    /// afterwards, which no longer waits. `None`: there is nothing to wait for.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn begin_to_linger(&mut self, descriptor: Descriptor) -> io::Result<Option<Duration>> {
        let Object::Socket(socket) = &mut self.table.get_mut(descriptor)?.object else {
            return Ok(None);
        };
        let (Phase::Connected | Phase::Connecting, Some(id)) = (socket.phase, socket.id) else {
            return Ok(None);
        };
        let Some(extras) = socket.extras.as_mut() else { return Ok(None) };
        let Some(time) = extras.linger.filter(|time| *time > Duration::ZERO) else {
            return Ok(None);
        };
        extras.linger = None;
        // Unread data makes the close a reset, which does not wait.
        let waits = self.port.receivable(id) == 0 && self.port.shutdown(id, Shutdown::Send).is_ok();
        Ok(waits.then_some(time))
    }

    /// Waits until [`Context::has_lingered`], at most `time`.
    ///
    /// # Errors
    /// `EAGAIN` if the time is over; the errors of the device.
    pub(super) fn linger(&mut self, descriptor: Descriptor, time: Duration) -> io::Result<()> {
        let end = Instant::now().checked_add(time);
        let mut step = Linger::default();
        loop {
            let left = end.map_or(time, |end| end.saturating_duration_since(Instant::now()));
            let looked = self.block(Some(step.next(left)), |context| {
                Ok(context.has_lingered(descriptor).then_some(()))
            });
            match looked {
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) && !left.is_zero() => {}
                done => return done,
            }
        }
    }

    /// Whether all written data is acknowledged, or can no longer be.
    pub fn has_lingered(&mut self, descriptor: Descriptor) -> bool {
        let Ok(socket) = self.socket_of(descriptor) else { return true };
        let Some(id) = socket.id else { return true };
        self.port.info(id).map_or(true, |info| info.send_queue == 0)
    }

    /// A number that each call of [`Context::shutdown`] changes, whatever its result, because in
    /// the kernel a shutdown wakes all threads that wait on the socket.
    ///
    /// # Errors
    /// `EBADF`, `ENOTSOCK`.
    pub fn shutdowns(&mut self, descriptor: Descriptor) -> io::Result<u8> {
        Ok(self.socket_of(descriptor)?.shutdowns)
    }

    /// Shuts down a listener: if its receiving side is shut down, it no longer listens, keeps its
    /// address, and resets the connections in its queue. A shutdown of its sending side has no
    /// effect.
    pub(super) fn shut_listener(
        &mut self,
        descriptor: Descriptor,
        id: SocketId,
        how: Shutdown,
    ) -> io::Result<()> {
        if how == Shutdown::Send {
            // The kernel wakes watching epolls nevertheless.
            self.notify(descriptor, Events(u32::MAX));
            return Ok(());
        }
        self.port.close(id);
        let socket = self.socket_of(descriptor)?;
        socket.id = None;
        socket.phase = Phase::Fresh;
        let Some(place) = self.places.get_mut(id.index as usize) else {
            return Err(from(libc::EBADF));
        };
        *place = super::epoll::NONE;
        let ready = self.ready(descriptor)?;
        self.notify(descriptor, ready | Events::IN);
        self.spend(1)
    }
}
