//! Builds programs, and runs them beside each other, each with its output in a file.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::cargo::{self, Cargo};
use crate::child;
use crate::command::make_directory;
use crate::tally::Tally;

/// The build of the first level: what needs no more than Rust and a C compiler. Without system
/// tests, and crates that compile other runtimes.
pub(crate) const FIRST: &str = "build --workspace --exclude systemtests-* \
                                --exclude iobench-external --exclude tokio-facade --lib --bins \
                                --tests --locked";

/// The build of the second level.
pub(crate) const ALL: &str = "build --workspace --all-targets --locked --features \
                              iobench-external/iceoryx2,\
                              iobench-external/zeromq,iobench-external/http";

/// Returns whether [`FIRST`] leaves out a package.
pub(crate) fn is_second(package: &str) -> bool {
    package.starts_with("systemtests-") || ["iobench-external", "tokio-facade"].contains(&package)
}

/// Lines of the output that are shown of a program that has failed.
const EXCERPT_LINES: usize = 40;

/// Time limit of a program; only one that hangs exceeds it.
const TIME_LIMIT: Duration = Duration::from_secs(3600);

/// A program that cargo has built.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Program {
    pub(crate) package: String,
    /// The target's name; `lib` for the tests of a library.
    pub(crate) target: String,
    /// The package's directory, in which cargo runs tests.
    pub(crate) directory: PathBuf,
    pub(crate) path: PathBuf,
    pub(crate) is_test: bool,
}

/// Runs a build; returns the programs, also those that were built before.
pub(crate) fn build(root: &Path, cargo: &Cargo) -> Result<Vec<Program>, String> {
    let cargo = cargo.clone().and("--message-format=json-render-diagnostics");
    let mut command = cargo.command();
    let output = command.current_dir(root).stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    let output =
        output.map_err(|error| format!("cannot run cargo: {error}; add cargo to the PATH"))?;
    if !output.status.success() {
        return Err(format!("`{cargo}` failed; correct the errors above"));
    }
    Ok(String::from_utf8_lossy(&output.stdout).lines().filter_map(Program::of_message).collect())
}

impl Program {
    fn of_message(line: &str) -> Option<Program> {
        let message: Value = serde_json::from_str(line).ok()?;
        // `path+file:///DIRECTORY#VERSION`, or `...#NAME@VERSION` if the directory has another
        // name.
        let (place, name) = message["package_id"].as_str()?.rsplit_once('#')?;
        let package = name.split_once('@').or(place.rsplit_once('/').map(|(_, name)| (name, "")));
        let target = &message["target"];
        let is_plain = ["bin", "example", "test"].iter().any(|kind| target["kind"][0] == *kind);
        Some(Program {
            package: package?.0.to_string(),
            path: message["executable"].as_str()?.into(),
            target: if is_plain { target["name"].as_str()? } else { "lib" }.to_string(),
            directory: Path::new(message["manifest_path"].as_str()?).parent()?.to_path_buf(),
            is_test: message["profile"]["test"].as_bool()?,
        })
    }

    /// Returns the command that runs it as cargo would.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        command.current_dir(&self.directory).env("CARGO_MANIFEST_DIR", &self.directory);
        command.env("CARGO", cargo::program());
        // Shared libraries of the workspace are beside it; those of the toolchain, which tests of
        // procedural macros load, are in the path that `cargo run` has set for xtask.
        let inherited = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
        let deps = self.path.parent().map(Path::to_path_buf);
        let paths = deps.into_iter().chain(env::split_paths(&inherited));
        if let Ok(paths) = env::join_paths(paths) {
            command.env("LD_LIBRARY_PATH", paths);
        }
        command
    }
}

/// Returns the program that is not a test.
pub(crate) fn named<'a>(programs: &'a [Program], target: &str) -> Result<&'a Program, String> {
    let mut plain = programs.iter().filter(|program| !program.is_test);
    plain.find(|program| program.target == target).ok_or_else(|| {
        format!("cargo has built no program {target}; correct the build in crates/xtask/src")
    })
}

/// Returns the tests of a package in a target of this name.
pub(crate) fn tests_of<'a>(
    built: &'a [Program],
    package: &str,
    target: &str,
) -> Result<&'a Program, String> {
    let mut tests = built.iter().filter(|program| program.is_test && program.package == package);
    tests.find(|program| program.target == target).ok_or_else(|| {
        format!("{package} has no tests {target}; correct the tables in crates/xtask/src")
    })
}

/// A program to run.
pub(crate) struct Job {
    pub(crate) name: String,
    pub(crate) command: Command,
    /// After this time it is killed.
    pub(crate) limit: Duration,
}

impl Job {
    /// Makes a job that ends by itself.
    pub(crate) fn new(name: String, command: Command) -> Job {
        Job { name, command, limit: TIME_LIMIT }
    }
}

/// A program that has ended.
pub(crate) struct Ended {
    pub(crate) name: String,
    pub(crate) end: child::Ended,
    pub(crate) output: String,
    log: PathBuf,
}

impl Ended {
    /// Returns the counts of a test program. One that was killed, or that panicked outside of a
    /// test, has printed none, and counts as one failure.
    pub(crate) fn tally(&self) -> Tally {
        let mut tally = Tally::of_output(&self.output);
        tally.failed += u64::from(self.end.failure().is_some() && tally.failed == 0);
        tally
    }

    /// Describes a failure with the end of the output; `None` if there was none.
    pub(crate) fn failure(&self) -> Option<String> {
        self.end.failure().map(|reason| self.described(&reason))
    }

    /// Returns a description with the end of the output.
    pub(crate) fn described(&self, reason: &str) -> String {
        let lines: Vec<&str> = self.output.lines().collect();
        let end = lines[lines.len().saturating_sub(EXCERPT_LINES)..].join("\n    ");
        format!("{}: {reason}; {} has all its output:\n    {end}", self.name, self.log.display())
    }
}

/// Prints how many tests each program has passed; fails with those that have failed, or passed
/// none, as with a filter that matches nothing.
pub(crate) fn failures(ended: &[Ended]) -> Result<(), String> {
    let mut sum = Tally::default();
    let mut failures = Vec::new();
    for one in ended {
        let tally = one.tally();
        println!("{}: {} tests passed", one.name, tally.passed);
        sum += tally;
        failures.extend(one.failure());
        if tally == Tally::default() {
            failures.push(one.described("has run no test"));
        }
    }
    println!("{sum}");
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n\n")) }
}

/// Runs programs without input, `lanes` at a time, with their output in files of their names in
/// `logs`. Returns them in their order.
pub(crate) fn run(logs: &Path, lanes: usize, jobs: Vec<Job>) -> Result<Vec<Ended>, String> {
    make_directory(logs)?;
    let jobs: Vec<_> = jobs.into_iter().map(|job| Mutex::new(Some(job))).collect();
    let (next, results) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..lanes.min(jobs.len()) {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(job) = jobs.get(index) else { return };
                    let job = job.lock().ok().and_then(|mut job| job.take());
                    let result = job.map(|job| run_one(logs, job));
                    if let (Some(result), Ok(mut results)) = (result, results.lock()) {
                        results.push((index, result));
                    }
                }
            });
        }
    });
    let mut results =
        results.into_inner().map_err(|_| "a thread has panicked; see above".to_string())?;
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

/// Runs a program with its output in a file of its name.
pub(crate) fn run_one(logs: &Path, Job { name, mut command, limit }: Job) -> Result<Ended, String> {
    let log = logs.join(file_name(&name));
    let end = child::run(&mut command, &log, limit).map_err(|error| {
        format!(
            "cannot run {:?} with its output in {}: {error}",
            command.get_program(),
            log.display()
        )
    })?;
    let output = String::from_utf8_lossy(&fs::read(&log).unwrap_or_default()).into_owned();
    Ok(Ended { name, end, output, log })
}

/// Makes a file name of at most 100 bytes from a title.
pub(crate) fn file_name(title: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-_.=".contains(c) { c } else { '-' };
    title.trim().chars().map(plain).take(100).collect()
}

/// Returns how many programs run at a time.
pub(crate) fn lanes() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_read_from_cargos_messages() {
        let message = r#"{"package_id":"path+file:///w/crates/a#0.1.0","target":{"kind":["test"],
            "name":"kept"},"manifest_path":"/w/crates/a/Cargo.toml","profile":{"test":true},
            "executable":"/t/kept-1"}"#;
        let read = |from: &str, to: &str| {
            Program::of_message(&message.replace('\n', "").replace(from, to))
        };
        let program = read("", "").unwrap();
        assert_eq!((program.package.as_str(), program.target.as_str()), ("a", "kept"));
        assert_eq!(program.directory, Path::new("/w/crates/a"));
        assert!(program.is_test && named(&[program], "kept").is_err());
        assert_eq!(read("#0.1.0", "#b@0.1.0").unwrap().package, "b");
        assert_eq!(read("\"test\"],", "\"cdylib\"],").unwrap().target, "lib");
        assert!(read("\"/t/kept-1\"", "null").is_none());
    }

    #[test]
    fn all_programs_end_in_their_order_with_their_output() {
        let logs = tempfile::tempdir().unwrap();
        let job = |number: usize| {
            let mut command = Command::new("sh");
            command.args(["-c", &format!("echo {number}; echo end >&2; exit {number}")]);
            Job::new(format!("job {number}"), command)
        };
        let mut ended = run(logs.path(), 2, (0..5).map(job).collect()).unwrap();
        for (number, one) in ended.iter().enumerate() {
            assert_eq!(one.output, format!("{number}\nend\n"));
            assert_eq!(one.end.status.unwrap().code(), Some(number as i32));
        }
        assert_eq!(ended[0].tally(), Tally::default());
        assert_eq!(ended[3].tally().failed, 1);
        assert!(ended[3].failure().unwrap().starts_with("job 3: exit status: 3; "));
        let output = "x\ntest result: FAILED. 12 passed; 1 failed; 0 ignored\n".to_string();
        assert_eq!(Ended { output, ..ended.pop().unwrap() }.tally().passed, 12);
        let missing = Job::new("x".to_string(), Command::new("/no/such/program"));
        assert!(run(logs.path(), 2, vec![missing]).is_err());
    }

    #[test]
    fn titles_become_file_names() {
        let title = "MTCP_SEEDS=9 mtcp-proto/seeds a::b";
        assert_eq!(file_name(title), "MTCP_SEEDS=9-mtcp-proto-seeds-a--b");
        assert_eq!(file_name(&"x".repeat(300)).len(), 100);
    }
}
