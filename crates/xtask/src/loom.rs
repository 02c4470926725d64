//! Runs the loom tests: all interleavings of small programs.

use std::path::Path;

use crate::cargo::{Cargo, absolute_target};
use crate::programs::{self, Job};

/// Least number of tests in each package with models, to detect a filter that matches nothing.
const TESTS_MIN: [(&str, u64); 2] = [
    (
        "test --package megapipe --package megapipe-rt --package mtcp --package preload \
         --package fable --locked --lib --release",
        19,
    ),
    // A library that interposes the C library has no unit tests.
    ("test --package fable-preload --locked --test loom_page --release", 9),
];

/// Runs all models. Under `--cfg loom` only tests named `loom_...` are useful: the others use types
/// that work only inside a model. In release mode, because a model tries thousands of
/// interleavings.
pub(crate) fn run(root: &Path) -> Result<(), String> {
    let logs = absolute_target(root)?.join("loom-logs");
    let job = |(words, _): &(&str, u64)| {
        let cargo = Cargo::new(words)
            .in_own_target_dir("loom")
            .and("loom_")
            .with("RUSTFLAGS", "--cfg loom")
            .with("CARGO_PROFILE_RELEASE_DEBUG", "0");
        let mut command = cargo.command();
        command.current_dir(root);
        Job::new(words.to_string(), command)
    };
    let ended = programs::run(&logs, 1, TESTS_MIN.iter().map(job).collect())?;
    programs::failures(&ended)?;
    for (one, (_, minimum)) in ended.iter().zip(TESTS_MIN) {
        let passed = one.tally().passed;
        if passed < minimum {
            return Err(one.described(&format!(
                "{passed} tests ran, at least {minimum} must run; were they renamed, or \
                 compiled out?"
            )));
        }
    }
    Ok(())
}
