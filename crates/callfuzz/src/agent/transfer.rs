//! Makes the calls that read from and write to a socket.

use super::{answer, failed};
use crate::protocol::Answer;
use libc::{c_int, c_void, iovec};
use std::{io, ptr};

/// Lowest number of temporary descriptors, above those that are compared.
const HIGH: c_int = 500;

/// Fills the buffer from a pipe.
pub(super) fn fill(fd: c_int, mut into: &mut [u8]) -> io::Result<()> {
    while !into.is_empty() {
        // SAFETY: the buffer has that much room.
        let count = unsafe { libc::read(fd, into.as_mut_ptr().cast(), into.len()) };
        match count {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            1.. => into = &mut into[count as usize..],
            _ => retry()?,
        }
    }
    Ok(())
}

/// Writes all bytes to a pipe or a file.
pub(super) fn write_all(fd: c_int, mut from: &[u8]) -> io::Result<()> {
    while !from.is_empty() {
        // SAFETY: the buffer has that many bytes.
        let count = unsafe { libc::write(fd, from.as_ptr().cast(), from.len()) };
        match count {
            0.. => from = &from[count as usize..],
            _ => retry()?,
        }
    }
    Ok(())
}

fn retry() -> io::Result<()> {
    let error = io::Error::last_os_error();
    if error.kind() == io::ErrorKind::Interrupted { Ok(()) } else { Err(error) }
}

/// Returns a memory file with these bytes, at its beginning, with a high number.
pub(super) fn memory_file(bytes: &[u8]) -> io::Result<c_int> {
    // SAFETY: the name ends with zero.
    let file = high(unsafe { libc::memfd_create(c"callfuzz".as_ptr(), libc::MFD_CLOEXEC) })?;
    write_all(file, bytes)?;
    // SAFETY: the call takes plain numbers.
    unsafe { libc::lseek(file, 0, libc::SEEK_SET) };
    Ok(file)
}

/// Moves a descriptor to a high number.
fn high(fd: c_int) -> io::Result<c_int> {
    // SAFETY: the call takes plain numbers, and the caller owns the descriptor.
    let moved = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, HIGH) };
    if moved < 0 {
        return Err(io::Error::last_os_error());
    }
    close(fd);
    Ok(moved)
}

pub(super) fn close(fd: c_int) {
    // SAFETY: the descriptor is not used after this.
    unsafe { libc::close(fd) };
}

/// Splits a buffer's address and length into three unequal parts.
fn parts(at: *mut u8, count: usize) -> [iovec; 3] {
    let first = count / 3;
    let second = (count - first) / 2;
    let third = count - first - second;
    let part = |offset: usize, length: usize| iovec {
        iov_base: at.wrapping_add(offset).cast(),
        iov_len: length,
    };
    [part(0, first), part(first, second), part(first + second, third)]
}

/// Reads up to `count` bytes by the function that `how` selects.
pub(super) fn read(fd: c_int, count: usize, how: i64, flags: c_int) -> Answer {
    let mut buffer = vec![0_u8; count];
    let to: *mut c_void = buffer.as_mut_ptr().cast();
    let mut more = Vec::new();
    // SAFETY: the buffer has `count` bytes, and the parts lie in it.
    let result = unsafe {
        match how {
            0 => libc::read(fd, to, count),
            1 => libc::recv(fd, to, count, flags),
            2 => libc::recvfrom(fd, to, count, flags, ptr::null_mut(), ptr::null_mut()),
            3 => libc::readv(fd, parts(to.cast(), count).as_ptr(), 3),
            4 => {
                let mut parts = parts(to.cast(), count);
                let mut control = [0_u64; 16];
                let mut message: libc::msghdr = std::mem::zeroed();
                message.msg_iov = parts.as_mut_ptr();
                message.msg_iovlen = 3;
                message.msg_control = control.as_mut_ptr().cast();
                message.msg_controllen = size_of_val(&control) as _;
                let result = libc::recvmsg(fd, &mut message, flags);
                if result >= 0 {
                    more = vec![i64::from(message.msg_flags), message.msg_controllen as i64];
                }
                result
            }
            5 => libc::syscall(libc::SYS_read, fd, to, count) as isize,
            _ => return splice_in(fd, count, flags),
        }
    };
    let mut answer = answer(result as i64);
    answer.more = more;
    // With MSG_TRUNC the kernel copies nothing.
    let copied = if flags & libc::MSG_TRUNC != 0 && (1..=4).contains(&how) && how != 3 {
        0
    } else {
        result.max(0) as usize
    };
    buffer.truncate(copied);
    answer.bytes = buffer;
    answer
}

/// Returns a pipe with high numbers, with room for `count` bytes.
fn pipe(count: usize) -> io::Result<[c_int; 2]> {
    let mut ends = [0; 2];
    // SAFETY: there is room for two descriptors.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let ends = [high(ends[0])?, high(ends[1])?];
    // SAFETY: the call takes plain numbers.
    unsafe { libc::fcntl(ends[1], libc::F_SETPIPE_SZ, count.max(4096) as c_int) };
    Ok(ends)
}

fn splice_flags(flags: c_int) -> libc::c_uint {
    if flags & libc::MSG_DONTWAIT != 0 { libc::SPLICE_F_NONBLOCK } else { 0 }
}

fn splice_in(fd: c_int, count: usize, flags: c_int) -> Answer {
    let Ok([out, into]) = pipe(count) else { return failed(libc::EMFILE) };
    let none = ptr::null_mut();
    // SAFETY: null pointers pass no offsets.
    let result = unsafe { libc::splice(fd, none, into, none, count, splice_flags(flags)) };
    let mut answer = answer(result as i64);
    answer.bytes = vec![0; result.max(0) as usize];
    if fill(out, &mut answer.bytes).is_err() {
        answer.bytes.clear();
    }
    [out, into].into_iter().for_each(close);
    answer
}

/// Writes by the function that `how` selects.
pub(super) fn write(fd: c_int, bytes: &[u8], how: i64, flags: c_int) -> Answer {
    let (from, count): (*const c_void, usize) = (bytes.as_ptr().cast(), bytes.len());
    // SAFETY: the buffer has `count` bytes, and the parts lie in it; the kernel only reads them.
    answer(unsafe {
        match how {
            0 => libc::write(fd, from, count) as i64,
            1 => libc::send(fd, from, count, flags) as i64,
            2 => libc::sendto(fd, from, count, flags, ptr::null(), 0) as i64,
            3 => libc::writev(fd, parts(from.cast_mut().cast(), count).as_ptr(), 3) as i64,
            4 => {
                let mut parts = parts(from.cast_mut().cast(), count);
                let mut message: libc::msghdr = std::mem::zeroed();
                message.msg_iov = parts.as_mut_ptr();
                message.msg_iovlen = 3;
                libc::sendmsg(fd, &message, flags) as i64
            }
            5 => libc::syscall(libc::SYS_write, fd, from, count),
            6 => return send_file(fd, bytes),
            _ => return splice_out(fd, bytes, flags),
        }
    })
}

fn send_file(fd: c_int, bytes: &[u8]) -> Answer {
    let Ok(file) = memory_file(bytes) else { return failed(libc::EMFILE) };
    // SAFETY: a null pointer passes no offset.
    let answer = answer(unsafe { libc::sendfile(fd, file, ptr::null_mut(), bytes.len()) } as i64);
    close(file);
    answer
}

fn splice_out(fd: c_int, bytes: &[u8], flags: c_int) -> Answer {
    let Ok([out, into]) = pipe(bytes.len()) else { return failed(libc::EMFILE) };
    if write_all(into, bytes).is_err() {
        return failed(libc::EIO);
    }
    let none = ptr::null_mut();
    // SAFETY: null pointers pass no offsets.
    let result = unsafe { libc::splice(out, none, fd, none, bytes.len(), splice_flags(flags)) };
    let answer = answer(result as i64);
    [out, into].into_iter().for_each(close);
    answer
}

/// Returns the number that FIONREAD reports.
pub(super) fn unread(fd: c_int) -> Answer {
    let mut count: c_int = 0;
    // SAFETY: the value is an integer, as the request requires.
    let mut answer = answer(unsafe { libc::ioctl(fd, libc::FIONREAD, &mut count) });
    answer.more = vec![i64::from(count)];
    answer
}
