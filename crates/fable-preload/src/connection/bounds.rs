//! Buffers that the application has bounded, by SO_SNDBUF and SO_RCVBUF: what lies in a ring counts
//! as lying in them, so that a writer is held up as early as with plain TCP.

use core::ffi::c_int;
use core::sync::atomic::Ordering;

use super::Connection;
use crate::sys;

/// Bits of SO_BUF_LOCK (socket(7), since Linux 5.14): which of the sizes were set.
const SEND_SET: c_int = 1;
const RECEIVE_SET: c_int = 2;

impl Connection {
    /// Follows what the application has set. Older kernels do not tell; then the ring is the bound.
    pub(crate) fn note_buffers(&self, fd: c_int) {
        let set = sys::option(fd, libc::SOL_SOCKET, libc::SO_BUF_LOCK).unwrap_or(0);
        let bytes = |bit: c_int, name: c_int| match set & bit {
            0 => 0,
            _ => sys::option(fd, libc::SOL_SOCKET, name).unwrap_or(0).max(0) as u32,
        };
        let send = bytes(SEND_SET, libc::SO_SNDBUF);
        let receive = bytes(RECEIVE_SET, libc::SO_RCVBUF);
        self.own().send_bytes.store(send, Ordering::Relaxed);
        self.mine().incoming.receive_bytes.store(receive, Ordering::Relaxed);
    }

    /// How many bytes of the outgoing ring may be in use. The kernel lets a buffer grow whose size
    /// was not set.
    pub(super) fn room_max(&self) -> u64 {
        let send = self.own().send_bytes.load(Ordering::Relaxed);
        let receive = self.theirs().incoming.receive_bytes.load(Ordering::Relaxed);
        if send == 0 || receive == 0 {
            return self.ring_bytes();
        }
        self.ring_bytes().min(u64::from(send) + u64::from(receive))
    }
}
