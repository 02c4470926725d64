//! Counters for `fable run --statistics`: one line for each process, when it ends.

use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use preload::real;
use std::io::Write;

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
    // SAFETY: the string was copied by `start` and is never freed.
    let to_errors = unsafe { CStr::from_ptr(file) } == c"-";
    let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_CREAT | libc::O_CLOEXEC;
    // SAFETY: the string ends with zero.
    let fd = if to_errors { 2 } else { unsafe { libc::open(file, flags, 0o644) } };
    // SAFETY: the buffer has `length` bytes.
    unsafe { real::write(fd, buffer.as_ptr().cast(), length) };
    if !to_errors {
        sys::close(fd);
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
