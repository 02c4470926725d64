//! Handles signal sets, the mask of the calling thread, and the effect of handlers on a sleeping
//! call.

use core::ffi::c_int;
use core::mem::MaybeUninit;

use libc::sigset_t;

/// Returns the set of all signals.
pub fn all() -> sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the call fills the set.
    unsafe {
        libc::sigfillset(set.as_mut_ptr());
        set.assume_init()
    }
}

/// Sets the signal mask of this thread, and returns the previous one.
pub fn exchange_mask(mask: &sigset_t) -> sigset_t {
    let mut before = MaybeUninit::uninit();
    // SAFETY: both sets outlive the call, which fills the second one.
    unsafe {
        libc::pthread_sigmask(libc::SIG_SETMASK, mask, before.as_mut_ptr());
        before.assume_init()
    }
}

/// Returns the signals that are pending for this thread.
pub fn pending() -> sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the call fills the set.
    unsafe {
        libc::sigpending(set.as_mut_ptr());
        set.assume_init()
    }
}

/// Returns whether the signal is in the set.
pub fn contains(set: &sigset_t, signal: c_int) -> bool {
    // SAFETY: the set is valid; a number that is no signal is an error.
    unsafe { libc::sigismember(set, signal) == 1 }
}

/// Iterates over the signals in the set.
pub fn members(set: &sigset_t) -> impl Iterator<Item = c_int> {
    (1..=libc::SIGRTMAX()).filter(|signal| contains(set, *signal))
}

/// Returns the set without these signals.
pub fn without(mut set: sigset_t, signals: impl Iterator<Item = c_int>) -> sigset_t {
    for signal in signals {
        // SAFETY: the set is valid, and the number is a signal's.
        unsafe { libc::sigdelset(&mut set, signal) };
    }
    set
}

/// Returns whether a call that the signal's handler interrupts is restarted (`SA_RESTART`,
/// signal(7)); `None` if the signal has no handler.
pub fn restarts(signal: c_int) -> Option<bool> {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: a null action changes nothing; the call fills the other, for which zeros are valid if
    // it fails.
    let action = unsafe {
        libc::sigaction(signal, core::ptr::null(), action.as_mut_ptr());
        action.assume_init()
    };
    let has_handler = ![libc::SIG_DFL, libc::SIG_IGN].contains(&action.sa_sigaction);
    has_handler.then_some(action.sa_flags & libc::SA_RESTART != 0)
}
