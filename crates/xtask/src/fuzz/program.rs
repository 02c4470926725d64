//! Runs the program of one fuzz target, and reads its figures from libFuzzer's output.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::build::{CRATE, PROFILE};
use super::unusable;
use crate::cargo::host_triple;
use crate::command::make_directory;

/// Longest input in bytes; longer inputs find no more faults.
const INPUT_BYTES_MAX: u64 = 4096;
/// Limit of the time for one input, which on a busy machine only a hanging program exceeds.
const INPUT_SECONDS_MAX: u64 = 60;
/// Limit of a program's memory. AddressSanitizer needs the most of it.
const MEMORY_MIB_MAX: u64 = 1024;
/// The sanitizer's settings. The quarantine of freed memory would be most of the memory otherwise.
const SANITIZER: &str = "quarantine_size_mb=16:detect_odr_violation=0";
/// Interval of the lines about a running target.
const PROGRESS: Duration = Duration::from_secs(30);
/// Time between two checks whether a program has ended.
const LOOK: Duration = Duration::from_millis(100);
/// Lines of the output that are repeated if a target has found a failure.
const EXCERPT_LINES: usize = 40;

/// What remains of the new inputs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Save {
    Nothing,
    /// Those that reach what no other does; the next run begins with them.
    NewInputs,
}

/// The program of a target, and its files.
pub(super) struct Program {
    pub(super) name: String,
    path: PathBuf,
    /// Inputs in the repository.
    kept: PathBuf,
    /// Inputs of earlier runs.
    saved: PathBuf,
    /// Inputs of this run.
    fresh: PathBuf,
    log: PathBuf,
    /// The path of a failing input, without the end of its name.
    failing: PathBuf,
}

/// The figures of a run.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Figures {
    pub(super) seconds: u64,
    pub(super) executions: u64,
    /// Edges of the control flow that the inputs have reached.
    pub(super) coverage: u64,
    pub(super) peak_mib: u64,
}

impl Program {
    /// Names the files of a target below the directory of all targets.
    pub(super) fn new(root: &Path, output: &Path, name: &str) -> Result<Program, String> {
        Ok(Program {
            name: name.to_owned(),
            path: output.join(host_triple()?).join(PROFILE).join(name),
            kept: root.join(CRATE).join("corpus").join(name),
            saved: output.join("corpus").join(name),
            fresh: output.join("fresh").join(name),
            log: output.join("logs").join(name),
            failing: output.join("failures").join(format!("{name}-")),
        })
    }

    /// Runs the target for so long, with lines about its progress.
    pub(super) fn run(&self, seconds: u64, save: Save) -> Result<Figures, String> {
        self.prepare()?;
        println!("fuzz: {} for {seconds} s", self.name);
        let began = Instant::now();
        let mut command = self.command();
        command.arg(format!("-max_total_time={seconds}")).arg("-print_final_stats=1");
        command.arg(&self.fresh).arg(&self.kept);
        if save == Save::NewInputs {
            command.arg(&self.saved);
        }
        let status = self.wait(&mut command, seconds)?;
        let output = read(&self.log)?;
        if !status.success() {
            return Err(self.describe(status, &output));
        }
        if save == Save::NewInputs {
            self.minimise()?;
        }
        Ok(Figures { seconds: began.elapsed().as_secs(), ..Figures::read(&output) })
    }

    fn prepare(&self) -> Result<(), String> {
        if self.fresh.exists() {
            fs::remove_dir_all(&self.fresh).map_err(unusable(&self.fresh))?;
        }
        make_directory(&self.fresh)?;
        make_directory(&self.saved)?;
        let files = [&self.log, &self.failing];
        files.into_iter().filter_map(|file| file.parent()).try_for_each(make_directory)
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        command.env("ASAN_OPTIONS", SANITIZER);
        command.arg(format!("-max_len={INPUT_BYTES_MAX}"));
        command.arg(format!("-timeout={INPUT_SECONDS_MAX}"));
        command.arg(format!("-rss_limit_mb={MEMORY_MIB_MAX}"));
        command.arg(format!("-artifact_prefix={}", self.failing.display()));
        command
    }

    /// Runs a command with its output in the log.
    fn wait(&self, command: &mut Command, seconds: u64) -> Result<ExitStatus, String> {
        let log = File::create(&self.log).map_err(unusable(&self.log))?;
        let failed = |error| format!("cannot run {}: {error}", self.path.display());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let mut child = command.spawn().map_err(failed)?;
        let began = Instant::now();
        let mut next = PROGRESS;
        loop {
            if let Some(status) = child.try_wait().map_err(failed)? {
                return Ok(status);
            }
            thread::sleep(LOOK);
            if began.elapsed() >= next {
                let output = read(&self.log)?;
                let last = output.lines().rev().find(|line| line.starts_with('#'));
                let last = last.unwrap_or_default().replace('\t', " ");
                println!("fuzz: {} {} s of {seconds}: {last}", self.name, next.as_secs());
                next += PROGRESS;
            }
        }
    }

    /// Saves the new inputs that reach what no other does.
    fn minimise(&self) -> Result<(), String> {
        let merged = self.saved.with_extension("merged");
        if merged.exists() {
            fs::remove_dir_all(&merged).map_err(unusable(&merged))?;
        }
        make_directory(&merged)?;
        let mut command = self.command();
        let status = command
            .arg("-merge=1")
            .args([&merged, &self.kept, &self.saved, &self.fresh])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        if !status.is_ok_and(|status| status.success()) {
            return Err(format!(
                "cannot minimise the inputs of {}; {} has those of this run",
                self.name,
                self.fresh.display()
            ));
        }
        fs::remove_dir_all(&self.saved).map_err(unusable(&self.saved))?;
        fs::rename(&merged, &self.saved).map_err(unusable(&self.saved))
    }

    /// Describes a failure that the target has found.
    fn describe(&self, status: ExitStatus, output: &str) -> String {
        let lines: Vec<&str> = output.lines().collect();
        let end = lines[lines.len().saturating_sub(EXCERPT_LINES)..].join("\n");
        let input = output.lines().find_map(|line| line.split_once("Test unit written to "));
        let input = input.map_or("FILE", |(_, path)| path);
        let Program { name, log, .. } = self;
        format!(
            "{end}\nfuzz target {name} ended with {status}; {} has all its output; run the input \
             again with `cargo run --package fuzz-targets --bin {name} -- {input}`",
            log.display()
        )
    }
}

impl Figures {
    /// Reads the output of libFuzzer; the time is not in it.
    fn read(output: &str) -> Figures {
        let number = |text: &str| {
            let digits = text.trim_start().split(|c: char| !c.is_ascii_digit()).next();
            digits.and_then(|digits| digits.parse().ok()).unwrap_or(0)
        };
        let after = |name: &str| {
            let found = output.lines().rev().find_map(|line| line.split_once(name));
            found.map_or(0, |(_, text)| number(text))
        };
        Figures {
            seconds: 0,
            executions: after("stat::number_of_executed_units:"),
            coverage: after(" cov: "),
            peak_mib: after("stat::peak_rss_mb:"),
        }
    }
}

fn read(path: &Path) -> Result<String, String> {
    let bytes = fs::read(path).map_err(unusable(path))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_those_of_the_last_lines() {
        let output = "INFO: seed corpus: files: 3 min: 1b max: 9b total: 12b rss: 30Mb\n\
                      #4\tINITED cov: 8 ft: 9 corp: 3/9b exec/s: 0 rss: 30Mb\n\
                      #4096\tpulse  cov: 21 ft: 30 corp: 5/30b lim: 8 exec/s: 2048 rss: 31Mb\n\
                      Done 5000 runs in 2 second(s)\n\
                      stat::number_of_executed_units: 5000\n\
                      stat::average_exec_per_sec:     2500\n\
                      stat::peak_rss_mb:              64\n";
        let figures = Figures { seconds: 0, executions: 5000, coverage: 21, peak_mib: 64 };
        assert_eq!(Figures::read(output), figures);
        assert_eq!(Figures::read(""), Figures::default());
    }
}
