//! Signals that come while this library sleeps in place of the kernel.
//!
//! A call of the kernel that sleeps is interrupted by a handler, and begins again by itself if the
//! handler was installed with SA_RESTART (signal(7)). A sleep of ours is interrupted in any case,
//! without a word of the handler. So signals are held back during a sleep, which is short, and
//! looked at before their handlers run.

use core::ffi::c_int;
use core::mem::MaybeUninit;

use libc::sigset_t;

/// Handlers that ran after a sleep.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Handled {
    None,
    /// All of them have SA_RESTART.
    Restarting,
    Interrupting,
}

/// Sleeps with signals held back, and lets their handlers run afterwards.
pub(crate) fn sleep(sleep: impl FnOnce()) -> Handled {
    let mut all = MaybeUninit::<sigset_t>::uninit();
    let mut before = MaybeUninit::<sigset_t>::uninit();
    // SAFETY: sigfillset fills the first set, pthread_sigmask the second one.
    let before = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        before.assume_init()
    };
    sleep();
    let handled = handlers_due(&before);
    // SAFETY: the set is the one of before.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &before, core::ptr::null_mut()) };
    handled
}

/// What the signals will do that wait and were not blocked by the application.
fn handlers_due(blocked: &sigset_t) -> Handled {
    let mut pending = MaybeUninit::<sigset_t>::uninit();
    // SAFETY: the set is written by the call.
    let pending = unsafe {
        libc::sigpending(pending.as_mut_ptr());
        pending.assume_init()
    };
    let mut handled = Handled::None;
    for number in 1..=libc::SIGRTMAX() {
        // SAFETY: both sets are whole.
        let due = unsafe {
            libc::sigismember(&pending, number) == 1 && libc::sigismember(blocked, number) == 0
        };
        match due.then(|| handler_flags(number)).flatten() {
            None => (),
            Some(flags) if flags & libc::SA_RESTART != 0 && handled == Handled::None => {
                handled = Handled::Restarting;
            }
            Some(flags) if flags & libc::SA_RESTART != 0 => (),
            Some(_) => handled = Handled::Interrupting,
        }
    }
    handled
}

/// The flags of a signal's handler, if it has one.
fn handler_flags(number: c_int) -> Option<c_int> {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: the call writes what is installed; zeros are valid if it fails.
    let action = unsafe {
        libc::sigaction(number, core::ptr::null(), action.as_mut_ptr());
        action.assume_init()
    };
    let handler = action.sa_sigaction;
    (handler != libc::SIG_DFL && handler != libc::SIG_IGN).then_some(action.sa_flags)
}
