//! The way out: back to plain TCP in mid-connection, for good.
//!
//! There are two ways. Who only wants to send something that a ring cannot carry *withdraws*: its
//! own bytes go through TCP from now on, and what the peer has written it still reads from memory,
//! to the end, whatever becomes of the peer.
//!
//! Who cannot look at memory any more *leaves* (the descriptor goes to another program or process,
//! or is read behind our back): it stops taking from its incoming ring at a position that is in the
//! page, and the peer sends what lies behind it through TCP, before anything else. Afterwards
//! nothing of this process is needed for the descriptor: whoever has it finds the exact stream.
//! Only the peer can put bytes into its stream; so where it cannot any more, because it is dead or
//! has shut its side, or dies before it has done so, the connection is reset. A stream that ends
//! well is whole.

use core::ffi::c_int;
use core::sync::atomic::{Ordering, fence};

use super::Connection;
use super::own::{AFTER, BEFORE, INSIDE, ONLY_WARNED, RESENDING, WARNED, get};
use crate::page;
use crate::statistics::{self, Why};
use crate::sys::{self, Errno, Result};

/// How long to wait for a peer that has something to send again, in milliseconds.
const PEER_TURNS: u32 = 1_000;
/// How long to wait for a doorbell that is on its way, in milliseconds.
const DOORBELL_TURNS: u32 = 1_000;

impl Connection {
    /// Sends through TCP from now on, because of something that a ring cannot carry.
    ///
    /// # Errors
    /// EAGAIN, if a peer that left has not yet taken what comes before.
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
            let how = if shut { page::DRAINS } else { page::RETURNS };
            // Who sets an option may leave before the peer has followed.
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
        crate::epoll::nudge(self);
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

    /// Goes back to TCP, because memory will not be looked at any more.
    pub(crate) fn leave(&self, fd: c_int, why: Why) {
        let _keep = sys::KeepErrno::new();
        let own = self.own();
        // An acceptance that was not seen yet: only from the ring's side can a sleeping peer be
        // woken.
        let _ = self.progress(fd);
        if let (Some(_reader), Some(_writer)) = (own.reader.take(), own.writer.take())
            && !own.has_left()
        {
            if !self.has_met_end(fd) {
                self.leave_locked(fd, why);
            }
            if own.has_error() && !own.has_failed() {
                // The kernel has told it to us, and would not tell whoever has the descriptor.
                self.break_off(fd);
            }
            own.set_left();
        }
        self.become_plain(fd);
    }

    /// Whether there is an error to tell, also that of a peer that was killed with bytes unread,
    /// which bytes sent again would hide.
    fn has_met_end(&self, fd: c_int) -> bool {
        if self.is_peer_closed(fd) {
            self.note_end();
        }
        self.own().has_error()
    }

    fn leave_locked(&self, fd: c_int, why: Why) {
        let standing = &self.page().standing;
        let order = (Ordering::AcqRel, Ordering::Acquire);
        let revoked = standing.compare_exchange(page::OFFERED, page::REVOKED, order.0, order.1);
        if revoked.is_ok() {
            statistics::count(Why::NotTaken);
            return;
        }
        statistics::count(why);
        let was_inside = self.own().outgoing.load(Ordering::Relaxed) == INSIDE;
        self.ask_no_more(&self.mine().incoming.sleeping);
        self.ask_no_more(&self.mine().outgoing.starved);
        // If the peer leaves, too, neither end could later send again what it had not read.
        let position = if was_inside { self.recall(fd, true) } else { get(&self.own().written) };
        self.give_up_outgoing(fd, page::LEAVES, position, WARNED);
        let mode = &self.theirs().outgoing.mode;
        let forbidden = mode.compare_exchange(page::STREAM, page::FORBIDDEN, order.0, order.1);
        if forbidden.is_err() {
            self.take_out_doorbells(fd);
        }
        if !self.own().has_failed() && !self.settle(fd, was_inside) {
            self.break_off(fd);
        }
    }

    /// From here on this end sends through TCP only, first what it has put into the ring behind a
    /// position. With a `warning`, a last doorbell lies at the peer, which keeps it until it has
    /// begun to send again what this end leaves behind: so its death before that resets the
    /// connection.
    pub(super) fn give_up_outgoing(&self, fd: c_int, how: u32, position: u64, warning: u32) {
        let own = self.own();
        let (mine, theirs) = (self.mine(), self.theirs());
        mine.incoming.leaving.store(how, Ordering::SeqCst);
        if own.outgoing.load(Ordering::Relaxed) != INSIDE {
            if own.outgoing.load(Ordering::Relaxed) == BEFORE {
                mine.outgoing.mode.store(page::FORBIDDEN, Ordering::Release);
            }
            if own.outgoing.load(Ordering::Relaxed) != RESENDING {
                own.outgoing.store(AFTER, Ordering::Relaxed);
            }
            fence(Ordering::SeqCst);
            return;
        }
        // The kernel answers a doorbell for a peer that has gone with a reset.
        let closed = self.is_peer_closed(fd);
        if !closed {
            // The peer may sleep, and is to come and see; afterwards no doorbell follows.
            self.ring(fd, &theirs.incoming.sleeping);
            self.ring(fd, &theirs.outgoing.starved);
        }
        // A peer that leaves at the same time does not expect what it did not ask for.
        let stays = theirs.incoming.leaving.load(Ordering::SeqCst) == page::STAYS;
        // With nothing unread, the peer has nothing to send again: it sees in its next write that
        // this end has left.
        fence(Ordering::SeqCst);
        if warning != 0 && stays && !closed && self.unread_bytes() > 0 {
            self.ring_now(fd);
            own.warned.store(warning, Ordering::Relaxed);
        }
        // Doorbells that find no room come behind what the peer has still to read, before anything
        // that goes through TCP.
        self.send_again_from(fd, position);
        self.resend_locked(fd);
        fence(Ordering::SeqCst);
    }

    /// Whether the peer has not followed, and had read all but the doorbell that warns it: if it
    /// was killed, the reset is the doorbell's.
    pub(super) fn is_only_warned(&self) -> bool {
        let own = self.own();
        let theirs = self.theirs();
        own.warned.load(Ordering::Relaxed) == ONLY_WARNED
            && theirs.outgoing.returned_at.load(Ordering::Acquire) == 0
            && theirs.incoming.leaving.load(Ordering::Acquire) == page::STAYS
            && self.unsent_bytes() == 0
            && get(&own.sent) + 1 == self.mine().outgoing.switch_at.load(Ordering::Relaxed)
    }

    /// Waits for the doorbells that are still to come, which could not be taken out later.
    fn take_out_doorbells(&self, fd: c_int) {
        let own = self.own();
        let incoming = own.incoming.load(Ordering::Relaxed);
        if incoming == AFTER {
            return;
        }
        if incoming == BEFORE && !matches!(self.before_ring(fd), Ok(Some(0))) {
            // Bytes of the application are in front of doorbells: these could never be taken out.
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

    /// Waits until the peer knows what to send again; `false` if it never will. If the peer leaves,
    /// too, each sends again what the other did not take. A peer that is only slow, and was warned,
    /// is not waited for: it sends again before anything else, or its end is a reset.
    fn settle(&self, fd: c_int, was_inside: bool) -> bool {
        let own = self.own();
        let theirs = self.theirs();
        let mut answered = false;
        let is_known = || {
            let acknowledged = get(&own.read).wrapping_add(1).max(1);
            let returned_at = theirs.outgoing.returned_at.load(Ordering::Acquire);
            self.unread_bytes() == 0 || returned_at == acknowledged
        };
        for _ in 0..PEER_TURNS {
            // First the stream, then the page: who ends its stream has said before what it will do.
            let ended = self.has_peer_ended(fd);
            let leaving = theirs.incoming.leaving.load(Ordering::SeqCst);
            if !answered && leaving == page::LEAVES {
                answered = true;
                // Behind bytes that went through TCP since, nothing could be in its place.
                if was_inside {
                    self.answer(fd);
                }
            }
            self.resend_locked(fd);
            if is_known() && !self.is_resending() {
                return true;
            }
            let elsewhere = theirs.outgoing.returned_at.load(Ordering::Acquire) != 0;
            if !is_known() && (ended || (elsewhere && leaving != page::LEAVES)) {
                return is_known() && !self.is_resending();
            }
            sys::nap(1);
        }
        let unanswered = theirs.outgoing.returned_at.load(Ordering::Acquire) == 0;
        let warned = own.warned.load(Ordering::Relaxed) != 0;
        warned && unanswered && !answered && !self.is_resending()
    }

    /// The peer leaves, too: what it did not take from the ring is sent again, as far as it was in
    /// it.
    fn answer(&self, fd: c_int) {
        let mine = &self.mine().outgoing;
        if mine.mode.load(Ordering::Relaxed) != page::RING || self.room(fd).is_err() {
            return;
        }
        let read = self.theirs().incoming.read.load(Ordering::Acquire);
        if mine.returned_at.load(Ordering::Relaxed) == read.wrapping_add(1).max(1) {
            // Nothing is left, or it is being sent again already.
            return;
        }
        self.send_again_from(fd, read);
    }

    /// An honest failure: both ends see a connection that was reset.
    pub(super) fn break_off(&self, fd: c_int) {
        statistics::count(Why::Crossed);
        self.own().fail();
        sys::reset(fd);
    }
}
