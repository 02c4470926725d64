//! Runs tests under the compiler's sanitizers.
//!
//! AddressSanitizer finds accesses outside of objects and after their end, ThreadSanitizer accesses
//! of two threads that nothing orders. Their runtimes are part of the stable toolchain, only the
//! flag is unstable: hence `RUSTC_BOOTSTRAP`.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::apps::sanitizer;
use crate::cargo::{Cargo, absolute_target, cargo, host_triple};
use crate::command::quietly;
use crate::runner::{self, Skips};
use crate::setup;
use crate::step::{Step, Work};

/// The reports of ThreadSanitizer that are no faults, each with its reason.
const SUPPRESSIONS: &str = "crates/xtask/thread-sanitizer.txt";

/// The source of a library that initializes AddressSanitizer in programs that are built without,
/// and sets its options.
const INITIALIZER: &str = "crates/xtask/address-sanitizer-first.c";

/// Tests that run under a sanitizer.
struct Part {
    name: &'static str,
    /// The packages whose tests they are.
    packages: &'static [&'static str],
    /// The words that select them.
    targets: &'static str,
    /// Whether they are tests, or what tests need.
    are_tests: bool,
    /// Whether they are part of the full run.
    is_short: bool,
    /// Whether nothing may run beside them: they measure, or others need them.
    is_alone: bool,
}

const fn tests(
    name: &'static str,
    packages: &'static [&'static str],
    targets: &'static str,
) -> Part {
    Part { name, packages, targets, are_tests: true, is_short: false, is_alone: false }
}

/// What runs under AddressSanitizer. Leaks are looked for by [`LEAKS`].
const ADDRESS: &[Part] = &[
    // Cargo builds examples by itself only if no targets are named.
    Part {
        name: "sanitize-examples",
        packages: &["megapipe", "fable"],
        targets: "--examples",
        are_tests: false,
        is_short: true,
        is_alone: true,
    },
    // All tests but `injection`, which interposes the same functions of the C library as the
    // sanitizer.
    Part {
        is_short: true,
        ..tests("sanitize", &["megapipe", "fable"], "--lib --test [!i]* --test idle")
    },
    // The benchmark's unsafe code: the servers, and the clients that load them. Its other tests run
    // whole comparisons, and some build other packages, to which the flags would apply.
    Part {
        is_short: true,
        is_alone: true,
        ..tests("sanitize-iobench", &["iobench"], "--lib --test run --test servers")
    },
    // Without the tests that build other packages.
    Part {
        is_short: true,
        ..tests(
            "sanitize-stack",
            &["mtcp"],
            "--lib --test channel --test devices --test kernel --test shutdown --test sockets \
             --test xdp",
        )
    },
];

/// What runs under AddressSanitizer with LeakSanitizer.
const LEAKS: &[Part] = &[
    tests("leaks", &["preload"], "--lib"),
    tests("leaks-fabled", &["fabled"], "--lib --bins --test hostile"),
    tests("leaks-tls-proxy", &["tls-proxy"], "--bins --test proxy"),
];

/// What runs under ThreadSanitizer: threads that share memory at one address. It sees nothing of
/// what processes share, nor two mappings of one memory.
const THREAD: &[Part] = &[
    tests("threads", &["megapipe", "fable", "preload", "mtcp"], "--lib --test sockets"),
    // Wake-ups, messages, calls and dumps between threads.
    tests("threads-runtime", &["megapipe-rt"], "--lib --test executor --test blocking --test dump"),
];

/// The packages of the preload libraries, each with the package and the name of the tests that run
/// programs with it, and tests that are left out. Those of `fabled` preload libraries of their own.
type Preloaded = (&'static str, &'static str, &'static str, &'static [&'static str]);
const PRELOAD: &[Preloaded] = &[
    (
        "fable-preload",
        "fabled",
        "preload",
        &["mistakes_in_the_command_line", "scripts_exit_with_their_status"],
    ),
    (
        "mtcp-preload",
        "mtcp",
        "programs",
        &["a_program_ends_as_soon_as", "a_program_takes_ports_of"],
    ),
];

/// The step with both, which `cargo xtask` repeats by this name.
const PRELOAD_STEP: &str = "sanitize --only fable-preload";

/// Runs programs with preload libraries that AddressSanitizer instruments. The programs themselves
/// are not: they load the C compiler's runtime of the sanitizer, whose interface is the same, and a
/// library that initializes it in time.
fn preload(root: &Path) -> Result<(), String> {
    let host = host_triple()?;
    let directory = absolute_target(root)?.join("asan");
    let mut build = cargo();
    build.args(["build", "--locked", "--target", &host, "--target-dir"]).arg(&directory);
    build.args(PRELOAD.iter().flat_map(|(library, ..)| ["--package", library]));
    build.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", "-Zsanitizer=address").current_dir(root);
    quietly(&mut build, "cargo build of the preload libraries")?;
    let libraries = directory.join(&host).join("debug");
    let runtime = [initializer(root, &directory)?, runtime()?].map(PathBuf::into_os_string);
    let runtime = runtime.join(OsStr::new(":"));
    for (library, package, test, skipped) in PRELOAD {
        let reports = sanitizer::reports_in(&directory);
        sanitizer::run_tests(root, &reports, library, |tests| {
            tests.args(["--package", package, "--test", test, "--"]);
            tests.args(skipped.iter().flat_map(|test| ["--skip", test]));
            tests.env("MEGAPIPE_TEST_SANITIZED", &libraries);
            tests.env("MEGAPIPE_TEST_SANITIZER", &runtime);
        })?;
    }
    Ok(())
}

/// Returns the path of the compiler's runtime of AddressSanitizer.
fn runtime() -> Result<PathBuf, String> {
    let output = Command::new("cc").arg("-print-file-name=libasan.so").output();
    let output = output.map_err(|error| format!("cannot run cc: {error}; install gcc"))?;
    let path = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    // A compiler that lacks the file prints its name alone.
    let path = path.canonicalize().map_err(|_| "cc has no libasan.so; install gcc".to_string())?;
    Ok(path)
}

/// Compiles the library that initializes the runtime; returns its path.
fn initializer(root: &Path, directory: &Path) -> Result<PathBuf, String> {
    let library = directory.join("libinitializer.so");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-Wl,-z,initfirst", "-o"]).arg(&library);
    compiler.arg(root.join(INITIALIZER));
    quietly(&mut compiler, "cc")?;
    Ok(library)
}

/// A sanitizer, with the directory of its builds below the target directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sanitizer {
    Address,
    Thread,
}

/// What to run.
#[derive(Debug, Default, PartialEq, Eq)]
struct Options {
    /// Only this one.
    sanitizer: Option<Sanitizer>,
    /// Only the tests of this package.
    only: Option<String>,
}

/// Runs `cargo xtask sanitize`.
pub(crate) fn run(root: &Path, words: &[&str]) -> Result<ExitCode, String> {
    let options = Options::parse(words)?;
    if options.wants(Sanitizer::Thread) {
        setup::add_sources(root)?;
    }
    let host = host_triple()?;
    if options.steps(&host, root).is_empty() {
        let only = options.only.unwrap_or_default();
        return Err(format!("no test of `{only}` runs under this sanitizer; use {}", names()));
    }
    Ok(runner::run(root, &|_| Ok(options.steps(&host, root)), Skips::Allowed))
}

/// The steps of the full run.
pub(crate) fn short() -> Result<Vec<Step>, String> {
    let host = host_triple()?;
    Ok(ADDRESS.iter().filter(|part| part.is_short).map(|part| part.address(&host)).collect())
}

/// Returns the packages that have a part.
fn names() -> String {
    let parts = ADDRESS.iter().chain(LEAKS).chain(THREAD);
    let mut names: Vec<_> = parts.flat_map(|part| part.packages).copied().collect();
    names.extend(PRELOAD.iter().map(|(library, ..)| *library));
    names.sort_unstable();
    names.dedup();
    names.join(", ")
}

impl Options {
    fn parse(words: &[&str]) -> Result<Options, String> {
        let mut options = Options::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match *word {
                "address" => options.sanitizer = Some(Sanitizer::Address),
                "thread" => options.sanitizer = Some(Sanitizer::Thread),
                "--only" => {
                    let package = words.next().ok_or("--only needs the name of a package")?;
                    options.only = Some((*package).to_string());
                }
                other => {
                    return Err(format!(
                        "unknown word `{other}`; use `address`, `thread` or `--only PACKAGE`"
                    ));
                }
            }
        }
        Ok(options)
    }

    fn wants(&self, sanitizer: Sanitizer) -> bool {
        self.sanitizer.is_none_or(|wanted| wanted == sanitizer)
    }

    fn steps(&self, host: &str, root: &Path) -> Vec<Step> {
        let mut steps = Vec::new();
        let has =
            |part: &&Part| self.only.as_deref().is_none_or(|only| part.packages.contains(&only));
        if self.wants(Sanitizer::Address) {
            steps.extend(ADDRESS.iter().filter(has).map(|part| part.address(host)));
            steps.extend(LEAKS.iter().filter(has).map(|part| part.leaks(host)));
            let libraries = PRELOAD.iter().map(|(library, ..)| *library);
            if self.only.as_deref().is_none_or(|only| libraries.clone().any(|name| name == only)) {
                steps.push(Step::new(PRELOAD_STEP, Work::Own(preload)));
            }
        }
        if self.wants(Sanitizer::Thread) {
            steps.extend(THREAD.iter().filter(has).map(|part| part.thread(host, root)));
        }
        steps
    }
}

impl Part {
    /// Returns the cargo command of this part with a sanitizer. The target is named, though it is
    /// the host's, to keep the flag away from build scripts and procedural macros. Doc tests are
    /// left out: rustdoc would need the flag, too.
    fn sanitized(&self, host: &str, directory: &str, flags: &str) -> Cargo {
        let command = if self.are_tests { "test" } else { "build" };
        let mut cargo = Cargo::new(command);
        for package in self.packages {
            cargo = cargo.and("--package").and(package);
        }
        cargo.arguments.extend(self.targets.split(' ').map(String::from));
        cargo
            .and("--locked")
            .and("--target")
            .and(host)
            .in_own_target_dir(directory)
            .with("RUSTC_BOOTSTRAP", "1")
            .with("RUSTFLAGS", flags)
    }

    fn step(&self, cargo: Cargo) -> Step {
        let work = if self.are_tests { Work::Tests(cargo, 1) } else { Work::Cargo(cargo) };
        Step { beside: !self.is_alone, ..Step::new(self.name, work) }
    }

    /// Leaks are not checked: the memory of an operation that outlived its deadline is leaked on
    /// purpose, and the leak detector cannot run under strace, which one test uses. The quarantine
    /// of freed memory is small because one test checks how much memory is mapped.
    fn address(&self, host: &str) -> Step {
        let cargo = self.sanitized(host, "asan", "-Zsanitizer=address");
        self.step(cargo.with("ASAN_OPTIONS", "detect_leaks=0:quarantine_size_mb=16"))
    }

    fn leaks(&self, host: &str) -> Step {
        let cargo = self.sanitized(host, "asan", "-Zsanitizer=address");
        self.step(cargo.with("ASAN_OPTIONS", "detect_leaks=1"))
    }

    /// The standard library is built with the flag, too: otherwise its locks and queues would order
    /// nothing, as far as the sanitizer sees. For the same reason rustix calls the C library, whose
    /// functions the sanitizer interposes; it must see that memory is unmapped. The tests are
    /// optimized a little, because each access is ten times as slow.
    fn thread(&self, host: &str, root: &Path) -> Step {
        let cargo = self.sanitized(host, "tsan", "-Zsanitizer=thread --cfg rustix_use_libc");
        let suppressions = root.join(SUPPRESSIONS);
        let cargo = cargo
            .and("-Zbuild-std")
            .with("CARGO_PROFILE_DEV_OPT_LEVEL", "1")
            .with("CARGO_PROFILE_DEV_DEBUG", "line-tables-only")
            .with("TSAN_OPTIONS", &format!("suppressions={}", suppressions.display()));
        self.step(cargo)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(words: &[&str]) -> Vec<Step> {
        Options::parse(words).unwrap().steps("some-triple", Path::new("/root"))
    }

    #[test]
    fn a_sanitizer_builds_for_the_named_host_in_its_own_directory() {
        for (words, directory) in [(["address"], "/asan"), (["thread"], "/tsan")] {
            let builds = |step: &Step| !matches!(step.work, Work::Own(_));
            for step in steps(&words).into_iter().filter(builds) {
                let line = step.repeat();
                assert!(line.contains("--target some-triple --target-dir "), "{line}");
                assert!(line.contains(directory), "{line}");
            }
        }
    }

    #[test]
    fn without_words_all_run() {
        let all = steps(&[]).len();
        assert_eq!(all, steps(&["address"]).len() + steps(&["thread"]).len());
        assert_eq!(all, ADDRESS.len() + LEAKS.len() + 1 + THREAD.len());
    }

    #[test]
    fn only_the_tests_of_one_package_run() {
        let names: Vec<_> = steps(&["--only", "mtcp"]).iter().map(|step| step.name).collect();
        assert_eq!(names, ["sanitize-stack", "threads"]);
        assert!(steps(&["--only", "no-such-package"]).is_empty());
    }

    #[test]
    fn what_it_does_not_know_is_refused() {
        for words in [&["memory"][..], &["--only"], &["address", "-x"]] {
            assert!(Options::parse(words).is_err(), "{words:?}");
        }
    }

    #[test]
    fn each_suppression_has_its_reason() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let text = std::fs::read_to_string(root.join(SUPPRESSIONS)).unwrap();
        let mut has_reason = false;
        for line in text.lines() {
            let is_comment = line.starts_with('#');
            assert!(is_comment || line.is_empty() || has_reason, "`{line}` has no reason above it");
            has_reason = is_comment;
        }
    }
}
