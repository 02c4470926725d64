//! Runs steps one after the other, shows their output as it arrives, and sums their counts.

use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, ExitCode, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use crate::beside;
use crate::cargo::{self, Cargo};
use crate::lanes;
use crate::setup;
use crate::step::{Step, Work};
use crate::tally::{Scanner, Tally};
use crate::test_capabilities::TestCapabilities;

/// Whether root's run may succeed with skipped tests; other users' runs always may.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Skips {
    Allowed,
    Forbidden,
}

/// How long a test's output may stay open after cargo has ended.
const LINGER: Duration = Duration::from_secs(10);

/// Makes the steps of a run for the means of its user; their number is always the same.
pub(crate) type Steps<'a> = &'a dyn Fn(&TestCapabilities) -> Result<Vec<Step>, String>;

/// Runs the steps until one fails; then prints what was skipped, and the summary line last.
pub(crate) fn run(root: &Path, steps: Steps<'_>, skips: Skips) -> ExitCode {
    let mut run = Run {
        root,
        means: TestCapabilities::here(),
        total: Tally::default(),
        announced: Vec::new(),
    };
    if let Some(text) = run.means.describe() {
        println!("xtask: {text}");
    }
    let mut result = run.all(steps);
    run.announced.iter().for_each(|line| println!("{line}"));
    if result.is_ok() && skips == Skips::Forbidden && run.means.is_root() {
        result = forbid_skips(run.total);
    }
    if let Err(error) = &result {
        println!("xtask: {error}");
    }
    println!("{}", run.total);
    if result.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The state of a run.
struct Run<'a> {
    root: &'a Path,
    means: TestCapabilities,
    total: Tally,
    /// A line for everything that was skipped.
    announced: Vec<String>,
}

impl Run<'_> {
    fn all(&mut self, plan: Steps<'_>) -> Result<(), String> {
        let mut index = 0;
        loop {
            // Called for each step, because the set-up changes which packages are installed.
            let mut steps = plan(&self.means)?;
            if index == steps.len() {
                return Ok(());
            }
            let together = self.together(&steps[index..]);
            if together.len() > 1 {
                index += together.len();
                println!("==> to {index}/{}: {}", steps.len(), together.join(", "));
                self.all_of(&together)?;
                continue;
            }
            let title = format!("==> {}/{} {}", index + 1, steps.len(), steps[index].name);
            self.one(&title, &steps.swap_remove(index))?;
            index += 1;
        }
    }

    /// Returns the names of the next steps that run at the same time. Only root's do: what another
    /// user lacks is known to this process only.
    fn together(&self, steps: &[Step]) -> Vec<&'static str> {
        let fit = |step: &&Step| step.beside && self.means.is_root();
        steps.iter().take_while(fit).map(|step| step.name).collect()
    }

    /// Runs steps at the same time.
    fn all_of(&mut self, steps: &[&'static str]) -> Result<(), String> {
        let mut failed = Vec::new();
        for ended in beside::run(self.root, steps)? {
            self.total += ended.tally;
            self.announced.extend(ended.announced);
            if !ended.passed {
                failed.push(format!(
                    "step {0} failed\nrepeat it alone: cargo xtask test --only '{0}'",
                    ended.step
                ));
                self.total.failed += u64::from(ended.tally.failed == 0);
            }
        }
        if failed.is_empty() { Ok(()) } else { Err(failed.join("\n")) }
    }

    /// Runs one step, or records the reason why it does not run.
    fn one(&mut self, title: &str, step: &Step) -> Result<(), String> {
        if let Some(reason) = &step.lacking {
            println!("{title}: skipped: {reason}");
            self.skip(&format!("step {}", step.name), reason);
            return Ok(());
        }
        println!("{title}: {}", step.repeat());
        for (part, reason) in &step.left_out {
            self.skip(&format!("step {}: {part}", step.name), reason);
        }
        let began = Instant::now();
        let (outcome, tally) = self.perform(step);
        self.total += tally;
        let seconds = began.elapsed().as_secs_f64();
        let Err(reason) = outcome else {
            println!("{title}: done in {seconds:.1} s");
            return Ok(());
        };
        println!("{title}: FAILED after {seconds:.1} s");
        // Otherwise the last line of a run that fails to compile would say `0 failed`.
        self.total.failed += u64::from(tally.failed == 0);
        let repeat = step.repeat();
        Err(format!("step {} failed: {reason}\nrepeat it alone: {repeat}", step.name))
    }

    /// Counts a test or step that does not run at all.
    fn skip(&mut self, name: &str, reason: &str) {
        self.announced.push(announcement(name, reason));
        self.total.skipped += 1;
    }

    /// Runs one step; returns its result and the counts of its tests.
    fn perform(&mut self, step: &Step) -> (Result<(), String>, Tally) {
        let mut tally = Tally::default();
        let outcome = match &step.work {
            Work::SetUp => self.set_up(),
            Work::Own(command) => command(self.root),
            Work::Checks(command) => command(self.root).and_then(|outcome| {
                tally = outcome.tally;
                for (name, reason) in &outcome.skipped {
                    self.announced.push(announcement(name, reason));
                }
                match tally.failed {
                    0 => Ok(()),
                    failed => Err(format!("{failed} checks failed")),
                }
            }),
            Work::Cargo(cargo) => check(self.root, cargo),
            Work::Tests(cargo, minimum) => {
                let meanwhile = || build(self.root, &step.meanwhile);
                self.count(step.name, cargo, &mut tally, &meanwhile)
                    .and_then(|()| enough(tally, *minimum, &self.means))
            }
        };
        (outcome, tally)
    }

    /// Runs tests, adds their summaries to `tally`, and collects the lines of those that
    /// could not run.
    /// `meanwhile` runs beside the tests that do not measure.
    fn count(
        &mut self,
        step: &str,
        cargo: &Cargo,
        tally: &mut Tally,
        meanwhile: &(dyn Fn() + Sync),
    ) -> Result<(), String> {
        let directory = beside::directory(self.root, step)?;
        let skips = skips_file(&directory)?;
        let filed = filing_directory(&directory)?;
        let (name, value) = lanes::filing(&filed, &cargo::host_triple()?)?;
        let mut command = cargo.command();
        command.current_dir(self.root).env("MEGAPIPE_SKIPS", &skips).env(name, value);
        // Errors and cargo's progress go to the terminal; only the summaries are read here.
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command
            .spawn()
            .map_err(|error| format!("cannot run cargo: {error}; add cargo to the PATH"))?;
        let (sender, summaries) = mpsc::channel();
        if let Some(stdout) = child.stdout.take() {
            thread::spawn(move || show(stdout, &sender));
        }
        let status = child.wait().map_err(|error| format!("cannot wait for cargo: {error}"))?;
        let deadline = Instant::now() + LINGER;
        let lingering = loop {
            match summaries.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(summary) => *tally += summary,
                Err(RecvTimeoutError::Disconnected) => break false,
                Err(RecvTimeoutError::Timeout) => break true,
            }
        };
        let ended =
            status.success().then(|| lanes::run(&filed, &self.means, meanwhile)).transpose()?;
        let lanes::Outcome { tally: ended, skipped } = ended.unwrap_or_default();
        let failed = ended.failed > 0;
        *tally += ended;
        let before = self.announced.len();
        self.announced.extend(announcements(&read(&skips)?));
        tally.announce_skipped((self.announced.len() - before) as u64);
        self.announced.extend(skipped.iter().map(|(test, reason)| announcement(test, reason)));
        if !status.success() {
            return Err(format!("cargo ended with {status}"));
        }
        if failed {
            return Err("not all test programs passed".to_string());
        }
        if lingering {
            return Err("a test left a process behind that still holds its output; find it with \
                    `ps` and have the test wait for it"
                .to_string());
        }
        Ok(())
    }

    fn set_up(&mut self) -> Result<(), String> {
        let missing = setup::prepare(self.root)?;
        if !self.means.is_root() {
            self.means.missing = missing;
        }
        Ok(())
    }
}

fn announcement(name: &str, reason: &str) -> String {
    format!("SKIPPED: {name}: {reason}")
}

fn forbid_skips(total: Tally) -> Result<(), String> {
    match total.skipped {
        0 => Ok(()),
        count => Err(format!(
            "{count} skipped: the full run skips nothing; give the tests marked `ignored` or \
             SKIPPED above what they need, or delete them"
        )),
    }
}

fn check(root: &Path, cargo: &Cargo) -> Result<(), String> {
    let status = cargo.command().current_dir(root).stdin(Stdio::null()).status();
    let status =
        status.map_err(|error| format!("cannot run cargo: {error}; add cargo to the PATH"))?;
    if status.success() { Ok(()) } else { Err(format!("cargo ended with {status}")) }
}

/// Builds at low priority, on idle CPU time. Ignores failures: the step itself builds again and
/// reports them.
fn build(root: &Path, all: &[Cargo]) {
    const LOWEST: &str = "19";
    for cargo in all {
        let plain = cargo.command();
        let mut command = Command::new("nice");
        command.args(["-n", LOWEST]).arg(plain.get_program()).args(plain.get_args());
        let environment = plain.get_envs().filter_map(|(name, value)| Some((name, value?)));
        command.envs(environment).current_dir(root);
        let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let began = Instant::now();
        if quiet.status().is_ok_and(|status| status.success()) {
            println!("     Built meanwhile: {cargo} in {:.1} s", began.elapsed().as_secs_f64());
        }
    }
}

/// Checks that at least `minimum` tests ran; for users other than root, tests skipped by name count
/// as well.
fn enough(tally: Tally, minimum: u64, means: &TestCapabilities) -> Result<(), String> {
    let (ran, skipped) = (tally.passed + tally.failed, tally.skipped);
    if ran >= minimum || (!means.is_root() && ran + skipped >= minimum) {
        return Ok(());
    }
    Err(format!(
        "{ran} tests ran and {skipped} were skipped, at least {minimum} must run; if none is \
         missing above, were they renamed, or compiled out?"
    ))
}

/// Shows output as it arrives. Holds back an unfinished line of the standard output, so that
/// cargo's own messages do not appear in the middle of it.
fn show(mut from: ChildStdout, summaries: &Sender<Tally>) {
    let mut scanner = Scanner::default();
    let mut piece = [0; 4096];
    // A closed terminal must not stop the tests or their count, so errors of writing and sending
    // are ignored.
    loop {
        match from.read(&mut piece) {
            Ok(0) => break,
            Ok(length) => {
                let _ = io::stdout().write_all(&piece[..length]);
                scanner.feed(&piece[..length], |tally| {
                    let _ = summaries.send(tally);
                });
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    let _ = io::stdout().flush();
}

/// Creates an empty file for one step's reports of skipped tests.
fn skips_file(directory: &Path) -> Result<PathBuf, String> {
    let path = directory.join("skips");
    fs::write(&path, "").map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    Ok(path)
}

/// Creates an empty directory for the records of one step's test programs.
fn filing_directory(directory: &Path) -> Result<PathBuf, String> {
    let path = directory.join("programs");
    let failed = |error| format!("cannot empty {}: {error}", path.display());
    match fs::remove_dir_all(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => fs::create_dir_all(&path).map_err(failed)?,
    }
    Ok(path)
}

fn read(path: &Path) -> Result<String, String> {
    // A test may have been killed in the middle of a line.
    let bytes = fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()));
    Ok(String::from_utf8_lossy(&bytes?).into_owned())
}

fn announcements(text: &str) -> impl Iterator<Item = String> {
    text.lines().filter(|line| line.starts_with("SKIPPED: ")).map(String::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::privilege::Privilege;

    #[test]
    fn only_announcements_are_collected() {
        let text = "SKIPPED: strace: not installed\n\nnoise\nSKIPPED: tap: not root\n";
        let lines: Vec<String> = announcements(text).collect();
        assert_eq!(lines, ["SKIPPED: strace: not installed", "SKIPPED: tap: not root"]);
    }

    #[test]
    fn too_few_tests_are_a_failure() {
        assert!(
            enough(Tally { passed: 2, failed: 1, skipped: 0 }, 3, &TestCapabilities::ALL).is_ok()
        );
        let skipped = Tally { passed: 0, failed: 0, skipped: 1 };
        let error = enough(skipped, 1, &TestCapabilities::ALL).unwrap_err();
        assert!(error.starts_with("0 tests ran and 1 were skipped, at least 1"), "{error}");
        let other = TestCapabilities { privilege: Privilege::None, missing: Vec::new() };
        assert!(enough(skipped, 1, &other).is_ok());
        assert!(enough(skipped, 2, &other).is_err());
    }

    #[test]
    fn a_step_that_lacks_a_package_is_skipped_by_name_and_the_next_one_runs() {
        let root = tempfile::tempdir().unwrap();
        let means = TestCapabilities { privilege: Privilege::None, missing: vec!["clang"] };
        let (total, announced) = (Tally::default(), Vec::new());
        let mut run = Run { root: root.path(), means, total, announced };
        let lacking = |_: &Path| Err("it has run".to_string());
        let runs = |root: &Path| fs::write(root.join("ran"), "").map_err(|e| e.to_string());
        let outcome = run.all(&|means| {
            let missing = format!("the package {} is missing", means.missing[0]);
            let first = Step { lacking: Some(missing), ..Step::new("first", Work::Own(lacking)) };
            let left_out = vec![("feature x/y".to_string(), "it needs root".to_string())];
            Ok(vec![first, Step { left_out, ..Step::new("second", Work::Own(runs)) }])
        });
        assert_eq!(outcome, Ok(()));
        assert!(root.path().join("ran").exists());
        assert_eq!(
            run.announced,
            [
                "SKIPPED: step first: the package clang is missing",
                "SKIPPED: step second: feature x/y: it needs root"
            ]
        );
        assert_eq!(run.total.to_string(), "result: 0 passed, 0 failed, 2 skipped");
    }

    #[test]
    fn the_full_run_skips_nothing() {
        assert!(forbid_skips(Tally { passed: 4, failed: 0, skipped: 0 }).is_ok());
        let error = forbid_skips(Tally { passed: 4, failed: 0, skipped: 2 }).unwrap_err();
        assert!(error.starts_with("2 skipped: the full run skips nothing"), "{error}");
    }
}
