//! Keeps `SIGPIPE` from the application where a system call cannot be asked to leave it out.
//!
//! A write to a pipe without a reader raises the signal in the calling thread, besides `EPIPE`. A
//! process that has left it as the kernel sets it, as C programs do, would die of its peer's death.

use std::mem::MaybeUninit;

/// Runs `call`, which may raise `SIGPIPE` and says whether it has met a pipe without a reader. The
/// signal is blocked meanwhile and, if it was raised, taken back. A process that ignores `SIGPIPE`,
/// as Rust programs do, pays one system call for this, others two.
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
    // One that is pending already is the application's.
    let was_pending = is_pending();
    let (outcome, is_broken) = call();
    if is_broken && !was_pending {
        let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the set and the time outlive the call; nothing is written.
        unsafe { libc::sigtimedwait(&raw const pipe, std::ptr::null_mut(), &raw const now) };
    }
    // SAFETY: the mask is the one of before.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut()) };
    outcome
}

fn is_ignored() -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: only asks; an action of zeros is a valid one if the call should fail.
    unsafe {
        libc::sigaction(libc::SIGPIPE, std::ptr::null(), action.as_mut_ptr());
        action.assume_init().sa_sigaction == libc::SIG_IGN
    }
}

fn is_pending() -> bool {
    let mut pending = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: a set of zeros is an empty one if the call should fail.
    unsafe {
        libc::sigpending(pending.as_mut_ptr());
        libc::sigismember(pending.as_ptr(), libc::SIGPIPE) == 1
    }
}
