//! The clock of all times in this crate.

pub(crate) use sys::clock::monotonic_ns as now_ns;

/// Number of readings by which its cost is measured.
const READINGS: u32 = 20_000;

/// Duration of one reading of the clock in nanoseconds. Every round trip includes one.
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
