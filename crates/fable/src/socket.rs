//! Calls on sockets that never block and raise no signal.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use socket2::SockRef;

/// Sends some of the bytes, and says how many.
///
/// # Errors
/// That of send(2), with `WouldBlock` among them.
pub(crate) fn send(socket: impl AsFd, bytes: &[u8]) -> io::Result<usize> {
    SockRef::from(&socket).send_with_flags(bytes, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
}

/// Receives what has arrived, as far as there is room for it; 0 is the end of a stream.
///
/// # Errors
/// That of recv(2), with `WouldBlock` among them.
#[inline]
pub(crate) fn receive(socket: impl AsFd, room: &mut [u8]) -> io::Result<usize> {
    let (socket, start, bytes) = (socket.as_fd().as_raw_fd(), room.as_mut_ptr().cast(), room.len());
    // SAFETY: the room is valid for as many bytes, and the descriptor is open.
    let received = unsafe { libc::recv(socket, start, bytes, libc::MSG_DONTWAIT) };
    usize::try_from(received).map_err(|_| io::Error::last_os_error())
}
