//! The end of a connection: what is due before this end closes it, so that a good end is one.
//!
//! The kernel makes a reset of a connection that is closed with bytes unread (RFC 1122, 4.2.2.13),
//! and answers bytes for a closed one with a reset. A doorbell is such a byte; so the last process
//! that has the connection first asks for none any more, and takes out those that are on their way.
//! A process that is not the last leaves all that alone: another may sleep for it.
//!
//! An end that closes or shuts the stream goes back to TCP before: what the peer has not taken from
//! the ring is taken back and sent through TCP. So the kernel has all that is still to come, as
//! with plain TCP, and tells the peer of the end, whatever becomes of this process, and wherever
//! the peer hands the connection.

use core::ffi::c_int;
use core::sync::atomic::Ordering;

use super::Connection;
use super::own::{AFTER, BEFORE, INSIDE, ONLY_WARNED, get};
use crate::page;
use crate::sys;

/// How long a closing end waits for room for what it is to send again, in slices.
const LAST_TURNS: u32 = 100;
const SLICE_MS: c_int = 10;
/// How long to wait for a peer that is about to say that it rings no more, in milliseconds.
const LEAVING_TURNS: u32 = 100;
/// How long to wait for a doorbell that is on its way, in milliseconds.
const LAST_DOORBELL_TURNS: u32 = 100;
/// How long to wait for a peer that takes bytes from the ring at this moment, in milliseconds.
const RECALL_TURNS: u32 = 10;

impl Connection {
    /// A child is about to have the connection, too. Called once for each descriptor, with the
    /// number of the fork.
    pub(crate) fn share(&self, fork: u32) {
        if self.shared_at.swap(fork, Ordering::Relaxed) != fork {
            self.own().holders.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Before a descriptor is closed, by whatever call.
    pub(crate) fn before_close(&self, fd: c_int) {
        if self.descriptors.load(Ordering::Relaxed) > 1 {
            self.finish_resending(fd);
        } else {
            self.let_go(fd);
        }
    }

    /// Before this process loses its last descriptor, or ends.
    pub(crate) fn let_go(&self, fd: c_int) {
        // What a leaving peer waits for is to go out first.
        self.finish_resending(fd);
        let own = self.own();
        if !self.holds.swap(false, Ordering::Relaxed) {
            return;
        }
        let was_last = own.holders.fetch_sub(1, Ordering::AcqRel) == 1;
        if !was_last {
            return;
        }
        self.end_outgoing(fd, page::CLOSED);
        if own.asleep.load(Ordering::Acquire) == 0 {
            self.silence(fd);
        }
        // Also if the peer has followed already.
        if !own.has_left() && self.unread_bytes() > 0 {
            // As TCP does for bytes that will not be read (RFC 1122, 4.2.2.13).
            sys::set_linger(fd, libc::linger { l_onoff: 1, l_linger: 0 });
        }
    }

    /// Takes the outgoing direction back to TCP before its end: `how` says to the peer what is to
    /// become of the other one, [`page::RETURNS`], [`page::DRAINS`] or [`page::CLOSED`].
    pub(crate) fn end_outgoing(&self, fd: c_int, how: u32) {
        let own = self.own();
        if let (Some(_reader), Some(_writer)) = (own.reader.take(), own.writer.take())
            && !own.has_left()
            && !own.has_failed()
        {
            if self.is_peer_closed(fd) {
                // What is sent again would hide how a killed peer has ended.
                self.note_end();
            }
            let end = get(&own.written);
            let inside = own.outgoing.load(Ordering::Relaxed) == INSIDE;
            let position = if inside { self.recall(fd, false) } else { end };
            let warning = if how == page::RETURNS { ONLY_WARNED } else { 0 };
            self.give_up_outgoing(fd, how, position, warning);
            self.forbid_incoming();
        }
        crate::epoll::nudge(self);
        self.finish_resending(fd);
    }

    /// A peer that has not gone over to its ring never will.
    pub(super) fn forbid_incoming(&self) {
        let mode = &self.theirs().outgoing.mode;
        let order = (Ordering::AcqRel, Ordering::Acquire);
        if mode.compare_exchange(page::STREAM, page::FORBIDDEN, order.0, order.1).is_ok() {
            self.own().incoming.store(AFTER, Ordering::Relaxed);
        }
    }

    /// Takes back what the peer has not taken from the ring; where that begins. It stays there if
    /// the socket would not take it at once, or the peer was stopped in the middle of taking. Where
    /// the direction `goes_on`, a size that the application has set (SO_SNDBUF) is kept. The caller
    /// holds the writer's lock.
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
        let recalled = &self.mine().outgoing.recalled;
        recalled.store(1, Ordering::SeqCst);
        let incoming = &self.theirs().incoming;
        if !sys::wait_until(RECALL_TURNS, || incoming.taking.load(Ordering::SeqCst) == 0) {
            recalled.store(0, Ordering::SeqCst);
            return end;
        }
        let position = incoming.read.load(Ordering::Acquire);
        if end.wrapping_sub(position) > unread { end } else { position }
    }

    /// Sees to it that no doorbell is in the stream, and none will come.
    fn silence(&self, fd: c_int) {
        let own = self.own();
        self.ask_no_more(&self.mine().incoming.sleeping);
        self.ask_no_more(&self.mine().outgoing.starved);
        let Some(_guard) = own.reader.take() else { return };
        if own.has_left() || own.has_failed() {
            return;
        }
        if own.incoming.load(Ordering::Relaxed) == BEFORE
            && matches!(self.before_ring(fd), Ok(Some(0)))
        {
            own.incoming.store(INSIDE, Ordering::Relaxed);
        }
        let counted = self.theirs().outgoing.doorbells.load(Ordering::Acquire);
        let is_silent =
            counted == get(&own.discarded) && counted == own.asked.load(Ordering::Relaxed);
        if own.incoming.load(Ordering::Relaxed) == INSIDE && !is_silent {
            sys::wait_until(LAST_DOORBELL_TURNS, || self.are_doorbells_out(fd));
        }
    }

    /// Before this end closes or shuts the stream: nothing may come between the bytes that are to
    /// be sent again and its end. Waits at most [`LAST_TURNS`] slices for room, and then the
    /// connection is reset.
    pub(crate) fn finish_resending(&self, fd: c_int) {
        if !matches!(self.progress(fd), Ok(true)) {
            return;
        }
        let theirs = self.theirs();
        if theirs.incoming.leaving.load(Ordering::Acquire) != page::STAYS {
            // A doorbell that comes to a closed socket is answered with a reset.
            sys::wait_until(LEAVING_TURNS, || {
                theirs.outgoing.returned_at.load(Ordering::Acquire) != 0
                    || theirs.outgoing.mode.load(Ordering::Acquire) == page::FORBIDDEN
            });
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
