//! Packets with descriptors over a UNIX socket of type `SOCK_SEQPACKET`.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::protocol::{DESCRIPTORS_MAX, PACKET_BYTES_MAX};

/// Room for the descriptors of one packet, aligned as the kernel wants it.
const CONTROL_WORDS: usize = 2 + DESCRIPTORS_MAX.div_ceil(2);

/// A packet that came.
#[derive(Debug)]
pub struct Packet {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Its descriptors; they close with it.
    pub descriptors: Vec<OwnedFd>,
    /// Whether it came with more, which the kernel has closed: the sender's mistake, or this
    /// process has as many descriptors as it may have (`RLIMIT_NOFILE`). Then `descriptors` is
    /// empty.
    pub has_lost_descriptors: bool,
}

/// Makes a connected pair: close-on-exec, non-blocking.
///
/// # Errors
/// The kernel's.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends = [-1; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: room for two descriptors.
    if unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: both are new and ours.
    Ok(unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) })
}

/// Sends one packet, whole or not at all, without blocking and without `SIGPIPE`.
///
/// # Errors
/// `WouldBlock` if the peer does not read, `InvalidInput` for more than a packet may have, or the
/// kernel's.
pub fn send(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    if bytes.is_empty() || bytes.len() > PACKET_BYTES_MAX || descriptors.len() > DESCRIPTORS_MAX {
        let what = "a packet has 1 to 131072 bytes and up to 8 descriptors";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    let numbers: Vec<i32> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut control = [0_usize; CONTROL_WORDS + 1];
    // SAFETY: `msghdr` is plain data, valid when zeroed.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    if !numbers.is_empty() {
        let payload = u32::try_from(size_of_val(&numbers[..])).unwrap_or(u32::MAX);
        message.msg_control = control.as_mut_ptr().cast();
        // SAFETY: arithmetic only.
        message.msg_controllen = unsafe { libc::CMSG_SPACE(payload) } as usize;
        // SAFETY: the control buffer has room for one header and `DESCRIPTORS_MAX` numbers, and
        // is aligned for the header.
        unsafe {
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(payload) as usize;
            let data = libc::CMSG_DATA(header);
            std::ptr::copy_nonoverlapping(numbers.as_ptr().cast(), data, payload as usize);
        }
    }
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: the message and all that it points to outlive the call.
    if unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, flags) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Takes one packet without blocking. `None` is the end: the peer has closed.
///
/// # Errors
/// `WouldBlock` if there is none, `InvalidData` for one with more bytes than a packet may have
/// (nothing of it is kept), or the kernel's.
pub fn receive(socket: BorrowedFd<'_>) -> io::Result<Option<Packet>> {
    let mut bytes = vec![0; PACKET_BYTES_MAX];
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut control = [0_usize; CONTROL_WORDS + 1];
    // SAFETY: `msghdr` is plain data, valid when zeroed.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control);
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the message and all that it points to outlive the call.
    let count = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) };
    if count < 0 {
        return Err(io::Error::last_os_error());
    }
    // Before anything can go wrong: what has arrived is ours to close.
    let descriptors = take_descriptors(&message);
    if message.msg_flags & libc::MSG_TRUNC != 0 {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a packet is too long"));
    }
    if count == 0 {
        return Ok(None);
    }
    bytes.truncate(count as usize);
    let has_lost_descriptors = message.msg_flags & libc::MSG_CTRUNC != 0;
    Ok(Some(Packet { bytes, descriptors, has_lost_descriptors }))
}

fn take_descriptors(message: &libc::msghdr) -> Vec<OwnedFd> {
    let mut descriptors = Vec::new();
    // SAFETY: the kernel has filled the control buffer, and the macros walk it within its length;
    // every descriptor in it is new and ours.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                let payload = (*header).cmsg_len - libc::CMSG_LEN(0) as usize;
                let data = libc::CMSG_DATA(header).cast::<i32>();
                for index in 0..payload / size_of::<i32>() {
                    descriptors.push(OwnedFd::from_raw_fd(data.add(index).read_unaligned()));
                }
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
    descriptors
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn bytes_and_descriptors_arrive_and_the_end_does() {
        let (left, right) = pair().unwrap();
        let (extra, _other) = pair().unwrap();
        send(left.as_fd(), b"hello", &[extra.as_fd(), extra.as_fd()]).unwrap();
        let packet = receive(right.as_fd()).unwrap().unwrap();
        assert_eq!(packet.bytes, b"hello");
        assert_eq!(packet.descriptors.len(), 2);
        assert_eq!(receive(right.as_fd()).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(left);
        assert!(receive(right.as_fd()).unwrap().is_none());
    }

    #[test]
    fn what_is_too_much_for_a_packet_is_refused() {
        let (left, right) = pair().unwrap();
        let many = vec![left.as_fd(); DESCRIPTORS_MAX + 1];
        let error = send(right.as_fd(), b"hello", &many).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
}
