//! Messages of the rendezvous: an offer, which names the socket of a future connection and has its
//! memory file, and what a listener keeps in its store.

use core::ffi::c_int;
use preload::real;

use libc::{c_void, iovec, msghdr};

use crate::sys;

const OFFER: u64 = u64::from_le_bytes(*b"FABLEof2");
/// Only in the store of a listener: the descriptor is the socket of a client that connected to the
/// rendezvous and has sent no offer yet.
const VISITOR: u64 = u64::from_le_bytes(*b"FABLEvi2");

/// The age at which an offer is stale: its connection will not arrive any more.
const OFFER_LIFETIME_NS: u64 = 10_000_000_000;
/// A client sends its offer right after it connects to the rendezvous.
const VISITOR_LIFETIME_NS: u64 = 1_000_000_000;

/// The content of a message, without the descriptor.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Message {
    magic: u64,
    /// When an offer was made, or when it arrived, if that was earlier.
    made_ns: u64,
    /// The cookie of the client's socket (SO_COOKIE).
    pub(super) cookie: u64,
}

/// What was received without waiting.
pub(super) enum Received {
    /// A message with its descriptor, which the receiver owns.
    Message(Message, c_int),
    /// There is none.
    Nothing,
    /// The message is not valid, or the peer has closed its end.
    Invalid,
}

const ONE: u32 = size_of::<c_int>() as u32;
/// The length of ancillary data with one descriptor. `CMSG_SPACE` would have room for a second one.
// SAFETY: arithmetic only.
const CONTROL_BYTES: usize = unsafe { libc::CMSG_LEN(ONE) } as usize;

#[repr(C, align(8))]
struct Control([u8; 24]);

const _: () = assert!(CONTROL_BYTES <= size_of::<Control>());

impl Message {
    pub(super) fn offer(cookie: u64) -> Self {
        Message { magic: OFFER, made_ns: sys::now_ns(), cookie }
    }

    /// Makes the store's entry for a client that has sent nothing yet.
    pub(super) fn visitor() -> Self {
        Message { magic: VISITOR, made_ns: sys::now_ns(), cookie: 0 }
    }

    /// Returns the offer of a client, which cannot make it last longer with a time to come.
    pub(super) fn made_by_now(self) -> Self {
        Message { made_ns: self.made_ns.min(sys::now_ns()), ..self }
    }

    pub(super) fn is_offer(&self) -> bool {
        self.magic == OFFER
    }

    /// Returns whether no connection for the offer, or no offer of the visitor, is waited for any
    /// more.
    pub(super) fn is_stale(&self) -> bool {
        let lifetime_ns = if self.is_offer() { OFFER_LIFETIME_NS } else { VISITOR_LIFETIME_NS };
        sys::now_ns().saturating_sub(self.made_ns) > lifetime_ns
    }

    /// Sends the message with a descriptor, without waiting. Returns whether it was sent.
    pub(super) fn send(&self, to: c_int, descriptor: c_int) -> bool {
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
        message.msg_controllen = CONTROL_BYTES;
        // SAFETY: the control buffer is aligned and has room for one header with one descriptor.
        unsafe {
            let header = libc::CMSG_FIRSTHDR(&message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = CONTROL_BYTES;
            libc::CMSG_DATA(header).cast::<c_int>().write_unaligned(descriptor);
            let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
            real::sendmsg(to, &message, flags) == size_of::<Self>() as isize
        }
    }

    /// Receives a message. Descriptors that come beside the one that belongs to it are closed, and
    /// make the message invalid.
    pub(super) fn receive(from: c_int) -> Received {
        let mut content = core::mem::MaybeUninit::<Message>::zeroed();
        let size = size_of::<Message>();
        let mut entry = iovec { iov_base: content.as_mut_ptr().cast(), iov_len: size };
        let mut control = Control([0; 24]);
        // SAFETY: plain data, for which zeros are valid.
        let mut message: msghdr = unsafe { core::mem::zeroed() };
        message.msg_iov = &mut entry;
        message.msg_iovlen = 1;
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = CONTROL_BYTES;
        let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
        // SAFETY: all buffers are local variables with the announced sizes.
        let received = unsafe { real::recvmsg(from, &mut message, flags) };
        if received < 0 {
            let is_early = matches!(sys::errno(), libc::EAGAIN | libc::EINTR);
            return if is_early { Received::Nothing } else { Received::Invalid };
        }
        // Before anything else: what has arrived is ours to close.
        let Some(descriptor) = only_descriptor(&message) else { return Received::Invalid };
        // SAFETY: every pattern of bytes is a message, and it was zeroed.
        let content = unsafe { content.assume_init() };
        let is_whole = received == size as isize && message.msg_flags & libc::MSG_TRUNC == 0;
        if is_whole && matches!(content.magic, OFFER | VISITOR) {
            return Received::Message(content, descriptor);
        }
        sys::close(descriptor);
        Received::Invalid
    }
}

/// Returns the descriptor of a message that has exactly one. Otherwise closes all that came.
fn only_descriptor(message: &msghdr) -> Option<c_int> {
    let mut first = None;
    let mut is_only = message.msg_flags & libc::MSG_CTRUNC == 0;
    // SAFETY: the kernel filled the control buffer; the macros stay within its announced length,
    // and an entry of this kind holds as many descriptors as fit into its length.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                let bytes = (*header).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                let data = libc::CMSG_DATA(header).cast::<c_int>();
                for index in 0..bytes / size_of::<c_int>() {
                    let descriptor = data.add(index).read_unaligned();
                    // Closing it must not wait, as a socket may.
                    sys::set_linger(descriptor, libc::linger { l_onoff: 0, l_linger: 0 });
                    if first.is_none() {
                        first = Some(descriptor);
                    } else {
                        sys::close(descriptor);
                        is_only = false;
                    }
                }
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
    if is_only {
        return first;
    }
    first.into_iter().for_each(sys::close);
    None
}
