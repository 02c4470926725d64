//! Implements deadlines of calls that wait, and their conversions.

use core::ffi::c_int;
use core::time::Duration;
use libc::{timespec, timeval};

const SECOND_NS: u64 = 1_000_000_000;

/// Returns the time of the monotonic clock in nanoseconds.
pub fn now_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC)
}

/// Returns the time of the monotonic clock at its last tick, at most a few milliseconds ago; much
/// cheaper than [`now_ns`].
pub fn tick_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC_COARSE)
}

fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut time = timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to `time`, which is valid for writing.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec as u64 * SECOND_NS + time.tv_nsec as u64
}

/// The time until which a call may wait.
#[derive(Clone, Copy, Debug)]
pub enum Deadline {
    /// Do not wait.
    Now,
    /// At this time of the monotonic clock, in nanoseconds.
    At(u64),
    /// Never: wait without limit.
    Never,
}

impl Deadline {
    /// Returns the deadline after this time; `None` means without limit.
    pub fn after(time: Option<Duration>) -> Deadline {
        let Some(time) = time else { return Deadline::Never };
        if time.is_zero() {
            return Deadline::Now;
        }
        let time_ns = u64::try_from(time.as_nanos()).ok();
        time_ns.and_then(|time| now_ns().checked_add(time)).map_or(Deadline::Never, Deadline::At)
    }

    /// Returns the deadline for a time in the format of poll(2): negative means without limit.
    pub fn after_ms(time_ms: c_int) -> Deadline {
        Deadline::after(u64::try_from(time_ms).ok().map(Duration::from_millis))
    }

    /// Returns the deadline for a time in the format of ppoll(2): null means without limit. `None`:
    /// the time is not valid (`EINVAL`).
    ///
    /// # Safety
    /// `time` is null or valid.
    pub unsafe fn after_timespec(time: *const timespec) -> Option<Deadline> {
        // SAFETY: the caller guarantees this.
        let Some(time) = (unsafe { time.as_ref() }) else { return Some(Deadline::Never) };
        let seconds = u64::try_from(time.tv_sec).ok()?;
        let nanos = u32::try_from(time.tv_nsec).ok().filter(|nanos| *nanos < 1_000_000_000)?;
        Some(Deadline::after(Some(Duration::new(seconds, nanos))))
    }

    /// Returns the deadline for a time in the format of select(2): null means without limit.
    /// `None`: the time is not valid (`EINVAL`).
    ///
    /// # Safety
    /// `time` is null or valid.
    pub unsafe fn after_timeval(time: *const timeval) -> Option<Deadline> {
        // SAFETY: the caller guarantees this.
        let Some(time) = (unsafe { time.as_ref() }) else { return Some(Deadline::Never) };
        let seconds = Duration::from_secs(u64::try_from(time.tv_sec).ok()?);
        let micros = Duration::from_micros(u64::try_from(time.tv_usec).ok()?);
        Some(Deadline::after(Some(seconds.saturating_add(micros))))
    }

    /// Returns this deadline, or the one after `limit_ns` if that is earlier.
    pub fn within(self, limit_ns: u64) -> Deadline {
        let latest = || now_ns() + limit_ns;
        match self {
            Deadline::Now => Deadline::Now,
            Deadline::At(end_ns) => Deadline::At(end_ns.min(latest())),
            Deadline::Never => Deadline::At(latest()),
        }
    }

    /// Returns whether the deadline has passed.
    pub fn has_passed(self) -> bool {
        match self {
            Deadline::Now => true,
            Deadline::At(end_ns) => now_ns() >= end_ns,
            Deadline::Never => false,
        }
    }

    /// Returns the remaining time; `None` means without limit.
    pub fn left(self) -> Option<Duration> {
        match self {
            Deadline::Now => Some(Duration::ZERO),
            Deadline::At(end_ns) => Some(Duration::from_nanos(end_ns.saturating_sub(now_ns()))),
            Deadline::Never => None,
        }
    }

    /// Returns the remaining time in the format of ppoll(2).
    pub fn left_timespec(self) -> Option<timespec> {
        let left = self.left()?;
        // At most the time that fits into 64 bits of nanoseconds, 584 years.
        Some(timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos().into() })
    }

    /// Returns the remaining time in the format of poll(2), rounded up; negative means without
    /// limit.
    pub fn left_ms(self) -> c_int {
        let left = self.left().map(|left| left.as_nanos().div_ceil(1_000_000));
        left.map_or(-1, |left_ms| c_int::try_from(left_ms).unwrap_or(c_int::MAX))
    }
}
