//! Runs the tests on a busy machine, beside threads that keep every CPU busy, repeatedly: a test
//! that passes only on an idle machine fails later, in an unrelated change.

use std::hint;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::runner::{self, Skips};
use crate::steps;
use crate::test_capabilities::TestCapabilities;

/// Number of busy threads for each CPU: a test gets half of the machine. With more, tests would
/// exceed time-outs that are part of what they test.
const BUSY_PER_CPU: usize = 1;

/// Runs the steps with tests for `rounds` rounds, each to its end even if others fail.
pub(crate) fn run(root: &Path, rounds: u64) -> Result<(), String> {
    let steps = steps::hunted(&TestCapabilities::here())?.len();
    let busy = Busy::start();
    let failed = (1..=rounds).filter(|&round| !passes(root, steps, round, rounds)).count();
    let outcome =
        format!("{failed} of {rounds} rounds beside {} busy threads failed", busy.threads);
    if failed > 0 {
        return Err(outcome);
    }
    println!("stress: {outcome}");
    Ok(())
}

fn passes(root: &Path, steps: usize, round: u64, rounds: u64) -> bool {
    println!("stress: round {round} of {rounds}");
    // Each step runs by itself: otherwise the first failure would hide the others.
    let run = |index: usize| {
        let step =
            move |means: &TestCapabilities| Ok(vec![steps::hunted(means)?.swap_remove(index)]);
        runner::run(root, &step, Skips::Allowed)
    };
    let outcomes: Vec<ExitCode> = (0..steps).map(run).collect();
    outcomes.iter().all(|outcome| *outcome == ExitCode::SUCCESS)
}

/// Threads that are busy until this is dropped.
struct Busy {
    threads: usize,
    over: Arc<AtomicBool>,
}

impl Busy {
    fn start() -> Busy {
        let threads = thread::available_parallelism().map_or(1, usize::from) * BUSY_PER_CPU;
        let over = Arc::new(AtomicBool::new(false));
        for _ in 0..threads {
            let over = Arc::clone(&over);
            thread::spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    hint::spin_loop();
                }
            });
        }
        Busy { threads, over }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}
