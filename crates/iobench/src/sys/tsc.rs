//! Fast timestamps: the processor's time stamp counter if it is reliable, else CLOCK_MONOTONIC.
//!
//! The counter counts as reliable if the processor reports that it is invariant (constant rate,
//! never stopping) and the kernel uses it as its own clock, because then the kernel has verified it
//! on all CPUs. It is calibrated against CLOCK_MONOTONIC, so its times are comparable with those of
//! other programs.

use std::time::Duration;

use crate::sys::clock::now_ns;
use crate::sys::limits::read_trimmed;

/// Duration of the calibration. Reading either clock takes some 30 ns, so the rate is exact to a
/// few parts in ten million.
const CALIBRATION: Duration = Duration::from_millis(100);
const CLOCK_SOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";

/// A source of timestamps in nanoseconds on the scale of CLOCK_MONOTONIC. Copies agree.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    counter: Option<Calibration>,
}

/// A moment on both clocks, and the rate between them.
#[derive(Debug, Clone, Copy)]
struct Calibration {
    ticks: u64,
    at_ns: u64,
    /// Nanoseconds per tick, times 2^32.
    scale: u64,
}

impl Clock {
    /// Calibrates the counter, which takes a tenth of a second if there is one.
    pub(crate) fn calibrate() -> Clock {
        Clock { counter: counter::is_trustworthy().then(Calibration::measure).flatten() }
    }

    /// Returns the source of the timestamps, for reports.
    pub(crate) fn describe(&self) -> String {
        match self.counter {
            Some(Calibration { scale, .. }) => {
                let rate = (1_u64 << 32) as f64 / scale as f64;
                format!("invariant time stamp counter at {rate:.6} GHz")
            }
            None => "CLOCK_MONOTONIC".to_owned(),
        }
    }

    /// Returns the present time. Never earlier than an earlier result on the same thread.
    #[inline]
    pub(crate) fn now_ns(&self) -> u64 {
        match self.counter {
            Some(calibration) => calibration.at(counter::read()),
            None => now_ns(),
        }
    }
}

impl Calibration {
    fn measure() -> Option<Calibration> {
        let (first_ticks, first_ns) = pair();
        std::thread::sleep(CALIBRATION);
        let (ticks, at_ns) = pair();
        let elapsed_ticks = ticks.checked_sub(first_ticks).filter(|elapsed| *elapsed > 0)?;
        let scale = (u128::from(at_ns - first_ns) << 32) / u128::from(elapsed_ticks);
        // Between 100 MHz and 100 GHz; otherwise one of the clocks is wrong.
        let plausible = 1_u64 << 32;
        let scale = u64::try_from(scale).ok()?;
        (plausible / 100..plausible * 10).contains(&scale).then_some(Calibration {
            ticks,
            at_ns,
            scale,
        })
    }

    #[inline]
    fn at(&self, ticks: u64) -> u64 {
        let elapsed = ticks.saturating_sub(self.ticks);
        self.at_ns + ((u128::from(elapsed) * u128::from(self.scale)) >> 32) as u64
    }
}

/// Reads both clocks at one moment: of several attempts the one that took least time.
fn pair() -> (u64, u64) {
    let attempt = |_| {
        let before = counter::read();
        let at_ns = now_ns();
        let after = counter::read();
        (after.saturating_sub(before), before + after.saturating_sub(before) / 2, at_ns)
    };
    let (_, ticks, at_ns) = (0..16).map(attempt).min().unwrap_or_default();
    (ticks, at_ns)
}

#[cfg(target_arch = "x86_64")]
mod counter {
    use std::arch::x86_64::_rdtsc;

    use super::{CLOCK_SOURCE, read_trimmed};

    /// Returns whether the counter is reliable.
    pub(super) fn is_trustworthy() -> bool {
        let Ok(processor) = std::fs::read_to_string("/proc/cpuinfo") else { return false };
        let flags = processor.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
        let has = |wanted| flags.split_whitespace().any(|flag| flag == wanted);
        // kvm-clock and Hyper-V's page are computed from the same counter.
        let trusted = ["tsc", "kvm-clock", "hyperv_clocksource_tsc_page"];
        let source = read_trimmed(CLOCK_SOURCE);
        has("constant_tsc")
            && has("nonstop_tsc")
            && source.is_some_and(|source| trusted.contains(&source.as_str()))
    }

    #[inline]
    pub(super) fn read() -> u64 {
        // SAFETY: every x86-64 processor has the counter, and Linux lets programs read it.
        unsafe { _rdtsc() }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod counter {
    pub(super) fn is_trustworthy() -> bool {
        false
    }

    pub(super) fn read() -> u64 {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counter_keeps_to_the_monotonic_clock() {
        let clock = Clock::calibrate();
        let (before, between, after) = (now_ns(), clock.now_ns(), now_ns());
        // The error of the calibration is at most a few hundred nanoseconds.
        assert!(before <= between + 1_000 && between <= after + 1_000);
    }

    #[test]
    fn ticks_are_scaled_without_overflow() {
        let calibration = Calibration { ticks: 1_000, at_ns: 5, scale: 1 << 31 };
        assert_eq!(calibration.at(1_000), 5);
        assert_eq!(calibration.at(3_000), 1_005);
        assert_eq!(calibration.at(999), 5);
        // Ten years at 4 GHz.
        let ticks = 4_000_000_000 * 86_400 * 3_650;
        assert_eq!(calibration.at(1_000 + ticks), 5 + ticks / 2);
    }

    #[test]
    fn time_does_not_run_backwards() {
        let clock = Clock::calibrate();
        let times: Vec<u64> = (0..10_000).map(|_| clock.now_ns()).collect();
        assert!(times.is_sorted(), "{}", clock.describe());
    }
}
