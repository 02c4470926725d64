//! Runs test programs in parallel. cargo runs them one after the other, although they mostly wait.
//! Here cargo only records the programs, through its setting for a runner, and they then run in a
//! fixed number of lanes for each CPU.

use std::collections::VecDeque;
use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use crate::guard;
use crate::needs::{self, Group, Skipped};
use crate::privilege;
use crate::tally::{Scanner, Tally};
use crate::test_capabilities::TestCapabilities;

/// The command of xtask that cargo's runner setting names.
pub(crate) const RUN_LATER: &str = "run-later";

/// Test programs that run alone. Most of them measure: beside others the machine would be too busy,
/// and they would report that instead of the result. `attackers` takes 20 times as long beside
/// others, which then also lack the kernel's memory for TCP. `tutorials` also builds programs anew
/// that other tests start.
const ALONE: [&str; 10] = [
    "attackers",
    "ceiling",
    "compare",
    "disturbed",
    "ipc",
    "load",
    "open",
    "run",
    "tutorials",
    "veth",
];

/// Number of lanes per CPU. Most programs wait more than they compute: with one lane the CPUs were
/// idle for half of the time.
const LANES_PER_CPU: usize = 2;

/// Time limit of a test program, longer than any needs. Without it a hanging program would block
/// the run forever.
const TIME_LIMIT: Duration = Duration::from_secs(15 * 60);

/// Number of lines of each stream of a failed program that are repeated.
const EXCERPT_LINES: usize = 40;

/// A test program that cargo would have run, with its command line, directory and environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Job {
    pub(crate) directory: PathBuf,
    /// The test program, which may not be the first word.
    pub(crate) program: PathBuf,
    pub(crate) words: Vec<OsString>,
    pub(crate) environment: Vec<(OsString, OsString)>,
}

/// Returns the environment that makes cargo record its test programs in `directory` instead of
/// running them.
pub(crate) fn filing(directory: &Path, host: &str) -> Result<(String, OsString), String> {
    let program = env::current_exe().map_err(|error| format!("where is xtask? {error}"))?;
    let name = format!("CARGO_TARGET_{}_RUNNER", host.replace('-', "_").to_uppercase());
    // cargo splits the setting at spaces.
    let mut value = program.into_os_string();
    if value.as_bytes().contains(&b' ') || directory.as_os_str().as_bytes().contains(&b' ') {
        return Err("the path of the checkout has a space, which cargo's setting for a runner \
                    cannot express; move it"
            .to_string());
    }
    value.push(format!(" {RUN_LATER} "));
    value.push(directory);
    Ok((name, value))
}

/// Called by cargo for each program: records it, or runs it if cargo does not keep it (the programs
/// of documentation tests, which exist for this call only).
pub(crate) fn run_later(directory: &Path, words: Vec<OsString>) -> Result<i32, String> {
    let program = words.first().ok_or("run-later needs a program")?;
    let kept = Path::new(program).parent().is_some_and(|parent| parent.ends_with("deps"));
    if !kept {
        let status = Command::new(program).args(&words[1..]).status();
        let status = status.map_err(|error| format!("cannot run {program:?}: {error}"))?;
        return Ok(status.code().unwrap_or(1));
    }
    let here = env::current_dir().map_err(|error| format!("where is this? {error}"))?;
    // Programs of a cargo that a test calls must run and not be recorded.
    let environment = env::vars_os().filter(|(name, _)| !name.as_bytes().ends_with(b"_RUNNER"));
    let job = Job::new(here, words, environment.collect());
    let failed = |error: io::Error| format!("cannot file a test program: {error}");
    let number = fs::read_dir(directory).map_err(failed)?.count();
    fs::write(directory.join(format!("{number:04}")), job.encode()).map_err(failed)?;
    Ok(0)
}

/// The counts of test programs, and the tests that did not run, with the reason.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) tally: Tally,
    pub(crate) skipped: Vec<Skipped>,
}

/// Runs the programs recorded in `directory`, in two lanes for each CPU, while `meanwhile` runs;
/// then the programs that must run alone. Shows the output of each program at its end. Leaves out
/// tests that `means` do not allow.
pub(crate) fn run(
    directory: &Path,
    means: &TestCapabilities,
    meanwhile: &(dyn Fn() + Sync),
) -> Result<Outcome, String> {
    let (mut planned, mut skipped) = (Vec::new(), Vec::new());
    for job in jobs(directory)? {
        let (jobs, left_out) = job.planned(means)?;
        planned.extend(jobs);
        skipped.extend(left_out);
    }
    let (alone, together) = planned.into_iter().partition(Job::measures);
    let mut tally = run_all(together, alone, meanwhile)?;
    tally.skipped += skipped.len() as u64;
    Ok(Outcome { tally, skipped })
}

fn run_all(
    together: VecDeque<Job>,
    alone: VecDeque<Job>,
    meanwhile: &(dyn Fn() + Sync),
) -> Result<Tally, String> {
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    let mut total = Tally::default();
    let mut failures = Vec::new();
    let nothing = || ();
    let phases: [(_, _, &(dyn Fn() + Sync)); 2] =
        [(together, LANES_PER_CPU * cpus, meanwhile), (alone, 1, &nothing)];
    for (jobs, lanes, meanwhile) in phases {
        let queue: Mutex<VecDeque<Job>> = Mutex::new(jobs);
        let outcomes = thread::scope(|scope| {
            scope.spawn(meanwhile);
            let lanes: Vec<_> = (0..lanes).map(|_| scope.spawn(|| lane(&queue))).collect();
            lanes.into_iter().map(|lane| lane.join()).collect::<Vec<_>>()
        });
        for outcome in outcomes {
            let (tally, failed) = outcome.map_err(|_| "a lane of tests panicked".to_string())?;
            total += tally;
            failures.extend(failed);
        }
    }
    if failures.is_empty() {
        return Ok(total);
    }
    // A summary with 0 failures would be wrong if a program crashed.
    total.failed = total.failed.max(failures.len() as u64);
    failures.sort_by(|one, other| one.what.cmp(&other.what));
    println!("these test programs failed:");
    failures.iter().for_each(|failure| println!("  {}\n{}", failure.what, failure.excerpt));
    Ok(total)
}

/// Returns the programs recorded in `directory`, in the order in which cargo would have run them.
pub(crate) fn jobs(directory: &Path) -> Result<VecDeque<Job>, String> {
    let failed = |error: io::Error| format!("cannot read {}: {error}", directory.display());
    let entries = fs::read_dir(directory).map_err(failed)?;
    let mut files: Vec<PathBuf> =
        entries.map(|entry| entry.map(|e| e.path())).collect::<Result<_, _>>().map_err(failed)?;
    files.sort();
    let decode = |file: &PathBuf| {
        let bytes = fs::read(file).map_err(failed)?;
        Job::decode(&bytes).ok_or_else(|| format!("{} is cut off", file.display()))
    };
    files.iter().map(decode).collect()
}

/// Runs programs from the queue until it is empty. Returns their counts and failures.
fn lane(queue: &Mutex<VecDeque<Job>>) -> (Tally, Vec<Failure>) {
    let (mut total, mut failures) = (Tally::default(), Vec::new());
    let next = || queue.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).pop_front();
    while let Some(job) = next() {
        let (tally, failure) = job.run();
        total += tally;
        failures.extend(failure);
    }
    (total, failures)
}

/// A test program that failed.
struct Failure {
    /// The program's command line, and how it ended.
    what: String,
    excerpt: String,
}

/// Returns the lines that explain a failure, to be repeated after the output of all programs: a log
/// that is cut off keeps its end. libtest reports failed tests at the end of the standard output, a
/// sanitizer at the beginning of the standard error.
fn excerpt(stdout: &[u8], stderr: &[u8]) -> String {
    let [stdout, stderr] = [stdout, stderr].map(String::from_utf8_lossy);
    let last = stdout.lines().count().saturating_sub(EXCERPT_LINES);
    let lines = stdout.lines().skip(last).chain(stderr.lines().take(EXCERPT_LINES));
    lines.map(|line| format!("    {line}\n")).collect()
}

impl Job {
    /// Returns a job whose first word is the test program.
    fn new(
        directory: PathBuf,
        words: Vec<OsString>,
        environment: Vec<(OsString, OsString)>,
    ) -> Job {
        let program = words.first().map(PathBuf::from).unwrap_or_default();
        Job { directory, program, words, environment }
    }

    /// Returns the test target: cargo names its programs after it, with a dash and a number.
    pub(crate) fn target(&self) -> Option<&str> {
        let name = self.program.file_name().and_then(OsStr::to_str)?;
        name.rsplit_once('-').map(|(test, _)| test)
    }

    fn measures(&self) -> bool {
        self.target().is_some_and(|test| ALONE.contains(&test))
    }

    /// Returns the jobs that `means` allow, and the tests that are left out.
    fn planned(self, means: &TestCapabilities) -> Result<(Vec<Job>, Vec<Skipped>), String> {
        let package = self.directory.file_name().and_then(OsStr::to_str).unwrap_or_default();
        let program = format!("{package}/{}", self.target().unwrap_or_default());
        let plan = needs::plan(&program, means, || self.tests())?;
        let inside = self.restricted(&plan.in_namespace).map(|mut job| {
            job.words.splice(0..0, privilege::in_namespace().iter().map(OsString::from));
            job
        });
        let jobs = self.restricted(&plan.outside).into_iter().chain(inside).collect();
        let name = |(test, reason)| (format!("{program}: {test}"), reason);
        Ok((jobs, plan.skipped.into_iter().map(name).collect()))
    }

    /// Returns the same job with these tests only; `None` if there are none.
    fn restricted(&self, group: &Group) -> Option<Job> {
        let mut job = self.clone();
        if let Group::Only(tests) = group {
            job.words.truncate(1);
            job.words.push("--exact".into());
            job.words.extend(tests.iter().map(OsString::from));
        }
        (*group != Group::Only(Vec::new())).then_some(job)
    }

    /// Returns the names of the tests that the command line selects.
    fn tests(&self) -> Result<Vec<String>, String> {
        let mut command = Command::new(&self.words[0]);
        command.args(&self.words[1..]).args(["--list", "--format", "terse"]);
        command.current_dir(&self.directory).env_clear().envs(self.environment.iter().cloned());
        let failed = |why: String| format!("{:?} does not list its tests: {why}", self.program);
        let output = guard::output(&mut command, TIME_LIMIT).map_err(|e| failed(e.to_string()))?;
        match output.status {
            Some(status) if status.success() => {}
            Some(status) => return Err(failed(status.to_string())),
            None => return Err(failed("it hangs".to_string())),
        }
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        Ok(text.lines().filter_map(|line| line.strip_suffix(": test")).map(String::from).collect())
    }

    fn run(&self) -> (Tally, Option<Failure>) {
        let name = self.words.join(OsStr::new(" ")).to_string_lossy().into_owned();
        let began = Instant::now();
        let mut command = Command::new(&self.words[0]);
        command
            .args(&self.words[1..])
            .current_dir(&self.directory)
            .env_clear()
            .envs(self.environment.iter().map(|(name, value)| (name, value)));
        let output = match guard::output(&mut command, TIME_LIMIT) {
            Ok(output) => output,
            Err(error) => {
                let what = format!("{name}: {error}");
                return (Tally::default(), Some(Failure { what, excerpt: String::new() }));
            }
        };
        let mut tally = Tally::default();
        Scanner::default().feed(&output.stdout, |found| tally += found);
        let seconds = began.elapsed().as_secs_f64();
        // One program's output at a time, so that two lanes do not mix their lines.
        let mut out = io::stdout().lock();
        let _ = writeln!(out, "     Ran {name} in {seconds:.1} s");
        let _ = out.write_all(&output.stdout).and_then(|()| out.write_all(&output.stderr));
        let what = match output.status {
            Some(status) if status.success() => None,
            Some(status) => Some(format!("{name}: {status}")),
            None => Some(format!("{name}: hangs, and was killed; its last test is the one")),
        };
        let excerpt = || excerpt(&output.stdout, &output.stderr);
        (tally, what.map(|what| Failure { what, excerpt: excerpt() }))
    }

    /// Encodes directory, number of words, words and variables. Each ends with a zero byte, which
    /// none of them can contain.
    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut add = |part: &OsStr| {
            bytes.extend_from_slice(part.as_bytes());
            bytes.push(0);
        };
        add(self.directory.as_os_str());
        add(OsStr::new(&self.words.len().to_string()));
        self.words.iter().for_each(|word| add(word));
        for (name, value) in &self.environment {
            add(name);
            add(value);
        }
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Job> {
        let text = bytes.strip_suffix(&[0])?;
        let mut parts = text.split(|byte| *byte == 0).map(|part| OsString::from_vec(part.to_vec()));
        let directory = PathBuf::from(parts.next()?);
        let count: usize = parts.next()?.to_str()?.parse().ok()?;
        let words: Vec<_> = parts.by_ref().take(count).collect();
        let mut environment = Vec::new();
        while let Some(name) = parts.next() {
            environment.push((name, parts.next()?));
        }
        (words.len() == count && count > 0).then(|| Job::new(directory, words, environment))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::privilege::Privilege;

    fn job(script: &str) -> Job {
        let words = ["/bin/sh", "-c", script].map(OsString::from).to_vec();
        let environment = vec![("COLOUR".into(), "".into()), ("PATH".into(), "/bin".into())];
        Job::new("/".into(), words, environment)
    }

    #[test]
    fn a_job_is_read_as_it_was_written() {
        let written = job("two  spaces\nand a line");
        assert_eq!(Job::decode(&written.encode()), Some(written));
        let bytes = job("x").encode();
        assert_eq!(Job::decode(&bytes[..10]), None);
        assert_eq!(Job::decode(b""), None);
    }

    #[test]
    fn what_measures_is_known_by_its_name() {
        let measures =
            |program: &str| Job::new("/".into(), vec![program.into()], Vec::new()).measures();
        assert!(measures("/target/debug/deps/load-f87f366f26110bae"));
        assert!(!measures("/target/debug/deps/reload-f87f366f26110bae"));
        assert!(!measures("/target/debug/deps/load"));
    }

    #[test]
    fn a_failure_shows_the_last_output_and_the_first_errors() {
        let stdout: String = (0..50).map(|line| format!("out {line}\n")).collect();
        let stderr: String = (0..50).map(|line| format!("err {line}\n")).collect();
        let text = excerpt(stdout.as_bytes(), stderr.as_bytes());
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        assert_eq!(lines.len(), 2 * EXCERPT_LINES);
        assert_eq!((lines[0], lines[39]), ("out 10", "out 49"));
        assert_eq!((lines[40], lines[79]), ("err 0", "err 39"));
        assert_eq!(excerpt(b"", b""), "");
    }

    #[test]
    fn what_was_filed_runs_and_a_crash_counts_as_a_failure() {
        let directory = tempfile::tempdir().unwrap();
        let summary = "test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured";
        let good = job(&format!("test $(pwd) = / && echo '{summary}'"));
        fs::write(directory.path().join("0000"), good.encode()).unwrap();
        let counted = |passed, failed| {
            let tally = Tally { passed, failed, skipped: 0 };
            Ok(Outcome { tally, skipped: Vec::new() })
        };
        assert_eq!(run(directory.path(), &TestCapabilities::ALL, &|| ()), counted(3, 0));
        fs::write(directory.path().join("0001"), job("kill -9 $$").encode()).unwrap();
        assert_eq!(run(directory.path(), &TestCapabilities::ALL, &|| ()), counted(3, 1));
    }

    /// A program that lists three tests and prints which of them it should run.
    const HARNESS: &str = r#"#!/bin/sh
case "$*" in
    *--list*) printf 'one: test
web::two: test
three: benchmark
' ;;
    *) echo "$@" > ran; echo 'test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured' ;;
esac
"#;

    #[test]
    fn tests_without_their_package_are_left_out_by_name_and_the_others_run() {
        let directory = tempfile::tempdir().unwrap();
        let package = directory.path().join("apptests");
        let filed = directory.path().join("filed");
        fs::create_dir_all(&package).and_then(|()| fs::create_dir(&filed)).unwrap();
        let job = |target: &str| {
            let program = directory.path().join(format!("{target}-0123456789abcdef"));
            fs::write(&program, HARNESS).unwrap();
            fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
            let path = vec![("PATH".into(), "/usr/bin:/bin".into())];
            Job::new(package.clone(), vec![program.into()], path)
        };
        fs::write(filed.join("0000"), job("nginx_files").encode()).unwrap();
        fs::write(filed.join("0001"), job("other").encode()).unwrap();
        let means = TestCapabilities { privilege: Privilege::None, missing: vec!["nginx"] };
        let Outcome { tally, skipped } = run(&filed, &means, &|| ()).unwrap();
        assert_eq!(tally, Tally { passed: 1, failed: 0, skipped: 2 });
        let names: Vec<&str> = skipped.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["apptests/nginx_files: one", "apptests/nginx_files: web::two"]);
        assert!(skipped.iter().all(|(_, reason)| reason == "the package nginx is missing"));
        assert_eq!(
            fs::read_to_string(package.join("ran")).unwrap(),
            "
"
        );
    }

    #[test]
    fn programs_that_cargo_keeps_are_filed_and_others_run_at_once() {
        let directory = tempfile::tempdir().unwrap();
        let kept = vec!["/nowhere/target/debug/deps/some-test".into(), "--skip".into()];
        assert_eq!(run_later(directory.path(), kept), Ok(0));
        assert_eq!(jobs(directory.path()).unwrap()[0].words.len(), 2);
        let passing = vec!["/bin/sh".into(), "-c".into(), "exit 7".into()];
        assert_eq!(run_later(directory.path(), passing), Ok(7));
        assert_eq!(jobs(directory.path()).unwrap().len(), 1);
    }
}
