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
use std::time::Duration;

use self::expected::Expected;
use crate::cargo::absolute_target;
use crate::programs::{self, Job, Program};

/// A package with tests.
struct Suite {
    package: &'static str,
    /// The directory of its test files, and which of them are built.
    directory: &'static str,
    has: fn(&str) -> bool,
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
        has: |file| !is_tokios_own(file),
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
        has: |file| file == "tests",
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

/// Returns whether a test file of tokio tests only its `io`, `sync` and macros, which the facade
/// re-exports.
fn is_tokios_own(file: &str) -> bool {
    ["duplex_stream", "io_", "macros_", "sync_"].iter().any(|own| file.starts_with(own))
        && !["io_copy_bidirectional", "macros_test"].contains(&file)
}

/// Time limit of a test that is expected to pass, in seconds, longer than any needs.
const SECONDS_MAX: u64 = 60;
/// Time limit of a test that is expected to fail, which many do by not ending. One that would pass
/// later than this stays unnoticed.
const FAILURE_SECONDS_MAX: u64 = 1;
/// How many tests that are expected to fail run at a time: most of them wait for their limit.
const FAILURE_LANES: usize = 32;

/// Builds and runs all suites.
pub(crate) fn run(root: &Path) -> Result<(), String> {
    let findings: Vec<String> =
        SUITES.iter().map(|suite| run_suite(root, suite)).collect::<Result<Vec<_>, _>>()?.concat();
    if findings.is_empty() { Ok(()) } else { Err(findings.join("\n")) }
}

/// Runs one suite; returns what differs from its list.
fn run_suite(root: &Path, suite: &Suite) -> Result<Vec<String>, String> {
    let expected = Expected::read(root, suite.list)?;
    let program = scratch::build(root, suite, &expected)?;
    let logs = absolute_target(root)?.join("suites/logs").join(suite.package);
    let names = tests(&program)?;
    let run: Vec<&String> = names.iter().filter(|name| !expected.varies(name)).collect();
    let (fail, pass): (Vec<_>, Vec<_>) = run.iter().partition(|name| expected.fails(name));
    let of = |names: Vec<&String>, seconds| {
        names.into_iter().map(|name| job(&program, name, seconds)).collect()
    };
    let mut ended = programs::run(&logs, programs::lanes(), of(pass, SECONDS_MAX))?;
    ended.extend(programs::run(&logs, FAILURE_LANES, of(fail, FAILURE_SECONDS_MAX))?);
    let failed: Vec<_> = ended
        .iter()
        .filter_map(|one| one.failure().map(|failure| (one.name.as_str(), failure)))
        .collect();
    let passed = ended.len() - failed.len();
    println!(
        "suites: {}: {passed} of {} tests pass, the others are in {}",
        suite.package,
        ended.len(),
        suite.list
    );
    Ok(expected.compare(&names, &failed))
}

/// Returns the names of the tests, without those that their authors leave out.
fn tests(program: &Program) -> Result<Vec<String>, String> {
    let list = |words: &[&str]| {
        let output = Command::new(&program.path).args(words).output();
        let path = program.path.display();
        let output = output
            .map_err(|error| format!("cannot run {path}: {error}; delete it to build it again"))?;
        let listed = String::from_utf8_lossy(&output.stdout).into_owned();
        let names = listed.lines().filter_map(|line| line.strip_suffix(": test"));
        Ok::<_, String>(names.map(String::from).collect::<Vec<_>>())
    };
    let ignored = list(&["--list", "--ignored"])?;
    let mut names = list(&["--list"])?;
    names.retain(|name| !ignored.contains(name));
    Ok(names)
}

/// One test in a process of its own.
fn job(program: &Program, name: &str, seconds: u64) -> Job {
    let mut command = Command::new(&program.path);
    command.args(["--exact", name, "--test-threads", "1"]).env("RUST_BACKTRACE", "0");
    Job { name: name.to_string(), command, limit: Duration::from_secs(seconds) }
}
