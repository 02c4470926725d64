//! The offer: the addresses of a connection that is about to be made, and the memory file for it.

use core::ffi::c_int;
use preload::real;

use libc::{c_void, cmsghdr, iovec, msghdr};

use super::Address;
use crate::sys;

const MAGIC: u64 = u64::from_le_bytes(*b"FABLEof1");
/// An offer that is older found no connection and never will.
const LIFETIME_NS: u64 = 10_000_000_000;

/// What is sent to the rendezvous, beside the descriptor.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Offer {
    magic: u64,
    made_ns: u64,
    pub(super) client: Address,
    pub(super) server: Address,
}

/// Room for one descriptor.
#[repr(C, align(8))]
struct Control([u8; 24]);

impl Offer {
    pub(super) fn new(client: Address, server: Address) -> Self {
        Offer { magic: MAGIC, made_ns: sys::now_ns(), client, server }
    }

    /// Whether no connection for it will come any more.
    pub(super) fn is_stale(&self) -> bool {
        sys::now_ns().saturating_sub(self.made_ns) > LIFETIME_NS
    }

    /// Sends it with the memory file; whether it went.
    pub(super) fn send(&self, to: c_int, memory: c_int) -> bool {
        let mut entry = iovec {
            iov_base: (self as *const Self).cast_mut().cast::<c_void>(),
            iov_len: size_of::<Self>(),
        };
        let mut control = Control([0; 24]);
        // SAFETY: plain data, for which zeros are valid.
        let mut message: msghdr = unsafe { core::mem::zeroed() };
        message.msg_iov = &mut entry;
        message.msg_iovlen = 1;
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = control.0.len();
        // SAFETY: the control buffer is aligned and holds one header with one descriptor.
        unsafe {
            let header: *mut cmsghdr = libc::CMSG_FIRSTHDR(&message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(size_of::<c_int>() as u32) as usize;
            libc::CMSG_DATA(header).cast::<c_int>().write_unaligned(memory);
            let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
            real::sendmsg(to, &message, flags) == size_of::<Self>() as isize
        }
    }

    /// Takes one with its memory file, which the caller owns; `None` if there is none, or it is
    /// none.
    pub(super) fn receive(from: c_int) -> Option<(Offer, c_int)> {
        let mut offer = core::mem::MaybeUninit::<Offer>::zeroed();
        let size = size_of::<Offer>();
        let mut entry = iovec { iov_base: offer.as_mut_ptr().cast(), iov_len: size };
        let mut control = Control([0; 24]);
        // SAFETY: plain data, for which zeros are valid.
        let mut message: msghdr = unsafe { core::mem::zeroed() };
        message.msg_iov = &mut entry;
        message.msg_iovlen = 1;
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = control.0.len();
        let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
        // SAFETY: all buffers are ours and have the announced sizes.
        let received = unsafe { real::recvmsg(from, &mut message, flags) };
        let memory = descriptor(&message)?;
        // SAFETY: every pattern of bytes is an offer, and it was zeroed.
        let offer = unsafe { offer.assume_init() };
        if received == size as isize && offer.magic == MAGIC {
            return Some((offer, memory));
        }
        sys::close(memory);
        None
    }
}

/// The descriptor in a message; the room for control data admits no second one.
fn descriptor(message: &msghdr) -> Option<c_int> {
    // SAFETY: the kernel filled the control buffer, and the macros stay within its announced
    // length.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(message);
        if header.is_null()
            || (*header).cmsg_level != libc::SOL_SOCKET
            || (*header).cmsg_type != libc::SCM_RIGHTS
            || (*header).cmsg_len < libc::CMSG_LEN(size_of::<c_int>() as u32) as usize
        {
            return None;
        }
        Some(libc::CMSG_DATA(header).cast::<c_int>().read_unaligned())
    }
}
