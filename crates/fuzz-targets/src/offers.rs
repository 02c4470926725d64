//! Fuzzes what a listener receives through its rendezvous: messages with any content and any number
//! of descriptors. Whatever comes, no descriptor stays open.

mod rendezvous;

use core::ffi::c_int;

use crate::sys;

/// Messages of one run.
const MESSAGES_MAX: usize = 16;
/// `SCM_MAX_FD` of the kernel.
const DESCRIPTORS_MAX: usize = 253;
/// Numbers below this are looked at: the lowest free ones are used, and the first leak is found.
const NUMBERS_MAX: c_int = 64;

/// Returns how many descriptors are open, of those that one run can open.
fn open_descriptors() -> usize {
    // SAFETY: F_GETFD has no argument.
    (0..NUMBERS_MAX).filter(|&fd| unsafe { libc::fcntl(fd, libc::F_GETFD) } >= 0).count()
}

/// Sends bytes with so many copies of a descriptor.
fn send(to: c_int, bytes: &[u8], descriptor: c_int, count: usize) {
    let mut control = [0_u64; 160];
    let payload = (count * size_of::<c_int>()) as u32;
    let mut part = libc::iovec { iov_base: bytes.as_ptr() as *mut _, iov_len: bytes.len() };
    // SAFETY: the buffers have the announced sizes: the control data has room for the most
    // descriptors that there are, behind one header.
    unsafe {
        let mut message: libc::msghdr = core::mem::zeroed();
        message.msg_iov = &mut part;
        message.msg_iovlen = 1;
        if count > 0 {
            message.msg_control = control.as_mut_ptr().cast();
            message.msg_controllen = libc::CMSG_SPACE(payload) as usize;
            let header = libc::CMSG_FIRSTHDR(&message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(payload) as usize;
            let data = libc::CMSG_DATA(header).cast::<c_int>();
            (0..count).for_each(|index| data.add(index).write_unaligned(descriptor));
        }
        libc::sendmsg(to, &message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL);
    }
}

pub(crate) fn check(bytes: &[u8]) {
    let before = open_descriptors();
    let mut ends = [-1; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: there is room for both.
    assert_eq!(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) }, 0);
    let [ours, theirs] = ends;
    let mut rest = bytes;
    for _ in 0..MESSAGES_MAX {
        let [choice, count, length, tail @ ..] = rest else { break };
        let (content, behind) = tail.split_at(tail.len().min(usize::from(*length)));
        rest = behind;
        let count = usize::from(*count).min(DESCRIPTORS_MAX);
        match choice % 4 {
            0 => rendezvous::send_valid(theirs, theirs, choice & 4 == 0),
            1 => {
                // Near an offer: the right size and the right mark.
                let mut offer = [0; 24];
                offer.iter_mut().zip(content).for_each(|(to, from)| *to = *from);
                offer[..8].copy_from_slice(b"FABLEof2");
                send(theirs, &offer, theirs, count % 4);
            }
            _ => send(theirs, content, theirs, count),
        }
    }
    sys::close(theirs);
    for _ in 0..=MESSAGES_MAX {
        if !rendezvous::receive(ours) {
            break;
        }
    }
    sys::close(ours);
    assert_eq!(open_descriptors(), before, "a descriptor stayed open");
}
