//! Doorbells: single bytes in the TCP stream of a direction that is in its ring.
//!
//! A doorbell is sent only to a peer that asked for one, once for each request, so both ends know
//! how many there are. Such a stream contains only doorbells, and each is counted in the page
//! before it is sent; the receiver therefore never takes one of the application's bytes for a
//! doorbell.

use core::ffi::c_int;
use core::sync::atomic::Ordering;

use super::Connection;
use super::own::{INSIDE, add, get};
use crate::page::{Leaving, Request};
use crate::statistics::{self, Why};
use crate::sys::{self, Errno, Result};

/// How many doorbells are removed by one system call.
pub(super) const DOORBELLS_AT_ONCE: usize = 64;
/// How many system calls one call of the application makes for doorbells: a peer that sends them
/// without end must not keep this thread.
pub(super) const DISCARDS_MAX: u32 = 256;

/// The longest wait for the memory of a peer that has just ended, which another process may look
/// at, in milliseconds.
const UNMAPPING_TURNS: u32 = 10;

/// How often doorbells are tried, and the pause if the kernel lacks memory for one: for a second.
const TRIES_MAX: u32 = 1000;
static LACK: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 1_000_000 };

/// The state of the TCP stream behind the doorbells.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Stream {
    /// It is open.
    Open,
    /// The peer has closed it.
    Ended,
}

/// Returns whether an error concerns only this call, descriptor or process, and not the connection,
/// which other processes may share.
pub(super) fn is_local(errno: Errno) -> bool {
    let of_descriptor = matches!(errno.0, libc::EBADF | libc::ENOTSOCK);
    of_descriptor || matches!(errno.0, libc::EINTR | libc::EAGAIN | libc::EFAULT | libc::ENOMEM)
}

impl Connection {
    /// Returns whether the kernel reports the peer's end. After an own shutdown(SHUT_RD) poll(2)
    /// reports it in any case; then the state of TCP decides.
    pub(super) fn has_peer_ended(&self, fd: c_int) -> bool {
        let gone = libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR;
        if sys::poll_one(fd, libc::POLLRDHUP, 0) & gone == 0 {
            return false;
        }
        self.own().shut_read.load(Ordering::Relaxed) == 0 || sys::has_stream_ended(fd)
    }

    /// Returns whether the peer has closed the connection or was killed: the page does not say that
    /// it continues in TCP.
    pub(super) fn is_peer_closed(&self, fd: c_int) -> bool {
        matches!(self.theirs().leaving(), Leaving::Stays | Leaving::Closed)
            && self.has_peer_ended(fd)
    }

    /// Sends a doorbell if the peer asked for one with this word of its half, after this end has
    /// published something. The caller holds the writer's lock.
    pub(super) fn ring(&self, fd: c_int, asked: &Request) {
        if asked.check() && asked.take() {
            self.ring_now(fd);
        }
    }

    /// Sends a doorbell. The caller holds the writer's lock.
    pub(super) fn ring_now(&self, fd: c_int) {
        let own = self.own();
        if own.outgoing.load(Ordering::Relaxed) != INSIDE {
            return;
        }
        let stays = self.theirs().leaving() == Leaving::Stays;
        if !stays && self.is_broken(fd) {
            return;
        }
        let counted = add(&own.counted, 1);
        self.mine().set_doorbells(counted);
        statistics::count(Why::Doorbells);
        // Failure means a full socket, whose receiver has enough bytes to wake it, or a dead one.
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

    /// Returns whether the socket has an error for the application's next call. The library must
    /// not consume it, because it could not report it after the descriptor has become plain.
    pub(super) fn is_broken(&self, fd: c_int) -> bool {
        let is_broken = sys::poll_one(fd, 0, 0) & libc::POLLERR != 0;
        if is_broken {
            self.note_end();
        }
        is_broken
    }

    /// Sends the doorbells that are counted but not sent yet. The caller holds the writer's lock.
    /// The peer's request is taken, so nothing else would wake it: what fails although the
    /// connection is in order is repeated.
    pub(super) fn pay(&self, fd: c_int) -> Result<()> {
        let own = self.own();
        let mut tries = 0;
        while get(&own.rung) < get(&own.counted) {
            match sys::send_quietly(fd, [0_u8].as_ptr(), 1) {
                Err(Errno(libc::EINTR | libc::ENOMEM | libc::ENOBUFS)) if tries < TRIES_MAX => {
                    tries += 1;
                    // SAFETY: the time is valid, and the rest is not asked for.
                    unsafe { libc::nanosleep(&raw const LACK, core::ptr::null_mut()) };
                }
                done => {
                    done?;
                    add(&own.rung, 1);
                }
            }
        }
        Ok(())
    }

    /// Asks the peer for a doorbell. Check the memory again afterwards, before sleeping.
    pub(crate) fn ask(&self, request: &Request) {
        if request.make() {
            self.own().asked.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Withdraws the request. A doorbell that is not in flight already will not arrive.
    // `try_update` is newer than the oldest Rust that builds this.
    #[allow(deprecated)]
    pub(super) fn ask_no_more(&self, request: &Request) {
        if request.take() {
            let less = |asked: u64| Some(asked.saturating_sub(1));
            let _ = self.own().asked.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        }
    }

    /// Removes the doorbells from the stream, and detects the end of the stream. The caller holds
    /// the reader's lock, and the incoming direction is in its ring.
    pub(super) fn discard(&self, fd: c_int) -> Result<Stream> {
        let own = self.own();
        let theirs = self.theirs();
        let mut trash = [0_u8; DOORBELLS_AT_ONCE];
        for _ in 0..DISCARDS_MAX {
            let Some(counted) = theirs.doorbells_due(get(&own.discarded)) else {
                return Err(self.fail(fd));
            };
            let kept = u64::from(counted > 0 && self.owes());
            let due = counted - kept;
            if due == 0 && kept > 0 {
                return Ok(Stream::Open);
            }
            // Leaves a doorbell to the thread that sleeps for it, because the byte wakes that
            // thread.
            let sleepers = own.asleep.load(Ordering::Relaxed) > 0;
            if due > 0 && !sleepers {
                let length = due.min(trash.len() as u64) as usize;
                match sys::receive(fd, trash.as_mut_ptr(), length, 0) {
                    Ok(0) => return Ok(self.end_of_stream(fd)),
                    Ok(taken) => self.count_discarded(taken),
                    Err(Errno(libc::EAGAIN)) => return Ok(Stream::Open),
                    Err(errno) => return self.broken(errno),
                };
                continue;
            }
            match sys::receive(fd, trash.as_mut_ptr(), 1, libc::MSG_PEEK) {
                Ok(0) => return Ok(self.end_of_stream(fd)),
                Ok(_) if sleepers || theirs.has_returned() => return Ok(Stream::Open),
                Ok(_) if theirs.doorbells_due(get(&own.discarded)) != Some(counted) => (),
                Ok(_) => return Err(self.fail(fd)),
                Err(Errno(libc::EAGAIN)) => return Ok(Stream::Open),
                Err(errno) => return self.broken(errno),
            }
        }
        // The next call goes on: what is in the stream brings it about.
        Ok(Stream::Open)
    }

    /// Counts doorbells that were removed from the stream, and tells the peer, which has to know
    /// whether one of them can be the cause of a reset.
    pub(super) fn count_discarded(&self, taken: usize) {
        let discarded = add(&self.own().discarded, taken as u64);
        self.mine().set_discarded(discarded);
    }

    /// Returns whether the kernel may have reset the connection for a doorbell: it does if a killed
    /// peer had not removed it, or it arrived after the peer's end. Otherwise a reset is the
    /// peer's, as with SO_LINGER, or an administrator's, after which the peer lives on. Called
    /// after a reset.
    pub(super) fn may_doorbell_reset(&self) -> bool {
        let theirs = self.theirs();
        !theirs.aborts() && theirs.keeps_doorbells(get(&self.own().rung)) && !self.is_peer_alive()
    }

    /// Returns whether a process of the peer still has the page after a reset. A process that ends
    /// gives its memory back before it closes its sockets. `false` if that is unknown: the kernel
    /// does not tell, or other processes have this end.
    fn is_peer_alive(&self) -> bool {
        const GONE: u32 = 1;
        const ALIVE: u32 = 2;
        let own = self.own();
        if own.peer_lives.load(Ordering::Relaxed) == 0 {
            let page = self.page.load(Ordering::Relaxed);
            let is_gone = || sys::is_mapped_elsewhere(page) != Some(true);
            let is_unknown = own.holders.load(Ordering::Acquire) != 1;
            let gone = is_unknown || sys::wait_until(UNMAPPING_TURNS, is_gone);
            own.peer_lives.store(if gone { GONE } else { ALIVE }, Ordering::Relaxed);
        }
        own.peer_lives.load(Ordering::Relaxed) == ALIVE
    }

    /// Removes the doorbells that have arrived. Returns whether the last one was among them, for an
    /// end that asks for no more. The caller holds the reader's lock, and the incoming direction is
    /// in its ring.
    pub(super) fn are_doorbells_out(&self, fd: c_int) -> bool {
        let own = self.own();
        let theirs = self.theirs();
        // A peer that also leaves may send a doorbell unasked until it publishes that it has
        // returned.
        let peer_leaves = theirs.leaving() != Leaving::Stays;
        if theirs.has_returned() {
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

    /// Returns whether the peer goes back to TCP and waits for bytes that this end has to send
    /// again. The last doorbell stays in the stream until that has begun: the kernel resets a
    /// connection that ends with unread bytes (RFC 1122, 4.2.2.13), so the death of this process
    /// does not look like a regular end.
    pub(super) fn owes(&self) -> bool {
        self.own().outgoing.load(Ordering::Relaxed) == INSIDE
            && matches!(
                self.theirs().leaving(),
                Leaving::Leaves | Leaving::Drains | Leaving::Returns
            )
    }

    /// Handles a failed call of the library. If the stream has ended with an error, which the
    /// kernel reports only once, the error is kept for the application.
    pub(super) fn broken(&self, errno: Errno) -> Result<Stream> {
        if is_local(errno) {
            return Err(errno);
        }
        let by_doorbell = errno.0 == libc::ECONNRESET
            && self.may_doorbell_reset()
            && (self.end_of_killed().is_some() || self.is_only_warned());
        let end = self.note_end();
        if by_doorbell {
            return Ok(end);
        }
        if errno.0 == libc::ECONNRESET {
            // The peer of a reset connection accepts nothing, as after late bytes.
            self.own().late_bytes.store(1, Ordering::Relaxed);
        }
        self.own().keep_error(errno.0);
        Err(errno)
    }

    /// Keeps an error for the application's next call, because this call has moved bytes before it,
    /// or did not cause it. EPIPE is not kept, because the kernel reports it again.
    pub(super) fn keep_for_later(&self, fd: c_int, errno: Errno) {
        if is_local(errno) || errno.0 == libc::EPIPE {
            return;
        }
        if self.own().has_left() {
            // No error may hide the state of the stream from the next call: it must not seem to end
            // regularly.
            sys::reset(fd);
        } else {
            self.own().keep_error(errno.0);
        }
    }

    /// Records that no more bytes arrive: the peer has ended the stream, or this end does not read.
    pub(super) fn end_of_stream(&self, fd: c_int) -> Stream {
        if self.own().shut_read.load(Ordering::Relaxed) == 0 || self.has_peer_ended(fd) {
            self.note_end();
        }
        Stream::Ended
    }

    /// Records that the stream has ended, regularly or not.
    pub(super) fn note_end(&self) -> Stream {
        let unread = self.end_of_killed();
        // As the kernel reports it for a peer that was killed with bytes unread.
        if self.own().note_end() && unread.is_some_and(|unread| unread > 0) {
            self.own().keep_error(libc::ECONNRESET);
        }
        Stream::Ended
    }

    /// If the peer was killed and so has not announced its end in the page, returns how many bytes
    /// it had not read. That number, and not the doorbells, decides how the end is reported.
    pub(super) fn end_of_killed(&self) -> Option<u64> {
        let theirs = self.theirs();
        let announced = theirs.has_returned() || theirs.leaving() != Leaving::Stays;
        let inside = self.own().outgoing.load(Ordering::Relaxed) == INSIDE;
        (inside && !announced).then(|| self.unsent_bytes())
    }
}
