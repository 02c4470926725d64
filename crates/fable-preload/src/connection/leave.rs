//! The way out: back to plain TCP in mid-connection, for good.
//!
//! This end stops taking from its incoming ring; the position where it stopped is in the page, and
//! the peer sends what lies behind it through TCP, before anything else. Afterwards nothing of this
//! process is needed for the descriptor any more: a program that is executed with it, or another
//! process that is given it, finds the exact stream.

use core::ffi::c_int;
use core::sync::atomic::{Ordering, fence};

use super::Connection;
use super::own::{AFTER, BEFORE, INSIDE, RESENDING, get};
use crate::page;
use crate::statistics::{self, Why};
use crate::sys;

/// How long to wait for a peer that has something to send again.
const PEER_TURNS: u32 = 1_000;
/// How long to wait for a doorbell that is on its way.
const DOORBELL_TURNS: u32 = 100;

impl Connection {
    /// Goes back to TCP, because of something that a ring cannot do.
    pub(crate) fn leave(&self, fd: c_int, why: Why) {
        let _keep = sys::KeepErrno::new();
        let own = self.own();
        // An acceptance that was not seen yet: only from the ring's side can a sleeping peer be
        // woken.
        let _ = self.progress(fd);
        let peer_leaves = self.theirs().incoming.leaving.load(Ordering::Acquire) != 0;
        if peer_leaves && matches!(why, Why::Option) && self.progress(fd).is_ok() {
            // Both directions go back to TCP already; what is in the ring is still ours to read.
            return;
        }
        if let (Some(_reader), Some(_writer)) = (own.reader.take(), own.writer.take())
            && !own.has_left()
        {
            self.leave_locked(fd, why);
            own.set_left();
        }
        self.become_plain(fd);
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
        self.ask_no_more(&self.mine().incoming.sleeping);
        self.ask_no_more(&self.mine().outgoing.starved);
        self.give_up_outgoing(fd);
        let mode = &self.theirs().outgoing.mode;
        let forbidden = mode.compare_exchange(page::STREAM, page::FORBIDDEN, order.0, order.1);
        let inside = forbidden.is_err() && self.take_out_doorbells(fd);
        self.settle(fd, inside);
    }

    /// From here on this end sends through TCP only.
    fn give_up_outgoing(&self, fd: c_int) {
        let own = self.own();
        let mine = self.mine();
        if own.outgoing.load(Ordering::Relaxed) == INSIDE {
            // The peer may sleep, and is to come and see; afterwards no doorbell follows.
            mine.incoming.leaving.store(1, Ordering::SeqCst);
            self.ring(fd, &self.theirs().incoming.sleeping);
            self.ring(fd, &self.theirs().outgoing.starved);
            for _ in 0..DOORBELL_TURNS {
                if self.pay(fd).is_ok() {
                    break;
                }
                sys::nap(1);
            }
            let end = get(&own.written);
            mine.outgoing.returned_at.store(end.wrapping_add(1).max(1), Ordering::Release);
            self.restore_options(fd);
        } else {
            if own.outgoing.load(Ordering::Relaxed) == BEFORE {
                mine.outgoing.mode.store(page::FORBIDDEN, Ordering::Release);
            }
            mine.incoming.leaving.store(1, Ordering::SeqCst);
        }
        if own.outgoing.load(Ordering::Relaxed) != RESENDING {
            own.outgoing.store(AFTER, Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
    }

    /// Waits for the doorbells that are still to come, which nobody could take out later. Whether
    /// the incoming direction is in its ring.
    fn take_out_doorbells(&self, fd: c_int) -> bool {
        let own = self.own();
        let incoming = own.incoming.load(Ordering::Relaxed);
        if incoming == AFTER {
            return false;
        }
        if incoming == BEFORE && !matches!(self.before_ring(fd), Ok(Some(0))) {
            // Bytes of the application are in front of doorbells: these could never be taken out.
            if own.asked.load(Ordering::Relaxed) > 0 {
                self.break_off(fd);
            }
            return false;
        }
        own.incoming.store(INSIDE, Ordering::Relaxed);
        for _ in 0..DOORBELL_TURNS {
            let returned = self.theirs().outgoing.returned_at.load(Ordering::Acquire) != 0;
            let failed =
                if returned { self.finish_return(fd).is_err() } else { self.discard(fd).is_err() };
            if failed || get(&own.discarded) >= own.asked.load(Ordering::Relaxed) {
                break;
            }
            sys::nap(1);
        }
        true
    }

    /// Waits until the peer knows what to send again. If the peer leaves, too, each sends again
    /// what the other did not take; a peer that left before cannot, and then the connection has to
    /// end.
    fn settle(&self, fd: c_int, inside: bool) {
        let own = self.own();
        let theirs = self.theirs();
        let mut answered = false;
        let known = || {
            let acknowledged = get(&own.read).wrapping_add(1).max(1);
            let returned_at = theirs.outgoing.returned_at.load(Ordering::Acquire);
            !inside || self.unread_bytes() == 0 || returned_at == acknowledged
        };
        for _ in 0..PEER_TURNS {
            if !answered && theirs.incoming.leaving.load(Ordering::SeqCst) != 0 {
                answered = true;
                self.answer(fd);
            }
            self.resend_locked(fd);
            if known() && own.outgoing.load(Ordering::Relaxed) != RESENDING {
                return;
            }
            sys::nap(1);
        }
        if answered {
            self.break_off(fd);
        }
    }

    /// The peer leaves, too: what it did not take from the ring is sent again, as far as it was in
    /// it.
    fn answer(&self, fd: c_int) {
        let own = self.own();
        let mine = &self.mine().outgoing;
        if mine.mode.load(Ordering::Relaxed) != page::RING || self.room(fd).is_err() {
            return;
        }
        let read = self.theirs().incoming.read.load(Ordering::Acquire);
        if mine.returned_at.load(Ordering::Relaxed) == read.wrapping_add(1).max(1) {
            // Nothing is left, or it is being sent again already.
            return;
        }
        own.resend_from.store(read, Ordering::Relaxed);
        own.outgoing.store(RESENDING, Ordering::Relaxed);
        mine.returned_at.store(read.wrapping_add(1).max(1), Ordering::Release);
    }

    /// An honest failure: both ends see a connection that ended.
    fn break_off(&self, fd: c_int) {
        statistics::count(Why::Crossed);
        self.own().fail();
        // SAFETY: no pointers.
        unsafe { crate::real::shutdown(fd, libc::SHUT_RDWR) };
    }
}
