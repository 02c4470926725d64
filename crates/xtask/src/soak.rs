//! `cargo xtask soak`: runs servers under verified loads for minutes, in release mode, and finds
//! what grows. The loads and the judgement are tests, `systemtests/programs/tests/soak`, which the
//! second level runs for seconds.

use std::path::Path;

use crate::apps;
use crate::cargo::Cargo;

pub(crate) const OPTIONS: &str = "[MINUTES [PART ...]]";

pub(crate) const HELP: &str = "\
runs the channel, nginx, memcached, megapipe-rt, user-level TCP and flows under verified loads in
release mode, with killed clients, reloads and restarts; prints the growth per cycle of memory,
mappings, descriptors, threads, shared memory and sockets, and fails on a leak or a wrong byte;
MINUTES in all, 1 to 10000 [default: 5; an hour before a release]; PART: channel, runtime, mtcp,
nginx, memcached, flows, fable_run [default: all]; needs root";

/// Beginnings of the tests' names, and how many tests have them.
const PARTS: [(&str, u64); 7] = [
    ("channel", 2),
    ("runtime", 2),
    ("mtcp", 1),
    ("nginx", 2),
    ("memcached", 2),
    ("flows", 2),
    ("fable_run", 1),
];

/// What the tests start.
const PROGRAMS: &str = "build --release --locked --bins --lib --examples --package iobench \
     --package fabled --package fable-preload --package fable --package megapipe-rt --package \
     systemtests-channel --package systemtests-flows --package systemtests-programs";

const TESTS: &str = "test --release --locked --package systemtests-programs --test soak -- \
     --test-threads 1 --nocapture";

/// The long forms of mtcp's tests against the kernel.
const MTCP: &str = "test --release --locked --package systemtests-tcp --test interop -- \
     --test-threads 1 --nocapture soak:: crowd::";

/// The environment variable with the seconds of each test.
const SECONDS: &str = "MEGAPIPE_SOAK_SECONDS";

/// Runs the chosen parts, each for the same time.
pub(crate) fn run(root: &Path, minutes: u64, words: &[&str]) -> Result<(), String> {
    let mut parts: Vec<(&str, u64)> = PARTS.to_vec();
    if let Some(word) = words.iter().find(|word| PARTS.iter().all(|(name, _)| name != *word)) {
        let names: Vec<&str> = PARTS.iter().map(|(name, _)| *name).collect();
        return Err(format!("there is no part `{word}` to soak; use one of {}", names.join(", ")));
    }
    parts.retain(|(name, _)| words.is_empty() || words.contains(name));
    let has = |name: &str| parts.iter().any(|(part, _)| *part == name);
    // The tests of mtcp against the kernel count as one more.
    let tests = parts.iter().map(|(_, tests)| tests).sum::<u64>() + u64::from(has("mtcp"));
    let seconds = (minutes * 60).div_ceil(tests).to_string();
    if has("nginx") || has("memcached") {
        apps::build(root)?;
    }
    let mut soak = Cargo::new(TESTS).with(SECONDS, &seconds);
    for (name, _) in &parts {
        soak = soak.and(&format!("parts::{name}"));
    }
    let mut commands = vec![Cargo::new(PROGRAMS), soak];
    if has("mtcp") {
        commands.push(Cargo::new(MTCP).with(SECONDS, &seconds));
    }
    let mut failed = Vec::new();
    for cargo in commands {
        let status = cargo.command().current_dir(root).status();
        let status =
            status.map_err(|error| format!("cannot run cargo: {error}; add cargo to the PATH"))?;
        if !status.success() {
            failed.push(format!("`{cargo}`"));
        }
    }
    if failed.is_empty() {
        return Ok(());
    }
    Err(format!("the soak failed, see the output above; repeat it by {}", failed.join(", ")))
}
