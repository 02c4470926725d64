//! `cargo xtask`: sets a machine up, checks the style, and runs everything that a change must pass,
//! in one order, with one verdict.
//!
//! It is the first program that is compiled on a new machine, so it depends on the standard library
//! only, and its errors are plain sentences for its user.
//!
//! # Modules
//!
//! - `steps`, `step`, `runner`, `tally`: the steps of a run, and how they are run and counted.
//! - `beside`, `lanes`, `guard`, `lock`: steps and test programs in parallel, their time limits,
//!   locked directories.
//! - `needs`, `means`, `privilege`: what tests need, and what the machine and the user have.
//! - `setup`, `apt`, `services`: packages, sources of packages, services that packages start.
//! - `tidy`: the style check.
//! - `doc`: checks and builds the documentation.
//! - `deny`: checks licences, versions and sources of dependencies.
//! - `faults`, `features`, `fuzz`, `stress`, `soak`: the commands of these names.
//! - `kernels`: runs on other kernels in QEMU.
//! - `suites`: runs the tests of tokio and quinn on megapipe-rt.
//! - `apps`: builds nginx and memcached on the channel, and runs the programs of `apptests`.
//! - `cargo`, `command`, `descriptors`, `signals`: command lines, child processes, limits, signals.

mod apps;
mod apt;
mod beside;
mod cargo;
mod command;
mod deny;
mod descriptors;
mod doc;
mod faults;
mod features;
mod fuzz;
mod guard;
mod kernels;
mod lanes;
mod lock;
mod needs;
mod privilege;
mod runner;
mod sanitize;
mod services;
mod setup;
mod signals;
mod soak;
mod step;
mod steps;
mod stress;
mod suites;
mod tally;
mod test_capabilities;
mod tidy;

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask COMMAND [OPTIONS]

commands:
  test        runs all tests that a change must pass, which CI runs, too: setup, format, tidy, lint,
              the tests over both drivers and several hosts, the channel's differential fuzzer, the
              fuzz targets, sanitizer, loom, documentation. As root it skips nothing; for other
              users it names each test that needs root or a missing package;
              option: --only STEP (by its name in the output of a run)
  tidy        checks the style: lengths of lines, functions and files, unused files, import cycles
              between crates and between modules, ...
  setup       installs missing packages of the distribution, rustfmt and clippy
  sanitize    runs tests under AddressSanitizer and ThreadSanitizer (`test` has a short form);
              options: address or thread (only this), --only PACKAGE
  doc         checks links and manual pages, builds rustdoc, and the book in target/book
  deny        checks licences, versions and sources of all dependencies by deny.toml (cargo-deny)
  header      writes the files generated from crates/capi: megapipe.h and the manual pages
  cinstall    tests the installation of libmegapipe; needs cargo-c
              (`cargo install cargo-c@0.10.16 --locked`)
  loom        runs the loom_ tests over all interleavings
  features    runs the conformance suite and `iobench doctor` without each feature of io_uring that
              the uring driver uses; half an hour (`test` has a short form)
  faults      fails each system call of whole programs in turn (channel, fabled, flows, both preload
              libraries), with each errno that the call may have, and kills them at each; prints one
              row per scenario and each fault; some 40 minutes; needs root or user namespaces;
              options: --short (what `cargo test` runs, 1 minute), --only PART-OF-A-NAME (of a
              scenario), --step SCENARIO:CALL:N:ERRNO (one fault), --jobs COUNT
  fuzz        runs the differential fuzzers, then each fuzz target, as many at a time as there are
              CPUs; prints executions and coverage; new inputs go to target/fuzz/corpus;
              arguments: SECONDS for each, 1 to 86400 [default: 60], TARGET ... (only these);
              option: --quick (only fuzz targets, 10 s each, new inputs are not saved)
  stress      repeats the tests while other threads keep all CPUs busy, to find tests that depend on
              an idle machine;
              argument: ROUNDS, 1 to 1000 [default: 3]
  suites      runs the tests that tokio and quinn publish on megapipe-rt, and compares the results
              with the lists in crates/tokio-facade/expected
  soak        runs user-level TCP against the kernel in release mode: memory and descriptors that
              remain, 1 GiB in each direction, 10,000 simultaneous connections;
              argument: MINUTES, 1 to 10000 [default: 5]
  nginx       builds the event module for the installed nginx and serves a page with it;
              options: --build (only build), --port PORT, --config FILE, or --sanitize (our tests
              on nginx and the module under AddressSanitizer)
  memcached   builds the distribution's memcached unmodified and on the channel;
              options: --test [FILE.t ...] (runs its test suite on both), --sanitize (our tests)
  operations  runs operations of nginx and memcached (reloads, upgrades, limits, slow readers, large
              files, ...) on the stock and the adapted server; prints one table, whose last line
              names each cell that is worse than stock; fails if that is no documented limit;
              options: nginx or memcached (only this), --quick (1 minute instead of 10),
              --only PART-OF-A-NAME (of a scenario), --json FILE
  programs    runs Python's network test suites and real programs plainly and under `fable run` (or
              `mtcp run`); prints one table, whose last line names each difference that is not
              listed and each listed one that no longer occurs; fails if there is one;
              options: fable or mtcp (the library) [default: fable], --quick (90 s instead of an
              hour), --only PART-OF-A-NAME (of a suite or a program), --json FILE
  kernels     runs conformance tests, nginx, memcached, fable, mtcp and iobench on Debian's kernels
              5.10, 6.1, 6.12 and the newest in QEMU, and writes the table of docs/kernels.md; needs
              root;
              options: --quick (6.1 only, 3 minutes instead of an hour), --kernel NAME-OR-DIR,...,
              --only PART-OF-A-NAME (of a check), --accel kvm|tcg, --keep
  source      fetches the source package of PACKAGE [UPSTREAM-VERSION] without installing it
  help        prints this text

examples:
  cargo xtask test --only 'differential fuzzer'
  cargo xtask fuzz 300
  cargo xtask fuzz 3600 tickets records
  cargo xtask operations nginx --quick --only reload
  cargo xtask kernels --kernel 6.1 --only conformance

`test`, `features`, `sanitize`, `loom`, `cinstall` and `kernels` end with the line
`result: N passed, N failed, N skipped`.

environment:
  CARGO_TARGET_DIR      directory in which cargo builds [default: target]; builds for
                        the sanitizer, loom and fuzzing use its subdirectories
  MEGAPIPE_DRIVER       driver of megapipe's integration tests; `test` sets it to `epoll` for their
                        second run, so that the conformance suite tests both drivers
  MEGAPIPE_TEST_BARRED  `test` sets it for a third run, under a seccomp filter that bars io_uring
  MEGAPIPE_UPDATE       `header` sets it for the test that otherwise compares the header
  MEGAPIPE_SKIPS        file to which a test that cannot run appends `SKIPPED: name: reason` before
                        it returns; set for all tests, and each line counts as skipped
";

/// Exit status after a wrong command line, as in programs with getopt.
const EXIT_USAGE: u8 = 2;

/// The numeric argument of a command.
struct Count {
    unit: &'static str,
    default: u64,
    /// Upper limit; a larger number is probably a typing error.
    max: u64,
}

/// Seconds for each target; at most a day.
const FUZZ: Count = Count { unit: "seconds", default: 60, max: 86_400 };
const STRESS: Count = Count { unit: "rounds", default: 3, max: 1_000 };
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
        ["doc"] => verdict(doc::run(&root)),
        ["deny"] => verdict(deny::run(&root)),
        ["fuzz", "--quick"] => verdict(fuzz::quick(&root)),
        ["fuzz", words @ ..] => {
            let (seconds, targets) = words.split_at(words.len().min(1));
            counted(seconds, &FUZZ, |n| fuzz::run(&root, n, targets))
        }
        ["stress", words @ ..] => counted(words, &STRESS, |n| stress::run(&root, n)),
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
        ["faults", words @ ..] => match faults::run(&root, words) {
            Ok(code) => code,
            Err(error) => verdict(Err(error)),
        },
        ["source", words @ ..] => verdict(apps::source::run(&root, words)),
        ["test"] => with_steps(&root, steps::full, runner::Skips::Forbidden),
        ["test", "--only", name] => {
            let only = |means: &_| steps::only(name, means);
            runner::run(&root, &only, runner::Skips::Allowed)
        }
        ["sanitize", words @ ..] => match sanitize::run(&root, words) {
            Ok(code) => code,
            Err(error) => verdict(Err(error)),
        },
        ["header"] => with_steps(&root, steps::header_only, runner::Skips::Allowed),
        ["cinstall"] => with_steps(&root, steps::cinstall_only, runner::Skips::Forbidden),
        ["suites"] => with_steps(&root, steps::suites_only, runner::Skips::Allowed),
        ["features"] => with_steps(&root, features::all, runner::Skips::Forbidden),
        ["loom"] => with_steps(&root, steps::loom_only, runner::Skips::Allowed),
        unknown => {
            let wrong = unknown.join(" ");
            eprintln!("xtask: unknown command `{wrong}`; use one of these:\n\n{USAGE}");
            ExitCode::from(EXIT_USAGE)
        }
    }
}

/// Executes the command that cargo calls for [`lanes`]: a directory, then the program with its
/// words.
fn run_later(mut words: Vec<OsString>) -> ExitCode {
    if words.is_empty() {
        return verdict(Err(
            "run-later takes a directory and a program; only cargo calls it, use another command"
                .into(),
        ));
    }
    let directory = PathBuf::from(words.remove(0));
    match lanes::run_later(&directory, words) {
        Ok(code) => ExitCode::from(u8::try_from(code).unwrap_or(1)),
        Err(error) => verdict(Err(error)),
    }
}

fn with_steps(
    root: &Path,
    steps: fn(&test_capabilities::TestCapabilities) -> Result<Vec<step::Step>, String>,
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
                _ => {
                    Err(format!("`{word}` is out of range; use a number of {unit} from 1 to {max}"))
                }
            },
            _ => Err(format!("too many arguments `{}`; use one number of {unit}", words.join(" "))),
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

/// Returns the workspace's root. cargo passes this crate's directory at run time, which is right
/// even if the checkout was moved after the build.
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
