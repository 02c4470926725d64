//! The end of a connection: what is due before this end closes it, so that a good end is one.
//!
//! The kernel makes a reset of a connection that is closed with bytes unread (RFC 1122, 4.2.2.13),
//! and answers bytes for a closed one with a reset. A doorbell is such a byte; so the last process
//! that has the connection first asks for none any more, and takes out those that are on their way.
//! A process that is not the last leaves all that alone: another may sleep for it.

use core::ffi::c_int;
use core::sync::atomic::Ordering;

use super::Connection;
use super::own::{BEFORE, INSIDE, get};
use crate::page;
use crate::sys;

/// How long a closing end waits for room for what it is to send again, in slices.
const LAST_TURNS: u32 = 100;
const SLICE_MS: c_int = 10;
/// How long to wait for a peer that is about to say that it rings no more, in milliseconds.
const LEAVING_TURNS: u32 = 100;
/// How long to wait for a doorbell that is on its way, in milliseconds.
const LAST_DOORBELL_TURNS: u32 = 100;

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
            self.finish_sending(fd);
        } else {
            self.let_go(fd);
        }
    }

    /// Before this process loses its last descriptor, or ends.
    pub(crate) fn let_go(&self, fd: c_int) {
        // What a leaving peer waits for is to go out first.
        self.finish_sending(fd);
        let own = self.own();
        if !self.holds.swap(false, Ordering::Relaxed) {
            return;
        }
        let was_last = own.holders.fetch_sub(1, Ordering::AcqRel) == 1;
        if was_last && own.asleep.load(Ordering::Acquire) == 0 {
            self.silence(fd);
        }
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
    pub(crate) fn finish_sending(&self, fd: c_int) {
        if !matches!(self.progress(fd), Ok(true)) {
            return;
        }
        let theirs = self.theirs();
        if theirs.incoming.leaving.load(Ordering::Acquire) != page::STAYS {
            // A doorbell that comes to a closed socket is answered with a reset.
            sys::wait_until(LEAVING_TURNS, || {
                theirs.outgoing.returned_at.load(Ordering::Acquire) != 0
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

    /// After this end has shut its stream: a peer that left just before that could not be sent
    /// again what it left behind.
    pub(crate) fn end_sending(&self, fd: c_int) {
        if self.owes() && self.unsent_bytes() > 0 {
            self.break_off(fd);
        }
    }
}
