//! Wraps the system calls of the driver, and counts them.

use crate::sys::{RWF_NOSIGNAL, pending_events};
use std::cell::Cell;
use std::io;
use std::os::fd::RawFd;

/// The maximum number of bytes that Linux moves in one call. It also keeps every count within an
/// `i32`.
pub(super) const TRANSFER_MAX: usize = 0x7fff_f000;

/// Returns the `errno` of the last call.
pub(super) fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

/// Returns an empty message header.
pub(super) fn message() -> libc::msghdr {
    // SAFETY: all-zero bytes are a valid `msghdr`: null pointers and zero lengths.
    unsafe { std::mem::zeroed() }
}

/// Returns the address family, if there is an address.
pub(super) fn family(address: *const libc::sockaddr, bytes: libc::socklen_t) -> Option<i32> {
    let family_bytes = std::mem::size_of::<libc::sa_family_t>();
    if address.is_null() || (bytes as usize) < family_bytes {
        return None;
    }
    // SAFETY: `bytes` bytes at `address` are readable until the operation's outcome, and the two
    // bytes of the family come first in every socket address.
    let family = unsafe { address.cast::<libc::sa_family_t>().read_unaligned() };
    Some(family.into())
}

/// Makes and counts the system calls of the driver.
///
/// None of its calls but `wait` sleeps, as long as the descriptor is a socket or non-blocking. The
/// pointers come from an [`Operation`](crate::driver::Operation) or from the channel's own buffers;
/// both guarantee that they stay valid and otherwise unused until the outcome.
#[derive(Default)]
pub(super) struct Calls {
    made: Cell<u64>,
}

impl Calls {
    /// Returns the number of calls made.
    pub(super) fn made(&self) -> u64 {
        self.made.get()
    }

    /// Adds calls that another thread made.
    pub(super) fn add(&self, calls: u64) {
        self.made.set(self.made.get().wrapping_add(calls));
    }

    /// Makes a call; returns its `errno` if it fails.
    pub(super) fn once(&self, call: impl FnOnce() -> isize) -> Result<usize, i32> {
        self.add(1);
        let result = call();
        if result < 0 { Err(errno()) } else { Ok(result as usize) }
    }

    /// Makes a call, again while signal handlers interrupt it.
    pub(super) fn retried(&self, mut call: impl FnMut() -> isize) -> Result<usize, i32> {
        loop {
            match self.once(&mut call) {
                Err(libc::EINTR) => continue,
                result => return result,
            }
        }
    }

    /// Returns the pending events of poll(2).
    pub(super) fn poll(&self, fd: RawFd, events: i16) -> u32 {
        self.add(1);
        u32::from(pending_events(fd, events) as u16)
    }

    /// Sleeps until one of the events of poll(2) is pending.
    pub(super) fn wait(&self, fd: RawFd, events: i16) -> Result<(), i32> {
        let mut asked = libc::pollfd { fd, events, revents: 0 };
        // SAFETY: `asked` is one valid entry and outlives the call.
        self.retried(|| unsafe { libc::poll(&mut asked, 1, -1) as isize })?;
        Ok(())
    }

    /// Fills exactly `bytes` bytes of the peer's address; returns their number or `-errno`.
    pub(super) fn peer_name(&self, fd: RawFd, address: *mut u8, bytes: u32) -> i32 {
        let (level, name) = (libc::SOL_SOCKET, libc::SO_PEERNAME);
        let mut room = bytes as libc::socklen_t;
        let got = self.once(|| {
            // SAFETY: `bytes` bytes at `address` are writable; the contract of `Calls` guarantees
            // it.
            unsafe { libc::getsockopt(fd, level, name, address.cast(), &mut room) as isize }
        });
        got.map_or_else(|errno| -errno, |_| room as i32)
    }

    /// Receives from a socket without blocking, see recv(2).
    pub(super) fn receive(
        &self,
        fd: RawFd,
        address: *mut u8,
        bytes: usize,
        flags: libc::c_int,
    ) -> Result<usize, i32> {
        let (bytes, flags) = (bytes.min(TRANSFER_MAX), flags | libc::MSG_DONTWAIT);
        // SAFETY: `bytes` bytes at `address` are writable; the contract of `Calls` guarantees it.
        self.retried(|| unsafe { libc::recv(fd, address.cast(), bytes, flags) })
    }

    pub(super) fn read(&self, fd: RawFd, address: *mut u8, bytes: usize) -> Result<usize, i32> {
        let bytes = bytes.min(TRANSFER_MAX);
        // SAFETY: `bytes` bytes at `address` are writable; the contract of `Calls` guarantees it.
        self.retried(|| unsafe { libc::read(fd, address.cast(), bytes) })
    }

    pub(super) fn readv(&self, fd: RawFd, vector: &[libc::iovec]) -> Result<usize, i32> {
        let count = vector.len().min(i32::MAX as usize) as libc::c_int;
        // SAFETY: the vector's parts are writable; the contract of `Calls` guarantees it.
        self.retried(|| unsafe { libc::readv(fd, vector.as_ptr(), count) })
    }

    /// recvmsg(2). The header may be changed even if the call fails.
    pub(super) fn receive_message(
        &self,
        fd: RawFd,
        header: *mut libc::msghdr,
        flags: libc::c_int,
    ) -> Result<usize, i32> {
        // SAFETY: this call alone uses the header, and its parts are writable by the contract of
        // `Calls`.
        self.retried(|| unsafe { libc::recvmsg(fd, header, flags | libc::MSG_DONTWAIT) })
    }

    /// send(2) with further flags.
    pub(super) fn send(
        &self,
        fd: RawFd,
        address: *const u8,
        bytes: usize,
        flags: libc::c_int,
    ) -> Result<usize, i32> {
        let flags = flags | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: `bytes` bytes at `address` are readable; the contract of `Calls` guarantees it.
        self.retried(|| unsafe { libc::send(fd, address.cast(), bytes, flags) })
    }

    pub(super) fn send_message(
        &self,
        fd: RawFd,
        message: *const libc::msghdr,
    ) -> Result<usize, i32> {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the header and all that it points to are readable by the contract of `Calls`.
        self.retried(|| unsafe { libc::sendmsg(fd, message, flags) })
    }

    /// Calls writev(2). With `quiet` it raises no `SIGPIPE` if the reader has closed, or fails with
    /// `EOPNOTSUPP`.
    pub(super) fn writev(
        &self,
        fd: RawFd,
        vector: &[libc::iovec],
        quiet: bool,
    ) -> Result<usize, i32> {
        let count = vector.len().min(i32::MAX as usize) as libc::c_int;
        let parts = vector.as_ptr();
        if quiet {
            // SAFETY: the vector's parts are readable by the contract of `Calls`; offset -1 is "no
            // position".
            self.retried(|| unsafe { libc::pwritev2(fd, parts, count, -1, RWF_NOSIGNAL) })
        } else {
            // SAFETY: the vector's parts are readable; the contract of `Calls` guarantees it.
            self.retried(|| unsafe { libc::writev(fd, parts, count) })
        }
    }

    /// Accepts a connection as a non-blocking descriptor, without the peer's name: accept4(2).
    pub(super) fn accept(&self, fd: RawFd) -> Result<RawFd, i32> {
        let none = std::ptr::null_mut();
        let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        let accepted = self.retried(|| {
            // SAFETY: null pointers tell the kernel not to store the peer's name.
            unsafe { libc::accept4(fd, none, std::ptr::null_mut(), flags) as isize }
        })?;
        Ok(accepted as RawFd)
    }

    /// Returns whether there is something to read or accept.
    pub(super) fn is_readable(&self, fd: RawFd) -> bool {
        self.poll(fd, libc::POLLIN) != 0
    }

    pub(super) fn flags(&self, fd: RawFd) -> Result<libc::c_int, i32> {
        // SAFETY: the call takes no pointers.
        let flags = self.once(|| unsafe { libc::fcntl(fd, libc::F_GETFL) as isize })?;
        Ok(flags as libc::c_int)
    }

    pub(super) fn set_flags(&self, fd: RawFd, flags: libc::c_int) -> Result<(), i32> {
        // SAFETY: the call takes no pointers.
        self.once(|| unsafe { libc::fcntl(fd, libc::F_SETFL, flags) as isize })?;
        Ok(())
    }

    /// Reads an option that is a number; 0 and no bytes if the kernel stores nothing.
    pub(super) fn option(&self, fd: RawFd, level: i32, name: i32) -> Result<(i32, usize), i32> {
        let mut value: libc::c_int = 0;
        let mut bytes = std::mem::size_of_val(&value) as libc::socklen_t;
        // SAFETY: `value` and `bytes` are writable and describe each other.
        self.once(|| unsafe {
            libc::getsockopt(fd, level, name, (&raw mut value).cast(), &mut bytes) as isize
        })?;
        Ok((value, bytes as usize))
    }
}
