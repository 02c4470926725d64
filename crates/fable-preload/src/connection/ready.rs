//! Readiness: what poll(2) is to say of a connection.

use core::ffi::c_int;
use core::sync::atomic::Ordering;

use super::Connection;
use super::doorbell::Stream;
use super::own::{AFTER, BEFORE, INSIDE, RESENDING, get};
use crate::sys;

/// What the kernel is asked about a connection, whatever the application wants to know.
pub(crate) const ASKED: i16 = libc::POLLIN | libc::POLLPRI | libc::POLLRDHUP;
const BROKEN: i16 = libc::POLLERR | libc::POLLHUP | libc::POLLNVAL;

impl Connection {
    /// What memory alone says: bytes in the ring, room in the ring, something to do.
    #[inline]
    pub(crate) fn glance(&self) -> i16 {
        let own = self.own();
        let mut events = 0;
        if own.incoming.load(Ordering::Relaxed) == INSIDE
            && self.written_by_peer() != get(&own.read)
        {
            events |= libc::POLLIN;
        }
        if own.outgoing.load(Ordering::Relaxed) == INSIDE && self.has_room() {
            events |= libc::POLLOUT;
        }
        events
    }

    /// Whether both directions are in their rings, so that memory tells all but the end.
    pub(crate) fn is_inside(&self) -> bool {
        let own = self.own();
        own.incoming.load(Ordering::Relaxed) == INSIDE
            && own.outgoing.load(Ordering::Relaxed) == INSIDE
            && self.theirs().outgoing.returned_at.load(Ordering::Relaxed) == 0
            && self.theirs().incoming.leaving.load(Ordering::Relaxed) == crate::page::STAYS
            && !own.has_left()
    }

    /// Whether the peer's end of stream was seen.
    pub(crate) fn has_ended(&self) -> bool {
        self.own().ended.load(Ordering::Relaxed) != 0
    }

    /// Whether what the peer left in the ring waits for room in the socket.
    pub(crate) fn is_resending(&self) -> bool {
        self.own().outgoing.load(Ordering::Relaxed) == RESENDING
    }

    /// Whether the kernel is to be asked for room in the socket.
    pub(crate) fn writes_to_stream(&self) -> bool {
        self.own().outgoing.load(Ordering::Relaxed) != INSIDE
    }

    /// Makes of the kernel's answer, to [`ASKED`] and perhaps POLLOUT, what the application is to
    /// hear. `None`: the descriptor is plain now, and the kernel's answer holds.
    pub(crate) fn translate(&self, fd: c_int, kernel: i16) -> Option<i16> {
        match self.progress(fd) {
            Ok(true) => (),
            Ok(false) => return None,
            Err(_) => return Some(kernel | libc::POLLERR),
        }
        let own = self.own();
        let kernel = self.end_by_memory(fd, kernel);
        let mut events = kernel & (BROKEN | libc::POLLPRI | libc::POLLRDHUP);
        if kernel & (libc::POLLRDHUP | BROKEN) != 0 && self.has_peer_ended(fd) {
            // The kernel may say so only once, and bytes in the ring may still be in front of it.
            self.note_end();
        }
        if own.has_failed() {
            return Some(events | libc::POLLIN | libc::POLLOUT | libc::POLLERR);
        }
        let Some(_guard) = own.reader.take() else { return Some(events) };
        events |= self.readable(fd, kernel);
        let outgoing = own.outgoing.load(Ordering::Relaxed);
        let shut = own.shut_write.load(Ordering::Relaxed) != 0;
        if outgoing != INSIDE || shut || kernel & BROKEN != 0 {
            events |= kernel & libc::POLLOUT;
        } else if self.has_room() {
            events |= libc::POLLOUT;
        }
        if own.ended.load(Ordering::Relaxed) != 0 {
            events |= libc::POLLRDHUP;
        }
        if own.has_error() {
            events |= libc::POLLIN | libc::POLLERR;
        }
        Some(events)
    }

    /// How the kernel would tell of the end of a killed peer if there were no doorbells.
    pub(crate) fn end_by_memory(&self, fd: c_int, kernel: i16) -> i16 {
        let reset = libc::POLLHUP | libc::POLLERR;
        if kernel & (reset | libc::POLLRDHUP) == 0 || !self.has_peer_ended(fd) {
            return kernel;
        }
        let own = self.own();
        let ended = libc::POLLRDHUP | libc::POLLOUT;
        match self.end_of_killed() {
            None if self.is_only_warned() => {
                let is_shut = own.shut_write.load(Ordering::Relaxed) != 0;
                let hidden = if is_shut { libc::POLLERR } else { reset };
                kernel & !hidden | libc::POLLRDHUP
            }
            None => kernel,
            Some(0) if own.late_bytes.load(Ordering::Relaxed) == 0 => {
                kernel & !reset | libc::POLLRDHUP
            }
            // The kernel has the error of the late bytes, until it has told it.
            Some(0) => kernel | libc::POLLHUP | ended,
            // What was noted at the end tells of it, until it is told.
            Some(_) => kernel & !libc::POLLERR | libc::POLLHUP | ended,
        }
    }

    /// POLLIN or nothing. The caller holds the reader's lock.
    fn readable(&self, fd: c_int, kernel: i16) -> i16 {
        let own = self.own();
        if own.incoming.load(Ordering::Relaxed) == BEFORE {
            match self.before_ring(fd) {
                Err(_) => return libc::POLLIN,
                Ok(Some(0)) => own.incoming.store(INSIDE, Ordering::Relaxed),
                Ok(_) => return kernel & libc::POLLIN,
            }
        }
        if own.incoming.load(Ordering::Relaxed) == AFTER {
            return kernel & libc::POLLIN;
        }
        if self.glance() & libc::POLLIN != 0
            || own.shut_read.load(Ordering::Relaxed) != 0
            || own.ended.load(Ordering::Relaxed) != 0
            || kernel & BROKEN != 0
        {
            return libc::POLLIN;
        }
        if self.theirs().outgoing.returned_at.load(Ordering::Acquire) != 0 {
            if self.glance() & libc::POLLIN != 0 {
                return libc::POLLIN;
            }
            return match self.finish_return(fd) {
                Ok(true) => sys::poll_one(fd, libc::POLLIN, 0) & libc::POLLIN,
                _ => 0,
            };
        }
        if kernel & (libc::POLLIN | libc::POLLRDHUP) == 0 {
            return 0;
        }
        match self.discard(fd) {
            Ok(Stream::Open) => self.glance() & libc::POLLIN,
            Ok(Stream::Ended) | Err(_) => libc::POLLIN,
        }
    }

    /// Takes out the doorbells that have done their duty, before this thread sleeps in the kernel.
    pub(crate) fn tidy(&self, fd: c_int) {
        let own = self.own();
        let due = self.theirs().outgoing.doorbells.load(Ordering::Acquire) != get(&own.discarded);
        if due
            && own.incoming.load(Ordering::Relaxed) == INSIDE
            && let Some(_guard) = own.reader.take()
        {
            let returned = self.theirs().outgoing.returned_at.load(Ordering::Acquire) != 0;
            // The end, or an error, is still there for who asks next.
            if !returned {
                let _ = self.discard(fd);
            } else if self.unread_bytes() == 0 {
                let _ = self.finish_return(fd);
            }
        }
    }

    /// Asks the peer to ring for what this end waits for; whether it is there already.
    pub(crate) fn arm(&self, wanted: i16) -> bool {
        if wanted & (libc::POLLIN | libc::POLLRDHUP) != 0 {
            self.ask(&self.mine().incoming.sleeping);
            if self.has_news() {
                return true;
            }
        }
        if wanted & libc::POLLOUT != 0 && !self.writes_to_stream() {
            self.ask(&self.mine().outgoing.starved);
            if self.has_room() {
                return true;
            }
        }
        false
    }

    /// Whether bytes for this end lie in the ring, or may come to lie there.
    pub(crate) fn may_hold_bytes(&self, fd: c_int) -> bool {
        if matches!(self.progress(fd), Ok(false)) {
            return false;
        }
        let own = self.own();
        let Some(_guard) = own.reader.take() else { return true };
        if own.incoming.load(Ordering::Relaxed) == BEFORE
            && matches!(self.before_ring(fd), Ok(Some(0)))
        {
            own.incoming.store(INSIDE, Ordering::Relaxed);
        }
        let has_returned = self.theirs().outgoing.returned_at.load(Ordering::Acquire) != 0;
        if own.incoming.load(Ordering::Relaxed) == INSIDE
            && has_returned
            && self.unread_bytes() == 0
        {
            // What is not out of the way now is there for the next step.
            let _ = self.finish_return(fd);
        }
        own.incoming.load(Ordering::Relaxed) != AFTER
    }

    /// What FIONREAD is to say, when the kernel says that so many bytes lie in the socket.
    pub(crate) fn readable_bytes(&self, fd: c_int, kernel: c_int) -> c_int {
        let own = self.own();
        let Some(_guard) = own.reader.take() else { return kernel };
        let kernel = kernel.max(0) as u64;
        let theirs = &self.theirs().outgoing;
        let before = match own.incoming.load(Ordering::Relaxed) {
            BEFORE => self.before_ring(fd).ok().flatten().unwrap_or(kernel).min(kernel),
            INSIDE => 0,
            _ => return kernel as c_int,
        };
        // Behind the doorbells the stream goes on, if it does.
        let doorbells = theirs.doorbells.load(Ordering::Acquire).wrapping_sub(get(&own.discarded));
        let behind = match theirs.returned_at.load(Ordering::Acquire) {
            0 => 0,
            _ => (kernel - before).saturating_sub(doorbells),
        };
        (before + self.unread_bytes() + behind) as c_int
    }

    /// The bytes that the ring holds for this end.
    pub(crate) fn unread_bytes(&self) -> u64 {
        let unread = self.written_by_peer().wrapping_sub(get(&self.own().read));
        unread.min(self.ring_bytes())
    }

    /// The bytes that the peer has not taken from the ring, for SIOCOUTQ.
    pub(crate) fn unsent_bytes(&self) -> u64 {
        let read = self.theirs().incoming.read.load(Ordering::Acquire);
        get(&self.own().written).wrapping_sub(read).min(self.ring_bytes())
    }
}
