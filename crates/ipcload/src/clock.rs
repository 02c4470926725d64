//! The clock of all times here.

/// How many readings its cost is measured with.
const READINGS: u32 = 20_000;

/// CLOCK_MONOTONIC in nanoseconds: one clock for all processes of the machine, which the C library
/// reads from the processor's counter without entering the kernel.
#[inline]
pub fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid place for the answer; the clock exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// What one reading takes here and now, in nanoseconds. Every round trip includes one.
pub fn cost_ns() -> f64 {
    let begin = now_ns();
    let mut last = begin;
    for _ in 0..READINGS {
        last = std::hint::black_box(now_ns());
    }
    (last - begin) as f64 / f64::from(READINGS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reading_costs_something_but_not_much() {
        let cost = cost_ns();
        assert!(cost > 0.0 && cost < 1e6, "{cost}");
    }
}
