//! Implements batches of frames in memory for one call of recvmmsg(2) or sendmmsg(2).

use crate::device::offload::HEADER_BYTES;
use crate::system::check;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

/// The longest frame: an IP packet of 64 KiB in Ethernet.
pub(super) const FRAME_BYTES_MAX: usize = 14 + 65_535;
/// Distance between slots: an odd number of cache lines, so that the beginnings of the frames,
/// often the only part that is used, do not compete for the same lines of the cache.
const SLOT_BYTES: usize = 1041 * 64;
const _: () = assert!(SLOT_BYTES >= HEADER_BYTES + FRAME_BYTES_MAX);

/// Slots with a virtio header and a frame in each.
pub(super) struct Batch {
    /// Memory of the slots, to which the messages point; accessed only through `memory_at`. Its
    /// untouched pages cost nothing, and short frames touch few.
    memory: *mut [u8],
    vectors: *mut [libc::iovec],
    messages: *mut [libc::mmsghdr],
}

// SAFETY: all pointers are to memory that the batch owns.
unsafe impl Send for Batch {}

impl Batch {
    pub(super) fn new(slots: usize) -> Batch {
        let memory = Box::into_raw(vec![0_u8; slots * SLOT_BYTES].into_boxed_slice());
        let base = memory.cast::<u8>();
        let vectors: Box<[libc::iovec]> = (0..slots)
            .map(|slot| libc::iovec {
                iov_base: base.wrapping_add(slot * SLOT_BYTES).cast(),
                iov_len: HEADER_BYTES + FRAME_BYTES_MAX,
            })
            .collect();
        let vectors = Box::into_raw(vectors);
        let messages: Box<[libc::mmsghdr]> = (0..slots)
            .map(|slot| {
                // SAFETY: mmsghdr is plain data for which all zeros is valid.
                let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
                message.msg_hdr.msg_iov = vectors.cast::<libc::iovec>().wrapping_add(slot);
                message.msg_hdr.msg_iovlen = 1;
                message
            })
            .collect();
        Batch { memory, vectors, messages: Box::into_raw(messages) }
    }

    /// The number of slots.
    pub(super) fn slots(&self) -> usize {
        self.messages.len()
    }

    /// The header and frame of a slot.
    pub(super) fn slot(&mut self, slot: usize) -> &mut [u8] {
        assert!(slot < self.slots(), "a slot of the batch");
        let bytes = HEADER_BYTES + FRAME_BYTES_MAX;
        // SAFETY: the slot is within the memory. The borrow of `self` excludes other slices, and
        // the kernel, which writes only in `receive`.
        unsafe {
            let base = self.memory.cast::<u8>().add(slot * SLOT_BYTES);
            std::slice::from_raw_parts_mut(base, bytes)
        }
    }

    /// Receives at most `limit` frames without waiting; returns their number.
    pub(super) fn receive(&mut self, socket: BorrowedFd<'_>, limit: usize) -> io::Result<usize> {
        let count = limit.min(self.slots()) as libc::c_uint;
        let messages = self.messages.cast::<libc::mmsghdr>();
        let flags = libc::MSG_DONTWAIT;
        // SAFETY: `count` messages point to vectors, and these to memory, that the batch owns.
        let outcome = unsafe {
            libc::recvmmsg(socket.as_raw_fd(), messages, count, flags as _, ptr::null_mut())
        };
        check(outcome).map(|count| count as usize)
    }

    /// The header and frame received into a slot; `None` if the frame was cut off.
    pub(super) fn received(&mut self, slot: usize) -> Option<&[u8]> {
        assert!(slot < self.slots(), "a slot of the batch");
        // SAFETY: the message is within the batch, and no system call uses it now.
        let (bytes, flags) = unsafe {
            let message = &*self.messages.cast::<libc::mmsghdr>().add(slot);
            (message.msg_len as usize, message.msg_hdr.msg_flags)
        };
        if flags & libc::MSG_TRUNC != 0 { None } else { self.slot(slot).get(..bytes) }
    }

    /// Sets the number of bytes of a slot to send, including the header.
    pub(super) fn set_length(&mut self, slot: usize, bytes: usize) {
        assert!(slot < self.slots() && bytes <= HEADER_BYTES + FRAME_BYTES_MAX);
        // SAFETY: the vector is within the batch, and no system call uses it now.
        unsafe { (*self.vectors.cast::<libc::iovec>().add(slot)).iov_len = bytes };
    }

    /// Sends slots without waiting; returns the number of slots that the kernel accepted, at least
    /// 1.
    pub(super) fn send(
        &mut self,
        socket: BorrowedFd<'_>,
        slots: std::ops::Range<usize>,
    ) -> io::Result<usize> {
        assert!(slots.start <= slots.end && slots.end <= self.slots());
        let flags = libc::MSG_DONTWAIT;
        // SAFETY: the messages of these slots point to vectors, and these to memory, that the batch
        // owns.
        let outcome = unsafe {
            let messages = self.messages.cast::<libc::mmsghdr>().add(slots.start);
            libc::sendmmsg(socket.as_raw_fd(), messages, slots.len() as _, flags as _)
        };
        check(outcome).map(|count| count as usize)
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        // SAFETY: each pointer came from `Box::into_raw` in `new`, and is freed only here.
        unsafe {
            drop(Box::from_raw(self.messages));
            drop(Box::from_raw(self.vectors));
            drop(Box::from_raw(self.memory));
        }
    }
}
