//! Runs the differential fuzzers and the fuzz targets, each for a given time.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::cargo::{Cargo, absolute_target, host_triple};
use crate::command::make_directory;
use crate::programs::{self, Ended, Job};

/// The kept inputs; each target has a directory of its name.
const CORPUS: &str = "crates/fuzz-targets/corpus";

/// The program of all targets.
const PROGRAM: &str = "fuzz-targets";

/// The differential fuzzers with their arguments.
const DIFFERENTIAL: [(&str, &[&str]); 4] = [
    ("channelfuzz", &[]),
    ("channelfuzz", &["--driver", "mtcp"]),
    ("callfuzz", &[]),
    ("callfuzz", &["--mode", "mtcp"]),
];

/// libFuzzer's options. Longer inputs find no more faults. Only a hanging program needs so many
/// seconds for an input, also on a busy machine. AddressSanitizer needs most of the memory.
const LIMITS: [&str; 4] =
    ["-max_len=4096", "-timeout=60", "-rss_limit_mb=1024", "-print_final_stats=1"];

/// The sanitizer's settings. The quarantine of freed memory would be most of the memory otherwise.
const SANITIZER: &str = "quarantine_size_mb=16:detect_odr_violation=0";

/// The compiler's flags for libFuzzer: counters for each edge of the control flow, a table of their
/// addresses, calls that report the operands of comparisons, and AddressSanitizer. Folding branches
/// would hide edges.
const FLAGS: [&str; 8] = [
    "--cfg fuzzing",
    "-Zsanitizer=address",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Cllvm-args=-simplifycfg-branch-fold-threshold=0",
];

/// A run shorter than this is a check that must not depend on chance: its seed is always the same.
const SEARCH_SECONDS: u64 = 60;
const SEED: u64 = 1;

/// Runs the differential fuzzers and every target, or only the named targets, each for `seconds`,
/// as many at a time as there are CPUs.
pub(crate) fn run(root: &Path, seconds: u64, names: &[&str]) -> Result<(), String> {
    let targets = chosen(root, names)?;
    let mut jobs = Vec::new();
    if names.is_empty() {
        jobs.extend(differential(root, seconds)?);
    }
    jobs.extend(coverage_guided(root, seconds, &targets)?);
    let logs = absolute_target(root)?.join("fuzz/logs");
    println!("fuzz: {} programs for {seconds} s each; output: {}", jobs.len(), logs.display());
    let ended = programs::run(&logs, programs::lanes(), jobs)?;
    let (passed, failed): (Vec<_>, Vec<_>) =
        ended.iter().partition(|ended| ended.failure().is_none());
    for one in passed {
        println!("fuzz: {:<25} {}", one.name, figures(&one.output));
    }
    let failures: Vec<String> = failed.into_iter().map(describe).collect();
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n\n")) }
}

/// Returns the named targets, or all.
fn chosen(root: &Path, names: &[&str]) -> Result<Vec<String>, String> {
    let directory = root.join(CORPUS);
    let entries = fs::read_dir(&directory)
        .map_err(|error| format!("cannot read {}: {error}", directory.display()))?;
    let mut all: Vec<String> =
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    all.sort();
    match names.iter().find(|name| !all.iter().any(|target| target == *name)) {
        Some(unknown) => {
            Err(format!("there is no fuzz target `{unknown}`; use one of {}", all.join(", ")))
        }
        None if names.is_empty() => Ok(all),
        None => Ok(names.iter().map(|name| name.to_string()).collect()),
    }
}

/// Builds the differential fuzzers, the libraries that they preload, and the stack's launcher.
fn differential(root: &Path, seconds: u64) -> Result<Vec<Job>, String> {
    let built = programs::build(root, &Cargo::new(programs::FIRST))?;
    let job = |(program, arguments): (&str, &[&str])| {
        let mut command = Command::new(&programs::named(&built, program)?.path);
        command.arg("--seconds").arg(seconds.to_string()).args(arguments);
        if seconds < SEARCH_SECONDS {
            command.arg("--seed").arg(SEED.to_string());
        }
        let name = [&[program], arguments].concat().join(" ");
        Ok(Job::new(name, command))
    };
    DIFFERENTIAL.into_iter().map(job).collect()
}

/// Builds the targets with coverage instrumentation and AddressSanitizer. The stable toolchain has
/// all parts, and `RUSTC_BOOTSTRAP` permits the unstable flag, as in the sanitizer's steps.
fn coverage_guided(root: &Path, seconds: u64, names: &[String]) -> Result<Vec<Job>, String> {
    let words = "build --package fuzz-targets --bins --features fuzz-targets/libfuzzer --locked";
    // Optimization takes more time than it saves in a short run.
    let level = if seconds < SEARCH_SECONDS { "0" } else { "1" };
    let build = Cargo::new(words)
        .with("CARGO_PROFILE_FUZZ_OPT_LEVEL", level)
        .and("--profile=fuzz")
        .and("--target")
        .and(&host_triple()?)
        .in_own_target_dir("fuzz")
        .with("RUSTC_BOOTSTRAP", "1")
        .with("RUSTFLAGS", &FLAGS.join(" "));
    let built = programs::build(root, &build)?;
    let program = &programs::named(&built, PROGRAM)?.path;
    let output = absolute_target(root)?.join("fuzz");
    make_directory(&output.join("failures"))?;
    let job = |name: &String| {
        // New inputs go to the first directory.
        let (new, kept) = (output.join("corpus").join(name), root.join(CORPUS).join(name));
        make_directory(&new)?;
        let failing = output.join("failures").join(format!("{name}-"));
        let mut command = Command::new(program);
        command.env("FUZZ_TARGET", name).env("ASAN_OPTIONS", SANITIZER);
        command.args(LIMITS).arg(format!("-max_total_time={seconds}"));
        if seconds < SEARCH_SECONDS {
            command.arg(format!("-seed={SEED}"));
        }
        command.arg(format!("-artifact_prefix={}", failing.display())).args([new, kept]);
        Ok(Job::new(name.clone(), command))
    };
    names.iter().map(job).collect()
}

/// Returns what a program says of its run: libFuzzer's last line about the coverage, or the last
/// line of a differential fuzzer.
fn figures(output: &str) -> String {
    let is_progress = |line: &&str| {
        line.strip_prefix('#').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    let of_coverage = output.lines().rfind(is_progress);
    of_coverage.or(output.lines().last()).unwrap_or_default().replace('\t', " ")
}

/// Describes a failure, with the command that repeats it.
fn describe(ended: &Ended) -> String {
    let input = ended.output.lines().find_map(|line| line.split_once("Test unit written to "));
    let again = input.map_or_else(
        || "the script above repeats it".to_string(),
        |(_, path)| format!("FUZZ_TARGET={} cargo run --package {PROGRAM} -- {path}", ended.name),
    );
    let reason = ended.failure().unwrap_or_default();
    format!("{reason}\nfuzz: {} has found a failure: {again}", ended.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_chosen_by_name_and_unknown_ones_refused() {
        let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
        assert_eq!(chosen(root, &["rings", "page"]).unwrap(), ["rings", "page"]);
        let error = chosen(root, &["rings", "nothing"]).unwrap_err();
        assert!(error.contains("`nothing`; use one of ") && error.contains("rings"), "{error}");
    }

    #[test]
    fn the_figures_are_those_of_the_last_line() {
        let output = "#4\tINITED cov: 8 ft: 9\n#50\tDONE   cov: 21 ft: 30\nDone 50 runs\n";
        assert_eq!(figures(output), "#50 DONE   cov: 21 ft: 30");
        assert_eq!(figures("seed 7\n12 cases: no difference\n"), "12 cases: no difference");
    }
}
