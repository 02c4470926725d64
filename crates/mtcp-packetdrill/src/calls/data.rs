//! Implements the calls for reading and writing.

use super::{bytes, length, room, shared};
use crate::world::{Outcome, Shared};
use libc::{c_int, c_void, iovec, msghdr, sockaddr, socklen_t};

/// Most iovec elements, as in the kernel (readv(2)).
const PIECES_MAX: usize = 1024;

fn may_wait(shared: &Shared, descriptor: c_int, flags: c_int) -> Outcome<bool> {
    let nonblocking =
        shared.with(|world| world.place(descriptor).map(|place| place.nonblocking))?;
    Ok(!nonblocking && flags & libc::MSG_DONTWAIT == 0)
}

fn receive(shared: &Shared, descriptor: c_int, room: &mut [u8], flags: c_int) -> Outcome<usize> {
    const KNOWN: c_int = libc::MSG_DONTWAIT | libc::MSG_PEEK | libc::MSG_WAITALL;
    if flags & !KNOWN != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    let may_wait = may_wait(shared, descriptor, flags)?;
    let peeks = flags & libc::MSG_PEEK != 0;
    let mut done = 0;
    loop {
        let received =
            shared.wait(may_wait, |world| world.receive(descriptor, &mut room[done..], peeks));
        match received {
            Ok(bytes) => {
                done += bytes;
                let all = flags & libc::MSG_WAITALL != 0 && !peeks;
                if bytes == 0 || done == room.len() || !all {
                    return Ok(done);
                }
            }
            Err(_) if done > 0 => return Ok(done),
            Err(errno) => return Err(errno),
        }
    }
}

/// Sends data; a call that waits sends all of it.
fn transmit(shared: &Shared, descriptor: c_int, data: &[u8], flags: c_int) -> Outcome<usize> {
    const KNOWN: c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_MORE;
    if flags & !KNOWN != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    let may_wait = may_wait(shared, descriptor, flags)?;
    let mut done = 0;
    loop {
        match shared.wait(may_wait, |world| world.send(descriptor, &data[done..])) {
            Ok(bytes) => {
                done += bytes;
                if done == data.len() || !may_wait {
                    return Ok(done);
                }
            }
            Err(_) if done > 0 => return Ok(done),
            Err(errno) => return Err(errno),
        }
    }
}

/// # Safety
/// The pointer is null or valid for `count` elements, each of which is valid for its length.
unsafe fn pieces<'a>(pieces: *const iovec, count: usize) -> Outcome<&'a [iovec]> {
    if count > PIECES_MAX {
        return Err(libc::EINVAL);
    }
    if count == 0 || pieces.is_null() {
        return if count == 0 { Ok(&[]) } else { Err(libc::EFAULT) };
    }
    // SAFETY: the caller guarantees `count` valid elements.
    Ok(unsafe { std::slice::from_raw_parts(pieces, count) })
}

/// # Safety
/// `list` is valid as for [`pieces`].
unsafe fn receive_pieces(
    userdata: *mut c_void,
    descriptor: c_int,
    list: *const iovec,
    count: usize,
    flags: c_int,
) -> Outcome<usize> {
    // SAFETY: callers pass `userdata` and pointers that are valid (module `calls`).
    let (shared, list) = unsafe { (shared(userdata)?, pieces(list, count)?) };
    let total = list.iter().fold(0_usize, |all, piece| all.saturating_add(piece.iov_len));
    let mut all = vec![0; total.min(1 << 24)];
    let received = receive(shared, descriptor, &mut all, flags)?;
    let mut rest = &all[..received];
    for piece in list {
        // SAFETY: the caller guarantees that each element is valid for its length.
        let room = unsafe { room(piece.iov_base, piece.iov_len) }?;
        let (now, later) = rest.split_at(rest.len().min(room.len()));
        room[..now.len()].copy_from_slice(now);
        rest = later;
    }
    Ok(received)
}

/// # Safety
/// `list` is valid as for [`pieces`].
unsafe fn transmit_pieces(
    userdata: *mut c_void,
    descriptor: c_int,
    list: *const iovec,
    count: usize,
    flags: c_int,
) -> Outcome<usize> {
    // SAFETY: callers pass `userdata` and pointers that are valid (module `calls`).
    let (shared, list) = unsafe { (shared(userdata)?, pieces(list, count)?) };
    let mut all = Vec::new();
    for piece in list {
        // SAFETY: the caller guarantees that each element is valid for its length.
        all.extend_from_slice(unsafe { bytes(piece.iov_base, piece.iov_len) }?);
    }
    transmit(shared, descriptor, &all, flags)
}

pub(super) unsafe extern "C" fn read(
    userdata: *mut c_void,
    descriptor: c_int,
    to: *mut c_void,
    count: usize,
) -> isize {
    // SAFETY: the pointers have the same contract in `recv`.
    unsafe { recv(userdata, descriptor, to, count, 0) }
}

pub(super) unsafe extern "C" fn readv(
    userdata: *mut c_void,
    descriptor: c_int,
    list: *const iovec,
    count: c_int,
) -> isize {
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    // SAFETY: the pointers have the same contract in `receive_pieces`.
    length(unsafe { receive_pieces(userdata, descriptor, list, count, 0) })
}

pub(super) unsafe extern "C" fn recv(
    userdata: *mut c_void,
    descriptor: c_int,
    to: *mut c_void,
    count: usize,
    flags: c_int,
) -> isize {
    let work = || {
        // SAFETY: callers pass `userdata` and pointers that are valid (module `calls`).
        let (shared, room) = unsafe { (shared(userdata)?, room(to, count)?) };
        receive(shared, descriptor, room, flags)
    };
    length(work())
}

/// A connection does not report the source of data (recvfrom(2)).
pub(super) unsafe extern "C" fn recvfrom(
    userdata: *mut c_void,
    descriptor: c_int,
    to: *mut c_void,
    count: usize,
    flags: c_int,
    _: *mut sockaddr,
    from_bytes: *mut socklen_t,
) -> isize {
    // SAFETY: the caller guarantees that the pointer is null or valid.
    if let Some(from_bytes) = unsafe { from_bytes.as_mut() } {
        *from_bytes = 0;
    }
    // SAFETY: the pointers have the same contract in `recv`.
    unsafe { recv(userdata, descriptor, to, count, flags) }
}

pub(super) unsafe extern "C" fn recvmsg(
    userdata: *mut c_void,
    descriptor: c_int,
    message: *mut msghdr,
    flags: c_int,
) -> isize {
    // SAFETY: the caller guarantees that the pointer is null or valid.
    let Some(message) = (unsafe { message.as_mut() }) else { return length(Err(libc::EFAULT)) };
    (message.msg_namelen, message.msg_controllen, message.msg_flags) = (0, 0, 0);
    let (list, count) = (message.msg_iov, message.msg_iovlen);
    // SAFETY: the caller guarantees that the message's elements are valid.
    length(unsafe { receive_pieces(userdata, descriptor, list, count, flags) })
}

pub(super) unsafe extern "C" fn write(
    userdata: *mut c_void,
    descriptor: c_int,
    from: *const c_void,
    count: usize,
) -> isize {
    // SAFETY: the pointers have the same contract in `send`.
    unsafe { send(userdata, descriptor, from, count, 0) }
}

pub(super) unsafe extern "C" fn writev(
    userdata: *mut c_void,
    descriptor: c_int,
    list: *const iovec,
    count: c_int,
) -> isize {
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    // SAFETY: the pointers have the same contract in `transmit_pieces`.
    length(unsafe { transmit_pieces(userdata, descriptor, list, count, 0) })
}

pub(super) unsafe extern "C" fn send(
    userdata: *mut c_void,
    descriptor: c_int,
    from: *const c_void,
    count: usize,
    flags: c_int,
) -> isize {
    let work = || {
        // SAFETY: callers pass `userdata` and pointers that are valid (module `calls`).
        let (shared, data) = unsafe { (shared(userdata)?, bytes(from, count)?) };
        transmit(shared, descriptor, data, flags)
    };
    length(work())
}

/// A connection ignores the destination (sendto(2)).
pub(super) unsafe extern "C" fn sendto(
    userdata: *mut c_void,
    descriptor: c_int,
    from: *const c_void,
    count: usize,
    flags: c_int,
    _: *const sockaddr,
    _: socklen_t,
) -> isize {
    // SAFETY: the pointers have the same contract in `send`.
    unsafe { send(userdata, descriptor, from, count, flags) }
}

pub(super) unsafe extern "C" fn sendmsg(
    userdata: *mut c_void,
    descriptor: c_int,
    message: *const msghdr,
    flags: c_int,
) -> isize {
    // SAFETY: the caller guarantees that the pointer is null or valid.
    let Some(message) = (unsafe { message.as_ref() }) else { return length(Err(libc::EFAULT)) };
    let (list, count) = (message.msg_iov, message.msg_iovlen);
    // SAFETY: the caller guarantees that the message's elements are valid.
    length(unsafe { transmit_pieces(userdata, descriptor, list, count, flags) })
}
