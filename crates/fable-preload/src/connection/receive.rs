//! The incoming direction.

use core::ffi::c_int;
use core::sync::atomic::{Ordering, fence};

use super::Connection;
use super::doorbell::{Stream, is_local};
use super::own::{AFTER, BEFORE, INSIDE, add, get, set};
use crate::cursor::Cursor;
use crate::page;
use crate::sys::{self, Errno, Result};

/// How an application reads.
#[derive(Clone, Copy)]
pub(crate) struct Reading {
    flags: c_int,
    nonblocking: bool,
    takes_nothing: bool,
    /// Urgent data end it.
    stops_at_urgent: bool,
}

impl Reading {
    /// A read with the flags of recv(2).
    pub(crate) fn new(connection: &Connection, flags: c_int) -> Self {
        let nonblocking = flags & libc::MSG_DONTWAIT != 0 || connection.own().is_nonblocking();
        Reading { flags, nonblocking, takes_nothing: false, stops_at_urgent: false }
    }

    /// A look at what splice(2) takes.
    pub(crate) fn splicing(connection: &Connection) -> Self {
        Reading { stops_at_urgent: true, ..Reading::new(connection, libc::MSG_PEEK) }
    }

    fn peeks(self) -> bool {
        self.flags & libc::MSG_PEEK != 0
    }

    /// Nothing is to be copied, the bytes are only to be taken (tcp(7)).
    fn drops(self) -> bool {
        self.flags & libc::MSG_TRUNC != 0
    }

    fn wants_all(self) -> bool {
        self.flags & libc::MSG_WAITALL != 0 && !self.peeks() && !self.nonblocking
    }
}

/// Buffers of one call of the kernel.
pub(super) const LIST_MAX: usize = 64;
pub(super) const NOTHING: libc::iovec = libc::iovec { iov_base: core::ptr::null_mut(), iov_len: 0 };

/// What one attempt brought.
enum Step {
    Moved,
    End,
    Empty,
    Plain,
}

/// Whether bytes may be taken from the ring.
enum Taking {
    Granted,
    /// They come through TCP.
    Recalled,
    /// The peer is about to say so.
    Undecided,
}

impl Connection {
    /// Reads as recv(2) does; `None` means that the descriptor is plain and the kernel is to be
    /// asked.
    pub(crate) fn read(
        &self,
        fd: c_int,
        cursor: &mut Cursor,
        reading: Reading,
    ) -> Result<Option<usize>> {
        if cursor.is_done() {
            return self.read_nothing(fd, reading);
        }
        let (given, mut fd) = (fd, fd);
        let mut sleeper = None;
        loop {
            let step = match self.read_step(fd, cursor, reading) {
                Err(errno) if cursor.moved == 0 => return Err(errno),
                Err(errno) => {
                    self.keep_for_later(fd, errno);
                    Step::End
                }
                Ok(step) => step,
            };
            match step {
                Step::Plain if cursor.moved == 0 && fd == given => {
                    return self.own().take_error().map_or(Ok(None), Err);
                }
                Step::Plain if cursor.moved == 0 => {
                    let mut room = [NOTHING; LIST_MAX];
                    let list = cursor.gather(usize::MAX, &mut room);
                    return sys::receive_list(fd, list, reading.flags).map(Some);
                }
                Step::Plain => return Ok(Some(self.read_rest(fd, cursor, reading))),
                Step::Moved if reading.wants_all() && !cursor.is_done() => (),
                Step::Moved | Step::End => {
                    if !cursor.is_done() {
                        self.dry_reads.fetch_add(1, Ordering::Relaxed);
                    }
                    return Ok(Some(cursor.moved));
                }
                Step::Empty if reading.nonblocking => {
                    self.dry_reads.fetch_add(1, Ordering::Relaxed);
                    return Err(Errno(libc::EAGAIN));
                }
                Step::Empty => {
                    if sleeper.is_none() {
                        sleeper = self.sleeper();
                    }
                    let now = |fd| sleeper.as_ref().map_or(fd, |sleeper| sleeper.descriptor(fd));
                    fd = now(fd);
                    let slept = self.wait_readable(fd, reading.stops_at_urgent);
                    fd = now(fd);
                    match slept {
                        // The kernel ends such a read with whatever wakes it.
                        Err(Errno(libc::EINTR)) if reading.takes_nothing => return Ok(Some(0)),
                        Err(errno) if cursor.moved == 0 => return Err(errno),
                        Err(errno) => {
                            self.keep_for_later(fd, errno);
                            return Ok(Some(cursor.moved));
                        }
                        Ok(()) if reading.stops_at_urgent && is_urgent(fd) => return Ok(Some(0)),
                        Ok(()) => (),
                    }
                }
            }
        }
    }

    /// Goes on with a read that has moved something, after the descriptor became plain. The kernel
    /// is not asked what it would tell once: that belongs to the next call.
    fn read_rest(&self, fd: c_int, cursor: &mut Cursor, reading: Reading) -> usize {
        let timeout_ms = sys::time_limit_ms(fd, libc::SO_RCVTIMEO);
        while reading.wants_all() && !cursor.is_done() {
            let found = sys::poll_one(fd, libc::POLLIN, timeout_ms);
            if found == 0 || found & libc::POLLERR != 0 {
                break;
            }
            match read_stream(fd, cursor, reading, usize::MAX) {
                Ok(Step::Moved | Step::Empty) => (),
                Ok(_) => break,
                Err(errno) => {
                    self.keep_for_later(fd, errno);
                    break;
                }
            }
        }
        cursor.moved
    }

    /// Reads into no room, which waits for bytes all the same and meets errors.
    fn read_nothing(&self, fd: c_int, reading: Reading) -> Result<Option<usize>> {
        let mut byte = [0_u8; 1];
        let entry = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
        // SAFETY: one entry is given, and the byte is ours.
        let mut cursor = unsafe { Cursor::new(&entry, 1) };
        let flags = reading.flags | libc::MSG_PEEK;
        let reading = Reading { flags, takes_nothing: true, stops_at_urgent: true, ..reading };
        Ok(self.read(fd, &mut cursor, reading)?.map(|_| 0))
    }

    fn read_step(&self, fd: c_int, cursor: &mut Cursor, reading: Reading) -> Result<Step> {
        if !self.progress(fd)? {
            return Ok(Step::Plain);
        }
        let own = self.own();
        let step = {
            let _guard = own.reader.take().ok_or(Errno(libc::EAGAIN))?;
            if own.has_left() {
                return Ok(Step::Plain);
            }
            if own.has_failed() {
                return Err(Errno(libc::ECONNRESET));
            }
            self.read_locked(fd, cursor, reading)?
        };
        fence(Ordering::SeqCst);
        let starved = &self.theirs().outgoing.starved;
        if starved.load(Ordering::Relaxed) != 0 && self.is_half_empty() {
            let _guard = own.writer.take().ok_or(Errno(libc::EAGAIN));
            self.ring(fd, starved);
        }
        Ok(step)
    }

    /// A writer is woken when that is worth it.
    fn is_half_empty(&self) -> bool {
        self.written_by_peer().wrapping_sub(get(&self.own().read)) <= self.ring_bytes() / 2
    }

    fn read_locked(&self, fd: c_int, cursor: &mut Cursor, reading: Reading) -> Result<Step> {
        let own = self.own();
        if own.incoming.load(Ordering::Relaxed) == BEFORE
            && let Some(step) = self.read_before(fd, cursor, reading)?
        {
            return Ok(step);
        }
        if own.incoming.load(Ordering::Relaxed) == INSIDE
            && let Some(step) = self.read_inside(fd, cursor, reading)?
        {
            return Ok(step);
        }
        match read_stream(fd, cursor, reading, usize::MAX)? {
            Step::End => own.take_error().map_or(Ok(Step::End), Err),
            step => Ok(step),
        }
    }

    /// How many bytes are still to come through TCP before the ring; `None` while undecided.
    pub(super) fn before_ring(&self, fd: c_int) -> Result<Option<u64>> {
        let switch_at = self.theirs().outgoing.switch_at.load(Ordering::Acquire);
        if switch_at == 0 {
            return Ok(None);
        }
        let left = (switch_at - 1).checked_sub(get(&self.own().received));
        left.map(Some).ok_or_else(|| self.fail(fd))
    }

    /// `None`: the direction is in its ring now.
    fn read_before(
        &self,
        fd: c_int,
        cursor: &mut Cursor,
        reading: Reading,
    ) -> Result<Option<Step>> {
        let own = self.own();
        if self.theirs().outgoing.mode.load(Ordering::Acquire) == page::FORBIDDEN {
            own.incoming.store(AFTER, Ordering::Relaxed);
            return Ok(None);
        }
        let mut left = self.before_ring(fd)?;
        if left.is_none() {
            // The peer may go over, and ring, between a look at the page and a read. So look at the
            // stream first and then at the page: what was there before the peer went over is data.
            if cursor.is_done() {
                return Ok(Some(Step::End));
            }
            let peeked = receive_into(fd, cursor, usize::MAX, libc::MSG_PEEK);
            left = self.before_ring(fd)?;
            if left.is_none() {
                let certain = match peeked {
                    Ok(0) => {
                        self.end_of_stream(fd);
                        return own.take_error().map_or(Ok(Some(Step::End)), Err);
                    }
                    Ok(certain) => certain,
                    Err(Errno(libc::EAGAIN)) => return Ok(Some(Step::Empty)),
                    Err(errno) => return Err(errno),
                };
                left = Some(certain as u64);
            }
        }
        let left = left.unwrap_or(0);
        if left == 0 {
            own.incoming.store(INSIDE, Ordering::Relaxed);
            return Ok(None);
        }
        let moved = cursor.moved;
        let step = read_stream(fd, cursor, reading, left as usize)?;
        if !reading.peeks() {
            add(&own.received, (cursor.moved - moved) as u64);
        }
        Ok(Some(step))
    }

    /// How far the ring holds bytes for this end: what the peer has written and not taken back.
    #[inline]
    pub(crate) fn written_by_peer(&self) -> u64 {
        let theirs = &self.theirs().outgoing;
        let written = theirs.written.load(Ordering::Acquire);
        if theirs.recalled.load(Ordering::Acquire) == 0 {
            return written;
        }
        theirs.returned_at.load(Ordering::Acquire).checked_sub(1).unwrap_or(written)
    }

    /// How many bytes the ring holds, checked.
    pub(super) fn filled(&self, fd: c_int) -> Result<u64> {
        let filled = self.written_by_peer().wrapping_sub(get(&self.own().read));
        if filled > self.ring_bytes() { Err(self.fail(fd)) } else { Ok(filled) }
    }

    /// `None`: the direction is back in TCP now.
    fn read_inside(
        &self,
        fd: c_int,
        cursor: &mut Cursor,
        reading: Reading,
    ) -> Result<Option<Step>> {
        let own = self.own();
        let filled = self.filled(fd)?;
        if filled > 0 {
            return match self.begin_taking(fd) {
                Taking::Granted => {
                    self.take(cursor, reading, filled);
                    Ok(Some(Step::Moved))
                }
                Taking::Recalled => self.read_inside(fd, cursor, reading),
                Taking::Undecided => Ok(Some(Step::Empty)),
            };
        }
        if self.theirs().outgoing.returned_at.load(Ordering::Acquire) != 0 {
            // What was written before it returned is visible now.
            if self.filled(fd)? > 0 {
                return self.read_inside(fd, cursor, reading);
            }
            let back = self.finish_return(fd)?;
            return Ok(if back { None } else { Some(Step::Empty) });
        }
        if own.shut_read.load(Ordering::Relaxed) != 0 {
            if self.has_peer_ended(fd) {
                self.note_end();
            }
            let mut byte = [0_u8; 1];
            if self.is_broken(fd)
                && let Err(errno) = sys::receive(fd, byte.as_mut_ptr(), 1, libc::MSG_PEEK)
            {
                // It is kept, unless a doorbell has caused it.
                let _ = self.broken(errno);
            }
            return own.take_error().map_or(Ok(Some(Step::End)), Err);
        }
        let stream = self.discard(fd);
        // Whatever the stream says, bytes in the ring were sent before.
        if self.filled(fd)? > 0 {
            return self.read_inside(fd, cursor, reading);
        }
        if let Some(errno) = own.take_error() {
            return Err(errno);
        }
        match stream? {
            Stream::Ended => Ok(Some(Step::End)),
            Stream::Open => Ok(Some(Step::Empty)),
        }
    }

    /// Takes the last doorbells out after the peer returned to TCP; whether all are out.
    pub(super) fn finish_return(&self, fd: c_int) -> Result<bool> {
        let own = self.own();
        let mut byte = [0_u8; 1];
        loop {
            let counted = self.theirs().outgoing.doorbells.load(Ordering::Acquire);
            if counted <= get(&own.discarded) {
                own.incoming.store(AFTER, Ordering::Relaxed);
                return Ok(true);
            }
            if self.owes() {
                return Ok(false);
            }
            match sys::receive(fd, byte.as_mut_ptr(), 1, 0) {
                Ok(1..) => add(&own.discarded, 1),
                Err(Errno(libc::EAGAIN)) => return Ok(false),
                // The stream ended or broke: the kernel tells the rest.
                Ok(0) => {
                    own.incoming.store(AFTER, Ordering::Relaxed);
                    return Ok(true);
                }
                Err(errno) => {
                    if is_local(errno) {
                        return Err(errno);
                    }
                    let _ = self.broken(errno);
                    own.incoming.store(AFTER, Ordering::Relaxed);
                    return Ok(true);
                }
            };
        }
    }

    /// Says that bytes are being taken, unless the peer takes them back.
    fn begin_taking(&self, fd: c_int) -> Taking {
        let taking = &self.mine().incoming.taking;
        taking.swap(1, Ordering::SeqCst);
        let theirs = &self.theirs().outgoing;
        if theirs.recalled.load(Ordering::SeqCst) == 0 {
            return Taking::Granted;
        }
        taking.store(0, Ordering::Release);
        let mut is_gone = false;
        sys::wait_until(1, || theirs.returned_at.load(Ordering::Acquire) != 0);
        if theirs.returned_at.load(Ordering::Acquire) == 0 {
            is_gone = self.has_peer_ended(fd);
        }
        if theirs.returned_at.load(Ordering::Acquire) != 0 {
            Taking::Recalled
        } else if is_gone {
            // It was killed before it had said from where it sends again, and never will.
            Taking::Granted
        } else {
            Taking::Undecided
        }
    }

    fn take(&self, cursor: &mut Cursor, reading: Reading, filled: u64) {
        let own = self.own();
        let ring = self.incoming_ring();
        let mut position = get(&own.read);
        let end = position.wrapping_add(filled);
        while position != end
            && let Some((to, room)) = cursor.segment()
        {
            let (from, length) = ring.run(position, end.wrapping_sub(position).min(room as u64));
            if !reading.drops() {
                // SAFETY: `run` stays in the ring, the segment is the application's buffer; they do
                // not overlap. The peer may change the bytes meanwhile, as it may change its data.
                unsafe { core::ptr::copy_nonoverlapping(from, to, length) };
            }
            cursor.advance(length);
            position = position.wrapping_add(length as u64);
        }
        if !reading.peeks() {
            set(&own.read, position);
            self.mine().incoming.read.store(position, Ordering::Release);
        }
        self.mine().incoming.taking.store(0, Ordering::Release);
    }
}

fn is_urgent(fd: c_int) -> bool {
    sys::poll_one(fd, libc::POLLPRI, 0) & libc::POLLPRI != 0
}

/// Reads from TCP, at most `limit` bytes and without sleeping.
fn read_stream(fd: c_int, cursor: &mut Cursor, reading: Reading, limit: usize) -> Result<Step> {
    let flags = reading.flags & !libc::MSG_WAITALL;
    match receive_into(fd, cursor, limit, flags) {
        Ok(0) => Ok(Step::End),
        Ok(moved) => {
            cursor.advance(moved);
            Ok(Step::Moved)
        }
        Err(Errno(libc::EAGAIN)) => Ok(Step::Empty),
        Err(errno) => Err(errno),
    }
}

/// recv(2) without sleeping into all buffers, at most `limit` bytes, which the cursor does not step
/// over.
fn receive_into(fd: c_int, cursor: &Cursor, limit: usize, flags: c_int) -> Result<usize> {
    let mut room = [NOTHING; LIST_MAX];
    let list = cursor.gather(limit, &mut room);
    if list.is_empty() { Ok(0) } else { sys::receive_list(fd, list, flags | libc::MSG_DONTWAIT) }
}
