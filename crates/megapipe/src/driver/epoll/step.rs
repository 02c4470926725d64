//! The result of one try at an operation.

use crate::driver::Output;

/// What came of a try.
pub(super) enum Step {
    /// Not now; an edge will tell when.
    Blocked,
    /// There is more to do at once, but others come first.
    Paused,
    /// Not now, and no edge will tell when.
    Later,
    /// The operation's last outcome.
    Ended(i32),
    /// No buffer is free for it, which ends it, too.
    Starved,
    /// An outcome, the last one unless the operation repeats.
    Brought {
        result: i32,
        output: Output,
        /// Whether the next try is known to be in vain until an edge.
        drained: bool,
    },
}

impl Step {
    /// What an `errno` means for an operation that has done nothing yet.
    pub(super) fn failed(errno: i32) -> Step {
        if errno == libc::EAGAIN { Step::Blocked } else { Step::Ended(-errno) }
    }
}
