//! The way out: back to plain TCP in mid-connection, for good.
//!
//! This end stops taking from its incoming ring; the position where it stopped is in the page, and the peer
//! sends what lies behind it through TCP, before anything else. Afterwards nothing of this process is needed
//! for the descriptor any more: a program that is executed with it, or another process that is given it,
//! finds the exact stream.

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
        let revoked =
            standing.compare_exchange(page::OFFERED, page::REVOKED, order.0, order.1);
        if revoked.is_ok() {
            statistics::count(Why::NotTaken);
            return;
        }
        statistics::count(why);
        let theirs = self.theirs();
        if theirs.incoming.leaving.load(Ordering::Acquire) != 0 {
            self.leave_after_peer(fd);
            return;
        }
        self.ask_no_more(&self.mine().incoming.sleeping);
        self.ask_no_more(&self.mine().outgoing.starved);
        self.give_up_outgoing(fd);
        let mode = &theirs.outgoing.mode;
        let forbidden =
            mode.compare_exchange(page::STREAM, page::FORBIDDEN, order.0, order.1);
        if forbidden.is_err() {
            self.give_up_incoming(fd);
        }
    }

    /// From here on this end sends through TCP only.
    fn give_up_outgoing(&self, fd: c_int) {
        let own = self.own();
        let mine = self.mine();
        if own.outgoing.load(Ordering::Relaxed) == INSIDE {
            // The peer may sleep, and is to come and see; afterwards no doorbell follows.
            self.mine().incoming.leaving.store(1, Ordering::SeqCst);
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
            mine.outgoing.mode.store(page::FORBIDDEN, Ordering::Release);
            self.mine().incoming.leaving.store(1, Ordering::SeqCst);
        }
        own.outgoing.store(AFTER, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Waits for what is still to come that is not the application's, and for what the peer sends again.
    fn give_up_incoming(&self, fd: c_int) {
        let own = self.own();
        if own.incoming.load(Ordering::Relaxed) == BEFORE && !matches!(self.before_ring(fd), Ok(Some(0)))
        {
            // Bytes of the application are in front of doorbells: these could never be taken out.
            if own.asked.load(Ordering::Relaxed) > 0 {
                self.break_off(fd);
            }
            return;
        }
        own.incoming.store(INSIDE, Ordering::Relaxed);
        let theirs = &self.theirs().outgoing;
        for _ in 0..DOORBELL_TURNS {
            if get(&own.discarded) >= own.asked.load(Ordering::Relaxed) {
                break;
            }
            let returned = theirs.returned_at.load(Ordering::Acquire) != 0;
            let done = if returned { self.finish_return(fd) == Ok(true) } else { false };
            if done || (!returned && self.discard(fd).is_err()) {
                break;
            }
            if get(&own.discarded) < own.asked.load(Ordering::Relaxed) {
                sys::nap(1);
            }
        }
        for _ in 0..PEER_TURNS {
            if self.unread_bytes() == 0 || theirs.returned_at.load(Ordering::Acquire) != 0 {
                break;
            }
            sys::nap(1);
        }
    }

    /// The peer left first: what it did not take goes through TCP, and what we did not take is lost to
    /// whoever gets the descriptor, who must notice.
    fn leave_after_peer(&self, fd: c_int) {
        let own = self.own();
        if own.outgoing.load(Ordering::Relaxed) == INSIDE {
            let read = self.theirs().incoming.read.load(Ordering::Acquire);
            if self.room(fd).is_err() {
                return;
            }
            own.resend_from.store(read, Ordering::Relaxed);
            own.outgoing.store(RESENDING, Ordering::Relaxed);
            let mine = &self.mine().outgoing;
            mine.returned_at.store(read.wrapping_add(1).max(1), Ordering::Release);
        }
        for _ in 0..PEER_TURNS {
            if own.outgoing.load(Ordering::Relaxed) != RESENDING {
                break;
            }
            self.resend_locked(fd);
            if own.outgoing.load(Ordering::Relaxed) == RESENDING {
                sys::nap(1);
            }
        }
        for _ in 0..DOORBELL_TURNS {
            if self.theirs().outgoing.returned_at.load(Ordering::Acquire) != 0 {
                break;
            }
            sys::nap(1);
        }
        let unread = own.incoming.load(Ordering::Relaxed) != AFTER
            && (self.unread_bytes() > 0 || !self.finish_return(fd).unwrap_or(false));
        if unread || own.outgoing.load(Ordering::Relaxed) == RESENDING {
            self.break_off(fd);
        }
    }

    /// An honest failure: both ends see a connection that ended.
    fn break_off(&self, fd: c_int) {
        statistics::count(Why::Crossed);
        self.own().fail();
        // SAFETY: no pointers.
        unsafe { crate::real::shutdown(fd, libc::SHUT_RDWR) };
    }
}
