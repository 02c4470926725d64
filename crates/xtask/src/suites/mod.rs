//! Runs tests that other projects publish, on megapipe-rt: `cargo xtask suites`.
//!
//! The package of each project is in cargo's cache of the registry, because the workspace depends
//! on it. This module writes a crate into the target directory whose modules are the package's test
//! files, with our crate `tokio-facade` in tokio's place. It builds them to one program, runs each
//! test in a process of its own, and compares the results with a list of expected failures.
//!
//! - `scratch`: writes and builds the crate. `expected`: the list.

mod expected;
mod scratch;

use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use self::expected::Expected;
use crate::guard;
use crate::lanes::Outcome;
use crate::tally::Tally;

/// A package with tests.
struct Suite {
    package: &'static str,
    /// The directory of its test files, and their names; empty for all.
    directory: &'static str,
    files: &'static [&'static str],
    /// What the crate depends on besides tokio, as lines of its manifest. The lock file of the
    /// workspace chooses the versions.
    dependencies: &'static [&'static str],
    /// Features of `tokio-facade`.
    features: &'static [&'static str],
    /// Features of the package for which tests ask.
    enabled: &'static [&'static str],
    /// Rust before the modules: names that the tests expect at the root of their crate.
    prelude: &'static str,
    /// The list of expected failures.
    list: &'static str,
}

const SUITES: [Suite; 2] = [
    Suite {
        package: "tokio",
        directory: "tests",
        files: &[],
        dependencies: &[
            "bytes = '*'",
            "futures = '*'",
            "libc = '*'",
            "pin-project-lite = '*'",
            "rand = '*'",
            "socket2 = '*'",
            "tempfile = '*'",
            "tokio-stream = '*'",
            "tokio-test = '*'",
        ],
        features: &[],
        enabled: &[
            "full",
            "io-util",
            "macros",
            "net",
            "rt",
            "rt-multi-thread",
            "sync",
            "test-util",
            "time",
        ],
        prelude: "use tokio::time;",
        list: "crates/tokio-facade/expected/tokio.txt",
    },
    Suite {
        package: "quinn",
        directory: "src",
        files: &["tests"],
        dependencies: &[
            "bytes = '*'",
            "rand = '*'",
            "proto = { package = 'quinn-proto', version = '*', default-features = false }",
            "rcgen = { version = '*', default-features = false, features = ['ring'] }",
            "rustls = { version = '*', default-features = false, features = ['std'] }",
            "tracing = '*'",
            "tracing-futures = { version = '*', features = ['std-future'] }",
            "tracing-subscriber = { version = '*', features = ['env-filter'] }",
        ],
        features: &["quinn"],
        enabled: &["rustls-ring"],
        prelude: "pub use tokio::quinn::*;",
        list: "crates/tokio-facade/expected/quinn.txt",
    },
];

/// Time limit of a test that is expected to pass, longer than any needs.
const TIME_LIMIT: Duration = Duration::from_secs(60);
/// Time limit of a test that is expected to fail, which many do by not ending. One that would pass
/// later than this stays unnoticed.
const FAILURE_LIMIT: Duration = Duration::from_secs(1);

/// Builds and runs all suites.
pub(crate) fn run(root: &Path) -> Result<Outcome, String> {
    let mut outcome = Outcome::default();
    for suite in &SUITES {
        outcome.tally += run_suite(root, suite)?;
    }
    Ok(outcome)
}

/// Runs one suite, and prints what differs from its list.
fn run_suite(root: &Path, suite: &Suite) -> Result<Tally, String> {
    let expected = Expected::read(root, suite.list)?;
    let program = scratch::build(root, suite, &expected)?;
    let names = program.tests()?;
    let run: Vec<&String> = names.iter().filter(|name| !expected.varies(name)).collect();
    let next = AtomicUsize::new(0);
    let failed = Mutex::new(Vec::new());
    let lanes = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..lanes {
            scope.spawn(|| {
                while let Some(name) = run.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let limit = if expected.fails(name) { FAILURE_LIMIT } else { TIME_LIMIT };
                    if let Err(output) = program.run_test(name, limit) {
                        let mut failed = failed.lock().unwrap_or_else(|error| error.into_inner());
                        failed.push((name.as_str(), output));
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap_or_else(|error| error.into_inner());
    let findings = expected.compare(&names, &failed);
    findings.iter().for_each(|finding| println!("suites: {}: {finding}", suite.package));
    let (all, wrong) = (run.len() as u64, findings.len() as u64);
    println!(
        "suites: {}: {} of {all} tests pass, the others are in {}",
        suite.package,
        all - failed.len() as u64,
        suite.list
    );
    Ok(Tally { passed: all.saturating_sub(wrong), failed: wrong, skipped: 0 })
}

/// A program with tests.
struct Program(std::path::PathBuf);

impl Program {
    /// Returns the names of the tests, without those that their authors leave out.
    fn tests(&self) -> Result<Vec<String>, String> {
        let ignored = self.list(&["--list", "--ignored"])?;
        let mut names = self.list(&["--list"])?;
        names.retain(|name| !ignored.contains(name));
        Ok(names)
    }

    fn list(&self, words: &[&str]) -> Result<Vec<String>, String> {
        let output = Command::new(&self.0).args(words).output();
        let output = output.map_err(|error| {
            format!("cannot run {}: {error}; delete it to have it built again", self.0.display())
        })?;
        let listed = String::from_utf8_lossy(&output.stdout);
        Ok(listed
            .lines()
            .filter_map(|line| line.strip_suffix(": test"))
            .map(String::from)
            .collect())
    }

    /// Runs one test; returns its output if it fails.
    fn run_test(&self, name: &str, limit: Duration) -> Result<(), String> {
        let mut command = Command::new(&self.0);
        command.args(["--exact", name, "--test-threads", "1"]).env("RUST_BACKTRACE", "0");
        let output = guard::output(&mut command, limit)
            .map_err(|error| format!("cannot run {}: {error}", self.0.display()))?;
        match output.status {
            Some(status) if status.success() => Ok(()),
            None => Err(format!("it did not end within {} s", limit.as_secs())),
            Some(_) => {
                let said = [output.stdout, output.stderr].concat();
                Err(String::from_utf8_lossy(&said).into_owned())
            }
        }
    }
}
