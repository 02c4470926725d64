//! Sleeps in calls that block.

use core::ffi::c_int;
use core::sync::atomic::Ordering;
use preload::real;

use super::Connection;
use super::own::{AFTER, BEFORE, INSIDE, RESENDING, get};
use crate::page::Leaving;
use crate::signals::{self, Handled};
use crate::statistics::{self, Why};
use crate::sys::{self, Errno, Result};

/// The interval at which writers check the page, because a reader may take their doorbell.
const SLICE_MS: c_int = 10;
const LOOKS_PER_CLOCK: u32 = 32;

impl Connection {
    /// Spins on the memory for a while. Returns whether `found` became true.
    fn look_for(&self, found: impl Fn() -> bool) -> bool {
        let budget_ns = self.spin.budget_ns();
        if budget_ns == 0 || self.shares_processor() {
            return found();
        }
        let end_ns = sys::now_ns() + budget_ns;
        loop {
            for _ in 0..LOOKS_PER_CLOCK {
                if found() {
                    self.spin.succeeded();
                    return true;
                }
                core::hint::spin_loop();
            }
            if sys::now_ns() >= end_ns {
                self.spin.failed();
                return false;
            }
        }
    }

    /// Returns whether the memory shows that a read would not find the ring as empty as it was.
    pub(crate) fn has_news(&self) -> bool {
        let returned = || {
            let incoming = self.own().incoming.load(Ordering::Relaxed);
            self.theirs().has_returned() && incoming != AFTER
        };
        self.has_unread() || returned() || self.must_progress()
    }

    /// Returns whether [`Connection::progress`] has something to do, or the connection is plain.
    pub(super) fn must_progress(&self) -> bool {
        self.own().has_left() || self.has_orders()
    }

    /// Returns whether the peer requests something that [`Connection::progress`] does.
    pub(crate) fn has_orders(&self) -> bool {
        let outgoing = self.own().outgoing.load(Ordering::Relaxed);
        let leaving = self.theirs().leaving() != Leaving::Stays;
        let accepted = self.page().standing.is_accepted();
        (outgoing == INSIDE && leaving) || (outgoing == BEFORE && accepted)
    }

    /// Sleeps until a read may succeed. The sleep is a real read that takes nothing, so the kernel
    /// handles time limits, signals and their restarting.
    ///
    /// Some reads end with urgent data too.
    pub(super) fn wait_readable(&self, fd: c_int, stops_at_urgent: bool) -> Result<()> {
        let own = self.own();
        if own.outgoing.load(Ordering::Relaxed) == RESENDING {
            // The peer waits for the bytes to be sent again, and no other thread of this process
            // sends them.
            sys::poll_one(fd, libc::POLLIN | libc::POLLOUT, SLICE_MS);
            return Ok(());
        }
        let upgraded = self.page().standing.is_accepted();
        if upgraded && self.look_for(|| self.has_news()) {
            return Ok(());
        }
        // A thread that removes doorbells leaves them to sleepers. This thread therefore counts as
        // one before its last check: a doorbell removed earlier was for bytes that this check
        // finds.
        self.fall_asleep();
        self.ask(self.mine().sleeping());
        let returned = own.outgoing.load(Ordering::Relaxed) == AFTER;
        let slept = if self.unread_bytes() > 0 || (self.has_news() && !returned) {
            Ok(())
        } else {
            self.sleep(fd, stops_at_urgent)
        };
        self.wake_up();
        slept
    }

    /// Announces that this thread checks the memory for the last time before it sleeps for a
    /// doorbell.
    pub(crate) fn fall_asleep(&self) {
        self.own().asleep.fetch_add(1, Ordering::SeqCst);
    }

    /// Ends [`Connection::fall_asleep`].
    pub(crate) fn wake_up(&self) {
        self.own().asleep.fetch_sub(1, Ordering::AcqRel);
    }

    fn sleep(&self, fd: c_int, stops_at_urgent: bool) -> Result<()> {
        let mut byte = [0_u8; 1];
        statistics::count(Why::Sleeps);
        // The socket may have become non-blocking since this read began, which continues to wait.
        if stops_at_urgent || self.own().is_nonblocking() {
            let limit_ms = sys::time_limit_ms(fd, libc::SO_RCVTIMEO);
            let urgent = if stops_at_urgent { libc::POLLPRI } else { 0 };
            return sys::wait_for(fd, libc::POLLIN | urgent, limit_ms);
        }
        // SAFETY: the byte is a local variable. The call takes no byte, and no lock is held.
        let peeked = unsafe { real::recv(fd, byte.as_mut_ptr().cast(), 1, libc::MSG_PEEK) };
        if peeked < 0 {
            let errno = Errno(sys::errno());
            if self.own().has_left() {
                // No other call would get the error.
                return Err(errno);
            }
            // Bytes in the ring were sent before the stream failed.
            let is_kept = self.broken(errno).is_ok() || self.own().has_error();
            if !is_kept && self.unread_bytes() == 0 {
                return Err(errno);
            }
        }
        Ok(())
    }

    /// Sleeps until a write may succeed, the time limit of the socket has passed, or a signal ends
    /// the write as it does in the kernel. Any handler ends a write that has moved bytes or has a
    /// time limit; other writes are ended by handlers without SA_RESTART (signal(7)).
    pub(super) fn wait_writable(
        &self,
        fd: c_int,
        has_moved: bool,
        deadline_ns: &mut Option<u64>,
    ) -> Result<()> {
        let deadline =
            *deadline_ns.get_or_insert_with(|| match sys::time_limit_ns(fd, libc::SO_SNDTIMEO) {
                0 => u64::MAX,
                limit => sys::now_ns().saturating_add(limit),
            });
        let own = self.own();
        let mut slept = Ok(());
        let handled = if own.outgoing.load(Ordering::Relaxed) != INSIDE {
            signals::sleep(|| {
                sys::poll_one(fd, libc::POLLOUT, SLICE_MS);
            })
        } else if !self.look_for(|| self.has_room() || self.has_orders() || own.has_left()) {
            signals::sleep(|| slept = self.sleep_for_room(fd))
        } else {
            Handled::None
        };
        slept?;
        let ends = match handled {
            Handled::None => false,
            Handled::Restarting => has_moved || deadline != u64::MAX,
            Handled::Interrupting => true,
        };
        if ends {
            return Err(Errno(libc::EINTR));
        }
        if sys::now_ns() >= deadline { Err(Errno(libc::EAGAIN)) } else { Ok(()) }
    }

    /// Returns whether the memory shows room in the outgoing ring.
    pub(super) fn has_room(&self) -> bool {
        let untaken = self.theirs().untaken(get(&self.own().written), self.ring_bytes());
        untaken.is_none_or(|untaken| untaken < self.room_max())
    }

    fn sleep_for_room(&self, fd: c_int) -> Result<()> {
        let own = self.own();
        self.ask(self.mine().starved());
        if self.has_room() {
            return Ok(());
        }
        statistics::count(Why::Sleeps);
        if self.has_peer_ended(fd) {
            // The peer has not announced its end in the page: it was killed.
            self.note_end();
        }
        let inside = own.incoming.load(Ordering::Relaxed) == INSIDE;
        if inside && own.ended.load(Ordering::Relaxed) == 0 {
            {
                let _guard = own.reader.take().ok_or(Errno(libc::EAGAIN))?;
                // The end is recorded in `own`, and the reader gets errors.
                let _ = self.discard(fd);
            }
            if !self.has_room() {
                sys::poll_one(fd, libc::POLLIN, SLICE_MS);
            }
        } else {
            // poll(2) would return at once, for the reader's bytes or the peer's end of stream.
            sys::nap(1);
            let _guard = own.writer.take().ok_or(Errno(libc::EAGAIN))?;
            if own.ended.load(Ordering::Relaxed) != 0 && self.is_peer_gone(fd) {
                own.shut_write.store(1, Ordering::Relaxed);
            }
        }
        if sys::poll_one(fd, 0, 0) & (libc::POLLHUP | libc::POLLERR) != 0 {
            // The kernel refuses the next write, and raises the signal.
            own.shut_write.store(1, Ordering::Relaxed);
        }
        Ok(())
    }
}
