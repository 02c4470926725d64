//! Wraps the system calls that several modules need.

use socket2::{Socket, Type};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;

/// pwritev2(2), io_uring: reports a broken pipe only by `EPIPE`. Linux 6.18; libc lacks it.
pub(crate) const RWF_NOSIGNAL: libc::c_int = 0x100;

/// Converts the return value -1 of a system call into its `errno`.
pub(crate) fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Converts a negative `errno`, as io_uring returns it, into an error.
pub(crate) fn result_of(result: i32) -> io::Result<usize> {
    if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(result as usize) }
}

/// Returns the `errno` of an error of the kernel.
pub(crate) fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

/// Returns the file status flags of a descriptor, see fcntl(2).
pub(crate) fn file_flags(fd: RawFd) -> io::Result<libc::c_int> {
    // SAFETY: the call takes no pointers.
    check(unsafe { libc::fcntl(fd, libc::F_GETFL) })
}

/// Sets the file status flags of a descriptor.
pub(crate) fn set_file_flags(fd: RawFd, flags: libc::c_int) -> io::Result<()> {
    // SAFETY: the call takes no pointers.
    check(unsafe { libc::fcntl(fd, libc::F_SETFL, flags) })?;
    Ok(())
}

/// Returns the status of a file, see fstat(2).
pub(crate) fn file_status(fd: RawFd) -> io::Result<libc::stat> {
    // SAFETY: all-zero bytes are a valid `stat`, which fstat only fills.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `stat` is valid for writing and outlives the call.
    check(unsafe { libc::fstat(fd, &mut stat) })?;
    Ok(stat)
}

/// Creates a socket that is non-blocking and close-on-exec.
pub(crate) fn open_socket(domain: i32, socket_type: i32) -> io::Result<OwnedFd> {
    Socket::new(domain.into(), Type::from(socket_type).nonblocking(), None).map(OwnedFd::from)
}

/// Creates an eventfd(2) with the count 0.
pub(crate) fn event_counter() -> io::Result<OwnedFd> {
    // SAFETY: the call takes no pointers.
    let fd = check(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) })?;
    // SAFETY: eventfd has just returned this descriptor, which has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Returns a limit of the process, see getrlimit(2).
pub(crate) fn resource_limit(which: libc::__rlimit_resource_t) -> io::Result<libc::rlimit> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is valid for writing.
    check(unsafe { libc::getrlimit(which, &mut limit) })?;
    Ok(limit)
}

/// Reads a socket option, see getsockopt(2); returns the number of bytes written to `value`.
pub(crate) fn get_option(
    socket: impl AsRawFd,
    level: i32,
    name: i32,
    value: &mut [u8],
) -> io::Result<usize> {
    let fd = socket.as_raw_fd();
    let mut bytes = value.len().min(i32::MAX as usize) as libc::socklen_t;
    // SAFETY: `bytes` bytes of `value` are writable.
    check(unsafe { libc::getsockopt(fd, level, name, value.as_mut_ptr().cast(), &mut bytes) })?;
    Ok((bytes as usize).min(value.len()))
}

/// Sets a socket option, see setsockopt(2).
pub(crate) fn set_option(
    socket: impl AsRawFd,
    level: i32,
    name: i32,
    value: &[u8],
) -> io::Result<()> {
    let fd = socket.as_raw_fd();
    let bytes = value.len().min(i32::MAX as usize) as libc::socklen_t;
    // SAFETY: `bytes` bytes of `value` are readable.
    check(unsafe { libc::setsockopt(fd, level, name, value.as_ptr().cast(), bytes) })?;
    Ok(())
}

/// Returns the value of a socket option that is an `int`.
pub(crate) fn get_number(socket: impl AsRawFd, level: i32, name: i32) -> io::Result<i32> {
    let mut value = [0; size_of::<libc::c_int>()];
    match get_option(socket, level, name, &mut value)? {
        bytes if bytes == value.len() => Ok(i32::from_ne_bytes(value)),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Sets a socket option that is an `int`.
pub(crate) fn set_number(
    socket: impl AsRawFd,
    level: i32,
    name: i32,
    value: i32,
) -> io::Result<()> {
    set_option(socket, level, name, &value.to_ne_bytes())
}

/// Returns the pending events of poll(2), without waiting.
pub(crate) fn pending_events(fd: RawFd, events: i16) -> i16 {
    let mut polled = libc::pollfd { fd, events, revents: 0 };
    // SAFETY: the one structure is valid for reading and writing.
    while unsafe { libc::poll(&mut polled, 1, 0) } < 0
        && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
    {}
    polled.revents
}

/// Returns whether there is something to read or accept at once.
pub(crate) fn is_readable(fd: RawFd) -> bool {
    pending_events(fd, libc::POLLIN) != 0
}

/// Zeroed, page-aligned memory, unmapped on drop.
pub(crate) struct Mapping {
    address: NonNull<u8>,
    bytes: usize,
}

impl Mapping {
    pub(crate) fn anonymous(bytes: usize) -> io::Result<Mapping> {
        let bytes = bytes.max(1);
        // SAFETY: a fresh anonymous mapping touches no existing memory.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let address = NonNull::new(address.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Mapping { address, bytes })
    }

    pub(crate) fn address(&self) -> *mut u8 {
        self.address.as_ptr()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Advises the kernel on the whole mapping, see madvise(2).
    pub(crate) fn advise(&self, advice: libc::c_int) -> io::Result<()> {
        // SAFETY: the range is exactly the mapping that `self` owns.
        check(unsafe { libc::madvise(self.address.as_ptr().cast(), self.bytes, advice) })?;
        Ok(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `self` alone owns the mapping, and nothing refers to it any more.
        unsafe { libc::munmap(self.address.as_ptr().cast(), self.bytes) };
    }
}
