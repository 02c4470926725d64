//! Implements the calls on buffers: a message that has arrived, or memory for one (paper, section
//! 3.1.3).

use super::types::{XIO_ANY, XIO_NONE, xio_buffer, xio_handle};
use super::{Table, no_flow, on_flow, on_table};
use crate::failure::{Failure, status, value};
use crate::slots::Slots;
use crate::text::duration_of;
use fable::{Error, Flow, ReadBuffer, WriteBuffer};
use libc::{c_int, c_void};
use std::ptr;
use std::time::Duration;

/// Maximum number of buffers that one call returns.
const BATCH_MAX: usize = 4096;
/// The size of a write buffer for callers that name none: large enough that the costs of a message
/// do not matter, small enough for several to fit into a ring.
const PREFERRED_BYTES: usize = 1 << 16;

const STALE: Failure = Failure::own(
    libc::ESTALE,
    "the caller does not own the buffer: it was released or committed, belongs to another thread, \
     or struct xio_buffer was changed in other fields than bytes; obtain a new one",
);

/// A buffer that the caller holds.
pub(crate) struct HeldBuffer {
    home: xio_handle,
    data: *mut c_void,
    bytes: usize,
    buffer: Buffer,
}

enum Buffer {
    Read(ReadBuffer),
    Write(WriteBuffer),
}

impl HeldBuffer {
    /// Creates the entry of a buffer.
    fn new(home: xio_handle, buffer: Buffer) -> HeldBuffer {
        HeldBuffer { home, data: ptr::null_mut(), bytes: 0, buffer }
    }

    /// Returns the struct that describes the buffer to C, after it has got its number.
    fn show(&mut self, token: i64) -> xio_buffer {
        let (data, epoch);
        (data, self.bytes, epoch) = match &mut self.buffer {
            Buffer::Read(message) => (message.as_ptr().cast_mut(), message.len(), message.epoch()),
            Buffer::Write(room) => (room.as_mut_ptr(), room.len(), room.epoch()),
        };
        self.data = data.cast();
        let HeldBuffer { home: handle, data, bytes, .. } = *self;
        xio_buffer { data, bytes, handle, token: token as u64, epoch, reserved: 0 }
    }
}

const GONE: xio_buffer = xio_buffer {
    data: ptr::null_mut(),
    bytes: 0,
    handle: XIO_NONE,
    token: 0,
    epoch: 0,
    reserved: 0,
};

/// Returns buffers to the caller: waits for the first one, and takes further ones as long as there
/// are any.
///
/// # Safety
///
/// `buffers` must be null or point to `limit` structs.
unsafe fn give(
    held: &mut Slots<HeldBuffer>,
    home: xio_handle,
    buffers: *mut xio_buffer,
    limit: c_int,
    timeout_ms: c_int,
    mut next: impl FnMut(Option<Duration>) -> Result<Buffer, Failure>,
) -> Result<c_int, Failure> {
    if buffers.is_null() {
        return Err(Failure::NULL);
    }
    let limit = usize::try_from(limit).unwrap_or(0).min(BATCH_MAX);
    if limit == 0 {
        return Err(Failure::invalid("limit must be at least 1"));
    }
    let mut given = 0;
    while given < limit && !held.is_full() {
        let timeout = if given == 0 { duration_of(timeout_ms) } else { Some(Duration::ZERO) };
        let buffer = match next(timeout) {
            Ok(buffer) => buffer,
            Err(Failure::Flow(Error::WouldBlock | Error::TimedOut)) => break,
            // The error will recur at the next call, which reports it.
            Err(_) if given > 0 => break,
            Err(failure) => return Err(failure),
        };
        let token = held.keep(HeldBuffer::new(home, buffer));
        let Some(held) = held.get(token) else { break };
        // SAFETY: the caller guarantees room for `limit` buffers.
        unsafe { buffers.add(given).write(held.show(token)) };
        given += 1;
    }
    Ok(given as c_int)
}

/// Obtains messages that have arrived, in their order, at most limit of them (paper, Table 2).
///
/// timeout_ms: 0 to take the available messages, as in the paper; below 0 to wait for the first
/// message without a limit, which is the fastest way to wait for a single flow. The call waits only
/// for the first message. Flows of tcp:// and unix:// names have no messages: their buffers hold
/// the bytes that have arrived.
///
/// The bytes do not change until xio_release() or xio_commit(), not even after xio_close(). A
/// trusted peer (enum xio_trust) could change them; it has guaranteed not to.
///
/// Returns the number of messages, 0 if none arrived in time, or -1 and errno.
///
/// Errors:
///   ENODATA     the peer has ended its direction, and all that it sent has been obtained
///   ECONNRESET  the peer ended without that; all that could be delivered has been obtained
///   ENOSPC      the caller holds too many buffers: release some, after copying them if necessary
///   EINVAL      limit is below 1
///
/// # Safety
///
/// buffers must point to limit structs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xio_getreadbuf(
    handle: xio_handle,
    buffers: *mut xio_buffer,
    limit: c_int,
    timeout_ms: c_int,
) -> c_int {
    let given = on_flow(handle, |flow, held| {
        let next = |timeout| match read(flow, timeout)? {
            Some(message) => Ok(Buffer::Read(message)),
            None => Err(Failure::own(
                libc::ENODATA,
                "the peer has ended its direction of the flow, and all that it sent was obtained",
            )),
        };
        // SAFETY: the caller guarantees that the array is valid.
        unsafe { give(held, handle, buffers, limit, timeout_ms, next) }
    });
    value(given, -1)
}

fn read(flow: &Flow, timeout: Option<Duration>) -> Result<Option<ReadBuffer>, Error> {
    match timeout {
        Some(Duration::ZERO) => flow.try_read(),
        Some(timeout) => flow.read_timeout(timeout),
        None => flow.read(),
    }
}

/// Allocates buffers for messages, at most limit of them, each of that many bytes (paper, Table 2).
/// XIO_ANY stands for a size that suits long transfers. Fill them, and commit them in the order of
/// the array. This call implements back-pressure: there may be room for fewer buffers or for none.
///
/// timeout_ms: 0 to take the available room; below 0 to wait for the first buffer without a limit.
///
/// Returns the number of buffers, 0 if there was no room in time, or -1 and errno.
///
/// Errors:
///   EMSGSIZE    no message of the flow may be that long: mp_error() names the limit
///   EPIPE       xio_shutdown() has ended this direction
///   ECONNRESET  the peer has ended
///   ENOSPC      the caller holds too many buffers: commit or release some
///   EINVAL      limit is below 1
///
/// # Safety
///
/// buffers must point to limit structs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xio_getwritebuf(
    handle: xio_handle,
    bytes: usize,
    buffers: *mut xio_buffer,
    limit: c_int,
    timeout_ms: c_int,
) -> c_int {
    let given = on_flow(handle, |flow, held| {
        let preferred = || flow.message_bytes_max().min(PREFERRED_BYTES);
        let bytes = if bytes == XIO_ANY as usize { preferred() } else { bytes };
        let next = |timeout| Ok(Buffer::Write(write(flow, bytes, timeout)?));
        // SAFETY: the caller guarantees that the array is valid.
        unsafe { give(held, handle, buffers, limit, timeout_ms, next) }
    });
    value(given, -1)
}

fn write(flow: &Flow, bytes: usize, timeout: Option<Duration>) -> Result<WriteBuffer, Error> {
    match timeout {
        Some(Duration::ZERO) => flow.try_write(bytes),
        Some(timeout) => flow.write_timeout(bytes, timeout),
        None => flow.write(bytes),
    }
}

/// Returns the caller's struct of a buffer, and the entry that belongs to it.
///
/// # Safety
///
/// `buffer` must be null or point to a whole struct.
unsafe fn look_up(
    held: &mut Slots<HeldBuffer>,
    buffer: *const xio_buffer,
) -> Result<(xio_buffer, &mut HeldBuffer), Failure> {
    if buffer.is_null() {
        return Err(Failure::NULL);
    }
    // SAFETY: the caller guarantees that the pointer is valid.
    let said = unsafe { buffer.read() };
    let held = held.get(said.token as i64).ok_or(STALE)?;
    if (held.home, held.data) != (said.handle, said.data) {
        return Err(STALE);
    }
    Ok((said, held))
}

/// Releases a buffer: returns the memory of a message, or frees unused room (paper, Table 2).
/// Buffers may be released in any order. *buffer is cleared.
///
/// Errors:
///   ESTALE  the caller does not hold the buffer (any more)
///
/// # Safety
///
/// buffer must point to a whole struct.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xio_release(buffer: *mut xio_buffer) -> c_int {
    status(on_table(|table| {
        // SAFETY: the caller guarantees that the pointer is valid.
        let (said, _) = unsafe { look_up(&mut table.buffers, buffer) }?;
        table.buffers.take(said.token as i64);
        // SAFETY: the caller guarantees that the pointer is valid.
        unsafe { buffer.write(GONE) };
        Ok(())
    }))
}

/// Commits a buffer for writing to a flow (paper, Table 2): its first buffer->bytes bytes are one
/// message. They must not change afterwards. *buffer is cleared.
///
/// A write buffer goes to its own flow, and never has to wait. A message that has arrived may go to
/// any flow of the thread, also to its own (paper, section 3.1.3): it is copied into memory of that
/// flow's transport, and released.
///
/// If the call fails with one of the errors below, the buffer still belongs to the caller; so does
/// a message after any error. If it fails otherwise, the flow is broken; a write buffer is lost,
/// and *buffer is cleared.
///
/// Errors:
///   ESTALE    the caller does not hold the buffer (any more)
///   EBADF     handle is unknown, or closed
///   EINVAL    buffer->bytes is more than there was; or it was changed and the buffer is a message
///   EXDEV     a write buffer belongs to another flow than handle
///   EAGAIN    a message: the flow that should send it has no room now; xpoll() reports room
///   EMSGSIZE  a message: longer than the flow that should send it permits
///   EPIPE     a message: xio_shutdown() has ended this direction
///
/// # Safety
///
/// buffer must point to a whole struct.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xio_commit(handle: xio_handle, buffer: *mut xio_buffer) -> c_int {
    status(on_table(|table| {
        // SAFETY: the caller guarantees that the pointer is valid.
        let (said, held) = unsafe { look_up(&mut table.buffers, buffer) }?;
        check(handle, &said, held)?;
        let committed = commit(table, handle, &said);
        if table.buffers.get(said.token as i64).is_none() {
            // SAFETY: the caller guarantees that the pointer is valid.
            unsafe { buffer.write(GONE) };
        }
        committed
    }))
}

fn check(handle: xio_handle, said: &xio_buffer, held: &HeldBuffer) -> Result<(), Failure> {
    match held.buffer {
        Buffer::Write(_) if handle != held.home => Err(Failure::own(
            libc::EXDEV,
            "the write buffer is of another flow: commit it there, or release it and obtain one \
             of this flow",
        )),
        Buffer::Write(_) if said.bytes > held.bytes => Err(Failure::invalid(
            "buffer->bytes exceeds the size that xio_getwritebuf returned: leave or lower it",
        )),
        Buffer::Read(_) if said.bytes != held.bytes => Err(Failure::invalid(
            "a received message can only be forwarded whole: do not change buffer->bytes, or copy \
             it into a write buffer",
        )),
        _ => Ok(()),
    }
}

/// Commits a buffer that was checked.
fn commit(table: &mut Table, handle: xio_handle, said: &xio_buffer) -> Result<(), Failure> {
    let Some(flow) = table.flows.get(handle) else { return Err(no_flow(handle)) };
    let held = table.buffers.take(said.token as i64).ok_or(STALE)?;
    match held.buffer {
        Buffer::Write(room) => Ok(room.commit_first(said.bytes)?),
        Buffer::Read(message) => message.commit_into(flow).map_err(|(error, message)| {
            let held = HeldBuffer { buffer: Buffer::Read(message), ..held };
            table.buffers.put_back(said.token as i64, held);
            error.into()
        }),
    }
}
