//! Prevents `SIGPIPE` for the application where a system call has no flag for that.
//!
//! A write to a pipe without a reader raises the signal in the calling thread, besides `EPIPE`. A
//! process with the default action for `SIGPIPE`, such as a C program, would be killed when its
//! peer dies.

use std::mem::MaybeUninit;

/// Runs `call`, which can raise `SIGPIPE` and returns its result and whether a pipe had no reader.
/// The signal is blocked meanwhile and, if it was raised, removed. This costs one system call in a
/// process that ignores `SIGPIPE`, as Rust programs do, and two in others.
pub(super) fn without<T>(call: impl FnOnce() -> (T, bool)) -> T {
    if is_ignored() {
        return call().0;
    }
    // SAFETY: the sets are filled before they are read.
    let (pipe, before) = unsafe {
        let mut pipe = MaybeUninit::<libc::sigset_t>::uninit();
        let mut before = MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigemptyset(pipe.as_mut_ptr());
        libc::sigaddset(pipe.as_mut_ptr(), libc::SIGPIPE);
        libc::pthread_sigmask(libc::SIG_BLOCK, pipe.as_ptr(), before.as_mut_ptr());
        (pipe.assume_init(), before.assume_init())
    };
    // A signal that is already pending belongs to the application.
    let was_pending = is_pending();
    let (outcome, is_broken) = call();
    if is_broken && !was_pending {
        let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the set and the time outlive the call; nothing is written.
        unsafe { libc::sigtimedwait(&raw const pipe, std::ptr::null_mut(), &raw const now) };
    }
    // SAFETY: `before` is the mask that the call above returned.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut()) };
    outcome
}

fn is_ignored() -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: the call only reads the action; if it fails, the action of zeros is valid.
    unsafe {
        libc::sigaction(libc::SIGPIPE, std::ptr::null(), action.as_mut_ptr());
        action.assume_init().sa_sigaction == libc::SIG_IGN
    }
}

fn is_pending() -> bool {
    let mut pending = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: if the call fails, the set of zeros is valid and empty.
    unsafe {
        libc::sigpending(pending.as_mut_ptr());
        libc::sigismember(pending.as_ptr(), libc::SIGPIPE) == 1
    }
}
