//! Runs an external client: a command, restricted to some CPUs, and its use of CPU time.

use std::io::{Read, pipe};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};

use crate::error::{Context, Error, Result};
use crate::sys::affinity;
use crate::sys::clock::now_ns;
use crate::sys::signals::{Signals, die_with, unblock_all};
use crate::sys::{cpu_ns, process_tree};

/// Most bytes of a command's output that are kept.
const MOST_OUTPUT_BYTES: u64 = 64 * 1024;

/// The end of a command.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    /// User and system time of the process, its threads, and the children that it waited for.
    pub(crate) cpu_ns: u64,
}

/// The result of a command from its start to its end.
pub(crate) struct Run {
    /// Its output, errors included; only the first part if it is long.
    pub(crate) text: String,
    /// `None` if it did not end in time.
    pub(crate) ended: Option<Ended>,
}

/// Runs a command on `cpus` and kills it if it does not end within `limit`.
pub(crate) fn run_to_end(
    words: &[String],
    cpus: &[usize],
    limit: Duration,
    signals: &Signals,
) -> Result<Run> {
    const REMEDY: &str = "raise `ulimit -n`";
    let (mut reading, writing) = pipe().context("make a pipe", REMEDY)?;
    let errors = writing.try_clone().context("copy a descriptor", REMEDY)?;
    let output = [Stdio::from(writing), Stdio::from(errors)];
    let mut command = External::start(words, cpus, output)?;
    // Read on a thread of its own, so that a program that prints a lot does not block.
    let reader = thread::Builder::new().spawn(move || {
        let mut bytes = Vec::new();
        let _ = reading.by_ref().take(MOST_OUTPUT_BYTES).read_to_end(&mut bytes);
        let _ = std::io::copy(&mut reading, &mut std::io::sink());
        String::from_utf8_lossy(&bytes).into_owned()
    });
    let reader = reader.context("start a thread", "raise `ulimit -u`")?;
    let ended = command.wait(limit, signals)?.copied();
    // Kills a command that still runs, so that the reader ends.
    drop(command);
    Ok(Run { text: reader.join().unwrap_or_default(), ended })
}

/// A running command; dropping it kills its process group and reaps it.
pub(crate) struct External {
    process: Pid,
    ended: Option<Ended>,
}

impl External {
    /// Starts a command on `cpus`, with stdout and stderr redirected.
    pub(crate) fn start(words: &[String], cpus: &[usize], output: [Stdio; 2]) -> Result<External> {
        let (program, arguments) = words
            .split_first()
            .ok_or_else(|| Error::setup("the command is empty", "name a program"))?;
        let mut command = Command::new(program);
        let [stdout, stderr] = output;
        command.args(arguments).stdin(Stdio::null()).stdout(stdout).stderr(stderr);
        command.process_group(0);
        let set = affinity::set_of(cpus);
        let parent = std::process::id();
        let prepare = move || {
            die_with(parent)?;
            unblock_all();
            affinity::restrict_to(&set)
        };
        // SAFETY: the closure runs between fork and exec and makes only async-signal-safe calls.
        unsafe { command.pre_exec(prepare) };
        let child = command.spawn().context(
            format!("start `{}`", words.join(" ")),
            "install the program or write its path; words are separated by blanks, without a shell",
        )?;
        // The process is waited for by wait4, which reports the CPU time; the standard library does
        // not.
        Ok(External { process: Pid::from_child(&child), ended: None })
    }

    /// Returns the number of its open files and sockets; 0 if it has ended.
    pub(crate) fn open_files(&self) -> usize {
        let directory = format!("/proc/{}/fd", self.process.as_raw_pid());
        std::fs::read_dir(directory).map_or(0, Iterator::count)
    }

    /// CPU time of the process and all its descendants so far.
    pub(crate) fn cpu_time_ns(&self) -> u64 {
        process_tree::cpu_time_ns(self.process.as_raw_nonzero().get() as u32)
    }

    /// Returns whether the command has ended by itself.
    pub(crate) fn has_ended(&mut self) -> bool {
        self.reap(libc::WNOHANG);
        self.ended.is_some()
    }

    /// Waits for the end; `None` if it does not come in time.
    pub(crate) fn wait(&mut self, limit: Duration, signals: &Signals) -> Result<Option<&Ended>> {
        let deadline_ns = now_ns() + limit.as_nanos() as u64;
        while !self.has_ended() && now_ns() < deadline_ns {
            signals.sleep_ms(5)?;
        }
        Ok(self.ended.as_ref())
    }

    fn reap(&mut self, options: libc::c_int) {
        if self.ended.is_some() {
            return;
        }
        let (process, mut status) = (self.process.as_raw_pid(), 0);
        // SAFETY: rusage is plain data for which all zeros is valid.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: status and usage are valid for writes; the process is a child that was not reaped
        // yet.
        let answer = unsafe { libc::wait4(process, &mut status, options, &mut usage) };
        if answer == process {
            let status = ExitStatus::from_raw(status);
            self.ended = Some(Ended { status, cpu_ns: cpu_ns(&usage) });
        }
    }
}

impl Drop for External {
    fn drop(&mut self) {
        if !self.has_ended() {
            // The process group belongs to the child, which is not reaped yet.
            let _ = kill_process_group(self.process, Signal::KILL);
            self.reap(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::test_kill_process;

    use super::*;

    fn start(words: &[&str], cpus: &[usize]) -> Result<External> {
        let words: Vec<String> = words.iter().copied().map(str::to_owned).collect();
        External::start(&words, cpus, [Stdio::null(), Stdio::inherit()])
    }

    #[test]
    fn commands_are_pinned_waited_for_and_accounted_for() {
        let cpu = *affinity::allowed_cpus().unwrap().last().unwrap();
        let signals = Signals::block();
        let limit = Duration::from_secs(30);
        let pattern = format!("Cpus_allowed_list:.*[[:space:]]{cpu}$");
        let mut command = start(&["grep", "-q", &pattern, "/proc/self/status"], &[cpu]).unwrap();
        let ended = command.wait(limit, &signals).unwrap().unwrap();
        assert!(ended.status.success() && ended.cpu_ns > 0, "{ended:?}");
        // Ctrl-C must reach the command although this process blocks the signal.
        let unblocked = ["grep", "-q", "SigBlk:.*[[:space:]]0*$", "/proc/self/status"];
        let mut command = start(&unblocked, &[cpu]).unwrap();
        assert!(command.wait(limit, &signals).unwrap().unwrap().status.success());
    }

    #[test]
    fn a_command_that_goes_on_is_killed() {
        let mut command = start(&["sleep", "1000"], &affinity::allowed_cpus().unwrap()).unwrap();
        let process = command.process;
        let limit = Duration::from_millis(20);
        assert!(command.wait(limit, &Signals::block()).unwrap().is_none());
        drop(command);
        assert!(test_kill_process(process).is_err(), "it has ended");
    }

    #[test]
    fn absent_programs_are_an_error() {
        let error = start(&["no-such-client"], &[0]).err().unwrap().to_string();
        assert!(error.contains("install the program"), "{error}");
    }
}
