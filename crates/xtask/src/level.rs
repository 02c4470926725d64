//! Runs the test programs of a level, and further rows with other variables.

use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use crate::programs::{self, Ended, Job, Program};
use crate::tally::Tally;
use crate::timings::Timing;

/// Time limit of one test program; only one that hangs exceeds it.
const TIME_LIMIT: Duration = Duration::from_secs(1800);

/// Test programs that run at the same time for each CPU: most of them wait more than they compute.
const LANES_PER_CPU: usize = 2;

/// End of the names of test programs that measure time, and so run one at a time.
const ALONE: &str = "_alone";

/// One more run of a test program, with variables of the environment and a filter.
pub(crate) struct Row {
    /// `PACKAGE/TARGET`.
    pub(crate) program: &'static str,
    pub(crate) variables: &'static [(&'static str, &'static str)],
    pub(crate) filter: &'static [&'static str],
}

/// The sum of several programs.
#[derive(Default)]
pub(crate) struct Outcome {
    pub(crate) tally: Tally,
    pub(crate) timings: Vec<Timing>,
    /// Each with the end of its output.
    pub(crate) failures: Vec<String>,
    /// What a command could not check on this machine, by its lines `NOT CHECKED: NAME: REASON`.
    pub(crate) unchecked: Vec<String>,
}

/// Runs every test program of the packages, then the rows, and at the end the programs that
/// measure, one at a time. `only` selects programs by a part of their names, `PACKAGE/TARGET`;
/// `words` go to each program.
pub(crate) fn run(
    built: &[Program],
    packages: fn(&str) -> bool,
    rows: &[Row],
    only: &str,
    words: &[&str],
    logs: &Path,
) -> Result<Outcome, String> {
    let mut jobs = Vec::new();
    let tests = || built.iter().filter(|program| program.is_test);
    for test in tests().filter(|test| packages(&test.package)) {
        jobs.push(job(&name_of(test), test.command(), words, logs));
    }
    for Row { program, variables, filter } in rows {
        let test = tests().find(|test| name_of(test) == *program);
        let test = test.ok_or_else(|| format!("there is no test program {program}"))?;
        let mut command = test.command();
        command.envs(variables.iter().copied()).args(*filter);
        let shown: String =
            variables.iter().map(|(name, value)| format!("{name}={value} ")).collect();
        jobs.push(job(&format!("{shown}{program}"), command, words, logs));
    }
    jobs.retain(|job| job.name.contains(only));
    if jobs.is_empty() {
        return Err(format!("no test program has `{only}` in its name"));
    }
    let (alone, together): (Vec<Job>, Vec<Job>) =
        jobs.into_iter().partition(|job| job.name.ends_with(ALONE));
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    let mut ended = programs::run(logs, cpus * LANES_PER_CPU, together)?;
    ended.extend(programs::run(logs, 1, alone)?);
    let mut outcome = Outcome::default();
    ended.iter().for_each(|ended| outcome.add_program(ended));
    Ok(outcome)
}

fn job(name: &str, mut command: Command, words: &[&str], logs: &Path) -> Job {
    command.args(words).env("MEGAPIPE_SKIPS", skips_file(logs));
    Job { name: name.to_string(), command, limit: TIME_LIMIT }
}

fn name_of(test: &Program) -> String {
    format!("{}/{}", test.package, test.target)
}

/// The file in a directory of logs to which a test that cannot run appends `SKIPPED: NAME: REASON`.
pub(crate) fn skips_file(logs: &Path) -> std::path::PathBuf {
    logs.join("skips")
}

impl Outcome {
    /// The outcome of a step that could not run its tests.
    pub(crate) fn failed(reason: String) -> Outcome {
        let tally = Tally { failed: 1, ..Tally::default() };
        Outcome { tally, failures: vec![reason], ..Outcome::default() }
    }

    /// Adds a program that has ended.
    pub(crate) fn add_program(&mut self, ended: &Ended) {
        self.tally += ended.tally();
        let (wall, cpu) = (ended.end.wall, Some(ended.end.cpu));
        self.timings.push(Timing { what: ended.name.clone(), wall, cpu });
        self.failures.extend(ended.failure());
        let unchecked = ended.output.lines().filter(|line| line.starts_with("NOT CHECKED: "));
        self.unchecked.extend(unchecked.map(String::from));
    }

    /// Adds the outcome of another step.
    pub(crate) fn add(&mut self, other: Outcome) {
        self.tally += other.tally;
        self.timings.extend(other.timings);
        self.failures.extend(other.failures);
        self.unchecked.extend(other.unchecked);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    fn program(directory: &Path, name: &str, script: &str) -> Program {
        let path = directory.join(name);
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        let (package, target) = ("p".to_string(), name.to_string());
        Program { package, target, directory: directory.to_path_buf(), path, is_test: true }
    }

    #[test]
    fn rows_get_their_variables_and_a_crash_counts_as_a_failure() {
        let directory = tempfile::tempdir().unwrap();
        let logs = directory.path().join("logs");
        let summary = "echo test result: ok. 3 passed\\; 0 failed\\; 0 ignored\\; 0 measured";
        let good = format!("[ \"$COLOUR$*\" = \"${{WANTED-}}\" ] && {summary}");
        let good = program(directory.path(), "good", &good);
        let crash = program(directory.path(), "crash_alone", "kill -9 $$");
        let tests = [good, crash];
        let variables = &[("COLOUR", "red"), ("WANTED", "reduring::")];
        let rows = [Row { program: "p/good", variables, filter: &["uring::"] }];
        let outcome = run(&tests, |_| true, &rows, "", &[], &logs).unwrap();
        assert_eq!(outcome.tally, Tally { passed: 6, failed: 1, skipped: 0 });
        assert!(outcome.failures[0].starts_with("p/crash_alone: signal: 9"));
        assert_eq!(outcome.timings.len(), 3);
        let outcome = run(&tests, |_| true, &[], "good", &[], &logs).unwrap();
        assert_eq!(outcome.tally, Tally { passed: 3, failed: 0, skipped: 0 });
        let error = run(&tests, |_| true, &[], "absent", &[], &logs).err().unwrap();
        assert_eq!(error, "no test program has `absent` in its name");
    }
}
