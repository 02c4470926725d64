//! Defines the result of one attempt at an operation.

use crate::driver::Output;

/// The result of an attempt.
pub(super) enum Step {
    /// The operation would block; an edge will report readiness.
    Blocked,
    /// The operation's last outcome.
    Ended(i32),
    /// No buffer is free for the receive, which ends it.
    Starved,
    /// An outcome, the last one unless the operation repeats.
    Brought {
        result: i32,
        output: Output,
        /// Whether the next attempt is known to fail until an edge.
        drained: bool,
    },
}

impl Step {
    /// Maps the result of a call that moves bytes, and that ends its operation, to a step.
    pub(super) fn moved(result: Result<usize, i32>) -> Step {
        result.map_or_else(Step::failed, |bytes| Step::Ended(bytes as i32))
    }

    /// Maps the `errno` of an operation that has transferred nothing yet to a step.
    pub(super) fn failed(errno: i32) -> Step {
        if errno == libc::EAGAIN { Step::Blocked } else { Step::Ended(-errno) }
    }
}
