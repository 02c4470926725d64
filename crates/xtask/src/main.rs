//! `cargo xtask`: what cargo alone cannot do. It runs both levels of the tests, and the commands
//! that are steps of the second.
//!
//! # Modules
//!
//! - `test`, `steps`, `runner`, `level`: the command `test`; the steps of both levels; how they
//!   run; how their test programs run.
//! - `programs`, `child`: builds; child processes with their output in files.
//! - `cargo`, `command`, `tally`, `timings`: command lines, counts, times.
//! - `setup`, `msrv`, `doc`, `deny`: packages of the distribution; the oldest Rust; documentation;
//!   dependencies.
//! - `fuzz`, `sanitize`, `loom`, `features`, `suites`, `faults`, `soak`, `kernels`: tests with
//!   other builds, kernels and harnesses.
//! - `apps`: builds nginx and memcached on the channel, and runs programs of
//!   `systemtests/programs`.

mod apps;
mod cargo;
mod child;
mod command;
mod deny;
mod doc;
mod faults;
mod features;
mod fuzz;
mod kernels;
mod level;
mod loom;
mod msrv;
mod programs;
mod runner;
mod sanitize;
mod setup;
mod soak;
mod steps;
mod suites;
mod tally;
mod test;
mod timings;

use std::env;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use cargo::Cargo;

/// Exit status after a wrong command line, as in programs with getopt.
const EXIT_USAGE: u8 = 2;

/// What a command does with the rest of its command line.
type Run = fn(&Path, &[&str]) -> Result<ExitCode, String>;

/// A command.
struct Command {
    name: &'static str,
    /// Options and arguments.
    options: &'static str,
    help: &'static str,
    run: Run,
}

/// Writes what the same test compares without the variable.
const HEADER: [&str; 1] =
    ["test --package systemtests-channel --test capi -- generated::the_headers"];

const COMMANDS: &[Command] = &[
    Command { name: "test", options: test::OPTIONS, help: test::HELP, run: test::run },
    Command {
        name: "setup",
        options: "[--yes] [--missing]",
        help: "installs missing packages (packages.txt), rustfmt and clippy; asks first on a
terminal, and starts no service; --missing only prints them",
        run: |root, words| done(setup::run(root, words)),
    },
    Command {
        name: "doc",
        options: "",
        help: "checks manual pages and rustdoc; builds the API in target/doc and the book in
target/book, whose links it checks",
        run: |root, words| done(none(words).and_then(|()| doc::run(root))),
    },
    Command {
        name: "deny",
        options: "",
        help: "checks licences, versions and sources of all dependencies by deny.toml (cargo-deny)",
        run: |root, words| done(none(words).and_then(|()| deny::run(root))),
    },
    Command {
        name: "msrv",
        options: "",
        help: "checks the code with the oldest Rust that Cargo.toml names; needs rustup",
        run: |root, words| done(none(words).and_then(|()| msrv::run(root))),
    },
    Command {
        name: "fresh",
        options: "[bookworm] [trixie]",
        help: "follows the README in fresh roots of Debian 12 and 13, as a user and as root; needs
root and mmdebstrap",
        run: |_, words| done(setup::fresh(words)),
    },
    Command {
        name: "loom",
        options: "",
        help: "runs the loom_ tests over all interleavings",
        run: |root, words| done(none(words).and_then(|()| loom::run(root))),
    },
    Command {
        name: "sanitize",
        options: "[address|thread] [--short] [--only PACKAGE]",
        help: "runs tests under AddressSanitizer, LeakSanitizer and ThreadSanitizer",
        run: |root, words| done(sanitize::run(root, words)),
    },
    Command {
        name: "features",
        options: "[--short]",
        help:
            "runs the conformance suite and `iobench doctor` without each feature of io_uring that
the uring driver uses; half an hour; --short: without all replaced features at once",
        run: |root, words| {
            done(match words {
                [] => features::all(root),
                ["--short"] => features::short(root),
                _ => none(words),
            })
        },
    },
    Command {
        name: "suites",
        options: "",
        help: "runs the tests that tokio and quinn publish on megapipe-rt, and compares the results
with the lists in crates/tokio-facade/expected",
        run: |root, words| done(none(words).and_then(|()| suites::run(root))),
    },
    Command {
        name: "header",
        options: "",
        help: "writes the headers that are generated from crates/capi",
        run: |root, words| done(none(words).and_then(|()| commands(root, &HEADER))),
    },
    Command {
        name: "fuzz",
        options: "[SECONDS [TARGET ...]]",
        help: "runs the differential fuzzers and each fuzz target, or only the named targets, as
many at a time as there are CPUs; SECONDS for each, 1 to 86400 [default: 60]; prints executions and
coverage; new inputs go to target/fuzz/corpus",
        run: |root, words| {
            let (seconds, targets) = words.split_at(words.len().min(1));
            done(number(seconds, "seconds", 60, 86_400).and_then(|n| fuzz::run(root, n, targets)))
        },
    },
    Command {
        name: "faults",
        options: "[--short] [--only PART] [--step SCENARIO:CALL:N:ERRNO] [--jobs COUNT]",
        help: "fails each system call of whole programs in turn (channel, fabled, flows, both
preload libraries), with each errno that the call may have, and kills them at each; prints one row
per scenario and each fault; some 40 minutes, with --short one; needs root or user namespaces",
        run: faults::run,
    },
    Command {
        name: "soak",
        options: soak::OPTIONS,
        help: soak::HELP,
        run: |root, words| {
            let (minutes, parts) = words.split_at(words.len().min(1));
            done(number(minutes, "minutes", 5, 10_000).and_then(|n| soak::run(root, n, parts)))
        },
    },
    Command {
        name: "kernels",
        options: "[--quick] [--kernel NAME,...] [--only PART] [--accel kvm|tcg] [--keep]",
        help:
            "runs conformance tests, nginx, memcached, fable, mtcp and iobench on Debian's kernels
5.10, 6.1, 6.12 and the newest in QEMU, and writes the table of docs/kernels.md; an hour,
with --quick (6.1 only) 3 minutes; needs root",
        run: kernels::run,
    },
    Command {
        name: "nginx",
        options: "[--build] [--sanitize] [--port PORT] [--config FILE]",
        help: "builds the event module for the installed nginx and serves a page with it; --build
only builds; --sanitize runs our tests on nginx and the module under AddressSanitizer",
        run: |root, words| done(apps::nginx::run(root, words)),
    },
    Command {
        name: "memcached",
        options: "[--test [FILE.t ...]] [--sanitize]",
        help: "builds the distribution's memcached unmodified and on the channel; --test runs its
test suite on both, --sanitize our tests under AddressSanitizer",
        run: |root, words| done(apps::caches::MEMCACHED.run(root, words)),
    },
    Command {
        name: "redis",
        options: "[--test [UNIT ...]] [--sanitize]",
        help: "builds the distribution's redis unmodified and on the channel; --test runs its test
suite on both, --sanitize our tests under AddressSanitizer",
        run: |root, words| done(apps::caches::REDIS.run(root, words)),
    },
    Command {
        name: "apps",
        options: "",
        help: "builds what the tests of systemtests/programs start: nginx's module, memcached,
redis, and the commands and preload libraries in release mode",
        run: |root, words| done(none(words).and_then(|()| apps::build(root))),
    },
    Command {
        name: "operations",
        options: "[nginx|memcached|redis] [--quick] [--only PART] [--json FILE]",
        help:
            "runs operations of nginx, memcached and redis (reloads, upgrades, limits, slow readers,
...) on the stock and the adapted server; fails if a cell is worse than stock and no documented
limit; 10 minutes, with --quick one",
        run: apps::systemtests::operations,
    },
    Command {
        name: "programs",
        options: "[fable|mtcp] [--quick] [--only PART] [--json FILE]",
        help:
            "runs Python's network test suites and real programs plainly and under `fable run` (or
`mtcp run`); fails if a difference is not listed, or a listed one is gone; an hour, with
--quick 90 s",
        run: apps::systemtests::programs,
    },
    Command {
        name: "source",
        options: "PACKAGE [UPSTREAM-VERSION]",
        help: "fetches the source package without installing it",
        run: |root, words| done(apps::source(root, words)),
    },
];

fn main() -> ExitCode {
    child::prepare();
    let arguments: Vec<String> =
        env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let [name, rest @ ..] = words.as_slice() else {
        return usage(None);
    };
    if ["help", "--help", "-h"].contains(name) {
        return usage(rest.first().copied());
    }
    let Some(command) = COMMANDS.iter().find(|command| command.name == *name) else {
        let names: Vec<&str> = COMMANDS.iter().map(|command| command.name).collect();
        eprintln!("xtask: there is no command `{name}`; use one of: {}", names.join(", "));
        return ExitCode::from(EXIT_USAGE);
    };
    if rest.iter().any(|word| ["--help", "-h"].contains(word)) {
        return usage(Some(name));
    }
    (command.run)(&root(), rest).unwrap_or_else(|error| {
        eprintln!("xtask: {error}");
        ExitCode::FAILURE
    })
}

fn done(result: Result<(), String>) -> Result<ExitCode, String> {
    result.map(|()| ExitCode::SUCCESS)
}

/// Runs command lines of cargo that write generated files.
fn commands(root: &Path, lines: &[&str]) -> Result<(), String> {
    for line in lines {
        let cargo = Cargo::new(line).with("MEGAPIPE_UPDATE", "1");
        let status = cargo.command().current_dir(root).status();
        let status = status.map_err(|error| format!("cannot run cargo: {error}"))?;
        if !status.success() {
            return Err(format!("`{cargo}` ended with {status}"));
        }
    }
    Ok(())
}

/// Refuses words where a command takes none.
fn none(words: &[&str]) -> Result<(), String> {
    match words {
        [] => Ok(()),
        _ => Err(format!("`{}` is too much here; see --help", words.join(" "))),
    }
}

/// Reads the number that a command takes, or returns its default.
fn number(words: &[&str], unit: &str, default: u64, max: u64) -> Result<u64, String> {
    match words {
        [] => Ok(default),
        [word] => match word.parse() {
            Ok(count) if (1..=max).contains(&count) => Ok(count),
            _ => Err(format!("`{word}` is no number of {unit} from 1 to {max}")),
        },
        _ => Err(format!("too many arguments `{}`; use one number of {unit}", words.join(" "))),
    }
}

/// Prints the help of one command or of all.
fn usage(name: Option<&str>) -> ExitCode {
    println!("usage: cargo xtask COMMAND [OPTIONS]");
    for Command { name: command, options, help, .. } in COMMANDS {
        if name.is_none_or(|name| name == *command) {
            println!("\n  {command} {options}");
            help.lines().for_each(|line| println!("      {line}"));
        }
    }
    ExitCode::SUCCESS
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
    fn a_number_is_one_word_or_the_default() {
        assert_eq!(number(&[], "minutes", 5, 10), Ok(5));
        assert_eq!(number(&["6"], "minutes", 5, 10), Ok(6));
        for wrong in [&["0"][..], &["-1"], &["1h"], &["11"], &["1", "2"]] {
            let error = number(wrong, "minutes", 5, 10).unwrap_err();
            assert!(error.contains("number of minutes"), "{error}");
        }
    }

    /// `test` runs the steps. `soak`, `faults`, `operations` and `programs` are tests there, in
    /// their short forms. `header` writes what tests compare. `fresh` needs too long.
    const NO_STEP: [&str; 7] =
        ["test", "soak", "faults", "operations", "programs", "header", "fresh"];

    #[test]
    fn each_command_is_a_step() {
        let steps = steps::first().into_iter().chain(steps::second()).flatten();
        let lines: Vec<String> = steps.map(|step| step.work.to_string()).collect();
        for Command { name, .. } in COMMANDS {
            let word = format!("cargo xtask {name}");
            let is_step = lines.iter().any(|line| line.contains(&word));
            assert_ne!(is_step, NO_STEP.contains(name), "{name}");
        }
    }
}
