//! Buffers: a message that has arrived, or room for one (paper, section 3.1.3).

use super::types::{XIO_ANY, XIO_NONE, xio_buffer, xio_handle};
use super::{Table, no_flow, on_flow, on_table};
use crate::failure::{Failure, status, value};
use crate::slots::Slots;
use crate::text::duration_of;
use fable::{Error, Flow, ReadBuffer, WriteBuffer};
use libc::{c_int, c_void};
use std::ptr;
use std::time::Duration;

/// Buffers that one call gives at most.
const BATCH_MAX: usize = 4096;
/// The size of a write buffer for callers that name none: large enough that the costs of a message
/// do not count, small enough for several to fit into a ring.
const PREFERRED_BYTES: usize = 1 << 16;

const STALE: Failure = Failure::own(
    libc::ESTALE,
    "the buffer is not in the caller's hands (any more): it was released or committed, or is \
     another thread's, or struct xio_buffer was changed beyond its bytes",
);

/// A buffer in the caller's hands.
pub(crate) struct Held {
    home: xio_handle,
    data: *mut c_void,
    bytes: usize,
    buffer: Buffer,
}

enum Buffer {
    Read(ReadBuffer),
    Write(WriteBuffer),
}

impl Held {
    /// A buffer that is going to be kept.
    fn new(home: xio_handle, buffer: Buffer) -> Held {
        Held { home, data: ptr::null_mut(), bytes: 0, buffer }
    }

    /// What C is told of a buffer, once it has its place.
    fn show(&mut self, token: i64) -> xio_buffer {
        let (data, epoch);
        (data, self.bytes, epoch) = match &mut self.buffer {
            Buffer::Read(message) => (message.as_ptr().cast_mut(), message.len(), message.epoch()),
            Buffer::Write(room) => (room.as_mut_ptr(), room.len(), room.epoch()),
        };
        self.data = data.cast();
        let Held { home: handle, data, bytes, .. } = *self;
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

/// Gives buffers to the caller: the first may be waited for, further ones are taken as long as
/// there are some.
///
/// # Safety
///
/// `buffers` must be null or point to `limit` structs.
unsafe fn give(
    held: &mut Slots<Held>,
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
            // What is wrong now will be wrong at the next call.
            Err(_) if given > 0 => break,
            Err(failure) => return Err(failure),
        };
        let token = held.keep(Held::new(home, buffer));
        let Some(held) = held.get(token) else { break };
        // SAFETY: the caller has room for `limit` buffers.
        unsafe { buffers.add(given).write(held.show(token)) };
        given += 1;
    }
    Ok(given as c_int)
}

/// Obtains messages that have arrived, in their order, at most limit of them (paper, Table 2).
///
/// timeout_ms: 0 to take what is there, as in the paper; below 0 to wait for the first message for
/// ever, which is the fastest way to wait for a single flow. Only the first is waited for. Flows of
/// tcp:// and unix:// names have no messages: their buffers hold whatever bytes have arrived.
///
/// The bytes stay as they are until xio_release() or xio_commit(), also after xio_close(). A
/// trusted peer (enum xio_trust) could change them; it has promised not to.
///
/// Returns how many, 0 if there was none in time, or -1 and errno.
///
/// Errors:
///   ENODATA     the peer has ended its direction, and all that it sent has been obtained
///   ECONNRESET  the peer is gone without that; what could still be delivered has been obtained
///   ENOSPC      the caller holds too many buffers: release some, if need be after copying them
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
        // SAFETY: the caller vouches for the array.
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

/// Allocates buffers for messages, at most limit of them, each of that many bytes (paper, Table 2);
/// XIO_ANY stands for a size that suits long transfers. Fill them, and commit them in the order of
/// the array. This is where back-pressure happens: there may be room for fewer or for none.
///
/// timeout_ms: 0 to take the room that is there; below 0 to wait for the first buffer for ever.
///
/// Returns how many, 0 if there was no room in time, or -1 and errno.
///
/// Errors:
///   EMSGSIZE    no message of the flow is that long: mp_error() says what the limit is
///   EPIPE       xio_shutdown() has ended this direction
///   ECONNRESET  the peer is gone
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
        // SAFETY: the caller vouches for the array.
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

/// What the caller says about a buffer, and what is true of it.
///
/// # Safety
///
/// `buffer` must be null or point to a whole struct.
unsafe fn look_up(
    held: &mut Slots<Held>,
    buffer: *const xio_buffer,
) -> Result<(xio_buffer, &mut Held), Failure> {
    if buffer.is_null() {
        return Err(Failure::NULL);
    }
    // SAFETY: the caller vouches for the pointer.
    let said = unsafe { buffer.read() };
    let held = held.get(said.token as i64).ok_or(STALE)?;
    if (held.home, held.data) != (said.handle, said.data) {
        return Err(STALE);
    }
    Ok((said, held))
}

/// Releases a buffer: returns the memory of a message, or gives room up unused (paper, Table 2).
/// Order does not matter. *buffer is cleared.
///
/// Errors:
///   ESTALE  the buffer is not in the caller's hands (any more)
///
/// # Safety
///
/// buffer must point to a whole struct.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xio_release(buffer: *mut xio_buffer) -> c_int {
    status(on_table(|table| {
        // SAFETY: the caller vouches for the pointer.
        let (said, _) = unsafe { look_up(&mut table.buffers, buffer) }?;
        table.buffers.take(said.token as i64);
        // SAFETY: as above.
        unsafe { buffer.write(GONE) };
        Ok(())
    }))
}

/// Commits a buffer for writing to a flow (paper, Table 2): its first buffer->bytes bytes are one
/// message. They must not change afterwards. *buffer is cleared.
///
/// A write buffer goes to the flow that it is of, and never has to wait. A message that has arrived
/// may go to any flow of the thread, also to its own (paper, section 3.1.3): it is copied into
/// memory of that flow's transport, and released.
///
/// If it fails with one of the errors below, the buffer is the caller's still, and so is a message
/// with whatever error. If it fails otherwise, the flow is broken; a write buffer is gone, and
/// *buffer is cleared.
///
/// Errors:
///   ESTALE    the buffer is not in the caller's hands (any more)
///   EBADF     handle is unknown, or closed
///   EINVAL    buffer->bytes is more than there was; or it was changed and the buffer is a message
///   EXDEV     a write buffer is of another flow than handle
///   EAGAIN    a message: the flow that it should go to has no room now; xpoll() tells of it
///   EMSGSIZE  a message: longer than the flow that it should go to takes
///   EPIPE     a message: xio_shutdown() has ended this direction
///
/// # Safety
///
/// buffer must point to a whole struct.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn xio_commit(handle: xio_handle, buffer: *mut xio_buffer) -> c_int {
    status(on_table(|table| {
        // SAFETY: the caller vouches for the pointer.
        let (said, held) = unsafe { look_up(&mut table.buffers, buffer) }?;
        check(handle, &said, held)?;
        let committed = commit(table, handle, &said);
        if table.buffers.get(said.token as i64).is_none() {
            // SAFETY: as above.
            unsafe { buffer.write(GONE) };
        }
        committed
    }))
}

fn check(handle: xio_handle, said: &xio_buffer, held: &Held) -> Result<(), Failure> {
    match held.buffer {
        Buffer::Write(_) if handle != held.home => Err(Failure::own(
            libc::EXDEV,
            "the write buffer is of another flow: commit it there, or release it and obtain one \
             of this flow",
        )),
        Buffer::Write(_) if said.bytes > held.bytes => {
            Err(Failure::invalid("buffer->bytes is more than xio_getwritebuf gave"))
        }
        Buffer::Read(_) if said.bytes != held.bytes => Err(Failure::invalid(
            "a message is sent on whole: leave buffer->bytes, or copy into a write buffer",
        )),
        _ => Ok(()),
    }
}

/// Commits a buffer that has been checked.
fn commit(table: &mut Table, handle: xio_handle, said: &xio_buffer) -> Result<(), Failure> {
    let Some(flow) = table.flows.get(handle) else { return Err(no_flow(handle)) };
    let held = table.buffers.take(said.token as i64).ok_or(STALE)?;
    match held.buffer {
        Buffer::Write(room) => Ok(room.commit_first(said.bytes)?),
        Buffer::Read(message) => message.commit_into(flow).map_err(|(error, message)| {
            let held = Held { buffer: Buffer::Read(message), ..held };
            table.buffers.put_back(said.token as i64, held);
            error.into()
        }),
    }
}
