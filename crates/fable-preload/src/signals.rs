//! Handles signals that arrive while this library sleeps in place of the kernel.
//!
//! A handler interrupts a sleeping system call, which is restarted if the handler was installed
//! with SA_RESTART (signal(7)). A sleep of this library is always interrupted, and cannot see which
//! handler ran. Signals are therefore blocked during a sleep, which is short, and checked before
//! their handlers run.

use libc::sigset_t;
use preload::signals::{all, contains, exchange_mask, members, pending, restarts};

/// The kind of the handlers that ran after a sleep.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Handled {
    None,
    /// All of them have SA_RESTART.
    Restarting,
    Interrupting,
}

/// Sleeps with signals blocked, and lets their handlers run afterwards.
pub(crate) fn sleep(sleep: impl FnOnce()) -> Handled {
    let before = exchange_mask(&all());
    sleep();
    let handled = handlers_due(&before);
    exchange_mask(&before);
    handled
}

/// Returns which handlers the pending signals will run that the application has not blocked.
fn handlers_due(blocked: &sigset_t) -> Handled {
    let pending = pending();
    let due = members(&pending).filter(|signal| !contains(blocked, *signal));
    let mut handled = Handled::None;
    for restarts in due.filter_map(restarts) {
        if !restarts {
            return Handled::Interrupting;
        }
        handled = Handled::Restarting;
    }
    handled
}
