//! What cargo alone cannot do: set a machine up, check the style, and run everything that a change
//! must pass, in one order, with one verdict.
//!
//! It is the first thing compiled on a fresh machine, so it depends on the standard library alone,
//! and its errors are plain sentences for the person at the terminal.

mod apps;
mod apt;
mod cargo;
mod command;
mod descriptors;
mod features;
mod fuzz;
mod guard;
mod hunt;
mod kernels;
mod lanes;
mod lock;
mod means;
mod needs;
mod privilege;
mod runner;
mod services;
mod setup;
mod signals;
mod soak;
mod step;
mod steps;
mod tally;
mod tidy;

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask COMMAND

commands:
  test      everything a change must pass, in CI as at home: setup, format, tidy, lint, the tests
            over both drivers and over several hosts, the differential fuzzer of the channel,
            sanitizer, loom, documentation; as root it skips nothing; other users' runs name
            what they skip, because it needs root or a package that they cannot install
  tidy      check the style: file, function and line lengths, SAFETY comments, unused files,
            import cycles between crates and between modules, ...
  setup     install what is missing: packages of the distribution, rustfmt, clippy
  sanitize  the tests of megapipe and iobench under AddressSanitizer
  header    write what is made of crates/capi: megapipe.h and the manual pages
  cinstall  test the installation of libmegapipe; needs cargo-c, which comes by
            `cargo install cargo-c@0.10.16 --locked`
  loom      the loom_ tests of megapipe and mtcp, over every interleaving
  features  the conformance suite with each feature of io_uring hidden in turn that the uring driver
            uses, and what `iobench doctor` says then: half an hour; `test` has a short form
  fuzz      the differential fuzzers and every fuzz target for a minute, or so many
            SECONDS; the targets need the nightly toolchain and cargo-fuzz, which it names if they
            are missing
  hunt      the tests for so many ROUNDS (default: 3) beside threads that never rest: what fails
            then passes only on a quiet machine
  soak      user-level TCP against the kernel for so many MINUTES (default: 5), in release: what
            is left of memory and descriptors, 1 GiB each way, 10,000 connections at once
  nginx     builds the event module for the installed nginx and serves a page with it;
            options: --build (only build), --port PORT, --config FILE
  memcached builds the distribution's memcached twice, as it is and on the channel;
            options: --test [FILE.t ...] (its test suite on both), --sanitize (our tests)
  operations runs what operators and clients do to nginx and memcached (reloads, upgrades, limits,
            slow readers, large files, ...) on the stock server beside the adapted one: one table,
            whose last line names each cell that is worse than stock; fails if there is one that
            is no documented limit;
            options: nginx or memcached (only this), --quick (1 minute instead of 10),
            --only PART-OF-A-NAME (of a scenario), --json FILE
  programs  runs Python's network test suites and real programs plainly and under `fable run` (or
            `mtcp run`), case by case: one table, whose last line names each difference that is
            not pinned and each pinned one that is gone; fails if there is one;
            options: fable or mtcp (which library; fable), --quick (90 s instead of an hour),
            --only PART-OF-A-NAME (of a suite or a program), --json FILE
  kernels   boots Debian's kernels 5.10, 6.1, 6.12 and the newest in QEMU, runs conformance tests,
            nginx, memcached, fable, mtcp and iobench there, and writes the table of
            docs/kernels.md; needs root;
            options: --quick (6.1 only, 3 minutes instead of an hour), --kernel NAME-OR-DIR,...,
            --only PART-OF-A-NAME (of a check), --accel kvm|tcg, --keep
  source    fetches the source package of PACKAGE [UPSTREAM-VERSION] without installing it
  help      this text

`test`, `features`, `sanitize`, `loom`, `cinstall` and `kernels` end in the line
`result: N passed, N failed, N skipped`.

environment:
  CARGO_TARGET_DIR  where cargo builds (default: target); the sanitizer and loom legs build in the
                    directories `asan` and `loom` below it
  MEGAPIPE_DRIVER   set to `epoll` for the second run of megapipe's integration tests, so that the
                    conformance suite sees both drivers
  MEGAPIPE_TEST_BARRED  set for a third run, under a seccomp filter that bars io_uring
  MEGAPIPE_UPDATE   set by `header` for the test that compares the header otherwise
  MEGAPIPE_SKIPS    set for every test: the file to which a test that cannot run appends the line
                    `SKIPPED: name: reason` before it returns; each counts as skipped
";

/// The exit code for a command line that makes no sense, as in getopt's tools.
const EXIT_USAGE: u8 = 2;

/// The number that a command may be given.
struct Count {
    unit: &'static str,
    default: u64,
    /// More is a slip of the finger.
    max: u64,
}

/// For each target; at most a day.
const FUZZ: Count = Count { unit: "seconds", default: 60, max: 86_400 };
const HUNT: Count = Count { unit: "rounds", default: 3, max: 1_000 };
const SOAK: Count = Count { unit: "minutes", default: 5, max: 10_000 };

fn main() -> ExitCode {
    let mut raw = env::args_os().skip(1);
    if raw.next().is_some_and(|word| word == lanes::RUN_LATER) {
        return run_later(raw.collect());
    }
    if let Err(error) = signals::restore().and_then(|()| descriptors::raise()) {
        return verdict(Err(error));
    }
    let arguments: Vec<String> =
        env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let root = root();
    match words.as_slice() {
        [] | ["help" | "--help" | "-h"] => {
            print!("{USAGE}");
            ExitCode::SUCCESS
        }
        ["setup"] => verdict(setup::run(&root)),
        ["tidy"] => verdict(tidy::run(&root)),
        ["fuzz", words @ ..] => counted(words, &FUZZ, |n| fuzz::run(&root, n)),
        ["hunt", words @ ..] => counted(words, &HUNT, |n| hunt::run(&root, n)),
        ["soak", words @ ..] => counted(words, &SOAK, |n| soak::run(&root, n)),
        ["nginx", words @ ..] => verdict(apps::nginx::run(&root, words)),
        ["memcached", words @ ..] => verdict(apps::memcached::run(&root, words)),
        ["operations", words @ ..] => match apps::operations::run(&root, words) {
            Ok(code) => code,
            Err(error) => verdict(Err(error)),
        },
        ["programs", words @ ..] => match apps::programs::run(&root, words) {
            Ok(code) => code,
            Err(error) => verdict(Err(error)),
        },
        ["kernels", words @ ..] => match kernels::run(&root, words) {
            Ok(code) => code,
            Err(error) => verdict(Err(error)),
        },
        ["source", words @ ..] => verdict(apps::source::run(&root, words)),
        ["test"] => with_steps(&root, steps::full, runner::Skips::Forbidden),
        ["sanitize"] => with_steps(&root, steps::sanitize_only, runner::Skips::Allowed),
        ["header"] => with_steps(&root, steps::header_only, runner::Skips::Allowed),
        ["cinstall"] => with_steps(&root, steps::cinstall_only, runner::Skips::Forbidden),
        ["features"] => with_steps(&root, features::all, runner::Skips::Forbidden),
        ["loom"] => with_steps(&root, steps::loom_only, runner::Skips::Allowed),
        unknown => {
            eprintln!("xtask: cannot make sense of `{}`\n\n{USAGE}", unknown.join(" "));
            ExitCode::from(EXIT_USAGE)
        }
    }
}

/// cargo's side of [`lanes`]: a directory, then the program with its words.
fn run_later(mut words: Vec<OsString>) -> ExitCode {
    if words.is_empty() {
        return verdict(Err("run-later is for cargo: it takes a directory and a program".into()));
    }
    let directory = PathBuf::from(words.remove(0));
    match lanes::run_later(&directory, words) {
        Ok(code) => ExitCode::from(u8::try_from(code).unwrap_or(1)),
        Err(error) => verdict(Err(error)),
    }
}

fn with_steps(
    root: &Path,
    steps: fn(&means::Means) -> Result<Vec<step::Step>, String>,
    skips: runner::Skips,
) -> ExitCode {
    runner::run(root, &steps, skips)
}

/// Runs a command that takes a number.
fn counted(
    words: &[&str],
    count: &Count,
    command: impl FnOnce(u64) -> Result<(), String>,
) -> ExitCode {
    verdict(count.read(words).and_then(command))
}

impl Count {
    fn read(&self, words: &[&str]) -> Result<u64, String> {
        let Count { unit, default, max } = *self;
        match words {
            [] => Ok(default),
            [word] => match word.parse() {
                Ok(count) if (1..=max).contains(&count) => Ok(count),
                _ => Err(format!("`{word}` is no number of {unit} from 1 to {max}")),
            },
            _ => Err(format!("this command takes one number of {unit}, not {}", words.join(" "))),
        }
    }
}

fn verdict(result: Result<(), String>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The workspace's root. cargo names this crate's directory when it runs us, which stays right
/// when the checkout has been moved since the build.
fn root() -> PathBuf {
    let manifest = env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    manifest.ancestors().nth(2).map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_is_one_number_or_the_default() {
        assert_eq!(SOAK.read(&[]), Ok(5));
        assert_eq!(SOAK.read(&["60"]), Ok(60));
        for wrong in [&["0"][..], &["-1"], &["1h"], &["10001"], &["1", "2"]] {
            let error = SOAK.read(wrong).unwrap_err();
            assert!(error.contains("number of minutes"), "{error}");
        }
    }
}
