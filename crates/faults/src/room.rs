//! The worker's own namespaces, in which everything that a run leaves behind is visible; starts
//! programs there.
//!
//! A worker is the first process of its PID namespace and has its own network, `/tmp`, `/run` and
//! `/dev/shm`. What other programs of the machine do is not seen, and nothing that a run leaves
//! behind outlives the worker.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::mount::{MountFlags, mount};

use crate::notify::PAUSE;
use crate::tracer::{Plan, Trace, Traced, descriptors};

/// The directories in which programs leave files.
const DIRECTORIES: [&str; 3] = ["/tmp", "/run", "/dev/shm"];

/// The harness's own files, which are no leftovers.
const OWN: &str = "/tmp/room";

/// Time after which a program hangs; no program needs a tenth of it.
pub(crate) const TIME_LIMIT: Duration = Duration::from_secs(20);

/// The longest time in which what ends by itself may end: processes, descriptors of servers.
pub(crate) const SETTLE_TIME: Duration = Duration::from_secs(10);

/// The worker's namespaces.
#[derive(Debug)]
pub(crate) struct Room {
    programs: PathBuf,
    outputs: u32,
}

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Exited(i32),
    Killed(i32),
    Hangs,
}

/// The end of a program, and what it wrote to its standard error.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) end: End,
    pub(crate) errors: String,
}

/// A running program; killed when dropped.
#[derive(Debug)]
pub(crate) struct Running {
    child: Child,
    traced: Option<Traced>,
    errors: PathBuf,
}

impl Room {
    /// Prepares the namespaces, which unshare(1) has made.
    pub(crate) fn enter(programs: PathBuf) -> io::Result<Room> {
        if programs.starts_with("/tmp") || programs.starts_with("/run") {
            let why = "the programs are below /tmp or /run, where each worker has files of its \
                       own; set CARGO_TARGET_DIR to another directory";
            return Err(io::Error::other(why));
        }
        for directory in DIRECTORIES {
            mount("tmpfs", directory, "tmpfs", MountFlags::empty(), None)?;
        }
        fs::create_dir(OWN)?;
        let up = Command::new("ip").args(["link", "set", "lo", "up"]).status()?;
        if !up.success() {
            return Err(io::Error::other(format!("ip link set lo up: {up}")));
        }
        Ok(Room { programs, outputs: 0 })
    }

    /// Returns the command for a program of the workspace.
    pub(crate) fn program(&self, name: &str) -> Command {
        Command::new(self.file(name))
    }

    /// Returns the path of a file that cargo built.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.programs.join(name)
    }

    /// Returns the path of a file of the harness.
    pub(crate) fn own(&self, name: &str) -> PathBuf {
        Path::new(OWN).join(name)
    }

    /// Starts a program.
    pub(crate) fn spawn(&mut self, mut command: Command) -> io::Result<Running> {
        let errors = self.prepare(&mut command)?;
        Ok(Running { child: command.spawn()?, traced: None, errors })
    }

    /// Starts a program whose calls are counted, and carries the plan out.
    pub(crate) fn spawn_traced(
        &mut self,
        mut command: Command,
        plan: Option<Plan>,
        allowed: Option<i64>,
    ) -> io::Result<Running> {
        let errors = self.prepare(&mut command)?;
        let (child, traced) = Traced::spawn(&mut command, plan, allowed)?;
        Ok(Running { child, traced: Some(traced), errors })
    }

    fn prepare(&mut self, command: &mut Command) -> io::Result<PathBuf> {
        self.outputs += 1;
        let errors = self.own(&format!("errors-{}", self.outputs));
        command
            .env("RUST_BACKTRACE", "0")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::create(&errors)?);
        Ok(errors)
    }

    /// Waits until nothing more is left than in `before`; returns and removes what is.
    pub(crate) fn leftovers(&self, before: &Leftovers) -> Vec<String> {
        let settled = wait(SETTLE_TIME, || Leftovers::find().beyond(before).is_empty());
        if settled {
            return Vec::new();
        }
        let left = Leftovers::find().beyond(before);
        for process in left.iter().filter_map(|what| what.strip_prefix("process ")) {
            let pid = process.split(' ').next().and_then(|number| number.parse().ok());
            // SAFETY: plain numbers; the process is in this worker's PID namespace.
            let _ = pid.map(|pid| unsafe { libc::kill(pid, libc::SIGKILL) });
        }
        for file in left.iter().filter_map(|what| what.strip_prefix("file ")) {
            let _ = fs::remove_file(file).or_else(|_| fs::remove_dir_all(file));
        }
        left
    }
}

impl Running {
    /// Waits for a line on standard output. `None` if the program has ended or hangs.
    pub(crate) fn line(&mut self) -> Option<String> {
        let output = self.child.stdout.as_mut()?;
        let limit = Timespec::try_from(TIME_LIMIT).ok()?;
        let mut line = Vec::new();
        while !line.ends_with(b"\n") {
            let mut fds = [PollFd::from_borrowed_fd(output.as_fd(), PollFlags::IN)];
            if poll(&mut fds, Some(&limit)).ok()? == 0 {
                return None;
            }
            let mut byte = [0];
            if output.read(&mut byte).ok()? == 0 {
                return None;
            }
            line.push(byte[0]);
        }
        String::from_utf8(line).ok()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Whether the plan was carried out.
    pub(crate) fn is_hit(&self) -> bool {
        self.traced.as_ref().is_some_and(|traced| traced.is_hit())
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: i32) {
        // SAFETY: plain numbers; the child was not waited for, so the number is its own.
        unsafe { libc::kill(self.child.id() as i32, signal) };
    }

    /// Waits for the end; kills what hangs.
    pub(crate) fn end(mut self) -> (Ended, Trace) {
        let mut status = None;
        wait(TIME_LIMIT, || {
            status = self.child.try_wait().ok().flatten();
            status.is_some()
        });
        let end = match status {
            Some(status) => match (status.code(), status.signal()) {
                (Some(code), _) => End::Exited(code),
                (None, signal) => End::Killed(signal.unwrap_or(0)),
            },
            None => End::Hangs,
        };
        if status.is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        let errors = fs::read(&self.errors).unwrap_or_default();
        let _ = fs::remove_file(&self.errors);
        let errors = String::from_utf8_lossy(&errors).into_owned();
        let Some(traced) = self.traced.take() else {
            return (Ended { end, errors }, Trace::default());
        };
        let others_end = wait(SETTLE_TIME, || traced.has_ended());
        if !others_end {
            kill_traced();
        }
        let mut trace = traced.end();
        if !others_end {
            trace.error = Some("a process of the program outlives it".into());
        }
        (Ended { end, errors }, trace)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.is_alive() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Kills the traced processes, which have more filters than this process.
fn kill_traced() {
    let filters = |pid: u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let count = status.lines().find_map(|line| line.strip_prefix("Seccomp_filters:"));
        count.and_then(|count| count.trim().parse::<u32>().ok()).unwrap_or(0)
    };
    let own = std::process::id();
    for (pid, _) in processes() {
        if pid != own && filters(pid) > filters(own) {
            // SAFETY: plain numbers.
            unsafe { libc::kill(pid as i32, libc::SIGKILL) };
        }
    }
}

/// Waits for a condition; returns whether it held before the time-out.
pub(crate) fn wait(limit: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let begin = Instant::now();
    while !holds() {
        if begin.elapsed() > limit {
            return false;
        }
        thread::sleep(PAUSE);
    }
    true
}

/// Waits until a server has no more descriptors than before; returns how many more it has.
pub(crate) fn descriptors_beyond(pid: u32, before: usize) -> usize {
    let more = || descriptors(pid).unwrap_or(0).saturating_sub(before);
    wait(SETTLE_TIME, || more() == 0);
    more()
}

/// What runs of programs may leave behind, as sentences.
#[derive(Clone, Debug, Default)]
pub(crate) struct Leftovers(BTreeSet<String>);

impl Leftovers {
    /// Finds everything that exists now.
    pub(crate) fn find() -> Leftovers {
        reap();
        let mut found = BTreeSet::new();
        for (pid, _) in processes().into_iter().filter(|(pid, _)| *pid != std::process::id()) {
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            found.insert(format!("process {pid} {}", name.trim()));
        }
        DIRECTORIES.iter().for_each(|directory| files(Path::new(directory), &mut found));
        let column = |path: &str, index: usize, found: &mut BTreeSet<String>, what: &str| {
            let text = fs::read_to_string(path).unwrap_or_default();
            let words = text.lines().skip(1).filter_map(|line| line.split_whitespace().nth(index));
            found.extend(words.map(|word| format!("{what} {word}")));
        };
        column("/proc/net/unix", 7, &mut found, "socket");
        column("/proc/net/dev", 0, &mut found, "interface");
        Leftovers(found)
    }

    fn beyond(&self, before: &Leftovers) -> Vec<String> {
        self.0.difference(&before.0).cloned().collect()
    }
}

/// Reaps processes that lost their parent and became children of this one.
fn reap() {
    for (pid, parent) in processes() {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let is_zombie = stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('Z'));
        if is_zombie && parent == std::process::id() {
            // SAFETY: the status is not asked for. Children of `Command` are waited for before
            // leftovers are looked for, or are servers that run.
            unsafe { libc::waitpid(pid as i32, std::ptr::null_mut(), libc::WNOHANG) };
        }
    }
}

/// Returns the processes of the namespace with their parents.
fn processes() -> Vec<(u32, u32)> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let parent = |pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        Some((pid, stat.rsplit(") ").next()?.split(' ').nth(1)?.parse().ok()?))
    };
    numbers.filter_map(parent).collect()
}

fn files(directory: &Path, found: &mut BTreeSet<String>) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for path in
        entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|p| *p != Path::new(OWN))
    {
        found.insert(format!("file {}", path.display()));
        if path.is_dir() && !path.is_symlink() {
            files(&path, found);
        }
    }
}
