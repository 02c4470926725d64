//! Runs seeds, and reports those that fail: the seed, the command to repeat it, and a capture.

use super::pcap::Capture;
use super::scenario::Scenario;
use super::world;
use mtcp_proto::Counters;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Runs one scenario; a panic within it counts as a failure.
fn attempt(scenario: &Scenario, capture: Option<Arc<Mutex<Capture>>>) -> Result<Counters, String> {
    match catch_unwind(AssertUnwindSafe(|| world::run(scenario, capture))) {
        Ok(result) => result,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            Err(format!("a panic: {}", text.unwrap_or("without words")))
        }
    }
}

/// Runs a scenario; if it fails, runs it again with a capture and reports the details.
fn run(scenario: &Scenario, test: &str) -> Result<Counters, String> {
    let result = attempt(scenario, None);
    let Err(what) = result else { return result };
    let capture = Arc::new(Mutex::new(Capture::default()));
    let again = attempt(scenario, Some(Arc::clone(&capture)));
    let repeats = if again.err().as_ref() == Some(&what) { "" } else { " (and does not repeat)" };
    let seed = scenario.seed;
    let written = match save(seed, &capture.lock().unwrap_or_else(PoisonError::into_inner)) {
        Ok(path) => format!("packets: {}", path.display()),
        Err(error) => format!("the packets cannot be written: {error}"),
    };
    Err(format!(
        "seed {seed}: {what}{repeats}\n  {written}\n  again: MTCP_SEEDS={seed} cargo test \
         -p mtcp-proto --test protocol {test}"
    ))
}

fn save(seed: u64, capture: &Capture) -> io::Result<PathBuf> {
    let directory = std::env::temp_dir().join(format!("mtcp-seeds-{}", std::process::id()));
    fs::create_dir_all(&directory)?;
    let path = directory.join(format!("{seed}.pcap"));
    let mut out = BufWriter::new(File::create(&path)?);
    capture.write(&mut out)?;
    out.flush()?;
    Ok(path)
}

/// Runs the scenarios of many seeds, each modified by `change`, on two threads; returns the sum of
/// all counters.
///
/// # Panics
/// After some failures, with all of them.
pub(crate) fn run_all(test: &str, seeds: Range<u64>, change: fn(&mut Scenario)) -> Counters {
    const FAILURES_MAX: usize = 8;
    let next = AtomicU64::new(seeds.start);
    let stop = AtomicBool::new(false);
    let failures = Mutex::new(Vec::new());
    let total = Mutex::new(Counters::default());
    let begun = Instant::now();
    let work = || {
        let mut sum = Counters::default();
        let mut told = begun;
        while !stop.load(Ordering::Relaxed) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                break;
            }
            let mut scenario = Scenario::draw(seed);
            change(&mut scenario);
            match run(&scenario, test) {
                Ok(counters) => sum.add(&counters),
                Err(failure) => {
                    eprintln!("{failure}");
                    let mut failures = failures.lock().unwrap_or_else(PoisonError::into_inner);
                    failures.push(failure);
                    stop.fetch_or(failures.len() >= FAILURES_MAX, Ordering::Relaxed);
                }
            }
            if told.elapsed() > Duration::from_secs(10) {
                told = Instant::now();
                eprintln!("seed {seed} of {seeds:?} after {:?}", begun.elapsed());
            }
        }
        total.lock().unwrap_or_else(PoisonError::into_inner).add(&sum);
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(work);
        work();
        other.join().expect("failures are caught");
    });
    let failures = failures.into_inner().unwrap_or_else(PoisonError::into_inner);
    assert!(failures.is_empty(), "{} seeds have failed, as told above", failures.len());
    total.into_inner().unwrap_or_else(PoisonError::into_inner)
}
