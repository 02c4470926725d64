//! Runs steps one after the other, shows their output as it comes, and adds up what they say.

use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, ExitCode, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use crate::lanes;
use crate::steps::{self, Cargo, Step, Work};
use crate::tally::{Scanner, Tally};

/// Whether a run with skipped tests may succeed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Skips {
    Allowed,
    Forbidden,
}

/// How long a test's output may stay open after cargo itself has ended.
const LINGER: Duration = Duration::from_secs(10);

/// Runs the steps until one fails, then prints the summary line, last of all.
pub(crate) fn run(root: &Path, steps: &[Step], skips: Skips) -> ExitCode {
    let mut total = Tally::default();
    let mut announced = Vec::new();
    let mut result = Ok(());
    for (index, step) in steps.iter().enumerate() {
        let title = format!("==> {}/{} {}", index + 1, steps.len(), step.name);
        println!("{title}: {}", step.repeat());
        let began = Instant::now();
        let (outcome, tally) = perform(root, step, &mut announced);
        total += tally;
        let seconds = began.elapsed().as_secs_f64();
        let Err(reason) = outcome else {
            println!("{title}: done in {seconds:.1} s");
            continue;
        };
        println!("{title}: FAILED after {seconds:.1} s");
        // Without this the last line of a run that fails to compile would say `0 failed`.
        total.failed += u64::from(tally.failed == 0);
        let repeat = step.repeat();
        result = Err(format!("step {} failed: {reason}\nrepeat it alone: {repeat}", step.name));
        break;
    }
    announced.iter().for_each(|line| println!("{line}"));
    if result.is_ok() && skips == Skips::Forbidden {
        result = forbid_skips(total);
    }
    if let Err(error) = &result {
        println!("xtask: {error}");
    }
    println!("{total}");
    if result.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
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

/// One step's outcome and what its tests counted.
fn perform(root: &Path, step: &Step, announced: &mut Vec<String>) -> (Result<(), String>, Tally) {
    let mut tally = Tally::default();
    let outcome = match &step.work {
        Work::Own(command) => command(root),
        Work::Cargo(cargo) => check(root, cargo),
        Work::Tests(cargo, minimum) => {
            count(root, cargo, &mut tally, announced).and_then(|()| enough(tally, *minimum))
        }
    };
    (outcome, tally)
}

fn check(root: &Path, cargo: &Cargo) -> Result<(), String> {
    let status = cargo.command().current_dir(root).stdin(Stdio::null()).status();
    let status = status.map_err(|error| format!("cannot start cargo: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("cargo ended with {status}")) }
}

fn enough(tally: Tally, minimum: u64) -> Result<(), String> {
    let (ran, skipped) = (tally.passed + tally.failed, tally.skipped);
    if ran >= minimum {
        return Ok(());
    }
    Err(format!(
        "{ran} tests ran and {skipped} were skipped, at least {minimum} must run; if none is \
         missing above, were they renamed, or compiled out?"
    ))
}

/// Runs tests, adds their summaries to `tally`, and collects the lines of those that could not
/// run.
fn count(
    root: &Path,
    cargo: &Cargo,
    tally: &mut Tally,
    announced: &mut Vec<String>,
) -> Result<(), String> {
    let skips = skips_file(root)?;
    let filed = filing_directory(root)?;
    let (name, value) = lanes::filing(&filed, &steps::host_triple()?)?;
    let mut command = cargo.command();
    command.current_dir(root).env("MEGAPIPE_SKIPS", &skips).env(name, value);
    // Errors and cargo's progress go to the terminal directly; only the summaries are ours.
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().map_err(|error| format!("cannot start cargo: {error}"))?;
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
    let ended = status.success().then(|| lanes::run(&filed)).transpose()?;
    let failed = ended.is_some_and(|ended| ended.failed > 0);
    *tally += ended.unwrap_or_default();
    let before = announced.len();
    announced.extend(announcements(&read(&skips)?));
    tally.announce_skipped((announced.len() - before) as u64);
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

/// Shows what arrives. The standard output holds an unfinished line back, which keeps cargo's own
/// messages from landing in the middle of one.
fn show(mut from: ChildStdout, summaries: &Sender<Tally>) {
    let mut scanner = Scanner::default();
    let mut piece = [0; 4096];
    // A reader of ours that went away must not stop the tests or their count: errors of writing
    // and sending are of no interest.
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

/// An empty file for the announcements of one step. Absolute, because tests run in the directory
/// of their crate.
fn skips_file(root: &Path) -> Result<PathBuf, String> {
    let path = root.join(steps::target_dir()).join("xtask-skips");
    let made = path.parent().map_or(Ok(()), fs::create_dir_all);
    made.and_then(|()| fs::write(&path, ""))
        .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    Ok(path)
}

/// An empty directory for the test programs of one step.
fn filing_directory(root: &Path) -> Result<PathBuf, String> {
    let path = root.join(steps::target_dir()).join("xtask-tests");
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

    #[test]
    fn only_announcements_are_collected() {
        let text = "SKIPPED: strace: not installed\n\nnoise\nSKIPPED: tap: not root\n";
        let lines: Vec<String> = announcements(text).collect();
        assert_eq!(lines, ["SKIPPED: strace: not installed", "SKIPPED: tap: not root"]);
    }

    #[test]
    fn too_few_tests_are_a_failure() {
        assert!(enough(Tally { passed: 2, failed: 1, skipped: 0 }, 3).is_ok());
        let error = enough(Tally { passed: 0, failed: 0, skipped: 1 }, 1).unwrap_err();
        assert!(error.starts_with("0 tests ran and 1 were skipped, at least 1"), "{error}");
    }

    #[test]
    fn the_full_run_skips_nothing() {
        assert!(forbid_skips(Tally { passed: 4, failed: 0, skipped: 0 }).is_ok());
        let error = forbid_skips(Tally { passed: 4, failed: 0, skipped: 2 }).unwrap_err();
        assert!(error.starts_with("2 skipped: the full run skips nothing"), "{error}");
    }
}
