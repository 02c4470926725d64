//! Signals that come while this library sleeps in place of the kernel.
//!
//! A call of the kernel that sleeps is interrupted by a handler, and begins again by itself if the
//! handler was installed with SA_RESTART (signal(7)). A sleep of ours is interrupted in any case,
//! without a word of the handler. So signals are held back during a sleep, which is short, and
//! looked at before their handlers run.

use libc::sigset_t;
use preload::signals::{all, contains, exchange_mask, members, pending, restarts};

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
    let before = exchange_mask(&all());
    sleep();
    let handled = handlers_due(&before);
    exchange_mask(&before);
    handled
}

/// What the signals will do that wait and were not blocked by the application.
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
