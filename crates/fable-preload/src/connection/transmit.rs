//! Writes to a connection: to TCP, to its outgoing ring, and at the switches between them.

use core::ffi::c_int;
use core::sync::atomic::Ordering;
use preload::real;

use super::doorbell::is_local;
use super::own::{AFTER, BEFORE, INSIDE, RESENDING, add, get, set};
use super::receive::{LIST_MAX, NOTHING};
use super::{Change, Connection};
use crate::cursor::Cursor;
use crate::page::{self, Leaving};
use crate::statistics::{self, Why};
use crate::sys::{self, Errno, Result};

/// The longest wait for a peer that may be gone to acknowledge bytes or refuse them, in
/// milliseconds.
const ANSWER_TURNS: u32 = 3;

/// The result of one attempt.
enum Step {
    Moved,
    Full,
    Plain,
}

impl Connection {
    /// Writes as send(2) does. `None`: the caller has to call the kernel.
    pub(crate) fn write(
        &self,
        fd: c_int,
        cursor: &mut Cursor,
        flags: c_int,
    ) -> Result<Option<usize>> {
        if cursor.is_done() {
            // The kernel moves no bytes in such a call, but reports errors.
            return self.own().take_error().map_or(Ok(None), Err);
        }
        let nonblocking = flags & libc::MSG_DONTWAIT != 0 || self.own().is_nonblocking();
        let (given, mut fd) = (fd, fd);
        let (mut deadline_ns, mut sleeper) = (None, None);
        while !cursor.is_done() {
            match self.write_step(fd, cursor, flags) {
                Err(errno) if cursor.moved == 0 => return Err(errno),
                Err(errno) => {
                    self.keep_for_later(fd, errno);
                    break;
                }
                Ok(Step::Moved) => (),
                Ok(Step::Plain) if cursor.moved == 0 && fd == given => {
                    return self.own().take_error().map_or(Ok(None), Err);
                }
                Ok(Step::Plain) if cursor.moved == 0 => {
                    let mut room = [NOTHING; LIST_MAX];
                    let list = cursor.gather(usize::MAX, &mut room);
                    return sys::send_list(fd, list, flags).map(Some);
                }
                // The kernel's result belongs to the next call.
                Ok(Step::Plain) => break,
                Ok(Step::Full) if nonblocking => {
                    // A short write also reports that there is no room.
                    self.refusals.fetch_add(1, Ordering::Relaxed);
                    if cursor.moved == 0 {
                        return Err(Errno(libc::EAGAIN));
                    }
                    break;
                }
                Ok(Step::Full) => {
                    if sleeper.is_none() {
                        sleeper = self.sleeper();
                    }
                    let now = |fd| sleeper.as_ref().map_or(fd, |sleeper| sleeper.descriptor(fd));
                    fd = now(fd);
                    let slept = self.wait_writable(fd, cursor.moved > 0, &mut deadline_ns);
                    fd = now(fd);
                    match slept {
                        Err(errno) if cursor.moved == 0 => return Err(errno),
                        Err(_) => break,
                        Ok(()) => (),
                    }
                }
            }
        }
        Ok(Some(cursor.moved))
    }

    /// Continues a write that has moved bytes, after the descriptor became plain. Does not ask the
    /// kernel for errors, which the kernel reports once: they belong to the next call.
    fn write_rest(&self, fd: c_int, cursor: &mut Cursor, flags: c_int) -> Result<Step> {
        let broken = libc::POLLERR | libc::POLLHUP;
        let is_shut = self.own().shut_write.load(Ordering::Relaxed) != 0;
        if is_shut || sys::poll_one(fd, 0, 0) & broken != 0 {
            return Ok(Step::Plain);
        }
        self.write_stream(fd, cursor, flags)
    }

    fn write_step(&self, fd: c_int, cursor: &mut Cursor, flags: c_int) -> Result<Step> {
        let own = self.own();
        if !self.progress(fd)? {
            return if cursor.moved == 0 {
                Ok(Step::Plain)
            } else {
                self.write_rest(fd, cursor, flags)
            };
        }
        let step = {
            let _guard = own.writer.take().ok_or(Errno(libc::EAGAIN))?;
            if own.has_left() && cursor.moved > 0 {
                return self.write_rest(fd, cursor, flags);
            }
            if own.has_left() || own.shut_write.load(Ordering::Relaxed) != 0 {
                // After a shutdown of the sending side, the kernel refuses and raises the signal.
                return Ok(Step::Plain);
            }
            if own.has_failed() {
                return Err(Errno(libc::ECONNRESET));
            }
            if let Some(errno) = own.take_error() {
                return Err(errno);
            }
            match own.outgoing.load(Ordering::Relaxed) {
                BEFORE | AFTER if cursor.moved > 0 => return self.write_rest(fd, cursor, flags),
                BEFORE | AFTER => return self.write_stream(fd, cursor, flags),
                INSIDE => self.write_inside(fd, cursor)?,
                _ => Step::Full,
            }
        };
        self.follow_at_once(fd);
        Ok(step)
    }

    /// Called after bytes were put into the ring. If the peer has left meanwhile, sends them
    /// through TCP before the call returns: a peer with nothing unread does not warn of its end.
    fn follow_at_once(&self, fd: c_int) {
        if self.theirs().leaving() != Leaving::Stays
            && let Err(errno) = self.progress(fd)
        {
            self.keep_for_later(fd, errno);
        }
    }

    fn write_stream(&self, fd: c_int, cursor: &mut Cursor, flags: c_int) -> Result<Step> {
        let mut room = [NOTHING; LIST_MAX];
        let list = cursor.gather(usize::MAX, &mut room);
        if list.is_empty() {
            return Ok(Step::Moved);
        }
        // A write that has moved bytes raises no signal.
        let quiet = if cursor.moved > 0 { libc::MSG_NOSIGNAL } else { 0 };
        match sys::send_list(fd, list, flags | quiet | libc::MSG_DONTWAIT) {
            Ok(moved) => {
                cursor.advance(moved);
                add(&self.own().sent, moved as u64);
                Ok(Step::Moved)
            }
            Err(Errno(libc::EAGAIN)) => Ok(Step::Full),
            Err(errno) => Err(errno),
        }
    }

    /// Returns how many bytes of the ring the peer has not taken.
    pub(super) fn untaken(&self, fd: c_int) -> Result<u64> {
        let untaken = self.theirs().untaken(get(&self.own().written), self.ring_bytes());
        untaken.ok_or_else(|| self.fail(fd))
    }

    /// Returns how many bytes the ring has room for.
    pub(super) fn room(&self, fd: c_int) -> Result<u64> {
        Ok(self.room_max().saturating_sub(self.untaken(fd)?))
    }

    fn write_inside(&self, fd: c_int, cursor: &mut Cursor) -> Result<Step> {
        let own = self.own();
        let gone = if own.ended.load(Ordering::Relaxed) != 0 {
            self.is_peer_gone(fd)
        } else {
            self.is_look_due() && self.was_killed(fd)
        };
        if gone {
            return self.write_late(fd, cursor);
        }
        let mut room = self.room(fd)?;
        if room == 0 {
            self.ask(self.mine().starved());
            room = self.room(fd)?;
            if room == 0 {
                return Ok(Step::Full);
            }
        }
        let ring = self.outgoing_ring();
        let mut position = get(&own.written);
        while room > 0
            && let Some((from, length)) = cursor.segment()
        {
            let (to, length) = ring.run(position, room.min(length as u64));
            // SAFETY: `run` stays within the ring, and the segment is the application's buffer;
            // they do not overlap. The peer may change the bytes, which only it will read.
            unsafe { core::ptr::copy_nonoverlapping(from, to, length) };
            cursor.advance(length);
            position = position.wrapping_add(length as u64);
            room -= length as u64;
        }
        self.publish(fd, position);
        Ok(Step::Moved)
    }

    /// Writes to a peer that is gone. As in the kernel, the first bytes for a peer that had read
    /// everything are accepted and reveal its end; the next are refused.
    fn write_late(&self, fd: c_int, cursor: &mut Cursor) -> Result<Step> {
        let own = self.own();
        if let Some(errno) = own.take_error() {
            return Err(errno);
        }
        let had_read_all = self.end_of_killed() == Some(0);
        let is_reset = sys::poll_one(fd, 0, 0) & libc::POLLERR != 0 && !self.may_doorbell_reset();
        let was_late = own.late_bytes.swap(1, Ordering::Relaxed) != 0;
        if !had_read_all || is_reset || was_late {
            return Ok(Step::Plain);
        }
        while let Some((_, length)) = cursor.segment() {
            cursor.advance(length);
        }
        Ok(Step::Moved)
    }

    /// Publishes bytes up to `position`, and wakes the peer if it sleeps.
    fn publish(&self, fd: c_int, position: u64) {
        set(&self.own().written, position);
        self.mine().set_written(position);
        self.ring(fd, self.theirs().sleeping());
    }

    /// Fills the ring directly from a file. `None` if that is not possible; otherwise the number of
    /// bytes moved.
    pub(crate) fn write_file(
        &self,
        fd: c_int,
        from: c_int,
        offset: i64,
        count: usize,
    ) -> Result<Option<usize>> {
        if !self.progress(fd)? {
            return Ok(None);
        }
        let own = self.own();
        let guard = own.writer.take().ok_or(Errno(libc::EAGAIN))?;
        if self.is_resending() {
            self.refusals.fetch_add(1, Ordering::Relaxed);
            return Err(Errno(libc::EAGAIN));
        }
        if own.has_left()
            || own.shut_write.load(Ordering::Relaxed) != 0
            || own.outgoing.load(Ordering::Relaxed) != INSIDE
        {
            return Ok(None);
        }
        let mut room = self.room(fd)?;
        if room == 0 {
            self.ask(self.mine().starved());
            room = self.room(fd)?;
            if room == 0 {
                self.refusals.fetch_add(1, Ordering::Relaxed);
                return Err(Errno(libc::EAGAIN));
            }
        }
        let position = get(&own.written);
        let (to, length) = self.outgoing_ring().run(position, room.min(count as u64));
        let entry = libc::iovec { iov_base: to.cast(), iov_len: length };
        // SAFETY: the entry describes a free part of the ring.
        let moved = unsafe { real::preadv(from, &entry, 1, offset) };
        let moved = usize::try_from(moved).map_err(|_| Errno(sys::errno()))?;
        self.publish(fd, position.wrapping_add(moved as u64));
        drop(guard);
        self.follow_at_once(fd);
        Ok(Some(moved))
    }

    /// Returns whether the kernel has not been asked in this tick of its clock whether the peer
    /// lives.
    pub(crate) fn is_look_due(&self) -> bool {
        let tick_ns = sys::tick_ns();
        let due = self.looked_ns.load(Ordering::Relaxed) != tick_ns;
        if due {
            self.looked_ns.store(tick_ns, Ordering::Relaxed);
        }
        due
    }

    /// Returns whether the peer has ended without announcing that in the page.
    fn was_killed(&self, fd: c_int) -> bool {
        if !self.has_peer_ended(fd) {
            return false;
        }
        self.note_end();
        self.is_peer_gone(fd)
    }

    /// After the peer's end of stream: returns whether the peer has closed the connection, not only
    /// its direction. The kernel answers a doorbell to a closed socket with a reset.
    pub(super) fn is_peer_gone(&self, fd: c_int) -> bool {
        if sys::poll_one(fd, 0, 0) & (libc::POLLHUP | libc::POLLERR) != 0 {
            return true;
        }
        self.ring_now(fd);
        sys::poll_one(fd, 0, 0) & (libc::POLLHUP | libc::POLLERR) != 0
    }

    /// Executes the requests in the peer's half of the page. `false`: the descriptor is plain now.
    pub(crate) fn progress(&self, fd: c_int) -> Result<bool> {
        let own = self.own();
        if own.has_left() {
            self.become_plain(fd);
            return Ok(false);
        }
        let outgoing = own.outgoing.load(Ordering::Relaxed);
        let leaving = self.theirs().leaving();
        match outgoing {
            BEFORE if self.page().standing.is_accepted() => {
                self.switch(fd)?;
            }
            BEFORE => return Ok(true),
            INSIDE if leaving != Leaving::Stays => self.follow(fd, leaving)?,
            RESENDING => {
                self.resend(fd)?;
                if own.outgoing.load(Ordering::Relaxed) == AFTER {
                    // The socket has room now, which a kernel event may not announce any more.
                    self.notify_watchers(Change::Readiness);
                }
            }
            AFTER if own.incoming.load(Ordering::Relaxed) == AFTER && !self.is_near_end() => {
                own.set_left();
                self.become_plain(fd);
                return Ok(false);
            }
            _ => (),
        }
        Ok(true)
    }

    /// Returns whether the descriptor should not become plain any more: an error has still to be
    /// reported, or the peer has closed the connection, and returning it to an epoll set would
    /// report events again.
    fn is_near_end(&self) -> bool {
        let closed = self.theirs().leaving() == Leaving::Closed;
        self.own().has_error() || (closed && self.watchers.load(Ordering::Relaxed) > 0)
    }

    /// Switches to the ring, unless the peer has forbidden it.
    pub(crate) fn switch(&self, fd: c_int) -> Result<()> {
        let own = self.own();
        let _guard = own.writer.take().ok_or(Errno(libc::EAGAIN))?;
        if own.outgoing.load(Ordering::Relaxed) != BEFORE {
            return Ok(());
        }
        set(&own.switched_at, get(&own.sent));
        let is_in_ring = self.mine().enter_ring(get(&own.sent));
        if is_in_ring {
            self.make_prompt(fd);
            self.note_buffers(fd);
            self.note_linger(fd);
        }
        own.outgoing.store(if is_in_ring { INSIDE } else { AFTER }, Ordering::Relaxed);
        if self.side() == page::CLIENT {
            statistics::count(Why::Connected);
        }
        Ok(())
    }

    /// Handles a peer that returns to TCP: follows it, and sends again what the peer leaves in the
    /// ring.
    fn follow(&self, fd: c_int, how: Leaving) -> Result<()> {
        let own = self.own();
        {
            let _guard = own.writer.take().ok_or(Errno(libc::EAGAIN))?;
            if own.outgoing.load(Ordering::Relaxed) != INSIDE {
                return Ok(());
            }
            let untaken = self.untaken(fd)?;
            let written = get(&own.written);
            if how == Leaving::Closed && untaken > 0 {
                // The kernel answers bytes for a closed socket with a reset, also this doorbell.
                self.ring_now(fd);
            }
            let position = match how {
                Leaving::Leaves => written.wrapping_sub(untaken),
                // The peer may leave later, and bytes in the ring would then be lost for the
                // descriptor's next user.
                Leaving::Returns => self.recall(fd, true),
                _ => written,
            };
            if how == Leaving::Returns && position != written && self.was_killed(fd) {
                // As the kernel reports it for a peer that was killed with bytes unread.
                own.keep_error(libc::ECONNRESET);
            }
            self.send_again_from(fd, position);
            if how != Leaving::Closed {
                statistics::count(Why::Peer);
            }
        }
        self.resend(fd)
    }

    /// Ends the outgoing direction's use of the ring at a position; the bytes after it have to be
    /// sent again. Until that is done this process may be killed or exit. A connection that ends
    /// with bytes missing must not look like a regular end, so the kernel is set to reset it. The
    /// caller holds the writer's lock.
    pub(super) fn send_again_from(&self, fd: c_int, position: u64) {
        let own = self.own();
        set(&own.resend_from, position);
        if position != get(&own.written) {
            self.end_with_reset(fd);
        }
        own.outgoing.store(RESENDING, Ordering::Relaxed);
        set(&own.returned_at, position);
        self.mine().set_returned_at(position);
    }

    /// Sends again what the peer left in the ring, as much as the socket takes.
    pub(super) fn resend(&self, fd: c_int) -> Result<()> {
        let _guard = self.own().writer.take().ok_or(Errno(libc::EAGAIN))?;
        self.resend_locked(fd);
        Ok(())
    }

    /// Does what [`Connection::resend`] does, for a caller that holds the writer's lock.
    pub(super) fn resend_locked(&self, fd: c_int) {
        let own = self.own();
        if own.outgoing.load(Ordering::Relaxed) != RESENDING {
            return;
        }
        let had_gone = self.has_left_unread() && self.has_peer_ended(fd);
        let paid = if self.is_broken(fd) { Err(Errno(libc::EPIPE)) } else { self.pay(fd) };
        if paid.is_err_and(is_local) {
            return;
        }
        if let Err(errno) = paid {
            self.keep_for_later(fd, errno);
        }
        let ring = self.outgoing_ring();
        let end = get(&own.written);
        while paid.is_ok() && get(&own.resend_from) != end {
            let from = get(&own.resend_from);
            let (at, length) = ring.run(from, end.wrapping_sub(from).min(self.ring_bytes()));
            match sys::send_quietly(fd, at, length) {
                Ok(moved) => set(&own.resend_from, from.wrapping_add(moved as u64)),
                Err(Errno(libc::EAGAIN)) => return,
                Err(errno) if is_local(errno) => return,
                Err(errno) => {
                    self.keep_for_later(fd, errno);
                    break;
                }
            }
        }
        own.outgoing.store(AFTER, Ordering::Relaxed);
        if had_gone && sys::wait_until(ANSWER_TURNS, || sys::is_acknowledged(fd)) {
            self.keep_reset(fd);
        }
        self.end_as_asked(fd);
        self.restore_options(fd);
    }

    /// Returns whether the peer left with unread bytes, which are being sent again.
    fn has_left_unread(&self) -> bool {
        let leaves = self.theirs().leaving() == Leaving::Leaves;
        leaves && get(&self.own().resend_from) != get(&self.own().written)
    }

    /// If the kernel has reset the connection because the peer closed it or was killed with unread
    /// bytes, keeps ECONNRESET for the application, as the kernel reports it if the bytes are in
    /// the socket.
    fn keep_reset(&self, fd: c_int) {
        if sys::poll_one(fd, 0, 0) & (libc::POLLHUP | libc::POLLERR) != 0 {
            // Clears the kernel's own error, which would be reported as well.
            let _ = sys::option(fd, libc::SOL_SOCKET, libc::SO_ERROR);
            self.own().keep_error(libc::ECONNRESET);
        }
    }
}
