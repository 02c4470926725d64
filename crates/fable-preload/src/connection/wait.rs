//! Sleeping in a call that blocks.

use core::ffi::c_int;
use core::sync::atomic::Ordering;
use preload::real;

use super::Connection;
use super::own::{AFTER, BEFORE, INSIDE, RESENDING, get};
use crate::signals::{self, Handled};
use crate::statistics::{self, Why};
use crate::sys::{self, Errno, Result};

/// Writers look at the page this often, because a doorbell may be taken by a reader.
const SLICE_MS: c_int = 10;
const LOOKS_PER_CLOCK: u32 = 32;

impl Connection {
    /// Looks at memory for a while; whether it brought anything.
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

    /// Whether memory alone says that a read would not find the ring as empty as it was.
    pub(crate) fn has_news(&self) -> bool {
        let own = self.own();
        let theirs = &self.theirs().outgoing;
        own.has_left()
            || self.written_by_peer() != get(&own.read)
            || (theirs.returned_at.load(Ordering::Relaxed) != 0
                && own.incoming.load(Ordering::Relaxed) != AFTER)
            || self.has_orders()
    }

    /// Whether the peer wants something that [`Connection::progress`] does.
    pub(crate) fn has_orders(&self) -> bool {
        let outgoing = self.own().outgoing.load(Ordering::Relaxed);
        let leaving = self.theirs().incoming.leaving.load(Ordering::Relaxed) != crate::page::STAYS;
        let accepted = self.page().standing.load(Ordering::Relaxed) == crate::page::ACCEPTED;
        (outgoing == INSIDE && leaving) || (outgoing == BEFORE && accepted)
    }

    /// Sleeps until a read may succeed. The sleep is a real read that takes nothing, so time
    /// limits, signals and their restarting are the kernel's.
    ///
    /// Some reads end with urgent data, too.
    pub(super) fn wait_readable(&self, fd: c_int, stops_at_urgent: bool) -> Result<()> {
        let own = self.own();
        if own.outgoing.load(Ordering::Relaxed) == RESENDING {
            // The peer waits for what is sent again; nobody else in this process sees to it.
            sys::poll_one(fd, libc::POLLIN | libc::POLLOUT, SLICE_MS);
            return Ok(());
        }
        let upgraded = self.page().standing.load(Ordering::Acquire) == crate::page::ACCEPTED;
        if upgraded && self.look_for(|| self.has_news()) {
            return Ok(());
        }
        // Whoever takes doorbells out leaves them to a sleeper, so it counts as one before its last
        // look: a doorbell that was taken out before that was for something this look sees.
        self.fall_asleep();
        self.ask(&self.mine().incoming.sleeping);
        let returned = own.outgoing.load(Ordering::Relaxed) == AFTER;
        let slept = if self.unread_bytes() > 0 || (self.has_news() && !returned) {
            Ok(())
        } else {
            self.sleep(fd, stops_at_urgent)
        };
        self.wake_up();
        slept
    }

    /// This thread is about to look for the last time before it sleeps for a doorbell.
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
        // The socket may have become nonblocking since this read began, which waits on.
        if stops_at_urgent || self.own().is_nonblocking() {
            let limit_ms = sys::time_limit_ms(fd, libc::SO_RCVTIMEO);
            let urgent = if stops_at_urgent { libc::POLLPRI } else { 0 };
            return sys::wait_for(fd, libc::POLLIN | urgent, limit_ms);
        }
        // SAFETY: the byte is ours. Nothing is taken, and no lock is held.
        let peeked = unsafe { real::recv(fd, byte.as_mut_ptr().cast(), 1, libc::MSG_PEEK) };
        if peeked < 0 {
            let errno = Errno(sys::errno());
            if self.own().has_left() {
                // No other call would be told.
                return Err(errno);
            }
            // Bytes in the ring were sent before the stream broke.
            let is_kept = self.broken(errno).is_ok() || self.own().has_error();
            if !is_kept && self.unread_bytes() == 0 {
                return Err(errno);
            }
        }
        Ok(())
    }

    /// Sleeps until a write may succeed, or the time limit of the socket has passed, or a signal
    /// ends a write as it does in the kernel: one that has moved something, or has a time limit, by
    /// any handler, others by one without SA_RESTART (signal(7)).
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

    /// Whether memory says that the outgoing ring has room.
    pub(super) fn has_room(&self) -> bool {
        let read = self.theirs().incoming.read.load(Ordering::Acquire);
        get(&self.own().written).wrapping_sub(read) < self.room_max()
    }

    fn sleep_for_room(&self, fd: c_int) -> Result<()> {
        let own = self.own();
        self.ask(&self.mine().outgoing.starved);
        if self.has_room() {
            return Ok(());
        }
        statistics::count(Why::Sleeps);
        if self.has_peer_ended(fd) {
            // An end that the peer has not announced in the page: it was killed.
            self.note_end();
        }
        let inside = own.incoming.load(Ordering::Relaxed) == INSIDE;
        if inside && own.ended.load(Ordering::Relaxed) == 0 {
            {
                let _guard = own.reader.take().ok_or(Errno(libc::EAGAIN))?;
                // What it says about the end is noted in `own`, and errors come to the reader.
                let _ = self.discard(fd);
            }
            if !self.has_room() {
                sys::poll_one(fd, libc::POLLIN, SLICE_MS);
            }
        } else {
            // Bytes for the reader, or the peer's end of stream, would wake us at once.
            sys::nap(1);
            let _guard = own.writer.take().ok_or(Errno(libc::EAGAIN))?;
            if own.ended.load(Ordering::Relaxed) != 0 && self.is_peer_gone(fd) {
                own.shut_write.store(1, Ordering::Relaxed);
            }
        }
        if sys::poll_one(fd, 0, 0) & (libc::POLLHUP | libc::POLLERR) != 0 {
            // The kernel refuses the next write, with the signal that belongs to it.
            own.shut_write.store(1, Ordering::Relaxed);
        }
        Ok(())
    }
}
