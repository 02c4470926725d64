//! Fixture: builds the library and C programs, and runs them under `fable run`.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::LazyLock;
use std::time::Duration;

use tempfile::TempDir;
use testkit::process::{self, Guard, preload_library, program, with_sanitizer};

/// Returns the library.
pub(crate) fn library() -> &'static Path {
    static LIBRARY: LazyLock<PathBuf> = LazyLock::new(|| preload_library("fable-preload"));
    &LIBRARY
}

/// A compiled C program; its file is removed with this value.
pub(crate) struct Program {
    directory: TempDir,
}

impl Program {
    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path().join("program")
    }
}

/// Compiles `c/NAME.c`.
pub(crate) fn compile(name: &str) -> Program {
    let program = Program { directory: tempfile::tempdir().unwrap() };
    systemtests_flows::compile(&systemtests_flows::source(name), &program.path(), &[]);
    program
}

/// Longer than the programs' own limits, which use alarm(2).
const TIME_LIMIT: Duration = Duration::from_secs(660);

/// Runs a program to its end, and returns its status.
#[track_caller]
pub(crate) fn end_of(command: &mut Command) -> ExitStatus {
    process::wait(&mut Guard::spawn(command).0, TIME_LIMIT)
}

/// Returns the command `fable run` with this place for the statistics.
pub(crate) fn run_with_statistics(place: &str) -> Command {
    let mut command = Command::new(program("fable"));
    with_sanitizer(&mut command).env("FABLE_PRELOAD", library()).arg("run");
    command.arg(format!("--statistics={place}")).stdin(Stdio::null());
    command
}

/// Runs programs under `fable run` and collects their statistics in a file.
pub(crate) struct Runner {
    directory: TempDir,
}

impl Runner {
    pub(crate) fn new() -> Self {
        Runner { directory: tempfile::tempdir().unwrap() }
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join("statistics")
    }

    /// Returns the command `fable run OPTIONS`, to which the program and its arguments are added.
    pub(crate) fn command(&self, options: &[&str]) -> Command {
        let mut command = run_with_statistics(self.file().to_str().unwrap());
        command.args(options);
        command
    }

    /// Returns the statistics.
    pub(crate) fn statistics(&self) -> String {
        std::fs::read_to_string(self.file()).unwrap_or_default()
    }
}

/// Returns the sum of one count over all processes.
pub(crate) fn shared_sum(statistics: &str, name: &str) -> u64 {
    let words: Vec<&str> = statistics.split_whitespace().collect();
    let pairs = words.windows(2).filter(|pair| pair[0] == name);
    pairs.map(|pair| pair[1].parse::<u64>().unwrap()).sum()
}
