//! Runs child processes: output to a file, a time limit, CPU time, and no process left behind.

use std::fs::{self, File};
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Time between two checks whether a child has ended.
const POLL: Duration = Duration::from_millis(10);

/// How long processes of a child's group may outlive it, such as one that a sanitizer starts at the
/// end of a program.
const LINGER: Duration = Duration::from_secs(3);

/// How a child process ended.
pub(crate) struct Ended {
    /// `None` if the time limit was reached and the child was killed.
    pub(crate) status: Option<ExitStatus>,
    pub(crate) wall: Duration,
    /// CPU time of the child and of its descendants that ended before it.
    pub(crate) cpu: Duration,
    /// Whether a process of the child's group was still alive after it. It is killed.
    pub(crate) left_processes: bool,
}

impl Ended {
    /// Returns the reason of a failure.
    pub(crate) fn failure(&self) -> Option<String> {
        match self.status {
            None => Some(format!("still ran after {} s, and was killed", self.wall.as_secs())),
            Some(status) if !status.success() => Some(status.to_string()),
            Some(_) if self.left_processes => {
                Some("left a process behind, which was killed".to_string())
            }
            Some(_) => None,
        }
    }
}

/// Runs a command in a process group of its own, without input, with its output in `log`.
/// After `limit` the group is killed.
pub(crate) fn run(command: &mut Command, log: &Path, limit: Duration) -> io::Result<Ended> {
    let file = File::create(log)?;
    command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file).process_group(0);
    let started = Instant::now();
    let child = command.spawn()?;
    let id = i32::try_from(child.id()).map_err(io::Error::other)?;
    let mut killed = false;
    let (status, cpu) = loop {
        if let Some(ended) = reap(id)? {
            break ended;
        }
        if !killed && started.elapsed() >= limit {
            kill_group(id);
            killed = true;
        }
        thread::sleep(POLL);
    };
    let left_processes = has_members_after(id, LINGER);
    kill_group(id);
    let status = (!killed).then_some(status);
    Ok(Ended { status, wall: started.elapsed(), cpu, left_processes })
}

/// Takes the status and the CPU time of a child that has ended; `None` if it has not.
fn reap(id: i32) -> io::Result<Option<(ExitStatus, Duration)>> {
    let mut status = 0;
    // SAFETY: `rusage` consists of integers, for which zero is a valid value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers lead to variables that live during the call. The child is reaped here
    // only, because `Child` is never waited for.
    match unsafe { libc::wait4(id, &raw mut status, libc::WNOHANG, &raw mut usage) } {
        0 => Ok(None),
        -1 => match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::Interrupted => Ok(None),
            error => Err(error),
        },
        _ => {
            let cpu = duration(usage.ru_utime) + duration(usage.ru_stime);
            Ok(Some((ExitStatus::from_raw(status), cpu)))
        }
    }
}

fn duration(time: libc::timeval) -> Duration {
    let seconds = Duration::from_secs(u64::try_from(time.tv_sec).unwrap_or(0));
    seconds + Duration::from_micros(u64::try_from(time.tv_usec).unwrap_or(0))
}

/// Kills all processes of a group, if it has any.
fn kill_group(id: i32) {
    // SAFETY: kill(2) takes no pointers. A group keeps its number while it has a member.
    unsafe { libc::kill(-id, libc::SIGKILL) };
}

/// Waits until no process of a group runs; returns whether one still does after the time.
fn has_members_after(id: i32, time: Duration) -> bool {
    let deadline = Instant::now() + time;
    while has_members(id) {
        if Instant::now() >= deadline {
            return true;
        }
        thread::sleep(POLL);
    }
    false
}

/// Returns whether a process of the group runs: one that has ended but was not reaped does not.
fn has_members(id: i32) -> bool {
    // SAFETY: kill(2) takes no pointers; signal 0 is not sent.
    if unsafe { libc::kill(-id, 0) } != 0 {
        return false;
    }
    let Ok(processes) = fs::read_dir("/proc") else { return true };
    processes.flatten().any(|process| {
        let status = fs::read_to_string(process.path().join("stat")).unwrap_or_default();
        // `PID (NAME) STATE PARENT GROUP ...`; the name may contain anything.
        let fields = status.rsplit_once(')').map_or("", |(_, fields)| fields);
        let mut fields = fields.split_whitespace();
        let runs = fields.next().is_some_and(|state| state != "Z" && state != "X");
        runs && fields.nth(1) == Some(id.to_string().as_str())
    })
}

/// Prepares this process for its children: default actions for the signals that tests send, which
/// a shell without job control ignores in background jobs, and the hard limit of descriptors.
pub(crate) fn prepare() {
    for signal in [libc::SIGINT, libc::SIGQUIT, libc::SIGUSR1, libc::SIGUSR2, libc::SIGTERM] {
        // SAFETY: SIG_DFL is a valid action for each of these signals.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the pointer leads to a variable that lives during both calls.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration) -> (Ended, String) {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("log");
        let ended = run(Command::new("sh").args(["-c", script]), &log, limit).unwrap();
        (ended, fs::read_to_string(log).unwrap())
    }

    #[test]
    fn both_outputs_and_the_status_are_kept() {
        let (ended, log) = shell("echo out; echo err >&2; exit 3", Duration::from_secs(60));
        assert_eq!(log, "out\nerr\n");
        assert_eq!(ended.failure().as_deref(), Some("exit status: 3"));
    }

    #[test]
    fn a_child_that_hangs_is_killed_with_its_own_children() {
        let (ended, _) = shell("sleep 600 & sleep 600", Duration::ZERO);
        assert!(ended.status.is_none());
        assert!(ended.failure().unwrap().contains("was killed"));
    }

    #[test]
    fn a_process_that_is_left_behind_is_a_failure() {
        let (ended, _) = shell("sleep 600 & exit 0", Duration::from_secs(60));
        assert!(ended.left_processes && ended.failure().unwrap().contains("left a process"));
        let (ended, _) = shell("sleep 0 & wait", Duration::from_secs(60));
        assert_eq!(ended.failure(), None);
    }
}
