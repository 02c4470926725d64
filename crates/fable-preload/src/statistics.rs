//! Counters for `fable run --statistics`: one line for each process, when it ends.

use core::ffi::{CStr, c_int};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use preload::real;
use preload::signals::{all, contains, exchange_mask, pending};
use std::io::Write;
use std::sync::OnceLock;

use crate::sys;

/// The counted events.
#[derive(Clone, Copy)]
#[repr(usize)]
pub(crate) enum Why {
    /// A connection that this process opened was upgraded.
    Connected,
    /// A connection that this process accepted was upgraded.
    Accepted,
    /// An offer that no server took.
    NotTaken,
    /// Back to TCP: the peer requested it.
    Peer,
    /// Back to TCP: a program was about to be executed with the descriptor.
    Execute,
    /// Back to TCP: the descriptor was passed to another process, or is beyond the table.
    Descriptor,
    /// Back to TCP: a call that a ring does not support (splice, urgent data, stdio …).
    Call,
    /// Back to TCP: an option of the socket.
    Option,
    /// Back to TCP: a way of waiting that the library does not support.
    Waiting,
    /// Back to TCP: the process uses io_uring.
    IoUring,
    /// Reset: a value in the peer's half of the shared page was impossible.
    Nonsense,
    /// Reset: both ends left at once, with bytes between them that neither could send.
    Crossed,
    /// Times that this process slept in the kernel for a connection.
    Sleeps,
    /// Doorbells sent.
    Doorbells,
}

const NAMES: [&str; 14] = [
    "connected",
    "accepted",
    "not_taken",
    "left_by_peer",
    "left_for_exec",
    "left_for_descriptor",
    "left_for_call",
    "left_for_option",
    "left_for_waiting",
    "left_for_io_uring",
    "reset_nonsense",
    "reset_crossed",
    "sleeps",
    "doorbells",
];

static COUNTS: [AtomicU64; NAMES.len()] = [const { AtomicU64::new(0) }; NAMES.len()];
static FILE: AtomicPtr<libc::c_char> = AtomicPtr::new(core::ptr::null_mut());
/// The file that was standard error when the program started.
static ERRORS: OnceLock<Option<(u64, u64)>> = OnceLock::new();
static WRITTEN: AtomicBool = AtomicBool::new(false);

/// Counts one event.
pub(crate) fn count(why: Why) {
    COUNTS[why as usize].fetch_add(1, Ordering::Relaxed);
}

/// Reads the name of the output file, before the application can change its environment.
pub(crate) fn start() {
    // SAFETY: the name ends with zero; the value is copied at once.
    unsafe {
        let value = libc::getenv(c"FABLE_STATISTICS".as_ptr());
        if !value.is_null() && *value != 0 {
            FILE.store(libc::strdup(value), Ordering::Release);
        }
    }
    let _ = ERRORS.set(errors_file());
}

/// Sets the counters of a forked child to zero.
pub(crate) fn start_child() {
    for count in &COUNTS {
        count.store(0, Ordering::Relaxed);
    }
    WRITTEN.store(false, Ordering::Relaxed);
}

/// Writes the line, once, if it was requested and any event was counted.
pub(crate) fn finish() {
    let file = FILE.load(Ordering::Acquire);
    let nothing = COUNTS.iter().all(|count| count.load(Ordering::Relaxed) == 0);
    if file.is_null() || nothing || WRITTEN.swap(true, Ordering::Relaxed) {
        return;
    }
    let _keep = sys::KeepErrno::new();
    let mut buffer = [0_u8; 1024];
    let length = write_line(&mut buffer);
    let line = &buffer[..length];
    if is_for_errors(file) {
        // The application may have closed it, and opened something else in its place.
        if errors_file().is_some() && Some(&errors_file()) == ERRORS.get() {
            put_into_errors(line);
        }
        return;
    }
    // SAFETY: the string ends with zero.
    let fd = open(unsafe { CStr::from_ptr(file) });
    put(fd, line);
    sys::close(fd);
}

/// Opens a file such that neither this nor a write waits for a reader; negative on failure. Where
/// links lead `fable run` has found out: another one is not followed.
fn open(file: &CStr) -> c_int {
    let is_descriptor = file.to_bytes().starts_with(b"/proc/");
    let no_follow = if is_descriptor { 0 } else { libc::O_NOFOLLOW };
    let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_CREAT | libc::O_CLOEXEC | no_follow;
    // SAFETY: the string ends with zero.
    unsafe { libc::open(file.as_ptr(), flags | libc::O_NONBLOCK | libc::O_NOCTTY, 0o644) }
}

/// Writes the line to standard error. Its file description is shared with other programs, so
/// O_NONBLOCK is set for another one where that is possible.
fn put_into_errors(line: &[u8]) {
    let is_pipe = status(libc::STDERR_FILENO)
        .is_some_and(|status| status.st_mode & libc::S_IFMT == libc::S_IFIFO);
    let own = if is_pipe { open(c"/proc/self/fd/2") } else { -1 };
    put(if own >= 0 { own } else { libc::STDERR_FILENO }, line);
    sys::close(own);
}

fn is_for_errors(file: *const libc::c_char) -> bool {
    // SAFETY: the string was copied by `start` and is never freed.
    unsafe { CStr::from_ptr(file) == c"-" }
}

fn status(fd: c_int) -> Option<libc::stat> {
    // SAFETY: the structure is plain data, for which zeros are valid.
    let mut status: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: the structure is a local variable of the right type.
    (unsafe { libc::fstat(fd, &mut status) } == 0).then_some(status)
}

/// Returns what identifies the file that is standard error now.
fn errors_file() -> Option<(u64, u64)> {
    status(libc::STDERR_FILENO).map(|status| (status.st_dev, status.st_ino))
}

/// Writes the line, without a signal, and without waiting for a reader: where it cannot be written,
/// it is lost.
fn put(fd: c_int, line: &[u8]) {
    let Some(status) = status(fd) else { return };
    let kind = status.st_mode & libc::S_IFMT;
    if kind == libc::S_IFSOCK {
        let _ = sys::send_quietly(fd, line.as_ptr(), line.len());
        return;
    }
    let is_writable = || sys::poll_one(fd, libc::POLLOUT, 0) == libc::POLLOUT;
    if kind != libc::S_IFREG && !is_writable() {
        return;
    }
    let before = exchange_mask(&all());
    let mut without_signal = before;
    // SAFETY: the set is a local variable.
    unsafe { libc::sigaddset(&mut without_signal, libc::SIGPIPE) };
    exchange_mask(&without_signal);
    let was_pending = contains(&pending(), libc::SIGPIPE);
    // SAFETY: the line is readable.
    unsafe { real::write(fd, line.as_ptr().cast(), line.len()) };
    if !was_pending && contains(&pending(), libc::SIGPIPE) {
        take_signal(libc::SIGPIPE);
    }
    exchange_mask(&before);
}

/// Takes a pending signal, so that no handler runs for it.
fn take_signal(signal: c_int) {
    // SAFETY: plain data, for which zeros are valid.
    let mut set: libc::sigset_t = unsafe { core::mem::zeroed() };
    let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the set and the time are local variables, and nothing is written.
    unsafe {
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, signal);
        libc::sigtimedwait(&set, core::ptr::null_mut(), &now);
    }
}

fn write_line(buffer: &mut [u8; 1024]) -> usize {
    let mut rest = &mut buffer[..];
    // SAFETY: getpid(2) has no arguments.
    let process = unsafe { libc::getpid() };
    // Cannot fail: the buffer has room for all names and the largest numbers.
    let _ = write!(rest, "fable: process {process}:");
    for (name, count) in NAMES.iter().zip(&COUNTS) {
        let count = count.load(Ordering::Relaxed);
        if count > 0 {
            let _ = write!(rest, " {name} {count}");
        }
    }
    let _ = writeln!(rest);
    let left = rest.len();
    buffer.len() - left
}
