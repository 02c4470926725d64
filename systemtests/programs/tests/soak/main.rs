//! Soak tests: each part runs a server through many cycles of verified connections with killed
//! clients, reloads and restarts, and samples what the server holds when each cycle is over. A
//! wrong byte fails at once. A leak is a growth per cycle, so the machine's load does not matter.
//!
//! `cargo xtask soak MINUTES` runs the parts for minutes in release mode. Otherwise each lasts for
//! seconds: allocators and caches may grow for all of them, so only gross growth fails.

mod figures;
mod load;
mod parts;
mod trend;

use std::time::{Duration, Instant};

use figures::{BOUNDS, Bound, Sample};
use testkit::eventually;
use trend::Trend;

/// The environment variable with the seconds of each part.
const SECONDS: &str = "MEGAPIPE_SOAK_SECONDS";
const SHORT: Duration = Duration::from_secs(4);
/// The least number of cycles.
const CYCLES: usize = 4;
/// The part of the cycles that does not count: caches and tables grow to their size.
const WARM_UP: usize = 3;
/// The least number of samples after the warm-up that make a slope a proof: caches may still grow.
const SAMPLES: usize = 20;
/// How long a server may take until it holds no more than after the cycle before.
const SETTLING: Duration = Duration::from_secs(5);

/// Repeats cycles for the time of a part, and asserts that the processes do not grow with them.
/// `cycle` returns the number of its connections; `processes` returns those to sample, which are
/// counted with their descendants.
///
/// # Panics
/// On a leak.
fn soak(part: &str, processes: impl Fn() -> Vec<u32>, mut cycle: impl FnMut() -> u64) {
    let seconds = std::env::var(SECONDS).ok().map(|word| word.parse().expect("seconds"));
    let (begin, time) = (Instant::now(), seconds.map_or(SHORT, Duration::from_secs));
    let (mut samples, mut connections) = (Vec::<Sample>::new(), 0);
    while samples.len() < CYCLES || begin.elapsed() < time {
        connections += cycle();
        let mut sample = Sample::of(&processes());
        if let Some(before) = samples.last() {
            eventually(SETTLING, || {
                sample = Sample::of(&processes());
                sample.is_at_rest(before)
            });
        }
        samples.push(sample);
    }
    let least = if seconds.is_some() { SAMPLES } else { usize::MAX };
    let judge = |bound: &Bound| judge(bound, &samples, least);
    let leaks: Vec<String> = BOUNDS.iter().filter_map(judge).collect();
    println!("{part}: {connections} connections in {} cycles", samples.len());
    for bound in &BOUNDS {
        let verdict = judge(bound).map_or("ok", |_| "LEAK");
        println!("{} {verdict} |", row(part, bound, &samples));
    }
    assert!(leaks.is_empty(), "{part}: {}", leaks.join("; "));
}

/// Returns the values of a figure after the warm-up.
fn values(bound: &Bound, samples: &[Sample]) -> Vec<f64> {
    let counted = &samples[samples.len() / WARM_UP..];
    counted.iter().map(|sample| sample[bound.figure] as f64).collect()
}

/// Returns the complaint about a figure that grows; the slope of so many samples `least` counts.
fn judge(bound: &Bound, samples: &[Sample], least: usize) -> Option<String> {
    let values = values(bound, samples);
    let grown = values[values.len() - 1] - values[0];
    let has_slope = values.len() >= least && Trend::of(&values).low > bound.per_cycle;
    let is_leak = has_slope || grown > bound.in_all;
    is_leak.then(|| format!("{} grow without end: {values:?}", bound.name))
}

fn row(part: &str, bound: &Bound, samples: &[Sample]) -> String {
    let values = values(bound, samples);
    let Trend { slope, low, high } = Trend::of(&values);
    format!(
        "| {part:<16} | {:<13} | {:>8} | {:>8} | {slope:>8.3} [{low:.3}, {high:.3}] |",
        bound.name,
        values[0],
        values[values.len() - 1],
    )
}

#[test]
fn a_leak_is_found_by_its_slope_and_by_its_size() {
    let sample = |value| {
        let mut sample = Sample::default();
        sample.set(figures::Figure::Descriptors, value);
        sample
    };
    let descriptors = &BOUNDS[figures::Figure::Descriptors as usize];
    let judged = |values: &mut dyn Iterator<Item = u64>| {
        judge(descriptors, &values.map(sample).collect::<Vec<_>>(), SAMPLES).is_some()
    };
    assert!(judged(&mut (0..30).map(|at| 10 + at / 4)), "one in four cycles");
    assert!(judged(&mut [10, 10, 10, 90].into_iter()), "too few samples for a slope");
    assert!(!judged(&mut (0..30).map(|at| 10 + at % 3)), "noise");
    assert!(!judged(&mut (0..30).map(|at| 10 + at.min(8))), "a warm-up");
}
