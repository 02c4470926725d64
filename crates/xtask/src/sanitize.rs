//! Runs tests under the compiler's sanitizers.
//!
//! AddressSanitizer finds accesses outside of objects and after their end, ThreadSanitizer accesses
//! of two threads that nothing orders. Their runtimes are part of the stable toolchain, only the
//! flag is unstable: hence `RUSTC_BOOTSTRAP`.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cargo::{Cargo, absolute_target, host_triple};
use crate::command::{make_directory, quietly};
use crate::programs::{self, Job};
use crate::setup;

/// The source of a library that initializes AddressSanitizer in programs that are built without,
/// and sets its options.
const INITIALIZER: &str = "crates/xtask/address-sanitizer-first.c";

/// A test program that runs under a sanitizer.
struct Row {
    sanitizer: Sanitizer,
    package: &'static str,
    /// The program's name; `lib` for the tests of a library.
    target: &'static str,
    /// Which of the tests; all if it is empty.
    filter: &'static str,
    /// Whether it is part of the deep run.
    is_short: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sanitizer {
    /// AddressSanitizer without its leak detector: the memory of an operation that outlived its
    /// deadline is leaked on purpose.
    Address,
    /// AddressSanitizer with it.
    Leaks,
    /// ThreadSanitizer, for threads that share memory at one address. It sees nothing of what
    /// processes share, nor two mappings of one memory.
    Thread,
}

use Sanitizer::{Address, Leaks, Thread};

/// `SANITIZER [: short], PACKAGE, TARGET, FILTER;`, with `short` for those of the deep run.
macro_rules! rows {
    ($(
        $sanitizer:ident $(: $short:ident)?, $package:literal, $target:literal, $filter:literal;
    )+) => {
        &[$(Row {
            sanitizer: $sanitizer,
            package: $package,
            target: $target,
            filter: $filter,
            is_short: rows!(@ $($short)?),
        },)+]
    };
    (@ short) => { true };
    (@) => { false };
}

/// In short form, the code that handles memory by itself runs once per driver, transport or device.
/// `injection` of the channel is left out: it interposes the same functions of the C library as the
/// sanitizer.
const ROWS: &[Row] = rows! {
    Address: short, "megapipe", "lib", "";
    Address: short, "megapipe", "conformance", "";
    Address: short, "fable", "lib", "";
    Address: short, "fable", "library", "";
    Address: short, "mtcp", "lib", "";
    Address: short, "systemtests-tcp", "channel", "";
    Address: short, "iobench", "lib", "";
    Address, "systemtests-bench", "load", "servers::";
    Address, "systemtests-bench", "comparisons", "run::";
    Address, "systemtests-tcp", "devices", "";
    Address, "mtcp", "sockets", "";
    Leaks, "preload", "lib", "";
    Leaks, "fabled", "lib", "";
    Leaks, "systemtests-flows", "daemon", "hostile::";
    Leaks, "systemtests-tcp", "proxy", "";
    Thread, "megapipe", "lib", "";
    Thread, "fable", "lib", "";
    Thread, "preload", "lib", "";
    Thread, "mtcp", "lib", "";
    Thread, "mtcp", "sockets", "";
    // Wake-ups, messages, calls and dumps between threads.
    Thread, "megapipe-rt", "lib", "";
    Thread, "megapipe-rt", "runtime", "";
};

/// The programs that the tests start which are not in the deep run.
const PROGRAMS: &str =
    "--package fabled --package iobench --package mtcp-cli --package tls-proxy --bins";

/// The packages of the preload libraries, each with the package and the name of the tests that run
/// programs with it, and tests that are left out: they preload libraries of their own.
const PRELOAD: [(&str, &str, &str, &[&str]); 2] = [
    ("fable-preload", "systemtests-flows", "preload", &["scripts_exit_with_their_status"]),
    (
        "mtcp-preload",
        "systemtests-tcp",
        "programs",
        &["a_program_ends_as_soon_as", "a_program_takes_ports_of"],
    ),
];

/// What to run.
#[derive(Debug, Default, PartialEq, Eq)]
struct Options {
    is_short: bool,
    /// Only ThreadSanitizer, or only AddressSanitizer.
    is_thread: Option<bool>,
    /// Only the tests of this package.
    only: Option<String>,
}

/// Runs `cargo xtask sanitize`.
pub(crate) fn run(root: &Path, words: &[&str]) -> Result<(), String> {
    let options = Options::parse(words)?;
    let rows: Vec<&Row> = ROWS.iter().filter(|row| options.wants(row)).collect();
    let preloads = PRELOAD.iter().any(|(library, ..)| options.wants_preload(library));
    if rows.is_empty() && !preloads {
        let (only, names) = (options.only.unwrap_or_default(), names());
        return Err(format!("no test of `{only}` runs under this sanitizer; use {names}"));
    }
    for sanitizer in [Address, Leaks, Thread] {
        let rows: Vec<&Row> =
            rows.iter().filter(|row| row.sanitizer == sanitizer).copied().collect();
        if !rows.is_empty() {
            sanitizer.run(root, &rows)?;
        }
    }
    if preloads { preload(root, &options) } else { Ok(()) }
}

/// Returns the packages that have a row.
fn names() -> String {
    let mut names: Vec<_> = ROWS.iter().map(|row| row.package).collect();
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
                "--short" => options.is_short = true,
                "address" => options.is_thread = Some(false),
                "thread" => options.is_thread = Some(true),
                "--only" => {
                    let package = words.next().ok_or("--only needs the name of a package")?;
                    options.only = Some((*package).to_string());
                }
                other => {
                    return Err(format!(
                        "unknown word `{other}`; use `address`, `thread`, `--short` or \
                         `--only PACKAGE`"
                    ));
                }
            }
        }
        Ok(options)
    }

    fn wants_package(&self, package: &str) -> bool {
        self.only.as_deref().is_none_or(|only| only == package)
    }

    fn wants(&self, row: &Row) -> bool {
        self.is_thread.is_none_or(|wanted| wanted == (row.sanitizer == Thread))
            && self.wants_package(row.package)
            && (row.is_short || !self.is_short)
    }

    fn wants_preload(&self, library: &str) -> bool {
        self.is_thread != Some(true) && !self.is_short && self.wants_package(library)
    }
}

impl Sanitizer {
    /// Builds and runs the rows.
    fn run(self, root: &Path, rows: &[&Row]) -> Result<(), String> {
        if self == Thread {
            setup::add_sources(root)?;
        }
        let host = host_triple()?;
        if self != Thread && rows.iter().any(|row| !row.is_short) {
            let build = format!("build --locked --target {host} {PROGRAMS}");
            programs::build(root, &self.flagged(&build))?;
        }
        let built = programs::build(root, &self.flagged(&words(rows, &host)))?;
        let job = |row: &&Row| {
            let program = programs::tests_of(&built, row.package, row.target)?;
            let mut command = program.command();
            command.args([row.filter].iter().filter(|filter| !filter.is_empty()));
            // It preloads a library into programs without the sanitizer.
            command.args(["--skip", "ab_proxy_and_lighttpd_talk"]);
            // One test checks how much memory is mapped, to which the quarantine of freed memory
            // adds.
            let leaks = u8::from(self == Leaks);
            command.env("ASAN_OPTIONS", format!("detect_leaks={leaks}:quarantine_size_mb=16"));
            let name = format!("{} {} {self:?}", row.package, row.target).to_lowercase();
            Ok(Job::new(name, command))
        };
        let jobs = rows.iter().map(job).collect::<Result<Vec<_>, String>>()?;
        let logs = absolute_target(root)?.join("sanitize-logs");
        programs::failures(&programs::run(&logs, programs::lanes(), jobs)?)
    }

    /// Returns a build with the compiler's flags.
    fn flagged(self, words: &str) -> Cargo {
        let cargo = Cargo::new(words).with("RUSTC_BOOTSTRAP", "1");
        if self != Thread {
            return cargo.in_own_target_dir("asan").with("RUSTFLAGS", "-Zsanitizer=address");
        }
        // The standard library is built with the flag, too: otherwise its locks and queues would
        // order nothing, as far as the sanitizer sees. For the same reason rustix calls the C
        // library, whose functions the sanitizer interposes; it must see that memory is unmapped.
        // The tests are optimized a little, because each access is ten times as slow.
        cargo
            .in_own_target_dir("tsan")
            .with("RUSTFLAGS", "-Zsanitizer=thread --cfg rustix_use_libc")
            .and("-Zbuild-std")
            .with("CARGO_PROFILE_DEV_OPT_LEVEL", "1")
            .with("CARGO_PROFILE_DEV_DEBUG", "line-tables-only")
    }
}

/// Returns the words of the build of the rows. The target is named, though it is the host's, to
/// keep the flags away from build scripts and procedural macros.
fn words(rows: &[&Row], host: &str) -> String {
    let mut words = vec!["test", "--no-run", "--locked", "--target", host];
    for row in rows {
        words.extend(["--package", row.package]);
        match row.target {
            "lib" if words.contains(&"--lib") => {}
            "lib" => words.push("--lib"),
            target => words.extend(["--test", target]),
        }
    }
    words.join(" ")
}

/// Runs programs with preload libraries that AddressSanitizer instruments. The programs themselves
/// are not: they load the C compiler's runtime of the sanitizer, whose interface is the same, and a
/// library that initializes it in time.
fn preload(root: &Path, options: &Options) -> Result<(), String> {
    let host = host_triple()?;
    let directory = absolute_target(root)?.join("asan");
    let libraries = PRELOAD.map(|(library, ..)| format!("--package {library}")).join(" ");
    programs::build(
        root,
        &Address.flagged(&format!("build --locked --target {host} {libraries}")),
    )?;
    let libraries = directory.join(&host).join("debug");
    let runtime = [initializer(root, &directory)?, runtime()?].map(PathBuf::into_os_string);
    let runtime = runtime.join(OsStr::new(":"));
    let built =
        programs::build(root, &Cargo::new("build --workspace --lib --bins --tests --locked"))?;
    for (library, package, test, skipped) in PRELOAD {
        if !options.wants_preload(library) {
            continue;
        }
        let mut command = programs::tests_of(&built, package, test)?.command();
        command.args(skipped.iter().flat_map(|test| ["--skip", test]));
        command.env("MEGAPIPE_TEST_SANITIZED", &libraries);
        command.env("MEGAPIPE_TEST_SANITIZER", &runtime);
        // Servers do not free their memory at the end of the process. A preload library may come
        // before the sanitizer's. The tests close the output of servers: hence files.
        let reports = directory.join("reports").join(library);
        let _ = fs::remove_dir_all(&reports);
        make_directory(&reports)?;
        let failed = |error| format!("cannot use {}: {error}", reports.display());
        // Some servers run as another user.
        fs::set_permissions(&reports, fs::Permissions::from_mode(0o1777)).map_err(failed)?;
        let log = reports.join("report");
        let settings = "detect_leaks=0:verify_asan_link_order=0:detect_odr_violation=0:log_path";
        command.env("ASAN_OPTIONS", format!("{settings}={}", log.display()));
        let name = format!("{library} preloaded");
        let ended = programs::run(&directory.join("logs"), 1, vec![Job::new(name, command)])?;
        if let Some(report) = fs::read_dir(&reports).map_err(failed)?.flatten().next() {
            let text = fs::read(report.path()).map_err(failed)?;
            let text = String::from_utf8_lossy(&text);
            let lines: Vec<&str> = text.lines().take(40).collect();
            return Err(format!("AddressSanitizer in {library}:\n{}", lines.join("\n")));
        }
        programs::failures(&ended)?;
    }
    Ok(())
}

/// Returns the path of the compiler's runtime of AddressSanitizer.
fn runtime() -> Result<PathBuf, String> {
    let output = Command::new("cc").arg("-print-file-name=libasan.so").output();
    let output = output.map_err(|error| format!("cannot run cc: {error}; install gcc"))?;
    let path = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    // A compiler that lacks the file prints its name alone.
    path.canonicalize().map_err(|_| "cc has no libasan.so; install gcc".to_string())
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

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(words: &[&str]) -> Vec<&'static Row> {
        let options = Options::parse(words).unwrap();
        ROWS.iter().filter(|row| options.wants(row)).collect()
    }

    #[test]
    fn a_sanitizer_builds_for_the_named_host_in_its_own_directory() {
        for (sanitizer, directory) in [(Address, "/asan"), (Thread, "/tsan")] {
            let line = sanitizer.flagged(&words(&rows(&[]), "some-triple")).to_string();
            assert!(line.contains("--target some-triple ") && line.contains(directory), "{line}");
        }
    }

    #[test]
    fn words_select_rows() {
        assert_eq!(rows(&[]).len(), ROWS.len());
        assert_eq!(rows(&["address"]).len() + rows(&["thread"]).len(), ROWS.len());
        assert!(rows(&["--only", "fable"]).iter().all(|row| row.package == "fable"));
        assert!(rows(&["--only", "no-such-package"]).is_empty());
        assert!(rows(&["--short"]).iter().all(|row| row.sanitizer == Address));
    }

    #[test]
    fn what_it_does_not_know_is_refused() {
        for words in [&["memory"][..], &["--only"], &["address", "-x"]] {
            assert!(Options::parse(words).is_err(), "{words:?}");
        }
    }
}
