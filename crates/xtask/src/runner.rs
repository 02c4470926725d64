//! Runs the steps of a level: one line for each with its time, its output in files.

use std::collections::VecDeque;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};
use std::thread;
use std::time::Instant;

use crate::cargo::{self, Cargo};
use crate::level::{self, Outcome, Row};
use crate::programs::{self, Job};
use crate::tally::Tally;
use crate::timings::{self, Timing};

/// Steps of a group that run at the same time.
const LANES: usize = 2;

/// What the lanes after the first add to their nice value, so that a step that waits more than it
/// computes, such as system tests, is not slowed by builds beside it (sched(7)). With more than
/// that, a busy machine leaves them too little to end in their time.
const NICE: i32 = 5;

/// One step of a run.
pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) work: Work,
}

/// The steps of a level. Those of a group share lanes; the groups follow one another.
pub(crate) type Groups = Vec<Vec<Step>>;

/// The work of a step.
pub(crate) enum Work {
    /// Command lines of cargo or `cargo xtask`, one after the other.
    Commands(Vec<Cargo>),
    /// A build, and then the test programs of these packages that it made, and further rows.
    Tests { build: Cargo, packages: fn(&str) -> bool, rows: &'static [Row] },
}

/// Formats the commands as a user would type them.
impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Work::Commands(commands) => {
                let lines: Vec<String> = commands.iter().map(Cargo::to_string).collect();
                write!(f, "{}", lines.join(" && "))
            }
            Work::Tests { build, .. } => write!(f, "{build}, and its test programs"),
        }
    }
}

/// What the user has chosen.
#[derive(Default)]
pub(crate) struct Options<'a> {
    /// A part of the names of the test programs to run.
    pub(crate) program: &'a str,
    /// Words for each test program.
    pub(crate) words: Vec<&'a str>,
    /// A file for the times of all builds and test programs.
    pub(crate) timings: Option<&'a Path>,
}

/// Runs steps, and sums their results.
pub(crate) struct Run<'a> {
    root: &'a Path,
    options: Options<'a>,
    total: Mutex<Outcome>,
    skipped: Mutex<Vec<String>>,
}

impl<'a> Run<'a> {
    pub(crate) fn new(root: &'a Path, options: Options<'a>) -> Run<'a> {
        Run { root, options, total: Mutex::default(), skipped: Mutex::default() }
    }

    /// Runs the groups one after the other, all of them even if a step fails; returns whether none
    /// has failed so far. The steps of a group share the lanes: they measure no time, and change
    /// nothing that the others use.
    pub(crate) fn all(&self, groups: Groups) -> Result<bool, String> {
        for group in groups {
            let lanes = LANES.min(group.len());
            let steps = Mutex::new(VecDeque::from(group));
            thread::scope(|scope| {
                let steps = &steps;
                let lanes: Vec<_> =
                    (0..lanes).map(|lane| scope.spawn(move || self.lane(lane, steps))).collect();
                lanes.into_iter().try_for_each(|lane| lane.join().map_err(|_| panicked())?)
            })?;
        }
        Ok(lock(&self.total)?.failures.is_empty())
    }

    fn lane(&self, lane: usize, steps: &Mutex<VecDeque<Step>>) -> Result<(), String> {
        if lane > 0 {
            // SAFETY: nice(2) takes no pointers. On Linux it is of the calling thread, from which
            // processes inherit it. A failure only costs time.
            unsafe { libc::nice(NICE) };
        }
        loop {
            let Some(step) = lock(steps)?.pop_front() else { return Ok(()) };
            self.one(&step)?;
        }
    }

    /// Prints what was skipped and what failed, then the sum.
    pub(crate) fn finish(self) -> Result<Tally, String> {
        let total = self.total.into_inner().map_err(|_| panicked())?;
        for line in self.skipped.into_inner().map_err(|_| panicked())? {
            println!("{line}");
        }
        total.unchecked.iter().for_each(|line| println!("{line}"));
        for failure in &total.failures {
            println!("FAILED: {failure}\n");
        }
        if let Some(path) = self.options.timings {
            timings::write(path, total.timings)?;
        }
        println!("{}", total.tally);
        Ok(total.tally)
    }

    /// Runs one step and prints its line.
    fn one(&self, step: &Step) -> Result<(), String> {
        let logs = empty_directory(self.root, step.name)?;
        let started = Instant::now();
        let mut outcome = match &step.work {
            Work::Commands(commands) => run_commands(self.root, commands, &logs),
            Work::Tests { build, packages, rows } => self.tests(build, *packages, rows, &logs),
        }
        .unwrap_or_else(Outcome::failed);
        let skipped = skipped(&logs);
        outcome.tally.move_skipped(skipped.len() as u64);
        let wall = started.elapsed();
        let verdict = if outcome.failures.is_empty() { "ok" } else { "FAILED" };
        let Tally { passed, failed, skipped: left_out } = outcome.tally;
        let counts = match passed + failed + left_out {
            0 => String::new(),
            _ => format!("  {passed} passed, {failed} failed, {left_out} skipped"),
        };
        println!("{:<24} {:>8.1} s  {verdict}{counts}", step.name, wall.as_secs_f64());
        for failure in &mut outcome.failures {
            failure.push_str(&format!("\nrepeat it: cargo xtask test --only '{}'", step.name));
        }
        outcome.timings.push(Timing { what: format!("step {}", step.name), wall, cpu: None });
        lock(&self.skipped)?.extend(skipped);
        lock(&self.total)?.add(outcome);
        Ok(())
    }

    /// Builds, prints a line for the build, and runs the test programs.
    fn tests(
        &self,
        build: &Cargo,
        packages: fn(&str) -> bool,
        rows: &[Row],
        logs: &Path,
    ) -> Result<Outcome, String> {
        let started = Instant::now();
        let timed = self.options.timings.is_some();
        let cargo = if timed { build.clone().and("--timings") } else { build.clone() };
        let built = programs::build(self.root, &cargo)?;
        let wall = started.elapsed();
        println!("{:<24} {:>8.1} s  ok", "  build", wall.as_secs_f64());
        let Options { program, words, .. } = &self.options;
        let mut outcome = level::run(&built, packages, rows, program, words, logs)?;
        outcome.timings.push(Timing { what: format!("`{build}`"), wall, cpu: None });
        if timed {
            outcome.timings.extend(timings::of_build(&cargo::absolute_target(self.root)?)?);
        }
        Ok(outcome)
    }
}

/// Runs command lines until one fails.
fn run_commands(root: &Path, commands: &[Cargo], logs: &Path) -> Result<Outcome, String> {
    let mut outcome = Outcome::default();
    for cargo in commands {
        let mut command = cargo.command();
        command.current_dir(root).env("MEGAPIPE_SKIPS", level::skips_file(logs));
        outcome.add_program(&programs::run_one(logs, Job::new(cargo.to_string(), command))?);
        if !outcome.failures.is_empty() {
            break;
        }
    }
    Ok(outcome)
}

/// Makes an empty directory for the output of a step's programs.
fn empty_directory(root: &Path, step: &str) -> Result<PathBuf, String> {
    let directory = cargo::absolute_target(root)?.join("xtask").join(programs::file_name(step));
    let unusable = |error| format!("cannot use {}: {error}", directory.display());
    match fs::remove_dir_all(&directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(unusable(error)),
        _ => fs::create_dir_all(&directory).map_err(unusable)?,
    }
    Ok(directory)
}

/// Returns the reports of tests that could not run.
fn skipped(logs: &Path) -> Vec<String> {
    // A test may have been killed in the middle of a line.
    let text = fs::read(level::skips_file(logs)).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    text.lines().filter(|line| line.starts_with("SKIPPED: ")).map(String::from).collect()
}

fn lock<T>(mutex: &Mutex<T>) -> Result<MutexGuard<'_, T>, String> {
    mutex.lock().map_err(|_| panicked())
}

fn panicked() -> String {
    "a thread has panicked; see above".to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_step_does_not_hide_the_next_one_and_is_counted() {
        let root = tempfile::tempdir().unwrap();
        let fail = || Work::Commands(vec![Cargo::new("no-such-command")]);
        let step = |name| Step { name, work: fail() };
        let run = Run::new(root.path(), Options::default());
        let groups = vec![vec![step("one")], vec![step("two"), step("three")]];
        assert_eq!(run.all(groups), Ok(false));
        assert_eq!(run.finish(), Ok(Tally { passed: 0, failed: 3, skipped: 0 }));
    }

    #[test]
    fn only_reports_of_skipped_tests_are_collected() {
        let logs = tempfile::tempdir().unwrap();
        assert!(skipped(logs.path()).is_empty());
        let text = "SKIPPED: strace: not installed\n\nnoise\nSKIPPED: tap: not ro";
        fs::write(level::skips_file(logs.path()), text).unwrap();
        assert_eq!(skipped(logs.path()).len(), 2);
    }
}
