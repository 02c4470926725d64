//! Converts durations for system calls and computes deadlines.

use std::time::{Duration, Instant};

/// Effectively infinite timeout (one year), for timeouts that the clock cannot represent.
const FOR_EVER: Duration = Duration::from_secs(365 * 86_400);

pub(crate) use sys::clock::monotonic_ns;

/// Converts a duration to a `timespec`.
pub(crate) fn timespec(time: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: libc::time_t::try_from(time.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: time.subsec_nanos().into(),
    }
}

/// Returns the deadline of something that begins now and may take `timeout`.
pub(crate) fn deadline_after(timeout: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(timeout).unwrap_or(now + FOR_EVER)
}
