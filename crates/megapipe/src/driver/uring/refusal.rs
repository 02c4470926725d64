//! Defines why there is no io_uring driver.

use super::features::Lack;
use std::io;

/// The reason why there is no io_uring driver.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// A call failed; the caller decides whether it means that io_uring is unavailable.
    Failed(FailedCall),
    /// The kernel lacks a feature that cannot be replaced.
    Lacks(Lack),
}

impl From<FailedCall> for Refusal {
    fn from(failed: FailedCall) -> Refusal {
        Refusal::Failed(failed)
    }
}

/// A system call that failed while a ring was set up.
#[derive(Debug)]
pub(crate) struct FailedCall {
    pub(crate) call: &'static str,
    pub(crate) source: io::Error,
}

impl FailedCall {
    /// Returns a function for `map_err`.
    pub(crate) fn of(call: &'static str) -> impl Fn(io::Error) -> FailedCall + Copy {
        move |source| FailedCall { call, source }
    }
}
