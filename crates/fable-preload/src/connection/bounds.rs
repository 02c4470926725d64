//! Applies the application's limits on socket buffers (SO_SNDBUF and SO_RCVBUF) to the rings: bytes
//! in a ring count as bytes in these buffers, so that a writer waits as early as with plain TCP.

use core::ffi::c_int;
use core::sync::atomic::Ordering;

use super::Connection;
use crate::sys;

/// Bits of SO_BUF_LOCK (socket(7), since Linux 5.14): which sizes the application has set.
const SEND_SET: c_int = 1;
const RECEIVE_SET: c_int = 2;

impl Connection {
    /// Reads the sizes that the application has set. Older kernels do not report them; the ring is
    /// then the limit.
    pub(crate) fn note_buffers(&self, fd: c_int) {
        let set = sys::option(fd, libc::SOL_SOCKET, libc::SO_BUF_LOCK).unwrap_or(0);
        let bytes = |bit: c_int, name: c_int| match set & bit {
            0 => 0,
            _ => sys::option(fd, libc::SOL_SOCKET, name).unwrap_or(0).max(0) as u32,
        };
        let send = bytes(SEND_SET, libc::SO_SNDBUF);
        let receive = bytes(RECEIVE_SET, libc::SO_RCVBUF);
        self.own().send_bytes.store(send, Ordering::Relaxed);
        self.mine().set_receive_bytes(receive);
    }

    /// Tells the peer whether the application's SO_LINGER makes a reset of every end, also of this
    /// process's death.
    pub(crate) fn note_linger(&self, fd: c_int) {
        let set = sys::linger(fd);
        self.mine().set_aborts(set.l_onoff != 0 && set.l_linger == 0);
    }

    /// Returns how many bytes of the outgoing ring may be in use. A buffer whose size was not set
    /// counts as unlimited, because the kernel lets it grow.
    pub(super) fn room_max(&self) -> u64 {
        let send = self.own().send_bytes.load(Ordering::Relaxed);
        let receive = self.theirs().receive_bytes();
        if send == 0 || receive == 0 {
            return self.ring_bytes();
        }
        self.ring_bytes().min(u64::from(send) + u64::from(receive))
    }
}
