//! Sends bytes of a file that are in the page cache over a socket, without a copy and without a
//! wait: sendfile(2).
//!
//! sendfile(2) waits for the disk if pages are missing, and for the peer if the socket is a
//! blocking one. Other files and sockets are left to reads and writes.

use crate::sys::{errno, file_flags};
use std::io;
use std::os::fd::RawFd;
use sys::signals::QuietPipe;

/// cachestat(2): Linux 6.5, the same number on all architectures; libc lacks it.
const CACHESTAT: libc::c_long = 451;

/// Distance of the bytes that are looked for in the page cache where cachestat(2) is refused, as
/// it is for files that the process neither owns nor may write to (Linux 6.14).
const PROBE_BYTES: u64 = 64 << 10;

/// Sends up to `bytes` bytes of a file. Returns the result of an
/// [`Operation::SendFile`](super::Operation::SendFile), or `-EAGAIN` if the socket has no room; and
/// the number of system calls that transfer data.
pub(super) fn send(socket: RawFd, file: RawFd, offset: u64, bytes: u32) -> (i32, u64) {
    let returns = file_flags(socket).is_ok_and(|flags| flags & libc::O_NONBLOCK != 0);
    let mut calls = 0;
    if !returns || bytes == 0 || !is_cached(file, offset, bytes.into(), &mut calls) {
        return (-libc::EOPNOTSUPP, calls);
    }
    let _quiet = QuietPipe::enter();
    let mut from = offset as libc::off_t;
    // SAFETY: the offset is valid for the call.
    let sent = unsafe { libc::sendfile(socket, file, &raw mut from, bytes as usize) };
    let result = match sent {
        0 => -libc::ENODATA,
        1.. => sent as i32,
        // Reading and writing the bytes succeeds, or finds the cause.
        _ => match errno(&io::Error::last_os_error()) {
            libc::EIO | libc::ENOMEM | libc::EBADF | libc::EOVERFLOW => -libc::EOPNOTSUPP,
            other if sys::is_refusal(other) => -libc::EOPNOTSUPP,
            other => -other,
        },
    };
    (result, calls + 1)
}

/// Returns whether all of these bytes of a file are in the page cache, as far as the kernel tells.
fn is_cached(file: RawFd, offset: u64, bytes: u64, calls: &mut u64) -> bool {
    let last = offset + (bytes - 1);
    // Fails for files that a read may wait for although their pages are cached.
    if !reads_at_once(file, offset, calls) {
        return false;
    }
    if let Some(pages) = cached_pages(file, offset, bytes) {
        // SAFETY: the call takes no pointers.
        let page_bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64;
        return pages > last / page_bytes - offset / page_bytes;
    }
    let mut between = (offset..last).step_by(PROBE_BYTES as usize).skip(1);
    between.all(|at| reads_at_once(file, at, calls)) && reads_at_once(file, last, calls)
}

/// Returns whether the byte at an offset can be read without a wait.
fn reads_at_once(file: RawFd, offset: u64, calls: &mut u64) -> bool {
    let mut byte = 0_u8;
    let part = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    *calls += 1;
    // SAFETY: the one byte is writable.
    unsafe { libc::preadv2(file, &raw const part, 1, offset as libc::off_t, libc::RWF_NOWAIT) == 1 }
}

/// Returns the number of cached pages of a part of a file; `None` if the kernel does not tell.
fn cached_pages(file: RawFd, offset: u64, bytes: u64) -> Option<u64> {
    let range = [offset, bytes];
    // Pages that are cached, dirty, being written, evicted, and evicted recently.
    let mut counts = [0_u64; 5];
    // SAFETY: the arrays have the layout of `struct cachestat_range` and `struct cachestat`.
    let result = unsafe { libc::syscall(CACHESTAT, file, range.as_ptr(), counts.as_mut_ptr(), 0) };
    (result == 0).then_some(counts[0])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::FileExt;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (near, listener.accept().unwrap().0)
    }

    #[test]
    fn cached_bytes_are_sent_and_the_end_is_told() {
        let (near, mut far) = pair();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[7; 10_000]).unwrap();
        let (socket, file) = (near.as_raw_fd(), file.as_raw_fd());
        let blocking = send(socket, file, 0, 10_000);
        assert_eq!(blocking, (-libc::EOPNOTSUPP, 0), "it might wait for the peer");
        near.set_nonblocking(true).unwrap();
        assert_eq!(send(socket, file, 4000, 6000).0, 6000);
        let mut found = [0; 6000];
        far.read_exact(&mut found).unwrap();
        assert_eq!(found, [7; 6000]);
        // What lies behind the end is in no cache.
        for (offset, bytes) in [(10_000, 1), (0, 20_000), (0, 0)] {
            assert_eq!(send(socket, file, offset, bytes).0, -libc::EOPNOTSUPP);
        }
    }

    #[test]
    fn a_full_socket_and_a_broken_one_are_told() {
        let (near, far) = pair();
        near.set_nonblocking(true).unwrap();
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[7; 1 << 20], 0).unwrap();
        let mut results = (0..1000).map(|_| send(near.as_raw_fd(), file.as_raw_fd(), 0, 1 << 20).0);
        assert_eq!(results.find(|result| *result < 0), Some(-libc::EAGAIN));
        near.shutdown(std::net::Shutdown::Both).unwrap();
        assert_eq!(send(near.as_raw_fd(), file.as_raw_fd(), 0, 1).0, -libc::EPIPE);
        drop(far);
    }

    /// Both ways to look find the pages of a file, and miss those that it does not have.
    #[test]
    fn holes_in_the_cache_are_found() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[7; 300_000], 0).unwrap();
        let fd = file.as_raw_fd();
        let mut calls = 0;
        assert!(is_cached(fd, 0, 300_000, &mut calls));
        assert!(!is_cached(fd, 0, 400_000, &mut calls));
        if let Some(pages) = cached_pages(fd, 0, 300_000) {
            assert!(pages >= 300_000 / 65_536, "{pages} pages");
        }
    }
}
