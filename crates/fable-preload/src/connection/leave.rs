//! Returns an open connection permanently to plain TCP.
//!
//! There are two ways. An end that only has to send something that a ring cannot carry *withdraws*:
//! it sends through TCP from now on, and still reads everything that the peer has written into the
//! ring, even if the peer ends.
//!
//! An end that can no longer read the memory *leaves*, because the descriptor goes to another
//! program or process, or is read without the library. It stops taking from its incoming ring at a
//! position that it publishes in the page, and the peer sends the bytes after that position through
//! TCP, before anything else. Afterwards the descriptor needs nothing of this process: any program
//! finds the exact stream. Only the peer can put bytes into its stream. If it cannot, because it is
//! dead or has shut its side down, or dies before it has done so, the connection is reset. A stream
//! with a regular end is therefore complete.

use core::ffi::c_int;
use core::sync::atomic::{Ordering, fence};

use super::own::{AFTER, BEFORE, INSIDE, ONLY_WARNED, RESENDING, WARNED, get};
use super::{Change, Connection};
use crate::page::Leaving;
use crate::statistics::{self, Why};
use crate::sys::{self, Errno, Result};

/// The longest wait for a peer that has bytes to send again, in milliseconds.
const PEER_TURNS: u32 = 1_000;
/// The longest wait for a doorbell that is in flight, in milliseconds.
const DOORBELL_TURNS: u32 = 1_000;

impl Connection {
    /// Sends through TCP from now on, because a ring cannot carry the next bytes.
    ///
    /// # Errors
    /// EAGAIN, if a peer that has left has not yet taken the earlier bytes.
    pub(crate) fn withdraw(&self, fd: c_int, why: Why) -> Result<()> {
        let _keep = sys::KeepErrno::new();
        if !self.progress(fd)? {
            return Ok(());
        }
        let own = self.own();
        if own.outgoing.load(Ordering::Relaxed) == BEFORE {
            self.leave(fd, why);
            return Ok(());
        }
        if let (Some(_reader), Some(_writer)) = (own.reader.take(), own.writer.take())
            && own.outgoing.load(Ordering::Relaxed) == INSIDE
            && !self.has_met_end(fd)
        {
            statistics::count(why);
            let position = self.recall(fd, true);
            let shut = own.shut_read.load(Ordering::Relaxed) != 0;
            let how = if shut { Leaving::Drains } else { Leaving::Returns };
            // An end that sets an option may leave before the peer has followed.
            let warning = match why {
                Why::Option => ONLY_WARNED,
                _ => WARNED,
            };
            self.give_up_outgoing(fd, how, position, warning);
            self.forbid_incoming();
        }
        if !matches!(why, Why::Option) {
            let order = (Ordering::Relaxed, Ordering::Relaxed);
            let _ = own.warned.compare_exchange(ONLY_WARNED, WARNED, order.0, order.1);
        }
        if let Some(errno) = own.take_error() {
            return Err(errno);
        }
        self.notify_watchers(Change::Readiness);
        let turns = if matches!(why, Why::Option) { 1 } else { PEER_TURNS };
        for _ in 0..turns {
            if !self.is_resending() {
                return Ok(());
            }
            self.resend(fd)?;
            sys::poll_one(fd, libc::POLLOUT, 1);
        }
        Err(Errno(libc::EAGAIN))
    }

    /// Leaves: returns to TCP, because this end will not read the memory any more.
    pub(crate) fn leave(&self, fd: c_int, why: Why) {
        let _keep = sys::KeepErrno::new();
        let own = self.own();
        // Completes an acceptance that was not seen yet: a sleeping peer can be woken only while
        // this end uses the ring.
        let _ = self.progress(fd);
        if let (Some(_reader), Some(_writer)) = (own.reader.take(), own.writer.take())
            && !own.has_left()
        {
            if !self.has_met_end(fd) {
                self.leave_locked(fd, why);
            }
            if own.has_error() && !own.has_failed() {
                // The kernel has already reported the error here, and would not report it to the
                // descriptor's next user.
                self.break_off(fd);
            }
            own.set_left();
        }
        self.become_plain(fd);
    }

    /// Returns whether there is an error to report, including that of a peer that was killed with
    /// unread bytes; sending bytes again would hide it.
    fn has_met_end(&self, fd: c_int) -> bool {
        if self.is_peer_closed(fd) {
            self.note_end();
        }
        self.own().has_error()
    }

    fn leave_locked(&self, fd: c_int, why: Why) {
        if self.page().standing.revoke() {
            statistics::count(Why::NotTaken);
            return;
        }
        statistics::count(why);
        let was_inside = self.own().outgoing.load(Ordering::Relaxed) == INSIDE;
        self.ask_no_more(self.mine().sleeping());
        self.ask_no_more(self.mine().starved());
        // If the peer leaves too, neither end could later send again what the other had not read.
        let position = if was_inside { self.recall(fd, true) } else { get(&self.own().written) };
        self.give_up_outgoing(fd, Leaving::Leaves, position, WARNED);
        if !self.theirs().forbid() {
            self.take_out_doorbells(fd);
        }
        if !self.own().has_failed() && !self.await_peer_position(fd, was_inside) {
            self.break_off(fd);
        }
    }

    /// Sends only through TCP from now on, first the bytes that this end has put into the ring
    /// after a position. With a `warning`, a last doorbell is sent to the peer. The peer keeps it
    /// in its stream until it has begun to send again what this end leaves in its ring. If the peer
    /// dies before that, the connection is reset.
    pub(super) fn give_up_outgoing(&self, fd: c_int, how: Leaving, position: u64, warning: u32) {
        let own = self.own();
        let (mine, theirs) = (self.mine(), self.theirs());
        mine.set_leaving(how);
        if own.outgoing.load(Ordering::Relaxed) != INSIDE {
            if own.outgoing.load(Ordering::Relaxed) == BEFORE {
                mine.stay_in_stream();
            }
            if own.outgoing.load(Ordering::Relaxed) != RESENDING {
                own.outgoing.store(AFTER, Ordering::Relaxed);
            }
            fence(Ordering::SeqCst);
            return;
        }
        // The kernel answers a doorbell for a closed peer with a reset.
        let closed = self.is_peer_closed(fd);
        if !closed {
            // Wakes a peer that may sleep; no doorbell follows afterwards.
            self.ring(fd, theirs.sleeping());
            self.ring(fd, theirs.starved());
        }
        // A peer that leaves at the same time does not expect a doorbell that it did not ask for.
        let stays = theirs.leaving() == Leaving::Stays;
        // With nothing unread the peer has nothing to send again: its next write shows it that this
        // end has left.
        if warning != 0 && stays && !closed && self.unread_bytes() > 0 {
            self.ring_now(fd);
            own.warned.store(warning, Ordering::Relaxed);
        }
        // Doorbells that find no room follow the bytes that the peer still has to read, before any
        // byte that goes through TCP.
        self.send_again_from(fd, position);
        self.resend_locked(fd);
        fence(Ordering::SeqCst);
    }

    /// Returns whether the peer has not followed, and had read everything except the doorbell that
    /// warns it. If it was killed, the reset is caused by that doorbell.
    pub(super) fn is_only_warned(&self) -> bool {
        let own = self.own();
        let theirs = self.theirs();
        own.warned.load(Ordering::Relaxed) == ONLY_WARNED
            && !theirs.has_returned()
            && theirs.leaving() == Leaving::Stays
            && self.unsent_bytes() == 0
            && get(&own.sent) == get(&own.switched_at)
    }

    /// Waits for the doorbells that will still arrive, which could not be removed later.
    fn take_out_doorbells(&self, fd: c_int) {
        let own = self.own();
        let incoming = own.incoming.load(Ordering::Relaxed);
        if incoming == AFTER {
            return;
        }
        if incoming == BEFORE && !matches!(self.before_ring(fd), Ok(Some(0))) {
            // Bytes of the application precede doorbells, which could then never be removed.
            if own.asked.load(Ordering::Relaxed) > 0 {
                self.break_off(fd);
            }
            return;
        }
        own.incoming.store(INSIDE, Ordering::Relaxed);
        let out = sys::wait_until(DOORBELL_TURNS, || self.are_doorbells_out(fd));
        if !out {
            self.break_off(fd);
        }
    }

    /// Waits until the peer knows what to send again. Returns `false` if it never will. If the peer
    /// leaves too, each end sends again what the other did not take. Does not wait for a slow peer
    /// that was warned: it sends again before anything else, or its end is a reset.
    fn await_peer_position(&self, fd: c_int, was_inside: bool) -> bool {
        let own = self.own();
        let theirs = self.theirs();
        let mut answered = false;
        let is_known = || self.unread_bytes() == 0 || theirs.has_returned_at(get(&own.read));
        for _ in 0..PEER_TURNS {
            // Reads first the stream, then the page: a peer publishes what it will do before it
            // ends its stream.
            let ended = self.has_peer_ended(fd);
            let leaving = theirs.leaving();
            if !answered && leaving == Leaving::Leaves {
                answered = true;
                // After bytes that went through TCP since then, a byte sent again would be in the
                // wrong place.
                if was_inside {
                    self.answer(fd);
                }
            }
            self.resend_locked(fd);
            if is_known() && !self.is_resending() {
                return true;
            }
            let elsewhere = theirs.has_returned();
            if !is_known() && (ended || (elsewhere && leaving != Leaving::Leaves)) {
                return is_known() && !self.is_resending();
            }
            sys::nap(1);
        }
        let unanswered = !theirs.has_returned();
        let warned = own.warned.load(Ordering::Relaxed) != 0;
        warned && unanswered && !answered && !self.is_resending()
    }

    /// Handles a peer that leaves too: sends again what the peer did not take from the ring, if
    /// this end used the ring.
    fn answer(&self, fd: c_int) {
        let Ok(untaken) = self.untaken(fd) else { return };
        let read = get(&self.own().written).wrapping_sub(untaken);
        if get(&self.own().returned_at) == read {
            // No byte is left, or the rest is being sent again already.
            return;
        }
        self.send_again_from(fd, read);
    }

    /// Resets the connection; both ends see that.
    pub(super) fn break_off(&self, fd: c_int) {
        statistics::count(Why::Crossed);
        self.own().fail();
        sys::reset(fd);
    }
}
