//! Reads and writes sockets of the stack, blocking or not.

use crate::outcome::{Outcome, failure, would_block};
use crate::state;
use crate::table::Handle;
use crate::vectors::Vectors;
use crate::wait::{self, Interrupted, KeptOpen};
use core::ffi::c_int;
use libc::{iovec, off_t};
use mtcp::{Context, Descriptor, Events, Flags};
use preload::deadline::Deadline;
use std::ptr;
use std::time::Duration;

/// Bytes of a file that are read at once for sending.
const FILE_CHUNK: usize = 64 << 10;

/// Bytes of the buffer for discarded data, and the most times that one call fills it.
const DISCARD_CHUNK: usize = 64 << 10;
const DISCARDS_MAX: usize = 1024;

/// Reads how long calls of one direction wait.
type TimeLimit = fn(&mut Context, Descriptor) -> Outcome<Option<Duration>>;

/// Makes an attempt, and repeats it if the socket is blocking. A call that sleeps, or that makes
/// further attempts (less than `wanted` was moved), keeps the socket in `held`.
///
/// # Errors
/// The errors of the attempt; `EAGAIN` if it would block and must not, or the time is over.
fn attempt(
    socket: Handle,
    held: &mut KeptOpen,
    (nonblocking, wanted): (bool, usize),
    time: TimeLimit,
    mut attempt: impl FnMut(&mut Context) -> Outcome<usize>,
) -> Outcome<usize> {
    let deadline = {
        let mut guard = state::lock_quietly()?;
        let world = guard.world()?;
        world.check(socket)?;
        let nonblocking = nonblocking || world.socket(socket)?.nonblocking;
        match attempt(&mut world.context) {
            Err(error) if would_block(&error) => {}
            Ok(bytes) => {
                if bytes < wanted && !nonblocking {
                    held.hold(world, socket)?;
                }
                return Ok(bytes);
            }
            Err(error) => return Err(error),
        }
        if nonblocking {
            world.context.refresh()?;
            return attempt(&mut world.context);
        }
        held.hold(world, socket)?;
        Deadline::after(time(&mut world.context, socket.descriptor)?)
    };
    let done = wait::until(deadline, None, &[], Interrupted::of(deadline), |world| {
        world.context.turn()?;
        match attempt(&mut world.context) {
            Err(error) if would_block(&error) => Ok(None),
            done => done.map(Some),
        }
    })?;
    done.map_or_else(|| failure(libc::EAGAIN), Ok)
}

/// Receives data into buffers. An end or error of the stream after data is reported by the next
/// call.
pub(crate) fn receive(socket: Handle, rooms: Vectors<'_>, flags: c_int) -> Outcome<usize> {
    if flags & libc::MSG_TRUNC == 0 {
        return receive_into(socket, rooms, flags);
    }
    // The data is counted and not copied (tcp(7)): all entries share one buffer of ours.
    let (mut scratch, bytes) = (vec![0u8; DISCARD_CHUNK], rooms.announced_bytes());
    let mut entry = |at: usize| iovec {
        iov_base: scratch.as_mut_ptr().cast(),
        iov_len: (bytes - at).min(DISCARD_CHUNK),
    };
    let list: Vec<iovec> =
        (0..bytes).step_by(DISCARD_CHUNK).take(DISCARDS_MAX).map(&mut entry).collect();
    // SAFETY: each entry is within the buffer, and only one at a time is written.
    let rooms = unsafe { Vectors::new(list.as_ptr(), list.len(), libc::EINVAL) }?;
    receive_into(socket, rooms, flags & !libc::MSG_TRUNC)
}

fn receive_into(socket: Handle, rooms: Vectors<'_>, flags: c_int) -> Outcome<usize> {
    let descriptor = socket.descriptor;
    let nonblocking = flags & (libc::MSG_DONTWAIT | libc::MSG_OOB) != 0;
    let peek = flags & libc::MSG_PEEK != 0;
    let whole = flags & libc::MSG_WAITALL != 0 && flags & libc::MSG_OOB == 0;
    let flags = Flags(flags & !libc::MSG_WAITALL);
    if rooms.bytes() == 0 && !rooms.is_faulty() && !nonblocking {
        return receive_nothing(socket, rooms, flags);
    }
    let (mut done, mut held) = (0, KeptOpen::default());
    loop {
        let how = (nonblocking, if whole { rooms.bytes() - done } else { 0 });
        let outcome = attempt(socket, &mut held, how, Context::receive_timeout, |context| {
            if done == 0 {
                return receive_some(context, descriptor, rooms, 0, flags);
            }
            let known = if peek { done } else { 0 };
            if context.has_more(descriptor, known)? {
                let skip = if peek { 0 } else { done };
                return receive_some(context, descriptor, rooms, skip, flags);
            }
            if context.stops_behind(descriptor, known)? { Ok(0) } else { failure(libc::EAGAIN) }
        });
        match outcome {
            Ok(0) => return Ok(done),
            Ok(bytes) if peek => done = bytes,
            Ok(bytes) => done += bytes,
            Err(_) if done > 0 => return Ok(done),
            Err(error) => return Err(error),
        }
        if !whole || done == rooms.bytes() {
            return Ok(done);
        }
    }
}

/// Waits for data and takes none. As in Linux, the result is 0 whatever ends the wait: data, an
/// error, a signal, a time limit or a shutdown(2) by another thread. The next call reports the
/// error.
fn receive_nothing(socket: Handle, rooms: Vectors<'_>, flags: Flags) -> Outcome<usize> {
    let (descriptor, time) = (socket.descriptor, Context::receive_timeout as TimeLimit);
    let mut shutdowns = 0;
    let first = attempt(socket, &mut KeptOpen::default(), (true, 0), time, |context| {
        shutdowns = context.shutdowns(descriptor)?;
        receive_some(context, descriptor, rooms, 0, flags)
    });
    let deadline = {
        let mut guard = state::lock_quietly()?;
        let world = guard.world()?;
        match first {
            Err(error) if would_block(&error) && !world.socket(socket)?.nonblocking => {}
            done => return done,
        }
        Deadline::after(time(&mut world.context, socket.descriptor)?)
    };
    let ends = Events::IN | Events::ERROR | Events::HANG_UP;
    let interrupted = Interrupted::Ends(ptr::null());
    let waited = wait::until(deadline, Some(socket), &[], interrupted, |world| {
        let context = &mut world.context;
        context.turn()?;
        let is_shut = context.shutdowns(descriptor)? != shutdowns;
        let ended = is_shut || context.readiness(descriptor)?.intersects(ends);
        Ok((ended || context.has_come(descriptor)?).then_some(()))
    });
    match waited {
        Err(error) if error.raw_os_error() != Some(libc::EINTR) => Err(error),
        _ => Ok(0),
    }
}

fn receive_some(
    context: &mut Context,
    descriptor: Descriptor,
    rooms: Vectors<'_>,
    skip: usize,
    flags: Flags,
) -> Outcome<usize> {
    if flags.0 & libc::MSG_OOB != 0 {
        return context.recv(descriptor, rooms.rooms(0).next().unwrap_or_default(), flags);
    }
    let wanted = rooms.bytes() - skip;
    if wanted == 0 && !rooms.is_faulty() && context.has_come(descriptor)? {
        return Ok(0);
    }
    if wanted == 0 || rooms.is_faulty() && context.readable_bytes(descriptor)? > wanted {
        // The presence of data, an end or an error is reported nevertheless.
        context.recv(descriptor, &mut [0], Flags(flags.0 | libc::MSG_PEEK))?;
        return if rooms.is_faulty() { failure(libc::EFAULT) } else { Ok(0) };
    }
    let mut total = 0;
    for room in rooms.rooms(skip) {
        if total > 0 {
            let known = if flags.0 & libc::MSG_PEEK != 0 { total } else { 0 };
            if !context.has_more(descriptor, known)? {
                break;
            }
        }
        let bytes = if flags.0 & libc::MSG_PEEK != 0 && total > 0 {
            context.peek_at(descriptor, total, room)?
        } else {
            context.recv(descriptor, room, flags)?
        };
        total += bytes;
        if bytes < room.len() {
            break;
        }
    }
    Ok(total)
}

/// Sends data; a blocking socket sends all of it. If the sending side of the connection has ended,
/// this raises SIGPIPE, as the kernel does, unless MSG_NOSIGNAL is set. The next call reports an
/// error after data.
pub(crate) fn transmit(socket: Handle, data: Vectors<'_>, flags: c_int) -> Outcome<usize> {
    let descriptor = socket.descriptor;
    let silent = flags & libc::MSG_NOSIGNAL != 0;
    let nonblocking = flags & libc::MSG_DONTWAIT != 0;
    let flags = Flags(flags);
    let (mut done, mut held) = (0, KeptOpen::default());
    loop {
        let how = (nonblocking, data.bytes() - done);
        let outcome = attempt(socket, &mut held, how, Context::send_timeout, |context| {
            if done > 0 && context.readiness(descriptor)?.intersects(Events::ERROR) {
                return Ok(0);
            }
            transmit_some(context, descriptor, data, done, flags)
        });
        match outcome {
            Ok(0) => return Ok(done),
            Ok(bytes) => done += bytes,
            Err(_) if done > 0 => return Ok(done),
            Err(error) => {
                if error.raw_os_error() == Some(libc::EPIPE) && !silent {
                    // SAFETY: the calling thread is alive.
                    unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGPIPE) };
                }
                return Err(error);
            }
        }
        if done == data.bytes() || nonblocking || is_nonblocking(socket)? {
            return Ok(done);
        }
    }
}

fn is_nonblocking(socket: Handle) -> Outcome<bool> {
    Ok(state::lock_quietly()?.world()?.socket(socket)?.nonblocking)
}

fn transmit_some(
    context: &mut Context,
    descriptor: Descriptor,
    data: Vectors<'_>,
    skip: usize,
    flags: Flags,
) -> Outcome<usize> {
    if data.bytes() == 0 || data.is_faulty() {
        // A broken connection is reported nevertheless.
        context.send(descriptor, &[], flags)?;
        return if data.is_faulty() { failure(libc::EFAULT) } else { Ok(0) };
    }
    let mut total = 0;
    for part in data.parts(skip) {
        if total > 0 && context.readiness(descriptor)?.intersects(Events::ERROR) {
            break;
        }
        match context.send(descriptor, part, flags) {
            Ok(bytes) => {
                total += bytes;
                if bytes < part.len() {
                    break;
                }
            }
            Err(error) if total == 0 => return Err(error),
            Err(_) => break,
        }
    }
    Ok(total)
}

/// Implements sendfile(2) with a buffer; advances the offset by the number of bytes sent.
pub(crate) fn send_file(
    socket: Handle,
    from: c_int,
    offset: Option<&mut off_t>,
    count: usize,
) -> Outcome<usize> {
    let start = match &offset {
        Some(offset) => **offset,
        // SAFETY: the call takes only numbers.
        None => unsafe { libc::lseek(from, 0, libc::SEEK_CUR) },
    };
    if start < 0 {
        return failure(libc::EINVAL);
    }
    let mut chunk = vec![0u8; count.min(FILE_CHUNK)];
    let mut done = 0;
    let mut outcome = Ok(());
    while done < count {
        let room = (count - done).min(chunk.len());
        let at = start + done as off_t;
        // SAFETY: the buffer has `room` bytes.
        let read = unsafe { libc::pread(from, chunk.as_mut_ptr().cast(), room, at) };
        let Ok(read) = usize::try_from(read) else {
            outcome = Err(std::io::Error::last_os_error());
            break;
        };
        if read == 0 {
            break;
        }
        let vector = iovec { iov_base: chunk.as_mut_ptr().cast(), iov_len: read };
        // SAFETY: the vector is within the chunk.
        match unsafe { Vectors::one(&vector) }.and_then(|data| transmit(socket, data, 0)) {
            Ok(sent) => {
                done += sent;
                if sent < read {
                    break;
                }
            }
            Err(error) => {
                outcome = Err(error);
                break;
            }
        }
    }
    match offset {
        Some(offset) => *offset = start + done as off_t,
        // SAFETY: the call takes only numbers.
        None => drop(unsafe { libc::lseek(from, start + done as off_t, libc::SEEK_SET) }),
    }
    match outcome {
        Err(error) if done == 0 => Err(error),
        _ => Ok(done),
    }
}
