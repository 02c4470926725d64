//! Sends and receives packets with descriptors over a UNIX socket of type `SOCK_SEQPACKET`.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::protocol::{DESCRIPTORS_MAX, PACKET_BYTES_MAX};
use crate::socket::persist;

/// Room for the descriptors of one packet, with the alignment that cmsg(3) requires.
const CONTROL_WORDS: usize = 2 + DESCRIPTORS_MAX.div_ceil(2);

/// A received packet.
#[derive(Debug)]
pub struct Packet {
    /// The packet's bytes.
    pub bytes: Vec<u8>,
    /// The packet's descriptors.
    pub descriptors: Vec<OwnedFd>,
    /// Whether it came with more, which the kernel has closed: the sender's mistake, or this
    /// process has as many descriptors as it may have (`RLIMIT_NOFILE`). Then `descriptors` has
    /// only the first ones, if any.
    pub has_lost_descriptors: bool,
}

/// Makes a connected pair of sockets: close-on-exec, non-blocking.
///
/// # Errors
/// Those of socketpair(2).
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends = [-1; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: `ends` has room for two descriptors.
    if unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: both descriptors are new and have no other owner.
    Ok(unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) })
}

/// Sends one packet, completely or not at all, without blocking and without `SIGPIPE`.
///
/// # Errors
/// `WouldBlock` if the peer does not read, `InvalidInput` if the packet exceeds a limit, or the
/// kernel's error.
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
    persist(|| {
        // SAFETY: the message and all memory that it points to outlive the call.
        let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, flags) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    })
}

/// Receives one packet without blocking. `None` means that the peer has closed.
///
/// # Errors
/// `WouldBlock` if there is none, `InvalidData` for a packet beyond the limit of bytes (which is
/// discarded), or the kernel's error.
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
    let count = persist(|| {
        // SAFETY: the message and all memory that it points to outlive the call. A call that fails
        // changes nothing of it.
        let count = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) };
        if count < 0 { Err(io::Error::last_os_error()) } else { Ok(count) }
    })?;
    // First, so that an error below closes the received descriptors.
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
    // SAFETY: the kernel has filled the control buffer, and the macros stay within its length;
    // every descriptor in it is new and has no other owner.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                let payload = (*header).cmsg_len - libc::CMSG_LEN(0) as usize;
                let data = libc::CMSG_DATA(header).cast::<i32>();
                for index in 0..payload / size_of::<i32>() {
                    let descriptor = OwnedFd::from_raw_fd(data.add(index).read_unaligned());
                    do_not_linger(descriptor.as_fd());
                    descriptors.push(descriptor);
                }
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
    descriptors
}

/// Makes closing a descriptor of a peer immediate. If it is a TCP socket with SO_LINGER and unsent
/// bytes whose other holders have closed it, closing it would wait as long as its sender has chosen
/// (socket(7)). Other kinds of descriptors are left as they are.
fn do_not_linger(descriptor: BorrowedFd<'_>) {
    let off = libc::linger { l_onoff: 0, l_linger: 0 };
    let (value, size) = ((&raw const off).cast(), size_of_val(&off) as libc::socklen_t);
    // SAFETY: the value has the size that is announced.
    unsafe {
        libc::setsockopt(descriptor.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, value, size);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_socket_that_lingers_is_closed_at_once() {
        let (left, right) = pair().unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let socket = socket2::Socket::from(stream);
        socket.set_linger(Some(std::time::Duration::from_secs(10_000))).unwrap();
        send(left.as_fd(), b"hello", &[socket.as_fd()]).unwrap();
        let packet = receive(right.as_fd()).unwrap().unwrap();
        let [received] = <[_; 1]>::try_from(packet.descriptors).unwrap();
        assert_eq!(socket2::Socket::from(received).linger().unwrap(), None);
    }

    #[test]
    fn descriptors_beyond_the_most_are_lost_and_the_others_close() {
        let (left, right) = pair().unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut control = [0_usize; 64];
        // SAFETY: plain data, valid when zeroed.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        let mut byte = 1_u8;
        let mut part = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
        let numbers = [listener.as_raw_fd(); 100];
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        let payload = size_of_val(&numbers) as u32;
        // SAFETY: the room has one header with as many numbers.
        unsafe {
            message.msg_controllen = libc::CMSG_SPACE(payload) as usize;
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(payload) as usize;
            libc::CMSG_DATA(header).cast::<[i32; 100]>().write_unaligned(numbers);
            assert_eq!(libc::sendmsg(left.as_raw_fd(), &raw const message, 0), 1);
        }
        let packet = receive(right.as_fd()).unwrap().unwrap();
        assert!(packet.has_lost_descriptors);
        assert!(!packet.descriptors.is_empty());
        let address = listener.local_addr().unwrap();
        drop(packet);
        drop(listener);
        // Only a socket that nobody has any more refuses connections.
        std::net::TcpStream::connect(address).unwrap_err();
    }

    #[test]
    fn what_is_too_much_for_a_packet_is_refused() {
        let (left, right) = pair().unwrap();
        let many = vec![left.as_fd(); DESCRIPTORS_MAX + 1];
        let error = send(right.as_fd(), b"hello", &many).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
}
