//! Sends and receives on sockets without blocking and without signals.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::thread;
use std::time::Duration;

use socket2::SockRef;

/// How often a call is tried, and the pause if the kernel lacks memory for it: for a second.
const TRIES_MAX: u32 = 1000;
const LACK: Duration = Duration::from_millis(1);

/// How often a call is tried while too many descriptors of this user are in flight. Peers that do
/// not read can keep them there, so this must not delay a daemon.
const IN_FLIGHT_TRIES_MAX: u32 = 10;

/// Repeats a call that a signal interrupted, or for which the kernel lacks memory at the moment:
/// neither says anything about the peer.
///
/// # Errors
/// Those of the call; `ENOMEM` and `ENOBUFS` after a second, `ETOOMANYREFS` after 10 ms.
#[inline]
pub(crate) fn persist<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    match call() {
        Ok(done) => Ok(done),
        Err(error) => persist_after(error, call),
    }
}

#[cold]
fn persist_after<T>(
    mut error: io::Error,
    mut call: impl FnMut() -> io::Result<T>,
) -> io::Result<T> {
    for tries in 0..TRIES_MAX {
        match error.raw_os_error() {
            Some(libc::EINTR) => {}
            Some(libc::ETOOMANYREFS) if tries < IN_FLIGHT_TRIES_MAX => thread::sleep(LACK),
            Some(libc::ENOMEM | libc::ENOBUFS) => thread::sleep(LACK),
            _ => break,
        }
        match call() {
            Ok(done) => return Ok(done),
            Err(next) => error = next,
        }
    }
    Err(error)
}

/// Sends some of the bytes and returns how many.
///
/// # Errors
/// Those of send(2), including `WouldBlock`.
pub(crate) fn send(socket: impl AsFd, bytes: &[u8]) -> io::Result<usize> {
    let socket = SockRef::from(&socket);
    persist(|| socket.send_with_flags(bytes, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL))
}

/// Receives what has arrived, up to the length of `room`; 0 is the end of a stream.
///
/// # Errors
/// Those of recv(2), including `WouldBlock`.
#[inline]
pub(crate) fn receive(socket: impl AsFd, room: &mut [u8]) -> io::Result<usize> {
    let (socket, start, bytes) = (socket.as_fd().as_raw_fd(), room.as_mut_ptr().cast(), room.len());
    persist(|| {
        // SAFETY: `room` has that many writable bytes, and the descriptor is open.
        let received = unsafe { libc::recv(socket, start, bytes, libc::MSG_DONTWAIT) };
        usize::try_from(received).map_err(|_| io::Error::last_os_error())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_passes_is_repeated_and_nothing_else() {
        let passing = [libc::ETOOMANYREFS, libc::ENOBUFS, libc::ENOMEM, libc::EINTR];
        let mut errnos = vec![libc::EPIPE];
        errnos.extend(passing);
        let mut fail = || match errnos.pop() {
            Some(errno) => Err(io::Error::from_raw_os_error(errno)),
            None => Ok(7),
        };
        assert_eq!(persist(&mut fail).unwrap_err().raw_os_error(), Some(libc::EPIPE));
        assert_eq!(persist(&mut fail).unwrap(), 7);
    }
}
