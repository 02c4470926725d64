//! Reads from a connection: from TCP, from its incoming ring, and at the switches between them.

use core::ffi::c_int;
use core::sync::atomic::Ordering;

use super::Connection;
use super::doorbell::{DISCARDS_MAX, DOORBELLS_AT_ONCE, Stream, is_local};
use super::own::{AFTER, BEFORE, INSIDE, add, get, set};
use crate::cursor::Cursor;
use crate::page::Filled;
use crate::sys::{self, Errno, Result};

/// The mode of a read: flags and blocking.
#[derive(Clone, Copy)]
pub(crate) struct Reading {
    flags: c_int,
    nonblocking: bool,
    takes_nothing: bool,
    /// Whether urgent data end the read.
    stops_at_urgent: bool,
}

impl Reading {
    /// Makes the mode for the flags of recv(2).
    pub(crate) fn new(connection: &Connection, flags: c_int) -> Self {
        let nonblocking = flags & libc::MSG_DONTWAIT != 0 || connection.own().is_nonblocking();
        Reading { flags, nonblocking, takes_nothing: false, stops_at_urgent: false }
    }

    /// Makes the mode of a peek for splice(2).
    pub(crate) fn splicing(connection: &Connection) -> Self {
        Reading { stops_at_urgent: true, ..Reading::new(connection, libc::MSG_PEEK) }
    }

    fn peeks(self) -> bool {
        self.flags & libc::MSG_PEEK != 0
    }

    /// Returns whether bytes are taken without being copied (MSG_TRUNC, tcp(7)).
    fn drops(self) -> bool {
        self.flags & libc::MSG_TRUNC != 0
    }

    fn wants_all(self) -> bool {
        self.flags & libc::MSG_WAITALL != 0 && !self.peeks() && !self.nonblocking
    }
}

/// The most buffers of one system call.
pub(super) const LIST_MAX: usize = 64;
/// An empty buffer.
pub(super) const NOTHING: libc::iovec = libc::iovec { iov_base: core::ptr::null_mut(), iov_len: 0 };

/// The result of one attempt.
enum Step {
    Moved,
    End,
    Empty,
    Plain,
}

/// The result of one look at a direction that is in its ring.
enum Inside {
    Done(Step),
    /// The direction is back in TCP.
    Returned,
    /// The peer has changed the page meanwhile.
    Changed,
}

/// How often a read looks at the ring. An honest peer writes, recalls and returns once each while
/// this end looks.
const LOOKS_MAX: u32 = 8;

/// Whether bytes may be taken from the ring.
enum Taking {
    Granted,
    /// No: they come through TCP.
    Recalled,
    /// Not yet: the peer is about to publish its decision.
    Undecided,
}

impl Connection {
    /// Reads as recv(2) does. `None`: the descriptor is plain, and the caller has to call the
    /// kernel.
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
                    // As in the kernel, urgent data end a read of all that has moved bytes.
                    let stops = reading.stops_at_urgent || cursor.moved > 0;
                    let slept = self.wait_readable(fd, stops);
                    fd = now(fd);
                    match slept {
                        // The kernel ends a read of length zero at any wake-up.
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

    /// Continues a read that has moved bytes, after the descriptor became plain. Does not ask the
    /// kernel for errors, which the kernel reports once: they belong to the next call.
    fn read_rest(&self, fd: c_int, cursor: &mut Cursor, reading: Reading) -> usize {
        let timeout_ms = sys::time_limit_ms(fd, libc::SO_RCVTIMEO);
        while reading.wants_all() && !cursor.is_done() {
            let found = sys::poll_one(fd, libc::POLLIN | libc::POLLPRI, timeout_ms);
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

    /// Reads with a length of zero, which still waits for bytes and reports errors.
    fn read_nothing(&self, fd: c_int, reading: Reading) -> Result<Option<usize>> {
        let mut byte = [0_u8; 1];
        let entry = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
        // SAFETY: one entry is given, and the byte is a local variable.
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
        let starved = self.theirs().starved();
        if starved.check() && self.is_half_empty() {
            let _guard = own.writer.take().ok_or(Errno(libc::EAGAIN));
            self.ring(fd, starved);
        }
        Ok(step)
    }

    /// Returns whether the ring is at least half empty, so that waking the writer is worth its
    /// cost.
    fn is_half_empty(&self) -> bool {
        self.unread_bytes() <= self.ring_bytes() / 2
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

    /// Returns how many bytes will still come through TCP before the ring; `None` while undecided.
    pub(super) fn before_ring(&self, fd: c_int) -> Result<Option<u64>> {
        let Some(switch_at) = self.theirs().switch_at() else { return Ok(None) };
        let left = switch_at.checked_sub(get(&self.own().received));
        left.map(Some).ok_or_else(|| self.fail(fd))
    }

    /// Reads bytes that precede the ring. `None`: the direction is in its ring now.
    fn read_before(
        &self,
        fd: c_int,
        cursor: &mut Cursor,
        reading: Reading,
    ) -> Result<Option<Step>> {
        let own = self.own();
        if self.theirs().is_forbidden() {
            own.incoming.store(AFTER, Ordering::Relaxed);
            return Ok(None);
        }
        let mut left = self.before_ring(fd)?;
        if left.is_none() {
            // The peer can switch and send a doorbell between a check of the page and a read. So
            // this reads first the stream and then the page: bytes that arrived before the switch
            // are data.
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

    /// Returns how many bytes the ring holds, and resets the connection if that is impossible.
    pub(super) fn filled(&self, fd: c_int) -> Result<u64> {
        match self.theirs().filled(get(&self.own().read), self.ring_bytes()) {
            Filled::Bytes(bytes) => Ok(bytes),
            Filled::Impossible => Err(self.fail(fd)),
        }
    }

    /// Reads from the ring. `None`: the direction is back in TCP now.
    fn read_inside(
        &self,
        fd: c_int,
        cursor: &mut Cursor,
        reading: Reading,
    ) -> Result<Option<Step>> {
        for _ in 0..LOOKS_MAX {
            match self.look_inside(fd, cursor, reading)? {
                Inside::Done(step) => return Ok(Some(step)),
                Inside::Returned => return Ok(None),
                Inside::Changed => (),
            }
        }
        Err(self.fail(fd))
    }

    fn look_inside(&self, fd: c_int, cursor: &mut Cursor, reading: Reading) -> Result<Inside> {
        let own = self.own();
        let filled = self.filled(fd)?;
        if filled > 0 {
            return Ok(match self.begin_taking(fd) {
                Taking::Granted => {
                    self.take(cursor, reading, filled);
                    Inside::Done(Step::Moved)
                }
                Taking::Recalled => Inside::Changed,
                Taking::Undecided => Inside::Done(Step::Empty),
            });
        }
        if self.theirs().has_returned() {
            // The bytes that the peer wrote before it returned are visible now.
            if self.filled(fd)? > 0 {
                return Ok(Inside::Changed);
            }
            let back = self.finish_return(fd)?;
            return Ok(if back { Inside::Returned } else { Inside::Done(Step::Empty) });
        }
        if own.shut_read.load(Ordering::Relaxed) != 0 {
            return self.read_shut(fd).map(Inside::Done);
        }
        let stream = self.discard(fd);
        // Bytes in the ring were sent before the end of the stream.
        if self.filled(fd)? > 0 {
            return Ok(Inside::Changed);
        }
        if let Some(errno) = own.take_error() {
            return Err(errno);
        }
        Ok(Inside::Done(match stream? {
            Stream::Ended => Step::End,
            Stream::Open => Step::Empty,
        }))
    }

    /// Reads an empty ring after an own shutdown(SHUT_RD).
    fn read_shut(&self, fd: c_int) -> Result<Step> {
        if self.has_peer_ended(fd) {
            self.note_end();
        }
        let mut byte = [0_u8; 1];
        if self.is_broken(fd)
            && let Err(errno) = sys::receive(fd, byte.as_mut_ptr(), 1, libc::MSG_PEEK)
        {
            // The error is kept, unless a doorbell has caused it.
            let _ = self.broken(errno);
        }
        self.own().take_error().map_or(Ok(Step::End), Err)
    }

    /// Removes the last doorbells after the peer returned to TCP. Returns whether all are removed.
    pub(super) fn finish_return(&self, fd: c_int) -> Result<bool> {
        let own = self.own();
        let mut trash = [0_u8; DOORBELLS_AT_ONCE];
        for _ in 0..DISCARDS_MAX {
            let due = self.theirs().doorbells_due(get(&own.discarded)).unwrap_or(0);
            if due == 0 {
                own.incoming.store(AFTER, Ordering::Relaxed);
                return Ok(true);
            }
            if self.owes() {
                return Ok(false);
            }
            let length = due.min(trash.len() as u64) as usize;
            match sys::receive(fd, trash.as_mut_ptr(), length, 0) {
                // The stream ended or failed: the kernel reports the rest.
                Ok(0) => {
                    own.incoming.store(AFTER, Ordering::Relaxed);
                    return Ok(true);
                }
                Ok(taken) => self.count_discarded(taken),
                Err(Errno(libc::EAGAIN)) => return Ok(false),
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
        Ok(false)
    }

    /// Announces that bytes are being taken, unless the peer takes them back.
    fn begin_taking(&self, fd: c_int) -> Taking {
        self.mine().begin_taking();
        let theirs = self.theirs();
        if !theirs.is_recalling() {
            return Taking::Granted;
        }
        self.mine().end_taking();
        // First the stream, then the page: who ends its stream has said before what it sends again.
        let is_gone = !sys::wait_until(1, || theirs.has_returned()) && self.has_peer_ended(fd);
        if theirs.has_returned() {
            Taking::Recalled
        } else if is_gone {
            // The peer was killed before it published from where it sends again, and never will.
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
                // SAFETY: `run` stays within the ring, and the segment is the application's buffer;
                // they do not overlap. The peer may change the bytes meanwhile, which only changes
                // its own data.
                unsafe { core::ptr::copy_nonoverlapping(from, to, length) };
            }
            cursor.advance(length);
            position = position.wrapping_add(length as u64);
        }
        if !reading.peeks() {
            set(&own.read, position);
            self.mine().set_read(position);
        }
        self.mine().end_taking();
    }
}

fn is_urgent(fd: c_int) -> bool {
    sys::poll_one(fd, libc::POLLPRI, 0) & libc::POLLPRI != 0
}

/// Reads from TCP, at most `limit` bytes and without sleeping.
fn read_stream(fd: c_int, cursor: &mut Cursor, reading: Reading, limit: usize) -> Result<Step> {
    // As in the kernel, a read ends before urgent data, which the next one passes over.
    if reading.wants_all() && cursor.moved > 0 && sys::is_at_urgent(fd) {
        return Ok(Step::End);
    }
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

/// Calls recv(2) without sleeping into all buffers, for at most `limit` bytes; the cursor is not
/// advanced.
fn receive_into(fd: c_int, cursor: &Cursor, limit: usize, flags: c_int) -> Result<usize> {
    let mut room = [NOTHING; LIST_MAX];
    let list = cursor.gather(limit, &mut room);
    if list.is_empty() { Ok(0) } else { sys::receive_list(fd, list, flags | libc::MSG_DONTWAIT) }
}
