//! System calls of the library itself, with errors as values, and facts about the system.

use core::ffi::{c_int, c_void};
pub(crate) use preload::deadline::{now_ns, tick_ns};
pub(crate) use preload::errno::{errno, set_errno};
use preload::real;

/// An error number, as in `errno`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) c_int);

/// How many times to yield the CPU before sleeping, while another process is about to act.
const YIELDS: u32 = 20;

/// A result whose error is finally put into `errno`.
pub(crate) type Result<T> = core::result::Result<T, Errno>;

/// Restores `errno` when dropped, so that the library's own calls do not change it.
pub(crate) struct KeepErrno(c_int);

impl KeepErrno {
    /// Saves `errno`.
    pub(crate) fn new() -> Self {
        KeepErrno(errno())
    }
}

impl Drop for KeepErrno {
    fn drop(&mut self) {
        set_errno(self.0);
    }
}

fn check(result: isize) -> Result<usize> {
    usize::try_from(result).map_err(|_| Errno(errno()))
}

/// Calls recv(2) without sleeping.
pub(crate) fn receive(fd: c_int, to: *mut u8, length: usize, flags: c_int) -> Result<usize> {
    // SAFETY: the caller owns `length` bytes at `to`; an application's bad pointer gives EFAULT.
    check(unsafe { real::recv(fd, to.cast(), length, flags | libc::MSG_DONTWAIT) })
}

/// Calls send(2) without sleeping and without a signal.
pub(crate) fn send_quietly(fd: c_int, from: *const u8, length: usize) -> Result<usize> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the caller owns `length` bytes at `from`.
    check(unsafe { real::send(fd, from.cast(), length, flags) })
}

/// Calls recvmsg(2) with a list of buffers.
pub(crate) fn receive_list(fd: c_int, list: &mut [libc::iovec], flags: c_int) -> Result<usize> {
    let mut message = message(list);
    // SAFETY: the buffers are the application's; its bad pointers give EFAULT.
    check(unsafe { real::recvmsg(fd, &mut message, flags) })
}

/// Calls sendmsg(2) with a list of buffers; raises the signal that the application may expect.
pub(crate) fn send_list(fd: c_int, list: &mut [libc::iovec], flags: c_int) -> Result<usize> {
    let message = message(list);
    // SAFETY: the buffers are the application's; its bad pointers give EFAULT.
    check(unsafe { real::sendmsg(fd, &message, flags) })
}

fn message(list: &mut [libc::iovec]) -> libc::msghdr {
    // SAFETY: plain data, for which zeros are valid.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    message.msg_iov = list.as_mut_ptr();
    message.msg_iovlen = list.len() as _;
    message
}

/// Returns whether TCP has received the peer's FIN, or the connection is broken.
pub(crate) fn has_stream_ended(fd: c_int) -> bool {
    // The first byte of struct tcp_info is the state (tcp(7)); in these states the peer has sent no
    // FIN.
    const OPEN: [u8; 5] = [TCP_ESTABLISHED, 2, 3, TCP_FIN_WAIT1, TCP_FIN_WAIT2];
    const TCP_ESTABLISHED: u8 = 1;
    const TCP_FIN_WAIT1: u8 = 4;
    const TCP_FIN_WAIT2: u8 = 5;
    let state = option_of(fd, libc::IPPROTO_TCP, libc::TCP_INFO, 0_u8);
    state.is_ok_and(|state| !OPEN.contains(&state))
}

/// Returns what poll(2) reports about one descriptor within `timeout_ms`; an interrupted call
/// counts as nothing.
pub(crate) fn poll_one(fd: c_int, events: i16, timeout_ms: c_int) -> i16 {
    let mut entry = libc::pollfd { fd, events, revents: 0 };
    // SAFETY: one entry is given and one is announced.
    let ready = unsafe { real::poll(&mut entry, 1, timeout_ms) };
    if ready > 0 { entry.revents } else { 0 }
}

/// Sleeps for this time.
pub(crate) fn nap(timeout_ms: c_int) {
    // SAFETY: no entries are announced.
    unsafe { real::poll(core::ptr::null_mut(), 0, timeout_ms) };
}

/// Repeats a check a few times at once, because most changes take only a moment, and then every
/// millisecond, `turns` times. Returns whether it became true.
pub(crate) fn wait_until(turns: u32, is_done: impl Fn() -> bool) -> bool {
    for _ in 0..YIELDS {
        if is_done() {
            return true;
        }
        // SAFETY: sched_yield(2) has no arguments.
        unsafe { libc::sched_yield() };
    }
    for _ in 0..turns {
        if is_done() {
            return true;
        }
        nap(1);
    }
    false
}

/// A type that the value of a socket option can have.
///
/// # Safety
/// The type must be plain data, of which all bytes are valid.
unsafe trait OptionValue: Copy {}

// SAFETY: a number.
unsafe impl OptionValue for u8 {}
// SAFETY: a number.
unsafe impl OptionValue for c_int {}
// SAFETY: a number.
unsafe impl OptionValue for u64 {}
// SAFETY: a structure of numbers.
unsafe impl OptionValue for libc::linger {}
// SAFETY: a structure of numbers.
unsafe impl OptionValue for libc::timeval {}
// SAFETY: a structure of numbers.
unsafe impl OptionValue for libc::ucred {}

/// Reads an option of a socket over `value`, and returns it.
fn option_of<T: OptionValue>(fd: c_int, level: c_int, name: c_int, mut value: T) -> Result<T> {
    let mut size = size_of::<T>() as libc::socklen_t;
    let to: *mut c_void = (&raw mut value).cast();
    // SAFETY: `value` has the announced size.
    check(unsafe { real::getsockopt(fd, level, name, to, &mut size) } as isize)?;
    Ok(value)
}

/// Reads an option of a socket whose value is a number.
pub(crate) fn option(fd: c_int, level: c_int, name: c_int) -> Result<c_int> {
    option_of(fd, level, name, 0)
}

/// Returns the number of a socket, which no other socket has until the host is started again.
pub(crate) fn cookie(fd: c_int) -> Result<u64> {
    option_of(fd, libc::SOL_SOCKET, libc::SO_COOKIE, 0)
}

/// Returns the user at the other end of a UNIX socket, as the kernel recorded it.
pub(crate) fn peer_user(fd: c_int) -> Option<libc::uid_t> {
    let nobody = libc::ucred { pid: 0, uid: 0, gid: 0 };
    option_of(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, nobody).ok().map(|who| who.uid)
}

/// Returns a time limit of a socket (SO_RCVTIMEO, SO_SNDTIMEO) in nanoseconds; 0 means none.
pub(crate) fn time_limit_ns(fd: c_int, name: c_int) -> u64 {
    let none = libc::timeval { tv_sec: 0, tv_usec: 0 };
    let value = option_of(fd, libc::SOL_SOCKET, name, none).unwrap_or(none);
    (value.tv_sec as u64).saturating_mul(1_000_000_000) + value.tv_usec as u64 * 1_000
}

/// Returns the time limit in milliseconds, as poll(2) takes it.
pub(crate) fn time_limit_ms(fd: c_int, name: c_int) -> c_int {
    match time_limit_ns(fd, name) {
        0 => -1,
        limit => limit.div_ceil(1_000_000).min(c_int::MAX as u64) as c_int,
    }
}

/// Sleeps until one of the events. EAGAIN at the time limit, EINTR after a signal.
pub(crate) fn wait_for(fd: c_int, events: i16, limit_ms: c_int) -> Result<()> {
    let mut entry = libc::pollfd { fd, events, revents: 0 };
    // SAFETY: one entry is given and one is announced.
    match check(unsafe { real::poll(&mut entry, 1, limit_ms) } as isize)? {
        0 => Err(Errno(libc::EAGAIN)),
        _ => Ok(()),
    }
}

/// Returns whether the next byte of the stream is urgent data (tcp(7)).
pub(crate) fn is_at_urgent(fd: c_int) -> bool {
    const SIOCATMARK: usize = 0x8905;
    let mut is_at: c_int = 0;
    // SAFETY: the request writes a number, and the variable is local.
    unsafe { real::ioctl(fd, SIOCATMARK, (&raw mut is_at) as usize) == 0 && is_at != 0 }
}

/// Returns SO_LINGER of a socket.
pub(crate) fn linger(fd: c_int) -> libc::linger {
    let none = libc::linger { l_onoff: 0, l_linger: 0 };
    option_of(fd, libc::SOL_SOCKET, libc::SO_LINGER, none).unwrap_or(none)
}

/// Sets SO_LINGER.
pub(crate) fn set_linger(fd: c_int, value: libc::linger) {
    set_option(fd, libc::SO_LINGER, &value);
}

/// Makes room for so many more bytes in the socket's send buffer, if needed. Returns whether the
/// socket takes them without waiting. If the buffer's size has to be set for that, it gets room for
/// at least `widened` bytes, because a buffer whose size was set does not grow any more; 0 leaves
/// it unchanged.
pub(crate) fn make_send_room(fd: c_int, bytes: u64, widened: u64) -> bool {
    let is_enough = || {
        let room = option(fd, libc::SOL_SOCKET, libc::SO_SNDBUF).unwrap_or(0) as u64;
        // The kernel also counts its overhead for the bytes.
        room >= 2 * (bytes + unsent_bytes(fd))
    };
    if widened > 0 && !is_enough() {
        widen_send_buffer(fd, (bytes + unsent_bytes(fd)).max(widened));
    }
    is_enough()
}

/// Returns how many bytes are in the socket's send queue.
fn unsent_bytes(fd: c_int) -> u64 {
    let mut bytes: c_int = 0;
    // SAFETY: the request writes a number to `bytes`, a local variable.
    unsafe { real::ioctl(fd, libc::TIOCOUTQ as usize, (&raw mut bytes) as usize) };
    bytes.max(0) as u64
}

/// Returns whether the peer's host has acknowledged everything that was sent, or has reset the
/// connection.
pub(crate) fn is_acknowledged(fd: c_int) -> bool {
    unsent_bytes(fd) == 0 || poll_one(fd, 0, 0) & (libc::POLLHUP | libc::POLLERR) != 0
}

/// Enlarges the send buffer by so many bytes, as far as the system allows it.
pub(crate) fn widen_send_buffer(fd: c_int, bytes: u64) {
    let bytes = bytes.min(1 << 29) as c_int;
    if !set_option(fd, libc::SO_SNDBUFFORCE, &bytes) {
        set_option(fd, libc::SO_SNDBUF, &bytes);
    }
}

fn set_option<T>(fd: c_int, name: c_int, value: &T) -> bool {
    let from = core::ptr::from_ref(value).cast();
    let size = size_of::<T>() as libc::socklen_t;
    // SAFETY: `value` has the announced size.
    unsafe { real::setsockopt(fd, libc::SOL_SOCKET, name, from, size) == 0 }
}

/// Resets a connection (connect(2) to no address): the peer, and every process with this end's
/// socket, get ECONNRESET instead of an end of stream.
pub(crate) fn reset(fd: c_int) {
    // SAFETY: plain data, for which zeros are valid.
    let mut nowhere: libc::sockaddr = unsafe { core::mem::zeroed() };
    nowhere.sa_family = libc::AF_UNSPEC as libc::sa_family_t;
    // SAFETY: the address has the announced size.
    unsafe { real::connect(fd, &nowhere, size_of::<libc::sockaddr>() as libc::socklen_t) };
}

/// Returns whether the descriptor's file has O_NONBLOCK.
pub(crate) fn is_nonblocking(fd: c_int) -> bool {
    // SAFETY: F_GETFL has no argument.
    unsafe { real::fcntl(fd, libc::F_GETFL, 0) & libc::O_NONBLOCK != 0 }
}

/// Returns the lowest number for descriptors of the library: programs expect the low numbers, and
/// close them in ranges.
pub(crate) fn lowest_descriptor() -> usize {
    (descriptors_max().rlim_cur / 2).min(1 << 16) as usize
}

/// Returns how many descriptors this process may have.
pub(crate) fn descriptors_max() -> libc::rlimit {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a local variable of the right type.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    limit
}

/// Closes a descriptor of the library.
pub(crate) fn close(fd: c_int) {
    if fd >= 0 {
        // SAFETY: the descriptor belongs to the library and is not used after this.
        unsafe { real::close(fd) };
    }
}

/// Returns the CPU that runs this thread, plus one, so that 0 can mean unknown.
pub(crate) fn processor() -> u32 {
    // SAFETY: sched_getcpu(3) has no arguments.
    (unsafe { libc::sched_getcpu() } + 1) as u32
}

/// Maps shared anonymous memory, zeroed, that forked children share.
pub(crate) fn map_shared(bytes: usize) -> Result<*mut u8> {
    map(bytes, -1, libc::MAP_SHARED | libc::MAP_ANONYMOUS)
}

/// Maps private zeroed memory; pages are allocated when they are touched.
pub(crate) fn map_private(bytes: usize) -> Result<*mut u8> {
    map(bytes, -1, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE)
}

/// Maps a whole memory file for reading and writing.
pub(crate) fn map_file(fd: c_int, bytes: usize) -> Result<*mut u8> {
    map(bytes, fd, libc::MAP_SHARED)
}

fn map(bytes: usize, fd: c_int, flags: c_int) -> Result<*mut u8> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the kernel chooses the address; no existing mapping is replaced.
    let at = unsafe { libc::mmap(core::ptr::null_mut(), bytes, access, flags, fd, 0) };
    if at == libc::MAP_FAILED { Err(Errno(errno())) } else { Ok(at.cast()) }
}

/// Unmaps memory of [`map_shared`] or [`map_file`].
///
/// # Safety
/// Nothing may use the memory any more.
pub(crate) unsafe fn unmap(at: *mut u8, bytes: usize) {
    // SAFETY: the caller guarantees that nothing uses the memory.
    unsafe { libc::munmap(at.cast(), bytes) };
}

/// Frees the pages of a memory file in a range of its mapping (MADV_REMOVE), for all processes. Has
/// no effect if the range is not one of whole pages.
///
/// # Safety
/// Nothing may use the memory any more.
pub(crate) unsafe fn free_pages(at: *mut u8, bytes: usize) {
    // SAFETY: the caller guarantees that nothing uses the memory.
    unsafe { libc::madvise(at.cast(), bytes, libc::MADV_REMOVE) };
}

/// A number that can be read from a file.
///
/// # Safety
/// The type must be plain data: every pattern of bytes is valid.
pub(crate) unsafe trait Number: Copy + Default {}

// SAFETY: a number.
unsafe impl Number for u32 {}
// SAFETY: a number.
unsafe impl Number for u64 {}

/// Reads a number at a position of a file; an error if there is none.
pub(crate) fn read_number_at<T: Number>(fd: c_int, offset: i64) -> Result<T> {
    let mut number = T::default();
    let place = libc::iovec { iov_base: (&raw mut number).cast(), iov_len: size_of::<T>() };
    // SAFETY: the list has one entry, a local variable.
    let read = check(unsafe { real::preadv(fd, &raw const place, 1, offset) })?;
    if read == size_of::<T>() { Ok(number) } else { Err(Errno(libc::EIO)) }
}

/// Returns whether another process, or another mapping of this one, has the page at an address,
/// which this process has touched. `None` if the kernel does not tell (`/proc/self/pagemap`, see
/// proc_pid_pagemap(5)).
pub(crate) fn is_mapped_elsewhere(at: *const u8) -> Option<bool> {
    const PRESENT: u64 = 1 << 63;
    const EXCLUSIVE: u64 = 1 << 56;
    // SAFETY: the path ends with zero, and sysconf(3) takes a number.
    let (fd, page_bytes) = unsafe {
        let flags = libc::O_RDONLY | libc::O_CLOEXEC;
        let fd = libc::open(c"/proc/self/pagemap".as_ptr(), flags);
        (fd, libc::sysconf(libc::_SC_PAGESIZE) as usize)
    };
    let entry = read_number_at::<u64>(fd, (at as usize / page_bytes * size_of::<u64>()) as i64);
    close(fd);
    entry.ok().filter(|entry| entry & PRESENT != 0).map(|entry| entry & EXCLUSIVE == 0)
}
