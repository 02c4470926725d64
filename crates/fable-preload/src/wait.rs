//! Until when a call may wait.

use libc::timespec;

use crate::sys;

const SECOND_NS: u64 = 1_000_000_000;

/// The end of a wait.
#[derive(Clone, Copy)]
pub(crate) enum Deadline {
    /// Do not wait.
    Now,
    /// Until this time of the monotonic clock.
    At(u64),
    /// For ever.
    Never,
}

impl Deadline {
    /// A time limit in milliseconds; negative means for ever.
    pub(crate) fn from_ms(timeout_ms: i32) -> Self {
        match u64::try_from(timeout_ms) {
            Err(_) => Deadline::Never,
            Ok(0) => Deadline::Now,
            Ok(limit) => Deadline::At(sys::now_ns() + limit * 1_000_000),
        }
    }

    /// A time limit that an application gave; `None` means for ever.
    pub(crate) fn from_timespec(timeout: Option<timespec>) -> Self {
        let Some(timeout) = timeout else { return Deadline::Never };
        let seconds = u64::try_from(timeout.tv_sec).unwrap_or(0);
        let limit = seconds.saturating_mul(SECOND_NS).saturating_add(timeout.tv_nsec as u64);
        if limit == 0 { Deadline::Now } else { Deadline::At(sys::now_ns().saturating_add(limit)) }
    }

    /// The same, or so long from now if that is earlier.
    pub(crate) fn within(self, limit_ns: u64) -> Self {
        let latest = || sys::now_ns() + limit_ns;
        match self {
            Deadline::Now => Deadline::Now,
            Deadline::At(end_ns) => Deadline::At(end_ns.min(latest())),
            Deadline::Never => Deadline::At(latest()),
        }
    }

    /// Whether it is over.
    pub(crate) fn has_passed(self) -> bool {
        match self {
            Deadline::Now => true,
            Deadline::At(end_ns) => sys::now_ns() >= end_ns,
            Deadline::Never => false,
        }
    }

    /// What is left of it in milliseconds, rounded up; negative means for ever.
    pub(crate) fn left_ms(self) -> i32 {
        let Some(left) = self.left() else { return -1 };
        let ms =
            left.tv_sec.saturating_mul(1_000).saturating_add((left.tv_nsec + 999_999) / 1_000_000);
        i32::try_from(ms).unwrap_or(i32::MAX)
    }

    /// What is left of it; `None` means for ever.
    pub(crate) fn left(self) -> Option<timespec> {
        let left_ns = match self {
            Deadline::Now => 0,
            Deadline::At(end_ns) => end_ns.saturating_sub(sys::now_ns()),
            Deadline::Never => return None,
        };
        let seconds = (left_ns / SECOND_NS).min(i64::MAX as u64) as i64;
        Some(timespec { tv_sec: seconds, tv_nsec: (left_ns % SECOND_NS) as i64 })
    }
}
