//! Sets of signals, the mask of the calling thread, and what handlers do to a call that sleeps.

use core::ffi::c_int;
use core::mem::MaybeUninit;

use libc::sigset_t;

/// All signals.
pub fn all() -> sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the call fills the set.
    unsafe {
        libc::sigfillset(set.as_mut_ptr());
        set.assume_init()
    }
}

/// Blocks these signals for this thread and no others; gives those that were blocked before.
pub fn exchange_mask(mask: &sigset_t) -> sigset_t {
    let mut before = MaybeUninit::uninit();
    // SAFETY: both sets outlive the call, which fills the second one.
    unsafe {
        libc::pthread_sigmask(libc::SIG_SETMASK, mask, before.as_mut_ptr());
        before.assume_init()
    }
}

/// The signals that wait for this thread.
pub fn pending() -> sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the call fills the set.
    unsafe {
        libc::sigpending(set.as_mut_ptr());
        set.assume_init()
    }
}

/// Whether the signal is one of the set.
pub fn contains(set: &sigset_t, signal: c_int) -> bool {
    // SAFETY: a valid set; numbers that are no signal's are answered by an error.
    unsafe { libc::sigismember(set, signal) == 1 }
}

/// The signals of the set.
pub fn members(set: &sigset_t) -> impl Iterator<Item = c_int> {
    (1..=libc::SIGRTMAX()).filter(|signal| contains(set, *signal))
}

/// The set without these signals.
pub fn without(mut set: sigset_t, signals: impl Iterator<Item = c_int>) -> sigset_t {
    for signal in signals {
        // SAFETY: a valid set and a signal's number.
        unsafe { libc::sigdelset(&mut set, signal) };
    }
    set
}

/// Whether a call that the signal's handler interrupts begins again by itself (`SA_RESTART`,
/// signal(7)); `None` if the signal has no handler.
pub fn restarts(signal: c_int) -> Option<bool> {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: a null action changes nothing; the call fills the other, and zeros are valid if it
    // fails.
    let action = unsafe {
        libc::sigaction(signal, core::ptr::null(), action.as_mut_ptr());
        action.assume_init()
    };
    let has_handler = ![libc::SIG_DFL, libc::SIG_IGN].contains(&action.sa_sigaction);
    has_handler.then_some(action.sa_flags & libc::SA_RESTART != 0)
}
