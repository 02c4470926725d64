//! Computes the readiness of a connection, as poll(2) reports it.

use core::ffi::c_int;
use core::sync::atomic::Ordering;

use super::Connection;
use super::doorbell::Stream;
use super::own::{AFTER, BEFORE, INSIDE, RESENDING, get};
use crate::page::{Filled, Leaving};
use crate::sys;

/// The events that the kernel is asked for, whatever the application asks for.
pub(crate) const ASKED: i16 = libc::POLLIN | libc::POLLPRI | libc::POLLRDHUP;
const BROKEN: i16 = libc::POLLERR | libc::POLLHUP | libc::POLLNVAL;

impl Connection {
    /// Returns what the memory alone shows: bytes in the ring, room in the ring, work to do.
    #[inline]
    pub(crate) fn glance(&self) -> i16 {
        let own = self.own();
        let mut events = 0;
        if own.incoming.load(Ordering::Relaxed) == INSIDE && self.has_unread() {
            events |= libc::POLLIN;
        }
        if own.outgoing.load(Ordering::Relaxed) == INSIDE && self.has_room() {
            events |= libc::POLLOUT;
        }
        events
    }

    /// Returns whether both directions are in their rings, so that the memory shows everything but
    /// the end.
    pub(crate) fn is_inside(&self) -> bool {
        let own = self.own();
        own.incoming.load(Ordering::Relaxed) == INSIDE
            && own.outgoing.load(Ordering::Relaxed) == INSIDE
            && !self.theirs().has_returned()
            && self.theirs().leaving() == Leaving::Stays
            && !own.has_left()
    }

    /// Returns whether the peer's end of stream was seen.
    pub(crate) fn has_ended(&self) -> bool {
        self.own().ended.load(Ordering::Relaxed) != 0
    }

    /// Returns whether bytes that the peer left in the ring wait for room in the socket.
    pub(crate) fn is_resending(&self) -> bool {
        self.own().outgoing.load(Ordering::Relaxed) == RESENDING
    }

    /// Returns whether only the kernel knows if there is room to send.
    pub(crate) fn writes_to_stream(&self) -> bool {
        self.own().outgoing.load(Ordering::Relaxed) != INSIDE
    }

    /// Converts the kernel's answer, to [`ASKED`] and perhaps POLLOUT, to the application's events.
    /// `None`: the descriptor is plain now, and the kernel's answer is valid.
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
            // The kernel may report the end only once, and bytes in the ring may precede it.
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

    /// Returns how the kernel would report the end of a killed peer if there were no doorbells.
    pub(crate) fn end_by_memory(&self, fd: c_int, kernel: i16) -> i16 {
        let reset = libc::POLLHUP | libc::POLLERR;
        if kernel & (reset | libc::POLLRDHUP) == 0 || !self.has_peer_ended(fd) {
            return kernel;
        }
        let own = self.own();
        let ended = libc::POLLRDHUP | libc::POLLOUT;
        if kernel & libc::POLLERR != 0 && !self.may_doorbell_reset() {
            return kernel | ended;
        }
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
            // The kernel has the error that the late bytes caused, until a call has reported it.
            Some(0) => kernel | libc::POLLHUP | ended,
            // The error that was recorded at the end is reported by a later call.
            Some(_) => kernel & !libc::POLLERR | libc::POLLHUP | ended,
        }
    }

    /// Returns POLLIN, and POLLRDHUP if the kernel was asked again, or nothing. The caller holds
    /// the reader's lock.
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
        if self.theirs().has_returned() {
            if self.glance() & libc::POLLIN != 0 {
                return libc::POLLIN;
            }
            return match self.finish_return(fd) {
                // The stream may have ended since the kernel was asked.
                Ok(true) => {
                    let asked = libc::POLLIN | libc::POLLRDHUP;
                    sys::poll_one(fd, asked, 0) & asked
                }
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

    /// Removes used doorbells before this thread sleeps in the kernel.
    pub(crate) fn tidy(&self, fd: c_int) {
        let own = self.own();
        let due = self.theirs().doorbells_due(get(&own.discarded));
        if due != Some(0)
            && own.incoming.load(Ordering::Relaxed) == INSIDE
            && let Some(_guard) = own.reader.take()
        {
            let returned = self.theirs().has_returned();
            // The end, or an error, remains for the next call.
            if !returned {
                let _ = self.discard(fd);
            } else if self.unread_bytes() == 0 {
                let _ = self.finish_return(fd);
            }
        }
    }

    /// Asks the peer for a doorbell for the events that this end waits for. Returns whether one of
    /// them has already happened.
    pub(crate) fn arm(&self, wanted: i16) -> bool {
        if wanted & (libc::POLLIN | libc::POLLRDHUP) != 0 {
            self.ask(self.mine().sleeping());
            // The kernel reports the end, whether or not bytes are unread before it.
            let is_hidden = wanted & libc::POLLIN == 0 && self.has_unread();
            let has_news = if is_hidden { self.must_progress() } else { self.has_news() };
            if has_news {
                return true;
            }
        }
        if wanted & libc::POLLOUT != 0 && !self.writes_to_stream() {
            self.ask(self.mine().starved());
            if self.has_room() {
                return true;
            }
        }
        false
    }

    /// Returns whether the ring has, or may get, bytes for this end.
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
        let has_returned = self.theirs().has_returned();
        if own.incoming.load(Ordering::Relaxed) == INSIDE
            && has_returned
            && self.unread_bytes() == 0
        {
            // Doorbells that cannot be removed now are removed in the next step.
            let _ = self.finish_return(fd);
        }
        own.incoming.load(Ordering::Relaxed) != AFTER
    }

    /// Returns the result of FIONREAD, when the kernel reports this many bytes in the socket.
    pub(crate) fn readable_bytes(&self, fd: c_int, kernel: c_int) -> c_int {
        let own = self.own();
        let Some(_guard) = own.reader.take() else { return kernel };
        let kernel = kernel.max(0) as u64;
        let theirs = self.theirs();
        let before = match own.incoming.load(Ordering::Relaxed) {
            BEFORE => self.before_ring(fd).ok().flatten().unwrap_or(kernel).min(kernel),
            INSIDE => 0,
            _ => return kernel as c_int,
        };
        // After the doorbells, the stream continues if the direction has returned.
        let doorbells = theirs.doorbells_due(get(&own.discarded)).unwrap_or(kernel);
        let behind =
            if theirs.has_returned() { (kernel - before).saturating_sub(doorbells) } else { 0 };
        (before + self.unread_bytes() + behind) as c_int
    }

    /// Returns whether the peer says that the ring holds bytes for this end.
    #[inline]
    pub(super) fn has_unread(&self) -> bool {
        self.theirs().filled(get(&self.own().read), self.ring_bytes()) != Filled::Bytes(0)
    }

    /// Returns how many bytes of the ring this end has not read.
    pub(crate) fn unread_bytes(&self) -> u64 {
        match self.theirs().filled(get(&self.own().read), self.ring_bytes()) {
            Filled::Bytes(bytes) => bytes,
            Filled::Impossible => self.ring_bytes(),
        }
    }

    /// Returns how many bytes the peer has not taken from the ring, for SIOCOUTQ.
    pub(crate) fn unsent_bytes(&self) -> u64 {
        let untaken = self.theirs().untaken(get(&self.own().written), self.ring_bytes());
        untaken.unwrap_or(self.ring_bytes())
    }
}
