//! Closes or shuts down a connection so that the peer sees the same end as with plain TCP.
//!
//! If a connection is closed with unread bytes, the kernel resets it (RFC 1122, 4.2.2.13), and it
//! answers bytes for a closed connection with a reset. A doorbell is such a byte. The last process
//! that has the connection therefore first stops asking for doorbells, and removes those in flight
//! from the stream. Other processes do not do this, because another process may wait for a
//! doorbell.
//!
//! Before an end closes or shuts down the stream, its outgoing direction returns to TCP: bytes that
//! the peer has not taken from the ring are sent through TCP. The kernel then has all remaining
//! bytes, as with plain TCP. It delivers them and the end of the stream even if this process ends,
//! and to whichever process the peer passes the connection.

use core::ffi::c_int;
use core::sync::atomic::Ordering;

use super::own::{AFTER, BEFORE, INSIDE, ONLY_WARNED, get};
use super::{Change, Connection};
use crate::page::Leaving;
use crate::sys;

/// The longest wait of a closing end for room for the bytes to send again, in slices.
const LAST_TURNS: u32 = 100;
const SLICE_MS: c_int = 10;
/// The longest wait for a peer that is about to publish that it sends no more doorbells, in
/// milliseconds.
const LEAVING_TURNS: u32 = 100;
/// The longest wait for a doorbell that is in flight, in milliseconds.
const LAST_DOORBELL_TURNS: u32 = 100;
/// The longest wait for a peer that is taking bytes from the ring, in milliseconds.
const RECALL_TURNS: u32 = 10;

impl Connection {
    /// Called before a fork: the child will have the connection too. Called once for each
    /// descriptor, with the number of the fork.
    pub(crate) fn share(&self, fork: u32) {
        if self.shared_at.swap(fork, Ordering::Relaxed) != fork {
            self.own().holders.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Called before any call closes a descriptor.
    pub(crate) fn before_close(&self, fd: c_int) {
        if self.descriptors.load(Ordering::Relaxed) > 1 {
            self.finish_resending(fd);
        } else {
            self.let_go(fd);
        }
    }

    /// Called before this process loses its last descriptor, or ends.
    pub(crate) fn let_go(&self, fd: c_int) {
        // First send the bytes that a leaving peer waits for.
        self.finish_resending(fd);
        let own = self.own();
        if !self.holds.swap(false, Ordering::Relaxed) {
            return;
        }
        let was_last = own.holders.fetch_sub(1, Ordering::AcqRel) == 1;
        if !was_last {
            return;
        }
        self.end_outgoing(fd, Leaving::Closed);
        if own.asleep.load(Ordering::Acquire) == 0 {
            self.silence(fd);
        }
        // Even if the peer has already followed.
        if !own.has_left() && self.unread_bytes() > 0 {
            // As TCP does for bytes that will not be read (RFC 1122, 4.2.2.13).
            sys::set_linger(fd, libc::linger { l_onoff: 1, l_linger: 0 });
        }
    }

    /// Takes the outgoing direction back to TCP before its end. `how` tells the peer what happens
    /// to the other direction: [`Leaving::Returns`], [`Leaving::Drains`] or [`Leaving::Closed`].
    pub(crate) fn end_outgoing(&self, fd: c_int, how: Leaving) {
        let own = self.own();
        if let (Some(_reader), Some(_writer)) = (own.reader.take(), own.writer.take())
            && !own.has_left()
            && !own.has_failed()
        {
            if self.is_peer_closed(fd) {
                // Sending bytes again would hide how a killed peer has ended.
                self.note_end();
            }
            let end = get(&own.written);
            let inside = own.outgoing.load(Ordering::Relaxed) == INSIDE;
            let position = if inside { self.recall(fd, false) } else { end };
            let warning = if how == Leaving::Returns { ONLY_WARNED } else { 0 };
            self.give_up_outgoing(fd, how, position, warning);
            self.forbid_incoming();
        }
        self.notify_watchers(Change::Readiness);
        self.finish_resending(fd);
    }

    /// Prevents a peer that has not switched to its ring from doing so.
    pub(super) fn forbid_incoming(&self) {
        if self.theirs().forbid() {
            self.own().incoming.store(AFTER, Ordering::Relaxed);
        }
    }

    /// Takes back the bytes that the peer has not taken from the ring, and returns the position
    /// where they begin. The bytes stay in the ring if the socket would not take them at once, or
    /// the peer was stopped while it was taking bytes. If the direction `goes_on`, a size that the
    /// application has set (SO_SNDBUF) is kept. The caller holds the writer's lock.
    pub(super) fn recall(&self, fd: c_int, goes_on: bool) -> u64 {
        let end = get(&self.own().written);
        if self.room(fd).is_err() {
            return end;
        }
        let unread = self.unsent_bytes();
        let is_set = self.own().send_bytes.load(Ordering::Relaxed) != 0;
        let widened = if goes_on && is_set { 0 } else { self.ring_bytes() };
        if unread == 0 || !sys::make_send_room(fd, unread, widened) {
            return end;
        }
        self.mine().set_recalled(true);
        if !sys::wait_until(RECALL_TURNS, || !self.theirs().is_taking()) {
            self.mine().set_recalled(false);
            return end;
        }
        match self.theirs().untaken(end, unread) {
            Some(untaken) => end.wrapping_sub(untaken),
            None => end,
        }
    }

    /// Makes sure that no doorbell is in the stream and that none will arrive.
    fn silence(&self, fd: c_int) {
        let own = self.own();
        self.ask_no_more(self.mine().sleeping());
        self.ask_no_more(self.mine().starved());
        let Some(_guard) = own.reader.take() else { return };
        if own.has_left() || own.has_failed() {
            return;
        }
        if own.incoming.load(Ordering::Relaxed) == BEFORE
            && matches!(self.before_ring(fd), Ok(Some(0)))
        {
            own.incoming.store(INSIDE, Ordering::Relaxed);
        }
        let discarded = get(&own.discarded);
        let is_silent = self.theirs().doorbells_due(discarded) == Some(0)
            && discarded == own.asked.load(Ordering::Relaxed);
        if own.incoming.load(Ordering::Relaxed) == INSIDE && !is_silent {
            sys::wait_until(LAST_DOORBELL_TURNS, || self.are_doorbells_out(fd));
        }
    }

    /// Called before this end closes or shuts down the stream: waits until all bytes that have to
    /// be sent again are sent, because nothing may come between them and the end. Waits at most
    /// [`LAST_TURNS`] slices for room; then the connection is reset.
    pub(crate) fn finish_resending(&self, fd: c_int) {
        if !matches!(self.progress(fd), Ok(true)) {
            return;
        }
        let theirs = self.theirs();
        if theirs.leaving() != Leaving::Stays {
            // The kernel answers a doorbell for a closed socket with a reset.
            sys::wait_until(LEAVING_TURNS, || theirs.has_returned() || theirs.is_forbidden());
        }
        if !self.is_resending() {
            return;
        }
        sys::widen_send_buffer(fd, self.ring_bytes());
        for _ in 0..LAST_TURNS {
            if self.resend(fd).is_err() || !self.is_resending() {
                return;
            }
            sys::poll_one(fd, libc::POLLOUT, SLICE_MS);
        }
        self.break_off(fd);
    }
}
