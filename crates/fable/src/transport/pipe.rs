//! Pipes: a transport with one pipe in each direction, and calls on pipes for other transports.
//!
//! Both processes share a pipe's flags, so a peer can make it blocking at any time. Every call here
//! therefore uses `RWF_NOWAIT` (on pipes since Linux 6.4). On older kernels the pipe is made
//! non-blocking again before each call; a hostile peer that changes it between the two calls can
//! block this process. A write to a dead peer does not raise `SIGPIPE` (`RWF_NOSIGNAL`, Linux 6.18;
//! on older kernels the signal is blocked meanwhile).

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, Ordering};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::pipe::{PipeFlags, fcntl_getpipe_size, fcntl_setpipe_size, pipe_with};

use super::framing::{Framed, Keeping, Link, Need, Received};
use super::{Offer, PathOptions, Transport, sigpipe};
use crate::error::{TransportError, TransportResult};
use crate::kind::Kind;

/// The capacity that an unprivileged process may request by default (`/proc/sys/fs/pipe-max-size`).
const PIPE_BYTES_MAX: usize = 1 << 20;

/// The capacity of a new pipe.
const PIPE_BYTES_MIN: usize = 64 << 10;

/// The C library's headers do not define it yet.
const RWF_NOSIGNAL: libc::c_int = 0x100;

/// An end of a pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Reading,
    Writing,
}

/// Makes a path, and the offer for the other end.
pub(super) fn create(options: PathOptions) -> TransportResult<(Box<dyn Transport>, Offer)> {
    let (own_reading, peer_writing) = make(options.ring_bytes)?;
    let (peer_reading, own_writing) = make(options.ring_bytes)?;
    let own = PipeLink { reading: own_reading, writing: own_writing };
    let offer = Offer { kind: Kind::Pipe, descriptors: vec![peer_reading, peer_writing] };
    Ok((Box::new(Framed::new(Kind::Pipe, own, Keeping::UntilSent)?), offer))
}

/// Opens the other end of a path.
pub(super) fn open(offer: Offer) -> TransportResult<Box<dyn Transport>> {
    let [reading, writing] = <[_; 2]>::try_from(offer.descriptors)
        .map_err(|_| TransportError::BadOffer("pipes come as two descriptors"))?;
    check(reading.as_fd(), End::Reading)?;
    check(writing.as_fd(), End::Writing)?;
    let link = PipeLink { reading, writing };
    Ok(Box::new(Framed::new(Kind::Pipe, link, Keeping::UntilSent)?))
}

/// Makes a pipe with room for about `bytes`, as far as the system allows.
pub(super) fn make(bytes: usize) -> TransportResult<(OwnedFd, OwnedFd)> {
    let (reading, writing) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)
        .map_err(TransportError::system("pipe2"))?;
    let mut wanted = bytes.clamp(PIPE_BYTES_MIN, PIPE_BYTES_MAX);
    while wanted > PIPE_BYTES_MIN && fcntl_setpipe_size(&writing, wanted).is_err() {
        wanted /= 2;
    }
    Ok((reading, writing))
}

/// Returns the capacity of the pipe in bytes.
pub(super) fn bytes(pipe: BorrowedFd<'_>) -> TransportResult<usize> {
    fcntl_getpipe_size(pipe).map_err(TransportError::system("fcntl F_GETPIPE_SZ"))
}

/// Refuses a peer's descriptor that is not this end of a pipe.
pub(super) fn check(pipe: BorrowedFd<'_>, end: End) -> TransportResult<()> {
    bytes(pipe).map_err(|_| TransportError::BadOffer("the descriptor is no pipe"))?;
    let wanted = match end {
        End::Reading => OFlags::RDONLY,
        End::Writing => OFlags::WRONLY,
    };
    if !fcntl_getfl(pipe).is_ok_and(|flags| flags & OFlags::ACCMODE == wanted) {
        return Err(TransportError::BadOffer("the pipe is open the wrong way"));
    }
    Ok(())
}

/// Makes the pipe non-blocking if these flags do not prevent a call from blocking.
fn prepare(pipe: BorrowedFd<'_>, flags: libc::c_int) -> TransportResult<()> {
    if flags & libc::RWF_NOWAIT != 0 {
        return Ok(());
    }
    let status = fcntl_getfl(pipe).map_err(TransportError::system("fcntl F_GETFL"))?;
    if status.contains(OFlags::NONBLOCK) {
        return Ok(());
    }
    fcntl_setfl(pipe, status | OFlags::NONBLOCK).map_err(TransportError::system("fcntl F_SETFL"))
}

/// Returns the flags that the kernel may support, after `errno` has shown that it does not support
/// all of these; `None` if `errno` shows no such thing.
fn known_flags(flags: libc::c_int, errno: Option<libc::c_int>) -> Option<libc::c_int> {
    match errno {
        // A sandbox refuses the calls with flags: without any, others are made.
        Some(libc::EPERM | libc::EACCES) if flags != 0 => Some(0),
        Some(libc::EOPNOTSUPP | libc::EINVAL) if flags & RWF_NOSIGNAL != 0 => {
            Some(flags & !RWF_NOSIGNAL)
        }
        Some(libc::EOPNOTSUPP) if flags & libc::RWF_NOWAIT != 0 => Some(flags & !libc::RWF_NOWAIT),
        _ => None,
    }
}

/// Writes some of the bytes and returns how many; 0 if the pipe is full.
pub(super) fn write(pipe: BorrowedFd<'_>, pieces: &[IoSlice<'_>]) -> TransportResult<usize> {
    static FLAGS: AtomicI32 = AtomicI32::new(libc::RWF_NOWAIT | RWF_NOSIGNAL);
    write_with(&FLAGS, pipe, pieces)
}

/// Writes as `write` does, with the flags that the kernel presumably supports.
fn write_with(
    known: &AtomicI32,
    pipe: BorrowedFd<'_>,
    pieces: &[IoSlice<'_>],
) -> TransportResult<usize> {
    loop {
        let flags = known.load(Ordering::Relaxed);
        prepare(pipe, flags)?;
        let written = if flags & RWF_NOSIGNAL != 0 {
            write_once(pipe, pieces, flags)
        } else {
            sigpipe::without(|| {
                let written = write_once(pipe, pieces, flags);
                let is_broken = matches!(&written, Err(e) if e.raw_os_error() == Some(libc::EPIPE));
                (written, is_broken)
            })
        };
        let source = match written {
            Ok(bytes) => return Ok(bytes),
            Err(source) => source,
        };
        match source.raw_os_error() {
            Some(libc::EAGAIN) => return Ok(0),
            Some(libc::EINTR) => {}
            Some(libc::EPIPE) => return Err(TransportError::Closed),
            errno => match known_flags(flags, errno) {
                Some(fewer) => known.store(fewer, Ordering::Relaxed),
                None => return Err(TransportError::System { call: "pwritev2", source }),
            },
        }
    }
}

fn write_once(pipe: BorrowedFd<'_>, pieces: &[IoSlice<'_>], flags: i32) -> io::Result<usize> {
    let count = libc::c_int::try_from(pieces.len()).unwrap_or(libc::c_int::MAX);
    let (pipe, pieces) = (pipe.as_raw_fd(), pieces.as_ptr().cast());
    // SAFETY: `IoSlice` is guaranteed to have the layout of the kernel's `iovec`.
    let written = unsafe {
        match flags {
            0 => libc::writev(pipe, pieces, count),
            _ => libc::pwritev2(pipe, pieces, count, -1, flags),
        }
    };
    usize::try_from(written).map_err(|_| io::Error::last_os_error())
}

/// Reads what has arrived.
pub(super) fn read(pipe: BorrowedFd<'_>, room: &mut [u8]) -> TransportResult<Received> {
    static FLAGS: AtomicI32 = AtomicI32::new(libc::RWF_NOWAIT);
    read_with(&FLAGS, pipe, room)
}

/// Reads as `read` does, with the flags that the kernel presumably supports.
fn read_with(
    known: &AtomicI32,
    pipe: BorrowedFd<'_>,
    room: &mut [u8],
) -> TransportResult<Received> {
    let piece = libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() };
    loop {
        let flags = known.load(Ordering::Relaxed);
        prepare(pipe, flags)?;
        // SAFETY: one piece, which is borrowed exclusively during the call.
        let received = unsafe {
            match flags {
                0 => libc::readv(pipe.as_raw_fd(), &raw const piece, 1),
                _ => libc::preadv2(pipe.as_raw_fd(), &raw const piece, 1, -1, flags),
            }
        };
        match usize::try_from(received) {
            Ok(0) => return Ok(Received::End),
            Ok(bytes) => return Ok(Received::Bytes(bytes)),
            Err(_) => {
                let source = io::Error::last_os_error();
                match source.raw_os_error() {
                    Some(libc::EAGAIN) => return Ok(Received::Nothing),
                    Some(libc::EINTR) => {}
                    errno => match known_flags(flags, errno) {
                        Some(fewer) => known.store(fewer, Ordering::Relaxed),
                        None => return Err(TransportError::System { call: "preadv2", source }),
                    },
                }
            }
        }
    }
}

/// Two pipes as a stream in each direction.
struct PipeLink {
    reading: OwnedFd,
    writing: OwnedFd,
}

impl Link for PipeLink {
    fn send(&mut self, pieces: &[IoSlice<'_>]) -> TransportResult<usize> {
        write(self.writing.as_fd(), pieces)
    }

    fn receive(&mut self, room: &mut [u8]) -> TransportResult<Received> {
        read(self.reading.as_fd(), room)
    }

    fn readiness(&self, need: Need) -> (RawFd, i16) {
        match need {
            Need::Arrival | Need::Acknowledgement => (self.reading.as_raw_fd(), libc::POLLIN),
            Need::Room => (self.writing.as_raw_fd(), libc::POLLOUT),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn make_blocking(pipe: &OwnedFd) {
        fcntl_setfl(pipe, OFlags::empty()).unwrap();
    }

    /// As before Linux 6.4: no flags are supported, and the peer has made the pipe blocking.
    #[test]
    fn without_flags_of_the_kernel_no_call_blocks() {
        let (reading, writing) = make(PIPE_BYTES_MIN).unwrap();
        let none = AtomicI32::new(0);
        let mut room = [0; 4096];
        make_blocking(&reading);
        let nothing = read_with(&none, reading.as_fd(), &mut room).unwrap();
        assert!(matches!(nothing, Received::Nothing));
        let mut sent = 0;
        loop {
            make_blocking(&writing);
            match write_with(&none, writing.as_fd(), &[IoSlice::new(&[7; 4096])]).unwrap() {
                0 => break,
                bytes => sent += bytes,
            }
        }
        assert_eq!(sent, bytes(writing.as_fd()).unwrap());
        let Received::Bytes(bytes) = read_with(&none, reading.as_fd(), &mut room).unwrap() else {
            panic!("nothing to read")
        };
        assert!(bytes > 0 && room[..bytes].iter().all(|byte| *byte == 7));
        drop(reading);
        let closed = write_with(&none, writing.as_fd(), &[IoSlice::new(b"x")]).unwrap_err();
        assert!(matches!(closed, TransportError::Closed), "{closed}");
    }

    #[test]
    fn a_flag_that_the_kernel_does_not_know_is_left_out_one_at_a_time() {
        let both = libc::RWF_NOWAIT | RWF_NOSIGNAL;
        let unknown = Some(libc::EOPNOTSUPP);
        assert_eq!(known_flags(both, unknown), Some(libc::RWF_NOWAIT));
        assert_eq!(known_flags(libc::RWF_NOWAIT, unknown), Some(0));
        assert_eq!(known_flags(0, unknown), None);
        let refused = Some(libc::EPERM);
        assert_eq!((known_flags(both, refused), known_flags(0, refused)), (Some(0), None));
        assert_eq!(known_flags(both, Some(libc::EIO)), None);
    }
}
