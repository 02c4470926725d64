//! Times as the kernel takes and gives them.

use std::time::{Duration, Instant};

/// As good as for ever, where a time-out is longer than the clock can say.
const FOR_EVER: Duration = Duration::from_secs(365 * 86_400);

/// `CLOCK_MONOTONIC`, in nanoseconds.
pub(crate) fn monotonic_ns() -> u64 {
    let mut now = timespec(Duration::ZERO);
    // SAFETY: the time outlives the call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

/// A time as the kernel takes it.
pub(crate) fn timespec(time: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: libc::time_t::try_from(time.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: time.subsec_nanos().into(),
    }
}

/// When something that begins now has taken too long.
pub(crate) fn deadline_after(timeout: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(timeout).unwrap_or(now + FOR_EVER)
}
