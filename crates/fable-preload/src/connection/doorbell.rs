//! Doorbells: single bytes in the TCP stream of a direction that is in its ring.
//!
//! A doorbell is sent only to a peer that asked for one, once for each time it asked, so both ends
//! know how many there are. Nothing but doorbells is in such a stream, and each is counted in the
//! page before it is sent; so what the receiver takes out can never be the application's.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU32, Ordering, fence};

use super::Connection;
use super::own::{INSIDE, add, get};
use crate::page;
use crate::statistics::{self, Why};
use crate::sys::{self, Errno, Result};

/// What the TCP stream holds behind the doorbells.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Stream {
    /// It goes on.
    Open,
    /// The peer has closed it.
    Ended,
}

/// Whether an error is one of this call, descriptor or process, and not of the connection, which
/// others may share.
pub(super) fn is_local(errno: Errno) -> bool {
    let of_descriptor = matches!(errno.0, libc::EBADF | libc::ENOTSOCK);
    of_descriptor || matches!(errno.0, libc::EINTR | libc::EAGAIN | libc::EFAULT | libc::ENOMEM)
}

impl Connection {
    /// Whether the kernel tells of the peer's end. After an own shutdown(SHUT_RD) poll tells it in
    /// any case, and the state of TCP decides.
    pub(super) fn has_peer_ended(&self, fd: c_int) -> bool {
        let gone = libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR;
        if sys::poll_one(fd, libc::POLLRDHUP, 0) & gone == 0 {
            return false;
        }
        self.own().shut_read.load(Ordering::Relaxed) == 0 || sys::has_stream_ended(fd)
    }

    /// Whether the peer has closed the connection or was killed: it said nothing of going on.
    pub(super) fn is_peer_closed(&self, fd: c_int) -> bool {
        let leaving = self.theirs().incoming.leaving.load(Ordering::SeqCst);
        matches!(leaving, page::STAYS | page::CLOSED) && self.has_peer_ended(fd)
    }

    /// Rings if the peer asked for it with this word of its half. The caller holds the writer's
    /// lock.
    pub(super) fn ring(&self, fd: c_int, asked: &AtomicU32) {
        if asked.load(Ordering::Relaxed) != 0 && asked.swap(0, Ordering::SeqCst) != 0 {
            self.ring_now(fd);
        }
    }

    /// Rings. The caller holds the writer's lock.
    pub(super) fn ring_now(&self, fd: c_int) {
        let own = self.own();
        if own.outgoing.load(Ordering::Relaxed) != INSIDE {
            return;
        }
        let stays = self.theirs().incoming.leaving.load(Ordering::Relaxed) == page::STAYS;
        if !stays && self.is_broken(fd) {
            return;
        }
        let counted = add(&own.counted, 1);
        self.mine().outgoing.doorbells.store(counted, Ordering::Release);
        statistics::count(Why::Doorbells);
        // A failure is either a full socket, whose receiver has enough to wake it, or a dead one.
        match self.pay(fd) {
            Ok(()) | Err(Errno(libc::EAGAIN)) => (),
            Err(Errno(libc::EPIPE)) => {
                self.note_end();
            }
            Err(errno) => {
                let _ = self.broken(errno);
            }
        }
    }

    /// Whether the kernel has an error for the next call, which is not to be one of ours: nothing
    /// of ours could tell it after the descriptor has become plain.
    pub(super) fn is_broken(&self, fd: c_int) -> bool {
        let is_broken = sys::poll_one(fd, 0, 0) & libc::POLLERR != 0;
        if is_broken {
            self.note_end();
        }
        is_broken
    }

    /// Sends the doorbells that are counted but not sent. The caller holds the writer's lock.
    pub(super) fn pay(&self, fd: c_int) -> Result<()> {
        let own = self.own();
        while get(&own.rung) < get(&own.counted) {
            sys::send_quietly(fd, [0_u8].as_ptr(), 1)?;
            add(&own.rung, 1);
        }
        Ok(())
    }

    /// Asks the peer for a doorbell with a word of our half; look again afterwards, before
    /// sleeping.
    pub(crate) fn ask(&self, word: &AtomicU32) {
        if word.load(Ordering::Relaxed) == 0 && word.swap(1, Ordering::SeqCst) == 0 {
            self.own().asked.fetch_add(1, Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
    }

    /// Asks no more. A doorbell that is not on its way already will not come.
    pub(super) fn ask_no_more(&self, word: &AtomicU32) {
        if word.swap(0, Ordering::SeqCst) != 0 {
            self.own().asked.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Takes the doorbells out of the stream, and finds out whether it has ended. The caller holds
    /// the reader's lock, and the incoming direction is in its ring.
    pub(super) fn discard(&self, fd: c_int) -> Result<Stream> {
        let own = self.own();
        let theirs = &self.theirs().outgoing;
        let mut trash = [0_u8; 64];
        loop {
            let counted = theirs.doorbells.load(Ordering::Acquire);
            let mut due = counted.wrapping_sub(get(&own.discarded));
            if due > u64::MAX / 2 {
                return Err(self.fail(fd));
            }
            if due == 1 && self.owes() {
                return Ok(Stream::Open);
            }
            due -= u64::from(due > 0 && self.owes());
            // A doorbell is left to the thread that sleeps for it: the byte is what wakes it.
            let sleepers = own.asleep.load(Ordering::Relaxed) > 0;
            if due > 0 && !sleepers {
                let length = due.min(trash.len() as u64) as usize;
                match sys::receive(fd, trash.as_mut_ptr(), length, 0) {
                    Ok(0) => return Ok(self.end_of_stream(fd)),
                    Ok(taken) => add(&own.discarded, taken as u64),
                    Err(Errno(libc::EAGAIN)) => return Ok(Stream::Open),
                    Err(errno) => return self.broken(errno),
                };
                continue;
            }
            match sys::receive(fd, trash.as_mut_ptr(), 1, libc::MSG_PEEK) {
                Ok(0) => return Ok(self.end_of_stream(fd)),
                Ok(_) if sleepers || theirs.returned_at.load(Ordering::Acquire) != 0 => {
                    return Ok(Stream::Open);
                }
                Ok(_) if theirs.doorbells.load(Ordering::Acquire) != counted => (),
                Ok(_) => return Err(self.fail(fd)),
                Err(Errno(libc::EAGAIN)) => return Ok(Stream::Open),
                Err(errno) => return self.broken(errno),
            }
        }
    }

    /// Takes out what has come; whether that was the last doorbell, for an end that asks for no
    /// more. The caller holds the reader's lock, and the incoming direction is in its ring.
    pub(super) fn are_doorbells_out(&self, fd: c_int) -> bool {
        let own = self.own();
        let theirs = self.theirs();
        // A peer that leaves, too, may ring unasked until it says that it has returned.
        let peer_leaves = theirs.incoming.leaving.load(Ordering::SeqCst) != page::STAYS;
        if theirs.outgoing.returned_at.load(Ordering::Acquire) != 0 {
            return self.finish_return(fd) != Ok(false);
        }
        if self.is_broken(fd) {
            return true;
        }
        match self.discard(fd) {
            Ok(Stream::Ended) | Err(_) => true,
            Ok(Stream::Open) => {
                !peer_leaves && get(&own.discarded) >= own.asked.load(Ordering::Relaxed)
            }
        }
    }

    /// Whether the peer goes back to TCP and waits for what is to be sent again. The last doorbell
    /// stays where it is until that has begun: the kernel resets a connection that ends with bytes
    /// unread (RFC 1122, 4.2.2.13), so the death of this process does not look like a good end.
    pub(super) fn owes(&self) -> bool {
        let leaving = self.theirs().incoming.leaving.load(Ordering::Acquire);
        self.own().outgoing.load(Ordering::Relaxed) == INSIDE
            && matches!(leaving, page::LEAVES | page::DRAINS | page::RETURNS)
    }

    /// A call of ours failed. If the stream has ended with an error, which the kernel tells only
    /// once, it is kept for the application.
    pub(super) fn broken(&self, errno: Errno) -> Result<Stream> {
        if is_local(errno) {
            return Err(errno);
        }
        // A doorbell that a killed peer had not taken makes the kernel reset the connection.
        let by_doorbell = errno.0 == libc::ECONNRESET
            && (self.end_of_killed().is_some() || self.is_only_warned());
        let end = self.note_end();
        if by_doorbell {
            return Ok(end);
        }
        self.own().keep_error(errno.0);
        Err(errno)
    }

    /// Keeps an error for the application's next call: this one has moved something before it, or
    /// did not cause it. EPIPE the kernel tells again.
    pub(super) fn keep_for_later(&self, fd: c_int, errno: Errno) {
        if is_local(errno) || errno.0 == libc::EPIPE {
            return;
        }
        if self.own().has_left() {
            // Nothing of ours stands before the next call: the stream must not seem to end well.
            sys::reset(fd);
        } else {
            self.own().keep_error(errno.0);
        }
    }

    /// The stream brings nothing more: because the peer has ended it, or because this end does not
    /// read.
    pub(super) fn end_of_stream(&self, fd: c_int) -> Stream {
        if self.own().shut_read.load(Ordering::Relaxed) == 0 || self.has_peer_ended(fd) {
            self.note_end();
        }
        Stream::Ended
    }

    /// The stream has ended, in whatever way.
    pub(super) fn note_end(&self) -> Stream {
        let unread = self.end_of_killed();
        // As the kernel does for a peer that was killed with bytes unread.
        if self.own().note_end() && unread.is_some_and(|unread| unread > 0) {
            self.own().keep_error(libc::ECONNRESET);
        }
        Stream::Ended
    }

    /// For an end that the peer has not announced in the page, because it was killed: how many
    /// bytes it had not read. It decides, instead of doorbells, how the connection ends.
    pub(super) fn end_of_killed(&self) -> Option<u64> {
        let theirs = self.theirs();
        let announced = theirs.outgoing.returned_at.load(Ordering::Acquire) != 0
            || theirs.incoming.leaving.load(Ordering::Acquire) != page::STAYS;
        let inside = self.own().outgoing.load(Ordering::Relaxed) == INSIDE;
        (inside && !announced).then(|| self.unsent_bytes())
    }
}
