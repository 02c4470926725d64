//! Runs steps at the same time, each as a command of its own: most of them wait more than they
//! compute.

use std::collections::VecDeque;
use std::env;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::Instant;

use crate::cargo;
use crate::tally::Tally;

/// Number of steps that run at the same time.
const LANES: usize = 2;

/// How a step ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) step: &'static str,
    pub(crate) passed: bool,
    pub(crate) tally: Tally,
    /// What it says of tests that did not run.
    pub(crate) announced: Vec<String>,
}

/// Runs `cargo xtask test --only STEP` for each step, and shows the output of each when it has
/// ended. Later steps run even if one fails.
pub(crate) fn run(root: &Path, steps: &[&'static str]) -> Result<Vec<Ended>, String> {
    let program = env::current_exe().map_err(|error| format!("where is xtask? {error}"))?;
    let command = |step: &str| {
        let mut command = Command::new(&program);
        command.args(["test", "--only", step]).current_dir(root);
        command
    };
    run_all(root, steps, &command)
}

fn run_all(
    root: &Path,
    steps: &[&'static str],
    command: &(dyn Fn(&str) -> Command + Sync),
) -> Result<Vec<Ended>, String> {
    let queue: Mutex<VecDeque<&'static str>> = Mutex::new(steps.iter().copied().collect());
    let next = || queue.lock().ok().and_then(|mut queue| queue.pop_front());
    let lane = || -> Result<Vec<Ended>, String> {
        let mut ended = Vec::new();
        while let Some(step) = next() {
            println!("==> {step}: begins beside others");
            ended.push(run_one(root, step, command(step))?);
        }
        Ok(ended)
    };
    let ended: Vec<_> = thread::scope(|scope| {
        let lanes: Vec<_> = (0..LANES).map(|_| scope.spawn(lane)).collect();
        lanes.into_iter().map(|lane| lane.join()).collect()
    });
    let mut all = Vec::new();
    for lane in ended {
        all.extend(lane.map_err(|_| "a lane of steps panicked".to_string())??);
    }
    Ok(all)
}

fn run_one(root: &Path, step: &'static str, mut command: Command) -> Result<Ended, String> {
    let path = directory(root, step)?.join("output");
    let failed = |error: io::Error| format!("step {step}: cannot run it: {error}");
    let file = File::create(&path).map_err(failed)?;
    // Both streams go to one file, so that they keep their order.
    command.stdin(Stdio::null()).stdout(file.try_clone().map_err(failed)?).stderr(file);
    let began = Instant::now();
    let status = command.status().map_err(failed)?;
    let output = fs::read(&path).map_err(failed)?;
    let seconds = began.elapsed().as_secs_f64();
    let verdict = if status.success() { "done in" } else { "FAILED after" };
    let mut terminal = io::stdout().lock();
    // A closed terminal must not stop the run, so errors of writing are ignored.
    let _ = terminal.write_all(&output);
    let _ = writeln!(terminal, "==> {step}: {verdict} {seconds:.1} s beside others");
    let text = String::from_utf8_lossy(&output);
    let announced = text.lines().filter(|line| line.starts_with("SKIPPED: ")).map(String::from);
    let tally = text.lines().rev().find_map(Tally::from_result).unwrap_or_default();
    Ok(Ended { step, passed: status.success(), tally, announced: announced.collect() })
}

/// Makes the directory for the files of one step, with an absolute path, because tests run in the
/// directory of their crate.
pub(crate) fn directory(root: &Path, step: &str) -> Result<std::path::PathBuf, String> {
    let path = root.join(cargo::target_dir()).join("xtask").join(step.replace([' ', '/'], "-"));
    let made = fs::create_dir_all(&path);
    made.map_err(|error| format!("cannot make {}: {error}", path.display()))?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_run_beside_each_other_and_are_counted() {
        let root = tempfile::tempdir().unwrap();
        let script = |step: &str| {
            let mut command = Command::new("sh");
            let script = match step {
                // Each of the first two waits for the other.
                "one" => "touch one; until [ -e two ]; do sleep 0.01; done; echo SKIPPED: a: b",
                "two" => "touch two; until [ -e one ]; do sleep 0.01; done",
                _ => "echo broken >&2; echo 'result: 1 passed, 2 failed, 0 skipped'; exit 1",
            };
            command.args(["-c", script]).current_dir(root.path());
            command
        };
        let mut ended = run_all(root.path(), &["one", "two", "three"], &script).unwrap();
        ended.sort_by_key(|ended| ended.step);
        let passed: Vec<_> = ended.iter().map(|ended| (ended.step, ended.passed)).collect();
        assert_eq!(passed, [("one", true), ("three", false), ("two", true)]);
        assert_eq!(ended[0].announced, ["SKIPPED: a: b"]);
        assert_eq!(ended[1].tally, Tally { passed: 1, failed: 2, skipped: 0 });
    }
}
